//! Binding and unbinding.

use super::numbers::Whose;
use super::{
    Awaited, Bound, Counters, Inner, MAX_SUGGESTED, Pair, Table, most, must_be_program, pair_of, short,
};
use crate::broker::{Broker, Identity, MemberId, Outgoing, Refusal, refuse};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Instant, SystemTime};
use topology::Topology;
use wire::control::{EndpointAddress, MAX_KNOWN_PEERS, Reply};

/// The parameters of a `bind`.
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) token: String,
    pub(super) peers: Vec<EndpointAddress>,
}

impl Broker {
    /// Whether another program has bound the name that this member wants to bind.
    pub(crate) fn is_bound_by_another(&self, id: MemberId, name: &str) -> bool {
        let inner = self.lock();
        let table = inner.members.get(&id).and_then(|member| inner.endpoints.tables.get(&member.identity.dc));
        let Some(table) = table.filter(|_| !name.is_empty()) else { return false };
        let bound = table.names.get(name).and_then(|slot| table.bound(*slot));
        bound.is_some_and(|(bound, _)| bound.member != id)
    }
}

impl Inner {
    /// A program wants an endpoint.
    pub(super) fn bind(
        &mut self,
        id: MemberId,
        who: &Identity,
        number: u64,
        wish: &Wish,
    ) -> Result<Outgoing, Refusal> {
        must_be_program(who)?;
        let Some(topology) = self.topologies.get(&who.dc).cloned() else {
            return refuse(Errno::NOENT, format!("there is no distributed container {} any more", who.dc));
        };
        let name = Some(wish.name.as_str()).filter(|name| !name.is_empty());
        let copies = match name {
            Some(name) => may_bind(&topology, who, name, !wish.token.is_empty())?,
            None => false,
        };
        let address = if wish.token.is_empty() {
            if let Some(name) = name {
                self.must_not_be_kept(&topology, &who.dc, name)?;
            }
            self.room_for_endpoint(&topology, who, name)?;
            self.new_address(who, name)?
        } else {
            let address = self.earlier_address(who, name, &wish.token)?;
            self.room_for_endpoint(&topology, who, name)?;
            address
        };
        self.occupy(id, who, name, address);
        if !wish.token.is_empty() {
            self.meet_again(&who.dc, address, &wish.peers);
        }
        let token = self.token_of(who, &wish.name, address);
        Ok(Reply::Bound { id: number, address, token, copies }.into())
    }

    /// Whether there may be one more.
    pub(super) fn room_for_endpoint(
        &self,
        topology: &Topology,
        who: &Identity,
        name: Option<&str>,
    ) -> Result<(), Refusal> {
        let limits = &topology.ipc;
        let Some(table) = self.endpoints.tables.get(&who.dc) else { return Ok(()) };
        if table.bound >= most(limits.endpoints) {
            let message = format!(
                "{} endpoints are bound, as many as `ipc.endpoints` allows: unbind some, or raise it in the topology file",
                table.bound
            );
            return refuse(Errno::USERS, message);
        }
        let without = table.anonymous.get(&who.domain).copied().unwrap_or(0);
        if name.is_none() && without >= most(limits.anonymous_per_domain) {
            let message = format!(
                "domain {} has {without} endpoints without a name, as many as `ipc.anonymous_per_domain` allows: unbind some, or \
                 raise it in the topology file",
                who.domain
            );
            return refuse(Errno::MFILE, message);
        }
        Ok(())
    }

    /// An address that nobody has had, in the slot of the name if it has one.
    pub(super) fn new_address(
        &mut self,
        who: &Identity,
        name: Option<&str>,
    ) -> Result<EndpointAddress, Refusal> {
        let table = self.endpoints.tables.get_mut(&who.dc);
        let (Some(table), Some(numbers)) = (table, self.endpoints.numbers.as_mut()) else {
            return refuse(Errno::OPNOTSUPP, "this daemon keeps no numbers of endpoints");
        };
        if let Some(name) = name
            && table.names.get(name).is_some_and(|slot| table.bound(*slot).is_some())
        {
            return refuse(Errno::BUSY, busy(name));
        }
        let unwritten = |error: io::Error| Refusal {
            errno: Errno::IO,
            message: format!(
                "the number of a new endpoint can't be written down: {error}; is there room on the disk of the daemon's state?"
            ),
        };
        loop {
            let slot = match name {
                Some(name) => table.names.get(name).copied(),
                None => table.free.pop(),
            };
            // One of before this node had its number is left to whoever has it.
            let slot = match slot.filter(|slot| numbers.is_own(*slot)) {
                Some(slot) => slot,
                None => numbers.slot().map_err(unwritten)?,
            };
            let named = table.names.iter().any(|(of, at)| *at == slot && name != Some(of.as_str()));
            if named || table.bound(slot).is_some() {
                // Slots began again, and this one has somebody.
                continue;
            }
            let last = table.slots.get(&slot).map_or(0, |slot| slot.last);
            let generation = numbers.generation(last).map_err(unwritten)?;
            // The last generation has no successor: the slot is given up, and another one is taken.
            let Some(generation) = generation else {
                table.slots.remove(&slot);
                if let Some(name) = name {
                    table.names.remove(name);
                }
                continue;
            };
            if let Some(name) = name
                && table.names.insert(name.to_owned(), slot) != Some(slot)
            {
                keep_names(numbers.store(), &who.dc, table);
            }
            return Ok(EndpointAddress { slot, generation });
        }
    }

