//! The priority of a socket (SO_PRIORITY, socket(7)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Gives one socket a priority; above 6 that takes `CAP_NET_ADMIN`.
///
/// # Errors
/// The kernel's error.
pub fn set(socket: BorrowedFd<'_>, priority: u32) -> io::Result<()> {
    let value = i32::try_from(priority).map_err(|_| io::ErrorKind::InvalidInput)?;
    let length = libc::socklen_t::try_from(size_of::<i32>()).unwrap_or(4);
    // SAFETY: the option is an integer, `value` is one that lives until the call returns, and its
    // length goes with it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PRIORITY,
            (&raw const value).cast(),
            length,
        )
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
