//! Buffers and grants: the memories, and who is told. The rules are those of `ipc::grants`.

use super::{EndpointAddress, Inner, Own, Table};
use crate::broker::{Identity, Outgoing, Refusal, refuse};
use ipc::grants::{self, Access, BorrowError, BufferError, GrantError, Limits, Over, RevokeError};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use sys::memfd::{self, Reach};
use sys::region::Region;
use topology::{Caller, Topology};
use wire::control::{Event, GrantAccess, GrantedBuffer, Reply};
use wire::grants::{PLACE_FIRST, PLACES, STATE_BYTES, State, head, offset_of};
use wire::ipc::Address;

/// The buffers of one distributed container.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) table: grants::Table,
    memories: HashMap<u64, Memories>,
}

/// The memories of which a buffer is made.
#[derive(Debug)]
struct Memories {
    data: OwnedFd,
    states: OwnedFd,
    /// The states, as this daemon can write them whatever they are sealed against.
    words: Region,
}

/// The parameters of a `grant`.
pub(super) struct Wish {
    pub(super) buffer: u64,
    pub(super) to: EndpointAddress,
    pub(super) access: GrantAccess,
    pub(super) place: u32,
    /// 0: a new one.
    pub(super) grant: u64,
}

impl Buffers {
    pub(super) fn new(first: u64) -> Self {
        Self { table: grants::Table::new(first), memories: HashMap::new() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Descriptors that they are made of.
    pub(super) fn descriptors(&self) -> usize {
        2 * self.memories.len()
    }

    /// Each buffer has its memories, and each memory is a buffer's.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.table.buffers().len(), self.memories.len());
        assert!(self.table.buffers().all(|buffer| self.memories.contains_key(&buffer.buffer)));
        assert!(self.table.grants().all(|grant| self.memories.contains_key(&grant.buffer)));
    }

    /// Whether there is, or was of late, such a grant.
    pub(super) fn knows(&self, grant: u64) -> bool {
        self.table.knows(grant)
    }

    /// Returns the owner of the buffer for which a grant stands.
    pub(super) fn owner_of(&self, grant: u64) -> Option<EndpointAddress> {
        self.table.find(grant).map(|granted| to_wire(granted.owner))
    }

    /// Returns the buffer of a grant and its memories, to be handed over.
    pub(super) fn lend(
        &mut self,
        to: EndpointAddress,
        copies: bool,
        grant: u64,
    ) -> Result<(GrantedBuffer, Vec<OwnedFd>), Refusal> {
        let granted = self.table.borrow(of_wire(to), copies, grant).map_err(refused_borrow)?;
        let descriptors = match self.memories.get(&granted.buffer).map(Memories::copies) {
            Some(Ok(descriptors)) => descriptors,
            Some(Err(error)) => {
                return refuse(Errno::MFILE, format!("the memory of grant {grant} can't be passed: {error}"));
            }
            None => return refuse(Errno::IO, format!("the memory of grant {grant} is lost")),
        };
        let buffer = GrantedBuffer {
            grant: granted.grant,
            buffer: granted.buffer,
            place: granted.place,
            owner: to_wire(granted.owner),
            to: to_wire(granted.to),
            access: match granted.access {
                Access::Read => GrantAccess::Read,
                Access::Write => GrantAccess::Write,
            },
            bytes: granted.bytes,
        };
        Ok((buffer, descriptors))
    }

    fn is_empty(&self) -> bool {
        self.table.buffers().len() == 0 && self.table.grants().len() == 0
    }

    /// Says of grants that are over that they are: whoever copies now learns it.
    fn mark(&self, over: &[Over], state: State) {
        for Over { granted, .. } in over {
            let words = self.memories.get(&granted.buffer).map(|memories| &memories.words);
            if let (Some(words), Some(offset)) = (words, offset_of(granted.place)) {
                words.store_u64(offset, state.number(), Ordering::Release);
            }
        }
    }
}

impl Memories {
    fn make(bytes: u64) -> io::Result<Self> {
        let data = memfd::to_grant("tombolo-buffer", grants::cost_bytes(bytes) - STATE_BYTES as u64)?;
        let states = memfd::to_grant("tombolo-grants", STATE_BYTES as u64)?;
        if rustix::io::pwrite(&states, &head(), 0)? != head().len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let words = Region::map(&states, STATE_BYTES)?;
        Ok(Self { data, states, words })
    }

