//! One proxy: found or started, spoken with, and replaced when it ends.

use super::{Ground, LINK_PORT, Offer, Peer, Proxies, Shared, Wanted};
use crate::base::PROXIES;
use crate::base::doorstep;
use crate::base::place::LOG_VARIABLE;
use crate::base::watched;
use crate::broker::{ToProxy, orders, unix_seconds};
use crate::reservations::Shares;
use domain::Limits;
use serde::{Deserialize, Serialize};
use session::packet::{self, PacketError};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use sys::ethernet::Interface;
use sys::ethernet::bundles::{self, Hears};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use wire::cover;
use wire::proxy::{Configure, MEMORY_BYTES, Order, Report, Station, VERSION};

/// Pause after a proxy has ended; it doubles up to [`PAUSE_MAX`] while they end soon.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A proxy that has lived so long has not ended soon.
const LIVED: Duration = Duration::from_secs(30);
/// How long a proxy may take to say hello: it reads a certificate and opens sockets.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the other node's daemon is asked where its proxy listens, while there is no link.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// So many times less often while there is one that goes over something else than what is wanted.
const ASK_SELDOM: u32 = 8;
/// Threads of a proxy: one, and some that tokio starts to read a file.
const TASKS: u64 = 64;

/// Below the node's cgroup: those of its proxies.
pub(super) const LINKS: &str = "+links";
/// The inspection by which a proxy says that it goes on although its daemon ends.
const LAST_INSPECTION: u64 = u64::MAX;

/// Of what is kept of a link. Before format 1 `auto` was written where nobody had chosen a
/// compression.
const FORMAT: u32 = 1;
/// See [`FORMAT`].
const ONCE_DEFAULT_COMPRESSION: &str = "auto";

/// How a conversation with a proxy ends.
enum Ended {
    /// With the proxy: why.
    Over(String),
    /// The daemon ends, and the proxy is in use.
    InUse,
}

/// The state of a link that outlives daemons and proxies.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Kept {
    /// See [`FORMAT`]; files of before have none.
    #[serde(default)]
    format: u32,
    /// No epoch that a proxy had is greater.
    epoch: u64,
    #[serde(default)]
    pub(super) wanted: Wanted,
    /// The interface for frames of raw Ethernet; none: the one that bears this node's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) interface: Option<String>,
}

fn file(ground: &Ground, name: &str) -> PathBuf {
    ground.state_dir.join("links").join(format!("{name}.json"))
}

/// Reads the kept state; the defaults where there is none, or none that can be read.
pub(super) fn load(ground: &Ground, name: &str) -> Kept {
    let text = std::fs::read(file(ground, name)).unwrap_or_default();
    read(&text)
}

fn read(text: &[u8]) -> Kept {
    let mut kept: Kept = serde_json::from_slice(text).unwrap_or_default();
    if kept.format < FORMAT {
        kept.format = FORMAT;
        if kept.wanted.compression == ONCE_DEFAULT_COMPRESSION {
            kept.wanted.compression = Wanted::default().compression;
        }
    }
    kept
}

/// Changes what is kept, durably.
pub(super) fn store(ground: &Ground, name: &str, change: impl FnOnce(&mut Kept)) -> io::Result<Kept> {
    let path = file(ground, name);
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    let mut kept = load(ground, name);
    change(&mut kept);
    let new = path.with_extension("new");
    let out = std::fs::File::create(&new)?;
    serde_json::to_writer(&out, &kept)?;
    out.sync_all()?;
    std::fs::rename(&new, &path)?;
    std::fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    Ok(kept)
}

/// A greater epoch than any before: also than those of a state directory that was lost, as far as
/// the clock goes forward.
fn next_epoch(ground: &Ground, name: &str) -> io::Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(0);
    Ok(store(ground, name, |kept| kept.epoch = now.max(kept.epoch + 1))?.epoch)
}

fn folder(ground: &Ground) -> PathBuf {
    ground.run_dir.join("links")
}

fn cgroup(ground: &Ground, name: &str) -> String {
    format!("{}/{LINKS}/{name}", ground.cgroup_name)
}

