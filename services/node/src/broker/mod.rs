//! The broker: the connections, the servers of services, and the channels that were made. It
//! introduces two ends to each other and keeps neither. Of each channel it holds only a copy of one
//! doorbell's listening half, by which it learns that the consumer is gone: so a domain's bound
//! counts channels that live, whoever holds them. Where a program offers the service, and not a
//! server of ours, it holds one of either side: that program's connection may end before its
//! channels do.
//!
//! Nothing here waits. Messages to a member go into its bounded outbox; a member whose outbox is
//! full does not read, and is told nothing more: it is cut off, so that nobody waits for it.

pub(crate) mod control;
mod coordination;
mod endpoints;
mod far;
mod kept;
mod late;
mod machines;
mod memories;
mod offers;
mod rings;
mod services;
pub(crate) mod settings;
mod standby;
mod state;
pub(crate) mod turns;

#[cfg(test)]
pub(crate) use endpoints::testing;
pub(crate) use endpoints::{Numbers, Reserved, Store};
pub(crate) use far::{ToProxy, orders};
pub(crate) use kept::Kept;
pub(crate) use machines::Machine;
pub(crate) use memories::Memories;
pub(crate) use rings::{make_channel, wake_ns};
pub(crate) use state::{MemberRow, unix_seconds};

use crate::base::watched;
use crate::coordination::StateKeeper;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::Interest;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use topology::{ChannelMode, ServiceKind, Topology};
use wire::control::{Event, Reply, Request};

/// Connections that the control socket of one domain may have. A program with the preload library
/// holds one, and one for each of its endpoints. Each is a descriptor and some KiB here; sixteen
/// domains that take all of them leave room for others.
pub(crate) const MAX_MEMBERS_PER_DOMAIN: usize = 1024;
/// Channels of one domain that may live at a time: a sixteenth of what one server takes.
pub(crate) const MAX_CHANNELS_PER_DOMAIN: usize = 256;
/// Channels that one connection may ask for: the frontend needs one for each entrance of each
/// service.
pub(crate) const MAX_CHANNELS_PER_MEMBER: usize = 128;
/// Packets that may wait for one member.
const MAX_WAITING_PACKETS: usize = 256;
/// Channels of one domain that may be on their way to servers at a time, for each kind of member:
/// who asks for more waits until a server has taken some, so that no domain fills a server's
/// outbox.
pub(crate) const MAX_ATTACHES_PER_DOMAIN: usize = 16;
/// Room in an outbox that is kept for what is neither a new channel nor news about endpoints. A
/// server is not cut off because of what others ask.
const KEPT_PACKETS: usize = 32;
/// At most so often it is logged that a member of a domain was cut off: a domain must not fill the
/// disk with it.
const CUT_OFF_REMARK: Duration = Duration::from_secs(60);
/// Answers about state that may be outstanding for one member.
const MAX_INSPECTIONS: usize = 16;

/// A connection to a control socket; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MemberId(u64);

/// One packet to a member, with what it carries.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) reply: Reply,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Given back when the packet has been sent, or never will be.
    pub(crate) _room: Option<OwnedSemaphorePermit>,
}

/// Room that is kept for descriptors until they are on their way.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    /// For those that another member gets.
    pub(crate) others: Option<OwnedSemaphorePermit>,
    /// For those of the answer.
    pub(crate) own: Option<OwnedSemaphorePermit>,
}

impl From<Reply> for Outgoing {
    fn from(reply: Reply) -> Self {
        Self { reply, descriptors: Vec::new(), _room: None }
    }
}

impl From<Event> for Outgoing {
    fn from(event: Event) -> Self {
        Reply::Event(event).into()
    }
}

/// The role of a member in its domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// A program, at the domain's own control socket.
    Program,
    /// The domain's frontend, at its private socket.
    Frontend,
    /// The native entrances in the frontend's process, at a private socket of their own.
    Entrances,
    /// The proxy for another node: it stands for what is served there, and has a protocol of its
    /// own.
    Proxy,
}

