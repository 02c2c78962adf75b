//! The records of placement, as `services/node/src/placement/books.rs` reads them: prefix by
//! prefix, claims last.

use crate::cluster::client::{Client, Failed};
use crate::cluster::world::{DC, World, number_of};
use crate::etcd::{Entry, Expected, Value};
use placement::{Assigned, Step};
use std::collections::{BTreeMap, BTreeSet};

const PLACED: &str = "placed/";
const CLAIM: &str = "claim/";
const DRAIN: &str = "drain/";
const MOVE: &str = "move/";

/// Something and when it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) revision: u64,
}

/// A claim: a node, and the incarnation of its daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) node: String,
    pub(crate) incarnation: u64,
}

/// A planned move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moving {
    /// The node that the domain leaves.
    pub from: String,
    /// The node to which it goes.
    pub to: String,
    /// How far it has come.
    pub step: Step,
}

impl Moving {
    /// As the registry keeps it.
    #[must_use]
    pub fn value(&self) -> Value {
        format!("{} {} {}", self.from, self.to, self.step.as_str()).into_bytes().into()
    }

    /// Reads it.
    #[must_use]
    pub fn parse(value: &Value) -> Option<Self> {
        let text = text(value);
        let mut words = text.split(' ');
        let (from, to) = (words.next()?.to_owned(), words.next()?.to_owned());
        Some(Self { from, to, step: Step::parse(words.next()?)? })
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) placed: BTreeMap<usize, At<String>>,
    pub(crate) claims: BTreeMap<usize, At<Claim>>,
    pub(crate) moves: BTreeMap<usize, At<Moving>>,
    pub(crate) drained: BTreeSet<usize>,
}

impl Books {
    pub(super) async fn read(client: &Client) -> Result<Self, Failed> {
        let drained = client.list(DRAIN).await?;
        let drained = drained.iter().filter_map(|(key, _)| number_of(key.strip_prefix(DRAIN)?)).collect();
        let moves = of_domains(client.list(MOVE).await?, MOVE, Moving::parse);
        let placed = of_domains(client.list(PLACED).await?, PLACED, |value| Some(text(value)));
        let claims = of_domains(client.list(CLAIM).await?, CLAIM, |value| {
            let text = text(value);
            let (node, incarnation) = text.split_once(' ')?;
            Some(Claim { node: node.to_owned(), incarnation: incarnation.parse().ok()? })
        });
        Ok(Self { placed, claims, moves, drained })
    }

    pub(crate) fn assigned(&self, domain: usize) -> Assigned {
        Assigned {
            placed: self.placed.get(&domain).map(|at| at.value.clone()),
            claimed: self.claims.get(&domain).map(|at| at.value.node.clone()),
        }
    }
}

fn of_domains<T>(
    listed: Vec<(String, Entry)>,
    prefix: &str,
    parse: impl Fn(&Value) -> Option<T>,
) -> BTreeMap<usize, At<T>> {
    let of = |(key, entry): (String, Entry)| {
        let name = key.strip_prefix(prefix)?.strip_prefix(DC)?.strip_prefix("/d")?;
        let value = parse(&entry.value)?;
        Some((name.parse().ok()?, At { value, revision: entry.revision }))
    };
    listed.into_iter().filter_map(of).collect()
}

/// The revision of a key that a writer expects to replace.
pub(crate) fn expected<T>(known: Option<&At<T>>) -> Expected {
    known.map_or(Expected::Absent, |at| Expected::Revision(at.revision))
}

/// Bytes as text.
#[must_use]
pub fn text(value: &Value) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// The key of who runs a domain.
#[must_use]
pub fn claim_key(world: &World, domain: usize) -> String {
    format!("{CLAIM}{}", world.wanted[domain].path)
}

/// The key of whose a domain is.
#[must_use]
pub fn placed_key(world: &World, domain: usize) -> String {
    format!("{PLACED}{}", world.wanted[domain].path)
}

/// The key of a planned move.
#[must_use]
pub fn move_key(world: &World, domain: usize) -> String {
    format!("{MOVE}{}", world.wanted[domain].path)
}

/// The key of a node that takes nothing new.
#[must_use]
pub fn drain_key(node: &str) -> String {
    format!("{DRAIN}{node}")
}
