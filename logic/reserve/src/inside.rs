//! Two levels: the jobs inside a virtual task machine, on what its table gives.
//!
//! Jobs are released when they like (no two of one job closer than its period), so the worst begins
//! where a stretch has just ended: all of them are released then. Each such beginning is looked at.
//! With fixed priorities the response time is the longest of all beginnings; under earliest
//! deadline first, no more work may fall due in any length of time than the least that is given in
//! it.

use crate::admission::{AdmitError, Rule};
use crate::earliest_deadline::{Demand, Overload};
use crate::effort::{Effort, Undecided};
use crate::fixed_priority::Response;
use crate::fraction::{self, ONE, compare_to_one};
use crate::quick::Proof;
use crate::refusal::{Change, Miss, Refusal, Remedy};
use crate::supply::Supply;
use crate::task::{Load, MAX_TASKS, Policy, Task};
use std::cmp::Ordering;

/// Admits `jobs` to what a table gives; a refusal says by how much the budget of the job of index
/// `newcomer` (or of whoever would miss) is too great.
///
/// # Errors
/// Where a job would miss, or it can't be told.
pub fn admit(
    rule: Rule,
    jobs: &[Task],
    supply: &Supply,
    newcomer: Option<usize>,
) -> Result<Proof, AdmitError> {
    if jobs.len() > MAX_TASKS {
        return Err(AdmitError::TooMany(jobs.len()));
    }
    let Some(miss) = Inside { rule, supply }.find_miss(jobs, &mut Effort::new())? else {
        return Ok(if rule.policy == Policy::EarliestDeadline {
            Proof::Demand
        } else {
            Proof::ResponseTimes
        });
    };
    let who = newcomer.filter(|who| *who < jobs.len()).unwrap_or(miss.who);
    let remedies = Inside { rule, supply }.smallest_cut(jobs, who).into_iter().collect();
    Err(AdmitError::Refused(Box::new(Refusal { policy: rule.policy, miss, sought: Some(who), remedies })))
}

/// How long each job takes at worst on what a table gives, in the order of `jobs`; for fixed
/// priorities. `None` under earliest deadline first.
///
/// # Errors
/// Where it can't be told.
pub fn responses(rule: Rule, jobs: &[Task], supply: &Supply) -> Result<Option<Vec<Response>>, AdmitError> {
    if jobs.len() > MAX_TASKS {
        return Err(AdmitError::TooMany(jobs.len()));
    }
    if rule.policy == Policy::EarliestDeadline {
        return Ok(None);
    }
    let order = rule.policy.order(jobs);
    let loads = rule.loads(jobs, &order);
    let inside = Inside { rule, supply };
    let effort = &mut Effort::new();
    let mut responses = vec![Response::Unbounded; jobs.len()];
    for (level, &index) in order.iter().enumerate() {
        responses[index] = inside.response(&loads, level, None, effort)?;
    }
    Ok(Some(responses))
}

struct Inside<'a> {
    rule: Rule,
    supply: &'a Supply,
}

