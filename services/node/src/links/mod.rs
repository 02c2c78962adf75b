//! Proxies: the daemon has one for each other node of its cluster, finds those that an earlier
//! daemon left, starts those that are missing, and tells the other node's daemon where its own
//! listen (`docs/spec/proxy.md`).
//!
//! Of two nodes the one with the greater name listens, at a port for that other node alone; so a
//! proxy never has to pass on a connection, and a cut link comes back without a daemon.

mod keep;
mod membership;

pub(crate) use keep::sweep;

use crate::admin::{LinkChange, LinkRow};
use crate::base::PROXIES;
use crate::broker::Broker;
use crate::reservations::Shares;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use wire::proxy::Order;

/// Where the daemon of another node says where its proxy listens.
pub(crate) const LINK_PATH: &str = "/v1/link";
/// Where a proxy listens, or the next free port behind: a node has one for each other node with a
/// smaller name.
pub(crate) const LINK_PORT: u16 = 7421;
/// How long a proxy may take to say its state.
const INSPECT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long proxies may take to end when their daemon does.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// As an interface: the one that bears the node's address.
const AUTO: &str = "auto";
/// Transports that there are.
const TRANSPORTS: [&str; 4] = ["tcp", "quic", "ethernet", "tipc"];
/// Compressions that there are.
const COMPRESSIONS: [&str; 4] = ["none", "lz4", "zstd", "auto"];

/// The answer of another daemon, or the reason why there is none.
pub(crate) type Answer<'a> = Pin<Box<dyn Future<Output = Result<Offer, String>> + Send + 'a>>;

/// The other nodes, as membership knows them.
pub(crate) trait Nodes: fmt::Debug + Send + Sync {
    /// This node's name.
    fn me(&self) -> String;
    /// Where this node is reached by others.
    fn address(&self) -> IpAddr;
    /// Names of all others that belong to the cluster, whether they are alive or not; none where
    /// this node was removed from it. `None`: not known yet.
    fn others(&self) -> Option<Vec<String>>;
    /// Ticks when these have changed.
    fn changes(&self) -> watch::Receiver<u64>;
    /// The folder with this node's certificate and key.
    fn identity(&self) -> PathBuf;
    /// Ticks when what is in there has changed.
    fn trust_changes(&self) -> watch::Receiver<u64>;
    /// Asks the daemon of another node.
    fn call<'a>(&'a self, node: &'a str, offer: Offer) -> Answer<'a>;
}

/// The share of proxies in this node's link.
pub(crate) trait Shared: fmt::Debug + Send + Sync {
    /// A proxy for a node is in this cgroup, or will be at once. It may take some system calls.
    fn came(&self, node: &str, cgroup: &str);
    /// There will be none any more.
    fn left(&self, node: &str);
    /// Returns the promises to domains, and their changes.
    fn shares(&self) -> watch::Receiver<Shares>;
}

/// A message between daemons about a link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offer {
    /// Where the sender's proxy listens, as locators; none: it connects, or is not there yet.
    #[serde(default)]
    pub(crate) listens: Vec<String>,
    /// The wanted properties of the link from now on.
    #[serde(default)]
    pub(crate) wanted: Option<Wanted>,
}

/// The properties of a link that can be chosen while it lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    pub(crate) transport: String,
    pub(crate) compression: String,
}

impl Default for Wanted {
    /// TCP, and nothing is compressed: what several domains send would be compressed together, and
    /// its length on the wire tells each of them of the others' bytes.
    fn default() -> Self {
        Self { transport: TRANSPORTS[0].into(), compression: COMPRESSIONS[0].into() }
    }
}

impl Wanted {
    fn check(&self) -> Result<(), String> {
        for (what, word, known) in [
            ("transport", &self.transport, &TRANSPORTS[..]),
            ("compression", &self.compression, &COMPRESSIONS[..]),
        ] {
            if !known.contains(&word.as_str()) {
                return Err(format!("there is no {what} {word:?}; there are {}", known.join(", ")));
            }
        }
        Ok(())
    }
}

/// The ground on which proxies are started.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) run_dir: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) program: PathBuf,
    pub(crate) cgroups: domain::Cgroups,
    pub(crate) cgroup_name: String,
}

impl Ground {
    /// Removes the cgroups above those of proxies, where they are empty.
    fn remove_if_empty(&self) {
        self.cgroups.remove_if_empty(&format!("{}/{}", self.cgroup_name, keep::LINKS));
        self.cgroups.remove_if_empty(&self.cgroup_name);
    }
}

/// All proxies of a node.
#[derive(Debug)]
pub(crate) struct Proxies {
    ground: Arc<Ground>,
    broker: Broker,
    nodes: Arc<dyn Nodes>,
    shared: Arc<dyn Shared>,
    peers: Mutex<BTreeMap<String, Arc<Peer>>>,
    inspections: AtomicU64,
    /// The daemon ends for good.
    retiring: watch::Sender<bool>,
}