    /// The address that a token proves, if it can be had again.
    pub(super) fn earlier_address(
        &mut self,
        who: &Identity,
        name: Option<&str>,
        token: &str,
    ) -> Result<EndpointAddress, Refusal> {
        let whose = Whose { dc: &who.dc, domain: &who.domain, name: name.unwrap_or("") };
        let table = self.endpoints.tables.get_mut(&who.dc);
        let (Some(table), Some(numbers)) = (table, self.endpoints.numbers.as_mut()) else {
            return refuse(Errno::OPNOTSUPP, "this daemon keeps no numbers of endpoints");
        };
        let Some(address) = numbers.proven(whose, token) else {
            return refuse(
                Errno::ACCESS,
                "this token proves no such endpoint of this domain; bind anew without one",
            );
        };
        let EndpointAddress { slot, generation } = address;
        let stale = || {
            refuse(
                Errno::STALE,
                format!("endpoint {slot}.{generation} has ended; bind anew, without its token"),
            )
        };
        if let Some((bound, _)) = table.bound(slot) {
            if bound.generation == generation {
                return refuse(
                    Errno::BUSY,
                    format!(
                        "endpoint {slot}.{generation} is bound by another connection; try again when that has ended"
                    ),
                );
            }
            return match name {
                Some(name) => refuse(Errno::BUSY, busy(name)),
                None => stale(),
            };
        }
        let last = table.slots.get(&slot).map_or(0, |slot| slot.last);
        if !numbers.is_earlier(address) || last >= generation {
            return stale();
        }
        match (name, name.and_then(|name| table.names.get(name))) {
            // The name has another slot by now.
            (Some(_), Some(found)) if *found != slot => return stale(),
            (Some(name), None) => {
                table.names.insert(name.to_owned(), slot);
                keep_names(numbers.store(), &who.dc, table);
            }
            _ => {}
        }
        Ok(address)
    }

    pub(super) fn occupy(
        &mut self,
        id: MemberId,
        who: &Identity,
        name: Option<&str>,
        address: EndpointAddress,
    ) {
        let Some(table) = self.endpoints.tables.get_mut(&who.dc) else { return };
        let slot = table.slots.entry(address.slot).or_default();
        slot.last = slot.last.max(address.generation);
        slot.name = name.map(str::to_owned);
        slot.bound = Some(Bound {
            generation: address.generation,
            member: id,
            domain: who.domain.clone(),
            pid: who.pid,
            since: SystemTime::now(),
            peers: BTreeSet::new(),
            missed: BTreeMap::new(),
            counters: Counters::default(),
            backs: None,
            released: false,
            continues: 0,
            order: None,
        });
        slot.binds += 1;
        table.bound += 1;
        table.binds += 1;
        if name.is_none() {
            *table.anonymous.entry(who.domain.clone()).or_default() += 1;
        }
        if let Some(name) = name {
            table.wake(&Awaited::Name(name.to_owned()));
        }
        table.wake(&Awaited::Address(address));
        self.endpoints.of_member.entry(id).or_default().insert(address.slot);
        self.tell_nodes_of_endpoint(&who.dc, name, address, true);
    }

    /// An endpoint that is there again says whom it has channels with. Where the other says the
    /// same, they are known as a pair.
    pub(super) fn meet_again(&mut self, dc: &str, address: EndpointAddress, peers: &[EndpointAddress]) {
        let Some(topology) = self.topologies.get(dc).cloned() else { return };
        let Some(table) = self.endpoints.tables.get_mut(dc) else { return };
        let mut met = Vec::new();
        for peer in peers.iter().take(MAX_KNOWN_PEERS).filter(|peer| **peer != address) {
            let mutual = bound_mut(table, peer.slot).is_some_and(|other| {
                other.generation == peer.generation && other.missed.remove(&address).is_some()
            });
            if mutual {
                table.missed -= 1;
                met.push(*peer);
            } else if table.missed < 2 * most(topology.ipc.pairs)
                && bound_mut(table, address.slot)
                    .is_some_and(|bound| bound.missed.insert(*peer, None).is_none())
            {
                table.missed += 1;
            }
        }
        self.endpoints.returned = Some((dc.to_owned(), address.slot));
        for peer in met {
            self.know_pair(dc, &topology, pair_of(address.slot, peer.slot));
        }
        self.meet_far_again(dc, address.slot);
    }

