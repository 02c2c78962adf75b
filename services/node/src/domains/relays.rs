//! The relays of socket services: how the daemon starts one for a domain, finds the one that an
//! earlier daemon started, and asks it (`docs/spec/socket.md`).

use super::Domains;
use super::listener::{Holder, in_the_way};
use crate::base::doorstep;
use crate::base::place::{LOG_VARIABLE, RUN_DIR_VARIABLE};
use crate::base::{REMOVALS, blocking, said, watched};
use domain::Part;
use rustix::fs::{Mode, OFlags};
use rustix::net::RecvFlags;
use serde_json::Value;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, Interest};
use topology::{Domain, Service, SocketPlace, SocketSettings, Step, Topology};
use wire::socket::{Answer, Ask, Limits, Mounted, Order, PACKET_BYTES_MAX, Place, Published, Served};

/// Name of a relay's socket in the domain's folder, without its ending.
const SOCKET: &str = "relay";
/// How long a relay may take to listen in its domain.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the one of a guest may take to start or to end: something is executed there first.
const GUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to say what it counts: a guest that is busy, or that wants to hold up
/// whoever looks, is left out.
const GUEST_STATE_TIMEOUT: Duration = Duration::from_secs(2);
/// The word by which a process knows that it is executed to speak with the relay of its guest.
const OF_GUEST: &str = "--of-guest";
/// How long it may take for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the order of a domain's relay; `None`: the domain takes part in no socket service.
pub(crate) fn order(topology: &Topology, domain: &Domain) -> Option<Order> {
    let mounts = domain.sockets.iter().filter_map(|mount| {
        let settings = topology.service(mount.service.as_str())?.socket()?;
        let service = mount.service.as_str().to_owned();
        Some(Mounted { service, at: place(&mount.at), limits: limits(settings) })
    });
    let serves = topology.hosted_by(domain.name.as_str()).filter_map(|service: &Service| {
        let settings = service.socket()?;
        let (service, to) = (service.name.as_str().to_owned(), place(&settings.to));
        Some(Served { service, to, proxy: settings.proxy, limits: limits(settings) })
    });
    let order = Order {
        dc: topology.name.as_str().to_owned(),
        domain: domain.name.as_str().to_owned(),
        mounts: mounts.collect(),
        serves: serves.collect(),
        publishes: domain.published.iter().map(published).collect(),
    };
    let idle = order.mounts.is_empty() && order.serves.is_empty() && order.publishes.is_empty();
    (!idle).then_some(order)
}

fn published(published: &topology::Published) -> Published {
    let limits = Limits {
        max_connections: published.max_connections,
        connections_per_domain: published.max_connections,
        connections_per_second: published.connections_per_second,
    };
    Published { at: published.at, to: Place::Tcp((Ipv4Addr::LOCALHOST, published.port).into()), limits }
}

/// Listens at a published address of this node. Our copy is closed when the relay has its own: the
/// port is free when the relay is gone.
fn door(published: &Published) -> Result<OwnedFd, String> {
    let at = published.at;
    let listener = TcpListener::bind(at).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map(OwnedFd::from).map_err(|error| {
        let who = match (error.kind(), in_the_way(at, &[])) {
            (io::ErrorKind::AddrInUse, Holder::Stranger(pid, program)) => {
                format!(": {program} (pid {pid}) has it")
            }
            _ => String::new(),
        };
        format!("can't listen at {at} of this node, which is published: {error}{who}")
    })
}

fn place(place: &SocketPlace) -> Place {
    match place {
        SocketPlace::Tcp(address) => Place::Tcp(*address),
        SocketPlace::Unix(path) => Place::Unix(path.to_string_lossy().into_owned()),
    }
}

fn limits(settings: &SocketSettings) -> Limits {
    Limits {
        max_connections: settings.max_connections,
        connections_per_domain: settings.connections_per_domain,
        connections_per_second: settings.connections_per_second,
    }
}

