//! The schedule of pairs of several classes: a hierarchical token bucket, as the kernel has it for
//! the packets of a link.
//!
//! A class that has sent less than its rate goes first, by precedence; then one that has sent less
//! than its ceiling, as long as the whole has not sent more than it carries. Of equal precedence,
//! the one that has had least for its rate. Without classes all take turns.

use crate::pairs::Turns;
use std::collections::BTreeMap;
use wire::link::Pair;

/// The class of pairs that belong to nobody in particular, such as news: it goes first, and has no
/// bound.
pub const CONTROL: u32 = 0;
/// The class of everybody who is promised nothing: after all others, with a hundredth of the whole.
pub const REST: u32 = 1;
/// Most classes that there are at a time: as many as pairs of one side.
pub const MAX_CLASSES: usize = 8_192;
/// Buckets hold at least what comes in so many ms: time is told in ms, and a timer may be late by
/// some.
const DEPTH_MS: u64 = 10;
/// The bytes of a class that are sent at once, at least: smaller pieces would be more heads than
/// bytes.
const TURN_BYTES_MIN: u64 = 1_400;
/// Share of the rest.
const REST_SHARE: u64 = 100;
/// Precedence of the rest.
const REST_PRECEDENCE: u8 = u8::MAX;
/// How far a bucket may be overdrawn, in its own depths: what is owed longer is forgiven.
const OWED_DEPTHS: i64 = 10;
/// Longest time that is made up for at once, in ms; after it every bucket is full.
const MAX_MS: u64 = 60_000;
/// Least rate, in bytes per second: with less, nobody lives to see the end of a message.
const RATE_MIN: u64 = 100;

/// The share of a class of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The rate that it may always send, in bytes per second.
    pub rate_bytes: u64,
    /// The rate that it may send while others don't, in bytes per second.
    pub ceiling_bytes: u64,
    /// How much may come at once, in bytes.
    pub burst_bytes: u64,
    /// The order in which classes get what is left: 0 is the first.
    pub precedence: u8,
}

/// Tokens, in thousandths of bytes, so that a rate in bytes per second is so many of them in a ms.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    rate: u64,
    depth: i64,
    tokens: i64,
    filled_ms: u64,
}

impl Bucket {
    fn new(rate_bytes: u64, burst_bytes: u64) -> Self {
        let rate = rate_bytes.max(RATE_MIN);
        let depth = (rate.saturating_mul(DEPTH_MS)).max(burst_bytes.saturating_mul(1_000));
        let depth = i64::try_from(depth).unwrap_or(i64::MAX / OWED_DEPTHS).min(i64::MAX / OWED_DEPTHS);
        Self { rate, depth, tokens: depth, filled_ms: 0 }
    }

    /// The same with another rate: what it had, it has, as far as it holds that.
    fn change(&mut self, rate_bytes: u64, burst_bytes: u64) {
        let new = Self::new(rate_bytes, burst_bytes);
        (self.rate, self.depth, self.tokens) = (new.rate, new.depth, self.tokens.min(new.depth));
    }

    fn fill(&mut self, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.filled_ms).min(MAX_MS);
        self.filled_ms = self.filled_ms.max(now_ms);
        let more = i64::try_from(self.rate.saturating_mul(passed)).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(more).min(self.depth);
    }

    fn spend(&mut self, bytes: u64) {
        let gone = i64::try_from(bytes.saturating_mul(1_000)).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_sub(gone).max(-self.depth.saturating_mul(OWED_DEPTHS));
    }

    fn has_some(&self) -> bool {
        self.tokens > 0
    }

    fn bytes(&self) -> u64 {
        u64::try_from(self.tokens).unwrap_or(0) / 1_000
    }

    /// In how many ms there is something, where there is nothing now.
    fn wait_ms(&self) -> u64 {
        let lacks = u64::try_from(1 - self.tokens).unwrap_or(0);
        lacks.div_ceil(self.rate)
    }
}

#[derive(Debug)]
struct Class {
    share: Share,
    rate: Bucket,
    ceiling: Bucket,
    turns: Turns,
    /// The amount that it has had, for its rate: the less, the sooner its turn.
    had: u64,
}

