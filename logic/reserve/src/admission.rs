//! Admission on one processor: whether everybody meets every deadline, how that is known, and else
//! who would miss and what would help.

use crate::earliest_deadline::Demand;
use crate::effort::{Effort, Undecided};
use crate::fixed_priority::{Levels, Response};
use crate::quick::{self, Proof};
use crate::refusal::{Change, Miss, Refusal, Remedy};
use crate::task::{Costs, Load, MAX_NS, MAX_TASKS, Policy, Task};

/// Why tasks are not admitted together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Somebody would miss a deadline.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The analysis would take too long.
    #[error(transparent)]
    Undecided(#[from] Undecided),
    /// More than are analysed together.
    #[error("{0} reservations are more than {MAX_TASKS}, the most that one processor's admission looks at")]
    TooMany(usize),
}

/// A rule and what a switch costs: all that admission has to know of a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rule {
    /// The policy of the order.
    pub policy: Policy,
    /// The cost of turning from one to another.
    pub costs: Costs,
}

impl Rule {
    /// A rule with switches that cost nothing.
    pub const fn new(policy: Policy) -> Self {
        Self { policy, costs: Costs::NONE }
    }

    /// Admits `tasks` to one processor, as a whole. A refusal says what the task of index
    /// `newcomer` could change, or without one, what who would miss could.
    ///
    /// # Errors
    /// Where somebody would miss, or it can't be told.
    pub fn admit(self, tasks: &[Task], newcomer: Option<usize>) -> Result<Proof, AdmitError> {
        check_count(tasks)?;
        if let Some(proof) = self.quick(tasks) {
            return Ok(proof);
        }
        match self.find_miss(tasks, &mut Effort::new())? {
            None => Ok(self.exact_proof()),
            Some(miss) => Err(AdmitError::Refused(Box::new(self.explain(tasks, newcomer, miss)))),
        }
    }

    /// The machine that would miss first, by the exact test alone.
    ///
    /// # Errors
    /// Where it can't be told.
    pub fn miss(self, tasks: &[Task]) -> Result<Option<Miss>, AdmitError> {
        check_count(tasks)?;
        Ok(self.find_miss(tasks, &mut Effort::new())?)
    }

    /// Whether all deadlines are met; the cheapest of the tests that can tell.
    ///
    /// # Errors
    /// Where it can't be told.
    pub fn holds(self, tasks: &[Task]) -> Result<bool, AdmitError> {
        check_count(tasks)?;
        Ok(self.quick(tasks).is_some() || self.holds_exactly(tasks, &mut Effort::new())?)
    }

    /// Whether all deadlines are met, where they were met before the tasks of the indices `grown`
    /// came, or asked for more or otherwise, and others for less: who has a higher fixed priority
    /// than all that have grown need not be asked again.
    ///
    /// # Errors
    /// Where it can't be told.
    pub fn still_holds(self, tasks: &[Task], grown: &[usize]) -> Result<bool, AdmitError> {
        self.still_holds_near(tasks, grown, &mut vec![0; tasks.len()])
    }

    /// The same with what is remembered of each task from earlier tests (zeros at first), which
    /// makes the next test of almost the same tasks quick. The answer does not depend on it.
    ///
    /// # Errors
    /// Where it can't be told.
    pub fn still_holds_near(
        self,
        tasks: &[Task],
        grown: &[usize],
        remembered: &mut [u64],
    ) -> Result<bool, AdmitError> {
        check_count(tasks)?;
        if self.quick(tasks).is_some() {
            return Ok(true);
        }
        let effort = &mut Effort::new();
        if self.policy == Policy::EarliestDeadline {
            return Ok(self.holds_exactly(tasks, effort)?);
        }
        let order = self.policy.order(tasks);
        let first = order.iter().position(|index| grown.contains(index)).unwrap_or(order.len());
        let loads = self.loads(tasks, &order);
        let mut windows: Vec<u64> =
            order.iter().map(|&index| remembered.get(index).copied().unwrap_or(0)).collect();
        let miss = Levels::new(&loads).first_miss_near(first, &mut windows, effort)?;
        for (&index, window) in order.iter().zip(windows) {
            if let Some(place) = remembered.get_mut(index) {
                *place = window;
            }
        }
        Ok(miss.is_none())
    }

    /// How long each task takes at worst, in the order of `tasks`, from the beginning of its
    /// period.
    ///
    /// # Errors
    /// Where it can't be told.
    pub fn responses(self, tasks: &[Task]) -> Result<Vec<Response>, AdmitError> {
        check_count(tasks)?;
        let order = self.policy.order(tasks);
        let loads = self.loads(tasks, &order);
        let effort = &mut Effort::new();
        let mut responses = vec![Response::Unbounded; tasks.len()];
        let (levels, demand) = (Levels::new(&loads), Demand::new(&loads));
        for (level, &index) in order.iter().enumerate() {
            responses[index] = match self.policy {
                Policy::EarliestDeadline => demand.response(level, effort)?,
                _ => levels.response(level, None, effort)?,
            };
        }
        Ok(responses)
    }

