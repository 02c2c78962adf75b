//! The jobs inside a virtual task machine: which of its processes and threads they are, and who of
//! them goes first.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;

use reserve::dispatch::Inside;
use reserve::{Policy, Task};
use serde::{Deserialize, Serialize};

use crate::enforcer::JobReport;
use crate::error::PlanError;
use crate::members::Census;
use crate::plan::Order;

/// Most jobs of one virtual task machine that have a budget of their own: as many as there are
/// priorities between the threads that rule and the jobs that nothing is promised to.
pub const MAX_RANKED: usize = 16;
/// Longest pattern that a job is found by.
pub const MAX_PATTERN: usize = 255;
/// Turn of a job inside a virtual task machine where none is given, in ns: some turns fit into the
/// slots of a person's patience (100 ms).
pub const TURN_NS: u64 = 5_000_000;
/// Longest command line that is looked at.
const MAX_LINE: u64 = 4096;

/// The order of the jobs of a virtual task machine in its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Jobs {
    /// Each process in turn, for at most so long. Who waits for something does not keep the others
    /// from running.
    RoundRobin {
        /// Longest turn, in ns.
        turn_ns: u64,
    },
    /// By what each job asks for; whoever is no job runs when none of them wants to.
    By {
        /// The policy of their order.
        policy: Order,
        /// The jobs. Of equals, who comes first goes first.
        jobs: Vec<Job>,
    },
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// The processes or threads that it is.
    pub who: Who,
    /// The time that it takes in each period, in ns.
    pub budget_ns: u64,
    /// How often it begins at most, in ns.
    pub period_ns: u64,
    /// By when it is done after it began, in ns.
    pub deadline_ns: u64,
}

/// The members of a job. In a pattern `*` stands for anything and `?` for one character.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// Processes whose name, the last part of whose program's path, or whose whole command line is
    /// like this.
    Process(String),
    /// Threads whose name is like this.
    Thread(String),
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(pattern) => write!(f, "process {pattern:?}"),
            Self::Thread(pattern) => write!(f, "thread {pattern:?}"),
        }
    }
}

impl Default for Jobs {
    fn default() -> Self {
        Self::RoundRobin { turn_ns: TURN_NS }
    }
}

impl From<&Jobs> for Inside {
    fn from(jobs: &Jobs) -> Self {
        match jobs {
            Jobs::RoundRobin { turn_ns } => Self::RoundRobin { turn_ns: *turn_ns },
            Jobs::By { policy, .. } => Self::By((*policy).into()),
        }
    }
}

impl Job {
    /// The task that it asks for.
    ///
    /// # Errors
    /// Where the numbers are none.
    pub fn task(&self) -> Result<Task, reserve::TaskError> {
        Task::new(self.budget_ns, self.period_ns)?.with_deadline(self.deadline_ns)
    }
}

impl Jobs {
    /// By what they go and who they are, where anything is promised to any.
    #[must_use]
    pub fn by(&self) -> Option<(Policy, &[Job])> {
        match self {
            Self::RoundRobin { .. } => None,
            Self::By { policy, jobs } => Some(((*policy).into(), jobs)),
        }
    }

    /// The tasks that they ask for, in their order; those that make no sense were refused before.
    #[must_use]
    pub fn tasks(&self) -> Vec<Task> {
        self.by().map_or_else(Vec::new, |(_, jobs)| jobs.iter().filter_map(|job| job.task().ok()).collect())
    }

    /// Above how many others each of them is, where that does not change from moment to moment.
    #[must_use]
    pub fn ranks(&self) -> Option<Vec<u32>> {
        let (policy, jobs) = self.by().filter(|(policy, _)| *policy != Policy::EarliestDeadline)?;
        let mut ranks = vec![0; jobs.len()];
        for (rank, index) in (0..).zip(policy.order(&self.tasks()).into_iter().rev()) {
            if let Some(place) = ranks.get_mut(index) {
                *place = rank;
            }
        }
        Some(ranks)
    }

