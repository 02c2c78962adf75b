//! Introducing two endpoints to each other: one channel for each pair, an end to each.

use super::far::FarPeer;
use super::regions::{Region, lingering_most};
use super::{Awaited, Inner, MAX_SUGGESTED, Own, Pair, called, most, pair_of, rights, short};
use crate::base::watched;
use crate::broker::{
    Broker, Ends, Identity, MAX_ATTACHES_PER_DOMAIN, MemberId, Outgoing, Refusal, Shape, Watch, refuse,
};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::io::Interest;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use topology::{Caller, ChannelMode};
use wire::control::{EndpointAddress, Event, Reply, Whom};
use wire::guest::MAX_CHANNELS;
use wire::ring::{apart_region_bytes, region_bytes};

/// The parameters of an `introduce`.
pub(super) struct Wish {
    pub(super) number: u64,
    pub(super) to: Whom,
    /// Whether it has been waited for.
    pub(super) waited: bool,
}

/// Somebody who is asked for.
pub(super) enum Found {
    /// It is here.
    Bound(u32),
    /// It is on another node.
    Far(FarPeer),
    /// It may come.
    Absent(Awaited, Refusal),
}

impl Broker {
    /// Comes back when the endpoint that a member wants to be introduced to is bound, or when there
    /// is nothing to wait for.
    pub(crate) async fn endpoint_bound(&self, id: MemberId, endpoint: u32, to: &Whom) {
        // Shown as one that waits, until it does no more.
        let _shown = Shown { broker: self, id };
        while let Some(waiting) = self.awaits(id, endpoint, to) {
            let notified = waiting.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            // It may have come before this one was on the list.
            if self.awaits(id, endpoint, to).is_some() {
                notified.await;
            }
        }
    }

    /// The notification to wait at, if there is anything to wait for.
    fn awaits(&self, id: MemberId, endpoint: u32, to: &Whom) -> Option<Arc<Notify>> {
        let mut inner = self.lock();
        let who = inner.members.get(&id)?.identity.clone();
        let own = inner.own(id, &who, endpoint).ok()?;
        let Ok(Found::Absent(awaited, _)) = inner.find(&own, to) else { return None };
        let table = inner.endpoints.tables.get_mut(&own.dc)?;
        // Whoever has stopped waiting has let go of its own.
        if table.awaited.len() > table.slots.len() + table.names.len() {
            table.awaited.retain(|_, waiting| Arc::strong_count(waiting) > 1);
        }
        table.waiting.insert(id, awaited.clone());
        Some(Arc::clone(table.awaited.entry(awaited).or_default()))
    }

    /// At whom a member's request is directed, for taking turns; `None`: at nobody who is there.
    pub(crate) fn endpoint_turn(&self, id: MemberId, endpoint: u32, to: &Whom) -> Option<String> {
        let inner = self.lock();
        let who = &inner.members.get(&id)?.identity;
        let own = inner.own(id, who, endpoint).ok()?;
        match inner.find(&own, to) {
            Ok(Found::Bound(slot)) => Some(format!("endpoint {slot}")),
            _ => None,
        }
    }

