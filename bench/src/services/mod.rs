//! Calls of a service through each view: files below `/srv`, 9P2000.L, and a channel,
//! beside a file system by libfuse, diod, a plain file of the same tmpfs, pipes, and memory itself.

pub mod arms;
pub mod server;
mod stage;
pub mod work;

use crate::choice::Choice;
use crate::core_line;
use crate::promise::{Promise, Relation, Verdict};
use crate::report::{Column, column};
use crate::results::{Condition, Metric, Repetition, Results, rotated};
use crate::scenario::{Arguments, BenchError, Scenario};
use arms::{ARMS, Arm, WORKS, Work};
use stage::Stage;
use std::path::Path;
use std::time::Duration;
use work::{Tale, Task};

/// The scenario.
#[derive(Debug, Clone, Copy)]
pub struct Services;

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Fresh starts of everything.
    pub launches: usize,
    /// Rounds in each.
    pub rounds: usize,
    /// Work before the measured window.
    pub warm_up: Duration,
    /// The measured window of one repetition.
    pub window: Duration,
    /// The choice of conditions and arms.
    pub choice: Choice,
}

impl Plan {
    /// The plan that is quoted.
    #[must_use]
    pub fn full() -> Self {
        let (warm_up, window) = (Duration::from_millis(20), Duration::from_millis(200));
        Self { launches: 5, rounds: 3, warm_up, window, choice: Choice::default() }
    }

    /// Whether it works.
    #[must_use]
    pub fn quick() -> Self {
        let (warm_up, window) = (Duration::from_millis(5), Duration::from_millis(50));
        Self { launches: 1, rounds: 1, warm_up, window, choice: Choice::default() }
    }
}

const COLUMNS: [Column; 4] = [
    column("p50 us", "p50_us", Metric::P50, 2).and_ratio(),
    column("p99 us", "p99_us", Metric::P99, 1),
    column("per s", "per_s", Metric::Rate, 0),
    column("GiB/s", "gib_per_s", Metric::Bandwidth, 3),
];
/// Of streams nothing is noted but how many came.
const COLUMNS_OF_STREAMS: [Column; 2] = [
    column("per s", "per_s", Metric::Rate, 0).and_ratio(),
    column("GiB/s", "gib_per_s", Metric::Bandwidth, 3),
];

const fn promise(id: &'static str, about: &'static str, goal: f64) -> Promise {
    Promise { id, about, unit: "x", relation: Relation::AtMost, goal }
}

/// The work of a promise, the arm of it and its peer; the medians are compared.
const COMPARISONS: [(Work, [Arm; 2]); 8] = [
    (Work::Open, [Arm::Fuse, Arm::Libfuse]),
    (Work::Read(4 << 10), [Arm::Fuse, Arm::Libfuse]),
    (Work::Write(4 << 10), [Arm::Fuse, Arm::Libfuse]),
    (Work::Read(1 << 20), [Arm::Fuse, Arm::Libfuse]),
    (Work::Open, [Arm::Ninep, Arm::Diod]),
    (Work::Read(4 << 10), [Arm::Ninep, Arm::Diod]),
    (Work::Write(4 << 10), [Arm::Ninep, Arm::Diod]),
    (Work::List, [Arm::Ninep, Arm::Diod]),
];
const PROMISES: [Promise; 8] = [
    promise("services.fuse.open.libfuse", "open and close through FUSE, relative to libfuse", 1.15),
    promise("services.fuse.read.4KiB.libfuse", "4 KiB read through FUSE, relative to libfuse", 1.15),
    promise("services.fuse.write.4KiB.libfuse", "4 KiB written through FUSE, relative to libfuse", 1.15),
    promise("services.fuse.read.1MiB.libfuse", "1 MiB read through FUSE, relative to libfuse", 1.15),
    promise("services.9p.open.diod", "open and close by 9P, relative to diod", 1.1),
    promise("services.9p.read.4KiB.diod", "4 KiB read by 9P, relative to diod", 1.1),
    promise("services.9p.write.4KiB.diod", "4 KiB written by 9P, relative to diod", 1.1),
    promise("services.9p.list.diod", "100 names listed by 9P, relative to diod", 1.1),
];

fn work_of(condition: &Condition) -> Option<Work> {
    WORKS.into_iter().find(|work| work.condition() == *condition)
}

