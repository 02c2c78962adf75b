//! The half of an end that receives.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use ring::{Consumer, Peek, Piece, Prepared, Record, Sleep, Spin, Taken, Violation, Wake};
use sys::region::Region;
use wire::ring as layout;

use crate::large::{Arrived, Assembly};
use crate::nap::{Counts, FUTEX_SLEEP, Habit, Nap};
use crate::shared::{Closer, Descriptors, FORKED, Shared, SpinPolicy, Watch, Where, Whereabouts, spin};

/// After so many looks at an empty ring without a sleep, ask the kernel whether the peer lives.
/// Costs a polling receiver a ten-thousandth, and tells it of a death within microseconds.
const LOOKS_PER_LIFE_CHECK: u32 = 1024;

/// Looks at an empty ring before the receiver takes itself for waiting: an answer from the farthest
/// processor comes within.
const LOOKS_SOON: u32 = 256;

/// So many messages in a row make a stream, in which a moment's delay costs nobody anything.
const BURST_MESSAGES: u32 = 4;
/// How long a receiver that has caught up with a stream looks away, in pauses of the processor:
/// some 0.3 us.
const BACK_OFF_PAUSES: u32 = 32;

/// Why no message was received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The channel is closed, here or there, or the peer is dead; everything it committed has been
    /// received (or this end closed itself).
    #[error("the channel is closed")]
    Closed,
    /// The deadline has passed.
    #[error("no message came in time")]
    TimedOut,
    /// The peer broke a rule; the channel has been closed.
    #[error("the peer of a channel broke its rules")]
    Corrupt(#[from] Violation),
    /// The kernel refused a wait or a signal.
    #[error("can't wait on a channel")]
    Doorbell(#[source] io::Error),
    /// A message was begun and not finished, or the other way round.
    #[error("{0}")]
    OutOfOrder(&'static str),
    /// This process is a fork of the one that opened this end.
    #[error("{FORKED}")]
    Forked,
}

/// Receives messages. Dropping it closes the channel.
#[derive(Debug)]
pub struct Receiver {
    pub(crate) shared: Arc<Shared>,
    pub(crate) consumer: Consumer<Arc<Region>>,
    /// A message that comes in pieces.
    pub(crate) large: Assembly,
    policy: SpinPolicy,
    spin: Spin,
    looks: u32,
    /// Messages since the ring was last found empty.
    burst: u32,
    whereabouts: Whereabouts,
    habit: Habit,
    counts: Counts,
    /// A message that the caller reads through a pointer.
    begun: Option<Arrived>,
}

/// A message in place: its length is fixed and checked, its bytes are what the peer alleges *now*
/// and may change between two looks. So look at each byte once.
#[derive(Debug)]
pub struct Alleged<'r>(Place<'r>);

#[derive(Debug)]
enum Place<'r> {
    Ring {
        consumer: &'r Consumer<Arc<Region>>,
        record: Record,
    },
    /// Put together from pieces: these bytes are ours, and do not change.
    Memory(&'r [u8]),
}

impl Alleged<'_> {
    /// Bytes of the message.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty message is a message")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Place::Ring { record, .. } => record.len(),
            Place::Memory(bytes) => bytes.len(),
        }
    }

    /// Copies from `at` on into `into`; false, and nothing is done, if that goes beyond the
    /// message's end.
    #[must_use]
    pub fn copy_to(&self, at: usize, into: &mut [u8]) -> bool {
        match &self.0 {
            Place::Ring { consumer, record } => consumer.copy(record, at, into),
            Place::Memory(bytes) => {
                let end = at.checked_add(into.len());
                let from = end.and_then(|end| bytes.get(at..end));
                from.map(|from| into.copy_from_slice(from)).is_some()
            }
        }
    }

    /// The `N` bytes from `at` on; `None` if they go beyond the message's end.
    #[must_use]
    pub fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.copy_to(at, &mut bytes).then_some(bytes)
    }

    /// Appends the whole message to `into`.
    pub fn append_to(&self, into: &mut Vec<u8>) {
        match &self.0 {
            Place::Ring { consumer, record } => consumer.append(record, into),
            Place::Memory(bytes) => into.extend_from_slice(bytes),
        }
    }
}

impl Receiver {
    pub(crate) fn new(shared: Arc<Shared>, consumer: Consumer<Arc<Region>>, spin: Spin) -> Self {
        Receiver {
            shared,
            consumer,
            large: Assembly::new(),
            policy: SpinPolicy::default(),
            spin,
            looks: 0,
            burst: 0,
            whereabouts: Whereabouts::default(),
            habit: Habit::default(),
            counts: Counts::default(),
            begun: None,
        }
    }