    pub(super) fn introduce(
        &self,
        inner: &mut Inner,
        id: MemberId,
        who: &Identity,
        own: &Own,
        wish: &Wish,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<Outgoing, Refusal> {
        let other = match inner.find(own, &wish.to)? {
            Found::Bound(slot) => slot,
            // Who asks for it waits for that node; here is only what stood in the way.
            Found::Far(peer) => return inner.why_not_far(own, &peer),
            Found::Absent(_, refusal) if wish.waited => return refuse(Errno::TIMEDOUT, refusal.message),
            Found::Absent(_, refusal) => return Err(refusal),
        };
        let meeting = inner.may_meet(who, own, other)?;
        let ends = (self.make)(meeting.shape)
            .map_err(|e| Refusal { errno: Errno::NOMEM, message: format!("no memory for a channel: {e}") })?;
        let Met { outgoing, channel, notices } = inner.meet((id, wish.number), own, meeting, ends, room)?;
        let watches =
            notices.into_iter().map(|(side, notice)| self.watch_end(channel, side, notice)).collect();
        inner.endpoints.regions.watch(channel, watches);
        Ok(outgoing)
    }

    /// Counts an end of a pair no longer when whoever has it is gone.
    pub(super) fn watch_end(&self, channel: u64, side: usize, notice: OwnedFd) -> Watch {
        let broker = self.clone();
        let task = tokio::spawn(async move {
            // Rings are not its business: of this descriptor only the hang-up is awaited.
            let ended = match watched(notice, Interest::PRIORITY) {
                Ok(notice) => notice.ready(Interest::PRIORITY).await.map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                tracing::error!(channel, %error, "the end of a pair can't be awaited");
            }
            broker.lock().end_let_go(channel, side);
        });
        Watch(task.abort_handle())
    }
}

/// Two that were introduced.
struct Met {
    /// For the one that asked.
    outgoing: Outgoing,
    channel: u64,
    /// The descriptors that tell of the end of each side.
    notices: Vec<(usize, OwnedFd)>,
}

/// A member that waits.
struct Shown<'a> {
    broker: &'a Broker,
    id: MemberId,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        let mut inner = self.broker.lock();
        let Some(dc) = inner.members.get(&self.id).map(|member| member.identity.dc.clone()) else { return };
        if let Some(table) = inner.endpoints.tables.get_mut(&dc) {
            table.waiting.remove(&self.id);
        }
    }
}

/// Two endpoints that are about to be introduced.
pub(super) struct Meeting {
    other: u32,
    other_member: MemberId,
    domains: [String; 2],
    rights: [wire::control::EndpointRights; 2],
    shape: Shape,
    bytes: u64,
}

impl Inner {
    /// Finds the endpoint that is meant, if this endpoint may know it.
    pub(super) fn find(&self, own: &Own, to: &Whom) -> Result<Found, Refusal> {
        match to {
            Whom::Name(name) => self.find_name(own, name),
            Whom::Address(address) => self.find_address(own, *address),
        }
    }

    fn find_name(&self, own: &Own, name: &str) -> Result<Found, Refusal> {
        let Some(table) = self.endpoints.tables.get(&own.dc) else {
            return refuse(Errno::BADF, "it has ended");
        };
        let Some(me) = table.caller(own.slot) else { return refuse(Errno::BADF, "it has ended") };
        let Some(endpoint) = own.topology.endpoint(name) else {
            let known: Vec<String> = own
                .topology
                .endpoints
                .iter()
                .take(MAX_SUGGESTED)
                .filter(|other| Self::rights_of(&own.topology, me, named(other)).is_some())
                .map(|other| other.name.as_str().to_owned())
                .collect();
            let help = crate::base::meant(&short(name), &known, "endpoints that it may know");
            return refuse(Errno::NOENT, format!("there is no endpoint {:?}: {help}", short(name)));
        };
        if me.name == Some(name) {
            return refuse(Errno::INVAL, format!("endpoint {name} can't be introduced to itself"));
        }
        let backs = table.backup_of(own.slot) == Some(name);
        if !backs && Self::rights_of(&own.topology, me, named(endpoint)).is_none() {
            return self.not_allowed(own, name);
        }
        let slot = table.names.get(name).copied();
        if slot.is_none_or(|slot| table.bound(slot).is_none())
            && let Some(peer) = self.far_named(&own.dc, name)
        {
            return Ok(Found::Far(peer));
        }
        match slot.filter(|slot| table.bound(*slot).is_some()) {
            Some(slot) => Ok(Found::Bound(slot)),
            None => {
                let message = format!(
                    "endpoint {name} is not bound now: the program that binds it has not started yet, or has ended; ask to wait for it"
                );
                Ok(Found::Absent(Awaited::Name(name.to_owned()), Refusal { errno: Errno::NOTCONN, message }))
            }
        }
    }

