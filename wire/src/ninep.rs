//! 9P2000.L: what clients of file trees ask, and what they are answered (`docs/spec/ninep.md`).
//!
//! Source: intro(5) of Plan 9, and `include/net/9p/9p.h` of Linux with diod's page on the protocol
//! for the messages of the `.L` dialect. Strings are bytes: names of files need not be UTF-8.

use thiserror::Error;

/// The version that is spoken.
pub const VERSION: &[u8] = b"9P2000.L";
/// Bytes before the body of each message: size, type, tag.
pub const HEAD_BYTES: usize = 7;
/// Most bytes around the data of `Rread` and `Twrite` (`P9_IOHDRSZ`).
pub const TRANSFER_HEAD_BYTES: u32 = 24;
/// Most names of one walk (`P9_MAXWELEM`).
pub const WALK_MAX: usize = 16;
/// The tag of `Tversion`, and no other.
pub const NO_TAG: u16 = u16::MAX;
/// Bytes of a [`Qid`].
pub const QID_BYTES: usize = 13;
/// Fields of `Rgetattr` that are always there: those of stat(2) (`P9_STATS_BASIC`).
pub const ATTRIBUTES_BASIC: u64 = 0x7ff;
/// `Tunlinkat`: a folder is removed (`AT_REMOVEDIR`).
pub const REMOVE_FOLDER: u32 = 0x200;

/// Bits of `Tsetattr`'s `valid`.
pub mod set {
    /// `mode`.
    pub const MODE: u32 = 1;
    /// `uid`.
    pub const UID: u32 = 1 << 1;
    /// `gid`.
    pub const GID: u32 = 1 << 2;
    /// `size`.
    pub const SIZE: u32 = 1 << 3;
    /// The time of access is set, to now without [`ACCESSED_SAID`].
    pub const ACCESSED: u32 = 1 << 4;
    /// The time of change is set, to now without [`CHANGED_SAID`].
    pub const CHANGED: u32 = 1 << 5;
    /// `atime` says it.
    pub const ACCESSED_SAID: u32 = 1 << 7;
    /// `mtime` says it.
    pub const CHANGED_SAID: u32 = 1 << 8;
}

/// Numbers of `Tlock` and its answer.
pub mod lock {
    /// `type`: excludes who would write.
    pub const SHARED: u8 = 0;
    /// `type`: excludes all others.
    pub const EXCLUSIVE: u8 = 1;
    /// `type`: no lock.
    pub const NONE: u8 = 2;
    /// Flag: the request waits for the lock.
    pub const WAIT: u32 = 1;
    /// Status: it is done.
    pub const DONE: u8 = 0;
    /// Status: another owner is in the way.
    pub const HELD: u8 = 1;
}

/// Numbers of the messages; an answer has the number after its request's.
mod number {
    pub(super) const LERROR: u8 = 7;
    pub(super) const STATFS: u8 = 8;
    pub(super) const LOPEN: u8 = 12;
    pub(super) const LCREATE: u8 = 14;
    pub(super) const SYMLINK: u8 = 16;
    pub(super) const MKNOD: u8 = 18;
    pub(super) const RENAME: u8 = 20;
    pub(super) const READLINK: u8 = 22;
    pub(super) const GETATTR: u8 = 24;
    pub(super) const SETATTR: u8 = 26;
    pub(super) const XATTRWALK: u8 = 30;
    pub(super) const XATTRCREATE: u8 = 32;
    pub(super) const READDIR: u8 = 40;
    pub(super) const FSYNC: u8 = 50;
    pub(super) const LOCK: u8 = 52;
    pub(super) const GETLOCK: u8 = 54;
    pub(super) const LINK: u8 = 70;
    pub(super) const MKDIR: u8 = 72;
    pub(super) const RENAMEAT: u8 = 74;
    pub(super) const UNLINKAT: u8 = 76;
    pub(super) const VERSION: u8 = 100;
    pub(super) const AUTH: u8 = 102;
    pub(super) const ATTACH: u8 = 104;
    pub(super) const FLUSH: u8 = 108;
    pub(super) const WALK: u8 = 110;
    pub(super) const READ: u8 = 116;
    pub(super) const WRITE: u8 = 118;
    pub(super) const CLUNK: u8 = 120;
    pub(super) const REMOVE: u8 = 122;
}

