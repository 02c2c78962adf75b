//! The connections, and how much has passed.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use wire::socket::{Limits, Order};

/// Connections of one domain to one service, seen from one side.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    open: AtomicU32,
    opened: AtomicU64,
    refused: AtomicU64,
    reset: AtomicU64,
    /// Bytes that programs of this domain sent.
    sent: AtomicU64,
    /// Bytes that they received.
    received: AtomicU64,
}

impl Counts {
    /// Counts a connection until what this returns is dropped.
    pub(crate) fn connected(self: &Arc<Self>, total: Option<&Arc<AtomicU32>>) -> Connected {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.opened.fetch_add(1, Ordering::Relaxed);
        if let Some(total) = total {
            total.fetch_add(1, Ordering::Relaxed);
        }
        Connected { counts: Arc::clone(self), total: total.cloned() }
    }

    pub(crate) fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// The server, or a limit, refused a connection.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection did not end in order.
    pub(crate) fn reset(&self) {
        self.reset.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn state(&self) -> Map<String, Value> {
        let of = |count: &AtomicU64| Value::from(count.load(Ordering::Relaxed));
        Map::from_iter([
            ("open".to_owned(), Value::from(self.open())),
            ("opened".to_owned(), of(&self.opened)),
            ("refused".to_owned(), of(&self.refused)),
            ("reset".to_owned(), of(&self.reset)),
            ("sent_bytes".to_owned(), of(&self.sent)),
            ("received_bytes".to_owned(), of(&self.received)),
        ])
    }
}

/// A connection that is counted as open.
#[derive(Debug)]
pub(crate) struct Connected {
    counts: Arc<Counts>,
    total: Option<Arc<AtomicU32>>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(total) = &self.total {
            total.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A service that the domain mounts.
#[derive(Debug, Default)]
pub(crate) struct Mounted {
    pub(crate) counts: Arc<Counts>,
    /// Whether there is a channel to the server's relay.
    pub(crate) up: AtomicBool,
}

/// A service whose server runs in the domain.
#[derive(Debug, Default)]
pub(crate) struct Served {
    /// Connections of all domains.
    pub(crate) total: Arc<AtomicU32>,
    domains: Mutex<BTreeMap<String, Arc<Counts>>>,
}

impl Served {
    /// The counts of one domain, whose relays may come and go.
    pub(crate) fn of(&self, domain: &str) -> Arc<Counts> {
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(domains.entry(domain.to_owned()).or_default())
    }

    /// Whether there may be one more connection of a domain. Two relays of one domain that ask at
    /// the same moment may both hear yes.
    pub(crate) fn has_room(&self, counts: &Counts, limits: &Limits) -> bool {
        counts.open() < limits.connections_per_domain
            && self.total.load(Ordering::Relaxed) < limits.max_connections
    }
}

/// Everything that a relay counts.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) mounts: BTreeMap<String, Arc<Mounted>>,
    pub(crate) serves: BTreeMap<String, Arc<Served>>,
    pub(crate) publishes: BTreeMap<SocketAddr, Arc<Counts>>,
}

impl Relay {
    pub(crate) fn new(order: &Order) -> Self {
        Self {
            mounts: order.mounts.iter().map(|it| (it.service.clone(), Arc::default())).collect(),
            serves: order.serves.iter().map(|it| (it.service.clone(), Arc::default())).collect(),
            publishes: order.publishes.iter().map(|it| (it.at, Arc::default())).collect(),
        }
    }

    /// The counts as a tree: below `mounts` the services that the domain uses, below `serves` the
    /// domains that use its own, below `publishes` the addresses of the node.
    pub(crate) fn state(&self) -> Value {
        let mounts: Map<String, Value> =
            self.mounts.iter().map(|(name, it)| (name.clone(), it.state())).collect();
        let serves: Map<String, Value> =
            self.serves.iter().map(|(name, it)| (name.clone(), it.state())).collect();
        let publishes: Map<String, Value> =
            self.publishes.iter().map(|(at, counts)| (at.to_string(), counts.state().into())).collect();
        json!({ "mounts": mounts, "serves": serves, "publishes": publishes })
    }
}

impl Mounted {
    fn state(&self) -> Value {
        let mut state = self.counts.state();
        state.insert("up".into(), self.up.load(Ordering::Relaxed).into());
        state.into()
    }
}

impl Served {
    fn state(&self) -> Value {
        let domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        let domains: Map<String, Value> =
            domains.iter().map(|(name, counts)| (name.clone(), counts.state().into())).collect();
        json!({ "open": self.total.load(Ordering::Relaxed), "domains": domains })
    }
}
