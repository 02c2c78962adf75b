//! The start of a proxy process: its daemon says what it is to be, it reads the node's certificate,
//! gives up its privileges, and has its link carried by `transport`.

use crate::locators::{Left, Locators};
use crate::{Carrier, Linked, privilege, serve};
use link::{Event, OpenError, Over, SendError, Sent, Share, Standing, Timing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use serde_json::{Value, json};
use session::packet::{self, PacketError};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use sys::ethernet::Interface;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use transport::{Address, Compression, Dial, Handle, Kind, Listener, Locator, Settings, Station, Tls};
use trust::Identity;
use wire::link::{Hello, Pair, VERSION, VERSION_OLDEST};
use wire::proxy::{Configure, MAX_MESSAGE_BYTES, MAX_PAIRS, Order, Report, SILENCE_MS, WINDOW_BYTES, reason};

/// Events of the link that wait for the proxy's loop: those of a turn. More wait in the link's
/// driver, which then receives nothing.
const EVENTS_MAX: usize = 64;
/// How long the other node may take to hear that this proxy ends.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long its daemon may take to say what it is to be.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(10);
/// A link that goes over another transport than is wanted is tried on that after so long, then
/// after twice as long, up to [`AGAIN_MAX`].
const AGAIN_MIN: Duration = Duration::from_secs(2);
/// See [`AGAIN_MIN`].
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Ports that are tried, from the one that was named on, where it is taken: a node has a proxy for
/// each other node.
const PORTS: u16 = 256;

/// Why a proxy does not start, or ends in error.
#[derive(Debug, Error)]
pub enum StartError {
    /// Nobody says what it is to be.
    #[error("the daemon has not said within {} s what this proxy is to be", DAEMON_TIMEOUT.as_secs())]
    Silent,
    /// The order is not understood.
    #[error("the daemon's first word is not what this proxy is to be: {0}")]
    Order(String),
    /// The node's certificate can't be used.
    #[error("the node's identity in {folder} can't be used: {why}")]
    Identity {
        /// Where.
        folder: String,
        /// Why not.
        why: String,
    },
    /// It is to listen, and nowhere that it can.
    #[error("of {} there is nowhere that this proxy can listen", .0.join(", "))]
    Nowhere(Vec<String>),
    /// It can't listen.
    #[error("can't listen at {at}, nor at the {PORTS} ports from there on: {cause}")]
    Listen {
        /// Where.
        at: Locator,
        /// Why not.
        cause: io::Error,
    },
    /// The link's numbers are wrong.
    #[error("the link can't be made: {0}")]
    Link(#[from] link::BadConfig),
    /// Something of the system failed.
    #[error("can't {what}: {cause}")]
    System {
        /// The action that was tried.
        what: &'static str,
        /// Why not.
        cause: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |cause| StartError::System { what, cause }
}

/// Runs a proxy whose daemon connects at this listening socket; says why it ended.
///
/// # Errors
/// [`StartError`]: it never served.
pub fn run(listener: OwnedFd) -> Result<String, StartError> {
    rustix::io::ioctl_fionbio(&listener, true).map_err(io::Error::from).map_err(system("use its socket"))?;
    let until = Instant::now() + DAEMON_TIMEOUT;
    let daemon = accept(&listener, until)?;
    let (configure, descriptors) = first_order(&daemon, until)?;
    let identity = Identity::load(Path::new(&configure.identity))
        .map_err(|e| StartError::Identity { folder: configure.identity.clone(), why: e.to_string() })?;
    privilege::drop_all().map_err(system("give up its privileges"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("make the event loop"))?;
    let ended = runtime.block_on(async {
        let (linked, handle, driver) = match link(&configure, descriptors, &identity).await {
            Ok(linked) => linked,
            Err(error) => {
                let why = error.to_string();
                // Its end says the same to a daemon that does not read this.
                let _unheard = packet::send(&daemon, &Report::Over { why }, &[]);
                return Err(error);
            }
        };
        let ended = serve(listener, daemon, configure, linked).await;
        // The pairs end there as well, and nobody waits for this proxy to come back.
        handle.goodbye(reason::ENDED);
        if tokio::time::timeout(FAREWELL, driver).await.is_err() {
            tracing::debug!("the other node does not hear that this proxy ends");
        }
        ended.map_err(system("watch its sockets"))
    });
    runtime.shutdown_background();
    ended
}

fn wait(socket: &OwnedFd, until: Instant) -> Result<(), StartError> {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
        Ok(0) => Err(StartError::Silent),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(system("wait for its daemon")(errno.into())),
    }
}

fn accept(listener: &OwnedFd, until: Instant) -> Result<OwnedFd, StartError> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener, flags) {
            Ok(socket) => return Ok(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => wait(listener, until)?,
            Err(errno) => return Err(system("accept its daemon")(errno.into())),
        }
    }
}

fn first_order(daemon: &OwnedFd, until: Instant) -> Result<(Configure, Vec<OwnedFd>), StartError> {
    loop {
        match packet::receive::<Order>(daemon) {
            Ok(packet::Packet { message: Order::Configure(configure), descriptors }) => {
                return Ok((configure, descriptors));
            }
            Ok(other) => return Err(StartError::Order(format!("{:?}", other.message))),
            Err(PacketError::NotReady) => wait(daemon, until)?,
            Err(error) => return Err(StartError::Order(error.to_string())),
        }
    }
}

/// Certificates and keys of a node, as links use them.
///
/// # Errors
/// They can't be used for TLS.
pub(crate) fn tls(identity: &Identity, shown: &Shown) -> Result<Tls, String> {
    let alpn: &[&[u8]] = &[transport::ALPN];
    let server = identity.server(alpn).map_err(|e| e.to_string())?;
    let client = identity.client(alpn).map_err(|e| e.to_string())?;
    let (checker, shown) = (identity.clone(), Arc::clone(shown));
    Ok(Tls::new(&server, &client, move |chain| {
        let now = checker.shown(chain).map_err(|e| e.to_string())?;
        let node = now.peer().node.clone();
        note(&shown, now.clone());
        // Once more: it may be believed no more since TLS looked, and then whoever looks at what
        // was shown has looked before.
        checker.still(&now).map(|()| node).map_err(|e| e.to_string())
    }))
}

/// The certificates that were shown on connections, the newest last: that of the connection which
/// stands is among them.
type Shown = Arc<Mutex<VecDeque<trust::Shown>>>;

/// So many are kept: a node has fewer (`docs/spec/joining.md`), and handshakes are few at a time.
const SHOWN_MAX: usize = 256;

fn note(shown: &Shown, now: trust::Shown) {
    let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
    shown.retain(|other| *other != now);
    shown.push_back(now);
    if shown.len() > SHOWN_MAX {
        shown.pop_front();
    }
}

/// Whether one of those that were shown is believed no more; those are forgotten.
fn drop_disbelieved(shown: &Shown, identity: &Identity) -> bool {
    let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
    let before = shown.len();
    shown.retain(|one| identity.still(one).is_ok());
    shown.len() < before
}

/// The station that its daemon has made for it; `None`: there is none, or it can't be used.
fn station(configure: &Configure, descriptors: Vec<OwnedFd>) -> Option<Station> {
    let given = configure.station.as_ref()?;
    let mut sockets = descriptors.into_iter();
    let Some(socket) = sockets.next() else {
        tracing::warn!("the daemon names a station and gives no socket");
        return None;
    };
    // One for frames under a cover, where the kernel knows how.
    let sockets = (socket, sockets.next());
    let wire::proxy::Station { interface, index, mac, mtu, number } = given.clone();
    let Ok(number) = u64::from_str_radix(&number, 16) else {
        tracing::warn!(number, "what the daemon says is no station's number");
        return None;
    };
    let made = Station::of(sockets, Interface { name: interface, index, mac, mtu }, number);
    made.map_err(|error| tracing::warn!(%error, "no frames of Ethernet")).ok()
}

async fn link(
    configure: &Configure,
    descriptors: Vec<OwnedFd>,
    identity: &Identity,
) -> Result<(Linked, Handle, JoinHandle<Over>), StartError> {
    let shown: Shown = Arc::default();
    let tls = tls(identity, &shown)
        .map_err(|why| StartError::Identity { folder: configure.identity.clone(), why })?;
    tls.set_station(station(configure, descriptors));
    let dials = configure.listen.is_empty();
    let of_peer = Locators::read(&configure.peer_at, &configure.transport);
    let dial = dials.then(|| Dial { locators: of_peer.known.clone(), tls: tls.clone() });
    let hello = Hello {
        oldest: VERSION_OLDEST,
        newest: VERSION,
        side: u8::from(configure.node > configure.peer),
        compressions: transport::COMPRESSIONS,
        pairs: MAX_PAIRS,
        window_bytes: WINDOW_BYTES,
        message_bytes: MAX_MESSAGE_BYTES,
        silence_ms: SILENCE_MS,
    };
    let queue_bytes = WINDOW_BYTES as usize;
    let config = link::Config { epoch: configure.epoch, hello, queue_bytes, timing: Timing::default() };
    let settings = Settings {
        peer: configure.peer.clone(),
        link: config,
        compression: configure.compression.parse().unwrap_or(Compression::None),
        dial,
        spin: Duration::ZERO,
    };
    let (handle, mut told, driver) = transport::start(settings)?;
    let driver = tokio::spawn(driver.run());
    let link = handle.clone();
    let (tell, events) = mpsc::channel::<Event>(EVENTS_MAX);
    tokio::spawn(async move {
        while let Some(event) = told.next().await {
            if tell.send(event).await.is_err() {
                return;
            }
        }
    });
    let mut listens = Vec::new();
    let mut when_wanted = None;
    let ours = Locators::read(&configure.listen, &configure.transport);
    if !dials && ours.known.is_empty() {
        return Err(StartError::Nowhere(ours.left));
    }
    for at in ours.known {
        if at.kind == Kind::Tipc {
            when_wanted = Some(at);
            continue;
        }
        let listener = bind(at, &tls).await?;
        listens.push(listener.locator().to_string());
        tokio::spawn(take(listener, handle.clone()));
    }
    let stays: Stays = Arc::default();
    let left: Arc<Mutex<Vec<String>>> = Arc::default();
    let (asked_for, is_asked_for) = watch::channel(configure.transport.clone());
    let (tell_listening, listening) = mpsc::unbounded_channel();
    if let Some(at) = when_wanted {
        let later = Later {
            at,
            tls: tls.clone(),
            handle: handle.clone(),
            wanted: is_asked_for,
            listens: listens.clone(),
            tell: tell_listening,
            stays: Arc::clone(&stays),
        };
        tokio::spawn(later.listen());
    }
    let carrier = Arc::new(Carried {
        handle: handle.clone(),
        stays: Arc::clone(&stays),
        left: Arc::clone(&left),
        identity: identity.clone(),
    });
    let mut wanted = configure.transport.clone();
    let preferred: Preferred = Arc::default();
    if dials {
        *preferred.lock().unwrap_or_else(PoisonError::into_inner) = of_peer.first(&configure.transport);
        leave(&left, of_peer.left);
        tokio::spawn(try_again(handle.clone(), Arc::clone(&preferred), Arc::clone(&stays)));
    }
    let mut interface = configure.station.as_ref().map(|station| station.index);
    let reconfigure = move |to: &Configure, descriptors: Vec<OwnedFd>| {
        if let Some(station) = station(to, descriptors) {
            tls.set_station(Some(station));
            let now = to.station.as_ref().map(|station| station.index);
            if std::mem::replace(&mut interface, now) != now && handle.status().kind == Some(Kind::Ethernet) {
                // The next connection goes over the new one, and carries on what this one did.
                handle.cut("frames go over another interface from now on");
            }
        }
        handle.set_compression(to.compression.parse().unwrap_or(Compression::None));
        asked_for.send_if_modified(|now| std::mem::replace(now, to.transport.clone()) != to.transport);
        if !dials {
            return;
        }
        let of_peer = Locators::read(&to.peer_at, &to.transport);
        let first = of_peer.first(&to.transport);
        *preferred.lock().unwrap_or_else(PoisonError::into_inner) = first;
        leave(&left, of_peer.left);
        handle.set_locators(of_peer.known);
        let is_new = std::mem::replace(&mut wanted, to.transport.clone()) != to.transport;
        let is_other = handle.status().kind.is_some_and(|kind| kind.name() != to.transport);
        let Some(locator) = first else {
            if is_other {
                *stays.lock().unwrap_or_else(PoisonError::into_inner) =
                    not_there(&to.transport, &to.peer, &to.node);
            }
            return;
        };
        if !is_new && !is_other {
            return;
        }
        let (handle, stays) = (handle.clone(), Arc::clone(&stays));
        tokio::spawn(async move {
            let why = match handle.switch(locator).await {
                Ok(()) => {
                    tracing::info!(%locator, "the link goes over another transport");
                    String::new()
                }
                Err(error) => {
                    tracing::warn!(%locator, %error, "the link stays on its transport");
                    error.to_string()
                }
            };
            *stays.lock().unwrap_or_else(PoisonError::into_inner) = why;
        });
    };
    let (identity, live) = (identity.clone(), link.clone());
    let trust = move |files: Vec<OwnedFd>| match identity.reload_from(files) {
        Ok(()) => {
            tracing::info!(certificate = %identity.serial(), "from now on this proxy shows and believes what its node does");
            if drop_disbelieved(&shown, &identity) {
                // Another connection is made, if the other node has another certificate.
                live.cut("the certificate that the other node had shown is believed no more");
            }
        }
        Err(error) => {
            tracing::warn!(%error, "this proxy can't take up what its node shows and believes now");
        }
    };
    let linked = Linked {
        carrier,
        events,
        listens,
        listening,
        configure: Box::new(reconfigure),
        trust: Box::new(trust),
    };
    Ok((linked, link, driver))
}

/// Why a link can't go over what is wanted, where the other side has said nothing of it.
fn not_there(transport: &str, peer: &str, node: &str) -> String {
    format!("node {peer} does not listen by {transport}: there `tombolo link show {node}` may say why")
}

/// Listens there, or at one of the ports behind.
async fn bind(at: Locator, tls: &Tls) -> Result<Listener, StartError> {
    let listen = |cause| StartError::Listen { at, cause };
    let mut address = at.address.ip().map_err(listen)?;
    let (first, mut last) = (address.port(), None);
    for offset in 0..PORTS {
        // Port 0 is any that is free.
        address.set_port(if first == 0 { 0 } else { first.saturating_add(offset) });
        match Listener::bind(Locator { kind: at.kind, address: Address::Ip(address) }, tls.clone()).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
            Err(cause) => return Err(listen(cause)),
        }
    }
    Err(listen(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into())))
}