    fn find_address(&self, own: &Own, address: EndpointAddress) -> Result<Found, Refusal> {
        let EndpointAddress { slot, generation } = address;
        let Some(table) = self.endpoints.tables.get(&own.dc) else {
            return refuse(Errno::BADF, "it has ended");
        };
        let Some(me) = table.caller(own.slot) else { return refuse(Errno::BADF, "it has ended") };
        if slot == own.slot {
            return refuse(Errno::INVAL, format!("endpoint {slot} can't be introduced to itself"));
        }
        if let Some(peer) = self.far_in_slot(&own.dc, slot) {
            return self.find_far(own, me, address, peer);
        }
        let Some((entry, bound)) = table.slots.get(&slot).map(|entry| (entry, entry.bound.as_ref())) else {
            let message = format!("no endpoint with the address {slot}.{generation} is bound now");
            return Ok(Found::Absent(Awaited::Address(address), Refusal { errno: Errno::NOTCONN, message }));
        };
        // Who may not know an endpoint is not told either what became of it.
        let allowed = match (&entry.name, bound) {
            (Some(name), _) => own
                .topology
                .endpoint(name)
                .is_some_and(|endpoint| Self::rights_of(&own.topology, me, named(endpoint)).is_some()),
            (None, Some(bound)) => {
                Self::rights_of(&own.topology, me, Caller { name: None, domain: &bound.domain }).is_some()
            }
            (None, None) => true,
        };
        if !allowed {
            return self.not_allowed(own, &format!("{slot}.{generation}"));
        }
        match bound {
            Some(bound) if bound.generation == generation && entry.name.is_none() => refuse(
                Errno::PERM,
                format!(
                    "endpoint {slot}.{generation} has no name: it is introduced to those alone whom it asks for itself"
                ),
            ),
            Some(bound) if bound.generation == generation => Ok(Found::Bound(slot)),
            Some(bound) if entry.name.is_some() => refuse(
                Errno::STALE,
                format!(
                    "endpoint {slot}.{generation} {}; {} is bound now",
                    if entry.last < generation { "is not there" } else { "has ended" },
                    called(entry.name.as_deref(), EndpointAddress { slot, generation: bound.generation })
                ),
            ),
            _ if entry.last >= generation => refuse(
                Errno::STALE,
                format!("endpoint {slot}.{generation} has ended, and nobody is in its place"),
            ),
            _ => {
                let message = format!("no endpoint with the address {slot}.{generation} is bound now");
                Ok(Found::Absent(Awaited::Address(address), Refusal { errno: Errno::NOTCONN, message }))
            }
        }
    }

    pub(super) fn not_allowed<T>(&self, own: &Own, whom: &str) -> Result<T, Refusal> {
        let table = self.endpoints.tables.get(&own.dc);
        let me = table.and_then(|table| table.caller(own.slot));
        let me = match me.map(|me| (me.name, me.domain)) {
            Some((Some(name), _)) => format!("endpoint {name}"),
            Some((None, domain)) => format!("programs of domain {domain}"),
            None => "it".to_owned(),
        };
        refuse(
            Errno::PERM,
            format!(
                "endpoint {whom} allows {me} nothing, and may ask nothing of it: see `allow` and `calls` of endpoints in the topology file"
            ),
        )
    }