/// Ends whatever earlier daemons left of proxies for nodes that are none of `others`.
pub(crate) async fn sweep(ground: &Arc<Ground>, shared: Option<&Arc<dyn Shared>>, others: &[String]) {
    let of = Arc::clone(ground);
    let names = PROXIES.run(move || {
        let sockets = std::fs::read_dir(folder(&of)).into_iter().flatten().flatten();
        let names = sockets.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter_map(|name| name.strip_suffix(".sock").map(str::to_owned)).collect();
        names.extend(of.cgroups.children(&format!("{}/{LINKS}", of.cgroup_name)));
        names.sort_unstable();
        names.dedup();
        names
    });
    for name in names.await.unwrap_or_default().into_iter().filter(|name| !others.contains(name)) {
        tracing::info!(node = name, "what is left of a proxy for a node that is not in the cluster is ended");
        clear(ground, shared, &name, true).await;
    }
}

/// Has a proxy for a node, as long as that belongs to the cluster.
pub(super) async fn keep(all: Arc<Proxies>, peer: Arc<Peer>) {
    keep_until_done(&all, &peer).await;
    peer.done.send_replace(true);
}

async fn keep_until_done(all: &Arc<Proxies>, peer: &Arc<Peer>) {
    let (mut over, mut retiring) = (peer.over.subscribe(), all.retiring.subscribe());
    let mut pause = PAUSE_MIN;
    loop {
        let begun = Instant::now();
        let ended = tokio::select! {
            ended = serve(all, peer) => ended,
            _ = over.wait_for(|over| *over) => Ok(Ended::Over("the node is no longer in the cluster".into())),
        };
        let why = match ended {
            Ok(Ended::InUse) => return,
            Ok(Ended::Over(why)) => why,
            Err(error) => error.to_string(),
        };
        all.broker.proxy_left(&peer.name);
        tracing::warn!(node = peer.name, why, "the proxy for the node has ended");
        {
            let mut seen = peer.seen();
            (seen.up, seen.pid, seen.why) = (false, None, why);
            seen.since_unix_s = unix_seconds(SystemTime::now());
            seen.restarts += 1;
        }
        if *over.borrow() || *retiring.borrow() {
            clear(&all.ground, Some(&all.shared), &peer.name, true).await;
            return;
        }
        pause = if begun.elapsed() > LIVED { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
        tokio::select! {
            // tidy(sleep): nothing tells when a proxy would do better.
            () = tokio::time::sleep(pause) => {}
            true = is_true(&mut retiring) => {
                clear(&all.ground, Some(&all.shared), &peer.name, true).await;
                return;
            }
        }
    }
}

/// Waits until it is; `false`: it never will be.
async fn is_true(switch: &mut tokio::sync::watch::Receiver<bool>) -> bool {
    switch.wait_for(|on| *on).await.is_ok()
}

/// Ends whatever is left of a proxy.
async fn clear(ground: &Arc<Ground>, shared: Option<&Arc<dyn Shared>>, name: &str, all_of_it: bool) {
    let (ground, shared, name) = (Arc::clone(ground), shared.cloned(), name.to_owned());
    let cleared = PROXIES.run(move || {
        let path = cgroup(&ground, &name);
        let killed = ground.cgroups.kill(&path);
        if all_of_it {
            if let Some(shared) = shared {
                shared.left(&name);
            }
            if let Err(error) = ground.cgroups.remove(&path) {
                tracing::warn!(name, %error, "the cgroup of a proxy can't be removed");
            }
            // Gone already is as good.
            let _gone = doorstep::remove(&folder(&ground), &name);
            ground.remove_if_empty();
        }
        killed.map(drop).map_err(|e| e.to_string())
    });
    if let Err(error) = cleared.await.and_then(|cleared| cleared) {
        tracing::warn!(error, "what is left of a proxy can't be ended");
    }
}

/// A process that is reaped when it has ended.
struct Reaped(Option<Child>);

impl Drop for Reaped {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Its socket is closed, or it is about to be killed: it ends.
            runtime.spawn_blocking(move || {
                let _reaped = child.wait();
            });
        }
    }
}