impl Scenario for Services {
    fn name(&self) -> &'static str {
        "services"
    }

    fn about(&self) -> &'static str {
        "calls of a service through files, by 9P and over a channel, beside libfuse, diod, a plain file, pipes and memory"
    }

    fn promises(&self) -> &'static [Promise] {
        &PROMISES
    }

    fn base(&self, condition: &Condition) -> &'static str {
        match work_of(condition) {
            Some(work) if Arm::Plain.does(work) => Arm::Plain.name(),
            _ => Arm::Pipe.name(),
        }
    }

    fn columns(&self, condition: &Condition) -> &'static [Column] {
        match work_of(condition) {
            Some(Work::Stream(_)) => &COLUMNS_OF_STREAMS,
            _ => &COLUMNS,
        }
    }

    fn rank(&self, _: &Condition, arm: &str) -> usize {
        ARMS.iter().position(|known| known.name() == arm).unwrap_or(ARMS.len())
    }

    fn choices(&self) -> Option<Vec<(Condition, Vec<&'static str>)>> {
        let arms = |work: Work| ARMS.iter().filter(move |arm| arm.does(work)).map(|arm| arm.name());
        Some(WORKS.iter().map(|work| (work.condition(), arms(*work).collect())).collect())
    }

    fn depends(&self) -> &'static [&'static str] {
        &["sys", "io/frontend", "io/session", "io/service", "services/files", "io/channel", "logic/ring"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        &[&["qemu-storage-daemon", "--version"], &["runc", "--version"]]
    }

    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
        let plan = if arguments.quick { Plan::quick() } else { Plan::full() };
        let launches = arguments.launches.unwrap_or(plan.launches).max(1);
        let plan = Plan { launches, choice: arguments.choice.clone(), ..plan };
        measure(&plan, &arguments.binary, progress)
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let judged = PROMISES.iter().zip(COMPARISONS).filter_map(|(promise, (work, [ours, peer]))| {
            let condition = work.condition();
            let estimate = results.ratio(&condition, ours.name(), peer.name(), Metric::P50)?;
            let samples = [ours, peer].map(|arm| results.samples(&condition, arm.name()));
            Some(promise.judge(estimate, samples.iter().sum()))
        });
        judged.collect()
    }
}

/// Measures what the plan chooses, as far as this machine can; what it can't is noted.
///
/// # Errors
/// [`BenchError`]; what was started has been ended then.
pub fn measure(plan: &Plan, binary: &Path, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
    let mut results = Results::default();
    for launch in 0..plan.launches {
        progress(&format!("launch {} of {}: starting everybody", launch + 1, plan.launches));
        let mut stage = Stage::make(binary)?;
        for round in 0..plan.rounds {
            progress(&format!("launch {} of {}, round {}", launch + 1, plan.launches, round + 1));
            for work in WORKS.into_iter().filter(|work| plan.choice.takes(&work.condition())) {
                for arm in rotated(&ARMS, launch + round) {
                    if arm.does(work) && plan.choice.takes_arm(arm.name()) {
                        let done = repetition(&mut stage, plan, (arm, work), (launch, round))?;
                        results.repetitions.extend(done);
                    }
                }
            }
        }
        results.note(stage.notes());
        stage.end()?;
    }
    Ok(results)
}

fn repetition(
    stage: &mut Stage,
    plan: &Plan,
    (arm, work): (Arm, Work),
    (launch, round): (usize, usize),
) -> Result<Option<Repetition>, BenchError> {
    let Some((place, names)) = stage.place(arm) else { return Ok(None) };
    let ns = |time: Duration| time.as_nanos() as u64;
    let task = Task { place, names, work, warm_up_ns: ns(plan.warm_up), window_ns: ns(plan.window) };
    let before_ns = core_line::round_trip_ns();
    if arm == Arm::Memory && work == Work::Call && before_ns.is_none() {
        return Ok(None);
    }
    let Some(client) = stage.client(arm) else { return Ok(None) };
    client.give(&task)?;
    let tale: Tale = client.tale(plan.warm_up + plan.window)?;
    Ok(Some(Repetition {
        condition: work.condition(),
        arm: arm.name().into(),
        launch,
        round,
        state: core_line::state(before_ns, core_line::round_trip_ns()),
        latencies: tale.latencies,
        operations: tale.operations,
        bytes: work.bytes() as u64,
        failures: 0,
        window_s: tale.window_ns as f64 / 1e9,
        processor_ns: None,
        guest_ns: None,
        switches: None,
        calls: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_promise_compares_arms_that_do_its_work() {
        for (promise, (work, arms)) in PROMISES.iter().zip(COMPARISONS) {
            assert!(arms.iter().all(|arm| arm.does(work)), "{}", promise.id);
            let [view, peer] = arms.map(Arm::name);
            assert!(
                promise.id.contains(&format!(".{view}.")) && promise.id.ends_with(peer),
                "{}",
                promise.id
            );
        }
    }

    #[test]
    fn each_work_is_compared_with_an_arm_that_does_it() {
        for work in WORKS {
            let base = Services.base(&work.condition());
            assert!(ARMS.iter().any(|arm| arm.name() == base && arm.does(work)), "{work:?}: {base}");
        }
    }
}
