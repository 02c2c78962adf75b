//! Endpoints: who is bound where, who was introduced to whom, and what was granted. Each
//! distributed container has a table of its own, and nothing of one is ever looked for in
//! another's.
//!
//! An endpoint is its connection's: it ends when that does. Pairs and buffers are known here to be
//! bounded and to be shown; they live in the programs, and survive the daemon.

mod backups;
mod bind;
mod buffers;
mod far;
mod introduce;
mod loans;
mod missed;
mod numbers;
mod regions;
mod rights;
mod rows;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use numbers::{Numbers, Reserved, Store};

use super::{Broker, Identity, Inner, MemberId, Outgoing, Refusal, Role, refuse};
use buffers::Buffers;
use regions::Regions;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use topology::{Caller, Topology};
use wire::control::{EndpointAddress, EndpointRights, Request};

/// Where somebody waits until an endpoint is bound.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Awaited {
    Name(String),
    Address(EndpointAddress),
}

/// All endpoints of the node.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    /// `None`: nobody has said yet where they are kept, as in tests of other things.
    numbers: Option<Numbers>,
    tables: BTreeMap<String, Table>,
    /// Slots that each connection has bound.
    of_member: HashMap<MemberId, BTreeSet<u32>>,
    regions: Regions,
    /// Pairs of an earlier daemon's time whose ends have just come back, and that are to be told.
    met_again: Vec<(String, (u32, u32))>,
    /// An endpoint that has just come back and misses others.
    returned: Option<(String, u32)>,
    /// Pairs with endpoints of other nodes that those have been asked for, and which node.
    meeting: HashMap<(String, (u32, u32)), String>,
}

/// The endpoints of one distributed container.
#[derive(Debug)]
struct Table {
    slots: HashMap<u32, Slot>,
    names: BTreeMap<String, u32>,
    /// Slots without a name in which nobody is, and which can have another one.
    free: Vec<u32>,
    bound: usize,
    /// Endpoints without a name, of each domain.
    anonymous: BTreeMap<String, usize>,
    pairs: HashMap<(u32, u32), Pair>,
    /// Endpoints of other nodes that one here has a pair with.
    far: HashMap<u32, far::FarPeer>,
    buffers: Buffers,
    awaited: HashMap<Awaited, Arc<Notify>>,
    /// Members that wait, and for what.
    waiting: BTreeMap<MemberId, Awaited>,
    /// Peers of an earlier daemon's time that have not come back, in all.
    missed: usize,
    /// Slots of names that the file no longer has.
    lost: BTreeSet<u32>,
    /// Endpoints that there have been, and pairs.
    binds: u64,
    introductions: u64,
    /// Since when this daemon has it.
    began: Instant,
    /// When somebody with this name ended last.
    ended: BTreeMap<String, Instant>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The greatest generation that is known to have been here; 0: none.
    last: u32,
    name: Option<String>,
    bound: Option<Bound>,
    /// How often somebody was bound here, under this daemon.
    binds: u64,
}

/// An endpoint that is there.
#[derive(Debug)]
struct Bound {
    generation: u32,
    member: MemberId,
    domain: String,
    pid: u32,
    since: SystemTime,
    /// Slots of those whom it has a pair with.
    peers: BTreeSet<u32>,
    /// Peers of an earlier daemon's time that have not come back yet, by what this one says; and
    /// what it was told of each.
    missed: BTreeMap<EndpointAddress, Option<EndpointRights>>,
    counters: Counters,
    /// The endpoint whose backup it is.
    backs: Option<String>,
    /// Of a backup: its primary goes on without it.
    released: bool,
    /// The least generation whose replies it knows; 0: it has taken over from nobody.
    continues: u32,
    /// The administrator's order to move.
    order: Option<backups::Order>,
}

/// The daemon's counters of an endpoint.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    introduced: u64,
    refused: u64,
    borrowed: u64,
}

/// Two endpoints that were introduced to each other; the first has the lower slot.
#[derive(Debug)]
struct Pair {
    /// Number of its channel on this node; `None` where an earlier daemon made it.
    channel: Option<u64>,
    /// The rights that each was told last.
    rights: [EndpointRights; 2],
    since: SystemTime,
}

impl Endpoints {
    pub(super) fn keep_numbers(&mut self, numbers: Numbers) {
        self.numbers = Some(numbers);
    }
}