/// Why bytes are no message of 9P2000.L. Its connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NinepError {
    /// The size that a message begins with is less than its head, or more than was agreed.
    #[error("a message of {size} bytes, where {HEAD_BYTES} to {most} were agreed")]
    Size {
        /// The size in its head.
        size: u32,
        /// The size that was agreed.
        most: u32,
    },
    /// No request has this number.
    #[error("{0} is no request of 9P2000.L")]
    Number(u8),
    /// Fields go beyond the message, or bytes are left after them.
    #[error("message {number} has {bytes} bytes, which its fields do not fill")]
    Fields {
        /// Its number.
        number: u8,
        /// Bytes of its body.
        bytes: usize,
    },
    /// A walk of more names than one may have.
    #[error("a walk of {0} names, of which there are {WALK_MAX} at the most")]
    Walk(u16),
}

/// A node as a client sees it: its kind and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qid {
    /// Whether it is a folder.
    pub folder: bool,
    /// Whether it is a symbolic link.
    pub link: bool,
    /// The node's number.
    pub path: u64,
}

impl Qid {
    fn put(self, out: &mut Vec<u8>) {
        out.push(if self.folder { 0x80 } else { 0 } | if self.link { 0x02 } else { 0 });
        // Version 0: nothing of it may be kept (`docs/spec/ninep.md`).
        out.extend_from_slice(&0_u32.to_le_bytes());
        out.extend_from_slice(&self.path.to_le_bytes());
    }
}

/// A lock of a record: the fields of `Tlock`, `Tgetlock` and `Rgetlock`. Nobody has checked them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLock<'a> {
    /// [`lock::SHARED`], [`lock::EXCLUSIVE`] or [`lock::NONE`].
    pub mode: u8,
    /// First byte.
    pub start: u64,
    /// How many bytes; 0: to the end of the file.
    pub length: u64,
    /// The process of the owner, by its client's count.
    pub process: u32,
    /// The client's name for itself.
    pub client: &'a [u8],
}

/// Seconds and nanoseconds.
pub type Time = (u64, u64);

