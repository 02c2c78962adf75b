//! Messages that can be told apart: each has a number and a checksum, so that an answer that is
//! late, repeated, torn or invented is not taken for the one that was waited for.
//!
//! The first byte says whether it is the last (as for all messages of the bench), seven bytes are
//! the number, eight the checksum, both little endian; then the body. Some words of the body change
//! with the number, at places that move along, and the checksum covers them: in a run every place
//! is looked at, and no message costs more than eight places.

use super::task::MORE;
use statistics::SplitMix;

/// Bytes of number and checksum, and so of the shortest message.
pub const HEADER_BYTES: usize = 16;
/// Words of the body that each message is known by.
const PLACES: usize = 8;
/// Bytes of a word.
const WORD: usize = 8;
/// Numbers have seven bytes.
const NUMBER_MASK: u64 = (1 << 56) - 1;

/// The verdict on a message that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The one that was waited for.
    Right,
    /// One with an earlier number.
    Earlier,
    /// Something that was never sent.
    Wrong,
}

/// Makes and checks messages of one length.
#[derive(Debug)]
pub struct Numbered {
    message: Vec<u8>,
    seed: u64,
    number: u64,
}

impl Numbered {
    /// Messages of so many bytes, at least [`HEADER_BYTES`]; both ends have to have the same seed.
    #[must_use]
    pub fn new(bytes: usize, seed: u64) -> Self {
        let message = (0..bytes.max(HEADER_BYTES)).map(|at| at as u8).collect();
        Self { message, seed, number: 0 }
    }

    /// The next message.
    pub fn make(&mut self) -> &[u8] {
        self.number += 1;
        let (seed, number) = (self.seed, self.number);
        for (place, word) in places(seed, number, self.message.len()) {
            self.message[place..place + WORD].copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(seed, number, &self.message).unwrap_or_default();
        self.message[..WORD].copy_from_slice(&(number << 8 | u64::from(MORE)).to_le_bytes());
        self.message[WORD..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        &self.message
    }

    /// Whether this is the message that was made last.
    #[must_use]
    pub fn check(&self, found: &[u8]) -> Check {
        match number_of(self.seed, self.message.len(), found) {
            Some(number) if number == self.number => Check::Right,
            Some(number) if number < self.number => Check::Earlier,
            _ => Check::Wrong,
        }
    }

    /// Whether this is a message of the other end, and not one that came before.
    pub fn takes(&mut self, found: &[u8]) -> bool {
        match number_of(self.seed, self.message.len(), found) {
            Some(number) if number > self.number => {
                self.number = number;
                true
            }
            _ => false,
        }
    }
}

/// The number of a message that is whole.
fn number_of(seed: u64, bytes: usize, message: &[u8]) -> Option<u64> {
    let number = word_at(message, 0)? >> 8 & NUMBER_MASK;
    let is_whole = message.len() == bytes && word_at(message, WORD)? == checksum(seed, number, message)?;
    let mut words = places(seed, number, bytes);
    (is_whole && words.all(|(place, word)| word_at(message, place) == Some(word))).then_some(number)
}

/// Where the words are that this number changes, and what they are.
fn places(seed: u64, number: u64, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
    let words = bytes.saturating_sub(HEADER_BYTES) / WORD;
    let mut random = SplitMix(seed ^ number);
    let count = PLACES.min(words);
    // Neighbours of a running start, spread over the body: all of them are different.
    let first = number as usize % words.max(1);
    (0..count).map(move |at| {
        let place = (first + at * words / count) % words;
        (HEADER_BYTES + place * WORD, random.next_bits())
    })
}

fn checksum(seed: u64, number: u64, message: &[u8]) -> Option<u64> {
    let mut sum = SplitMix(seed.rotate_left(32) ^ number).next_bits() ^ message.len() as u64;
    for (place, _) in places(seed, number, message.len()) {
        sum = SplitMix(sum ^ word_at(message, place)?).next_bits();
    }
    Some(sum)
}

fn word_at(message: &[u8], place: usize) -> Option<u64> {
    message.get(place..place + WORD)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_told_from_every_other() {
        for bytes in [16, 17, 24, 64, 512, 4096] {
            let mut asks = Numbered::new(bytes, 7);
            let mut serves = Numbered::new(bytes, 7);
            let first = asks.make().to_vec();
            assert!(serves.takes(&first) && !serves.takes(&first), "{bytes}");
            assert_eq!(asks.check(&first), Check::Right);
            let second = asks.make().to_vec();
            assert_eq!((asks.check(&first), asks.check(&second)), (Check::Earlier, Check::Right));
            assert_eq!(Numbered::new(bytes, 8).check(&second), Check::Wrong);
            assert_eq!(asks.check(&second[..bytes - 1]), Check::Wrong);
        }
    }

    #[test]
    fn a_changed_byte_is_found_wherever_it_is_before_long() {
        let mut asks = Numbered::new(256, 1);
        for place in 1..256 {
            let found = (0..64).any(|_| {
                let mut answer = asks.make().to_vec();
                answer[place] ^= 1;
                asks.check(&answer) != Check::Right
            });
            assert!(found, "a change at {place} is never found");
        }
    }
}
