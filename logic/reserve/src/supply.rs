//! The time that a dispatch table gives to one of its tasks: exactly, from its slots, and not a
//! bound over all tables with the same budget.

use crate::earliest_deadline::Given;

/// Stretches of processor time that repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supply {
    cycle_ns: u64,
    /// In order and apart.
    stretches: Vec<(u64, u64)>,
    /// The time that is given before each stretch, and at the end the whole.
    before: Vec<u64>,
}

impl Supply {
    /// Stretches `(from, to)` of a cycle, in ns, in order and apart; empty ones are left out.
    pub(crate) fn new(cycle_ns: u64, stretches: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut kept: Vec<(u64, u64)> = Vec::new();
        for (from, to) in stretches.filter(|(from, to)| from < to) {
            match kept.last_mut() {
                Some(last) if last.1 == from => last.1 = to,
                _ => kept.push((from, to)),
            }
        }
        let mut before = vec![0];
        let mut sum = 0;
        for (from, to) in &kept {
            sum += to - from;
            before.push(sum);
        }
        Self { cycle_ns: cycle_ns.max(1), stretches: kept, before }
    }

    /// After how long it repeats, in ns.
    pub fn cycle_ns(&self) -> u64 {
        self.cycle_ns
    }

    /// How much it is in each cycle, in ns.
    pub fn total_ns(&self) -> u64 {
        self.before.last().copied().unwrap_or(0)
    }

    /// When it is given, in ns of the cycle.
    pub fn stretches(&self) -> &[(u64, u64)] {
        &self.stretches
    }

    /// How much is given from the beginning to `time_ns`, which may be in any cycle.
    pub fn given_ns(&self, time_ns: u64) -> u64 {
        let (cycles, inside) = (time_ns / self.cycle_ns, time_ns % self.cycle_ns);
        let next = self.stretches.partition_point(|(_, to)| *to <= inside);
        let begun = self.stretches.get(next).map_or(0, |(from, _)| inside.saturating_sub(*from));
        let before = self.before.get(next).copied().unwrap_or(0);
        cycles.saturating_mul(self.total_ns()).saturating_add(before + begun)
    }

    /// When so much is given, from the beginning; `u64::MAX`: never.
    pub fn reached_ns(&self, amount_ns: u64) -> u64 {
        if amount_ns == 0 {
            return 0;
        }
        let total = self.total_ns();
        if total == 0 {
            return u64::MAX;
        }
        let cycles = (amount_ns - 1) / total;
        let rest = amount_ns - cycles * total;
        let stretch = self.before.partition_point(|before| *before < rest).saturating_sub(1);
        let (from, before) = match (self.stretches.get(stretch), self.before.get(stretch)) {
            (Some((from, _)), Some(before)) => (*from, *before),
            _ => (0, 0),
        };
        cycles.saturating_mul(self.cycle_ns).saturating_add(from + (rest - before))
    }

    /// The least that is given in any window of `window_ns` (the supply bound function of this very
    /// table).
    pub fn least_ns(&self, window_ns: u64) -> u64 {
        // A window that begins elsewhere gets no less than one that begins where a stretch has just
        // ended.
        self.ends()
            .map(|(end, given)| self.given_ns(end.saturating_add(window_ns)) - given)
            .min()
            .unwrap_or(0)
    }

    /// The shortest time in which `work_ns` is given, wherever it begins; `u64::MAX`: none.
    pub fn window_for_ns(&self, work_ns: u64) -> u64 {
        if work_ns == 0 {
            return 0;
        }
        let wait =
            |(end, given): (u64, u64)| self.reached_ns(given.saturating_add(work_ns)).saturating_sub(end);
        self.ends().map(wait).max().unwrap_or(u64::MAX)
    }

    /// The ends of all stretches, and what was given up to then.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (u64, u64)> {
        self.stretches.iter().zip(self.before.iter().skip(1)).map(|((_, to), given)| (*to, *given))
    }
}

impl Given for Supply {
    fn least(&self, window: u64) -> u64 {
        self.least_ns(window)
    }

    fn window_for(&self, work: u64) -> u64 {
        self.window_for_ns(work)
    }

    fn steps(&self) -> usize {
        2 * self.stretches.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn supply(stretches: &[(u64, u64)]) -> Supply {
        Supply::new(20, stretches.iter().copied())
    }

    #[test]
    fn the_least_is_counted_from_where_a_stretch_has_ended() {
        let supply = supply(&[(0, 4), (10, 12)]);
        let least: Vec<u64> = (0..12).map(|window| supply.least_ns(window)).collect();
        // Behind 12 nothing comes for 8; behind 4 for 6.
        assert_eq!(least, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2]);
        assert_eq!(supply.window_for_ns(1), 9);
        assert_eq!(supply.window_for_ns(2), 10);
        assert_eq!(supply.window_for_ns(3), 17);
        assert_eq!(supply.window_for_ns(6), 20);
    }

    #[test]
    fn who_is_given_nothing_waits_for_ever() {
        let nothing = supply(&[]);
        assert_eq!(
            (nothing.least_ns(100), nothing.window_for_ns(1), nothing.window_for_ns(0)),
            (0, u64::MAX, 0)
        );
        assert_eq!(supply(&[(0, 20)]).window_for_ns(7), 7);
    }

    proptest! {
        #[test]
        fn the_least_is_the_least_of_all_windows(cuts in prop::collection::btree_set(0_u64..20, 2..8), window in 0_u64..50) {
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let supply = supply(&cuts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>());
            let is_given = |time: u64| u64::from(supply.stretches().iter().any(|(from, to)| (*from..*to).contains(&(time % 20))));
            let within = |begin: u64, length: u64| (begin..begin + length).map(is_given).sum::<u64>();
            prop_assert_eq!(supply.given_ns(window), within(0, window));
            prop_assert_eq!(supply.least_ns(window), (0..20).map(|begin| within(begin, window)).min().unwrap());
            let work = window / 2;
            let shortest = (0..2000).find(|length| (0..20).all(|begin| within(begin, *length) >= work)).unwrap();
            prop_assert_eq!(supply.window_for_ns(work), shortest);
        }
    }
}