/// A request. Names are as they came: nobody has checked them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the names of the protocol's pages")]
pub enum Request<'a> {
    Version { msize: u32, version: &'a [u8] },
    Auth,
    Attach { fid: u32, aname: &'a [u8] },
    Flush { old: u16 },
    Walk { fid: u32, new: u32, names: Vec<&'a [u8]> },
    Read { fid: u32, offset: u64, count: u32 },
    Write { fid: u32, offset: u64, data: &'a [u8] },
    Clunk { fid: u32 },
    Remove { fid: u32 },
    Statfs { fid: u32 },
    Open { fid: u32, flags: u32 },
    Create { fid: u32, name: &'a [u8], flags: u32, mode: u32 },
    Symlink { fid: u32, name: &'a [u8], target: &'a [u8] },
    Mknod { fid: u32, name: &'a [u8], mode: u32 },
    Rename { fid: u32, folder: u32, name: &'a [u8] },
    Readlink { fid: u32 },
    Getattr { fid: u32 },
    Setattr { fid: u32, valid: u32, mode: u32, uid: u32, gid: u32, size: u64, accessed: Time, changed: Time },
    XattrWalk { fid: u32, new: u32, name: &'a [u8] },
    XattrCreate { fid: u32, name: &'a [u8], size: u64, flags: u32 },
    Readdir { fid: u32, offset: u64, count: u32 },
    Fsync { fid: u32 },
    Lock { fid: u32, flags: u32, lock: RecordLock<'a> },
    Getlock { fid: u32, lock: RecordLock<'a> },
    Link { folder: u32, fid: u32, name: &'a [u8] },
    Mkdir { folder: u32, name: &'a [u8], mode: u32 },
    Renameat { from: u32, name: &'a [u8], to: u32, new_name: &'a [u8] },
    Unlinkat { folder: u32, name: &'a [u8], flags: u32 },
}

/// Takes fields off the front of a body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.bytes(length.into())
    }

    /// All of a lock but its mode, which has come before.
    fn lock(&mut self, mode: u8) -> Option<RecordLock<'a>> {
        let (start, length, process, client) = (self.u64()?, self.u64()?, self.u32()?, self.string()?);
        Some(RecordLock { mode, start, length, process, client })
    }

    fn time(&mut self) -> Option<Time> {
        Some((self.u64()?, self.u64()?))
    }
}

/// The size that a message says at its beginning, head included.
///
/// # Errors
/// [`NinepError::Size`].
pub fn size(first: [u8; 4], most: u32) -> Result<usize, NinepError> {
    let size = u32::from_le_bytes(first);
    if size < HEAD_BYTES as u32 || size > most {
        return Err(NinepError::Size { size, most });
    }
    Ok(size as usize)
}

impl<'a> Request<'a> {
    /// Reads one whole message: its tag and what it asks.
    ///
    /// # Errors
    /// [`NinepError`].
    pub fn decode(message: &'a [u8]) -> Result<(u16, Self), NinepError> {
        let mut fields = Fields(message);
        let head = |fields: &mut Fields<'a>| Some((fields.u32()?, fields.array::<1>()?[0], fields.u16()?));
        let Some((size, number, tag)) = head(&mut fields) else {
            return Err(NinepError::Size { size: message.len() as u32, most: u32::MAX });
        };
        if size as usize != message.len() {
            return Err(NinepError::Size { size, most: message.len() as u32 });
        }
        let bytes = fields.0.len();
        let request = if number == number::WALK { walk(&mut fields)? } else { body(number, &mut fields)? };
        match request {
            Some(request) if fields.0.is_empty() => Ok((tag, request)),
            _ => Err(NinepError::Fields { number, bytes }),
        }
    }
}

fn walk<'a>(fields: &mut Fields<'a>) -> Result<Option<Request<'a>>, NinepError> {
    let (Some(fid), Some(new), Some(count)) = (fields.u32(), fields.u32(), fields.u16()) else {
        return Ok(None);
    };
    if usize::from(count) > WALK_MAX {
        return Err(NinepError::Walk(count));
    }
    let names: Option<Vec<&[u8]>> = (0..count).map(|_| fields.string()).collect();
    Ok(names.map(|names| Request::Walk { fid, new, names }))
}

/// `None`: the fields go beyond the message.
fn body<'a>(number: u8, f: &mut Fields<'a>) -> Result<Option<Request<'a>>, NinepError> {
    use number::*;
    let take = match number {
        VERSION => |f: &mut Fields<'a>| Some(Request::Version { msize: f.u32()?, version: f.string()? }),
        AUTH => |f: &mut Fields<'a>| {
            f.u32()?;
            f.string()?;
            f.string()?;
            f.u32()?;
            Some(Request::Auth)
        },
        ATTACH => |f: &mut Fields<'a>| {
            let (fid, _afid, _uname, aname, _uid) = (f.u32()?, f.u32()?, f.string()?, f.string()?, f.u32()?);
            Some(Request::Attach { fid, aname })
        },
        FLUSH => |f: &mut Fields<'a>| Some(Request::Flush { old: f.u16()? }),
        READ => |f: &mut Fields<'a>| Some(Request::Read { fid: f.u32()?, offset: f.u64()?, count: f.u32()? }),
        WRITE => |f: &mut Fields<'a>| {
            let (fid, offset, count) = (f.u32()?, f.u64()?, f.u32()?);
            Some(Request::Write { fid, offset, data: f.bytes(count as usize)? })
        },
        CLUNK => |f: &mut Fields<'a>| Some(Request::Clunk { fid: f.u32()? }),
        REMOVE => |f: &mut Fields<'a>| Some(Request::Remove { fid: f.u32()? }),
        STATFS => |f: &mut Fields<'a>| Some(Request::Statfs { fid: f.u32()? }),
        LOPEN => |f: &mut Fields<'a>| Some(Request::Open { fid: f.u32()?, flags: f.u32()? }),
        LCREATE => |f: &mut Fields<'a>| {
            let (fid, name, flags, mode, _gid) = (f.u32()?, f.string()?, f.u32()?, f.u32()?, f.u32()?);
            Some(Request::Create { fid, name, flags, mode })
        },
        SYMLINK => |f: &mut Fields<'a>| {
            let (fid, name, target, _gid) = (f.u32()?, f.string()?, f.string()?, f.u32()?);
            Some(Request::Symlink { fid, name, target })
        },
        MKNOD => |f: &mut Fields<'a>| {
            let (fid, name, mode) = (f.u32()?, f.string()?, f.u32()?);
            f.u32()?;
            f.u32()?;
            f.u32()?;
            Some(Request::Mknod { fid, name, mode })
        },
        RENAME => {
            |f: &mut Fields<'a>| Some(Request::Rename { fid: f.u32()?, folder: f.u32()?, name: f.string()? })
        }
        READLINK => |f: &mut Fields<'a>| Some(Request::Readlink { fid: f.u32()? }),
        GETATTR => |f: &mut Fields<'a>| {
            let (fid, _mask) = (f.u32()?, f.u64()?);
            Some(Request::Getattr { fid })
        },
        SETATTR => |f: &mut Fields<'a>| {
            let (fid, valid, mode, uid) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
            let (gid, size, accessed, changed) = (f.u32()?, f.u64()?, f.time()?, f.time()?);
            Some(Request::Setattr { fid, valid, mode, uid, gid, size, accessed, changed })
        },
        XATTRWALK => {
            |f: &mut Fields<'a>| Some(Request::XattrWalk { fid: f.u32()?, new: f.u32()?, name: f.string()? })
        }
        XATTRCREATE => |f: &mut Fields<'a>| {
            let (fid, name, size, flags) = (f.u32()?, f.string()?, f.u64()?, f.u32()?);
            Some(Request::XattrCreate { fid, name, size, flags })
        },
        READDIR => {
            |f: &mut Fields<'a>| Some(Request::Readdir { fid: f.u32()?, offset: f.u64()?, count: f.u32()? })
        }
        FSYNC => |f: &mut Fields<'a>| {
            let fid = f.u32()?;
            // `datasync`, which older clients leave out.
            if !f.0.is_empty() {
                f.u32()?;
            }
            Some(Request::Fsync { fid })
        },
        LOCK => |f: &mut Fields<'a>| {
            let (fid, [mode], flags) = (f.u32()?, f.array::<1>()?, f.u32()?);
            Some(Request::Lock { fid, flags, lock: f.lock(mode)? })
        },
        GETLOCK => |f: &mut Fields<'a>| {
            let (fid, [mode]) = (f.u32()?, f.array::<1>()?);
            Some(Request::Getlock { fid, lock: f.lock(mode)? })
        },
        LINK => {
            |f: &mut Fields<'a>| Some(Request::Link { folder: f.u32()?, fid: f.u32()?, name: f.string()? })
        }
        MKDIR => |f: &mut Fields<'a>| {
            let (folder, name, mode, _gid) = (f.u32()?, f.string()?, f.u32()?, f.u32()?);
            Some(Request::Mkdir { folder, name, mode })
        },
        RENAMEAT => |f: &mut Fields<'a>| {
            let (from, name, to, new_name) = (f.u32()?, f.string()?, f.u32()?, f.string()?);
            Some(Request::Renameat { from, name, to, new_name })
        },
        UNLINKAT => |f: &mut Fields<'a>| {
            Some(Request::Unlinkat { folder: f.u32()?, name: f.string()?, flags: f.u32()? })
        },
        _ => return Err(NinepError::Number(number)),
    };
    let take: fn(&mut Fields<'a>) -> Option<Request<'a>> = take;
    Ok(take(f))
}

