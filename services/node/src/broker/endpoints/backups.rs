//! Backups: endpoints without a name that stand by until they take the place of the one that has
//! the name (`docs/spec/movement.md`).

use super::bind::{Wish, bound_mut};
use super::numbers::Whose;
use super::{Answered, Inner, MAX_SUGGESTED, Own, Table, called, must_be_program, short};
use crate::broker::{Broker, Identity, MemberId, Refusal, refuse};
use rustix::io::Errno;
use std::time::{Duration, Instant};
use topology::Topology;
use wire::control::{EndpointAddress, EndpointRights, Event, MAX_STAY_BYTES, Reply};
use wire::ipc::Address;

/// Backups of one endpoint. Each reply waits for all of them, so more would make it slower and
/// hardly safer.
const BACKUPS_MAX: usize = 4;
/// So long a name is kept for its backups: after its primary has ended, and after a daemon's start.
/// A backup that lives asks within some milliseconds, one that has to find the new daemon first
/// within one of its looks.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(2);
/// The rights of a backup towards its primary.
const OF_BACKUP: EndpointRights = EndpointRights {
    send: false,
    request: false,
    notify: false,
    relay: false,
    hears: true,
    answers: false,
    answers_relayed: false,
    heeds: true,
};
/// The rights of a primary towards its backup.
const OF_PRIMARY: EndpointRights =
    EndpointRights { send: true, notify: true, hears: false, heeds: false, ..OF_BACKUP };

/// The parameters of a `promote`.
pub(super) struct Promotion {
    pub(super) number: u64,
    pub(super) over: Option<EndpointAddress>,
    pub(super) continues: u32,
    pub(super) supersede: bool,
}

/// A primary that was superseded: its address, its peers by slot, and the connection that bound it.
type Superseded = (EndpointAddress, Vec<(u32, MemberId)>, MemberId);

impl Table {
    /// Whether one endpoint is a backup of the other.
    pub(super) fn backs(&self, backup: u32, primary: u32) -> bool {
        let name = self.bound(primary).and_then(|(_, slot)| slot.name.as_deref());
        name.is_some_and(|name| self.backup_of(backup) == Some(name))
    }

    /// Returns the name of the primary whose backup an endpoint is.
    pub(super) fn backup_of(&self, slot: u32) -> Option<&str> {
        self.bound(slot).and_then(|(bound, _)| bound.backs.as_deref())
    }

    /// Slots of the backups of a name, those that came first before the others.
    pub(super) fn backups_of(&self, name: &str) -> Vec<u32> {
        let backs = |slot: &u32| self.backup_of(*slot) == Some(name);
        let mut backups: Vec<u32> = self.slots.keys().copied().filter(backs).collect();
        backups.sort_unstable_by_key(|slot| self.bound(*slot).map(|(bound, _)| (bound.since, *slot)));
        backups
    }

    /// The rights of two of whom one is the backup of the other, as each is told of the other.
    pub(super) fn rights_of_backup(&self, one: u32, other: u32) -> Option<[EndpointRights; 2]> {
        if self.backs(one, other) {
            return Some([OF_BACKUP, OF_PRIMARY]);
        }
        self.backs(other, one).then_some([OF_PRIMARY, OF_BACKUP])
    }

    /// The same, of one and a primary that has not come back to this daemon yet, by its name.
    pub(super) fn rights_with_missed_primary(&self, slot: u32, name: &str) -> Option<EndpointRights> {
        (self.backup_of(slot) == Some(name)).then_some(OF_BACKUP)
    }

    /// Two were introduced. If one of them is the other's backup, it is relied upon again.
    pub(super) fn rely_on_backup(&mut self, one: u32, other: u32) {
        for (backup, primary) in [(one, other), (other, one)] {
            if self.backs(backup, primary)
                && let Some(bound) = bound_mut(self, backup)
            {
                bound.released = false;
            }
        }
    }

