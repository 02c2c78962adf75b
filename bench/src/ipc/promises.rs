//! The promises about endpoints, and by what each is judged.

use super::plan::{Arm, COPIES, Case, KERNEL, KERNEL_SPINNING, PAIRS, ROUND_TRIP, STREAM_64};
use crate::promise::{Promise, Relation, Verdict};
use crate::results::{Metric, Results};
use crate::statistics::Estimate;

const fn at_most(id: &'static str, about: &'static str, goal: f64) -> Promise {
    Promise { id, about, unit: "x", relation: Relation::AtMost, goal }
}

const fn at_least(id: &'static str, about: &'static str, goal: f64) -> Promise {
    Promise { id, about, unit: "x", relation: Relation::AtLeast, goal }
}

/// All of them.
pub const PROMISES: [Promise; 19] = [
    at_least(
        "ipc.stream.64B.kernel",
        "messages of 64 B, each shown at once, relative to the kernel's best",
        3.0,
    ),
    at_least(
        "ipc.stream.64B.pages",
        "the same, held back up to a page, relative to a pipe written by pages",
        2.0,
    ),
    at_least("ipc.stream.64B.grpc", "the same, relative to gRPC", 10.0),
    at_least("ipc.stream.64B.zenoh", "the same, relative to zenoh", 10.0),
    at_least("ipc.pairs.2.64B.kernel", "the same of 2 pairs, relative to the kernel's best", 10.0),
    at_least("ipc.pairs.4.64B.kernel", "the same of 4 pairs", 10.0),
    at_least("ipc.pairs.8.64B.kernel", "the same of 8 pairs", 10.0),
    at_most("ipc.rtt.call.64B.kernel", "call that waits for its reply, relative to the kernel's best", 1.0),
    at_most("ipc.rtt.call.64B.grpc", "the same, relative to gRPC", 1.0),
    at_most("ipc.rtt.call.64B.zenoh", "the same, relative to zenoh", 1.0),
    at_most("ipc.rtt.blocking.64B.kernel", "round trip that never spins, relative to the kernel's best", 1.0),
    at_most("ipc.rtt.blocking.64B.grpc", "the same, relative to gRPC", 1.0),
    at_most("ipc.rtt.blocking.64B.zenoh", "the same, relative to zenoh", 1.0),
    at_least("ipc.copy.4KiB.kernel", "bulk of 4 KiB, relative to the kernel's best", 2.0),
    at_least("ipc.copy.64KiB.kernel", "the same of 64 KiB", 2.0),
    at_least("ipc.copy.1MiB.kernel", "the same of 1 MiB", 2.0),
    at_least("ipc.copy.16MiB.kernel", "the same of 16 MiB", 2.0),
    at_least("ipc.copy.1MiB.grpc", "bulk of 1 MiB, relative to gRPC", 2.0),
    at_least("ipc.copy.1MiB.zenoh", "the same, relative to zenoh", 1.0),
];

/// The two sides of a promise.
struct Comparison {
    id: &'static str,
    case: Case,
    arm: Arm,
    /// The one of these that makes the promise hardest to keep is judged by.
    bases: &'static [Arm],
    metric: Metric,
}

const fn streams(id: &'static str, case: Case, bases: &'static [Arm]) -> Comparison {
    Comparison { id, case, arm: Arm::Tombolo, bases, metric: Metric::Rate }
}

const fn waits(id: &'static str, arm: Arm, bases: &'static [Arm]) -> Comparison {
    Comparison { id, case: ROUND_TRIP, arm, bases, metric: Metric::P50 }
}

const COMPARISONS: [Comparison; 19] = [
    Comparison { arm: Arm::Unbatched, ..streams("ipc.stream.64B.kernel", STREAM_64, &KERNEL) },
    streams("ipc.stream.64B.pages", STREAM_64, &[Arm::Pages]),
    streams("ipc.stream.64B.grpc", STREAM_64, &[Arm::Grpc]),
    streams("ipc.stream.64B.zenoh", STREAM_64, &[Arm::Zenoh]),
    streams("ipc.pairs.2.64B.kernel", PAIRS[0], &KERNEL),
    streams("ipc.pairs.4.64B.kernel", PAIRS[1], &KERNEL),
    streams("ipc.pairs.8.64B.kernel", PAIRS[2], &KERNEL),
    waits("ipc.rtt.call.64B.kernel", Arm::Tombolo, &KERNEL_SPINNING),
    waits("ipc.rtt.call.64B.grpc", Arm::Tombolo, &[Arm::Grpc]),
    waits("ipc.rtt.call.64B.zenoh", Arm::Tombolo, &[Arm::Zenoh]),
    waits("ipc.rtt.blocking.64B.kernel", Arm::Asleep, &KERNEL),
    waits("ipc.rtt.blocking.64B.grpc", Arm::Asleep, &[Arm::Grpc]),
    waits("ipc.rtt.blocking.64B.zenoh", Arm::Asleep, &[Arm::Zenoh]),
    streams("ipc.copy.4KiB.kernel", COPIES[0], &KERNEL),
    streams("ipc.copy.64KiB.kernel", COPIES[1], &KERNEL),
    streams("ipc.copy.1MiB.kernel", COPIES[2], &KERNEL),
    streams("ipc.copy.16MiB.kernel", COPIES[3], &KERNEL),
    streams("ipc.copy.1MiB.grpc", COPIES[2], &[Arm::Grpc]),
    streams("ipc.copy.1MiB.zenoh", COPIES[2], &[Arm::Zenoh]),
];

