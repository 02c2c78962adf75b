//! The bytes for the port that have not been taken yet.

use thiserror::Error;
use wire::guest::Message;

/// Above this many bytes nothing is taken from anybody who wants to send: the port is slower than
/// they are.
const ENOUGH_BYTES: usize = 256 * 1024;
/// Above this many the other side does not read, and makes this one answer all the same. What is
/// not data (credit for each stream, a close for each) is some hundred KiB at the very most.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// The written bytes at which they are forgotten: less would move what is left too often.
const FORGET_BYTES: usize = 64 * 1024;

/// The other side asks and does not read the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("it does not read, and {MAX_BYTES} bytes wait for it")]
pub struct Overflow;

/// Bytes on their way to the port, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    written: usize,
}

impl Outbox {
    /// Puts a message behind the others.
    ///
    /// # Errors
    /// [`Overflow`]: the other side is to be hung up on. The message is not lost.
    pub fn push(&mut self, message: &Message) -> Result<(), Overflow> {
        message.encode(&mut self.bytes);
        if self.len() > MAX_BYTES { Err(Overflow) } else { Ok(()) }
    }

    /// Whether more data should be taken from those who want to send.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        self.len() < ENOUGH_BYTES
    }

    /// The bytes to write next.
    #[must_use]
    pub fn waiting(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    /// So many bytes of [`Outbox::waiting`] have been written.
    pub fn wrote(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes).min(self.bytes.len());
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
        } else if self.written >= FORGET_BYTES {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    /// Bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pushed_comes_out_once_and_in_order() {
        let mut outbox = Outbox::default();
        let mut all = Vec::new();
        let mut out = Vec::new();
        for round in 0..2000_u32 {
            let message = Message::Data { stream: 2, bytes: vec![round.to_le_bytes()[0]; 700] };
            message.encode(&mut all);
            outbox.push(&message).unwrap();
            let take = outbox.waiting().len().min(701);
            out.extend_from_slice(&outbox.waiting()[..take]);
            outbox.wrote(take);
        }
        assert!(outbox.bytes.capacity() < 1024 * 1024, "what was written is forgotten");
        out.extend_from_slice(outbox.waiting());
        outbox.wrote(outbox.waiting().len());
        assert!(out == all && outbox.is_empty());
    }

    #[test]
    fn a_side_that_does_not_read_is_told_from_a_slow_one() {
        let mut outbox = Outbox::default();
        let message = Message::Data { stream: 2, bytes: vec![0; 60_000] };
        while outbox.wants_more() {
            outbox.push(&message).unwrap();
        }
        let pushed = (0..100).map(|_| outbox.push(&message)).filter(Result::is_ok).count();
        assert!((50..80).contains(&pushed), "{pushed}");
    }
}