async fn serve(all: &Arc<Proxies>, peer: &Arc<Peer>) -> io::Result<Ended> {
    let found = doorstep::connect(&folder(&all.ground), &peer.name)?;
    if let Some(found) = found {
        let (proxies, path, node) = (Arc::clone(all), cgroup(&all.ground, &peer.name), peer.name.clone());
        PROXIES.run(move || proxies.shared.came(&node, &path)).await.map_err(io::Error::other)?;
        match converse(all, peer, watched(found, Interest::READABLE | Interest::WRITABLE)?, None).await {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::warn!(node = peer.name, "the proxy that was found says nothing: replaced");
            }
            ended => return ended,
        }
    }
    clear(&all.ground, Some(&all.shared), &peer.name, false).await;
    let (socket, child, configure) = spawn(all, peer).await?;
    let _child = Reaped(Some(child));
    converse(all, peer, watched(socket, Interest::READABLE | Interest::WRITABLE)?, Some(configure)).await
}

/// Starts a proxy.
async fn spawn(all: &Arc<Proxies>, peer: &Peer) -> io::Result<(OwnedFd, Child, ToProxy)> {
    let ground = &all.ground;
    let listener = doorstep::listen(&folder(ground), &peer.name)?;
    let epoch = {
        let (ground, name) = (Arc::clone(ground), peer.name.clone());
        PROXIES.run(move || next_epoch(&ground, &name)).await.map_err(io::Error::other)??
    };
    let child = Command::new(&ground.program)
        .args(["proxy", &peer.name])
        .env_clear()
        .env(crate::base::place::RUN_DIR_VARIABLE, &ground.run_dir)
        .envs(std::env::var_os(LOG_VARIABLE).map(|value| (LOG_VARIABLE, value)))
        .stdin(Stdio::from(listener))
        .stdout(Stdio::null())
        .current_dir("/")
        // Ctrl-C at a daemon in the foreground is not for it.
        .process_group(0)
        .spawn()?;
    let pid = child.id();
    let reaped = Reaped(Some(child));
    {
        let (proxies, path, node) = (Arc::clone(all), cgroup(ground, &peer.name), peer.name.clone());
        PROXIES
            .run(move || {
                let cgroups = &proxies.ground.cgroups;
                cgroups.create(&path)?;
                let limits = Limits { cpu: None, memory_bytes: Some(MEMORY_BYTES), pids: Some(TASKS) };
                cgroups.limit(&path, &limits)?;
                // Before it makes a socket.
                proxies.shared.came(&node, &path);
                cgroups.join(&path, pid)
            })
            .await
            .map_err(io::Error::other)?
            .map_err(io::Error::other)?;
    }
    let socket = doorstep::connect(&folder(ground), &peer.name)?
        .ok_or_else(|| io::Error::other("the proxy has ended at once"))?;
    let mut reaped = reaped;
    let child = reaped.0.take().ok_or_else(|| io::Error::other("no proxy"))?;
    Ok((socket, child, configure(all, peer, epoch)))
}

/// The interface for frames of Ethernet: the one that was chosen, or the one that bears this node's
/// address.
pub(super) fn interface(chosen: Option<&str>, address: IpAddr) -> io::Result<Interface> {
    match chosen {
        Some(name) => sys::ethernet::interface(name)
            .map_err(|error| io::Error::new(error.kind(), format!("interface {name}: {error}"))),
        None => sys::ethernet::interface(&sys::ethernet::bearing(address)?),
    }
}

/// Sockets for frames of Ethernet, bare ones and, where the kernel knows how, those under a cover;
/// a proxy may not make them.
pub(super) fn station(chosen: Option<&str>, address: IpAddr) -> io::Result<(Station, Vec<OwnedFd>)> {
    let interface = interface(chosen, address)?;
    let mut number = [0; 8];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
    let number = u64::from_le_bytes(number);
    let mut sockets = vec![sys::ethernet::open(&interface, wire::lane::ETHER_TYPE, number)?];
    if bundles::is_known() {
        let hears = Hears { ether_type: cover::ETHER_TYPE, words: cover::words(number), byte: cover::BYTE };
        sockets.push(bundles::open(&interface, &hears)?);
    }
    let Interface { name, index, mac, mtu } = interface;
    Ok((Station { interface: name, index, mac, mtu, number: format!("{number:016x}") }, sockets))
}

