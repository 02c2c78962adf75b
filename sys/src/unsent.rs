//! How much a TCP socket takes that it has not sent yet (`TCP_NOTSENT_LOWAT`, tcp(7)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// From now on a socket takes no more while so many bytes or more have not been sent; `None`: as
/// much as its buffer holds.
///
/// # Errors
/// Those of setsockopt(2).
pub fn limit(socket: BorrowedFd<'_>, bytes: Option<u32>) -> io::Result<()> {
    // 0 is the kernel's word for none.
    let value = bytes.unwrap_or(0);
    let length = libc::socklen_t::try_from(size_of::<u32>()).unwrap_or(4);
    // SAFETY: the option is an integer of 32 bits, `value` is one that lives until the call
    // returns, and its length goes with it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const value).cast(),
            length,
        )
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
