//! One incarnation of a domain: its processes and descriptors, from the first folder to the last
//! word.

use super::Domains;
use super::frontends::{End, Frontend, InGuest, Process};
use super::inside::{self, Wanted};
use super::relays::{self, Relay};
use super::{about as of_itself, machines, spec};
use crate::base::{BOOK, ENDS, REMOVALS, UNPACKING, blocking, process_age, said, watched};
use crate::broker::control::{self, About, Door};
use crate::broker::{Broker, Machine, Memories};
use domain::{Created, DomainSpec, Exit, Running};
use frontend::Entrances;
use rustix::net::SocketType;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;
use topology::{Domain, DomainKind};
use wire::control::GuestState;

/// Where a domain sees its services.
const SERVICES: &str = "/srv";
/// Name of the control socket in the domain's `inside` folder.
const CONTROL_SOCKET: &str = "control.sock";
/// The index of the FUSE session among the descriptors that the monitor keeps.
const KEPT_FUSE: usize = 0;
/// The index of the frontend's ledger.
const KEPT_LEDGER: usize = 1;
/// Where the sockets of the entrances begin: those that the domain has, in the order of
/// [`Entrances::descriptors`].
const KEPT_ENTRANCES: usize = 2;
/// The prefix of the name of the memory that a domain has with a service, before the service's
/// name: by it an adopting daemon tells them apart.
const MEMORY_NAME: &str = "tombolo-memory:";
/// A frontend that ends again so soon is replaced after a pause.
const FRONTEND_SETTLED: Duration = Duration::from_secs(5);
/// The first such pause; each further one is twice as long.
const FRONTEND_PAUSE: Duration = Duration::from_millis(20);
/// The longest: the mount answers nothing meanwhile.
const MAX_FRONTEND_PAUSE: Duration = Duration::from_secs(2);

/// A domain that runs, with everything that the daemon holds of it.
#[derive(Debug)]
pub(crate) struct Incarnation {
    running: Arc<Running>,
    monitor_pid: u32,
    monitor: AsyncFd<OwnedFd>,
    frontend: Frontend,
    /// The state that its frontend's successor needs; a guest's has it in the guest.
    held: Option<Held>,
    relay: RelayPlace,
    /// How long the next relay waits that ends soon.
    relay_pause: Duration,
    /// Frontends that ended soon after their start, or could not be started, in a row.
    early_ends: u32,
    /// When the last attempt at a frontend was made.
    last_attempt: Instant,
    since: Instant,
    _door: OpenDoor,
}

/// Where the relay of a domain is, if it takes part in socket services.
#[derive(Debug)]
enum RelayPlace {
    /// There is none to be.
    None,
    Here(Relay),
    /// The last one has ended, or could not be started; the next attempt is due then.
    Lost(tokio::time::Instant),
    /// It is started as soon as the guest in which it will be has booted.
    Booting(Broker, String, String),
}

/// The state that a frontend's successor needs.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) fuse: OwnedFd,
    pub(crate) ledger: OwnedFd,
    pub(crate) entrances: Entrances,
}

/// The task that accepts at the control socket; it ends with this.
#[derive(Debug)]
struct OpenDoor {
    task: JoinHandle<()>,
    init: Arc<AtomicU32>,
}

