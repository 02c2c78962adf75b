//! The answers that are remembered: a bounded map from question to answer. Pure: time comes in as
//! an argument.
//!
//! Each domain has one of its own, in every mode. *Sharing* does not mix them: a domain that misses
//! looks into the others' for an answer that they fetched themselves ([`Cache::peek`]), and gets it
//! as late as the upstream gave it to them. What a domain can see of its own cache (hits,
//! evictions, remaining TTLs) never depends on another.

use crate::answer::Answer;
use crate::measure::Phases;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of answers that a cache may hold for each of its entries, on average: twice what an
/// ordinary answer takes. Bounds the memory of a domain that asks for huge answers.
const BYTES_PER_ENTRY: usize = 2048;
/// How many entries a search for a victim looks at before it takes the next one, used or not: the
/// price of an insert stays bounded.
const MAX_SWEEP: usize = 32;

/// One remembered answer.
#[derive(Debug)]
struct Slot {
    key: Box<[u8]>,
    answer: Arc<Answer>,
    stored: Instant,
    expires: Instant,
    /// How it was fetched; `None` where it came from another domain (then it is not passed on, so
    /// that no answer outlives its TTL more than once) and where nobody shares.
    fetched: Option<Box<Fetched>>,
    /// Second chance: set by each hit, cleared by the sweep.
    used: bool,
}

impl Slot {
    fn weight(&self) -> usize {
        self.answer.weight_bytes() + self.key.len()
    }
}

/// A hit.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The answer.
    pub answer: Arc<Answer>,
    /// Whole seconds since it was stored: what its TTLs have lost.
    pub age_s: u32,
}

/// How an answer was fetched: what another domain has to live through before it gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// From the question to the answer, failed attempts included.
    pub latency: Duration,
    /// Where that time went: a trace of a delayed hit must look like one of a miss.
    pub phases: Phases,
}

/// An answer that another domain fetched.
#[derive(Debug, Clone)]
pub struct Foreign {
    /// The answer, as fresh as when it came.
    pub answer: Arc<Answer>,
    /// How it was fetched.
    pub fetched: Fetched,
}

/// A bounded cache that evicts by the clock algorithm: the hand passes over entries that were used
/// since its last visit, and takes the first that was not.
#[derive(Debug, Default)]
pub struct Cache {
    places: HashMap<Box<[u8]>, usize>,
    slots: Vec<Slot>,
    hand: usize,
    bytes: usize,
    max_entries: usize,
}

impl Cache {
    /// An empty cache for `max_entries` answers; 0 remembers nothing.
    pub fn new(max_entries: usize) -> Self {
        Self { max_entries, ..Self::default() }
    }

    /// Changes the bound; what is too much goes at once.
    pub fn resize(&mut self, max_entries: usize) {
        self.max_entries = max_entries;
        while self.slots.len() > self.max_entries {
            self.evict();
        }
    }

    /// Looks up a key.
    pub fn get(&mut self, key: &[u8], now: Instant) -> Option<Hit> {
        let place = *self.places.get(key)?;
        let slot = self.slots.get_mut(place)?;
        if slot.expires <= now {
            self.remove(place);
            return None;
        }
        slot.used = true;
        let age_s = now.saturating_duration_since(slot.stored).as_secs();
        Some(Hit { answer: slot.answer.clone(), age_s: u32::try_from(age_s).unwrap_or(u32::MAX) })
    }

    /// Looks for an answer that this domain fetched itself, for another domain. Leaves no mark: the
    /// owner can't tell.
    pub fn peek(&self, key: &[u8], now: Instant) -> Option<Foreign> {
        let slot = self.slots.get(*self.places.get(key)?)?;
        let fetched = slot.fetched.as_deref().filter(|_| slot.expires > now)?;
        Some(Foreign { answer: slot.answer.clone(), fetched: fetched.clone() })
    }

    /// Remembers an answer for `lifetime`, replacing an older one. `fetched` is for answers that
    /// may be passed on.
    pub fn insert(
        &mut self,
        key: &[u8],
        answer: Arc<Answer>,
        now: Instant,
        lifetime: Duration,
        fetched: Option<Fetched>,
    ) {
        if let Some(&place) = self.places.get(key) {
            self.remove(place);
        }
        let Some(expires) = now.checked_add(lifetime) else { return };
        let fetched = fetched.map(Box::new);
        let slot = Slot { key: key.into(), answer, stored: now, expires, fetched, used: false };
        let max_bytes = self.max_entries.saturating_mul(BYTES_PER_ENTRY);
        if lifetime.is_zero() || self.max_entries == 0 || slot.weight() > max_bytes {
            return;
        }
        while self.slots.len() >= self.max_entries || self.bytes + slot.weight() > max_bytes {
            self.evict();
        }
        self.bytes += slot.weight();
        self.places.insert(slot.key.clone(), self.slots.len());
        self.slots.push(slot);
    }

    /// Forgets everything.
    pub fn flush(&mut self) {
        self.places.clear();
        self.slots.clear();
        self.bytes = 0;
        self.hand = 0;
    }