    /// For somebody's hands.
    fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(vec![self.data.try_clone()?, self.states.try_clone()?])
    }

    /// Seals both for those that it is granted to from now on.
    fn seal(&self, access: Access) -> io::Result<()> {
        let reach = match access {
            Access::Read => Reach::Read,
            Access::Write => Reach::Write,
        };
        memfd::seal_for(&self.states, Reach::Read)?;
        memfd::seal_for(&self.data, reach)
    }

    /// Says of every grant that the owner has ended.
    fn bury(&self) {
        for offset in (PLACE_FIRST..PLACES).filter_map(offset_of) {
            let state = State::of(self.words.load_u64(offset, Ordering::Relaxed));
            if matches!(state, State::Live | State::Moved) {
                self.words.store_u64(offset, State::Dead.number(), Ordering::Release);
            }
        }
    }
}

impl Inner {
    /// An endpoint wants a buffer.
    pub(super) fn make_buffer(
        &mut self,
        own: &Own,
        who: &Identity,
        number: u64,
        (bytes, replaces): (u64, u64),
    ) -> Result<Outgoing, Refusal> {
        self.refuse_guest(&who.dc, &who.domain)?;
        self.room_for_descriptors()?;
        let limits = self.limits(own);
        let buffers = self.buffers_of(own)?;
        let buffer =
            buffers.table.buffer(of_wire(own.address), bytes, replaces, &limits).map_err(refused_buffer)?;
        let made = Memories::make(bytes).and_then(|memories| Ok((memories.copies()?, memories)));
        match made {
            Ok((descriptors, memories)) => {
                buffers.memories.insert(buffer, memories);
                Ok(Outgoing { reply: Reply::Buffer { id: number, buffer }, descriptors, _room: None })
            }
            Err(error) => {
                // Nobody has heard of it: there is nobody to tell.
                let _nobody = buffers.table.free(of_wire(own.address), buffer);
                refuse(Errno::NOMEM, format!("no memory for a buffer of {bytes} bytes: {error}"))
            }
        }
    }

    /// An endpoint does not need a buffer any more.
    pub(super) fn free_buffer(&mut self, own: &Own, number: u64, buffer: u64) -> Result<Outgoing, Refusal> {
        let buffers = self.buffers_of(own)?;
        let over = buffers.table.free(of_wire(own.address), buffer).map_err(refused_revoke)?;
        buffers.mark(&over, State::Revoked);
        buffers.memories.remove(&buffer);
        self.tell_over(&own.dc, &over);
        Ok(Reply::Done { id: number }.into())
    }

    /// An endpoint grants a buffer, or has a grant stand for another one.
    pub(super) fn grant(&mut self, own: &Own, number: u64, wish: &Wish) -> Result<Outgoing, Refusal> {
        self.may_grant(own, wish.to)?;
        let limits = self.limits(own);
        let (owner, buffers) = (of_wire(own.address), self.buffers_of(own)?);
        let access = match wish.access {
            GrantAccess::Read => Access::Read,
            GrantAccess::Write => Access::Write,
        };
        let asked = grants::Wish { buffer: wish.buffer, to: of_wire(wish.to), access, place: wish.place };
        let done = match wish.grant {
            0 => buffers.table.grant(owner, &asked, &limits),
            moved => buffers.table.move_grant(owner, moved, &asked),
        };
        let done = done.map_err(refused_grant)?;
        let sealed =
            buffers.memories.get(&wish.buffer).filter(|_| done.seal).map_or(Ok(()), |m| m.seal(access));
        if let Err(error) = sealed {
            let over: Vec<Over> = buffers.table.revoke(owner, done.grant).into_iter().collect();
            self.tell_over(&own.dc, &over);
            return refuse(
                Errno::IO,
                format!(
                    "the memory of buffer {} can't be sealed ({error}): its owner must not seal it itself",
                    wish.buffer
                ),
            );
        }
        self.tell_each(&own.dc, done.grant, &done.tell, |endpoint| Event::Moved {
            endpoint,
            grant: done.grant,
        });
        Ok(Reply::Granted { id: number, grant: done.grant }.into())
    }

