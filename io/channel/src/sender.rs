//! The half of an end that sends.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use ring::{Begun, Piece, Prepared, Producer, ReserveError, Sleep, Slot, Spin, Violation, Wake};
use sys::region::Region;
use wire::ring as layout;

use crate::nap::{Counts, Habit, Nap};
use crate::shared::{Closer, Descriptors, FORKED, Shared, SpinPolicy, Watch, Whereabouts, spin};

/// A message of up to so many bytes goes the short way if it can; a longer one may be worth sending
/// in pieces.
const SHORT_BYTES: usize = 4096;

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
    /// A message was begun and not finished, or the other way round.
    #[error("{0}")]
    OutOfOrder(&'static str),
    /// This process is a fork of the one that opened this end.
    #[error("{FORKED}")]
    Forked,
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
    pub(crate) producer: Producer<Arc<Region>>,
    policy: SpinPolicy,
    spin: Spin,
    whereabouts: Whereabouts,
    habit: Habit,
    counts: Counts,
    /// A message that the caller writes through a pointer.
    begun: Option<Begun>,
}

/// A message that is being written in place. Dropped without [`Loan::commit`], it is not sent.
#[derive(Debug)]
pub struct Loan<'s> {
    slot: Slot<'s, Arc<Region>>,
    shared: &'s Shared,
    counts: &'s mut Counts,
    whereabouts: &'s mut Whereabouts,
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

    /// Puts bytes at `at` of the message; false, and nothing is done, if they would go beyond its
    /// end. What nobody writes is whatever this channel carried there before.
    #[must_use]
    pub fn write_at(&mut self, at: usize, bytes: &[u8]) -> bool {
        !self.shared.is_forked() && self.slot.write(at, bytes)
    }

    /// Says what part of a message this is; without it, a whole one.
    pub(crate) fn set_piece(&mut self, piece: Piece) {
        self.slot.set_piece(piece);
    }

    /// Sends the message.
    ///
    /// # Errors
    /// [`SendError::Doorbell`]; the message is in the ring nevertheless. [`SendError::Forked`].
    pub fn commit(self) -> Result<(), SendError> {
        check_here(self.shared)?;
        let Loan { slot, shared, counts, whereabouts, .. } = self;
        wake(shared, counts, whereabouts, slot.commit())
    }

    /// As [`Loan::commit`], of the first `length` bytes.
    ///
    /// # Errors
    /// [`SendError::TooLong`] when that is more than was lent: nothing is sent then.
    /// [`SendError::Doorbell`], [`SendError::Forked`].
    pub fn commit_first(self, length: usize) -> Result<(), SendError> {
        check_here(self.shared)?;
        let max = self.len();
        let Loan { slot, shared, counts, whereabouts, .. } = self;
        let woken = slot.commit_first(length).ok_or(SendError::TooLong { length, max })?;
        wake(shared, counts, whereabouts, woken)
    }
}

