//! Bulk: long messages one after the other, each of which is looked at where it arrives.
//!
//! The leader writes the number of each message into it at some places; the follower finds it
//! there, in memory of its own. So a message that is torn, lost, doubled or old is noticed, in all
//! arms and in the measured run itself.

use crate::channel::task::{Role, Tale, Task, Work};
use crate::channel::work::{Messages, Usage};
use std::io;
use sys::clock::clock_ns;

/// Where a message bears its number: at the start, at the end, and between, so that each half of a
/// copy is seen.
pub const PLACES: usize = 4;
/// Bytes of a number.
const WORD_BYTES: usize = size_of::<u64>();
/// Bytes between two looks at the clock.
const BYTES_PER_LOOK: usize = 16 << 10;
/// The number of the last message.
const LAST: u64 = u64::MAX;
/// Odd numbers, by which a word of one message and place differs from all others (the fraction of
/// the golden ratio, and of the root of 2).
const SPREAD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909];

/// One end of something that carries long messages of one size.
pub trait Bulk {
    /// Writes words into the message that is sent next, each at its place. What has its messages
    /// elsewhere than in `message` writes there.
    ///
    /// # Errors
    /// Where a place is not inside.
    fn stamp(&mut self, message: &mut [u8], words: &[(usize, u64); PLACES]) -> io::Result<()> {
        for &(place, word) in words {
            let bytes = message.get_mut(place..place + WORD_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(())
    }

    /// Sends a message; when this returns, its memory may be used for the next.
    ///
    /// # Errors
    /// Where the other end is gone, or the kernel refuses.
    fn give(&mut self, message: &[u8]) -> io::Result<()>;

    /// Waits until the next message is, whole, in memory of this process; then reads the words at
    /// these places of it.
    ///
    /// # Errors
    /// Where the other end is gone, or the kernel refuses.
    fn take(&mut self, places: &[usize; PLACES]) -> io::Result<[u64; PLACES]>;

    /// The follower says that it has taken everything.
    ///
    /// # Errors
    /// Where the other end is gone, or the kernel refuses.
    fn acknowledge(&mut self) -> io::Result<()>;

    /// The leader waits until the follower has said so.
    ///
    /// # Errors
    /// Where the other end is gone, or the kernel refuses.
    fn acknowledged(&mut self) -> io::Result<()>;
}

/// Where messages of so many bytes, at least [`WORD_BYTES`], bear their numbers.
fn places(bytes: usize) -> [usize; PLACES] {
    let last = bytes - WORD_BYTES;
    std::array::from_fn(|at| (last * at / (PLACES - 1)) / WORD_BYTES * WORD_BYTES)
}

/// The word at a place of a message.
fn word(number: u64, place: usize) -> u64 {
    number.wrapping_mul(SPREAD[0]) ^ (place as u64).wrapping_mul(SPREAD[1])
}

/// The word at a place of a message in plain memory.
///
/// # Errors
/// `InvalidData` where the message ends before.
pub fn word_at(message: &[u8], place: usize) -> io::Result<u64> {
    let bytes = message.get(place..).and_then(|rest| rest.first_chunk());
    bytes.map(|bytes| u64::from_ne_bytes(*bytes)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The words at several places of a message in plain memory.
///
/// # Errors
/// `InvalidData` where the message ends before.
pub fn words_at(message: &[u8], places: &[usize; PLACES]) -> io::Result<[u64; PLACES]> {
    let mut words = [0; PLACES];
    for (word, &place) in words.iter_mut().zip(places) {
        *word = word_at(message, place)?;
    }
    Ok(words)
}

/// The words at all places of a message.
fn words(number: u64, places: &[usize; PLACES]) -> [(usize, u64); PLACES] {
    places.map(|place| (place, word(number, place)))
}

impl Messages<'_, '_> {
    /// The job of copies.
    ///
    /// # Errors
    /// Those of the bulk and of the conversation; `InvalidData` where something else arrived than
    /// was sent.
    pub fn copy(self, mut bulk: impl Bulk) -> io::Result<Tale> {
        let Task { role, work, bytes, .. } = *self.task;
        let Work::Copies { warm_up_ns, window_ns } = work else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if bytes < WORD_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if !self.talk.primed()? {
            return Ok(Tale::default());
        }
        let usage = Usage::now()?;
        let tale = match role {
            Role::Lead => pour(&mut bulk, bytes, warm_up_ns, window_ns)?,
            Role::Follow => drink(&mut bulk, bytes)?,
        };
        usage.since(tale)
    }
}

/// Sends message after message until the window is over and all have arrived.
fn pour(bulk: &mut impl Bulk, bytes: usize, warm_up_ns: u64, window_ns: u64) -> io::Result<Tale> {
    let places = places(bytes);
    let mut message: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    let per_look = (BYTES_PER_LOOK / bytes).max(1) as u64;
    let mut number = 0;
    let mut pour_until = |bulk: &mut _, instant_ns: u64| -> io::Result<u64> {
        let first = number;
        while clock_ns() < instant_ns {
            for _ in 0..per_look {
                Bulk::stamp(bulk, &mut message, &words(number, &places))?;
                Bulk::give(bulk, &message)?;
                number += 1;
            }
        }
        Ok(number - first)
    };
    let start = clock_ns();
    pour_until(bulk, start + warm_up_ns)?;
    // What is on its way now and arrives in the window does not count: an error against the fast,
    // and a small one.
    let opens = clock_ns();
    let operations = pour_until(bulk, opens + window_ns)?;
    bulk.stamp(&mut message, &words(LAST, &places))?;
    bulk.give(&message)?;
    bulk.acknowledged()?;
    Ok(Tale { operations: operations + 1, window_ns: clock_ns() - opens, ..Tale::default() })
}

/// Receives message after message, and compares.
fn drink(bulk: &mut impl Bulk, bytes: usize) -> io::Result<Tale> {
    let places = places(bytes);
    let due = |number| places.map(|place| word(number, place));
    let mut number = 0;
    loop {
        let found = bulk.take(&places)?;
        if found == due(LAST) {
            break;
        }
        if found != due(number) {
            let what = format!("message {number} of {bytes} bytes did not arrive as it was sent");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        number += 1;
    }
    bulk.acknowledge()?;
    Ok(Tale { operations: number + 1, ..Tale::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_bears_its_number_at_both_ends_and_between() {
        for bytes in [8, 4 << 10, (16 << 20) - 3] {
            let places = places(bytes);
            assert!(places[0] == 0 && places[PLACES - 1] + 2 * WORD_BYTES > bytes, "{places:?}");
            let mut message = vec![0; bytes];
            let mut through = Through(Vec::new(), |_, _| {});
            through.stamp(&mut message, &words(7, &places)).expect("they are inside");
            let found = words_at(&message, &places).expect("they are inside");
            assert_eq!(found, places.map(|place| word(7, place)));
        }
        assert!(word_at(&[0; 16], 9).is_err());
    }

    /// Hands each message on to itself, but for what is done to it on the way.
    struct Through(Vec<Vec<u8>>, fn(u64, &mut Vec<u8>));

    impl Bulk for Through {
        fn give(&mut self, message: &[u8]) -> io::Result<()> {
            let mut message = message.to_vec();
            self.1(self.0.len() as u64, &mut message);
            self.0.push(message);
            Ok(())
        }

        fn take(&mut self, places: &[usize; PLACES]) -> io::Result<[u64; PLACES]> {
            words_at(&self.0.remove(0), places)
        }

        fn acknowledge(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn acknowledged(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn carried(spoil: fn(u64, &mut Vec<u8>)) -> io::Result<Tale> {
        let mut through = Through(Vec::new(), spoil);
        let sent = pour(&mut through, 16 << 10, 0, 0)?;
        assert_eq!(sent.operations, 1);
        let places = places(16 << 10);
        let mut message = vec![0; 16 << 10];
        through.0.clear();
        for number in [0, 1, 2, LAST] {
            through.stamp(&mut message, &words(number, &places))?;
            through.give(&message)?;
        }
        drink(&mut through, 16 << 10)
    }

    #[test]
    fn what_arrives_otherwise_than_it_was_sent_is_noticed() {
        assert_eq!(carried(|_, _| {}).expect("whole").operations, 4);
        let torn = carried(|number, message| {
            if number == 1 {
                let last = message.len() - 1;
                message[last] ^= 1;
            }
        });
        assert!(torn.expect_err("torn").to_string().contains("message 1 of 16384 bytes"));
    }
}
