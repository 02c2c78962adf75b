//! The measurements of a run, and how they are summed up.

use crate::core_line::State;
use crate::histogram::Latencies;
use crate::statistics::{Estimate, estimate, median};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Under which circumstances: `cache=none domains=8`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Condition(pub Vec<(&'static str, String)>);

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        f.write_str(&words.join(" "))
    }
}

/// One arm, once.
#[derive(Debug, Clone)]
pub struct Repetition {
    /// Under which circumstances.
    pub condition: Condition,
    /// The arm.
    pub arm: Cow<'static, str>,
    /// In which launch, from 0.
    pub launch: usize,
    /// In which round of the launch, from 0.
    pub round: usize,
    /// In which state the machine was.
    pub state: State,
    /// How long each operation took.
    pub latencies: Latencies,
    /// Operations that succeeded within the window.
    pub operations: u64,
    /// Bytes that each of them moved; 0 where that says nothing.
    pub bytes: u64,
    /// Operations that failed; their times are not among the latencies.
    pub failures: u64,
    /// How long was measured, in s.
    pub window_s: f64,
    /// Processor time of everything that took part, in ns.
    pub processor_ns: Option<u64>,
    /// Processor time of what worked inside guests, as these count it, in ns; it is part of the
    /// other.
    pub guest_ns: Option<u64>,
    /// Context switches of everything that took part, where they were counted.
    pub switches: Option<u64>,
    /// System calls of everything that took part, where they were counted.
    pub calls: Option<u64>,
}

/// The figures that can be read off a repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Median latency, in us.
    P50,
    /// 99th percentile of the latency, in us.
    P99,
    /// 99.9th percentile of the latency, in us.
    P999,
    /// Operations per second, of all who took part.
    Rate,
    /// GiB per second.
    Bandwidth,
    /// Processor time of everything that took part, in us per operation.
    Processor,
    /// Processor time of what worked inside guests, in us per operation.
    GuestProcessor,
    /// Processor time of everything that took part, in ms in all.
    ProcessorTotal,
    /// Context switches in all.
    Switches,
    /// System calls in all.
    Calls,
}

impl Metric {
    /// The value; `None` where nothing was measured.
    #[must_use]
    pub fn of(self, repetition: &Repetition) -> Option<f64> {
        let operations = repetition.operations as f64;
        let per_second = || (repetition.window_s > 0.0).then(|| operations / repetition.window_s);
        let microseconds =
            |quantile| repetition.latencies.quantile_ns(quantile).map(|ns| ns as f64 / 1_000.0);
        match self {
            Self::P50 => microseconds(0.5),
            Self::P99 => microseconds(0.99),
            Self::P999 => microseconds(0.999),
            Self::Rate => per_second(),
            Self::Bandwidth if repetition.bytes > 0 => {
                Some(per_second()? * repetition.bytes as f64 / f64::from(1 << 30))
            }
            Self::Bandwidth => None,
            Self::Processor if operations > 0.0 => {
                Some(repetition.processor_ns? as f64 / operations / 1_000.0)
            }
            Self::GuestProcessor if operations > 0.0 => {
                Some(repetition.guest_ns? as f64 / operations / 1_000.0)
            }
            Self::Processor | Self::GuestProcessor => None,
            Self::ProcessorTotal => Some(repetition.processor_ns? as f64 / 1_000_000.0),
            Self::Switches => Some(repetition.switches? as f64),
            Self::Calls => Some(repetition.calls? as f64),
        }
    }
}

/// A number per launch that is no latency: memory, for one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// In which launch.
    pub launch: usize,
    /// The number.
    pub value: f64,
}

/// Everything that a run measured.
#[derive(Debug, Clone, Default)]
pub struct Results {
    /// Each arm, each time.
    pub repetitions: Vec<Repetition>,
    /// The other numbers.
    pub figures: Vec<Figure>,
    /// The things that were not measured and why, and whatever else a reader has to know.
    pub notes: Vec<String>,
}

