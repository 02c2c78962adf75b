//! The registry: desired state (the admitted topologies) and actual state (what runs where) of a
//! node.
//!
//! [`Registry`] is the contract; [`Embedded`] keeps it in one file of redb (durable, one process at
//! a time), [`Etcd`] in etcd, for the nodes of a cluster (with leases beside), [`Memory`] in
//! memory, for tests. Each key has a *revision* that grows with every change of anything in the
//! registry, so that a writer can say what it believes to replace ([`Expected`]): compare-and-swap,
//! as etcd has it.

mod embedded;
mod etcd;
mod memory;
mod watch;

pub use embedded::Embedded;
pub use etcd::{
    Bound, Counted, DEADLINE, DEFAULT_PREFIX, Etcd, EtcdError, EtcdMember, EtcdSettings, EtcdTls, Lease,
    MAX_ENDPOINTS, Renewal, Suspected, Trouble, Watched,
};
pub use memory::Memory;
pub use watch::{Change, Watch};

use std::collections::BTreeSet;
use std::path::PathBuf;
use thiserror::Error;

/// Longest key, in bytes: two names of 63 bytes and some words fit with room to spare.
pub const MAX_KEY_BYTES: usize = 512;
/// Longest value, in bytes: four times the longest topology file. Bulk data never goes through the
/// registry.
pub const MAX_VALUE_BYTES: usize = 4 << 20;

/// Most keys that are written at once: what etcd takes in one transaction where nobody says
/// otherwise.
pub const MAX_WRITTEN: usize = 128;

/// A value and when it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value that was put.
    pub value: Vec<u8>,
    /// The registry's revision that this put made; never used twice.
    pub revision: u64,
}

/// The writer's expectation of a key's present value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Whatever is there.
    Anything,
    /// Nothing: the key must not exist.
    Absent,
    /// Exactly the value of this revision.
    Revision(u64),
}

impl Expected {
    /// Whether a key whose revision is `found` (`None`: no such key) is what the writer believes.
    pub(crate) fn meets(self, found: Option<u64>) -> bool {
        match self {
            Self::Anything => true,
            Self::Absent => found.is_none(),
            Self::Revision(revision) => found == Some(revision),
        }
    }
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Anything => f.write_str("anything"),
            Self::Absent => f.write_str("no value"),
            Self::Revision(revision) => write!(f, "revision {revision}"),
        }
    }
}

/// A store of small values under path-like keys (`desired/DC`), the same for one node and for many.
pub trait Registry: Send + Sync {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`RegistryError::Storage`]; [`RegistryError::Key`].
    fn get(&self, key: &str) -> Result<Option<Entry>, RegistryError>;

    /// All keys that begin with `prefix`, in byte order, with their values: one consistent moment.
    ///
    /// # Errors
    /// [`RegistryError::Storage`].
    fn list(&self, prefix: &str) -> Result<Vec<(String, Entry)>, RegistryError>;

    /// Sets `key`, if what it replaces is as `expected`; durable when it returns. Returns the new
    /// revision.
    ///
    /// # Errors
    /// [`RegistryError::Conflict`], [`RegistryError::Key`], [`RegistryError::TooLarge`],
    /// [`RegistryError::Storage`].
    fn put(&self, key: &str, value: &[u8], expected: Expected) -> Result<u64, RegistryError>;

    /// Removes `key`, if it is as `expected`. Returns whether there was one.
    ///
    /// # Errors
    /// As for [`Registry::put`].
    fn delete(&self, key: &str, expected: Expected) -> Result<bool, RegistryError>;

    /// Sets several keys, or removes those that have no value here, whatever is there: all of it or
    /// nothing, whenever the power goes. Durable when it returns. At most [`MAX_WRITTEN`] keys,
    /// each of them once.
    ///
    /// # Errors
    /// [`RegistryError::Key`], [`RegistryError::TooLarge`], [`RegistryError::TooMany`],
    /// [`RegistryError::Storage`].
    fn write(&self, changes: &[(String, Option<Vec<u8>>)]) -> Result<(), RegistryError>;

    /// As [`Registry::write`], if each of `guards` is as expected: at least one, and each is one of
    /// the keys that are set. Returns their new revision.
    ///
    /// # Errors
    /// As there; [`RegistryError::Conflict`]: nothing was written.
    fn write_if(
        &self,
        guards: &[(&str, Expected)],
        changes: &[(String, Option<Vec<u8>>)],
    ) -> Result<u64, RegistryError>;

    /// Tells every later change of a key that begins with `prefix`, in the order in which they were
    /// made.
    ///
    /// # Errors
    /// [`RegistryError::Storage`].
    fn watch(&self, prefix: &str) -> Result<Watch, RegistryError>;
}