    /// Longest message that can come in one piece, in bytes.
    #[must_use]
    pub fn max_message(&self) -> usize {
        self.consumer.max_message()
    }

    /// Sets when to spin before sleeping.
    pub fn set_spin_policy(&mut self, policy: SpinPolicy) {
        self.policy = policy;
    }

    /// Looks for the next message; gives the producer a ring if it waits for the room that has
    /// become free.
    fn peek(&mut self) -> Result<Option<Record>, ReceiveError> {
        match self.consumer.peek() {
            Ok(Peek::Message(record)) => Ok(Some(record)),
            Ok(Peek::Empty { wake }) => {
                self.wake_sender(wake)?;
                Ok(None)
            }
            Err(violation) => {
                self.shared.close(layout::END_REFUSED);
                Err(violation.into())
            }
        }
    }

    #[inline]
    fn wake_sender(&mut self, wake: Wake) -> Result<(), ReceiveError> {
        self.counts.wake(wake);
        self.shared.wake_sender(wake).map_err(ReceiveError::Doorbell)
    }

    /// The next message, or `None` for now, or the end.
    #[inline]
    fn next_message(&mut self) -> Result<Option<Arrived>, ReceiveError> {
        if self.large.is_whole() {
            self.check_open()?;
            return Ok(Some(Arrived::Assembled));
        }
        match self.next()? {
            Some(record) if record.piece() == Piece::Whole => {
                // One that was begun is abandoned.
                self.large.clear();
                Ok(Some(Arrived::InPlace(record)))
            }
            Some(record) => self.assemble(record),
            None => Ok(None),
        }
    }

    fn check_open(&self) -> Result<(), ReceiveError> {
        if self.begun.is_some() {
            return Err(ReceiveError::OutOfOrder("a message has been begun: finish it before the next"));
        }
        if self.shared.is_closed_here() {
            self.check_here()?;
            return Err(ReceiveError::Closed);
        }
        Ok(())
    }

