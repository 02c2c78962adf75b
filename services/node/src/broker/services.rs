//! Services: who serves them, who may connect, and who is told of a change.

use super::far::MAX_CHANNELS_PER_NODE;
use super::offers::{Terms, channel_terms, nobody, server_name, shape, unknown};
use super::{
    Channel, Identity, Inner, MAX_CHANNELS_PER_DOMAIN, MAX_CHANNELS_PER_MEMBER, MakeChannel, MemberId,
    Outgoing, Refusal, Role, refuse, settings,
};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::OwnedSemaphorePermit;
use topology::{ChannelSettings, Service, ServiceKind, Topology};
use wire::control::{Consumer, Event, MountedService, Reply, ServedService};
use wire::proxy::News;

/// Entrances that a program of a domain may name; all others are for those at private sockets.
const PROGRAM_ENTRANCES: [&str; 2] = ["preload", "api"];
/// All entrances that there are.
const ALL_ENTRANCES: [&str; 5] = ["preload", "api", "device", "stub", "resolve"];

/// Entrances that a member may name.
fn entrances_of(role: Role) -> &'static [&'static str] {
    match role {
        Role::Program => &PROGRAM_ENTRANCES,
        Role::Frontend => &["device"],
        Role::Entrances => &["stub", "resolve"],
        Role::Proxy => &[],
    }
}

/// The parameters of a `connect`.
pub(super) struct Wish {
    pub(super) number: u64,
    pub(super) service: String,
    pub(super) entrance: String,
    pub(super) ring_bytes: u32,
}

/// The targets of a file, as a frontend is told of them.
fn said(target: &topology::Target) -> wire::control::Target {
    wire::control::Target {
        file: target.file.clone(),
        p99_ns: target.p99_ns,
        deadline_ns: target.deadline_ns,
        rate: target.rate,
        age_ns: target.age_ns,
    }
}

impl Inner {
    /// The services that a domain mounts, as it sees them now.
    pub(super) fn mounted(&self, dc: &str, domain: &str) -> Vec<MountedService> {
        let Some(topology) = self.topologies.get(dc) else { return Vec::new() };
        let Some(domain) = topology.domain(domain) else { return Vec::new() };
        let mounts = domain.services.iter();
        mounts
            .filter_map(|mount| {
                let service = topology.service(mount.service.as_str())?;
                let (up, generation) = self.health(dc, service.name.as_str());
                Some(MountedService {
                    name: service.name.as_str().to_owned(),
                    kind: service.kind().as_str().to_owned(),
                    at: mount.at.as_str().to_owned(),
                    verbs: verbs(service, domain.name.as_str()),
                    up,
                    generation,
                    targets: mount.targets.iter().map(said).collect(),
                })
            })
            .collect()
    }

    fn health(&self, dc: &str, service: &str) -> (bool, u64) {
        let state = self.services.get(&(dc.to_owned(), service.to_owned()));
        state.map_or((false, 0), |state| (state.server.is_some(), state.generation))
    }

    pub(super) fn server_of(&self, dc: &str, service: &str) -> Option<MemberId> {
        self.services.get(&(dc.to_owned(), service.to_owned()))?.server
    }

    /// Whether a member is a server of ours.
    pub(super) fn serves(&self, id: MemberId) -> bool {
        self.services.values().any(|state| state.server == Some(id) && !state.is_offered())
    }

