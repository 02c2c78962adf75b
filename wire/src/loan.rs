//! Copies from and to a granted buffer of another node: records of the channel between a grantee
//! and whoever has the memory there. Described in `docs/spec/loan.md`.

use crate::ipc::Address;

/// Version of this page.
pub const VERSION: u32 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// Most bytes of a buffer behind one header: with it they are one message of the link.
pub const PIECE_BYTES_MAX: usize = 32_736;
/// Bytes of each ring of the channel: some pieces may be on their way.
pub const RING_BYTES: u32 = 256 * 1024;

/// Offset of the kind, 4 bytes.
pub const HEADER_KIND: usize = 0;
/// Offset of the status, 4 bytes.
pub const HEADER_STATUS: usize = 4;
/// Offset of the copy's number, 8 bytes.
pub const HEADER_COPY: usize = 8;
/// Offset of the offset in the buffer, 8 bytes.
pub const HEADER_OFFSET: usize = 16;
/// Offset of the length, 8 bytes.
pub const HEADER_LENGTH: usize = 24;

/// The content of a loan: the first record of whoever has the memory.
pub const KIND_LENT: u32 = 1;
/// Bytes are wanted.
pub const KIND_READ: u32 = 2;
/// Bytes follow, the first of them in this record.
pub const KIND_WRITE: u32 = 3;
/// Bytes of a copy.
pub const KIND_BYTES: u32 = 4;
/// A copy is over.
pub const KIND_DONE: u32 = 5;
/// The grantee does not want a copy any more.
pub const KIND_CANCEL: u32 = 6;

/// The copy has ended well.
pub const STATUS_GOOD: u32 = 0;
/// The grant stands for another buffer now, or soon.
pub const STATUS_MOVED: u32 = 1;
/// It was taken back.
pub const STATUS_REVOKED: u32 = 2;
/// Its owner has ended.
pub const STATUS_DEAD: u32 = 3;
/// It was cancelled before it was over.
pub const STATUS_CANCELLED: u32 = 4;
/// Of [`KIND_LENT`]: to be read.
pub const STATUS_TO_READ: u32 = 5;
/// Of [`KIND_LENT`]: to be written.
pub const STATUS_TO_WRITE: u32 = 6;

