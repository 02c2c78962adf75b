//! The order of a machine process, as the daemon has written it.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;
use wire::guest::{Boot, MAX_PAYLOAD_BYTES};

/// Name of the order's file in the machine's directory.
pub const ORDER_FILE: &str = "order.json";
/// Name of the socket in the machine's directory, at which `exec` asks.
pub const SOCKET_FILE: &str = "machine.sock";
/// Where the machine process finds its directory.
pub const DIRECTORY: &str = "/run/machine";
/// Longest order, in bytes: environment and `resolv.conf` are the longest things in it, and the
/// topology bounds both.
pub const MAX_ORDER_BYTES: u64 = 1 << 20;
/// Most processors of a guest: QEMU's bound for q35, less what nobody needs.
pub const MAX_CPUS: u32 = 255;
/// Least memory of a guest, in bytes: below it no kernel of today comes up.
pub const MIN_MEMORY_BYTES: u64 = 32 << 20;

/// Time from power-on to the agent's first words where the order does not say, in ms.
pub const BOOT_MS: u64 = 120_000;

/// The order of a machine: the file [`ORDER_FILE`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineOrder {
    /// The emulator, an absolute path.
    pub qemu: PathBuf,
    /// The executor of the guest's instructions.
    pub accel: Accel,
    /// Processors, 1 to [`MAX_CPUS`].
    pub cpus: u32,
    /// Memory of the guest, in bytes; at least [`MIN_MEMORY_BYTES`], rounded down to whole KiB.
    pub memory_bytes: u64,
    /// The kernel; without one the disk boots itself, by the firmware.
    #[serde(default)]
    pub kernel: Option<PathBuf>,
    /// The kernel's initramfs; needs `kernel`.
    #[serde(default)]
    pub initramfs: Option<PathBuf>,
    /// The words that are added to the kernel's command line.
    #[serde(default)]
    pub append: String,
    /// The first disk, `/dev/vda` of the guest.
    #[serde(default)]
    pub disk: Option<Disk>,
    /// Further disks, over NBD; the guest knows them by their serial numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeDisk>,
    /// Whether the guest has a network card behind which the node stands for it (QEMU's user
    /// network).
    #[serde(default)]
    pub user_network: bool,
    /// How long the guest's agent may take from power-on to its first words, in ms.
    // Left out where it is what it was before it could be said: a later daemon is to find the same
    // machine.
    #[serde(default = "boot_ms", skip_serializing_if = "is_boot_ms")]
    pub boot_ms: u64,
    /// How long the guest may take to end when it is asked to, in ms.
    pub shutdown_ms: u64,
    /// The order of the guest.
    pub boot: Boot,
}

fn boot_ms() -> u64 {
    BOOT_MS
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_boot_ms(ms: &u64) -> bool {
    *ms == BOOT_MS
}

/// The executor of the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    /// KVM where it works, emulation elsewhere.
    #[default]
    Auto,
    /// KVM, or nothing.
    Kvm,
    /// Emulation.
    Tcg,
}

impl Accel {
    /// QEMU's word for it, which is also what `ps` shows.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// A disk of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Its file.
    pub path: PathBuf,
    /// The format of the file. Never guessed: a guest that writes a qcow2 header into a raw disk
    /// would have QEMU open any file.
    pub format: DiskFormat,
    /// Whether the guest can't write to it.
    #[serde(default)]
    pub read_only: bool,
}

/// A disk of the guest that somebody else serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeDisk {
    /// Its serial number, at most 20 bytes (virtio-blk): letters, digits and dashes.
    pub serial: String,
    /// The Unix socket at which it is served by NBD.
    pub socket: PathBuf,
    /// The name of the export.
    pub export: String,
}

/// The format of a disk's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskFormat {
    /// The disk's bytes.
    Raw,
    /// QEMU's format, which is as long as what was written.
    Qcow2,
}

impl DiskFormat {
    /// QEMU's word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// Why an order can't be used.
#[derive(Debug, Error)]
pub enum OrderError {
    /// A file is not there, or can't be read.
    #[error("can't read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is too long.
    #[error("{path} is longer than {MAX_ORDER_BYTES} bytes")]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// It is no order.
    #[error("{path} is not an order for a machine of this version: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A value that makes no machine.
    #[error("{path}: {what}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: &'static str,
    },
}

