//! The weights of cgroups with a promise and of those above them. The cgroup of a promise goes
//! before all beside it, for its quota bounds it. Those above have no quota, and domains without a
//! promise are in them as well: their weights follow from what is promised, so that the promise is
//! kept whoever wants the processor, and what is not promised is left to the rest of the machine.

use domain::{Cgroups, Demand, USUAL_WEIGHT};
use reserve::Task;
use std::collections::{BTreeMap, BTreeSet};

/// A whole processor, in the unit of shares.
const WHOLE: u128 = 1_000_000;
/// The greatest share for which weights are calculated: for all of a processor they have no bound.
const MAX_SHARE: u128 = 980_000;
/// The least weight of ours, for each of all others: with less, whoever has slept waits some
/// milliseconds for its turn, and short periods are missed.
const MIN_RATIO: u128 = 4;
/// The weights are so much greater than calculated, in percent: the kernel rounds, and its division
/// is right in the mean only.
const MARGIN: u128 = 125;

/// A share of one processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    processor: usize,
    /// In millionths.
    share: u128,
}

impl Share {
    pub(super) fn of((processor, task): &(usize, Task)) -> Self {
        let share = u128::from(task.budget_ns()) * WHOLE / u128::from(task.period_ns().max(1));
        Self { processor: *processor, share: share.min(WHOLE) }
    }
}

/// Those without a promise that want the processor as well, in weights.
#[derive(Debug, Default, PartialEq, Eq)]
struct Others {
    /// Beside our cgroups.
    beside: u64,
    /// Within each of our cgroups, beside those in it with a promise.
    within: BTreeMap<String, u64>,
}

/// The weights as they were told.
#[derive(Debug, Default)]
pub(super) struct Weights {
    promised: BTreeMap<String, Share>,
    others: Others,
    /// The most threads that wanted to run beside our cgroups, lately.
    threads: u64,
    told: BTreeMap<String, u64>,
    /// Whether what an earlier daemon told is known, too.
    knows_former: bool,
}

