//! Services that a program of the hosting domain offers: channels, which programs of other domains
//! open by their names, and services with files, which other domains mount. The program may be any
//! of its domain's, and may come and go.

use super::services::{Wish, served, verbs};
use super::standby::Offered;
use super::{Broker, Identity, Inner, MemberId, Outgoing, Refusal, Role, Shape, refuse};
use rustix::io::Errno;
use topology::{ChannelMode, ChannelSettings, Service, ServiceKind, Topology};
use wire::control::{Event, Reply};

impl Broker {
    /// Whether another program offers the service that this member wants to offer.
    pub(crate) fn is_offered_by_another(&self, id: MemberId, service: &str) -> bool {
        let inner = self.lock();
        let Some(member) = inner.members.get(&id) else { return false };
        inner.near_server_of(&member.identity.dc, service).is_some_and(|server| server != id)
    }

    /// Whether a program offers this service, and the member may connect to it.
    pub(crate) fn is_a_programs(&self, id: MemberId, service: &str) -> bool {
        let inner = self.lock();
        let Some(Identity { dc, domain, .. }) = inner.members.get(&id).map(|member| &member.identity) else {
            return false;
        };
        let Some(topology) = inner.topologies.get(dc) else { return false };
        let offered = topology.service(service).filter(|service| !service.kind().has_server());
        offered.is_some_and(|service| service.opens(domain) || topology.mounts(domain, &service.name))
    }

    /// Comes back when a service that this member may connect to has a server, or when there is
    /// nothing to wait for.
    pub(crate) async fn served(&self, id: MemberId, service: &str, entrance: &str) {
        let mut changes = self.changes();
        while self.lacks_server(id, service, entrance) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn lacks_server(&self, id: MemberId, service: &str, entrance: &str) -> bool {
        let inner = self.lock();
        let Some(member) = inner.members.get(&id) else { return false };
        let who = &member.identity;
        let wish =
            Wish { number: 0, service: service.to_owned(), entrance: entrance.to_owned(), ring_bytes: 0 };
        inner.permission(who, &wish).is_ok() && inner.server_of(&who.dc, service).is_none()
    }
}

impl Inner {
    /// A program wants to offer a channel, or a service with files.
    pub(super) fn offer(
        &mut self,
        id: MemberId,
        who: &Identity,
        offered: &Offered<'_>,
    ) -> Result<Option<Outgoing>, Refusal> {
        let (number, name) = (offered.number, offered.service);
        let Identity { dc, domain, .. } = who;
        if who.role != Role::Program {
            return refuse(Errno::PERM, "only a program offers a service");
        }
        let topology = self.topologies.get(dc).cloned();
        let found = topology.as_deref().and_then(|topology| topology.service(name));
        // Whoever knows of it may hear why; for all others it does not exist.
        let hosts = |service: &Service| service.is_offered_in(domain);
        let known = |service: &&Service| hosts(service) || service.allow.contains_key(domain.as_str());
        let Some(service) = found.filter(known) else {
            return refuse(
                Errno::NOENT,
                format!(
                    "the topology has no channel {name:?}, and no service of a program, that domain {domain} could offer"
                ),
            );
        };
        if service.kind().has_server() {
            let kind = service.kind().as_str();
            return refuse(
                Errno::INVAL,
                format!("{name} is a {kind}: it has a server, and no program offers it"),
            );
        }
        let (word, may) = words(service.kind());
        if !hosts(service) {
            return refuse(
                Errno::PERM,
                format!("domain {domain} may {may} the {word} {name}, and not offer it"),
            );
        }
        if !service.backups.is_empty() && self.near_server_of(dc, name) != Some(id) {
            let service = service.clone();
            return self.offer_in_turn(id, who, offered, &service);
        }
        if self.near_server_of(dc, name).is_some_and(|server| server != id) {
            return refuse(
                Errno::BUSY,
                format!(
                    "another program of domain {domain} offers the {word} {name}; there is one at a time"
                ),
            );
        }
        let services = vec![served(service)?];
        // The caller puts the reply into the outbox before it lets go of the lock: no consumer is
        // attached before.
        if self.near_server_of(dc, name).is_none() {
            self.server_came(dc, service, id);
        }
        Ok(Some(Reply::Serving { id: number, services }.into()))
    }

