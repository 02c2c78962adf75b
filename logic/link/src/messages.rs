//! Messages that came together: one piece of memory for all of them, which is used again for others
//! when they are dropped.

use std::sync::{Arc, Mutex};
use wire::link::{RECORD_HEADER_BYTES, read_record_header};

/// Shorter memory costs less from the allocator than to look for.
const SPARE_BYTES_MIN: usize = 4 << 10;
/// The spare memory of it that a link keeps, at most: a few of common long messages.
const SPARE_BYTES_MAX: usize = 1 << 20;
/// Memory is used again for what fills such a part of it at least: what waits for its user holds
/// little more than its bytes.
const SPARE_FILLED_PARTS: usize = 2;
/// Messages are put together with those that come behind them where these have no more bytes than
/// this: to keep each by itself would cost more than they are.
const JOINED_BYTES_MAX: usize = 1024;
/// No more are put together than so many bytes, which are freed together.
const JOINED_ALL_BYTES_MAX: usize = 16 << 10;

/// Memory that messages had which were dropped. The allocator would give that of long ones back to
/// the kernel each time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spare(Arc<Mutex<Vec<Vec<u8>>>>);

impl Spare {
    /// Empty memory with room for `bytes` bytes.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        // Nobody waits here for another thread that is at it.
        if bytes >= SPARE_BYTES_MIN
            && let Ok(mut kept) = self.0.try_lock()
            && let Some(index) = kept.iter().position(|memory| {
                memory.capacity() >= bytes && memory.capacity() / SPARE_FILLED_PARTS <= bytes
            })
        {
            return kept.swap_remove(index);
        }
        Vec::with_capacity(bytes)
    }

    fn give(&self, mut memory: Vec<u8>) {
        if memory.capacity() >= SPARE_BYTES_MIN
            && let Ok(mut kept) = self.0.try_lock()
            && kept.iter().map(Vec::capacity).sum::<usize>() + memory.capacity() <= SPARE_BYTES_MAX
        {
            memory.clear();
            kept.push(memory);
        }
    }
}

/// Messages of a pair that came one behind the other; at least one. They lie in memory as they
/// came, so that many small ones cost little more than one of their length.
#[derive(Clone)]
pub struct Messages {
    /// Whole records.
    records: Vec<u8>,
    /// Where the first begins that was not passed over.
    start: usize,
    /// So many are left.
    count: usize,
    spare: Spare,
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.spare.give(std::mem::take(&mut self.records));
    }
}

impl PartialEq for Messages {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Messages {}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} messages of {} bytes", self.count, self.bytes())
    }
}

impl Messages {
    /// `records`: so many whole records of messages. Their memory goes to `spare`.
    pub(crate) fn new(records: Vec<u8>, count: usize, spare: &Spare) -> Self {
        Self { records, start: 0, count, spare: spare.clone() }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rest().len().saturating_sub(self.count.saturating_mul(RECORD_HEADER_BYTES))
    }

    /// Each of them, in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { rest: self.rest() }
    }

    /// The first of them; `None`: all were passed over.
    #[must_use]
    pub fn first(&self) -> Option<&[u8]> {
        self.iter().next()
    }

    /// Passes over the first of them. The memory of all is kept.
    pub fn pass(&mut self) {
        let mut iter = self.iter();
        if iter.next().is_some() {
            self.start = self.records.len() - iter.rest.len();
            self.count -= 1;
        }
    }

    /// Puts others behind these, if they are few and short; otherwise they are given back. So a
    /// user that lets many messages wait holds little more than their bytes, however they came.
    ///
    /// # Errors
    /// The others, as they were.
    pub fn join(&mut self, others: Self) -> Result<(), Self> {
        let more = others.rest().len();
        if more > JOINED_BYTES_MAX || self.records.len() + more > JOINED_ALL_BYTES_MAX {
            return Err(others);
        }
        self.records.extend_from_slice(others.rest());
        self.count += others.count;
        Ok(())
    }

    fn rest(&self) -> &[u8] {
        self.records.get(self.start..).unwrap_or_default()
    }
}

impl<'a> IntoIterator for &'a Messages {
    type Item = &'a [u8];
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// See [`Messages::iter`].
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (header, rest) = self.rest.split_first_chunk()?;
        // All headers were read when they came.
        let (_, length) = read_record_header(*header).ok()?;
        let (message, rest) = rest.split_at_checked(length)?;
        self.rest = rest;
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::link::{record, record_header};

    #[test]
    fn messages_come_out_as_they_were_put_in_all_at_once_or_one_at_a_time() {
        let contents = [&b"one"[..], b"", b"three", &[7; 1000]];
        let mut records = Vec::new();
        for content in contents {
            records.extend(record_header(record::MESSAGE, content.len()));
            records.extend(content);
        }
        let mut messages = Messages::new(records, contents.len(), &Spare::default());
        assert_eq!((messages.count(), messages.bytes()), (4, 1008));
        let whole = messages.clone();
        for index in 0..contents.len() {
            assert_eq!(messages.first(), Some(contents[index]));
            assert!(messages.iter().eq(contents[index..].iter().copied()));
            messages.pass();
            assert_eq!(messages.count(), contents.len() - index - 1);
            assert_ne!(messages, whole);
        }
        messages.pass();
        assert_eq!((messages.count(), messages.bytes(), messages.first()), (0, 0, None));
    }

    #[test]
    fn few_short_ones_are_put_behind_others_and_long_ones_are_not() {
        let of = |length: usize| {
            let records = [&record_header(record::MESSAGE, length)[..], &vec![7; length]].concat();
            Messages::new(records, 1, &Spare::default())
        };
        let mut all = of(3);
        all.pass();
        let mut joined = 0;
        while all.join(of(100)).is_ok() {
            joined += 1;
        }
        assert!((100..=JOINED_ALL_BYTES_MAX / 100).contains(&joined), "{joined}");
        assert_eq!((all.count(), all.bytes()), (joined, 100 * joined));
        assert!(all.iter().all(|message| message == [7; 100]));
        let long = of(5).join(of(JOINED_BYTES_MAX)).unwrap_err();
        assert_eq!((long.count(), long.bytes()), (1, JOINED_BYTES_MAX));
    }

    #[test]
    fn memory_of_long_messages_is_used_again_and_no_more_of_it_is_kept_than_pays() {
        let spare = Spare::default();
        let memory = spare.take(100_000);
        let place = memory.as_ptr();
        drop(Messages::new(memory, 0, &spare));
        let short = spare.take(64);
        assert_ne!(short.as_ptr(), place);
        let less = spare.take(40_000);
        assert_ne!(less.as_ptr(), place, "it would hold more than it needs");
        let again = spare.take(60_000);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        for _ in 0..100 {
            drop(Messages::new(Vec::with_capacity(100_000), 0, &spare));
        }
        drop(Messages::new(Vec::with_capacity(2 * SPARE_BYTES_MAX), 0, &spare));
        let kept: usize = spare.0.lock().unwrap().iter().map(Vec::capacity).sum();
        assert!((SPARE_BYTES_MAX / 2..=SPARE_BYTES_MAX).contains(&kept), "{kept}");
    }
}
