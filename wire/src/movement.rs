//! Records that a primary hands to its backups (`docs/spec/movement.md`).
//!
//! A record is cut into messages of their pair: all but the last have the tag [`TAG_PIECE`], the
//! last has [`TAG_LAST`]. Numbers are little-endian.

use crate::ipc::{Address, CALL_ID_MAX};

/// Tag of a message that holds a piece of a record, and is followed by others.
pub const TAG_PIECE: u32 = 1;
/// Tag of the message that ends a record.
pub const TAG_LAST: u32 = 2;
/// Bit of the notices by which a primary says that it goes on without this backup.
pub const NOTICE_RELEASED: u64 = 1;
/// Bytes in front of the reply of a record.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Longest state that a primary hands over with a reply: it is sent anew whenever it changes.
/// Larger state belongs in a volume or into a granted buffer, and its place into the state.
pub const STATE_BYTES_MAX: usize = 256 << 10;
/// Longest reply of a record: no ring of a pair takes a longer one.
pub const REPLY_BYTES_MAX: usize = 16 << 20;
/// Length of the state that says that it has not changed.
pub const STATE_SAME: u32 = u32::MAX;
/// [`Record::kind`]: a reply, and the state after it.
pub const RECORD_REPLY: u32 = 1;
/// A state without a reply.
pub const RECORD_STATE: u32 = 2;
/// The backup has all; the generation is the least one whose replies it knows.
pub const RECORD_READY: u32 = 3;

/// A message that the primary has taken out of its sender's ring and not received: the endpoint
/// moves, and it is received at the new place.
pub const RECORD_QUEUED: u32 = 4;
/// As [`RECORD_QUEUED`], of bits of notices; they stand in the place of the number.
pub const RECORD_NOTICES: u32 = 5;
/// The primary receives nothing more: this backup is to take its place now.
pub const RECORD_MOVE: u32 = 6;

/// A record that a primary hands over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A reply that is about to be released.
    Reply {
        /// The endpoint that asked.
        requester: Address,
        /// The requester's number of the call.
        id: u64,
        /// Tag of the reply.
        tag: u32,
        /// Its payload.
        reply: Vec<u8>,
        /// The server's state after it; `None`: as before.
        state: Option<Vec<u8>>,
    },
    /// The server's state.
    State(Vec<u8>),
    /// The backup has all that the primary has.
    Ready {
        /// The least generation of the endpoint whose replies the primary knows.
        continues: u32,
    },
    /// A message that is to be received at the endpoint's new place.
    Queued {
        /// The sender.
        source: Address,
        /// The sender's word for the receiver.
        tag: u32,
        /// Its payload.
        payload: Vec<u8>,
    },
    /// Notices that are to be received at the endpoint's new place.
    Notices {
        /// The endpoint that set them.
        source: Address,
        /// The bits.
        bits: u64,
    },
    /// The backup is to take the place now.
    Move,
}

/// A fault of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// It ends too early, or has bytes behind its end.
    #[error("a record of {length} bytes does not have the {expected} that its header says")]
    Length {
        /// Bytes it has.
        length: usize,
        /// Bytes it should have.
        expected: usize,
    },
    /// It is of no kind that there is, or a field of its header is out of its bounds.
    #[error("the header of a record says what it can't: kind {kind}")]
    Header {
        /// The kind that it says.
        kind: u32,
    },
}