impl Class {
    fn new(share: Share) -> Self {
        Self {
            share,
            rate: Bucket::new(share.rate_bytes, share.burst_bytes),
            ceiling: Bucket::new(share.ceiling_bytes, share.burst_bytes),
            turns: Turns::default(),
            had: 0,
        }
    }
}

/// The pair that goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A pair of this class, with so many bytes at most.
    Pair {
        pair: Pair,
        class: u32,
        most: usize,
    },
    /// Nobody before this time.
    NotBefore(u64),
    Nobody,
}

/// The pairs that have something to send, by class.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    control: Turns,
    /// `None`: there are no classes.
    whole: Option<Bucket>,
    classes: BTreeMap<u32, Class>,
    /// The amount that the class which had its turn last has had, for its rate.
    had: u64,
    /// That class pays by its own rate; otherwise by what is left of the whole.
    own: bool,
}

impl Schedule {
    /// The whole carries so many bytes per second from now on; `None`: there are no classes, and
    /// all take turns.
    pub fn set_whole(&mut self, rate_bytes: Option<u64>) {
        let Some(rate_bytes) = rate_bytes else {
            self.whole = None;
            for (_, mut class) in std::mem::take(&mut self.classes) {
                self.control.append(&mut class.turns);
            }
            return;
        };
        match &mut self.whole {
            Some(whole) => whole.change(rate_bytes, 0),
            None => self.whole = Some(Bucket::new(rate_bytes, 0)),
        }
        let least = Share {
            rate_bytes: rate_bytes / REST_SHARE,
            ceiling_bytes: rate_bytes,
            burst_bytes: 0,
            precedence: REST_PRECEDENCE,
        };
        self.put(REST, least);
    }

    /// A class gets this from now on, or is no more: then its pairs are of the rest. False: there
    /// are too many, or none at all.
    pub fn set(&mut self, number: u32, share: Option<Share>) -> bool {
        if self.whole.is_none() || number <= REST {
            return false;
        }
        match share {
            Some(share) if self.classes.contains_key(&number) || self.classes.len() < MAX_CLASSES => {
                self.put(number, share);
                true
            }
            Some(_) => false,
            None => {
                if let Some(mut class) = self.classes.remove(&number)
                    && let Some(rest) = self.classes.get_mut(&REST)
                {
                    rest.turns.append(&mut class.turns);
                }
                true
            }
        }
    }

    fn put(&mut self, number: u32, share: Share) {
        match self.classes.get_mut(&number) {
            Some(class) => {
                class.share = share;
                class.rate.change(share.rate_bytes, share.burst_bytes);
                class.ceiling.change(share.ceiling_bytes, share.burst_bytes);
            }
            None => {
                self.classes.insert(number, Class::new(share));
            }
        }
    }

    /// A pair of this class has something to send.
    pub fn push(&mut self, pair: Pair, number: u32) {
        if number == CONTROL || self.whole.is_none() {
            return self.control.push(pair);
        }
        let known = if self.classes.contains_key(&number) { number } else { REST };
        let Some(class) = self.classes.get_mut(&known) else { return self.control.push(pair) };
        if class.turns.is_empty() {
            // Who had nothing to send has not saved anything up.
            class.had = class.had.max(self.had);
        }
        class.turns.push(pair);
    }

    /// Nobody has anything to send any more.
    pub fn clear(&mut self) {
        self.control = Turns::default();
        for class in self.classes.values_mut() {
            class.turns = Turns::default();
        }
    }

