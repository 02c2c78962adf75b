//! Programs that stand by for the one that offers a service of kind `program`: who is next, and the
//! move to one of them by order.
//!
//! The file names domains whose programs may offer a service as well (`backups`). Their offers wait
//! here, in the order in which they came. When the program that offers has gone, or leaves because
//! it is told to, the next one has the service, and is answered then.

use super::services::served;
use super::{Broker, Identity, Inner, MemberId, Outgoing, Refusal, ServiceState, refuse};
use rustix::io::Errno;
use std::time::{Duration, Instant};
use topology::{Service, ServiceKind};
use wire::control::{Event, Reply};

/// For so long a new daemon gives a service with backups to nobody but the program that had it from
/// the daemon before: that one has the consumers.
const SETTLE: Duration = Duration::from_secs(4);
/// For so long a service that has just been declared waits for a program of its own domain, before
/// a backup has it.
const PREFERENCE: Duration = Duration::from_secs(2);
/// How long a program may take to leave by order: it answers what it has taken first.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Programs of one domain that may stand by for one service: so no domain takes the places of
/// others.
const MAX_STANDING_BY: usize = 4;

/// An offer that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    member: MemberId,
    /// Of its request.
    number: u64,
    domain: String,
    not_before: Instant,
}

/// An order to move, which is over by itself: whoever gave it may have gone.
#[derive(Debug)]
pub(super) struct Moving {
    /// The domain whose program is to have the service next.
    to: String,
    until: Instant,
}

/// A program's offer, as it came.
pub(super) struct Offered<'o> {
    pub(super) number: u64,
    pub(super) service: &'o str,
    /// Whether it waits where another program offers.
    pub(super) stand_by: bool,
    /// Whether it has offered this service to an earlier daemon, and has its consumers.
    pub(super) serving: bool,
}

/// A move that has been made.
#[derive(Debug)]
pub(crate) struct MovedService {
    /// The domain of the program before.
    pub(crate) from: String,
    /// From the order until the next program was told that it serves.
    pub(crate) took: Duration,
}

impl Broker {
    /// Gives free services to programs whose time to wait is over, when that is.
    pub(super) fn grant_later(&self, dc: &str, service: &str, after: Duration) {
        let broker = self.clone();
        let key = (dc.to_owned(), service.to_owned());
        tokio::spawn(async move {
            // tidy(sleep): the end of a grace period, which only time tells.
            tokio::time::sleep(after).await;
            broker.lock().grant_service(&key);
            broker.announce();
        });
    }

    /// Has the program that offers a service leave, so that one of the domain `to` has it. What it
    /// has taken it answers before that.
    ///
    /// # Errors
    /// What stands in the way, in words.
    pub(crate) async fn move_service(
        &self,
        dc: &str,
        service: &str,
        to: &str,
    ) -> Result<MovedService, String> {
        let begun = Instant::now();
        let mut changes = self.changes();
        let key = (dc.to_owned(), service.to_owned());
        let from = self.lock().order_to_leave(&key, to)?;
        let arrived = async {
            while !self.lock().is_served_in(&key, to) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let in_time = tokio::time::timeout(LEAVE_TIMEOUT, arrived).await.is_ok();
        let mut inner = self.lock();
        if let Some(state) = inner.services.get_mut(&key) {
            state.moving = None;
        }
        if in_time {
            return Ok(MovedService { from, took: begun.elapsed() });
        }
        Err(format!(
            "the program of domain {from} that offers {service} has not left within {LEAVE_TIMEOUT:?}; it has it still. If it uses the service kit, it is busy: it \
             answers what it has taken before it leaves"
        ))
    }
}

impl Inner {
    /// Whether a program of this domain offers the service.
    fn is_served_in(&self, key: &(String, String), domain: &str) -> bool {
        let server = self.near_server_of(&key.0, &key.1).and_then(|server| self.members.get(&server));
        server.is_some_and(|server| server.identity.domain == domain)
    }

