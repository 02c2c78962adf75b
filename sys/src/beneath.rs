//! Opening what is below a directory that a stranger may fill: no link is followed, no mount is
//! crossed, and nothing leads out.

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

/// Opens `name` below `dir`. A pipe or a device that lies there does not make the caller wait.
///
/// # Errors
/// Of openat2(2): `ELOOP` for a link, `EXDEV` for what is mounted there or leads out.
pub fn open(dir: impl AsFd, name: &CStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // O_PATH takes no flags beside it.
    let flags = if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NONBLOCK | OFlags::NOCTTY };
    loop {
        match openat2(&dir, name, flags, mode, resolve) {
            // Somebody renamed something above meanwhile, or a signal came.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}
