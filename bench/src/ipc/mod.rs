//! Messages between endpoints, beside what the kernel offers and what other people offer: round
//! trips, streams of one pair and of several, bulk.
//!
//! Each pair has two workers, a leader and a follower, processes of their own that are started
//! afresh for each launch. For each repetition they make what carries the messages anew. Each way
//! is tried with several sizes of buffers first, once a launch, and runs with the quickest.

pub mod copies;
pub mod means;
pub mod plan;
pub mod promises;
pub mod stage;
pub mod transport;

use crate::channel::stage::note;
use crate::channel::task::{Means, Role, Tale, Task};
use crate::channel::{either, of_window, two_processors};
use crate::choice::Choice;
use crate::core_line;
use crate::promise::{Promise, Verdict};
use crate::report::{COLUMNS, Column};
use crate::results::{Condition, Repetition, Results, rotated};
use crate::scenario::{Arguments, BenchError, Scenario};
use means::Tuning;
use plan::{Arm, CASES, Case, Kind, Plan};
use stage::{Pair, Stage};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The scenario.
#[derive(Debug, Clone, Copy)]
pub struct Ipc;

impl Scenario for Ipc {
    fn name(&self) -> &'static str {
        "ipc"
    }

    fn about(&self) -> &'static str {
        "messages between endpoints: round trips, streams of one pair and of several, bulk; beside the kernel's ways, gRPC and zenoh"
    }

    fn promises(&self) -> &'static [Promise] {
        &promises::PROMISES
    }

    fn base(&self, _: &Condition) -> &'static str {
        Arm::Pipe.name()
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
        &["sys", "logic/ring", "logic/ipc", "io/channel", "io/endpoint"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        &[&["ldd", "--version"]]
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
        let teams = [Vec::new(), Vec::new()];
        let mut bench = Bench { plan, choice, processors, teams, stage, launch, tuned: BTreeMap::new() };
        for case in CASES.into_iter().filter(|case| choice.takes(&case.condition())) {
            progress(&format!("launch {} of {}, {}", launch + 1, plan.launches, case.condition()));
            bench.run(case, &mut results)?;
        }
        if launch + 1 == plan.launches && plan.tries {
            results.notes.extend(bench.choices());
        }
        bench.teams = [Vec::new(), Vec::new()];
        bench.stage.end()?;
    }
    Ok(results)
}

/// One launch.
struct Bench<'a> {
    plan: &'a Plan,
    choice: &'a Choice,
    /// Of the leader and the follower.
    processors: [u32; 2],
    // The workers end before the stage does: fields are dropped in this order.
    /// Pairs with what is ours and the kernel's, and with what is other people's.
    teams: [Vec<Pair>; 2],
    stage: Stage,
    launch: usize,
    /// The quickest tunings.
    tuned: BTreeMap<(Case, Arm), Tuning>,
}

