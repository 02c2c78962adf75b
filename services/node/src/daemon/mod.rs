//! The daemon's life: from the locks to the last signal.

mod etcd;
pub(crate) mod ground;
mod groups;
mod links;
mod lock;
mod log_lines;
mod metrics;
pub(crate) mod own_log;
mod restore;

use crate::adaptations;
use crate::api;
use crate::api::node::Node;
use crate::base::RegistryDebug;
use crate::broker::wake_ns;
use crate::domains::{LoadError, adopt, change, host, targets};
use crate::membership::{self, Cluster, ClusterError};
use crate::placement::{self, Following};
use crate::reservations::{self, BookError, Offers};
use admin::place::{ADMIN_SOCKET, Place};
use ground::GroundError;
pub use groups::Groups;
use lock::{Lock, LockError};
pub use log_lines::{LogLine, log_line};
pub use metrics::{Metrics, Tls};
use registry::{Embedded, RegistryError};
pub use restore::{Restore, restore_etcd};
use rustix::net::SocketType;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};

/// Descriptors that the daemon may hold: some for each domain, one for each connection, ten for
/// each channel that is being made, two for each pair of endpoints and for each buffer.
const OPEN_FILES: u64 = 262_144;

/// The time for the last answer before the daemon starts anew.
const ANSWER_PAUSE: Duration = Duration::from_millis(100);
/// How long a daemon that ends may take before its successor gives up.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(3);

/// The configuration of a daemon.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its directories.
    pub place: Place,
    /// The binary that is run for each role, and seen in each domain.
    pub program: PathBuf,
    /// Also serve metrics.
    pub metrics: Option<Metrics>,
    /// Groups whose members may speak to it beside root.
    pub groups: Groups,
    /// Leave the terminal's session, and say `ready` on the standard output when requests are
    /// taken.
    pub detached: bool,
}

/// Why a daemon can't start.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// Namespaces, mounts and cgroups need privileges.
    #[error("the daemon must run as root: it makes namespaces, mounts and cgroups; use sudo")]
    NotRoot,
    /// Its directories are not its own, or can't be used.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// The desired state of domains can't be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Another daemon is there.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The kept state of its cluster can't be used.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The registry can't be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The reservation table can't be read.
    #[error(transparent)]
    Book(#[from] BookError),
    /// Metrics would go over the network in clear.
    #[error(
        "metrics are served by HTTP at loopback addresses only, such as 127.0.0.1:9464, and {0} is none; \
         by HTTPS anywhere: --metrics-certificate FILE --metrics-key FILE"
    )]
    MetricsAddress(SocketAddr),
    /// The files of HTTPS can't be used.
    #[error("metrics can't be served by HTTPS: {0}")]
    MetricsFiles(String),
    /// A group that was named can't be let in.
    #[error("members of a group can't be let in: {0}")]
    Group(String),
    /// An address can't be listened at.
    #[error("can't listen at {at}: {cause}")]
    Listen {
        /// Where.
        at: String,
        /// Why.
        cause: io::Error,
    },
    /// Control groups can't be found.
    #[error("can't use control groups: {0}")]
    Cgroups(String),
    /// Something of the system failed.
    #[error("can't {what}: {cause}")]
    System {
        /// The attempt.
        what: &'static str,
        /// Why not.
        cause: io::Error,
    },
}

/// Runs the daemon until a signal (`SIGTERM`, `SIGINT`) ends it. Domains run on.
///
/// # Errors
/// [`DaemonError`]: it did not start, or can't go on.
pub fn run(config: Config) -> Result<(), DaemonError> {
    if !rustix::process::geteuid().is_root() {
        return Err(DaemonError::NotRoot);
    }
    if let Some(metrics) = &config.metrics {
        metrics.check()?;
    }
    if config.detached {
        // Fails only where this process leads a group already, which is as good.
        let _already_leads = rustix::process::setsid();
    }
    ground::own(&config.place.state_dir)?;
    ground::own(&config.place.run_dir)?;
    // Whoever takes requests stays; whoever does not is about to end, to say why it can't start, or
    // to take requests.
    let stays = || std::os::unix::net::UnixStream::connect(config.place.admin_socket()).is_ok();
    let patience = if stays() { Duration::ZERO } else { PREDECESSOR_TIMEOUT };
    let _state = Lock::take_within(&config.place.state_dir, patience, stays)?;
    let _run = Lock::take_within(&config.place.run_dir, patience, stays)?;
    ground::pair(&config.place)?;
    allow_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(crate::base::threads())
        .build()
        .map_err(|cause| DaemonError::System { what: "make the event loop", cause })?;
    let served = runtime.block_on(serve(&config));
    // What blocks now (a start that was under way) is not waited for: the next daemon finds what it
    // left.
    runtime.shutdown_background();
    match served {
        Ok(Ended::Again) => Err(start_anew(&config.program)),
        Ok(Ended::ForGood) => Ok(()),
        Err(error) => Err(error),
    }
}

