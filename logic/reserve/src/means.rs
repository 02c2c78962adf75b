//! The part of what was admitted that dispatch tables can keep: their switches cost time that is
//! nobody's, and the kernel leaves them less than a whole processor.

use crate::admission::{AdmitError, Rule};
use crate::deadlines::{DEADLINE_PERIODS_NS, DeadlineRoom, LEAST_DEADLINE_BUDGET_NS};
use crate::inside;
use crate::refusal::{self, Change, Refusal, Remedy};
use crate::table::{Table, TableError};
use crate::task::{Costs, MAX_NS, Policy, Task};
use crate::units::Percent;
use std::fmt;

/// The needs of a table on a machine, and the room that it can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Means {
    /// The cost of a switch.
    pub costs: Costs,
    /// Most of a processor that its slots may have, in millionths.
    pub most_ppm: u64,
}

/// The precedence where there is not room for all: a machine that has slots loses them to none that
/// comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Has slots now, and asks for no others.
    Has,
    /// Has to have them.
    Strict,
    /// Can have something else instead.
    Plain,
}

/// A machine that wants slots of a processor's table.
#[derive(Debug, Clone)]
pub struct Wanting {
    /// Its name.
    pub name: String,
    /// The task that it asks for.
    pub task: Task,
    /// Whether it goes before others.
    pub standing: Standing,
    /// By which policy its jobs go, and those of them that have to be in time on the table.
    pub jobs: Option<(Policy, Vec<(String, Task)>)>,
}

/// Why one can't be kept as it asked to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unkept {
    /// Its name.
    pub name: String,
    /// Those who would be kept so, it among them.
    pub(crate) names: Vec<String>,
    switch_ns: u64,
    pub(crate) why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    /// More than slots may have.
    Full { asked_ppm: u64, most_ppm: u64, remedies: Vec<Remedy>, who: usize },
    /// With the switches somebody would miss.
    Late(Refusal),
    /// Jobs inside somebody would miss.
    Inside { machine: String, jobs: Vec<String>, cause: AdmitError },
    /// There is none.
    NoTable(TableError),
    /// More than the kernel's deadline class may have.
    NoRoom { asked_ppm: u64, room: DeadlineRoom, remedies: Vec<Remedy>, who: usize },
    /// Numbers that it does not take.
    NoDeadline { remedies: Vec<Remedy>, who: usize },
}

impl Unkept {
    pub(crate) fn new(name: String, names: Vec<String>, switch_ns: u64, why: Why) -> Self {
        Self { name, names, switch_ns, why }
    }

    /// The mechanism that can't keep it: `table` or `deadline`.
    #[must_use]
    pub fn by(&self) -> &'static str {
        match self.why {
            Why::NoRoom { .. } | Why::NoDeadline { .. } => "deadline",
            Why::Full { .. } | Why::Late(_) | Why::Inside { .. } | Why::NoTable(_) => "table",
        }
    }
}

impl Means {
    /// Goes through those who want slots of one processor by their standing, and by name where that
    /// is equal; gives slots to each with whom the table can still be kept, and says why of the
    /// others.
    #[must_use]
    pub fn share_out(self, policy: Policy, mut wanting: Vec<Wanting>) -> Vec<Unkept> {
        wanting.sort_by(|one, other| (one.standing, &one.name).cmp(&(other.standing, &other.name)));
        let mut all: Vec<Wanting> = wanting.clone();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        if all.is_empty() || self.check(policy, &all, 0).is_ok() {
            return Vec::new();
        }
        // By name, as the plan of a dispatcher is: of equals the first goes first.
        let (mut have, mut without): (Vec<Wanting>, _) = (Vec::new(), Vec::new());
        for one in wanting {
            let place = have.partition_point(|other| other.name < one.name);
            have.insert(place, one);
            if let Err(why) = self.check(policy, &have, place) {
                let names = have.iter().map(|one| one.name.clone()).collect();
                let switch_ns = self.costs.switch_ns();
                without.push(Unkept::new(have.remove(place).name, names, switch_ns, why));
            }
        }
        without
    }

    /// The same where a switch costs that much at least.
    #[must_use]
    pub fn at_least(self, costs: Costs) -> Self {
        let costs = if costs.switch_ns() > self.costs.switch_ns() { costs } else { self.costs };
        Self { costs, ..self }
    }

