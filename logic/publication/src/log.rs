//! The events of a channel, one after the other in a ring of bytes that may outlive whoever writes
//! it.
//!
//! An event is committed by one word, the head: whoever dies before has written nothing. The tail
//! moves before anything is written over. So whatever instant the writer dies at, what stands
//! between tail and head is whole.

use crate::store::Store;
use thiserror::Error;
use wire::events::region::{
    AT_BUFFER, AT_BUFFER_BYTES, AT_EVENT_BYTES, AT_FORMAT, AT_HEAD, AT_HISTORY, AT_HOLDERS, AT_MAGIC,
    AT_NAME, AT_NEXT, AT_OWNER, AT_PUBLISHERS, AT_SERIAL, AT_TAIL, AT_VERSION, AT_WAIT_MS,
    EVENT_HEADER_BYTES, MAGIC, PUBLISHER_BYTES, PUBLISHERS_MAX, SKIP, VERSION,
};
use wire::events::{EVENT_BYTES_MAX, FORMAT_BYTES_MAX, NAME_BYTES_MAX};

/// Why memory is no log that could be taken up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LogError {
    /// Nobody has finished making one here, or another version has.
    #[error("there is no log of this version")]
    Format,
    /// A number can't be: which.
    #[error("its {0} is impossible")]
    Damaged(&'static str),
}

/// A place between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Bytes since the channel's beginning.
    pub offset: u64,
    /// The sequence number of the event behind it.
    pub sequence: u64,
}

/// The facts of an event beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventHead {
    /// Its number in the channel.
    pub sequence: u64,
    /// Its publisher.
    pub publisher: u64,
    /// Its number among those of its publisher.
    pub publisher_sequence: u64,
    /// When, in ns since 1970.
    pub published_ns: u64,
    /// The filters that it has passed: a bit for each.
    pub passed: u64,
    /// Its bytes.
    pub length: usize,
}

/// How a channel is; what is kept of it beside its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub serial: u32,
    pub name: Vec<u8>,
    pub owner: u64,
    pub event_bytes: usize,
    pub history: u64,
    pub wait_ms: u64,
    /// The text of its format.
    pub format: String,
}

/// The log. Sequences begin with 1.
#[derive(Debug)]
pub struct Log<S> {
    store: S,
    buffer: u64,
    head: u64,
    tail: u64,
    /// Number of the oldest event.
    oldest: u64,
    /// Number of the next event.
    next: u64,
}

/// Bytes that an event takes.
fn cost(length: usize) -> u64 {
    (EVENT_HEADER_BYTES + length.next_multiple_of(8)) as u64
}

impl<S: Store> Log<S> {
    /// Makes an empty log of the whole of `store`, which is a little more than twice the longest
    /// event, at least.
    pub(crate) fn new(mut store: S, kept: &Kept) -> Result<Self, LogError> {
        let buffer = buffer_of(&store).ok_or(LogError::Damaged("size"))?;
        store.put(AT_MAGIC, 0);
        store.put(AT_VERSION, VERSION);
        store.put(AT_BUFFER, buffer);
        store.put(AT_SERIAL, u64::from(kept.serial));
        for at in [AT_HEAD, AT_TAIL, AT_HOLDERS] {
            store.put(at, 0);
        }
        store.put(AT_NEXT, 1);
        store.put(AT_NAME, kept.name.len() as u64);
        store.copy_in(AT_NAME + 8, &kept.name);
        let mut log = Self { store, buffer, head: 0, tail: 0, oldest: 1, next: 1 };
        log.keep(kept);
        for place in 0..PUBLISHERS_MAX {
            log.keep_publisher(place, 0, 0, 0);
        }
        log.store.commit(AT_MAGIC, MAGIC);
        Ok(log)
    }

    /// Takes up what another process has left. Everything in it is checked: at the worst, events
    /// are missing.
    ///
    /// # Errors
    /// [`LogError`], where nothing can be taken up.
    pub(crate) fn take_up(store: S) -> Result<(Self, Kept), LogError> {
        let buffer = buffer_of(&store).ok_or(LogError::Format)?;
        if (store.word(AT_MAGIC), store.word(AT_VERSION)) != (MAGIC, VERSION) {
            return Err(LogError::Format);
        }
        if store.word(AT_BUFFER) != buffer {
            return Err(LogError::Damaged("size"));
        }
        let kept = read_kept(&store)?;
        let (head, tail) = (store.word(AT_HEAD), store.word(AT_TAIL));
        if tail > head || head - tail > buffer || !head.is_multiple_of(8) || !tail.is_multiple_of(8) {
            return Err(LogError::Damaged("places"));
        }
        let said = store.word(AT_NEXT);
        let mut log = Self { store, buffer, head, tail, oldest: said, next: said };
        log.find_sequences(said)?;
        Ok((log, kept))
    }