impl MachineOrder {
    /// Reads and checks the order in the machine's directory, and sees that the files that it names
    /// can be opened.
    ///
    /// # Errors
    /// [`OrderError`].
    pub fn read(directory: &Path) -> Result<Self, OrderError> {
        let path = directory.join(ORDER_FILE);
        let read = |source| OrderError::Read { path: path.clone(), source };
        let mut text = Vec::new();
        File::open(&path).map_err(read)?.take(MAX_ORDER_BYTES + 1).read_to_end(&mut text).map_err(read)?;
        if text.len() as u64 > MAX_ORDER_BYTES {
            return Err(OrderError::TooLong { path });
        }
        let json = |source| OrderError::Json { path: path.clone(), source };
        let order: Self = serde_json::from_slice(&text).map_err(json)?;
        order.check().map_err(|what| OrderError::Value { path, what })?;
        for file in order.files() {
            let read = |source| OrderError::Read { path: file.to_owned(), source };
            let _opens = File::open(file).map_err(read)?;
        }
        Ok(order)
    }

    /// Whether the values make a machine; what is wrong, if not.
    ///
    /// # Errors
    /// The fault, for a person.
    pub fn check(&self) -> Result<(), &'static str> {
        let boot_bytes = serde_json::to_vec(&self.boot).map_or(usize::MAX, |text| text.len());
        let wrong = [
            (!self.qemu.is_absolute(), "`qemu` is not an absolute path"),
            (!(1..=MAX_CPUS).contains(&self.cpus), "`cpus` is not between 1 and 255"),
            (self.memory_bytes < MIN_MEMORY_BYTES, "`memory_bytes` is less than 32 MiB"),
            (self.kernel.is_none() && self.disk.is_none(), "there is neither `kernel` nor `disk`"),
            (self.kernel.is_none() && self.initramfs.is_some(), "`initramfs` needs `kernel`"),
            (self.kernel.is_none() && !self.append.is_empty(), "`append` needs `kernel`"),
            (boot_bytes > MAX_PAYLOAD_BYTES, "`boot` is longer than a frame of the guest's port carries"),
        ];
        wrong.iter().find(|(is, _)| *is).map_or(Ok(()), |(_, what)| Err(what))
    }

    /// The files that QEMU opens.
    fn files(&self) -> impl Iterator<Item = &Path> {
        let disk = self.disk.as_ref().map(|disk| disk.path.as_path());
        [self.kernel.as_deref(), self.initramfs.as_deref(), disk].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::order;

    #[test]
    fn an_order_of_before_is_the_same_order() {
        let text = serde_json::to_value(order()).unwrap();
        assert!(text.get("boot_ms").is_none(), "{text}");
        assert_eq!(serde_json::from_value::<MachineOrder>(text).unwrap(), order());
        let other = MachineOrder { boot_ms: 1, ..order() };
        let text = serde_json::to_string(&other).unwrap();
        assert_eq!(serde_json::from_str::<MachineOrder>(&text).unwrap(), other);
    }

    #[test]
    fn what_makes_no_machine_is_told() {
        assert_eq!(order().check(), Ok(()));
        let told = |change: fn(&mut MachineOrder)| {
            let mut order = order();
            change(&mut order);
            order.check().unwrap_err()
        };
        assert!(told(|order| order.qemu = "qemu".into()).contains("`qemu`"));
        assert!(told(|order| order.cpus = 256).contains("`cpus`"));
        assert!(told(|order| order.memory_bytes = 1 << 20).contains("`memory_bytes`"));
        assert!(told(|order| order.kernel = None).contains("nor `disk`"));
        assert!(told(|order| order.boot.resolv_conf = Some("x".repeat(70_000))).contains("`boot`"));
        let on_disk = |order: &mut MachineOrder| {
            order.kernel = None;
            order.disk = Some(Disk { path: "/d".into(), format: DiskFormat::Raw, read_only: false });
        };
        let mut own = order();
        on_disk(&mut own);
        assert!(own.check().unwrap_err().contains("`initramfs`"));
        own.initramfs = None;
        assert_eq!(own.check(), Ok(()));
    }
}
