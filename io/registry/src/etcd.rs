//! The registry of a cluster: etcd (3.4 and later), at one or more endpoints, with TLS where they
//! want it.
//!
//! The trait is for threads that may block; etcd's client waits with tokio. So there is one thread
//! of our own with an event loop, and whoever calls waits for it, no longer than [`DEADLINE`]. Each
//! endpoint is asked by itself: one that does not answer is left for the next.
//!
//! Where an answer to a write was lost, the write is tried again; it is known as ours by its value.
//! (Two writers who put the same bytes into one key under one belief can't tell who was first;
//! claims name their writer.)

mod calls;
mod lease;
mod members;
mod probe;
mod said;
mod suspicions;
mod watching;

pub use lease::{Lease, Renewal};
pub use members::EtcdMember;
pub use said::{EtcdError, Trouble};
pub use suspicions::{Bound, Counted, Suspected, Watched};

use crate::{
    Entry, Expected, Registry, RegistryError, Watch, check_all, check_guarded, check_key, check_value,
    value_of,
};
use calls::Answered;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, KvClient, PutOptions,
    TlsOptions, Txn, TxnOp, TxnOpResponse,
};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How long a call takes at the most, whatever etcd does: longer than it needs to choose another
/// leader (1 s).
pub const DEADLINE: Duration = Duration::from_secs(5);
/// How long one endpoint may take before the next is asked.
const ENDPOINT_TIMEOUT: Duration = Duration::from_millis(1_600);
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);
/// How often a connection is asked whether it still is one; etcd refuses clients that ask more
/// often.
const PING_EVERY: Duration = Duration::from_secs(6);
/// How long it may take to say so.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest answer: a list of all topologies of a large cluster, each of the greatest size.
const MAX_ANSWER_BYTES: usize = 256 << 20;
/// Most endpoints.
pub const MAX_ENDPOINTS: usize = 16;
/// The default prefix of every key.
pub const DEFAULT_PREFIX: &str = "/tombolo/";

/// Where etcd is and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// `http://HOST:PORT` or `https://HOST:PORT`, one or more.
    pub endpoints: Vec<String>,
    /// The prefix of every key: several clusters may share one etcd.
    pub prefix: String,
    /// Where the endpoints are `https`.
    pub tls: Option<EtcdTls>,
}

impl EtcdSettings {
    /// Endpoints without TLS, or with it where [`EtcdSettings::tls`] is set afterwards.
    #[must_use]
    pub fn new(endpoints: &[String]) -> Self {
        Self { endpoints: endpoints.to_vec(), prefix: DEFAULT_PREFIX.into(), tls: None }
    }
}

/// How etcd and we know each other.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// The authority of its certificates, as PEM.
    pub authority_pem: String,
    /// Our certificate and key, as PEM, where it wants one.
    pub own_pem: Option<(String, String)>,
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").field("own", &self.own_pem.is_some()).finish_non_exhaustive()
    }
}

/// See the module. Clones are the same.
#[derive(Debug, Clone)]
pub struct Etcd {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    /// The prefix of every key.
    prefix: String,
    reach: Mutex<Arc<Reach>>,
    /// `None` only while it is dropped.
    runtime: Option<tokio::runtime::Runtime>,
    /// Grows when an endpoint fails, and when there are others: watches look for another one then.
    moves: tokio::sync::watch::Sender<u64>,
    /// The greatest revision that was seen, and of which etcd.
    highest: AtomicI64,
    cluster_id: AtomicU64,
    /// It is not where it was: nothing more is done with it.
    went_back: OnceLock<String>,
}

/// How etcd is reached: replaced as a whole when its members, or certificates, are others.
pub(crate) struct Reach {
    pub(crate) settings: EtcdSettings,
    options: ConnectOptions,
    pub(crate) clients: Vec<Mutex<Option<Client>>>,
    /// The endpoint that answered last.
    current: AtomicUsize,
}