/// Another node, and the proxy for it.
#[derive(Debug)]
struct Peer {
    name: String,
    /// Where the other side listens.
    at: watch::Sender<Vec<String>>,
    wanted: watch::Sender<Wanted>,
    /// The interface for frames of raw Ethernet, where one was chosen.
    interface: watch::Sender<Option<String>>,
    /// The node is in the cluster no more.
    over: watch::Sender<bool>,
    /// Nobody keeps a proxy for it any more.
    done: watch::Sender<bool>,
    seen: Mutex<Seen>,
}

/// The known state of a proxy.
#[derive(Debug, Default)]
struct Seen {
    pid: Option<u32>,
    epoch: u64,
    listens: Vec<String>,
    up: bool,
    since_unix_s: u64,
    transport: String,
    /// Why the link is down, as far as this node's own proxy knows.
    why: String,
    /// Why the other node's daemon can't be asked, where it can't.
    unasked: Option<String>,
    /// Proxies that there were before, under this daemon.
    restarts: u64,
    inspections: BTreeMap<u64, oneshot::Sender<Value>>,
}

impl Seen {
    /// Why the link is down, for a person. `now`: what its proxy says when it is asked.
    fn why_down(&self, now: Option<&str>) -> String {
        let why = now.unwrap_or(&self.why);
        match &self.unasked {
            None => why.to_owned(),
            Some(unasked) if why.is_empty() => format!("its daemon can't be asked: {unasked}"),
            Some(unasked) => format!("{why}; and its daemon can't be asked: {unasked}"),
        }
    }
}

impl Peer {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Proxies {
    pub(crate) fn new(
        ground: Arc<Ground>,
        broker: Broker,
        nodes: Arc<dyn Nodes>,
        shared: Arc<dyn Shared>,
    ) -> Arc<Self> {
        let (peers, inspections) = (Mutex::default(), AtomicU64::new(0));
        let retiring = watch::Sender::default();
        Arc::new(Self { ground, broker, nodes, shared, peers, inspections, retiring })
    }

