//! The cluster that a node belongs to: who else is in it and lives, what this node may still do,
//! and how nodes speak to each other.
//!
//! A node that belongs to none has no [`Cluster`], and nothing of this runs. `docs/spec/joining.md`
//! describes what nodes say; `docs/adr/0019-*` and `docs/adr/0020-*` say why.

mod authority;
mod call;
pub(crate) mod clock;
mod config;
pub(crate) mod etcd_view;
pub(crate) mod growth;
pub(crate) mod init;
mod issued;
pub(crate) mod join;
mod keep;
mod name;
mod number;
pub(crate) mod own_etcd;
pub(crate) mod release;
mod remembered;
pub(crate) mod replace;
pub(crate) mod restore;
pub(crate) mod rotate;
mod serve;
mod suspicions;
pub(crate) mod token;
mod trusted;
mod visitors;

pub(crate) use call::Stream;
pub(crate) use config::Config;
pub(crate) use keep::Kept;
pub(crate) use rotate::rotate_when_due;
pub(crate) use serve::{Caller, JOIN_PATH, OfConnection, Origin, PROOF_PATH, serve};
pub(crate) use visitors::Stranger;

use crate::base::RegistryDebug;
use admin::{Code, NodeRow, NodesView, Problem};
use registry::{Etcd, EtcdSettings, Expected, Lease, Registry, RegistryError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use trust::Identity;

/// Where nodes ask each other, where nobody says otherwise.
pub const PEER_PORT: u16 = 7420;
/// Keys of what nodes are.
pub(crate) const NODES: &str = "node/";
/// Keys of those who live, bound to their leases.
pub(crate) const ALIVE: &str = "alive/";
/// Keys of addresses, so that no two nodes have one.
pub(crate) const ADDRESSES: &str = "address/";
/// Keys of the serials of certificates that are no longer believed.
pub(crate) const REVOKED: &str = "revoked/";
/// Key of the cluster's authority; with it a cluster begins to be.
pub(crate) const AUTHORITY: &str = "cluster/ca";

/// The registry's record of a node, at `node/NAME`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    #[serde(default)]
    pub(crate) locators: Vec<String>,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) cpus: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) joined_unix_s: u64,
    pub(crate) serial: String,
    pub(crate) version: String,
    /// Its number, which no other node of the cluster ever had. None: a release entered it that
    /// knew of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<u32>,
}

/// The registry's record of a node that lives, at `alive/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AliveRecord {
    /// The incarnation of the node; no two have the same.
    pub(crate) incarnation: u64,
    /// The start of its machine: two machines with one name are noticed.
    pub(crate) boot: String,
    pub(crate) since_unix_s: u64,
    /// It counts no renewal while a suspicion of it stands, and believes in one that it counts for
    /// less than this after it was sent. None: it is of a release that knows of no suspicions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answers_within_ms: Option<u64>,
}

/// A node of the cluster, as far as this one knows.
#[derive(Debug, Clone, PartialEq)]
#[allow(dead_code, reason = "placement and links read the others")]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) locators: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) cpus: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) alive: bool,
    pub(crate) incarnation: Option<u64>,
    pub(crate) version: String,
    pub(crate) joined_unix_s: u64,
    pub(crate) serial: String,
}

/// A node's handle of its cluster. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: Config,
    identity: Identity,
    state_dir: PathBuf,
    folder: PathBuf,
    etcd: Etcd,
    state: Mutex<State>,
    /// Grows whenever what [`Cluster::nodes`] says changes.
    changes: watch::Sender<u64>,
    /// Held by who changes what this node shows or believes.
    certificate: tokio::sync::Mutex<()>,
    /// Grows whenever this node shows or believes something else.
    trust_changes: watch::Sender<u64>,
    /// Until when the lease is certainly held (`CLOCK_BOOTTIME`, ns); 0: it is not.
    held_until: watch::Sender<u64>,
    incarnation: AtomicU64,
    /// This machine, which was removed, is about to be a node again: as another than this one.
    joins_anew: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<String, NodeRecord>,
    alive: BTreeMap<String, AliveRecord>,
    lease: Option<Lease>,
    /// Why this node is fenced, or was last.
    why: Option<String>,
    /// The registry says that this node is none of the cluster's.
    removed: bool,
    /// The records are what the registry said once.
    listed: bool,
    /// The other troubles, each in a sentence.
    troubles: BTreeMap<Trouble, String>,
    /// The records of nodes when an earlier daemon, or this one, could ask the registry last.
    remembered: BTreeMap<String, NodeRecord>,
}