    /// A member wants to be the server of its domain's services.
    pub(super) fn serve(&mut self, id: MemberId, who: &Identity, number: u64) -> Result<Outgoing, Refusal> {
        let Identity { dc, domain, .. } = who;
        let Some(topology) = self.topologies.get(dc).cloned() else {
            return refuse(Errno::NOENT, format!("there is no distributed container {dc} any more"));
        };
        let hosted: Vec<&Service> = topology.served_by(domain).collect();
        if hosted.is_empty() {
            return refuse(
                Errno::PERM,
                format!(
                    "the topology places no service with a server of ours in domain {domain}; a program offers by the name of the service"
                ),
            );
        }
        if who.role != Role::Program || !who.main {
            return refuse(
                Errno::PERM,
                format!(
                    "only the first process of domain {domain}, or a child of it, may serve; pid {} is neither",
                    who.pid
                ),
            );
        }
        if hosted.iter().any(|s| self.near_server_of(dc, s.name.as_str()).is_some_and(|server| server != id))
        {
            return refuse(
                Errno::BUSY,
                format!("domain {domain} has a server already; there is one at a time"),
            );
        }
        let services = hosted.iter().map(|service| served(service)).collect::<Result<Vec<_>, _>>()?;
        // The caller puts the reply into the outbox before it lets go of the lock: no consumer is
        // attached before.
        for service in hosted {
            self.server_came(dc, service, id);
        }
        Ok(Reply::Serving { id: number, services }.into())
    }

    pub(super) fn server_came(&mut self, dc: &str, service: &Service, id: MemberId) {
        let kind = service.kind();
        let service = service.name.as_str();
        let state = self.services.entry((dc.to_owned(), service.to_owned())).or_default();
        state.generation += 1;
        state.server = Some(id);
        state.kind = Some(kind);
        state.since = Some(SystemTime::now());
        let generation = state.generation;
        if self.node_of(id).is_none() {
            let (dc, service) = (dc.to_owned(), service.to_owned());
            self.tell_nodes(&News::Served { dc, service, generation });
        }
        if kind.has_server() {
            tracing::info!(dc, service, generation, "the service is up");
        } else {
            // Programs come and go as often as they like, and a log is bounded.
            tracing::debug!(dc, service, generation, "the service is offered");
        }
        if kind.has_files() {
            self.tell_frontends(dc, service, true, generation);
        }
    }

    pub(super) fn server_gone(&mut self, key: &(String, String)) {
        let Some(state) = self.services.get_mut(key) else { return };
        let server = state.server.take();
        state.since = Some(SystemTime::now());
        let (generation, kind) = (state.generation, state.kind);
        let (dc, service) = key;
        if server.is_some_and(|server| self.node_of(server).is_none()) {
            self.tell_nodes(&News::Unserved { dc: dc.clone(), service: service.clone() });
        }
        if kind.is_some_and(ServiceKind::has_server) {
            tracing::info!(dc, service, generation, "the service is down");
        } else {
            tracing::debug!(dc, service, generation, "the service is no longer offered");
        }
        if kind.is_some_and(ServiceKind::has_files) {
            self.tell_frontends(dc, service, false, generation);
        }
        self.grant_service(key);
    }

    fn tell_frontends(&mut self, dc: &str, service: &str, up: bool, generation: u64) {
        for (id, domain) in self.listeners(dc) {
            if self.mounted(dc, &domain).iter().any(|mounted| mounted.name == service) {
                // A server that comes and goes quickly cuts off nobody: the newest of what waits is
                // told.
                self.tell(id, Event::Service { service: service.to_owned(), up, generation });
            }
        }
    }

    /// A member wants a channel: what it is told, the channel's number, and what tells of its end.
    pub(super) fn connect(
        &mut self,
        id: MemberId,
        who: &Identity,
        wish: &Wish,
        room: Option<OwnedSemaphorePermit>,
        make: MakeChannel,
    ) -> Result<(Outgoing, u64, Vec<OwnedFd>), Refusal> {
        let Terms { verbs, kind, channel: settings } = self.permission(who, wish)?;
        let Some(server) = self.server_of(&who.dc, &wish.service) else {
            return refuse(Errno::AGAIN, nobody(&wish.service, kind));
        };
        self.room_for(id, who, wish, settings.as_ref(), server)?;
        if let Some(node) = self.node_of(server) {
            return refuse(
                Errno::AGAIN,
                format!("no memory for a channel to node {node}; connect again later"),
            );
        }
        let deaf = || format!("{} does not read; connect again later", server_name(&wish.service, kind));
        if !self.takes_channels(server) {
            return refuse(Errno::AGAIN, deaf());
        }
        let ends = make(shape(wish, settings, self.guests(who, server)))
            .map_err(|e| Refusal { errno: Errno::NOMEM, message: format!("no memory for a channel: {e}") })?;
        let channel = self.next_number();
        let consumer = Consumer {
            dc: who.dc.clone(),
            domain: who.domain.clone(),
            entrance: wish.entrance.clone(),
            verbs,
        };
        let memory = self.memory_for(who, server, &wish.service)?;
        let mut descriptors = ends.server;
        let has_memory = memory.is_some();
        descriptors.extend(memory);
        let attach = Event::Attach { service: wish.service.clone(), channel, consumer, memory: has_memory };
        if !self.send(server, Outgoing { reply: Reply::Event(attach), descriptors, _room: room }) {
            return refuse(Errno::AGAIN, deaf());
        }
        self.remember_channel(channel, (id, server, kind.has_server()), who, wish);
        let server_gone = ends.server_gone.filter(|_| !kind.has_server());
        let notices = ends.consumer_gone.into_iter().chain(server_gone).collect();
        let reply = Reply::Connected { id: wish.number, channel, memory: has_memory };
        Ok((Outgoing { reply, descriptors: ends.consumer, _room: None }, channel, notices))
    }

