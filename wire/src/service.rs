//! The service protocol: what a frontend (or any other consumer) and a backend say to each other
//! over a channel in message mode. One channel carries many sessions. Described in
//! `docs/spec/service.md`.
//!
//! Each message is a [`Header`] of 32 bytes (little endian) and a payload. The backend speaks
//! first, with [`Kind::Hello`]. A consumer numbers its sessions and tags itself; a tag is unique
//! among its outstanding requests. Session 0 always exists, with the defaults of the domain.

mod locks;
mod nodes;
mod terms;
mod xattrs;

pub use locks::{Lock, LockMode};
pub use nodes::{
    Attributes, Change, Entry, List, Node, Operation, Range, Room, below, is_target, offset_of, root_of,
};
pub use terms::Terms;
pub use xattrs::{XattrChange, XattrOperation, are_xattr_names, is_xattr_name};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Newest version of this protocol; an [`Export::version`] says the oldest that has all it uses.
pub const VERSION: u32 = 6;
/// The oldest version with symbolic links ([`Behaviour::Symlink`]) and [`Kind::Room`].
pub const VERSION_WITH_LINKS: u32 = 4;
/// The oldest version with extended attributes: [`Kind::GetXattr`], [`Kind::ListXattrs`] and
/// [`Kind::SetXattr`].
pub const VERSION_WITH_XATTRS: u32 = 5;
/// The oldest version with locks: [`Kind::Lock`] and [`Kind::TestLock`].
pub const VERSION_WITH_LOCKS: u32 = 6;
/// Oldest version that is understood: files that answer, and nothing else.
pub const VERSION_MIN: u32 = 1;
/// Bytes of a [`Header`].
pub const HEADER_BYTES: usize = 32;
/// Longest payload of a request, in bytes: a DNS message over TCP fits.
pub const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Longest payload of one response message, in bytes; a longer answer is sent in pieces
/// ([`flags::MORE`]).
pub const MAX_RESPONSE_BYTES: usize = 96 * 1024;
/// Longest answer, all its pieces together, in bytes. The pieces follow each other with nothing in
/// between.
pub const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// Longest capsule (the sealed state of one session), in bytes.
pub const MAX_CAPSULE_BYTES: usize = 3 * 1024;
/// Most bytes of data that an `ioctl` may carry in one direction: as many as its number can say.
pub const MAX_CONTROL_BYTES: usize = 16 * 1024;
/// Longest record of a stream, in bytes, its capsule not counted.
pub const MAX_RECORD_BYTES: usize = 64 * 1024;
/// The share of the reader's credit that a record takes beside its bytes: empty records are not
/// free.
pub const RECORD_OVERHEAD_BYTES: usize = 64;
/// Most bytes that one [`Kind::ReadAt`] asks for, and one [`Kind::WriteAt`] brings.
pub const MAX_TRANSFER_BYTES: usize = 60 * 1024;
/// Bits of a node's number that tell it from the others below the same exported folder; above
/// stands the folder's id plus one. So a number says by itself which verb it takes to reach it.
pub const SERIAL_BITS: u32 = 24;
/// Longest name of a node, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest target of a symbolic link, in bytes: the longest path but its NUL.
pub const MAX_TARGET_BYTES: usize = 4095;
/// Bytes of a [`Node`].
pub const NODE_BYTES: usize = 48;
/// Bytes of a [`List`].
pub const LIST_BYTES: usize = 12;
/// Bytes of an [`Entry`] before its name: a node, a place in the listing, the length of the name.
pub const ENTRY_BYTES: usize = NODE_BYTES + 10;
/// Bytes of a [`Change`] before its names.
pub const CHANGE_BYTES: usize = 20;
/// Bytes of a [`Range`].
pub const RANGE_BYTES: usize = 12;
/// Bytes of an [`Attributes`].
pub const SET_BYTES: usize = 32;
/// Bytes of a [`Room`].
pub const ROOM_BYTES: usize = 32;
/// Bytes of an [`XattrChange`] before its name and its value.
pub const XATTR_CHANGE_BYTES: usize = 4;
/// The namespace of the extended attributes that are asked for; no others are.
pub const XATTR_NAMESPACE: &[u8] = b"user.";
/// Longest name of an extended attribute, in bytes, the namespace included: as in Linux.
pub const MAX_XATTR_NAME_BYTES: usize = 255;
/// Longest value of an extended attribute that [`Kind::SetXattr`] brings, in bytes: what a file
/// system of the ext family takes at the most beside an inode.
pub const MAX_XATTR_BYTES: usize = 4096;
/// Longest value, and longest list of names, that a server tells: as long as Linux knows them.
pub const MAX_XATTR_ANSWER_BYTES: usize = 64 * 1024;
/// Bytes of a [`Lock`].
pub const LOCK_BYTES: usize = 32;
/// Bytes of a [`Terms`].
pub const TERMS_BYTES: usize = 8;
/// A user or a group that is not said: whoever owns the mount.
pub const OWNER_NONE: u32 = u32::MAX;