impl Drop for OpenDoor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a domain. After an error, [`remove`] clears up.
pub(crate) async fn start(node: &Arc<Domains>, dc: &str, domain: &Domain) -> Result<Incarnation, String> {
    let Some(topology) = node.topology(dc) else { return Err(format!("there is no {dc} any more")) };
    node.volumes.attach(dc, domain).await?;
    let secrets = node.secrets.values(dc, &domain.secrets).await?;
    let found = match &domain.machine {
        Some(machine) => Some(machines::find(node, domain, machine).await?),
        None => None,
    };
    let mut spec = spec::of_domain(&node.layout, &topology, domain, found.as_ref());
    spec.held = node.is_held(domain);
    node.broker.forget_machine(dc, domain.name.as_str());
    let door = open_door(node, dc, domain).await?;
    if let domain::Root::Image { path, tag } = &spec.root {
        // It is there since the file was admitted, but after a power cut, say. Unpacking takes
        // minutes, and nobody else's start waits for it.
        let (node, path, tag) = (Arc::clone(node), path.clone(), tag.clone());
        let unpacked = move || domain::unpack_image(&node.layout, &path, tag.as_deref());
        UNPACKING.run(unpacked).await?.map_err(said)?;
    }
    let created = {
        let (node, spec) = (Arc::clone(node), spec.clone());
        blocking(move || domain::create(&node.layout, &spec, &[])).await?.map_err(said)?
    };
    door.init.store(created.init_pid(), Ordering::Release);
    let created = match keep(node, dc, domain.name.as_str()).await {
        Ok(()) => created,
        Err(why) => {
            if let Ok(Err(error)) = REMOVALS.run(move || created.abort()).await {
                tracing::warn!(dc, domain = domain.name.as_str(), %error, "a domain that did not start can't be undone");
            }
            return Err(why);
        }
    };
    if found.is_some() {
        // All that a guest sees is made in the guest, by its agent.
        let frontend = InGuest::awaited(node, dc, domain.name.as_str());
        let relay = RelayPlace::of_guest(node, dc, domain);
        return run(node, created, None, (Frontend::Guest(frontend), relay), door).await;
    }
    match furnish(node, dc, domain, (&created, &secrets)).await {
        Ok((held, frontend, relay)) => {
            run(node, created, Some(held), (Frontend::Here(frontend), relay), door).await
        }
        Err(why) => {
            // The error that made us undo it is the one to tell.
            if let Ok(Err(error)) = REMOVALS.run(move || created.abort()).await {
                tracing::warn!(dc, domain = domain.name.as_str(), %error, "a domain that did not start can't be undone");
            }
            Err(why)
        }
    }
}

async fn run(
    node: &Arc<Domains>,
    created: Created,
    held: Option<Held>,
    ours: (Frontend, RelayPlace),
    door: OpenDoor,
) -> Result<Incarnation, String> {
    let running = blocking(move || created.start()).await?.map_err(said)?;
    Incarnation::new(node, running, held, ours, door)
}

/// Puts the mount, the entrances, the frontend and the relay into a domain whose command waits.
async fn furnish(
    node: &Arc<Domains>,
    dc: &str,
    domain: &Domain,
    (created, secrets): (&Created, &[(String, Vec<u8>)]),
) -> Result<(Held, Process, RelayPlace), String> {
    inside::attach_secrets(&node.layout, (dc, domain), created, secrets)?;
    let fuse = frontend::open_device().map_err(|e| fuse_missing(&e))?;
    let mount = frontend::mount_detached(&fuse, &frontend::MountOptions::default())
        .map_err(|e| format!("can't make the FUSE mount of the domain: {e}"))?;
    domain::attach_mount(created.init_descriptor(), &mount, SERVICES).map_err(said)?;
    let ledger = rustix::fs::memfd_create("tombolo-ledger", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|e| format!("no memory for the ledger of the frontend: {e}"))?;
    let entrances = entrances(node, dc, domain, created.init_descriptor())?;
    let held = Held { fuse, ledger, entrances };
    let memories = memories(node, dc, domain)?;
    let kept: Vec<&OwnedFd> = [&held.fuse, &held.ledger]
        .into_iter()
        .chain(held.entrances.descriptors())
        .chain(memories.values())
        .collect();
    let copies = kept.into_iter().map(clone).collect::<Result<Vec<_>, _>>()?;
    created.keep(&copies).map_err(said)?;
    lend(node, dc, domain, &held, memories)?;
    let frontend = Process::spawn(node, dc, domain, &held, false).await?;
    let relay = match relay_order(node, dc, domain) {
        Some(order) => RelayPlace::Here(Relay::start(node, order, created.init_descriptor()).await?),
        None => RelayPlace::None,
    };
    Ok((held, frontend, relay))
}

/// Makes the memory that a domain has with each service that it mounts, where the file says that
/// there is some.
fn memories(node: &Domains, dc: &str, domain: &Domain) -> Result<BTreeMap<String, OwnedFd>, String> {
    let Some(topology) = node.topology(dc) else { return Ok(BTreeMap::new()) };
    let mounts = domain.services.iter().filter_map(|mount| topology.service(mount.service.as_str()));
    let made = mounts.filter(|service| service.memory_bytes > 0).map(|service| {
        let name = service.name.as_str();
        let memory = sys::memfd::sealed(&format!("{MEMORY_NAME}{name}"), service.memory_bytes)
            .map_err(|e| format!("no memory for the files of service {name}: {e}"))?;
        Ok((name.to_owned(), memory))
    });
    made.collect()
}

