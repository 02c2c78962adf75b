//! The stand-in's endpoints: a real table, real pairs and buffers; privileges as a test says.

use super::outbox::{Answer, Outbox};
use ipc::grants::{Access, BorrowError, BufferError, GrantError, Granted, Limits, Over, Table, Wish};
use rustix::io::Errno;
use session::packet::Packet;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use sys::memfd::{self, Reach};
use sys::region::Region;
use wire::control::{
    EndpointAddress, EndpointPeer, EndpointRights, Event, GrantAccess, GrantedBuffer, Reply, Request, Whom,
};
use wire::grants::{STATE_BYTES, STATE_DEAD, STATE_REVOKED};

/// Bytes of a ring of a pair.
const RING_BYTES: u32 = 64 << 10;
/// Slots that one life of the stand-in hands out, so that the next one's are others.
const SLOTS_PER_LIFE: u32 = 1000;
/// The limits on the buffers of the one distributed container.
const LIMITS: Limits = Limits { bytes: 256 << 20, buffers: 256, grants: 1024 };

/// Everything is allowed.
pub(super) const ALL_RIGHTS: EndpointRights = EndpointRights {
    send: true,
    request: true,
    notify: true,
    relay: true,
    hears: true,
    answers: true,
    answers_relayed: true,
    heeds: true,
};

/// An order of a test to the stand-in about its endpoints.
#[derive(Debug)]
pub(super) enum Order {
    /// The rights of one endpoint with another; none at all both ways: they can't be introduced.
    Rights { of: String, with: String, rights: EndpointRights },
    /// The topology has these names, and no others. Without this it has every name.
    Names(Vec<String>),
    /// The topology no longer has this name.
    Unbind(String),
}

#[derive(Debug, Clone)]
struct Slot {
    generation: u32,
    name: String,
    domain: String,
    /// Number of the member that has bound it.
    member: Option<u64>,
    /// The endpoint whose backup it is.
    backs: Option<String>,
    /// Its primary goes on without it.
    released: bool,
    /// The least generation whose replies it knows; 0: it has taken over from nobody.
    continues: u32,
}

impl Slot {
    fn new(generation: u32, name: &str, domain: &str, member: u64) -> Self {
        let (name, domain) = (name.to_owned(), domain.to_owned());
        Self { generation, name, domain, member: Some(member), backs: None, released: false, continues: 0 }
    }
}

/// An introduction that waits for somebody.
#[derive(Debug)]
struct Wait {
    member: u64,
    id: u64,
    slot: u32,
    name: String,
    until: Instant,
}

#[derive(Debug)]
pub(super) struct Endpoints {
    slots: BTreeMap<u32, Slot>,
    next_slot: u32,
    pairs: HashSet<(u32, u32)>,
    channels: u64,
    waits: Vec<Wait>,
    rights: HashMap<(String, String), EndpointRights>,
    names: Option<Vec<String>>,
    table: Table,
    memories: HashMap<u64, (OwnedFd, OwnedFd)>,
    /// The states of buffers, mapped before they were sealed.
    states: HashMap<u64, Region>,
}

struct Refusal(Errno, String);

impl From<(Errno, String)> for Refusal {
    fn from((errno, message): (Errno, String)) -> Self {
        Refusal(errno, message)
    }
}

impl Endpoints {
    /// Each life of the stand-in in the same folder has slots and numbers of its own.
    pub(super) fn new(folder: &Path) -> Self {
        let path = folder.join("epoch");
        let epoch = std::fs::read_to_string(&path).ok().and_then(|text| text.parse().ok()).unwrap_or(0_u32);
        std::fs::write(&path, (epoch + 1).to_string()).expect("written");
        Self {
            slots: BTreeMap::new(),
            next_slot: epoch * SLOTS_PER_LIFE,
            pairs: HashSet::new(),
            channels: 0,
            waits: Vec::new(),
            rights: HashMap::new(),
            names: None,
            table: Table::new(u64::from(epoch) << 32 | 1),
            memories: HashMap::new(),
            states: HashMap::new(),
        }
    }

