//! Earliest deadline first on one processor: the processor demand, exactly.
//!
//! Everybody meets the deadline if and only if, for each length of time, the work that can be
//! released and fall due within it is not longer (Baruah, Rosier and Howell 1990; with jitter Spuri
//! 1996). Of these lengths few need a look: quick processor-demand analysis goes from the longest
//! that matters downwards, and each look says how far down the next is (Zhang and Burns, IEEE TC
//! 2009).

use crate::effort::{Effort, Undecided};
use crate::fixed_priority::Response;
use crate::fraction::{self, ONE, compare_to_one};
use crate::task::Load;
use std::cmp::Ordering;

/// A length of time in which more work falls due than is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overload {
    /// The shortest such length, in ns.
    pub within: u64,
    /// The work that falls due in it, in ns.
    pub work: u64,
}

/// How much of a processor these tasks are given.
pub(crate) trait Given {
    /// The least that is given in any window of that length, in ns.
    fn least(&self, window: u64) -> u64;

    /// The shortest window in which at least so much is given, wherever it begins.
    fn window_for(&self, work: u64) -> u64;

    /// About how many steps both take.
    fn steps(&self) -> usize;
}

/// The whole processor.
pub(crate) struct Whole;

impl Given for Whole {
    fn least(&self, window: u64) -> u64 {
        window
    }

    fn window_for(&self, work: u64) -> u64 {
        work
    }

    fn steps(&self) -> usize {
        0
    }
}

/// The work that there is on a processor.
pub(crate) struct Demand<'a> {
    loads: &'a [Load],
}

impl<'a> Demand<'a> {
    pub fn new(loads: &'a [Load]) -> Self {
        Self { loads }
    }

    /// The work that falls due in a window of that length.
    fn due(&self, window: u64) -> u64 {
        self.loads.iter().fold(0_u64, |work, load| work.saturating_add(load.due(window)))
    }

    /// The last length below `window` at which more work falls due.
    fn step_below(&self, window: u64) -> Option<u64> {
        let last = |load: &Load| {
            let rest = window.checked_sub(load.first_due().checked_add(1)?)?;
            Some(load.first_due() + rest / load.period * load.period)
        };
        self.loads.iter().filter_map(last).max()
    }

    /// The shortest length that is overloaded, if there is one, on a whole processor.
    pub fn first_overload(&self, effort: &mut Effort) -> Result<Option<Overload>, Undecided> {
        if compare_to_one(self.shares()) == Ordering::Greater {
            return self.search_upwards(effort).map(Some);
        }
        match self.longest_that_matters(effort)? {
            Some(longest) => self.search_downwards(longest, &Whole, effort),
            None => Ok(None),
        }
    }

    /// Whether all deadlines are met on a whole processor.
    pub fn holds(&self, effort: &mut Effort) -> Result<bool, Undecided> {
        if compare_to_one(self.shares()) == Ordering::Greater {
            return Ok(false);
        }
        let Some(longest) = self.longest_that_matters(effort)? else { return Ok(true) };
        Ok(self.looks(longest, &Whole, effort, true)?.is_none())
    }

    /// How long a task takes at worst, from the beginning of its period, if equal deadlines go
    /// against it (Spuri 1996).
    ///
    /// The others are released together, and of its own releases one has its deadline where
    /// another's is, or its own: each such place in the longest busy window is looked at. Work with
    /// a later deadline is not in the way. A hyperperiod later, no more is left over than before,
    /// so places within one suffice.
    pub fn response(&self, who: usize, effort: &mut Effort) -> Result<Response, Undecided> {
        let Some(task) = self.loads.get(who) else { return Ok(Response::Within(0)) };
        if compare_to_one(self.shares()) == Ordering::Greater {
            return Ok(Response::Unbounded);
        }
        let hyperperiod =
            fraction::hyperperiod(self.loads.iter().map(|load| load.period)).unwrap_or(u64::MAX);
        let longest = self.busy_window(hyperperiod, effort)?.min(hyperperiod);
        let mut worst = 0;
        for other in self.loads {
            // Deadlines of the other, as they stand to the beginning of the period that is looked
            // at.
            let ahead = task.first_due().saturating_sub(other.first_due()).div_ceil(other.period);
            let mut due = other.first_due().saturating_add(ahead.saturating_mul(other.period));
            let mut done = 0;
            while due - task.first_due() < longest {
                let begin = due - task.first_due();
                // The later the deadline, the more is in the way: what is done then is done no
                // sooner.
                done = self.done(who, task, begin, done, effort)?;
                worst = worst.max(done.saturating_add(task.jitter).saturating_sub(begin));
                due = due.saturating_add(other.period);
            }
        }
        Ok(Response::Within(worst))
    }