impl Results {
    /// Adds what a reader has to know, once.
    pub fn note(&mut self, notes: Vec<String>) {
        for note in notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// The conditions, sorted as they were met.
    #[must_use]
    pub fn conditions(&self) -> Vec<Condition> {
        let mut seen = BTreeSet::new();
        let conditions = self.repetitions.iter().map(|repetition| &repetition.condition);
        conditions.filter(|condition| seen.insert((*condition).clone())).cloned().collect()
    }

    /// The arms that ran under a condition, in order of their names.
    #[must_use]
    pub fn arms(&self, condition: &Condition) -> BTreeSet<&str> {
        let fitting = self.repetitions.iter().filter(|repetition| repetition.condition == *condition);
        fitting.map(|repetition| repetition.arm.as_ref()).collect()
    }

    /// All repetitions of an arm under a condition.
    pub fn of<'a>(&'a self, condition: &'a Condition, arm: &'a str) -> impl Iterator<Item = &'a Repetition> {
        self.repetitions.iter().filter(move |found| found.condition == *condition && found.arm == arm)
    }

    /// Operations measured in an arm under a condition.
    #[must_use]
    pub fn samples(&self, condition: &Condition, arm: &str) -> u64 {
        self.of(condition, arm).map(|repetition| repetition.operations).sum()
    }

    /// A metric of an arm: each launch's median over its rounds, then over launches.
    #[must_use]
    pub fn estimate(&self, condition: &Condition, arm: &str, metric: Metric) -> Option<Estimate> {
        estimate(&self.values(condition, arm, metric).into_values().collect::<Vec<_>>())
    }

    /// A metric of an arm, by launch: the median over its rounds.
    #[must_use]
    pub fn values(&self, condition: &Condition, arm: &str, metric: Metric) -> BTreeMap<usize, f64> {
        let mut rounds: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for found in self.of(condition, arm) {
            rounds.entry(found.launch).or_default().extend(metric.of(found));
        }
        rounds.into_iter().filter_map(|(launch, values)| Some((launch, median(&values)?))).collect()
    }

    /// As [`Results::estimate`], of what ran in one state of the machine.
    #[must_use]
    pub fn estimate_within(
        &self,
        condition: &Condition,
        arm: &str,
        metric: Metric,
        state: State,
    ) -> Option<Estimate> {
        let of_launch = |launch| {
            let rounds =
                self.of(condition, arm).filter(|found| found.launch == launch && found.state == state);
            median(&rounds.filter_map(|found| metric.of(found)).collect::<Vec<_>>())
        };
        estimate(&self.launches().into_iter().filter_map(of_launch).collect::<Vec<_>>())
    }

    /// How many times the metric of `base` that of `arm` is. Repetitions are paired by round, and
    /// only those count that ran in the same state of the machine; where a launch has none, all of
    /// its rounds do.
    #[must_use]
    pub fn ratio(&self, condition: &Condition, arm: &str, base: &str, metric: Metric) -> Option<Estimate> {
        let of_launch = |launch| {
            let pairs = self.pairs(condition, arm, base, launch);
            let same: Vec<f64> = pairs
                .iter()
                .filter(|(a, b)| a.state == b.state)
                .filter_map(|pair| quotient(metric, pair))
                .collect();
            let all = || pairs.iter().filter_map(|pair| quotient(metric, pair)).collect::<Vec<_>>();
            median(&if same.is_empty() { all() } else { same })
        };
        estimate(&self.launches().into_iter().filter_map(of_launch).collect::<Vec<_>>())
    }

    /// As [`Results::ratio`], for whatever polls: each repetition of `arm` is compared with each of
    /// `base` of the same launch that ran in the same state, and never with another. With a state
    /// given, in that one only. `None` where the machine gave no such two.
    #[must_use]
    pub fn ratio_within(
        &self,
        condition: &Condition,
        [arm, base]: [&str; 2],
        metric: Metric,
        state: Option<State>,
    ) -> Option<Estimate> {
        let of_launch = |launch| {
            let ours = || self.of(condition, arm).filter(move |found| found.launch == launch);
            let fits = |found: &&Repetition| {
                found.state != State::Mixed && state.is_none_or(|state| found.state == state)
            };
            let quotients: Vec<f64> = ours()
                .filter(fits)
                .flat_map(|ours| {
                    let base = self.of(condition, base);
                    base.filter(move |base| base.launch == launch && base.state == ours.state)
                        .map(move |base| (ours, base))
                })
                .filter_map(|pair| quotient(metric, &pair))
                .collect();
            median(&quotients)
        };
        estimate(&self.launches().into_iter().filter_map(of_launch).collect::<Vec<_>>())
    }

    fn pairs<'a>(
        &'a self,
        condition: &'a Condition,
        arm: &'a str,
        base: &'a str,
        launch: usize,
    ) -> Vec<(&'a Repetition, &'a Repetition)> {
        let ours = self.of(condition, arm).filter(|found| found.launch == launch);
        ours.filter_map(|ours| {
            let same_round = |found: &&Repetition| found.launch == launch && found.round == ours.round;
            Some((ours, self.of(condition, base).find(same_round)?))
        })
        .collect()
    }

    /// A figure over launches.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<Estimate> {
        let values = self.figures.iter().filter(|figure| figure.name == name).map(|figure| figure.value);
        estimate(&values.collect::<Vec<_>>())
    }

    fn launches(&self) -> BTreeSet<usize> {
        self.repetitions.iter().map(|repetition| repetition.launch).collect()
    }
}

fn quotient(metric: Metric, (arm, base): &(&Repetition, &Repetition)) -> Option<f64> {
    let (arm, base) = (metric.of(arm)?, metric.of(base)?);
    (base > 0.0).then(|| arm / base)
}

