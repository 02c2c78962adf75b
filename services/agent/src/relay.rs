//! A socket of the guest at one end, a stream to the node at the other: packets with their
//! boundaries.

use crate::ends::Descriptors;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use wire::control::MAX_PACKET_BYTES;
use wire::guest::End;

/// The content of a packet to a member.
#[derive(Debug)]
pub(crate) enum Carried {
    Nothing,
    /// An end whose device is awaited until then.
    Announced(End, Instant),
    /// An end that is ready.
    Made(Box<Descriptors>),
}

/// A packet on its way to a member.
#[derive(Debug)]
pub(crate) struct Queued {
    pub bytes: Vec<u8>,
    /// The bytes that it took of the stream's window.
    pub cost: usize,
    pub carried: Carried,
}

/// A connection of a member, or the private socket of the frontend.
#[derive(Debug)]
pub(crate) struct Relay {
    pub socket: OwnedFd,
    /// Bounded by the stream's window.
    pub queue: VecDeque<Queued>,
    /// The member has hung up: what it sent before is still read.
    pub hung: bool,
    /// The node has closed: what it sent before is still passed on.
    pub closing: bool,
}

/// A member's message.
#[derive(Debug)]
pub(crate) enum Taken {
    Packet(Vec<u8>),
    /// One that is longer than any may be; it is gone.
    TooLong,
    /// There is none now.
    Nothing,
    /// It has hung up, or is hung up on, as it passes descriptors: to close a stranger's may take
    /// as long as the stranger likes, so they are never taken.
    Gone,
}

impl Relay {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, queue: VecDeque::new(), hung: false, closing: false }
    }

    /// Takes a packet off a member's socket.
    pub fn take(&self) -> Taken {
        let strange = sys::descriptors::may_carry_descriptors(&self.socket)
            && sys::descriptors::brings_descriptors(&self.socket).is_ok_and(|brings| brings);
        if strange {
            return Taken::Gone;
        }
        // Its whole length, so that a packet that is too long is known for one.
        let mut bytes = vec![0; MAX_PACKET_BYTES];
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.socket, &mut *bytes, RecvFlags::TRUNC | RecvFlags::DONTWAIT)
        });
        match received {
            Ok((_, 0)) => Taken::Gone,
            Ok((_, length)) if length > MAX_PACKET_BYTES => Taken::TooLong,
            Ok((_, length)) => {
                bytes.truncate(length);
                Taken::Packet(bytes)
            }
            Err(Errno::AGAIN) => Taken::Nothing,
            Err(_) => Taken::Gone,
        }
    }

    /// Passes a packet on.
    pub fn pass(&self, bytes: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        sys::descriptors::send_with_descriptors(&self.socket, bytes, &descriptors)
    }
}
