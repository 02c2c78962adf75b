//! The coordination service: its files, and what its server and the node's daemon say to each other
//! about its state. Described in `docs/spec/coordination.md`.
//!
//! The server decides, the daemon keeps: over the *state connection*, a Unix `SOCK_SEQPACKET`
//! socket that the daemon made for one service, the server reads its records and commits changes of
//! them. It names no key of the registry: the daemon puts the distributed container and the service
//! before each.

use thiserror::Error;

/// Kind of this service in a topology file and in an export.
pub const KIND: &str = "coordination";

/// Files of the export, by number ([`crate::service::FileExport::id`]).
pub mod file {
    /// `kv`: the keys, as a tree of files.
    pub const KV: u32 = 0;
    /// `locks`: locks, one file each.
    pub const LOCKS: u32 = 1;
    /// `ctl`: a line asks, text answers.
    pub const CTL: u32 = 2;
    /// `watch`: changes, one line each.
    pub const WATCH: u32 = 3;
    /// `status`: how much there is of what, and the bounds.
    pub const STATUS: u32 = 4;
    /// `semaphores`: counting semaphores, one file each.
    pub const SEMAPHORES: u32 = 5;
    /// `barriers`: barriers, one file each.
    pub const BARRIERS: u32 = 6;
    /// `queues`: queues of items, one file each.
    pub const QUEUES: u32 = 7;
}

/// The verbs that a domain may be given.
pub mod verb {
    /// Read keys, and be told of changes.
    pub const OBSERVE: &str = "observe";
    /// Change keys; take locks.
    pub const COORDINATE: &str = "coordinate";
}

/// `ioctl`s of keys and locks.
pub mod ioctl {
    /// Type byte of all of them: one that the kernel's list of numbers leaves free.
    pub const TYPE: u32 = 0xD8;
    const fn number(direction: u32, nr: u32, bytes: u32) -> u32 {
        direction << 30 | bytes << 16 | TYPE << 8 | nr
    }
    const READ: u32 = 2;
    const WRITE: u32 = 1;
    /// `_IOR(0xD8, 1, __u64)`: the revision of what was read from the beginning of an open key, or
    /// written to it last.
    pub const GET_REVISION: u32 = number(READ, 1, 8);
    /// `_IOW(0xD8, 2, __u64)`: writes to an open key replace this revision, or fail with `ESTALE`.
    pub const EXPECT: u32 = number(WRITE, 2, 8);
    /// `_IOR(0xD8, 3, __u64)`: the token of an open lock that is held; `EAGAIN`: it is not.
    pub const GET_TOKEN: u32 = number(READ, 3, 8);
}

/// Longest value of a key, in bytes: less than the first piece of a longer write, so that what is
/// too long is refused as a whole.
pub const MAX_VALUE_BYTES: usize = 32 * 1024;
/// Longest path of a key or of a lock, in bytes: with the names of container and service before it,
/// it fits into a key of the registry.
pub const MAX_PATH_BYTES: usize = 255;
/// Longest packet of the state connection in either direction: what a Unix socket takes with its
/// usual buffers, with room to spare.
pub const MAX_STATE_PACKET_BYTES: usize = 96 * 1024;
/// Most records that one commit changes, the head beside them: one less than what etcd takes in one
/// transaction.
pub const MAX_STATE_CHANGES: usize = 127;
/// Longest head, in bytes: three numbers and a word.
pub const MAX_HEAD_BYTES: usize = 256;
/// Most bytes of all records of one service, their keys included: a hundred such services fill a
/// twentieth of etcd's usual 2 GiB.
pub const MAX_STATE_BYTES: usize = 8 * 1024 * 1024;
/// Most records of one service.
pub const MAX_STATE_RECORDS: usize = 16 * 1024;

/// From the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// All records, please: answered by [`Tell::Record`]s, and by [`Tell::Loaded`] after them.
    Load,
    /// Change these, if the head is what I believe. Answered by [`Tell::Committed`],
    /// [`Tell::Superseded`] or [`Tell::Failed`]. Without a head it changes nothing, and asks
    /// whether the head is what I believe.
    Commit {
        /// Revision of the head that I know; 0: there is none.
        expected: u64,
        /// The new head; empty: none, and no changes.
        head: Vec<u8>,
        /// Records by their keys, with their new values; `None`: to be removed. Each once.
        changes: Vec<(String, Option<Vec<u8>>)>,
    },
}