fn pair_of(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}

impl Table {
    fn new(names: BTreeMap<String, u32>, first_grant: u64) -> Self {
        Self {
            slots: HashMap::new(),
            names,
            free: Vec::new(),
            bound: 0,
            anonymous: BTreeMap::new(),
            pairs: HashMap::new(),
            far: HashMap::new(),
            buffers: Buffers::new(first_grant),
            awaited: HashMap::new(),
            waiting: BTreeMap::new(),
            missed: 0,
            lost: BTreeSet::new(),
            binds: 0,
            introductions: 0,
            began: Instant::now(),
            ended: BTreeMap::new(),
        }
    }

    fn bound(&self, slot: u32) -> Option<(&Bound, &Slot)> {
        let slot = self.slots.get(&slot)?;
        slot.bound.as_ref().map(|bound| (bound, slot))
    }

    /// The endpoint at an address, if it is there.
    fn at(&self, address: EndpointAddress) -> Option<(&Bound, &Slot)> {
        self.bound(address.slot).filter(|(bound, _)| bound.generation == address.generation)
    }

    /// Where whoever is in a slot is, on this node or another one.
    fn address(&self, slot: u32) -> Option<EndpointAddress> {
        let here = self.bound(slot).map(|(bound, _)| EndpointAddress { slot, generation: bound.generation });
        here.or_else(|| self.far.get(&slot).map(|peer| peer.address))
    }

    fn caller(&self, slot: u32) -> Option<Caller<'_>> {
        let here = self.bound(slot);
        let here = here.map(|(bound, slot)| Caller { name: slot.name.as_deref(), domain: &bound.domain });
        here.or_else(|| self.far.get(&slot).map(far::FarPeer::caller))
    }

    /// Wakes who waits for this.
    fn wake(&mut self, awaited: &Awaited) {
        if let Some(waiting) = self.awaited.remove(awaited) {
            waiting.notify_waiters();
        }
    }
}

/// The answer to a request of an endpoint, and the descriptors that have to be watched from then
/// on.
type Answered = Result<Outgoing, Refusal>;

/// A bound endpoint, as its own connection names it.
struct Own {
    dc: String,
    slot: u32,
    address: EndpointAddress,
    topology: Arc<Topology>,
}

impl Broker {
    /// Answers a request about endpoints.
    pub(super) fn endpoint_request(
        &self,
        inner: &mut Inner,
        id: MemberId,
        who: &Identity,
        request: Request,
        room: Option<OwnedSemaphorePermit>,
    ) -> Answered {
        match request {
            Request::Bind { id: number, name, token, peers } => {
                inner.bind(id, who, number, &bind::Wish { name, token, peers })
            }
            Request::Back { id: number, name, token, peers } => {
                inner.back(id, who, number, &bind::Wish { name, token, peers })
            }
            Request::Promote { id: number, endpoint, over, continues, supersede } => {
                let own = inner.own(id, who, endpoint)?;
                inner.promote(id, who, &own, &backups::Promotion { number, over, continues, supersede })
            }
            Request::Release { id: number, endpoint, backup } => {
                let own = inner.own(id, who, endpoint)?;
                inner.release(&own, number, backup)
            }
            Request::Continues { id: number, endpoint, from } => {
                let own = inner.own(id, who, endpoint)?;
                inner.continues(&own, number, from)
            }
            Request::Stay { id: number, endpoint, why } => {
                let own = inner.own(id, who, endpoint)?;
                inner.stay(&own, number, why)
            }
            Request::Unbind { id: number, endpoint } => inner.unbind(id, who, number, endpoint),
            Request::Introduce { id: number, endpoint, to, wait_ms } => {
                let own = inner.own(id, who, endpoint)?;
                let wish = introduce::Wish { number, to, waited: wait_ms != 0 };
                let introduced = self.introduce(inner, id, who, &own, &wish, room);
                inner.count(&own.dc, own.slot, |counters| match &introduced {
                    Ok(_) => counters.introduced += 1,
                    Err(_) => counters.refused += 1,
                });
                introduced
            }
            Request::Buffer { id: number, endpoint, bytes, replaces } => {
                let own = inner.own(id, who, endpoint)?;
                inner.make_buffer(&own, who, number, (bytes, replaces))
            }
            Request::Free { id: number, endpoint, buffer } => {
                let own = inner.own(id, who, endpoint)?;
                inner.free_buffer(&own, number, buffer)
            }
            Request::Grant { id: number, endpoint, buffer, to, access, place, grant } => {
                let own = inner.own(id, who, endpoint)?;
                inner.grant(&own, number, &buffers::Wish { buffer, to, access, place, grant })
            }
            Request::Revoke { id: number, endpoint, grant } => {
                let own = inner.own(id, who, endpoint)?;
                inner.revoke(&own, number, grant)
            }
            Request::Borrow { id: number, endpoint, grant } => {
                let own = inner.own(id, who, endpoint)?;
                let borrowed = inner.borrow(&own, who, number, grant);
                inner.count(&own.dc, own.slot, |counters| match &borrowed {
                    Ok(_) => counters.borrowed += 1,
                    Err(_) => counters.refused += 1,
                });
                borrowed
            }
            _ => refuse(Errno::INVAL, "this is no request about endpoints"),
        }
    }
}