/// How a daemon ends.
enum Ended {
    ForGood,
    /// This node has become part of a cluster: a daemon that knows it takes over.
    Again,
}

/// Becomes its own successor, who adopts what runs, as after any other end of a daemon. Returns
/// only if it can't. The program's file may have been replaced since this daemon started, so it is
/// named by the path that it had then.
fn start_anew(program: &std::path::Path) -> DaemonError {
    use std::os::unix::process::CommandExt;
    let cause = std::process::Command::new(program).args(std::env::args_os().skip(1)).exec();
    DaemonError::System { what: "start anew as a node of the cluster (start it by hand)", cause }
}

fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let wanted = now.maximum.map_or(OPEN_FILES, |most| most.min(OPEN_FILES));
    let too_few = now.current.is_some_and(|current| current < wanted);
    if too_few
        && let Err(errno) =
            setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: now.maximum })
    {
        tracing::warn!(%errno, "can't raise the number of open files");
    }
}

async fn serve(config: &Config) -> Result<Ended, DaemonError> {
    let signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let [mut terminate, mut interrupt] =
        signals.map(|s| s.map_err(|cause| DaemonError::System { what: "take signals", cause }));
    let (terminate, interrupt) = (terminate.as_mut(), interrupt.as_mut());
    let (Ok(terminate), Ok(interrupt)) = (terminate, interrupt) else {
        return Err(DaemonError::System { what: "take signals", cause: io::ErrorKind::Other.into() });
    };
    let node = Arc::new(make_node(config)?);
    etcd::start(&node).await;
    let _kept = take_place(&node).await?;
    node.volumes.adopt().await;
    match &node.cluster {
        None => {
            adopt::promises(&node.domains, |_, _| true).await;
            take_over_promises(&node).await;
            adopt::adopt(&node.domains, |_, _| true).await;
            tokio::spawn(change::restore(Arc::clone(&node.domains)));
        }
        Some(cluster) => {
            let following =
                Following::new(Arc::new(cluster.clone()), Arc::clone(&node.book) as Arc<dyn Offers>);
            node.join(Arc::clone(&following));
            placement::begin(&node.domains, &following).await;
            adopt::promises(&node.domains, |dc, domain| following.may_adopt(dc, domain)).await;
            take_over_promises(&node).await;
            adopt::adopt(&node.domains, |dc, domain| following.may_adopt(dc, domain)).await;
            tokio::spawn(placement::follow(Arc::clone(&node.domains), following));
        }
    }
    node.volumes.sweep().await;
    node.secrets.sweep().await;
    links::start(&node);
    tokio::spawn(reservations::look_after(Arc::clone(&node.book)));
    tokio::spawn(adaptations::follow(Arc::clone(&node.adaptations), node.broker.clone()));
    tokio::spawn(targets::follow(Arc::clone(&node.domains), node.broker.clone()));
    let admin = listen_admin(&config.place)?;
    groups::serve(&node, &config.place, &config.groups)?;
    if let Some(metrics) = &config.metrics {
        metrics::serve(&node, metrics).await?;
    }
    tracing::info!(pid = std::process::id(), run_dir = %config.place.run_dir.display(), "the daemon takes requests");
    tell_service_manager();
    if config.detached {
        say_ready().map_err(|cause| DaemonError::System { what: "say that it is ready", cause })?;
    }
    let served = axum::serve(admin, api::router(Arc::clone(&node)));
    let log = config.place.daemon_log();
    let ended = tokio::select! {
        ended = served.into_future() => ended.map_err(|cause| DaemonError::System { what: "take requests", cause }).map(|()| Ended::ForGood),
        () = own_log::look_after(&log) => Ok(Ended::ForGood),
        () = becomes_a_node(&node) => Ok(Ended::Again),
        _ = terminate.recv() => Ok(Ended::ForGood),
        _ = interrupt.recv() => Ok(Ended::ForGood),
    };
    if let (Ok(Ended::ForGood), Some(proxies)) = (&ended, node.proxies.get()) {
        proxies.retire().await;
    }
    if let Ok(Ended::ForGood) = &ended {
        etcd::retire(&node).await;
    }
    tracing::info!("the daemon ends; domains run on");
    // Its absence says at once that no daemon is here.
    let _gone_already = std::fs::remove_file(config.place.admin_socket());
    groups::close(&config.place);
    ended
}

