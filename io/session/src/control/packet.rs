//! Packets of the control socket: one JSON object each, with the descriptors it speaks of. Both
//! sides use this: the members through [`crate::Control`], the daemon directly.

use rustix::net::RecvFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use thiserror::Error;
use wire::control::MAX_PACKET_BYTES;

/// Most descriptors that one packet may carry: an end of a channel needs fewer.
pub const MAX_PACKET_DESCRIPTORS: usize = 8;

/// Why a packet could not be sent or taken.
#[derive(Debug, Error)]
pub enum PacketError {
    /// Nothing is there to read, or there is no room to write; wait until the socket is ready.
    #[error("the control socket is not ready")]
    NotReady,
    /// The other side has closed the socket.
    #[error("the other side of the control socket is gone")]
    Gone,
    /// The socket failed.
    #[error("the control socket failed")]
    Socket(#[source] io::Error),
    /// A packet longer than [`MAX_PACKET_BYTES`].
    #[error("a control packet of {0} bytes is longer than the {MAX_PACKET_BYTES} that are allowed")]
    TooLong(usize),
    /// More descriptors than [`MAX_PACKET_DESCRIPTORS`], or than this process may hold.
    #[error(
        "a control packet carries more descriptors than are allowed ({MAX_PACKET_DESCRIPTORS}), or than this process has room \
         for (`ulimit -n`): close some"
    )]
    TooManyDescriptors,
    /// The bytes are no message of this protocol.
    #[error("a control packet is not understood")]
    Json(#[source] serde_json::Error),
}

impl PacketError {
    /// Whether the connection can go on: only the one packet was bad, or nothing was there.
    pub fn is_about_one_packet(&self) -> bool {
        !matches!(self, Self::Gone | Self::Socket(_))
    }
}

/// A packet as it came.
#[derive(Debug)]
pub struct Packet<T> {
    /// The message.
    pub message: T,
    /// The descriptors that came with the message; close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// Sends one packet on a non-blocking socket, without a `SIGPIPE`.
///
/// # Errors
/// [`PacketError::NotReady`] where it would wait; what else can be wrong with it or the socket.
pub fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), PacketError> {
    let bytes = serde_json::to_vec(message).map_err(PacketError::Json)?;
    if bytes.len() > MAX_PACKET_BYTES {
        return Err(PacketError::TooLong(bytes.len()));
    }
    if descriptors.len() > MAX_PACKET_DESCRIPTORS {
        return Err(PacketError::TooManyDescriptors);
    }
    sys::descriptors::send_with_descriptors(socket, &bytes, descriptors).map_err(of_io)
}

/// Takes one packet off a non-blocking socket.
///
/// # Errors
/// [`PacketError::NotReady`] where nothing is there; what else can be wrong with the packet (which
/// is then gone) or with the socket.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> Result<Packet<T>, PacketError> {
    let length = pending(&socket)?;
    // A packet that is too long is taken all the same, cut, so that the next one is reached.
    let mut bytes = vec![0; length.min(MAX_PACKET_BYTES)];
    let (taken, descriptors) =
        match sys::descriptors::receive_with_descriptors(socket, &mut bytes, MAX_PACKET_DESCRIPTORS) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::InvalidData && length > MAX_PACKET_BYTES => {
                return Err(PacketError::TooLong(length));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(PacketError::TooManyDescriptors);
            }
            Err(error) => return Err(of_io(error)),
        };
    let said = bytes.get(..taken).unwrap_or(&bytes);
    let message = serde_json::from_slice(said).map_err(PacketError::Json)?;
    Ok(Packet { message, descriptors })
}

/// Bytes of the packet that is next.
fn pending(socket: impl AsFd) -> Result<usize, PacketError> {
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recv(&socket, &mut [0_u8; 1], flags).map(|(_, length)| length)
    });
    match received {
        Ok(0) => Err(PacketError::Gone),
        Ok(length) => Ok(length),
        Err(errno) => Err(of_io(errno.into())),
    }
}

fn of_io(error: io::Error) -> PacketError {
    match error.kind() {
        io::ErrorKind::WouldBlock => PacketError::NotReady,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
            PacketError::Gone
        }
        _ => PacketError::Socket(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::SendFlags;
    use wire::control::Request;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (ours, theirs) = sys::descriptors::socket_pair().expect("a socket pair");
        for end in [&ours, &theirs] {
            rustix::io::ioctl_fionbio(end, true).expect("non-blocking");
        }
        (ours, theirs)
    }

    #[test]
    fn a_packet_arrives_with_its_descriptors_closed_on_exec() {
        let (ours, theirs) = pair();
        send(&ours, &Request::Serve { id: 7 }, &[ours.as_fd(), theirs.as_fd()]).expect("sent");
        let packet: Packet<Request> = receive(&theirs).expect("received");
        assert_eq!(packet.message, Request::Serve { id: 7 });
        assert_eq!(packet.descriptors.len(), 2);
        for descriptor in &packet.descriptors {
            let flags = rustix::io::fcntl_getfd(descriptor).expect("flags");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        assert!(matches!(receive::<Request>(&theirs), Err(PacketError::NotReady)));
    }

    #[test]
    fn a_bad_packet_costs_only_itself() {
        let (ours, theirs) = pair();
        rustix::net::send(&ours, b"{\"op\":\"fly\",\"id\":1}", SendFlags::empty()).expect("sent");
        rustix::net::send(&ours, &vec![b'x'; MAX_PACKET_BYTES + 1], SendFlags::empty()).expect("sent");
        sys::descriptors::send_with_descriptors(&ours, b"{}", &[ours.as_fd(); 12]).expect("sent");
        send(&ours, &Request::About { id: 3 }, &[]).expect("sent");
        assert!(matches!(receive::<Request>(&theirs), Err(PacketError::Json(_))));
        assert!(matches!(receive::<Request>(&theirs), Err(PacketError::TooLong(_))));
        assert!(matches!(receive::<Request>(&theirs), Err(PacketError::TooManyDescriptors)));
        assert_eq!(receive::<Request>(&theirs).expect("the good one").message, Request::About { id: 3 });
        drop(ours);
        assert!(matches!(receive::<Request>(&theirs), Err(PacketError::Gone)));
    }
}
