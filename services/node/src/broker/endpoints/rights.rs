//! The rights of endpoints to each other, and the news of them when a file changes that.

use super::{Caller, EndpointAddress, EndpointRights, Inner, Table, Topology, numbers::Numbers};
use std::collections::BTreeSet;
use std::sync::Arc;
use topology::EndpointVerb;
use wire::control::Event;

/// The rights of one towards the other, and of the other towards the one.
fn between(topology: &Topology, one: Caller<'_>, other: Caller<'_>) -> EndpointRights {
    let (out, back) = (topology.may_call(one, other), topology.may_call(other, one));
    let has = |verbs: &BTreeSet<EndpointVerb>, verb| verbs.contains(&verb);
    EndpointRights {
        send: has(&out, EndpointVerb::Send),
        request: has(&out, EndpointVerb::Request),
        notify: has(&out, EndpointVerb::Notify),
        relay: has(&out, EndpointVerb::Relay),
        hears: has(&back, EndpointVerb::Send),
        answers: has(&back, EndpointVerb::Request),
        answers_relayed: has(&back, EndpointVerb::Relay),
        heeds: has(&back, EndpointVerb::Notify),
    }
}

/// Whether there is any.
pub(super) fn is_any(rights: EndpointRights) -> bool {
    rights != EndpointRights::default()
}

/// The rights of both of a pair, as each is told of the other; none where one is not there.
pub(super) fn of_pair(topology: &Topology, table: &Table, key: (u32, u32)) -> [EndpointRights; 2] {
    if let Some(rights) = table.rights_of_backup(key.0, key.1) {
        return rights;
    }
    match (table.caller(key.0), table.caller(key.1)) {
        (Some(one), Some(other)) => between_both(topology, one, other),
        _ => <[EndpointRights; 2]>::default(),
    }
}

/// As each is told of the other.
pub(super) fn between_both(topology: &Topology, one: Caller<'_>, other: Caller<'_>) -> [EndpointRights; 2] {
    let rights = between(topology, one, other);
    let mirrored = EndpointRights {
        send: rights.hears,
        request: rights.answers,
        notify: rights.heeds,
        relay: rights.answers_relayed,
        hears: rights.send,
        answers: rights.request,
        answers_relayed: rights.relay,
        heeds: rights.notify,
    };
    [rights, mirrored]
}

impl Inner {
    /// The topology of a distributed container has changed: there are other names, or other rights.
    pub(in crate::broker) fn endpoints_follow(&mut self, dc: &str, before: Option<&Topology>) {
        let now = self.topologies.get(dc).cloned();
        let Some(now) = now else {
            self.forget_endpoints(dc);
            return;
        };
        let same = before.is_some_and(|before| (&before.endpoints, before.ipc) == (&now.endpoints, now.ipc));
        if same && self.endpoints.tables.contains_key(dc) {
            return;
        }
        let Some(numbers) = self.endpoints.numbers.as_ref() else { return };
        if !self.endpoints.tables.contains_key(dc) {
            let names = kept_names(numbers, dc);
            let first_grant = numbers.first_grant();
            self.endpoints.tables.insert(dc.to_owned(), Table::new(names, first_grant));
        }
        self.unbind_unplaced(dc, &now);
        self.unbind_misplaced_backups(dc, &now);
        self.forget_names(dc, &now);
        self.tell_rights(dc, &now);
        self.tell_missed(dc, None);
        // Whoever waits for a name may wait in vain now, or be allowed what was not.
        if let Some(table) = self.endpoints.tables.get_mut(dc) {
            table.awaited.drain().for_each(|(_, waiting)| waiting.notify_waiters());
        }
    }

    /// Ends endpoints whose name the file no longer has in their domain, and tells them and their
    /// peers.
    fn unbind_unplaced(&mut self, dc: &str, now: &Topology) {
        let Some(table) = self.endpoints.tables.get(dc) else { return };
        let misplaced = |slot: &u32| {
            let (bound, entry) = table.bound(*slot)?;
            let name = entry.name.as_deref()?;
            let placed = now.endpoint(name).is_some_and(|endpoint| endpoint.may_be_in(&bound.domain));
            (!placed).then(|| (*slot, name.to_owned()))
        };
        let gone: Vec<(u32, String)> = table.names.values().filter_map(misplaced).collect();
        for (slot, name) in gone {
            self.unbind_by_order(
                dc,
                slot,
                &format!("the topology no longer places endpoint {name} in this domain"),
            );
        }
    }

