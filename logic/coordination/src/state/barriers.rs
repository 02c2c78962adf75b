//! Barriers: so many pass together, or nobody of them.
//!
//! A barrier counts *generations*. Whoever arrives waits in the one that is being waited in; as
//! soon as there are enough, all of them pass it, and the next begins. Whoever goes before that
//! breaks it for all who wait: they could wait for ever otherwise.

use super::State;
use crate::holders::{Grant, Holder, HolderId, SessionId};
use crate::names::{Root, root_of};
use crate::node::Kind;
use crate::{MAX_PARTIES, MAX_WAITERS, Refusal};

/// The place of somebody who has arrived at a barrier before this server was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It waits, and will be a [`Grant`] or be told that the barrier is broken.
    Waits,
    /// It has passed this generation.
    Passed(u64),
    /// It has not arrived, or its generation was broken.
    Nowhere,
}

impl State {
    /// Says how many pass a barrier together.
    ///
    /// # Errors
    /// [`Refusal`]; [`Refusal::Busy`]: some wait for another number.
    pub fn set_parties(&mut self, path: &str, parties: u32) -> Result<u64, Refusal> {
        if root_of(path) != Some(Root::Barriers) || parties == 0 || parties as usize > MAX_PARTIES {
            return Err(Refusal::Unfit);
        }
        let revision = self.head.revision + 1;
        let node = self.nodes.get_mut(path).ok_or(Refusal::Missing)?;
        if node.count == parties {
            return Ok(node.revision);
        }
        if node.arrived().next().is_some() {
            return Err(Refusal::Busy);
        }
        (node.count, node.revision) = (parties, revision);
        self.count();
        self.dirty.insert(path.to_owned());
        self.tell(revision, format!("put {path}"));
        Ok(revision)
    }

    /// Arrives at a barrier. Its passing is a [`Grant`] with the generation as token; its breaking
    /// is told by [`State::take_broken`].
    ///
    /// # Errors
    /// [`Refusal`]; [`Refusal::Unfit`]: nobody has said yet how many pass.
    pub fn arrive(
        &mut self,
        path: &str,
        (session, id): (SessionId, HolderId),
        domain: &str,
    ) -> Result<(), Refusal> {
        let waiting = self.waiting();
        let node = self.nodes.get_mut(path).ok_or(Refusal::Missing)?;
        if node.kind != Kind::Barrier || node.count == 0 {
            return Err(Refusal::Unfit);
        }
        if node.holders.len() >= MAX_PARTIES || waiting >= MAX_WAITERS {
            return Err(Refusal::Crowded);
        }
        if node.holders.iter().any(|holder| holder.id == id) {
            return Err(Refusal::Exists);
        }
        node.holders.push(Holder { id, token: node.generation, domain: domain.to_owned() });
        let is_full = node.arrived().count() >= node.count as usize;
        self.held.entry(id).or_default().insert(path.to_owned());
        self.arrivals.insert(id, session);
        self.dirty.insert(path.to_owned());
        if is_full {
            self.open_barrier(path);
        }
        Ok(())
    }

    /// Somebody is heard of again who may have arrived.
    pub fn arrived_before(
        &mut self,
        path: &str,
        (session, id): (SessionId, HolderId),
        domain: &str,
    ) -> Place {
        let Some(node) = self.nodes.get(path) else { return Place::Nowhere };
        let mut holders = node.holders.iter();
        let Some(holder) = holders.find(|holder| holder.id == id && holder.domain == domain) else {
            return Place::Nowhere;
        };
        self.orphans.remove(&id);
        if holder.token < node.generation {
            return Place::Passed(holder.token);
        }
        self.arrivals.insert(id, session);
        Place::Waits
    }

    /// Takes the sessions whose barrier was broken, since this was called last.
    pub fn take_broken(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.broken)
    }

    fn open_barrier(&mut self, path: &str) {
        let revision = self.count();
        let Some(node) = self.nodes.get_mut(path) else { return };
        let token = node.generation;
        for id in node.arrived().map(|holder| holder.id) {
            if let Some(session) = self.arrivals.remove(&id) {
                self.grants.push(Grant { session, path: path.to_owned(), token });
            }
        }
        node.generation += 1;
        node.revision = revision;
        self.tell(revision, format!("open {token} {path}"));
    }

    /// Somebody who has arrived goes: what he waited in is broken, and what he has passed is as it
    /// is.
    pub(super) fn leave_barrier(&mut self, path: &str, id: HolderId) {
        self.arrivals.remove(&id);
        let Some(node) = self.nodes.get_mut(path) else { return };
        self.dirty.insert(path.to_owned());
        if node.arrived().all(|holder| holder.id != id) {
            node.holders.retain(|holder| holder.id != id);
            return;
        }
        let generation = node.generation;
        let others: Vec<HolderId> = node.arrived().map(|holder| holder.id).collect();
        node.holders.retain(|holder| holder.token != generation);
        node.generation += 1;
        for id in others {
            self.has_no_more(id, path);
            self.broken.extend(self.arrivals.remove(&id));
        }
        let revision = self.count();
        if let Some(node) = self.nodes.get_mut(path) {
            node.revision = revision;
        }
        self.tell(revision, format!("broken {generation} {path}"));
    }
}
