//! Jobs in virtual time under a dispatcher: the fourth enforcement, which shows what the others
//! would do.

use crate::dispatch::{DispatchError, Dispatcher};
use crate::simulate::MAX_LATE;
use crate::table::Table;
use crate::task::Task;
use crate::trace::{Input, Step, tell};

/// A job that comes again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recurring {
    /// Index of its virtual task machine.
    pub vtm: usize,
    /// Its index in there, as [`Dispatcher::join`] said.
    pub job: usize,
    /// The task that it asks for; it becomes ready at the beginning of each period.
    pub task: Task,
    /// When its first period begins, in ns.
    pub offset_ns: u64,
}

/// A job that was not done in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overdue {
    /// Index among the recurring jobs.
    pub who: usize,
    /// When it should have been done, in ns.
    pub deadline_ns: u64,
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// The jobs that were late; the first of them.
    pub overdue: Vec<Overdue>,
    /// For each recurring job the longest time from the beginning of a period until it was done, in
    /// ns.
    pub responses_ns: Vec<u64>,
    /// The time that each recurring job was given in all, in ns.
    pub given_ns: Vec<u64>,
    /// All that was told and decided.
    pub trace: Vec<Step>,
}

struct Progress {
    next_ns: u64,
    released: u64,
    done: u64,
    left_ns: u64,
}

/// Runs jobs under a dispatcher until `until_ns`. A change `(at, table)` is told when its time
/// comes.
///
/// # Errors
/// Where a job is not in the dispatcher.
pub fn run(
    dispatcher: &mut Dispatcher,
    jobs: &[Recurring],
    until_ns: u64,
    mut change: Option<(u64, Table)>,
) -> Result<History, DispatchError> {
    let start = |job: &Recurring| Progress { next_ns: job.offset_ns, released: 0, done: 0, left_ns: 0 };
    let mut lines: Vec<Progress> = jobs.iter().map(start).collect();
    let mut history =
        History { responses_ns: vec![0; jobs.len()], given_ns: vec![0; jobs.len()], ..History::default() };
    let (mut now, mut inputs) = (0, Vec::new());
    while now < until_ns {
        if let Some((not_before_ns, table)) = change.take_if(|(at, _)| *at <= now) {
            inputs.push(Input::Adopt { table, not_before_ns });
        }
        release(jobs, &mut lines, now, &mut inputs);
        for input in &inputs {
            tell(dispatcher, input)?;
        }
        let decision = dispatcher.decide(now);
        history.trace.push(Step { at_ns: now, inputs: std::mem::take(&mut inputs), decision });
        let who = decision.job.and_then(|job| {
            jobs.iter().position(|found| (Some(found.vtm), found.job) == (decision.vtm, job))
        });
        let mut next = lines.iter().map(|line| line.next_ns).fold(decision.until_ns.min(until_ns), u64::min);
        if let Some((at, _)) = &change {
            next = next.min(*at);
        }
        if let Some(who) = who {
            let line = &mut lines[who];
            let ran = line.left_ns.min(next - now);
            line.left_ns -= ran;
            history.given_ns[who] += ran;
            next = now + ran;
            if line.left_ns == 0 {
                finish(jobs, who, line, next, &mut history, &mut inputs);
            }
        }
        now = next;
        note_overdue(jobs, &lines, now, &mut history);
    }
    Ok(history)
}

fn release(jobs: &[Recurring], lines: &mut [Progress], now: u64, inputs: &mut Vec<Input>) {
    for (job, line) in jobs.iter().zip(lines) {
        while line.next_ns <= now {
            let begun_ns = line.next_ns;
            line.next_ns += job.task.period_ns();
            line.released += 1;
            if line.released == line.done + 1 {
                line.left_ns = job.task.budget_ns();
                inputs.push(Input::Ready { vtm: job.vtm, job: job.job, begun_ns });
            }
        }
    }
}

fn finish(
    jobs: &[Recurring],
    who: usize,
    line: &mut Progress,
    now: u64,
    history: &mut History,
    inputs: &mut Vec<Input>,
) {
    let Recurring { vtm, job, task, offset_ns } = jobs[who];
    let begun = offset_ns + line.done * task.period_ns();
    history.responses_ns[who] = history.responses_ns[who].max(now - begun);
    if now - begun > task.deadline_ns() {
        note(history, Overdue { who, deadline_ns: begun + task.deadline_ns() });
    }
    line.done += 1;
    if line.released > line.done {
        line.left_ns = task.budget_ns();
        inputs.push(Input::Ready { vtm, job, begun_ns: begun + task.period_ns() });
    } else {
        inputs.push(Input::Blocked { vtm, job });
    }
}

fn note_overdue(jobs: &[Recurring], lines: &[Progress], now: u64, history: &mut History) {
    for (who, (job, line)) in jobs.iter().zip(lines).enumerate() {
        let deadline_ns = job.offset_ns + line.done * job.task.period_ns() + job.task.deadline_ns();
        if line.released > line.done && deadline_ns < now {
            note(history, Overdue { who, deadline_ns });
        }
    }
}

fn note(history: &mut History, overdue: Overdue) {
    if history.overdue.len() < MAX_LATE && !history.overdue.contains(&overdue) {
        history.overdue.push(overdue);
    }
}
