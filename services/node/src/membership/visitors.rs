//! The bounds of the peer API's connections: nodes, which have shown a certificate, always get in;
//! callers without one get the places that are left to strangers.

use super::Cluster;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use trust::{Place, SentAway, Strangers};

/// Connections that have shown no certificate (yet), from addresses where no node is: enough for a
/// rack of machines that join at once.
const MAX_STRANGERS: usize = 32;
/// Of these from one address: a machine that joins needs one.
const MAX_STRANGERS_OF_ONE: usize = 4;
/// The same from addresses where nodes are, which strangers do not have: beside each node's own
/// connections there may be those of its domains.
const MAX_NEIGHBOURS: usize = 128;
/// See [`MAX_NEIGHBOURS`].
const MAX_NEIGHBOURS_OF_ONE: usize = 16;
/// Joins that are looked at at a time: each takes a thread for as long as etcd does.
const MAX_JOINS: usize = 4;
/// Connections of nodes that are served at a time.
const MAX_OF_NODES: usize = 512;
/// Of these of one node: more than its commands here and those who read logs.
const MAX_OF_ONE_NODE: usize = 128;
/// How long a stranger has for its handshake, and for its request: a machine that joins says all at
/// once.
pub(super) const STRANGER_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections that are open, and their limits.
#[derive(Debug, Clone)]
pub(super) struct Visitors {
    strangers: Strangers,
    neighbours: Strangers,
    joins: Arc<Semaphore>,
    of_nodes: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// A connection that has shown no certificate.
#[derive(Debug, Clone)]
pub(crate) struct Stranger {
    place: Arc<Place>,
    joins: Arc<Semaphore>,
}

/// A join that is looked at: who is let in is not sent away meanwhile.
#[derive(Debug)]
pub(crate) struct Turn {
    place: Arc<Place>,
    _one_of_few: OwnedSemaphorePermit,
}

/// A connection of a node's.
#[derive(Debug)]
pub(super) struct OfNode {
    node: String,
    of_nodes: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Visitors {
    pub(super) fn new() -> Self {
        Self {
            strangers: Strangers::new(MAX_STRANGERS, MAX_STRANGERS_OF_ONE),
            neighbours: Strangers::new(MAX_NEIGHBOURS, MAX_NEIGHBOURS_OF_ONE),
            joins: Arc::new(Semaphore::new(MAX_JOINS)),
            of_nodes: Arc::default(),
        }
    }

    /// Somebody connects. `None`: there is no room.
    pub(super) fn enter(&self, cluster: &Cluster, from: IpAddr) -> Option<(Stranger, SentAway)> {
        let among = if cluster.has_a_node_at(from) { &self.neighbours } else { &self.strangers };
        let (place, sent_away) = among.enter(from)?;
        Some((Stranger { place: Arc::new(place), joins: Arc::clone(&self.joins) }, sent_away))
    }

    /// Counts a connection that has shown that it is this node. `None`: the node has too many
    /// connections, or all nodes have.
    pub(super) fn is_node(&self, node: &str) -> Option<OfNode> {
        let mut of_nodes = lock(&self.of_nodes);
        let all: usize = of_nodes.values().sum();
        let of_it = of_nodes.entry(node.to_owned()).or_default();
        if *of_it >= MAX_OF_ONE_NODE || all >= MAX_OF_NODES {
            return None;
        }
        *of_it += 1;
        Some(OfNode { node: node.to_owned(), of_nodes: Arc::clone(&self.of_nodes) })
    }
}

impl Stranger {
    /// Waits until its join is looked at.
    pub(crate) async fn turn(&self) -> Option<Turn> {
        let one_of_few = Arc::clone(&self.joins).acquire_owned().await.ok()?;
        self.place.keep(true);
        Some(Turn { place: Arc::clone(&self.place), _one_of_few: one_of_few })
    }

    /// Comes back when it has had its time, while nobody looks at its join.
    pub(super) async fn has_had_its_time(&self) {
        loop {
            // tidy(sleep): time itself is what is awaited.
            tokio::time::sleep(STRANGER_TIMEOUT).await;
            if !self.place.is_kept() {
                return;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.place.keep(false);
    }
}

impl Drop for OfNode {
    fn drop(&mut self) {
        let mut of_nodes = lock(&self.of_nodes);
        if let Some(of_it) = of_nodes.get_mut(&self.node) {
            *of_it -= 1;
            if *of_it == 0 {
                of_nodes.remove(&self.node);
            }
        }
    }
}

fn lock(of_nodes: &Mutex<BTreeMap<String, usize>>) -> MutexGuard<'_, BTreeMap<String, usize>> {
    of_nodes.lock().unwrap_or_else(PoisonError::into_inner)
}
