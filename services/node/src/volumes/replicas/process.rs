//! The process of one replica, with its engine: found or started, spoken with, ended.

use super::claim::{self, Claimed};
use super::{About, FIND_PATH, Listens, Replicas, Running};
use crate::base::doorstep;
use crate::base::place::LOG_VARIABLE;
use crate::base::{DISKS, REGISTRY, watched};
use crate::membership::Cluster;
use crate::volumes::book::Id;
use crate::volumes::serving::{Ground, Serving};
use domain::Limits;
use rustix::fs::{Mode, OFlags};
use session::packet::{self, PacketError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use wire::replica::{Configure, Order, PORT, PORTS, Part, Report, VERSION, VolumeRecord};

/// Pause after a process has ended; it doubles up to [`PAUSE_MAX`] while they end soon.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A process that has lived so long has not ended soon.
const LIVED: Duration = Duration::from_secs(30);
/// How long a process may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before it is tried again to become the primary.
const AGAIN: Duration = Duration::from_millis(500);
/// How often it is looked at what nobody tells.
const LOOK: Duration = Duration::from_millis(300);
/// Memory of a process: data of clients and of other nodes' writes, 64 MiB each, twice for what
/// goes out, and the map of what differs.
const MEMORY_BYTES: u64 = 384 << 20;
/// Threads of a process: one, and some that tokio starts.
const TASKS: u64 = 16;
/// Bytes each second that are copied to a replica which is resynced: a fifth of a link of 1 Gbit/s
/// is left to others at least.
const RESYNC_BYTES: u64 = 100 << 20;
/// Below the node's cgroup: those of replicas.
const REPLICAS: &str = "+replicas";
/// The name of its socket.
const SOCKET: &str = "replica";

fn folder(ground: &Ground, id: &Id) -> PathBuf {
    ground.book.run_folder(id).join("control")
}

fn cgroup(ground: &Ground, id: &Id) -> String {
    format!("{}/{REPLICAS}/{}/{}", ground.cgroup_name, id.0, id.1)
}

/// Whether an earlier daemon left a process of this replica.
pub(super) fn is_there(ground: &Ground, id: &Id) -> bool {
    !ground.cgroups.processes(&cgroup(ground, id)).is_empty()
}

/// Ends a process, by force, and takes away what is left of it.
fn clear(ground: &Ground, id: &Id) {
    let path = cgroup(ground, id);
    let cleared = ground.cgroups.kill(&path).and_then(|_| ground.cgroups.remove(&path));
    if let Err(error) = cleared {
        tracing::warn!(dc = id.0, volume = id.1, %error, "what a replica's process left can't be removed");
    }
    let folder = folder(ground, id);
    // Not there, or gone with the next one.
    let _left = std::fs::remove_file(folder.join(format!("{SOCKET}.sock")))
        .and_then(|()| std::fs::remove_dir(&folder));
    for above in
        [format!("{}/{REPLICAS}/{}", ground.cgroup_name, id.0), format!("{}/{REPLICAS}", ground.cgroup_name)]
    {
        ground.cgroups.remove_if_empty(&above);
    }
}

/// Keeps a process for a replica until it is over.
pub(super) async fn keep(all: Arc<Replicas>, running: Arc<Running>) {
    let mut pause = PAUSE_MIN;
    let mut over = running.over.subscribe();
    loop {
        let begun = Instant::now();
        let ended = tokio::select! {
            ended = life(&all, &running) => ended,
            _ = over.wait_for(|over| *over) => Ok(()),
        };
        let Err(why) = ended else { break };
        pause = if begun.elapsed() > LIVED { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
        tracing::warn!(
            dc = running.id.0,
            volume = running.id.1,
            why,
            ?pause,
            "its process has ended; the next one is started"
        );
        running.seen.send_modify(|seen| {
            (seen.pid, seen.at, seen.why) = (None, None, why);
            seen.condition = wire::replica::Condition::default();
            seen.restarts += 1;
        });
        tokio::select! {
            // tidy(sleep): a pause is what is wanted here: a process that dies at once must not be
            // started in a loop.
            () = tokio::time::sleep(pause) => {}
            _ = over.wait_for(|over| *over) => break,
        }
    }
    let (of, id) = (Arc::clone(&all), running.id.clone());
    let cleared = DISKS.run(move || {
        clear(&of.ground, &id);
        of.ground.clear(&id);
    });
    let (cluster, id) = (all.cluster.clone(), running.id.clone());
    let cleared = async {
        cleared.await?;
        REGISTRY.run(move || claim::let_go(&cluster, &id)).await
    };
    if let Err(error) = cleared.await {
        tracing::error!(error, "what a replica left can't be removed");
    }
    all.all().remove(&running.id);
    running.seen.send_modify(|seen| seen.done = true);
}

/// One process and its engine: an old one's writes are all done, or never will be, before the next
/// one is there.
async fn life(all: &Arc<Replicas>, running: &Arc<Running>) -> Result<(), String> {
    let (of, kept) = (Arc::clone(all), Arc::clone(running));
    let begun = DISKS.run(move || begin(&of, &kept)).await?;
    let Begun { socket, child, configure, engine } =
        begun.map_err(|why| format!("it can't be started: {why}"))?;
    let _child = child;
    let engine = Serving::begin(&all.ground, &running.id, &running.record, "", engine);
    let socket = watched(socket, Interest::READABLE | Interest::WRITABLE).map_err(|e| e.to_string())?;
    let ended = converse(all, running, &socket, configure).await;
    // Before the engine: whoever is left would write to the next one.
    let (of, id) = (Arc::clone(all), running.id.clone());
    DISKS.run(move || clear(&of.ground, &id)).await?;
    engine.end().await;
    ended
}

struct Begun {
    socket: OwnedFd,
    child: Option<Reaped>,
    /// The configuration, where it is new.
    configure: Option<(Order, Vec<OwnedFd>)>,
    engine: storage::Engine,
}

/// A process that is ours to wait for.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // It has ended, or is about to: its cgroup is killed.
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            tracing::debug!(%error, "a replica's process can't be waited for");
        }
    }
}

