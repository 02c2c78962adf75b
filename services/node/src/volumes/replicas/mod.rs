//! Volumes with replicas on several nodes: which processes this node has for them, and who may
//! serve (`docs/spec/volume.md`).
//!
//! Each replica has an engine and a process of its own, `tombolo replica`, which go on without the
//! daemon. The daemon claims for them in the registry, changes records when they ask, and finds the
//! other nodes' replicas.

mod claim;
mod process;

use super::book::{Book, Id, Record};
use super::serving::Ground;
use crate::admin::volume::ReplicaRow;
use crate::admin::{Code, Problem};
use crate::base::{DISKS, REGISTRY};
use crate::membership::Cluster;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use topology::{DiskFormat, VolumeMount, VolumeStore};
use wire::replica::{Condition, Part, VolumeRecord};

/// The paths at which nodes ask each other.
pub(crate) const MAKE_PATH: &str = "/v1/replica/make";
/// See [`MAKE_PATH`].
pub(crate) const FIND_PATH: &str = "/v1/replica/find";
/// See [`MAKE_PATH`].
pub(crate) const DROP_PATH: &str = "/v1/replica/drop";
/// How long it may take until this node serves a volume: another node's lease may have to end
/// first.
const SERVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a primary may take to leave in order.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a process may take to say where it listens.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(4);
/// A process that nobody has asked for, and nobody writes to, for so long is ended.
const IDLE: Duration = Duration::from_secs(60);

/// A node's request to another about a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct About {
    pub(crate) dc: String,
    pub(crate) name: String,
    /// The volume's, of its record.
    pub(crate) id: String,
    pub(crate) format: DiskFormat,
    pub(crate) bytes: u64,
    /// The view of the primary that asks where to write; 0 elsewhere.
    #[serde(default)]
    pub(crate) view: u64,
}

/// Where a replica listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listens {
    pub(crate) at: SocketAddr,
}

/// The known state of a replica's process.
#[derive(Debug, Clone, Default)]
struct Seen {
    pid: Option<u32>,
    at: Option<SocketAddr>,
    condition: Condition,
    /// Processes that there were before, under this daemon.
    restarts: u64,
    /// Why it does not serve although it should.
    why: String,
    /// Nobody keeps it any more.
    done: bool,
}

/// A replica of this node that has a process.
#[derive(Debug)]
struct Running {
    id: Id,
    record: Record,
    /// Its record, as it was when the process was wanted: the fields that never change.
    like: VolumeRecord,
    /// The domain that has it here; none: it is kept for another node.
    wanted: watch::Sender<Option<String>>,
    /// Whether the primary is to leave when no domain has it.
    may_leave: AtomicBool,
    /// When another node asked for it last.
    asked: Mutex<Instant>,
    seen: watch::Sender<Seen>,
    /// Its processes are to end.
    over: watch::Sender<bool>,
}

impl Running {
    fn is_idle(&self) -> bool {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.seen.borrow();
        self.wanted.borrow().is_none()
            && asked.elapsed() > IDLE
            && seen.condition.part == Part::StandBy
            && seen.condition.view == 0
    }
}

/// All replicas of this node that have a process.
#[derive(Debug)]
pub(super) struct Replicas {
    ground: Arc<Ground>,
    cluster: Cluster,
    running: Mutex<BTreeMap<Id, Arc<Running>>>,
}

fn failed(why: impl Into<String>) -> Problem {
    Problem::new(Code::Failed, why)
}

impl Replicas {
    pub fn new(ground: Arc<Ground>, cluster: Cluster) -> Arc<Self> {
        Arc::new(Self { ground, cluster, running: Mutex::default() })
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Id, Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &Id) -> Option<Arc<Running>> {
        self.all().get(id).cloned()
    }