/// The memories among the descriptors that a monitor keeps, from `index` on.
fn kept_memories(running: &Running, index: usize) -> BTreeMap<String, OwnedFd> {
    let kept = (index..domain::MAX_KEPT).map_while(|index| running.kept(index).ok());
    let named = kept.filter_map(|memory| {
        let link = fs::read_link(format!("/proc/self/fd/{}", memory.as_raw_fd())).ok()?;
        let (_, name) = link.to_str()?.split_once(MEMORY_NAME)?;
        Some((name.split_whitespace().next()?.to_owned(), memory))
    });
    named.collect()
}

/// Has the broker pass them on.
fn lend(
    node: &Domains,
    dc: &str,
    domain: &Domain,
    held: &Held,
    of: BTreeMap<String, OwnedFd>,
) -> Result<(), String> {
    let fuse = clone(&held.fuse)?;
    node.broker.has_memories(dc, domain.name.as_str(), Memories::new(fuse, of));
    Ok(())
}

/// The relay's order for a domain, as its topology says now.
fn relay_order(node: &Domains, dc: &str, domain: &Domain) -> Option<wire::socket::Order> {
    relays::order(&*node.topology(dc)?, domain)
}

fn fuse_missing(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            "this machine has no /dev/fuse, which /srv needs: load the kernel's fuse module (`modprobe fuse`), or pass \
             the device into this container"
                .into()
        }
        std::io::ErrorKind::PermissionDenied => {
            "not allowed to open /dev/fuse, which /srv needs: if this is a container, allow it the device".into()
        }
        _ => format!("can't open /dev/fuse: {error}"),
    }
}

/// The sockets of the native entrances, made where the domain will meet them.
fn entrances(
    node: &Domains,
    dc: &str,
    domain: &Domain,
    init: std::os::fd::BorrowedFd<'_>,
) -> Result<Entrances, String> {
    let mut entrances = Entrances::default();
    if domain.network == topology::Network::None && !domain.services.is_empty() {
        let add = || interface::add_loopback_addresses(spec::STUB_ADDRESS);
        let added = domain::in_network_namespace(init, add).map_err(said)?;
        added.map_err(|e| format!("can't give the domain's loopback interface an address: {e}"))?;
    }
    if spec::has_stub(domain) {
        let bound = domain::in_network_namespace(init, bind_stub).map_err(said)?;
        let (udp, tcp) = bound.map_err(|e| {
            format!(
                "can't listen at {}:{} in the domain's network: {e} (with `network = \"host\"` the node's own resolver \
                 may be there; leave out `stub` then)",
                spec::STUB_ADDRESS,
                spec::STUB_PORT
            )
        })?;
        (entrances.stub_udp, entrances.stub_tcp) = (Some(udp), Some(tcp));
    }
    if spec::has_resolve(domain) {
        let folder = spec::resolve_folder(&node.layout, dc, domain.name.as_str());
        let socket = control::listen(&folder, spec::RESOLVE_SOCKET, SocketType::STREAM, 0o666)
            .map_err(|e| format!("can't make the resolver socket in {}: {e}", folder.display()))?;
        entrances.resolve = Some(socket);
    }
    let folder = node.layout.domain(dc, domain.name.as_str()).map_err(said)?.inside();
    entrances.ninep = super::inside::ninep_socket(&folder, domain.nine_p)
        .map_err(|e| format!("can't make the socket for clients of 9P in {}: {e}", folder.display()))?;
    Ok(entrances)
}

fn bind_stub() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let address = (spec::STUB_ADDRESS, spec::STUB_PORT);
    let udp = std::net::UdpSocket::bind(address)?;
    let tcp = std::net::TcpListener::bind(address)?;
    udp.set_nonblocking(true)?;
    tcp.set_nonblocking(true)?;
    Ok((udp.into(), tcp.into()))
}