/// The order in which a round runs its arms: each round begins with another one, so that none is
/// always first.
#[must_use]
pub fn rotated<T: Copy>(arms: &[T], round: usize) -> Vec<T> {
    let first = if arms.is_empty() { 0 } else { round % arms.len() };
    arms.iter().cycle().skip(first).take(arms.len()).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition() -> Condition {
        Condition(vec![("domains", "1".into())])
    }

    fn repetition(arm: &'static str, launch: usize, round: usize, state: State, ns: u64) -> Repetition {
        let mut latencies = Latencies::new();
        (0..100).for_each(|_| latencies.record(ns));
        let processor_ns = Some(100 * 7_000);
        Repetition {
            condition: condition(),
            arm: arm.into(),
            launch,
            round,
            state,
            latencies,
            operations: 100,
            bytes: 1 << 20,
            failures: 0,
            window_s: 2.0,
            processor_ns,
            guest_ns: None,
            switches: Some(3),
            calls: None,
        }
    }

    #[test]
    fn metrics_are_read_off_a_repetition() {
        let found = repetition("a", 0, 0, State::Near, 5_000);
        assert!(Metric::P50.of(&found).is_some_and(|us| (us - 5.0).abs() < 0.01));
        assert_eq!(Metric::Rate.of(&found), Some(50.0));
        assert_eq!(Metric::Processor.of(&found), Some(7.0));
        assert!(Metric::Bandwidth.of(&found).is_some_and(|gib| (gib - 50.0 / 1024.0).abs() < 1e-9));
        assert_eq!(Metric::ProcessorTotal.of(&found), Some(0.7));
        assert_eq!((Metric::Switches.of(&found), Metric::Calls.of(&found)), (Some(3.0), None));
        let nothing = Repetition { latencies: Latencies::new(), operations: 0, ..found };
        assert_eq!((Metric::P99.of(&nothing), Metric::Processor.of(&nothing)), (None, None));
    }

    #[test]
    fn ratios_pair_rounds_of_one_state_only() {
        let mut results = Results::default();
        for launch in 0..3 {
            // Round 0: both near, ours twice as fast. Round 1: ours far and naive near, which must
            // not count.
            results.repetitions.push(repetition("ours", launch, 0, State::Near, 1_000));
            results.repetitions.push(repetition("naive", launch, 0, State::Near, 2_000));
            results.repetitions.push(repetition("ours", launch, 1, State::Far, 50_000));
            results.repetitions.push(repetition("naive", launch, 1, State::Near, 2_000));
        }
        let ratio = results.ratio(&condition(), "ours", "naive", Metric::P50).expect("there are pairs");
        assert!((ratio.value - 0.5).abs() < 0.001 && ratio.launches == 3, "{ratio:?}");
        assert_eq!(results.samples(&condition(), "ours"), 600);
        assert_eq!(results.ratio(&condition(), "ours", "absent", Metric::P50), None);
    }

    #[test]
    fn without_a_common_state_all_rounds_count() {
        let repetitions =
            vec![repetition("ours", 0, 0, State::Far, 4_000), repetition("naive", 0, 0, State::Near, 1_000)];
        let results = Results { repetitions, ..Results::default() };
        let ratio = results.ratio(&condition(), "ours", "naive", Metric::P50).expect("a pair");
        assert!((ratio.value - 4.0).abs() < 0.01);
    }

    #[test]
    fn what_polls_is_compared_within_one_state_or_not_at_all() {
        let mut results = Results::default();
        for (arm, round, state, ns) in [
            ("ours", 0, State::Near, 1_000),
            ("ours", 1, State::Far, 3_000),
            ("peer", 0, State::Far, 6_000),
            ("peer", 1, State::Mixed, 10),
        ] {
            results.repetitions.push(repetition(arm, 0, round, state, ns));
        }
        let ratio = |state| results.ratio_within(&condition(), ["ours", "peer"], Metric::P50, state);
        // The two far ones, though they ran in different rounds.
        assert!(ratio(None).is_some_and(|found| (found.value - 0.5).abs() < 0.01));
        assert!(ratio(Some(State::Far)).is_some());
        assert_eq!(ratio(Some(State::Near)), None);
        assert_eq!(ratio(Some(State::Mixed)), None);
    }

    #[test]
    fn arms_take_turns_in_being_first() {
        assert_eq!(rotated(&["a", "b", "c"], 0), ["a", "b", "c"]);
        assert_eq!(rotated(&["a", "b", "c"], 4), ["b", "c", "a"]);
        assert!(rotated::<u8>(&[], 4).is_empty());
    }

    #[test]
    fn conditions_come_in_the_order_in_which_they_were_met() {
        let mut results = Results::default();
        for domains in ["8", "16", "8"] {
            let mut found = repetition("a", 0, 0, State::Near, 1_000);
            found.condition = Condition(vec![("domains", domains.into())]);
            results.repetitions.push(found);
        }
        let words: Vec<String> = results.conditions().iter().map(ToString::to_string).collect();
        assert_eq!(words, ["domains=8", "domains=16"]);
    }
}