/// Listening by what is not touched before it is asked for: a kernel loads TIPC for whoever makes a
/// socket of it.
struct Later {
    at: Locator,
    tls: Tls,
    handle: Handle,
    wanted: watch::Receiver<String>,
    /// Where this proxy listens already.
    listens: Vec<String>,
    tell: mpsc::UnboundedSender<Vec<String>>,
    stays: Stays,
}

impl Later {
    /// Listens once that is wanted and can be had, and says so.
    async fn listen(mut self) {
        let mut pause = AGAIN_MIN;
        loop {
            if self.wanted.wait_for(|wanted| wanted == self.at.kind.name()).await.is_err() {
                return;
            }
            let why = match Listener::bind(self.at, self.tls.clone()).await {
                Ok(listener) => {
                    tracing::info!(at = %listener.locator(), "listens by what is wanted");
                    self.stays.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    self.listens.push(listener.locator().to_string());
                    // A proxy that ends tells nobody.
                    let _ends = self.tell.send(self.listens);
                    return take(listener, self.handle).await;
                }
                Err(error) => error.to_string(),
            };
            tracing::warn!(at = %self.at, why, "can't listen by what is wanted");
            *self.stays.lock().unwrap_or_else(PoisonError::into_inner) = why;
            tokio::select! {
                // tidy(sleep): nothing tells when the kernel has it.
                () = tokio::time::sleep(pause) => pause = (2 * pause).min(AGAIN_MAX),
                _ = self.wanted.changed() => {
                    pause = AGAIN_MIN;
                    // It was of what is not wanted any more.
                    self.stays.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
            }
        }
    }
}

/// Gives the link whoever comes and proves to be the other node.
async fn take(mut listener: Listener, handle: Handle) {
    loop {
        match listener.accept().await {
            Ok(connection) => {
                if let Err(error) = handle.adopt(connection) {
                    tracing::warn!(%error, "a connection that is not for this link");
                }
            }
            Err(refused) => tracing::info!(%refused, "a connection was refused"),
        }
    }
}

/// Why a link was not exchanged when it was wanted last, for a person; empty: it was.
type Stays = Arc<Mutex<String>>;

/// Where the other proxy is reached by the transport that is wanted, if it is.
type Preferred = Arc<Mutex<Option<Locator>>>;

/// Remembers which addresses of the other proxy are of no use here.
fn leave(known: &Mutex<Vec<String>>, left: Vec<String>) {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if *known != left && !left.is_empty() {
        tracing::warn!(?left, "where the other proxy listens by what this release does not know is left");
    }
    *known = left;
}

/// Takes a link that had to go over another transport back to the one that is wanted, when that can
/// be had.
async fn try_again(handle: Handle, preferred: Preferred, stays: Stays) {
    let mut pause = AGAIN_MIN;
    loop {
        // tidy(sleep): nothing tells when a network takes it again.
        tokio::time::sleep(pause).await;
        let wanted = *preferred.lock().unwrap_or_else(PoisonError::into_inner);
        let status = handle.status();
        let other = |locator: &Locator| status.kind.is_some_and(|kind| kind != locator.kind);
        let Some(locator) = wanted.filter(other).filter(|_| status.standing == Standing::Up) else {
            pause = AGAIN_MIN;
            continue;
        };
        let switched = handle.switch(locator).await;
        pause = if switched.is_ok() { AGAIN_MIN } else { (2 * pause).min(AGAIN_MAX) };
        *stays.lock().unwrap_or_else(PoisonError::into_inner) =
            switched.err().map_or_else(String::new, |error| error.to_string());
    }
}

/// A link that `transport` carries.
#[derive(Debug)]
struct Carried {
    handle: Handle,
    stays: Stays,
    /// Addresses of the other proxy that are of no use here.
    left: Arc<Mutex<Vec<String>>>,
    identity: Identity,
}

impl Carrier for Carried {
    fn open(&self, content: &[u8]) -> Result<Pair, OpenError> {
        self.handle.open(content)
    }

