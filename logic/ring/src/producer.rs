//! The half that writes messages.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use wire::ring as layout;

use crate::{Label, Memory, Piece, Place, Prepared, Sleep, Slot, Violation, Wake};

/// A batch is at most this part of the ring, so that the consumer works on the rest meanwhile.
const BATCH_PART: u64 = 4;

/// After so many commits in a row that found the consumer awake, it pays to do without the fence:
/// at the next sleep the consumer pays for it with a system call, which costs as much as some tens
/// of fences.
const CALM_COMMITS: u32 = if cfg!(loom) { 1 } else { 64 };
/// After so many times that many it pays to register the process for barriers, which costs it a
/// thread for some ms.
const CALMS_TO_REGISTER: u32 = 16;

/// How far ahead of a message lines are fetched that later ones will be written to: some messages,
/// and far less than a consumer lags behind.
const AHEAD_BYTES: u64 = 512;
/// Lines that a short message takes, and that are fetched with it.
const LINES_AHEAD_AT_ONCE: u64 = 2;

/// No position: off the grid of records.
const NOWHERE: u64 = u64::MAX;

/// Why there is no slot for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// It will never fit.
    #[error("a message of {length} bytes is longer than the {max} bytes that this ring takes")]
    TooLong {
        /// Bytes of the message.
        length: usize,
        /// Bytes of the longest message.
        max: usize,
    },
    /// It does not fit now.
    #[error("the ring is full")]
    Full,
    /// The consumer broke a rule.
    #[error(transparent)]
    Corrupt(#[from] Violation),
}

/// The writing half of a ring. Its own index, `produced`, is nowhere else: the words of the records
/// say it all.
#[derive(Debug)]
pub struct Producer<M> {
    pub(crate) memory: M,
    pub(crate) place: Place,
    /// Bytes produced since the start, held back or not.
    produced: u64,
    /// The amount that the consumer had released when we looked last: checked.
    consumed: u64,
    /// Where we have put zero last: the word behind a record.
    cleared: u64,
    /// Messages are held back up to so many bytes; 0: none is.
    batch_bytes: u64,
    held: Option<Held>,
    fencing: Fencing,
    /// The content of our processor word.
    processor: u64,
}

/// Messages that the consumer does not see yet, because the first word of the first is missing.
#[derive(Clone, Copy, Debug)]
struct Held {
    position: u64,
    word: u64,
}

/// Whether we fence between a commit and the look at `sleeping`.
#[derive(Debug)]
struct Fencing {
    /// The content of the `unfenced` word, negated.
    fenced: bool,
    /// Whether the kernel knows that barriers are meant for us, too.
    registered: bool,
    /// Commits since the consumer was last found asleep.
    calm: u32,
    /// How often they were [`CALM_COMMITS`].
    calms: u32,
}

/// Room for one message, found but not committed.
#[derive(Debug)]
pub struct Begun {
    /// Where the message's record starts; the padding stands before it.
    position: u64,
    padding: usize,
    length: usize,
    piece: Piece,
}

impl Begun {
    /// Bytes of the message.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "the length is fixed, not a count of contents")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Says what part of a message this is; without it, a whole one.
    pub fn set_piece(&mut self, piece: Piece) {
        self.piece = piece;
    }
}

/// Room that a message of some length takes.
#[derive(Clone, Copy)]
struct Need {
    /// Bytes that are skipped, because the message would not fit in one piece before the ring's
    /// end.
    padding: usize,
    /// Bytes that must be free: the padding, the record, and the word after it, which is set to
    /// zero.
    bytes: u64,
}

impl<M: Memory> Producer<M> {
    /// The writing half of a fresh ring. There must be only one.
    pub fn new(memory: M, place: Place) -> Self {
        Producer {
            memory,
            place,
            produced: 0,
            consumed: 0,
            cleared: 0,
            batch_bytes: 0,
            held: None,
            fencing: Fencing { fenced: true, registered: false, calm: 0, calms: 0 },
            processor: 0,
        }
    }