    /// Whether a name is kept for its backups, which may take it within moments.
    fn is_kept_for_backups(&self, name: &str) -> bool {
        let lately = |since: &Instant| since.elapsed() < TAKE_OVER_WITHIN;
        if self.ended.get(name).is_some_and(lately) {
            let stands_by = |slot: u32| self.bound(slot).is_some_and(|(bound, _)| !bound.released);
            return self.backups_of(name).into_iter().any(stands_by);
        }
        // An earlier daemon knew this name, and nobody has come back to this one yet.
        let seen = self.names.get(name).is_none_or(|slot| self.slots.contains_key(slot));
        !seen && lately(&self.began)
    }
}

/// An order of the administrator's: an endpoint shall move.
#[derive(Debug, serde::Serialize)]
pub(super) struct Order {
    /// To a backup in this domain.
    to: String,
    /// Why it does not, as its program says; `None`: it was not heard yet.
    stays: Option<String>,
}

impl Broker {
    /// Tells the program of an endpoint to move to a backup in another domain, which it does when
    /// it receives next; without a domain, to stay. Returns where it is now.
    pub(crate) fn migrate(&self, dc: &str, name: &str, to: Option<&str>) -> Result<Address, String> {
        let mut inner = self.lock();
        let table = inner.endpoints.tables.get_mut(dc);
        let found = table.and_then(|table| Some((table.names.get(name).copied()?, table)));
        let Some((slot, table)) = found.filter(|(slot, table)| table.bound(*slot).is_some()) else {
            return Err(format!(
                "no program of this node has bound endpoint {name}: `tombolo endpoint ls` tells where it is"
            ));
        };
        if let Some(to) = to {
            table.may_be_taken(slot, name, to)?;
        }
        let Some(bound) = bound_mut(table, slot) else {
            return Err(format!("endpoint {name} has just ended"));
        };
        bound.order = to.map(|to| Order { to: to.to_owned(), stays: None });
        let (member, generation) = (bound.member, bound.generation);
        inner.tell(member, Event::Migrate { endpoint: slot, to: to.map(str::to_owned) });
        Ok(Address { slot, generation })
    }
}

impl Table {
    /// Whether a program of a domain stands by for the endpoint in a slot.
    fn may_be_taken(&self, slot: u32, name: &str, to: &str) -> Result<(), String> {
        if self.bound(slot).is_some_and(|(bound, _)| bound.domain == to) {
            return Err(format!("endpoint {name} is in domain {to} already"));
        }
        let is_there = |backup: &u32| {
            self.bound(*backup).is_some_and(|(backup, _)| backup.domain == to && !backup.released)
        };
        if self.backups_of(name).iter().any(is_there) {
            return Ok(());
        }
        Err(format!(
            "no program of domain {} is a backup of endpoint {name}: start one there, and list the domain in the endpoint's `backups`",
            short(to)
        ))
    }
}

impl Inner {
    /// A program wants to be a backup.
    pub(super) fn back(&mut self, id: MemberId, who: &Identity, number: u64, wish: &Wish) -> Answered {
        must_be_program(who)?;
        let Some(topology) = self.topologies.get(&who.dc).cloned() else {
            return refuse(Errno::NOENT, format!("there is no distributed container {} any more", who.dc));
        };
        may_back(&topology, who, &wish.name)?;
        if let Some((node, _)) = self.bound_on(&who.dc, &wish.name) {
            let message = format!(
                "endpoint {} is bound on node {node}: a backup has to be on the same node, so start its program there",
                wish.name
            );
            return refuse(Errno::OPNOTSUPP, message);
        }
        let count = self.endpoints.tables.get(&who.dc).map_or(0, |table| table.backups_of(&wish.name).len());
        if count >= BACKUPS_MAX {
            let message = format!(
                "endpoint {} has {count} backups, which are the most: end one of their programs first",
                wish.name
            );
            return refuse(Errno::USERS, message);
        }
        let again = !wish.token.is_empty();
        let address = if again {
            let address = self.earlier_address(who, None, &wish.token)?;
            self.room_for_endpoint(&topology, who, None)?;
            address
        } else {
            self.room_for_endpoint(&topology, who, None)?;
            self.new_address(who, None)?
        };
        self.occupy(id, who, None, address);
        if let Some(bound) =
            self.endpoints.tables.get_mut(&who.dc).and_then(|table| bound_mut(table, address.slot))
        {
            bound.backs = Some(wish.name.clone());
        }
        if again {
            self.meet_again(&who.dc, address, &wish.peers);
        }
        let token = self.token_of(who, "", address);
        Ok(Reply::Bound { id: number, address, token, copies: false }.into())
    }

