//! Replies that a server remembers by the numbers of their requests, and records that a backup puts
//! together.
//!
//! An endpoint makes one call at a time, and numbers its calls. So a requester and a number name
//! one request for ever, wherever it is sent to, and the last reply to each requester is all that
//! it can still ask for: its next number says that it has had the one before.

use std::collections::{BTreeMap, VecDeque};

use wire::ipc::Address;
use wire::movement::{
    BadRecord, RECORD_HEADER_BYTES, REPLY_BYTES_MAX, Record, STATE_BYTES_MAX, TAG_LAST, TAG_PIECE,
};

use crate::Asked;

/// Requesters whose last replies are remembered: as many as a distributed container may have pairs
/// by default, four times over.
const REQUESTERS_MAX: usize = 4096;
/// Bytes of replies that are remembered in all: a reply of 16 KiB for each of these requesters.
const REPLIES_BYTES_MAX: usize = 64 << 20;
/// Longest record.
const RECORD_BYTES_MAX: usize = RECORD_HEADER_BYTES + REPLY_BYTES_MAX + STATE_BYTES_MAX;

/// The knowledge about a request that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembered<'r> {
    /// It is new.
    New,
    /// It was answered: this is the reply.
    Answered {
        /// Its tag.
        tag: u32,
        /// Its payload.
        reply: &'r [u8],
    },
}

#[derive(Clone, Debug)]
struct Entry {
    id: u64,
    tag: u32,
    reply: Vec<u8>,
}

/// The last reply to each requester, bounded: whoever was replied to longest ago is forgotten
/// first.
#[derive(Clone, Debug, Default)]
pub struct Replies {
    entries: BTreeMap<Address, Entry>,
    /// Requesters and numbers in the order of their replies; one that has a later number is an old
    /// entry.
    order: VecDeque<(Address, u64)>,
    bytes: usize,
    state: Option<Vec<u8>>,
}

impl Replies {
    /// Whether nothing is remembered: then every request is new.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the state that the server has handed over last; `None`: nothing yet.
    #[must_use]
    pub fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }

    /// Returns the knowledge about a request.
    #[must_use]
    pub fn of(&self, asked: &Asked) -> Remembered<'_> {
        self.find(asked.requester, asked.id)
    }

    /// Returns the knowledge about a request, by its requester and number.
    #[must_use]
    pub fn find(&self, requester: Address, id: u64) -> Remembered<'_> {
        match self.entries.get(&requester) {
            Some(entry) if entry.id == id => Remembered::Answered { tag: entry.tag, reply: &entry.reply },
            _ => Remembered::New,
        }
    }

    /// Takes a record in. The reply and the state of one record come together, or not at all.
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Reply { requester, id, tag, reply, state } => {
                if state.is_some() {
                    self.state = state;
                }
                self.bytes += reply.len();
                let before = self.entries.insert(requester, Entry { id, tag, reply });
                self.bytes -= before.map_or(0, |before| before.reply.len());
                self.order.push_back((requester, id));
                self.forget();
            }
            Record::State(state) => self.state = Some(state),
            // Of these, whoever stands by makes something else.
            Record::Ready { .. } | Record::Queued { .. } | Record::Notices { .. } | Record::Move => {}
        }
    }

    /// All that is remembered, as records for a backup that has nothing: the oldest first.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let replies = self.order.iter().filter_map(|(requester, id)| {
            let entry = self.entries.get(requester).filter(|entry| entry.id == *id)?;
            let (tag, reply) = (entry.tag, entry.reply.clone());
            Some(Record::Reply { requester: *requester, id: *id, tag, reply, state: None })
        });
        replies.chain(self.state.clone().map(Record::State))
    }

    fn forget(&mut self) {
        while self.entries.len() > REQUESTERS_MAX
            || self.bytes > REPLIES_BYTES_MAX
            || self.order.len() > 2 * REQUESTERS_MAX
        {
            let Some((requester, id)) = self.order.pop_front() else { return };
            if self.entries.get(&requester).is_some_and(|entry| entry.id == id)
                && let Some(entry) = self.entries.remove(&requester)
            {
                self.bytes -= entry.reply.len();
            }
        }
    }
}

/// Why a message of a primary is no piece of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPiece {
    /// Its tag is none of a piece.
    #[error("a message with the tag {0} is no piece of a record")]
    Tag(u32),
    /// The record is longer than any may be.
    #[error("a record has {length} bytes or more; {most} are allowed")]
    TooLong {
        /// Bytes that have come.
        length: usize,
        /// Bytes that may come.
        most: usize,
    },
    /// The record is none.
    #[error(transparent)]
    Record(#[from] BadRecord),
}

/// Puts records together out of messages.
#[derive(Clone, Debug, Default)]
pub struct Assembly {
    bytes: Vec<u8>,
}

