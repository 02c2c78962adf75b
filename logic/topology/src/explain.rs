//! The report on a start that `tombolo check` gives.

mod endpoint;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use endpoint::{Called, EndpointAccess};

use crate::model::{
    Accel, CacheMode, ChannelSettings, DiskHolds, Domain, DomainKind, EventsSettings, Health, IdOrName,
    IpcLimits, Layer, Machine, MachineKernel, Mount, Network, Program, Ready, Root, ServiceKind,
    ServiceMount, Settings, SocketSettings, Topology,
};
use crate::name::Name;
use crate::scalar::{duration_text, size_text};

/// Characters of a command that are shown.
const COMMAND_CHARS_MAX: usize = 72;
/// Keys of a program's settings that are shown: what fits on a line.
const KEYS_SHOWN_MAX: usize = 8;

/// The start of a topology: its domains in order, and the permissions of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The distributed container.
    pub name: Name,
    /// The domains in the order in which they would start.
    pub starts: Vec<Start>,
    /// The services, by name.
    pub services: Vec<Access>,
    /// The endpoints, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointAccess>,
    /// How much there may be of what endpoints need.
    #[serde(default)]
    pub ipc: IpcLimits,
}

/// How one domain would start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The domain.
    pub domain: Name,
    /// Its kind.
    pub kind: DomainKind,
    /// The program that it would run.
    pub runs: String,
    /// Where its files come from.
    pub root: String,
    /// The machine that it would have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machine: Vec<String>,
    /// Files and directories of the node that it would see: from where, at which place, and whether
    /// it may write.
    pub mounts: Vec<String>,
    /// The network that it sees.
    pub network: Network,
    /// The user that it would run as.
    pub user: String,
    /// The capabilities that it would keep.
    pub capabilities: Vec<String>,
    /// Its limits.
    pub limits: String,
    /// The promises that it would get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<String>,
    /// Domains that are ready before.
    pub after: Vec<Name>,
    /// How it is known to be up.
    pub ready: String,
    /// How it is known that it still does what it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// Addresses of the node at which others would reach it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<String>,
    /// The services that it mounts: where, and by which entrances.
    pub services: Vec<String>,
}

/// One service and who may use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The service.
    pub service: Name,
    /// Its kind.
    pub kind: ServiceKind,
    /// The domain in which its backend would run.
    pub domain: Name,
    /// The service's effect.
    pub does: String,
    /// The permissions, one entry per domain, with the place where the domain sees the service.
    pub allow: Vec<Permission>,
}

/// The permissions of one domain on a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permission {
    /// The domain.
    pub domain: Name,
    /// The verbs.
    pub verbs: Vec<String>,
    /// Where it sees the service; `None` where it doesn't mount it.
    pub at: Option<String>,
    /// Whether it opens the service by its name, as channels are: then there is nothing to mount.
    #[serde(default)]
    pub by_name: bool,
}

/// Says what `topology` would start.
#[must_use]
pub fn explain(topology: &Topology) -> Explanation {
    Explanation {
        name: topology.name.clone(),
        starts: topology.start_order().into_iter().map(start).collect(),
        services: topology.services.iter().map(|service| access(topology, service)).collect(),
        endpoints: topology.endpoints.iter().map(|it| endpoint::access(topology, it)).collect(),
        ipc: topology.ipc,
    }
}

fn start(domain: &Domain) -> Start {
    Start {
        domain: domain.name.clone(),
        kind: domain.kind,
        runs: runs(&domain.program),
        root: root(domain),
        machine: domain.machine.as_ref().map_or_else(Vec::new, machine),
        mounts: domain.mounts.iter().map(mount).collect(),
        network: domain.network,
        user: user(domain),
        capabilities: domain.capabilities.clone(),
        limits: limits(domain),
        promises: domain.reserve.as_ref().map_or_else(Vec::new, crate::Reserve::lines),
        after: domain.after.clone(),
        ready: ready(&domain.ready),
        health: domain.health.as_ref().map(health),
        published: domain.published.iter().map(|it| format!("{}, to port {}", it.at, it.port)).collect(),
        services: domain
            .services
            .iter()
            .map(|mount| format!("{} at {}", mount.service, place(mount)))
            .chain(domain.sockets.iter().map(|mount| format!("{} at {mount}", mount.service)))
            .collect(),
    }
}