fn begin(all: &Replicas, running: &Running) -> Result<Begun, String> {
    let (ground, id) = (&all.ground, &running.id);
    let engine =
        |ground: &Ground| ground.find_or_start(id, &running.record).map_err(|problem| problem.to_string());
    let words = |error: io::Error| error.to_string();
    if is_there(ground, id)
        && let Some(socket) = doorstep::connect(&folder(ground, id), SOCKET).map_err(words)?
    {
        let engine = engine(ground)?;
        return Ok(Begun { socket, child: None, configure: None, engine });
    }
    clear(ground, id);
    ground.end(id);
    let engine = engine(ground)?;
    let run_folder = ground.book.run_folder(id);
    let listener = doorstep::listen(&folder(ground, id), SOCKET).map_err(words)?;
    let clients = storage::listen_for_domains(&run_folder).map_err(|e| e.to_string())?;
    let (nodes, at) = listen(all.cluster.config().address.ip()).map_err(words)?;
    let place = rustix::fs::open(&run_folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| e.to_string())?;
    let name = format!("{}/{}", id.0, id.1);
    let child = Command::new(&ground.program)
        .args([wire::replica::ROLE, &name])
        .env_clear()
        .envs(std::env::var_os(LOG_VARIABLE).map(|value| (LOG_VARIABLE, value)))
        .env(crate::base::place::RUN_DIR_VARIABLE, ground.book.run_dir())
        .stdin(Stdio::from(listener))
        .stdout(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn()
        .map_err(words)?;
    let child = Reaped(child);
    let path = cgroup(ground, id);
    let limits = Limits { cpu: None, memory_bytes: Some(MEMORY_BYTES), pids: Some(TASKS) };
    ground
        .cgroups
        .create(&path)
        .and_then(|()| ground.cgroups.limit(&path, &limits))
        .and_then(|()| ground.cgroups.join(&path, child.0.id()))
        .map_err(|e| e.to_string())?;
    let socket = doorstep::connect(&folder(ground, id), SOCKET)
        .map_err(words)?
        .ok_or("its process has ended at once")?;
    let configure = Configure {
        name,
        id: running.like.id.clone(),
        node: all.cluster.me().to_owned(),
        identity: all.cluster.trust_folder().display().to_string(),
        bytes: running.like.bytes,
        replicas: running.like.replicas.clone(),
        resync_bytes: RESYNC_BYTES,
        user: running.record.engine_user(id),
        at,
    };
    let configure = Some((Order::Configure(configure), vec![clients, nodes.into(), place]));
    Ok(Begun { socket, child: Some(child), configure, engine })
}

/// Listens for other nodes, at the first port that is free.
fn listen(address: std::net::IpAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in PORT..PORT + PORTS {
        match TcpListener::bind((address, port)) {
            Ok(listener) => return Ok((listener, SocketAddr::new(address, port))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// How far this node is in being the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is not.
    Not,
    /// It is looked whether another node is: that may be writing here.
    Looking,
    /// The process is asked to be quiet.
    Preparing,
    /// The registry is asked.
    Claiming,
    /// It is, with a claim that is bound to this life of the node's lease; 0: it is not known
    /// whether it is bound.
    Is { view: u64, incarnation: u64 },
    /// It is asked to leave.
    Leaving,
}

/// The answer to a question that was asked meanwhile.
#[derive(Debug)]
enum Word {
    Holder(Result<Option<String>, String>),
    Claimed(Result<Claimed, String>),
    Rebound(Result<Option<Claimed>, String>),
    Say(Order),
}

struct Conversation<'a> {
    all: &'a Arc<Replicas>,
    running: &'a Arc<Running>,
    socket: &'a AsyncFd<OwnedFd>,
    stage: Stage,
    words: UnboundedSender<Word>,
    rebinding: bool,
    /// When it is tried again to become the primary.
    again: Instant,
}

async fn converse(
    all: &Arc<Replicas>,
    running: &Arc<Running>,
    socket: &AsyncFd<OwnedFd>,
    configure: Option<(Order, Vec<OwnedFd>)>,
) -> Result<(), String> {
    // Before a fresh one reads it, so that nothing is missed.
    let mut trust = all.cluster.trust_changes();
    let is_new = configure.is_some();
    if let Some((order, descriptors)) = configure {
        say(socket, &order, &descriptors).await?;
    }
    let late = |_| "the process says nothing".to_owned();
    let hello = tokio::time::timeout(HELLO_TIMEOUT, hear(socket)).await.map_err(late)??;
    let Report::Hello { version, pid, configured: Some(configured), condition, record } = hello else {
        return Err(format!("its first word is {hello:?}"));
    };
    if version != VERSION || configured.id != running.like.id {
        return Err("it is another release's, or of another volume".to_owned());
    }
    let stage = match (condition.part, &record) {
        (Part::Primary, Some((record, _))) => Stage::Is { view: record.view, incarnation: 0 },
        _ => Stage::Not,
    };
    running.seen.send_modify(|seen| {
        (seen.pid, seen.at, seen.condition) = (Some(pid), Some(configured.at), condition);
    });
    let (words, mut told): (_, UnboundedReceiver<Word>) = unbounded_channel();
    let mut hold = all.cluster.fence_deadline();
    let mut wanted = running.wanted.subscribe();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    if !is_new {
        // What an earlier daemon told it may not be so any more.
        trust.mark_changed();
        hold.mark_changed();
    }
    let mut talk =
        Conversation { all, running, socket, stage, words, rebinding: false, again: Instant::now() };
    loop {
        tokio::select! {
            report = hear(socket) => talk.hear(report?).await?,
            Some(word) = told.recv() => talk.word(word).await?,
            Ok(()) = hold.changed() => {
                let until = *hold.borrow_and_update();
                talk.hold(until).await?;
            }
            Ok(()) = wanted.changed() => talk.look().await?,
            Ok(()) = trust.changed() => match trust::open_folder(all.cluster.trust_folder()) {
                Ok(files) => say(socket, &Order::Trust {}, &files).await?,
                Err(error) => tracing::error!(%error, "a replica can't be told what this node shows and believes"),
            },
            _ = look.tick() => {
                if running.is_idle() {
                    return Ok(());
                }
                talk.look().await?;
            }
        }
    }
}

impl Conversation<'_> {
    async fn say(&self, order: &Order) -> Result<(), String> {
        say(self.socket, order, &[]).await
    }

    /// Asks the registry beside; what comes back is a word.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cluster, &Id) -> Result<T, String> + Send + 'static,
        word: impl FnOnce(Result<T, String>) -> Option<Word> + Send + 'static,
    ) {
        let (all, id, words) = (Arc::clone(self.all), self.running.id.clone(), self.words.clone());
        tokio::spawn(async move {
            if let Some(word) = word(all.ask(&id, work).await) {
                // Where the conversation is over nobody waits for it.
                let _over = words.send(word);
            }
        });
    }

    /// Whether a claim that is bound to this life of the node's lease is bound to the one that it
    /// has now.
    fn is_bound(&self, incarnation: u64) -> bool {
        incarnation != 0 && incarnation == self.all.cluster.incarnation()
    }

    /// Does what is due, by who wants the volume here.
    async fn look(&mut self) -> Result<(), String> {
        let is_wanted = self.running.wanted.borrow().is_some();
        match self.stage {
            Stage::Not if is_wanted && self.again <= Instant::now() => {
                self.stage = Stage::Looking;
                self.again = Instant::now() + AGAIN;
                self.ask(claim::holder, |holder| Some(Word::Holder(holder)));
                Ok(())
            }
            // One that an earlier daemon served may be taken over yet.
            Stage::Is { .. } if !is_wanted && self.running.may_leave.load(Ordering::Relaxed) => {
                self.stage = Stage::Leaving;
                self.say(&Order::Release {}).await
            }
            Stage::Is { incarnation, .. } => {
                let until = *self.all.cluster.fence_deadline().borrow();
                if self.is_bound(incarnation) { Ok(()) } else { self.hold(until).await }
            }
            _ => Ok(()),
        }
    }

    async fn hear(&mut self, report: Report) -> Result<(), String> {
        match report {
            Report::Hello { .. } => Err("it says hello twice".to_owned()),
            Report::Condition(condition) => {
                self.running.seen.send_modify(|seen| seen.condition = condition);
                Ok(())
            }
            Report::Quiet {} => {
                if self.stage == Stage::Preparing {
                    self.stage = Stage::Claiming;
                    self.ask(claim::claim, |claimed| Some(Word::Claimed(claimed)));
                }
                Ok(())
            }
            Report::Change { record, revision } => self.change(record, revision).await,
            Report::Ask { id } => {
                self.ask(claim::read, move |read| {
                    let record = read.ok().flatten().map(|(record, _)| record);
                    Some(Word::Say(Order::Answer { id, record }))
                });
                Ok(())
            }
            Report::Find { node, view } => {
                self.find(node, view);
                Ok(())
            }
            Report::Ended { view } => {
                tracing::info!(dc = self.running.id.0, volume = self.running.id.1, view, "its view is over");
                self.stage = Stage::Not;
                self.ask(
                    |cluster, id| {
                        claim::let_go(cluster, id);
                        Ok(())
                    },
                    |_| None,
                );
                Ok(())
            }
        }
    }

    /// Changes the record, where the process asks for what its view may change.
    async fn change(&mut self, record: VolumeRecord, revision: u64) -> Result<(), String> {
        let like = &self.running.like;
        let is_of_view = matches!(self.stage, Stage::Is { view, .. } if view == record.view)
            || self.stage == Stage::Leaving;
        let is_same = record.id == like.id && record.replicas == like.replicas && record.bytes == like.bytes;
        let by_me = record.primary.as_deref().is_none_or(|primary| primary == self.all.cluster.me());
        if !is_of_view || !is_same || !by_me || record.current.is_empty() {
            return Err("it asks for a change that no primary makes".to_owned());
        }
        self.ask(
            move |cluster, id| claim::change(cluster, id, record, revision),
            |changed| match changed {
                Ok(Some((record, revision))) => Some(Word::Say(Order::Registry { record, revision })),
                Ok(None) => Some(Word::Say(Order::StandBy {})),
                // It asks again.
                Err(why) => {
                    tracing::warn!(why, "the record of a volume can't be changed");
                    None
                }
            },
        );
        Ok(())
    }

    fn find(&self, node: String, view: u64) {
        let (all, running, words) = (Arc::clone(self.all), Arc::clone(self.running), self.words.clone());
        tokio::spawn(async move {
            let about = About {
                dc: running.id.0.clone(),
                name: running.id.1.clone(),
                id: running.like.id.clone(),
                format: running.record.format,
                bytes: running.like.bytes,
                view,
            };
            let found: Result<Listens, _> =
                all.cluster.call(&node, hyper::Method::POST, FIND_PATH, &about).await;
            let (at, why) = match found {
                Ok(listens) => (Some(listens.at), String::new()),
                Err(problem) => (None, problem.message),
            };
            let _over = words.send(Word::Say(Order::Found { node, at, why }));
        });
    }

    /// It does not become the primary now.
    fn not_now(&mut self, why: String) {
        self.stage = Stage::Not;
        self.running.seen.send_if_modified(|seen| std::mem::replace(&mut seen.why, why.clone()) != why);
    }

    async fn word(&mut self, word: Word) -> Result<(), String> {
        match word {
            Word::Holder(holder) => {
                let why = match holder {
                    Ok(Some(node)) if node != self.all.cluster.me() => {
                        format!("node {node} is the primary, and its lease is not over")
                    }
                    Ok(_) => {
                        self.stage = Stage::Preparing;
                        return self.say(&Order::Prepare {}).await;
                    }
                    Err(why) => why,
                };
                self.not_now(why);
                Ok(())
            }
            Word::Say(order) => self.say(&order).await,
            Word::Claimed(Ok(Claimed { record, revision, incarnation })) if self.stage == Stage::Claiming => {
                let until_ns = *self.all.cluster.fence_deadline().borrow();
                let until_ns = if self.all.cluster.incarnation() == incarnation { until_ns } else { 0 };
                tracing::info!(
                    dc = self.running.id.0,
                    volume = self.running.id.1,
                    view = record.view,
                    "claimed"
                );
                self.stage = Stage::Is { view: record.view, incarnation };
                self.running.seen.send_modify(|seen| seen.why.clear());
                self.say(&Order::Serve { record, revision, until_ns }).await
            }
            Word::Claimed(Err(why)) => {
                self.not_now(why);
                self.say(&Order::StandBy {}).await
            }
            Word::Claimed(Ok(_)) => Ok(()),
            Word::Rebound(rebound) => {
                self.rebinding = false;
                let Stage::Is { view, .. } = self.stage else { return Ok(()) };
                match rebound {
                    Ok(Some(Claimed { record, revision, incarnation })) => {
                        self.stage = Stage::Is { view, incarnation };
                        self.say(&Order::Registry { record, revision }).await?;
                        let until = *self.all.cluster.fence_deadline().borrow();
                        self.hold(until).await
                    }
                    Ok(None) => {
                        tracing::warn!(
                            dc = self.running.id.0,
                            volume = self.running.id.1,
                            view,
                            "another node has taken the volume over"
                        );
                        self.say(&Order::StandBy {}).await
                    }
                    Err(why) => {
                        tracing::debug!(why, "the claim of a volume can't be renewed yet");
                        Ok(())
                    }
                }
            }
        }
    }

    /// This node holds its lease until then. The lease is read after that: it may be another one by
    /// now, of which nothing is known yet.
    async fn hold(&mut self, until_ns: u64) -> Result<(), String> {
        let Stage::Is { view, incarnation } = self.stage else { return Ok(()) };
        if self.is_bound(incarnation) {
            return self.say(&Order::Hold { until_ns }).await;
        }
        if until_ns > 0 && !self.rebinding {
            self.rebinding = true;
            self.ask(
                move |cluster, id| claim::rebind(cluster, id, view),
                |rebound| Some(Word::Rebound(rebound)),
            );
        }
        Ok(())
    }
}

async fn hear(socket: &AsyncFd<OwnedFd>) -> Result<Report, String> {
    loop {
        let mut ready = socket.readable().await.map_err(|e| e.to_string())?;
        match packet::receive::<Report>(socket.get_ref()) {
            Ok(packet) => return Ok(packet.message),
            Err(PacketError::NotReady) => ready.clear_ready(),
            Err(PacketError::Gone) => return Err("it has ended without a word (killed?)".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
    }
}

async fn say(socket: &AsyncFd<OwnedFd>, order: &Order, descriptors: &[OwnedFd]) -> Result<(), String> {
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    loop {
        let mut ready = socket.writable().await.map_err(|e| e.to_string())?;
        match packet::send(socket.get_ref(), order, &descriptors) {
            Ok(()) => return Ok(()),
            Err(PacketError::NotReady) => ready.clear_ready(),
            // Its end is heard.
            Err(PacketError::Gone) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
}
