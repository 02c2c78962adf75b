//! The process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A process as the kernel knows it, in the numbers of the caller's namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its process number; 0 where it has none that this process could know (another PID
    /// namespace).
    pub pid: u32,
    /// Its effective user when it connected or listened; 65534 where it has none here.
    pub uid: u32,
    /// Its effective group then.
    pub gid: u32,
}

/// `SO_PEERCRED` (unix(7)): who connected to us, or who listens where we connected.
///
/// # Errors
/// Those of getsockopt(2).
pub fn of_peer(socket: impl AsFd) -> io::Result<Credentials> {
    // Not rustix's, whose process number can't be 0, which the kernel does give.
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of_val(&found) as libc::socklen_t;
    // SAFETY: the descriptor is open for the length of the call; `found` is what SO_PEERCRED
    // writes, `size` says how long it is, and both outlive the call. Any bytes are a valid `ucred`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut size,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if size as usize != size_of_val(&found) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Credentials { pid: u32::try_from(found.pid).unwrap_or(0), uid: found.uid, gid: found.gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _other) = crate::descriptors::socket_pair().unwrap();
        let found = of_peer(&one).unwrap();
        assert_eq!(found.pid, std::process::id());
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        assert_eq!(found.gid, rustix::process::getegid().as_raw());
    }

    #[test]
    fn a_descriptor_that_is_no_socket_has_no_peer() {
        let error = of_peer(std::fs::File::open("/dev/null").unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
