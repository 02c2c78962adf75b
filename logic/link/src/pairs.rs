//! The table of pairs: which there are, which there were, whose turn it is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::broken::Broken;
use crate::inward::{Inward, Owes};
use crate::messages::Spare;
use crate::outward::Outward;
use crate::schedule::{Next, Schedule};
use crate::table::Table;
use wire::link::{Hello, Pair};

#[derive(Debug)]
pub(crate) struct Entry {
    pub generation: u32,
    pub out: Outward,
    pub inn: Inward,
    /// The user knows of it.
    pub announced: bool,
    /// Its class ([`Schedule`]).
    pub class: u32,
    /// It stands in the queue of those that have something to send.
    queued: bool,
}

impl Entry {
    /// It waits for its turn.
    pub fn is_queued(&self) -> bool {
        self.queued
    }
}

/// Where a pair that the peer names stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Here,
    /// It is over.
    Past,
    /// The peer opens it now.
    New,
}

/// Pairs in turn.
#[derive(Debug, Default)]
pub(crate) struct Turns(VecDeque<Pair>);

impl Turns {
    pub fn push(&mut self, pair: Pair) {
        self.0.push_back(pair);
    }

    pub fn pop(&mut self) -> Option<Pair> {
        self.0.pop_front()
    }

    pub fn append(&mut self, others: &mut Self) {
        self.0.append(&mut others.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// Bytes that a pair holds of what goes out, at most.
    queue_bytes: usize,
    table: Table,
    /// The last generation of each slot that was ever used, of both sides.
    last: BTreeMap<u32, u32>,
    /// Slots of ours that are free again.
    free: BTreeSet<u32>,
    /// How many slots of ours were used.
    used: u32,
    /// Those that have something to send.
    pub schedule: Schedule,
    /// Those whose peer is to be told of what came, at once.
    urgent: BTreeSet<Pair>,
    /// And those that have time.
    soon: BTreeSet<Pair>,
    /// Those that are over, which the peer asked about or may ask about.
    gone: BTreeMap<u32, u32>,
    /// Some pair waits for a state.
    waits: bool,
    /// Memory of messages, for all pairs.
    spare: Spare,
}

impl Pairs {
    /// None, each of which may hold so many bytes of what goes out.
    pub fn new(queue_bytes: usize) -> Self {
        Self { queue_bytes, ..Self::default() }
    }

    pub fn get(&mut self, pair: Pair) -> Option<&mut Entry> {
        self.table.get_mut(pair.slot).filter(|entry| entry.generation == pair.generation)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn iter(&mut self) -> impl Iterator<Item = (Pair, &mut Entry)> + '_ {
        self.table.iter_mut().map(|(slot, entry)| (Pair { slot, generation: entry.generation }, entry))
    }

    /// Where the peer's word for a pair leads. `ours` and `theirs`: hellos.
    pub fn place(&self, pair: Pair, ours: &Hello, theirs: &Hello) -> Result<Place, Broken> {
        let mine = pair.slot % 2 == u32::from(ours.side);
        let most = if mine { theirs.pairs } else { ours.pairs };
        if pair.slot / 2 >= most {
            return Err(Broken::Slot(pair));
        }
        if self.table.get(pair.slot).is_some_and(|entry| entry.generation == pair.generation) {
            return Ok(Place::Here);
        }
        let last = self.last.get(&pair.slot).copied().unwrap_or(0);
        match pair.generation <= last {
            true => Ok(Place::Past),
            false if mine => Err(Broken::Never(pair)),
            false => Ok(Place::New),
        }
    }

    /// A pair of ours; `None`: all places that the peer has are taken.
    pub fn open(&mut self, ours: &Hello, theirs: &Hello) -> Option<Pair> {
        let slot = match self.free.pop_first() {
            Some(slot) if slot / 2 < theirs.pairs => slot,
            // An earlier incarnation of the peer took more of them.
            Some(slot) => {
                self.free.insert(slot);
                return None;
            }
            None if self.used < theirs.pairs => {
                self.used += 1;
                (self.used - 1) * 2 + u32::from(ours.side)
            }
            None => return None,
        };
        let generation = self.last.get(&slot).copied().unwrap_or(0) + 1;
        let pair = Pair { slot, generation };
        self.insert(pair, ours, theirs, true);
        Some(pair)
    }

    /// A pair of the peer.
    pub fn accept(&mut self, pair: Pair, ours: &Hello, theirs: &Hello) -> Result<(), Broken> {
        if let Some(old) = self.table.get(pair.slot) {
            // The peer takes a place again when it knows that both have closed: then only its word
            // for that was lost.
            if !(old.out.close_known() && old.inn.is_closed()) {
                return Err(Broken::Reopened(pair));
            }
        }
        self.gone.remove(&pair.slot);
        self.insert(pair, ours, theirs, false);
        Ok(())
    }

    fn insert(&mut self, pair: Pair, ours: &Hello, theirs: &Hello, mine: bool) {
        let message_bytes = usize::try_from(ours.message_bytes).unwrap_or(usize::MAX);
        let entry = Entry {
            generation: pair.generation,
            out: Outward::new(theirs.window_bytes.into(), self.queue_bytes),
            inn: Inward::new(ours.window_bytes.into(), message_bytes, !mine, self.spare.clone()),
            announced: mine,
            class: crate::schedule::CONTROL,
            queued: false,
        };
        self.table.insert(pair.slot, entry);
        self.last.insert(pair.slot, pair.generation);
    }

    /// Puts a pair into the queues that it belongs in, or takes it out of the table when it is
    /// over.
    pub fn settle(&mut self, pair: Pair, side: u8) {
        let Some(entry) = self.get(pair) else { return };
        if entry.out.close_acked() && entry.inn.is_closed() {
            self.end(pair, side);
            return;
        }
        let waits = entry.out.is_waiting();
        let ready = !entry.queued && entry.out.is_ready();
        entry.queued |= ready;
        let (owes, class) = (entry.inn.owes, entry.class);
        self.waits |= waits;
        if ready {
            self.schedule.push(pair, class);
        }
        match owes {
            Owes::Nothing => {}
            Owes::Soon => {
                self.soon.insert(pair);
            }
            Owes::Now => {
                self.soon.remove(&pair);
                self.urgent.insert(pair);
            }
        }
    }

    /// Takes a pair out of the table. The peer hears of it once more: it may not know that it knows
    /// all.
    pub fn end(&mut self, pair: Pair, side: u8) {
        self.table.remove(pair.slot);
        self.soon.remove(&pair);
        self.urgent.remove(&pair);
        // A place whose generations are used up is never used again.
        if pair.slot % 2 == u32::from(side) && pair.generation < u32::MAX {
            self.free.insert(pair.slot);
        }
        self.say_gone(pair);
    }

    /// The peer is told that this pair is over.
    pub fn say_gone(&mut self, pair: Pair) {
        let said = self.gone.entry(pair.slot).or_default();
        *said = (*said).max(pair.generation);
    }

    /// Whether some pair may have begun to wait for a state since this was asked.
    pub fn take_waits(&mut self) -> bool {
        std::mem::take(&mut self.waits)
    }

    /// The next pair whose turn it is, or when it will be somebody's.
    pub fn next_ready(&mut self, now_ms: u64) -> Next {
        loop {
            let next = self.schedule.next(now_ms);
            let Next::Pair { pair, .. } = next else { return next };
            // One that is over is passed over.
            if let Some(entry) = self.get(pair) {
                entry.queued = false;
                return next;
            }
        }
    }

    pub fn next_urgent(&mut self) -> Option<Pair> {
        self.urgent.pop_first()
    }

    pub fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    pub fn next_soon(&mut self) -> Option<Pair> {
        self.soon.pop_first()
    }

    pub fn has_soon(&self) -> bool {
        !self.soon.is_empty()
    }

    /// Those that had time have none any more.
    pub fn hurry(&mut self) {
        self.urgent.append(&mut self.soon);
    }

    pub fn next_gone(&mut self) -> Option<Pair> {
        self.gone.pop_first().map(|(slot, generation)| Pair { slot, generation })
    }

    pub fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// A new connection: what was not received is sent again, and the peer is told of all pairs.
    pub fn rewind(&mut self, side: u8) {
        let all: Vec<Pair> = self.iter().map(|(pair, _)| pair).collect();
        for pair in all {
            if let Some(entry) = self.get(pair) {
                entry.out.restart();
                entry.inn.restart();
            }
            self.settle(pair, side);
        }
    }

    /// The peer is another one: its pairs are gone, and so are its numbers. Ours go on, so that
    /// nothing old is taken for new. The pairs that the user knows are given back.
    pub fn reborn(&mut self, side: u8) -> Vec<Pair> {
        let known = self.iter().filter(|(_, entry)| entry.announced && !entry.inn.is_closed());
        let known = known.filter(|(_, entry)| !entry.out.is_closed()).map(|(pair, _)| pair).collect();
        let mine = |slot: &u32| slot % 2 == u32::from(side);
        let free = self.table.iter().filter(|(slot, entry)| mine(slot) && entry.generation < u32::MAX);
        self.free.extend(free.map(|(slot, _)| slot));
        self.last.retain(|slot, _| mine(slot));
        self.table.clear();
        self.schedule.clear();
        self.urgent.clear();
        self.soon.clear();
        self.gone.clear();
        known
    }

    /// Sends again what is taken for lost by now. When the next of it is.
    pub fn expire(&mut self, now_ms: u64, after_ms: u64, side: u8) -> Option<u64> {
        let all: Vec<Pair> =
            self.iter().filter(|(_, entry)| entry.out.is_waiting()).map(|(pair, _)| pair).collect();
        for pair in all {
            if let Some(entry) = self.get(pair) {
                entry.out.expire(now_ms);
            }
            self.settle(pair, side);
        }
        self.iter().filter_map(|(_, entry)| entry.out.resend_at(now_ms, after_ms)).min()
    }
}
