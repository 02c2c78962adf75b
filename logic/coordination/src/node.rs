//! The things that have a name: a folder, a key, a lock, a semaphore.

use crate::holders::{Holder, HolderId};
use serde::{Deserialize, Serialize};

/// The kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A folder of keys.
    Folder,
    /// A key with a value.
    Key,
    /// A lock, or a semaphore: so many may hold it at a time.
    Lock,
}

/// Something with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node's kind.
    pub kind: Kind,
    /// Its number, below 2^24, which no other node has.
    pub serial: u32,
    /// When it was changed last, by the count of changes.
    pub revision: u64,
    /// The value of a key.
    pub value: Vec<u8>,
    /// The holder whose session bounds the key's life; `None`: it is not bound to one.
    pub owner: Option<HolderId>,
    /// How many may hold a lock.
    pub count: u32,
    /// The holders, in the order in which they were granted.
    pub(crate) holders: Vec<Holder>,
}

impl Node {
    pub(crate) fn new(kind: Kind, serial: u32, revision: u64) -> Self {
        Self { kind, serial, revision, value: Vec::new(), owner: None, count: 1, holders: Vec::new() }
    }

    /// Whether one more may hold it.
    pub(crate) fn has_room(&self) -> bool {
        self.holders.len() < self.count as usize
    }

    /// Returns the token and the domain of each holder.
    pub fn held_by(&self) -> impl Iterator<Item = (u64, &str)> {
        self.holders.iter().map(|holder| (holder.token, holder.domain.as_str()))
    }
}
