//! The things that this machine lacks, said before anything is tried.

use crate::cgroup::Cgroups;
use crate::layout::Layout;
use crate::runtime::Runtime;
use crate::spec::RuntimeChoice;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Something that is needed and not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The thing that is missing.
    pub what: String,
    /// The purpose.
    pub why: String,
    /// The way to get it.
    pub how_to_get: String,
}

/// Oldest kernel that has all that we call, as (major, minor): recursive read-only mounts (5.12)
/// and `cgroup.kill` aside, the mount calls and pidfds would do with 5.8.
const MIN_KERNEL: (u32, u32) = (5, 12);

/// The things that domains of either kind need and this machine lacks; empty when all is there.
#[must_use]
pub fn check_host(layout: &Layout) -> Vec<Missing> {
    let mut missing = Vec::new();
    let mut lack = |what: String, why: &str, how: &str| {
        missing.push(Missing { what, why: why.to_owned(), how_to_get: how.to_owned() });
    };
    if !rustix::process::geteuid().is_root() {
        lack("root privileges".into(), "namespaces, mounts and cgroups", "run it as root, such as with sudo");
    }
    if let Some(version) = kernel().filter(|v| *v < MIN_KERNEL) {
        let what = format!(
            "a kernel of {}.{} or later (this is {}.{})",
            MIN_KERNEL.0, MIN_KERNEL.1, version.0, version.1
        );
        lack(what, "recursive read-only mounts, pidfds", "upgrade the kernel; Debian 12 has 6.1");
    }
    if let Err(error) = Runtime::choose(layout, RuntimeChoice::Auto) {
        lack(
            "an OCI runtime".into(),
            &format!("domains of kind container ({error})"),
            "apt-get install runc",
        );
    }
    if !Path::new("/dev/fuse").exists() {
        lack(
            "/dev/fuse".into(),
            "the service tree /srv in each domain",
            "modprobe fuse; in a container: --device /dev/fuse",
        );
    }
    for (file, name) in [
        ("mnt", "mount"),
        ("pid", "pid"),
        ("net", "net"),
        ("ipc", "ipc"),
        ("uts", "uts"),
        ("cgroup", "cgroup"),
    ] {
        if !Path::new("/proc/self/ns").join(file).exists() {
            lack(
                format!("{name} namespaces"),
                "isolation of domains",
                "a kernel with CONFIG_NAMESPACES and its options",
            );
        }
    }
    check_cgroups(&mut lack);
    if !overlay() {
        lack(
            "the overlay file system".into(),
            "roots of kind directory and image",
            "modprobe overlay (CONFIG_OVERLAY_FS)",
        );
    }
    missing
}

fn check_cgroups(lack: &mut impl FnMut(String, &str, &str)) {
    let mount = "mount -t cgroup2 cgroup2 /sys/fs/cgroup, or run where it is mounted writably";
    let Ok(cgroups) = Cgroups::discover() else {
        return lack("/proc".into(), "everything", "mount -t proc proc /proc");
    };
    if !cgroups.usable() {
        return lack("a cgroup hierarchy".into(), "holding the processes of a domain together", mount);
    }
    if let Some(place) = cgroups.read_only() {
        let what = format!("the right to write to {}, which is mounted read-only", place.display());
        return lack(what, "holding the processes of a domain together, and keeping what is promised", mount);
    }
    for (controller, why) in [("cpu", "limits.cpu"), ("memory", "limits.memory"), ("pids", "limits.pids")] {
        if !cgroups.offers(controller) {
            lack(
                format!("the cgroup controller `{controller}`"),
                why,
                "boot without cgroup_disable, and see that a parent cgroup passes it on",
            );
        }
    }
}

fn kernel() -> Option<(u32, u32)> {
    let uname = rustix::system::uname();
    let mut numbers = uname.release().to_str().ok()?.split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Built in or loaded, or a module that the kernel loads when asked for.
fn overlay() -> bool {
    let loaded = fs::read_to_string("/proc/filesystems")
        .is_ok_and(|t| t.lines().any(|l| l.trim_end().ends_with("\toverlay")));
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    loaded || Path::new("/lib/modules").join(release).join("kernel/fs/overlayfs").exists()
}
