//! The promises of the statistics, shown on runs whose truth is known because they were simulated
//! from a seed.

use statistics::claim::{Claim, compare_all};
use statistics::open_loop::{Arrivals, Exchange, Schedule, run};
use statistics::{SplitMix, estimate, quantile};
use std::convert::Infallible;

/// Seed of everything here.
const SEED: u64 = 30;
const MS: u64 = 1_000_000;

/// Launches of one arm as machines give them: skewed, and now and then one that somebody disturbed.
fn launches(random: &mut SplitMix, count: usize, scale: f64) -> Vec<f64> {
    let one = |_| {
        let disturbed = if random.unit() < 0.05 { 40.0 } else { 0.0 };
        scale * (50.0 + random.exponential(5.0) + disturbed)
    };
    (0..count).map(one).collect()
}

/// In how many of so many runs a report claims any difference; five arms against a base each.
fn runs_that_claim(runs: usize, count: usize, scale: f64) -> usize {
    let mut random = SplitMix(SEED);
    let claims = |_: &usize| {
        let base = launches(&mut random, count, 1.0);
        let arms: Vec<Vec<f64>> = (0..5).map(|_| launches(&mut random, count, scale)).collect();
        let pairs: Vec<(&[f64], &[f64])> = arms.iter().map(|arm| (arm.as_slice(), base.as_slice())).collect();
        compare_all(&pairs).iter().flatten().any(|found| !matches!(found.claim, Claim::CantTell { .. }))
    };
    (0..runs).filter(claims).count()
}

#[test]
fn two_arms_of_one_kind_are_told_apart_in_at_most_one_of_twenty_runs() {
    for count in [5, 10, 20] {
        let alarms = runs_that_claim(200, count, 1.0);
        assert!(alarms <= 10, "{alarms} false alarms in 200 runs of {count} launches");
    }
}

#[test]
fn a_difference_that_is_there_is_found_with_as_many_launches_as_it_takes() {
    assert!(runs_that_claim(200, 20, 1.2) >= 190);
}

#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    let mut random = SplitMix(SEED);
    // The median of an exponential distribution is its mean times ln 2.
    let truth = 5.0 * std::f64::consts::LN_2;
    let mut holds = || {
        let values: Vec<f64> = (0..25).map(|_| random.exponential(5.0)).collect();
        estimate(&values).is_some_and(|found| found.low <= truth && truth <= found.high)
    };
    let held = (0..400).filter(|_| holds()).count();
    assert!(held >= 368, "{held} of 400");
}

/// A server that takes a fixed time for each request, but for one stall; its clock is only this
/// number.
struct Stalling {
    now_ns: u64,
    service_ns: u64,
    stall_at_ns: u64,
    stall_ns: u64,
    has_stalled: bool,
}

impl Exchange for Stalling {
    type Error = Infallible;

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn wait_until(&mut self, instant_ns: u64) {
        self.now_ns = self.now_ns.max(instant_ns);
    }

    fn exchange(&mut self) -> Result<bool, Infallible> {
        if self.now_ns >= self.stall_at_ns && !self.has_stalled {
            self.has_stalled = true;
            self.now_ns += self.stall_ns;
        }
        self.now_ns += self.service_ns;
        Ok(true)
    }
}

/// The 99th percentile of both kinds of latency, in ms, of 5 s with one stall of 100 ms in the
/// middle.
fn p99_of_a_stall(arrivals: Option<Arrivals>) -> [f64; 2] {
    let mut server = Stalling {
        now_ns: 0,
        service_ns: 1_000,
        stall_at_ns: 2_500 * MS,
        stall_ns: 100 * MS,
        has_stalled: false,
    };
    let schedule = arrivals.map(|arrivals| Schedule::new(arrivals, MS / 100, SEED));
    let samples = run(&mut server, schedule, 5_000 * MS, usize::MAX).expect("nothing fails");
    let p99 = |of: fn(&statistics::open_loop::Sample) -> u64| {
        let values: Vec<f64> = samples.answered.iter().map(|sample| of(sample) as f64 / MS as f64).collect();
        quantile(&values, 0.99).expect("there are samples")
    };
    [p99(|sample| sample.latency_ns), p99(|sample| sample.uncorrected_ns)]
}

/// Requests come at a rate r and take s each; a stall of S delays those that are due until the
/// backlog is gone, S / (1 - rs) later, by amounts that fall evenly from S to 0. Of a window W, a
/// share of S / (1 - rs) / W is delayed, and the slowest hundredth of all begins where the rest of
/// that share lies above it.
#[test]
fn a_stall_shows_in_the_open_loops_p99_and_not_in_the_closed_ones() {
    let (stall_ms, window_ms, busy) = (100.0, 5_000.0, 0.1);
    let delayed_ms = stall_ms / (1.0 - busy);
    let analytic_ms = stall_ms * (1.0 - 0.01 * window_ms / delayed_ms);
    for arrivals in [Arrivals::Periodic, Arrivals::Poisson] {
        let [corrected, uncorrected] = p99_of_a_stall(Some(arrivals));
        let off = (corrected - analytic_ms).abs() / analytic_ms;
        assert!(off < 0.02, "{arrivals:?}: {corrected} ms, not {analytic_ms} ms");
        assert!(uncorrected < 1.0, "{arrivals:?}: {uncorrected} ms");
    }
    let [closed, _] = p99_of_a_stall(None);
    assert!(closed < 1.0, "{closed} ms");
}