    /// Keeps a proxy for each other node, until it is dropped.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut changes = self.nodes.changes();
        let mut swept = false;
        loop {
            let Some(others) = self.nodes.others() else {
                if changes.changed().await.is_err() {
                    return;
                }
                continue;
            };
            if !std::mem::replace(&mut swept, true) {
                sweep(&self.ground, Some(&self.shared), &others).await;
            }
            for name in &others {
                self.keep(name);
            }
            let gone: Vec<_> = {
                let mut peers = self.peers();
                let names: Vec<_> = peers.keys().filter(|name| !others.contains(name)).cloned().collect();
                names.iter().filter_map(|name| peers.remove(name)).collect()
            };
            for peer in gone {
                peer.over.send_replace(true);
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The daemon ends for good: proxies that nobody uses end with it, and leave nothing; the
    /// others go on, and the next daemon finds them.
    pub(crate) async fn retire(&self) {
        self.retiring.send_replace(true);
        let peers: Vec<_> = self.peers().values().cloned().collect();
        let all = async {
            for peer in peers {
                // Its keeper holds it, too.
                let mut done = peer.done.subscribe();
                let _done = done.wait_for(|done| *done).await.is_ok();
            }
        };
        if tokio::time::timeout(RETIRE_TIMEOUT, all).await.is_err() {
            tracing::warn!("a proxy does not say whether it is used: it goes on");
        }
        self.ground.remove_if_empty();
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(&self, name: &str) -> Option<Arc<Peer>> {
        self.peers().get(name).cloned()
    }

    fn keep(self: &Arc<Self>, name: &str) {
        let mut peers = self.peers();
        if peers.contains_key(name) {
            return;
        }
        let kept = keep::load(&self.ground, name);
        let peer = Arc::new(Peer {
            name: name.to_owned(),
            at: watch::Sender::default(),
            wanted: watch::Sender::new(kept.wanted),
            interface: watch::Sender::new(kept.interface),
            over: watch::Sender::default(),
            done: watch::Sender::default(),
            seen: Mutex::default(),
        });
        peers.insert(name.to_owned(), Arc::clone(&peer));
        tokio::spawn(keep::keep(Arc::clone(self), peer));
    }

    /// Another node's daemon says where its proxy for us listens, or what the link is to be like;
    /// what there is to say of ours.
    ///
    /// # Errors
    /// An offer that means nothing.
    pub(crate) async fn offered(&self, from: &str, offer: Offer) -> Result<Offer, String> {
        let peer = self.peer(from).ok_or_else(|| format!("this node does not know a node {from} yet"))?;
        if !offer.listens.is_empty() && self.dials(from) {
            peer.at.send_if_modified(|at| std::mem::replace(at, offer.listens.clone()) != offer.listens);
        }
        if let Some(wanted) = offer.wanted {
            self.want(&peer, wanted).await?;
        }
        Ok(Offer { listens: peer.seen().listens.clone(), wanted: None })
    }

    /// Of two nodes the one with the smaller name connects.
    fn dials(&self, peer: &str) -> bool {
        self.nodes.me().as_str() < peer
    }

    async fn want(&self, peer: &Peer, wanted: Wanted) -> Result<(), String> {
        wanted.check()?;
        let kept = wanted.clone();
        self.write_down(peer, |into| into.wanted = kept).await?;
        peer.wanted.send_if_modified(|now| std::mem::replace(now, wanted.clone()) != wanted);
        Ok(())
    }

    async fn write_down(
        &self,
        peer: &Peer,
        change: impl FnOnce(&mut keep::Kept) + Send + 'static,
    ) -> Result<(), String> {
        let (ground, name) = (Arc::clone(&self.ground), peer.name.clone());
        let written = PROXIES.run(move || keep::store(&ground, &name, change)).await;
        let written = written.and_then(|written| written.map_err(|error| error.to_string()));
        written.map(drop).map_err(|why| format!("it can't be written down: {why}"))
    }

    /// All links, as they are listed.
    pub(crate) async fn rows(&self) -> Vec<LinkRow> {
        let peers: Vec<_> = self.peers().values().cloned().collect();
        let mut rows = Vec::new();
        for peer in peers {
            let state = self.inspect(&peer).await.unwrap_or(Value::Null);
            let number = |at: &str| state.pointer(at).and_then(Value::as_u64).unwrap_or(0);
            let stays = state.pointer("/link/stays_because").and_then(Value::as_str).unwrap_or_default();
            let down = state.pointer("/link/why_down").and_then(Value::as_str);
            let seen = peer.seen();
            rows.push(LinkRow {
                node: peer.name.clone(),
                up: seen.up,
                side: if self.dials(&peer.name) { "connects".into() } else { "listens".into() },
                transport: if seen.up { seen.transport.clone() } else { String::new() },
                wanted_transport: peer.wanted.borrow().transport.clone(),
                compression: peer.wanted.borrow().compression.clone(),
                interface: keep::interface(peer.interface.borrow().as_deref(), self.nodes.address())
                    .map(|interface| interface.name)
                    .ok(),
                at: if self.dials(&peer.name) { peer.at.borrow().clone() } else { seen.listens.clone() },
                pid: seen.pid,
                epoch: seen.epoch,
                restarts: seen.restarts,
                since_unix_s: seen.since_unix_s,
                round_trip_ms: state.pointer("/link/round_trip_ms").and_then(Value::as_u64),
                pairs: number("/pairs_open"),
                messages_out: number("/out_messages"),
                messages_in: number("/in_messages"),
                bytes_out: number("/link/bytes_out"),
                bytes_in: number("/link/bytes_in"),
                why: if seen.up { stays.to_owned() } else { seen.why_down(down) },
            });
        }
        rows
    }

    /// Returns the state of one link; `None`: there is no such node.
    pub(crate) async fn tree(&self, node: &str) -> Option<Value> {
        let row = self.rows().await.into_iter().find(|row| row.node == node)?;
        let peer = self.peer(node)?;
        let state = self.inspect(&peer).await.unwrap_or(Value::Null);
        let mut tree = serde_json::to_value(row).ok()?;
        tree.as_object_mut()?.insert("state".into(), state);
        Some(tree)
    }

    async fn inspect(&self, peer: &Peer) -> Option<Value> {
        let id = self.inspections.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        peer.seen().inspections.insert(id, tell);
        let state = if self.broker.order_proxy(&peer.name, Order::Inspect { id }) {
            tokio::time::timeout(INSPECT_TIMEOUT, told).await.ok().and_then(Result::ok)
        } else {
            None
        };
        peer.seen().inspections.remove(&id);
        state
    }

    /// Changes a link, on both nodes.
    ///
    /// # Errors
    /// In words: no such node or transport; the other node can't be asked.
    pub(crate) async fn set(&self, node: &str, change: &LinkChange) -> Result<(), String> {
        let peer = self.peer(node).ok_or_else(|| format!("there is no node {node:?} but this one"))?;
        if let Some(interface) = &change.interface {
            self.choose(&peer, interface).await?;
        }
        if change.transport.is_none() && change.compression.is_none() {
            return Ok(());
        }
        let mut wanted = peer.wanted.borrow().clone();
        if let Some(transport) = &change.transport {
            wanted.transport.clone_from(transport);
        }
        if let Some(compression) = &change.compression {
            wanted.compression.clone_from(compression);
        }
        wanted.check()?;
        // The other node first: who connects exchanges the transport, and each side packs what it
        // sends itself.
        let offer = Offer { listens: peer.seen().listens.clone(), wanted: Some(wanted.clone()) };
        self.nodes.call(node, offer).await.map_err(|e| format!("node {node} can't be asked: {e}"))?;
        self.want(&peer, wanted).await
    }

    /// Another interface of this node for frames of raw Ethernet.
    async fn choose(&self, peer: &Peer, interface: &str) -> Result<(), String> {
        let chosen = Some(interface).filter(|name| *name != AUTO).map(str::to_owned);
        // Whether it would do; the proxy is given one of its own.
        keep::station(chosen.as_deref(), self.nodes.address()).map_err(|error| {
            format!("no frames of Ethernet can go there: {error}; `ip link` lists the interfaces")
        })?;
        let kept = chosen.clone();
        self.write_down(peer, |into| into.interface = kept).await?;
        peer.interface.send_if_modified(|now| std::mem::replace(now, chosen.clone()) != chosen);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