/// A trouble of a node that takes part in its cluster all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    /// Its clock is off.
    Clock,
    /// More is revoked than is kept.
    Revoked,
}

impl State {
    /// Returns the record of a node: from the registry, or from earlier where that has not answered
    /// yet.
    fn record(&self, name: &str) -> Option<&NodeRecord> {
        if self.listed { self.records.get(name) } else { self.remembered.get(name) }
    }
}

/// Nanoseconds of a clock that nobody sets, and that goes on while the machine sleeps.
pub(crate) fn boottime_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanoseconds.unwrap_or(0))
}

/// Seconds of Unix time by this node's clock.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Where a node keeps who it is.
pub(crate) fn trust_folder(state_dir: &Path) -> PathBuf {
    state_dir.join("trust")
}

impl Cluster {
    /// The cluster that this node belongs to, if it does. Nothing is asked yet.
    ///
    /// # Errors
    /// Its files are not whole, or not what they should be.
    pub(crate) fn open(state_dir: &Path) -> Result<Option<Self>, ClusterError> {
        let Some(config) = Config::load(state_dir)? else { return Ok(None) };
        if let Some(why) = config.etcd.unsaid() {
            tracing::warn!(
                "{why}: give etcd TLS and certificates of its clients, and write what it takes into {} on each node; where nobody but the nodes reaches it, \
                 write \"insecure\": true there, below \"etcd\"",
                Config::path(state_dir).display()
            );
        }
        let folder = trust_folder(state_dir);
        let identity = Identity::load(&folder)?;
        let etcd = Etcd::new(nearest_first(config.etcd.settings(&identity), config.address.ip()))?;
        let remembered = remembered::load(state_dir);
        let inner = Inner {
            config,
            identity,
            state_dir: state_dir.to_owned(),
            folder,
            etcd,
            state: Mutex::new(State { remembered, ..State::default() }),
            changes: watch::channel(0).0,
            certificate: tokio::sync::Mutex::default(),
            trust_changes: watch::channel(0).0,
            held_until: watch::channel(0).0,
            incarnation: AtomicU64::new(0),
            joins_anew: AtomicBool::new(false),
        };
        Ok(Some(Self { inner: Arc::new(inner) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node's name.
    pub(crate) fn me(&self) -> &str {
        self.inner.identity.node()
    }

    /// Returns the incarnation of this node: another after each lease that was lost. 0: it has none
    /// yet.
    pub(crate) fn incarnation(&self) -> u64 {
        self.inner.incarnation.load(Ordering::Relaxed)
    }

    /// Returns this node's identity.
    pub(crate) fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// Where that is kept: for processes of this node that speak to other nodes by themselves.
    pub(crate) fn trust_folder(&self) -> &Path {
        &self.inner.folder
    }

    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The registry that all nodes share. It may take seconds: not for the event loop.
    pub(crate) fn registry(&self) -> Arc<dyn RegistryDebug> {
        Arc::new(self.inner.etcd.clone())
    }

    pub(crate) fn etcd(&self) -> &Etcd {
        &self.inner.etcd
    }

    /// All nodes by name, this one included, as far as they are known.
    pub(crate) fn nodes(&self) -> Vec<Member> {
        let state = self.state();
        state.records.values().map(|record| member(record, state.alive.get(&record.name))).collect()
    }

    /// One node.
    pub(crate) fn member(&self, name: &str) -> Option<Member> {
        let state = self.state();
        state.record(name).map(|record| member(record, state.alive.get(name)))
    }

    /// Whether a node is at that address, as far as is known.
    fn has_a_node_at(&self, ip: IpAddr) -> bool {
        let state = self.state();
        let records = if state.listed { &state.records } else { &state.remembered };
        records.values().any(|record| record.address.ip().to_canonical() == ip.to_canonical())
    }

    /// The number of a node, as the registry has it.
    pub(crate) fn number_of(&self, name: &str) -> Option<u32> {
        self.state().record(name)?.number
    }

    /// Names of all nodes, this one included. `None`: the registry was never asked, by no daemon of
    /// this node.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        let state = self.state();
        let records = if state.listed { &state.records } else { &state.remembered };
        (state.listed || !records.is_empty()).then(|| records.keys().cloned().collect())
    }

    /// Ticks when what [`Cluster::nodes`] says has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    /// Ticks when this node has another certificate, or believes somebody else, and has written it
    /// down.
    pub(crate) fn trust_changes(&self) -> watch::Receiver<u64> {
        self.inner.trust_changes.subscribe()
    }

    fn trust_changed(&self) {
        self.inner.trust_changes.send_modify(|changes| *changes += 1);
    }

    /// Whether this node must not do what others may do in its place.
    pub(crate) fn is_fenced(&self) -> bool {
        boottime_ns() >= *self.inner.held_until.borrow()
    }

    /// Why it must not, for a person.
    pub(crate) fn why_fenced(&self) -> Option<String> {
        self.state().why.clone().filter(|_| self.is_fenced())
    }

    /// Notes that something is wrong, or (`None`) is not any more.
    fn say_trouble(&self, trouble: Trouble, what: Option<String>) {
        let mut state = self.state();
        let before = match &what {
            Some(what) => state.troubles.insert(trouble, what.clone()),
            None => state.troubles.remove(&trouble),
        };
        drop(state);
        match what {
            Some(what) if before.as_ref() != Some(&what) => {
                tracing::error!(what, "this node's cluster wants somebody to look")
            }
            _ => {}
        }
    }

    /// Until when it certainly may (`CLOCK_BOOTTIME`, ns); 0: it may not.
    pub(crate) fn fence_deadline(&self) -> watch::Receiver<u64> {
        self.inner.held_until.subscribe()
    }

    /// Puts something that is gone when this node no longer lives. Takes as long as the registry
    /// does.
    ///
    /// # Errors
    /// As for [`Registry::put`]; this node is fenced.
    pub(crate) fn put_leased(
        &self,
        key: &str,
        value: &[u8],
        expected: Expected,
    ) -> Result<u64, RegistryError> {
        let lease = self.state().lease.clone();
        match lease {
            Some(lease) if !self.is_fenced() => self.inner.etcd.put_leased(key, value, expected, &lease),
            _ => Err(RegistryError::Fenced),
        }
    }

    /// Returns the view of `node ls`.
    pub(crate) fn view(&self) -> NodesView {
        let fenced = self.is_fenced();
        let why = self.why_fenced();
        let (removed, troubles) = {
            let state = self.state();
            (state.removed, state.troubles.values().cloned().collect())
        };
        let rows = self.nodes().into_iter().map(|member| self.row(member)).collect();
        NodesView {
            cluster: Some(self.inner.identity.cluster().to_owned()),
            me: Some(self.me().to_owned()),
            fenced,
            why,
            removed,
            troubles,
            etcd: self.inner.etcd.settings().endpoints,
            unprotected: self.inner.config.etcd.unsaid(),
            nodes: rows,
        }
    }

    fn row(&self, member: Member) -> NodeRow {
        let me = member.name == self.me();
        NodeRow {
            name: member.name,
            address: member.address.to_string(),
            alive: member.alive,
            me,
            incarnation: member.incarnation,
            labels: member.labels,
            cpus: member.cpus,
            memory_bytes: member.memory_bytes,
            version: member.version,
            joined_unix_s: member.joined_unix_s,
            certificate: if me { self.inner.identity.serial().to_string() } else { member.serial },
            certificate_until_unix_s: me.then(|| self.inner.identity.valid_until_unix_s()),
            authority: me.then(|| self.inner.folder.join("authority.pem").exists()),
            // Whoever follows the cluster's books adds it.
            free: None,
        }
    }

    /// Held by who changes what this node shows or believes.
    pub(crate) async fn changing(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.inner.certificate.lock().await
    }

    /// Whether this machine, which was removed, is about to be another node: this one lives no more
    /// then.
    pub(crate) fn joins_anew(&self, does: bool) {
        self.inner.joins_anew.store(does, Ordering::Relaxed);
    }

    /// Whether it is: then the files are those of the node that it is about to be.
    fn is_over(&self) -> bool {
        self.inner.joins_anew.load(Ordering::Relaxed)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.state().removed
    }
}

fn member(record: &NodeRecord, alive: Option<&AliveRecord>) -> Member {
    Member {
        name: record.name.clone(),
        address: record.address,
        locators: record.locators.clone(),
        labels: record.labels.clone(),
        cpus: record.cpus,
        memory_bytes: record.memory_bytes,
        alive: alive.is_some(),
        incarnation: alive.map(|alive| alive.incarnation),
        version: record.version.clone(),
        joined_unix_s: record.joined_unix_s,
        serial: record.serial.clone(),
    }
}

/// Asks the member on this machine first, where there is one: so the loss of another machine costs
/// this one no connection that has to end first.
fn nearest_first(mut settings: EtcdSettings, own: IpAddr) -> EtcdSettings {
    settings.endpoints.sort_by_key(|endpoint| !is_of(endpoint, own));
    settings
}

/// Whether the host of a URL is this address, or a loopback one.
fn is_of(url: &str, own: IpAddr) -> bool {
    let Some(host) = crate::etcd::host_of(url) else { return false };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip == own || ip.is_loopback())
}

/// Returns this machine's processors and memory.
pub(crate) fn resources() -> (u32, u64) {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let system = rustix::system::sysinfo();
    let unit = u64::from(system.mem_unit.max(1));
    (u32::try_from(cpus).unwrap_or(u32::MAX), system.totalram.saturating_mul(unit))
}

/// Why a node can't be what it was in its cluster, or become part of one.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Its settings can't be read or written.
    #[error("can't {what} {}: {cause}", path.display())]
    File {
        /// `read` or `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// Its settings are not understood.
    #[error("{} is not understood ({why}): put a copy of it back, or join the cluster again", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Its identity can't be read.
    #[error(transparent)]
    Trust(#[from] trust::TrustError),
    /// The cluster's registry can't be used so.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl From<ClusterError> for Problem {
    fn from(error: ClusterError) -> Self {
        Self::new(Code::Failed, error.to_string())
    }
}

/// Makes a problem of an error of the registry or the cryptography.
pub(crate) fn failed(error: impl std::fmt::Display) -> Problem {
    Problem::new(Code::Failed, error.to_string())
}

/// Does what may block away from the event loop, with what asks the registry.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    crate::base::REGISTRY.run(work).await.unwrap_or_else(|why| Err(failed(why)))
}

/// As [`blocking`], for machines that want to join: however many they are, the node itself goes on
/// asking.
pub(crate) async fn for_strangers<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    crate::base::STRANGERS.run(work).await.unwrap_or_else(|why| Err(failed(why)))
}

pub(crate) fn get_json<T: serde::de::DeserializeOwned>(
    registry: &dyn Registry,
    key: &str,
) -> Result<Option<(T, u64)>, Problem> {
    let Some(entry) = registry.get(key).map_err(failed)? else { return Ok(None) };
    let value = serde_json::from_slice(&entry.value)
        .map_err(|error| failed(format!("{key} in the registry is not understood: {error}")))?;
    Ok(Some((value, entry.revision)))
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<Vec<u8>, Problem> {
    serde_json::to_vec(value).map_err(failed)
}

#[cfg(test)]
mod tests;
