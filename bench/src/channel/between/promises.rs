//! The promises about channels of guests, and by what each is judged.

use super::plan::{Arm, Case, Ends, ROUND_TRIP_4K, SPARSE_4K, STREAM, STREAM_BACK};
use crate::promise::{Promise, Relation, Verdict};
use crate::results::{Metric, Results};

/// The figure of a guest's cost beyond that without a channel while it has an idle one, in us per
/// second.
pub const IDLE: &str = "processor time of an idle guest with an open channel, beyond that without";
/// The figure of the cost of the host's end of an idle channel, in us per second.
pub const IDLE_HOST: &str = "processor time of the host's end of an idle channel";

/// How often the guest's end of an idle channel ran, the message at the end and the word to begin
/// included, as a figure.
pub const IDLE_SWITCHES: &str =
    "context switches of the guest's end of an idle channel, first and last message included";

const fn ratio(id: &'static str, about: &'static str, relation: Relation, goal: f64) -> Promise {
    Promise { id, about, unit: "x", relation, goal }
}

const VM_HOST: [Promise; 6] = [
    ratio(
        "channel.vm_host.rtt.blocking.4KiB",
        "guest and host, round trip of 4 KiB between ends that never spin, relative to TCP over virtio-net",
        Relation::AtMost,
        0.4,
    ),
    ratio(
        "channel.vm_host.rtt.sparse.4KiB",
        "the same after gaps of 1 ms, so that whoever is asked sleeps",
        Relation::AtMost,
        0.4,
    ),
    ratio(
        "channel.vm_host.rtt.polled.4KiB",
        "round trip of 4 KiB between ends that poll, relative to TCP over virtio-net whose ends poll",
        Relation::AtMost,
        0.04,
    ),
    ratio(
        "channel.vm_host.stream.64KiB",
        "guest and host, messages of 64 KiB into the guest, relative to TCP over virtio-net",
        Relation::AtLeast,
        3.0,
    ),
    ratio("channel.vm_host.stream.64KiB.back", "the same out of the guest", Relation::AtLeast, 3.0),
    Promise {
        id: "channel.vm_host.idle",
        about: "what an idle guest and the host's worker use more while they have an open channel",
        unit: "us/s",
        relation: Relation::AtMost,
        goal: 500.0,
    },
];

const VM_VM: [Promise; 4] = [
    ratio(
        "channel.vm_vm.rtt.blocking.4KiB",
        "two guests, round trip of 4 KiB between ends that never spin, relative to TCP over virtio-net",
        Relation::AtMost,
        0.4,
    ),
    ratio(
        "channel.vm_vm.rtt.sparse.4KiB",
        "the same after gaps of 1 ms, so that whoever is asked sleeps",
        Relation::AtMost,
        0.4,
    ),
    ratio(
        "channel.vm_vm.rtt.polled.4KiB",
        "round trip of 4 KiB between ends that poll, relative to TCP over virtio-net whose ends poll",
        Relation::AtMost,
        0.04,
    ),
    ratio(
        "channel.vm_vm.stream.64KiB",
        "two guests, messages of 64 KiB, relative to TCP over virtio-net",
        Relation::AtLeast,
        2.0,
    ),
];

impl Ends {
    /// The promises between these two.
    #[must_use]
    pub fn promises(self) -> &'static [Promise] {
        match self {
            Self::VmHost => &VM_HOST,
            Self::VmVm => &VM_VM,
        }
    }
}

/// The two sides of a promise of a ratio.
fn compared(id: &str) -> Option<(Case, [Arm; 2], Metric)> {
    let short = id.strip_prefix("channel.vm_host.").or_else(|| id.strip_prefix("channel.vm_vm."))?;
    match short {
        "rtt.blocking.4KiB" => Some((ROUND_TRIP_4K, [Arm::Asleep, Arm::Tcp], Metric::P50)),
        "rtt.sparse.4KiB" => Some((SPARSE_4K, [Arm::Asleep, Arm::Tcp], Metric::P50)),
        "rtt.polled.4KiB" => Some((ROUND_TRIP_4K, [Arm::Polled, Arm::TcpPolled], Metric::P50)),
        "stream.64KiB" => Some((STREAM, [Arm::Tombolo, Arm::Tcp], Metric::Rate)),
        "stream.64KiB.back" => Some((STREAM_BACK, [Arm::Tombolo, Arm::Tcp], Metric::Rate)),
        _ => None,
    }
}

/// The verdicts on those promises that the results can speak of.
#[must_use]
pub fn verdicts(ends: Ends, results: &Results) -> Vec<Verdict> {
    ends.promises().iter().filter_map(|promise| verdict(ends, promise, results)).collect()
}

fn verdict(ends: Ends, promise: &Promise, results: &Results) -> Option<Verdict> {
    let Some((case, arms, metric)) = compared(promise.id) else {
        let measured = results.figures.iter().filter(|figure| figure.name == IDLE).count() as u64;
        return Some(promise.judge(results.figure(IDLE)?, measured));
    };
    let condition = case.condition(ends);
    let [arm, base] = arms.map(Arm::name);
    let found = results.ratio(&condition, arm, base, metric)?;
    Some(promise.judge(found, results.samples(&condition, arm) + results.samples(&condition, base)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_line::State;
    use crate::histogram::Latencies;
    use crate::results::{Figure, Repetition};

    fn repetition(case: Case, ends: Ends, arm: Arm, ns: u64, operations: u64) -> Repetition {
        let mut latencies = Latencies::new();
        latencies.record(ns);
        Repetition {
            condition: case.condition(ends),
            arm: arm.name().into(),
            launch: 0,
            round: 0,
            state: State::Near,
            latencies,
            operations,
            bytes: case.bytes as u64,
            failures: 0,
            window_s: 1.0,
            processor_ns: None,
            guest_ns: None,
            switches: None,
            calls: None,
        }
    }

    #[test]
    fn every_promise_of_a_ratio_compares_what_its_case_has() {
        for ends in [Ends::VmHost, Ends::VmVm] {
            for promise in ends.promises() {
                match compared(promise.id) {
                    Some((case, arms, _)) => {
                        assert!(ends.cases().contains(&case));
                        assert!(arms.iter().all(|arm| case.arms().contains(arm)));
                    }
                    None => assert!(promise.id.ends_with(".idle"), "{}", promise.id),
                }
            }
        }
    }

    #[test]
    fn round_trips_streams_and_idleness_are_judged() {
        let ends = Ends::VmHost;
        let repetitions = vec![
            repetition(ROUND_TRIP_4K, ends, Arm::Asleep, 50_000, 1),
            repetition(ROUND_TRIP_4K, ends, Arm::Polled, 8_000, 1),
            repetition(ROUND_TRIP_4K, ends, Arm::Tcp, 150_000, 1),
            repetition(ROUND_TRIP_4K, ends, Arm::TcpPolled, 100_000, 1),
            repetition(STREAM, ends, Arm::Tombolo, 1, 310),
            repetition(STREAM, ends, Arm::Tcp, 1, 100),
        ];
        let figures = vec![Figure { name: IDLE, unit: "us/s", launch: 0, value: -20.0 }];
        let results = Results { repetitions, figures, notes: vec![] };
        let found: Vec<(&str, bool)> =
            verdicts(ends, &results).iter().map(|verdict| (verdict.promise, verdict.holds)).collect();
        let expected = [
            ("channel.vm_host.rtt.blocking.4KiB", true),
            ("channel.vm_host.rtt.polled.4KiB", false),
            ("channel.vm_host.stream.64KiB", true),
            ("channel.vm_host.idle", true),
        ];
        assert_eq!(found, expected);
    }
}
