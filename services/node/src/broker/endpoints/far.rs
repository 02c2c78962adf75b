//! Endpoints on other nodes. Each daemon makes the channel of its own endpoint, by its own
//! topology, and the proxies stand in for the peers at the other ends. So a pair is a pair here as
//! well, with one of both in another table.
//!
//! News from another node is an allegation. An endpoint is taken to be there only if its slot has
//! the number of that very node, and if its domain is placed there.

use super::introduce::Found;
use super::regions::Region;
use super::{Awaited, EndpointRights, Inner, Own, Pair, Table, called, pair_of, short};
use crate::broker::far::{FAR_TIMEOUT, Refused};
use crate::broker::{Broker, Ends, MemberId, Outgoing, Refusal, Shape, refuse};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::SystemTime;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use topology::{Caller, ChannelMode};
use wire::control::{EndpointAddress, EndpointPeer, Event, Reply, Whom};
use wire::guest::MAX_CHANNELS;
use wire::proxy::{News, Open, Order};
use wire::ring::{apart_region_bytes, region_bytes};

/// An endpoint on another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FarPeer {
    pub(super) node: String,
    pub(super) address: EndpointAddress,
    /// Empty: it has none.
    pub(super) name: String,
    pub(super) domain: String,
    /// Pairs that it is in here.
    pub(super) pairs: usize,
}

impl FarPeer {
    pub(super) fn caller(&self) -> Caller<'_> {
        Caller { name: Some(self.name.as_str()).filter(|name| !name.is_empty()), domain: &self.domain }
    }

    fn described(&self, rights: EndpointRights) -> EndpointPeer {
        let (name, domain) = (self.name.clone(), self.domain.clone());
        EndpointPeer { address: self.address, name, domain, rights, continues: 0, backup: false }
    }
}

/// A pair with an endpoint of another node that is about to be.
struct Plan {
    peer: FarPeer,
    /// The rights that each is told of: of the one here, and of the other.
    rights: [EndpointRights; 2],
    domain: String,
    shape: Shape,
    bytes: u64,
}

/// One that the other node was asked for. Dropped, it is no more.
pub(crate) struct FarMeeting {
    broker: Broker,
    id: u64,
    answer: oneshot::Receiver<Result<(), Refused>>,
    number: u64,
    own: Own,
    /// The call is to the endpoint that has the name, and not to this very one.
    by_name: bool,
    plan: Plan,
    end: Vec<OwnedFd>,
    notices: [Option<OwnedFd>; 2],
    answered: bool,
}

impl Drop for FarMeeting {
    fn drop(&mut self) {
        let node = self.plan.peer.node.as_str();
        let key = (self.own.dc.clone(), pair_of(self.own.slot, self.plan.peer.address.slot));
        self.broker.lock().endpoints.meeting.remove(&key);
        if !self.answered {
            self.broker.cancel_far(node, self.id);
        }
    }
}

impl Broker {
    /// Begins what an `introduce` asks for, where the other one is on another node. `None`: it is
    /// for this node to answer.
    pub(crate) fn meet_far(
        &self,
        id: MemberId,
        (number, endpoint, to): (u64, u32, &Whom),
    ) -> Option<FarMeeting> {
        let mut inner = self.lock();
        let who = inner.members.get(&id)?.identity.clone();
        let own = inner.own(id, &who, endpoint).ok()?;
        let Ok(Found::Far(peer)) = inner.find(&own, to) else { return None };
        // What speaks against it on this node is said where it is looked at again.
        let plan = inner.may_meet_far(&own, peer).ok()?;
        let Ends { consumer, server, consumer_gone, server_gone } = (self.make)(plan.shape).ok()?;
        let me = inner.endpoints.tables.get(&own.dc)?.caller(own.slot)?;
        let open = Open::Endpoints {
            dc: own.dc.clone(),
            from: own.address,
            name: me.name.unwrap_or_default().to_owned(),
            domain: who.domain.clone(),
            to: plan.peer.address,
            ring_bytes: plan.shape.ring_bytes,
        };
        let node = plan.peer.node.clone();
        let (open_id, answer) = inner.open_at(&node, open, server)?;
        let key = (own.dc.clone(), pair_of(own.slot, plan.peer.address.slot));
        inner.endpoints.meeting.insert(key, node);
        drop(inner);
        Some(FarMeeting {
            broker: self.clone(),
            id: open_id,
            answer,
            number,
            own,
            by_name: matches!(to, Whom::Name(_)),
            plan,
            end: consumer,
            notices: [consumer_gone, server_gone],
            answered: false,
        })
    }

