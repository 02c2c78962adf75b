//! Messages between a guest and the host, or between two guests: our channels beside TCP over
//! virtio-net, in the same guests.
//!
//! Each end has one worker, a process that stays for the whole launch. The daemon makes one channel
//! between them, of which an end is a device that is plugged into a guest; it carries the
//! repetitions of all arms that are channels. A connection is made for each.

pub mod plan;
pub mod promises;
pub mod stage;

use super::task::{Role, Tale, Task, Work};
use super::{either, of_window, stage::note};
use crate::core_line;
use crate::machines::{self, Image};
use crate::promise::{Promise, Verdict};
use crate::report::{COLUMNS, Column};
use crate::results::{Condition, Figure, Repetition, Results, rotated};
use crate::scenario::{Arguments, BenchError, Scenario};
use crate::statistics::median;
use crate::worker::Worker;
use plan::{Arm, Case, Ends, Plan};
use promises::{IDLE, IDLE_HOST, IDLE_SWITCHES};
use stage::{Stage, WORKER};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an idle end is asked to end.
const IDLE_END: Duration = Duration::from_secs(5);
/// Connections of one launch that may stall until the arm is given up for this launch.
const MAX_STALLS: usize = 3;

/// The scenario.
#[derive(Debug, Clone, Copy)]
pub struct Between(pub Ends);

impl Scenario for Between {
    fn name(&self) -> &'static str {
        match self.0 {
            Ends::VmHost => "channel --between vm,host",
            Ends::VmVm => "channel --between vm,vm",
        }
    }

    fn about(&self) -> &'static str {
        match self.0 {
            Ends::VmHost => {
                "messages between a guest and the host, beside TCP over virtio-net in the same guest"
            }
            Ends::VmVm => "messages between two guests, beside TCP over virtio-net in the same guests",
        }
    }

    fn promises(&self) -> &'static [Promise] {
        self.0.promises()
    }

    fn base(&self, _: &Condition) -> &'static str {
        Arm::Tcp.name()
    }

    fn rank(&self, condition: &Condition, arm: &str) -> usize {
        let arms = self.0.case(condition).map_or(&[][..], Case::arms);
        arms.iter().position(|found| found.name() == arm).unwrap_or(arms.len())
    }

    fn columns(&self, condition: &Condition) -> &'static [Column] {
        self.0.case(condition).map_or(&COLUMNS, Case::columns)
    }

    fn depends(&self) -> &'static [&'static str] {
        &["sys", "logic/ring", "io/channel", "io/machine", "services/agent"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        &[&["qemu-system-x86_64", "--version"], &["runc", "--version"]]
    }

    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
        let plan = if arguments.quick { Plan::quick() } else { Plan::full() };
        let launches = arguments.launches.unwrap_or(plan.launches).max(1);
        measure(self.0, &Plan { launches, ..plan }, &arguments.binary, progress)
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        promises::verdicts(self.0, results)
    }
}

/// Runs a plan. The worker lies beside `binary`.
///
/// # Errors
/// As [`Scenario::measure`].
pub fn measure(
    ends: Ends,
    plan: &Plan,
    binary: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Results, BenchError> {
    machines::check()?;
    progress("packing the guests' image");
    let kept = tempfile::tempdir().map_err(BenchError::io("making a folder"))?;
    let image = Image::build(binary, &[WORKER], kept.path())?;
    let mut results = Results::default();
    for launch in 0..plan.launches {
        progress(&format!("launch {} of {}: starting the guests", launch + 1, plan.launches));
        let stage = Stage::make(ends, binary, &image)?;
        let mut bench = Bench { ends, plan, workers: None, opened: false, stage, launch, stalls: 0 };
        for &case in ends.cases() {
            progress(&format!("launch {} of {}, {}", launch + 1, plan.launches, case.condition(ends)));
            bench.run(case, &mut results)?;
        }
        if ends == Ends::VmHost {
            progress(&format!("launch {} of {}, an idle channel", launch + 1, plan.launches));
            bench.idle(&mut results).map_err(|error| bench.stage.explain(error))?;
        }
        bench.workers = None;
        bench.stage.end()?;
    }
    Ok(results)
}

/// One launch.
struct Bench<'a> {
    ends: Ends,
    plan: &'a Plan,
    // The workers end before the stage does: fields are dropped in this order.
    workers: Option<[Worker; 2]>,
    /// Whether these workers have a channel.
    opened: bool,
    stage: Stage,
    launch: usize,
    /// Connections that stalled in this launch.
    stalls: usize,
}