impl Inside<'_> {
    fn find_miss(&self, jobs: &[Task], effort: &mut Effort) -> Result<Option<Miss>, Undecided> {
        let order = self.rule.policy.order(jobs);
        let loads = self.rule.loads(jobs, &order);
        if self.rule.policy == Policy::EarliestDeadline {
            let overload = self.first_overload(&loads, effort)?;
            return Ok(overload.and_then(|overload| self.overloaded(&loads, overload)));
        }
        for (level, load) in loads.iter().enumerate() {
            if !self.response(&loads, level, Some(load.deadline), effort)?.meets(load.deadline) {
                let response =
                    self.response(&loads, level, None, effort).unwrap_or(Response::Over(load.deadline));
                let who = order.get(level).copied().unwrap_or(level);
                return Ok(Some(Miss { who, response, deadline_ns: load.deadline, overload: None }));
            }
        }
        Ok(None)
    }

    /// The jobs' part of the processor, against the part that is given.
    fn compare(&self, loads: &[Load]) -> Ordering {
        let (cycle, total) = (self.supply.cycle_ns(), self.supply.total_ns());
        let others = (cycle.saturating_sub(total), cycle);
        compare_to_one(loads.iter().map(|load| (load.cost, load.period)).chain([others]))
    }

    /// The response time of a level at the worst of all beginnings; one over `enough` is only known
    /// to be over it.
    fn response(
        &self,
        loads: &[Load],
        level: usize,
        enough: Option<u64>,
        effort: &mut Effort,
    ) -> Result<Response, Undecided> {
        let Some(levels) = loads.get(..=level) else { return Ok(Response::Within(0)) };
        let Some((job, above)) = levels.split_last() else { return Ok(Response::Within(0)) };
        let repeats = match self.compare(levels) {
            Ordering::Less => None,
            Ordering::Equal => self.repetition(levels, job.period),
            Ordering::Greater => return Ok(Response::Unbounded),
        };
        let mut worst = 0;
        for begin in self.supply.ends() {
            let window = Window { supply: self.supply, begin, above };
            worst = worst.max(window.response(job, enough, repeats, effort)?.0);
            if enough.is_some_and(|enough| worst > enough) {
                break;
            }
        }
        Ok(Response::Within(worst))
    }

    /// After how many releases jobs that use up all that is given do the same again.
    fn repetition(&self, levels: &[Load], period: u64) -> Option<u64> {
        let periods = levels.iter().map(|load| load.period).chain([self.supply.cycle_ns()]);
        Some(fraction::hyperperiod(periods)? / period)
    }

    /// The shortest length of time in which more falls due than is given at worst.
    fn first_overload(&self, loads: &[Load], effort: &mut Effort) -> Result<Option<Overload>, Undecided> {
        let demand = Demand::new(loads);
        let fits = self.compare(loads) != Ordering::Greater;
        if fits {
            let longest = self.longest_that_matters(loads).ok_or(Undecided)?;
            return demand.search_downwards(longest, self.supply, effort);
        }
        let mut longest = loads.iter().map(|load| load.deadline.max(load.period)).max().unwrap_or(1);
        loop {
            if let Some(found) = demand.search_downwards(longest, self.supply, effort)? {
                return Ok(Some(found));
            }
            longest = longest.checked_mul(2).ok_or(Undecided)?;
        }
    }

    /// No longer window can be the shortest that is overloaded.
    fn longest_that_matters(&self, loads: &[Load]) -> Option<u64> {
        let (cycle, total) = (self.supply.cycle_ns(), self.supply.total_ns());
        let taken: u128 = loads.iter().map(|load| fraction::up(load.cost, load.period)).sum();
        let free = fraction::down(total, cycle).checked_sub(taken).filter(|free| *free > 0);
        // In any window at least as many whole totals are given as there are whole cycles in it.
        let behind = u128::from(total);
        let ahead = loads.iter().map(|load| {
            let early = u128::from(load.period.saturating_sub(load.first_due()));
            (early * u128::from(load.cost)).div_ceil(u128::from(load.period))
        });
        let ahead = ahead.sum::<u128>() + behind;
        let by_slack = free.and_then(|free| u64::try_from((ahead.checked_mul(ONE)?).div_ceil(free)).ok());
        by_slack.or_else(|| {
            let latest = loads.iter().map(Load::first_due).max().unwrap_or(0);
            let periods = loads.iter().map(|load| load.period).chain([cycle]);
            fraction::hyperperiod(periods)?.checked_add(latest)
        })
    }

    fn overloaded(&self, loads: &[Load], overload: Overload) -> Option<Miss> {
        let falls_due = |load: &Load| {
            overload.within.checked_sub(load.first_due()).is_some_and(|rest| rest % load.period == 0)
        };
        let who = loads.iter().rposition(falls_due)?;
        let deadline_ns = loads.get(who)?.deadline;
        // It is done when all that falls due is given, at the latest; if that is ever.
        let done = self.supply.window_for_ns(overload.work);
        let response = if done == u64::MAX {
            Response::Unbounded
        } else {
            Response::Within(deadline_ns.saturating_add(done.saturating_sub(overload.within)))
        };
        Some(Miss { who, response, deadline_ns, overload: Some((overload.within, overload.work)) })
    }

    /// The greatest budget below its own with which the job of index `who` would be admitted.
    fn smallest_cut(&self, jobs: &[Task], who: usize) -> Option<Remedy> {
        let job = *jobs.get(who)?;
        let mut trial = jobs.to_vec();
        let effort = &mut Effort::new();
        let (mut good, mut bad) = (0, job.budget_ns());
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            *trial.get_mut(who)? = job.with_budget(middle).ok()?;
            if self.find_miss(&trial, effort).ok()?.is_none() {
                good = middle;
            } else {
                bad = middle;
            }
        }
        let change = Change::Budget { from_ns: job.budget_ns(), to_ns: good };
        (good > 0).then_some(Remedy { who, change })
    }
}

/// When so much was given.
pub(crate) trait Reach {
    /// When `amount_ns` is given, from the beginning.
    fn reach(&self, amount_ns: u64) -> u64;
}

impl Reach for Supply {
    fn reach(&self, amount_ns: u64) -> u64 {
        self.reached_ns(amount_ns)
    }
}

/// A window that begins where a stretch has ended.
pub(crate) struct Window<'a, R> {
    pub supply: &'a R,
    /// When that is, and what was given before.
    pub begin: (u64, u64),
    pub above: &'a [Load],
}

impl<R: Reach> Window<'_, R> {
    /// The longest response in it, and how long it is.
    pub fn response(
        &self,
        job: &Load,
        enough: Option<u64>,
        repeats: Option<u64>,
        effort: &mut Effort,
    ) -> Result<(u64, u64), Undecided> {
        let (mut worst, mut window) = (0, 0);
        for release in 0.. {
            let own = (release + 1_u64).saturating_mul(job.cost);
            let begun = release.saturating_mul(job.period);
            let stop =
                enough.map_or(u64::MAX, |enough| enough.saturating_add(begun).saturating_sub(job.jitter));
            window = self.settle(own, window, stop, effort)?;
            worst = worst.max(window.saturating_add(job.jitter).saturating_sub(begun));
            let next = (begun + job.period).saturating_sub(job.jitter);
            let over = enough.is_some_and(|enough| worst > enough);
            if window <= next || over || repeats.is_some_and(|repeats| release + 1 >= repeats) {
                break;
            }
        }
        Ok((worst, window))
    }

    /// When `own` work is done besides all that comes from above.
    fn settle(&self, own: u64, from: u64, stop: u64, effort: &mut Effort) -> Result<u64, Undecided> {
        let mut window = from.max(1);
        loop {
            effort.spend(self.above.len() + 1)?;
            let work = self.above.iter().fold(own, |work, load| work.saturating_add(load.released(window)));
            let (begin, given) = self.begin;
            let done = self.supply.reach(given.saturating_add(work)).saturating_sub(begin);
            if done <= window || done > stop {
                return Ok(done.max(window));
            }
            window = done;
        }
    }
}