    /// An endpoint takes a grant back.
    pub(super) fn revoke(&mut self, own: &Own, number: u64, grant: u64) -> Result<Outgoing, Refusal> {
        let buffers = self.buffers_of(own)?;
        let over = [buffers.table.revoke(of_wire(own.address), grant).map_err(refused_revoke)?];
        buffers.mark(&over, State::Revoked);
        self.tell_over(&own.dc, &over);
        Ok(Reply::Done { id: number }.into())
    }

    /// An endpoint wants the memory of a grant.
    pub(super) fn borrow(
        &mut self,
        own: &Own,
        who: &Identity,
        number: u64,
        grant: u64,
    ) -> Result<Outgoing, Refusal> {
        self.refuse_guest(&who.dc, &who.domain)?;
        let name = self
            .endpoints
            .tables
            .get(&own.dc)
            .and_then(|table| table.caller(own.slot))
            .and_then(|me| me.name);
        let copies =
            name.and_then(|name| own.topology.endpoint(name)).is_some_and(|endpoint| endpoint.copies);
        if let Some(refusal) = self.why_no_loan(own, &who.domain, grant) {
            return Err(refusal);
        }
        let (buffer, descriptors) = self.buffers_of(own)?.lend(own.address, copies, grant)?;
        Ok(Outgoing { reply: Reply::Borrowed { id: number, buffer }, descriptors, _room: None })
    }

    /// An endpoint has ended: so have its buffers, and all grants that it has made or was made.
    pub(super) fn buffers_gone(&mut self, dc: &str, address: EndpointAddress) {
        let Some(table) = self.endpoints.tables.get_mut(dc) else { return };
        if table.buffers.is_empty() {
            return;
        }
        let gone = table.buffers.table.ended(of_wire(address));
        for buffer in &gone.buffers {
            if let Some(memories) = table.buffers.memories.remove(buffer) {
                memories.bury();
            }
        }
        self.tell_over(dc, &gone.over);
    }

    /// The limits that are left for buffers.
    fn limits(&self, own: &Own) -> Limits {
        let limits = &own.topology.ipc;
        let regions = self.endpoints.regions.bytes(&own.dc);
        Limits {
            bytes: limits.bytes.saturating_sub(regions),
            buffers: super::most(limits.buffers),
            grants: super::most(limits.grants),
        }
    }

    fn buffers_of(&mut self, own: &Own) -> Result<&mut Buffers, Refusal> {
        match self.endpoints.tables.get_mut(&own.dc) {
            Some(table) => Ok(&mut table.buffers),
            None => refuse(Errno::BADF, "it has ended"),
        }
    }

    /// A guest shares no memory with programs of the node but by devices.
    pub(super) fn refuse_guest(&self, dc: &str, domain: &str) -> Result<(), Refusal> {
        if !self.is_guest(dc, domain) {
            return Ok(());
        }
        refuse(
            Errno::OPNOTSUPP,
            format!(
                "domain {domain} is a virtual machine: buffers can't be granted into one or out of it; send messages"
            ),
        )
    }