    /// Tells the program that offers a service to leave. Returns its domain.
    fn order_to_leave(&mut self, key: &(String, String), to: &str) -> Result<String, String> {
        let (dc, name) = key;
        let found = self.topologies.get(dc).and_then(|topology| topology.service(name)).cloned();
        let Some(service) = found else { return Err(format!("there is no service {name} any more")) };
        if service.kind() != ServiceKind::Program {
            let kind = service.kind().as_str();
            return Err(format!(
                "{name} is a {kind}: only services of kind \"program\" are moved from one program to another; `tombolo move {}` moves its domain",
                service.domain.as_str()
            ));
        }
        if !service.is_offered_in(to) {
            return Err(format!(
                "programs of domain {to} may not offer {name}: list it in `backups` of [service.{name}]"
            ));
        }
        let Some(server) = self.near_server_of(dc, name) else {
            return Err(format!("no program of this node offers {name} now"));
        };
        if self.is_served_in(key, to) {
            return Err(format!("{name} is offered by a program of domain {to} already"));
        }
        let Some(state) = self.services.get_mut(key) else { return Err(format!("{name} has just ended")) };
        let now = Instant::now();
        if state.moving.as_ref().is_some_and(|moving| now < moving.until) {
            return Err(format!("{name} is being moved already"));
        }
        if !state.waiting.iter().any(|waiting| waiting.domain == to) {
            return Err(format!(
                "no program of domain {to} stands by for {name}: start one there that serves it"
            ));
        }
        state.moving = Some(Moving { to: to.to_owned(), until: now + LEAVE_TIMEOUT });
        let from =
            self.members.get(&server).map_or_else(String::new, |member| member.identity.domain.clone());
        self.send(server, Event::Leave { service: name.clone() }.into());
        Ok(from)
    }

    /// An offer of a program that may make it: `None`, it waits; else the answer.
    pub(super) fn offer_in_turn(
        &mut self,
        id: MemberId,
        who: &Identity,
        offered: &Offered<'_>,
        service: &Service,
    ) -> Result<Option<Outgoing>, Refusal> {
        let key = (who.dc.clone(), offered.service.to_owned());
        self.must_be_near(who, service)?;
        let now = Instant::now();
        let state = self.services.entry(key.clone()).or_default();
        state.waiting.retain(|waiting| waiting.member != id);
        let grace = if offered.serving { Duration::ZERO } else { self.grace(who, service) };
        let free = self.near_server_of(&who.dc, offered.service).is_none();
        if free && grace.is_zero() {
            let services = vec![served(service)?];
            self.server_came(&who.dc, service, id);
            return Ok(Some(Reply::Serving { id: offered.number, services }.into()));
        }
        if !free && !offered.stand_by {
            return refuse(
                Errno::BUSY,
                format!(
                    "another program offers the service {}; there is one at a time, and others stand by",
                    offered.service
                ),
            );
        }
        let Some(state) = self.services.get_mut(&key) else { return Ok(None) };
        if state.waiting.iter().filter(|waiting| waiting.domain == who.domain).count() >= MAX_STANDING_BY {
            return refuse(
                Errno::USERS,
                format!(
                    "{MAX_STANDING_BY} programs of domain {} stand by for {}, which are the most",
                    who.domain, offered.service
                ),
            );
        }
        let (number, domain) = (offered.number, who.domain.clone());
        state.waiting.push(Waiting { member: id, number, domain, not_before: now + grace });
        Ok(None)
    }

    /// Whether an offer of this member waits already.
    pub(super) fn stands_by(&self, id: MemberId, dc: &str, service: &str) -> bool {
        let state = self.services.get(&(dc.to_owned(), service.to_owned()));
        state.is_some_and(|state| state.waiting.iter().any(|waiting| waiting.member == id))
    }

    /// A backup is on the node of its service's domain: on other nodes it is looked for there
    /// alone.
    fn must_be_near(&self, who: &Identity, service: &Service) -> Result<(), Refusal> {
        let node = self.placed_on(&who.dc, service.domain.as_str());
        match node.filter(|node| *node != self.far_me()) {
            None => Ok(()),
            Some(node) => refuse(
                Errno::OPNOTSUPP,
                format!(
                    "domain {} of the service {} is placed on node {node}: a program that stands by for it has to be on the same node",
                    service.domain, service.name
                ),
            ),
        }
    }

    /// For how long an offer has to wait although nobody has the service.
    pub(super) fn grace(&self, who: &Identity, service: &Service) -> Duration {
        let settling = SETTLE.saturating_sub(self.begun.0.elapsed());
        let state = self.services.get(&(who.dc.clone(), service.name.as_str().to_owned()));
        let never = state.is_none_or(|state| state.generation == 0);
        let preference =
            if service.domain.as_str() != who.domain && never { PREFERENCE } else { Duration::ZERO };
        settling.max(preference)
    }

