//! Messages between two processes: our channels beside what else a machine offers, and beside the
//! limits of the machine.
//!
//! Each arm has two workers, a leader and a follower, processes of their own that are started
//! afresh for each launch and stay on a processor each. For each repetition they make what carries
//! the messages anew.

pub mod apart;
pub mod between;
pub mod calls;
pub mod domains;
pub mod exchange;
pub mod idle;
pub mod meeting;
pub mod numbered;
pub mod plan;
pub mod promises;
pub mod rest;
pub mod set_up;
pub mod stage;
pub mod task;
pub mod transport;
pub mod work;

use crate::choice::Choice;
use crate::core_line;
use crate::promise::{Promise, Verdict};
use crate::report::{COLUMNS, Column};
use crate::results::{Condition, Figure, Repetition, Results, rotated};
use crate::scenario::{Arguments, BenchError, Scenario};
use crate::worker::Worker;
use calls::Trace;
use plan::{Arm, CALLS, CASES, Case, Kind, Plan, SPARSE};
use promises::{IDLE_MEMORY, IDLE_PROCESSOR};
use rest::MemoryGroup;
use stage::{Stage, note};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use task::{Role, Tale, Task, Work};

/// How long a repetition that counts operations, or is traced, may take.
const TASK_TIMEOUT: Duration = Duration::from_secs(30);
/// From going to sleep to being watched: longer than any nap before the deep sleep.
const IDLE_SETTLE: Duration = Duration::from_millis(300);

/// The scenario.
#[derive(Debug, Clone, Copy)]
pub struct Channel;

impl Scenario for Channel {
    fn name(&self) -> &'static str {
        "channel"
    }

    fn about(&self) -> &'static str {
        "messages between two processes: round trips, streams, many at rest, set-up; beside other ways, and the limits"
    }

    fn promises(&self) -> &'static [Promise] {
        &promises::PROMISES
    }

    fn base(&self, condition: &Condition) -> &'static str {
        Case::of(condition).map_or(Arm::Pipe, Case::base).name()
    }

    fn rank(&self, condition: &Condition, arm: &str) -> usize {
        let arms = Case::of(condition).map_or(&[][..], Case::arms);
        arms.iter().position(|found| found.name() == arm).unwrap_or(arms.len())
    }

    fn columns(&self, condition: &Condition) -> &'static [Column] {
        Case::of(condition).map_or(&COLUMNS, Case::columns)
    }

    fn choices(&self) -> Option<Vec<(Condition, Vec<&'static str>)>> {
        let choices =
            CASES.iter().map(|case| (case.condition(), case.arms().iter().map(|arm| arm.name()).collect()));
        Some(choices.collect())
    }

    fn depends(&self) -> &'static [&'static str] {
        &["sys", "logic/ring", "io/channel"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        &[&["ldd", "--version"], &["strace", "--version"]]
    }

    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
        let plan = if arguments.quick { Plan::quick() } else { Plan::full() };
        let launches = arguments.launches.unwrap_or(plan.launches).max(1);
        measure(&Plan { launches, ..plan }, &arguments.choice, &arguments.binary, progress)
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        promises::verdicts(results)
    }
}

/// Runs a plan. The workers lie beside `binary`.
///
/// # Errors
/// As [`Scenario::measure`].
pub fn measure(
    plan: &Plan,
    choice: &Choice,
    binary: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Results, BenchError> {
    let processors = two_processors()?;
    let mut results = Results::default();
    for launch in 0..plan.launches {
        let stage = Stage::make(binary, &mut results.notes)?;
        let mut bench = Bench { plan, choice, processors, workers: BTreeMap::new(), stage, launch };
        for case in CASES.into_iter().filter(|case| choice.takes(&case.condition())) {
            progress(&format!("launch {} of {}, {}", launch + 1, plan.launches, case.condition()));
            bench.run(case, &mut results)?;
        }
        if choice.is_all() {
            progress(&format!("launch {} of {}, idle channels", launch + 1, plan.launches));
            bench.idle(&mut results)?;
        }
        bench.workers.clear();
        bench.stage.end()?;
    }
    Ok(results)
}

/// For the leader and the follower.
pub(crate) fn two_processors() -> Result<[u32; 2], BenchError> {
    let allowed = sys::processor::allowed().map_err(BenchError::io("asking for our processors"))?;
    match allowed.as_slice() {
        &[lead, follow, ..] => Ok([lead, follow]),
        _ => Err(BenchError::Missing {
            what: "two processors".into(),
            how: "round trips between two are what it measures",
        }),
    }
}

/// The two workers of an arm.
struct Pair {
    lead: Worker,
    follow: Worker,
}

/// One launch.
struct Bench<'a> {
    plan: &'a Plan,
    choice: &'a Choice,
    /// Of the leader and the follower.
    processors: [u32; 2],
    // The workers end before the stage does: fields are dropped in this order.
    workers: BTreeMap<Arm, Pair>,
    stage: Stage,
    launch: usize,
}