    /// The share of a processor that these ask for, in millionths, rounded up each.
    #[must_use]
    pub fn asked_ppm<'t>(tasks: impl IntoIterator<Item = &'t Task>) -> u64 {
        let ppm = |task: &Task| {
            let share =
                (u128::from(task.budget_ns()) * 1_000_000).div_ceil(u128::from(task.period_ns().max(1)));
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        tasks.into_iter().map(ppm).fold(0, u64::saturating_add)
    }

    fn check(self, policy: Policy, all: &[Wanting], who: usize) -> Result<(), Why> {
        let rule = Rule { policy, costs: self.costs };
        let tasks: Vec<Task> = all.iter().map(|one| one.task).collect();
        let asked_ppm = Self::asked_ppm(&tasks);
        if asked_ppm > self.most_ppm {
            let remedies = self.remedies(rule, &tasks, who);
            return Err(Why::Full { asked_ppm, most_ppm: self.most_ppm, remedies, who });
        }
        let late = |cause| Why::NoTable(TableError::Admit(cause));
        if !rule.holds(&tasks).map_err(late)?
            && let Some(miss) = rule.miss(&tasks).map_err(late)?
        {
            let remedies = self.remedies(rule, &tasks, who);
            return Err(Why::Late(Refusal { policy, miss, sought: Some(who), remedies }));
        }
        let table = Table::build_admitted(rule, &tasks).map_err(Why::NoTable)?;
        for (place, one) in all.iter().enumerate() {
            let Some((policy, jobs)) = &one.jobs else { continue };
            let (names, tasks): (Vec<String>, Vec<Task>) = jobs.iter().cloned().unzip();
            let rule = Rule { policy: *policy, costs: self.costs };
            inside::admit(rule, &tasks, &table.supply(place), None).map_err(|cause| Why::Inside {
                machine: one.name.clone(),
                jobs: names,
                cause,
            })?;
        }
        Ok(())
    }

    fn keeps(self, rule: Rule, tasks: &[Task]) -> bool {
        // What can't be told is not proposed.
        Self::asked_ppm(tasks) <= self.most_ppm && rule.holds(tasks).unwrap_or(false)
    }

    /// The greatest budget and the shortest period with which the table could be kept, of those
    /// that make one. Both are found by halving: less of a processor never hurts.
    fn remedies(self, rule: Rule, tasks: &[Task], who: usize) -> Vec<Remedy> {
        let Some(own) = tasks.get(who).copied() else { return Vec::new() };
        let with = |task: Task| {
            let mut trial = tasks.to_vec();
            trial.splice(who..=who, [task]);
            trial
        };
        let budget = |budget_ns| own.with_budget(budget_ns).is_ok_and(|task| self.keeps(rule, &with(task)));
        let period = |period_ns| own.with_period(period_ns).is_ok_and(|task| self.keeps(rule, &with(task)));
        let to_ns = closest(own.budget_ns(), 0, budget);
        let budget = to_ns.map(|to_ns| Change::Budget { from_ns: own.budget_ns(), to_ns });
        let to_ns = closest(own.period_ns(), MAX_NS, period);
        let period = to_ns.map(|to_ns| Change::Period { from_ns: own.period_ns(), to_ns });
        let is_table = |change: &Change| {
            let changed = match *change {
                Change::Budget { to_ns, .. } => own.with_budget(to_ns),
                Change::Period { to_ns, .. } => own.with_period(to_ns),
            };
            changed.is_ok_and(|task| Table::build_admitted(rule, &with(task)).is_ok())
        };
        let changes = [budget, period].into_iter().flatten().filter(is_table);
        changes.map(|change| Remedy { who, change }).collect()
    }
}