    /// The sequence numbers follow from the events; the word that says the next one may be one
    /// behind.
    fn find_sequences(&mut self, said: u64) -> Result<(), LogError> {
        let (mut offset, mut expected) = (self.tail, None);
        while offset < self.head {
            let (head, at, next) = self.event_at(offset).ok_or(LogError::Damaged("event"))?;
            if expected.is_some_and(|expected| expected != head.sequence) {
                return Err(LogError::Damaged("sequence"));
            }
            if expected.is_none() {
                // Past what was left out at the buffer's end, which the next event may have written
                // over.
                (self.oldest, self.tail) = (head.sequence, at);
                self.store.commit(AT_TAIL, at);
            }
            expected = Some(head.sequence.checked_add(1).ok_or(LogError::Damaged("sequence"))?);
            offset = next;
        }
        self.next = expected.unwrap_or(said).max(said.min(u64::MAX / 2));
        if expected.is_none() {
            self.oldest = self.next;
        } else if expected != Some(self.next) {
            return Err(LogError::Damaged("sequence"));
        }
        Ok(())
    }

    /// Returns the store as a successor would find it.
    #[cfg(test)]
    pub(crate) fn into_store(self) -> S {
        self.store
    }

    /// Bytes of the buffer.
    pub(crate) fn buffer(&self) -> u64 {
        self.buffer
    }

    /// Before the oldest event.
    pub(crate) fn oldest(&self) -> Cursor {
        Cursor { offset: self.tail, sequence: self.oldest }
    }

    /// Behind the newest event.
    pub(crate) fn end(&self) -> Cursor {
        Cursor { offset: self.head, sequence: self.next }
    }

    /// How many events there are.
    pub(crate) fn len(&self) -> u64 {
        self.next - self.oldest
    }

    /// Bytes that they take.
    pub(crate) fn used(&self) -> u64 {
        self.head - self.tail
    }

    fn place(&self, offset: u64) -> usize {
        AT_BUFFER_BYTES + (offset % self.buffer) as usize
    }

    /// The event behind `offset`, where it stands, and where the next one does.
    fn event_at(&self, mut offset: u64) -> Option<(EventHead, u64, u64)> {
        let to_end = self.buffer - offset % self.buffer;
        let mut first = self.store.word(self.place(offset));
        if first == SKIP {
            offset += to_end;
            first = self.store.word(self.place(offset));
        }
        let length = usize::try_from(first).ok().filter(|&length| length <= EVENT_BYTES_MAX)?;
        let next = offset + cost(length);
        if next > self.head || cost(length) > self.buffer - offset % self.buffer {
            return None;
        }
        let word = |at: usize| self.store.word(self.place(offset) + 8 * at);
        let head = EventHead {
            sequence: word(1),
            publisher: word(2),
            publisher_sequence: word(3),
            published_ns: word(4),
            passed: word(5),
            length,
        };
        Some((head, offset, next))
    }

    /// The event behind a cursor, and the cursor behind the event; `None` at the end.
    pub(crate) fn at(&self, cursor: Cursor) -> Option<(EventHead, Cursor)> {
        if cursor.offset >= self.head {
            return None;
        }
        let (head, _, next) = self.event_at(cursor.offset)?;
        Some((head, Cursor { offset: next, sequence: head.sequence + 1 }))
    }

    /// Appends the bytes of the event behind a cursor.
    pub(crate) fn bytes(&self, cursor: Cursor, into: &mut Vec<u8>) {
        if let Some((head, at, _)) = self.event_at(cursor.offset).filter(|_| cursor.offset < self.head) {
            self.store.append_to(self.place(at) + EVENT_HEADER_BYTES, head.length, into);
        }
    }

    /// Where the event behind the oldest one begins for an event of `length` bytes to fit: what is
    /// before it has to go.
    pub(crate) fn makes_room(&self, length: usize) -> Cursor {
        let (_, needed) = self.needed(length);
        let mut cursor = self.oldest();
        while self.head + needed - cursor.offset > self.buffer {
            match self.at(cursor) {
                Some((_, next)) => cursor = next,
                None => return self.end(),
            }
        }
        cursor
    }

    /// Bytes that are left out at the end of the buffer, and all that an event of this length
    /// takes.
    fn needed(&self, length: usize) -> (u64, u64) {
        let to_end = self.buffer - self.head % self.buffer;
        let skipped = if cost(length) > to_end { to_end } else { 0 };
        (skipped, skipped + cost(length))
    }

    /// Lets go of everything before a cursor that [`Log::makes_room`] has answered.
    pub(crate) fn let_go(&mut self, until: Cursor) {
        if until.offset > self.tail {
            (self.tail, self.oldest) = (until.offset, until.sequence);
            self.store.commit(AT_TAIL, self.tail);
        }
    }