/// Makes what the domain sees as `/run/tombolo`, with the control socket, and answers there.
async fn open_door(node: &Arc<Domains>, dc: &str, domain: &Domain) -> Result<OpenDoor, String> {
    let name = domain.name.as_str();
    let inside = node.layout.domain(dc, name).map_err(said)?.inside();
    let resolve = (spec::has_resolve(domain) && domain.kind != DomainKind::Vm)
        .then(|| spec::resolve_folder(&node.layout, dc, name));
    let kept = spec::keeps(domain).then(|| spec::kept_folder(&node.layout, dc, name));
    let serves_files = node.topology(dc).is_some_and(|topology| spec::serves_files(&topology, domain))
        && domain.kind != DomainKind::Vm;
    let files = serves_files.then(|| spec::files_folder(&node.layout, dc, name));
    let layout = node.layout.clone();
    // A guest has these files of its own: they are in its image.
    let vm = domain.kind == DomainKind::Vm;
    let wanted = node.topology(dc).filter(|_| !vm).map(|topology| Wanted::by(&topology, domain));
    let listener = blocking(move || -> Result<OwnedFd, String> {
        domain::make_room(&layout);
        for folder in [Some(&inside), resolve.as_ref()].into_iter().flatten() {
            domain::make_folder(folder, 0o755).map_err(said)?;
        }
        if let Some(kept) = &kept {
            domain::make_folder(kept, 0o777).map_err(said)?;
            // Whichever user the server has: nobody else sees the folder.
            fs::set_permissions(kept, fs::Permissions::from_mode(0o777)).map_err(|e| at("make", kept, &e))?;
        }
        if let Some(files) = &files {
            make_files_folder(files, &inside)?;
        }
        if let Some(wanted) = wanted {
            inside::place(&layout, &inside, wanted)?;
        }
        control::listen(&inside, CONTROL_SOCKET, SocketType::SEQPACKET, 0o666)
            .map_err(|e| at("make the control socket in", &inside, &e))
    })
    .await??;
    let init = Arc::new(AtomicU32::new(0));
    let door = Arc::new(Door {
        dc: dc.to_owned(),
        domain: name.to_owned(),
        // A machine says so as the first process; its guest's programs speak through it.
        hosts: hosts(node, dc, name) || vm,
        init: Arc::clone(&init),
        broker: node.broker.clone(),
        about: about(node),
    });
    let task = tokio::spawn(async move {
        if let Err(error) = control::accept_all(Arc::clone(&door), listener).await {
            tracing::error!(dc = door.dc, domain = door.domain, %error, "its control socket is no longer served");
        }
    });
    Ok(OpenDoor { task, init })
}

/// Makes the folder of a domain's file trees, and the place where the domain sees it. Only root
/// looks into it on the node.
fn make_files_folder(files: &std::path::Path, inside: &std::path::Path) -> Result<(), String> {
    domain::make_folder(&inside.join(spec::FILES), 0o755).map_err(said)?;
    let of_dc = files.parent().unwrap_or(files);
    let of_all = of_dc.parent().unwrap_or(of_dc);
    for folder in [of_all, of_dc] {
        domain::make_folder(folder, 0o700).map_err(said)?;
    }
    domain::make_folder(files, 0o777).map_err(said)?;
    fs::set_permissions(files, fs::Permissions::from_mode(0o777)).map_err(|e| at("make", files, &e))
}

/// Whether the topology places a service in the domain.
fn hosts(node: &Domains, dc: &str, name: &str) -> bool {
    node.topology(dc).is_some_and(|topology| topology.served_by(name).next().is_some())
}

/// Answers what a domain is. Holds the node weakly: the node's end is not delayed by connections.
pub(crate) fn about(node: &Arc<Domains>) -> About {
    let node = Arc::downgrade(node);
    Arc::new(move |identity| {
        let node = node.upgrade();
        node.map_or(serde_json::Value::Null, |node| of_itself::about(&node, &identity.dc, &identity.domain))
    })
}

fn at(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("can't {what} {}: {error}", path.display())
}

fn clone(descriptor: &OwnedFd) -> Result<OwnedFd, String> {
    descriptor.try_clone().map_err(|e| format!("out of descriptors: {e}"))
}