    /// The token that makes an endpoint the same again at the next daemon.
    pub(super) fn token_of(&self, who: &Identity, name: &str, address: EndpointAddress) -> String {
        let whose = Whose { dc: &who.dc, domain: &who.domain, name };
        self.endpoints.numbers.as_ref().map_or_else(String::new, |numbers| numbers.token(whose, address))
    }

    /// A backup takes the place of its primary.
    pub(super) fn promote(&mut self, id: MemberId, who: &Identity, own: &Own, wish: &Promotion) -> Answered {
        let name = self.may_promote(who, own, wish)?;
        let superseded = self.supersede(&own.dc, &name);
        let address = self.new_address(who, Some(&name))?;
        self.end_endpoint(&own.dc, own.slot);
        self.occupy(id, who, Some(&name), address);
        let continues = if wish.continues == 0 { address.generation } else { wish.continues };
        self.set_continues(&own.dc, address.slot, continues);
        if let Some((before, peers, member)) = superseded {
            for (endpoint, peer) in peers {
                self.tell(peer, Event::Superseded { endpoint, peer: before, by: address });
            }
            let message = format!(
                "it was superseded: a backup has taken its place, as {}",
                called(Some(&name), address)
            );
            self.tell(member, Event::Unbound { endpoint: before.slot, message });
        }
        tracing::info!(
            dc = own.dc,
            endpoint = name,
            generation = address.generation,
            "a backup has taken over"
        );
        let copies = own.topology.endpoint(&name).is_some_and(|endpoint| endpoint.copies);
        let token = self.token_of(who, &name, address);
        Ok(Reply::Promoted { id: wish.number, address, token, copies }.into())
    }

    /// Whether a backup may take its primary's place now: the name.
    fn may_promote(&self, who: &Identity, own: &Own, wish: &Promotion) -> Result<String, Refusal> {
        let slot = own.slot;
        let table = self.endpoints.tables.get(&own.dc);
        let backup = table.and_then(|table| table.bound(slot)).map(|(bound, _)| bound);
        let (Some(table), Some(bound), Some(name)) =
            (table, backup, backup.and_then(|bound| bound.backs.clone()))
        else {
            return refuse(
                Errno::INVAL,
                format!("endpoint {slot} is no backup: a program is one after `bind_backup`"),
            );
        };
        may_back(&own.topology, who, &name)?;
        if bound.released && wish.continues != 0 {
            let message = format!(
                "endpoint {name} goes on without this backup, which did not take what it was handed in time; it is told everything anew when it is introduced again"
            );
            return refuse(Errno::STALE, message);
        }
        if let Some((node, _)) = self.bound_on(&own.dc, &name) {
            return refuse(Errno::BUSY, format!("endpoint {name} is bound on node {node}"));
        }
        let primary = table.names.get(&name).copied();
        let last = primary.and_then(|slot| table.slots.get(&slot)).map_or(0, |slot| slot.last);
        if let Some(over) = wish.over
            && last > over.generation
        {
            let message = format!(
                "another one has taken the place of {} before, as generation {last}: be a backup of that one",
                called(Some(&name), over)
            );
            return refuse(Errno::STALE, message);
        }
        let is_there = primary.is_some_and(|slot| table.bound(slot).is_some());
        if is_there && !wish.supersede {
            return refuse(Errno::BUSY, format!("the program that has bound endpoint {name} is there"));
        }
        Ok(name)
    }

    /// Ends whoever has a name: it, the peers that have to be told, and its connection.
    fn supersede(&mut self, dc: &str, name: &str) -> Option<Superseded> {
        let table = self.endpoints.tables.get(dc)?;
        let slot = *table.names.get(name)?;
        let (bound, _) = table.bound(slot)?;
        let before = EndpointAddress { slot, generation: bound.generation };
        let others = bound.peers.iter().filter(|peer| !table.backs(**peer, slot));
        let peers = others.filter_map(|peer| Some((*peer, table.bound(*peer)?.0.member))).collect();
        let member = bound.member;
        self.part_from_far(dc, before);
        self.end_endpoint(dc, slot);
        Some((before, peers, member))
    }