    /// When the release is done whose period begins so long, less the jitter, after all others are
    /// released together; not before `from`.
    fn done(
        &self,
        who: usize,
        task: &Load,
        begin: u64,
        from: u64,
        effort: &mut Effort,
    ) -> Result<u64, Undecided> {
        let own = (begin / task.period + 1).saturating_mul(task.cost);
        let due = begin.saturating_add(task.first_due());
        let mut window = own.max(from);
        loop {
            effort.spend(self.loads.len())?;
            let others = self.loads.iter().enumerate().filter(|(index, _)| *index != who);
            let work = others
                .fold(own, |work, (_, load)| work.saturating_add(load.released(window).min(load.due(due))));
            if work <= window {
                return Ok(window);
            }
            window = work;
        }
    }

    fn shares(&self) -> impl Iterator<Item = (u64, u64)> + Clone {
        self.loads.iter().map(|load| (load.cost, load.period))
    }

    /// The shortest overloaded length up to `longest`.
    pub fn search_downwards(
        &self,
        longest: u64,
        given: &impl Given,
        effort: &mut Effort,
    ) -> Result<Option<Overload>, Undecided> {
        self.looks(longest, given, effort, false)
    }

    /// Looks at the lengths from `longest` down; ends at the first overload that it comes to, or
    /// goes on to the shortest.
    fn looks(
        &self,
        longest: u64,
        given: &impl Given,
        effort: &mut Effort,
        any: bool,
    ) -> Result<Option<Overload>, Undecided> {
        let mut found = None;
        let mut window = self.step_below(longest.saturating_add(1));
        while let Some(within) = window {
            effort.spend(2 * self.loads.len() + given.steps())?;
            let work = self.due(within);
            if work > given.least(within) {
                found = Some(Overload { within, work });
                if any {
                    break;
                }
                window = self.step_below(within);
                continue;
            }
            // All that is due up to here is given within `enough`; what is between has no more due,
            // so it holds too.
            let enough = given.window_for(work);
            window = if enough < within { self.step_at_most(enough) } else { self.step_below(within) };
        }
        Ok(found)
    }

    fn step_at_most(&self, window: u64) -> Option<u64> {
        self.step_below(window.saturating_add(1))
    }

    /// For more work than the processor has: the first length at which it shows.
    fn search_upwards(&self, effort: &mut Effort) -> Result<Overload, Undecided> {
        let mut longest = self.loads.iter().map(|load| load.deadline.max(load.period)).max().unwrap_or(1);
        loop {
            if let Some(found) = self.search_downwards(longest, &Whole, effort)? {
                return Ok(found);
            }
            longest = longest.checked_mul(2).ok_or(Undecided)?;
        }
    }

    /// No longer window can be the shortest that is overloaded; `None` where none can. The
    /// processor has time for all.
    fn longest_that_matters(&self, effort: &mut Effort) -> Result<Option<u64>, Undecided> {
        let relaxed = self.loads.iter().all(|load| load.first_due() >= load.period);
        if relaxed {
            return Ok(None);
        }
        if let Some(longest) = self.by_slack() {
            return Ok(Some(longest));
        }
        // What is due repeats with the hyperperiod, once everybody's first deadline has passed.
        let latest = self.loads.iter().map(Load::first_due).max().unwrap_or(0);
        let repeats = fraction::hyperperiod(self.loads.iter().map(|load| load.period))
            .and_then(|hyperperiod| hyperperiod.checked_add(latest));
        match repeats {
            Some(longest) => Ok(Some(longest)),
            None => self.busy_window(u64::MAX, effort).map(Some),
        }
    }

    /// Where tasks leave the processor some time: beyond this length that time makes up for early
    /// deadlines.
    fn by_slack(&self) -> Option<u64> {
        let taken: u128 = self.loads.iter().map(|load| fraction::up(load.cost, load.period)).sum();
        let free = ONE.checked_sub(taken).filter(|free| *free > 0)?;
        let early = |load: &Load| {
            let ahead = u128::from(load.period.saturating_sub(load.first_due()));
            (ahead * u128::from(load.cost)).div_ceil(u128::from(load.period))
        };
        let ahead = self.loads.iter().map(early).sum::<u128>();
        u64::try_from((ahead.checked_mul(ONE)?).div_ceil(free)).ok()
    }

    /// The longest time for which a processor that has all to do at once is never idle, an overload
    /// shows in it; or something over `enough`.
    fn busy_window(&self, enough: u64, effort: &mut Effort) -> Result<u64, Undecided> {
        let mut window = self.loads.iter().fold(0_u64, |sum, load| sum.saturating_add(load.cost));
        loop {
            effort.spend(self.loads.len())?;
            let work = self.loads.iter().fold(0_u64, |sum, load| sum.saturating_add(load.released(window)));
            if work <= window || window > enough {
                return Ok(window);
            }
            window = work;
        }
    }
}