/// The relay of a domain that runs. Dropped, it is left alone: it ends with the domain's cgroup,
/// and outlives the daemon.
#[derive(Debug)]
pub(crate) struct Relay {
    order: Order,
    way: Way,
    since: Instant,
}

/// The daemon's way to a relay. Nothing comes there unasked but the end.
#[derive(Debug)]
enum Way {
    /// A process of this node.
    Here(AsyncFd<OwnedFd>),
    /// One of a guest, with whom a program that is executed there speaks.
    Guest(Box<Speaker>),
}

impl Relay {
    /// Starts one, and waits until it listens.
    pub(crate) async fn start(
        node: &Arc<Domains>,
        order: Order,
        init: BorrowedFd<'_>,
    ) -> Result<Self, String> {
        let (dc, name) = (order.dc.clone(), order.domain.clone());
        let doors = order.publishes.iter().map(door).collect::<Result<Vec<_>, _>>()?;
        let paths = node.layout.domain(&dc, &name).map_err(said)?;
        let listener = doorstep::listen(&paths.dir, SOCKET)
            .map_err(|e| format!("can't make the socket of the relay in {}: {e}", paths.dir.display()))?;
        let child = tokio::process::Command::new(&node.layout.program)
            .args(["relay", &format!("{dc}/{name}")])
            .env_clear()
            .env(RUN_DIR_VARIABLE, &node.layout.run_dir)
            .envs(std::env::var_os(LOG_VARIABLE).map(|value| (LOG_VARIABLE, value)))
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .current_dir("/")
            // Ctrl-C at a daemon in the foreground is not for it.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("can't start {} as a relay: {e}", node.layout.program.display()))?;
        let pid = child.id().ok_or("a relay ended before it began")?;
        // Whoever drops it leaves it to the event loop to be reaped.
        drop(child);
        let (inside, at) = (paths.inside(), Arc::clone(node));
        let folder = blocking(move || -> Result<OwnedFd, String> {
            domain::join_cgroup(&at.layout, &dc, &name, Part::Relay, pid).map_err(said)?;
            rustix::fs::open(&inside, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(|e| format!("can't open {}: {e}", inside.display()))
        })
        .await??;
        let connection = connect(&paths.dir)?.ok_or("the relay's socket is gone")?;
        let ask = packet(&Ask::Start(order.clone()))?;
        let descriptors: Vec<_> =
            [init, folder.as_fd()].into_iter().chain(doors.iter().map(AsFd::as_fd)).collect();
        sys::descriptors::send_with_descriptors(&connection, &ask, &descriptors)
            .map_err(|e| format!("the relay did not take its order: {e}"))?;
        let connection = watch(connection)?;
        match answer(&connection, START_TIMEOUT).await? {
            Answer::Started => Ok(Self { order, way: Way::Here(connection), since: Instant::now() }),
            Answer::Failed(why) => Err(why),
            _ => Err("the relay gave an answer that makes no sense".into()),
        }
    }

    /// The relay of a guest that has booted: the one that runs there, if it does what it should,
    /// else another one in its place.
    pub(crate) async fn in_guest(node: &Arc<Domains>, order: Order) -> Result<Self, String> {
        let mut speaker = Speaker::ask(node, &order.dc, &order.domain, &Ask::Start(order.clone())).await?;
        match speaker.answer().await? {
            Answer::Started => Ok(Self { order, way: Way::Guest(Box::new(speaker)), since: Instant::now() }),
            Answer::Failed(why) => Err(why),
            _ => Err("the relay in the guest gave an answer that makes no sense".into()),
        }
    }

    /// The one that an earlier daemon started, where it still does what it should; else another one
    /// in its place.
    pub(crate) async fn adopt(
        node: &Arc<Domains>,
        order: Order,
        init: BorrowedFd<'_>,
    ) -> Result<Self, String> {
        let folder = node.layout.domain(&order.dc, &order.domain).map_err(said)?.dir;
        if let Some(connection) = connect(&folder)? {
            let connection = watch(connection)?;
            if ask(&connection, &Ask::Order).await.is_ok_and(|said| said == Answer::Order(order.clone())) {
                return Ok(Self { order, way: Way::Here(connection), since: Instant::now() });
            }
        }
        end(node, &order.dc, &order.domain).await?;
        Self::start(node, order, init).await
    }

    /// Comes back when it has ended.
    pub(crate) async fn ended(&mut self) {
        let connection = match &mut self.way {
            Way::Here(connection) => connection,
            Way::Guest(speaker) => return speaker.ended().await,
        };
        loop {
            let Ok(mut ready) = connection.readable().await else { return };
            let heard = ready.try_io(|connection| {
                let mut bytes = [0; 1];
                Ok(rustix::net::recv(connection.get_ref(), &mut bytes[..], RecvFlags::DONTWAIT)?.0)
            });
            match heard {
                // A late answer, or nothing yet.
                Ok(Ok(1..)) | Err(_) => {}
                Ok(Ok(0) | Err(_)) => return,
            }
        }
    }

    /// How long it has served.
    pub(crate) fn served(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn order(&self) -> &Order {
        &self.order
    }
}

/// The process that speaks with the relay of a guest: executed there, and gone with the daemon.
#[derive(Debug)]
struct Speaker {
    child: tokio::process::Child,
    /// It ends with this; the child's own would be closed by whoever waits for its end.
    input: tokio::process::ChildStdin,
    output: tokio::io::BufReader<tokio::process::ChildStdout>,
}

impl Speaker {
    /// Has one executed, and passes this on.
    async fn ask(node: &Domains, dc: &str, name: &str, ask: &Ask) -> Result<Self, String> {
        let options = domain::ExecOptions {
            interactive: true,
            user: Some("0:0".into()),
            workdir: Some("/".into()),
            command: vec![
                format!("{}/tombolo", super::spec::INSIDE),
                "relay".into(),
                format!("{dc}/{name}"),
                OF_GUEST.into(),
            ],
            ..Default::default()
        };
        let command = domain::exec_command(&node.layout, dc, name, &options).map_err(said)?;
        let mut child = tokio::process::Command::from(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("nothing can be executed in the guest: {e}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("what is executed in the guest has no pipes".into());
        };
        let mut speaker = Self { child, input, output: tokio::io::BufReader::new(output) };
        let line = [packet(ask)?, b"\n".to_vec()].concat();
        let said = speaker.input.write_all(&line).await;
        said.map_err(|e| format!("the guest does not take a relay's order: {e}"))?;
        Ok(speaker)
    }

    async fn answer(&mut self) -> Result<Answer, String> {
        let mut line = Vec::new();
        // What a guest says is no longer than a relay may.
        let most = u64::try_from(PACKET_BYTES_MAX).unwrap_or(u64::MAX);
        let mut output = (&mut self.output).take(most);
        match tokio::time::timeout(GUEST_TIMEOUT, output.read_until(b'\n', &mut line)).await {
            Ok(Ok(1..)) => {
                serde_json::from_slice(&line).map_err(|e| format!("a relay's answer is not understood: {e}"))
            }
            Ok(Ok(0)) => Err("the relay in the guest ended without an answer; see the domain's log".into()),
            Ok(Err(error)) => Err(format!("the relay in the guest can't be heard: {error}")),
            Err(_) => {
                Err(format!("the relay in the guest did not answer within {} s", GUEST_TIMEOUT.as_secs()))
            }
        }
    }

    async fn ended(&mut self) {
        if let Err(error) = self.child.wait().await {
            tracing::error!(%error, "the end of a guest's relay can't be awaited");
        }
    }
}

/// Ends the relay of a guest, if there is one.
pub(crate) async fn end_in_guest(node: &Domains, dc: &str, name: &str) -> Result<(), String> {
    let mut speaker = Speaker::ask(node, dc, name, &Ask::End).await?;
    tokio::time::timeout(GUEST_TIMEOUT, speaker.ended())
        .await
        .map_err(|_| format!("the relay in the guest did not end within {} s", GUEST_TIMEOUT.as_secs()))
}

/// The counters of the relay of a guest.
async fn state_in_guest(node: &Domains, dc: &str, name: &str) -> Option<Value> {
    let asked = async {
        let mut speaker = Speaker::ask(node, dc, name, &Ask::State).await?;
        speaker.answer().await
    };
    match tokio::time::timeout(GUEST_STATE_TIMEOUT, asked).await {
        Ok(Ok(Answer::State(state))) => Some(state),
        _ => None,
    }
}

/// Ends the relay of a domain; open connections are reset.
pub(crate) async fn end(node: &Arc<Domains>, dc: &str, name: &str) -> Result<(), String> {
    let paths = node.layout.domain(dc, name).map_err(said)?;
    let cgroup = format!("{}/{}", paths.cgroup, Part::Relay.name());
    let node = Arc::clone(node);
    REMOVALS.run(move || node.cgroups.kill(&cgroup)).await?.map(drop).map_err(said)
}

/// The counters of the relay of a domain; `None` where it has none, or that does not answer.
pub(crate) async fn state(node: &Domains, dc: &str, domain: &Domain) -> Option<Value> {
    let name = domain.name.as_str();
    if domain.machine.is_some() {
        return state_in_guest(node, dc, name).await;
    }
    let folder = node.layout.domain(dc, name).ok()?.dir;
    let connection = watch(connect(&folder).ok()??).ok()?;
    match ask(&connection, &Ask::State).await {
        Ok(Answer::State(state)) => Some(state),
        _ => None,
    }
}

/// After a step that changes a service: has the relays follow that do something else from now on.
pub(crate) async fn follow(node: &Arc<Domains>, dc: &str, step: &Step) -> Result<(), String> {
    let services: &[&Service] = match step {
        Step::AddService { service } | Step::RemoveService { service } => &[service],
        Step::UpdateService { before, after, .. } => &[before, after],
        _ => &[],
    };
    if !services.iter().any(|service| service.socket().is_some()) {
        return Ok(());
    }
    for supervised in node.all_supervised().into_iter().filter(|supervised| supervised.dc == dc) {
        supervised.follow().await?;
    }
    Ok(())
}

fn connect(folder: &Path) -> Result<Option<OwnedFd>, String> {
    doorstep::connect(folder, SOCKET)
        .map_err(|e| format!("can't connect to the relay at {}: {e}", folder.display()))
}

fn watch(connection: OwnedFd) -> Result<AsyncFd<OwnedFd>, String> {
    watched(connection, Interest::READABLE).map_err(|e| format!("a relay can't be watched: {e}"))
}

fn packet(ask: &Ask) -> Result<Vec<u8>, String> {
    serde_json::to_vec(ask).map_err(|e| format!("a relay's order can't be written: {e}"))
}

async fn ask(connection: &AsyncFd<OwnedFd>, ask: &Ask) -> Result<Answer, String> {
    sys::descriptors::send_with_descriptors(connection.get_ref(), &packet(ask)?, &[])
        .map_err(|e| format!("a relay can't be asked: {e}"))?;
    answer(connection, ANSWER_TIMEOUT).await
}

async fn answer(connection: &AsyncFd<OwnedFd>, patience: Duration) -> Result<Answer, String> {
    let receive = async {
        loop {
            let mut ready = connection.readable().await?;
            let mut bytes = vec![0; PACKET_BYTES_MAX];
            let received = ready.try_io(|connection| {
                sys::descriptors::receive_with_descriptors(connection.get_ref(), &mut bytes, 0)
            });
            let Ok(received) = received else { continue };
            let (length, _) = received?;
            return serde_json::from_slice(bytes.get(..length).unwrap_or_default()).map_err(io::Error::other);
        }
    };
    match tokio::time::timeout(patience, receive).await {
        Ok(answer) => {
            answer.map_err(|e| format!("the relay ended without an answer ({e}); see the daemon's log"))
        }
        Err(_) => Err(format!("the relay did not answer within {} s", patience.as_secs())),
    }
}