impl Reach {
    fn new(settings: EtcdSettings) -> Result<Self, RegistryError> {
        let bad =
            |what: String| RegistryError::Etcd(EtcdError::new(Trouble::Settings, &settings.endpoints, what));
        if settings.endpoints.is_empty() || settings.endpoints.len() > MAX_ENDPOINTS {
            return Err(bad(format!("1 to {MAX_ENDPOINTS} endpoints are needed")));
        }
        for endpoint in &settings.endpoints {
            let secure = endpoint.starts_with("https://");
            if !secure && !endpoint.starts_with("http://") {
                return Err(bad(format!("{endpoint:?} is no URL as http://HOST:2379 or https://HOST:2379")));
            }
            if secure != settings.tls.is_some() {
                return Err(bad(format!(
                    "{endpoint:?}: https and the authority of its certificates belong together"
                )));
            }
        }
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_keep_alive(PING_EVERY, PING_TIMEOUT)
            .with_require_leader(true);
        if let Some(tls) = &settings.tls {
            let mut of_tls = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.authority_pem));
            if let Some((certificate, key)) = &tls.own_pem {
                of_tls = of_tls.identity(Identity::from_pem(certificate, key));
            }
            options = options.with_tls(of_tls);
        }
        let clients = settings.endpoints.iter().map(|_| Mutex::default()).collect();
        Ok(Self { settings, options, clients, current: AtomicUsize::new(0) })
    }

    /// Goes on with the connections of an earlier one, as far as they are what this one would make.
    fn go_on_from(&self, before: &Self) {
        if self.settings.tls != before.settings.tls {
            return;
        }
        for (index, endpoint) in self.settings.endpoints.iter().enumerate() {
            let Some(there) = before.settings.endpoints.iter().position(|other| other == endpoint) else {
                continue;
            };
            let client = before.clients[there].lock().unwrap_or_else(PoisonError::into_inner).clone();
            *self.clients[index].lock().unwrap_or_else(PoisonError::into_inner) = client;
            if there == before.current.load(Ordering::Relaxed) {
                self.current.store(index, Ordering::Relaxed);
            }
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("settings", &self.reach().settings).finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It may be dropped in an event loop, where nothing may wait.
            runtime.shutdown_background();
        }
    }
}

