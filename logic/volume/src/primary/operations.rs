//! The operations that are under way: writes of clients, and copies to replicas that are resynced.

use super::{Action, Extent, MAX_COPIES, Primary, Stage, WriteId};
use crate::backup::Session;
use crate::record::Node;
use std::collections::BTreeSet;

/// The operation that an extent is busy with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Operation {
    Write {
        id: WriteId,
        /// The nodes that have not answered yet.
        awaited: BTreeSet<Node>,
        /// The nodes that have it on stable storage.
        stored: BTreeSet<Node>,
        acknowledged: bool,
    },
    /// A copy to this replica, until it has answered or is lost.
    Copy { to: Option<Node> },
}

impl Operation {
    /// A replica is lost: nobody waits for it.
    pub fn forget(&mut self, node: Node) {
        match self {
            Self::Write { awaited, .. } => {
                awaited.remove(&node);
            }
            Self::Copy { to } => *to = to.filter(|to| *to != node),
        }
    }

    fn answered(&mut self, node: Node) {
        match self {
            Self::Write { awaited, stored, .. } => {
                if awaited.remove(&node) {
                    stored.insert(node);
                }
            }
            Self::Copy { to } => *to = None,
        }
    }
}

impl Primary {
    pub(super) fn own_stored(&mut self, write: WriteId) {
        let own = self.own;
        let found = self
            .busy
            .values_mut()
            .find(|operation| matches!(operation, Operation::Write { id, .. } if *id == write));
        if let Some(operation) = found {
            operation.answered(own);
        }
    }

    pub(super) fn stored(&mut self, node: Node, session: Session, sequence: u64, done: bool) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.session == Some(session)) else {
            return;
        };
        if !done {
            self.lost(node);
            return;
        }
        let Some(extent) = peer.sent.remove(&sequence) else { return };
        let Some(operation) = self.busy.get_mut(&extent) else { return };
        if matches!(operation, Operation::Copy { .. }) {
            peer.dirty.remove(&extent);
        }
        operation.answered(node);
    }

    /// Acknowledges what all replicas have that must.
    pub(super) fn acknowledge(&mut self, actions: &mut Vec<Action>) {
        if self.stage == Stage::Failed {
            return;
        }
        let must = self.must();
        for operation in self.busy.values_mut() {
            let Operation::Write { id, stored, acknowledged, .. } = operation else { continue };
            if !*acknowledged && must.is_subset(stored) {
                *acknowledged = true;
                actions.push(Action::Acknowledge(*id));
            }
        }
    }

    /// Frees extents with which nobody is busy any more.
    pub(super) fn finish(&mut self) {
        self.busy.retain(|_, operation| match operation {
            Operation::Write { awaited, acknowledged, .. } => !*acknowledged || !awaited.is_empty(),
            Operation::Copy { to } => to.is_some(),
        });
    }

    /// Begins what waits, in order for each extent. Nothing begins while a current replica is not
    /// connected.
    pub(super) fn begin(&mut self, actions: &mut Vec<Action>) {
        let must = self.must();
        let lacks =
            |node: &Node| *node != self.own && self.peers.get(node).is_none_or(|peer| peer.session.is_none());
        if self.stage == Stage::Failed || must.iter().any(lacks) {
            return;
        }
        for (id, extent) in std::mem::take(&mut self.waiting) {
            if self.busy.contains_key(&extent) {
                self.waiting.push_back((id, extent));
            } else {
                self.start(id, extent, actions);
            }
        }
    }

    /// Sends a write everywhere. A replica that lacks the extent anyhow gets it later, as a copy.
    fn start(&mut self, id: WriteId, extent: Extent, actions: &mut Vec<Action>) {
        let mut awaited = BTreeSet::from([self.own]);
        actions.push(Action::StoreOwn(id, extent));
        for (node, peer) in &mut self.peers {
            let Some(session) = peer.session.filter(|_| !peer.dirty.contains(&extent)) else {
                peer.dirty.insert(extent);
                continue;
            };
            awaited.insert(*node);
            peer.sent.insert(peer.sequence, extent);
            actions.push(Action::Store(*node, session, peer.sequence, id, extent));
            peer.sequence += 1;
        }
        let write = Operation::Write { id, awaited, stored: BTreeSet::new(), acknowledged: false };
        self.busy.insert(extent, write);
    }

    /// Copies to connected replicas what they lack, a bounded number of extents at a time.
    pub(super) fn copy(&mut self, actions: &mut Vec<Action>) {
        if self.stage == Stage::Failed {
            return;
        }
        for (node, peer) in &mut self.peers {
            let Some(session) = peer.session else { continue };
            let under_way =
                self.busy.values().filter(|busy| **busy == Operation::Copy { to: Some(*node) }).count();
            let free = peer.dirty.iter().filter(|extent| !self.busy.contains_key(extent));
            let paced = self.pace.map_or(MAX_COPIES, |pace| pace as usize);
            let most = MAX_COPIES.saturating_sub(under_way).min(paced);
            let next: Vec<Extent> = free.take(most).copied().collect();
            for extent in next {
                self.pace = self.pace.map(|pace| pace.saturating_sub(1));
                peer.sent.insert(peer.sequence, extent);
                actions.push(Action::Copy(*node, session, peer.sequence, extent));
                peer.sequence += 1;
                self.busy.insert(extent, Operation::Copy { to: Some(*node) });
            }
        }
    }
}
