//! The half that takes messages out.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use wire::ring::{self as layout, RecordWord};

use crate::producer::processor;
use crate::{Label, Memory, Piece, Place, Prepared, Sleep, Violation, Wake};

/// `consumed` is published when this part of the ring has been released: often enough that a
/// producer seldom waits, seldom enough that its line stays with the consumer.
const PUBLISH_PART: u64 = 4;

/// The reading half of a ring.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    place: Place,
    /// Bytes released since the start: ours, never read back from memory.
    consumed: u64,
    /// The content of the `consumed` word.
    published: u64,
    /// The content of our processor word.
    processor: u64,
    /// A message has been begun, and its last piece has not been released.
    within: bool,
    /// No barrier of ours reaches the producer, and it knows.
    forsworn: bool,
}

/// A message that was committed and found possible: its place and length do not change any more,
/// its bytes may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    position: u64,
    length: usize,
    piece: Piece,
}

impl Record {
    /// Bytes of the message.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty message is a message")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// The part of a message that it carries.
    #[must_use]
    pub fn piece(&self) -> Piece {
        self.piece
    }

    /// Where it starts, in bytes since the start.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }
}

/// The next record of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// A message.
    Message(Record),
    /// Nothing yet.
    Empty {
        /// The producer waits for room that it now has: wake it.
        wake: Wake,
    },
}

/// The outcome of [`Consumer::take_at_once`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A message of so many bytes; it has been released.
    Message(usize),
    /// There is nothing, and nothing that the producer would have to be told.
    Nothing,
    /// Neither: [`Consumer::peek`] finds out.
    Unusual,
}

impl<M: Memory> Consumer<M> {
    /// The reading half of a fresh ring. There must be only one.
    pub fn new(memory: M, place: Place) -> Self {
        Consumer { memory, place, consumed: 0, published: 0, processor: 0, within: false, forsworn: false }
    }

    /// Says that this end orders the producer's memory before it sleeps, with [`Memory::barrier`],
    /// so that the producer need not fence. `false` takes it back, which a producer may notice
    /// late.
    pub fn offer_barrier(&mut self, offered: bool) {
        self.memory.store(self.place.control(layout::CONTROL_BARRIER), u64::from(offered), Relaxed);
    }

    /// This end never orders the producer's memory, because no barrier of its kernel reaches there:
    /// it offers none, and what the producer alleges of fences means nothing to it. One that leaves
    /// them out all the same leaves its own messages unnoticed.
    pub fn forswear_barriers(&mut self) {
        self.offer_barrier(false);
        self.forsworn = true;
    }

    /// Says to the producer up to how many bytes we put messages together from pieces.
    pub fn offer_message_limit(&mut self, bytes: u64) {
        self.memory.store(self.place.control(layout::CONTROL_MESSAGE_LIMIT), bytes, Relaxed);
    }

    /// Longest message in one record, in bytes.
    pub fn max_message(&self) -> usize {
        self.place.max_message()
    }

    /// Bytes consumed since the start, padding and headers included.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    #[inline]
    fn word(&self) -> u64 {
        // COMMIT: pairs with the producer's `commit`.
        self.memory.load(self.place.at(self.consumed), Label::CommitLoad.order(Acquire))
    }

    /// Whether something stands next in the ring, be it good or bad: for spinning before a sleep.
    #[inline]
    pub fn has_something(&self) -> bool {
        self.word() != 0
    }

    /// Looks at the next message without taking it.
    ///
    /// # Errors
    /// The rule that the producer broke; this half can't be used any further.
    #[inline]
    pub fn peek(&mut self) -> Result<Peek, Violation> {
        let word = self.word();
        if word == 0 {
            return Ok(Peek::Empty { wake: self.empty() });
        }
        let alleged = self.check_sequence(word)?;
        if alleged.kind == layout::RECORD_PADDING {
            return self.skip_padding(alleged).map(Peek::Message);
        }
        self.check_message(alleged).map(Peek::Message)
    }

    /// Moves the next message into `into` (replacing what was there) and releases it, if it is a
    /// whole one with nothing wrong about it and nothing to do for the producer.
    #[inline]
    pub fn take_at_once(&mut self, into: &mut Vec<u8>) -> Taken {
        let word = self.word();
        if word == 0 {
            let told = self.published == self.consumed && !self.is_wanted();
            return if told { Taken::Nothing } else { Taken::Unusual };
        }
        // Whatever is wrong with kind or sequence makes a length out of bounds.
        let alleged = word ^ layout::record_word(layout::RECORD_MESSAGE, 0, self.consumed);
        let most =
            self.place.max_message().min(self.place.until_end(self.consumed) - layout::RECORD_HEADER_BYTES);
        if alleged > most as u64 || self.within {
            return Taken::Unusual;
        }
        let length = alleged as usize;
        let bytes = layout::record_bytes(length) as u64;
        let released = self.consumed + bytes;
        let due = released - self.published >= self.place.capacity() as u64 / PUBLISH_PART;
        if due || self.is_wanted() {
            return Taken::Unusual;
        }
        into.clear();
        self.memory.append_to(self.place.at(self.consumed) + layout::RECORD_HEADER_BYTES, length, into);
        self.consumed = released;
        Taken::Message(length)
    }

