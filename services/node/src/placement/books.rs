//! The records of placement in a cluster's registry, and this node's writes.
//! `docs/spec/placement.md` describes the keys.

use crate::base::RegistryDebug;
use crate::domains::Desired;
use crate::reservations::Offer;
use placement::{Promises, Want};
use registry::{Entry, Expected, RegistryError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use topology::Domain;
use wire::replica::{RECORDS, VolumeRecord};

pub(crate) const DESIRED: &str = "desired/";
const PLACED: &str = "placed/";
const CLAIM: &str = "claim/";
const SEEN: &str = "seen/";
const DRAIN: &str = "drain/";
const HANDOVER: &str = "handover/";
const MOVE: &str = "move/";
const PROMISES: &str = "promises/";
/// The prefixes of all that [`Books::read`] reads.
const READ: [&str; 8] = [DESIRED, DRAIN, PROMISES, RECORDS, SEEN, MOVE, PLACED, CLAIM];

/// A distributed container and one of its domains.
pub(crate) type Key = (String, String);

/// The node that a domain was given to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placed {
    pub(crate) node: String,
}

/// The node that runs a domain, for as long as that node's lease lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) node: String,
    /// The incarnation of that node's daemon.
    pub(crate) incarnation: u64,
}

/// A node's report on a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) node: String,
    /// As in `ps`.
    pub(crate) state: String,
    /// Whether it was ready once since it was started.
    pub(crate) ready: bool,
    /// Whether its last start came to nothing.
    #[serde(default)]
    pub(crate) failed: bool,
    /// Why it is as it is, where that needs words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// The revision of the desired topology that is in effect there.
    pub(crate) revision: u64,
}

/// A planned move of a domain, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moving {
    pub(crate) from: String,
    pub(crate) to: String,
    /// A [`placement::Step`].
    pub(crate) step: String,
    /// Why it went no further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// The time that its end took on the node that had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended_ms: Option<u64>,
    /// The time that its start took on the other node, until it was ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) began_ms: Option<u64>,
}

impl Moving {
    /// One that nobody has begun with.
    pub(crate) fn asked(from: &str, to: &str) -> Self {
        let step = placement::Step::Asked.as_str().to_owned();
        Self { from: from.to_owned(), to: to.to_owned(), step, why: None, ended_ms: None, began_ms: None }
    }

    /// Whether nothing follows. A step of another release is its business.
    pub(crate) fn is_over(&self) -> bool {
        placement::Step::parse(&self.step).is_none_or(placement::Step::is_last)
    }
}

/// Something and when it was written.
#[derive(Debug, Clone)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) revision: u64,
}

/// The records of the registry, read key by key: what follows from them is written by
/// compare-and-swap.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) desired: BTreeMap<String, At<Arc<Desired>>>,
    pub(crate) placed: BTreeMap<Key, At<Placed>>,
    pub(crate) claims: BTreeMap<Key, At<Claim>>,
    pub(crate) seen: BTreeMap<Key, At<Seen>>,
    pub(crate) moves: BTreeMap<Key, At<Moving>>,
    pub(crate) drained: BTreeSet<String>,
    /// The replicas of volumes, by distributed container and volume.
    pub(crate) replicas: BTreeMap<Key, At<VolumeRecord>>,
    /// The capacity and the promises of nodes, as they tell them.
    pub(crate) offers: BTreeMap<String, At<Offer>>,
    /// The same for placement.
    pub(crate) promises: BTreeMap<String, Arc<Promises>>,
}

/// The registry could not be read, or says something that this version does not understand.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BooksError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("the registry of the cluster holds {key}, which this version can't read: {why}")]
    Unreadable { key: String, why: String },
}

impl BooksError {
    /// Whether the registry may answer when it is asked again.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Registry(RegistryError::Etcd(error)) if error.trouble.may_pass())
    }
}

impl Books {
    /// Reads them. A desired state is parsed only where it has changed since `before`.
    pub(crate) fn read(registry: &dyn RegistryDebug, before: &Self) -> Result<Self, BooksError> {
        // What is desired first, claims last: whoever sees a claim has seen what it is for.
        let mut books = Self::default();
        for (key, entry) in list(registry, DESIRED)? {
            let Some(dc) = key.strip_prefix(DESIRED) else { continue };
            let known = before.desired.get(dc).filter(|known| known.revision == entry.revision);
            let desired = match known {
                Some(known) => known.clone(),
                None => At { value: Arc::new(parsed(&key, &entry)?), revision: entry.revision },
            };
            books.desired.insert(dc.to_owned(), desired);
        }
        books.drained = list(registry, DRAIN)?
            .into_iter()
            .filter_map(|(key, _)| Some(key.strip_prefix(DRAIN)?.to_owned()))
            .collect();
        books.offers = offers(registry)?;
        let desired = &books.desired;
        books.promises =
            super::promised::of_offers(&books.offers, |dc| desired.get(dc).map(|at| at.revision));
        books.replicas = pairs(registry, RECORDS)?;
        books.seen = pairs(registry, SEEN)?;
        books.moves = pairs(registry, MOVE)?;
        books.placed = pairs(registry, PLACED)?;
        books.claims = pairs(registry, CLAIM)?;
        Ok(books)
    }