    /// Waits for the other node, and answers the member. `room` is for the end that it gets.
    pub(crate) async fn finish_meeting(
        &self,
        id: MemberId,
        mut meeting: FarMeeting,
        room: OwnedSemaphorePermit,
    ) {
        let answer = tokio::time::timeout(FAR_TIMEOUT, &mut meeting.answer).await;
        // Who has answered needs no word that nobody waits.
        meeting.answered = answer.is_ok();
        let done = Refused::of(answer, &meeting.plan.peer.node);
        let mut inner = self.lock();
        let (dc, slot, number) = (meeting.own.dc.clone(), meeting.own.slot, meeting.number);
        let met = match done {
            Ok(()) => inner.met_far(id, &mut meeting),
            Err(refused) => Err(refused.again(meeting.by_name)),
        };
        inner.count(&dc, slot, |counters| match &met {
            Ok(_) => counters.introduced += 1,
            Err(_) => counters.refused += 1,
        });
        match met {
            Ok((channel, reply)) => {
                let notices = std::mem::take(&mut meeting.notices);
                self.watch_ends(&mut inner, channel, notices);
                let descriptors = std::mem::take(&mut meeting.end);
                inner.send(id, Outgoing { reply, descriptors, _room: Some(room) });
            }
            Err(Refusal { errno, message }) => {
                inner.send(id, Reply::Refused { id: number, errno: errno.raw_os_error(), message }.into());
            }
        }
        drop(inner);
    }

    pub(super) fn watch_ends(&self, inner: &mut Inner, channel: u64, notices: [Option<OwnedFd>; 2]) {
        let notices = notices.into_iter().enumerate().filter_map(|(side, notice)| Some((side, notice?)));
        let watches = notices.map(|(side, notice)| self.watch_end(channel, side, notice)).collect();
        inner.endpoints.regions.watch(channel, watches);
    }

    /// Another node asks for a pair with an endpoint here: the end for its proxy.
    pub(in crate::broker) fn far_endpoint(
        &self,
        inner: &mut Inner,
        node: &str,
        open: &Open,
    ) -> Result<Vec<OwnedFd>, Refusal> {
        let Open::Endpoints { dc, from, name, domain, to, ring_bytes } = open else {
            return refuse(Errno::OPNOTSUPP, "that is no pair of endpoints");
        };
        let peer = FarPeer {
            node: node.to_owned(),
            address: *from,
            name: name.clone(),
            domain: domain.clone(),
            pairs: 0,
        };
        inner.believe(dc, &peer)?;
        let own = inner.asked_for(dc, *to)?;
        let meets = inner.endpoints.meeting.contains_key(&(dc.clone(), pair_of(from.slot, to.slot)));
        if meets && inner.is_before(node) {
            return refuse(Errno::ALREADY, "the two are about to be introduced by the other one");
        }
        inner.forget_pair(dc, pair_of(from.slot, to.slot));
        let plan = inner.may_meet_far(&own, peer)?;
        if plan.shape.ring_bytes != *ring_bytes {
            let message = format!(
                "node {node} wants rings of {ring_bytes} bytes for {dc}, and {} are in the topology file here; try again when both have the same",
                plan.shape.ring_bytes
            );
            return refuse(Errno::AGAIN, message);
        }
        let member =
            inner.endpoints.tables.get(dc).and_then(|table| table.bound(own.slot)).map(|(b, _)| b.member);
        let member = member.ok_or_else(|| gone(*to))?;
        let deaf = || Refusal {
            errno: Errno::AGAIN,
            message: format!("the program of endpoint {} does not read; try again later", own.slot),
        };
        if !inner.is_told(member) || !inner.takes_channels(member) {
            return Err(deaf());
        }
        // Here it is the other's half that asked.
        let [guests, proxy] = plan.shape.guests;
        let shape = Shape { guests: [proxy, guests], ..plan.shape };
        let Ends { consumer, server, consumer_gone, server_gone } = (self.make)(shape)
            .map_err(|e| Refusal { errno: Errno::NOMEM, message: format!("no memory for a channel: {e}") })?;
        let channel = inner.next_number();
        let event =
            Event::Introduced { endpoint: own.slot, peer: plan.peer.described(plan.rights[0]), channel };
        if !inner.send(member, Outgoing { reply: Reply::Event(event), descriptors: server, _room: None }) {
            return Err(deaf());
        }
        let notices = [server_gone, consumer_gone];
        inner.know_far_pair(&own, &plan, channel, [notices[0].is_some(), notices[1].is_some()]);
        self.watch_ends(inner, channel, notices);
        Ok(consumer)
    }
}