impl Bench<'_> {
    fn run(&mut self, case: Case, results: &mut Results) -> Result<(), BenchError> {
        for round in 0..self.plan.rounds {
            for arm in rotated(case.arms(), self.launch + round) {
                if arm.is_network() && self.stalls >= MAX_STALLS {
                    continue;
                }
                match self.repeat(case, arm, round) {
                    Ok(repetition) => results.repetitions.push(repetition),
                    Err(error) => self.excuse(arm, error, results)?,
                }
            }
        }
        Ok(())
    }

    fn repeat(&mut self, case: Case, arm: Arm, round: usize) -> Result<Repetition, BenchError> {
        let timing = &self.plan.timing;
        let work = case.work(arm, timing);
        self.prime(arm, work, case.bytes)?;
        let length = Duration::from_nanos(timing.warm_up_ns + timing.window_ns);
        let before_ns = core_line::round_trip_ns();
        let guests_before = self.stage.guests_processor_ns()?;
        let tales = finish(workers(&mut self.workers)?, length)?;
        let guests_ns = self.stage.guests_processor_ns()?.saturating_sub(guests_before);
        let state = core_line::state(before_ns, core_line::round_trip_ns());
        let of = |role: Role| &tales[usize::from(role == Role::Follow)];
        let lead = of(Role::Lead);
        // The processor time of a worker in a guest is part of the guest's.
        let (host_ns, in_guests_ns) = match self.ends {
            Ends::VmHost => (lead.processor_ns, of(Role::Follow).processor_ns),
            Ends::VmVm => (0, lead.processor_ns + of(Role::Follow).processor_ns),
        };
        Ok(Repetition {
            condition: case.condition(self.ends),
            arm: arm.name().into(),
            launch: self.launch,
            round,
            state,
            operations: lead.operations,
            bytes: case.bytes as u64,
            failures: 0,
            window_s: lead.window_ns as f64 / 1e9,
            processor_ns: Some(of_window(lead, guests_ns + host_ns)),
            guest_ns: Some(of_window(lead, in_guests_ns)),
            switches: None,
            calls: None,
            latencies: lead.latencies.clone(),
        })
    }

    /// Brings the two together, up to the word to begin.
    fn prime(&mut self, arm: Arm, work: Work, bytes: usize) -> Result<(), BenchError> {
        self.start_workers()?;
        let address = self.stage.address();
        let anew = !self.opened;
        let [lead, follow] = self.stage.controls().map(|control| arm.means(control, address, anew));
        let task = |role, means| Task { role, means, work, bytes, meeting: PathBuf::new(), processor: None };
        let [leader, follower] = workers(&mut self.workers)?;
        follower.give(&task(Role::Follow, follow))?;
        follower.expect("waiting")?;
        leader.give(&task(Role::Lead, lead))?;
        either([leader.expect("primed"), follower.expect("primed")])?;
        self.opened |= !arm.is_network();
        Ok(())
    }

    fn start_workers(&mut self) -> Result<(), BenchError> {
        if self.workers.is_none() {
            self.workers = Some(self.stage.workers()?);
            self.opened = false;
        }
        Ok(())
    }

    /// TCP may stall: it is counted, and both workers start afresh. What is ours may not.
    fn excuse(&mut self, arm: Arm, error: BenchError, results: &mut Results) -> Result<(), BenchError> {
        self.workers = None;
        let error = self.stage.explain(error);
        if !arm.is_network() || !matches!(error, BenchError::Protocol { .. }) {
            return Err(error);
        }
        self.stalls += 1;
        note(
            &mut results.notes,
            format!("launch {}: TCP failed ({} so far): {error}", self.launch + 1, self.stalls),
        );
        if self.stalls == MAX_STALLS {
            let text = format!("launch {}: TCP is not measured any more", self.launch + 1);
            note(&mut results.notes, text);
        }
        Ok(())
    }

    /// The cost of an open channel while nothing happens on it: watched in turns with and without
    /// one.
    fn idle(&mut self, results: &mut Results) -> Result<(), BenchError> {
        let (mut beyond, mut of_host, mut switches) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.plan.timing.idle_rounds {
            // With the workers before goes their channel.
            self.workers = None;
            self.start_workers()?;
            let [without, _] = self.watch()?;
            self.prime(Arm::Tombolo, Work::Rest, 64)?;
            let [with, host] = self.watch()?;
            let [_, follow] = finish(workers(&mut self.workers)?, IDLE_END)?;
            switches.push(follow.switches as f64);
            beyond.push(with + host - without);
            of_host.push(host);
        }
        let figures =
            [(IDLE, "us/s", beyond), (IDLE_HOST, "us/s", of_host), (IDLE_SWITCHES, "times", switches)];
        for (name, unit, values) in figures {
            let value = median(&values).unwrap_or_default();
            results.figures.push(Figure { name, unit, launch: self.launch, value });
        }
        Ok(())
    }

    /// Processor time of the guest and of the leader on the host, in us per second, while both
    /// should rest.
    fn watch(&mut self) -> Result<[f64; 2], BenchError> {
        let window = Duration::from_nanos(self.plan.timing.idle_ns);
        let host = workers(&mut self.workers)?[0].process();
        let used = |stage: &Stage| Ok([stage.guests_processor_ns()?, super::rest::processor_ns(host)?]);
        // tidy(sleep): they have to have fallen asleep, and nothing tells of that.
        std::thread::sleep(Duration::from_nanos(self.plan.timing.settle_ns));
        let before = used(&self.stage)?;
        // tidy(sleep): what is awaited is that nothing happens.
        std::thread::sleep(window);
        let after = used(&self.stage)?;
        let per_second =
            |at: usize| after[at].saturating_sub(before[at]) as f64 / 1_000.0 / window.as_secs_f64();
        Ok([per_second(0), per_second(1)])
    }
}

fn workers(workers: &mut Option<[Worker; 2]>) -> Result<&mut [Worker; 2], BenchError> {
    workers.as_mut().ok_or_else(|| BenchError::Missing {
        what: "the workers".into(),
        how: "this is a bug; please report it",
    })
}

/// The word to begin, and the two tales.
fn finish([lead, follow]: &mut [Worker; 2], length: Duration) -> Result<[Tale; 2], BenchError> {
    follow.say("go")?;
    lead.say("go")?;
    either([lead.tale(length), follow.tale(length)])
}
