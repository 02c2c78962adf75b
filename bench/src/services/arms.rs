//! The ways that are compared, and the work that is done in each.

use crate::channel::plan::size;
use crate::results::Condition;
use serde::{Deserialize, Serialize};

/// A way to a service, or to what others have in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// Files below `/srv` in a container.
    Fuse,
    /// The container's socket of 9P2000.L.
    Ninep,
    /// The service protocol over a channel.
    Direct,
    /// A file system in user space by libfuse: `qemu-storage-daemon` exports one file.
    Libfuse,
    /// diod, a server of 9P2000.L.
    Diod,
    /// A file of the same tmpfs.
    Plain,
    /// Two threads and pipes.
    Pipe,
    /// The limit: memory that is copied, or a cache line that goes there and back.
    Memory,
}

/// All of them.
pub const ARMS: [Arm; 8] =
    [Arm::Fuse, Arm::Ninep, Arm::Direct, Arm::Libfuse, Arm::Diod, Arm::Plain, Arm::Pipe, Arm::Memory];

impl Arm {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fuse => "fuse",
            Self::Ninep => "9p",
            Self::Direct => "direct",
            Self::Libfuse => "libfuse",
            Self::Diod => "diod",
            Self::Plain => "plain file",
            Self::Pipe => "pipe",
            Self::Memory => "memory",
        }
    }

    /// Whether its client is in the container.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Fuse | Self::Ninep | Self::Direct)
    }

    /// Whether there is such work in it.
    #[must_use]
    pub fn does(self, work: Work) -> bool {
        match self {
            Self::Fuse | Self::Ninep | Self::Direct => true,
            // Its file system is one file.
            Self::Libfuse => matches!(work, Work::Open | Work::Stat | Work::Read(_) | Work::Write(_)),
            Self::Diod | Self::Plain => {
                matches!(work, Work::Open | Work::Stat | Work::Read(_) | Work::Write(_) | Work::List)
            }
            Self::Pipe => matches!(work, Work::Call | Work::Stream(_) | Work::Wake),
            Self::Memory => matches!(work, Work::Read(_) | Work::Write(_) | Work::Call),
        }
    }
}

/// The work of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A file is opened and closed.
    Open,
    /// The attributes of a file, by its name.
    Stat,
    /// So many bytes are read at the beginning of an open file.
    Read(usize),
    /// So many bytes are written there.
    Write(usize),
    /// All names of a folder of [`LISTED`].
    List,
    /// A request of [`REQUEST_BYTES`] and its answer.
    Call,
    /// Records of so many bytes, as fast as they come.
    Stream(usize),
    /// From the moment at which a record is published to its reader, who sleeps.
    Wake,
}

/// Files of the folder that is listed.
pub const LISTED: usize = 100;
/// Bytes of a request, its newline included.
pub const REQUEST_BYTES: usize = 64;
/// Bytes of the file that is read and written.
pub const FILE_BYTES: usize = 1 << 20;

/// All of it.
pub const WORKS: [Work; 15] = [
    Work::Open,
    Work::Stat,
    Work::Read(64),
    Work::Read(4 << 10),
    Work::Read(64 << 10),
    Work::Read(1 << 20),
    Work::Write(64),
    Work::Write(4 << 10),
    Work::Write(64 << 10),
    Work::Write(1 << 20),
    Work::List,
    Work::Call,
    Work::Stream(64),
    Work::Stream(4 << 10),
    Work::Wake,
];

impl Work {
    /// Bytes that one operation moves; 0 where that says nothing.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Read(bytes) | Self::Write(bytes) | Self::Stream(bytes) => bytes,
            Self::Open | Self::Stat | Self::List | Self::Call | Self::Wake => 0,
        }
    }

    /// As a condition of the tables.
    #[must_use]
    pub fn condition(self) -> Condition {
        let name = match self {
            Self::Open => "open and close",
            Self::Stat => "stat",
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::List => "list 100 names",
            Self::Call => "request and answer of 64 B",
            Self::Stream(_) => "stream",
            Self::Wake => "wake-up of a reader",
        };
        let mut words = vec![("work", name.to_owned())];
        if self.bytes() > 0 {
            words.push(("bytes", size(self.bytes())));
        }
        Condition(words)
    }
}