    /// As [`Consumer::take_at_once`], of a message that begins with a head of `N` words which
    /// `judge` accepts: what follows the head replaces what is in `into`. `None`: nothing was done,
    /// and [`Consumer::peek`] finds out what there is.
    #[inline]
    pub fn take_headed_at_once<const N: usize, T>(
        &mut self,
        into: &mut Vec<u8>,
        judge: impl FnOnce([u64; N], usize) -> Option<T>,
    ) -> Option<T> {
        let word = self.word();
        if word == 0 {
            return None;
        }
        // As there: whatever is wrong with kind or sequence makes a length out of bounds.
        let alleged = word ^ layout::record_word(layout::RECORD_MESSAGE, 0, self.consumed);
        let most =
            self.place.max_message().min(self.place.until_end(self.consumed) - layout::RECORD_HEADER_BYTES);
        if alleged > most as u64 || self.within {
            return None;
        }
        let length = alleged as usize;
        let released = self.consumed + layout::record_bytes(length) as u64;
        let due = released - self.published >= self.place.capacity() as u64 / PUBLISH_PART;
        let head_bytes = N * size_of::<u64>();
        let body = length.checked_sub(head_bytes)?;
        if due || self.is_wanted() {
            return None;
        }
        let start = self.place.at(self.consumed) + layout::RECORD_HEADER_BYTES;
        let judged = judge(self.memory.words(start), body)?;
        into.clear();
        self.memory.append_to(start + head_bytes, body, into);
        self.consumed = released;
        Some(judged)
    }

    fn check_sequence(&self, word: u64) -> Result<RecordWord, Violation> {
        let alleged = RecordWord::parse(word);
        let (position, expected) = (self.consumed, layout::sequence(self.consumed));
        if alleged.sequence != expected {
            return Err(Violation::Sequence { position, alleged: alleged.sequence, expected });
        }
        Ok(alleged)
    }

    fn check_message(&self, alleged: RecordWord) -> Result<Record, Violation> {
        let position = self.consumed;
        let kind = Violation::Kind { position, alleged: alleged.kind };
        let piece = Piece::of_kind(alleged.kind).ok_or(kind)?;
        let most = self.place.max_message().min(self.place.until_end(position) - layout::RECORD_HEADER_BYTES);
        if alleged.length > most {
            return Err(Violation::Length { position, alleged: alleged.length, most });
        }
        if piece != Piece::Whole && (alleged.length == 0 || !piece.begins() && !self.within) {
            return Err(Violation::Piece { position, alleged: alleged.kind });
        }
        Ok(Record { position, length: alleged.length, piece })
    }

    /// Steps over a padding to the message behind it, which is committed before it. Never two
    /// paddings in a row.
    fn skip_padding(&mut self, alleged: RecordWord) -> Result<Record, Violation> {
        let position = self.consumed;
        let wrong = Violation::Padding { position, alleged: alleged.length };
        let to_end = self.place.until_end(position);
        let starts_the_ring = to_end == self.place.capacity();
        if starts_the_ring || alleged.length != to_end - layout::RECORD_HEADER_BYTES {
            return Err(wrong);
        }
        self.consumed += to_end as u64;
        let word = self.word();
        if word == 0 {
            return Err(wrong);
        }
        let alleged = self.check_sequence(word)?;
        self.check_message(alleged)
    }

    fn offset(&self, record: &Record, at: usize, length: usize) -> Option<usize> {
        let inside = at <= record.length && length <= record.length - at;
        inside.then(|| self.start(record) + at)
    }

    /// Offset in the region of a message's first byte.
    #[must_use]
    pub fn start(&self, record: &Record) -> usize {
        self.place.at(record.position) + layout::RECORD_HEADER_BYTES
    }

    /// Copies bytes of a message, from `at` on. False, and nothing is done, when they would go
    /// beyond its end.
    #[must_use]
    #[inline]
    pub fn copy(&self, record: &Record, at: usize, into: &mut [u8]) -> bool {
        let Some(offset) = self.offset(record, at, into.len()) else { return false };
        self.memory.copy_out(offset, into);
        true
    }

    /// Appends a message to `into`.
    #[inline]
    pub fn append(&self, record: &Record, into: &mut Vec<u8>) {
        if let Some(offset) = self.offset(record, 0, record.length) {
            self.memory.append_to(offset, record.length, into);
        }
    }

    /// Appends what follows the first `at` bytes of a message to `into`. False, and nothing is
    /// done, when it is shorter.
    #[must_use]
    #[inline]
    pub fn append_from(&self, record: &Record, at: usize, into: &mut Vec<u8>) -> bool {
        let Some(length) = record.length.checked_sub(at) else { return false };
        let Some(offset) = self.offset(record, at, length) else { return false };
        self.memory.append_to(offset, length, into);
        true
    }

