//! Doing things inside a domain's namespaces from outside, on threads that end afterwards.

use crate::error::{Context, Error, Result};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A pidfd of the domain's first process. [`crate::Created`] and [`crate::Running`] hold one that
/// can't be a stranger's; prefer theirs.
///
/// # Errors
/// `ESRCH` when there is no such process.
pub fn open_init(init_pid: u32) -> Result<OwnedFd> {
    let pid = i32::try_from(init_pid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH);
    pid.and_then(|p| pidfd_open(p, PidfdFlags::empty())).doing(format!("open process {init_pid}"))
}

/// Attaches a mount that is attached nowhere (`fsmount(2)`, `open_tree(2)`) to `target` in the
/// mount namespace of the process that `init` (a pidfd) stands for. What is mounted there already
/// stays below it; see [`replace_mount`]. The host does not see it.
///
/// # Errors
/// When the process is gone, or the kernel refuses the target.
pub fn attach_mount(init: BorrowedFd<'_>, mount: &OwnedFd, target: &str) -> Result<()> {
    in_mount_namespace(init, || attach(mount, target))?.at("attach a mount in the domain to", target)
}

/// Like [`attach_mount`], after it detached what was mounted on `target`; nothing having been there
/// is no error.
///
/// # Errors
/// As [`attach_mount`].
pub fn replace_mount(init: BorrowedFd<'_>, mount: &OwnedFd, target: &str) -> Result<()> {
    in_mount_namespace(init, || match unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(rustix::io::Errno::INVAL) => attach(mount, target),
        Err(error) => Err(error.into()),
    })?
    .at("replace a mount in the domain on", target)
}

fn attach(mount: &OwnedFd, target: &str) -> io::Result<()> {
    Ok(move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Runs `work` on a thread of its own inside the mount namespace, and with the root, of that
/// process.
///
/// # Errors
/// When the process is gone or we lack the privilege.
pub fn in_mount_namespace<T: Send>(init: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> Result<T> {
    elsewhere(init, ThreadNameSpaceType::MOUNT, work)
}

/// Runs `work` on a thread of its own inside the network namespace of that process, such as to bind
/// sockets there: a socket belongs to the namespace in which it was made, whoever uses it later.
///
/// # Errors
/// When the process is gone or we lack the privilege.
pub fn in_network_namespace<T: Send>(init: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> Result<T> {
    elsewhere(init, ThreadNameSpaceType::NETWORK, work)
}

fn elsewhere<T: Send>(
    init: BorrowedFd<'_>,
    kind: ThreadNameSpaceType,
    work: impl FnOnce() -> T + Send,
) -> Result<T> {
    let enter = || -> Result<()> {
        if kind.contains(ThreadNameSpaceType::MOUNT) {
            // The kernel moves only a thread that shares its root and working directory with
            // nobody.
            sys::namespace::unshare(sys::namespace::UnshareFlags::FS)
                .doing("leave the shared working directory")?;
        }
        move_into_thread_name_spaces(init.as_fd(), kind)
            .doing("enter the domain's namespace (is the domain still there?)")
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("in-domain".into());
        let handle = thread.spawn_scoped(scope, || enter().map(|()| work())).doing("start a thread")?;
        handle.join().unwrap_or_else(|_| {
            Err(Error::Step {
                what: "work inside the domain".into(),
                source: io::Error::other("the work panicked"),
            })
        })
    })
}