/// Whether a domain that runs is what its topology says, but for what can change while it runs.
fn is_as_desired(node: &Domains, dc: &str, domain: &Domain, running: &Running) -> bool {
    let Some(topology) = node.topology(dc) else { return false };
    let found = running.spec();
    let machine = machines::Found::of(found);
    if machine.is_some() != domain.machine.is_some() {
        return false;
    }
    let wanted = spec::of_domain(&node.layout, &topology, domain, machine.as_ref());
    let held = node.is_held(domain);
    // One that was made before layers had bounds goes on as it is.
    let layer = found.layer.and(wanted.layer);
    DomainSpec { limits: found.limits.clone(), stop: found.stop.clone(), held, layer, ..wanted } == *found
}

/// Takes over a domain that an earlier daemon started; its frontend is replaced.
pub(crate) async fn adopt(
    node: &Arc<Domains>,
    dc: &str,
    domain: &Domain,
    running: Running,
) -> Result<Incarnation, String> {
    if !is_as_desired(node, dc, domain, &running) {
        return Err(
            "it is not what its topology says: the earlier daemon ended in the middle of a change".into()
        );
    }
    node.volumes.attach(dc, domain).await?;
    limit(node, dc, domain).await?;
    let door = open_door(node, dc, domain).await?;
    door.init.store(running.init_pid(), Ordering::Release);
    if domain.machine.is_some() {
        let frontend = InGuest::awaited(node, dc, domain.name.as_str());
        let relay = RelayPlace::of_guest(node, dc, domain);
        return Incarnation::new(node, running, None, (Frontend::Guest(frontend), relay), door);
    }
    end_frontends(node, dc, domain).await?;
    let fuse = running.kept(KEPT_FUSE).map_err(said)?;
    let ledger = running.kept(KEPT_LEDGER).map_err(said)?;
    let mut index = KEPT_ENTRANCES;
    let mut next = |there: bool| -> Result<Option<OwnedFd>, String> {
        if !there {
            return Ok(None);
        }
        index += 1;
        running.kept(index - 1).map(Some).map_err(said)
    };
    let (stub, resolve) = (spec::has_stub(domain), spec::has_resolve(domain));
    let entrances = Entrances {
        stub_udp: next(stub)?,
        stub_tcp: next(stub)?,
        resolve: next(resolve)?,
        ninep: next(domain.nine_p)?,
    };
    let held = Held { fuse, ledger, entrances };
    let memories = kept_memories(&running, index);
    lend(node, dc, domain, &held, memories)?;
    let frontend = Process::spawn(node, dc, domain, &held, true).await?;
    let relay = match (relay_order(node, dc, domain), running.init_descriptor()) {
        (Some(order), Some(init)) => RelayPlace::Here(Relay::adopt(node, order, init).await?),
        _ => RelayPlace::None,
    };
    Incarnation::new(node, running, Some(held), (Frontend::Here(frontend), relay), door)
}

/// Ends the frontends that the earlier daemon left: there is one at a time, and its end of the
/// private socket is lost.
async fn end_frontends(node: &Arc<Domains>, dc: &str, domain: &Domain) -> Result<(), String> {
    let cgroup = super::frontends::cgroup(node, dc, domain.name.as_str())?;
    let node = Arc::clone(node);
    REMOVALS.run(move || node.cgroups.kill(&cgroup)).await?.map(drop).map_err(said)
}

/// Removes everything of a domain: processes, mounts, cgroups, sockets, folders. Its logs stay.
pub(crate) async fn remove(node: &Arc<Domains>, dc: &str, name: &str) -> Result<(), String> {
    node.broker.forget_machine(dc, name);
    node.broker.forget_memories(dc, name);
    let remove = {
        let (node, dc, name) = (Arc::clone(node), dc.to_owned(), name.to_owned());
        move || {
            // Before it is killed: who is frozen does not die.
            node.book.ended(&format!("{dc}/{name}"));
            domain::remove(&node.layout, &dc, &name)
        }
    };
    let removed = REMOVALS.run(remove).await;
    // When nobody is left who writes to them.
    node.volumes.detach(dc, name).await;
    removed?.map(drop).map_err(said)
}