/// How a copy has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// See [`STATUS_GOOD`].
    Good,
    /// See [`STATUS_MOVED`].
    Moved,
    /// See [`STATUS_REVOKED`].
    Revoked,
    /// See [`STATUS_DEAD`].
    Dead,
    /// See [`STATUS_CANCELLED`].
    Cancelled,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// See [`KIND_LENT`].
    Lent {
        /// The endpoint that has the buffer.
        owner: Address,
        /// Whether it may be written.
        writable: bool,
        /// Bytes of it.
        bytes: u64,
    },
    /// See [`KIND_READ`].
    Read {
        /// Number of the copy, from 1.
        copy: u64,
        /// Where in the buffer.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// See [`KIND_WRITE`].
    Write {
        /// Number of the copy, from 1.
        copy: u64,
        /// Where in the buffer.
        offset: u64,
        /// How many bytes in all.
        length: u64,
    },
    /// See [`KIND_BYTES`].
    Bytes {
        /// Of which copy.
        copy: u64,
        /// Where in the buffer these stand.
        offset: u64,
    },
    /// See [`KIND_DONE`].
    Done {
        /// The copy.
        copy: u64,
        /// How.
        outcome: Outcome,
    },
    /// See [`KIND_CANCEL`].
    Cancel {
        /// The copy.
        copy: u64,
    },
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nonsense {
    /// No such kind, or no such status with it.
    #[error("a record of kind {kind} and status {status}")]
    Kind {
        /// The kind that it alleges.
        kind: u32,
        /// And this.
        status: u32,
    },
    /// A number that is not zero where it has to be, or zero where it must not be.
    #[error("a record of kind {0} with a number that does not belong there")]
    Number(u32),
    /// Bytes behind a header that has none, or too many.
    #[error("a record of kind {kind} with {length} bytes behind its header")]
    Length {
        /// The kind that it alleges.
        kind: u32,
        /// How many.
        length: usize,
    },
}

impl Outcome {
    fn status(self) -> u32 {
        match self {
            Outcome::Good => STATUS_GOOD,
            Outcome::Moved => STATUS_MOVED,
            Outcome::Revoked => STATUS_REVOKED,
            Outcome::Dead => STATUS_DEAD,
            Outcome::Cancelled => STATUS_CANCELLED,
        }
    }

    fn of(status: u32) -> Option<Outcome> {
        Some(match status {
            STATUS_GOOD => Outcome::Good,
            STATUS_MOVED => Outcome::Moved,
            STATUS_REVOKED => Outcome::Revoked,
            STATUS_DEAD => Outcome::Dead,
            STATUS_CANCELLED => Outcome::Cancelled,
            _ => return None,
        })
    }
}

impl Record {
    /// As it stands in front of what follows.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let (kind, status, copy, offset, length) = match self {
            Record::Lent { owner, writable, bytes } => {
                let status = if writable { STATUS_TO_WRITE } else { STATUS_TO_READ };
                let owner = u64::from(owner.generation) << 32 | u64::from(owner.slot);
                (KIND_LENT, status, 0, owner, bytes)
            }
            Record::Read { copy, offset, length } => (KIND_READ, 0, copy, offset, length),
            Record::Write { copy, offset, length } => (KIND_WRITE, 0, copy, offset, length),
            Record::Bytes { copy, offset } => (KIND_BYTES, 0, copy, offset, 0),
            Record::Done { copy, outcome } => (KIND_DONE, outcome.status(), copy, 0, 0),
            Record::Cancel { copy } => (KIND_CANCEL, 0, copy, 0, 0),
        };
        let words = [u64::from(status) << 32 | u64::from(kind), copy, offset, length];
        let mut bytes = [0; HEADER_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads `header`, with so many bytes behind it.
    ///
    /// # Errors
    /// See [`Nonsense`].
    pub fn read(header: [u8; HEADER_BYTES], behind: usize) -> Result<Record, Nonsense> {
        let mut words = [0_u64; 4];
        for (word, from) in words.iter_mut().zip(header.chunks_exact(8)) {
            *word = from.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        let [first, copy, offset, length] = words;
        let (kind, status) = (low(first), low(first >> 32));
        let unknown = Nonsense::Kind { kind, status };
        let record = match kind {
            KIND_LENT => {
                let writable = match status {
                    STATUS_TO_READ => false,
                    STATUS_TO_WRITE => true,
                    _ => return Err(unknown),
                };
                let owner = Address { slot: low(offset), generation: low(offset >> 32) };
                Record::Lent { owner, writable, bytes: length }
            }
            KIND_DONE => Record::Done { copy, outcome: Outcome::of(status).ok_or(unknown)? },
            _ if status != 0 => return Err(unknown),
            KIND_READ => Record::Read { copy, offset, length },
            KIND_WRITE => Record::Write { copy, offset, length },
            KIND_BYTES => Record::Bytes { copy, offset },
            KIND_CANCEL => Record::Cancel { copy },
            _ => return Err(unknown),
        };
        let numbers_fit = match record {
            Record::Lent { owner, bytes, .. } => copy == 0 && owner.generation != 0 && bytes != 0,
            Record::Read { .. } | Record::Write { .. } => copy != 0,
            Record::Bytes { .. } => copy != 0 && length == 0,
            Record::Done { .. } | Record::Cancel { .. } => copy != 0 && offset == 0 && length == 0,
        };
        if !numbers_fit {
            return Err(Nonsense::Number(kind));
        }
        let length_fits = match record {
            Record::Bytes { .. } => (1..=PIECE_BYTES_MAX).contains(&behind),
            Record::Write { length, .. } => {
                behind <= PIECE_BYTES_MAX && u64::try_from(behind).is_ok_and(|behind| behind <= length)
            }
            _ => behind == 0,
        };
        if length_fits { Ok(record) } else { Err(Nonsense::Length { kind, length: behind }) }
    }
}

fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default()
}

const _: () = assert!(HEADER_LENGTH + 8 == HEADER_BYTES && HEADER_OFFSET + 8 == HEADER_LENGTH);
const _: () = assert!(HEADER_BYTES + PIECE_BYTES_MAX < crate::proxy::MAX_MESSAGE_BYTES as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<(Record, usize)> {
        let owner = Address { slot: 7, generation: 9 };
        let outcomes = [Outcome::Good, Outcome::Moved, Outcome::Revoked, Outcome::Dead, Outcome::Cancelled];
        let mut all = vec![
            (Record::Lent { owner, writable: false, bytes: 1 }, 0),
            (Record::Lent { owner, writable: true, bytes: u64::MAX }, 0),
            (Record::Read { copy: 1, offset: 2, length: 3 }, 0),
            (Record::Write { copy: u64::MAX, offset: 0, length: 0 }, 0),
            (Record::Write { copy: 1, offset: 5, length: 70_000 }, PIECE_BYTES_MAX),
            (Record::Bytes { copy: 3, offset: u64::MAX }, 1),
            (Record::Bytes { copy: 3, offset: 0 }, PIECE_BYTES_MAX),
            (Record::Cancel { copy: 8 }, 0),
        ];
        all.extend(outcomes.map(|outcome| (Record::Done { copy: 4, outcome }, 0)));
        all
    }

    #[test]
    fn what_is_written_is_read() {
        for (record, behind) in all() {
            assert_eq!(Record::read(record.to_bytes(), behind), Ok(record));
        }
    }

    #[test]
    fn what_is_no_record_is_refused_and_what_is_read_stands_for_its_bytes() {
        for (record, behind) in all() {
            let bytes = record.to_bytes();
            for at in 0..HEADER_BYTES {
                for value in [0, 1, 2, 7, 0x80, 0xff] {
                    let mut changed = bytes;
                    changed[at] = value;
                    if let Ok(read) = Record::read(changed, behind) {
                        assert_eq!(read.to_bytes(), changed);
                    }
                }
            }
        }
        let long = |record: Record, behind| Record::read(record.to_bytes(), behind);
        assert!(long(Record::Cancel { copy: 1 }, 1).is_err());
        assert!(long(Record::Bytes { copy: 1, offset: 0 }, 0).is_err());
        assert!(long(Record::Bytes { copy: 1, offset: 0 }, PIECE_BYTES_MAX + 1).is_err());
        assert!(long(Record::Write { copy: 1, offset: 0, length: 3 }, 4).is_err());
        assert!(long(Record::Read { copy: 0, offset: 0, length: 3 }, 0).is_err());
        assert!(Record::read([0; HEADER_BYTES], 0).is_err());
    }
}