/// Returns the station for an order; none where it can't be had, which is told where the transport
/// is wanted.
fn with_station(all: &Proxies, peer: &Peer) -> (Option<Station>, Vec<OwnedFd>) {
    let chosen = peer.interface.borrow().clone();
    match station(chosen.as_deref(), all.nodes.address()) {
        Ok((station, sockets)) => (Some(station), sockets),
        Err(error) => {
            tracing::info!(node = peer.name, %error, "no frames of Ethernet for the link to the node");
            (None, Vec::new())
        }
    }
}

fn configure(all: &Proxies, peer: &Peer, epoch: u64) -> ToProxy {
    let wanted = peer.wanted.borrow().clone();
    let dials = all.dials(&peer.name);
    let address = all.nodes.address();
    let at = std::net::SocketAddr::new(address, LINK_PORT);
    let (station, descriptors) = with_station(all, peer);
    let mut listen = Vec::new();
    if !dials {
        listen = vec![format!("tcp:{at}"), format!("quic:{at}")];
        listen.extend(station.as_ref().map(|_| format!("ethernet:{at}")));
        // Any instance of it; the proxy listens there when that is wanted.
        listen.push(format!("tipc:{}:0", wire::link::TIPC_SERVICE));
    }
    let configure = Configure {
        node: all.nodes.me(),
        peer: peer.name.clone(),
        epoch,
        identity: all.nodes.identity().display().to_string(),
        listen,
        peer_at: if dials { peer.at.borrow().clone() } else { Vec::new() },
        transport: wanted.transport,
        compression: wanted.compression,
        station,
    };
    (Order::Configure(configure), descriptors)
}

