//! The promises about channels, and by what each is judged.

use super::plan::{
    Arm, BUSY, CALLS, Case, ONE_PROCESSOR, SET_UP, SPARSE, STREAM_32K, STREAM_64, STREAM_64K, TRANSFER,
};
use crate::core_line::State;
use crate::promise::{Promise, Relation, Verdict};
use crate::results::{Metric, Results};

/// Processor time of the idle channels, in us per second, as a figure.
pub const IDLE_PROCESSOR: &str = "processor time of 1000 idle channels";
/// Memory of an idle channel, in KiB, as a figure.
pub const IDLE_MEMORY: &str = "memory of an idle channel beyond its rings";

const fn promise(
    id: &'static str,
    about: &'static str,
    unit: &'static str,
    relation: Relation,
    goal: f64,
) -> Promise {
    Promise { id, about, unit, relation, goal }
}

const fn at_most(id: &'static str, about: &'static str, goal: f64) -> Promise {
    promise(id, about, "x", Relation::AtMost, goal)
}

const fn at_least(id: &'static str, about: &'static str, goal: f64) -> Promise {
    promise(id, about, "x", Relation::AtLeast, goal)
}

/// All of them.
pub const PROMISES: [Promise; 19] = [
    at_most("channel.rtt.busy.64B.line", "busy round trip of 64 B, relative to that of a cache line", 1.5),
    at_most("channel.rtt.busy.64B.iceoryx2", "the same, relative to iceoryx2 polling", 0.5),
    at_most("channel.rtt.sparse.tcp", "round trip after gaps of 200 us, relative to TCP over loopback", 0.5),
    at_most("channel.rtt.sparse.iceoryx2", "the same, relative to iceoryx2 with a listener", 0.5),
    at_most("channel.rtt.asleep.pipe", "round trip of ends that never spin, relative to a pipe", 1.1),
    at_most("channel.rtt.one-processor.pipe", "round trip on one processor, relative to a pipe", 1.0),
    at_least("channel.stream.64B.pipe", "messages of 64 B, each shown at once, relative to a pipe", 20.0),
    at_least(
        "channel.stream.64B.pages",
        "the same, held back up to a page, relative to a pipe written by pages",
        2.0,
    ),
    at_least(
        "channel.stream.64B.iceoryx2",
        "messages of 64 B, each shown at once, relative to iceoryx2 polling",
        8.0,
    ),
    at_least("channel.stream.32KiB.veth", "messages of 32 KiB, relative to TCP over veth", 5.0),
    at_least("channel.stream.64KiB.memcpy.far", "messages of 64 KiB, relative to memcpy, far state", 0.6),
    at_least("channel.stream.64KiB.memcpy.near", "the same in the near state", 0.9),
    at_most("channel.gib.calls", "system calls of 1 GiB in 32 KiB, relative to TCP over veth", 0.001),
    at_most("channel.gib.switches", "context switches of the same, relative to TCP over veth", 0.001),
    at_most("channel.gib.processor", "processor time of the same, relative to TCP over veth", 0.2),
    promise(
        "channel.idle.processor",
        "processor time of both ends of 1000 idle channels",
        "us/s",
        Relation::AtMost,
        0.0,
    ),
    promise(
        "channel.idle.memory",
        "memory of an idle channel beyond its rings",
        "KiB",
        Relation::AtMost,
        16.0,
    ),
    promise(
        "channel.set-up",
        "connect to a program, make, pass, open, first message and its answer",
        "us",
        Relation::AtMost,
        200.0,
    ),
    promise("channel.set-up.daemon", "the same by the node's daemon", "us", Relation::AtMost, 200.0),
];

/// The two sides of a promise of a ratio.
struct Comparison {
    id: &'static str,
    case: Case,
    arm: Arm,
    base: Arm,
    metric: Metric,
    state: Option<State>,
}

const fn compare(id: &'static str, case: Case, arm: Arm, base: Arm, metric: Metric) -> Comparison {
    Comparison { id, case, arm, base, metric, state: None }
}

const fn within(state: State, comparison: Comparison) -> Comparison {
    Comparison { state: Some(state), ..comparison }
}

const COMPARISONS: [Comparison; 15] = [
    compare("channel.rtt.busy.64B.line", BUSY, Arm::Tombolo, Arm::Line, Metric::P50),
    compare("channel.rtt.busy.64B.iceoryx2", BUSY, Arm::Tombolo, Arm::Iceoryx, Metric::P50),
    compare("channel.rtt.sparse.tcp", SPARSE, Arm::Tombolo, Arm::Tcp, Metric::P50),
    compare("channel.rtt.sparse.iceoryx2", SPARSE, Arm::Tombolo, Arm::Listener, Metric::P50),
    compare("channel.rtt.asleep.pipe", BUSY, Arm::Asleep, Arm::Pipe, Metric::P50),
    compare("channel.rtt.one-processor.pipe", ONE_PROCESSOR, Arm::Tombolo, Arm::Pipe, Metric::P50),
    compare("channel.stream.64B.pipe", STREAM_64, Arm::Tombolo, Arm::Pipe, Metric::Rate),
    compare("channel.stream.64B.pages", STREAM_64, Arm::Batched, Arm::Pages, Metric::Rate),
    compare("channel.stream.64B.iceoryx2", STREAM_64, Arm::Tombolo, Arm::Iceoryx, Metric::Rate),
    compare("channel.stream.32KiB.veth", STREAM_32K, Arm::Tombolo, Arm::Veth, Metric::Rate),
    within(
        State::Far,
        compare("channel.stream.64KiB.memcpy.far", STREAM_64K, Arm::Tombolo, Arm::Copy, Metric::Rate),
    ),
    within(
        State::Near,
        compare("channel.stream.64KiB.memcpy.near", STREAM_64K, Arm::Tombolo, Arm::Copy, Metric::Rate),
    ),
    compare("channel.gib.calls", CALLS, Arm::Tombolo, Arm::Veth, Metric::Calls),
    compare("channel.gib.switches", TRANSFER, Arm::Tombolo, Arm::Veth, Metric::Switches),
    compare("channel.gib.processor", TRANSFER, Arm::Tombolo, Arm::Veth, Metric::ProcessorTotal),
];

