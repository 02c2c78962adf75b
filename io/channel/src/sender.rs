//! The half of an end that sends.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use ring::{Producer, ReserveError, Slot, Spin, Violation};
use sys::region::Region;
use wire::ring as layout;

use crate::shared::{Closer, Descriptors, Shared, SpinPolicy, Whereabouts, spin};

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// There is no room now.
    #[error("the channel is full")]
    Full,
    /// The channel is closed, here or there, or the peer is dead.
    #[error("the channel is closed")]
    Closed,
    /// The message will never fit.
    #[error("a message of {length} bytes is longer than the {max} bytes that this channel takes")]
    TooLong {
        /// Bytes of the message.
        length: usize,
        /// Bytes of the longest message.
        max: usize,
    },
    /// The deadline has passed without room for the message.
    #[error("the channel stayed full for too long")]
    TimedOut,
    /// The peer broke a rule; the channel has been closed.
    #[error("the peer of a channel broke its rules")]
    Corrupt(#[from] Violation),
    /// The kernel refused a wait or a signal.
    #[error("can't wait on a channel or signal its peer")]
    Doorbell(#[source] io::Error),
}

impl From<ReserveError> for SendError {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::TooLong { length, max } => SendError::TooLong { length, max },
            ReserveError::Full => SendError::Full,
            ReserveError::Corrupt(violation) => SendError::Corrupt(violation),
        }
    }
}

/// Sends messages. Dropping it closes the channel.
#[derive(Debug)]
pub struct Sender {
    shared: Arc<Shared>,
    producer: Producer<Arc<Region>>,
    policy: SpinPolicy,
    spin: Spin,
    whereabouts: Whereabouts,
}

/// A message that is being written in place. Dropped without [`Loan::commit`], it is not sent.
#[derive(Debug)]
pub struct Loan<'s> {
    slot: Slot<'s, Arc<Region>>,
    shared: &'s Shared,
    /// Where [`io::Write`] goes on.
    written: usize,
}

impl Loan<'_> {
    /// Bytes of the message.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "the length is fixed, not a count of contents")]
    pub fn len(&self) -> usize {
        self.slot.len()
    }

    /// Puts bytes at `at` of the message; false, and nothing is done, if they would go beyond its end. What nobody
    /// writes is whatever this channel carried there before.
    #[must_use]
    pub fn write_at(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.slot.write(at, bytes)
    }

    /// Sends the message.
    ///
    /// # Errors
    /// [`SendError::Doorbell`]; the message is in the ring nevertheless.
    pub fn commit(self) -> Result<(), SendError> {
        if self.slot.commit() {
            self.shared.signal_data().map_err(SendError::Doorbell)?;
        }
        Ok(())
    }
}