    /// Ends an endpoint that did not ask for it. Its channels live as long as it keeps them, so its
    /// peers are told to have nothing to do with it.
    pub(super) fn unbind_by_order(&mut self, dc: &str, slot: u32, message: &str) {
        let Some(table) = self.endpoints.tables.get(dc) else { return };
        let (Some((bound, _)), Some(address)) = (table.bound(slot), table.address(slot)) else { return };
        let member = bound.member;
        let peers: Vec<_> =
            bound.peers.iter().filter_map(|peer| Some((*peer, table.bound(*peer)?.0.member))).collect();
        for (endpoint, peer) in peers {
            let rights = EndpointRights::default();
            self.tell(peer, Event::Rights { endpoint, peer: address, rights });
        }
        self.tell(member, Event::Unbound { endpoint: slot, message: message.to_owned() });
        self.part_from_far(dc, address);
        self.end_endpoint(dc, slot);
    }

    /// A name that the file no longer has loses its slot.
    fn forget_names(&mut self, dc: &str, now: &Topology) {
        let Some(table) = self.endpoints.tables.get_mut(dc) else { return };
        let gone: Vec<(String, u32)> = table
            .names
            .iter()
            .filter(|(name, _)| now.endpoint(name).is_none())
            .map(|(name, slot)| (name.clone(), *slot))
            .collect();
        if gone.is_empty() {
            return;
        }
        for (name, slot) in gone {
            table.names.remove(&name);
            table.slots.remove(&slot);
            table.lost.insert(slot);
        }
        if let Some(numbers) = &self.endpoints.numbers {
            super::bind::keep_names(numbers.store(), dc, table);
        }
    }

    /// Tells both of each pair whose rights are others now.
    fn tell_rights(&mut self, dc: &str, now: &Arc<Topology>) {
        let Some(table) = self.endpoints.tables.get_mut(dc) else { return };
        let pairs: Vec<(u32, u32)> = table.pairs.keys().copied().collect();
        let mut changed = Vec::new();
        for key in pairs {
            let rights = of_pair(now, table, key);
            if let Some(pair) = table.pairs.get_mut(&key).filter(|pair| pair.rights != rights) {
                pair.rights = rights;
                changed.push((key, rights));
            }
        }
        for (key, rights) in changed {
            self.tell_both(dc, key, rights);
        }
    }

    /// Tells both of a pair what they may do with each other.
    pub(super) fn tell_both(&mut self, dc: &str, key: (u32, u32), rights: [EndpointRights; 2]) {
        for ((slot, peer), rights) in [(key.0, key.1), (key.1, key.0)].into_iter().zip(rights) {
            let Some(table) = self.endpoints.tables.get(dc) else { return };
            let (Some((bound, _)), Some(peer)) = (table.bound(slot), table.address(peer)) else { continue };
            self.tell(bound.member, Event::Rights { endpoint: slot, peer, rights });
        }
    }

    /// A distributed container is no more: neither are its endpoints.
    fn forget_endpoints(&mut self, dc: &str) {
        let Some(table) = self.endpoints.tables.get(dc) else { return };
        let bound: Vec<u32> =
            table.slots.iter().filter(|(_, slot)| slot.bound.is_some()).map(|(number, _)| *number).collect();
        for slot in bound {
            self.unbind_by_order(dc, slot, "this distributed container is down");
        }
        let Some(table) = self.endpoints.tables.remove(dc) else { return };
        table.awaited.into_values().for_each(|waiting| waiting.notify_waiters());
        if let Some(numbers) = &self.endpoints.numbers
            && let Err(error) = numbers.store().save_names(dc, &Default::default())
        {
            tracing::error!(dc, %error, "the slots of endpoints can't be forgotten");
        }
    }

    /// Whether these two may have to do with each other.
    pub(super) fn rights_of(
        topology: &Topology,
        one: Caller<'_>,
        other: Caller<'_>,
    ) -> Option<[EndpointRights; 2]> {
        let rights = between_both(topology, one, other);
        is_any(rights[0]).then_some(rights)
    }
}

/// The slots that names had under the daemon before this one.
fn kept_names(numbers: &Numbers, dc: &str) -> std::collections::BTreeMap<String, u32> {
    if !numbers.keeps_names() {
        return Default::default();
    }
    numbers.store().load_names(dc).unwrap_or_else(|error| {
        tracing::error!(dc, %error, "the slots of endpoints can't be read: names have others from now on");
        Default::default()
    })
}

/// An address and a name, as one is told of the other: whoever is in `slot`, as the one in `told`
/// hears of it.
pub(super) fn described(
    table: &Table,
    (slot, told): (u32, u32),
    rights: EndpointRights,
) -> Option<wire::control::EndpointPeer> {
    let (bound, entry) = table.bound(slot)?;
    Some(wire::control::EndpointPeer {
        address: EndpointAddress { slot, generation: bound.generation },
        name: entry.name.clone().unwrap_or_default(),
        domain: bound.domain.clone(),
        rights,
        continues: bound.continues,
        backup: table.backs(slot, told),
    })
}
