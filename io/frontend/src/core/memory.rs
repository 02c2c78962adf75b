//! Memory behind files: what mmap(2) of a device reaches. The daemon has it registered with the
//! kernel; here only its number is known.

use std::collections::{BTreeMap, BTreeSet};

use wire::control::Request;
use wire::service::Behaviour;

use super::daemon::Question;
use super::parked::Op;
use super::{Call, Core, DOWN_WAIT_NS, LinkState, file_of};
use crate::host::Host;
use crate::tree::Node;

/// The state of the memories that the domain has with services, by their places in the tree.
#[derive(Debug, Default)]
pub(super) struct Memories {
    /// The kernel's numbers. One is good as long as the mount is.
    pub(super) numbers: BTreeMap<usize, u32>,
    /// With these services there is none: the daemon or the kernel refuses it.
    refused: BTreeSet<usize>,
}

impl<H: Host> Core<H> {
    /// Keeps an open of a device until it is known which memory is behind it; true if it has to
    /// wait.
    pub(super) fn awaits_memory(
        &mut self,
        call: Call,
        service: usize,
        nonblock: bool,
        request: &[u8],
    ) -> bool {
        let passes = self.agreed.is_some_and(|agreed| agreed.passthrough);
        let known = self.memories.numbers.contains_key(&service) || self.memories.refused.contains(&service);
        let link = self.link(service);
        let up = link.state == LinkState::Up;
        let deadline = call.arrived.saturating_add(DOWN_WAIT_NS);
        let is_over = !self.daemon_there || self.host.now() >= deadline;
        if !passes || known || is_over || up && !link.memory || !up && nonblock {
            return false;
        }
        let waits = self.park(call, None, Op::Again { request: request.to_vec() }, deadline);
        if waits && up {
            self.ask_for_memory(service);
        }
        // What could not be kept was refused.
        true
    }

    fn ask_for_memory(&mut self, at: usize) {
        if self.questions.values().any(|asked| *asked == Question::Back(at)) {
            return;
        }
        let Some(service) = self.tree.services.get(at).map(|service| service.mounted.name.clone()) else {
            return;
        };
        let id = self.question(Question::Back(at));
        self.host.ask(&Request::MapMemory { id, service });
    }

    /// The daemon has registered a memory.
    pub(super) fn backed(&mut self, id: u64, number: u32) {
        if let Some(Question::Back(service)) = self.questions.remove(&id) {
            self.memories.numbers.insert(service, number);
            // Before a file is opened with it, so that a successor opens all others with the same.
            self.save_facts();
            self.take_again(false);
        }
    }

    /// The daemon has none to register.
    pub(super) fn has_no_memory(&mut self, service: usize) {
        self.memories.refused.insert(service);
        self.take_again(false);
    }

    /// The number of the memory that is to be behind a file that is being opened.
    pub(super) fn memory_behind(&mut self, slot: usize) -> Option<u32> {
        let Node::File(service, id) = self.handle(slot)?.node else { return None };
        let exported = self.tree.services.get(service)?.file(file_of(Node::File(service, id)))?;
        let number = self.memories.numbers.get(&service)?;
        (exported.behaviour == Behaviour::Device).then_some(*number)
    }
}