impl Record {
    /// The record's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let nobody = Address { slot: 0, generation: 0 };
        let (kind, who, tag, id, reply, state): (u32, Address, u32, u64, &[u8], Option<&[u8]>) = match self {
            Record::Reply { requester, id, tag, reply, state } => {
                (RECORD_REPLY, *requester, *tag, *id, reply, state.as_deref())
            }
            Record::State(state) => (RECORD_STATE, nobody, 0, 0, &[], Some(state)),
            Record::Ready { continues } => {
                (RECORD_READY, Address { slot: 0, generation: *continues }, 0, 0, &[], None)
            }
            Record::Queued { source, tag, payload } => (RECORD_QUEUED, *source, *tag, 0, payload, None),
            Record::Notices { source, bits } => (RECORD_NOTICES, *source, 0, *bits, &[], None),
            Record::Move => (RECORD_MOVE, nobody, 0, 0, &[], None),
        };
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(STATE_SAME);
        let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES + reply.len() + state.map_or(0, <[u8]>::len));
        for word in [kind, who.slot, who.generation, tag] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(id.to_le_bytes());
        for word in [length(reply), state.map_or(STATE_SAME, length), 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend_from_slice(reply);
        bytes.extend_from_slice(state.unwrap_or_default());
        bytes
    }

    /// Reads a record, all of whose bytes are there.
    ///
    /// # Errors
    /// See [`BadRecord`].
    pub fn read(bytes: &[u8]) -> Result<Record, BadRecord> {
        let short = BadRecord::Length { length: bytes.len(), expected: RECORD_HEADER_BYTES };
        let (header, rest) = bytes.split_at_checked(RECORD_HEADER_BYTES).ok_or(short)?;
        let word = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|word| word.try_into().ok());
            bytes.map_or(0, u32::from_le_bytes)
        };
        let (kind, who, tag) = (word(0), Address { slot: word(4), generation: word(8) }, word(12));
        let id = u64::from(word(16)) | u64::from(word(20)) << 32;
        let (reply_bytes, state_bytes) = (word(24), word(28));
        let bad = BadRecord::Header { kind };
        let state_length = if state_bytes == STATE_SAME { 0 } else { state_bytes as usize };
        let reply_length = reply_bytes as usize;
        let reserved = word(32) != 0 || word(36) != 0;
        if reserved || reply_length > REPLY_BYTES_MAX || state_length > STATE_BYTES_MAX {
            return Err(bad);
        }
        let expected = RECORD_HEADER_BYTES + reply_length + state_length;
        if bytes.len() != expected {
            return Err(BadRecord::Length { length: bytes.len(), expected });
        }
        let (reply, state) = rest.split_at(reply_length);
        let state = (state_bytes != STATE_SAME).then(|| state.to_vec());
        match (kind, state) {
            (RECORD_REPLY, state) if who.generation != 0 && (1..=CALL_ID_MAX).contains(&id) => {
                Ok(Record::Reply { requester: who, id, tag, reply: reply.to_vec(), state })
            }
            (RECORD_STATE, Some(state)) if reply.is_empty() => Ok(Record::State(state)),
            (RECORD_READY, None) if reply.is_empty() && who.generation != 0 => {
                Ok(Record::Ready { continues: who.generation })
            }
            (RECORD_QUEUED, None) if who.generation != 0 && id == 0 => {
                Ok(Record::Queued { source: who, tag, payload: reply.to_vec() })
            }
            (RECORD_NOTICES, None) if reply.is_empty() && who.generation != 0 && id != 0 => {
                Ok(Record::Notices { source: who, bits: id })
            }
            (RECORD_MOVE, None) if reply.is_empty() && who.generation == 0 && id == 0 => Ok(Record::Move),
            _ => Err(bad),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let requester = Address { slot: 3, generation: 7 };
        let reply = |state| Record::Reply { requester, id: 1 << 40, tag: 5, reply: b"left".to_vec(), state };
        vec![
            reply(None),
            reply(Some(Vec::new())),
            reply(Some(b"count 4".to_vec())),
            Record::State(b"count 4".to_vec()),
            Record::Ready { continues: 2 },
            Record::Queued { source: requester, tag: 9, payload: b"frame".to_vec() },
            Record::Queued { source: requester, tag: 0, payload: Vec::new() },
            Record::Notices { source: requester, bits: 1 << 63 | 1 },
            Record::Move,
        ]
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for record in records() {
            assert_eq!(Record::read(&record.to_bytes()), Ok(record));
        }
    }

    #[test]
    fn a_record_that_was_cut_or_lengthened_is_refused() {
        for record in records() {
            let mut bytes = record.to_bytes();
            for length in 0..bytes.len() {
                assert!(matches!(Record::read(&bytes[..length]), Err(BadRecord::Length { .. })), "{length}");
            }
            bytes.push(0);
            assert!(matches!(Record::read(&bytes), Err(BadRecord::Length { .. })));
        }
    }

    #[test]
    fn a_header_that_says_what_it_cannot_is_refused() {
        // Kind, the requester's generation, the number, the lengths, the reserved bytes.
        for (at, value) in [(0, 9), (8, 0), (23, 0xff), (27, 0xff), (30, 0xff), (32, 1), (36, 1)] {
            let mut bytes = records()[2].to_bytes();
            bytes[at] = value;
            assert!(Record::read(&bytes).is_err(), "byte {at}");
        }
    }
}