fn access(topology: &Topology, service: &crate::Service) -> Access {
    let permission = |(domain, verbs): (&Name, &std::collections::BTreeSet<crate::Verb>)| {
        let mounts = topology.domain(domain).map_or(&[][..], |domain| domain.services.as_slice());
        let sockets = topology.domain(domain).map_or(&[][..], |domain| domain.sockets.as_slice());
        let socket = || sockets.iter().find(|mount| mount.service == service.name);
        Permission {
            domain: domain.clone(),
            verbs: verbs.iter().map(|verb| verb.as_str().to_owned()).collect(),
            at: (mounts.iter().find(|mount| mount.service == service.name).map(place))
                .or_else(|| socket().map(ToString::to_string)),
            by_name: service.kind() == ServiceKind::Channel,
        }
    };
    Access {
        service: service.name.clone(),
        kind: service.kind(),
        domain: service.domain.clone(),
        does: does(&service.settings),
        allow: service.allow.iter().map(permission).collect(),
    }
}

fn runs(program: &Program) -> String {
    match program {
        Program::Command(argv) => {
            let line = argv.join(" ");
            let mut cut: String = line.chars().take(COMMAND_CHARS_MAX).collect();
            if cut.len() < line.len() {
                cut.push('…');
            }
            cut
        }
        Program::Image => "what the image says".to_owned(),
        Program::Nothing => "nothing but what `tombolo exec` starts".to_owned(),
        Program::Server(services) => {
            format!("the server of {}", services.iter().map(Name::as_str).collect::<Vec<_>>().join(", "))
        }
    }
}

fn root(domain: &Domain) -> String {
    let writable = match domain.layer() {
        Some(Layer { size_bytes, inodes }) => {
            format!("writable (in memory: {}, {inodes} files)", size_text(size_bytes))
        }
        None => "read-only".to_owned(),
    };
    match &domain.root {
        Root::Host if domain.kind == DomainKind::Process => "the node's own files".to_owned(),
        Root::Host if domain.kind == DomainKind::Vm => tree(domain.machine.as_ref()).to_owned(),
        Root::Host => "the node's system directories, read-only".to_owned(),
        Root::Directory { path } => format!("the directory {}, {writable}", path.display()),
        Root::Image { path, tag: None } => format!("the image {}, {writable}", path.display()),
        Root::Image { path, tag: Some(tag) } => format!("the image {} {tag}, {writable}", path.display()),
        Root::Pulled { reference, digest: None } => format!("the image {reference}, {writable}"),
        Root::Pulled { reference, digest: Some(digest) } => {
            format!("the image {reference} ({digest}), {writable}")
        }
    }
}

/// Where the command of a guest finds its files.
fn tree(machine: Option<&Machine>) -> &'static str {
    match machine.and_then(|machine| machine.disk.as_ref()).map(|disk| disk.holds) {
        Some(DiskHolds::Root) => "those of the disk",
        Some(DiskHolds::System) => "those of the system on the disk",
        Some(DiskHolds::Data) | None => "those of the initramfs, in the guest's memory",
    }
}

/// A machine in some lines.
fn machine(machine: &Machine) -> Vec<String> {
    let processors =
        if machine.cpus == 1 { "1 processor".to_owned() } else { format!("{} processors", machine.cpus) };
    let accel = match machine.accel {
        Accel::Auto => "KVM if it works, or emulated",
        Accel::Kvm => "KVM",
        Accel::Tcg => "emulated",
    };
    let kernel = match &machine.kernel {
        MachineKernel::Built { directory: None } => {
            "a small system with a kernel that the node has".to_owned()
        }
        MachineKernel::Built { directory: Some(path) } => {
            format!("a small system with the kernel of {}", path.display())
        }
        MachineKernel::Files { kernel, initramfs: None } => format!("the kernel {}", kernel.display()),
        MachineKernel::Files { kernel, initramfs: Some(initramfs) } => {
            format!("the kernel {} with {}", kernel.display(), initramfs.display())
        }
        MachineKernel::Disk => "what its disk says".to_owned(),
    };
    let mut lines = vec![
        format!("{processors}, {}, {accel}", size_text(machine.memory_bytes)),
        format!("boots {kernel}"),
    ];
    lines.extend(machine.disk.as_ref().map(|disk| {
        let writable = if disk.read_only { "read-only" } else { "writable" };
        format!("disk {} ({}), {writable}", disk.path.display(), disk.format.as_str())
    }));
    lines
}