/// A service manager that started the daemon (`Type=notify` of systemd) learns that it takes
/// requests.
fn tell_service_manager() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!(%error, "the service manager can't be told that the daemon takes requests");
    }
}

/// The book goes on from what an earlier daemon promised to others than domains.
async fn take_over_promises(node: &Node) {
    let domains = Arc::clone(&node.domains);
    reservations::take_over(&node.book, move |name| domains.is_in_a_file(name)).await;
}

/// Takes this node's place in its cluster, if it belongs to one. The registry may be away: what
/// runs goes on.
async fn take_place(node: &Arc<Node>) -> Result<Option<membership::Kept>, DaemonError> {
    let Some(cluster) = &node.cluster else { return Ok(None) };
    let at =
        |cause| DaemonError::Listen { at: format!("{} for other nodes", cluster.config().address), cause };
    let address = membership::serve(cluster, api::peers::router(Arc::clone(node))).await.map_err(at)?;
    tokio::spawn(membership::rotate_when_due(cluster.clone()));
    tokio::spawn(membership::clock::keep(cluster.clone()));
    let kept =
        cluster.keep().map_err(|cause| DaemonError::System { what: "keep a place in the cluster", cause })?;
    tracing::info!(node = cluster.me(), %address, "other nodes are answered");
    Ok(Some(kept))
}

/// Waits until this node has become part of a cluster, and whoever made it so has been answered.
async fn becomes_a_node(node: &Node) {
    node.again.notified().await;
    // tidy(sleep): the answer is written by a task of the server's, which tells nobody.
    tokio::time::sleep(ANSWER_PAUSE).await;
}

fn make_node(config: &Config) -> Result<Node, DaemonError> {
    let place = config.place.clone();
    let registry = Embedded::open(&place.registry())?;
    let cgroups = domain::Cgroups::discover().map_err(|e| DaemonError::Cgroups(e.to_string()))?;
    let layout = place.layout(config.program.clone());
    // For whoever has to clean up without a daemon.
    let note = place.run_dir.join("cgroup");
    std::fs::write(&note, &layout.cgroup_name)
        .map_err(|cause| GroundError::Unusable { path: note, cause })?;
    let host = host::report(&layout, wake_ns());
    if let Some(advice) = host::advice(&host) {
        tracing::warn!("{advice}");
    }
    let cluster = Cluster::open(&place.state_dir)?;
    let registry: Arc<dyn RegistryDebug> = Arc::new(registry);
    let number = cluster.as_ref().map_or(0, |cluster| cluster.config().number.unwrap_or(0));
    let node = Node::new(place, layout, cgroups, registry, host, cluster)?;
    node.domains.load(number)?;
    Ok(node)
}

fn listen_admin(place: &Place) -> Result<tokio::net::UnixListener, DaemonError> {
    let at = |cause| DaemonError::Listen { at: place.admin_socket().display().to_string(), cause };
    let socket: OwnedFd =
        crate::broker::control::listen(&place.run_dir, ADMIN_SOCKET, SocketType::STREAM, 0o600)
            .map_err(at)?;
    tokio::net::UnixListener::from_std(socket.into()).map_err(at)
}

/// Tells whoever started us, and lets go of the pipe.
fn say_ready() -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(&nowhere)?)
}