/// Speaks with a proxy until it ends. `fresh`: what it is to be; otherwise it knows.
async fn converse(
    all: &Arc<Proxies>,
    peer: &Arc<Peer>,
    socket: AsyncFd<OwnedFd>,
    fresh: Option<ToProxy>,
) -> io::Result<Ended> {
    // Before a fresh one reads it, so that nothing is missed.
    let mut trust = all.nodes.trust_changes();
    if let Some(configure) = &fresh {
        say(&socket, configure).await?;
    }
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the proxy says nothing");
    let first = tokio::time::timeout(HELLO_TIMEOUT, hear(&socket)).await.map_err(|_| late())??;
    let Report::Hello { version, pid, configured: Some(mut configure), listens, up } = first else {
        return Ok(Ended::Over(match first {
            Report::Over { why } => why,
            other => format!("its first word is {other:?}"),
        }));
    };
    if version != VERSION {
        let why = format!("it speaks version {version}, and this daemon {VERSION}");
        say(&socket, &(Order::End { why: why.clone(), unless_used: false }, Vec::new())).await?;
        return Ok(Ended::Over(why));
    }
    {
        let mut seen = peer.seen();
        (seen.pid, seen.epoch, seen.up) = (Some(pid), configure.epoch, up);
        (seen.listens, seen.since_unix_s) = (listens, unix_seconds(SystemTime::now()));
        seen.transport = if up { configure.transport.clone() } else { String::new() };
    }
    tracing::info!(node = peer.name, pid, found = fresh.is_none(), "a proxy for the node");
    let (outbox, mut orders) = orders();
    let (mut at, mut wanted) = (peer.at.subscribe(), peer.wanted.subscribe());
    let mut interface = peer.interface.subscribe();
    let chosen = interface.borrow().clone().filter(|_| fresh.is_some());
    if is_outdated(&configure, &at.borrow(), &wanted.borrow(), chosen.as_deref()) {
        // It changed while the proxy started, and nobody says so again.
        at.mark_changed();
    }
    let mut shares = all.shared.shares();
    shares.mark_changed();
    let mut told = Shares::default();
    if fresh.is_none() {
        // What the earlier daemon told it may not be so any more.
        say(&socket, &(Order::Whole { rate_bits: 0 }, Vec::new())).await?;
    }
    let mut ask = tokio::time::interval(ASK_AGAIN);
    ask.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    all.broker.proxy_came(&peer.name, pid, outbox, up);
    let mut asking: Option<tokio::task::JoinHandle<()>> = None;
    if fresh.is_none() {
        // A daemon that ended in between may have heard what it could tell nobody.
        trust.mark_changed();
    }
    let mut retiring = all.retiring.subscribe();
    let mut asked_to_end = false;
    let mut ticks = 0_u32;
    loop {
        let changed = tokio::select! {
            report = hear(&socket) => {
                let report = report?;
                if matches!(report, Report::State { id: LAST_INSPECTION, .. }) {
                    return Ok(Ended::InUse);
                }
                if matches!(report, Report::Listening { .. }) {
                    // The other node may wait for just that.
                    ticks = 0;
                    ask.reset_immediately();
                }
                if let Some(why) = heard(all, peer, report) {
                    return Ok(Ended::Over(why));
                }
                false
            }
            order = orders.recv() => match order {
                Some(order) => {
                    say(&socket, &order).await?;
                    false
                }
                None => return Ok(Ended::Over("it does not read what it is told".into())),
            },
            Ok(()) = shares.changed() => {
                let now = shares.borrow_and_update().clone();
                for order in now.orders(&told) {
                    say(&socket, &(order, Vec::new())).await?;
                }
                told = now;
                false
            }
            Ok(()) = trust.changed() => {
                // Never the folder alone: a proxy has given up what it takes to enter it.
                match trust::open_folder(&all.nodes.identity()) {
                    Ok(files) => say(&socket, &(Order::Trust {}, files)).await?,
                    Err(error) => tracing::error!(%error, "a proxy can't be told what this node shows and believes"),
                }
                false
            }
            true = is_true(&mut retiring), if !asked_to_end => {
                asked_to_end = true;
                let end = Order::End { why: "its daemon ends, and nobody uses it".into(), unless_used: true };
                say(&socket, &(end, Vec::new())).await?;
                say(&socket, &(Order::Inspect { id: LAST_INSPECTION }, Vec::new())).await?;
                false
            }
            Ok(()) = at.changed() => true,
            Ok(()) = wanted.changed() => true,
            Ok(()) = interface.changed() => true,
            _ = ask.tick() => {
                let idle = asking.as_ref().is_none_or(tokio::task::JoinHandle::is_finished);
                let (is_up, by) = { let seen = peer.seen(); (seen.up, seen.transport.clone()) };
                let is_due = !is_up || ticks.is_multiple_of(ASK_SELDOM) && by != peer.wanted.borrow().transport;
                ticks = ticks.wrapping_add(1);
                if idle && is_due {
                    asking = Some(tokio::spawn(exchange(Arc::clone(all), Arc::clone(peer))));
                }
                false
            }
        };
        if changed {
            let now = wanted.borrow_and_update().clone();
            (configure.transport, configure.compression) = (now.transport, now.compression);
            configure.peer_at.clone_from(&at.borrow_and_update());
            // The interface may be another one by now.
            let (station, descriptors) = with_station(all, peer);
            configure.station = station;
            say(&socket, &(Order::Configure(configure.clone()), descriptors)).await?;
        }
    }
}

/// Whether a proxy was told something else than what is to be by now.
fn is_outdated(told: &Configure, at: &[String], wanted: &Wanted, chosen: Option<&str>) -> bool {
    let station = told.station.as_ref().map(|station| station.interface.as_str());
    // Where this daemon has not asked yet, an earlier one had.
    (!at.is_empty() && told.peer_at != at)
        || (&told.transport, &told.compression) != (&wanted.transport, &wanted.compression)
        || chosen.is_some_and(|chosen| station != Some(chosen))
}

/// Tells the other node's daemon where our proxy listens, and asks where its own does.
async fn exchange(all: Arc<Proxies>, peer: Arc<Peer>) {
    let offer = Offer { listens: peer.seen().listens.clone(), wanted: None };
    let answer = all.nodes.call(&peer.name, offer).await;
    peer.seen().unasked = answer.as_ref().err().cloned();
    match answer {
        Ok(answer) if !answer.listens.is_empty() && all.dials(&peer.name) => {
            peer.at.send_if_modified(|at| std::mem::replace(at, answer.listens.clone()) != answer.listens);
        }
        Ok(_) => {}
        Err(why) => {
            tracing::debug!(node = peer.name, why, "its daemon can't be asked where its proxy listens");
        }
    }
}

