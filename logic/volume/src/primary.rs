//! The primary of one view: writes go to all current replicas, and are acknowledged when all have
//! them.
//!
//! Writes to one extent go one after the other, so that all replicas see them in one order; a copy
//! to a replica that is resynced counts as one of them. The record is changed by compare-and-swap,
//! one change at a time, and nothing is acknowledged while a change that it depends on is not
//! confirmed.

mod changes;
mod operations;

use crate::backup::Session;
use crate::record::{Node, Record};
use operations::Operation;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A piece of a volume, by its number.
pub type Extent = u32;
/// A write of a client, by a number that is not used twice in a view.
pub type WriteId = u64;

/// Writes that wait for their extent, or for replicas, at most: what a few clients keep in flight.
/// More fail.
pub const MAX_WAITING: usize = 1024;
/// Extents that are copied to one replica at a time: enough to hide a round trip, few enough not to
/// be felt by writers.
pub const MAX_COPIES: usize = 4;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client writes.
    Write(WriteId, Extent),
    /// This node's own replica has it on stable storage (`true`), or failed.
    OwnStored(WriteId, bool),
    /// A replica has what was sent on stable storage (`true`), or refused it, or failed.
    Stored(Node, Session, u64, bool),
    /// A replica is ready, and takes writes in this session.
    Opened(Node, Session),
    /// A replica can't be reached, or does not answer in time.
    Lost(Node),
    /// A replica can perhaps be reached again.
    Connect(Node),
    /// The registry's record, with its revision: the answer to a change, or the news of one.
    Registry(Record, u64),
    /// The change under way got no answer: the registry may have it, or not.
    Retry,
    /// A planned move: finish what is under way, and leave.
    Release,
    /// So many copies may begin until the next such word. Before the first one they are not
    /// counted.
    Pace(u32),
}

/// An action that is to be done.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Write a client's data to this node's own replica, to stable storage.
    StoreOwn(WriteId, Extent),
    /// Send a client's data to a replica, with the session and the number in it.
    Store(Node, Session, u64, WriteId, Extent),
    /// Read an extent of this node's own replica, and send it to a replica.
    Copy(Node, Session, u64, Extent),
    /// Ask a replica for a session.
    Open(Node),
    /// Replace the record in the registry, if it still has this revision. Answer with
    /// [`Event::Registry`] whichever won.
    Change(Record, u64),
    /// The write is done: tell the client.
    Acknowledge(WriteId),
    /// The write is not done, and perhaps never: tell the client.
    Fail(WriteId),
    /// This node is no primary any more: end its exports.
    End,
}

/// The knowledge of another replica.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Peer {
    session: Option<Session>,
    /// The last session that was begun: an answer that comes twice, or late, begins none.
    last: Option<Session>,
    /// Whether a session was asked for and neither came nor was given up.
    opening: bool,
    /// The number of the next write in the session.
    sequence: u64,
    /// Extents in which it may differ.
    dirty: BTreeSet<Extent>,
    /// The writes that were sent in this session and not answered.
    sent: BTreeMap<u64, Extent>,
}

/// How a view comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// Clients are served.
    Serving,
    /// Nothing new begins; what is under way is finished.
    Releasing,
    /// The own replica failed: nothing is acknowledged.
    Failed,
    /// It is over.
    Ended,
}

/// The primary of one view.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Primary {
    own: Node,
    view: u64,
    record: Record,
    revision: u64,
    peers: BTreeMap<Node, Peer>,
    /// The operations that are under way, at most one for each extent.
    busy: BTreeMap<Extent, Operation>,
    waiting: VecDeque<(WriteId, Extent)>,
    /// The change that was asked for, if it is not known how it went.
    change: Option<Record>,
    /// Copies that may begin; none: any.
    pace: Option<u32>,
    stage: Stage,
}

impl Primary {
    /// `own` has just claimed the volume: `record`, of this `revision`, names it. The volume has so
    /// many extents.
    #[must_use]
    pub fn new(own: Node, record: Record, revision: u64, extents: Extent) -> (Self, Vec<Action>) {
        let others = record.replicas.iter().filter(|node| **node != own);
        let peers: BTreeMap<Node, Peer> = others
            .map(|node| {
                let dirty =
                    if record.current.contains(node) { BTreeSet::new() } else { (0..extents).collect() };
                (*node, Peer { opening: true, dirty, ..Peer::default() })
            })
            .collect();
        let opens = peers.keys().map(|node| Action::Open(*node)).collect();
        let (view, stage) = (record.view, Stage::Serving);
        let (busy, waiting) = (BTreeMap::new(), VecDeque::new());
        (Self { own, view, record, revision, peers, busy, waiting, change: None, pace: None, stage }, opens)
    }

    /// Its view.
    #[must_use]
    pub fn view(&self) -> u64 {
        self.view
    }

    /// Whether it is over.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Whether reads are answered from the own replica, where nothing is being written: only while
    /// the lease is held.
    #[must_use]
    pub fn reads(&self, lease_is_held: bool) -> bool {
        lease_is_held && self.stage == Stage::Serving
    }

