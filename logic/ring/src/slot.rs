//! Room for one message, to be filled and committed.

use crate::producer::copy_head_last;
use crate::{Begun, Memory, Piece, Producer, Wake};

/// Room for one message that the consumer does not see yet. Dropped without a commit, it never was.
#[derive(Debug)]
pub struct Slot<'p, M: Memory> {
    pub(crate) producer: &'p mut Producer<M>,
    pub(crate) begun: Begun,
}

impl<'p, M: Memory> Slot<'p, M> {
    /// Bytes of the message.
    #[allow(clippy::len_without_is_empty, reason = "the length is fixed, not a count of contents")]
    pub fn len(&self) -> usize {
        self.begun.len()
    }

    /// Says what part of a message this is; without it, a whole one.
    pub fn set_piece(&mut self, piece: Piece) {
        self.begun.set_piece(piece);
    }

    /// Offset in the region of the message's first byte.
    #[inline]
    pub fn offset(&self) -> usize {
        self.producer.offset(&self.begun)
    }

    /// Puts bytes at `at` of the message. False, and nothing is done, when they would go beyond its
    /// end. Bytes that are not written keep the values that the ring held there before.
    #[must_use]
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        if at > self.begun.len() || bytes.len() > self.begun.len() - at {
            return false;
        }
        self.producer.memory.copy_in(self.offset() + at, bytes);
        true
    }

    /// Fills the message with the parts put together. False, and nothing is done, when they are not
    /// as long as it is.
    #[must_use]
    #[inline]
    pub fn fill(&mut self, parts: &[&[u8]]) -> bool {
        let start = self.offset();
        let sum = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
        if sum != Some(self.begun.len()) {
            return false;
        }
        let memory = &self.producer.memory;
        let mut end = start + self.begun.len();
        let Some((first, rest)) = parts.split_first() else { return true };
        for part in rest.iter().rev() {
            end -= part.len();
            memory.copy_in(end, part);
        }
        copy_head_last(memory, start, first);
        true
    }

    /// Shows the message to the consumer, or holds it back with others, and says how to wake the
    /// consumer.
    #[inline]
    pub fn commit(self) -> Wake {
        let length = self.begun.len();
        self.producer.commit(&self.begun, length)
    }

    /// As [`Slot::commit`], for the first `length` bytes. `None`, and nothing is committed, when
    /// there are not so many.
    #[inline]
    pub fn commit_first(self, length: usize) -> Option<Wake> {
        self.producer.finish(self.begun, length)
    }
}