/// Sets the limits of a domain anew.
pub(crate) async fn limit(node: &Arc<Domains>, dc: &str, domain: &Domain) -> Result<(), String> {
    let limits = spec::limits(domain);
    let cgroup = node.layout.domain(dc, domain.name.as_str()).map_err(said)?.cgroup;
    let limited = {
        let node = Arc::clone(node);
        let limit = move || {
            node.book.leave_quota(&cgroup);
            node.cgroups.limit(&cgroup, &limits)
        };
        BOOK.run(limit).await?.map_err(said)
    };
    limited?;
    keep(node, dc, domain.name.as_str()).await
}

/// Tells the kernel what a domain is promised.
async fn keep(node: &Arc<Domains>, dc: &str, name: &str) -> Result<(), String> {
    let (node, name) = (Arc::clone(node), format!("{dc}/{name}"));
    BOOK.run(move || node.book.keep(&name)).await?
}

/// Whether a command in a domain ends with 0; one that can't be run does not.
pub(crate) async fn command_succeeds(node: &Arc<Domains>, dc: &str, name: &str, words: &[String]) -> bool {
    let options = domain::ExecOptions { command: words.to_vec(), ..Default::default() };
    let command = match domain::exec_command(&node.layout, dc, name, &options) {
        Ok(command) => command,
        Err(error) => {
            tracing::debug!(dc, domain = name, %error, "it can't be asked whether it is ready");
            return false;
        }
    };
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.status().await.is_ok_and(|status| status.success())
}

impl Incarnation {
    fn new(
        node: &Domains,
        running: Running,
        held: Option<Held>,
        (frontend, relay): (Frontend, RelayPlace),
        door: OpenDoor,
    ) -> Result<Self, String> {
        let descriptor = running.wait_descriptor().try_clone_to_owned().map_err(|e| e.to_string())?;
        let monitor = watched(descriptor, Interest::READABLE).map_err(|e| e.to_string())?;
        // For people only: whatever is done to the monitor goes through its pidfd.
        let status = domain::status(&node.layout, &running.id().dc, &running.id().name).map_err(said)?;
        let monitor_pid = status.as_ref().map_or(0, |status| status.monitor.pid);
        let age = status.map_or(Duration::ZERO, |status| process_age(status.init.start_ticks));
        let since = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        Ok(Self {
            running: Arc::new(running),
            monitor_pid,
            monitor,
            frontend,
            held,
            relay,
            relay_pause: FRONTEND_PAUSE,
            early_ends: 0,
            last_attempt: Instant::now(),
            since,
            _door: door,
        })
    }

    pub(crate) fn init_pid(&self) -> u32 {
        self.running.init_pid()
    }

    pub(crate) fn monitor_pid(&self) -> u32 {
        self.monitor_pid
    }

    /// When its first process started.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// How long its program has run: of a machine, its guest's command. That it takes long to boot
    /// is no success.
    pub(crate) fn ran(&self, node: &Domains) -> Duration {
        let id = self.running.id();
        if self.running.spec().machine.is_none() {
            return self.since.elapsed();
        }
        let started = node.broker.machine(&id.dc, &id.name).and_then(|machine| machine.started);
        started.map_or(Duration::ZERO, |started| started.elapsed())
    }

    pub(crate) fn frontend_pid(&self) -> Option<u32> {
        self.frontend.pid()
    }

    /// Comes back when the domain has ended.
    async fn ended(monitor: &AsyncFd<OwnedFd>) {
        if let Err(error) = monitor.readable().await {
            tracing::error!(%error, "the end of a domain can't be awaited");
        }
    }

    /// Comes back when the domain, its frontend or its relay has ended.
    pub(crate) async fn event(&mut self) -> Happened {
        tokio::select! {
            biased;
            () = Self::ended(&self.monitor) => Happened::Domain,
            end = self.frontend.ended() => Happened::Frontend(end),
            () = self.relay.ended() => Happened::Relay,
        }
    }

