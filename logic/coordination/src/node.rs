//! Nodes, which have names: a folder, a key, a lock, a semaphore, a barrier, a queue.

use crate::DEFAULT_ITEMS;
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
    /// A barrier: so many pass it together.
    Barrier,
    /// A queue: so many items are in it at the most.
    Queue,
}

/// Something with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its kind.
    pub kind: Kind,
    /// Its number, below 2^24, which no other node has.
    pub serial: u32,
    /// When it was changed last, by the count of changes.
    pub revision: u64,
    /// The value of a key.
    pub value: Vec<u8>,
    /// The session that a key is bound to, and ends with; `None`: it is bound to none.
    pub owner: Option<HolderId>,
    /// How many may hold a lock, pass a barrier together (0: nobody has said so yet), or be in a
    /// queue.
    pub count: u32,
    /// The generation of a barrier that is being waited in; 1 is the first.
    pub generation: u64,
    /// Whether the items of a queue outlive its server.
    pub durable: bool,
    /// Its holders, in the order of the grants; of a barrier those that wait, with the generation
    /// as token, and those that have passed and are still open.
    pub(crate) holders: Vec<Holder>,
}

impl Node {
    pub(crate) fn new(kind: Kind, serial: u32, revision: u64) -> Self {
        let (count, generation) = match kind {
            Kind::Barrier => (0, 1),
            Kind::Queue => (DEFAULT_ITEMS, 0),
            Kind::Folder | Kind::Key | Kind::Lock => (1, 0),
        };
        let (value, holders) = (Vec::new(), Vec::new());
        Self { kind, serial, revision, value, owner: None, count, generation, durable: false, holders }
    }

    /// Whether one more may hold it.
    pub(crate) fn has_room(&self) -> bool {
        self.holders.len() < self.count as usize
    }

    /// Those that wait in a barrier.
    pub(crate) fn arrived(&self) -> impl Iterator<Item = &Holder> {
        self.holders.iter().filter(|holder| holder.token == self.generation)
    }

    /// Returns the domain of each that waits in a barrier.
    pub fn awaited_in(&self) -> impl Iterator<Item = &str> {
        self.arrived().map(|holder| holder.domain.as_str())
    }

    /// Returns its holders: the token and the domain of each.
    pub fn held_by(&self) -> impl Iterator<Item = (u64, &str)> {
        self.holders.iter().map(|holder| (holder.token, holder.domain.as_str()))
    }
}