/// The session that needs no `Open`: requests in it have the domain's defaults. It may have a
/// capsule like any other; an `Open` of it hands that capsule to the next backend.
pub const SESSION_NONE: u64 = 0;

/// Bits of [`Header::flags`].
pub mod flags {
    /// Request: measure the phases; response: a [`super::Phase`] list ends the payload, its byte
    /// count is in `file`.
    pub const TRACE: u16 = 1;
    /// Response: another message with the same tag follows and continues the payload.
    pub const MORE: u16 = 2;
    /// Record: the stream has ended; there is no record in it.
    pub const END: u16 = 4;
    /// Every bit that this version knows; others must be zero.
    pub const ALL: u16 = TRACE | MORE | END;
}

/// Bits of [`Header::file`] in [`Kind::Ready`].
pub mod ready {
    /// Reading does not wait: `POLLIN`.
    pub const READ: u32 = 1;
    /// Writing does not wait: `POLLOUT`.
    pub const WRITE: u32 = 2;
    /// Something out of the ordinary is to be fetched: `POLLPRI`.
    pub const PRIORITY: u32 = 4;
    /// The device can't go on: `POLLERR`.
    pub const ERROR: u32 = 8;
    /// Every bit that this version knows; others must be zero.
    pub const ALL: u32 = READ | WRITE | PRIORITY | ERROR;
}

/// Bits of [`Lock::flags`].
pub mod lock {
    /// The request waits until it is granted, or cancelled.
    pub const WAIT: u8 = 1;
    /// A lock of flock(2): of the whole file, apart from those of fcntl(2).
    pub const WHOLE: u8 = 2;
    /// The owner had this lock at an earlier server, or over an earlier channel.
    pub const AGAIN: u8 = 4;
    /// Every bit that this version knows; others must be zero.
    pub const ALL: u8 = WAIT | WHOLE | AGAIN;
}