    /// Whether a buffer may be granted to whom this is.
    fn may_grant(&self, own: &Own, to: EndpointAddress) -> Result<(), Refusal> {
        let EndpointAddress { slot, generation } = to;
        let Some(table) = self.endpoints.tables.get(&own.dc) else {
            return refuse(Errno::BADF, "it has ended");
        };
        if !table.slots.contains_key(&slot) && self.is_far_endpoint(to) {
            return self.may_grant_far(own, to);
        }
        let known = table.slots.get(&slot);
        let caller = known.and_then(|entry| caller_in(&own.topology, table, slot, entry.name.as_deref()));
        let me = table.caller(own.slot);
        if let (Some(me), Some(caller)) = (me, caller)
            && slot != own.slot
            && Self::rights_of(&own.topology, me, caller).is_none()
        {
            return refuse(Errno::PERM, neither(to));
        }
        match table.bound(slot) {
            Some((bound, _)) if bound.generation == generation => self.refuse_guest(&own.dc, &bound.domain),
            None if known.is_none_or(|entry| entry.last < generation) => refuse(
                Errno::NOTCONN,
                format!("no endpoint with the address {slot}.{generation} is bound now"),
            ),
            _ => refuse(
                Errno::STALE,
                format!("endpoint {slot}.{generation} has ended: nothing can be granted to it"),
            ),
        }
    }

    /// Tells those who have borrowed them of grants that are over.
    fn tell_over(&mut self, dc: &str, over: &[Over]) {
        for Over { granted, tell } in over {
            let grant = granted.grant;
            self.tell_each(dc, grant, tell, |endpoint| Event::Revoked { endpoint, grant });
        }
    }

    fn tell_each(&mut self, dc: &str, grant: u64, whom: &[Address], event: impl Fn(u32) -> Event) {
        for address in whom {
            let table = self.endpoints.tables.get(dc);
            let there = table.and_then(|table| table.at(to_wire(*address)));
            match there.map(|(bound, _)| bound.member) {
                Some(member) => self.tell(member, event(address.slot)),
                None if self.is_far_endpoint(to_wire(*address)) => self.recall(dc, grant, to_wire(*address)),
                None => {}
            }
        }
    }
}

/// Returns the present or former occupant of a slot.
fn caller_in<'a>(
    topology: &'a Topology,
    table: &'a Table,
    slot: u32,
    name: Option<&'a str>,
) -> Option<Caller<'a>> {
    match name {
        Some(name) => {
            let endpoint = topology.endpoint(name)?;
            Some(Caller { name: Some(name), domain: endpoint.domain.as_str() })
        }
        None => table.caller(slot),
    }
}

/// Says that two endpoints have nothing to do with each other.
pub(super) fn neither(EndpointAddress { slot, generation }: EndpointAddress) -> String {
    format!(
        "neither may endpoint {slot}.{generation} call this one, nor this one it: nothing is granted to it"
    )
}

fn of_wire(address: EndpointAddress) -> Address {
    Address { slot: address.slot, generation: address.generation }
}

fn to_wire(address: Address) -> EndpointAddress {
    EndpointAddress { slot: address.slot, generation: address.generation }
}

fn refused_buffer(error: BufferError) -> Refusal {
    let errno = match error {
        BufferError::Size(_) | BufferError::Replaces(_) => Errno::INVAL,
        BufferError::Buffers(_) => Errno::USERS,
        BufferError::Bytes { .. } => Errno::NOSPC,
    };
    Refusal { errno, message: error.to_string() }
}

fn refused_grant(error: GrantError) -> Refusal {
    let errno = match error {
        GrantError::NoBuffer(..) | GrantError::NoGrant(..) => Errno::NOENT,
        GrantError::Grants(_) => Errno::USERS,
        GrantError::Over(_) => Errno::KEYREVOKED,
        GrantError::Oneself(_)
        | GrantError::Access { .. }
        | GrantError::Place(_)
        | GrantError::PlaceTaken { .. }
        | GrantError::Other(..)
        | GrantError::Shorter { .. } => Errno::INVAL,
    };
    Refusal { errno, message: error.to_string() }
}

fn refused_revoke(error: RevokeError) -> Refusal {
    Refusal { errno: Errno::NOENT, message: error.to_string() }
}

fn refused_borrow(error: BorrowError) -> Refusal {
    let errno = match error {
        BorrowError::Unknown(_) => Errno::NOENT,
        BorrowError::Own(_) => Errno::INVAL,
        BorrowError::Revoked(_) => Errno::KEYREVOKED,
        BorrowError::OwnerEnded(..) => Errno::OWNERDEAD,
    };
    Refusal { errno, message: error.to_string() }
}