    /// Longest message, in bytes.
    pub fn max_message(&self) -> usize {
        self.place.max_message()
    }

    /// Bytes produced since the start, padding, headers and what is held back included.
    pub fn produced(&self) -> u64 {
        self.produced
    }

    /// Holds messages back until they are so many bytes together (a quarter of the ring at most),
    /// or [`Producer::flush`] is called. 0: each shows with its commit. What is held now stays so
    /// until then.
    pub fn set_batch_bytes(&mut self, bytes: usize) {
        let most = self.place.capacity() as u64 / BATCH_PART;
        self.batch_bytes = u64::try_from(bytes).unwrap_or(most).min(most);
        // A loan of a batch clears nothing beforehand: its payload may go over a zero that stands
        // for one before it.
        self.cleared = NOWHERE;
    }

    /// Whether there are messages that the consumer does not see yet.
    #[inline]
    pub fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    fn need(&self, length: usize) -> Result<Need, ReserveError> {
        let max = self.place.max_message();
        if length > max {
            return Err(ReserveError::TooLong { length, max });
        }
        let record = layout::record_bytes(length);
        let to_end = self.place.until_end(self.produced);
        let padding = if record > to_end { to_end } else { 0 };
        Ok(Need { padding, bytes: (padding + record + layout::RECORD_HEADER_BYTES) as u64 })
    }

    fn free(&self) -> u64 {
        self.place.capacity() as u64 - (self.produced - self.consumed)
    }

    /// Looks how far the consumer is, and believes it only within what is possible.
    fn look_at_consumed(&mut self) -> Result<(), Violation> {
        // ROOM: pairs with the consumer's `publish`.
        let order = Label::RoomLoad.order(Acquire);
        let alleged = self.memory.load(self.place.control(layout::CONTROL_CONSUMED), order);
        // What is held back, nobody can have consumed.
        let (least, most) = (self.consumed, self.held.map_or(self.produced, |held| held.position));
        if alleged < least || alleged > most || !alleged.is_multiple_of(layout::RECORD_ALIGN as u64) {
            return Err(Violation::Consumed { alleged, least, most });
        }
        self.consumed = alleged;
        Ok(())
    }