/// The kind of a message. The discriminant is the byte value on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// Backend → consumer, first of all: payload is an [`Export`] as JSON.
    Hello = 1,
    /// Consumer → backend: open `session` on `file`; payload is an [`OpenInfo`] as JSON. Answered
    /// by `Response`, for a stream with [`Terms`] or nothing. In [`SESSION_NONE`], which is open
    /// always: hands back its last capsule, `file` says nothing.
    Open = 2,
    /// Consumer → backend: a request in `session` on `file`.
    Request = 4,
    /// Backend → consumer: the answer to `tag`; `status` is 0 or an errno.
    Response = 5,
    /// Consumer → backend: nobody waits for `tag` any more. The backend answers nothing for it, or
    /// has already. A [`Kind::Lock`] is answered all the same: who asked has to know what it holds.
    Cancel = 6,
    /// Consumer → backend: the session is over; its outstanding requests are cancelled. Not
    /// answered.
    Close = 7,
    /// Consumer → backend: an `ioctl`: `file` is its number, the payload its data. Answered by
    /// `Response`.
    Control = 8,
    /// Backend → consumer: the state of `session` changed; payload is the capsule to keep for the
    /// next backend.
    Capsule = 10,
    /// Consumer → backend, with a tag: asks for the backend's counters as JSON. Answered by
    /// `Response`.
    State = 11,
    /// Consumer → backend: the reader of a stream takes `file` more bytes of records, each with
    /// [`RECORD_OVERHEAD_BYTES`]. Not answered.
    Credit = 12,
    /// Backend → consumer: one record of a stream, within the credit. `file` is the length of the
    /// capsule that ends the payload: the state of the session after this record. With
    /// [`flags::END`]: no more come; `status` says why.
    Record = 13,
    /// Consumer → backend: which node the folder `file` has under the name in the payload. Answered
    /// by [`Node`].
    Lookup = 14,
    /// Consumer → backend: what is in the folder `file`; payload is a [`List`]. Answered by
    /// [`Entry`]s.
    List = 15,
    /// Consumer → backend: what the node `file` is like now. Answered by [`Node`].
    Stat = 16,
    /// Consumer → backend: changes the folder `file`; payload is a [`Change`]. Answered by [`Node`]
    /// where one was made.
    Change = 17,
    /// Consumer → backend: bytes at an offset; payload is a [`Range`]. Answered by the bytes; fewer
    /// are the end.
    ReadAt = 18,
    /// Consumer → backend: writes at an offset; payload is 8 bytes of offset and the data. Answered
    /// by 4 bytes: how many.
    WriteAt = 19,
    /// Consumer → backend: changes the attributes of the node `file`; payload is an [`Attributes`].
    /// Answered by [`Node`].
    Set = 20,
    /// Consumer → backend: all that was written in this session shall outlive a power cut. Answered
    /// by nothing.
    Sync = 21,
    /// Backend → consumer: what poll(2) says of `session` from now on, a file of
    /// [`Behaviour::Device`]; `file` has bits of [`ready`].
    Ready = 22,
    /// Backend → consumer, last of all: it takes no more. Payload: the tags, 8 bytes each, of the
    /// requests that it has taken and does not answer; any other request that has no answer it has
    /// not taken.
    Leave = 23,
    /// Consumer → backend: the target of the symbolic link `file`. Answered by its bytes.
    Follow = 24,
    /// Consumer → backend: how much room the tree has that the node `file` is in. Answered by
    /// [`Room`].
    Room = 25,
    /// Consumer → backend: the value of an extended attribute of the node `file`; payload is its
    /// name. Answered by the value.
    GetXattr = 26,
    /// Consumer → backend: the names of all extended attributes of the node `file`. Answered by the
    /// names, each with a NUL behind it.
    ListXattrs = 27,
    /// Consumer → backend: changes an extended attribute of the node `file`; payload is an
    /// [`XattrChange`]. Answered by nothing.
    SetXattr = 28,
    /// Consumer → backend: sets or gives up a lock on the file of this session; payload is a
    /// [`Lock`]. Answered by nothing, when it is granted; `Cancel` of one that waits is answered
    /// with `EINTR` under its tag.
    Lock = 29,
    /// Consumer → backend: which lock is in the way of the one in the payload, a [`Lock`]. Answered
    /// by a [`Lock`], of [`LockMode::None`] where none is.
    TestLock = 30,
}

impl TryFrom<u16> for Kind {
    type Error = DecodeError;
    fn try_from(value: u16) -> Result<Self, DecodeError> {
        Ok(match value {
            1 => Self::Hello,
            2 => Self::Open,
            4 => Self::Request,
            5 => Self::Response,
            6 => Self::Cancel,
            7 => Self::Close,
            8 => Self::Control,
            10 => Self::Capsule,
            11 => Self::State,
            12 => Self::Credit,
            13 => Self::Record,
            14 => Self::Lookup,
            15 => Self::List,
            16 => Self::Stat,
            17 => Self::Change,
            18 => Self::ReadAt,
            19 => Self::WriteAt,
            20 => Self::Set,
            21 => Self::Sync,
            22 => Self::Ready,
            23 => Self::Leave,
            24 => Self::Follow,
            25 => Self::Room,
            26 => Self::GetXattr,
            27 => Self::ListXattrs,
            28 => Self::SetXattr,
            29 => Self::Lock,
            30 => Self::TestLock,
            other => return Err(DecodeError::UnknownKind(other)),
        })
    }
}