    /// Takes the pair that goes now, which is then in no queue. Its bytes are to be told
    /// ([`Schedule::spent`]).
    pub fn next(&mut self, now_ms: u64) -> Next {
        if let Some(pair) = self.control.pop() {
            return Next::Pair { pair, class: CONTROL, most: usize::MAX };
        }
        let Some(whole) = &mut self.whole else { return Next::Nobody };
        whole.fill(now_ms);
        let whole = *whole;
        let mut best: Option<(bool, u8, u64, u32)> = None;
        let mut wait_ms = u64::MAX;
        for (number, class) in self.classes.iter_mut().filter(|(_, class)| !class.turns.is_empty()) {
            class.rate.fill(now_ms);
            class.ceiling.fill(now_ms);
            let own = class.rate.has_some();
            if own || (class.ceiling.has_some() && whole.has_some()) {
                let rank = (!own, class.share.precedence, class.had, *number);
                best = Some(best.map_or(rank, |best| best.min(rank)));
            } else {
                let of_others = class.ceiling.wait_ms().max(whole.wait_ms());
                wait_ms = wait_ms.min(class.rate.wait_ms().min(of_others));
            }
        }
        let Some((borrows, _, had, number)) = best else {
            return if wait_ms == u64::MAX {
                Next::Nobody
            } else {
                Next::NotBefore(now_ms.saturating_add(wait_ms.max(1)))
            };
        };
        let Some(class) = self.classes.get_mut(&number) else { return Next::Nobody };
        let Some(pair) = class.turns.pop() else { return Next::Nobody };
        (self.own, self.had) = (!borrows, had);
        let tokens = if borrows { class.ceiling.bytes().min(whole.bytes()) } else { class.rate.bytes() };
        let most = usize::try_from(tokens.max(TURN_BYTES_MIN)).unwrap_or(usize::MAX);
        Next::Pair { pair, class: number, most }
    }