    /// The same of an offer that waits.
    pub(super) fn grace_of(&self, who: &Identity, service: &str) -> Duration {
        let topology = self.topologies.get(&who.dc);
        let service = topology.and_then(|topology| topology.service(service));
        service.map_or(Duration::ZERO, |service| self.grace(who, service))
    }

    /// The program that offers a service leaves it, and stands by from now on.
    pub(super) fn step_back(
        &mut self,
        id: MemberId,
        who: &Identity,
        (number, name): (u64, &str),
    ) -> Result<Option<Outgoing>, Refusal> {
        let key = (who.dc.clone(), name.to_owned());
        if self.near_server_of(&who.dc, name) != Some(id) {
            return refuse(Errno::PERM, format!("this connection does not offer {name}"));
        }
        self.server_gone(&key);
        let Some(state) = self.services.get_mut(&key) else { return Ok(None) };
        let (domain, not_before) = (who.domain.clone(), Instant::now());
        state.waiting.push(Waiting { member: id, number, domain, not_before });
        // Where the one that it was to make room for has gone meanwhile, it goes on.
        self.grant_service(&key);
        Ok(None)
    }

    /// Gives a free service to the next program that stands by for it: one of the domain that it
    /// moves to, else the first.
    pub(super) fn grant_service(&mut self, key: &(String, String)) {
        let (dc, name) = key;
        if self.server_of(dc, name).is_some() {
            return;
        }
        let found = self.topologies.get(dc).and_then(|topology| topology.service(name)).cloned();
        let Some(service) = found.filter(|service| service.kind() == ServiceKind::Program) else { return };
        while let Some(next) = self.services.get_mut(key).and_then(ServiceState::next) {
            if !service.is_offered_in(&next.domain) || !self.members.contains_key(&next.member) {
                continue;
            }
            let Ok(told) = served(&service) else { return };
            let reply = Reply::Serving { id: next.number, services: vec![told] };
            if self.send(next.member, reply.into()) {
                self.server_came(dc, &service, next.member);
                return;
            }
        }
    }

    /// A connection has ended: it stands by for nothing any more.
    pub(super) fn stands_by_no_more(&mut self, id: MemberId) {
        for state in self.services.values_mut() {
            state.waiting.retain(|waiting| waiting.member != id);
        }
    }

    /// Tells programs that may not stand by any more that they do not.
    pub(super) fn withdraw_waiting(&mut self, dc: &str, now: Option<&topology::Topology>) {
        let mut told = Vec::new();
        for ((of, name), state) in self.services.iter_mut().filter(|((of, _), _)| of == dc) {
            debug_assert_eq!(of, dc);
            let service = now.and_then(|now| now.service(name));
            state.waiting.retain(|waiting| {
                let may = service.is_some_and(|service| {
                    service.kind() == ServiceKind::Program && service.is_offered_in(&waiting.domain)
                });
                if !may {
                    told.push((waiting.member, waiting.number, name.clone()));
                }
                may
            });
        }
        for (member, id, name) in told {
            let message = format!("the topology no longer places the service {name} in this domain");
            self.send(member, Reply::Refused { id, errno: Errno::PERM.raw_os_error(), message }.into());
        }
    }
}

impl ServiceState {
    /// The domains of those who stand by.
    pub(super) fn standing_by(&self) -> Vec<String> {
        self.waiting.iter().map(|waiting| waiting.domain.clone()).collect()
    }

    /// Takes the next of those who stand by.
    fn next(&mut self) -> Option<Waiting> {
        let now = Instant::now();
        let moving = self.moving.take().filter(|moving| now < moving.until);
        let wanted =
            moving.and_then(|moving| self.waiting.iter().position(|waiting| waiting.domain == moving.to));
        let first = || self.waiting.iter().position(|waiting| waiting.not_before <= now);
        let at = wanted.or_else(first)?;
        Some(self.waiting.remove(at))
    }
}

/// When the broker began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun(pub(super) Instant);

impl Default for Begun {
    fn default() -> Self {
        Self(Instant::now())
    }
}