/// The fixed head of each message. Byte offsets: kind 0, flags 2, status 4, session 8, tag 16, file
/// 24, length 28.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of the message.
    pub kind: Kind,
    /// Bits of [`flags`].
    pub flags: u16,
    /// 0, or an errno of Linux; only in responses.
    pub status: u32,
    /// The session; 0 is [`SESSION_NONE`].
    pub session: u64,
    /// The request's number, chosen by the consumer.
    pub tag: u64,
    /// The file of the export ([`FileExport::id`]); the number of the `ioctl` in `Control`; trailer
    /// bytes in a traced response.
    pub file: u32,
    /// Bytes of payload that follow.
    pub length: u32,
}

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Fewer bytes than a header.
    #[error("a message of {0} bytes is shorter than its header of {HEADER_BYTES}")]
    Short(usize),
    /// A kind that this version does not know.
    #[error("unknown kind of message {0}")]
    UnknownKind(u16),
    /// Flag bits that this version does not know.
    #[error("unknown flags {0:#06x}")]
    UnknownFlags(u16),
    /// The header's length is not what follows it.
    #[error("the header says {said} bytes of payload, {found} follow")]
    Length {
        /// The length that the header alleges.
        said: u32,
        /// The length that is there.
        found: usize,
    },
    /// A traced response whose trailer is longer than its payload, or no whole number of phases.
    #[error("the trace trailer of {0} bytes does not fit the payload")]
    Trailer(u32),
    /// A payload with a field that can't be: which one.
    #[error("the payload's {0} is impossible")]
    Payload(&'static str),
    /// A name that is longer than any may be.
    #[error("a name of {0} bytes is longer than {MAX_NAME_BYTES}")]
    LongName(usize),
}

impl Header {
    /// A header of `kind` with everything else zero.
    pub const fn new(kind: Kind) -> Self {
        Self { kind, flags: 0, status: 0, session: 0, tag: 0, file: 0, length: 0 }
    }

    /// The bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&self.flags.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.status.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tag.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.file.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// The header and the payload of a whole message.
    ///
    /// # Errors
    /// Everything that is not exactly one message of this version.
    pub fn decode(message: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let Some((head, payload)) = message.split_first_chunk::<HEADER_BYTES>() else {
            return Err(DecodeError::Short(message.len()));
        };
        let u16_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let header = Self {
            kind: Kind::try_from(u16_at(0))?,
            flags: u16_at(2),
            status: u32_at(4),
            session: u64_at(8),
            tag: u64_at(16),
            file: u32_at(24),
            length: u32_at(28),
        };
        if header.flags & !flags::ALL != 0 {
            return Err(DecodeError::UnknownFlags(header.flags));
        }
        if header.length as usize != payload.len() {
            return Err(DecodeError::Length { said: header.length, found: payload.len() });
        }
        Ok((header, payload))
    }
}

/// The offer of a service: the payload of [`Kind::Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// [`VERSION`].
    pub version: u32,
    /// Kind of service, `directory` for one.
    pub kind: String,
    /// Its files. Those without a name are for native entrances only.
    pub files: Vec<FileExport>,
}

/// One file of an [`Export`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileExport {
    /// The number that `Open` and `Request` name it by.
    pub id: u32,
    /// Name in the service's folder; `None`: not shown as a file.
    pub name: Option<String>,
    /// Permission bits, for example `0o666`.
    pub mode: u32,
    /// The meaning of `open`, `read` and `write`.
    pub behaviour: Behaviour,
    /// Whether a request that was lost with its backend may be sent to the next one.
    pub idempotent: bool,
    /// The verb that a domain needs to be allowed to open it; of a folder, to see what is in it and
    /// to open that.
    pub verb: String,
    /// Of a folder: the verb that a domain needs to change what is in it. None: nobody changes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

/// The meaning of the file operations of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Behaviour {
    /// `open` starts a session; each line written is a request; `read` takes the responses in
    /// order, waits while any is outstanding, and says end of file when none is. `ioctl` controls
    /// the session.
    Session,
    /// Each line written is one request that `write` waits for; an error is the errno of `write`.
    /// `read` is as `Text`.
    Control,
    /// `open` asks for the whole text (a `Request` with an empty payload), `read` takes it by
    /// offset.
    Text,
    /// Each `read` takes one record that the backend sent by itself, and waits for the next; each
    /// `write` is one record for the backend, which is refused, if it is, at the next `write`.
    Stream,
    /// `read` and `write` have offsets; the backend keeps the bytes.
    Random,
    /// As a character device: `ioctl`, `read` and `write` go to the backend, which may let them
    /// wait; poll(2) says what the backend said last; where the domain has memory with the service,
    /// `mmap` reaches it.
    Device,
    /// A folder of which only the backend knows what is in it. Called [`OWN_FOLDER`], it is the
    /// service's own folder.
    Folder,
    /// A symbolic link, below folders only: a path that the consumer's kernel follows, and nobody
    /// else.
    Symlink,
}

