//! Several datagrams with one system call.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Most datagrams of one call.
pub const DATAGRAMS_MAX: usize = 8;

/// Receives datagrams into `buffers`, one into each, as many as are there; does not wait. Gives
/// their lengths; what does not fit its buffer is cut off. The senders' addresses are not asked
/// for: the socket shall be connected.
///
/// # Errors
/// `InvalidInput` for no buffer or more than [`DATAGRAMS_MAX`]; otherwise those of recvmmsg(2), of
/// which `WouldBlock` says that nothing is there. An error behind a datagram that was received is
/// that of the next call.
pub fn receive(socket: impl AsFd, buffers: &mut [&mut [u8]]) -> io::Result<Vec<usize>> {
    let count = buffers.len();
    if count == 0 || count > DATAGRAMS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let no_part = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut parts = [no_part; DATAGRAMS_MAX];
    // SAFETY: mmsghdr is plain data of the C library, for which all bits zero are a value: no name,
    // no control data, no parts.
    let mut messages: [libc::mmsghdr; DATAGRAMS_MAX] = unsafe { std::mem::zeroed() };
    for ((part, message), buffer) in parts.iter_mut().zip(&mut messages).zip(buffers.iter_mut()) {
        *part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
    }
    // SAFETY: the descriptor is open for as long as `socket` is borrowed. The first `count`
    // headers, at most DATAGRAMS_MAX, point to one part each, and each part to a buffer that is
    // borrowed mutably and has the length that the part says; `parts`, `messages` and `buffers`
    // outlive the call. No time-out is passed.
    let came = unsafe {
        libc::recvmmsg(
            socket.as_fd().as_raw_fd(),
            messages.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        )
    };
    let came = usize::try_from(came).map_err(|_| io::Error::last_os_error())?;
    Ok(messages.iter().take(came.min(count)).map(|message| message.msg_len as usize).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn what_is_there_comes_with_one_call_and_not_more() {
        let (ours, theirs) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        ours.connect(theirs.local_addr().unwrap()).unwrap();
        theirs.connect(ours.local_addr().unwrap()).unwrap();
        let (mut one, mut two) = ([0; 8], [0; 4]);
        let nothing = receive(&ours, &mut [&mut one, &mut two]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        for packet in [&b"first"[..], b"", b"the third is cut"] {
            theirs.send(packet).unwrap();
        }
        assert_eq!(receive(&ours, &mut [&mut one, &mut two]).unwrap(), [5, 0], "an empty one is one, too");
        assert_eq!(&one[..5], b"first");
        assert_eq!(receive(&ours, &mut [&mut one, &mut two]).unwrap(), [8], "fewer than there is room for");
        assert_eq!(&one, b"the thir");
        drop(theirs);
        ours.send(b"x").unwrap();
        let refused = receive(&ours, &mut [&mut one, &mut two]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(receive(&ours, &mut []).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