impl Refused {
    /// The cause passes (something between the two nodes, or something that one of them did not
    /// know yet): the request is made again.
    pub(super) fn again(self, by_name: bool) -> Refusal {
        let errno = match Errno::from_raw_os_error(self.errno) {
            Errno::CONNRESET | Errno::HOSTUNREACH => Errno::AGAIN,
            // Its successor is about to be known here.
            Errno::STALE | Errno::NOTCONN if by_name => Errno::AGAIN,
            other => other,
        };
        Refusal { errno, message: self.message }
    }
}

fn gone(address: EndpointAddress) -> Refusal {
    let message = format!("endpoint {} has ended", called(None, address));
    Refusal { errno: Errno::STALE, message }
}

impl Table {
    /// One pair less of whoever is in this slot, if that is on another node.
    pub(super) fn far_pair_gone(&mut self, slot: u32) {
        let Some(peer) = self.far.get_mut(&slot) else { return };
        peer.pairs -= 1;
        if peer.pairs == 0 {
            self.far.remove(&slot);
        }
    }
}

impl Inner {
    /// An endpoint of another node that has this name, as far as that node is to be believed.
    pub(super) fn far_named(&self, dc: &str, name: &str) -> Option<FarPeer> {
        let endpoint = self.topologies.get(dc)?.endpoint(name)?;
        let (node, address) = self.bound_elsewhere(dc, name)?;
        let (name, domain) = (name.to_owned(), endpoint.domain.as_str().to_owned());
        let peer = FarPeer { node: node.to_owned(), address, name, domain, pairs: 0 };
        self.believe(dc, &peer).is_ok().then_some(peer)
    }

    /// The endpoint of another node that has a name and this slot.
    pub(super) fn far_in_slot(&self, dc: &str, slot: u32) -> Option<FarPeer> {
        let topology = self.topologies.get(dc)?;
        let mut names = topology.endpoints.iter().map(|endpoint| endpoint.name.as_str());
        names.find_map(|name| self.far_named(dc, name).filter(|peer| peer.address.slot == slot))
    }

    /// Slots and names of endpoints on other nodes.
    pub(super) fn far_names(&self, dc: &str) -> Vec<(u32, &str)> {
        let Some(topology) = self.topologies.get(dc) else { return Vec::new() };
        let names = topology.endpoints.iter().map(|endpoint| endpoint.name.as_str());
        names.filter_map(|name| Some((self.far_named(dc, name)?.address.slot, name))).collect()
    }

    /// Finds the endpoint at an address whose slot is on another node.
    pub(super) fn find_far(
        &self,
        own: &Own,
        me: Caller<'_>,
        address: EndpointAddress,
        peer: FarPeer,
    ) -> Result<Found, Refusal> {
        if Self::rights_of(&own.topology, me, peer.caller()).is_none() {
            return self.not_allowed(own, &address_text(address));
        }
        if peer.address == address {
            return Ok(Found::Far(peer));
        }
        let message = format!(
            "endpoint {} has ended; {} is bound now",
            address_text(address),
            called(Some(&peer.name), peer.address)
        );
        refuse(Errno::STALE, message)
    }

