//! The decisions of a coordination service: its keys, the holders of locks and their order,
//! barriers, queues and who has which item, and the records that are written.
//! `docs/spec/coordination.md` has the rules.
//!
//! [`State`] is everything. It is changed at once, and says what is to be committed
//! ([`State::take_commit`]); whoever runs it answers nobody before that commit is made. A commit
//! names its writer in the *head*, which every commit replaces if it is as the writer knows it: of
//! two servers one is superseded, and has answered nobody since. (Fencing by compare-and-swap on
//! one record; the tokens of locks are revisions of that record's counter, as in Burrows, The
//! Chubby lock service, OSDI 2006, section 2.4, where they are called sequencers.)
//!
//! Nothing here waits, or knows a clock: time comes in, in milliseconds that only grow.

mod holders;
mod names;
mod node;
mod record;
mod state;

pub use holders::{Asked, Grant, HolderId, SessionId};
pub use names::{Root, check_path, parent_of, root_of};
pub use node::{Kind, Node};
pub use record::{Commit, Head};
pub use state::{Event, Expect, Place, PushId, Pushed, State};

use thiserror::Error;

/// Longest value of a key, in bytes. `wire::coordination::MAX_VALUE_BYTES` is the same.
pub const MAX_VALUE_BYTES: usize = 32 * 1024;
/// Longest path, in bytes. `wire::coordination::MAX_PATH_BYTES` is the same.
pub const MAX_PATH_BYTES: usize = 255;
/// Most keys, folders, locks and semaphores together: half of what the daemon keeps for a service.
pub const MAX_NODES: usize = 8 * 1024;
/// Most bytes of all values and paths: half of what the daemon keeps for a service.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;
/// Most sessions that wait for one lock: more are refused, because the last of them would wait for
/// long.
pub const MAX_WAITERS_PER_LOCK: usize = 1024;
/// Most sessions that wait, for whatever: some hundred bytes each.
pub const MAX_WAITERS: usize = 4096;
/// Most holders of one semaphore at a time: all of them stand in one record, which has to fit into
/// a packet.
pub const MAX_HOLDERS: usize = 256;
/// Most parties of a barrier, and most open files of one that have arrived, passed ones included:
/// all of them stand in one record.
pub const MAX_PARTIES: usize = MAX_HOLDERS;
/// Most items of one queue: half of all names.
pub const MAX_ITEMS: usize = MAX_NODES / 2;
/// Items that fit into a queue of which nobody has said how many.
pub const DEFAULT_ITEMS: u32 = 1024;
/// Most pushes that wait for room, in all queues: each has a value with it, so 8 MiB of memory.
pub const MAX_PUSHES: usize = 256;
/// Most things that one session holds: each is one change when the session ends.
pub const MAX_HELD: usize = 1024;

/// Why something is not done. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// There is nothing of this name.
    #[error("there is nothing of this name")]
    Missing,
    /// There is something of this name.
    #[error("there is something of this name")]
    Exists,
    /// It is not as the writer believed.
    #[error("it has been changed: its revision is another one")]
    Stale,
    /// No possible name.
    #[error(
        "a name has letters, digits and signs, without white space and control characters, and is neither `.` nor `..`"
    )]
    Name,
    /// The path is too long.
    #[error("a path has at most {MAX_PATH_BYTES} bytes")]
    LongPath,
    /// The value is too long.
    #[error(
        "a value has at most {MAX_VALUE_BYTES} bytes: put large things into a volume, and a key beside it"
    )]
    LongValue,
    /// There is no room.
    #[error("the service has {MAX_NODES} names and items, or {MAX_BYTES} bytes: remove some")]
    Full,
    /// It is a folder.
    #[error("it is a folder")]
    IsFolder,
    /// A part of the path is no folder.
    #[error("it is no folder")]
    NotFolder,
    /// The folder is not empty.
    #[error("the folder is not empty")]
    NotEmpty,
    /// Somebody holds it, or waits for it.
    #[error("somebody holds it, or waits for it")]
    Busy,
    /// Somebody else holds it now.
    #[error("somebody else holds it now")]
    Held,
    /// Too many wait.
    #[error("{MAX_WAITERS_PER_LOCK} wait for it, or {MAX_WAITERS} for everything")]
    Crowded,
    /// The session holds too much.
    #[error("one open file holds at most {MAX_HELD} things")]
    Greedy,
    /// It is not that kind of thing.
    #[error("it is not that kind of thing")]
    Unfit,
    /// The lock is not held any more: its time was over.
    #[error("it is not held any more: its holder was not heard of in time")]
    Lost,
}