    fn quick(self, tasks: &[Task]) -> Option<Proof> {
        if self.costs.switch_ns() == 0 { quick::accept(self.policy, tasks) } else { None }
    }

    fn exact_proof(self) -> Proof {
        if self.policy == Policy::EarliestDeadline { Proof::Demand } else { Proof::ResponseTimes }
    }

    pub(crate) fn loads(self, tasks: &[Task], order: &[usize]) -> Vec<Load> {
        order.iter().filter_map(|&index| tasks.get(index)).map(|task| Load::new(task, self.costs)).collect()
    }

    fn holds_exactly(self, tasks: &[Task], effort: &mut Effort) -> Result<bool, Undecided> {
        let loads = self.loads(tasks, &self.policy.order(tasks));
        if self.policy == Policy::EarliestDeadline {
            Demand::new(&loads).holds(effort)
        } else {
            Ok(Levels::new(&loads).first_miss(0, effort)?.is_none())
        }
    }

    fn find_miss(self, tasks: &[Task], effort: &mut Effort) -> Result<Option<Miss>, Undecided> {
        if self.policy == Policy::EarliestDeadline {
            self.find_overload(tasks, effort)
        } else {
            self.find_late_level(tasks, effort)
        }
    }

    fn find_late_level(self, tasks: &[Task], effort: &mut Effort) -> Result<Option<Miss>, Undecided> {
        let order = self.policy.order(tasks);
        let loads = self.loads(tasks, &order);
        let levels = Levels::new(&loads);
        let Some(level) = levels.first_miss(0, effort)? else { return Ok(None) };
        let deadline_ns = loads.get(level).map_or(0, |load| load.deadline);
        let response = match levels.response(level, None, effort) {
            Ok(response) => response,
            Err(Undecided) => Response::Over(deadline_ns),
        };
        Ok(order.get(level).map(|&who| Miss { who, response, deadline_ns, overload: None }))
    }

    fn find_overload(self, tasks: &[Task], effort: &mut Effort) -> Result<Option<Miss>, Undecided> {
        let loads = self.loads(tasks, &self.policy.order(tasks));
        let Some(overload) = Demand::new(&loads).first_overload(effort)? else {
            return Ok(None);
        };
        // All of them fall due then; who was named last is served last.
        let falls_due = |load: &Load| {
            overload.within.checked_sub(load.first_due()).is_some_and(|rest| rest % load.period == 0)
        };
        Ok(loads.iter().rposition(falls_due).map(|who| {
            let deadline_ns = loads.get(who).map_or(0, |load| load.deadline);
            let response = Response::Within(deadline_ns.saturating_add(overload.work - overload.within));
            Miss { who, response, deadline_ns, overload: Some((overload.within, overload.work)) }
        }))
    }

    fn explain(self, tasks: &[Task], newcomer: Option<usize>, miss: Miss) -> Refusal {
        let who = newcomer.filter(|who| *who < tasks.len()).unwrap_or(miss.who);
        let effort = &mut Effort::new();
        let remedies = [self.smallest_cut(tasks, who, effort), self.smallest_delay(tasks, who, effort)];
        let remedies = remedies.into_iter().flatten().collect();
        Refusal { policy: self.policy, miss, sought: Some(who), remedies }
    }

    /// The greatest budget below its own with which the task of index `who` would be admitted. All
    /// tests hold for a smaller budget if they hold for a greater one, so it is found by halving.
    fn smallest_cut(self, tasks: &[Task], who: usize, effort: &mut Effort) -> Option<Remedy> {
        let task = *tasks.get(who)?;
        let mut trial = tasks.to_vec();
        let mut passes = |budget: u64| {
            *trial.get_mut(who)? = task.with_budget(budget).ok()?;
            self.holds_exactly(&trial, effort).ok()
        };
        let (mut good, mut bad) = (0, task.budget_ns());
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if passes(middle)? {
                good = middle;
            } else {
                bad = middle;
            }
        }
        let change = Change::Budget { from_ns: task.budget_ns(), to_ns: good };
        (good > 0).then_some(Remedy { who, change })
    }

    /// The shortest period beyond its own with which the task of index `who` would be admitted (its
    /// deadline goes along where it is the period). Where deadlines are within periods and the
    /// policy orders by deadlines, a longer period never hurts; elsewhere it is one that was tested
    /// and helps.
    fn smallest_delay(self, tasks: &[Task], who: usize, effort: &mut Effort) -> Option<Remedy> {
        let task = *tasks.get(who)?;
        let mut trial = tasks.to_vec();
        let mut passes = |period: u64| {
            *trial.get_mut(who)? = task.with_period(period).ok()?;
            self.holds_exactly(&trial, effort).ok()
        };
        let (mut bad, mut good) = (task.period_ns(), MAX_NS);
        if !passes(good)? {
            return None;
        }
        while good - bad > 1 {
            let middle = bad + (good - bad) / 2;
            if passes(middle)? {
                good = middle;
            } else {
                bad = middle;
            }
        }
        Some(Remedy { who, change: Change::Period { from_ns: task.period_ns(), to_ns: good } })
    }
}