/// The name of an exported folder that is the folder of the service itself.
pub const OWN_FOLDER: &str = ".";

/// The opener of a session, and the state that an earlier backend left: the payload of
/// [`Kind::Open`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenInfo {
    /// User that opened the file, as the domain's kernel saw it.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its process, as the frontend saw it.
    pub pid: u32,
    /// The entrance that it came through: `device`, `preload`, `stub`, `resolve`, `api`.
    pub entrance: String,
    /// Flags of open(2): the access mode, `O_APPEND` and `O_TRUNC` are of interest.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub flags: u32,
    /// The last [`Kind::Capsule`] of this session, if the session is older than the backend.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capsule: Vec<u8>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// One phase of a request's way, in a traced response. 12 bytes: phase 0, reserved 2,
/// nanoseconds 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phase {
    /// The phase: an index into the service's list of names (`wire::directory::PHASES` for the
    /// directory).
    pub phase: u16,
    /// How long it took, in ns.
    pub nanoseconds: u64,
}

/// Bytes of one encoded [`Phase`].
pub const PHASE_BYTES: usize = 12;

impl Phase {
    /// Appends the encoded phases to `payload` and returns how many bytes that were.
    pub fn append(phases: &[Self], payload: &mut Vec<u8>) -> u32 {
        for phase in phases {
            payload.extend_from_slice(&phase.phase.to_le_bytes());
            payload.extend_from_slice(&[0; 2]);
            payload.extend_from_slice(&phase.nanoseconds.to_le_bytes());
        }
        u32::try_from(phases.len() * PHASE_BYTES).unwrap_or(u32::MAX)
    }

    /// Splits a traced response's payload into the answer and its phases.
    ///
    /// # Errors
    /// [`DecodeError::Trailer`] where the trailer does not fit.
    pub fn split(payload: &[u8], trailer: u32) -> Result<(&[u8], Vec<Self>), DecodeError> {
        let bytes = trailer as usize;
        if bytes > payload.len() || !bytes.is_multiple_of(PHASE_BYTES) {
            return Err(DecodeError::Trailer(trailer));
        }
        let (answer, tail) = payload.split_at(payload.len() - bytes);
        let phases = tail
            .chunks_exact(PHASE_BYTES)
            .map(|c| Self {
                phase: u16::from_le_bytes([c[0], c[1]]),
                nanoseconds: u64::from_le_bytes([c[4], c[5], c[6], c[7], c[8], c[9], c[10], c[11]]),
            })
            .collect();
        Ok((answer, phases))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire() {
        let header = Header {
            kind: Kind::Response,
            flags: flags::TRACE,
            status: 110,
            session: u64::MAX - 1,
            tag: 1 << 40,
            file: 7,
            length: 3,
        };
        let mut message = header.encode().to_vec();
        message.extend_from_slice(b"abc");
        assert_eq!(Header::decode(&message), Ok((header, &b"abc"[..])));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let good = Header::new(Kind::Close).encode();
        assert_eq!(Header::decode(&good[..31]), Err(DecodeError::Short(31)));
        let mut bad = good;
        bad[0] = 99;
        assert_eq!(Header::decode(&bad), Err(DecodeError::UnknownKind(99)));
        let mut bad = good;
        bad[3] = 0x80;
        assert_eq!(Header::decode(&bad), Err(DecodeError::UnknownFlags(0x8000)));
        let mut bad = good;
        bad[28] = 5;
        assert_eq!(Header::decode(&bad), Err(DecodeError::Length { said: 5, found: 0 }));
    }

    #[test]
    fn a_trace_survives_the_wire_and_a_wrong_trailer_does_not() {
        let phases = [Phase { phase: 1, nanoseconds: 5 }, Phase { phase: 2, nanoseconds: u64::MAX }];
        let mut payload = b"answer".to_vec();
        let trailer = Phase::append(&phases, &mut payload);
        assert_eq!(Phase::split(&payload, trailer), Ok((&b"answer"[..], phases.to_vec())));
        assert_eq!(Phase::split(&payload, 13), Err(DecodeError::Trailer(13)));
        assert_eq!(Phase::split(&payload, 1200), Err(DecodeError::Trailer(1200)));
    }
}
