//! Everything that one node has promised, and whether it can keep it.

use crate::admission::{AdmitError, Rule};
use crate::network::{Class, Link, LinkError};
use crate::partition::MAX_PROCESSORS;
use crate::table::{Table, TableError};
use crate::task::{MAX_TASKS, Task};
use crate::units::Bytes;
use std::collections::BTreeMap;

/// Most virtual task machines of a node: what one processor may have, on each.
pub const MAX_MACHINES: usize = MAX_TASKS * 4;

/// The capacity of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// How many processors are reserved on, at most [`MAX_PROCESSORS`].
    pub processors: usize,
    /// How each of them decides.
    pub rule: Rule,
    /// Its link.
    pub link: Link,
    /// Its memory for reservations, in bytes.
    pub memory_bytes: u64,
    /// Its disk.
    pub disk: Disk,
}

/// Bandwidth of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Disk {
    /// Bytes per second.
    pub bytes: u64,
    /// Operations per second.
    pub operations: u64,
}

/// The promise to one virtual task machine. The default is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Promise {
    /// A processor, by its number, and what of it.
    pub processor: Option<(usize, Task)>,
    /// A class of the link.
    pub network: Option<Class>,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Disk.
    pub disk: Disk,
}

/// The resources that are only added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Added {
    /// Bytes of memory.
    Memory,
    /// Bytes of the disk in a second.
    DiskBytes,
    /// Operations of the disk in a second.
    DiskOperations,
}

/// The promises of a node, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub(crate) capacity: Capacity,
    pub(crate) promises: BTreeMap<String, Promise>,
    remembered: Remembered,
}

/// The findings of earlier tests about each that has a processor: see [`Rule::still_holds_near`].
/// Nodes that differ only in this are the same.
#[derive(Debug, Clone, Default)]
struct Remembered(BTreeMap<String, u64>);

impl PartialEq for Remembered {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Remembered {}

/// Why promises can't be kept together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// A processor would be late.
    #[error("processor {processor}: {}", tell(cause, names))]
    Processor {
        /// Its number.
        processor: usize,
        /// The machines on it, in the order of the indices in the cause.
        names: Vec<String>,
        /// Why.
        cause: AdmitError,
    },
    /// No such processor.
    #[error("`{name}` is on processor {processor}, and there are {processors}, numbered from 0")]
    NoProcessor {
        /// The name that the promise is for.
        name: String,
        /// The number.
        processor: usize,
        /// How many there are.
        processors: usize,
    },
    /// The link has not enough.
    #[error("network ({}): {cause}", names.join(", "))]
    Network {
        /// The machines with a class, in the order of the indices in the cause.
        names: Vec<String>,
        /// Why.
        cause: LinkError,
    },
    /// Not enough of something that is only added up.
    #[error("{}", tell_sum(*what, *asked, *has))]
    Sum {
        /// Of what.
        what: Added,
        /// The sum.
        asked: u128,
        /// The amount that there is.
        has: u64,
    },
    /// Too many of them.
    #[error("{0} virtual task machines are more than {MAX_MACHINES}, the most of one node")]
    TooMany(usize),
    /// More processors than are known how to handle.
    #[error("{0} processors are more than {MAX_PROCESSORS}, the most of one node")]
    TooManyProcessors(usize),
}

fn tell_sum(what: Added, asked: u128, has: u64) -> String {
    let (has, over) = (u128::from(has), asked.saturating_sub(u128::from(has)));
    let size = |bytes: u128| Bytes(bytes).to_string();
    let (of, asked, has, over) = match what {
        Added::Memory => ("memory", size(asked), size(has), Bytes::at_least(over).to_string()),
        Added::DiskBytes => ("disk, in a second", size(asked), size(has), Bytes::at_least(over).to_string()),
        Added::DiskOperations => {
            let count = |count: u128| format!("{count} operations");
            ("disk, in a second", count(asked), count(has), count(over))
        }
    };
    format!("{of}: {asked} would be promised of {has}; it would do if one asked for {over} less")
}

fn tell(cause: &AdmitError, names: &[String]) -> String {
    match cause {
        AdmitError::Refused(refusal) => {
            let name = |index: usize| format!("`{}`", names.get(index).map_or("?", String::as_str));
            refusal.told(name).to_string()
        }
        other => other.to_string(),
    }
}

impl Node {
    /// A node that has promised nothing.
    ///
    /// # Errors
    /// Where it has more processors than [`MAX_PROCESSORS`].
    pub fn new(capacity: Capacity) -> Result<Self, NodeError> {
        if capacity.processors > MAX_PROCESSORS {
            return Err(NodeError::TooManyProcessors(capacity.processors));
        }
        Ok(Self { capacity, promises: BTreeMap::new(), remembered: Remembered::default() })
    }

    /// The same promises on a node that has something else, where that can keep them.
    ///
    /// # Errors
    /// Where it can't.
    pub fn with_capacity(&self, capacity: Capacity) -> Result<Self, NodeError> {
        let mut other = Self::new(capacity)?;
        other.promises = self.promises.clone();
        other.check_all()?;
        Ok(other)
    }