    /// Appends an event, for which there is room.
    pub(crate) fn append(&mut self, event: &EventHead, bytes: &[u8]) {
        let (skipped, needed) = self.needed(bytes.len());
        let offset = self.head + skipped;
        if skipped > 0 {
            self.store.put(self.place(self.head), SKIP);
        }
        let place = self.place(offset);
        let words = [
            bytes.len() as u64,
            self.next,
            event.publisher,
            event.publisher_sequence,
            event.published_ns,
            event.passed,
        ];
        for (at, word) in words.into_iter().enumerate() {
            self.store.put(place + 8 * at, word);
        }
        self.store.copy_in(place + EVENT_HEADER_BYTES, bytes);
        self.next += 1;
        self.head += needed;
        self.store.commit(AT_HEAD, self.head);
        self.store.put(AT_NEXT, self.next);
    }

    /// Keeps how the channel is.
    pub(crate) fn keep(&mut self, kept: &Kept) {
        self.store.put(AT_EVENT_BYTES, kept.event_bytes as u64);
        self.store.put(AT_HISTORY, kept.history);
        self.store.put(AT_WAIT_MS, kept.wait_ms);
        self.store.put(AT_OWNER, kept.owner);
        // A text that is written over in part is none: its length is 0 meanwhile, which is JSON.
        self.store.commit(AT_FORMAT, 0);
        self.store.copy_in(AT_FORMAT + 8, kept.format.as_bytes());
        self.store.commit(AT_FORMAT, kept.format.len() as u64);
    }

    /// Keeps how many subscribers publishers wait for.
    pub(crate) fn keep_holders(&mut self, holders: u64) {
        self.store.put(AT_HOLDERS, holders);
    }

    /// How many subscribers publishers waited for, when this was kept.
    pub(crate) fn holders(&self) -> u64 {
        self.store.word(AT_HOLDERS)
    }

    /// Keeps a publisher in the place of this number.
    pub(crate) fn keep_publisher(&mut self, place: usize, number: u64, count: u64, owner: u64) {
        let at = AT_PUBLISHERS + place * PUBLISHER_BYTES;
        self.store.put(at + 8, count);
        self.store.put(at + 16, owner);
        self.store.commit(at, number);
    }

    /// The publisher in this place: its number (0: nobody's), how many records it has written,
    /// whose it is.
    pub(crate) fn publisher(&self, place: usize) -> (u64, u64, u64) {
        let at = AT_PUBLISHERS + place * PUBLISHER_BYTES;
        (self.store.word(at), self.store.word(at + 8), self.store.word(at + 16))
    }
}

fn buffer_of(store: &impl Store) -> Option<u64> {
    let bytes = store.bytes().checked_sub(AT_BUFFER_BYTES)?;
    (bytes > 0 && bytes.is_multiple_of(8)).then_some(bytes as u64)
}