fn check_count(tasks: &[Task]) -> Result<(), AdmitError> {
    if tasks.len() > MAX_TASKS { Err(AdmitError::TooMany(tasks.len())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fraction::hyperperiod;
    use crate::simulate::{Arrivals, Scenario, Stretch};
    use proptest::prelude::*;

    fn any_task() -> impl Strategy<Value = Task> {
        let period = prop::sample::select(vec![4_u64, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60]);
        (period, 1_u64..30, 0_u64..100).prop_map(|(period, budget, deadline)| {
            let budget = budget.min(period.div_ceil(2));
            let task = Task::new(budget, period).unwrap();
            task.with_deadline(budget + deadline % (period - budget + 1)).unwrap()
        })
    }

    fn is_late(rule: Rule, tasks: &[Task]) -> bool {
        let until_ns = hyperperiod(tasks.iter().map(Task::period_ns)).unwrap();
        let (arrivals, given) = (Arrivals::Together, Stretch::Whole);
        let scenario =
            Scenario { rule, tasks, arrivals, given, until_ns, stop_when_late: true, record: false };
        !scenario.run().late.is_empty()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        /// The short form of the campaign in `tests/`.
        #[test]
        fn admitted_is_who_is_not_late(tasks in prop::collection::vec(any_task(), 1..5), policy in prop::sample::select(Policy::ALL.to_vec())) {
            let rule = Rule::new(policy);
            prop_assert_eq!(rule.holds(&tasks).unwrap(), !is_late(rule, &tasks));
        }

        /// A change that a refusal proposes passes, and one that is a nanosecond less does not.
        #[test]
        fn remedies_are_the_smallest(tasks in prop::collection::vec(any_task(), 2..5), policy in prop::sample::select(Policy::ALL.to_vec()), newcomer in any::<prop::sample::Index>()) {
            let rule = Rule::new(policy);
            let newcomer = newcomer.index(tasks.len());
            let Err(AdmitError::Refused(refusal)) = rule.admit(&tasks, Some(newcomer)) else { return Ok(()) };
            let with = |task: Task| {
                let mut changed = tasks.clone();
                changed[newcomer] = task;
                rule.holds(&changed).unwrap()
            };
            let own = tasks[newcomer];
            let cut = refusal.smallest_cut_ns();
            for remedy in &refusal.remedies {
                prop_assert_eq!(remedy.who, newcomer);
                match remedy.change {
                    Change::Budget { to_ns, .. } => {
                        prop_assert!(with(own.with_budget(to_ns).unwrap()) && !with(own.with_budget(to_ns + 1).unwrap()));
                    }
                    Change::Period { to_ns, .. } => {
                        prop_assert!(with(own.with_period(to_ns).unwrap()));
                        prop_assert!(!with(own.with_period(to_ns - 1).unwrap()), "{:?} {:?}", tasks, remedy);
                    }
                }
            }
            if cut.is_none() && own.budget_ns() > 1 {
                prop_assert!(!with(own.with_budget(1).unwrap()));
            }
        }

        /// Whatever is remembered, the answer is the same.
        #[test]
        fn what_is_remembered_changes_no_answer(tasks in prop::collection::vec(any_task(), 1..6), windows in prop::collection::vec(0_u64..120, 6), policy in prop::sample::select(Policy::ALL.to_vec())) {
            let rule = Rule::new(policy);
            let all: Vec<usize> = (0..tasks.len()).collect();
            let mut remembered = windows;
            prop_assert_eq!(rule.still_holds_near(&tasks, &all, &mut remembered).unwrap(), rule.holds(&tasks).unwrap());
            prop_assert_eq!(rule.still_holds_near(&tasks, &all, &mut remembered).unwrap(), rule.holds(&tasks).unwrap());
        }

        /// After a growth, only who is not above it is looked at, and the answer is the same.
        #[test]
        fn looking_at_less_is_looking_at_enough(tasks in prop::collection::vec(any_task(), 1..6), policy in prop::sample::select(Policy::ALL.to_vec()), grown in any::<prop::sample::Index>()) {
            let rule = Rule::new(policy);
            let grown = grown.index(tasks.len());
            let mut before = tasks.clone();
            before.remove(grown);
            if rule.holds(&before).unwrap() {
                prop_assert_eq!(rule.still_holds(&tasks, &[grown]).unwrap(), rule.holds(&tasks).unwrap());
            }
        }
    }
}