/// Takes a proxy's report; returns the reason why the link ends, if it does.
fn heard(all: &Proxies, peer: &Peer, report: Report) -> Option<String> {
    let now = unix_seconds(SystemTime::now());
    match report {
        Report::State { id, state } => {
            if let Some(tell) = peer.seen().inspections.remove(&id) {
                let _nobody_waits = tell.send(state);
            }
            return None;
        }
        Report::Over { why } => return Some(why),
        Report::Up { resumed, ref transport } => {
            let mut seen = peer.seen();
            (seen.up, seen.since_unix_s, seen.why, seen.unasked) = (true, now, String::new(), None);
            seen.transport.clone_from(transport);
            tracing::info!(node = peer.name, transport, resumed, "the link to the node is up");
        }
        Report::Down { ref why } => {
            let mut seen = peer.seen();
            (seen.up, seen.since_unix_s) = (false, now);
            seen.why.clone_from(why);
            tracing::warn!(node = peer.name, why, "the link to the node is down");
        }
        Report::Listening { ref at } => peer.seen().listens.clone_from(at),
        _ => {}
    }
    all.broker.proxy_says(&peer.name, report);
    None
}

async fn hear(socket: &AsyncFd<OwnedFd>) -> io::Result<Report> {
    loop {
        let mut ready = socket.readable().await?;
        match packet::receive::<Report>(socket.get_ref()) {
            Ok(packet) => return Ok(packet.message),
            Err(PacketError::NotReady) => ready.clear_ready(),
            Err(PacketError::Gone) => {
                return Ok(Report::Over { why: "it has ended without a word (killed?)".into() });
            }
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

async fn say(socket: &AsyncFd<OwnedFd>, (order, descriptors): &ToProxy) -> io::Result<()> {
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    loop {
        let mut ready = socket.writable().await?;
        match packet::send(socket.get_ref(), order, &descriptors) {
            Ok(()) => return Ok(()),
            Err(PacketError::NotReady) => ready.clear_ready(),
            // Its end is heard.
            Err(PacketError::Gone) => return Ok(()),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::COMPRESSIONS;
    use super::*;

    /// Data of several domains were compressed together by default, so that one that saw lengths on
    /// the wire learnt the others' data.
    #[test]
    fn nothing_is_compressed_that_nobody_has_asked_to_be() {
        assert_eq!(read(b"").wanted.compression, "none");
        let before = br#"{"epoch":7,"wanted":{"transport":"quic","compression":"auto"}}"#;
        let kept = read(before);
        assert_eq!((kept.epoch, kept.wanted.transport.as_str()), (7, "quic"));
        assert_eq!(kept.wanted.compression, "none", "it was the default");
        for chosen in COMPRESSIONS {
            let mut kept = read(before);
            kept.wanted.compression = chosen.into();
            let text = serde_json::to_vec(&kept).unwrap();
            assert_eq!(read(&text).wanted.compression, chosen);
        }
    }

    /// A proxy that was started before its daemon knew where the other one listens was never told,
    /// and the link never came up.
    #[test]
    fn what_changed_while_a_proxy_started_is_told_to_it() {
        let at = ["tcp:10.0.0.2:7421".to_owned()];
        let wanted = Wanted::default();
        let mut told = Configure {
            node: "a".into(),
            peer: "b".into(),
            epoch: 1,
            identity: String::new(),
            listen: Vec::new(),
            peer_at: Vec::new(),
            transport: wanted.transport.clone(),
            compression: wanted.compression.clone(),
            station: None,
        };
        assert!(!is_outdated(&told, &[], &wanted, None));
        assert!(is_outdated(&told, &at, &wanted, None));
        told.peer_at = at.to_vec();
        assert!(!is_outdated(&told, &at, &wanted, None));
        assert!(!is_outdated(&told, &[], &wanted, None), "what an earlier daemon heard is as good");
        assert!(is_outdated(&told, &at, &wanted, Some("eth1")));
        told.station =
            Some(Station { interface: "eth1".into(), index: 2, mac: [2; 6], mtu: 1500, number: "00".into() });
        assert!(!is_outdated(&told, &at, &wanted, Some("eth1")));
        told.compression = "lz4".into();
        assert!(is_outdated(&told, &at, &wanted, Some("eth1")));
    }
}