    /// Gives the message's room back, and says how to wake the producer if it waits for that.
    #[inline]
    pub fn release(&mut self, record: Record) -> Wake {
        if record.position != self.consumed {
            // Released before: its room is not ours any more.
            return Wake::Nobody;
        }
        self.within = !record.piece.ends();
        let bytes = layout::record_bytes(record.length) as u64;
        self.consumed += bytes;
        let due = self.consumed - self.published >= self.place.capacity() as u64 / PUBLISH_PART;
        // A hint without ordering: a producer that it misses is seen when the ring is found empty.
        if !due && !self.is_wanted() {
            return Wake::Nobody;
        }
        self.publish();
        // WANT: pairs with the producer's `prepare_wait`.
        Label::WantConsumer.fence(&self.memory);
        self.wake_producer()
    }

    /// The ring is empty: all that was released is published. No fence: whoever finds a ring empty
    /// looks again, and then sees what the producer wants, or prepares to sleep, and fences there.
    #[inline]
    fn empty(&mut self) -> Wake {
        if self.published != self.consumed {
            self.publish();
        }
        self.wake_producer()
    }

    /// Whether the producer alleges to wait for what has been released.
    #[inline]
    fn is_wanted(&self) -> bool {
        let wanted = self.memory.load(self.place.wanted(), Relaxed);
        wanted != 0 && wanted & !layout::SLEEPS_MASK <= self.consumed
    }

    fn publish(&mut self) {
        self.published = self.consumed;
        // ROOM: pairs with the producer's `look_at_consumed`.
        let order = Label::RoomStore.order(Release);
        self.memory.store(self.place.control(layout::CONTROL_CONSUMED), self.consumed, order);
    }

    #[inline]
    fn wake_producer(&mut self) -> Wake {
        if !self.is_wanted() {
            return Wake::Nobody;
        }
        Wake::of(self.memory.swap(self.place.wanted(), 0, Relaxed))
    }

    /// Says to the producer that we are going to sleep, and publishes what has been released.
    pub fn prepare_wait(&mut self, how: Sleep) -> Prepared {
        if self.published != self.consumed {
            self.publish();
        }
        // A swap, here and in `cancel_wait`: it stands behind whatever cleared the flag last, in
        // every model.
        self.memory.swap(self.place.sleeping(), how.bits(), Relaxed);
        // SLEEP: pairs with the producer's `look_at_sleeper`. WANT: pairs with its `prepare_wait`.
        Label::SleepConsumer.fence(&self.memory);
        let blind = !self.order_producer();
        let wake = self.wake_producer();
        let sleep = self.word() == 0;
        if !sleep {
            self.cancel_wait();
        }
        Prepared { sleep, word: how.bits(), blind, wake }
    }

    /// As [`Consumer::prepare_wait`], for one who waits for more than a message: it looks at the
    /// ring, and at what else it waits for, when this has been said, and takes it back by
    /// [`Consumer::cancel_wait`]. `Prepared::sleep` is always true.
    pub fn listen(&mut self, how: Sleep) -> Prepared {
        if self.published != self.consumed {
            self.publish();
        }
        self.memory.swap(self.place.sleeping(), how.bits(), Relaxed);
        // SLEEP: pairs with the producer's `look_at_sleeper`; what the caller looks at next is
        // behind this fence, too.
        Label::SleepConsumer.fence(&self.memory);
        let blind = !self.order_producer();
        let wake = self.wake_producer();
        Prepared { sleep: true, word: how.bits(), blind, wake }
    }

    /// Has the producer's last commit show, if it does not see to that itself. False: that can't be
    /// done.
    fn order_producer(&mut self) -> bool {
        // REFENCED: pairs with the producer's `refence`. UNFENCED: pairs with its `unfence`.
        let order = Label::RefenceLoad.order(Acquire);
        if self.forsworn || self.memory.load(self.place.control(layout::CONTROL_UNFENCED), order) == 0 {
            return true;
        }
        // SLEEP, by the consumer alone.
        let ordered = Label::SleepBarrier.is_weakened() || self.memory.barrier();
        if !ordered {
            self.offer_barrier(false);
        }
        ordered
    }

    /// Takes back what [`Consumer::prepare_wait`] said: we are awake.
    pub fn cancel_wait(&mut self) {
        let word = self.place.sleeping();
        // Nobody but us sets it, so a zero here is the one of whoever woke us.
        if self.memory.load(word, Relaxed) != 0 {
            self.memory.swap(word, 0, Relaxed);
        }
    }

    /// Publishes the processor that we run on, if it is another one than last time.
    #[inline]
    pub fn publish_processor(&mut self, processor: u32) {
        let word = u64::from(processor) + 1;
        if word != self.processor {
            self.processor = word;
            self.memory.store(self.place.control(layout::CONTROL_CONSUMER_PROCESSOR), word, Relaxed);
        }
    }

    /// The processor that we published last.
    pub fn processor(&self) -> Option<u32> {
        processor(self.processor)
    }

    /// The processor on which the producer alleges to have run last.
    pub fn peer_processor(&self) -> Option<u32> {
        processor(self.memory.load(self.place.control(layout::CONTROL_PRODUCER_PROCESSOR), Relaxed))
    }
}