fn user(domain: &Domain) -> String {
    let text = |part: &IdOrName| match part {
        IdOrName::Id(id) => id.to_string(),
        IdOrName::Name(name) => name.clone(),
    };
    match (&domain.user, &domain.root) {
        (Some(user), _) => match &user.group {
            Some(group) => format!("{}:{}", text(&user.user), text(group)),
            None => text(&user.user),
        },
        (None, _) if domain.kind == DomainKind::Vm => "the guest's root".to_owned(),
        (None, Root::Image { .. } | Root::Pulled { .. }) => "who the image says".to_owned(),
        (None, _) => "root".to_owned(),
    }
}

fn limits(domain: &Domain) -> String {
    let limits = &domain.limits;
    let mut parts = Vec::new();
    if let Some(milli) = limits.cpu_milli {
        parts.push(format!("cpu {}", f64::from(milli) / 1e3));
    }
    parts.extend(limits.memory_bytes.map(|bytes| format!("memory {}", size_text(bytes))));
    parts.push(format!("pids {}", limits.pids));
    parts.join(", ")
}

fn ready(ready: &Ready) -> String {
    match ready {
        Ready::Started => "when its program runs".to_owned(),
        Ready::Registered => "when its server has registered".to_owned(),
        Ready::Tcp(address) => format!("when {address} accepts connections"),
        Ready::Command(argv) => format!("when {} ends with 0", runs(&Program::Command(argv.clone()))),
    }
}

fn health(health: &Health) -> String {
    let argv = runs(&Program::Command(health.command.clone()));
    let (every, timeout) = (duration_text(health.every_ms), duration_text(health.timeout_ms));
    format!("{argv} ends with 0 within {timeout}, every {every}; restarted after {} failures", health.fails)
}

fn place(mount: &ServiceMount) -> String {
    let entrances =
        [(mount.stub, "DNS stub"), (mount.resolve, "libnss-resolve"), (mount.preload, "preloaded library")];
    let open = entrances.iter().filter(|(open, _)| *open).map(|(_, words)| (*words).to_owned());
    let targets = mount.targets.iter().map(|target| format!("targets of {}", target.file));
    std::iter::once(format!("/srv/{}", mount.at)).chain(open).chain(targets).collect::<Vec<_>>().join(", ")
}

fn does(settings: &Settings) -> String {
    let directory = match settings {
        Settings::Directory(directory) => directory,
        Settings::Channel(channel) => return offers(channel),
        Settings::Program(program) if program.table.is_empty() => {
            return "its program serves the files".to_owned();
        }
        Settings::Program(program) => {
            let keys: Vec<&str> = program.table.keys().map(String::as_str).take(KEYS_SHOWN_MAX).collect();
            let more = if program.table.len() > keys.len() { ", …" } else { "" };
            return format!("its program serves the files, and is told {}{more}", keys.join(", "));
        }
        Settings::Socket(socket) => return listens(socket),
        Settings::Coordination(settings) => {
            let grace = duration_text(settings.grace_ms);
            return format!("keeps keys and locks; whoever holds one and is not heard of has {grace}");
        }
        Settings::Events(events) => return channels(events),
        Settings::Camera(camera) => return shows(camera),
        Settings::Location(location) => return locates(location),
        Settings::Files(files) => return stores(files),
    };
    let upstream: Vec<String> = directory.upstream.iter().map(ToString::to_string).collect();
    let cache = match &directory.cache.mode {
        CacheMode::None => "no cache".to_owned(),
        CacheMode::Private => "a cache for each domain".to_owned(),
        CacheMode::Shared(names) => {
            format!("a cache that {} share", names.iter().map(Name::as_str).collect::<Vec<_>>().join(", "))
        }
    };
    let timeout = duration_text(directory.timeout_ms);
    let retries = match directory.retries {
        1 => "1 retry".to_owned(),
        count => format!("{count} retries"),
    };
    format!("asks {} ({timeout}, {retries}); {cache}", upstream.join(", "))
}

fn stores(settings: &crate::FilesSettings) -> String {
    let place = match &settings.store {
        Some(store) => format!("{} of its domain", store.display()),
        None => "the node's state directory".to_owned(),
    };
    format!("shares files of {place}: {}, {} files and folders", size_text(settings.bytes), settings.inodes)
}

fn locates(settings: &crate::LocationSettings) -> String {
    let sources = settings.sources.iter().map(|source| format!("{} ({} mW)", source.name, source.power_mw));
    let ports = [("gpsd", settings.gpsd_port), ("NMEA", settings.nmea_port)];
    let ports = ports.iter().filter_map(|(name, port)| Some(format!("; {name} at port {}", (*port)?)));
    format!(
        "knows where it is to {} m by {}, changed after {}{}",
        settings.accuracy_m,
        sources.collect::<Vec<_>>().join(", "),
        duration_text(settings.hold_ms),
        ports.collect::<String>()
    )
}