impl Inner {
    /// The endpoint of this connection in a slot.
    fn own(&self, id: MemberId, who: &Identity, slot: u32) -> Result<Own, Refusal> {
        let own = self.endpoints.of_member.get(&id).is_some_and(|slots| slots.contains(&slot));
        let address =
            self.endpoints.tables.get(&who.dc).and_then(|table| table.address(slot)).filter(|_| own);
        let (Some(address), Some(topology)) = (address, self.topologies.get(&who.dc)) else {
            return refuse(
                Errno::BADF,
                format!(
                    "this connection has no endpoint in slot {slot}: it was unbound, or never bound here"
                ),
            );
        };
        Ok(Own { dc: who.dc.clone(), slot, address, topology: Arc::clone(topology) })
    }

    /// Whether this daemon may hold more descriptors for endpoints: half of those that it can have
    /// are for everything else, so that what one distributed container may take by its file leaves
    /// room for the others.
    fn room_for_descriptors(&self) -> Result<(), Refusal> {
        let endpoints = &self.endpoints;
        let of_buffers = endpoints.tables.values().map(|table| table.buffers.descriptors()).sum::<usize>();
        let held = endpoints.regions.descriptors() + of_buffers;
        if held < descriptors_most() {
            return Ok(());
        }
        refuse(
            Errno::NFILE,
            format!(
                "this node's daemon holds {held} descriptors for pairs and buffers, which are the most: close some, or start it with a higher \
                 limit of open files"
            ),
        )
    }

    fn count(&mut self, dc: &str, slot: u32, add: impl FnOnce(&mut Counters)) {
        let slot = self.endpoints.tables.get_mut(dc).and_then(|table| table.slots.get_mut(&slot));
        if let Some(bound) = slot.and_then(|slot| slot.bound.as_mut()) {
            add(&mut bound.counters);
        }
    }

    /// A connection has ended, and its endpoints with it.
    pub(super) fn endpoints_left(&mut self, id: MemberId, dc: &str) {
        for slot in self.endpoints.of_member.remove(&id).unwrap_or_default() {
            self.end_endpoint(dc, slot);
        }
        if let Some(table) = self.endpoints.tables.get_mut(dc) {
            table.waiting.remove(&id);
        }
    }
}

/// A number that a file says, to be compared with how many there are.
fn most(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Descriptors for endpoints that this process may hold.
fn descriptors_most() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 2).unwrap_or(usize::MAX))
}

/// Names that are looked at for what was probably meant: a slip must not be dear to the daemon.
const MAX_SUGGESTED: usize = 256;

/// Shortens text of a stranger.
fn short(text: &str) -> String {
    text.chars().take(topology::NAME_BYTES_MAX).collect()
}

/// How an endpoint is called in messages.
fn called(name: Option<&str>, address: EndpointAddress) -> String {
    let EndpointAddress { slot, generation } = address;
    match name {
        Some(name) => format!("{name} ({slot}.{generation})"),
        None => format!("{slot}.{generation}"),
    }
}

/// Only programs have endpoints: the frontend and its entrances do not.
fn must_be_program(who: &Identity) -> Result<(), Refusal> {
    if who.role == Role::Program { Ok(()) } else { refuse(Errno::PERM, "only a program has endpoints") }
}