    /// Finds room for a message of `length` bytes. Nothing shows to the consumer before
    /// [`Slot::commit`].
    ///
    /// # Errors
    /// See [`ReserveError`]. Messages that are held back take room as well: flush them before
    /// waiting for room.
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<Slot<'_, M>, ReserveError> {
        let begun = self.begin(length)?;
        Ok(Slot { producer: self, begun })
    }

    /// As [`Producer::reserve`], without holding on to the producer: hand it back with
    /// [`Producer::finish`]. Dropped, it never was.
    ///
    /// # Errors
    /// See [`ReserveError`].
    #[inline]
    pub fn begin(&mut self, length: usize) -> Result<Begun, ReserveError> {
        let need = self.need(length)?;
        if need.bytes > self.free() {
            self.look_at_consumed()?;
            if need.bytes > self.free() {
                return Err(ReserveError::Full);
            }
        }
        let position = self.produced + need.padding as u64;
        if self.batch_bytes == 0 {
            // Before the payload: the line that a spinning consumer watches is then written last,
            // and all at once.
            self.clear(position + layout::record_bytes(length) as u64);
        }
        Ok(Begun { position, padding: need.padding, length, piece: Piece::Whole })
    }

    /// Offset in the region of the first byte of a message.
    #[inline]
    pub fn offset(&self, begun: &Begun) -> usize {
        self.place.at(begun.position) + layout::RECORD_HEADER_BYTES
    }

    /// Commits the first `length` bytes of a message, and says how to wake the consumer. `None`,
    /// and nothing is committed, when it has not so many, or was begun before another that has been
    /// committed since.
    #[inline]
    pub fn finish(&mut self, begun: Begun, length: usize) -> Option<Wake> {
        let is_next = begun.position - begun.padding as u64 == self.produced;
        (is_next && length <= begun.length).then(|| self.commit(&begun, length))
    }

    /// Sends a whole message if there is nothing out of the ordinary to do for it: it fits where
    /// the next record goes, by what is known of the consumer. Otherwise does nothing, and
    /// [`Producer::reserve`] finds out what there is.
    #[inline]
    pub fn send_at_once(&mut self, message: &[u8]) -> Option<Wake> {
        let record = layout::record_bytes(message.len().min(self.place.capacity()));
        let needed = (record + layout::RECORD_HEADER_BYTES) as u64;
        if record > self.place.capacity() / 2
            || record > self.place.until_end(self.produced)
            || needed > self.free()
        {
            return None;
        }
        let position = self.produced;
        if self.batch_bytes == 0 {
            self.clear(position + record as u64);
        }
        let start = self.place.at(position) + layout::RECORD_HEADER_BYTES;
        copy_head_last(&self.memory, start, message);
        let begun = Begun { position, padding: 0, length: message.len(), piece: Piece::Whole };
        Some(self.commit(&begun, message.len()))
    }

    /// As [`Producer::send_at_once`], of a message that is a head, in little-endian words, and a
    /// body.
    #[inline]
    pub fn send_headed_at_once<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> Option<Wake> {
        let head_bytes = N * size_of::<u64>();
        let length = head_bytes.saturating_add(body.len());
        let record = layout::record_bytes(length.min(self.place.capacity()));
        let needed = (record + layout::RECORD_HEADER_BYTES) as u64;
        if record > self.place.capacity() / 2
            || record > self.place.until_end(self.produced)
            || needed > self.free()
        {
            return None;
        }
        let position = self.produced;
        if self.batch_bytes == 0 {
            self.clear(position + record as u64);
        }
        let start = self.place.at(position) + layout::RECORD_HEADER_BYTES;
        // The consumer had these lines last: they come while others are written.
        for line in 0..LINES_AHEAD_AT_ONCE {
            self.memory.will_write(self.place.at(position + AHEAD_BYTES + line * LINE_BYTES as u64));
        }
        // The head shares a line with the record's word: last.
        self.memory.copy_in(start + head_bytes, body);
        self.memory.put_words(start, head);
        let begun = Begun { position, padding: 0, length, piece: Piece::Whole };
        Some(self.commit(&begun, length))
    }

    /// The word behind a message may hold bytes of an old one that look like a record: makes it
    /// "not yet".
    #[inline]
    fn clear(&mut self, position: u64) {
        self.memory.store(self.place.at(position), 0, Relaxed);
        self.cleared = position;
    }

    /// Whether a message of `length` bytes fits now. Looks at what the consumer says only if it has
    /// to.
    ///
    /// # Errors
    /// [`ReserveError::TooLong`], [`ReserveError::Corrupt`].
    #[inline]
    pub fn has_room(&mut self, length: usize) -> Result<bool, ReserveError> {
        let need = self.need(length)?;
        if need.bytes > self.free() {
            self.look_at_consumed()?;
        }
        Ok(need.bytes <= self.free())
    }

    /// Most bytes of a message in pieces that the consumer alleges to put together; 0: it takes
    /// none.
    #[must_use]
    pub fn peer_message_limit(&self) -> u64 {
        self.memory.load(self.place.control(layout::CONTROL_MESSAGE_LIMIT), Relaxed)
    }

    #[inline]
    pub(crate) fn commit(&mut self, begun: &Begun, length: usize) -> Wake {
        let &Begun { position, padding, .. } = begun;
        let word = layout::record_word(begun.piece.kind(), length, position);
        let mut first = Held { position, word };
        if padding > 0 {
            // The consumer comes past the padding first, so the message may stand there before it
            // shows.
            self.memory.store(self.place.at(position), word, Relaxed);
            let filling = padding - layout::RECORD_HEADER_BYTES;
            let word = layout::record_word(layout::RECORD_PADDING, filling, self.produced);
            first = Held { position: self.produced, word };
        }
        let start = match self.held {
            None => {
                self.held = Some(first);
                first.position
            }
            Some(held) => {
                // Behind a word that is missing, nothing shows.
                self.memory.store(self.place.at(first.position), first.word, Relaxed);
                held.position
            }
        };
        self.produced = position + layout::record_bytes(length) as u64;
        if self.produced - start >= self.batch_bytes { self.flush() } else { Wake::Nobody }
    }

    /// Shows the consumer what was held back.
    #[inline]
    pub fn flush(&mut self) -> Wake {
        let Some(Held { position, word }) = self.held.take() else { return Wake::Nobody };
        if self.cleared != self.produced {
            self.clear(self.produced);
        }
        // COMMIT: pairs with the consumer's `word`.
        self.memory.store(self.place.at(position), word, Label::CommitStore.order(Release));
        self.look_at_sleeper()
    }

    /// The messages that the consumer has not consumed, as far as it says so: the oldest first.
    /// They are read back out of the ring, which the consumer can write, so they are what it left
    /// of them; what stands there and is no message ends the list.
    ///
    /// # Errors
    /// The rule that the consumer broke.
    pub fn unconsumed(&mut self) -> Result<Vec<Vec<u8>>, Violation> {
        self.look_at_consumed()?;
        let mut messages = Vec::new();
        let mut position = self.consumed;
        while position < self.produced {
            let held = self.held.filter(|held| held.position == position).map(|held| held.word);
            let word = held.unwrap_or_else(|| self.memory.load(self.place.at(position), Acquire));
            let alleged = layout::RecordWord::parse(word);
            let most = self.place.until_end(position) - layout::RECORD_HEADER_BYTES;
            let bytes = layout::record_bytes(alleged.length.min(most)) as u64;
            let wrong = alleged.sequence != layout::sequence(position) || alleged.length > most;
            if wrong || bytes > self.produced - position {
                break;
            }
            if alleged.kind == layout::RECORD_MESSAGE {
                let mut message = Vec::new();
                let start = self.place.at(position) + layout::RECORD_HEADER_BYTES;
                self.memory.append_to(start, alleged.length, &mut message);
                messages.push(message);
            } else if alleged.kind != layout::RECORD_PADDING {
                break;
            }
            position += bytes;
        }
        Ok(messages)
    }

    #[inline]
    fn look_at_sleeper(&mut self) -> Wake {
        // SLEEP: pairs with the consumer's `prepare_wait`.
        if self.fencing.fenced {
            Label::SleepProducer.fence(&self.memory);
        } else {
            self.memory.no_fence();
        }
        let sleeping = self.place.sleeping();
        self.fencing.calm += 1;
        if self.memory.load(sleeping, Relaxed) == 0 {
            if self.fencing.calm >= CALM_COMMITS {
                self.unfence();
            }
            return Wake::Nobody;
        }
        self.refence();
        Wake::of(self.memory.swap(sleeping, 0, Relaxed))
    }

    /// Whether so many commits found the consumer awake that this process should be registered for
    /// barriers.
    pub fn longs_for_barriers(&self) -> bool {
        !self.fencing.registered && self.fencing.calms >= CALMS_TO_REGISTER
    }

    /// Says that this process is registered for barriers, so that commits may go without a fence.
    pub fn set_registered(&mut self) {
        self.fencing.registered = true;
    }

    /// Goes on without fences, if the consumer says that it knows how to live with that.
    #[cold]
    fn unfence(&mut self) {
        self.fencing.calm = 0;
        self.fencing.calms = self.fencing.calms.saturating_add(1);
        if !self.fencing.fenced || !self.fencing.registered {
            return;
        }
        if self.memory.load(self.place.control(layout::CONTROL_BARRIER), Relaxed) != 1 {
            return;
        }
        self.memory.store(self.place.control(layout::CONTROL_UNFENCED), 1, Relaxed);
        // UNFENCED: a consumer that has missed this said before that it sleeps, and we see it from
        // here on.
        Label::Unfence.fence(&self.memory);
        self.fencing.fenced = false;
    }

    /// The consumer sleeps now and then: fences again, which spares it a system call for each
    /// sleep.
    #[inline]
    fn refence(&mut self) {
        self.fencing.calm = 0;
        if !self.fencing.fenced {
            // REFENCED: whoever sees it sees all that was committed without a fence.
            let order = Label::RefenceStore.order(Release);
            self.memory.store(self.place.control(layout::CONTROL_UNFENCED), 0, order);
            self.fencing.fenced = true;
        }
    }

    /// Says to the consumer that we are going to sleep until a message of `length` bytes fits, and
    /// half of the ring is free (so that one wake-up is worth its price). Flush first.
    ///
    /// # Errors
    /// [`ReserveError::TooLong`], [`ReserveError::Corrupt`].
    pub fn prepare_wait(&mut self, length: usize, how: Sleep) -> Result<Prepared, ReserveError> {
        let need = self.need(length)?;
        let word = self.wanted(need) | how.bits();
        // A swap, here and in `cancel_wait`: it stands behind whatever cleared the word last, in
        // every model.
        self.memory.swap(self.place.wanted(), word, Relaxed);
        // WANT: pairs with the consumer's `release` and `prepare_wait`.
        Label::WantProducer.fence(&self.memory);
        let looked = self.look_at_consumed();
        let full = need.bytes > self.free();
        if looked.is_err() || !full {
            self.cancel_wait();
        }
        looked?;
        Ok(Prepared { sleep: full, word, blind: false, wake: Wake::Nobody })
    }

    /// Up to where the consumer has to be before we are woken.
    fn wanted(&self, need: Need) -> u64 {
        let capacity = self.place.capacity() as u64;
        // A record and its padding take at most the ring less one word, so `least` is at most
        // `produced`.
        let least = (self.produced + need.bytes).saturating_sub(capacity);
        least.max(self.produced.saturating_sub(capacity / 2))
    }

    /// Takes back what [`Producer::prepare_wait`] said: we are awake.
    pub fn cancel_wait(&mut self) {
        let word = self.place.wanted();
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
            self.memory.store(self.place.control(layout::CONTROL_PRODUCER_PROCESSOR), word, Relaxed);
        }
    }

    /// The processor that we published last.
    pub fn processor(&self) -> Option<u32> {
        processor(self.processor)
    }

    /// The processor on which the consumer alleges to have run last.
    pub fn peer_processor(&self) -> Option<u32> {
        processor(self.memory.load(self.place.control(layout::CONTROL_CONSUMER_PROCESSOR), Relaxed))
    }
}

/// Bytes of the unit in which processors hand memory to each other.
const LINE_BYTES: usize = 64;

/// Copies the first bytes of a message into its record, which it starts at `start`. What stands in
/// the line of the record's word, which a spinning consumer watches, comes last: the consumer takes
/// that line away from us once, and not in the midst of it.
#[inline]
pub(crate) fn copy_head_last(memory: &impl Memory, start: usize, bytes: &[u8]) {
    let (head, tail) = bytes.split_at(bytes.len().min(LINE_BYTES - start % LINE_BYTES));
    if !tail.is_empty() {
        memory.copy_in(start + head.len(), tail);
    }
    memory.copy_in(start, head);
}

/// The processor that a word names.
pub(crate) fn processor(word: u64) -> Option<u32> {
    word.checked_sub(1).and_then(|processor| u32::try_from(processor).ok())
}
