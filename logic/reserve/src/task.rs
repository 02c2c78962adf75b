//! The demand on a processor: a budget in each period, by a deadline; and the cost of a switch.

use crate::refusal::Span;

/// Longest period and longest deadline, in ns: an hour. A budget that is renewed less often is no
/// reservation but a booking.
pub const MAX_NS: u64 = 3_600_000_000_000;
/// Longest context switch that is believed, in ns: a thousand times what a slow processor takes.
pub const MAX_SWITCH_NS: u64 = 10_000_000;
/// Most tasks that are analysed together. More do not fit into an answer that somebody waits for.
pub const MAX_TASKS: usize = 1024;

/// A recurring demand: `budget` of processor time in each `period`, done at most `deadline` after
/// the period began, though the work may become ready up to `jitter` after that. Of a virtual task
/// machine or of a job inside one.
///
/// All in nanoseconds. `0 < budget <= period`, `budget + jitter <= deadline`, nothing over
/// [`MAX_NS`]. The deadline may be longer than the period: then several releases can be under
/// way, and are served in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Task {
    budget_ns: u64,
    period_ns: u64,
    deadline_ns: u64,
    jitter_ns: u64,
}

/// Why four numbers are no task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// Nothing is asked for.
    #[error("a budget of 0 promises nothing; leave the reservation out, or give it a budget")]
    NoBudget,
    /// A period of nothing.
    #[error("a period of 0 has no end; give the time in which the budget is to be had")]
    NoPeriod,
    /// More than there is.
    #[error(
        "a budget of {} does not fit into a period of {}; one processor gives at most the period", Span(*budget_ns), Span(*period_ns)
    )]
    BudgetOverPeriod {
        /// The budget that was asked for.
        budget_ns: u64,
        /// In this time.
        period_ns: u64,
    },
    /// It would be late even alone.
    #[error(
        "a budget of {} that is ready up to {} late can't be done {} after its period began; give a deadline of at least {}",
        Span(*budget_ns), Span(*jitter_ns), Span(*deadline_ns), Span(budget_ns.saturating_add(*jitter_ns))
    )]
    LateAlone {
        /// The budget that was asked for.
        budget_ns: u64,
        /// How late it may begin.
        jitter_ns: u64,
        /// When it would have to be done.
        deadline_ns: u64,
    },
    /// Too long a period, deadline or jitter.
    #[error("{} is longer than an hour, the longest period or deadline of a reservation", Span(*ns))]
    TooLong {
        /// The time that was asked for.
        ns: u64,
    },
}

impl Task {
    /// A budget in each period, with the period as its deadline and without jitter; all in ns.
    ///
    /// # Errors
    /// Where a number is zero or too great, or the budget is greater than the period.
    pub fn new(budget_ns: u64, period_ns: u64) -> Result<Self, TaskError> {
        if budget_ns == 0 {
            return Err(TaskError::NoBudget);
        }
        if period_ns == 0 {
            return Err(TaskError::NoPeriod);
        }
        if period_ns > MAX_NS {
            return Err(TaskError::TooLong { ns: period_ns });
        }
        if budget_ns > period_ns {
            return Err(TaskError::BudgetOverPeriod { budget_ns, period_ns });
        }
        Ok(Self { budget_ns, period_ns, deadline_ns: period_ns, jitter_ns: 0 })
    }

    /// The same with another deadline, in ns after the period began.
    ///
    /// # Errors
    /// Where budget and jitter do not fit before it, or it is too far.
    pub fn with_deadline(self, deadline_ns: u64) -> Result<Self, TaskError> {
        Self { deadline_ns, ..self }.checked()
    }

    /// The same whose work becomes ready up to `jitter_ns` after its period began.
    ///
    /// # Errors
    /// Where budget and jitter do not fit before the deadline.
    pub fn with_jitter(self, jitter_ns: u64) -> Result<Self, TaskError> {
        Self { jitter_ns, ..self }.checked()
    }

    /// The same with another budget.
    ///
    /// # Errors
    /// As for [`Task::new`] and [`Task::with_deadline`].
    pub fn with_budget(self, budget_ns: u64) -> Result<Self, TaskError> {
        Self::new(budget_ns, self.period_ns)?;
        Self { budget_ns, ..self }.checked()
    }

    /// The same in another period; a deadline that was the period stays the period.
    ///
    /// # Errors
    /// As for [`Task::new`] and [`Task::with_deadline`].
    pub fn with_period(self, period_ns: u64) -> Result<Self, TaskError> {
        Self::new(self.budget_ns, period_ns)?;
        let deadline_ns = if self.deadline_ns == self.period_ns { period_ns } else { self.deadline_ns };
        Self { period_ns, deadline_ns, ..self }.checked()
    }

    fn checked(self) -> Result<Self, TaskError> {
        let Self { budget_ns, deadline_ns, jitter_ns, .. } = self;
        if let Some(ns) = [deadline_ns, jitter_ns].into_iter().find(|ns| *ns > MAX_NS) {
            return Err(TaskError::TooLong { ns });
        }
        if budget_ns.saturating_add(jitter_ns) > deadline_ns {
            return Err(TaskError::LateAlone { budget_ns, jitter_ns, deadline_ns });
        }
        Ok(self)
    }

    /// Processor time in each period, in ns.
    pub fn budget_ns(&self) -> u64 {
        self.budget_ns
    }