/// The attributes that stat(2) shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the names of stat(2)")]
pub struct Stat {
    pub qid: Qid,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u64,
    pub size: u64,
    pub block_bytes: u64,
    pub blocks: u64,
    pub accessed: Time,
    pub changed: Time,
    pub status_changed: Time,
}

/// The attributes that statfs(2) shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the names of statfs(2)")]
pub struct Statfs {
    pub kind: u32,
    pub block_bytes: u32,
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
    pub id: u64,
    pub name_bytes: u32,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the names of the protocol's pages")]
pub enum Reply {
    Error(u32),
    Version {
        msize: u32,
        version: Vec<u8>,
    },
    Attach(Qid),
    Flush,
    Walk(Vec<Qid>),
    Read(Vec<u8>),
    Write(u32),
    Clunk,
    Remove,
    Statfs(Statfs),
    Open(Qid),
    Create(Qid),
    Mknod(Qid),
    Symlink(Qid),
    Readlink(Vec<u8>),
    Rename,
    Getattr(Stat),
    Setattr,
    /// Entries, each put by [`put_entry`].
    Readdir(Vec<u8>),
    Fsync,
    Link,
    Mkdir(Qid),
    Renameat,
    Unlinkat,
    /// Bytes that may be read of the value, or of the list.
    XattrWalk(u64),
    XattrCreate,
    /// [`lock::DONE`] or [`lock::HELD`].
    Lock(u8),
    /// The lock that is in the way, of which no client is told; or the one that was asked for, with
    /// [`lock::NONE`].
    Getlock {
        mode: u8,
        start: u64,
        length: u64,
        process: u32,
    },
}

/// Appends an entry of a listing; false, and nothing is appended, where it would go beyond `most`
/// bytes.
pub fn put_entry(listing: &mut Vec<u8>, most: usize, qid: Qid, offset: u64, name: &[u8]) -> bool {
    let Ok(length) = u16::try_from(name.len()) else { return false };
    if listing.len() + QID_BYTES + 8 + 1 + 2 + name.len() > most {
        return false;
    }
    qid.put(listing);
    listing.extend_from_slice(&offset.to_le_bytes());
    // DT_DIR, DT_LNK and DT_REG.
    listing.push(match (qid.folder, qid.link) {
        (true, _) => 4,
        (false, true) => 10,
        (false, false) => 8,
    });
    listing.extend_from_slice(&length.to_le_bytes());
    listing.extend_from_slice(name);
    true
}

impl Reply {
    fn number(&self) -> u8 {
        let request = match self {
            Self::Error(_) => return number::LERROR,
            Self::Version { .. } => number::VERSION,
            Self::Attach(_) => number::ATTACH,
            Self::Flush => number::FLUSH,
            Self::Walk(_) => number::WALK,
            Self::Read(_) => number::READ,
            Self::Write(_) => number::WRITE,
            Self::Clunk => number::CLUNK,
            Self::Remove => number::REMOVE,
            Self::Statfs(_) => number::STATFS,
            Self::Open(_) => number::LOPEN,
            Self::Create(_) => number::LCREATE,
            Self::Mknod(_) => number::MKNOD,
            Self::Symlink(_) => number::SYMLINK,
            Self::Readlink(_) => number::READLINK,
            Self::Rename => number::RENAME,
            Self::Getattr(_) => number::GETATTR,
            Self::Setattr => number::SETATTR,
            Self::Readdir(_) => number::READDIR,
            Self::Fsync => number::FSYNC,
            Self::Link => number::LINK,
            Self::Mkdir(_) => number::MKDIR,
            Self::Renameat => number::RENAMEAT,
            Self::Unlinkat => number::UNLINKAT,
            Self::XattrWalk(_) => number::XATTRWALK,
            Self::XattrCreate => number::XATTRCREATE,
            Self::Lock(_) => number::LOCK,
            Self::Getlock { .. } => number::GETLOCK,
        };
        request + 1
    }