    /// The needs of a domain, its volumes among them.
    pub(crate) fn want(&self, dc: &str, domain: &Domain) -> Want {
        let records = domain
            .volumes
            .iter()
            .filter(|volume| volume.is_replicated())
            .filter_map(|volume| self.replicas.get(&(dc.to_owned(), volume.name.as_str().to_owned())));
        let have = |only: Option<BTreeSet<String>>, record: &At<VolumeRecord>| {
            let current: BTreeSet<String> = record.value.current.iter().cloned().collect();
            Some(only.map_or(current.clone(), |only| only.intersection(&current).cloned().collect()))
        };
        Want { only: records.fold(None, have), ..Want::of(dc, domain) }
    }

    /// Returns the known place of a domain.
    pub(crate) fn assigned(&self, key: &Key) -> placement::Assigned {
        placement::Assigned {
            placed: self.placed.get(key).map(|at| at.value.node.clone()),
            claimed: self.claims.get(key).map(|at| at.value.node.clone()),
        }
    }
}

/// Lists one of the books.
fn list(registry: &dyn RegistryDebug, book: &str) -> Result<Vec<(String, Entry)>, RegistryError> {
    debug_assert!(READ.contains(&book), "changes of {book} wake no pass");
    registry.list(book)
}

/// Whether a change of this key is one of the books.
pub(crate) fn is_read(key: &str) -> bool {
    READ.iter().any(|prefix| key.starts_with(prefix))
}

/// Returns the offers of nodes. One that is not understood is of another release, and counts as
/// none.
fn offers(registry: &dyn RegistryDebug) -> Result<BTreeMap<String, At<Offer>>, BooksError> {
    let mut found = BTreeMap::new();
    for (key, entry) in list(registry, PROMISES)? {
        let Some(node) = key.strip_prefix(PROMISES) else { continue };
        match parsed(&key, &entry) {
            Ok(value) => {
                found.insert(node.to_owned(), At { value, revision: entry.revision });
            }
            Err(error) => tracing::debug!(node, %error, "it is not known what a node can promise"),
        }
    }
    Ok(found)
}

fn parsed<T: DeserializeOwned>(key: &str, entry: &Entry) -> Result<T, BooksError> {
    serde_json::from_slice(&entry.value)
        .map_err(|why| BooksError::Unreadable { key: key.to_owned(), why: why.to_string() })
}

fn pairs<T: DeserializeOwned>(
    registry: &dyn RegistryDebug,
    prefix: &str,
) -> Result<BTreeMap<Key, At<T>>, BooksError> {
    let mut found = BTreeMap::new();
    for (key, entry) in list(registry, prefix)? {
        let Some((dc, domain)) = key.strip_prefix(prefix).and_then(|rest| rest.split_once('/')) else {
            continue;
        };
        let value = parsed(&key, &entry)?;
        found.insert((dc.to_owned(), domain.to_owned()), At { value, revision: entry.revision });
    }
    Ok(found)
}

fn key(prefix: &str, (dc, domain): &Key) -> String {
    format!("{prefix}{dc}/{domain}")
}

pub(crate) fn desired_key(dc: &str) -> String {
    format!("{DESIRED}{dc}")
}

pub(crate) fn claim_key(of: &Key) -> String {
    key(CLAIM, of)
}

pub(crate) fn placed_key(of: &Key) -> String {
    key(PLACED, of)
}

pub(crate) fn seen_key(of: &Key) -> String {
    key(SEEN, of)
}

/// Returns the key of a domain's hand-over, on its way to another node.
pub(crate) fn handover_key(of: &Key) -> String {
    key(HANDOVER, of)
}

pub(crate) fn move_key(of: &Key) -> String {
    key(MOVE, of)
}

pub(crate) fn offer_key(node: &str) -> String {
    format!("{PROMISES}{node}")
}

pub(crate) fn drain_key(node: &str) -> String {
    format!("{DRAIN}{node}")
}

/// A value as the registry keeps it.
pub(crate) fn bytes(value: &impl Serialize) -> Vec<u8> {
    // Texts, numbers and truth values: JSON can say that.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Returns the value that the writer of a key expects to replace.
pub(crate) fn expected<T>(known: Option<&At<T>>) -> Expected {
    known.map_or(Expected::Absent, |at| Expected::Revision(at.revision))
}

/// Whether a write came second: then it is decided anew by what is there now.
pub(crate) fn unless_conflict<T>(done: Result<T, RegistryError>) -> Result<Option<T>, RegistryError> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(RegistryError::Conflict { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