fn read_kept(store: &impl Store) -> Result<Kept, LogError> {
    let length = store.word(AT_NAME);
    let length = usize::try_from(length).ok().filter(|length| (1..=NAME_BYTES_MAX).contains(length));
    let mut name = Vec::new();
    store.append_to(AT_NAME + 8, length.ok_or(LogError::Damaged("name"))?, &mut name);
    let serial = u32::try_from(store.word(AT_SERIAL)).map_err(|_| LogError::Damaged("number"))?;
    let event_bytes = usize::try_from(store.word(AT_EVENT_BYTES)).ok();
    let event_bytes = event_bytes.filter(|bytes| (1..=EVENT_BYTES_MAX).contains(bytes));
    let event_bytes = event_bytes.ok_or(LogError::Damaged("longest event"))?;
    if cost(event_bytes) * 2 > buffer_of(store).unwrap_or(0) {
        return Err(LogError::Damaged("longest event"));
    }
    let length = usize::try_from(store.word(AT_FORMAT)).ok().filter(|bytes| *bytes <= FORMAT_BYTES_MAX);
    let mut format = Vec::new();
    store.append_to(AT_FORMAT + 8, length.ok_or(LogError::Damaged("format"))?, &mut format);
    let format = String::from_utf8(format).map_err(|_| LogError::Damaged("format"))?;
    Ok(Kept {
        serial,
        name,
        owner: store.word(AT_OWNER),
        event_bytes,
        history: store.word(AT_HISTORY),
        wait_ms: store.word(AT_WAIT_MS),
        // A region of an earlier version says nothing.
        format: if format.is_empty() { "json".to_owned() } else { format },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn kept() -> Kept {
        Kept {
            serial: 7,
            name: b"alarms".to_vec(),
            owner: 5,
            event_bytes: 64,
            history: 3,
            wait_ms: 9,
            format: "cbor".to_owned(),
        }
    }

    fn log() -> Log<MemoryStore> {
        Log::new(MemoryStore::new(AT_BUFFER_BYTES + 512), &kept()).unwrap()
    }

    fn head(sequence: u64, length: usize) -> EventHead {
        EventHead { sequence, publisher: 1, publisher_sequence: sequence, published_ns: 3, passed: 0, length }
    }

    fn publish(log: &mut Log<MemoryStore>, bytes: &[u8]) {
        let until = log.makes_room(bytes.len());
        log.let_go(until);
        let sequence = log.end().sequence;
        log.append(&head(sequence, bytes.len()), bytes);
    }

    fn all(log: &Log<MemoryStore>) -> Vec<(u64, Vec<u8>)> {
        let (mut cursor, mut events) = (log.oldest(), Vec::new());
        while let Some((head, next)) = log.at(cursor) {
            let mut bytes = Vec::new();
            log.bytes(cursor, &mut bytes);
            events.push((head.sequence, bytes));
            cursor = next;
        }
        assert_eq!(cursor, log.end());
        events
    }

    #[test]
    fn a_successor_finds_what_was_committed_and_how_the_channel_was() {
        let mut log = log();
        for text in [&b"one"[..], b"", b"three"] {
            publish(&mut log, text);
        }
        log.keep_publisher(2, 9, 3, 5);
        let before = all(&log);
        let (taken, found) = Log::take_up(log.store).unwrap();
        assert_eq!((all(&taken), found), (before, kept()));
        assert_eq!((taken.publisher(2), taken.publisher(3).0), ((9, 3, 5), 0));
    }

    #[test]
    fn damage_is_named_and_is_no_panic() {
        let damaged = |at: usize, word: u64| {
            let mut log = log();
            publish(&mut log, b"event");
            log.store.put(at, word);
            Log::take_up(log.store).map(drop)
        };
        assert_eq!(damaged(AT_MAGIC, 1), Err(LogError::Format));
        assert_eq!(damaged(AT_VERSION, 2), Err(LogError::Format));
        assert_eq!(damaged(AT_BUFFER, 8), Err(LogError::Damaged("size")));
        assert_eq!(damaged(AT_NAME, 0), Err(LogError::Damaged("name")));
        assert_eq!(damaged(AT_NAME, 1 << 40), Err(LogError::Damaged("name")));
        assert_eq!(damaged(AT_TAIL, 1 << 40), Err(LogError::Damaged("places")));
        assert_eq!(damaged(AT_EVENT_BYTES, 500), Err(LogError::Damaged("longest event")));
        assert_eq!(damaged(AT_BUFFER_BYTES, 1 << 50), Err(LogError::Damaged("event")));
        assert_eq!(damaged(AT_BUFFER_BYTES + 8, u64::MAX), Err(LogError::Damaged("sequence")));
    }

    proptest! {
        /// Against a queue, with a writer that dies after any of its writes.
        #[test]
        fn it_holds_the_newest_events_whole(
            lengths in prop::collection::vec(0_usize..=64, 1..60),
            dies in prop::collection::vec(any::<bool>(), 60),
        ) {
            let mut log = log();
            let mut model = VecDeque::new();
            for (turn, (&length, dies)) in lengths.iter().zip(dies).enumerate() {
                let bytes = vec![turn as u8; length];
                let before = log.end().sequence;
                publish(&mut log, &bytes);
                prop_assert_eq!(log.end().sequence, before + 1);
                model.push_back((before, bytes));
                prop_assert!(log.used() <= log.buffer());
                model.drain(..model.len() - log.len() as usize);
                if dies {
                    if turn % 2 == 0 {
                        // Right behind the commit.
                        log.store.put(AT_NEXT, before);
                    }
                    log = Log::take_up(log.store).unwrap().0;
                }
                prop_assert_eq!(all(&log), Vec::from_iter(model.clone()));
                prop_assert!(log.len() as usize > turn.min(1), "half of the buffer is never lost at once");
            }
        }

        #[test]
        fn whatever_is_in_the_memory_it_is_taken_up_or_refused(
            damage in prop::collection::vec((0_usize..40, any::<u64>()), 0..4),
            buffer in prop::collection::vec((0_usize..64, 0_u64..600), 0..8),
        ) {
            let mut log = log();
            for turn in 0..9_u8 {
                publish(&mut log, &[turn; 40]);
            }
            let mut store = log.store;
            damage.iter().for_each(|&(at, word)| store.put(8 * at, word));
            buffer.iter().for_each(|&(at, word)| store.put(AT_BUFFER_BYTES + 8 * at, word));
            if let Ok((log, _)) = Log::take_up(store) {
                all(&log);
            }
        }
    }
}