fn shows(settings: &crate::CameraSettings) -> String {
    let cameras = settings.cameras.iter().map(|camera| {
        let source = match &camera.file {
            Some(file) => format!("the frames of {}", file.display()),
            None => "a test pattern".to_owned(),
        };
        let (format, rate) = (camera.format.as_str(), camera.rate);
        format!("{} shows {source}, {}x{} {format}, {rate}/s", camera.name, camera.width, camera.height)
    });
    format!(
        "{}; {} open files for one domain",
        cameras.collect::<Vec<_>>().join("; "),
        settings.sessions_per_domain
    )
}

fn offers(channel: &ChannelSettings) -> String {
    format!(
        "its program offers channels of {} ({} each way), {} at a time, {} for one domain",
        channel.mode.as_str(),
        size_text(u64::from(channel.ring_bytes)),
        channel.max_channels,
        channel.channels_per_domain
    )
}

fn channels(events: &EventsSettings) -> String {
    let names: Vec<&str> = events.channels.keys().map(Name::as_str).take(KEYS_SHOWN_MAX).collect();
    let more = if events.channels.len() > names.len() { ", …" } else { "" };
    let named = if names.is_empty() { "no channel of its own".to_owned() } else { names.join(", ") };
    format!(
        "event channels ({named}{more}); buffers of {} together, {} channels for one domain",
        size_text(events.memory_bytes),
        events.channels_per_domain
    )
}

fn listens(socket: &SocketSettings) -> String {
    let rate = socket.connections_per_second.map(|rate| format!(", {rate} new ones of it in a second"));
    format!(
        "its program listens at {}{}; {} connections at a time, {} for one domain{}",
        socket.to,
        if socket.proxy { " and is told by the PROXY protocol who connects" } else { "" },
        socket.max_connections,
        socket.connections_per_domain,
        rate.unwrap_or_default()
    )
}

fn mount(mount: &Mount) -> String {
    let writable = if mount.read_only { "read-only" } else { "writable" };
    format!("{} at {}, {writable}", mount.source.display(), mount.target.display())
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} would start {} domains, in this order:", self.name, self.starts.len())?;
        for (index, start) in self.starts.iter().enumerate() {
            write_start(index + 1, start, f)?;
        }
        for access in &self.services {
            write_access(access, f)?;
        }
        for access in &self.endpoints {
            endpoint::write(access, f)?;
        }
        if !self.endpoints.is_empty() || !self.ipc.is_default() {
            endpoint::write_limits(&self.ipc, f)?;
        }
        Ok(())
    }
}

fn write_start(number: usize, start: &Start, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let network = match start.network {
        Network::Host if start.kind == DomainKind::Vm => "outwards, by the node's",
        Network::None => "only lo",
        Network::Host => "the node's",
    };
    writeln!(f, "\n{number:3}. {} ({})", start.domain, start.kind.as_str())?;
    let mut lines =
        vec![("runs", format!("{}, as {}", start.runs, start.user)), ("files", start.root.clone())];
    lines.extend(start.machine.iter().map(|line| ("machine", line.clone())));
    lines.extend(start.mounts.iter().map(|mount| ("mount", mount.clone())));
    lines.push(("network", network.to_owned()));
    if !start.capabilities.is_empty() {
        lines.push(("keeps", start.capabilities.join(", ")));
    }
    lines.push(("limits", start.limits.clone()));
    lines.extend(start.promises.iter().map(|line| ("promised", line.clone())));
    lines.push(("ready", start.ready.clone()));
    lines.extend(start.health.iter().map(|line| ("health", line.clone())));
    lines.extend(start.published.iter().map(|line| ("publish", line.clone())));
    if !start.after.is_empty() {
        lines.push(("after", start.after.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")));
    }
    lines.extend(start.services.iter().map(|service| ("service", service.clone())));
    lines.into_iter().try_for_each(|(word, text)| writeln!(f, "     {word:8} {text}"))
}

fn write_access(access: &Access, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Access { service, kind, domain, does, allow } = access;
    writeln!(f, "\nservice {service} ({}) in {domain}: {does}", kind.as_str())?;
    for permission in allow {
        let none = if permission.by_name { "by its name" } else { "not mounted" };
        let at = permission.at.as_deref().unwrap_or(none);
        writeln!(f, "     {:16} may {:18} {at}", permission.domain, permission.verbs.join(", "))?;
    }
    Ok(())
}
