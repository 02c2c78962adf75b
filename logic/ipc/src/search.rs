//! Whether a call waits for itself.
//!
//! Each endpoint waits for one other at most, so waits form paths that may close to a cycle. Who waits long enough has a random label. It
//! publishes, to all its peers, the greatest label on the way that it waits along: its own, or the one that the peer publishes for which it
//! waits. In a cycle the greatest label comes round to its owner, and to nobody else: that one call ends with a deadlock. Labels come only
//! from whom one waits for, so what a peer publishes concerns those that wait for it, and nobody else. (After Mitchell and Merritt, "A
//! distributed algorithm for deadlock detection and resolution", PODC 1984; hops instead of labels that only grow, so that no peer can
//! use labels up.)

use wire::ipc as layout;
use wire::ipc::Address;

use crate::{Endpoint, Link, Way, Word};

/// What is published while a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    label: u64,
    target: Address,
    published: u64,
}

impl<L: Link> Endpoint<L> {
    pub(crate) fn published(&self) -> u64 {
        self.search.map_or(0, |search| search.published)
    }

    /// Looks whether the wait for `target` is part of a cycle whose greatest label is ours. Begins when there is a label.
    pub(crate) fn is_deadlocked(&mut self, target: Address, label: Option<u64>) -> bool {
        let search = match (self.search, label) {
            (Some(search), _) if search.target == target => search,
            (Some(search), _) => {
                self.say_waits(search.target, 0);
                self.say_waits(target, 1);
                Search { target, ..search }
            }
            (None, Some(label)) => {
                self.say_waits(target, 1);
                Search { label, target, published: 0 }
            }
            (None, None) => return false,
        };
        self.search = Some(search);
        // PATH: we have said that we wait; what the peer publishes later, it tells us.
        let Ok(peer) = self.peer(target) else { return false };
        let (seen, hops) = layout::path_of(peer.link.load(Way::In, Word::Path));
        if seen == search.label {
            return true;
        }
        let passed_on = seen > search.label && hops + 1 < self.limits.hops;
        let path =
            if passed_on { layout::path_word(seen, hops + 1) } else { layout::path_word(search.label, 0) };
        if path != search.published {
            self.search = Some(Search { published: path, ..search });
            self.publish(path);
        }
        false
    }

    /// The call is over.
    pub(crate) fn end_search(&mut self) {
        if let Some(search) = self.search.take() {
            self.say_waits(search.target, 0);
            self.publish(0);
        }
    }

    fn say_waits(&mut self, target: Address, waits: u64) {
        if let Ok(peer) = self.peer(target) {
            peer.link.store(Way::Out, Word::Waits, waits);
        }
    }

    fn publish(&mut self, path: u64) {
        for peer in &self.peers {
            peer.link.store(Way::Out, Word::Path, path);
        }
        for peer in &self.peers {
            // PATH: what we have published shows before we look who waits. One fence would do for all; they are few, and this is rare.
            peer.link.fence();
            if peer.link.load(Way::In, Word::Waits) != 0 {
                peer.nudge();
            }
        }
    }
}