/// The verdicts on those promises that the results can speak of.
#[must_use]
pub fn verdicts(results: &Results) -> Vec<Verdict> {
    let judged = |promise: &Promise| {
        let comparison = COMPARISONS.iter().find(|comparison| comparison.id == promise.id)?;
        let (base, found) = hardest(promise, comparison, results)?;
        let condition = comparison.case.condition();
        let samples = [comparison.arm, base].map(|arm| results.samples(&condition, arm.name()));
        Some(promise.judge(found, samples.iter().sum()))
    };
    PROMISES.iter().filter_map(judged).collect()
}

/// The ratio to whichever base makes the promise hardest to keep.
fn hardest(promise: &Promise, comparison: &Comparison, results: &Results) -> Option<(Arm, Estimate)> {
    let condition = comparison.case.condition();
    let ratio = |&base: &Arm| {
        let arms = [comparison.arm.name(), base.name()];
        // Several pairs share the processors, wherever these are to each other; one pair is
        // compared within one state.
        let found = if comparison.case.pairs() > 1 {
            results.ratio(&condition, arms[0], arms[1], comparison.metric)
        } else {
            results.ratio_within(&condition, arms, comparison.metric, None)
        };
        Some((base, found?))
    };
    let harder = |a: &(Arm, Estimate), b: &(Arm, Estimate)| match promise.relation {
        Relation::AtLeast => a.1.value.total_cmp(&b.1.value),
        Relation::AtMost => b.1.value.total_cmp(&a.1.value),
    };
    comparison.bases.iter().filter_map(ratio).min_by(harder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_line::State;
    use crate::histogram::Latencies;
    use crate::results::Repetition;

    fn repetition(case: Case, arm: Arm, operations: u64) -> Repetition {
        let mut latencies = Latencies::new();
        latencies.record(operations);
        Repetition {
            condition: case.condition(),
            arm: arm.name().into(),
            launch: 0,
            round: 0,
            state: State::Far,
            latencies,
            operations,
            bytes: case.bytes as u64,
            failures: 0,
            window_s: 1.0,
            processor_ns: Some(operations),
            guest_ns: None,
            switches: Some(operations),
            calls: None,
        }
    }

    fn judged(repetitions: Vec<Repetition>) -> Vec<(&'static str, f64)> {
        let results = Results { repetitions, ..Results::default() };
        verdicts(&results).iter().map(|verdict| (verdict.promise, verdict.value)).collect()
    }

    #[test]
    fn every_promise_has_something_that_judges_it() {
        for (promise, comparison) in PROMISES.iter().zip(&COMPARISONS) {
            assert_eq!(promise.id, comparison.id);
            let arms = comparison.case.arms();
            assert!(
                arms.contains(&comparison.arm) && comparison.bases.iter().all(|base| arms.contains(base))
            );
        }
    }

    #[test]
    fn the_best_of_the_kernel_judges() {
        let streams = |arm, operations| repetition(STREAM_64, arm, operations);
        let rates = [
            (Arm::Unbatched, 1_000),
            (Arm::Tombolo, 1_800),
            (Arm::Pipe, 100),
            (Arm::Unix, 200),
            (Arm::Pages, 900),
        ];
        let found = judged(rates.map(|(arm, operations)| streams(arm, operations)).to_vec());
        assert_eq!(found, [("ipc.stream.64B.kernel", 5.0), ("ipc.stream.64B.pages", 2.0)]);
        let waits =
            [(Arm::Asleep, 50_000), (Arm::Queue, 100_000), (Arm::Tcp, 40_000), (Arm::Tombolo, 10_000)];
        let found = judged(waits.map(|(arm, ns)| repetition(ROUND_TRIP, arm, ns)).to_vec());
        let is = |found: (&str, f64), id: &str, value: f64| found.0 == id && (found.1 - value).abs() < 0.01;
        let [call, blocking] = found[..] else { panic!("{found:?}") };
        assert!(is(call, "ipc.rtt.call.64B.kernel", 0.25), "{call:?}");
        assert!(is(blocking, "ipc.rtt.blocking.64B.kernel", 1.25), "{blocking:?}");
    }
}
