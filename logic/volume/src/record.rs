//! The record of a volume in the registry, and the only ways in which it changes.

use std::collections::BTreeSet;
use thiserror::Error;

/// A node of the cluster, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u16);

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A change of the record that the rules do not allow.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Its replica may lack acknowledged writes.
    #[error("{0} has no current replica; wait for a node that has one, or resync this one")]
    NotCurrent(Node),
    /// Another node may still be acknowledging writes.
    #[error("{0} is the primary and its lease is not over")]
    PrimaryLives(Node),
    /// The node that asks is not, or is no longer, the primary.
    #[error("{asker} is not the primary of view {view}")]
    NotPrimary {
        /// The node that asks.
        asker: Node,
        /// The view that it takes for the present one.
        view: u64,
    },
    /// A primary strikes itself off only by leaving.
    #[error("a primary can't strike off its own replica")]
    Itself,
    /// The volume has no such replica.
    #[error("the volume has no replica on {0}")]
    NoReplica(Node),
}

/// The registry's record of a volume's replicas.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// Grows with every claim; exports are named after it.
    pub view: u64,
    /// The only node that may acknowledge writes, in this view.
    pub primary: Option<Node>,
    /// The nodes whose replicas have every acknowledged write. Never empty.
    pub current: BTreeSet<Node>,
    /// The nodes that have a replica.
    pub replicas: BTreeSet<Node>,
    /// Whether all current replicas are equal: nothing was written yet, or the last primary left in
    /// order.
    pub settled: bool,
}

impl Record {
    /// The record of a new volume, whose replicas are all empty.
    #[must_use]
    pub fn new(replicas: BTreeSet<Node>) -> Self {
        Self { view: 0, primary: None, current: replicas.clone(), replicas, settled: true }
    }

    /// `node` becomes the primary of the next view. It has drained its disk and ended its exports
    /// before; `lease_is_over` says whether the registry no longer has a lease of the present
    /// primary.
    ///
    /// Replicas that are not settled may differ in writes that nobody acknowledged: the new
    /// primary's is the one that counts, and the others are resynced from it.
    ///
    /// # Errors
    /// [`Refusal::NotCurrent`], [`Refusal::PrimaryLives`].
    pub fn claim(&self, node: Node, lease_is_over: bool) -> Result<Self, Refusal> {
        if !self.current.contains(&node) {
            return Err(Refusal::NotCurrent(node));
        }
        if let Some(primary) = self.primary.filter(|primary| *primary != node && !lease_is_over) {
            return Err(Refusal::PrimaryLives(primary));
        }
        let current = if self.settled { self.current.clone() } else { BTreeSet::from([node]) };
        Ok(Self { view: self.view + 1, primary: Some(node), current, settled: false, ..self.clone() })
    }

    /// The primary strikes off a replica that failed, or can't be reached.
    ///
    /// # Errors
    /// [`Refusal::NotPrimary`], [`Refusal::Itself`], [`Refusal::NotCurrent`].
    pub fn strike(&self, primary: Node, view: u64, struck: Node) -> Result<Self, Refusal> {
        self.check(primary, view)?;
        if struck == primary {
            return Err(Refusal::Itself);
        }
        let mut next = self.clone();
        if next.current.remove(&struck) { Ok(next) } else { Err(Refusal::NotCurrent(struck)) }
    }

    /// The primary counts a replica again that it has resynced.
    ///
    /// # Errors
    /// [`Refusal::NotPrimary`], [`Refusal::NoReplica`].
    pub fn join(&self, primary: Node, view: u64, joined: Node) -> Result<Self, Refusal> {
        self.check(primary, view)?;
        if !self.replicas.contains(&joined) {
            return Err(Refusal::NoReplica(joined));
        }
        let mut next = self.clone();
        next.current.insert(joined);
        Ok(next)
    }

    /// The primary leaves in order: nothing is under way, and all current replicas are equal.
    ///
    /// # Errors
    /// [`Refusal::NotPrimary`].
    pub fn release(&self, primary: Node, view: u64) -> Result<Self, Refusal> {
        self.check(primary, view)?;
        Ok(Self { primary: None, settled: true, ..self.clone() })
    }

    /// The primary leaves because its own replica failed. If that is the only current one it stays
    /// listed: nobody else has what it has.
    ///
    /// # Errors
    /// [`Refusal::NotPrimary`].
    pub fn leave(&self, primary: Node, view: u64) -> Result<Self, Refusal> {
        self.check(primary, view)?;
        let mut next = Self { primary: None, settled: false, ..self.clone() };
        if next.current.len() > 1 {
            next.current.remove(&primary);
        }
        Ok(next)
    }

    /// Whether this node is the primary of this view.
    #[must_use]
    pub fn is_primary(&self, node: Node, view: u64) -> bool {
        self.primary == Some(node) && self.view == view
    }

    fn check(&self, asker: Node, view: u64) -> Result<(), Refusal> {
        if self.is_primary(asker, view) { Ok(()) } else { Err(Refusal::NotPrimary { asker, view }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Node = Node(1);
    const B: Node = Node(2);

    fn new() -> Record {
        Record::new(BTreeSet::from([A, B]))
    }

    #[test]
    fn a_settled_volume_keeps_its_current_replicas_when_it_is_claimed_and_others_do_not() {
        let first = new().claim(A, false).unwrap();
        assert_eq!((first.view, first.primary, first.current.len()), (1, Some(A), 2));
        let after_a_crash = first.claim(B, true).unwrap();
        assert_eq!(after_a_crash.current, BTreeSet::from([B]));
        let moved = first.release(A, 1).unwrap().claim(B, false).unwrap();
        assert_eq!((moved.view, moved.current.len()), (2, 2));
    }

    #[test]
    fn nobody_claims_while_the_lease_lasts_or_without_a_current_replica() {
        let first = new().claim(A, false).unwrap();
        assert_eq!(first.claim(B, false), Err(Refusal::PrimaryLives(A)));
        let alone = first.strike(A, 1, B).unwrap();
        assert_eq!(alone.claim(B, true), Err(Refusal::NotCurrent(B)));
        assert!(alone.claim(A, false).is_ok(), "a node that starts again takes its own volume up");
    }

    #[test]
    fn only_the_primary_of_the_view_changes_who_is_current() {
        let second = new().claim(A, false).unwrap().claim(B, true).unwrap();
        let stale = Refusal::NotPrimary { asker: A, view: 1 };
        assert_eq!(second.strike(A, 1, B), Err(stale.clone()));
        assert_eq!(second.join(A, 1, A), Err(stale.clone()));
        assert_eq!(second.release(A, 1), Err(stale.clone()));
        assert_eq!(second.leave(A, 1), Err(stale));
        assert_eq!(second.strike(B, 2, B), Err(Refusal::Itself));
        assert_eq!(second.join(B, 2, Node(9)), Err(Refusal::NoReplica(Node(9))));
    }

    #[test]
    fn the_last_current_replica_is_never_struck_off() {
        let alone = new().claim(A, false).unwrap().strike(A, 1, B).unwrap();
        assert_eq!(alone.leave(A, 1).unwrap().current, BTreeSet::from([A]));
        let both = new().claim(A, false).unwrap();
        assert_eq!(both.leave(A, 1).unwrap().current, BTreeSet::from([B]));
    }
}