    fn send(&self, pair: Pair, message: &[u8]) -> Result<Sent, SendError> {
        self.handle.send(pair, message)
    }

    fn send_parts(&self, pair: Pair, parts: [&[u8]; 2]) -> Result<Sent, SendError> {
        self.handle.send_parts(pair, parts)
    }

    fn send_all_parts(&self, pair: Pair, messages: &[[&[u8]; 2]]) -> Result<usize, SendError> {
        self.handle.send_all_parts(pair, messages.iter().copied())
    }

    fn consumed_all(&self, pair: Pair, messages: usize, bytes: usize) {
        self.handle.consumed_all(pair, messages, bytes);
    }

    fn close(&self, pair: Pair, reason: u32) {
        self.handle.close(pair, reason);
    }

    fn abandon(&self, pair: Pair, reason: u32) {
        self.handle.abandon(pair, reason);
    }

    fn held_of(&self, pair: Pair) -> usize {
        self.handle.held_of(pair)
    }

    fn set_whole(&self, rate_bytes: Option<u64>) {
        self.handle.set_whole(rate_bytes);
    }

    fn set_share(&self, class: u32, share: Option<Share>) -> bool {
        self.handle.set_share(class, share)
    }

    fn classify(&self, pair: Pair, class: u32) {
        self.handle.classify(pair, class);
    }

