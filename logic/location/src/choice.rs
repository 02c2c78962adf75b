//! The choice of one of several sources: the cheapest one that is accurate enough, changed with
//! hysteresis.

/// How much worse than wanted the accuracy of the chosen source may become before another is looked
/// for.
const TOLERANCE: f64 = 1.25;

/// A source's offer at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Radius of its last position with 95 %, in m; `None`: it has no recent one.
    pub accuracy_m: Option<f64>,
    /// The power that it draws, in mW.
    pub power_mw: u32,
}

/// The choice among sources, which are known by their places in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    wanted_m: f64,
    hold_ms: u64,
    forced: Option<usize>,
    current: Option<usize>,
    /// The source that would be better, and since when.
    better: Option<(usize, u64)>,
}

impl Choice {
    /// A choice that wants positions as accurate as `wanted_m`, and changes to a better source once
    /// it has been better for `hold_ms`.
    #[must_use]
    pub fn new(wanted_m: f64, hold_ms: u64) -> Self {
        Self { wanted_m, hold_ms, forced: None, current: None, better: None }
    }

    /// Wants another accuracy from now on.
    pub fn want(&mut self, wanted_m: f64) {
        self.wanted_m = wanted_m;
    }

    /// The accuracy that is wanted, in m.
    #[must_use]
    pub fn wanted_m(&self) -> f64 {
        self.wanted_m
    }

    /// Takes this source for as long as it has positions, or none in particular.
    pub fn force(&mut self, source: Option<usize>) {
        self.forced = source;
    }

    /// The source that a person has chosen.
    #[must_use]
    pub fn forced(&self) -> Option<usize> {
        self.forced
    }

    /// The source that counts.
    #[must_use]
    pub fn current(&self) -> Option<usize> {
        self.current
    }

    /// Decides anew. `now_ms` never goes back.
    pub fn decide(&mut self, now_ms: u64, candidates: &[Candidate]) -> Option<usize> {
        let available =
            |&index: &usize| candidates.get(index).is_some_and(|found| found.accuracy_m.is_some());
        let best = self.forced.filter(available).or_else(|| self.best(candidates));
        let stays = self.current.filter(available);
        self.current = match (stays, best) {
            (Some(current), Some(best)) if current != best && self.has_held(best, now_ms) => Some(best),
            (Some(current), Some(best)) => {
                if current == best {
                    self.better = None;
                }
                Some(current)
            }
            // Whoever has no position is left at once.
            (_, best) => best,
        };
        if self.current == best {
            self.better = None;
        }
        self.current
    }

    /// Whether this source has been the better one for long enough.
    fn has_held(&mut self, best: usize, now_ms: u64) -> bool {
        if self.forced == Some(best) {
            return true;
        }
        match self.better {
            Some((better, since)) if better == best => now_ms.saturating_sub(since) >= self.hold_ms,
            _ => {
                self.better = Some((best, now_ms));
                self.hold_ms == 0
            }
        }
    }

