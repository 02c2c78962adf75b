//! Messages over what keeps them apart: Unix sockets of kind `SOCK_SEQPACKET`, POSIX message
//! queues.

use super::super::copies::{Bulk, PLACES, words_at};
use crate::channel::transport::Transport;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::os::fd::OwnedFd;
use sys::message_queue;

/// The message that says that everything was taken.
const TAKEN: [u8; 1] = [1];

/// Carries messages, each whole.
pub trait Carrier {
    /// Sends one.
    fn send(&self, message: &[u8]) -> io::Result<()>;
    /// Waits for one, which must not be longer than `into`, and says how long it is.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize>;
}

/// One socket for both directions.
#[derive(Debug)]
pub struct Seqpacket(pub OwnedFd);

impl Carrier for Seqpacket {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        Ok(rustix::net::send(&self.0, message, SendFlags::NOSIGNAL).map(|_| ())?)
    }

    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.0, into, RecvFlags::empty())?.0)
    }
}

/// The queue to receive from, and the one to send to.
#[derive(Debug)]
pub struct Queues(pub [OwnedFd; 2]);

impl Carrier for Queues {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        message_queue::send(&self.0[1], message)
    }

    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        message_queue::receive(&self.0[0], into)
    }
}

/// Messages, and long ones in pieces.
#[derive(Debug)]
pub struct Records<C> {
    carrier: C,
    piece_bytes: usize,
    message: Vec<u8>,
}

impl<C: Carrier> Records<C> {
    /// For messages of so many bytes, in such pieces.
    pub fn new(carrier: C, message_bytes: usize, piece_bytes: usize) -> Self {
        Self {
            carrier,
            piece_bytes: piece_bytes.clamp(1, message_bytes.max(1)),
            message: vec![1; message_bytes],
        }
    }
}

/// The other end is gone, or speaks of something else.
fn expect(got: usize, due: usize) -> io::Result<()> {
    match got {
        got if got == due => Ok(()),
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl<C: Carrier> Transport for Records<C> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.carrier.send(message)
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        let got = self.carrier.receive(&mut self.message)?;
        expect(got, self.message.len())?;
        Ok(&self.message)
    }
}

impl<C: Carrier> Bulk for Records<C> {
    fn give(&mut self, message: &[u8]) -> io::Result<()> {
        message.chunks(self.piece_bytes).try_for_each(|piece| self.carrier.send(piece))
    }

    fn take(&mut self, places: &[usize; PLACES]) -> io::Result<[u64; PLACES]> {
        for piece in self.message.chunks_mut(self.piece_bytes) {
            let due = piece.len();
            expect(self.carrier.receive(piece)?, due)?;
        }
        words_at(&self.message, places)
    }

    fn acknowledge(&mut self) -> io::Result<()> {
        self.carrier.send(&TAKEN)
    }

    fn acknowledged(&mut self) -> io::Result<()> {
        // A queue wants room for its longest message.
        expect(self.carrier.receive(&mut self.message)?, TAKEN.len())
    }
}
