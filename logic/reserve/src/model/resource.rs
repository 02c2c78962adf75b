//! A resource, and its place between others.

use std::collections::BTreeSet;
use std::fmt;

/// The number of a resource; none is given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u64);

impl Id {
    pub(super) const NONE: Self = Self(0);

    pub(super) const fn numbered(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// How abstract a resource is: it stands on those of lower levels alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// A resource of the node.
    Node,
    /// A job that runs.
    Job,
    /// A part of a machine.
    Part,
    /// A machine with a promise.
    Machine,
}

/// The kinds of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A virtual task machine.
    Machine,
    /// Jobs that share what their machine has of a processor.
    Team,
    /// A process or a thread.
    Job,
    /// A class of the link.
    Class,
    /// A machine's memory.
    MemoryShare,
    /// A machine's part of the disk.
    DiskShare,
    /// One processor of the node.
    Processor,
    /// The node's link.
    Link,
    /// The node's memory.
    Memory,
    /// The node's disk.
    Disk,
}

impl Kind {
    /// The level of all of that kind.
    pub const fn level(self) -> Level {
        match self {
            Self::Machine => Level::Machine,
            Self::Team | Self::Class | Self::MemoryShare | Self::DiskShare => Level::Part,
            Self::Job => Level::Job,
            Self::Processor | Self::Link | Self::Memory | Self::Disk => Level::Node,
        }
    }

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Team => "team",
            Self::Job => "job",
            Self::Class => "class",
            Self::MemoryShare => "memory share",
            Self::DiskShare => "disk share",
            Self::Processor => "processor",
            Self::Link => "link",
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The kind.
    pub kind: Kind,
    /// The name: of a part, as its machine.
    pub name: String,
    /// The resources that stand on it directly.
    pub above: BTreeSet<Id>,
    /// The resources that it stands on directly.
    pub below: BTreeSet<Id>,
}

impl Resource {
    pub(super) fn new(kind: Kind, name: &str) -> Self {
        Self { kind, name: name.to_owned(), above: BTreeSet::new(), below: BTreeSet::new() }
    }
}