/// The identity of a connected peer, as the daemon (not the peer) knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) dc: String,
    pub(crate) domain: String,
    pub(crate) role: Role,
    /// As this node's kernel says; 0 where it is no longer there.
    pub(crate) pid: u32,
    /// Whether it is the domain's first process, or a child of it.
    pub(crate) main: bool,
}

#[derive(Debug)]
struct Member {
    identity: Identity,
    outbox: mpsc::Sender<Outgoing>,
    inspections: HashMap<u64, oneshot::Sender<Value>>,
    /// Whether it has been told what its domain is, and what it mounts.
    told: (bool, bool),
    /// Events that wait for room in the outbox.
    late: late::Late,
}

#[derive(Debug)]
struct Channel {
    dc: String,
    service: String,
    domain: String,
    entrance: String,
    consumer: MemberId,
    server: MemberId,
    /// The domain of the server.
    host: String,
    /// Whether it ends with the connection of its server: a server of ours has it all the time, a
    /// program that offers may let go of it.
    tied: bool,
    since: SystemTime,
    /// Tell of its end; gone with the channel.
    _watches: Vec<Watch>,
}

/// A task that is ended when this is dropped.
#[derive(Debug)]
struct Watch(tokio::task::AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug, Default)]
struct ServiceState {
    server: Option<MemberId>,
    generation: u64,
    since: Option<SystemTime>,
    /// Of what kind the service was when its server came.
    kind: Option<ServiceKind>,
    /// Channels that were ever made to it.
    opened: u64,
    /// Programs that stand by, in the order in which they came.
    waiting: Vec<standby::Waiting>,
    /// The domain whose program is to have it next.
    moving: Option<standby::Moving>,
}

impl ServiceState {
    /// Whether the server is a program that offers the service: it has no state to tell.
    fn is_offered(&self) -> bool {
        self.kind.is_some_and(|kind| !kind.has_server())
    }
}

/// A refusal: an errno and what to say.
#[derive(Debug)]
struct Refusal {
    errno: rustix::io::Errno,
    message: String,
}

fn refuse<T>(errno: rustix::io::Errno, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { errno, message: message.into() })
}

/// The two ends of a new channel, ready to be sent.
pub(crate) struct Ends {
    /// For the one that asked.
    pub(crate) consumer: Vec<OwnedFd>,
    /// For the server.
    pub(crate) server: Vec<OwnedFd>,
    /// Hangs up when nobody has the consumer's end any more.
    pub(crate) consumer_gone: Option<OwnedFd>,
    /// The same for the server's end.
    pub(crate) server_gone: Option<OwnedFd>,
}

/// The wished shape of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of each ring; 0: the default. Clamped to what there is.
    pub(crate) ring_bytes: u32,
    /// The channel's mode: messages or a stream.
    pub(crate) mode: ChannelMode,
    /// Whether the consumer's end, and the server's, is in a guest: then the two share no kernel.
    pub(crate) guests: [bool; 2],
}

/// Makes a channel.
pub(crate) type MakeChannel = fn(Shape) -> io::Result<Ends>;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Broker {
    inner: Arc<Mutex<Inner>>,
    make: MakeChannel,
    changed: Arc<tokio::sync::watch::Sender<u64>>,
}

#[derive(Debug, Default)]
struct Inner {
    last_number: u64,
    topologies: BTreeMap<String, Arc<Topology>>,
    members: BTreeMap<MemberId, Member>,
    services: BTreeMap<(String, String), ServiceState>,
    channels: BTreeMap<u64, Channel>,
    /// The last reports of the machine processes of domains of kind `vm`.
    machines: BTreeMap<(String, String), Machine>,
    /// The memories that each domain of this node has with services.
    memories: BTreeMap<(String, String), Memories>,
    endpoints: endpoints::Endpoints,
    /// Other nodes.
    far: far::Far,
    /// Programs of each domain that are connected.
    programs: BTreeMap<(String, String), usize>,
    /// Where the state of services of kind `coordination` is kept.
    states: Option<Arc<StateKeeper>>,
    /// When it was last logged of a domain that a member was cut off.
    remarked: BTreeMap<(String, String), Instant>,
    begun: standby::Begun,
}