    /// Whether an endpoint may be on the node that says so.
    pub(super) fn believe(&self, dc: &str, peer: &FarPeer) -> Result<(), Refusal> {
        let EndpointAddress { slot, generation } = peer.address;
        if generation == 0 || self.number_of(&peer.node) != Some(wire::ipc::node_of_slot(slot)) {
            let message = format!("endpoint {slot}.{generation} has no address of node {}", peer.node);
            return refuse(Errno::AGAIN, message);
        }
        if self.endpoints.numbers.as_ref().is_none_or(|numbers| numbers.is_own(slot)) {
            return refuse(Errno::AGAIN, format!("endpoint {slot}.{generation} has an address of this node"));
        }
        let named = peer.name.is_empty()
            || self
                .topologies
                .get(dc)
                .and_then(|topology| topology.endpoint(&peer.name))
                .is_some_and(|endpoint| endpoint.domain == *peer.domain.as_str());
        if named && self.is_placed(dc, &peer.domain, &peer.node) {
            return Ok(());
        }
        let message = format!(
            "domain {:?} of {:?} is not placed on node {}, or has no endpoint {:?}, as far as this node knows",
            short(&peer.domain),
            short(dc),
            peer.node,
            short(&peer.name)
        );
        // It may be known here a moment later.
        refuse(Errno::AGAIN, message)
    }

    /// The endpoint here that another node asks for.
    fn asked_for(&self, dc: &str, to: EndpointAddress) -> Result<Own, Refusal> {
        let table = self.endpoints.tables.get(dc);
        let there = table.and_then(|table| table.at(to)).is_some_and(|(_, slot)| slot.name.is_some());
        match self.topologies.get(dc) {
            Some(topology) if there => {
                Ok(Own { dc: dc.to_owned(), slot: to.slot, address: to, topology: topology.clone() })
            }
            // Of one without a name nothing is said.
            _ => Err(gone(to)),
        }
    }

    /// Why an endpoint of another node is not met, although it is there.
    pub(super) fn why_not_far<T>(&mut self, own: &Own, peer: &FarPeer) -> Result<T, Refusal> {
        self.may_meet_far(own, peer.clone())?;
        refuse(Errno::AGAIN, format!("no memory for a channel to node {}; try again later", peer.node))
    }

    /// Whether an endpoint here and one of another node may have a pair now, and how.
    fn may_meet_far(&mut self, own: &Own, peer: FarPeer) -> Result<Plan, Refusal> {
        if self.endpoints.numbers.as_ref().is_none_or(|numbers| !numbers.is_own(own.slot)) {
            let message = format!(
                "endpoint {} was bound before this node was part of its cluster, and is known here alone: bind it anew",
                address_text(own.address)
            );
            return refuse(Errno::OPNOTSUPP, message);
        }
        let key = pair_of(own.slot, peer.address.slot);
        let table = self.endpoints.tables.get(&own.dc);
        let known = table.and_then(|table| Some((table.pairs.get(&key)?, table.far.get(&peer.address.slot))));
        if let Some((pair, far)) = known {
            let same = far.is_some_and(|far| far.address == peer.address);
            if pair.channel.is_some() && same {
                return refuse(
                    Errno::ALREADY,
                    "the two are introduced already: the end is here, or on its way",
                );
            }
            self.forget_pair(&own.dc, key);
        }
        let table = self.endpoints.tables.get(&own.dc);
        let Some(me) = table.and_then(|table| table.caller(own.slot)) else { return Err(gone(own.address)) };
        let Some(rights) = Self::rights_of(&own.topology, me, peer.caller()) else {
            return self.not_allowed(own, peer.caller().name.unwrap_or("without a name"));
        };
        let domain = me.domain.to_owned();
        let is_guest = self.is_guest(&own.dc, &domain);
        let ring_bytes = own.topology.ipc.ring_bytes;
        let bytes = if is_guest { apart_region_bytes(ring_bytes) } else { region_bytes(ring_bytes) };
        self.room_for_pair(own, &[domain.clone(), peer.domain.clone()], bytes)?;
        if is_guest && self.ends_in(&own.dc, &domain) + 1 > MAX_CHANNELS {
            return refuse(Errno::MFILE, crate::broker::machines::full(&domain));
        }
        let shape = Shape { ring_bytes, mode: ChannelMode::Messages, guests: [is_guest, false] };
        Ok(Plan { peer, rights, domain, shape, bytes })
    }

    /// The domain of an endpoint of this node, as reservations call it.
    pub(in crate::broker) fn domain_of_endpoint(
        &self,
        dc: &str,
        endpoint: EndpointAddress,
    ) -> Option<String> {
        let (bound, _) = self.endpoints.tables.get(dc)?.at(endpoint)?;
        Some(format!("{dc}/{}", bound.domain))
    }