/// The number nearest to `bad`, towards `limit`, that passes. `bad` does not, and from the first
/// that does on all do.
pub(crate) fn closest(bad: u64, limit: u64, passes: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut bad, mut good) = (bad, limit);
    if limit > 0 && !passes(limit) {
        return None;
    }
    while bad.abs_diff(good) > 1 {
        let middle = bad.midpoint(good);
        if passes(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    (good > 0).then_some(good)
}

impl fmt::Display for Unkept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |index: usize| format!("`{}`", self.names.get(index).map_or("?", String::as_str));
        let all = || (0..self.names.len()).map(name).collect::<Vec<_>>().join(", ");
        let switches = refusal::Span(self.switch_ns);
        match &self.why {
            Why::Full { asked_ppm, most_ppm, remedies, who } => {
                write!(
                    f,
                    "a table for {} would have {} of the processor, and {} are the most: the kernel keeps the rest from all that is real-time",
                    all(),
                    Percent(*asked_ppm),
                    Percent(*most_ppm)
                )?;
                refusal::tell_remedies(f, remedies, Some(*who), &name)
            }
            Why::Late(refusal) => {
                write!(f, "on a table, where a switch costs {switches}, {}", refusal.told(name))
            }
            Why::Inside { machine, jobs, cause } => {
                let words = match cause {
                    AdmitError::Refused(refusal) => {
                        let job =
                            |index: usize| format!("job `{}`", jobs.get(index).map_or("?", String::as_str));
                        refusal.told(job).to_string()
                    }
                    other => other.to_string(),
                };
                write!(
                    f,
                    "inside `{machine}`, on a table for {} where a switch costs {switches}: {words}",
                    all()
                )
            }
            Why::NoTable(error) => write!(f, "there is no table for {}: {error}", all()),
            Why::NoRoom { asked_ppm, room, remedies, who } => {
                write!(
                    f,
                    "deadlines for {} would have {} of a processor, and the kernel leaves its deadline class {} on {} processors",
                    all(),
                    Percent(*asked_ppm),
                    Percent(room.most_ppm.saturating_mul(u64::try_from(room.processors).unwrap_or(u64::MAX))),
                    room.processors
                )?;
                if room.others_ppm > 0 {
                    write!(f, ", of which others on this machine have {}", Percent(room.others_ppm))?;
                }
                refusal::tell_remedies(f, remedies, Some(*who), &name)
            }
            Why::NoDeadline { remedies, who } => {
                write!(
                    f,
                    "{} can't have a deadline: the kernel takes periods of {} to {}, and budgets of {} at least",
                    name(*who),
                    refusal::Span(*DEADLINE_PERIODS_NS.start()),
                    refusal::Span(*DEADLINE_PERIODS_NS.end()),
                    refusal::Span(LEAST_DEADLINE_BUDGET_NS)
                )?;
                refusal::tell_remedies(f, remedies, Some(*who), &name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn means(switch_us: u64) -> Means {
        Means { costs: Costs::new(switch_us * 1_000).unwrap(), most_ppm: 930_000 }
    }

    fn one(name: &str, budget_ms: u64, standing: Standing) -> Wanting {
        let task = Task::new(budget_ms * MS, 40 * MS).unwrap();
        Wanting { name: name.to_owned(), task, standing, jobs: None }
    }

    fn without(means: Means, wanting: &[Wanting]) -> Vec<String> {
        let unkept = means.share_out(Policy::EarliestDeadline, wanting.to_vec());
        unkept.iter().map(|unkept| unkept.name.clone()).collect()
    }

    #[test]
    fn who_has_slots_keeps_them_and_who_is_strict_goes_before_who_is_not() {
        let all =
            [one("a", 20, Standing::Plain), one("b", 20, Standing::Strict), one("c", 20, Standing::Has)];
        assert_eq!(without(means(30), &all), ["b", "a"]);
        let all =
            [one("a", 20, Standing::Plain), one("b", 20, Standing::Strict), one("c", 10, Standing::Has)];
        assert_eq!(without(means(30), &all), ["a"]);
        assert_eq!(without(means(30), &[]), [""; 0]);
        // Somebody who asks for too much is in nobody's way.
        let all = [one("a", 39, Standing::Strict), one("b", 20, Standing::Plain)];
        assert_eq!(without(means(30), &all), ["a"]);
    }

    #[test]
    fn a_full_table_says_whose_it_is_how_much_that_is_and_what_would_pass() {
        let all = [one("gold", 38, Standing::Strict)];
        let [refused] = means(30).share_out(Policy::EarliestDeadline, all.to_vec()).try_into().unwrap();
        assert_eq!(
            refused.to_string(),
            "a table for `gold` would have 95 % of the processor, and 93 % are the most: the kernel keeps the rest from all that is real-time; \
             it would pass with a budget of 37.2 ms for `gold` instead of 38 ms, or with a period of 40.860216 ms for `gold` instead of 40 ms"
        );
    }

    #[test]
    fn switches_are_charged_and_told() {
        // 90 % in budgets; two switches of 3 ms for each are 30 % more.
        let all = [one("gold", 20, Standing::Has), one("late", 16, Standing::Strict)];
        assert!(without(means(0), &all).is_empty());
        let [refused] = means(3_000).share_out(Policy::EarliestDeadline, all.to_vec()).try_into().unwrap();
        let told = refused.to_string();
        assert!(
            told.starts_with("on a table, where a switch costs 3 ms, `late` would take 48 ms of its 40 ms"),
            "{told}"
        );
        assert!(told.contains("it would pass with a budget of 8 ms for `late` instead of 16 ms"), "{told}");
    }

    #[test]
    fn jobs_that_have_to_be_in_time_are_so_with_the_switches_or_their_machine_has_no_slots() {
        let job = Task::new(8 * MS, 40 * MS).unwrap().with_deadline(30 * MS).unwrap();
        let jobs = Some((Policy::RateMonotonic, vec![("copy".to_owned(), job)]));
        let gold = Wanting { jobs, ..one("gold", 20, Standing::Strict) };
        assert!(without(means(1), std::slice::from_ref(&gold)).is_empty());
        let [refused] = means(3_000).share_out(Policy::EarliestDeadline, vec![gold]).try_into().unwrap();
        assert!(
            refused.to_string().starts_with(
                "inside `gold`, on a table for `gold` where a switch costs 3 ms: job `copy` would take"
            ),
            "{refused}"
        );
    }

    #[test]
    fn periods_that_make_no_table_are_told() {
        let odd = |name: &str, period_ns| {
            let task = Task::new(100_000, period_ns).unwrap();
            Wanting { name: name.to_owned(), task, standing: Standing::Plain, jobs: None }
        };
        let all = vec![odd("a", 10_000_019), odd("b", 10_000_079), odd("c", 10_000_103)];
        let unkept = means(30).share_out(Policy::EarliestDeadline, all);
        assert!(
            unkept.iter().any(|unkept| unkept.to_string().starts_with("there is no table for `a`, ")),
            "{unkept:?}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Machines that have slots can have them together; and what is proposed would have passed,
        /// and a nanosecond more not.
        #[test]
        fn who_has_slots_has_a_table_and_what_is_proposed_passes(budgets in prop::collection::vec(1_u64..30, 1..6), switch_us in 0_u64..2_000) {
            let means = means(switch_us);
            let names = ["a", "b", "c", "d", "e", "f"];
            let all: Vec<Wanting> = budgets.iter().zip(names).map(|(ms, name)| one(name, *ms, Standing::Plain)).collect();
            let unkept = means.share_out(Policy::EarliestDeadline, all.clone());
            let has: Vec<Task> = all.iter().filter(|one| unkept.iter().all(|no| no.name != one.name)).map(|one| one.task).collect();
            let rule = Rule { policy: Policy::EarliestDeadline, costs: means.costs };
            prop_assert!(Means::asked_ppm(&has) <= means.most_ppm && Table::build(rule, &has).is_ok());
            for no in &unkept {
                let remedies = match &no.why { Why::Full { remedies, .. } => remedies, Why::Late(refusal) => &refusal.remedies, _ => continue };
                for remedy in remedies {
                    let with = |change: Change| {
                        let others = no.names.iter().filter(|name| **name != no.name);
                        let own = all.iter().find(|one| one.name == no.name).unwrap().task;
                        let own = match change {
                            Change::Budget { to_ns, .. } => own.with_budget(to_ns),
                            Change::Period { to_ns, .. } => own.with_period(to_ns),
                        };
                        let mut tasks: Vec<Task> = others.map(|name| all.iter().find(|one| one.name == *name).unwrap().task).collect();
                        tasks.push(own.unwrap());
                        means.keeps(rule, &tasks)
                    };
                    prop_assert!(with(remedy.change));
                    let more = match remedy.change {
                        Change::Budget { from_ns, to_ns } => Change::Budget { from_ns, to_ns: to_ns + 1 },
                        Change::Period { from_ns, to_ns } => Change::Period { from_ns, to_ns: to_ns - 1 },
                    };
                    prop_assert!(!with(more));
                }
            }
        }
    }
}