/// From the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tell {
    /// One record; the head's key is empty.
    Record {
        /// Its key.
        key: String,
        /// The registry's revision of it.
        revision: u64,
        /// Its value.
        value: Vec<u8>,
    },
    /// All records have been sent.
    Loaded,
    /// It is done, and will be there after a power cut; the head has this revision now.
    Committed(u64),
    /// The head is another one: another server serves, and this one has nothing to say any more.
    Superseded,
    /// It was refused, or nobody knows whether it was done.
    Failed {
        /// Whether the same may be tried again.
        again: bool,
        /// The mistake, and the remedy.
        message: String,
    },
}

/// Bytes that are no packet of the state connection, by the first field that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("bytes that are no packet of a state connection: {0}")]
pub struct NoPacket(&'static str);

const LOAD: u8 = 1;
const COMMIT: u8 = 2;
const RECORD: u8 = 3;
const LOADED: u8 = 4;
const COMMITTED: u8 = 5;
const SUPERSEDED: u8 = 6;
const FAILED: u8 = 7;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize, field: &'static str) -> Result<&'a [u8], NoPacket> {
        let (head, rest) = self.0.split_at_checked(bytes).ok_or(NoPacket(field))?;
        self.0 = rest;
        Ok(head)
    }

    fn byte(&mut self, field: &'static str) -> Result<u8, NoPacket> {
        Ok(self.take(1, field)?.first().copied().unwrap_or(0))
    }

    fn long(&mut self, field: &'static str) -> Result<u64, NoPacket> {
        let bytes = self.take(8, field)?.try_into().map_err(|_| NoPacket(field))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn bytes(&mut self, most: usize, field: &'static str) -> Result<Vec<u8>, NoPacket> {
        let length = self.take(4, field)?.try_into().map_err(|_| NoPacket(field))?;
        let length = usize::try_from(u32::from_le_bytes(length)).map_err(|_| NoPacket(field))?;
        if length > most {
            return Err(NoPacket(field));
        }
        Ok(self.take(length, field)?.to_vec())
    }

    fn text(&mut self, most: usize, field: &'static str) -> Result<String, NoPacket> {
        String::from_utf8(self.bytes(most, field)?).map_err(|_| NoPacket(field))
    }

    fn end(self) -> Result<(), NoPacket> {
        if self.0.is_empty() { Ok(()) } else { Err(NoPacket("bytes after its end")) }
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Longest key of a record: a word, and the longest path.
const MAX_KEY_BYTES: usize = MAX_PATH_BYTES + 32;

impl Ask {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Load => vec![LOAD],
            Self::Commit { expected, head, changes } => {
                let mut out = vec![COMMIT];
                out.extend_from_slice(&expected.to_le_bytes());
                put_bytes(&mut out, head);
                for (key, value) in changes {
                    out.push(u8::from(value.is_some()));
                    put_bytes(&mut out, key.as_bytes());
                    if let Some(value) = value {
                        put_bytes(&mut out, value);
                    }
                }
                out
            }
        }
    }

    /// From bytes that a server sent.
    ///
    /// # Errors
    /// [`NoPacket`].
    pub fn decode(bytes: &[u8]) -> Result<Self, NoPacket> {
        if bytes.len() > MAX_STATE_PACKET_BYTES {
            return Err(NoPacket("length"));
        }
        let mut reader = Reader(bytes);
        let ask = match reader.byte("kind")? {
            LOAD => Self::Load,
            COMMIT => {
                let expected = reader.long("expected revision")?;
                let head = reader.bytes(MAX_HEAD_BYTES, "head")?;
                let mut changes = Vec::new();
                while !reader.0.is_empty() {
                    if changes.len() == MAX_STATE_CHANGES || head.is_empty() {
                        return Err(NoPacket("number of changes"));
                    }
                    let is_put = reader.byte("operation")?;
                    let key = reader.text(MAX_KEY_BYTES, "key")?;
                    if is_put > 1 || key.is_empty() {
                        return Err(NoPacket("operation or key"));
                    }
                    let value =
                        if is_put == 1 { Some(reader.bytes(MAX_STATE_PACKET_BYTES, "value")?) } else { None };
                    changes.push((key, value));
                }
                Self::Commit { expected, head, changes }
            }
            _ => return Err(NoPacket("kind")),
        };
        reader.end()?;
        Ok(ask)
    }
}

impl Tell {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Record { key, revision, value } => {
                let mut out = vec![RECORD];
                out.extend_from_slice(&revision.to_le_bytes());
                put_bytes(&mut out, key.as_bytes());
                put_bytes(&mut out, value);
                out
            }
            Self::Loaded => vec![LOADED],
            Self::Committed(revision) => [&[COMMITTED][..], &revision.to_le_bytes()].concat(),
            Self::Superseded => vec![SUPERSEDED],
            Self::Failed { again, message } => {
                let mut out = vec![FAILED, u8::from(*again)];
                put_bytes(&mut out, message.as_bytes());
                out
            }
        }
    }

    /// From bytes that a daemon sent.
    ///
    /// # Errors
    /// [`NoPacket`].
    pub fn decode(bytes: &[u8]) -> Result<Self, NoPacket> {
        let mut reader = Reader(bytes);
        let tell = match reader.byte("kind")? {
            RECORD => {
                let revision = reader.long("revision")?;
                let key = reader.text(MAX_KEY_BYTES, "key")?;
                Self::Record { key, revision, value: reader.bytes(MAX_STATE_PACKET_BYTES, "value")? }
            }
            LOADED => Self::Loaded,
            COMMITTED => Self::Committed(reader.long("revision")?),
            SUPERSEDED => Self::Superseded,
            FAILED => {
                let again = reader.byte("again")? == 1;
                Self::Failed { again, message: reader.text(MAX_STATE_PACKET_BYTES, "message")? }
            }
            _ => return Err(NoPacket("kind")),
        };
        reader.end()?;
        Ok(tell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn everything_survives_the_wire() {
        let changes = vec![("n/kv/a".to_owned(), Some(vec![0, 1, 2])), ("n/locks/b".to_owned(), None)];
        for ask in [Ask::Load, Ask::Commit { expected: 7, head: b"{}".to_vec(), changes }] {
            assert_eq!(Ask::decode(&ask.encode()), Ok(ask));
        }
        let record = Tell::Record { key: "n/kv/a".into(), revision: 9, value: vec![3; 500] };
        let failed = Tell::Failed { again: true, message: "etcd is away".into() };
        for tell in [record, Tell::Loaded, Tell::Committed(u64::MAX), Tell::Superseded, failed] {
            assert_eq!(Tell::decode(&tell.encode()), Ok(tell));
        }
    }

    #[test]
    fn a_commit_without_a_head_changes_nothing() {
        let changes = vec![("n/kv/a".to_owned(), None)];
        let ask = Ask::Commit { expected: 1, head: Vec::new(), changes };
        assert_eq!(Ask::decode(&ask.encode()), Err(NoPacket("number of changes")));
    }

    #[test]
    fn more_changes_than_one_transaction_takes_are_refused() {
        let changes = (0..=MAX_STATE_CHANGES).map(|number| (format!("n/kv/{number}"), None)).collect();
        let ask = Ask::Commit { expected: 1, head: b"h".to_vec(), changes };
        assert_eq!(Ask::decode(&ask.encode()), Err(NoPacket("number of changes")));
    }

    proptest! {
        #[test]
        fn any_bytes_are_something_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(ask) = Ask::decode(&bytes) {
                prop_assert_eq!(Ask::decode(&ask.encode()), Ok(ask));
            }
            if let Ok(tell) = Tell::decode(&bytes) {
                prop_assert_eq!(Tell::decode(&tell.encode()), Ok(tell));
            }
        }
    }
}
