//! Passing descriptors to another process (`SCM_RIGHTS`), message by message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Most descriptors that one message may carry: four channel ends and some to spare. The kernel's
/// own limit is 253.
pub const DESCRIPTORS_MAX: usize = 32;

/// Makes a connected pair of `SOCK_SEQPACKET` sockets, close-on-exec, blocking.
///
/// # Errors
/// Those of socketpair(2).
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Makes a connected pair of `SOCK_STREAM` sockets, close-on-exec, blocking.
///
/// # Errors
/// Those of socketpair(2).
pub fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message with descriptors over a Unix socket; raises no `SIGPIPE`. The receiver gets
/// duplicates.
///
/// # Errors
/// `InvalidInput` for more than [`DESCRIPTORS_MAX`] descriptors, or descriptors with an empty
/// message (a stream would lose them); otherwise those of sendmsg(2). A stream socket that took
/// part of the message is `WriteZero`.
pub fn send_with_descriptors(
    socket: impl AsFd,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MAX || (message.is_empty() && !descriptors.is_empty()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(message)];
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL)
    })?;
    if sent == message.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives one message and the descriptors that came with it, close-on-exec. A length of 0 is the
/// end: the other side has closed.
///
/// # Errors
/// `InvalidData` when the message or its control data did not fit, or more than `most` descriptors
/// came (those that did arrive are closed); `InvalidInput` for `most` above [`DESCRIPTORS_MAX`];
/// otherwise those of recvmsg(2).
pub fn receive_with_descriptors(
    socket: impl AsFd,
    into: &mut [u8],
    most: usize,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    if most > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(into)];
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let truncated = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    if truncated || descriptors.len() > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message or its descriptors did not fit"));
    }
    Ok((received.bytes, descriptors))
}

/// `SO_PASSRIGHTS` (socket(7)), Linux 6.16: whether a socket takes descriptors. The libc crate does
/// not name it yet.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has a Unix socket, and what is accepted at it from now on, take no descriptors: who sends some
/// gets `EPERM`. `Ok(false)` on a kernel that can't (before 6.16): then they have to be expected,
/// see [`may_carry_descriptors`].
///
/// # Errors
/// Those of setsockopt(2).
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<bool> {
    let refuse: libc::c_int = 0;
    // SAFETY: the descriptor is open for the length of the call; `refuse` is a C int whose address
    // and size are given, and the kernel only reads it.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const refuse).cast(),
            size_of_val(&refuse) as libc::socklen_t,
        )
    };
    if done == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        error => Err(error),
    }
}

/// Whether whoever is at the other end can send descriptors into this Unix socket: all can, unless
/// [`refuse_descriptors`] has seen to it.
pub fn may_carry_descriptors(socket: impl AsFd) -> bool {
    let mut takes: libc::c_int = 1;
    let mut size = size_of_val(&takes) as libc::socklen_t;
    // SAFETY: the descriptor is open for the length of the call; `takes` is a C int that the kernel
    // may write, `size` says how long it is, and both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw mut takes).cast(),
            &raw mut size,
        )
    };
    done != 0 || takes != 0
}

/// Whether the next message of a Unix socket brings descriptors, without taking it: they stay where
/// they are. Never waits for one.
///
/// # Errors
/// Those of recvmsg(2), such as `WouldBlock` where there is no message.
pub fn brings_descriptors(socket: impl AsFd) -> io::Result<bool> {
    // Without room for control data the kernel only says that there is some.
    let mut nowhere = RecvAncillaryBuffer::default();
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let peeked = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut parts, &mut nowhere, RecvFlags::PEEK | RecvFlags::DONTWAIT)
    })?;
    Ok(peeked.flags.contains(ReturnFlags::CTRUNC))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::FdFlags;

    fn pipes(count: usize) -> Vec<OwnedFd> {
        (0..count)
            .map(|_| crate::eventfd::Eventfd::new().unwrap().as_fd().try_clone_to_owned().unwrap())
            .collect()
    }

    #[test]
    fn descriptors_arrive_and_are_the_same_files() {
        let (one, other) = socket_pair().unwrap();
        let (listener, ringer) = crate::doorbell::pair().unwrap();
        send_with_descriptors(&one, b"hello", &[ringer.as_fd()]).unwrap();
        let mut message = [0; 16];
        let (len, mut got) = receive_with_descriptors(&other, &mut message, 1).unwrap();
        assert_eq!((&message[..len], got.len()), (&b"hello"[..], 1));
        let got = got.pop().unwrap();
        assert!(rustix::io::fcntl_getfd(&got).unwrap().contains(FdFlags::CLOEXEC));
        crate::doorbell::ring(&got).unwrap();
        assert_eq!(crate::doorbell::listen(&listener).unwrap(), crate::doorbell::Heard::Ring);
    }

    #[test]
    fn the_end_is_a_length_of_zero() {
        let (one, other) = socket_pair().unwrap();
        drop(one);
        assert_eq!(receive_with_descriptors(&other, &mut [0; 4], 0).unwrap().0, 0);
        let broken = send_with_descriptors(&other, b"x", &[]).unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn too_much_is_refused() {
        let (one, other) = socket_pair().unwrap();
        let many = pipes(3);
        let many: Vec<_> = many.iter().map(AsFd::as_fd).collect();
        send_with_descriptors(&one, b"x", &many).unwrap();
        let error = receive_with_descriptors(&other, &mut [0; 4], 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        send_with_descriptors(&one, b"long message", &[]).unwrap();
        let error = receive_with_descriptors(&other, &mut [0; 4], 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = send_with_descriptors(&one, b"", &many).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn descriptors_are_seen_without_being_taken() {
        let (one, other) = socket_pair().unwrap();
        assert!(may_carry_descriptors(&other));
        send_with_descriptors(&one, b"x", &[]).unwrap();
        assert!(!brings_descriptors(&other).unwrap());
        receive_with_descriptors(&other, &mut [0; 1], 0).unwrap();
        send_with_descriptors(&one, b"x", &[one.as_fd()]).unwrap();
        assert!(brings_descriptors(&other).unwrap());
        assert_eq!(receive_with_descriptors(&other, &mut [0; 1], 1).unwrap().1.len(), 1);
    }

    #[test]
    fn a_socket_that_refuses_descriptors_gets_none() {
        let (one, other) = socket_pair().unwrap();
        if !refuse_descriptors(&other).unwrap() {
            println!("skipped: this kernel has no SO_PASSRIGHTS (Linux 6.16)");
            return;
        }
        assert!(!may_carry_descriptors(&other));
        let refused = send_with_descriptors(&one, b"x", &[one.as_fd()]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        send_with_descriptors(&one, b"x", &[]).unwrap();
        // The other direction is another matter.
        send_with_descriptors(&other, b"x", &[other.as_fd()]).unwrap();
    }
}