    /// After the end of a relay, or the pause behind it: another one. Its connections are over, and
    /// new ones go on.
    pub(crate) async fn replace_relay(&mut self, node: &Arc<Domains>, domain: &Domain) -> Result<(), String> {
        if let RelayPlace::Here(relay) = &self.relay {
            // One that ends again so soon must not be started in a loop.
            let again = if relay.served() < FRONTEND_SETTLED {
                self.relay_pause.saturating_mul(2)
            } else {
                FRONTEND_PAUSE
            };
            self.relay_pause = again.min(MAX_FRONTEND_PAUSE);
            let (dc, name) = (&self.running.id().dc, domain.name.as_str());
            tracing::warn!(
                dc,
                domain = name,
                "its relay ended, and open connections with it; a successor takes its place"
            );
            self.relay = RelayPlace::Lost(tokio::time::Instant::now() + self.relay_pause);
            return Ok(());
        }
        self.start_relay(node, domain).await
    }

    async fn start_relay(&mut self, node: &Arc<Domains>, domain: &Domain) -> Result<(), String> {
        self.relay = RelayPlace::Lost(tokio::time::Instant::now() + MAX_FRONTEND_PAUSE);
        let dc = self.running.id().dc.clone();
        let order = relay_order(node, &dc, domain);
        self.relay = match (order, self.running.init_descriptor()) {
            (Some(order), _) if domain.machine.is_some() => {
                RelayPlace::Here(Relay::in_guest(node, order).await?)
            }
            (Some(order), Some(init)) => RelayPlace::Here(Relay::start(node, order, init).await?),
            _ => RelayPlace::None,
        };
        Ok(())
    }

    /// As [`Self::follow_services`], in a guest: what runs there takes the next order, or is told
    /// to end.
    async fn follow_in_guest(&mut self, node: &Arc<Domains>, domain: &Domain) -> Result<(), String> {
        let dc = self.running.id().dc.clone();
        let has_none = matches!(self.relay, RelayPlace::None | RelayPlace::Booting(..));
        if has_none || relay_order(node, &dc, domain).is_some() {
            // The one that runs gives way to the one that is started.
            self.relay = RelayPlace::of_guest(node, &dc, domain);
            return Ok(());
        }
        self.relay = RelayPlace::None;
        relays::end_in_guest(node, &dc, domain.name.as_str()).await
    }

    /// After a change of services: another relay, if there is something else to do.
    pub(crate) async fn follow_services(
        &mut self,
        node: &Arc<Domains>,
        domain: &Domain,
    ) -> Result<(), String> {
        let dc = self.running.id().dc.clone();
        let wanted = relay_order(node, &dc, domain);
        let has = match &self.relay {
            RelayPlace::Here(relay) => Some(relay.order()),
            RelayPlace::None | RelayPlace::Lost(_) | RelayPlace::Booting(..) => None,
        };
        if has == wanted.as_ref() {
            return Ok(());
        }
        if domain.machine.is_some() {
            return self.follow_in_guest(node, domain).await;
        }
        relays::end(node, &dc, domain.name.as_str()).await?;
        self.start_relay(node, domain).await
    }

    /// How the domain ended; clears up behind it.
    pub(crate) async fn conclude(self, node: &Arc<Domains>) -> Exit {
        let running = Arc::clone(&self.running);
        let id = running.id().clone();
        let exit = ENDS.run(move || running.wait()).await.and_then(|exit| exit.map_err(said));
        drop(self);
        if let Err(error) = remove_incarnation(node, &id.dc, &id.name).await {
            tracing::error!(domain = %id, error, "what an ended domain left can't be removed");
        }
        exit.unwrap_or_else(|error| {
            tracing::error!(domain = %id, error, "it is not known how it ended");
            Exit { ending: domain::Ending::Lost, out_of_memory: false, at: String::new(), outcome: None }
        })
    }

    /// Asks the domain to end, waits for it, and clears up behind it: how it ended.
    pub(crate) async fn stop_and_conclude(self, node: &Arc<Domains>, grace: Duration) -> Exit {
        self.end_within(grace).await;
        self.conclude(node).await
    }

    /// Asks the domain to end, and waits for it.
    pub(crate) async fn stop(self, grace: Duration) {
        self.end_within(grace).await;
    }

