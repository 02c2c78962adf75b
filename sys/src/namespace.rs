//! Entering and leaving the kernel's namespaces. All of it concerns the calling thread alone.

use std::io;
use std::os::fd::AsFd;

pub use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags};

/// Moves the calling thread into the namespace that `namespace` (of `/proc/PID/ns/`) stands for.
///
/// # Errors
/// Those of setns(2); a mount namespace asks for a thread that shares its file system state with
/// nobody (`unshare(UnshareFlags::FS)` first).
pub fn enter(namespace: impl AsFd, kind: LinkNameSpaceType) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))?)
}

/// Moves the calling thread into namespaces of the process behind `pidfd`, all or none.
///
/// # Errors
/// Those of setns(2).
pub fn enter_process(pidfd: impl AsFd, kinds: ThreadNameSpaceType) -> io::Result<()> {
    Ok(rustix::thread::move_into_thread_name_spaces(pidfd.as_fd(), kinds)?)
}

/// Gives the calling thread new namespaces (or state of its own).
///
/// # Errors
/// Those of unshare(2); `InvalidInput` for [`UnshareFlags::FILES`], with which descriptors that
/// other threads made would mean something else here.
pub fn unshare(flags: UnshareFlags) -> io::Result<()> {
    if flags.contains(UnshareFlags::FILES) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the descriptor table, the one thing that makes unshare unsafe, stays shared: checked
    // above.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_table_stays() {
        assert_eq!(unshare(UnshareFlags::FILES).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // Harmless, needs no privilege, and changes only this test's thread.
        unshare(UnshareFlags::FS).unwrap();
    }
}
