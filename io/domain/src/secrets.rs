//! Secrets of a domain: files in memory that it alone sees, and that lie in no file system of the
//! machine.

use crate::error::{Context, Result};
use crate::namespaces::in_mount_namespace;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_remount, move_mount,
};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Where a container reads its secrets, each in a file of its name.
pub const SECRETS: &str = "/run/secrets";
/// Everybody in the domain may read them, as with other container engines: the mount is the
/// domain's own.
const FILE_MODE: Mode = Mode::from_raw_mode(0o444);
/// For the files, and what a file system needs for each.
const SPARE_BYTES: usize = 64 << 10;

/// Attaches a file system in memory with these files, read-only, at a folder in the mount namespace
/// of the process that `init` (a pidfd) stands for: a domain whose command waits. It ends with the
/// domain. Where the kernel can, it is never swapped out.
///
/// # Errors
/// When there is no memory, the process is gone, or the kernel refuses.
pub fn attach_secrets(init: BorrowedFd<'_>, at: &Path, secrets: &[(String, Vec<u8>)]) -> Result<()> {
    let mount = filled(secrets)?;
    in_mount_namespace(init, || attach(&mount, at))?.at("attach the secrets in the domain to", at)
}

fn filled(secrets: &[(String, Vec<u8>)]) -> Result<OwnedFd> {
    let pages: usize = secrets.iter().map(|(_, value)| value.len().next_multiple_of(4096)).sum();
    let size = (pages + SPARE_BYTES).to_string();
    let mount = match in_memory(&size, true) {
        // Before Linux 6.4.
        Err(Errno::INVAL) => in_memory(&size, false),
        made => made,
    };
    let mount = mount.doing("make a file system in memory for secrets")?;
    for (name, value) in secrets {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&mount, name, flags, FILE_MODE).at("make the secret", name)?;
        // Whatever the umask is.
        rustix::fs::fchmod(&file, FILE_MODE).at("open to readers the secret", name)?;
        File::from(file).write_all(value).at("write the secret", name)?;
    }
    Ok(mount)
}

fn in_memory(size: &str, unswapped: bool) -> std::result::Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "mode", "755")?;
    fsconfig_set_string(context.as_fd(), "size", size)?;
    if unswapped {
        fsconfig_set_flag(context.as_fd(), "noswap")?;
    }
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn attach(mount: &OwnedFd, at: &Path) -> std::io::Result<()> {
    match rustix::fs::mkdirat(CWD, at, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    move_mount(mount, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    let flags =
        MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount_remount(at, flags, c"")?)
}