impl Bench<'_> {
    fn run(&mut self, case: Case, results: &mut Results) -> Result<(), BenchError> {
        let takes = |arm: &Arm| self.choice.takes_arm(arm.name()) && self.stage.has(*arm);
        let arms: Vec<Arm> = case.arms().iter().copied().filter(takes).collect();
        if case == CALLS {
            return self.count_calls(&arms, results);
        }
        for round in 0..self.plan.rounds {
            for arm in rotated(&arms, self.launch + round) {
                match self.repeat(case, arm, round, |_, _| Ok(())) {
                    Ok((repetition, _)) => results.repetitions.push(repetition),
                    Err(error) => self.excuse(case, arm, error, results)?,
                }
            }
        }
        Ok(())
    }

    /// One repetition. `meanwhile` is called between the priming and the word to begin.
    fn repeat<T>(
        &mut self,
        case: Case,
        arm: Arm,
        round: usize,
        meanwhile: impl FnOnce(&Stage, &Pair) -> Result<T, BenchError>,
    ) -> Result<(Repetition, T), BenchError> {
        let work = case.work(&self.plan.timing);
        self.prime(case, arm, work)?;
        let length = self.length(case);
        let pair = pair(&mut self.workers, arm)?;
        let meant = meanwhile(&self.stage, pair)?;
        let before_ns = core_line::round_trip_ns();
        let tales = finish(pair, length)?;
        let after_ns = core_line::round_trip_ns();
        let state = core_line::state(before_ns, after_ns);
        Ok((repetition(case, arm, [self.launch, round], state, tales), meant))
    }

    /// Brings the two together, up to the word to begin.
    fn prime(&mut self, case: Case, arm: Arm, work: Work) -> Result<(), BenchError> {
        if !self.workers.contains_key(&arm) {
            let [lead, follow] = [Role::Lead, Role::Follow].map(|role| self.stage.start(arm, role));
            self.workers.insert(arm, Pair { lead: lead?, follow: follow? });
        }
        let meeting = self.stage.meeting();
        let means = arm.means(case, &self.stage.surroundings());
        let [here, there] = self.processors;
        let task = |role| Task {
            role,
            means: means.clone(),
            work,
            bytes: case.bytes,
            meeting: meeting.clone(),
            processor: Some(if role == Role::Lead || case.kind == Kind::OneProcessor { here } else { there }),
        };
        let pair = pair(&mut self.workers, arm)?;
        pair.follow.give(&task(Role::Follow))?;
        pair.follow.expect("waiting")?;
        pair.lead.give(&task(Role::Lead))?;
        either([pair.lead.expect("primed"), pair.follow.expect("primed")]).map(|_| ())
    }

    fn length(&self, case: Case) -> Duration {
        match case.kind {
            Kind::Transfer | Kind::Calls | Kind::SetUp => TASK_TIMEOUT,
            _ => Duration::from_nanos(self.plan.timing.warm_up_ns + self.plan.timing.window_ns),
        }
    }

    /// Excuses a failure of a foreign means: it may get stuck or die, is noted, and its workers
    /// start afresh. Ours may not.
    fn excuse(
        &mut self,
        case: Case,
        arm: Arm,
        error: BenchError,
        results: &mut Results,
    ) -> Result<(), BenchError> {
        self.workers.remove(&arm);
        if !arm.is_peer() || !matches!(error, BenchError::Protocol { .. }) {
            return Err(error);
        }
        note(&mut results.notes, format!("`{}` failed once, at {}: {error}", arm.name(), case.condition()));
        Ok(())
    }

    /// One traced transfer for each arm; where the machine does not let us trace, none, and a note.
    fn count_calls(&mut self, arms: &[Arm], results: &mut Results) -> Result<(), BenchError> {
        for &arm in arms {
            let traced = self.repeat(CALLS, arm, 0, |stage, pair| {
                let trace = |worker: &Worker, name| {
                    Trace::start(worker.process(), &stage.surroundings().folder.join(name))
                };
                Ok(trace(&pair.lead, "lead.trace")
                    .and_then(|lead| Ok([lead, trace(&pair.follow, "follow.trace")?])))
            });
            let (mut found, traces) = match traced {
                Ok(traced) => traced,
                Err(error) => {
                    self.excuse(CALLS, arm, error, results)?;
                    continue;
                }
            };
            let counted = traces.and_then(|[lead, follow]| Ok(lead.finish()? + follow.finish()?));
            match counted {
                Ok(calls) => found.calls = Some(calls),
                Err(error) => {
                    note(&mut results.notes, format!("system calls are not counted: {error}"));
                    return Ok(());
                }
            }
            results.repetitions.push(found);
        }
        Ok(())
    }

    /// The cost of many channels at rest. Their workers are fresh, so that no memory is used twice.
    fn idle(&mut self, results: &mut Results) -> Result<(), BenchError> {
        self.workers.remove(&Arm::Tombolo);
        let [lead, follow] = [Role::Lead, Role::Follow].map(|role| self.stage.start(Arm::Tombolo, role));
        let (lead, follow) = (lead?, follow?);
        let processes = [lead.process(), follow.process()];
        let group = match MemoryGroup::make(&self.stage.surroundings().prefix.replace('_', "")) {
            Ok(group) => Some(group),
            Err(error) => {
                note(&mut results.notes, format!("memory of idle channels is not measured: {error}"));
                None
            }
        };
        if let Some(group) = &group {
            processes.iter().try_for_each(|&process| group.take_in(process))?;
        }
        self.workers.insert(Arm::Tombolo, Pair { lead, follow });
        let memory_before = group.as_ref().map(MemoryGroup::bytes).transpose()?;
        let channels = self.plan.timing.idle_channels;
        self.prime(SPARSE, Arm::Tombolo, Work::Idle { channels })?;
        let used_ns = self.watch(processes)?;
        let memory_after = group.as_ref().map(MemoryGroup::bytes).transpose()?;
        let pair = pair(&mut self.workers, Arm::Tombolo)?;
        let [tale, _] = finish(pair, TASK_TIMEOUT)?;
        let launch = self.launch;
        results.figures.push(Figure { name: IDLE_PROCESSOR, unit: "us/s", launch, value: used_ns });
        if let Some((before, after)) = memory_before.zip(memory_after) {
            let beyond = (after.saturating_sub(before)) as f64 - tale.resident_bytes as f64;
            let value = beyond / f64::from(channels) / 1024.0;
            results.figures.push(Figure { name: IDLE_MEMORY, unit: "KiB", launch, value });
        }
        // The group can go when its processes are gone.
        self.workers.remove(&Arm::Tombolo);
        Ok(())
    }

    /// Processor time of processes that should rest, in us per second.
    fn watch(&self, processes: [u32; 2]) -> Result<f64, BenchError> {
        let window = Duration::from_nanos(self.plan.timing.idle_ns);
        let used = || processes.iter().map(|&process| rest::processor_ns(process)).sum::<Result<u64, _>>();
        // tidy(sleep): they have to have fallen asleep, and nothing tells of that.
        std::thread::sleep(IDLE_SETTLE);
        let before = used()?;
        // tidy(sleep): what is awaited is that nothing happens.
        std::thread::sleep(window);
        Ok((used()? - before) as f64 / 1_000.0 / window.as_secs_f64())
    }
}