    /// The next record, or `None` for now, or the end.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, ReceiveError> {
        self.check_open()?;
        if let Some(record) = self.peek()? {
            self.looks = 0;
            return Ok(Some(record));
        }
        self.looks += 1;
        let gone = if self.looks >= LOOKS_PER_LIFE_CHECK {
            self.looks = 0;
            self.shared.is_peer_gone()
        } else {
            self.shared.is_peer_closed()
        };
        if !gone {
            return Ok(None);
        }
        // END: what was committed before the close (or the death) shows by now.
        match self.peek()? {
            Some(record) => Ok(Some(record)),
            None => Err(ReceiveError::Closed),
        }
    }

    /// Copies bytes of a record that is not released yet; false, and nothing is done, beyond its
    /// end.
    #[must_use]
    pub(crate) fn copy(&self, record: &Record, at: usize, into: &mut [u8]) -> bool {
        self.consumer.copy(record, at, into)
    }

    /// A fork's child would give back what its parent is reading.
    #[inline]
    pub(crate) fn check_here(&self) -> Result<(), ReceiveError> {
        if self.shared.is_forked() { Err(ReceiveError::Forked) } else { Ok(()) }
    }

    pub(crate) fn release(&mut self, record: Record) -> Result<(), ReceiveError> {
        self.check_here()?;
        self.burst = self.burst.saturating_add(1);
        if self.whereabouts.is_due() {
            self.publish_processor();
        }
        let wake = self.consumer.release(record);
        self.wake_sender(wake)
    }

    /// Receives a message into `into` (replacing what was there) if there is one; returns its
    /// length.
    ///
    /// # Errors
    /// [`ReceiveError`], other than `TimedOut`.
    #[inline]
    pub fn try_receive(&mut self, into: &mut Vec<u8>) -> Result<Option<usize>, ReceiveError> {
        match self.take_at_once(into) {
            Taken::Message(length) => Ok(Some(length)),
            Taken::Nothing => Ok(None),
            Taken::Unusual => self.try_receive_any(into),
        }
    }

    /// Receives a message if there is nothing to do but that; or sees that there is none.
    #[inline]
    fn take_at_once(&mut self, into: &mut Vec<u8>) -> Taken {
        if self.shared.is_closed_here() || self.begun.is_some() || self.large.is_whole() {
            return Taken::Unusual;
        }
        let taken = self.consumer.take_at_once(into);
        match taken {
            Taken::Message(_) => {
                self.looks = 0;
                self.burst = self.burst.saturating_add(1);
                if self.whereabouts.is_due() {
                    self.publish_processor();
                }
            }
            Taken::Nothing => {
                self.looks += 1;
                if self.looks >= LOOKS_PER_LIFE_CHECK || self.shared.is_peer_closed() {
                    return Taken::Unusual;
                }
            }
            Taken::Unusual => {}
        }
        taken
    }

    /// Counts a message that was taken beside this half's own calls.
    #[inline]
    pub(crate) fn count_one(&mut self) {
        if self.whereabouts.is_due() {
            self.publish_processor();
        }
    }

    /// Says where we run: there we will be woken, as far as anybody knows.
    pub(crate) fn publish_here(&mut self) {
        self.publish_processor();
    }

    #[cold]
    fn publish_processor(&mut self) {
        if self.shared.kind().processors {
            self.consumer.publish_processor(sys::processor::current());
        }
    }

    #[cold]
    fn try_receive_any(&mut self, into: &mut Vec<u8>) -> Result<Option<usize>, ReceiveError> {
        let Some(arrived) = self.next_message()? else { return Ok(None) };
        self.take(arrived, into).map(Some)
    }

    /// Receives a message into `into` (replacing what was there), waiting for it; returns its
    /// length.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub fn receive(&mut self, into: &mut Vec<u8>, deadline: Option<Instant>) -> Result<usize, ReceiveError> {
        match self.take_soon(into) {
            Some(length) => Ok(length),
            None => self.wait_for(deadline, |this| this.try_receive(into)),
        }
    }

    /// As [`Receiver::take_at_once`], looking again if a message may be on its way: for a
    /// microsecond or two.
    #[inline]
    fn take_soon(&mut self, into: &mut Vec<u8>) -> Option<usize> {
        for look in 0..LOOKS_SOON {
            match self.take_at_once(into) {
                Taken::Message(length) => return Some(length),
                Taken::Unusual => return None,
                Taken::Nothing if look == 0 => {
                    let (peer, here) = (self.consumer.peer_processor(), self.consumer.processor());
                    // A processor of ours that was never published is none that the peer could
                    // share.
                    let place = self.shared.kind().place(peer, || here.unwrap_or(u32::MAX));
                    let apart = place == Where::Apart;
                    // In a stream, whoever catches up at once takes line after line from the
                    // producer.
                    let stream = self.burst >= BURST_MESSAGES;
                    if self.policy == SpinPolicy::Never || !apart || stream || !self.spin.pays() {
                        return None;
                    }
                    self.burst = 0;
                }
                Taken::Nothing => {}
            }
        }
        None
    }

    fn take(&mut self, arrived: Arrived, into: &mut Vec<u8>) -> Result<usize, ReceiveError> {
        match arrived {
            Arrived::InPlace(record) => {
                into.clear();
                self.consumer.append(&record, into);
            }
            Arrived::Assembled => self.large.swap(into),
        }
        self.done(arrived)?;
        Ok(into.len())
    }

    /// Reads a message in place, if there is one, and releases it.
    ///
    /// # Errors
    /// [`ReceiveError`], other than `TimedOut`.
    pub fn try_read<T>(&mut self, read: impl FnOnce(&Alleged<'_>) -> T) -> Result<Option<T>, ReceiveError> {
        let Some(arrived) = self.next_message()? else { return Ok(None) };
        self.show(arrived, read).map(Some)
    }

    /// Waits for a message, reads it in place, and releases it.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub fn read<T>(
        &mut self,
        deadline: Option<Instant>,
        read: impl FnOnce(&Alleged<'_>) -> T,
    ) -> Result<T, ReceiveError> {
        let arrived = self.wait_for(deadline, Self::next_message)?;
        self.show(arrived, read)
    }

    #[inline]
    fn show<T>(&mut self, arrived: Arrived, read: impl FnOnce(&Alleged<'_>) -> T) -> Result<T, ReceiveError> {
        let result = match arrived {
            Arrived::InPlace(record) => read(&Alleged(Place::Ring { consumer: &self.consumer, record })),
            Arrived::Assembled => read(&Alleged(Place::Memory(self.large.bytes()))),
        };
        self.done(arrived)?;
        Ok(result)
    }

    /// Gives back what a message takes up.
    #[inline]
    fn done(&mut self, arrived: Arrived) -> Result<(), ReceiveError> {
        match arrived {
            Arrived::InPlace(record) => self.release(record),
            Arrived::Assembled => {
                self.large.clear();
                Ok(())
            }
        }
    }

    /// Lends the bytes of the next message, waiting for it, until [`Receiver::finish`]: a pointer
    /// to the first and how many there are. The pointer is good until then, and while this receiver
    /// lives. What it points to is what the peer alleges *now*: read each byte once, or copy before
    /// you check.
    ///
    /// # Errors
    /// See [`ReceiveError`]; [`ReceiveError::OutOfOrder`] when one has been begun and not finished.
    pub fn begin(&mut self, deadline: Option<Instant>) -> Result<(*const u8, usize), ReceiveError> {
        let arrived = self.wait_for(deadline, Self::next_message)?;
        Ok(self.lend(arrived))
    }

    /// As [`Receiver::begin`], if there is a message.
    ///
    /// # Errors
    /// As there, other than `TimedOut`.
    pub fn try_begin(&mut self) -> Result<Option<(*const u8, usize)>, ReceiveError> {
        let arrived = self.next_message()?;
        Ok(arrived.map(|arrived| self.lend(arrived)))
    }

    fn lend(&mut self, arrived: Arrived) -> (*const u8, usize) {
        self.begun = Some(arrived);
        let length = self.length(arrived);
        let pointer = match arrived {
            Arrived::InPlace(record) => {
                let start = self.consumer.start(&record);
                self.shared.region().pointer(start, length).cast_const()
            }
            Arrived::Assembled => self.large.bytes().as_ptr(),
        };
        (pointer, length)
    }

    /// Gives back what [`Receiver::begin`] lent.
    ///
    /// # Errors
    /// [`ReceiveError::OutOfOrder`] when nothing was begun; [`ReceiveError::Doorbell`].
    pub fn finish(&mut self) -> Result<(), ReceiveError> {
        let nothing = ReceiveError::OutOfOrder("no message has been begun that could be finished");
        let arrived = self.begun.take().ok_or(nothing)?;
        self.done(arrived)
    }

    /// The cost of sleeping and waking of this half so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { ways: self.spin.ways(), ..self.counts }
    }

    /// Bytes of the next message, if there is one. It stays; that it is as long when it is read is
    /// the peer's word.
    ///
    /// # Errors
    /// [`ReceiveError`], other than `TimedOut`.
    pub fn try_next_length(&mut self) -> Result<Option<usize>, ReceiveError> {
        Ok(self.next_message()?.map(|arrived| self.length(arrived)))
    }

    /// Waits for the next message; returns its length, as [`Receiver::try_next_length`].
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub fn next_length(&mut self, deadline: Option<Instant>) -> Result<usize, ReceiveError> {
        let arrived = self.wait_for(deadline, Self::next_message)?;
        Ok(self.length(arrived))
    }

    fn length(&self, arrived: Arrived) -> usize {
        match arrived {
            Arrived::InPlace(record) => record.len(),
            Arrived::Assembled => self.large.bytes().len(),
        }
    }

    /// Waits until there is a message to receive.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub fn wait(&mut self, deadline: Option<Instant>) -> Result<(), ReceiveError> {
        self.wait_for(deadline, Self::next_message).map(|_| ())
    }

    /// Waits until `look` finds something.
    pub(crate) fn wait_for<T>(
        &mut self,
        deadline: Option<Instant>,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, ReceiveError>,
    ) -> Result<T, ReceiveError> {
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            self.back_off();
            let consumer = &self.consumer;
            let (kind, here) = (self.shared.kind(), consumer.processor());
            if spin(self.policy, kind, &mut self.spin, deadline, here, Data(consumer))
                && let Some(found) = look(self)?
            {
                return Ok(found);
            }
            // Every turn comes by here: a peer that rings for nothing, or shows and hides a
            // message, wins no time.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(ReceiveError::TimedOut);
            }
            self.sleep(deadline)?;
        }
    }

    /// Sleeps until there may be something, or the deadline.
    fn sleep(&mut self, deadline: Option<Instant>) -> Result<(), ReceiveError> {
        if self.shared.kind().futexes && self.habit.is_short() && self.nap(deadline)? == Nap::Ended {
            return Ok(());
        }
        let Some(prepared) = self.prepare(Sleep::OnDoorbell)? else { return Ok(()) };
        let since = Instant::now();
        let until = if prepared.blind { Some(since + FUTEX_SLEEP) } else { None };
        let until = deadline.into_iter().chain(until).min();
        self.counts.doorbell_sleeps += 1;
        self.shared.check_data().map_err(ReceiveError::Doorbell)?;
        self.descriptors().wait(until).map_err(ReceiveError::Doorbell)?;
        self.habit.slept(since);
        self.cancel_wait();
        self.drain_doorbell()
    }

    /// Sleeps on the futex, for a moment.
    fn nap(&mut self, deadline: Option<Instant>) -> Result<Nap, ReceiveError> {
        let Some(prepared) = self.prepare(Sleep::OnFutex)? else { return Ok(Nap::Ended) };
        let Receiver { shared, habit, counts, .. } = self;
        let nap = habit.nap(shared.region(), shared.sleeping(), &prepared, deadline, counts);
        self.cancel_wait();
        Ok(nap)
    }

    /// Says to the peer that we are going to sleep; `None`: there is something, do not.
    fn prepare(&mut self, how: Sleep) -> Result<Option<Prepared>, ReceiveError> {
        self.check_here()?;
        if self.large.is_whole() {
            return Ok(None);
        }
        // The processor that we sleep on is where we will be woken, as far as anybody knows.
        self.publish_processor();
        let prepared = self.consumer.prepare_wait(how);
        let woken = self.wake_sender(prepared.wake);
        if woken.is_err() || self.shared.is_closed_here() || self.shared.is_peer_closed() {
            self.consumer.cancel_wait();
            return woken.map(|()| None);
        }
        Ok(prepared.sleep.then_some(prepared))
    }

    /// After a burst, leaves the producer a moment alone with the line that it writes, instead of
    /// snatching each message as it comes: the next look finds several.
    fn back_off(&mut self) {
        let burst = std::mem::take(&mut self.burst);
        if burst >= BURST_MESSAGES && self.policy == SpinPolicy::Adaptive && self.is_peer_apart() {
            for _ in 0..BACK_OFF_PAUSES {
                std::hint::spin_loop();
            }
        }
    }

    /// The descriptors that an event loop watches.
    #[must_use]
    pub fn descriptors(&self) -> Descriptors<'_> {
        self.shared.data_descriptors()
    }

    /// Says to the peer that we are going to sleep and want to be rung. False: there is something
    /// (a message, or the end of the channel), so do not sleep.
    pub fn prepare_wait(&mut self) -> bool {
        match self.prepare(Sleep::OnDoorbell) {
            // Blind: only a kernel that takes membarrier(2) back makes us look again instead of
            // sleeping.
            Ok(Some(prepared)) if prepared.blind => {
                self.consumer.cancel_wait();
                false
            }
            Ok(prepared) => prepared.is_some(),
            // The peer waits and can't be rung: the next look says why, if it is gone.
            Err(_) => false,
        }
    }

    /// Says that we are awake again. Needed after every [`Receiver::prepare_wait`] that returned
    /// true.
    pub fn cancel_wait(&mut self) {
        if !self.shared.is_forked() {
            self.consumer.cancel_wait();
        }
    }

    /// Takes the rings off the doorbell, and notices the death of the peer. Then try to receive.
    ///
    /// # Errors
    /// [`ReceiveError::Doorbell`], [`ReceiveError::Forked`].
    pub fn drain_doorbell(&mut self) -> Result<(), ReceiveError> {
        self.check_here()?;
        self.shared.drain_data().map_err(ReceiveError::Doorbell)
    }

    /// Whether the peer alleges to run on another processor than this thread, so that spinning for
    /// it can pay: for event loops, which spin for all their channels at once.
    #[must_use]
    pub fn is_peer_apart(&self) -> bool {
        let place = self.shared.kind().place(self.consumer.peer_processor(), sys::processor::current);
        place == Where::Apart
    }

    /// Lets go of the end without closing the channel: for a process that shares the descriptors
    /// with another, which goes on using them. Drop both halves then. (A fork's child need not: its
    /// halves fail with [`ReceiveError::Forked`] and close nothing. But while it holds them, their
    /// peer can't notice the parent's death.)
    pub fn abandon(&mut self) {
        self.shared.abandon();
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

    /// Whether the channel is closed, here or there, or the peer is dead. There may still be
    /// messages to receive.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed_here() || self.shared.is_peer_gone()
    }
}

/// Watches for a message.
struct Data<'c>(&'c Consumer<Arc<Region>>);

impl Watch for Data<'_> {
    #[inline]
    fn found(&mut self) -> bool {
        self.0.has_something()
    }

    fn peer_processor(&self) -> Option<u32> {
        self.0.peer_processor()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.close();
    }
}