    /// Charges the pair whose turn it was for the bytes that it has sent.
    pub fn spent(&mut self, number: u32, bytes: usize) {
        let bytes = bytes as u64;
        if let Some(whole) = &mut self.whole {
            whole.spend(bytes);
        }
        if let Some(class) = self.classes.get_mut(&number) {
            class.ceiling.spend(bytes);
            if self.own {
                class.rate.spend(bytes);
            }
            class.had = class
                .had
                .saturating_add(bytes.saturating_mul(1_000_000) / class.share.rate_bytes.max(RATE_MIN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: u64 = 1_000_000;
    const GOLD: u32 = 16;
    const FLOOD: u32 = 17;

    fn pair(slot: u32) -> Pair {
        Pair { slot, generation: 1 }
    }

    fn share(rate_bytes: u64, ceiling_bytes: u64, precedence: u8) -> Share {
        Share { rate_bytes, ceiling_bytes, burst_bytes: 2_000, precedence }
    }

    fn schedule() -> Schedule {
        let mut schedule = Schedule::default();
        schedule.set_whole(Some(WHOLE));
        assert!(schedule.set(GOLD, Some(share(200_000, WHOLE, 0))));
        assert!(schedule.set(FLOOD, Some(share(300_000, WHOLE, 2))));
        schedule
    }

    /// The bytes that each class sends of pieces of 1,000 bytes in so many ms; these of them always
    /// have more.
    fn run(schedule: &mut Schedule, from_ms: u64, ms: u64, greedy: &[u32]) -> BTreeMap<u32, u64> {
        let mut sent = BTreeMap::new();
        for number in greedy {
            schedule.push(pair(*number), *number);
        }
        for now_ms in from_ms..from_ms + ms {
            while let Next::Pair { pair, class, most } = schedule.next(now_ms) {
                let bytes = most.min(1_000);
                *sent.entry(pair.slot).or_default() += bytes as u64;
                schedule.spent(class, bytes);
                schedule.push(pair, pair.slot);
            }
        }
        schedule.clear();
        sent
    }

    fn near(found: u64, wanted: u64) -> bool {
        found.abs_diff(wanted) * 20 <= wanted
    }

    #[test]
    fn who_is_alone_has_all_of_it_and_no_more_than_its_ceiling() {
        let mut schedule = schedule();
        assert!(near(run(&mut schedule, 0, 10_000, &[FLOOD])[&FLOOD], 10 * WHOLE));
        assert!(schedule.set(FLOOD, Some(share(100_000, 400_000, 2))));
        assert!(near(run(&mut schedule, 20_000, 10_000, &[FLOOD])[&FLOOD], 4_000_000));
    }

    #[test]
    fn what_is_left_goes_to_gold_and_everybody_has_the_rate() {
        let sent = run(&mut schedule(), 0, 10_000, &[FLOOD, GOLD, REST]);
        assert!(near(sent[&FLOOD], 3_000_000) && near(sent[&REST], 100_000), "{sent:?}");
        assert!(near(sent[&GOLD], 6_900_000), "{sent:?}");
    }

    #[test]
    fn of_equal_precedence_what_is_left_goes_by_rate() {
        let mut schedule = schedule();
        assert!(schedule.set(GOLD, Some(share(100_000, WHOLE, 2))));
        let sent = run(&mut schedule, 0, 10_000, &[FLOOD, GOLD]);
        assert!(near(sent[&FLOOD], 7_500_000) && near(sent[&GOLD], 2_500_000), "{sent:?}");
    }

    #[test]
    fn another_rate_is_in_force_at_once() {
        let mut schedule = schedule();
        run(&mut schedule, 0, 1_000, &[FLOOD, GOLD]);
        assert!(schedule.set(GOLD, Some(share(200_000, 200_000, 0))));
        assert!(schedule.set(FLOOD, Some(share(500_000, 500_000, 2))));
        let sent = run(&mut schedule, 1_000, 50, &[FLOOD, GOLD]);
        assert!(sent[&FLOOD].abs_diff(25_000) <= 6_000 && sent[&GOLD].abs_diff(10_000) <= 3_000, "{sent:?}");
    }

    #[test]
    fn gold_waits_for_no_flood_and_nobody_for_what_was_not_used() {
        let mut schedule = schedule();
        schedule.push(pair(FLOOD), FLOOD);
        let mut longest = 0;
        let mut queued: Option<u64> = None;
        for now_ms in 0..10_000 {
            if now_ms % 10 == 0 {
                schedule.push(pair(GOLD), GOLD);
                queued = Some(now_ms);
            }
            while let Next::Pair { pair: next, class, most } = schedule.next(now_ms) {
                schedule.spent(class, most.min(1_000));
                if next.slot == FLOOD {
                    schedule.push(next, FLOOD);
                } else if let Some(since) = queued.take() {
                    longest = longest.max(now_ms - since);
                }
            }
        }
        assert_eq!((longest, queued), (0, None), "its rate is more than it sends");
    }

    #[test]
    fn without_classes_all_take_turns_and_a_class_that_goes_leaves_its_pairs() {
        let mut schedule = schedule();
        schedule.push(pair(FLOOD), FLOOD);
        assert!(schedule.set(FLOOD, None));
        assert!(matches!(schedule.next(0), Next::Pair { class: REST, .. }));
        schedule.push(pair(FLOOD), FLOOD);
        schedule.push(pair(GOLD), GOLD);
        schedule.set_whole(None);
        for _ in 0..2 {
            assert!(matches!(schedule.next(0), Next::Pair { class: CONTROL, .. }));
        }
        assert_eq!(schedule.next(0), Next::Nobody);
        assert!(!schedule.set(GOLD, Some(share(1, 1, 0))) && !schedule.set(CONTROL, None));
    }

    #[test]
    fn nonsense_rates_neither_divide_by_nothing_nor_overflow() {
        let mut schedule = Schedule::default();
        schedule.set_whole(Some(u64::MAX));
        let most =
            Share { rate_bytes: u64::MAX, ceiling_bytes: u64::MAX, burst_bytes: u64::MAX, precedence: 255 };
        assert!(schedule.set(GOLD, Some(most)) && schedule.set(FLOOD, Some(share(0, 0, 0))));
        for number in [GOLD, FLOOD] {
            schedule.push(pair(number), number);
        }
        for now_ms in [0, u64::MAX, 5] {
            if let Next::Pair { pair, class, .. } = schedule.next(now_ms) {
                schedule.spent(class, usize::MAX);
                schedule.push(pair, class);
            }
        }
        schedule.set_whole(Some(0));
        while let Next::Pair { class, .. } = schedule.next(u64::MAX) {
            schedule.spent(class, 1_000_000);
        }
    }

    #[test]
    fn who_has_to_wait_is_told_how_long_and_has_something_then() {
        let mut schedule = schedule();
        assert!(schedule.set(FLOOD, Some(share(1_000, 1_000, 0))));
        let mut now_ms = 0;
        for _ in 0..20 {
            schedule.push(pair(FLOOD), FLOOD);
            let at = match schedule.next(now_ms) {
                Next::Pair { class, .. } => {
                    schedule.spent(class, 1_500);
                    continue;
                }
                Next::NotBefore(at) => at,
                Next::Nobody => panic!("it has something to send"),
            };
            assert!(at > now_ms && at < now_ms + 20_000);
            now_ms = at;
            assert!(matches!(schedule.next(now_ms), Next::Pair { .. }), "at {at}");
            schedule.spent(FLOOD, 1_500);
        }
    }
}