impl Bench<'_> {
    fn run(&mut self, case: Case, results: &mut Results) -> Result<(), BenchError> {
        let takes = |arm: &Arm| self.choice.takes_arm(arm.name()) && self.stage.has(*arm);
        let arms: Vec<Arm> = case.arms().iter().copied().filter(takes).collect();
        for &arm in &arms {
            if let Err(error) = self.tune(case, arm, results) {
                self.excuse(case, arm, error, results)?;
            }
        }
        for round in 0..self.plan.rounds {
            for arm in rotated(&arms, self.launch + round) {
                let Some(&tuning) = self.tuned.get(&(case, arm)) else { continue };
                match self.repeat(case, arm, tuning, round, self.plan.window_ns(case)) {
                    Ok(repetition) => results.repetitions.push(repetition),
                    Err(error) => self.excuse(case, arm, error, results)?,
                }
            }
        }
        Ok(())
    }

    /// Finds the quickest tuning. One that this machine does not allow is not chosen; the first is
    /// what everybody may have.
    fn tune(&mut self, case: Case, arm: Arm, results: &mut Results) -> Result<(), BenchError> {
        if self.tuned.contains_key(&(case, arm)) {
            return Ok(());
        }
        let tunings = arm.tunings(case);
        if let (&[only], _) | (&[only, ..], false) = (tunings.as_slice(), self.plan.tries) {
            self.tuned.insert((case, arm), only);
            return Ok(());
        }
        let mut best: Option<(f64, Tuning)> = None;
        for tuning in tunings {
            if let Err(error) = self.stage.allows(arm, &tuning) {
                let what = "has only what everybody may have: longer ones need CAP_SYS_RESOURCE";
                note(&mut results.notes, format!("`{}` {what} ({error})", arm.name()));
                continue;
            }
            let found = self.repeat(case, arm, tuning, 0, self.plan.trial_ns(case))?;
            let rate = found.operations as f64 / found.window_s.max(f64::MIN_POSITIVE);
            if best.is_none_or(|(quickest, _)| rate > quickest) {
                best = Some((rate, tuning));
            }
        }
        if let Some((_, tuning)) = best {
            self.tuned.insert((case, arm), tuning);
        }
        Ok(())
    }

    /// One repetition of all pairs at once.
    fn repeat(
        &mut self,
        case: Case,
        arm: Arm,
        tuning: Tuning,
        round: usize,
        window_ns: u64,
    ) -> Result<Repetition, BenchError> {
        let warm_up_ns = self.plan.warm_up_ns;
        self.prime(case, arm, tuning, [warm_up_ns, window_ns])?;
        let team = &mut self.teams[usize::from(arm.is_peer())];
        let length = Duration::from_nanos(warm_up_ns + window_ns);
        let before_ns = core_line::round_trip_ns();
        let tales = finish(team.get_mut(..case.pairs()).unwrap_or_default(), length)?;
        let state = core_line::state(before_ns, core_line::round_trip_ns());
        Ok(repetition(case, arm, [self.launch, round], state, tales))
    }

    /// Brings all pairs together, up to the word to begin: at once, because some take their time.
    fn prime(
        &mut self,
        case: Case,
        arm: Arm,
        tuning: Tuning,
        [warm_up_ns, window_ns]: [u64; 2],
    ) -> Result<(), BenchError> {
        let team = &mut self.teams[usize::from(arm.is_peer())];
        while team.len() < case.pairs() {
            team.push(self.stage.start(arm.is_peer(), team.len())?);
        }
        let [here, there] = self.processors;
        let stage = &mut self.stage;
        let task = |role, meeting: PathBuf| Task {
            role,
            means: Means::Ipc(arm.means(case, tuning)),
            work: case.work(warm_up_ns, window_ns),
            bytes: case.bytes,
            meeting,
            processor: match (case.kind, role) {
                (Kind::Pairs(_) | Kind::PairsRoundTrip(_), _) => None,
                (Kind::OneProcessor, _) | (_, Role::Lead) => Some(here),
                (_, Role::Follow) => Some(there),
            },
        };
        let pairs = team.get_mut(..case.pairs()).unwrap_or_default();
        let meetings: Vec<PathBuf> = pairs.iter().map(|_| stage.meeting()).collect();
        for (pair, meeting) in pairs.iter_mut().zip(&meetings) {
            pair.follow.give(&task(Role::Follow, meeting.clone()))?;
        }
        for (pair, meeting) in pairs.iter_mut().zip(&meetings) {
            pair.follow.expect("waiting")?;
            pair.lead.give(&task(Role::Lead, meeting.clone()))?;
        }
        let primed = |pair: &mut Pair| either([pair.lead.expect("primed"), pair.follow.expect("primed")]);
        pairs.iter_mut().try_for_each(|pair| primed(pair).map(|_| ()))
    }

    /// Excuses a failure of a foreign means: it may get stuck or die, is noted, and its workers
    /// start afresh. Ours and the kernel's may not.
    fn excuse(
        &mut self,
        case: Case,
        arm: Arm,
        error: BenchError,
        results: &mut Results,
    ) -> Result<(), BenchError> {
        self.dismiss(arm);
        if !arm.is_peer() || !matches!(error, BenchError::Protocol { .. }) {
            return Err(error);
        }
        note(&mut results.notes, format!("`{}` failed once, at {}: {error}", arm.name(), case.condition()));
        Ok(())
    }

    /// Ends the workers of an arm, and of those that share them; the next repetition has fresh
    /// ones.
    fn dismiss(&mut self, arm: Arm) {
        self.teams[usize::from(arm.is_peer())].clear();
    }

    /// The tunings that were chosen, for the report: an arm a line.
    fn choices(&self) -> Vec<String> {
        let mut lines: BTreeMap<Arm, Vec<String>> = BTreeMap::new();
        for (&(case, arm), tuning) in &self.tuned {
            if arm.tunings(case).len() > 1 {
                let gathers = if tuning.gathers { ", gathering" } else { "" };
                let [buffer, piece] =
                    [tuning.buffer_bytes, tuning.piece_bytes].map(crate::channel::plan::size);
                let buffer = match tuning {
                    Tuning { halves: true, .. } => "a half by each end".into(),
                    Tuning { buffer_bytes: 0, .. } => "default".into(),
                    _ => buffer,
                };
                let pieces =
                    if tuning.piece_bytes == case.bytes { String::new() } else { format!(" by {piece}") };
                let words: Vec<String> = case.condition().0.into_iter().map(|(_, value)| value).collect();
                lines
                    .entry(arm)
                    .or_default()
                    .push(format!("{} {buffer}{pieces}{gathers}", words.join(" of ")));
            }
        }
        let line = |(arm, choices): (Arm, Vec<String>)| {
            format!("buffers of `{}` in the last launch: {}", arm.name(), choices.join("; "))
        };
        lines.into_iter().map(line).collect()
    }
}