    /// Takes channels and services from programs whose domain they are no longer placed in. Those
    /// of other nodes are reconciled.
    pub(super) fn withdraw(&mut self, dc: &str, now: Option<&Topology>) {
        self.withdraw_waiting(dc, now);
        let offered = self.services.iter().filter(|((of, _), state)| of == dc && state.is_offered());
        let offered: Vec<_> =
            offered.filter_map(|(key, state)| Some((key.clone(), state.server?, state.kind?))).collect();
        for (key, server, kind) in offered {
            if self.is_proxy(server) {
                continue;
            }
            let domain = self.members.get(&server).map(|member| member.identity.domain.as_str());
            let service = now.and_then(|now| now.service(&key.1)).filter(|service| service.kind() == kind);
            if service.is_some_and(|service| domain.is_some_and(|domain| service.is_offered_in(domain))) {
                continue;
            }
            self.server_gone(&key);
            let (word, _) = words(kind);
            let message = format!("the topology no longer places the {word} {} in this domain", key.1);
            self.send(server, Event::Withdrawn { service: key.1, message }.into());
        }
    }

    /// Whether the service has room for another channel, of all domains and of this one.
    pub(super) fn room_in_service(
        &self,
        who: &Identity,
        wish: &Wish,
        settings: &ChannelSettings,
    ) -> Result<(), Refusal> {
        let of_service = || self.channels.values().filter(|c| c.dc == who.dc && c.service == wish.service);
        let all = of_service().count();
        let own = of_service().filter(|c| c.domain == who.domain).count();
        let ChannelSettings { max_channels, channels_per_domain, .. } = *settings;
        let below = |count: usize, most: u32| u32::try_from(count).is_ok_and(|count| count < most);
        if !below(own, channels_per_domain) {
            let message = format!(
                "domain {} has {own} channels of {}, and {channels_per_domain} are the most (`channels_per_domain`); close some",
                who.domain, wish.service
            );
            return refuse(Errno::MFILE, message);
        }
        if !below(all, max_channels) {
            let message = format!(
                "{max_channels} channels of {} are open, which are the most (`max_channels`); open one later",
                wish.service
            );
            return refuse(Errno::USERS, message);
        }
        Ok(())
    }
}

/// The terms of a connection: the rights of the consumer, and its server.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// The verbs that its domain has.
    pub(super) verbs: Vec<String>,
    pub(super) kind: ServiceKind,
    /// The channel's settings, where the service is a channel.
    pub(super) channel: Option<ChannelSettings>,
}

/// The words for a service of this kind: its noun in messages, and the verb for a domain that uses
/// it.
fn words(kind: ServiceKind) -> (&'static str, &'static str) {
    match kind {
        ServiceKind::Channel => ("channel", "open"),
        ServiceKind::Socket => ("socket", "connect to"),
        ServiceKind::Directory
        | ServiceKind::Program
        | ServiceKind::Coordination
        | ServiceKind::Events
        | ServiceKind::Camera
        | ServiceKind::Location
        | ServiceKind::Files => ("service", "use"),
    }
}

/// Whether a domain may open a channel: whoever may not hears that there is none.
pub(super) fn channel_terms(who: &Identity, wish: &Wish, service: &Service) -> Result<Terms, Refusal> {
    if !service.opens(&who.domain) {
        return unknown(who, &wish.service);
    }
    if who.role != Role::Program || wish.entrance != "api" {
        let (word, _) = words(service.kind());
        return refuse(Errno::INVAL, format!("{} is a {word}: its entrance is \"api\"", wish.service));
    }
    let verbs = verbs(service, &who.domain);
    Ok(Terms { verbs, kind: service.kind(), channel: service.channel().copied() })
}

/// The answer about what a domain does not mount, whether it exists or not.
pub(super) fn unknown<T>(who: &Identity, service: &str) -> Result<T, Refusal> {
    refuse(
        Errno::NOENT,
        format!("domain {} mounts no service {service:?}, and may open no channel of this name", who.domain),
    )
}

/// The message where nobody serves.
pub(super) fn nobody(service: &str, kind: ServiceKind) -> String {
    if kind.has_server() {
        return format!("service {service} has no server now; wait for it and connect again");
    }
    let (word, _) = words(kind);
    format!(
        "no program offers the {word} {service} now: the one that does has not started yet, or has ended; try again, or \
         ask to wait"
    )
}

/// The name of the server that takes channels.
pub(super) fn server_name(service: &str, kind: ServiceKind) -> String {
    if kind.has_server() {
        format!("the server of {service}")
    } else {
        format!("the program that offers {service}")
    }
}

/// The shape of a channel: of a channel service as the file says, and smaller where that is wished.
pub(super) fn shape(wish: &Wish, settings: Option<ChannelSettings>, guests: [bool; 2]) -> Shape {
    let Some(settings) = settings else {
        return Shape { ring_bytes: wish.ring_bytes, mode: ChannelMode::Messages, guests };
    };
    let wished = if wish.ring_bytes == 0 { settings.ring_bytes } else { wish.ring_bytes };
    Shape { ring_bytes: wished.min(settings.ring_bytes), mode: settings.mode, guests }
}