    /// When somebody's wait is over.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waits.iter().map(|wait| wait.until).min()
    }

    /// Refuses those whose wait is over.
    pub(super) fn give_up(&mut self, out: &Outbox<'_>) {
        let now = Instant::now();
        let (over, waiting) = std::mem::take(&mut self.waits).into_iter().partition(|wait| wait.until <= now);
        self.waits = waiting;
        for Wait { member, id, name, .. } in over as Vec<Wait> {
            let message = format!("endpoint {name} was not bound in time");
            out.reply(member, &Reply::Refused { id, errno: Errno::TIMEDOUT.raw_os_error(), message });
        }
    }

    pub(super) fn order(&mut self, order: Order, out: &Outbox<'_>) {
        match order {
            Order::Rights { of, with, rights } => {
                self.rights.insert((of.clone(), with.clone()), rights);
                let (Some(one), Some(other)) = (self.slot_of(&of), self.slot_of(&with)) else { return };
                if let (true, Some(member)) = (self.pairs.contains(&ordered(one, other)), self.member(one)) {
                    let event = Event::Rights { endpoint: one, peer: self.address(other), rights };
                    out.reply(member, &Reply::Event(event));
                }
            }
            Order::Names(names) => self.names = Some(names),
            Order::Unbind(name) => {
                let Some(slot) = self.slot_of(&name) else { return };
                if let Some(member) = self.member(slot) {
                    let message = format!("the topology has no endpoint {name} any more");
                    out.reply(member, &Reply::Event(Event::Unbound { endpoint: slot, message }));
                }
                self.end(slot, out);
            }
        }
    }

    /// A member has hung up.
    pub(super) fn gone(&mut self, member: u64, out: &Outbox<'_>) {
        self.waits.retain(|wait| wait.member != member);
        let its: Vec<u32> = self.slots_where(|slot| slot.member == Some(member));
        for slot in its {
            self.end(slot, out);
        }
    }

    fn slots_where(&self, which: impl Fn(&Slot) -> bool) -> Vec<u32> {
        self.slots.iter().filter(|(_, slot)| which(slot)).map(|(number, _)| *number).collect()
    }

    fn end(&mut self, slot: u32, out: &Outbox<'_>) {
        let address = self.address(slot);
        if let Some(found) = self.slots.get_mut(&slot) {
            found.member = None;
        }
        self.pairs.retain(|(one, other)| *one != slot && *other != slot);
        let gone = self.table.ended(of_wire(address));
        for over in gone.over {
            let place = wire::grants::offset_of(over.granted.place).expect("a checked place");
            let state = if over.granted.owner == of_wire(address) { STATE_DEAD } else { STATE_REVOKED };
            if let Some(states) = self.states.get(&over.granted.buffer) {
                states.store_u64(place, state, Ordering::Release);
            }
            self.tell_over(&over, out);
        }
        for buffer in gone.buffers {
            self.forget(buffer);
        }
    }

    fn forget(&mut self, buffer: u64) {
        self.memories.remove(&buffer);
        self.states.remove(&buffer);
    }

    fn tell_over(&self, over: &Over, out: &Outbox<'_>) {
        for who in &over.tell {
            if let Some(member) = self.member(who.slot) {
                let event = Event::Revoked { endpoint: who.slot, grant: over.granted.grant };
                out.reply(member, &Reply::Event(event));
            }
        }
    }

    fn slot_of(&self, name: &str) -> Option<u32> {
        self.slots.iter().find(|(_, slot)| !name.is_empty() && slot.name == name).map(|(number, _)| *number)
    }

    fn member(&self, slot: u32) -> Option<u64> {
        self.slots.get(&slot).and_then(|slot| slot.member)
    }

    fn address(&self, slot: u32) -> EndpointAddress {
        EndpointAddress { slot, generation: self.slots.get(&slot).map_or(0, |slot| slot.generation) }
    }

    fn rights(&self, of: &str, with: &str) -> EndpointRights {
        self.rights.get(&(of.to_owned(), with.to_owned())).copied().unwrap_or(ALL_RIGHTS)
    }

    fn may_meet(&self, one: u32, other: u32) -> bool {
        let name = |slot| self.slots.get(&slot).map_or("", |slot: &Slot| slot.name.as_str());
        let none = EndpointRights::default();
        self.rights(name(one), name(other)) != none || self.rights(name(other), name(one)) != none
    }

    /// Answers one request of a member, unless it has to wait.
    pub(super) fn answer(&mut self, (member, domain): (u64, &str), request: &Request, out: &Outbox<'_>) {
        let id = match request {
            Request::Bind { id, .. }
            | Request::Back { id, .. }
            | Request::Promote { id, .. }
            | Request::Release { id, .. }
            | Request::Continues { id, .. }
            | Request::Unbind { id, .. }
            | Request::Introduce { id, .. }
            | Request::Buffer { id, .. }
            | Request::Free { id, .. }
            | Request::Grant { id, .. }
            | Request::Revoke { id, .. }
            | Request::Borrow { id, .. } => *id,
            _ => return,
        };
        let endpoint = match request {
            Request::Unbind { endpoint, .. }
            | Request::Promote { endpoint, .. }
            | Request::Release { endpoint, .. }
            | Request::Continues { endpoint, .. }
            | Request::Introduce { endpoint, .. }
            | Request::Buffer { endpoint, .. }
            | Request::Free { endpoint, .. }
            | Request::Grant { endpoint, .. }
            | Request::Revoke { endpoint, .. }
            | Request::Borrow { endpoint, .. } => Some(*endpoint),
            _ => None,
        };
        let answered = match endpoint.filter(|slot| self.member(*slot) != Some(member)) {
            Some(slot) => Err(Refusal(Errno::BADF, format!("slot {slot} is no endpoint of this connection"))),
            None => self.done((member, domain), request, out),
        };
        match answered {
            Ok(Some(Packet { message, descriptors })) => out.send(member, &message, &descriptors),
            Ok(None) => {}
            Err(Refusal(errno, message)) => {
                out.reply(member, &Reply::Refused { id, errno: errno.raw_os_error(), message });
            }
        }
    }

    fn done(
        &mut self,
        (member, domain): (u64, &str),
        request: &Request,
        out: &Outbox<'_>,
    ) -> Result<Option<Answer>, Refusal> {
        let mut descriptors = Vec::new();
        let message = match *request {
            Request::Bind { id, ref name, ref token, ref peers } => {
                let address = self.bind(member, domain, name, token)?;
                self.pairs.extend(peers.iter().map(|peer| ordered(address.slot, peer.slot)));
                let token = format!("{}.{}.{name}", address.slot, address.generation);
                out.reply(member, &Reply::Bound { id, address, token, copies: name.starts_with("copier") });
                self.serve_waits(name, out);
                return Ok(None);
            }
            Request::Back { id, ref name, ref token, ref peers } => {
                let address = self.bind(member, domain, "", token)?;
                self.pairs.extend(peers.iter().map(|peer| ordered(address.slot, peer.slot)));
                if let Some(slot) = self.slots.get_mut(&address.slot) {
                    slot.backs = Some(name.clone());
                }
                let token = format!("{}.{}.", address.slot, address.generation);
                Reply::Bound { id, address, token, copies: false }
            }
            Request::Promote { id, endpoint, over, continues, supersede } => {
                let (name, address) = self.promote((member, domain), endpoint, over, supersede, out)?;
                if let Some(slot) = self.slots.get_mut(&address.slot) {
                    slot.continues = if continues == 0 { address.generation } else { continues };
                }
                let token = format!("{}.{}.{name}", address.slot, address.generation);
                out.reply(member, &Reply::Promoted { id, address, token, copies: false });
                self.serve_waits(&name, out);
                return Ok(None);
            }
            Request::Release { id, endpoint, backup } => {
                // The primary parts from it next, so that both can be introduced anew.
                self.pairs.remove(&ordered(endpoint, backup.slot));
                if let Some(slot) = self.slots.get_mut(&backup.slot) {
                    slot.released = true;
                }
                Reply::Done { id }
            }
            Request::Continues { id, endpoint, from } => {
                if let Some(slot) = self.slots.get_mut(&endpoint) {
                    slot.continues = from;
                }
                Reply::Done { id }
            }
            Request::Unbind { id, endpoint } => {
                self.end(endpoint, out);
                Reply::Done { id }
            }
            Request::Introduce { id, endpoint, ref to, wait_ms } => {
                return self.introduce(member, (id, endpoint, wait_ms), to, out).map(|()| None);
            }
            Request::Buffer { id, endpoint, bytes, replaces } => {
                let owner = of_wire(self.address(endpoint));
                let buffer = self.table.buffer(owner, bytes, replaces, &LIMITS)?;
                let data = memfd::to_grant("tombolo-buffer", bytes.next_multiple_of(4096)).expect("a memfd");
                let states = memfd::to_grant("tombolo-states", STATE_BYTES as u64).expect("a memfd");
                rustix::io::pwrite(&states, &wire::grants::head(), 0).expect("written");
                descriptors = duplicates(&data, &states);
                self.states.insert(buffer, Region::map(&states, STATE_BYTES).expect("mapped"));
                self.memories.insert(buffer, (data, states));
                Reply::Buffer { id, buffer }
            }
            Request::Free { id, endpoint, buffer } => {
                let over = self.table.free(of_wire(self.address(endpoint)), buffer);
                for over in over.map_err(|error| Refusal(Errno::NOENT, error.to_string()))? {
                    self.tell_over(&over, out);
                }
                self.forget(buffer);
                Reply::Done { id }
            }
            Request::Grant { id, endpoint, buffer, to, access, place, grant } => {
                let to = self.grantee(endpoint, to)?;
                let access = if access == GrantAccess::Read { Access::Read } else { Access::Write };
                let wish = Wish { buffer, to: of_wire(to), access, place };
                Reply::Granted { id, grant: self.grant(endpoint, grant, &wish, out)? }
            }
            Request::Revoke { id, endpoint, grant } => {
                let over = self.table.revoke(of_wire(self.address(endpoint)), grant);
                self.tell_over(&over.map_err(|error| Refusal(Errno::NOENT, error.to_string()))?, out);
                Reply::Done { id }
            }
            Request::Borrow { id, endpoint, grant } => {
                let copies = self.slots.get(&endpoint).is_some_and(|slot| slot.name.starts_with("copier"));
                let granted = self.table.borrow(of_wire(self.address(endpoint)), copies, grant)?;
                let (data, states) = self.memories.get(&granted.buffer).expect("its memories");
                descriptors = duplicates(data, states);
                Reply::Borrowed { id, buffer: on_wire(&granted) }
            }
            _ => return Ok(None),
        };
        Ok(Some(Packet { message, descriptors }))
    }

    fn bind(
        &mut self,
        member: u64,
        domain: &str,
        name: &str,
        token: &str,
    ) -> Result<EndpointAddress, Refusal> {
        if !name.is_empty()
            && self.names.as_ref().is_some_and(|names| !names.iter().any(|known| known == name))
        {
            return Err(Refusal(Errno::NOENT, format!("the topology has no endpoint {name}")));
        }
        let claimed = token.splitn(3, '.').map(str::to_owned).collect::<Vec<_>>();
        let claimed = match claimed.as_slice() {
            [slot, generation, of] if of == name => slot.parse().ok().zip(generation.parse().ok()),
            [empty] if empty.is_empty() => None,
            _ => return Err(Refusal(Errno::ACCESS, "that is no token of this endpoint".into())),
        };
        let known = self.slot_of(name);
        if known.is_some_and(|slot| self.member(slot).is_some()) {
            return Err(Refusal(Errno::BUSY, format!("endpoint {name} is bound by another program")));
        }
        let (slot, generation) = match (claimed, known) {
            (Some(claimed), _) => claimed,
            (None, Some(slot)) => (slot, self.address(slot).generation + 1),
            (None, None) => {
                self.next_slot += 1;
                (self.next_slot, 1)
            }
        };
        self.slots.insert(slot, Slot::new(generation, name, domain, member));
        Ok(EndpointAddress { slot, generation })
    }

    /// A backup takes its primary's place: the name, and where it is.
    fn promote(
        &mut self,
        (member, domain): (u64, &str),
        backup: u32,
        over: Option<EndpointAddress>,
        supersede: bool,
        out: &Outbox<'_>,
    ) -> Result<(String, EndpointAddress), Refusal> {
        let stands_by = self.slots.get(&backup).and_then(|slot| Some((slot.backs.clone()?, slot.released)));
        let Some((name, released)) = stands_by else {
            return Err(Refusal(Errno::INVAL, "that is no backup".into()));
        };
        let there = self.slot_of(&name).map(|slot| self.address(slot)).or(over);
        let Some(there) = there else {
            return Err(Refusal(Errno::INVAL, "there was no primary".into()));
        };
        if released || over.is_some_and(|over| over.generation < there.generation) {
            return Err(Refusal(Errno::STALE, format!("generation {} is there", there.generation)));
        }
        if let Some(primary) = self.member(there.slot) {
            if !supersede {
                return Err(Refusal(Errno::BUSY, format!("endpoint {name} is there")));
            }
            let by = EndpointAddress { generation: there.generation + 1, ..there };
            let paired = self.pairs.iter().filter(|(one, other)| *one == there.slot || *other == there.slot);
            let peers = paired.map(|(one, other)| if *one == there.slot { *other } else { *one });
            for peer in peers.filter(|peer| *peer != backup) {
                if let Some(member) = self.member(peer) {
                    let event = Event::Superseded { endpoint: peer, peer: there, by };
                    out.reply(member, &Reply::Event(event));
                }
            }
            let message = "it was superseded".to_owned();
            out.reply(primary, &Reply::Event(Event::Unbound { endpoint: there.slot, message }));
        }
        self.end(there.slot, out);
        self.end(backup, out);
        let address = EndpointAddress { generation: there.generation + 1, ..there };
        self.slots.insert(there.slot, Slot::new(address.generation, &name, domain, member));
        Ok((name, address))
    }

    fn serve_waits(&mut self, name: &str, out: &Outbox<'_>) {
        let its = |wait: &Wait| wait.name == name;
        let (served, waiting) = std::mem::take(&mut self.waits).into_iter().partition(its);
        self.waits = waiting;
        for Wait { member, id, slot, name, .. } in served as Vec<Wait> {
            let introduced = self.introduce(member, (id, slot, 0), &Whom::Name(name), out);
            if let Err(Refusal(errno, message)) = introduced {
                out.reply(member, &Reply::Refused { id, errno: errno.raw_os_error(), message });
            }
        }
    }

    fn introduce(
        &mut self,
        member: u64,
        (id, asker, wait_ms): (u64, u32, u32),
        to: &Whom,
        out: &Outbox<'_>,
    ) -> Result<(), Refusal> {
        let (found, name) = match to {
            Whom::Name(name) => {
                if self.names.as_ref().is_some_and(|names| !names.contains(name)) {
                    return Err(Refusal(Errno::NOENT, format!("the topology has no endpoint {name}")));
                }
                (self.slot_of(name), name.clone())
            }
            Whom::Address(address) => {
                let there = self.address(address.slot).generation;
                if there != address.generation && there != 0 {
                    return Err(Refusal(Errno::STALE, format!("generation {there} is there")));
                }
                (self.slots.contains_key(&address.slot).then_some(address.slot), String::new())
            }
        };
        let bound = found.and_then(|slot| Some((slot, self.member(slot)?)));
        let Some((slot, others)) = bound else {
            if wait_ms == 0 {
                return Err(Refusal(Errno::NOTCONN, format!("endpoint {name} is not bound now")));
            }
            let until = Instant::now() + Duration::from_millis(u64::from(wait_ms));
            self.waits.push(Wait { member, id, slot: asker, name, until });
            return Ok(());
        };
        if slot == asker {
            return Err(Refusal(Errno::INVAL, "an endpoint can't be introduced to itself".into()));
        }
        if !self.may_meet(asker, slot) {
            return Err(Refusal(
                Errno::PERM,
                format!("endpoint {name} does not allow it, nor is it allowed"),
            ));
        }
        if !self.pairs.insert(ordered(asker, slot)) {
            return Err(Refusal(Errno::ALREADY, "the two know each other".into()));
        }
        for end in [asker, slot] {
            if let Some(slot) = self.slots.get_mut(&end) {
                slot.released = false;
            }
        }
        self.channels += 1;
        let config = channel::Config { ring_bytes: RING_BYTES, ..channel::Config::default() };
        let (one, other) = channel::pair(&config).expect("a channel");
        let (channel, peer) = (self.channels, self.peer(asker, slot));
        out.send(
            others,
            &Reply::Event(Event::Introduced { endpoint: slot, peer, channel }),
            &other.into_descriptors(),
        );
        let peer = self.peer(slot, asker);
        out.send(member, &Reply::Introduced { id, peer, channel }, &one.into_descriptors());
        Ok(())
    }

    /// Returns the description of `peer` for `told`.
    fn peer(&self, peer: u32, told: u32) -> EndpointPeer {
        let nobody = || Slot { member: None, ..Slot::new(0, "", "", 0) };
        let found = |slot: &u32| self.slots.get(slot).cloned().unwrap_or_else(nobody);
        let (peers, tolds) = (found(&peer), found(&told));
        let rights = self.rights(&tolds.name, &peers.name);
        EndpointPeer {
            address: self.address(peer),
            name: peers.name,
            domain: peers.domain,
            rights,
            continues: peers.continues,
            backup: peers.backs.is_some_and(|name| name == tolds.name),
        }
    }

    fn grantee(&self, owner: u32, to: EndpointAddress) -> Result<EndpointAddress, Refusal> {
        if self.member(to.slot).is_none() {
            return Err(Refusal(Errno::NOTCONN, format!("slot {} is not bound", to.slot)));
        }
        if self.address(to.slot) != to {
            let there = self.address(to.slot).generation;
            return Err(Refusal(Errno::STALE, format!("generation {there} is there")));
        }
        if to.slot != owner && !self.may_meet(owner, to.slot) {
            return Err(Refusal(Errno::PERM, "neither endpoint may call the other".into()));
        }
        Ok(to)
    }

    fn grant(&mut self, owner: u32, grant: u64, wish: &Wish, out: &Outbox<'_>) -> Result<u64, Refusal> {
        let owner = of_wire(self.address(owner));
        let done = match grant {
            0 => self.table.grant(owner, wish, &LIMITS),
            moved => self.table.move_grant(owner, moved, wish),
        }?;
        if done.seal {
            let (data, states) = self.memories.get(&wish.buffer).expect("its memories");
            let reach = if wish.access == Access::Read { Reach::Read } else { Reach::Write };
            memfd::seal_for(data, reach).expect("sealed");
            memfd::seal_for(states, Reach::Read).expect("sealed");
        }
        for who in &done.tell {
            if let Some(member) = self.member(who.slot) {
                out.reply(member, &Reply::Event(Event::Moved { endpoint: who.slot, grant }));
            }
        }
        Ok(done.grant)
    }
}