    /// Asks the registry, away from the loop.
    async fn ask<T: Send + 'static>(
        &self,
        id: &Id,
        work: impl FnOnce(&Cluster, &Id) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let (cluster, id) = (self.cluster.clone(), id.clone());
        REGISTRY.run(move || work(&cluster, &id)).await?
    }

    /// Works with what is written down here, away from the loop.
    async fn book<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Book) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let ground = Arc::clone(&self.ground);
        DISKS.run(move || work(&ground.book)).await.map_err(failed)?
    }

    /// Whether a replica has a process here.
    pub fn has(&self, id: &Id) -> bool {
        self.all().contains_key(id)
    }

    /// After a daemon's start, when what runs has been taken over: primaries that no domain has
    /// leave.
    pub fn sweep(&self) {
        for running in self.all().values() {
            running.may_leave.store(true, Ordering::Relaxed);
        }
    }

    /// Takes over the processes that an earlier daemon left.
    pub async fn adopt(self: &Arc<Self>) {
        let found = self.book(Book::all).await.unwrap_or_default();
        for (id, record) in found {
            if record.replica.is_none() || !process::is_there(&self.ground, &id) {
                continue;
            }
            match self.ask(&id, claim::read).await {
                Ok(Some((like, _))) => drop(self.run(&id, &record, like)),
                Ok(None) => tracing::warn!(dc = id.0, volume = id.1, "a replica of a volume that is no more"),
                // What it serves it goes on serving; who has it finds it when the registry is back.
                Err(why) => tracing::warn!(dc = id.0, volume = id.1, why, "its record can't be read"),
            }
        }
    }

    /// Has a process for a replica from now on.
    fn run(self: &Arc<Self>, id: &Id, record: &Record, like: VolumeRecord) -> Arc<Running> {
        let mut all = self.all();
        if let Some(running) = all.get(id) {
            return Arc::clone(running);
        }
        let running = Arc::new(Running {
            id: id.clone(),
            record: record.clone(),
            like,
            wanted: watch::Sender::default(),
            may_leave: AtomicBool::new(false),
            asked: Mutex::new(Instant::now()),
            seen: watch::Sender::default(),
            over: watch::Sender::default(),
        });
        all.insert(id.clone(), Arc::clone(&running));
        tokio::spawn(process::keep(Arc::clone(self), Arc::clone(&running)));
        running
    }

    /// Has a volume served here, for a domain, and makes it where there is none.
    pub async fn attach(
        self: &Arc<Self>,
        id: &Id,
        domain: &str,
        wanted: &VolumeMount,
    ) -> Result<(), Problem> {
        if let Some(running) =
            self.get(id).filter(|running| running.seen.borrow().condition.part == Part::Primary)
        {
            // An earlier daemon had it served: it goes on, whether the registry can be asked or
            // not.
            running.may_leave.store(true, Ordering::Relaxed);
            running.wanted.send_replace(Some(domain.to_owned()));
            return Ok(());
        }
        let like = match self.ask(id, claim::read).await.map_err(failed)? {
            Some((like, _)) => like,
            None => self.create(id, wanted).await?,
        };
        if like.bytes != wanted.bytes {
            let message = format!(
                "the volume {}/{} has {} bytes, and the file says {}",
                id.0, id.1, like.bytes, wanted.bytes
            );
            return Err(failed(message).help("a volume with several replicas keeps its size: say that"));
        }
        if usize::from(wanted.replicas) != like.replicas.len() {
            let message = format!(
                "the volume {}/{} has replicas on {}, and the file says replicas = {}",
                id.0,
                id.1,
                like.replicas.join(", "),
                wanted.replicas
            );
            return Err(failed(message).help("their number does not change yet: say what there is"));
        }
        let record = self.local(id, &like).await?;
        let running = self.run(id, &record, like);
        running.may_leave.store(true, Ordering::Relaxed);
        running.wanted.send_replace(Some(domain.to_owned()));
        let mut seen = running.seen.subscribe();
        let serves = seen.wait_for(|seen| seen.condition.part == Part::Primary || seen.done);
        let served = tokio::time::timeout(SERVE_TIMEOUT, serves).await;
        if matches!(served, Ok(Ok(seen)) if !seen.done) {
            return Ok(());
        }
        let why = running.seen.borrow().why.clone();
        running.wanted.send_replace(None);
        Err(failed(format!("the volume {}/{} can't be served here: {why}", id.0, id.1)))
    }

    /// The record of this node's own replica, which has to be of that volume.
    async fn local(&self, id: &Id, like: &VolumeRecord) -> Result<Record, Problem> {
        let (of, me) = (id.clone(), self.cluster.me().to_owned());
        let like = like.clone();
        self.book(move |book| {
            let name = format!("{}/{}", of.0, of.1);
            if !like.replicas.contains(&me) {
                let nodes = like.replicas.join(", ");
                return Err(failed(format!("the volume {name} has its replicas on {nodes}"))
                    .help("run its domain on one of these"));
            }
            let record = book.get(&of)?.filter(|record| record.made);
            match record {
                Some(record) if record.replica.as_ref() == Some(&like.id) => {
                    book.check_there(&of, &record)?;
                    Ok(record)
                }
                Some(_) => Err(failed(format!("node {me} has another volume {name}"))
                    .help(format!("remove that there: `tombolo volume rm {name}`"))),
                None => Err(failed(format!("node {me} has lost its replica of {name}"))
                    .help("bring its state directory back; the other replicas go on without it")),
            }
        })
        .await
    }

    /// Makes all replicas, empty, and then the record that says so.
    async fn create(&self, id: &Id, wanted: &VolumeMount) -> Result<VolumeRecord, Problem> {
        let replicas = self.choose(usize::from(wanted.replicas)).await?;
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| failed(format!("no random numbers: {e}")))?;
        let about = About {
            dc: id.0.clone(),
            name: id.1.clone(),
            id: format!("{:016x}", u64::from_le_bytes(number)),
            format: wanted.format,
            bytes: wanted.bytes,
            view: 0,
        };
        for node in &replicas {
            if node == self.cluster.me() {
                self.make(about.clone()).await?;
            } else {
                let made: Result<bool, Problem> =
                    self.cluster.call(node, hyper::Method::POST, MAKE_PATH, &about).await;
                made.map_err(|problem| {
                    failed(format!(
                        "node {node} can't have a replica of {}/{}: {}",
                        id.0, id.1, problem.message
                    ))
                })?;
            }
        }
        let record = VolumeRecord {
            id: about.id,
            bytes: about.bytes,
            view: 0,
            primary: None,
            current: replicas.clone(),
            replicas,
            settled: true,
        };
        let new = record.clone();
        let created =
            self.ask(id, move |cluster, id| claim::create(cluster, id, &new)).await.map_err(failed)?;
        if created {
            Ok(record)
        } else {
            Err(failed(format!("another node is making the volume {}/{} at this moment", id.0, id.1)))
        }
    }

    /// The nodes that get a replica: this one, and of the others that live and take domains those
    /// with fewest replicas, then the first by name.
    async fn choose(&self, count: usize) -> Result<Vec<String>, Problem> {
        let me = self.cluster.me().to_owned();
        let (load, drained) = self
            .ask(&(String::new(), String::new()), |cluster, _| {
                let registry = cluster.registry();
                let said = |error: registry::RegistryError| error.to_string();
                let mut load: BTreeMap<String, usize> = BTreeMap::new();
                for (_, entry) in registry.list(wire::replica::RECORDS).map_err(said)? {
                    let record: Option<VolumeRecord> = serde_json::from_slice(&entry.value).ok();
                    for node in record.into_iter().flat_map(|record| record.replicas) {
                        *load.entry(node).or_default() += 1;
                    }
                }
                let drained: Vec<String> =
                    registry.list("drain/").map_err(said)?.into_iter().map(|(key, _)| key).collect();
                Ok((load, drained))
            })
            .await
            .map_err(failed)?;
        let mut others: Vec<(usize, String)> = self
            .cluster
            .nodes()
            .into_iter()
            .filter(|node| {
                node.alive && node.name != me && !drained.contains(&format!("drain/{}", node.name))
            })
            .map(|node| (load.get(&node.name).copied().unwrap_or(0), node.name))
            .collect();
        others.sort();
        if others.len() + 1 < count {
            let message = format!(
                "{count} replicas need {count} nodes that live and take domains; there are {}",
                others.len() + 1
            );
            return Err(failed(message).help("`tombolo node ls` lists them"));
        }
        let mut chosen: Vec<String> =
            others.into_iter().take(count - 1).map(|(_, name)| name).chain([me]).collect();
        chosen.sort();
        Ok(chosen)
    }

    /// Makes this node's replica of a new volume, empty. One that is left of an attempt that came
    /// to nothing is made anew.
    pub async fn make(&self, about: About) -> Result<(), Problem> {
        let id: Id = (about.dc, about.name);
        if self.ask(&id, claim::read).await.map_err(failed)?.is_some() {
            return Err(failed(format!("there is a volume {}/{} already", id.0, id.1)));
        }
        let new =
            Record { replica: Some(about.id), ..Record::new(about.format, VolumeStore::File, about.bytes) };
        self.book(move |book| {
            match book.get(&id)? {
                Some(known) if known.made && known.replica.is_none() => {
                    return Err(Problem::new(
                        Code::Taken,
                        format!("there is a volume {}/{} on this node alone", id.0, id.1),
                    ));
                }
                // The registry has no such volume: nobody has ever written to it, or it was
                // removed.
                Some(known) if known.made => book.remove(&id, &known)?,
                _ => {}
            }
            book.make(&id, &new).map(drop)
        })
        .await
    }

    /// Where this node's replica listens, for the primary of a view.
    pub async fn find(self: &Arc<Self>, caller: &str, about: &About) -> Result<Listens, Problem> {
        let id: Id = (about.dc.clone(), about.name.clone());
        let refused = |why: String| Problem::new(Code::Refused, why);
        let (like, _) = self
            .ask(&id, claim::read)
            .await
            .map_err(failed)?
            .ok_or_else(|| refused("the registry has no such volume".into()))?;
        if like.primary.as_deref() != Some(caller) || like.view != about.view || like.id != about.id {
            return Err(refused(format!("node {caller} is not the primary of view {} any more", about.view)));
        }
        let record = self.local_or_empty(&id, &like, about).await?;
        let running = self.run(&id, &record, like);
        *running.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let mut seen = running.seen.subscribe();
        let listens = seen.wait_for(|seen| seen.done || seen.at.is_some());
        let at = match tokio::time::timeout(LISTEN_TIMEOUT, listens).await {
            Ok(Ok(seen)) if !seen.done => seen.at,
            _ => None,
        };
        at.map(|at| Listens { at })
            .ok_or_else(|| failed(format!("its process does not come up: {}", running.seen.borrow().why)))
    }

    /// This node's own replica. One that is lost and does not count is made anew: it is resynced as
    /// a whole.
    async fn local_or_empty(&self, id: &Id, like: &VolumeRecord, about: &About) -> Result<Record, Problem> {
        let known = {
            let of = id.clone();
            self.book(move |book| book.get(&of)).await?
        };
        let is_lost = known.as_ref().is_none_or(|known| !known.made);
        let counts = like.current.iter().any(|node| node == self.cluster.me());
        if is_lost && !counts && like.replicas.iter().any(|node| node == self.cluster.me()) {
            let (of, id_of) = (id.clone(), like.id.clone());
            let new =
                Record { replica: Some(id_of), ..Record::new(about.format, VolumeStore::File, like.bytes) };
            tracing::warn!(
                dc = id.0,
                volume = id.1,
                "this node's replica is lost: an empty one is made, and resynced"
            );
            return self.book(move |book| book.make(&of, &new)).await;
        }
        self.local(id, like).await
    }

    /// A volume's domain is gone: the primary leaves in order, and its processes end.
    pub async fn detach(&self, id: &Id, is_theirs: impl Fn(&str) -> bool) {
        let Some(running) = self.get(id) else { return };
        if !running.wanted.borrow().as_deref().is_some_and(is_theirs) {
            return;
        }
        running.wanted.send_replace(None);
        let mut seen = running.seen.subscribe();
        let left = seen.wait_for(|seen| seen.condition.part != Part::Primary || seen.done);
        if tokio::time::timeout(LEAVE_TIMEOUT, left).await.is_err() {
            tracing::warn!(
                dc = id.0,
                volume = id.1,
                "it can't be left in order: replicas are resynced when it is claimed next"
            );
        }
        self.end(&running).await;
    }

    async fn end(&self, running: &Running) {
        running.over.send_replace(true);
        let mut seen = running.seen.subscribe();
        let _ended = seen.wait_for(|seen| seen.done).await.is_ok();
    }

    /// The domains that have volumes of this distributed container here.
    pub fn of_dc(&self, dc: &str) -> Vec<Id> {
        self.all().keys().filter(|id| id.0 == dc).cloned().collect()
    }

    /// Removes a volume, on every node. One that can't be asked keeps its file, and says so when it
    /// is asked to have the volume again.
    pub async fn remove(&self, id: &Id, record: &Record) -> Result<(), Problem> {
        let name = format!("{}/{}", id.0, id.1);
        if let Some(running) = self.get(id) {
            let domain = running.wanted.borrow().clone();
            if let Some(domain) = domain {
                return Err(super::keep::in_use(id, &domain));
            }
        }
        let there = self.ask(id, claim::read).await.map_err(failed)?;
        let mut others = Vec::new();
        if let Some((like, revision)) = there.filter(|(like, _)| Some(&like.id) == record.replica.as_ref()) {
            let gone = self.ask(id, move |cluster, id| claim::remove(cluster, id, revision)).await;
            gone.map_err(|why| {
                Problem::new(Code::Taken, format!("the volume {name} can't be removed: {why}"))
                    .help("`tombolo down`, or take the volume out of the file, and try again")
            })?;
            others = like.replicas;
        }
        let about = About {
            dc: id.0.clone(),
            name: id.1.clone(),
            id: record.replica.clone().unwrap_or_default(),
            format: record.format,
            bytes: record.bytes,
            view: 0,
        };
        self.forget(&about).await?;
        let mut kept = Vec::new();
        for node in others.iter().filter(|node| *node != self.cluster.me()) {
            let dropped: Result<bool, Problem> =
                self.cluster.call(node, hyper::Method::POST, DROP_PATH, &about).await;
            if let Err(problem) = dropped {
                kept.push(format!("{node} ({})", problem.message));
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        let message =
            format!("the volume {name} is removed, but these nodes keep its file: {}", kept.join("; "));
        Err(failed(message).help(format!("`tombolo volume rm {name}` there when they are back")))
    }

    /// Removes this node's replica of a volume that the registry does not have any more.
    pub async fn forget(&self, about: &About) -> Result<(), Problem> {
        let id: Id = (about.dc.clone(), about.name.clone());
        let there = self.ask(&id, claim::read).await.map_err(failed)?;
        if there.is_some_and(|(like, _)| like.id == about.id) {
            return Err(failed(format!("there is still a volume {}/{}", id.0, id.1)));
        }
        if let Some(running) = self.get(&id) {
            self.end(&running).await;
        }
        let wanted = about.id.clone();
        self.book(move |book| match book.get(&id)? {
            Some(known) if known.replica.as_ref() == Some(&wanted) => book.remove(&id, &known),
            _ => Ok(()),
        })
        .await
    }

    /// Fills in what `volume show` prints of replicas.
    pub async fn show(&self, id: &Id, row: &mut crate::admin::volume::VolumeRow) {
        match self.ask(id, claim::read).await {
            Ok(Some((like, _))) => {
                (row.view, row.primary) = (like.view, like.primary.clone());
                let state = |node: &String| if like.current.contains(node) { "current" } else { "behind" };
                let rows = like.replicas.iter().map(|node| ReplicaRow {
                    node: node.clone(),
                    state: state(node).to_owned(),
                    resynced_percent: None,
                    behind_bytes: None,
                    why: None,
                });
                row.replicas = rows.collect();
            }
            Ok(None) => row.why = Some("the registry has no such volume any more".to_owned()),
            Err(why) => row.why = Some(why),
        }
        let Some(running) = self.get(id) else { return };
        let seen = running.seen.borrow().clone();
        row.domain.clone_from(&running.wanted.borrow());
        (row.pid, row.restarts) = (seen.pid, seen.restarts);
        row.state = match seen.condition.part {
            Part::Primary if seen.condition.holds => "serving",
            Part::Primary => "waiting",
            Part::StandBy | Part::Prepared if row.domain.is_some() => "waiting",
            Part::StandBy | Part::Prepared => "replica",
        }
        .to_owned();
        if seen.condition.part == Part::Primary {
            row.view = seen.condition.view;
            let share = super::share(self.ground.book.run_dir(), &row.dc, &row.name);
            row.socket = Some(share.join(storage::SOCKET));
        } else if !seen.why.is_empty() {
            row.why = Some(seen.why);
        }
        for (node, state) in seen.condition.peers {
            let Some(replica) = row.replicas.iter_mut().find(|replica| replica.node == node) else {
                continue;
            };
            let left = row.bytes.saturating_sub(state.behind_bytes);
            let percent = u8::try_from(u128::from(left) * 100 / u128::from(row.bytes.max(1))).unwrap_or(100);
            replica.resynced_percent = (state.state != "current").then_some(percent);
            replica.behind_bytes = (state.state != "current").then_some(state.behind_bytes);
            replica.why = Some(state.why).filter(|why| !why.is_empty());
            replica.state = state.state;
        }
    }
}
