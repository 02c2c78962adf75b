//! Measures a plan: repetition after repetition, each with processes of its own, each written down
//! before the next begins.

use crate::adapter::{self, Asked};
use crate::plan::{Deployment, Loop, Plan, Repeat};
use crate::record::{self, End, Failed, Head, Line, Measured, RecordError, Skipped, Which, Writer};
use crate::stage::Stage;
use crate::subject::{self, Around, EXEC, Subject};
use bench::BenchError;
use bench::channel::task::{Exchange, Pace, Role, Tale, Task, Work};
use bench::core_line;
use bench::environment::Environment;
use bench::machine::check_files;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// After so many failures in one cell an arm is not tried there again: what hangs would take its
/// patience each time.
const FAILURES_MAX: usize = 3;
/// Workers that take part in one repetition.
const ENDS: usize = 2;

/// The plan to measure, and the directory for its records.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The text of its file, which goes into the results.
    pub text: &'a str,
    /// The program beside which the workers lie.
    pub binary: &'a Path,
    /// The directory of the results; those of the same plan are continued.
    pub out: &'a Path,
}

/// How far a run has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Repetitions that are done.
    pub done: usize,
    /// All of them.
    pub all: usize,
    /// How long the rest takes, about.
    pub left: Duration,
    /// The next repetition.
    pub next: String,
}

/// Whoever watches a run.
pub trait Watcher {
    /// Is told before each repetition.
    fn progress(&mut self, progress: &Progress);
    /// Whether the run is to end now, with what it has.
    fn is_over(&mut self) -> bool;
}

/// Why a plan was not measured.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The directory has results of another plan.
    #[error(
        "{folder} has results of the plan `{found}` ({there}), and this one is `{asked}` ({here}): give another --out, or remove them"
    )]
    OtherPlan {
        /// The directory.
        folder: PathBuf,
        /// Name of the plan there.
        found: String,
        /// Its fingerprint.
        there: String,
        /// Name of this one.
        asked: String,
        /// Its fingerprint.
        here: String,
    },
    /// The results can't be read or written; what was written stays.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The machine lacks something.
    #[error(transparent)]
    Bench(#[from] BenchError),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Whether nothing is left.
    pub end: End,
    /// The subjects that could not be measured here.
    pub skipped: Vec<Skipped>,
    /// How many repetitions failed.
    pub failed: usize,
}

/// Measures what the plan asks for and the directory does not have yet.
///
/// # Errors
/// [`RunError`]; a subject that is missing, hangs, dies or lies is no error, but is written down as
/// such.
pub fn run(request: &Request<'_>, watcher: &mut dyn Watcher) -> Result<Outcome, RunError> {
    let plan = request.plan;
    let before = before(request)?;
    let mut writer = Writer::open(request.out)?;
    let environment = Environment::read(&[]);
    writer.write(&Line::Head(Head::of(plan, request.text, &environment)))?;
    let mut stage = Stage::make(&plan.deployments, plan.patience)?;
    let (order, skipped) = feasible(request, &stage);
    for skipped in &skipped {
        writer.write(&Line::Skipped(skipped.clone()))?;
    }
    let order: Vec<Repeat> =
        order.into_iter().filter(|repeat| !before.contains(&Which::from(repeat))).collect();
    let mut campaign = Campaign { request, stage: &mut stage, failures: BTreeMap::new(), failed: 0 };
    let left = campaign.all(&order, &mut writer, watcher)?;
    let failed = campaign.failed;
    let end = End { complete: left == 0, left };
    writer.write(&Line::End(end.clone()))?;
    stage.end()?;
    Ok(Outcome { end, skipped, failed })
}

/// The repetitions that the directory has already; failures are tried again.
fn before(request: &Request<'_>) -> Result<BTreeSet<Which>, RunError> {
    let plan = request.plan;
    match record::read(request.out) {
        Ok(records) if records.head.fingerprint == plan.fingerprint() => {
            Ok(records.measured.into_iter().map(|measured| measured.which).collect())
        }
        Ok(records) => Err(RunError::OtherPlan {
            folder: request.out.to_path_buf(),
            found: records.head.plan,
            there: records.head.fingerprint,
            asked: plan.name.clone(),
            here: plan.fingerprint(),
        }),
        Err(RecordError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(BTreeSet::new())
        }
        // A run that was killed before its first whole line.
        Err(RecordError::Headless { .. }) => Ok(BTreeSet::new()),
        Err(error) => Err(error.into()),
    }
}