    /// Whether two may be introduced now, and how.
    fn may_meet(&mut self, who: &Identity, own: &Own, other: u32) -> Result<Meeting, Refusal> {
        let key = pair_of(own.slot, other);
        let Some(table) = self.endpoints.tables.get_mut(&own.dc) else {
            return refuse(Errno::BADF, "it has ended");
        };
        if let Some(pair) = table.pairs.get(&key) {
            if pair.channel.is_some() {
                return refuse(
                    Errno::ALREADY,
                    "the two are introduced already: the end that the other asked for is here, or on its way",
                );
            }
            // Of an earlier daemon's time: who asks for it has lost it.
            table.pairs.remove(&key);
        }
        let Some(table) = self.endpoints.tables.get(&own.dc) else {
            return refuse(Errno::BADF, "it has ended");
        };
        let (Some(me), Some(caller)) = (table.caller(own.slot), table.caller(other)) else {
            return refuse(Errno::NOTCONN, "it has just ended");
        };
        let of_backup = table.rights_of_backup(own.slot, other);
        let Some(rights) = of_backup.or_else(|| Self::rights_of(&own.topology, me, caller)) else {
            return self.not_allowed(own, caller.name.unwrap_or("without a name"));
        };
        let domains = [me.domain.to_owned(), caller.domain.to_owned()];
        let Some(other_member) = table.bound(other).map(|(bound, _)| bound.member) else {
            return refuse(Errno::NOTCONN, "it has just ended");
        };
        let guests = domains.each_ref().map(|domain| self.is_guest(&own.dc, domain));
        let ring_bytes = own.topology.ipc.ring_bytes;
        let bytes =
            if guests.contains(&true) { apart_region_bytes(ring_bytes) } else { region_bytes(ring_bytes) };
        self.room_for_pair(own, &domains, bytes)?;
        self.room_in_guests_for_pair(&who.dc, &domains)?;
        if !self.is_told(other_member) || !self.takes_channels(other_member) {
            return refuse(
                Errno::AGAIN,
                format!("the program of endpoint {other} does not read; try again later"),
            );
        }
        let shape = Shape { ring_bytes, mode: ChannelMode::Messages, guests };
        Ok(Meeting { other, other_member, domains, rights, shape, bytes })
    }

    /// Whether the distributed container, and the domains of both, may have one more.
    pub(super) fn room_for_pair(&self, own: &Own, domains: &[String; 2], bytes: u64) -> Result<(), Refusal> {
        let limits = &own.topology.ipc;
        let regions = &self.endpoints.regions;
        let table = self.endpoints.tables.get(&own.dc);
        let pairs = regions.count(&own.dc).max(table.map_or(0, |table| table.pairs.len()));
        if pairs >= most(limits.pairs) {
            let message = format!(
                "there are {pairs} pairs of endpoints, as many as `ipc.pairs` allows: unbind some endpoints, or raise it in the topology file"
            );
            return refuse(Errno::USERS, message);
        }
        let used = self.ipc_bytes(&own.dc);
        if used.saturating_add(bytes) > limits.bytes {
            let left = limits.bytes.saturating_sub(used);
            let message = format!(
                "a pair takes {bytes} bytes, and {left} are left of what `ipc.bytes` allows: raise it in the topology file, or take smaller \
                 rings (`ipc.ring_bytes`)"
            );
            return refuse(Errno::NOSPC, message);
        }
        self.room_for_descriptors()?;
        for (domain, errno) in domains.iter().zip([Errno::MFILE, Errno::USERS]) {
            let lingering = regions.lingering(&own.dc, domain);
            if lingering >= lingering_most(most(limits.pairs)) {
                let message = format!(
                    "programs of domain {domain} hold the memory of {lingering} pairs that are over, which are the most; they have to let go of it"
                );
                return refuse(errno, message);
            }
        }
        Ok(())
    }

    /// Whether guests have room for the ends.
    fn room_in_guests_for_pair(&self, dc: &str, domains: &[String; 2]) -> Result<(), Refusal> {
        let [mine, other] = domains;
        for (domain, errno) in [(mine, Errno::MFILE), (other, Errno::USERS)] {
            let wanted = 1 + usize::from(mine == other);
            if self.is_guest(dc, domain) && self.ends_in(dc, domain) + wanted > MAX_CHANNELS {
                return refuse(errno, crate::broker::machines::full(domain));
            }
        }
        Ok(())
    }