/// Why the registry did not do it. Nothing was changed.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// The file can't be opened.
    #[error("can't open the registry {}: {cause}", path.display())]
    Open {
        /// The file's path.
        path: PathBuf,
        /// Why.
        cause: redb::Error,
    },
    /// The file is no registry, or no longer one. It stays as it is.
    #[error(
        "the registry {} is damaged: {what}; put a copy of it back, or move it away to begin with an empty one: what it says \
         is up is ended then, and `tombolo up FILE` brings it back", path.display()
    )]
    Damaged {
        /// The file's path.
        path: PathBuf,
        /// The fault of the file.
        what: String,
    },
    /// The file holds what this version does not read.
    #[error("the registry {} has format {found}; this version reads format {known}", path.display())]
    Format {
        /// The file's path.
        path: PathBuf,
        /// The version that the file states.
        found: u64,
        /// The version that this program knows.
        known: u64,
    },
    /// Etcd has a problem, or we with it.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// This node must not claim anything now.
    #[error(
        "this node is cut off from the cluster and may claim nothing: `tombolo node ls` says why; it tries again by itself"
    )]
    Fenced,
    /// Reading or writing failed.
    #[error("the registry failed: {0}")]
    Storage(#[from] redb::Error),
    /// The key is not what the writer believed.
    #[error("{key} was changed by somebody else: expected {expected}, found {}", found.map_or("no value".into(), |r| format!("revision {r}")))]
    Conflict {
        /// The key.
        key: String,
        /// The writer's expectation.
        expected: Expected,
        /// The revision found; `None` if there is no such key.
        found: Option<u64>,
    },
    /// No possible key.
    #[error("a key has 1 to {MAX_KEY_BYTES} bytes; this one has {0}")]
    Key(usize),
    /// More than are written at once, or one of them twice.
    #[error("{0} keys are written at once, each of them once; {MAX_WRITTEN} are the most")]
    TooMany(usize),
    /// A guard that the write itself does not set.
    #[error("{0} guards a write that does not set it: set it, too")]
    Unguarded(String),
    /// The value is too long.
    #[error("the value of {key} has {bytes} bytes; {MAX_VALUE_BYTES} are the most")]
    TooLarge {
        /// The key.
        key: String,
        /// Bytes of the value.
        bytes: usize,
    },
}

/// Refuses impossible keys.
pub(crate) fn check_key(key: &str) -> Result<(), RegistryError> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES { Err(RegistryError::Key(key.len())) } else { Ok(()) }
}

/// Refuses impossible values.
pub(crate) fn check_value(key: &str, value: &[u8]) -> Result<(), RegistryError> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(RegistryError::TooLarge { key: key.to_owned(), bytes: value.len() });
    }
    Ok(())
}

/// Refuses what can't be written under guards, at least one, which are keys that are set: their
/// revision is the one of the write.
pub(crate) fn check_guarded(
    guards: &[(&str, Expected)],
    changes: &[(String, Option<Vec<u8>>)],
) -> Result<(), RegistryError> {
    check_all(changes)?;
    let unset = guards.iter().find(|(guard, _)| value_of(guard, changes).is_none());
    match (unset, guards) {
        (None, []) => Err(RegistryError::Key(0)),
        (None, _) => Ok(()),
        (Some((guard, _)), _) => Err(RegistryError::Unguarded((*guard).to_owned())),
    }
}

/// The value that the changes give to a key.
pub(crate) fn value_of<'a>(key: &str, changes: &'a [(String, Option<Vec<u8>>)]) -> Option<&'a Vec<u8>> {
    changes.iter().find(|(name, _)| name == key).and_then(|(_, value)| value.as_ref())
}

/// Refuses what can't be written at once.
pub(crate) fn check_all(changes: &[(String, Option<Vec<u8>>)]) -> Result<(), RegistryError> {
    let keys: BTreeSet<&str> = changes.iter().map(|(key, _)| key.as_str()).collect();
    if changes.len() > MAX_WRITTEN || keys.len() < changes.len() {
        return Err(RegistryError::TooMany(changes.len()));
    }
    for (key, value) in changes {
        check_key(key)?;
        check_value(key, value.as_deref().unwrap_or_default())?;
    }
    Ok(())
}
