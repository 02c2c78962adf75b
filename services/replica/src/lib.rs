//! The process of a volume's replica on one node (`docs/spec/volume.md`).
//!
//! It stands between the node's engine, which has the replica's bytes, and those who write them:
//! clients on this node while this is the primary of the view, another node's process otherwise.
//! `logic/volume` decides; this crate asks and answers. Its daemon speaks with the registry for it,
//! and may end and come back meanwhile.

mod base;
mod clients;
mod engine;
mod hub;
mod input;
mod names;
mod peers;
mod serving;
mod standby;

use crate::hub::Hub;
use crate::input::Input;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use session::packet::{self, Packet, PacketError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;
use trust::Identity;
use wire::replica::{Configure, Order, Report};

/// How long its daemon may take to say what it is to be.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is looked at what only the clock says.
const TICK: Duration = Duration::from_millis(100);
/// Descriptors at most: clients, replicas, sockets.
const DESCRIPTORS_MAX: u64 = 256;
/// Words that may wait for a daemon that does not read; then it is taken for gone.
const MAX_WAITING_REPORTS: usize = 4096;
/// Inputs that are taken in one turn.
const TURN: usize = 64;

/// Why the process does not start, or ends in error.
#[derive(Debug, Error)]
pub enum StartError {
    /// Nobody says what it is to be.
    #[error("the daemon has not said within {} s what this replica is to be", DAEMON_TIMEOUT.as_secs())]
    Silent,
    /// The order is not understood.
    #[error("the daemon's first word is not what this replica is to be: {0}")]
    Order(String),
    /// The node's certificate can't be used.
    #[error("the node's identity can't be used: {0}")]
    Identity(#[from] trust::TrustError),
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

/// The descriptors and settings that the daemon hands over at the start.
struct Handed {
    configure: Configure,
    clients: OwnedFd,
    nodes: OwnedFd,
    folder: OwnedFd,
}

/// Runs the process of a replica whose daemon connects at this listening socket, for ever.
///
/// # Errors
/// [`StartError`].
pub fn run(listener: OwnedFd) -> Result<(), StartError> {
    rustix::io::ioctl_fionbio(&listener, true).map_err(io::Error::from).map_err(system("use its socket"))?;
    let until = Instant::now() + DAEMON_TIMEOUT;
    let daemon = accept_within(&listener, until)?;
    let handed = first_order(&daemon, until)?;
    let identity = Identity::load(Path::new(&handed.configure.identity))?;
    let user = handed.configure.user;
    let modest = sys::privilege::Modest {
        identity: rustix::process::geteuid().is_root().then_some((user, user)),
        descriptors: DESCRIPTORS_MAX,
        locked_bytes: None,
    };
    sys::privilege::drop_all(modest).map_err(system("give up its privileges"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("make the event loop"))?;
    runtime.block_on(serve(listener, daemon, handed, identity)).map_err(system("serve"))
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

fn accept_within(listener: &OwnedFd, until: Instant) -> Result<OwnedFd, StartError> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener, flags) {
            Ok(socket) => return Ok(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => wait(listener, until)?,
            Err(errno) => return Err(system("accept its daemon")(errno.into())),
        }
    }
}

fn first_order(daemon: &OwnedFd, until: Instant) -> Result<Handed, StartError> {
    loop {
        match packet::receive::<Order>(daemon) {
            Ok(Packet { message: Order::Configure(configure), descriptors }) => {
                let mut descriptors = descriptors.into_iter();
                let mut next = || {
                    descriptors.next().ok_or_else(|| StartError::Order("it comes without its sockets".into()))
                };
                let (clients, nodes, folder) = (next()?, next()?, next()?);
                return Ok(Handed { configure, clients, nodes, folder });
            }
            Ok(other) => return Err(StartError::Order(format!("{:?}", other.message))),
            Err(PacketError::NotReady) => wait(daemon, until)?,
            Err(error) => return Err(StartError::Order(error.to_string())),
        }
    }
}

async fn serve(listener: OwnedFd, daemon: OwnedFd, handed: Handed, identity: Identity) -> io::Result<()> {
    let Handed { configure, clients, nodes, folder } = handed;
    let clients = std::os::unix::net::UnixListener::from(clients);
    clients.set_nonblocking(true)?;
    let nodes = std::net::TcpListener::from(nodes);
    nodes.set_nonblocking(true)?;
    let (inputs, mut taken) = unbounded_channel::<Input>();
    let (jobs, asked) = unbounded_channel();
    let (serving, is_serving) = watch::channel(0);
    let (trust, believes) = watch::channel(0_u64);
    let ground = peers::Ground {
        identity: identity.clone(),
        inputs: inputs.clone(),
        trust: believes,
        bytes: configure.bytes,
    };
    let bytes = configure.bytes;
    let mut hub = Hub::new(configure, jobs, ground.clone(), serving);
    let shared = Arc::new(clients::Shared::new(bytes, hub.base.extent_bytes, inputs.clone(), is_serving));
    tokio::spawn(engine::run(folder, bytes, asked, inputs));
    tokio::spawn(clients::accept(tokio::net::UnixListener::from_std(clients)?, shared));
    tokio::spawn(peers::accept(tokio::net::TcpListener::from_std(nodes)?, ground));
    let listener = watch_fd(listener)?;
    let mut daemon = Some(watch_fd(daemon)?);
    let hello = hub.hello();
    hub.base.report(hello);
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        if hub.base.reports.len() > MAX_WAITING_REPORTS {
            daemon = None;
        }
        if daemon.is_none() {
            hub.base.has_daemon = false;
            hub.base.reports.clear();
        }
        tokio::select! {
            input = taken.recv() => {
                let mut next = input;
                let mut count = 0;
                while let Some(input) = next {
                    hub.take(input);
                    count += 1;
                    next = if count < TURN { taken.try_recv().ok() } else { None };
                }
            }
            order = next_order(daemon.as_ref()) => match order {
                Ok(Packet { message: Order::Trust {}, descriptors }) => {
                    if let Err(error) = identity.reload_from(descriptors) {
                        tracing::error!(%error, "what this node shows and believes can't be taken up");
                    }
                    trust.send_modify(|count| *count = count.wrapping_add(1));
                }
                Ok(Packet { message, .. }) => hub.obey(message),
                Err(error) if error.is_about_one_packet() => {
                    tracing::warn!(%error, "the daemon says what is not understood");
                }
                Err(_gone) => {
                    tracing::info!("the daemon is gone");
                    daemon = None;
                }
            },
            told = tell(daemon.as_ref(), hub.base.reports.front()) => match told {
                Ok(()) => drop(hub.base.reports.pop_front()),
                Err(error) if error.is_about_one_packet() => {
                    tracing::error!(%error, "the daemon can't be told");
                    hub.base.reports.pop_front();
                }
                Err(_gone) => daemon = None,
            },
            came = accept(&listener) => {
                let socket = came?;
                rustix::io::ioctl_fionbio(&socket, true)?;
                daemon = Some(watch_fd(socket)?);
                let hello = hub.hello();
                // Before whatever it is asked.
                hub.base.reports.push_front(hello);
            }
            _ = tick.tick() => hub.tick(),
        }
    }
}

fn watch_fd(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated for types whose descriptor can change or close while it is watched. An `OwnedFd`
    // can do neither: it stays open and the same until the `AsyncFd` lets go of it.
    #[allow(
        deprecated,
        reason = "an `OwnedFd` keeps what the unsafe constructor asks for, and `unsafe` lives in `sys`"
    )]
    AsyncFd::with_interest(socket, Interest::READABLE | Interest::WRITABLE)
}

/// The next packet of the daemon; never comes back where there is none.
async fn next_order(daemon: Option<&AsyncFd<OwnedFd>>) -> Result<Packet<Order>, PacketError> {
    let Some(daemon) = daemon else { return std::future::pending().await };
    loop {
        let mut ready = daemon.readable().await.map_err(PacketError::Socket)?;
        match packet::receive(daemon.get_ref()) {
            Err(PacketError::NotReady) => ready.clear_ready(),
            received => return received,
        }
    }
}

/// Tells the daemon; never comes back where there is none, or nothing to tell.
async fn tell(daemon: Option<&AsyncFd<OwnedFd>>, report: Option<&Report>) -> Result<(), PacketError> {
    let (Some(daemon), Some(report)) = (daemon, report) else { return std::future::pending().await };
    loop {
        let mut ready = daemon.writable().await.map_err(PacketError::Socket)?;
        match packet::send(daemon.get_ref(), report, &[]) {
            Err(PacketError::NotReady) => ready.clear_ready(),
            sent => return sent,
        }
    }
}

async fn accept(listener: &AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    loop {
        let mut ready = listener.readable().await?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener.get_ref().as_fd(), flags) {
            Ok(socket) => return Ok(socket),
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