    /// Its record, and the revision of that.
    #[must_use]
    pub fn record(&self) -> (&Record, u64) {
        (&self.record, self.revision)
    }

    /// Whether a replica takes writes.
    #[must_use]
    pub fn is_connected(&self, node: Node) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.session.is_some())
    }

    /// Whether a read of this extent is answered from the own replica: only while the lease is
    /// held, and while nothing is being written there.
    #[must_use]
    pub fn may_read(&self, extent: Extent, lease_is_held: bool) -> bool {
        self.reads(lease_is_held) && !self.busy.contains_key(&extent)
    }

    /// Extents that a replica still lacks.
    #[must_use]
    pub fn behind(&self, node: Node) -> usize {
        self.peers.get(&node).map_or(0, |peer| peer.dirty.len())
    }

    /// Takes an event; `lease_is_held` is true while this node certainly holds its lease.
    #[must_use]
    pub fn step(&mut self, event: Event, lease_is_held: bool) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.has_ended() {
            if let Event::Write(id, _) = event {
                actions.push(Action::Fail(id));
            }
            return actions;
        }
        self.take(event, &mut actions);
        if lease_is_held {
            self.acknowledge(&mut actions);
        }
        self.finish();
        self.begin(&mut actions);
        self.copy(&mut actions);
        self.propose(&mut actions);
        actions
    }

    fn take(&mut self, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Write(id, extent) => self.write(id, extent, actions),
            Event::OwnStored(id, true) => self.own_stored(id),
            Event::OwnStored(_, false) => self.stage = Stage::Failed,
            Event::Stored(node, session, sequence, done) => self.stored(node, session, sequence, done),
            Event::Opened(node, session) => self.opened(node, session),
            Event::Lost(node) => self.lost(node),
            Event::Connect(node) => self.connect(node, actions),
            Event::Registry(record, revision) => self.heard(record, revision, actions),
            Event::Retry => {
                let change = self.change.clone();
                actions.extend(change.map(|record| Action::Change(record, self.revision)));
            }
            Event::Release if self.stage == Stage::Serving => self.stage = Stage::Releasing,
            Event::Release => {}
            Event::Pace(copies) => self.pace = Some(copies),
        }
    }

    fn write(&mut self, id: WriteId, extent: Extent, actions: &mut Vec<Action>) {
        if self.waiting.len() < MAX_WAITING && self.stage == Stage::Serving {
            self.waiting.push_back((id, extent));
        } else {
            actions.push(Action::Fail(id));
        }
    }

    fn opened(&mut self, node: Node, session: Session) {
        let is_new = |peer: &&mut Peer| peer.opening && peer.last.is_none_or(|last| session > last);
        let Some(peer) = self.peers.get_mut(&node).filter(is_new) else { return };
        (peer.opening, peer.session, peer.last, peer.sequence) = (false, Some(session), Some(session), 0);
    }

    fn connect(&mut self, node: Node, actions: &mut Vec<Action>) {
        let is_current = self.record.current.contains(&node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        // One that is to be struck off stays without a session until it is.
        if peer.session.is_none() && !peer.opening && !is_current {
            peer.opening = true;
            actions.push(Action::Open(node));
        }
    }

    /// All that was sent to it and not answered may be there or not.
    fn lost(&mut self, node: Node) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        (peer.opening, peer.session) = (false, None);
        peer.dirty.extend(std::mem::take(&mut peer.sent).into_values());
        for operation in self.busy.values_mut() {
            operation.forget(node);
        }
    }

    /// The replicas that must have a write before it is acknowledged, whichever way the change
    /// under way goes.
    fn must(&self) -> BTreeSet<Node> {
        let changed = self.change.iter().flat_map(|record| record.current.iter().copied());
        self.record.current.iter().copied().chain(changed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_begin_as_fast_as_they_may_and_no_faster() {
        let (a, b) = (Node(1), Node(2));
        let claimed = Record::new(BTreeSet::from([a, b])).claim(a, true).unwrap();
        // As after a crash: b may differ everywhere.
        let alone = claimed.claim(a, true).unwrap();
        let (mut primary, _) = Primary::new(a, alone, 2, 100);
        assert!(primary.step(Event::Pace(0), true).is_empty());
        let session = Session { incarnation: 1, number: 1 };
        assert!(primary.step(Event::Opened(b, session), true).is_empty(), "none may begin");
        let copies = |actions: Vec<Action>| {
            let is_copy = |action: &&Action| matches!(action, Action::Copy(..));
            actions.iter().filter(is_copy).count()
        };
        assert_eq!(copies(primary.step(Event::Pace(3), true)), 3);
        assert_eq!(copies(primary.step(Event::Stored(b, session, 0, true), true)), 0, "that was all");
        assert_eq!(copies(primary.step(Event::Pace(100), true)), MAX_COPIES - 2, "so many at a time");
        assert_eq!(primary.behind(b), 99);
    }
}