impl io::Write for Loan<'_> {
    /// Writes after what was written through this trait before, as far as there is room in the
    /// message.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(self.len() - self.written);
        let (now, _) = bytes.split_at(fits);
        let written = self.written;
        if !self.write_at(written, now) {
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
    pub(crate) fn new(shared: Arc<Shared>, producer: Producer<Arc<Region>>, spin: Spin) -> Self {
        Sender {
            shared,
            producer,
            policy: SpinPolicy::default(),
            spin,
            whereabouts: Whereabouts::default(),
            habit: Habit::default(),
            counts: Counts::default(),
            begun: None,
        }
    }

    /// Longest message that goes in one piece, in bytes.
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
    #[inline]
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        if let Some(woken) = self.send_at_once(message) {
            return self.tell(woken);
        }
        self.try_send_vectored(&[message])
    }

    /// Sends a message, waiting for room; in pieces of [`Sender::piece_bytes`], if it is longer
    /// than one and the receiver puts them together (see [`Sender::message_limit`]): then one end
    /// copies in while the other copies out. When the deadline passes in the midst of it, the
    /// receiver gets nothing of it.
    ///
    /// # Errors
    /// [`SendError`], other than `Full`.
    #[inline]
    pub fn send(&mut self, message: &[u8], deadline: Option<Instant>) -> Result<(), SendError> {
        if let Some(woken) = self.send_at_once(message) {
            return self.tell(woken);
        }
        self.send_vectored(&[message], deadline)
    }

    /// Sends a short message, if there is nothing to do but that.
    #[inline]
    fn send_at_once(&mut self, message: &[u8]) -> Option<Wake> {
        let usual = message.len() <= SHORT_BYTES
            && self.shared.is_sound()
            && self.begun.is_none()
            && self.whereabouts.is_not_due();
        if usual { self.producer.send_at_once(message) } else { None }
    }

    /// As `send_at_once`, of a head and a body, and wakes the peer.
    #[inline]
    pub(crate) fn send_headed_at_once<const N: usize>(
        &mut self,
        head: [u64; N],
        body: &[u8],
    ) -> Option<Result<(), SendError>> {
        let usual = body.len() <= SHORT_BYTES && self.shared.is_sound() && self.whereabouts.is_not_due();
        let woken = if usual { self.producer.send_headed_at_once(head, body) } else { None };
        woken.map(|woken| self.tell(woken))
    }

    #[inline]
    fn tell(&mut self, woken: Wake) -> Result<(), SendError> {
        if woken.is_needed() {
            return wake(&self.shared, &mut self.counts, &mut self.whereabouts, woken);
        }
        Ok(())
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
        let length = total(parts);
        if length > self.max_message() || self.pays_in_pieces(length) {
            return self.send_in_pieces(parts, deadline);
        }
        fill(self.loan(length, deadline)?, parts)
    }

    /// Lends the place of a message of `length` bytes, to be written in place and committed, if
    /// there is room.
    ///
    /// # Errors
    /// [`SendError`], other than `TimedOut`.
    pub fn try_loan(&mut self, length: usize) -> Result<Loan<'_>, SendError> {
        self.get_ready(length)?;
        let Sender { shared, producer, counts, whereabouts, .. } = self;
        match producer.reserve(length) {
            Ok(slot) => Ok(Loan { slot, shared, counts, whereabouts, written: 0 }),
            // A dead peer makes no room: a full ring is the time to ask whether it lives.
            Err(ReserveError::Full) if shared.is_peer_gone() => Err(SendError::Closed),
            Err(error) => Err(refuse(shared, error)),
        }
    }

    /// Steps that go before every message.
    #[inline]
    fn get_ready(&mut self, length: usize) -> Result<(), SendError> {
        self.check_open()?;
        if self.begun.is_some() {
            return Err(SendError::OutOfOrder(
                "a message has been begun: finish or cancel it before the next",
            ));
        }
        if self.whereabouts.is_due() {
            self.settle();
        }
        // What is held back takes room, and nobody can read it.
        if self.producer.is_holding() && !self.has_room(length)? {
            self.flush()?;
        }
        Ok(())
    }

    fn has_room(&mut self, length: usize) -> Result<bool, SendError> {
        self.producer.has_room(length).map_err(|error| refuse(&self.shared, error))
    }

    /// Looks at what has to be looked at once in a while.
    #[cold]
    fn settle(&mut self) {
        self.publish_processor();
        if self.shared.kind().barriers && self.producer.longs_for_barriers() {
            if sys::membarrier::is_registered() {
                self.producer.set_registered();
            } else {
                sys::membarrier::register_soon();
            }
        }
    }

    fn publish_processor(&mut self) {
        if self.shared.kind().processors {
            self.producer.publish_processor(sys::processor::current());
        }
    }

    /// Lends the place of a message of `length` bytes, waiting for room.
    ///
    /// # Errors
    /// [`SendError`], other than `Full`.
    pub fn loan(&mut self, length: usize, deadline: Option<Instant>) -> Result<Loan<'_>, SendError> {
        if !self.has_room(length)? {
            self.wait(length, deadline)?;
        }
        self.try_loan(length)
    }

    /// Lends the place of a message of at most `length` bytes, waiting for room, until
    /// [`Sender::finish`] or
    /// [`Sender::cancel`]: a pointer to its first byte. The pointer is good until then, and while this sender lives. What
    /// is not written is whatever this channel carried there before.
    ///
    /// # Errors
    /// [`SendError`], other than `Full`; [`SendError::OutOfOrder`] when one has been begun and not
    /// finished.
    pub fn begin(&mut self, length: usize, deadline: Option<Instant>) -> Result<*mut u8, SendError> {
        if !self.has_room(length)? {
            self.wait(length, deadline)?;
        }
        self.try_begin(length)
    }

    /// As [`Sender::begin`], if there is room.
    ///
    /// # Errors
    /// As there, but `Full` for `TimedOut`.
    pub fn try_begin(&mut self, length: usize) -> Result<*mut u8, SendError> {
        self.get_ready(length)?;
        let begun = match self.producer.begin(length) {
            Err(ReserveError::Full) if self.shared.is_peer_gone() => return Err(SendError::Closed),
            begun => begun.map_err(|error| refuse(&self.shared, error))?,
        };
        let pointer = self.shared.region().pointer(self.producer.offset(&begun), length);
        self.begun = Some(begun);
        Ok(pointer)
    }

    /// Sends the first `length` bytes of what was begun.
    ///
    /// # Errors
    /// [`SendError::TooLong`] when it was begun for fewer: it stays begun.
    /// [`SendError::OutOfOrder`] when nothing was begun; [`SendError::Closed`],
    /// [`SendError::Doorbell`].
    pub fn finish(&mut self, length: usize) -> Result<(), SendError> {
        const NOTHING: SendError = SendError::OutOfOrder("no message has been begun that could be finished");
        let max = self.begun.as_ref().ok_or(NOTHING)?.len();
        if length > max {
            return Err(SendError::TooLong { length, max });
        }
        let begun = self.begun.take().ok_or(NOTHING)?;
        self.check_open()?;
        let woken = self.producer.finish(begun, length).ok_or(NOTHING)?;
        wake(&self.shared, &mut self.counts, &mut self.whereabouts, woken)
    }

    /// Forgets what was begun, if anything was.
    pub fn cancel(&mut self) {
        self.begun = None;
    }

    /// Holds messages back until they are so many bytes together (at most a quarter of the ring),
    /// so that the peer is shown, and woken for, many at once. 0, the default: each shows with its
    /// commit.
    ///
    /// A sender that expects an answer flushes first. A sender flushes by itself when it runs out
    /// of room and when it closes. What is held is lost when another closes the channel first: the
    /// peer, a [`Closer`], or the receiver of this end (and of two variables that go out of scope,
    /// the later one goes first).
    pub fn set_batch_bytes(&mut self, bytes: usize) {
        self.producer.set_batch_bytes(bytes);
    }

    /// Shows the peer what was held back.
    ///
    /// # Errors
    /// [`SendError::Doorbell`]; the messages are in the ring nevertheless.
    pub fn flush(&mut self) -> Result<(), SendError> {
        check_here(&self.shared)?;
        let woken = self.producer.flush();
        wake(&self.shared, &mut self.counts, &mut self.whereabouts, woken)
    }

    /// The cost of sleeping and waking of this half so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { ways: self.spin.ways(), ..self.counts }
    }

    /// Waits until a message of `length` bytes fits.
    ///
    /// # Errors
    /// [`SendError`], other than `Full`.
    pub fn wait(&mut self, length: usize, deadline: Option<Instant>) -> Result<(), SendError> {
        loop {
            self.get_ready(length)?;
            if self.has_room(length)? {
                return Ok(());
            }
            // Room that a hostile peer gives and takes back wins it no time, either.
            if self.spin_for_room(length, deadline) && self.has_room(length)? {
                return Ok(());
            }
            if self.shared.is_peer_gone() {
                return Err(SendError::Closed);
            }
            // Every turn comes by here: a peer that rings for nothing wins no time.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(SendError::TimedOut);
            }
            self.sleep(length, deadline)?;
        }
    }

    fn spin_for_room(&mut self, length: usize, deadline: Option<Instant>) -> bool {
        let here = self.producer.processor();
        let watch = Room { producer: &mut self.producer, length };
        spin(self.policy, self.shared.kind(), &mut self.spin, deadline, here, watch)
    }

    /// Sleeps until there may be room, or the deadline.
    fn sleep(&mut self, length: usize, deadline: Option<Instant>) -> Result<(), SendError> {
        if self.shared.kind().futexes && self.habit.is_short() && self.nap(length, deadline)? == Nap::Ended {
            return Ok(());
        }
        if self.prepare(length, Sleep::OnDoorbell)?.is_none() {
            return Ok(());
        }
        let since = Instant::now();
        self.counts.doorbell_sleeps += 1;
        self.shared.check_room().map_err(SendError::Doorbell)?;
        self.descriptors().wait(deadline).map_err(SendError::Doorbell)?;
        self.habit.slept(since);
        self.cancel_wait();
        self.drain_doorbell()
    }

    /// Sleeps on the futex, for a moment.
    fn nap(&mut self, length: usize, deadline: Option<Instant>) -> Result<Nap, SendError> {
        let Some(prepared) = self.prepare(length, Sleep::OnFutex)? else { return Ok(Nap::Ended) };
        let Sender { shared, habit, counts, .. } = self;
        let nap = habit.nap(shared.region(), shared.wanted(), &prepared, deadline, counts);
        self.cancel_wait();
        Ok(nap)
    }

    /// Says to the peer that we wait for room; `None`: there is room, or no need to wait for it.
    fn prepare(&mut self, length: usize, how: Sleep) -> Result<Option<Prepared>, SendError> {
        // What is held back would not be consumed, however long we wait.
        self.flush()?;
        self.publish_processor();
        let prepared =
            self.producer.prepare_wait(length, how).map_err(|error| refuse(&self.shared, error))?;
        if !prepared.sleep {
            return Ok(None);
        }
        if self.check_open().is_err() {
            self.producer.cancel_wait();
            return Ok(None);
        }
        Ok(Some(prepared))
    }

    pub(crate) fn check_open(&self) -> Result<(), SendError> {
        if self.shared.is_closed_here() || self.shared.is_peer_closed() {
            check_here(&self.shared)?;
            return Err(SendError::Closed);
        }
        Ok(())
    }

    /// The descriptors that an event loop watches while it waits for room.
    #[must_use]
    pub fn descriptors(&self) -> Descriptors<'_> {
        self.shared.room_descriptors()
    }

    /// Says to the peer that we wait for room for `length` bytes and want to be rung. False: there
    /// is room, or the channel is closed, so do not sleep.
    ///
    /// # Errors
    /// [`SendError::TooLong`], [`SendError::Corrupt`], [`SendError::Doorbell`].
    pub fn prepare_wait(&mut self, length: usize) -> Result<bool, SendError> {
        match self.prepare(length, Sleep::OnDoorbell) {
            Ok(prepared) => Ok(prepared.is_some()),
            Err(SendError::Closed) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Says that we are awake again. Needed after every [`Sender::prepare_wait`] that returned
    /// true.
    pub fn cancel_wait(&mut self) {
        if !self.shared.is_forked() {
            self.producer.cancel_wait();
        }
    }

    /// Takes the rings off the doorbell, and notices the death of the peer. Then try to send.
    ///
    /// # Errors
    /// [`SendError::Doorbell`], [`SendError::Forked`].
    pub fn drain_doorbell(&mut self) -> Result<(), SendError> {
        check_here(&self.shared)?;
        self.shared.drain_room().map_err(SendError::Doorbell)
    }

    /// Closes the channel, for both halves of this end and for the peer; what was held back is
    /// shown before.
    pub fn close(&mut self) {
        if !self.shared.is_closed_here() {
            // The close rings whoever sleeps.
            let _woken_by_the_close = self.producer.flush();
        }
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
    let inside = loan.slot.fill(parts);
    debug_assert!(inside, "the loan is as long as its parts");
    loan.commit()
}

/// Wakes the peer's receiver, if it sleeps.
#[inline]
fn wake(
    shared: &Shared,
    counts: &mut Counts,
    whereabouts: &mut Whereabouts,
    wake: Wake,
) -> Result<(), SendError> {
    if wake.is_needed() {
        counts.wake(wake);
        // A peer that sleeps decides anew where it looks for us.
        whereabouts.hurry();
    }
    shared.wake_receiver(wake).map_err(SendError::Doorbell)
}

/// Watches for room.
struct Room<'p> {
    producer: &'p mut Producer<Arc<Region>>,
    length: usize,
}

impl Watch for Room<'_> {
    fn found(&mut self) -> bool {
        // A violation ends the spin; the next look names it.
        self.producer.has_room(self.length).unwrap_or(true)
    }

    fn peer_processor(&self) -> Option<u32> {
        self.producer.peer_processor()
    }
}

/// A fork's child would write into the midst of what its parent writes.
#[inline]
fn check_here(shared: &Shared) -> Result<(), SendError> {
    if shared.is_forked() { Err(SendError::Forked) } else { Ok(()) }
}

fn refuse(shared: &Shared, error: ReserveError) -> SendError {
    if matches!(error, ReserveError::Corrupt(_)) {
        shared.close(layout::END_REFUSED);
    }
    error.into()
}
