//! Those whom an endpoint had a channel with under an earlier daemon, and that have not come back:
//! their channels live, so it is told what it may do with them as soon as the file says something
//! else, and they are not waited for.

use super::{Caller, EndpointRights, Inner, Table, Topology, rights};
use std::collections::HashMap;
use wire::control::Event;

/// Names by their slots.
type Named<'a> = HashMap<u32, &'a str>;

impl Inner {
    /// Tells endpoints what they may do with those that they miss, where they have not been told so
    /// already. Of one without a name nothing is known until it comes back.
    pub(super) fn tell_missed(&mut self, dc: &str, only: Option<u32>) {
        let Some(topology) = self.topologies.get(dc).cloned() else { return };
        let Some(table) = self.endpoints.tables.get(dc) else { return };
        if table.missed == 0 {
            return;
        }
        let mut named: Named<'_> = table.names.iter().map(|(name, slot)| (*slot, name.as_str())).collect();
        named.extend(self.far_names(dc));
        let mut news = Vec::new();
        for (slot, bound) in
            table.slots.iter().filter_map(|(slot, entry)| Some((*slot, entry.bound.as_ref()?)))
        {
            if only.is_some_and(|only| only != slot) {
                continue;
            }
            for (peer, told) in &bound.missed {
                let rights = of_missed(&topology, table, &named, slot, peer.slot);
                news.extend(
                    rights.filter(|rights| *told != Some(*rights)).map(|rights| (slot, *peer, rights)),
                );
            }
        }
        for (slot, peer, rights) in news {
            let bound =
                self.endpoints.tables.get_mut(dc).and_then(|table| super::bind::bound_mut(table, slot));
            let Some(bound) = bound else { continue };
            bound.missed.insert(peer, Some(rights));
            let member = bound.member;
            self.tell(member, Event::Rights { endpoint: slot, peer, rights });
        }
    }
}

/// The rights of an endpoint towards the former occupant of a slot; `None`: the file does not name
/// that one.
fn of_missed(
    topology: &Topology,
    table: &Table,
    named: &Named<'_>,
    slot: u32,
    peer: u32,
) -> Option<EndpointRights> {
    if table.lost.contains(&peer) {
        return Some(EndpointRights::default());
    }
    let endpoint = topology.endpoint(named.get(&peer)?)?;
    if let Some(rights) = table.rights_with_missed_primary(slot, &endpoint.name) {
        return Some(rights);
    }
    let other = Caller { name: Some(endpoint.name.as_str()), domain: endpoint.domain.as_str() };
    let [mine, _] = rights::between_both(topology, table.caller(slot)?, other);
    Some(mine)
}