    /// How many answers are there, expired ones that nobody asked for included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of memory that the answers take, about.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    fn evict(&mut self) {
        for _ in 0..MAX_SWEEP {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            match self.slots.get_mut(self.hand) {
                Some(slot) if slot.used => slot.used = false,
                _ => break,
            }
            self.hand += 1;
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
        self.remove(self.hand);
    }

    /// Takes a slot out; the last one moves to its place.
    fn remove(&mut self, place: usize) {
        if place >= self.slots.len() {
            return;
        }
        let slot = self.slots.swap_remove(place);
        self.bytes -= slot.weight();
        self.places.remove(&slot.key);
        if let Some(moved) = self.slots.get(place)
            && let Some(entry) = self.places.get_mut(&moved.key)
        {
            *entry = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::{a, question, response};
    use crate::answer::{Reply, read};
    use hickory_proto::rr::RecordType;
    use proptest::prelude::*;

    fn answer(records: usize) -> Arc<Answer> {
        let q = question("a.example", RecordType::A);
        let mut message = response(&q, 1);
        message.add_answers((0..records).map(|n| a("a.example", 60, n as u8)));
        match read(&message.to_vec().unwrap(), 1, &q, true) {
            Reply::Answer(answer) => Arc::new(answer),
            other => panic!("{other:?}"),
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_ages_and_expires_to_the_instant() {
        let (mut cache, start, answer) = (Cache::new(4), Instant::now(), answer(1));
        cache.insert(b"k", answer, start, MINUTE, None);
        assert_eq!(cache.get(b"k", start).unwrap().age_s, 0);
        assert_eq!(cache.get(b"k", start + MINUTE - Duration::from_nanos(1)).unwrap().age_s, 59);
        assert!(cache.get(b"k", start + MINUTE).is_none());
        assert_eq!(cache.len(), 0, "what expired is gone");
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn nothing_is_kept_for_no_time_or_without_room() {
        let (start, small, large) = (Instant::now(), answer(1), answer(60));
        let mut cache = Cache::new(4);
        cache.insert(b"k", small.clone(), start, Duration::ZERO, None);
        assert_eq!(cache.len(), 0);
        cache.insert(b"k", large, start, MINUTE, None);
        assert_eq!(cache.len(), 0, "an answer that outweighs the whole cache");
        let mut none = Cache::new(0);
        none.insert(b"k", small, start, MINUTE, None);
        assert_eq!(none.len(), 0);
    }

    #[test]
    fn what_is_used_survives_what_is_not() {
        let (mut cache, start, answer) = (Cache::new(8), Instant::now(), answer(1));
        cache.insert(b"favourite", answer.clone(), start, MINUTE, None);
        for n in 0..100u8 {
            assert!(cache.get(b"favourite", start).is_some(), "evicted at {n}");
            cache.insert(&[n], answer.clone(), start, MINUTE, None);
            assert!(cache.len() <= 8);
        }
    }

    #[test]
    fn a_peek_leaves_no_mark_and_shows_only_what_was_fetched() {
        let (mut cache, start, answer) = (Cache::new(2), Instant::now(), answer(1));
        let latency = Duration::from_millis(7);
        let fetched = Fetched { latency, phases: Phases::default() };
        cache.insert(b"fetched", answer.clone(), start, MINUTE, Some(fetched));
        assert_eq!(cache.peek(b"fetched", start).unwrap().fetched.latency, latency);
        assert!(cache.peek(b"fetched", start + MINUTE).is_none());
        assert_eq!(cache.len(), 1, "even what expired stays where it is");
        cache.insert(b"borrowed", answer.clone(), start, MINUTE, None);
        assert!(cache.peek(b"borrowed", start).is_none());
        cache.insert(b"third", answer, start, MINUTE, None);
        assert!(cache.get(b"fetched", start).is_none(), "the peek did not save it");
    }

    proptest! {
        #[test]
        fn any_sequence_keeps_the_bounds_and_the_map(
            steps in proptest::collection::vec((0u8..4, 0u8..20, 0u64..100), 0..300),
            max in 0usize..10,
        ) {
            let (mut cache, start, answer) = (Cache::new(max), Instant::now(), answer(2));
            for (what, key, at) in steps {
                let now = start + Duration::from_secs(at);
                match what {
                    0 => cache.insert(&[key], answer.clone(), now, Duration::from_secs(10), None),
                    1 => drop(cache.get(&[key], now)),
                    2 => cache.resize(usize::from(key) / 2),
                    _ if key == 0 => cache.flush(),
                    _ => drop(cache.peek(&[key], now)),
                }
                prop_assert!(cache.len() <= cache.max_entries);
                prop_assert_eq!(cache.places.len(), cache.slots.len());
                prop_assert_eq!(cache.bytes, cache.slots.iter().map(Slot::weight).sum::<usize>());
                for (place, slot) in cache.slots.iter().enumerate() {
                    prop_assert_eq!(cache.places.get(&slot.key), Some(&place));
                }
            }
        }
    }
}