    /// Appends the message.
    pub fn encode(&self, tag: u16, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.push(self.number());
        out.extend_from_slice(&tag.to_le_bytes());
        self.body(out);
        let size = u32::try_from(out.len() - start).unwrap_or(u32::MAX).to_le_bytes();
        if let Some(place) = out.get_mut(start..start + 4) {
            place.copy_from_slice(&size);
        }
    }

    fn body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Error(errno) => out.extend_from_slice(&errno.to_le_bytes()),
            Self::Version { msize, version } => {
                out.extend_from_slice(&msize.to_le_bytes());
                out.extend_from_slice(&(version.len() as u16).to_le_bytes());
                out.extend_from_slice(version);
            }
            Self::Attach(qid) | Self::Mknod(qid) | Self::Symlink(qid) | Self::Mkdir(qid) => qid.put(out),
            Self::Readlink(target) => {
                out.extend_from_slice(&(target.len() as u16).to_le_bytes());
                out.extend_from_slice(target);
            }
            Self::Walk(qids) => {
                out.extend_from_slice(&(qids.len() as u16).to_le_bytes());
                qids.iter().for_each(|qid| qid.put(out));
            }
            Self::Read(data) | Self::Readdir(data) => {
                out.extend_from_slice(&(data.len() as u32).to_le_bytes());
                out.extend_from_slice(data);
            }
            Self::Write(count) => out.extend_from_slice(&count.to_le_bytes()),
            Self::Open(qid) | Self::Create(qid) => {
                qid.put(out);
                // `iounit` 0: as much as a message holds.
                out.extend_from_slice(&0_u32.to_le_bytes());
            }
            Self::Getattr(stat) => stat.put(out),
            Self::Statfs(statfs) => statfs.put(out),
            Self::Flush | Self::Clunk | Self::Remove | Self::Rename | Self::Setattr => {}
            Self::Fsync | Self::Link | Self::Renameat | Self::Unlinkat | Self::XattrCreate => {}
            Self::XattrWalk(size) => out.extend_from_slice(&size.to_le_bytes()),
            Self::Lock(status) => out.push(*status),
            Self::Getlock { mode, start, length, process } => {
                out.push(*mode);
                out.extend_from_slice(&start.to_le_bytes());
                out.extend_from_slice(&length.to_le_bytes());
                out.extend_from_slice(&process.to_le_bytes());
                out.extend_from_slice(&0_u16.to_le_bytes());
            }
        }
    }
}