    /// Puts the ends on their way.
    fn meet(
        &mut self,
        (id, number): (MemberId, u64),
        own: &Own,
        meeting: Meeting,
        ends: Ends,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<Met, Refusal> {
        let Meeting { other, other_member, domains, rights: [mine, others], bytes, .. } = meeting;
        let channel = self.next_number();
        let table = self.endpoints.tables.get(&own.dc);
        let told = table.and_then(|table| {
            Some((
                rights::described(table, (other, own.slot), mine)?,
                rights::described(table, (own.slot, other), others)?,
            ))
        });
        let Some((peer, me)) = told else { return refuse(Errno::NOTCONN, "it has just ended") };
        let event = Event::Introduced { endpoint: other, peer: me, channel };
        let packet = Outgoing { reply: Reply::Event(event), descriptors: ends.server, _room: room };
        // One program may have both: then each end is a packet of its own all the same.
        if !self.send(other_member, packet) || !self.members.contains_key(&id) {
            return refuse(
                Errno::AGAIN,
                format!("the program of endpoint {other} does not read; try again later"),
            );
        }
        let notices: Vec<(usize, OwnedFd)> = [ends.consumer_gone, ends.server_gone]
            .into_iter()
            .enumerate()
            .filter_map(|(side, notice)| Some((side, notice?)))
            .collect();
        let held = [0, 1].map(|side| notices.iter().any(|(of, _)| *of == side));
        let slots = [own.slot, other];
        let dc = own.dc.clone();
        let region = Region { dc, slots, domains, bytes, held, over: false, watches: Vec::new() };
        self.endpoints.regions.add(channel, region);
        let key = pair_of(own.slot, other);
        if let Some(table) = self.endpoints.tables.get_mut(&own.dc) {
            let rights = if key.0 == own.slot { [mine, others] } else { [others, mine] };
            table.pairs.insert(key, Pair { channel: Some(channel), rights, since: SystemTime::now() });
            table.introductions += 1;
            table.rely_on_backup(own.slot, other);
            for (one, peer) in [(own.slot, other), (other, own.slot)] {
                if let Some(bound) = super::bind::bound_mut(table, one) {
                    bound.peers.insert(peer);
                }
            }
        }
        let reply = Reply::Introduced { id: number, peer, channel };
        let outgoing = Outgoing { reply, descriptors: ends.consumer, _room: None };
        Ok(Met { outgoing, channel, notices })
    }

    /// Nobody has one end of a pair any more.
    fn end_let_go(&mut self, channel: u64, side: usize) {
        let Some((dc, [one, other])) = self.endpoints.regions.let_go(channel, side) else { return };
        let key = pair_of(one, other);
        let Some(table) = self.endpoints.tables.get_mut(&dc) else { return };
        // Meanwhile others may be in these slots, with a pair of their own.
        if table.pairs.get(&key).is_none_or(|pair| pair.channel != Some(channel)) {
            return;
        }
        table.pairs.remove(&key);
        for (slot, peer) in [(one, other), (other, one)] {
            if let Some(bound) = super::bind::bound_mut(table, slot) {
                bound.peers.remove(&peer);
            }
        }
        table.far_pair_gone(one);
        table.far_pair_gone(other);
    }

    /// Bytes of shared memory of a distributed container's endpoints.
    pub(super) fn ipc_bytes(&self, dc: &str) -> u64 {
        let buffers = self.endpoints.tables.get(dc).map_or(0, |table| table.buffers.bytes());
        self.endpoints.regions.bytes(dc).saturating_add(buffers)
    }

    /// Ends of pairs that a domain holds.
    pub(in crate::broker) fn ends_of_pairs(&self, dc: &str, domain: &str) -> usize {
        self.endpoints.regions.ends(dc, domain)
    }

    /// Tells a member that what it asked for waits in vain for another one to read.
    pub(in crate::broker) fn refuse_introduction(&mut self, id: MemberId, number: u64) {
        let message = format!(
            "{MAX_ATTACHES_PER_DOMAIN} introductions of the domain wait for a program that does not read; try again later"
        );
        let errno = Errno::AGAIN.raw_os_error();
        self.send(id, Reply::Refused { id: number, errno, message }.into());
    }
}

fn named(endpoint: &topology::Endpoint) -> Caller<'_> {
    Caller { name: Some(endpoint.name.as_str()), domain: endpoint.domain.as_str() }
}
