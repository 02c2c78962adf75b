//! File systems that are made first and attached afterwards, so that they never show on the host.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{FsMountFlags, FsOpenFlags, MoveMountFlags, OpenTreeFlags};
pub use rustix::mount::{MountAttrFlags, UnmountFlags};

/// Makes a file system of `kind` with these settings (an empty value is a flag), attached nowhere
/// yet.
///
/// # Errors
/// Those of fsopen(2), fsconfig(2) and fsmount(2).
pub fn detached(kind: &str, settings: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in settings {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(context.as_fd(), *key)?;
        } else {
            rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Clones the mount at `path` (with everything below it, if `recursive`), attached nowhere yet.
///
/// # Errors
/// Those of open_tree(2).
pub fn detached_copy(path: &Path, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(rustix::mount::open_tree(CWD, path, flags)?)
}

/// Attaches a detached mount at `path`, as the calling thread's mount namespace sees it.
///
/// # Errors
/// Those of move_mount(2).
pub fn attach(mount: impl AsFd, path: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount.as_fd(), "", CWD, path, flags)?)
}

/// Detaches the mount at `path`.
///
/// # Errors
/// Those of umount2(2).
pub fn detach(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    Ok(rustix::mount::unmount(path, flags)?)
}