    /// Asks the domain to end, and kills it when its time is over. While it has time, no thread
    /// waits: many that take theirs hold up nobody.
    async fn end_within(&self, grace: Duration) {
        let id = self.running.id();
        // The guest has as long as the file says; then its machine ends it, and says so.
        let vm = self.running.spec().machine.is_some() && !grace.is_zero();
        let grace = if vm { grace + machines::WIND_UP } else { grace };
        let running = Arc::clone(&self.running);
        let asked = ENDS.run(move || running.ask_to_end(grace)).await.and_then(|asked| asked.map_err(said));
        match asked {
            Ok(grace) => {
                let _over = tokio::time::timeout(grace, Self::ended(&self.monitor)).await;
            }
            Err(error) => {
                tracing::error!(domain = %id, error, "it can't be asked to end; it is removed by force")
            }
        }
        let running = Arc::clone(&self.running);
        let stopped = ENDS.run(move || running.stop(Some(Duration::ZERO))).await;
        if let Err(error) = stopped.and_then(|exit| exit.map_err(said)) {
            tracing::error!(domain = %id, error, "it did not end as asked; it is removed by force");
        }
    }

    /// Sends its first process a signal.
    pub(crate) fn signal(&self, signal: i32) -> Result<(), String> {
        self.running.signal(signal).map_err(said)
    }

    /// A new frontend in the place of one that ended: the mount and its open files go on.
    pub(crate) async fn replace_frontend(
        &mut self,
        node: &Arc<Domains>,
        domain: &Domain,
    ) -> Result<(), String> {
        let settled = self.last_attempt.elapsed() >= FRONTEND_SETTLED;
        self.early_ends = if settled { 0 } else { self.early_ends.saturating_add(1) };
        if self.early_ends > 1 {
            let factor = 1_u32 << (self.early_ends - 2).min(16);
            // tidy(sleep): a pause is what is wanted here: a frontend that dies at once must not be
            // started in a loop.
            tokio::time::sleep(FRONTEND_PAUSE.saturating_mul(factor).min(MAX_FRONTEND_PAUSE)).await;
        }
        self.last_attempt = Instant::now();
        let dc = self.running.id().dc.clone();
        let pid = self.running.init_pid();
        match (&mut self.frontend, &self.held) {
            (Frontend::Guest(guest), _) => guest.tell(node, domain, pid),
            (Frontend::Here(process), Some(held)) => {
                *process = Process::spawn(node, &dc, domain, held, true).await?;
                Ok(())
            }
            (Frontend::Here(_), None) => Err("nothing is held for its frontend".into()),
        }
    }
}

/// An event of a domain that runs: which part of it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happened {
    /// The domain itself.
    Domain,
    /// Another frontend is wanted: its frontend has ended, or its guest has had none.
    Frontend(End),
    /// Another relay is wanted: it has ended.
    Relay,
}

impl RelayPlace {
    /// The relay of a guest, if it is to have one: it is not there yet.
    fn of_guest(node: &Domains, dc: &str, domain: &Domain) -> Self {
        let wanted = relay_order(node, dc, domain).is_some();
        let name = domain.name.as_str().to_owned();
        if wanted { Self::Booting(node.broker.clone(), dc.to_owned(), name) } else { Self::None }
    }

    /// Comes back when there is to be another one.
    async fn ended(&mut self) {
        match self {
            Self::None => std::future::pending().await,
            Self::Here(relay) => relay.ended().await,
            Self::Lost(next) => tokio::time::sleep_until(*next).await,
            Self::Booting(broker, dc, domain) => broker.machine_where(dc, domain, has_booted).await,
        }
    }
}

/// Whether commands can be executed in a guest.
fn has_booted(machine: Option<&Machine>) -> bool {
    machine.is_some_and(|machine| machine.member.is_some() && machine.state != GuestState::Booting)
}

/// Removes the remains of an incarnation that ended: mounts, cgroups, its frontend. The log and the
/// status stay.
async fn remove_incarnation(node: &Arc<Domains>, dc: &str, name: &str) -> Result<(), String> {
    node.broker.forget_machine(dc, name);
    let paths = node.layout.domain(dc, name).map_err(said)?;
    let (node, name) = (Arc::clone(node), format!("{dc}/{name}"));
    let kill = move || {
        node.book.ended(&name);
        node.cgroups.kill(&paths.cgroup)
    };
    REMOVALS.run(kill).await?.map(drop).map_err(said)
}