    /// The other node has made its half.
    fn met_far(&mut self, id: MemberId, meeting: &mut FarMeeting) -> Result<(u64, Reply), Refusal> {
        let (own, plan) = (&meeting.own, &meeting.plan);
        let bound = self.endpoints.tables.get(&own.dc).and_then(|table| table.at(own.address));
        if bound.is_none_or(|(bound, _)| bound.member != id) {
            return Err(gone(own.address));
        }
        self.forget_pair(&own.dc, pair_of(own.slot, plan.peer.address.slot));
        let channel = self.next_number();
        let held = [0, 1].map(|side: usize| meeting.notices.get(side).is_some_and(Option::is_some));
        self.know_far_pair(own, plan, channel, held);
        let peer = plan.peer.described(plan.rights[0]);
        Ok((channel, Reply::Introduced { id: meeting.number, peer, channel }))
    }

    /// Writes down a pair; `held`: whether the end of the one here, and that of the proxy, can be
    /// watched.
    fn know_far_pair(&mut self, own: &Own, plan: &Plan, channel: u64, held: [bool; 2]) {
        let (dc, far) = (own.dc.clone(), plan.peer.address.slot);
        let key = pair_of(own.slot, far);
        let Some(table) = self.endpoints.tables.get_mut(&dc) else { return };
        let [mine, others] = plan.rights;
        let rights = if key.0 == own.slot { [mine, others] } else { [others, mine] };
        table.pairs.insert(key, Pair { channel: Some(channel), rights, since: SystemTime::now() });
        table.introductions += 1;
        // Who was in this slot before has ended.
        let pairs = table.far.get(&far).map_or(0, |before| before.pairs);
        table.far.insert(far, FarPeer { pairs: pairs + 1, ..plan.peer.clone() });
        if let Some(bound) = super::bind::bound_mut(table, own.slot) {
            bound.peers.insert(far);
        }
        let domains = [plan.domain.clone(), plan.peer.domain.clone()];
        let region = Region {
            dc,
            slots: [own.slot, far],
            domains,
            bytes: plan.bytes,
            held,
            over: false,
            watches: Vec::new(),
        };
        self.endpoints.regions.add(channel, region);
    }

    /// A pair with an endpoint of another node is no more, as far as this daemon knows.
    fn forget_pair(&mut self, dc: &str, key: (u32, u32)) {
        let Some(table) = self.endpoints.tables.get_mut(dc) else { return };
        let Some(pair) = table.pairs.remove(&key) else { return };
        for (slot, peer) in [(key.0, key.1), (key.1, key.0)] {
            table.far_pair_gone(slot);
            if let Some(bound) = super::bind::bound_mut(table, slot) {
                bound.peers.remove(&peer);
            }
        }
        if let Some(channel) = pair.channel {
            self.endpoints.regions.over(channel);
        }
    }

    /// An endpoint of an earlier daemon's time is back, whose pairs with endpoints of other nodes
    /// have lived on: they are known again where the proxy has them, too.
    pub(in crate::broker) fn meet_far_again(&mut self, dc: &str, slot: u32) {
        let Some(topology) = self.topologies.get(dc).cloned() else { return };
        let Some(table) = self.endpoints.tables.get(dc) else { return };
        let Some((bound, _)) = table.bound(slot) else { return };
        let near = EndpointAddress { slot, generation: bound.generation };
        let missed = bound.missed.keys().copied().filter(|far| self.is_far_endpoint(*far));
        let met: Vec<FarPeer> = missed.filter_map(|far| self.carried_peer(dc, near, far)).collect();
        for peer in met {
            self.know_far_pair_again(dc, &topology, near, peer);
        }
    }

    /// Returns the peer at the other end of a pair that a proxy has carried on.
    fn carried_peer(&self, dc: &str, near: EndpointAddress, far: EndpointAddress) -> Option<FarPeer> {
        let (node, (name, domain)) = self.carried(dc, near, far)?;
        if domain.is_empty() {
            // It was asked for by its name, and is known by it as soon as its node has said so.
            return self.far_in_slot(dc, far.slot).filter(|peer| peer.address == far && peer.node == node);
        }
        let (name, domain) = (name.clone(), domain.clone());
        let peer = FarPeer { node: node.to_owned(), address: far, name, domain, pairs: 0 };
        self.believe(dc, &peer).is_ok().then_some(peer)
    }