    /// An endpoint goes on without one of its backups.
    pub(super) fn release(&mut self, own: &Own, number: u64, backup: EndpointAddress) -> Answered {
        let table = self.endpoints.tables.get_mut(&own.dc);
        if let Some(table) = table
            && table.at(backup).is_some()
            && table.backs(backup.slot, own.slot)
            && let Some(bound) = bound_mut(table, backup.slot)
        {
            bound.released = true;
        }
        Ok(Reply::Done { id: number }.into())
    }

    /// An endpoint does not move as it was told to.
    pub(super) fn stay(&mut self, own: &Own, number: u64, mut why: String) -> Answered {
        why.truncate(why.floor_char_boundary(MAX_STAY_BYTES));
        let bound = self.endpoints.tables.get_mut(&own.dc).and_then(|table| bound_mut(table, own.slot));
        if let Some(order) = bound.and_then(|bound| bound.order.as_mut()) {
            order.stays = Some(why);
        }
        Ok(Reply::Done { id: number }.into())
    }

    /// An endpoint says which generations of it it continues.
    pub(super) fn continues(&mut self, own: &Own, number: u64, from: u32) -> Answered {
        self.set_continues(&own.dc, own.slot, from.clamp(1, own.address.generation));
        Ok(Reply::Done { id: number }.into())
    }

    fn set_continues(&mut self, dc: &str, slot: u32, from: u32) {
        if let Some(bound) = self.endpoints.tables.get_mut(dc).and_then(|table| bound_mut(table, slot)) {
            bound.continues = from;
        }
    }

    /// Whether a program may bind a name anew, or whether it is kept for those who know what its
    /// primary knew.
    pub(super) fn must_not_be_kept(&self, topology: &Topology, dc: &str, name: &str) -> Result<(), Refusal> {
        let backed = topology.endpoint(name).is_some_and(|endpoint| !endpoint.backups.is_empty());
        let kept = self.endpoints.tables.get(dc).is_some_and(|table| table.is_kept_for_backups(name));
        if !backed || !kept {
            return Ok(());
        }
        let message = format!(
            "endpoint {name} is kept for its backups for {} s after its program has ended or the daemon was started: try again then, or be a backup of it",
            TAKE_OVER_WITHIN.as_secs()
        );
        refuse(Errno::AGAIN, message)
    }

    /// Ends backups whose domain the file does not have among `backups` any more.
    pub(super) fn unbind_misplaced_backups(&mut self, dc: &str, now: &Topology) {
        let Some(table) = self.endpoints.tables.get(dc) else { return };
        let misplaced = |slot: &u32| {
            let (bound, _) = table.bound(*slot)?;
            let name = bound.backs.as_deref()?;
            let allowed = now.endpoint(name).is_some_and(|endpoint| endpoint.may_be_backed_by(&bound.domain));
            (!allowed).then(|| (*slot, name.to_owned()))
        };
        let gone: Vec<(u32, String)> = table.slots.keys().filter_map(misplaced).collect();
        for (slot, name) in gone {
            let message =
                format!("the topology no longer has this domain among the `backups` of endpoint {name}");
            self.unbind_by_order(dc, slot, &message);
        }
    }
}

/// Whether a program of a domain may be a backup of an endpoint.
fn may_back(topology: &Topology, who: &Identity, name: &str) -> Result<(), Refusal> {
    match topology.endpoint(name) {
        Some(endpoint) if endpoint.may_be_backed_by(&who.domain) => Ok(()),
        Some(_) => refuse(
            Errno::PERM,
            format!(
                "the topology does not let programs of domain {} be backups of endpoint {name}: add it to the endpoint's `backups`",
                who.domain
            ),
        ),
        None => {
            let known = topology.endpoints.iter().filter(|other| other.may_be_backed_by(&who.domain));
            let known: Vec<String> =
                known.take(MAX_SUGGESTED).map(|other| other.name.as_str().to_owned()).collect();
            let name = short(name);
            let help = crate::base::meant(&name, &known, "endpoints that this domain may back");
            refuse(Errno::NOENT, format!("the topology has no endpoint {name:?}: {help}"))
        }
    }
}
