//! Whether a call waits for itself.
//!
//! Each endpoint waits for one other at most, so waits form paths that may close to a cycle. An
//! endpoint that waits long enough has a random label. It publishes, to all its peers, the greatest
//! label on the way that it waits along: its own, or the one that the peer publishes for which it
//! waits. In a cycle the greatest label comes round to its owner, and to nobody else: that one call
//! ends with a deadlock. Labels come only from whom one waits for, so what a peer publishes
//! concerns those that wait for it, and nobody else. (After Mitchell and Merritt, "A distributed
//! algorithm for deadlock detection and resolution", PODC 1984; hops instead of labels that only
//! grow, so that no peer can use labels up.)

use wire::ipc as layout;
use wire::ipc::Address;

use crate::{Endpoint, Link, Way, Word};

/// The words that are published while a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    label: u64,
    target: Address,
    published: u64,
}

/// The outcome of a look at the path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Glance {
    /// Our own label came round.
    Deadlock,
    /// The path to publish from now on.
    Path(u64),
}

impl<L: Link> Endpoint<L> {
    pub(crate) fn published(&self) -> u64 {
        self.search.map_or(0, |search| search.published)
    }

    /// Looks what whoever we wait for publishes. Begins when there is a label. `None`: nothing has
    /// changed. Otherwise look once more whether the wait for `target` is over, and
    /// [`Endpoint::conclude`] if it is not: what the label tells of was done before, and what we
    /// wait for may have been among it.
    pub(crate) fn glance(&mut self, target: Address, label: Option<u64>) -> Option<Glance> {
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
            (None, None) => return None,
        };
        self.search = Some(search);
        // PATH: we have said that we wait; what the peer publishes later, it tells us.
        let seen = self.peer(target).ok()?.link.load(Way::In, Word::Path);
        let (label, hops) = layout::path_of(seen);
        if label == search.label {
            return Some(Glance::Deadlock);
        }
        let passed_on = label > search.label && hops + 1 < self.limits.hops;
        let path =
            if passed_on { layout::path_word(label, hops + 1) } else { layout::path_word(search.label, 0) };
        (path != search.published).then_some(Glance::Path(path))
    }

    /// We still wait. Passes on what was seen; true: it is a deadlock, and this is the call that
    /// ends.
    pub(crate) fn conclude(&mut self, glance: Glance) -> bool {
        let Glance::Path(path) = glance else { return true };
        if let Some(search) = &mut self.search {
            search.published = path;
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
            // PATH: what we have published shows before we look who waits. One fence would do for
            // all; they are few, and this is rare.
            peer.link.fence();
            if peer.link.load(Way::In, Word::Waits) != 0 {
                peer.nudge();
            }
        }
    }
}