impl Etcd {
    /// A registry at these endpoints. Nothing is connected yet: etcd may come later.
    /// [`Etcd::check`] asks it.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`]: settings that can't be.
    pub fn new(settings: EtcdSettings) -> Result<Self, RegistryError> {
        let endpoints = settings.endpoints.clone();
        let (prefix, reach) = (settings.prefix.clone(), Reach::new(settings)?);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("registry")
            .enable_all()
            .build()
            .map_err(|error| {
                EtcdError::new(Trouble::Settings, &endpoints, format!("no thread for it: {error}"))
            })?;
        let shared = Shared {
            prefix,
            reach: Mutex::new(Arc::new(reach)),
            runtime: Some(runtime),
            moves: tokio::sync::watch::channel(0).0,
            highest: AtomicI64::new(0),
            cluster_id: AtomicU64::new(0),
            went_back: OnceLock::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Asks etcd which version it is, and refuses what is too old.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`].
    pub fn check(&self) -> Result<String, RegistryError> {
        let version = self.call(false, |mut client| async move {
            let status = client.status().await?;
            Ok(Answered { header: None, value: status.version().to_owned() })
        })?;
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (3, 4) {
            let what = format!("it is version {version}");
            return Err(RegistryError::Etcd(EtcdError::new(
                Trouble::Old,
                &self.shared.reach().settings.endpoints,
                what,
            )));
        }
        Ok(version)
    }

    /// Where it is.
    #[must_use]
    pub fn settings(&self) -> EtcdSettings {
        self.shared.reach().settings.clone()
    }

    /// Reaches the same etcd at other endpoints, or with other certificates, from now on;
    /// connections that are the same go on. The prefix stays.
    ///
    /// # Errors
    /// As for [`Etcd::new`]; nothing is changed then.
    pub fn reach_by(&self, settings: EtcdSettings) -> Result<(), RegistryError> {
        let prefix = self.shared.prefix.clone();
        let next = Reach::new(EtcdSettings { prefix, ..settings })?;
        let mut reach = self.shared.reach.lock().unwrap_or_else(PoisonError::into_inner);
        if reach.settings == next.settings {
            return Ok(());
        }
        next.go_on_from(&reach);
        *reach = Arc::new(next);
        drop(reach);
        self.shared.moves.send_modify(|moves| *moves += 1);
        Ok(())
    }

    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.shared.prefix)
    }

    /// As [`Registry::put`]; what is put is gone when the lease is.
    ///
    /// # Errors
    /// As there; [`Trouble::Lease`] where the lease is gone already.
    pub fn put_leased(
        &self,
        key: &str,
        value: &[u8],
        expected: Expected,
        lease: &Lease,
    ) -> Result<u64, RegistryError> {
        self.put_with(key, value, expected, lease.id())
    }

    fn put_with(
        &self,
        key: &str,
        value: &[u8],
        expected: Expected,
        lease: i64,
    ) -> Result<u64, RegistryError> {
        check_key(key)?;
        check_value(key, value)?;
        let full = self.full(key);
        let mut lost = false;
        let outcome = self.retry(&mut lost, |client| {
            let options = PutOptions::new().with_lease(lease);
            let txn = Txn::new()
                .when(compare(&full, expected))
                .and_then([TxnOp::put(full.as_str(), value, Some(options))])
                .or_else([TxnOp::get(full.as_str(), None)]);
            async move {
                let answer = kv(&client).txn(txn).await?;
                let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
                let value =
                    if answer.succeeded() { Ok(revision) } else { Err(found_in(&answer.op_responses())) };
                Ok(Answered { header: answer.header().map(Into::into), value })
            }
        })?;
        match outcome {
            Ok(revision) => Ok(positive(revision)),
            // Our own write, whose answer was lost.
            Err(Some(there)) if lost && there.value == value => Ok(there.revision),
            Err(there) => Err(conflict(key, expected, there)),
        }
    }

    /// Removes every key, if there is none at `unless`: for a registry that is about to be filled.
    ///
    /// # Errors
    /// [`RegistryError::Conflict`]: there is; [`RegistryError::Etcd`].
    pub fn clear_unless(&self, unless: &str) -> Result<(), RegistryError> {
        let (guard, all) = (self.full(unless), self.full(""));
        let mut lost = false;
        let done = self.retry(&mut lost, |client| {
            let options = etcd_client::DeleteOptions::new().with_prefix();
            let txn = Txn::new()
                .when(compare(&guard, Expected::Absent))
                .and_then([TxnOp::delete(all.as_str(), Some(options))])
                .or_else([TxnOp::get(guard.as_str(), None)]);
            async move {
                let answer = kv(&client).txn(txn).await?;
                let value = if answer.succeeded() { Ok(()) } else { Err(found_in(&answer.op_responses())) };
                Ok(Answered { header: answer.header().map(Into::into), value })
            }
        })?;
        done.map_err(|there| conflict(unless, Expected::Absent, there))
    }
}

/// A client for values of every size.
fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES)
}

fn positive(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

fn compare(full: &str, expected: Expected) -> Vec<Compare> {
    match expected {
        Expected::Anything => Vec::new(),
        Expected::Absent => vec![Compare::create_revision(full, CompareOp::Equal, 0)],
        Expected::Revision(revision) => {
            // A revision that etcd can't have is nobody's.
            let revision = i64::try_from(revision).unwrap_or(i64::MAX);
            vec![Compare::mod_revision(full, CompareOp::Equal, revision)]
        }
    }
}

fn found_in(responses: &[TxnOpResponse]) -> Option<Entry> {
    responses.iter().find_map(found_by)
}

fn found_by(response: &TxnOpResponse) -> Option<Entry> {
    match response {
        TxnOpResponse::Get(got) => got.kvs().first().map(entry),
        _ => None,
    }
}

/// The outcome of a write whose guards, that are `there` now, were not all as expected. After a
/// lost answer they may have the values of this very write.
fn refused(
    guards: &[(&str, Expected)],
    changes: &[(String, Option<Vec<u8>>)],
    there: &[Option<Entry>],
    lost: bool,
) -> Result<u64, RegistryError> {
    let revision = there.first().and_then(Option::as_ref).map(|entry| entry.revision);
    let is_ours = |((guard, _), found): (&(&str, Expected), &Option<Entry>)| {
        found.as_ref().is_some_and(|found| {
            Some(found.revision) == revision && value_of(guard, changes) == Some(&found.value)
        })
    };
    if let Some(revision) = revision.filter(|_| lost && guards.iter().zip(there).all(is_ours)) {
        return Ok(revision);
    }
    let found = there.iter().map(|found| found.as_ref().map(|entry| entry.revision));
    let mut compared = guards.iter().zip(found);
    let first = compared.clone().next();
    match compared.find(|((_, expected), found)| !expected.meets(*found)).or(first) {
        Some(((guard, expected), found)) => {
            Err(RegistryError::Conflict { key: (*guard).to_owned(), expected: *expected, found })
        }
        None => Err(RegistryError::Key(0)),
    }
}

fn entry(found: &etcd_client::KeyValue) -> Entry {
    Entry { value: found.value().to_vec(), revision: positive(found.mod_revision()) }
}

fn conflict(key: &str, expected: Expected, there: Option<Entry>) -> RegistryError {
    RegistryError::Conflict { key: key.to_owned(), expected, found: there.map(|entry| entry.revision) }
}

impl Registry for Etcd {
    fn get(&self, key: &str) -> Result<Option<Entry>, RegistryError> {
        check_key(key)?;
        let full = self.full(key);
        self.call(false, |client| {
            let full = full.clone();
            async move {
                let answer = kv(&client).get(full, None).await?;
                Ok(Answered {
                    header: answer.header().map(Into::into),
                    value: answer.kvs().first().map(entry),
                })
            }
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Entry)>, RegistryError> {
        let full = self.full(prefix);
        let cut = self.shared.prefix.len();
        self.call(false, |client| {
            let full = full.clone();
            async move {
                let answer = kv(&client).get(full, Some(GetOptions::new().with_prefix())).await?;
                let entries = answer.kvs().iter().map(|found| {
                    let key =
                        String::from_utf8_lossy(found.key().get(cut..).unwrap_or_default()).into_owned();
                    (key, entry(found))
                });
                Ok(Answered { header: answer.header().map(Into::into), value: entries.collect() })
            }
        })
    }

    fn put(&self, key: &str, value: &[u8], expected: Expected) -> Result<u64, RegistryError> {
        self.put_with(key, value, expected, 0)
    }

    fn delete(&self, key: &str, expected: Expected) -> Result<bool, RegistryError> {
        check_key(key)?;
        let full = self.full(key);
        let mut lost = false;
        let outcome = self.retry(&mut lost, |client| {
            let txn = Txn::new()
                .when(compare(&full, expected))
                .and_then([TxnOp::delete(full.as_str(), None)])
                .or_else([TxnOp::get(full.as_str(), None)]);
            async move {
                let answer = kv(&client).txn(txn).await?;
                let responses = answer.op_responses();
                let deleted =
                    responses.iter().any(|r| matches!(r, TxnOpResponse::Delete(d) if d.deleted() > 0));
                let value = if answer.succeeded() { Ok(deleted) } else { Err(found_in(&responses)) };
                Ok(Answered { header: answer.header().map(Into::into), value })
            }
        })?;
        match outcome {
            Ok(deleted) => Ok(deleted || lost),
            // Our own removal, whose answer was lost.
            Err(None) if lost => Ok(true),
            Err(there) => Err(conflict(key, expected, there)),
        }
    }

    fn write(&self, changes: &[(String, Option<Vec<u8>>)]) -> Result<(), RegistryError> {
        check_all(changes)?;
        let mut lost = false;
        self.retry(&mut lost, |client| {
            let txn = Txn::new().and_then(self.operations(changes));
            async move {
                let answer = kv(&client).txn(txn).await?;
                Ok(Answered { header: answer.header().map(Into::into), value: () })
            }
        })
    }

    fn write_if(
        &self,
        guards: &[(&str, Expected)],
        changes: &[(String, Option<Vec<u8>>)],
    ) -> Result<u64, RegistryError> {
        check_guarded(guards, changes)?;
        let full: Vec<(String, Expected)> =
            guards.iter().map(|(guard, expected)| (self.full(guard), *expected)).collect();
        let mut lost = false;
        let outcome = self.retry(&mut lost, |client| {
            let compared: Vec<Compare> =
                full.iter().flat_map(|(guard, expected)| compare(guard, *expected)).collect();
            let looked: Vec<TxnOp> = full.iter().map(|(guard, _)| TxnOp::get(guard.as_str(), None)).collect();
            let txn = Txn::new().when(compared).and_then(self.operations(changes)).or_else(looked);
            async move {
                let answer = kv(&client).txn(txn).await?;
                let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
                let value = if answer.succeeded() {
                    Ok(revision)
                } else {
                    Err(answer.op_responses().iter().map(found_by).collect::<Vec<_>>())
                };
                Ok(Answered { header: answer.header().map(Into::into), value })
            }
        })?;
        match outcome {
            Ok(revision) => Ok(positive(revision)),
            Err(there) => refused(guards, changes, &there, lost),
        }
    }

    fn watch(&self, prefix: &str) -> Result<Watch, RegistryError> {
        watching::watch(&self.shared, self.full(prefix), || self.revision())
    }
}

impl Etcd {
    /// Several changes, as etcd wants them in a transaction.
    fn operations(&self, changes: &[(String, Option<Vec<u8>>)]) -> Vec<TxnOp> {
        let one = |(key, value): &(String, Option<Vec<u8>>)| match value {
            Some(value) => TxnOp::put(self.full(key), value.as_slice(), None),
            None => TxnOp::delete(self.full(key), None),
        };
        changes.iter().map(one).collect()
    }

    /// The present revision, as a majority of etcd knows it.
    fn revision(&self) -> Result<i64, RegistryError> {
        let full = self.full("-");
        self.call(false, |client| {
            let full = full.clone();
            async move {
                let answer = kv(&client).get(full, Some(GetOptions::new().with_count_only())).await?;
                let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
                Ok(Answered { header: answer.header().map(Into::into), value: revision })
            }
        })
    }
}

impl Shared {
    pub(crate) fn moved(&self) -> tokio::sync::watch::Receiver<u64> {
        self.moves.subscribe()
    }

    pub(crate) fn reach(&self) -> Arc<Reach> {
        Arc::clone(&self.reach.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The client of an endpoint, made when it is first asked for.
    pub(crate) async fn client(&self, index: usize) -> Result<Client, etcd_client::Error> {
        let reach = self.reach();
        // There may be fewer endpoints than a moment ago.
        let slot =
            reach.clients.get(index).ok_or_else(|| etcd_client::Error::Internal("no endpoint".into()))?;
        let known = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(client) = known {
            return Ok(client);
        }
        let endpoint = reach.settings.endpoints[index].as_str();
        let client = Client::connect([endpoint], Some(reach.options.clone())).await?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok(client)
    }

    /// An endpoint did not do: the next is asked from now on, and this one by a connection of its
    /// own.
    pub(crate) fn leave(&self, index: usize) {
        let reach = self.reach();
        if let Some(slot) = reach.clients.get(index) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let next = (index + 1) % reach.clients.len();
        if reach.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.moves.send_modify(|moves| *moves += 1);
        }
    }

    pub(crate) fn current(&self) -> usize {
        self.reach().current.load(Ordering::Relaxed)
    }
}