impl Assembly {
    /// Takes a message in; a record, if it was the last of one.
    ///
    /// # Errors
    /// See [`BadPiece`]. The pieces of the record that have come are forgotten then.
    pub fn take(&mut self, tag: u32, payload: &[u8]) -> Result<Option<Record>, BadPiece> {
        let length = self.bytes.len() + payload.len();
        if length > RECORD_BYTES_MAX {
            self.bytes.clear();
            return Err(BadPiece::TooLong { length, most: RECORD_BYTES_MAX });
        }
        match tag {
            TAG_PIECE => {
                self.bytes.extend_from_slice(payload);
                Ok(None)
            }
            TAG_LAST => {
                let mut bytes = std::mem::take(&mut self.bytes);
                bytes.extend_from_slice(payload);
                Ok(Some(Record::read(&bytes)?))
            }
            tag => {
                self.bytes.clear();
                Err(BadPiece::Tag(tag))
            }
        }
    }
}

/// Cuts a record into the messages of a pair: tag and payload of each. Never none.
pub fn pieces(record: &[u8], most: usize) -> impl Iterator<Item = (u32, &[u8])> {
    let most = most.max(1);
    let count = record.len().div_ceil(most).max(1);
    (0..count).map(move |at| {
        let piece = record.get(at * most..record.len().min((at + 1) * most)).unwrap_or_default();
        (if at + 1 == count { TAG_LAST } else { TAG_PIECE }, piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(slot: u32, id: u64, bytes: usize) -> Record {
        let requester = Address { slot, generation: 1 };
        Record::Reply { requester, id, tag: 0, reply: vec![1; bytes], state: None }
    }

    #[test]
    fn the_last_reply_to_each_requester_is_remembered() {
        let mut replies = Replies::default();
        for (slot, id) in [(1, 1), (2, 1), (1, 2)] {
            replies.take(reply(slot, id, 3));
        }
        let at = |slot| Address { slot, generation: 1 };
        let known = Remembered::Answered { tag: 0, reply: &[1; 3] };
        assert_eq!([(at(1), 2), (at(2), 1)].map(|(who, id)| replies.find(who, id)), [known; 2]);
        let others = [(at(1), 1), (at(1), 3), (at(3), 1), (Address { slot: 1, generation: 2 }, 2)];
        assert!(others.iter().all(|(who, id)| replies.find(*who, *id) == Remembered::New));
    }

    #[test]
    fn whoever_was_replied_to_longest_ago_is_forgotten_first() {
        let mut replies = Replies::default();
        for slot in 0..REQUESTERS_MAX as u32 + 2 {
            replies.take(reply(slot, 1, 1));
            replies.take(reply(0, u64::from(slot) + 2, 1));
        }
        let find = |slot, id| replies.find(Address { slot, generation: 1 }, id);
        assert_ne!(find(0, REQUESTERS_MAX as u64 + 3), Remembered::New, "it asks all the time");
        assert_eq!([find(1, 1), find(2, 1)], [Remembered::New; 2]);
        assert_ne!(find(4, 1), Remembered::New);
        assert!(replies.bytes <= REQUESTERS_MAX && replies.order.len() <= 2 * REQUESTERS_MAX);
    }

    #[test]
    fn large_replies_are_forgotten_for_their_bytes() {
        let mut replies = Replies::default();
        for slot in 0..6 {
            replies.take(reply(slot, 1, REPLIES_BYTES_MAX / 4));
        }
        let known = |slot| replies.find(Address { slot, generation: 1 }, 1) != Remembered::New;
        assert_eq!([0, 1, 2, 5].map(known), [false, false, true, true]);
    }

    #[test]
    fn what_is_remembered_makes_another_one_the_same() {
        let mut one = Replies::default();
        one.take(reply(1, 1, 3));
        one.take(Record::State(b"four".to_vec()));
        one.take(reply(2, 5, 0));
        one.take(reply(1, 2, 2));
        let mut other = Replies::default();
        one.records().for_each(|record| other.take(record));
        assert_eq!(one.records().collect::<Vec<_>>(), other.records().collect::<Vec<_>>());
        assert_eq!(other.state(), Some(&b"four"[..]));
    }

    #[test]
    fn a_record_comes_out_of_pieces_of_any_size() {
        let record = Record::State(vec![7; 1000]);
        for most in [1, 7, 39, 40, 1039, 1040, 5000] {
            let (mut assembly, mut whole) = (Assembly::default(), None);
            for (tag, piece) in pieces(&record.to_bytes(), most) {
                assert_eq!(whole, None, "it ends with its last piece");
                whole = assembly.take(tag, piece).expect("a piece");
            }
            assert_eq!(whole.as_ref(), Some(&record), "pieces of {most}");
        }
    }

    #[test]
    fn a_primary_that_never_ends_a_record_is_refused() {
        let mut assembly = Assembly::default();
        let piece = vec![0; 1 << 20];
        let refused = (0..64).find_map(|_| assembly.take(TAG_PIECE, &piece).err());
        assert!(matches!(refused, Some(BadPiece::TooLong { .. })));
        assert!(assembly.bytes.is_empty());
        assert_eq!(assembly.take(9, &[]), Err(BadPiece::Tag(9)));
    }
}