    /// The capacity.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// The promises, by name.
    pub fn promises(&self) -> impl Iterator<Item = (&str, &Promise)> {
        self.promises.iter().map(|(name, promise)| (name.as_str(), promise))
    }

    /// The promise to one machine.
    pub fn promise(&self, name: &str) -> Option<&Promise> {
        self.promises.get(name)
    }

    /// The machines on a processor, by name, and their tasks.
    pub fn on_processor(&self, processor: usize) -> impl Iterator<Item = (&str, Task)> {
        self.promises().filter_map(move |(name, promise)| match promise.processor {
            Some((number, task)) if number == processor => Some((name, task)),
            _ => None,
        })
    }

    /// The table of a processor, and who its indices are.
    ///
    /// # Errors
    /// Where there is none: somebody has jitter, or the periods do not go together.
    pub fn table(&self, processor: usize) -> Result<(Vec<&str>, Table), TableError> {
        let (names, tasks): (Vec<&str>, Vec<Task>) = self.on_processor(processor).unzip();
        Ok((names, Table::build(self.capacity.rule, &tasks)?))
    }

    pub(crate) fn set(&mut self, name: &str, promise: Promise) {
        if promise == Promise::default() {
            self.promises.remove(name);
            self.remembered.0.remove(name);
        } else {
            self.promises.insert(name.to_owned(), promise);
        }
    }

    /// Whether all that is promised can be kept; processors are looked at as `which` says, and of
    /// those on them only who is not above all that `grown` names.
    pub(crate) fn check(
        &mut self,
        which: &[usize],
        grown: &[&str],
        newcomer: Option<&str>,
    ) -> Result<(), NodeError> {
        if self.promises.len() > MAX_MACHINES {
            return Err(NodeError::TooMany(self.promises.len()));
        }
        self.check_sums()?;
        for processor in which {
            let found = self.check_processor(*processor, grown, newcomer)?;
            self.remembered.0.extend(found);
        }
        Ok(())
    }

    /// Whether all that is promised can be kept.
    ///
    /// # Errors
    /// Where it can't: what is short, and what would help.
    pub fn check_all(&self) -> Result<(), NodeError> {
        let all: Vec<usize> = (0..self.capacity.processors).collect();
        let names: Vec<&str> = self.promises.keys().map(String::as_str).collect();
        self.clone().check(&all, &names, None)
    }

    fn check_processor(
        &self,
        processor: usize,
        grown: &[&str],
        newcomer: Option<&str>,
    ) -> Result<Vec<(String, u64)>, NodeError> {
        let (names, tasks): (Vec<&str>, Vec<Task>) = self.on_processor(processor).unzip();
        let rule = self.capacity.rule;
        let grown: Vec<usize> = (0..names.len()).filter(|&index| grown.contains(&names[index])).collect();
        let refuse = |cause: AdmitError| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            NodeError::Processor { processor, names, cause }
        };
        let known = |name: &&str| self.remembered.0.get(*name).copied().unwrap_or(0);
        let mut remembered: Vec<u64> = names.iter().map(known).collect();
        if rule.still_holds_near(&tasks, &grown, &mut remembered).map_err(refuse)? {
            let found = names.iter().zip(remembered).filter(|(_, window)| *window > 0);
            return Ok(found.map(|(name, window)| ((*name).to_owned(), window)).collect());
        }
        let newcomer = newcomer.and_then(|newcomer| names.iter().position(|name| *name == newcomer));
        rule.admit(&tasks, newcomer).map(|_| Vec::new()).map_err(refuse)
    }

    fn check_sums(&self) -> Result<(), NodeError> {
        let processors = self.capacity.processors;
        for (name, promise) in &self.promises {
            if let Some((processor, _)) = promise.processor
                && processor >= processors
            {
                return Err(NodeError::NoProcessor { name: name.clone(), processor, processors });
            }
        }
        let with_class = || self.promises.iter().filter_map(|(name, promise)| Some((name, promise.network?)));
        let classes: Vec<Class> = with_class().map(|(_, class)| class).collect();
        self.capacity.link.admit(&classes).map_err(|cause| {
            let names = with_class().map(|(name, _)| name.clone()).collect();
            NodeError::Network { names, cause }
        })?;
        let sum = |what: Added, has: u64, of: fn(&Promise) -> u64| {
            let asked = self.promises.values().map(|promise| u128::from(of(promise))).sum();
            if asked > u128::from(has) { Err(NodeError::Sum { what, asked, has }) } else { Ok(()) }
        };
        sum(Added::Memory, self.capacity.memory_bytes, |promise| promise.memory_bytes)?;
        sum(Added::DiskBytes, self.capacity.disk.bytes, |promise| promise.disk.bytes)?;
        sum(Added::DiskOperations, self.capacity.disk.operations, |promise| promise.disk.operations)
    }
}