    /// From one release to the next, in ns.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// From the beginning of a period to when its budget is had, in ns.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// From the beginning of a period to when its work is ready at the latest, in ns.
    pub fn jitter_ns(&self) -> u64 {
        self.jitter_ns
    }
}

/// The time that a processor loses when it turns from one task to another.
///
/// Each release is charged two switches: one to it, and one back to whom it interrupted. A switch
/// is not interrupted, so whoever is released during one to somebody of lower priority waits for
/// its end; the last release of a busy window pays for that, whose own switch back comes too late
/// to be in anybody's way. With a cost of zero the tests are exact, with another one they are safe:
/// nobody who is admitted misses, and somebody whose luck would have spared him switches may be
/// refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Costs {
    switch_ns: u64,
}

impl Costs {
    /// Switches that cost nothing.
    pub const NONE: Self = Self { switch_ns: 0 };

    /// Switches of `switch_ns` each, registers, caches and the dispatcher's own time together.
    ///
    /// # Errors
    /// Where that is over [`MAX_SWITCH_NS`].
    pub fn new(switch_ns: u64) -> Result<Self, CostsError> {
        if switch_ns > MAX_SWITCH_NS { Err(CostsError { switch_ns }) } else { Ok(Self { switch_ns }) }
    }

    /// One switch, in ns.
    pub fn switch_ns(&self) -> u64 {
        self.switch_ns
    }
}

/// A context switch that nobody believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a context switch of {} is more than {}, the most that is believed; measure it again", Span(*switch_ns), Span(MAX_SWITCH_NS)
)]
pub struct CostsError {
    /// The cost that was given.
    pub switch_ns: u64,
}

/// The policies of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// The shorter the period, the higher the priority (Liu and Layland, JACM 1973). Of equals, who
    /// was named first.
    #[default]
    RateMonotonic,
    /// The shorter the deadline, the higher the priority (Leung and Whitehead, 1982). Of equals,
    /// who was named first.
    DeadlineMonotonic,
    /// The task whose deadline comes next (Liu and Layland, JACM 1973).
    EarliestDeadline,
}

impl Policy {
    /// The indices of `tasks`, highest priority first. Earliest deadline first has no such order:
    /// they come as they are.
    pub fn order(self, tasks: &[Task]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        match self {
            Self::RateMonotonic => order.sort_by_key(|&index| tasks[index].period_ns),
            Self::DeadlineMonotonic => order.sort_by_key(|&index| tasks[index].deadline_ns),
            Self::EarliestDeadline => {}
        }
        order
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RateMonotonic => "rate-monotonic",
            Self::DeadlineMonotonic => "deadline-monotonic",
            Self::EarliestDeadline => "earliest deadline first",
        })
    }
}

/// A task as the analysis sees it: with what its switches cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub cost: u64,
    pub period: u64,
    pub deadline: u64,
    pub jitter: u64,
}

impl Load {
    pub fn new(task: &Task, costs: Costs) -> Self {
        Self {
            cost: task.budget_ns + 2 * costs.switch_ns,
            period: task.period_ns,
            deadline: task.deadline_ns,
            jitter: task.jitter_ns,
        }
    }

    /// Most work that is released in a window of `window` ns: at its beginning with all of the
    /// jitter, then as early as can be.
    pub fn released(&self, window: u64) -> u64 {
        window.saturating_add(self.jitter).div_ceil(self.period).saturating_mul(self.cost)
    }

    /// Most work that is released in a window of `window` ns and has its deadline in it.
    pub fn due(&self, window: u64) -> u64 {
        match window.checked_sub(self.first_due()) {
            Some(rest) => (rest / self.period + 1).saturating_mul(self.cost),
            None => 0,
        }
    }

    /// From when work is ready at the latest to its deadline.
    pub fn first_due(&self) -> u64 {
        self.deadline.saturating_sub(self.jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_impossible_number_is_refused_with_what_is_possible() {
        let refused = |error: TaskError, words: &str| assert!(error.to_string().contains(words), "{error}");
        refused(Task::new(0, 10).unwrap_err(), "a budget of 0");
        refused(Task::new(1, 0).unwrap_err(), "a period of 0");
        refused(Task::new(11, 10).unwrap_err(), "11 ns does not fit into a period of 10 ns");
        refused(Task::new(1, MAX_NS + 1).unwrap_err(), "longer than an hour");
        let task = Task::new(5, 10).unwrap();
        refused(task.with_deadline(4).unwrap_err(), "at least 5 ns");
        refused(task.with_jitter(6).unwrap_err(), "at least 11 ns");
        refused(task.with_jitter(u64::MAX).unwrap_err(), "longer than an hour");
        refused(task.with_budget(0).unwrap_err(), "a budget of 0");
        refused(task.with_period(4).unwrap_err(), "period of 4 ns");
        assert!(Costs::new(MAX_SWITCH_NS + 1).unwrap_err().to_string().contains("measure it again"));
    }

    #[test]
    fn a_deadline_that_was_the_period_stays_the_period() {
        let task = Task::new(5, 10).unwrap().with_period(20).unwrap();
        assert_eq!(task.deadline_ns(), 20);
        let task = Task::new(5, 10).unwrap().with_deadline(8).unwrap().with_period(20).unwrap();
        assert_eq!(task.deadline_ns(), 8);
    }
}