impl io::Write for Loan<'_> {
    /// Writes after what was written through this trait before, as far as there is room in the message.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(self.len() - self.written);
        let (now, _) = bytes.split_at(fits);
        if !self.slot.write(self.written, now) {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.written += fits;
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sender {
    pub(crate) fn new(shared: Arc<Shared>, producer: Producer<Arc<Region>>) -> Self {
        Sender {
            shared,
            producer,
            policy: SpinPolicy::default(),
            spin: Spin::default(),
            whereabouts: Whereabouts::default(),
        }
    }

    /// Longest message, in bytes.
    #[must_use]
    pub fn max_message(&self) -> usize {
        self.producer.max_message()
    }

    /// Sets when to spin before sleeping.
    pub fn set_spin_policy(&mut self, policy: SpinPolicy) {
        self.policy = policy;
    }

    /// Sends a message if there is room for it.
    ///
    /// # Errors
    /// [`SendError`], other than `TimedOut`.
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        self.try_send_vectored(&[message])
    }

    /// Sends a message, waiting for room.
    ///
    /// # Errors
    /// [`SendError`], other than `Full`.
    pub fn send(&mut self, message: &[u8], deadline: Option<Instant>) -> Result<(), SendError> {
        self.send_vectored(&[message], deadline)
    }

    /// Sends one message that is the parts put together, if there is room for it.
    ///
    /// # Errors
    /// [`SendError`], other than `TimedOut`.
    pub fn try_send_vectored(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        fill(self.try_loan(total(parts))?, parts)
    }

    /// Sends one message that is the parts put together, waiting for room.
    ///
    /// # Errors
    /// [`SendError`], other than `Full`.
    pub fn send_vectored(&mut self, parts: &[&[u8]], deadline: Option<Instant>) -> Result<(), SendError> {
        fill(self.loan(total(parts), deadline)?, parts)
    }

    /// Lends the place of a message of `length` bytes, to be written in place and committed, if there is room.
    ///
    /// # Errors
    /// [`SendError`], other than `TimedOut`.
    pub fn try_loan(&mut self, length: usize) -> Result<Loan<'_>, SendError> {
        self.check_open()?;
        let Sender { shared, producer, .. } = self;
        if self.whereabouts.is_due() {
            producer.publish_processor(sys::processor::current());
        }
        match producer.reserve(length) {
            Ok(slot) => Ok(Loan { slot, shared, written: 0 }),
            // A dead peer makes no room: a full ring is the time to ask whether it lives.
            Err(ReserveError::Full) if shared.is_peer_gone() => Err(SendError::Closed),
            Err(error) => Err(refuse(shared, error)),
        }
    }

    /// Lends the place of a message of `length` bytes, waiting for room.
    ///
    /// # Errors
    /// [`SendError`], other than `Full`.
    pub fn loan(&mut self, length: usize, deadline: Option<Instant>) -> Result<Loan<'_>, SendError> {
        let room = self.producer.has_room(length).map_err(|error| refuse(&self.shared, error))?;
        if !room {
            self.wait(length, deadline)?;
        }
        self.try_loan(length)
    }

    /// Waits until a message of `length` bytes fits.
    ///
    /// # Errors
    /// [`SendError`], other than `Full`.
    pub fn wait(&mut self, length: usize, deadline: Option<Instant>) -> Result<(), SendError> {
        loop {
            match self.try_loan(length) {
                Ok(_) => return Ok(()),
                Err(SendError::Full) => {}
                Err(error) => return Err(error),
            }
            self.spin_for_room(length, deadline);
            // Every turn comes by here: a peer that rings for nothing wins no time.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(SendError::TimedOut);
            }
            if self.prepare_wait(length)? {
                self.descriptors().wait(deadline).map_err(SendError::Doorbell)?;
                self.cancel_wait();
                self.drain_doorbell()?;
            }
        }
    }

    fn spin_for_room(&mut self, length: usize, deadline: Option<Instant>) {
        let peer = self.producer.peer_processor();
        let producer = &mut self.producer;
        // A violation ends the spin; the next look names it.
        spin(self.policy, &mut self.spin, deadline, || peer, || producer.has_room(length).unwrap_or(true));
    }

    pub(crate) fn check_open(&self) -> Result<(), SendError> {
        if self.shared.is_closed_here() || self.shared.is_peer_closed() {
            return Err(SendError::Closed);
        }
        Ok(())
    }

    /// The descriptors that an event loop watches while it waits for room.
    #[must_use]
    pub fn descriptors(&self) -> Descriptors<'_> {
        self.shared.room_descriptors()
    }

    /// Says to the peer that we wait for room for `length` bytes and want to be rung. False: there is room, or the
    /// channel is closed, so do not sleep.
    ///
    /// # Errors
    /// [`SendError::TooLong`], [`SendError::Corrupt`].
    pub fn prepare_wait(&mut self, length: usize) -> Result<bool, SendError> {
        if !self.producer.prepare_wait(length).map_err(|error| refuse(&self.shared, error))? {
            return Ok(false);
        }
        if self.check_open().is_err() {
            self.producer.cancel_wait();
            return Ok(false);
        }
        Ok(true)
    }

    /// Says that we are awake again. Needed after every [`Sender::prepare_wait`] that returned true.
    pub fn cancel_wait(&mut self) {
        self.producer.cancel_wait();
    }

    /// Takes the rings off the doorbell, and notices the death of the peer. Then try to send.
    ///
    /// # Errors
    /// [`SendError::Doorbell`].
    pub fn drain_doorbell(&mut self) -> Result<(), SendError> {
        self.shared.drain_room().map_err(SendError::Doorbell)
    }

    /// Closes the channel, for both halves of this end and for the peer.
    pub fn close(&mut self) {
        self.shared.close(layout::END_CLOSED);
    }

    /// A handle that closes the channel from elsewhere.
    #[must_use]
    pub fn closer(&self) -> Closer {
        Closer::new(&self.shared)
    }

    /// Whether the channel is closed, here or there, or the peer is dead.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed_here() || self.shared.is_peer_gone()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.close();
    }
}

fn total(parts: &[&[u8]]) -> usize {
    // Saturating: more than memory holds is refused as too long, not miscounted.
    parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()))
}

fn fill(mut loan: Loan<'_>, parts: &[&[u8]]) -> Result<(), SendError> {
    let mut at = 0;
    for part in parts {
        let inside = loan.write_at(at, part);
        debug_assert!(inside, "the loan is as long as its parts");
        at += part.len();
    }
    loan.commit()
}

fn refuse(shared: &Shared, error: ReserveError) -> SendError {
    if matches!(error, ReserveError::Corrupt(_)) {
        shared.close(layout::END_REFUSED);
    }
    error.into()
}
