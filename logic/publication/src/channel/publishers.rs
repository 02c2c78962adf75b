//! The publishers of a channel, and the number of records that each has written: so a record that
//! is written again after a death is not published again.

use super::Channel;
use crate::log::Log;
use crate::store::Store;
use thiserror::Error;
use wire::events::region::PUBLISHERS_MAX;

/// A publisher of a channel, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Publisher(usize);

/// Why there can't be one more publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a channel has {PUBLISHERS_MAX} publishers at the most")]
pub struct PublisherRefused;

/// Records that one publisher has on their way at the most: more were never written twice.
const DOUBLES_MAX: u64 = 4096;

#[derive(Debug, Clone, Copy)]
struct Slot<K> {
    /// 0: nobody's.
    number: u64,
    /// Records that it has written.
    count: u64,
    owner: u64,
    session: Option<K>,
    /// Since when nobody has had it, in ns.
    left_ns: u64,
    /// Records that are to come a second time.
    doubles: u64,
}

#[derive(Debug)]
pub(super) struct Publishers<K> {
    slots: Vec<Slot<K>>,
}

impl<K> Default for Publishers<K> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<K: Copy + Eq> Publishers<K> {
    pub(super) fn take_up<S: Store>(&mut self, log: &Log<S>, now_ns: u64) {
        self.slots = (0..PUBLISHERS_MAX)
            .map(|place| {
                let (number, count, owner) = log.publisher(place);
                Slot { number, count, owner, session: None, left_ns: now_ns, doubles: 0 }
            })
            .collect();
        // The death may have come between an event and its count.
        let mut cursor = log.oldest();
        while let Some((head, next)) = log.at(cursor) {
            let of = |slot: &&mut Slot<K>| slot.number == head.publisher && slot.number != 0;
            if let Some(slot) = self.slots.iter_mut().find(of) {
                slot.count = slot.count.max(head.publisher_sequence);
            }
            cursor = next;
        }
    }

    /// The number of a publisher, and that of the record that it writes now.
    pub(super) fn count<S: Store>(&mut self, publisher: Publisher, _: &mut Log<S>) -> (u64, u64) {
        self.slots.get(publisher.0).map_or((0, 0), |slot| (slot.number, slot.count + 1))
    }

    /// The record is in the log.
    pub(super) fn counted<S: Store>(&mut self, publisher: Publisher, log: &mut Log<S>) {
        if let Some(slot) = self.slots.get_mut(publisher.0) {
            slot.count += 1;
            log.keep_publisher(publisher.0, slot.number, slot.count, slot.owner);
        }
    }
}

impl<S: Store, K: Copy + Eq> Channel<S, K> {
    /// One more publisher, of the domain `owner`. One that had published before a death says which
    /// it was and how many answers it has had: what it has written beyond that comes again.
    /// `number` is for a new one, and never another's.
    ///
    /// # Errors
    /// [`PublisherRefused`].
    pub fn join(
        &mut self,
        session: K,
        owner: u64,
        before: Option<(u64, u64)>,
        number: u64,
    ) -> Result<Publisher, PublisherRefused> {
        if let Some((number, answered)) = before {
            let same =
                |slot: &Slot<K>| slot.number == number && slot.owner == owner && slot.session.is_none();
            if let Some(place) = self.publishers.slots.iter().position(same)
                && let Some(slot) = self.publishers.slots.get_mut(place)
            {
                slot.session = Some(session);
                slot.doubles = slot.count.saturating_sub(answered);
                if slot.doubles > DOUBLES_MAX {
                    slot.doubles = 0;
                }
                return Ok(Publisher(place));
            }
        }
        let place = self.free_publisher().ok_or(PublisherRefused)?;
        let slot = Slot { number, count: 0, owner, session: Some(session), left_ns: 0, doubles: 0 };
        match self.publishers.slots.get_mut(place) {
            Some(known) => *known = slot,
            None => self.publishers.slots.push(slot),
        }
        self.log.keep_publisher(place, number, 0, owner);
        Ok(Publisher(place))
    }

    /// A place that is nobody's, or that of who is gone the longest.
    fn free_publisher(&self) -> Option<usize> {
        let slots = &self.publishers.slots;
        if let Some(free) = slots.iter().position(|slot| slot.number == 0) {
            return Some(free);
        }
        if slots.len() < PUBLISHERS_MAX {
            return Some(slots.len());
        }
        let gone = slots.iter().enumerate().filter(|(_, slot)| slot.session.is_none());
        gone.min_by_key(|(_, slot)| slot.left_ns).map(|(place, _)| place)
    }

    /// Its number, and how many records it has written.
    pub fn publisher(&self, publisher: Publisher) -> (u64, u64) {
        self.publishers.slots.get(publisher.0).map_or((0, 0), |slot| (slot.number, slot.count))
    }

    /// Whether the record that it writes now is one that was published before a death. It counts as
    /// answered then.
    pub fn is_double(&mut self, publisher: Publisher) -> bool {
        let Some(slot) = self.publishers.slots.get_mut(publisher.0) else { return false };
        let is_double = slot.doubles > 0;
        slot.doubles -= u64::from(is_double);
        self.counters.doubles += u64::from(is_double);
        is_double
    }

    /// How many records of it were answered: what its capsule says.
    pub fn answered(&self, publisher: Publisher) -> u64 {
        self.publishers.slots.get(publisher.0).map_or(0, |slot| slot.count - slot.doubles.min(slot.count))
    }

    /// A publisher is gone: for good, where it has closed its file; else it may come back.
    pub fn part(&mut self, publisher: Publisher, for_good: bool, now_ns: u64) {
        let Some(slot) = self.publishers.slots.get_mut(publisher.0) else { return };
        slot.session = None;
        slot.left_ns = now_ns;
        if for_good {
            (slot.number, slot.count) = (0, 0);
            self.log.keep_publisher(publisher.0, 0, 0, 0);
        }
    }

    /// How many publishers there are.
    pub fn publisher_count(&self) -> usize {
        self.publishers.slots.iter().filter(|slot| slot.session.is_some()).count()
    }
}