/// The word to begin, and the tales of all.
fn finish(pairs: &mut [Pair], length: Duration) -> Result<Vec<[Tale; 2]>, BenchError> {
    pairs.iter_mut().try_for_each(|pair| pair.follow.say("go"))?;
    pairs.iter_mut().try_for_each(|pair| pair.lead.say("go"))?;
    // The follower ends when the leader does.
    pairs.iter_mut().map(|pair| either([pair.lead.tale(length), pair.follow.tale(Duration::ZERO)])).collect()
}

/// One arm, once: rates of pairs add up.
fn repetition(
    case: Case,
    arm: Arm,
    [launch, round]: [usize; 2],
    state: core_line::State,
    tales: Vec<[Tale; 2]>,
) -> Repetition {
    let mut sum = Repetition {
        condition: case.condition(),
        arm: arm.name().into(),
        launch,
        round,
        state,
        operations: 0,
        bytes: case.bytes as u64,
        failures: 0,
        window_s: 0.0,
        processor_ns: Some(0),
        switches: Some(0),
        guest_ns: None,
        calls: None,
        latencies: crate::histogram::Latencies::new(),
    };
    let mut per_second = 0.0;
    for [lead, follow] in tales {
        per_second += lead.operations as f64 / (lead.window_ns.max(1) as f64 / 1e9);
        sum.operations += lead.operations;
        let used_ns = of_window(&lead, lead.processor_ns + follow.processor_ns);
        sum.processor_ns = sum.processor_ns.map(|ns| ns + used_ns);
        sum.switches = sum.switches.map(|count| count + lead.switches + follow.switches);
        sum.latencies.merge(&lead.latencies);
    }
    sum.window_s = if per_second > 0.0 { sum.operations as f64 / per_second } else { 0.0 };
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_pairs_add_up() {
        let tale =
            |operations, window_ns| Tale { operations, window_ns, elapsed_ns: window_ns, ..Tale::default() };
        let tales =
            vec![[tale(100, 1_000_000_000), Tale::default()], [tale(100, 500_000_000), Tale::default()]];
        let sum = repetition(plan::PAIRS[0], Arm::Pipe, [0, 0], core_line::State::Near, tales);
        assert_eq!(sum.operations, 200);
        assert!((sum.operations as f64 / sum.window_s - 300.0).abs() < 1e-6);
    }
}
