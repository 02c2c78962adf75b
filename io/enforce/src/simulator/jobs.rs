//! Jobs that begin with each of their periods, take all of their budget, and want nothing more
//! until the next.

use std::collections::VecDeque;

use reserve::Task;

use crate::core::Core;
use crate::enforcer::JobReport;
use crate::error::Result;
use crate::jobs::Jobs;

/// Most periods of one job that may be behind; what comes on top is late, and forgotten.
const MAX_BEHIND: usize = 64;

#[derive(Debug)]
struct Job {
    task: Task,
    next_ns: u64,
    /// When the periods began that are not done.
    begun_ns: VecDeque<u64>,
    left_ns: u64,
    used_ns: u64,
    worst_ns: u64,
    late: bool,
}

/// The jobs of one virtual task machine.
#[derive(Debug)]
pub struct Simulated {
    said: Jobs,
    jobs: Vec<Job>,
    /// None of them was told to the dispatcher as one that has nothing to do.
    fresh: bool,
}

impl Simulated {
    /// They all begin at `now_ns`.
    pub fn new(said: &Jobs, now_ns: u64) -> Self {
        let job = |task: Task| Job {
            task,
            next_ns: now_ns,
            begun_ns: VecDeque::new(),
            left_ns: 0,
            used_ns: 0,
            worst_ns: 0,
            late: false,
        };
        Self { said: said.clone(), jobs: said.tasks().into_iter().map(job).collect(), fresh: true }
    }

    pub fn jobs(&self) -> &Jobs {
        &self.said
    }

    /// As the dispatcher is told.
    pub fn members(&self) -> Vec<(u32, Option<Task>)> {
        (0..).zip(&self.jobs).map(|(who, job)| (who, Some(job.task))).collect()
    }

    /// Begins the periods that begin by `now_ns`; when the next one does.
    pub fn release(&mut self, core: &mut Core, number: usize, now_ns: u64) -> Result<u64> {
        let fresh = std::mem::take(&mut self.fresh);
        let mut next_ns = u64::MAX;
        for (who, job) in (0..).zip(&mut self.jobs) {
            if fresh {
                core.turn(number, who, None)?;
            }
            while job.next_ns <= now_ns {
                if job.begun_ns.is_empty() {
                    job.left_ns = job.task.budget_ns();
                    core.turn(number, who, Some(job.next_ns))?;
                }
                if job.begun_ns.len() < MAX_BEHIND {
                    job.begun_ns.push_back(job.next_ns);
                } else {
                    job.late = true;
                }
                job.next_ns = job.next_ns.saturating_add(job.task.period_ns());
            }
            next_ns = next_ns.min(job.next_ns);
        }
        Ok(next_ns)
    }

    fn job(&mut self, who: u32) -> Option<&mut Job> {
        usize::try_from(who).ok().and_then(|index| self.jobs.get_mut(index))
    }

    /// How much one has to do yet.
    pub fn left_ns(&mut self, who: u32) -> u64 {
        self.job(who).map_or(u64::MAX, |job| job.left_ns)
    }

    /// One has worked, until `now_ns`. Returns whether its period is done, so that the dispatcher
    /// has to be told what is next of it.
    pub fn work(&mut self, who: u32, worked_ns: u64, now_ns: u64) -> bool {
        let Some(job) = self.job(who) else { return false };
        job.left_ns = job.left_ns.saturating_sub(worked_ns);
        job.used_ns = job.used_ns.saturating_add(worked_ns);
        if job.left_ns > 0 {
            return false;
        }
        if let Some(begun_ns) = job.begun_ns.pop_front() {
            let took_ns = now_ns.saturating_sub(begun_ns);
            job.worst_ns = job.worst_ns.max(took_ns);
            job.late |= took_ns > job.task.deadline_ns();
        }
        if !job.begun_ns.is_empty() {
            job.left_ns = job.task.budget_ns();
        }
        true
    }

    /// When the period began of which one has something to do.
    pub fn begun_ns(&mut self, who: u32) -> Option<u64> {
        self.job(who).and_then(|job| job.begun_ns.front().copied())
    }

    pub fn reports(&self) -> Vec<JobReport> {
        let Some((_, said)) = self.said.by() else { return Vec::new() };
        let one = |(said, job): (&crate::jobs::Job, &Job)| JobReport {
            name: said.name.clone(),
            processes: 1,
            threads: 1,
            used_ns: job.used_ns,
            priority: None,
            response_ns: Some(job.worst_ns),
            deadline_ns: said.deadline_ns,
            late: job.late,
        };
        said.iter().zip(&self.jobs).map(one).collect()
    }
}