    /// The one that draws least power among those that are accurate enough; where none is, the most
    /// accurate.
    fn best(&self, candidates: &[Candidate]) -> Option<usize> {
        let known = candidates
            .iter()
            .enumerate()
            .filter_map(|(index, found)| Some((index, found, found.accuracy_m?)));
        let enough = |index: usize, accuracy: f64| {
            let tolerance = if self.current == Some(index) { TOLERANCE } else { 1.0 };
            accuracy <= self.wanted_m * tolerance
        };
        let cheapest = known
            .clone()
            .filter(|&(index, _, accuracy)| enough(index, accuracy))
            .min_by_key(|&(index, found, _)| (found.power_mw, index));
        let most_accurate = || known.clone().min_by(|a, b| a.2.total_cmp(&b.2));
        cheapest.or_else(most_accurate).map(|(index, ..)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidates<const N: usize>(sources: [(f64, u32); N]) -> [Candidate; N] {
        sources.map(|(accuracy, power_mw)| Candidate {
            accuracy_m: Some(accuracy).filter(|accuracy| accuracy.is_finite()),
            power_mw,
        })
    }

    /// A source without positions.
    const NONE: f64 = f64::NAN;

    #[test]
    fn the_cheapest_that_is_accurate_enough_counts() {
        let mut choice = Choice::new(5.0, 0);
        assert_eq!(choice.decide(0, &candidates([(3.0, 150), (4.0, 40), (9.0, 1)])), Some(1));
        assert_eq!(choice.decide(1, &candidates([(30.0, 150), (40.0, 40), (29.0, 300)])), Some(2));
        assert_eq!(choice.decide(2, &candidates([(NONE, 150), (NONE, 40), (NONE, 300)])), None);
        assert_eq!(choice.decide(3, &[]), None);
    }

    #[test]
    fn a_better_source_counts_once_it_has_been_better_for_long_enough() {
        let mut choice = Choice::new(5.0, 2_000);
        let good = candidates([(3.0, 150), (4.0, 40)]);
        let bad = candidates([(3.0, 150), (8.0, 40)]);
        assert_eq!(choice.decide(0, &bad), Some(0));
        assert_eq!(choice.decide(1_000, &good), Some(0));
        assert_eq!(choice.decide(2_000, &bad), Some(0), "it was better for a moment only");
        assert_eq!(choice.decide(3_000, &good), Some(0));
        assert_eq!(choice.decide(4_999, &good), Some(0));
        assert_eq!(choice.decide(5_000, &good), Some(1));
        // A little worse than wanted is good enough to stay.
        let little = candidates([(3.0, 150), (6.0, 40)]);
        assert_eq!(choice.decide(9_000, &little), Some(1));
        assert_eq!(choice.decide(19_000, &little), Some(1));
    }

    #[test]
    fn a_source_without_positions_is_left_at_once() {
        let mut choice = Choice::new(5.0, 60_000);
        assert_eq!(choice.decide(0, &candidates([(NONE, 150), (4.0, 40)])), Some(1));
        assert_eq!(choice.decide(1, &candidates([(50.0, 150), (NONE, 40)])), Some(0));
    }

    #[test]
    fn a_person_chooses_and_lets_go() {
        let mut choice = Choice::new(5.0, 60_000);
        let both = candidates([(3.0, 150), (4.0, 40)]);
        choice.force(Some(0));
        assert_eq!(choice.decide(0, &both), Some(0));
        assert_eq!(choice.decide(1, &candidates([(NONE, 150), (4.0, 40)])), Some(1), "it has no position");
        assert_eq!(choice.decide(2, &both), Some(0), "it is back, and asked for");
        choice.force(None);
        assert_eq!(choice.decide(3, &both), Some(0));
        assert_eq!(choice.decide(70_003, &both), Some(1));
    }

    proptest! {
        #[test]
        fn whoever_counts_has_positions_and_changes_are_at_least_the_hold_apart(
            rounds in proptest::collection::vec((proptest::collection::vec((0.0_f64..100.0, any::<bool>()), 3), 0_u64..500), 1..200)
        ) {
            const HOLD_MS: u64 = 1_000;
            let mut choice = Choice::new(10.0, HOLD_MS);
            let (mut now, mut last, mut changed) = (0, None, None::<u64>);
            for (sources, passed) in rounds {
                now += passed;
                let all: Vec<Candidate> = sources.iter().zip([30, 20, 10]).map(|(&(accuracy, has), power_mw)| {
                    Candidate { accuracy_m: has.then_some(accuracy), power_mw }
                }).collect();
                let chosen = choice.decide(now, &all);
                prop_assert!(chosen.is_none_or(|index| all[index].accuracy_m.is_some()));
                prop_assert_eq!(chosen.is_none(), all.iter().all(|one| one.accuracy_m.is_none()));
                let left_alive = last.is_some_and(|index: usize| all[index].accuracy_m.is_some());
                if chosen != last {
                    if left_alive {
                        prop_assert!(changed.is_none_or(|at| now - at >= HOLD_MS), "changed twice within the hold");
                    }
                    changed = Some(now);
                }
                last = chosen;
            }
        }
    }
}