    fn know_far_pair_again(
        &mut self,
        dc: &str,
        topology: &topology::Topology,
        near: EndpointAddress,
        peer: FarPeer,
    ) {
        let Some(table) = self.endpoints.tables.get_mut(dc) else { return };
        let (key, far) = (pair_of(near.slot, peer.address.slot), peer.address);
        if table.pairs.contains_key(&key)
            || table.far.get(&far.slot).is_some_and(|known| known.address != far)
        {
            return;
        }
        let Some(me) = table.caller(near.slot) else { return };
        let [mine, others] = Self::rights_of(topology, me, peer.caller()).unwrap_or_default();
        let rights = if key.0 == near.slot { [mine, others] } else { [others, mine] };
        table.pairs.insert(key, Pair { channel: None, rights, since: SystemTime::now() });
        let pairs = table.far.get(&far.slot).map_or(0, |before| before.pairs);
        table.far.insert(far.slot, FarPeer { pairs: pairs + 1, ..peer });
        if let Some(bound) = super::bind::bound_mut(table, near.slot) {
            bound.peers.insert(far.slot);
            if bound.missed.remove(&far).is_some() {
                table.missed -= 1;
            }
        }
        self.endpoints.met_again.push((dc.to_owned(), key));
    }

    /// A pair that an earlier daemon has introduced is over: of those of this one, the ends tell.
    pub(in crate::broker) fn parted_far(
        &mut self,
        node: &str,
        dc: &str,
        near: EndpointAddress,
        far: EndpointAddress,
    ) {
        let key = pair_of(near.slot, far.slot);
        let Some(table) = self.endpoints.tables.get(dc) else { return };
        let earlier = table.pairs.get(&key).is_some_and(|pair| pair.channel.is_none())
            && table.address(near.slot) == Some(near)
            && table.far.get(&far.slot).is_some_and(|peer| peer.address == far && peer.node == node);
        if earlier {
            self.forget_pair(dc, key);
        }
    }

    /// The proxy for a node has ended, and with it all pairs that it has carried.
    pub(in crate::broker) fn carried_no_more(&mut self, node: &str) {
        let gone: Vec<(String, (u32, u32))> = self
            .endpoints
            .tables
            .iter()
            .flat_map(|(dc, table)| {
                let of_it = |slot: &u32| table.far.get(slot).is_some_and(|peer| peer.node == node);
                let pairs = table.pairs.iter().filter(move |((one, other), pair)| {
                    pair.channel.is_none() && (of_it(one) || of_it(other))
                });
                pairs.map(move |(key, _)| (dc.clone(), *key))
            })
            .collect();
        for (dc, key) in gone {
            self.forget_pair(&dc, key);
        }
    }

    /// An endpoint here has ended. Its peers on other nodes hear of that when its channels hang up,
    /// behind all that it did before: the daemon, which may know it sooner, must not say it.
    pub(super) fn forget_far(&mut self, dc: &str, peers: &BTreeSet<u32>) {
        let Some(table) = self.endpoints.tables.get_mut(dc) else { return };
        peers.iter().for_each(|peer| table.far_pair_gone(*peer));
    }

    /// An endpoint here is ended by order, and not its program, which may keep its channels: its
    /// peers on other nodes are parted from it.
    pub(super) fn part_from_far(&mut self, dc: &str, own: EndpointAddress) {
        let Some(table) = self.endpoints.tables.get(dc) else { return };
        let peers = table.bound(own.slot).map(|(bound, _)| bound.peers.clone()).unwrap_or_default();
        for peer in peers {
            let far = self.endpoints.tables.get(dc).and_then(|table| table.far.get(&peer)).cloned();
            let Some(far) = far else { continue };
            let order = Order::Part { dc: dc.to_owned(), endpoints: [own, far.address] };
            self.order(&far.node, order, Vec::new());
        }
    }

    /// Tells other nodes of a name that was bound here, or is no more.
    pub(super) fn tell_nodes_of_endpoint(
        &mut self,
        dc: &str,
        name: Option<&str>,
        address: EndpointAddress,
        bound: bool,
    ) {
        let Some(name) = name else { return };
        if self.endpoints.numbers.as_ref().is_none_or(|numbers| !numbers.is_own(address.slot)) {
            return;
        }
        let (dc, name) = (dc.to_owned(), name.to_owned());
        self.tell_nodes(&match bound {
            true => News::Bound { dc, name, address },
            false => News::Unbound { dc, name, address },
        });
    }

