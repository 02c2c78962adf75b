//! The half that writes messages.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use wire::ring as layout;

use crate::{Memory, Place, Violation};

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

/// The writing half of a ring. Its own index, `produced`, is nowhere else: the words of the records say it all.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    place: Place,
    /// Bytes produced since the start.
    produced: u64,
    /// What the consumer had released when we looked last: checked.
    consumed: u64,
    /// What stands in our processor word.
    processor: u64,
}

/// Room that a message of some length takes.
#[derive(Clone, Copy)]
struct Need {
    /// Bytes that are skipped, because the message would not fit in one piece before the ring's end.
    padding: usize,
    /// Bytes that must be free: the padding, the record, and the word after it, which is set to zero.
    bytes: u64,
}

impl<M: Memory> Producer<M> {
    /// The writing half of a fresh ring. There must be only one.
    pub fn new(memory: M, place: Place) -> Self {
        Producer { memory, place, produced: 0, consumed: 0, processor: 0 }
    }

    /// Longest message, in bytes.
    pub fn max_message(&self) -> usize {
        self.place.max_message()
    }

    /// Bytes produced since the start, padding and headers included.
    pub fn produced(&self) -> u64 {
        self.produced
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
        let alleged = self.memory.load(self.place.control(layout::CONTROL_CONSUMED), Acquire);
        let (least, most) = (self.consumed, self.produced);
        if alleged < least || alleged > most || !alleged.is_multiple_of(layout::RECORD_ALIGN as u64) {
            return Err(Violation::Consumed { alleged, least, most });
        }
        self.consumed = alleged;
        Ok(())
    }

    /// Finds room for a message of `length` bytes. Nothing shows to the consumer before [`Slot::commit`].
    ///
    /// # Errors
    /// See [`ReserveError`].
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<Slot<'_, M>, ReserveError> {
        let need = self.need(length)?;
        if !self.has_room(length)? {
            return Err(ReserveError::Full);
        }
        let position = self.produced + need.padding as u64;
        Ok(Slot { producer: self, position, padding: need.padding, length })
    }

    /// Says to the consumer that we are going to sleep until a message of `length` bytes fits, and half of the
    /// ring is free (so that one wake-up is worth its price). False: there is room already, do not sleep.
    ///
    /// # Errors
    /// [`ReserveError::TooLong`], [`ReserveError::Corrupt`].
    pub fn prepare_wait(&mut self, length: usize) -> Result<bool, ReserveError> {
        let need = self.need(length)?;
        let capacity = self.place.capacity() as u64;
        // A record and its padding take at most the ring less one word, so `least` is at most `produced`.
        let least = (self.produced + need.bytes).saturating_sub(capacity);
        let wanted = least.max(self.produced.saturating_sub(capacity / 2));
        let word = self.place.control(layout::CONTROL_WANTED);
        // A swap, here and in `cancel_wait`: it stands behind whatever cleared the word last, in every model.
        self.memory.swap(word, wanted + 1, Relaxed);
        // WANT: pairs with the consumer's `publish`.
        self.memory.fence();
        let looked = self.look_at_consumed();
        if looked.is_err() || need.bytes <= self.free() {
            self.memory.swap(word, 0, Relaxed);
        }
        looked?;
        Ok(need.bytes > self.free())
    }

    /// Takes back what [`Producer::prepare_wait`] said: we are awake.
    pub fn cancel_wait(&mut self) {
        self.memory.swap(self.place.control(layout::CONTROL_WANTED), 0, Relaxed);
    }

    /// Whether a message of `length` bytes fits now. Looks at what the consumer says only if it has to.
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

    /// Publishes the processor that we run on, if it is another one than last time.
    #[inline]
    pub fn publish_processor(&mut self, processor: u32) {
        let word = u64::from(processor) + 1;
        if word != self.processor {
            self.processor = word;
            self.memory.store(self.place.control(layout::CONTROL_PRODUCER_PROCESSOR), word, Relaxed);
        }
    }

    /// The processor on which the consumer alleges to have run last.
    pub fn peer_processor(&self) -> Option<u32> {
        let word = self.memory.load(self.place.control(layout::CONTROL_CONSUMER_PROCESSOR), Relaxed);
        word.checked_sub(1).and_then(|processor| u32::try_from(processor).ok())
    }
}

/// Room for one message that the consumer does not see yet. Dropped without a commit, it never was.
#[derive(Debug)]
pub struct Slot<'p, M: Memory> {
    producer: &'p mut Producer<M>,
    /// Where the message's record starts; the padding stands before it.
    position: u64,
    padding: usize,
    length: usize,
}

impl<M: Memory> Slot<'_, M> {
    /// Bytes of the message.
    #[allow(clippy::len_without_is_empty, reason = "the length is fixed, not a count of contents")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Puts bytes at `at` of the message. False, and nothing is done, when they would go beyond its end.
    /// What is not written is whatever this ring held there before.
    #[must_use]
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        if at > self.length || bytes.len() > self.length - at {
            return false;
        }
        let start = self.producer.place.at(self.position) + layout::RECORD_HEADER_BYTES;
        self.producer.memory.copy_in(start + at, bytes);
        true
    }

    /// Shows the message to the consumer. True: it sleeps, so signal its doorbell.
    #[must_use = "a sleeping consumer has to be woken"]
    #[inline]
    pub fn commit(self) -> bool {
        let Slot { producer: Producer { memory, place, produced, .. }, position, padding, length } = self;
        let end = position + layout::record_bytes(length) as u64;
        // The word behind us may hold bytes of an old message that look like a record: make it "not yet".
        memory.store(place.at(end), 0, Relaxed);
        let word = layout::record_word(layout::RECORD_MESSAGE, length, position);
        // COMMIT: pairs with the consumer's `word`.
        memory.store(place.at(position), word, Release);
        if padding > 0 {
            // The message shows only now, because the consumer has to come past the padding. COMMIT again.
            let filling = padding - layout::RECORD_HEADER_BYTES;
            let word = layout::record_word(layout::RECORD_PADDING, filling, *produced);
            memory.store(place.at(*produced), word, Release);
        }
        *produced = end;
        // SLEEP: pairs with the consumer's `prepare_wait`.
        memory.fence();
        let sleeping = place.control(layout::CONTROL_SLEEPING);
        // Only whoever clears the flag rings: a burst at a sleeper costs one signal.
        memory.load(sleeping, Relaxed) != 0 && memory.swap(sleeping, 0, Relaxed) != 0
    }
}
