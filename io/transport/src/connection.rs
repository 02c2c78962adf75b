//! One connection: bytes both ways to a peer that is known, in order, until it is cut.

use crate::locator::{Address, Kind};
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use wire::link::MAGIC;

/// A connection is made, and both sides know who the other is, within this time, or not at all: a
/// few round trips of any network, with a busy machine at either end.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// The carrier of a link's packets: a byte stream, whatever it is made of. Nothing here waits; a
/// call that would, wakes the context.
pub trait Carry: Send {
    /// Takes bytes from the front of `bytes` that go out in order; says how many.
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Lets go of what was taken and is held.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Puts bytes that came into `into`; says how many, 0 at the end.
    fn poll_receive(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>>;

    /// As [`Carry::poll_receive`], with bytes that are heard where they lie, in one piece or more;
    /// what has no place for them puts them into `scratch`.
    fn poll_hear(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
        hear: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let received = ready!(self.poll_receive(cx, scratch))?;
        hear(scratch.get(..received).unwrap_or_default());
        Poll::Ready(Ok(received))
    }

    /// Looks for what came without waiting to be told, and keeps it; whether there is something.
    /// For who looks again and again: to be told takes longer.
    ///
    /// # Errors
    /// It fails.
    fn look(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// Longest packet that the other side hears where it lies, whatever comes before and behind it:
    /// what is longer is put together there first.
    fn packet_bytes(&self) -> usize {
        usize::MAX
    }

    /// A place in which the next packet, of [`Carry::packet_bytes`] at most, is put together behind
    /// what is there, and from which it goes out; [`Carry::placed`] comes next. `None`: it has no
    /// such places, and is given bytes.
    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<&mut Vec<u8>>>> {
        let _nothing_to_wait_for = cx;
        Poll::Ready(Ok(None))
    }

    /// A packet is in the place that was given out last, or nothing is.
    fn placed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let _nothing_to_wait_for = cx;
        Ok(())
    }

    /// Holds little that is not sent yet, or as much as pays: what comes later may have to go
    /// first. What can't do that does nothing.
    fn hold_little(&mut self, little: bool) {
        let _ = little;
    }

    /// Ends it in an orderly way: all that was taken comes, then the end. Ready when the other side
    /// knows.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// A connection whose other end has proved who it is.
pub struct Connection {
    pub(crate) carrier: Box<dyn Carry>,
    peer: String,
    kind: Kind,
    remote: Address,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {} at {}", self.kind, self.peer, self.remote)
    }
}

impl Connection {
    /// A connection over a carrier that has made sure that its other end is `peer`.
    #[must_use]
    pub fn new(carrier: Box<dyn Carry>, peer: String, kind: Kind, remote: Address) -> Self {
        Self { carrier, peer, kind, remote }
    }

    /// The node at the other end.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The transport that it is made of.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The carrier, for a user who speaks without a driver.
    pub fn carrier(&mut self) -> &mut dyn Carry {
        self.carrier.as_mut()
    }

    /// Address of the other end.
    #[must_use]
    pub fn remote(&self) -> Address {
        self.remote
    }
}

/// The first word of the accepting side, which is no packet: only then the connecting side knows
/// that its own certificate was good (in TLS 1.3 its handshake is over before anybody has looked at
/// it).
const READY: [u8; 8] = MAGIC.to_le_bytes();

pub(crate) async fn say_ready(carrier: &mut dyn Carry) -> io::Result<()> {
    let mut rest = &READY[..];
    while !rest.is_empty() {
        let taken = poll_fn(|cx| carrier.poll_send(cx, rest)).await?;
        rest = rest.get(taken..).unwrap_or_default();
    }
    poll_fn(|cx| carrier.poll_flush(cx)).await
}

pub(crate) async fn hear_ready(carrier: &mut dyn Carry) -> io::Result<()> {
    let mut found = [0; READY.len()];
    let mut rest = &mut found[..];
    while !rest.is_empty() {
        match poll_fn(|cx| carrier.poll_receive(cx, rest)).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            taken => rest = rest.get_mut(taken..).unwrap_or_default(),
        }
    }
    if found == READY { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