    fn standing(&self) -> Standing {
        self.handle.standing()
    }

    fn transport(&self) -> String {
        self.handle.status().kind.map_or_else(String::new, |kind: Kind| kind.name().to_owned())
    }

    fn loss(&self) -> String {
        let why =
            self.handle.status().last_loss.unwrap_or_else(|| "the other proxy was not found yet".into());
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.is_empty() { why } else { format!("{why}; {}", Left(&left)) }
    }

    fn state(&self) -> Value {
        let status = self.handle.status();
        let traffic = status.traffic;
        let why_down = (status.standing != Standing::Up).then(|| self.loss());
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).clone();
        json!({
            "standing": match status.standing {
                Standing::Down => "down",
                Standing::Greeting => "greeting",
                Standing::Up => "up",
                Standing::Over(_) => "over",
            },
            "transport": status.kind.map(Kind::name),
            "remote": status.remote.map(|remote| remote.to_string()),
            "certificate": self.identity.serial().to_string(),
            "round_trip_ms": status.round_trip_ms,
            "compression": status.compression.name(),
            "last_loss": status.last_loss,
            "why_down": why_down,
            "left_addresses": left,
            "stays_because": *self.stays.lock().unwrap_or_else(PoisonError::into_inner),
            "pairs_held": status.held.pairs,
            "outward_bytes": status.held.outward,
            "inward_bytes": status.held.inward,
            "stale_packets": status.stale,
            "connections": traffic.connections,
            "messages_out": traffic.messages_out,
            "messages_in": traffic.messages_in,
            "packets_out": traffic.packets_out,
            "packets_in": traffic.packets_in,
            "bytes_out": traffic.carried_out,
            "bytes_in": traffic.carried_in,
            "plain_bytes_out": traffic.plain_out,
            "plain_bytes_in": traffic.plain_in,
        })
    }
}