impl Weights {
    /// Puts a cgroup with a promise before all beside it, and those above it where they have to be.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn put(&mut self, cgroups: &Cgroups, cgroup: &str, share: Share) -> Result<(), domain::Error> {
        cgroups.weigh(cgroup, None)?;
        let is_new = self.promised.insert(cgroup.to_owned(), share).is_none();
        if is_new {
            self.look(cgroups);
        }
        // Whatever is above it may be another cgroup than it was.
        for path in above(cgroup) {
            self.told.remove(path);
        }
        self.tell(cgroups);
        for path in above(cgroup).filter(|path| !self.told.contains_key(*path)) {
            cgroups.weigh(path, self.heights().get(path).copied())?;
        }
        Ok(())
    }

    /// Puts a cgroup back among those beside it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn take(&mut self, cgroups: &Cgroups, cgroup: &str) -> Result<(), domain::Error> {
        self.forget(cgroups, cgroup);
        cgroups.weigh(cgroup, Some(USUAL_WEIGHT))
    }

    /// The cgroup is gone, or nobody is in it any more.
    pub(super) fn forget(&mut self, cgroups: &Cgroups, cgroup: &str) {
        if self.promised.remove(cgroup).is_some() {
            self.tell(cgroups);
        }
    }

    /// Looks at who else wants the processor now, and tells the kernel what follows.
    pub(super) fn adjust(&mut self, cgroups: &Cgroups) {
        if self.promised.is_empty() {
            return;
        }
        if !std::mem::replace(&mut self.knows_former, true) {
            // Another weight than any, so that it is told the usual one.
            let tops: BTreeSet<&str> =
                self.promised.keys().filter_map(|cgroup| above(cgroup).next()).collect();
            let below = tops.iter().flat_map(|top| {
                cgroups.children(top).into_iter().map(move |name| (format!("{top}/{name}"), 0))
            });
            let below: Vec<(String, u64)> = below.collect();
            for (path, unknown) in below.into_iter().filter(|(path, _)| !self.promised.contains_key(path)) {
                self.told.entry(path).or_insert(unknown);
            }
        }
        self.look(cgroups);
        self.tell(cgroups);
    }

    /// Puts the cgroup `top` and all in it back among everybody else's: nobody is promised
    /// anything.
    pub(super) fn stand_down(&mut self, cgroups: &Cgroups, top: &str) {
        let below = cgroups.children(top).into_iter().map(|name| format!("{top}/{name}"));
        for path in below.chain([top.to_owned()]).filter(|path| cgroups.exists(path)) {
            if let Err(error) = cgroups.weigh(&path, Some(USUAL_WEIGHT)) {
                tracing::warn!(path, %error, "a cgroup can't be given its usual weight");
            }
        }
        *self = Self::default();
    }

    fn look(&mut self, cgroups: &Cgroups) {
        let all = |Demand { groups, threads }: Demand| groups.saturating_add(threads * USUAL_WEIGHT);
        let mut below: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for cgroup in self.promised.keys() {
            let mut names = cgroup.splitn(3, '/');
            let top = below.entry(names.next().unwrap_or(cgroup)).or_default();
            if let (Some(child), Some(_)) = (names.next(), names.next()) {
                top.insert(child);
            }
        }
        let tops: BTreeSet<&str> = below.keys().copied().collect();
        let beside = cgroups.demand("", &tops);
        // Threads come and go between two looks; fewer are believed slowly.
        self.threads = beside.threads.max(self.threads * 7 / 8);
        let within = below.iter().map(|(top, children)| {
            // In each cgroup with a promise there may be somebody without one.
            let own = USUAL_WEIGHT * u64::try_from(children.len()).unwrap_or(u64::MAX);
            ((*top).to_owned(), all(cgroups.demand(top, children)).saturating_add(own))
        });
        let within = within.collect();
        self.others = Others { beside: all(Demand { threads: self.threads, ..beside }), within };
    }

    fn heights(&self) -> BTreeMap<String, u64> {
        heights(&self.promised, &self.others)
    }

    /// Tells the kernel the weights that are others than told; those of cgroups that are gone it
    /// need not know.
    fn tell(&mut self, cgroups: &Cgroups) {
        let heights = self.heights();
        let over = self.told.keys().filter(|path| !heights.contains_key(*path));
        let usual: Vec<(String, u64)> = over.map(|path| (path.clone(), USUAL_WEIGHT)).collect();
        for (path, weight) in usual.into_iter().chain(heights) {
            if self.told.get(&path) == Some(&weight) {
                continue;
            }
            match cgroups.weigh(&path, Some(weight)) {
                Ok(()) => _ = self.told.insert(path.clone(), weight),
                Err(_) if !cgroups.exists(&path) => _ = self.told.remove(&path),
                Err(error) => {
                    tracing::warn!(path, %error, "the weight of a cgroup can't be told");
                    self.told.remove(&path);
                }
            }
        }
        let promised = &self.promised;
        self.told.retain(|path, _| promised.keys().any(|cgroup| above(cgroup).any(|above| above == path)));
    }
}

/// The cgroups above one, from the top.
fn above(cgroup: &str) -> impl Iterator<Item = &str> {
    cgroup.match_indices('/').filter_map(|(at, _)| cgroup.get(..at))
}