    /// Returns the terms for the member, if it may connect at all.
    pub(super) fn permission(&self, who: &Identity, wish: &Wish) -> Result<Terms, Refusal> {
        let entrance = wish.entrance.as_str();
        if !ALL_ENTRANCES.contains(&entrance) {
            let known = PROGRAM_ENTRANCES.join(", ");
            return refuse(Errno::INVAL, format!("there is no entrance {entrance:?}; there are {known}"));
        }
        if !entrances_of(who.role).contains(&entrance) {
            return refuse(Errno::PERM, format!("the entrance {entrance} is the frontend's alone"));
        }
        let topology = self.topologies.get(&who.dc);
        let service = topology.and_then(|topology| topology.service(&wish.service));
        if let Some(found) = service.filter(|service| !service.kind().has_files()) {
            return channel_terms(who, wish, found);
        }
        let mounts = self.mounted(&who.dc, &who.domain).iter().any(|mounted| mounted.name == wish.service);
        // A service that exists but is not mounted is spoken of as one that does not exist: nothing
        // leaks.
        let (Some(service), true) = (service, mounts) else { return unknown(who, &wish.service) };
        let verbs = verbs(service, &who.domain);
        if verbs.is_empty() {
            return refuse(
                Errno::ACCESS,
                format!("domain {} may nothing with {:?}", who.domain, wish.service),
            );
        }
        Ok(Terms { verbs, kind: service.kind(), channel: None })
    }

    /// Whether there may be one more channel.
    pub(super) fn room_for(
        &self,
        id: MemberId,
        who: &Identity,
        wish: &Wish,
        settings: Option<&ChannelSettings>,
        server: MemberId,
    ) -> Result<(), Refusal> {
        self.room_for_channel(id, who)?;
        if let Some(settings) = settings {
            self.room_in_service(who, wish, settings)?;
        }
        self.room_in_guests(id, who, wish, server)
    }

    fn room_for_channel(&self, id: MemberId, who: &Identity) -> Result<(), Refusal> {
        let most = if self.is_proxy(id) { MAX_CHANNELS_PER_NODE } else { MAX_CHANNELS_PER_MEMBER };
        let of_domain = self.channels.values().filter(|c| c.dc == who.dc && c.domain == who.domain).count();
        let of_member = self.channels.values().filter(|c| c.consumer == id).count();
        if of_domain < MAX_CHANNELS_PER_DOMAIN && of_member < most {
            return Ok(());
        }
        refuse(
            Errno::MFILE,
            format!(
                "domain {} has {of_domain} channels ({MAX_CHANNELS_PER_DOMAIN} are the most), {of_member} of them over \
                 this connection ({most} are the most)",
                who.domain
            ),
        )
    }

