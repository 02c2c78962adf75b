//! A virtual machine, admitted.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The machine of a domain of kind `vm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Processors that the guest sees.
    pub cpus: u32,
    /// Memory that the guest sees, in bytes: a whole number of MiB.
    pub memory_bytes: u64,
    /// The accelerator that runs its instructions.
    pub accel: Accel,
    /// The kernel that it boots.
    pub kernel: MachineKernel,
    /// The words added to the kernel's command line; always empty with [`MachineKernel::Disk`].
    pub append: String,
    /// How long it may take from power-on until its agent speaks, in ms.
    #[serde(default = "boot_timeout_ms")]
    pub boot_timeout_ms: u64,
    /// Its disk.
    pub disk: Option<Disk>,
}

/// The default for topologies admitted before the file had the key.
fn boot_timeout_ms() -> u64 {
    crate::bounds::MACHINE_BOOT_MS_DEFAULT
}

/// The accelerator that runs a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accel {
    /// KVM where it works, emulation otherwise.
    Auto,
    /// KVM, or nothing.
    Kvm,
    /// Emulation.
    Tcg,
}

impl Accel {
    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// The kernel that a machine boots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "kebab-case", deny_unknown_fields)]
pub enum MachineKernel {
    /// A kernel and an initramfs that the node makes of an installed or unpacked kernel package.
    Built {
        /// The root directory of the package, absolute; `None` is whichever the node has.
        directory: Option<PathBuf>,
    },
    /// These files of the node.
    Files {
        /// The kernel, absolute.
        kernel: PathBuf,
        /// The initramfs, absolute; `None` only with a disk that holds a system.
        initramfs: Option<PathBuf>,
    },
    /// The kernel that the disk's boot loader chooses; only with a disk that holds a system.
    Disk,
}

/// A machine's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The file on the node, absolute.
    pub path: PathBuf,
    /// The format of its bytes; never guessed.
    pub format: DiskFormat,
    /// Whether the guest may only read it.
    pub read_only: bool,
    /// The disk's content.
    pub holds: DiskHolds,
}

/// The format of a disk's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskFormat {
    /// The sectors, one after the other.
    Raw,
    /// QEMU's own format.
    Qcow2,
}

impl DiskFormat {
    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// The content of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskHolds {
    /// An ext4 file system, which the domain's command sees as `/`.
    Root,
    /// A whole system that starts our agent by itself.
    System,
    /// Something that the guest finds at `/dev/vda`.
    Data,
}

impl DiskHolds {
    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::System => "system",
            Self::Data => "data",
        }
    }
}
