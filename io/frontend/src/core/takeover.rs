//! How a successor becomes what its predecessor was.

use rustix::io::Errno;

use super::{Call, Core, DEFAULTS_FIRST, DOWN_WAIT_NS, Facts, LOCKS_SLOT, Link};
use crate::handle::{Handle, Progress, Session};
use crate::host::Host;
use crate::ledger::Records;
use crate::tree::Node;

impl<H: Host> Core<H> {
    /// Takes over from the records of the ledger. Returns whether the kernel can be asked to send
    /// again; if it can't, what the predecessor had read ends with `EIO` here.
    pub(crate) fn take_over(&mut self, records: Records) -> bool {
        let (mut parked, mut locks) = (Vec::new(), Vec::new());
        for (slot, record) in records {
            match slot.checked_sub(1) {
                None => parked = self.take_facts(&record),
                Some(_) if slot == LOCKS_SLOT => locks = record,
                Some(_) if slot >= DEFAULTS_FIRST => self.take_defaults(slot - DEFAULTS_FIRST, record),
                Some(slot) => self.take_handle(slot, &record),
            }
        }
        self.take_locks(&locks);
        let taken: Vec<bool> = self.handles.iter().map(Option::is_some).collect();
        self.free =
            (0..taken.len()).rev().filter(|&slot| !taken.get(slot).copied().unwrap_or(true)).collect();
        self.takeovers += 1;
        self.save_facts();
        let resends = self.agreed.is_none_or(|agreed| agreed.resend);
        for unique in parked {
            // A call that was answered meanwhile is unknown to the kernel, which does no harm.
            self.host.reply(unique, Errno::IO.raw_os_error(), &[]);
        }
        tracing::info!(open_files = self.open_handles, resends, "took over from a predecessor");
        resends
    }

    fn take_facts(&mut self, record: &[u8]) -> Vec<u64> {
        match serde_json::from_slice::<Facts>(record) {
            Ok(facts) => {
                self.agreed = facts.agreed;
                self.takeovers = facts.takeovers;
                self.tree = facts.tree;
                self.memories.numbers = facts.memories;
                self.links = vec![Link::default(); self.tree.services.len()];
                facts.parked
            }
            Err(error) => {
                tracing::error!(%error, "the facts in the ledger are not readable");
                Vec::new()
            }
        }
    }

    fn take_handle(&mut self, slot: usize, record: &[u8]) {
        let Some(mut handle) =
            crate::record::decode(record).filter(|h| h.fh & u64::from(u32::MAX) == slot as u64)
        else {
            tracing::error!(slot, "a record in the ledger is no open file");
            return;
        };
        let deadline = self.host.now().saturating_add(DOWN_WAIT_NS);
        if let Node::File(service, id) = handle.node {
            // Records of before do not say it.
            let file = self.tree.services.get(service).and_then(|service| service.file(id));
            handle.idempotent |= file.is_some_and(|file| file.idempotent);
        }
        let idempotent = handle.idempotent;
        if let Some(stream) = handle.session().and_then(Session::stream) {
            stream.interrupted(idempotent, Errno::CONNRESET.raw_os_error());
            stream.adopted = true;
        }
        if let Some(session) = handle.session() {
            for entry in &mut session.entries {
                entry.deadline = deadline;
                if let Progress::Sent(_) = entry.progress {
                    entry.progress = if idempotent {
                        self.counters.asked_again += 1;
                        Progress::Queued
                    } else {
                        self.counters.lost += 1;
                        Progress::Failed(Errno::CONNRESET.raw_os_error())
                    };
                }
            }
        }
        if self.handles.len() <= slot {
            self.handles.resize_with(slot + 1, || None);
        }
        self.generation = self.generation.max((handle.fh >> 32) as u32);
        if handle.last.unique != 0 {
            self.replays.insert(handle.last.unique, slot);
        }
        self.open_handles += 1;
        self.restore(slot, handle);
    }

    fn restore(&mut self, slot: usize, mut handle: Handle) {
        if let Node::Own(own) = handle.node
            && handle.flags & 3 != 1
        {
            self.reopen_own(own, &mut handle);
        }
        handle.held = handle.held_bytes();
        self.held += handle.held;
        if let Some(place) = self.handles.get_mut(slot) {
            *place = Some(handle);
        }
    }

    /// After the kernel was asked to send again: wakes whoever polls, so that he asks the
    /// successor.
    pub(crate) fn wake_all(&mut self) {
        for slot in 0..self.handles.len() {
            if let Some(poll) = self.handle(slot).and_then(|handle| handle.poll) {
                self.host.notify_poll(poll.handle);
            }
            self.settle(slot, None);
        }
    }

    /// A request that is sent again: true if it is done with, because the predecessor did it or
    /// because it waits here already.
    pub(super) fn replay(&mut self, call: Call) -> bool {
        if let Some(parked) = self.parked.get_mut(&call.key()) {
            parked.call.unique = call.unique;
            return true;
        }
        let Some(slot) = self.replays.remove(&call.key()) else { return false };
        let Some(handle) = self.handles.get(slot).and_then(Option::as_ref) else { return false };
        if handle.last.unique != call.key() {
            return false;
        }
        self.counters.replayed += 1;
        self.host.reply(call.unique, handle.last.errno, &[&handle.last.payload]);
        true
    }
}