/// The weights of the cgroups above those with a promise, in thousandths of the usual one.
///
/// Of each processor a part P is promised. Half of the rest is left to who is beside our cgroups,
/// half to who is in them beside those with a promise: ours have (1 + P)/2 of the processor, those
/// with a promise 2P/(1 + P) of that, which is P in all. Where P is small they have more, so that
/// their turn comes soon ([`MIN_RATIO`]).
fn heights(promised: &BTreeMap<String, Share>, others: &Others) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<usize, u128> = BTreeMap::new();
    for share in promised.values() {
        *sums.entry(share.processor).or_default() += share.share;
    }
    let mut parts: BTreeMap<&str, u128> = BTreeMap::new();
    for (cgroup, Share { processor, share }) in promised {
        let all = sums.get(processor).copied().unwrap_or(*share).clamp(1, MAX_SHARE);
        let rest = WHOLE - all;
        // In millionths of the weight of all others at that place.
        let of_others = |part: u128| part.max(MIN_RATIO * WHOLE) * *share / all;
        let outer = of_others((WHOLE + all) * WHOLE / rest);
        let inner = of_others(2 * all * WHOLE / rest);
        for (depth, path) in above(cgroup).enumerate() {
            *parts.entry(path).or_default() += if depth == 0 { outer } else { inner };
        }
    }
    let weigh = |(path, part): (&str, u128)| {
        let others = match path.split_once('/') {
            None => others.beside,
            Some((top, _)) => others.within.get(top).copied().unwrap_or(USUAL_WEIGHT),
        };
        let weight = part * u128::from(others) * MARGIN / 100 / WHOLE;
        (path.to_owned(), u64::try_from(weight).unwrap_or(u64::MAX).max(USUAL_WEIGHT))
    };
    parts.into_iter().map(weigh).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share(processor: usize, percent: u128) -> Share {
        Share { processor, share: percent * WHOLE / 100 }
    }

    fn part(weight: u64, others: u64) -> f64 {
        weight as f64 / (weight as f64 + others as f64)
    }

    #[test]
    fn weights_follow_from_what_is_promised() {
        let others = Others { beside: 4_000, within: BTreeMap::from([("t".to_owned(), 2_000)]) };
        let of = |percent| {
            let promised = BTreeMap::from([("t/shop/db".to_owned(), share(0, percent))]);
            let heights = heights(&promised, &others);
            assert_eq!(heights.keys().collect::<Vec<_>>(), ["t", "t/shop"]);
            (heights["t"], heights["t/shop"])
        };
        // Nine tenths: 95 % of the machine are ours, and 18 of 19 parts of them the promise's.
        assert_eq!(of(90), (4_000 * 19 * 5 / 4, 2_000 * 18 * 5 / 4));
        // Little comes soon, and leaves a sixth.
        assert_eq!(of(1), (4_000 * 4 * 5 / 4, 2_000 * 4 * 5 / 4));
        // All there is, is a number as well.
        assert!(of(100).0 > of(90).0);
    }

    #[test]
    fn a_cgroup_directly_below_the_top_has_its_part() {
        let promised = BTreeMap::from([("t+run/x".to_owned(), share(0, 50))]);
        let others = Others { beside: 1_000, within: BTreeMap::new() };
        assert_eq!(heights(&promised, &others), BTreeMap::from([("t+run".to_owned(), 5_000)]));
    }

    proptest! {
        /// Whatever is promised where, each has its share of its processor beside all others, and
        /// all others have some of it.
        #[test]
        fn promises_are_kept_and_the_rest_is_left(
            shares in prop::collection::btree_map((0_u8..4, 0_u8..4), 1_u128..96, 1..12),
            beside in 1_000_u64..100_000,
            within in 1_000_u64..100_000,
        ) {
            // All on one processor, and no more than 95 % of it.
            let sum: u128 = shares.values().sum();
            let shrunk = shares.iter().map(|(at, percent)| (at, percent * 95 * WHOLE / 100 / sum.max(95)));
            let promised: BTreeMap<String, Share> = shrunk
                .map(|((dc, name), share)| (format!("t/{dc}/{name}"), Share { processor: 1, share }))
                .collect();
            let others = Others { beside, within: BTreeMap::from([("t".to_owned(), within)]) };
            let heights = heights(&promised, &others);
            let top = part(heights["t"], beside);
            let inner: u64 = heights.iter().filter(|(path, _)| path.contains('/')).map(|(_, weight)| weight).sum();
            for dc in 0..4 {
                let path = format!("t/{dc}");
                let Some(&weight) = heights.get(&path) else { continue };
                let wanted: u128 =
                    promised.iter().filter(|(cgroup, _)| cgroup.starts_with(&format!("{path}/"))).map(|(_, s)| s.share).sum();
                let has = top * part(weight, inner - weight + within);
                prop_assert!(has * 1.001 >= wanted as f64 / WHOLE as f64, "{path} has {has} of {wanted}");
            }
            let all: u128 = promised.values().map(|share| share.share).sum();
            let rest = 1.0 - all as f64 / WHOLE as f64;
            prop_assert!(1.0 - top >= (rest / 2.0).min(0.2) / 1.3, "{} of {rest} is left", 1.0 - top);
        }
    }
}