    /// All names that are bound here.
    pub(in crate::broker) fn bound_here(&self) -> Vec<News> {
        let Some(numbers) = self.endpoints.numbers.as_ref() else { return Vec::new() };
        let tables = self.endpoints.tables.iter();
        let all = tables.flat_map(|(dc, table)| {
            let named =
                table.names.iter().filter_map(|(name, slot)| Some((name, table.bound(*slot)?.0, *slot)));
            named.filter(|(.., slot)| numbers.is_own(*slot)).map(move |(name, bound, slot)| News::Bound {
                dc: dc.clone(),
                name: name.clone(),
                address: EndpointAddress { slot, generation: bound.generation },
            })
        });
        all.collect()
    }

    /// Applies changed news of other nodes, or changed places of domains: waiting requests look
    /// again, and endpoints that have moved are parted from.
    pub(in crate::broker) fn reconcile_far_endpoints(&mut self) {
        let returned: Vec<(String, u32)> = self
            .endpoints
            .tables
            .iter()
            .filter(|(_, table)| table.missed > 0)
            .flat_map(|(dc, table)| {
                let misses =
                    |slot: &super::Slot| slot.bound.as_ref().is_some_and(|bound| !bound.missed.is_empty());
                table
                    .slots
                    .iter()
                    .filter(move |(_, slot)| misses(slot))
                    .map(move |(slot, _)| (dc.clone(), *slot))
            })
            .collect();
        for (dc, slot) in returned {
            self.meet_far_again(&dc, slot);
        }
        self.tell_met_again();
        let mut awaited: Vec<(String, Awaited)> = Vec::new();
        let mut moved: Vec<(String, u32)> = Vec::new();
        for (dc, table) in &self.endpoints.tables {
            for what in table.awaited.keys() {
                let there = match what {
                    Awaited::Name(name) => self.far_named(dc, name).is_some(),
                    Awaited::Address(address) => self.far_in_slot(dc, address.slot).is_some(),
                };
                awaited.extend(there.then(|| (dc.clone(), what.clone())));
            }
            let elsewhere = table
                .far
                .iter()
                .filter(|(_, peer)| self.placed_on(dc, &peer.domain).is_some_and(|node| node != peer.node));
            moved.extend(elsewhere.map(|(slot, _)| (dc.clone(), *slot)));
        }
        for (dc, what) in awaited {
            if let Some(table) = self.endpoints.tables.get_mut(&dc) {
                table.wake(&what);
            }
        }
        for (dc, slot) in moved {
            self.part_from_moved(&dc, slot);
        }
        let missing: Vec<String> = self
            .endpoints
            .tables
            .iter()
            .filter(|(_, table)| table.missed > 0)
            .map(|(dc, _)| dc.clone())
            .collect();
        for dc in missing {
            self.tell_missed(&dc, None);
        }
    }

    /// The domain of an endpoint is not on its node any more, and so neither is the endpoint.
    fn part_from_moved(&mut self, dc: &str, slot: u32) {
        let Some(table) = self.endpoints.tables.get(dc) else { return };
        let Some(far) = table.far.get(&slot).cloned() else { return };
        let keys: Vec<(u32, u32)> =
            table.pairs.keys().filter(|(one, other)| *one == slot || *other == slot).copied().collect();
        for key in keys {
            let other = if key.0 == slot { key.1 } else { key.0 };
            let own = self.endpoints.tables.get(dc).and_then(|table| table.address(other));
            self.forget_pair(dc, key);
            if let Some(own) = own {
                let order = Order::Part { dc: dc.to_owned(), endpoints: [own, far.address] };
                self.order(&far.node, order, Vec::new());
            }
        }
    }

    /// The node where a name is bound, if that is another one: for people.
    pub(super) fn bound_on(&self, dc: &str, name: &str) -> Option<(String, EndpointAddress)> {
        let peer = self.far_named(dc, name)?;
        Some((peer.node, peer.address))
    }

    /// Whether an address is that of another node.
    pub(super) fn is_far_endpoint(&self, to: EndpointAddress) -> bool {
        self.far.is_clustered()
            && self.endpoints.numbers.as_ref().is_some_and(|numbers| !numbers.is_own(to.slot))
    }
}

fn address_text(EndpointAddress { slot, generation }: EndpointAddress) -> String {
    format!("{slot}.{generation}")
}