    pub(super) fn remember_channel(
        &mut self,
        number: u64,
        (consumer, server, tied): (MemberId, MemberId, bool),
        who: &Identity,
        wish: &Wish,
    ) {
        self.channels.retain(|_, c| !replaces(consumer, who, wish, c));
        let host =
            self.members.get(&server).map_or_else(String::new, |member| member.identity.domain.clone());
        let channel = Channel {
            host,
            dc: who.dc.clone(),
            service: wish.service.clone(),
            domain: who.domain.clone(),
            entrance: wish.entrance.clone(),
            consumer,
            server,
            tied,
            since: SystemTime::now(),
            _watches: Vec::new(),
        };
        self.channels.insert(number, channel);
        if let Some(state) = self.services.get_mut(&(who.dc.clone(), wish.service.clone())) {
            state.opened += 1;
        }
    }

    /// Tells frontends of changed mounts, and servers of changed settings and verbs.
    pub(super) fn tell_differences(&mut self, dc: &str, before: Option<&Topology>) {
        let now = self.topologies.get(dc).cloned();
        for (id, domain) in self.listeners(dc) {
            let changed = mounts_of(before, &domain) != mounts_of(now.as_deref(), &domain);
            if changed {
                let services = self.mounted(dc, &domain);
                self.send(id, Event::Services { services }.into());
            }
        }
        self.withdraw(dc, now.as_deref());
        let (Some(before), Some(now)) = (before, now) else { return };
        for service in &now.services {
            let Some(old) = before.service(service.name.as_str()) else { continue };
            let Some(server) = self.server_of(dc, service.name.as_str()) else { continue };
            self.tell_server(server, old, service, &now);
        }
    }

    fn tell_server(&mut self, server: MemberId, old: &Service, new: &Service, now: &Arc<Topology>) {
        let name = new.name.as_str();
        if old.settings != new.settings {
            match settings::of_service(new) {
                Ok(settings) => {
                    self.send(server, Event::Settings { service: name.to_owned(), settings }.into());
                }
                Err(error) => tracing::error!(service = name, %error, "its settings can't be told"),
            }
        }
        for domain in &now.domains {
            let domain = domain.name.as_str();
            let verbs_now = verbs(new, domain);
            if verbs(old, domain) != verbs_now {
                let event =
                    Event::Verbs { service: name.to_owned(), domain: domain.to_owned(), verbs: verbs_now };
                self.send(server, event.into());
            }
        }
    }
}

/// Whether a new channel takes the place of `old`: whoever serves an entrance has one link for it,
/// and the earlier one is lost, or it would not ask.
pub(super) fn replaces(consumer: MemberId, who: &Identity, wish: &Wish, old: &Channel) -> bool {
    who.role != Role::Program
        && old.consumer == consumer
        // Of other nodes' domains the consumer is their proxy, one for all of them.
        && (old.dc.as_str(), old.domain.as_str()) == (who.dc.as_str(), who.domain.as_str())
        && old.service == wish.service
        && old.entrance == wish.entrance
}

/// The description of a service for its server.
pub(super) fn served(service: &Service) -> Result<ServedService, Refusal> {
    let settings = settings::of_service(service).map_err(|e| Refusal {
        errno: Errno::INVAL,
        message: format!("the settings of service {} can't be told: {e}", service.name.as_str()),
    })?;
    Ok(ServedService {
        name: service.name.as_str().to_owned(),
        kind: service.kind().as_str().to_owned(),
        settings,
    })
}

pub(super) fn verbs(service: &Service, domain: &str) -> Vec<String> {
    let allowed = service.allow.get(domain);
    allowed.map_or_else(Vec::new, |verbs| verbs.iter().map(|verb| verb.as_str().to_owned()).collect())
}

/// The mounts that decide over the folders below `/srv` of a domain: each service's name, its path,
/// and its verbs.
fn mounts_of<'t>(topology: Option<&'t Topology>, domain: &str) -> Vec<(&'t str, &'t str, Vec<String>)> {
    let Some(topology) = topology else { return Vec::new() };
    let Some(found) = topology.domain(domain) else { return Vec::new() };
    let mounts = found.services.iter();
    mounts
        .filter_map(|mount| {
            let service = topology.service(mount.service.as_str())?;
            Some((service.name.as_str(), mount.at.as_str(), verbs(service, domain)))
        })
        .collect()
}