impl Stat {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&ATTRIBUTES_BASIC.to_le_bytes());
        self.qid.put(out);
        for number in [self.mode, self.uid, self.gid] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        // A device's number: none of the files is one.
        for number in [self.links, 0, self.size, self.block_bytes, self.blocks] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        // When it was made, its generation and its version are not said.
        for (seconds, nanoseconds) in [self.accessed, self.changed, self.status_changed, (0, 0), (0, 0)] {
            out.extend_from_slice(&seconds.to_le_bytes());
            out.extend_from_slice(&nanoseconds.to_le_bytes());
        }
    }
}

impl Statfs {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.kind.to_le_bytes());
        out.extend_from_slice(&self.block_bytes.to_le_bytes());
        for number in [self.blocks, self.free, self.available, self.files, self.files_free, self.id] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.name_bytes.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u8, body: &[u8]) -> Vec<u8> {
        let size = (HEAD_BYTES + body.len()) as u32;
        [&size.to_le_bytes()[..], &[number, 5, 0], body].concat()
    }

    #[test]
    fn messages_are_read_field_by_field() {
        let version = b"\x15\0\0\0\x64\xff\xff\x18\0\x02\0\x08\09P2000.L";
        let read = Request::decode(version);
        assert_eq!(read, Ok((NO_TAG, Request::Version { msize: 0x2_0018, version: VERSION })));
        let body = b"\x01\0\0\0\x02\0\0\0\x02\0\x03\0dns\x05\0query";
        let walk = message(number::WALK, body);
        let names = vec![&b"dns"[..], b"query"];
        assert_eq!(Request::decode(&walk), Ok((5, Request::Walk { fid: 1, new: 2, names })));
        let write = message(number::WRITE, b"\x01\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0abc");
        assert_eq!(Request::decode(&write), Ok((5, Request::Write { fid: 1, offset: 2, data: b"abc" })));
        let body = b"\x01\0\0\0\x01\x01\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\x01\0c";
        let owned = message(number::LOCK, body);
        let wanted = RecordLock { mode: lock::EXCLUSIVE, start: 2, length: 3, process: 4, client: b"c" };
        assert_eq!(
            Request::decode(&owned),
            Ok((5, Request::Lock { fid: 1, flags: lock::WAIT, lock: wanted }))
        );
    }

    #[test]
    fn what_is_no_message_is_refused_by_name() {
        assert_eq!(size([6, 0, 0, 0], 100), Err(NinepError::Size { size: 6, most: 100 }));
        assert_eq!(size([101, 0, 0, 0], 100), Err(NinepError::Size { size: 101, most: 100 }));
        assert_eq!(Request::decode(&message(99, b"")), Err(NinepError::Number(99)));
        for (number, body) in [
            (number::CLUNK, &b"\x01\0\0"[..]),
            (number::CLUNK, b"\x01\0\0\0\0"),
            (number::WRITE, b"\x01\0\0\0\x02\0\0\0\0\0\0\0\xff\xff\xff\xffabc"),
            (number::WALK, b"\x01\0\0\0\x02\0\0\0\x02\0\x03\0dns"),
            (number::VERSION, b"\x18\0\x02\0\xff\xff9P"),
        ] {
            let message = message(number, body);
            let refused = Request::decode(&message);
            assert_eq!(refused, Err(NinepError::Fields { number, bytes: body.len() }));
        }
        let walk = message(number::WALK, b"\x01\0\0\0\x02\0\0\0\x11\0");
        assert_eq!(Request::decode(&walk), Err(NinepError::Walk(17)));
    }

    #[test]
    fn replies_have_the_sizes_of_the_protocol() {
        let qid = Qid { folder: true, link: false, path: 1 };
        let zero = (0, 0);
        let stat = Stat {
            qid,
            mode: 0o040_555,
            uid: 0,
            gid: 0,
            links: 2,
            size: 0,
            block_bytes: 4096,
            blocks: 0,
            accessed: zero,
            changed: zero,
            status_changed: zero,
        };
        for (reply, size, number) in [
            (Reply::Getattr(stat), 7 + 153, 25),
            (Reply::Open(qid), 7 + 17, 13),
            (Reply::Error(2), 11, 7),
            (Reply::Walk(vec![qid; 2]), 7 + 2 + 26, 111),
            (Reply::Lock(lock::HELD), 8, 53),
            (Reply::Getlock { mode: lock::NONE, start: 0, length: 0, process: 0 }, 7 + 23, 55),
        ] {
            let mut out = Vec::new();
            reply.encode(7, &mut out);
            assert_eq!((out.len(), out[0] as usize, out[4], out[5]), (size, size, number, 7));
        }
        let mut listing = Vec::new();
        assert!(put_entry(&mut listing, 27, qid, 3, b"abc"));
        assert!(!put_entry(&mut listing, 50, qid, 4, b"def"));
        assert_eq!(listing.len(), 27);
    }
}