impl Broker {
    pub(crate) fn new(make: MakeChannel) -> Self {
        Self { inner: Arc::default(), make, changed: Arc::new(tokio::sync::watch::Sender::new(0)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes who waits for a service to come up.
    fn announce(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Ticks whenever a server came or went.
    pub(crate) fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// A new connection. `None`: the domain has too many.
    pub(crate) fn join(&self, identity: Identity) -> Option<(MemberId, mpsc::Receiver<Outgoing>)> {
        let mut inner = self.lock();
        if identity.role == Role::Program {
            let key = (identity.dc.clone(), identity.domain.clone());
            let programs = inner.programs.entry(key).or_default();
            if *programs >= MAX_MEMBERS_PER_DOMAIN {
                return None;
            }
            *programs += 1;
        }
        let id = MemberId(inner.next_number());
        let (outbox, mail) = mpsc::channel(MAX_WAITING_PACKETS);
        let (inspections, late) = (HashMap::new(), late::Late::new());
        inner.members.insert(id, Member { identity, outbox, inspections, told: (false, false), late });
        Some((id, mail))
    }

    /// A connection has ended; what it served is down.
    pub(crate) fn leave(&self, id: MemberId) {
        let mut inner = self.lock();
        let Some(Member { identity: Identity { dc, domain, role, .. }, .. }) = inner.members.remove(&id)
        else {
            return;
        };
        if role == Role::Program {
            inner.program_left(&dc, &domain);
        }
        inner.endpoints_left(id, &dc);
        inner.machine_left(id);
        inner.stands_by_no_more(id);
        // A channel outlives the connection that asked for it, but not its server's, where that is
        // one of ours.
        inner.channels.retain(|_, channel| channel.server != id || !channel.tied);
        let served: Vec<_> =
            inner.services.iter().filter(|(_, s)| s.server == Some(id)).map(|(key, _)| key.clone()).collect();
        for key in served {
            inner.server_gone(&key);
        }
        drop(inner);
        self.announce();
    }

    /// As [`Broker::request_in`], with no room for descriptors of the answer.
    #[cfg(test)]
    pub(crate) fn request(
        &self,
        id: MemberId,
        request: Request,
        room: Option<OwnedSemaphorePermit>,
        about: impl FnOnce(&Identity) -> Value,
    ) {
        self.request_in(id, request, Rooms { others: room, own: None }, about);
    }

    /// Answers a request of a member. The answer is in its outbox when this returns. Each of the
    /// rooms is kept until the descriptors that it is for are on their way.
    pub(crate) fn request_in(
        &self,
        id: MemberId,
        request: Request,
        rooms: Rooms,
        about: impl FnOnce(&Identity) -> Value,
    ) {
        let Rooms { others: room, own: answers } = rooms;
        let mut inner = self.lock();
        let Some(member) = inner.members.get(&id) else { return };
        let identity = member.identity.clone();
        let (number, answer) = match request {
            Request::Services { id: number } => {
                let services = inner.mounted(&identity.dc, &identity.domain);
                (number, Ok(Reply::Services { id: number, services }.into()))
            }
            Request::About { id: number } => {
                drop(inner);
                let about = about(&identity);
                inner = self.lock();
                (number, Ok(Reply::About { id: number, about }.into()))
            }
            Request::MapMemory { id: number, service } => {
                (number, inner.map_memory(&identity, number, &service))
            }
            Request::Serve { id: number } => (number, inner.serve(id, &identity, number)),
            Request::Offer { id: number, service, stand_by, serving } => {
                let offered = standby::Offered { number, service: &service, stand_by, serving };
                let waited = inner.stands_by(id, &identity.dc, &service);
                match inner.offer(id, &identity, &offered).transpose() {
                    Some(answer) => (number, answer),
                    None => {
                        let after = inner.grace_of(&identity, &service);
                        drop(inner);
                        // Whoever asks again and again has one timer.
                        if !waited && !after.is_zero() {
                            self.grant_later(&identity.dc, &service, after);
                        }
                        return;
                    }
                }
            }
            Request::StepBack { id: number, service } => {
                match inner.step_back(id, &identity, (number, &service)).transpose() {
                    Some(answer) => (number, answer),
                    None => {
                        drop(inner);
                        return self.announce();
                    }
                }
            }
            Request::KeepState { id: number, service } => (
                number,
                inner.state_connection(&identity, number, &service).map(|o| Outgoing { _room: answers, ..o }),
            ),
            // The wait is over when a request comes here.
            Request::Connect { id: number, service, entrance, ring_bytes, wait_ms: _ } => {
                let wish = services::Wish { number, service, entrance, ring_bytes };
                (number, self.connect(&mut inner, id, &identity, &wish, room))
            }
            Request::State { id: number, state } => {
                inner.answered(id, number, state);
                return;
            }
            Request::Machine { id: number, accel, qemu } => {
                (number, inner.machine(id, &identity, number, &accel, &qemu))
            }
            Request::Bind { id: number, .. }
            | Request::Back { id: number, .. }
            | Request::Promote { id: number, .. }
            | Request::Release { id: number, .. }
            | Request::Continues { id: number, .. }
            | Request::Stay { id: number, .. }
            | Request::Unbind { id: number, .. }
            | Request::Introduce { id: number, .. }
            | Request::Buffer { id: number, .. }
            | Request::Free { id: number, .. }
            | Request::Grant { id: number, .. }
            | Request::Revoke { id: number, .. }
            | Request::Borrow { id: number, .. } => {
                let answer = self.endpoint_request(&mut inner, id, &identity, request, room);
                let answer = answer.map(|outgoing| Outgoing { _room: answers, ..outgoing });
                inner.answer(id, &identity, number, answer);
                inner.tell_met_again();
                // No service has come or gone.
                return;
            }
            Request::Guest { state, message } => match inner.guest(id, &identity, state, &message) {
                Ok(()) => {
                    drop(inner);
                    self.announce();
                    return;
                }
                Err(refusal) => (0, Err(refusal)),
            },
        };
        inner.answer(id, &identity, number, answer);
        drop(inner);
        self.announce();
    }

    /// A member has read something: what waits for room goes out.
    pub(crate) fn has_read(&self, id: MemberId) {
        self.lock().tell_late(id);
    }

    /// Tells a member that it did not wait long enough, because it asked for something else.
    pub(crate) fn refuse_interrupted(&self, id: MemberId, number: u64) {
        let errno = rustix::io::Errno::CANCELED.raw_os_error();
        let message = "another request came before the endpoint was bound".to_owned();
        self.lock().send(id, Reply::Refused { id: number, errno, message }.into());
    }

    /// Has endpoints' numbers kept there. Until then nobody binds one.
    pub(crate) fn keep_numbers(&self, numbers: Numbers) {
        self.lock().endpoints.keep_numbers(numbers);
    }

    /// Comes back when a member has been told what its domain is and mounts, or is gone.
    pub(crate) async fn introduced(&self, id: MemberId) {
        let mut changes = self.changes();
        while self.lock().members.get(&id).is_some_and(|member| member.told != (true, true)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn connect(
        &self,
        inner: &mut Inner,
        id: MemberId,
        who: &Identity,
        wish: &services::Wish,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<Outgoing, Refusal> {
        let (outgoing, number, notices) = inner.connect(id, who, wish, room, self.make)?;
        if let Some(channel) = inner.channels.get_mut(&number) {
            channel._watches = notices.into_iter().map(|notice| self.watch(number, notice)).collect();
        }
        Ok(outgoing)
    }

    /// Forgets a channel when whoever rings this doorbell is gone.
    fn watch(&self, number: u64, notice: OwnedFd) -> Watch {
        let broker = self.clone();
        let task = tokio::spawn(async move {
            // Rings are not its business: of this descriptor only the hang-up is awaited.
            match watched(notice, Interest::PRIORITY) {
                Ok(notice) => match notice.ready(Interest::PRIORITY).await {
                    Ok(_) => drop(broker.lock().channels.remove(&number)),
                    Err(error) => tracing::error!(number, %error, "the end of a channel can't be awaited"),
                },
                Err(error) => tracing::error!(number, %error, "the end of a channel can't be awaited"),
            }
        });
        Watch(task.abort_handle())
    }

    /// Tells a member that what it sent was no request.
    pub(crate) fn refuse_garbage(&self, id: MemberId, message: String) {
        let errno = rustix::io::Errno::PROTO.raw_os_error();
        self.lock().send(id, Reply::Refused { id: 0, errno, message }.into());
    }

    /// Tells a member that its domain waits in vain for a server to take what it asked for.
    pub(crate) fn refuse_turn(&self, id: MemberId, number: u64) {
        let errno = rustix::io::Errno::AGAIN.raw_os_error();
        let message = format!(
            "{MAX_ATTACHES_PER_DOMAIN} channels of the domain wait for a server that does not read; connect again later"
        );
        self.lock().send(id, Reply::Refused { id: number, errno, message }.into());
    }

    /// Tells a member that its domain waits in vain for another program to take the ends that it
    /// asked for.
    pub(crate) fn refuse_introduction(&self, id: MemberId, number: u64) {
        self.lock().refuse_introduction(id, number);
    }

    /// Sets (or, with `None`, forgets) the topology of a distributed container and tells everyone
    /// whom it concerns.
    pub(crate) fn set_topology(&self, dc: &str, topology: Option<Arc<Topology>>) {
        let mut inner = self.lock();
        let before = match topology {
            Some(topology) => inner.topologies.insert(dc.to_owned(), topology),
            None => {
                inner.remarked.retain(|(of, _), _| of != dc);
                inner.topologies.remove(dc)
            }
        };
        inner.tell_differences(dc, before.as_deref());
        inner.endpoints_follow(dc, before.as_deref());
        inner.reconcile_far();
    }

    /// Whether all services of a domain have their server.
    pub(crate) fn all_served(&self, dc: &str, domain: &str) -> bool {
        let inner = self.lock();
        let Some(topology) = inner.topologies.get(dc) else { return false };
        topology.served_by(domain).all(|service| inner.near_server_of(dc, service.name.as_str()).is_some())
    }

    /// Asks every frontend and server for its state; those that can't be asked are left out.
    pub(crate) fn inspect(&self) -> Vec<(MemberId, oneshot::Receiver<Value>)> {
        let mut inner = self.lock();
        let asked: Vec<_> = inner
            .members
            .iter()
            .filter(|(_, member)| member.identity.role != Role::Proxy)
            .filter(|(id, member)| member.identity.role != Role::Program || inner.serves(**id))
            .map(|(id, _)| *id)
            .collect();
        asked.into_iter().filter_map(|id| inner.ask_state(id).map(|answer| (id, answer))).collect()
    }

    /// Asks the frontend of one domain for its state; `None`: there is none, or it has not answered
    /// others.
    pub(crate) fn inspect_frontend(&self, dc: &str, domain: &str) -> Option<oneshot::Receiver<Value>> {
        let mut inner = self.lock();
        let is_it = |identity: &Identity| {
            identity.role == Role::Frontend && identity.dc == dc && identity.domain == domain
        };
        let id = inner.members.iter().find(|(_, member)| is_it(&member.identity)).map(|(id, _)| *id)?;
        inner.ask_state(id)
    }
}

impl Inner {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Puts the answer to a request into a member's outbox.
    fn answer(&mut self, id: MemberId, who: &Identity, number: u64, answer: Result<Outgoing, Refusal>) {
        let outgoing = answer.unwrap_or_else(|refusal| {
            tracing::debug!(dc = who.dc, domain = who.domain, pid = who.pid, "{}", refusal.message);
            let errno = refusal.errno.raw_os_error();
            Reply::Refused { id: number, errno, message: refusal.message }.into()
        });
        if let Some(member) = self.members.get_mut(&id) {
            member.told.0 |= matches!(outgoing.reply, Reply::About { .. });
            member.told.1 |= matches!(outgoing.reply, Reply::Services { .. });
        }
        self.send(id, outgoing);
    }

    fn program_left(&mut self, dc: &str, domain: &str) {
        let key = (dc.to_owned(), domain.to_owned());
        if let Some(programs) = self.programs.get_mut(&key) {
            *programs -= 1;
            if *programs == 0 {
                self.programs.remove(&key);
            }
        }
    }

    /// Those who are told of services: frontends and entrances, with their domains.
    fn listeners(&self, dc: &str) -> Vec<(MemberId, String)> {
        let of_dc = |m: &Member| m.identity.role != Role::Program && m.identity.dc == dc;
        let found = self.members.iter().filter(|(_, m)| of_dc(m));
        found.map(|(id, m)| (*id, m.identity.domain.clone())).collect()
    }

    /// Puts a packet into a member's outbox; a member that does not read is cut off. Whether it was
    /// put.
    fn send(&mut self, id: MemberId, outgoing: Outgoing) -> bool {
        let Some(member) = self.members.get(&id) else { return false };
        if member.identity.role == Role::Proxy {
            // What servers are told, the daemon of the node on which the real one is tells it.
            return false;
        }
        match member.outbox.try_send(outgoing) {
            Ok(()) => true,
            Err(_) => {
                let Identity { dc, domain, pid, .. } = member.identity.clone();
                if self.is_worth_a_remark(&dc, &domain) {
                    tracing::warn!(
                        dc,
                        domain,
                        pid,
                        "a member of the domain does not read its control socket: cut off"
                    );
                }
                // The task of the connection sees its outbox close, and leaves.
                let (closed, _) = mpsc::channel(1);
                if let Some(member) = self.members.get_mut(&id) {
                    member.outbox = closed;
                }
                false
            }
        }
    }

    /// Whether it has not been logged lately that a member of this domain was cut off.
    fn is_worth_a_remark(&mut self, dc: &str, domain: &str) -> bool {
        let now = Instant::now();
        let key = (dc.to_owned(), domain.to_owned());
        let lately = |before: &Instant| now.duration_since(*before) < CUT_OFF_REMARK;
        if self.remarked.get(&key).is_some_and(lately) {
            return false;
        }
        self.remarked.insert(key, now);
        true
    }

    /// Whether a server can be told of one more channel.
    fn takes_channels(&self, server: MemberId) -> bool {
        self.members.get(&server).is_some_and(|member| member.outbox.capacity() > KEPT_PACKETS)
    }

    fn answered(&mut self, id: MemberId, number: u64, state: Value) {
        let inspection = self.members.get_mut(&id).and_then(|member| member.inspections.remove(&number));
        // An answer that nobody asked for, or that came too late, is dropped.
        if let Some(inspection) = inspection {
            let _too_late = inspection.send(state);
        }
    }

    fn ask_state(&mut self, id: MemberId) -> Option<oneshot::Receiver<Value>> {
        let number = self.next_number();
        let member = self.members.get_mut(&id)?;
        member.inspections.retain(|_, inspection| !inspection.is_closed());
        if member.inspections.len() >= MAX_INSPECTIONS {
            return None;
        }
        let (tell, answer) = oneshot::channel();
        member.inspections.insert(number, tell);
        self.send(id, Event::Inspect { id: number }.into()).then_some(answer)
    }
}

#[cfg(test)]
mod tests;
