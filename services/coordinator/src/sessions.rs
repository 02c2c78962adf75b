//! Open files, and what is remembered of each.

use coordination::{HolderId, SessionId};

/// An open file.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) holder: HolderId,
    pub(crate) what: What,
}

/// The object that an open file is open on.
#[derive(Debug)]
pub(crate) enum What {
    /// A key.
    Key(OpenKey),
    /// A lock that is held, or waited for.
    Lock(OpenLock),
    /// A lock that is open for writing only, so that it is not asked for, or one that is lost.
    Idle,
    /// `ctl`.
    Commands {
        /// Whether the consumer has what brings its keys back.
        sealed: bool,
    },
    /// `watch`.
    Watch(OpenWatch),
    /// A barrier, for reading.
    Barrier(OpenBarrier),
    /// A queue, for writing alone.
    Producer {
        path: String,
        /// Whether a push fails where there is no room.
        nonblock: bool,
    },
    /// A queue, for reading and writing.
    Consumer(OpenQueue),
}

/// A key that is open.
#[derive(Debug, Default)]
pub(crate) struct OpenKey {
    /// The value as it was read from its beginning, so that a value that changes meanwhile is not
    /// read half and half.
    pub(crate) read: Option<Vec<u8>>,
    /// The revision of what was read, or written.
    pub(crate) revision: u64,
    /// The bytes written through this open file so far: what follows goes on with them.
    pub(crate) written: Vec<u8>,
    /// Whether every write goes to the end.
    pub(crate) appends: bool,
    /// The revision that the next write replaces, if one is given.
    pub(crate) expected: Option<u64>,
}

/// A lock that is open for reading.
#[derive(Debug)]
pub(crate) struct OpenLock {
    pub(crate) path: String,
    /// Where it is held.
    pub(crate) token: Option<u64>,
    /// Whether the reader has been sent the token.
    pub(crate) told: bool,
}

/// A barrier that is open for reading.
#[derive(Debug)]
pub(crate) struct OpenBarrier {
    pub(crate) path: String,
    /// Whether it has arrived: it does so once.
    pub(crate) arrived: bool,
    /// The generation that it has passed and has not been told of.
    pub(crate) passed: Option<u64>,
}

/// A queue that is open for reading and writing.
#[derive(Debug)]
pub(crate) struct OpenQueue {
    pub(crate) path: String,
    /// Whether it stands in line, or has an item.
    pub(crate) asked: bool,
    /// The item that it has, by number.
    pub(crate) item: Option<u64>,
    /// Whether the reader has been sent the item.
    pub(crate) told: bool,
}

/// `watch`, open.
#[derive(Debug)]
pub(crate) struct OpenWatch {
    pub(crate) after: u64,
    /// Whether the reader knows from where on it is told.
    pub(crate) begun: bool,
    /// Only of what begins so.
    pub(crate) prefix: String,
}
