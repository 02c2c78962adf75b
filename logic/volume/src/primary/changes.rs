//! Changes of the record: whom to strike off, whom to count again, when to leave.

use super::{Action, Operation, Primary, Stage};
use crate::record::Record;

impl Primary {
    /// Takes the registry's record. A change is over when the record's revision has moved on,
    /// whoever moved it.
    pub(super) fn heard(&mut self, record: Record, revision: u64, actions: &mut Vec<Action>) {
        if revision <= self.revision {
            return;
        }
        (self.revision, self.change) = (revision, None);
        if record.is_primary(self.own, self.view) {
            self.record = record;
        } else {
            self.end(actions);
        }
    }

    /// Asks for the next change that is due, if none is under way.
    pub(super) fn propose(&mut self, actions: &mut Vec<Action>) {
        if self.has_ended() || self.change.is_some() {
            return;
        }
        if let Some(next) = self.next_record() {
            actions.push(Action::Change(next.clone(), self.revision));
            self.change = Some(next);
        }
    }

    fn next_record(&self) -> Option<Record> {
        // The record names this node as the primary of this view, so the rules refuse none of
        // these.
        if self.stage == Stage::Failed {
            return self.record.leave(self.own, self.view).ok();
        }
        let is_current = |node| self.record.current.contains(node);
        let is_gone = self
            .peers
            .iter()
            .find(|(node, peer)| is_current(node) && peer.session.is_none() && !peer.opening);
        if let Some((struck, _)) = is_gone {
            return self.record.strike(self.own, self.view, *struck).ok();
        }
        let is_equal = self.peers.iter().find(|(node, peer)| {
            !is_current(node) && peer.session.is_some() && peer.dirty.is_empty() && peer.sent.is_empty()
        });
        if let Some((joined, _)) = is_equal {
            return self.record.join(self.own, self.view, *joined).ok();
        }
        let is_idle =
            self.busy.values().all(|busy| matches!(busy, Operation::Copy { .. })) && self.waiting.is_empty();
        let leaves = self.stage == Stage::Releasing && is_idle;
        leaves.then(|| self.record.release(self.own, self.view).ok()).flatten()
    }

    fn end(&mut self, actions: &mut Vec<Action>) {
        self.stage = Stage::Ended;
        let begun = std::mem::take(&mut self.busy).into_values().filter_map(|operation| match operation {
            Operation::Write { id, acknowledged: false, .. } => Some(id),
            _ => None,
        });
        let waited = std::mem::take(&mut self.waiting).into_iter().map(|(id, _)| id);
        actions.extend(begun.chain(waited).map(Action::Fail));
        actions.push(Action::End);
    }
}