    /// Two whom an earlier daemon introduced are both here. It is not known what they were told
    /// last: they are told anew.
    fn know_pair(&mut self, dc: &str, topology: &Topology, key: (u32, u32)) {
        let Some(table) = self.endpoints.tables.get_mut(dc) else { return };
        if table.pairs.len() >= most(topology.ipc.pairs) || table.pairs.contains_key(&key) {
            return;
        }
        let rights = super::rights::of_pair(topology, table, key);
        table.pairs.insert(key, Pair { channel: None, rights, since: SystemTime::now() });
        for (slot, peer) in [(key.0, key.1), (key.1, key.0)] {
            if let Some(bound) = bound_mut(table, slot) {
                bound.peers.insert(peer);
            }
        }
        self.endpoints.met_again.push((dc.to_owned(), key));
    }

    /// Tells those whom an earlier daemon introduced what they may, now that the one that has come
    /// back knows that it is back.
    pub(in crate::broker) fn tell_met_again(&mut self) {
        for (dc, key) in std::mem::take(&mut self.endpoints.met_again) {
            let table = self.endpoints.tables.get(&dc);
            if let Some(rights) = table.and_then(|table| table.pairs.get(&key)).map(|pair| pair.rights) {
                self.tell_both(&dc, key, rights);
            }
        }
        if let Some((dc, slot)) = self.endpoints.returned.take() {
            self.tell_missed(&dc, Some(slot));
        }
    }

    /// An endpoint of a connection ends, because its program says so.
    pub(super) fn unbind(
        &mut self,
        id: MemberId,
        who: &Identity,
        number: u64,
        slot: u32,
    ) -> Result<Outgoing, Refusal> {
        let own = self.own(id, who, slot)?;
        self.end_endpoint(&own.dc, slot);
        Ok(Reply::Done { id: number }.into())
    }

    /// An endpoint ends: so do its pairs, its buffers and its grants.
    pub(super) fn end_endpoint(&mut self, dc: &str, slot: u32) {
        let Some(table) = self.endpoints.tables.get_mut(dc) else { return };
        let Some(entry) = table.slots.get_mut(&slot) else { return };
        let Some(bound) = entry.bound.take() else { return };
        let (name, last) = (entry.name.clone(), entry.last);
        table.bound -= 1;
        if name.is_none() {
            let left = table.anonymous.entry(bound.domain.clone()).or_default();
            *left -= 1;
            if *left == 0 {
                table.anonymous.remove(&bound.domain);
            }
            table.free.push(slot);
        }
        if let Some(name) = &name {
            table.ended.insert(name.clone(), Instant::now());
        }
        table.missed -= bound.missed.len();
        let mut over = Vec::new();
        for peer in &bound.peers {
            over.extend(table.pairs.remove(&pair_of(slot, *peer)).and_then(|pair| pair.channel));
            if let Some(other) = bound_mut(table, *peer) {
                other.peers.remove(&slot);
            }
        }
        if let Some(slots) = self.endpoints.of_member.get_mut(&bound.member) {
            slots.remove(&slot);
        }
        over.into_iter().for_each(|channel| self.endpoints.regions.over(channel));
        let address = EndpointAddress { slot, generation: bound.generation };
        self.forget_far(dc, &bound.peers);
        self.tell_nodes_of_endpoint(dc, name.as_deref(), address, false);
        tracing::debug!(dc, slot, last, "an endpoint has ended");
        self.buffers_gone(dc, address);
    }
}

pub(super) fn bound_mut(table: &mut Table, slot: u32) -> Option<&mut Bound> {
    table.slots.get_mut(&slot)?.bound.as_mut()
}

fn busy(name: &str) -> String {
    format!("another program of its domain has bound endpoint {name}; there is one at a time")
}

/// Writes down which slots names have. A daemon that does not find it gives them others, and the
/// tokens of today prove nothing to it.
pub(super) fn keep_names(store: &dyn super::Store, dc: &str, table: &Table) {
    if let Err(error) = store.save_names(dc, &table.names) {
        tracing::error!(dc, %error, "the slots of endpoints can't be written down: after a restart of the daemon they have others");
    }
}

/// Whether a domain may bind a name, and whether that endpoint may copy between buffers of others.
/// `again`: it had it under an earlier daemon, as a backup that has taken over perhaps.
fn may_bind(topology: &Topology, who: &Identity, name: &str, again: bool) -> Result<bool, Refusal> {
    match topology.endpoint(name) {
        Some(endpoint)
            if endpoint.domain == *who.domain.as_str() || again && endpoint.may_be_in(&who.domain) =>
        {
            Ok(endpoint.copies)
        }
        Some(_) => refuse(
            Errno::PERM,
            format!("the topology does not place endpoint {name} in domain {}", who.domain),
        ),
        None => {
            let name = short(name);
            let own = topology.endpoints.iter().filter(|endpoint| endpoint.domain == *who.domain.as_str());
            let own = own.take(MAX_SUGGESTED).map(|endpoint| endpoint.name.as_str().to_owned());
            let help = crate::base::meant(&name, &own.collect::<Vec<_>>(), "endpoints of this domain");
            refuse(
                Errno::NOENT,
                format!("the topology has no endpoint {name:?} for domain {}: {help}", who.domain),
            )
        }
    }
}