fn ordered(one: u32, other: u32) -> (u32, u32) {
    (one.min(other), one.max(other))
}

fn of_wire(address: EndpointAddress) -> wire::ipc::Address {
    wire::ipc::Address { slot: address.slot, generation: address.generation }
}

fn on_wire(granted: &Granted) -> GrantedBuffer {
    let address = |of: wire::ipc::Address| EndpointAddress { slot: of.slot, generation: of.generation };
    let access = if granted.access == Access::Read { GrantAccess::Read } else { GrantAccess::Write };
    let Granted { grant, buffer, place, owner, to, bytes, .. } = *granted;
    GrantedBuffer { grant, buffer, place, owner: address(owner), to: address(to), access, bytes }
}

fn duplicates(data: &OwnedFd, states: &OwnedFd) -> Vec<OwnedFd> {
    [data, states].map(|memory| memory.as_fd().try_clone_to_owned().expect("a descriptor")).into()
}

impl From<BufferError> for Refusal {
    fn from(error: BufferError) -> Self {
        let errno = match error {
            BufferError::Size(_) | BufferError::Replaces(_) => Errno::INVAL,
            BufferError::Buffers(_) => Errno::USERS,
            BufferError::Bytes { .. } => Errno::NOSPC,
        };
        Refusal(errno, error.to_string())
    }
}

impl From<GrantError> for Refusal {
    fn from(error: GrantError) -> Self {
        let errno = match error {
            GrantError::NoBuffer(..) | GrantError::NoGrant(..) => Errno::NOENT,
            GrantError::Grants(_) => Errno::USERS,
            GrantError::Over(_) => Errno::KEYREVOKED,
            _ => Errno::INVAL,
        };
        Refusal(errno, error.to_string())
    }
}

impl From<BorrowError> for Refusal {
    fn from(error: BorrowError) -> Self {
        let errno = match error {
            BorrowError::Unknown(_) => Errno::NOENT,
            BorrowError::Own(_) => Errno::INVAL,
            BorrowError::Revoked(_) => Errno::KEYREVOKED,
            BorrowError::OwnerEnded(..) => Errno::OWNERDEAD,
        };
        Refusal(errno, error.to_string())
    }
}
