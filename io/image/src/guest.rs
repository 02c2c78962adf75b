//! A guest of ours: busybox, our own binary, and an init that makes a machine of it.

use crate::build::{Image, Progress, build};
use crate::error::ImageError;
use crate::kernel::Kernel;
use crate::python::PYTHON;
use crate::spec::Spec;
use std::path::{Path, PathBuf};

/// The program that the guest's init runs where nobody is behind the agent's port; a shell where
/// the image has none. When it ends, the guest switches off.
pub const START: &str = "/etc/tombolo/start";
/// The modules that a guest needs of a kernel like Debian's: FUSE for `/srv`, overlay for roots,
/// and the devices of QEMU.
pub const GUEST_MODULES: [&str; 5] = ["fuse", "overlay", "virtio_pci", "virtio_net", "virtio_console"];
/// The modules that a guest makes use of where the kernel has them: interrupts in programs (without
/// which the node tells by the port who rang), panics that the node hears of, disks and what they
/// are formatted with.
pub const OPTIONAL_MODULES: [&str; 5] = ["vfio-pci", "vfio_iommu_type1", "pvpanic-pci", "virtio_blk", "ext4"];
/// Where our libraries are in a guest.
pub const LIBRARIES: &str = "/usr/lib/tombolo";

/// Below the state directory: images by content.
const CACHE_FOLDER: &str = "guests";
/// Libraries beside our own binary, which a guest gets as far as they are there, and their names in
/// [`LIBRARIES`].
const BESIDE: [(&str, &str); 2] =
    [("libtombolo_preload.so", "libtombolo_preload.so"), ("libtombolo.so", "libtombolo.so.0")];

/// First program of the guest.
const INIT: &str = include_str!("guest/init.sh");
/// Files that programs look at, as a small machine has them.
const FILES: [(&str, &str); 6] = [
    ("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"),
    ("/etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ("/etc/hostname", "guest\n"),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("/etc/os-release", "ID=tombolo-guest\nNAME=\"Tombolo guest\"\n"),
];
/// The folders that init mounts on, and those that programs expect.
const DIRECTORIES: [(&str, u32); 11] = [
    ("/dev", 0o755),
    ("/home", 0o755),
    ("/mnt", 0o755),
    ("/proc", 0o555),
    ("/root", 0o700),
    ("/run", 0o755),
    ("/srv", 0o755),
    ("/sys", 0o555),
    ("/tmp", 0o1777),
    ("/usr/sbin", 0o755),
    ("/var/lib", 0o755),
];

/// Programs that a guest is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestPrograms {
    /// busybox, preferably the static one.
    pub busybox: PathBuf,
    /// Our own binary.
    pub tombolo: PathBuf,
}

impl GuestPrograms {
    /// This machine's busybox, with the binary of ours that is named.
    ///
    /// # Errors
    /// [`ImageError::File`] where there is no busybox.
    pub fn find(tombolo: PathBuf) -> Result<Self, ImageError> {
        Ok(Self { busybox: find_program("busybox")?, tombolo })
    }
}

/// A program of this machine: in `PATH`, or where root would find it.
///
/// # Errors
/// [`ImageError::File`] where it is in none of them.
pub fn find_program(name: &str) -> Result<PathBuf, ImageError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let always = ["/usr/sbin", "/usr/bin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(always).map(|folder| folder.join(name));
    places.find(|place| place.is_file()).ok_or_else(|| {
        ImageError::at(
            "find the program",
            Path::new(name),
            std::io::Error::from(std::io::ErrorKind::NotFound),
        )
    })
}

/// The image of a guest that is a domain and names no kernel of its own: it runs the agent, and has
/// nothing but what every guest has. `kernel` is a directory that looks like `/`; [`Kernel::auto`]
/// chooses where it is absent. Images are kept in the state directory.
///
/// # Errors
/// As of [`build`](crate::build()) and [`Kernel::find`].
pub fn default_guest(
    state_dir: &Path,
    kernel: Option<&Path>,
    tombolo: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Image, ImageError> {
    let kernel = match kernel {
        Some(directory) => Kernel::find(directory)?,
        None => Kernel::auto(state_dir)?,
    };
    let spec = guest(kernel, &GuestPrograms::find(tombolo.to_path_buf())?);
    build(&spec, &cache(state_dir), progress)
}

/// Where the images of a node are kept.
#[must_use]
pub fn cache(state_dir: &Path) -> PathBuf {
    state_dir.join(CACHE_FOLDER)
}

/// The spec of a guest: add what else it shall hold, such as a program at [`START`], and
/// [`build`](crate::build) it.
#[must_use]
pub fn guest(kernel: Kernel, programs: &GuestPrograms) -> Spec {
    let mut spec = Spec::new(kernel);
    spec.modules = GUEST_MODULES.map(str::to_owned).to_vec();
    spec.optional_modules = OPTIONAL_MODULES.map(str::to_owned).to_vec();
    for name in ["bin", "sbin", "lib", "lib64"] {
        spec.link(format!("/{name}"), format!("usr/{name}"));
    }
    for directory in ["/usr/bin", "/usr/lib", "/usr/lib64"] {
        spec.directory(directory, 0o755);
    }
    for (directory, mode) in DIRECTORIES {
        spec.directory(directory, mode);
    }
    for (to, content) in FILES {
        spec.bytes(content, to, 0o644);
    }
    // The kernel opens it for init before anything is mounted.
    spec.entries.push(crate::spec::Entry::Device { to: "/dev/console".into(), mode: 0o600, number: (5, 1) });
    spec.bytes(INIT, "/init", 0o755);
    spec.program(&programs.busybox, "/usr/bin/busybox");
    spec.program(&programs.tombolo, "/usr/bin/tombolo");
    libraries(&mut spec, &programs.tombolo);
    spec
}

/// Channels and names for programs in C and Python.
fn libraries(spec: &mut Spec, tombolo: &Path) {
    let place = Path::new(LIBRARIES);
    for (file, name) in BESIDE {
        let library = tombolo.with_file_name(file);
        if library.is_file() {
            spec.program(library, place.join(name));
        }
    }
    let package = place.join("python/tombolo");
    for (name, text) in PYTHON {
        spec.bytes(*text, package.join(name), 0o644);
    }
}