fn pair(workers: &mut BTreeMap<Arm, Pair>, arm: Arm) -> Result<&mut Pair, BenchError> {
    workers.get_mut(&arm).ok_or_else(|| BenchError::Missing {
        what: format!("the workers of {}", arm.name()),
        how: "this is a bug; please report it",
    })
}

/// The word to begin, and the two tales.
fn finish(pair: &mut Pair, length: Duration) -> Result<[Tale; 2], BenchError> {
    pair.follow.say("go")?;
    pair.lead.say("go")?;
    // The follower ends when the leader does.
    either([pair.lead.tale(length), pair.follow.tale(Duration::ZERO)])
}

/// The results of both, or the reason why one failed: a leader whose follower has failed only knows
/// that it is gone.
pub(crate) fn either<T>([lead, follow]: [Result<T, BenchError>; 2]) -> Result<[T; 2], BenchError> {
    match (lead, follow) {
        (Ok(lead), Ok(follow)) => Ok([lead, follow]),
        (_, Err(error)) | (Err(error), _) => Err(error),
    }
}

fn repetition(
    case: Case,
    arm: Arm,
    [launch, round]: [usize; 2],
    state: core_line::State,
    [lead, follow]: [Tale; 2],
) -> Repetition {
    Repetition {
        condition: case.condition(),
        arm: arm.name().into(),
        launch,
        round,
        state,
        operations: lead.operations,
        bytes: case.bytes as u64,
        failures: 0,
        window_s: lead.window_ns as f64 / 1e9,
        processor_ns: Some(of_window(&lead, lead.processor_ns + follow.processor_ns)),
        switches: Some(lead.switches + follow.switches),
        guest_ns: None,
        calls: None,
        latencies: lead.latencies,
    }
}

/// The share of what was used since the word to begin that belongs to the window.
pub(crate) fn of_window(lead: &Tale, used_ns: u64) -> u64 {
    (used_ns as f64 * lead.window_ns as f64 / lead.elapsed_ns.max(1) as f64) as u64
}
