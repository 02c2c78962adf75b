//! Locks that are held, and by whom.

use crate::Range;

/// The owner of a lock: a process, or an open file. Its number is its party's, and never another
/// owner's of the same party while either has a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// Its party: bounds hold for each.
    pub party: u64,
    /// The party's number of it.
    pub number: u64,
}

/// The two kinds of locks, which do not see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Of fcntl(2): of bytes, joined and split as they are set.
    Record,
    /// Of flock(2): of the whole file, one for each owner.
    Whole,
}

/// How a lock excludes others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Excludes exclusive ones of other owners.
    Shared,
    /// Excludes all of other owners.
    Exclusive,
}

/// A lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    /// Its owner.
    pub owner: Owner,
    /// The kind of lock.
    pub kind: Kind,
    /// Its mode.
    pub mode: Mode,
    /// Its bytes; of [`Kind::Whole`], all.
    pub range: Range,
    /// The open file through which it was set last, by its party's number.
    pub via: u64,
    /// The process that set it last, as its party counts them.
    pub process: u32,
}

impl Held {
    /// Whether a lock of `other` excludes this one.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        self.owner != other.owner
            && self.kind == other.kind
            && (self.mode == Mode::Exclusive || other.mode == Mode::Exclusive)
            && self.range.overlaps(other.range)
    }
}