    pub(crate) fn check(&self, id: &str) -> Result<(), PlanError> {
        let wrong = |why: String| PlanError::Jobs { id: id.to_owned(), why };
        match self {
            Self::RoundRobin { turn_ns: 0 } => return Err(PlanError::Turn(id.to_owned())),
            Self::RoundRobin { .. } => return Ok(()),
            Self::By { jobs, .. } if jobs.is_empty() || jobs.len() > MAX_RANKED => {
                return Err(wrong(format!("{} jobs are ordered; give 1 to {MAX_RANKED}", jobs.len())));
            }
            Self::By { jobs, .. } => {
                for (place, job) in jobs.iter().enumerate() {
                    let (Who::Process(pattern) | Who::Thread(pattern)) = &job.who;
                    if pattern.is_empty() || pattern.len() > MAX_PATTERN {
                        let words =
                            format!("the pattern of job `{}` has not 1 to {MAX_PATTERN} bytes", job.name);
                        return Err(wrong(words));
                    }
                    if jobs.iter().take(place).any(|other| other.name == job.name) {
                        return Err(wrong(format!("job `{}` is there twice", job.name)));
                    }
                    job.task().map_err(|error| wrong(format!("job `{}`: {error}", job.name)))?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a text is like a pattern.
#[must_use]
pub fn is_like(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut here) = (0, 0);
    // Where the last star was, and how much of the text it stands for.
    let mut star: Option<(usize, usize)> = None;
    while here < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, here));
                at += 1;
            }
            Some(sign) if *sign == '?' || text.get(here) == Some(sign) => {
                at += 1;
                here += 1;
            }
            _ => match star {
                Some((place, taken)) => {
                    star = Some((place, taken + 1));
                    at = place + 1;
                    here = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(at).all(|sign| *sign == '*')
}

/// The members of a virtual task machine's jobs, as last seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster {
    /// The job of each thread that is one.
    pub of: BTreeMap<u32, usize>,
    /// How many processes each job has.
    pub processes: Vec<usize>,
    /// How many threads.
    pub threads: Vec<usize>,
}

impl Roster {
    /// Looks who is which. A thread that is a job by its own name is not one by that of its
    /// process.
    #[must_use]
    pub fn look(jobs: &Jobs, census: &BTreeMap<u32, Vec<u32>>) -> Self {
        let Some((_, jobs)) = jobs.by() else { return Self::default() };
        let mut roster =
            Self { of: BTreeMap::new(), processes: vec![0; jobs.len()], threads: vec![0; jobs.len()] };
        let by_thread = jobs.iter().any(|job| matches!(job.who, Who::Thread(_)));
        for (pid, threads) in census {
            let names = process_names(*pid);
            let of_process = jobs.iter().position(|job| match &job.who {
                Who::Process(pattern) => names.iter().any(|name| is_like(pattern, name)),
                Who::Thread(_) => false,
            });
            let mut here = vec![false; jobs.len()];
            for thread in threads {
                let own = if by_thread { of_thread(jobs, *pid, *thread) } else { None };
                let Some(job) = own.or(of_process) else { continue };
                roster.of.insert(*thread, job);
                if let (Some(count), Some(here)) = (roster.threads.get_mut(job), here.get_mut(job)) {
                    *count += 1;
                    *here = true;
                }
            }
            for (count, here) in roster.processes.iter_mut().zip(here) {
                *count += usize::from(here);
            }
        }
        roster
    }

    /// The notes for a person: jobs without a member, and several processes that share the budget
    /// of one.
    #[must_use]
    pub fn notes(&self, jobs: &Jobs) -> Vec<String> {
        let Some((_, jobs)) = jobs.by() else { return Vec::new() };
        let note = |(index, job): (usize, &Job)| match (self.processes.get(index), &job.who) {
            (None | Some(0), who) => Some(format!("nobody in it is job `{}` ({who})", job.name)),
            (Some(count), Who::Process(_)) if *count > 1 => Some(format!(
                "{count} processes are job `{}` ({}), and share the budget of one",
                job.name, job.who
            )),
            _ => None,
        };
        jobs.iter().enumerate().filter_map(note).collect()
    }
}

/// The jobs of one virtual task machine, who is which, and what they have used.
#[derive(Debug, Clone, Default)]
pub struct Team {
    jobs: Jobs,
    roster: Roster,
    used_ns: Vec<u64>,
}

impl Team {
    /// Sets the jobs from now on. Returns whether that is something else; then the members have to
    /// be looked for anew.
    pub fn set(&mut self, jobs: &Jobs) -> bool {
        let others = self.jobs != *jobs;
        if others {
            *self = Self { jobs: jobs.clone(), ..Self::default() };
        }
        others
    }

    /// The jobs.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// The roster.
    #[must_use]
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Looks who is which, and counts what they have used since the look before.
    pub fn look(&mut self, census: &Census) {
        let Some((_, jobs)) = self.jobs.by() else { return };
        self.used_ns.resize(jobs.len(), 0);
        for (thread, ns) in census.gained_ns() {
            let job = self.roster.of.get(&thread).copied();
            if let Some(used) = job.and_then(|job| self.used_ns.get_mut(job)) {
                *used = used.saturating_add(ns);
            }
        }
        self.roster = Roster::look(&self.jobs, &census.jobs);
    }

    /// The notes for a person.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.roster.notes(&self.jobs)
    }

    /// The members of each job, and what they have used.
    #[must_use]
    pub fn reports(&self) -> Vec<JobReport> {
        let Some((_, jobs)) = self.jobs.by() else { return Vec::new() };
        let at = |all: &[usize], index: usize| all.get(index).copied().unwrap_or(0);
        let one = |(index, job): (usize, &Job)| JobReport {
            name: job.name.clone(),
            processes: at(&self.roster.processes, index),
            threads: at(&self.roster.threads, index),
            used_ns: self.used_ns.get(index).copied().unwrap_or(0),
            deadline_ns: job.deadline_ns,
            ..JobReport::default()
        };
        jobs.iter().enumerate().map(one).collect()
    }
}

/// The names of a process: its name, its program, its whole command line.
fn process_names(pid: u32) -> Vec<String> {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut line = Vec::new();
    if let Ok(file) = fs::File::open(format!("/proc/{pid}/cmdline"))
        && file.take(MAX_LINE).read_to_end(&mut line).is_err()
    {
        // It has ended: whoever has no name is no job.
        line.clear();
    }
    let words: Vec<String> =
        line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let program = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default().to_owned();
    let whole = words.join(" ").trim_end().to_owned();
    [comm.trim_end_matches('\n').to_owned(), program, whole]
        .into_iter()
        .filter(|name| !name.is_empty())
        .collect()
}

fn of_thread(jobs: &[Job], pid: u32, thread: u32) -> Option<usize> {
    let comm = fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).ok()?;
    let name = comm.trim_end_matches('\n');
    jobs.iter().position(|job| matches!(&job.who, Who::Thread(pattern) if is_like(pattern, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, who: Who, period_ns: u64, deadline_ns: u64) -> Job {
        Job { name: name.to_owned(), who, budget_ns: 1, period_ns, deadline_ns }
    }

    #[test]
    fn a_pattern_takes_stars_and_question_marks_and_nothing_else_for_what_they_are_not() {
        for (pattern, text, is) in [
            ("decoder", "decoder", true),
            ("decoder", "decoders", false),
            ("deco*", "decoder", true),
            ("*coder", "decoder", true),
            ("d?coder", "decoder", true),
            ("d?coder", "dcoder", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("", "", true),
            ("*", "", true),
            ("", "x", false),
            ("ab*ab", "abab", true),
            ("ab*ab", "aba", false),
            ("[a]", "a", false),
        ] {
            assert_eq!(is_like(pattern, text), is, "{pattern:?} {text:?}");
        }
        // However many stars, it takes no longer than the two are long.
        assert!(!is_like(&"*a".repeat(120), &"a".repeat(4_000).replace("aaaa", "aaab")[..100]));
    }

    #[test]
    fn shorter_periods_or_deadlines_rank_higher_and_of_equals_the_first() {
        let all = |policy| Jobs::By {
            policy,
            jobs: vec![
                job("a", Who::Process("a".into()), 40, 40),
                job("b", Who::Process("b".into()), 20, 20),
                job("c", Who::Process("c".into()), 40, 10),
            ],
        };
        assert_eq!(all(Order::RateMonotonic).ranks(), Some(vec![1, 2, 0]));
        assert_eq!(all(Order::DeadlineMonotonic).ranks(), Some(vec![0, 1, 2]));
        assert_eq!(all(Order::EarliestDeadline).ranks(), None);
        assert_eq!(Jobs::default().ranks(), None);
    }

    #[test]
    fn what_makes_no_sense_of_jobs_is_refused_with_its_name() {
        let by = |jobs| Jobs::By { policy: Order::RateMonotonic, jobs };
        let good = job("a", Who::Process("a".into()), 40, 40);
        let refused = |jobs: Jobs, words: &str| {
            let error = jobs.check("x").expect_err("it makes no sense").to_string();
            assert!(error.contains(words) && error.contains("`x`"), "{error}");
        };
        refused(by(Vec::new()), "0 jobs are ordered");
        refused(by(vec![good.clone(); 17]), "17 jobs");
        refused(by(vec![good.clone(), good.clone()]), "`a` is there twice");
        refused(by(vec![Job { who: Who::Thread(String::new()), ..good.clone() }]), "pattern of job `a`");
        refused(by(vec![Job { budget_ns: 41, ..good.clone() }]), "job `a`: a budget of 41 ns");
        refused(Jobs::RoundRobin { turn_ns: 0 }, "a turn of 0 ns");
        by(vec![good]).check("x").expect("it makes sense");
    }

    #[test]
    fn a_thread_is_a_job_by_its_own_name_before_that_of_its_process_and_who_is_missing_is_told() {
        let (told, tells) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let mixer = std::thread::Builder::new().name("mixer-1".into()).spawn(move || {
            told.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).expect("it is told");
            let _ = ends.recv();
        });
        let mixer = mixer.expect("a thread");
        let thread = tells.recv().expect("its number");
        let own = std::process::id();
        let census = BTreeMap::from([(own, vec![own, thread])]);
        let name = std::env::current_exe().expect("a name");
        let name = name.file_name().expect("a name").to_string_lossy().into_owned();
        let jobs = Jobs::By {
            policy: Order::RateMonotonic,
            jobs: vec![
                job("all", Who::Process(name), 40, 40),
                job("mix", Who::Thread("mixer-?".into()), 20, 20),
                job("gone", Who::Process("no such program".into()), 20, 20),
            ],
        };
        let roster = Roster::look(&jobs, &census);
        assert_eq!(roster.of, BTreeMap::from([(own, 0), (thread, 1)]));
        assert_eq!((roster.processes.clone(), roster.threads.clone()), (vec![1, 1, 0], vec![1, 1, 0]));
        assert_eq!(roster.notes(&jobs), ["nobody in it is job `gone` (process \"no such program\")"]);
        drop(end);
        mixer.join().expect("it ended");
    }
}