/// The parts of a plan that can be measured here, and those that can't.
fn feasible(request: &Request<'_>, stage: &Stage) -> (Vec<Repeat>, Vec<Skipped>) {
    let mut skipped: Vec<Skipped> = Vec::new();
    let order = request.plan.order().into_iter().filter(|repeat| match obstacle(request, stage, repeat) {
        None => true,
        Some(obstacle) => {
            if !skipped.contains(&obstacle) {
                skipped.push(obstacle);
            }
            false
        }
    });
    let order = order.collect();
    (order, skipped)
}

fn obstacle(request: &Request<'_>, stage: &Stage, repeat: &Repeat) -> Option<Skipped> {
    let cell = &repeat.cell;
    if let Some(why) = stage.lacks(cell.deployment) {
        return Some(Skipped { what: cell.deployment.word().to_owned(), why });
    }
    let subject = repeat.subject();
    if subject.starts_with(EXEC) {
        let is_inside = cell.deployment == Deployment::Container;
        return is_inside.then(|| Skipped {
            what: format!("{subject}, container"),
            why: "a foreign program is not in the container".to_owned(),
        });
    }
    let known = subject::find(subject)?;
    if let Some(why) = known.excuse(cell) {
        return Some(Skipped { what: format!("{subject}, {cell}"), why: why.to_owned() });
    }
    let is_missing = check_files(request.binary, &[known.program]).is_err();
    is_missing.then(|| Skipped { what: subject.to_owned(), why: known.how_to_install() })
}

struct Campaign<'a> {
    request: &'a Request<'a>,
    stage: &'a mut Stage,
    /// How often each arm failed in each cell, whatever the launch.
    failures: BTreeMap<Which, usize>,
    failed: usize,
}