/// The verdicts on those promises that the results can speak of.
#[must_use]
pub fn verdicts(results: &Results) -> Vec<Verdict> {
    PROMISES.iter().filter_map(|promise| verdict(promise, results)).collect()
}

fn verdict(promise: &Promise, results: &Results) -> Option<Verdict> {
    match promise.id {
        "channel.idle.processor" => figure(promise, results, IDLE_PROCESSOR),
        "channel.idle.memory" => figure(promise, results, IDLE_MEMORY),
        "channel.set-up" => set_up(promise, results, Arm::Tombolo),
        "channel.set-up.daemon" => set_up(promise, results, Arm::Service),
        id => compared(promise, results, COMPARISONS.iter().find(|comparison| comparison.id == id)?),
    }
}

fn set_up(promise: &Promise, results: &Results, arm: Arm) -> Option<Verdict> {
    let condition = SET_UP.condition();
    let found = results.estimate(&condition, arm.name(), Metric::P50)?;
    Some(promise.judge(found, results.samples(&condition, arm.name())))
}

fn figure(promise: &Promise, results: &Results, name: &str) -> Option<Verdict> {
    let measured = results.figures.iter().filter(|figure| figure.name == name).count() as u64;
    Some(promise.judge(results.figure(name)?, measured))
}

fn compared(promise: &Promise, results: &Results, comparison: &Comparison) -> Option<Verdict> {
    let condition = comparison.case.condition();
    let arms = [comparison.arm.name(), comparison.base.name()];
    let found = match comparison.metric {
        // What is counted does not depend on where the processors are.
        Metric::Calls | Metric::Switches => results.ratio(&condition, arms[0], arms[1], comparison.metric),
        _ => results.ratio_within(&condition, arms, comparison.metric, comparison.state),
    }?;
    let samples = arms.iter().map(|arm| results.samples(&condition, arm)).sum();
    Some(promise.judge(found, samples))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Latencies;
    use crate::results::{Figure, Repetition};

    fn repetition(case: Case, arm: Arm, state: State, operations: u64) -> Repetition {
        Repetition {
            condition: case.condition(),
            arm: arm.name().into(),
            launch: 0,
            round: 0,
            state,
            latencies: Latencies::new(),
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

    fn judged(repetitions: Vec<Repetition>) -> Vec<(&'static str, bool)> {
        let results = Results { repetitions, ..Results::default() };
        verdicts(&results).iter().map(|verdict| (verdict.promise, verdict.holds)).collect()
    }

    #[test]
    fn every_promise_has_something_that_judges_it() {
        for promise in &PROMISES {
            let special =
                ["channel.idle.processor", "channel.idle.memory", "channel.set-up", "channel.set-up.daemon"];
            let compared = COMPARISONS.iter().any(|comparison| comparison.id == promise.id);
            assert!(compared != special.contains(&promise.id), "{}", promise.id);
        }
        for comparison in &COMPARISONS {
            assert!(PROMISES.iter().any(|promise| promise.id == comparison.id), "{}", comparison.id);
            let arms = comparison.case.arms();
            assert!(arms.contains(&comparison.arm) && arms.contains(&comparison.base), "{}", comparison.id);
        }
    }

    #[test]
    fn each_state_has_a_goal_of_its_own() {
        let far = State::Far;
        let copy = repetition(STREAM_64K, Arm::Copy, far, 100);
        let ours = |operations| repetition(STREAM_64K, Arm::Tombolo, far, operations);
        let id = "channel.stream.64KiB.memcpy.far";
        assert_eq!(judged(vec![copy.clone(), ours(61)]), [(id, true)]);
        assert_eq!(judged(vec![copy, ours(59)]), [(id, false)]);
    }

    #[test]
    fn nothing_at_all_is_less_than_a_thousandth() {
        let veth = repetition(TRANSFER, Arm::Veth, State::Near, 32_768);
        let ours =
            Repetition { switches: Some(0), ..repetition(TRANSFER, Arm::Tombolo, State::Near, 32_768) };
        let found = judged(vec![veth, ours]);
        assert_eq!(found, [("channel.gib.switches", true), ("channel.gib.processor", false)]);
    }

    #[test]
    fn idle_channels_are_judged_by_their_figures() {
        let figure = |name, unit, value| Figure { name, unit, launch: 0, value };
        let figures = vec![figure(IDLE_PROCESSOR, "us/s", 0.0), figure(IDLE_MEMORY, "KiB", 17.0)];
        let found = verdicts(&Results { figures, ..Results::default() });
        assert_eq!(found.iter().map(|verdict| verdict.holds).collect::<Vec<_>>(), [true, false]);
    }
}
