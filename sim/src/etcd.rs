//! etcd as its clients see it: one history of transactions, leases that end with all that is bound
//! to them, watches in the order of the history.
//!
//! Elections let everybody wait, and give all leases their whole time anew, as etcd's next leader
//! does. Leases end late, never early.

use crate::time::MS;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes of a value.
pub type Value = Rc<[u8]>;

/// A value, when it was written, and to which lease it is bound (0: none).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Value,
    /// Of which revision.
    pub revision: u64,
    /// 0: none.
    pub lease: u64,
}

/// A writer's expectation of a key, as `registry::Expected` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Whatever is there.
    Anything,
    /// Nothing.
    Absent,
    /// The value of this revision.
    Revision(u64),
}

/// One transaction: if all is as expected, everything is written, and in any case these keys are
/// read (before).
#[derive(Debug, Clone, Default)]
pub struct Transaction {
    /// Keys and what is expected of them.
    pub when: Vec<(String, Expected)>,
    /// Keys, and the values that they get with a lease; `None`: they are removed.
    pub then: Vec<(String, Option<(Value, u64)>)>,
    /// Keys that are read.
    pub read: Vec<String>,
}

/// A request.
#[derive(Debug, Clone)]
pub enum Ask {
    /// All keys that begin so.
    List(String),
    /// See [`Transaction`].
    Transaction(Transaction),
    /// A new lease.
    Grant,
    /// Gives a lease its whole time.
    KeepAlive(u64),
    /// Ends a lease.
    Revoke(u64),
}

/// An answer.
#[derive(Debug, Clone)]
pub enum Told {
    /// The keys that there are, and what they hold.
    Listed(Vec<(String, Entry)>),
    /// Whether all was as expected, the revision, and what was read.
    Done {
        /// Whether it was written.
        met: bool,
        /// The registry's revision.
        revision: u64,
        /// The values of the keys to be read, as they were before.
        read: Vec<Option<Entry>>,
    },
    /// A lease.
    Granted(u64),
    /// Whether the lease is there.
    Kept(bool),
    /// The lease to bind to is gone.
    NoLease,
}

/// A change of a key.
#[derive(Debug, Clone)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Its value; `None`: it is gone.
    pub entry: Option<Entry>,
}

/// How much was asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    /// Requests that only read.
    pub reads: u64,
    /// Requests that write.
    pub writes: u64,
    /// Leases kept alive.
    pub renewals: u64,
    /// Keys that were listed.
    pub listed: u64,
    /// Bytes of keys and values that were listed.
    pub listed_bytes: u64,
}

/// Everything that etcd holds.
#[derive(Debug, Default)]
pub struct Etcd {
    revision: u64,
    entries: BTreeMap<String, Entry>,
    /// Leases, and when they end.
    leases: BTreeMap<u64, u64>,
    last_lease: u64,
    /// Changes that watchers have not been told.
    changes: Vec<Change>,
    /// How much was asked.
    pub load: Load,
}

/// How long a lease lasts: what the product asks for.
pub const TTL_NS: u64 = 2_000 * MS;

impl Etcd {
    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// All keys, a line for each.
    #[must_use]
    pub fn describe(&self) -> String {
        let line = |(key, entry): (&String, &Entry)| {
            let value = String::from_utf8_lossy(&entry.value);
            format!("  {key} = {value} (revision {}, lease {})\n", entry.revision, entry.lease)
        };
        self.entries.iter().map(line).collect()
    }

    /// The revision of the last change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes the changes since this was called last.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// When a lease ends; `None`: there is no such.
    #[must_use]
    pub fn ends(&self, lease: u64) -> Option<u64> {
        self.leases.get(&lease).copied()
    }

    /// Another leader gives all leases their whole time.
    pub fn elected(&mut self, now: u64) {
        for ends in self.leases.values_mut() {
            *ends = (*ends).max(now + TTL_NS);
        }
    }

    /// Ends the leases whose time is over.
    pub fn expire(&mut self, now: u64) {
        let over: Vec<u64> =
            self.leases.iter().filter(|(_, ends)| **ends <= now).map(|(lease, _)| *lease).collect();
        for lease in over {
            self.end_lease(lease);
        }
    }

    fn end_lease(&mut self, lease: u64) {
        if self.leases.remove(&lease).is_none() {
            return;
        }
        let bound: Vec<String> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.lease == lease)
            .map(|(key, _)| key.clone())
            .collect();
        if !bound.is_empty() {
            self.revision += 1;
        }
        for key in bound {
            self.set(&key, None);
        }
    }

    /// Sets a key at the present revision.
    fn set(&mut self, key: &str, value: Option<(Value, u64)>) {
        let revision = self.revision;
        let entry = value.map(|(value, lease)| Entry { value, revision, lease });
        let was = match &entry {
            Some(entry) => {
                self.entries.insert(key.to_owned(), entry.clone());
                true
            }
            None => self.entries.remove(key).is_some(),
        };
        if was {
            self.changes.push(Change { key: key.to_owned(), entry });
        }
    }

    /// Answers.
    pub fn answer(&mut self, ask: &Ask, now: u64) -> Told {
        match ask {
            Ask::List(prefix) => Told::Listed(self.list(prefix)),
            Ask::Transaction(transaction) => self.transact(transaction),
            Ask::Grant => {
                self.load.writes += 1;
                self.last_lease += 1;
                self.leases.insert(self.last_lease, now + TTL_NS);
                Told::Granted(self.last_lease)
            }
            Ask::KeepAlive(lease) => {
                self.load.renewals += 1;
                let there = self.leases.get_mut(lease);
                let kept = there.is_some();
                if let Some(ends) = there {
                    *ends = (*ends).max(now + TTL_NS);
                }
                Told::Kept(kept)
            }
            Ask::Revoke(lease) => {
                self.load.writes += 1;
                self.end_lease(*lease);
                Told::Kept(false)
            }
        }
    }

    fn list(&mut self, prefix: &str) -> Vec<(String, Entry)> {
        let found: Vec<(String, Entry)> = self
            .entries
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, entry)| (key.clone(), entry.clone()))
            .collect();
        self.load.reads += 1;
        self.load.listed += found.len() as u64;
        self.load.listed_bytes +=
            found.iter().map(|(key, entry)| (key.len() + entry.value.len()) as u64).sum::<u64>();
        found
    }

    fn transact(&mut self, transaction: &Transaction) -> Told {
        let Transaction { when, then, read } = transaction;
        let read = read.iter().map(|key| self.entries.get(key).cloned()).collect();
        let meets = |(key, expected): &(String, Expected)| {
            let found = self.entries.get(key).map(|entry| entry.revision);
            match expected {
                Expected::Anything => true,
                Expected::Absent => found.is_none(),
                Expected::Revision(revision) => found == Some(*revision),
            }
        };
        let met = when.iter().all(meets);
        if then.is_empty() || !met {
            self.load.reads += 1;
            return Told::Done { met, revision: self.revision, read };
        }
        self.load.writes += 1;
        let bound = then.iter().filter_map(|(_, value)| value.as_ref()).map(|(_, lease)| *lease);
        if bound.clone().any(|lease| lease != 0 && !self.leases.contains_key(&lease)) {
            return Told::NoLease;
        }
        self.revision += 1;
        for (key, value) in then {
            self.set(key, value.clone());
        }
        Told::Done { met, revision: self.revision, read }
    }
}