impl Campaign<'_> {
    /// Measures one after the other; returns how many are left.
    fn all(
        &mut self,
        order: &[Repeat],
        writer: &mut Writer,
        watcher: &mut dyn Watcher,
    ) -> Result<usize, RunError> {
        let begin = Instant::now();
        let mut planned = Duration::ZERO;
        let total: Duration = order.iter().map(|repeat| self.request.plan.length_of(repeat)).sum();
        for (done, repeat) in order.iter().enumerate() {
            if watcher.is_over() {
                return Ok(order.len() - done);
            }
            let next = format!("launch {}, {}: {}", repeat.launch + 1, repeat.cell, repeat.arm);
            let left = remaining(total, planned, begin.elapsed());
            watcher.progress(&Progress { done, all: order.len(), left, next });
            planned += self.request.plan.length_of(repeat);
            let anywhere = Which { launch: 0, ..repeat.into() };
            if self.failures.get(&anywhere).is_some_and(|&count| count >= FAILURES_MAX) {
                let why = format!("it failed {FAILURES_MAX} times here, and was not tried again");
                writer.write(&Line::Failed(Failed { which: repeat.into(), why }))?;
                self.failed += 1;
                continue;
            }
            let line = match self.measure(repeat) {
                Ok(measured) => Line::Measured(Box::new(measured)),
                // A Ctrl-C at a terminal reaches the workers, too: their end is no failure of
                // theirs.
                Err(_) if watcher.is_over() => return Ok(order.len() - done),
                Err(error) => {
                    *self.failures.entry(anywhere).or_default() += 1;
                    self.failed += 1;
                    Line::Failed(Failed { which: repeat.into(), why: error.to_string() })
                }
            };
            writer.write(&line)?;
        }
        Ok(0)
    }

    fn measure(&mut self, repeat: &Repeat) -> Result<Measured, BenchError> {
        let before_ns = core_line::round_trip_ns();
        let [lead, follow] = match repeat.subject().strip_prefix(EXEC) {
            Some(adapter) => self.foreign(repeat, adapter)?,
            None => match subject::find(repeat.subject()) {
                Some(subject) => self.known(repeat, &subject)?,
                None => {
                    return Err(BenchError::Missing {
                        what: format!("the subject {}", repeat.subject()),
                        how: "this is a bug; please report it",
                    });
                }
            },
        };
        let state = core_line::state(before_ns, core_line::round_trip_ns());
        let wrong = lead.wrong + follow.wrong;
        if wrong > 0 {
            return Err(BenchError::Protocol {
                who: repeat.arm.clone(),
                said: format!("{wrong} messages with a wrong number or checksum"),
                expected: "each request and its own answer",
            });
        }
        let used = |tale: &Tale| (tale.processor_ns > 0).then_some(tale.processor_ns);
        Ok(Measured {
            which: repeat.into(),
            state,
            operations: lead.operations,
            unanswered: lead.unanswered,
            warm_up: lead.warm_up,
            is_unsettled: lead.is_unsettled,
            window_ns: lead.window_ns,
            client_processor_ns: used(&lead),
            server_processor_ns: used(&follow),
            switches: Some(lead.switches + follow.switches).filter(|&count| count > 0),
            latencies: lead.latencies,
            uncorrected: lead.uncorrected,
        })
    }

    /// With two workers of the core.
    fn known(&mut self, repeat: &Repeat, subject: &Subject) -> Result<[Tale; ENDS], BenchError> {
        let (plan, cell) = (self.request.plan, repeat.cell);
        let address = self.stage.address(cell.deployment);
        let number = self.stage.number();
        let folder = self.stage.folder();
        let means = subject.means(&cell, &Around { folder, prefix: self.stage.prefix(), address });
        let work = Work::Exchange(Exchange {
            pace: match cell.pace {
                Loop::Closed => Pace::Closed,
                Loop::Periodic(interval_ns) => Pace::Periodic { interval_ns },
                Loop::Poisson(interval_ns) => Pace::Poisson { interval_ns },
            },
            work_ns: cell.work_ns,
            window_ns: plan.window.as_nanos() as u64,
            seed: plan.seed_of(repeat),
        });
        let meeting = folder.join(format!("m{number}"));
        let allowed = sys::processor::allowed().map_err(BenchError::io("asking for our processors"))?;
        let processor = |role| match (allowed.as_slice(), role) {
            ([lead, _, ..], Role::Lead) => Some(*lead),
            ([_, follow, ..], Role::Follow) => Some(*follow),
            _ => None,
        };
        let task = |role| Task {
            role,
            means: means.clone(),
            work,
            bytes: cell.payload,
            meeting: meeting.clone(),
            processor: processor(role),
        };
        let program = self.request.binary.with_file_name(subject.program).to_string_lossy().into_owned();
        let words = [program];
        let mut follow = self.stage.start(cell.deployment, Role::Follow, &repeat.arm, &words)?;
        let mut lead = self.stage.start(cell.deployment, Role::Lead, &repeat.arm, &words)?;
        follow.expect("ready")?;
        follow.give(&task(Role::Follow))?;
        follow.expect("waiting")?;
        lead.expect("ready")?;
        lead.give(&task(Role::Lead))?;
        lead.expect("primed")?;
        follow.expect("primed")?;
        follow.say("go")?;
        lead.say("go")?;
        Ok([lead.tale(plan.window)?, follow.tale(Duration::ZERO)?])
    }

    /// With two processes of a foreign program.
    fn foreign(&mut self, repeat: &Repeat, adapter: &str) -> Result<[Tale; ENDS], BenchError> {
        let plan = self.request.plan;
        let words = plan.adapters.get(adapter).cloned().unwrap_or_default();
        let mut start =
            |role| self.stage.start(repeat.cell.deployment, role, &repeat.arm.replace(':', "-"), &words);
        let (mut follow, mut lead) = (start(Role::Follow)?, start(Role::Lead)?);
        let number = self.stage.number();
        let folder = self.stage.folder().join(format!("a{number}"));
        std::fs::create_dir(&folder).map_err(BenchError::io("making a folder"))?;
        let address = self.stage.address(repeat.cell.deployment);
        let asked = Asked {
            cell: repeat.cell,
            window: plan.window,
            seed: plan.seed_of(repeat),
            address,
            folder: &folder,
        };
        adapter::exchange(&mut lead, &mut follow, &asked)
    }
}

/// The time for the rest of the plan, at the speed so far.
fn remaining(total: Duration, planned: Duration, passed: Duration) -> Duration {
    let speed = if planned.is_zero() { 1.0 } else { passed.as_secs_f64() / planned.as_secs_f64() };
    total.saturating_sub(planned).mul_f64(speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_by_the_speed_of_what_is_done() {
        let seconds = Duration::from_secs;
        assert_eq!(remaining(seconds(100), Duration::ZERO, Duration::ZERO), seconds(100));
        assert_eq!(remaining(seconds(100), seconds(50), seconds(100)), seconds(100));
        assert_eq!(remaining(seconds(100), seconds(100), seconds(90)), Duration::ZERO);
    }
}
