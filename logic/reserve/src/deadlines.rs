//! The part of what was admitted that the kernel's deadline class can keep: it takes shares of all
//! processors together, up to a bound, of which others may have some.

use crate::means::{Means, Unkept, Wanting, Why, closest};
use crate::refusal::{Change, Remedy};
use crate::task::{MAX_NS, Task};
use std::ops::RangeInclusive;

/// Shortest and longest period that the kernel takes, in ns.
pub const DEADLINE_PERIODS_NS: RangeInclusive<u64> = 100_000..=4_194_304_000;
/// Shortest budget that it takes, in ns.
pub const LEAST_DEADLINE_BUDGET_NS: u64 = 1_024;

/// The room of the class on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlineRoom {
    /// Over how many processors.
    pub processors: usize,
    /// Most of each processor that all threads of the class may have, in millionths.
    pub most_ppm: u64,
    /// The share that others have of that, of all processors together.
    pub others_ppm: u64,
}

impl DeadlineRoom {
    /// The share that is left of all processors together, in millionths of one.
    #[must_use]
    pub fn left_ppm(self) -> u64 {
        let processors = u64::try_from(self.processors).unwrap_or(u64::MAX);
        self.most_ppm.saturating_mul(processors).saturating_sub(self.others_ppm)
    }

    /// Goes through those who want deadlines by their standing, and by name where that is equal;
    /// has the class keep each for whom there is room, and says why of the others.
    #[must_use]
    pub fn share_out(self, mut wanting: Vec<Wanting>) -> Vec<Unkept> {
        wanting.sort_by(|one, other| (one.standing, &one.name).cmp(&(other.standing, &other.name)));
        let (mut have, mut without): (Vec<Wanting>, _) = (Vec::new(), Vec::new());
        for one in wanting {
            let mut tasks: Vec<Task> = have.iter().map(|one| one.task).collect();
            tasks.push(one.task);
            match self.check(&tasks) {
                Ok(()) => have.push(one),
                Err(why) => {
                    let mut names: Vec<String> = have.iter().map(|one| one.name.clone()).collect();
                    names.push(one.name.clone());
                    without.push(Unkept::new(one.name, names, 0, why));
                }
            }
        }
        without
    }

    /// Whether there is room for the last of these, beside the others.
    fn check(self, tasks: &[Task]) -> Result<(), Why> {
        let who = tasks.len().saturating_sub(1);
        let Some(own) = tasks.last() else { return Ok(()) };
        if !is_taken(own) {
            return Err(Why::NoDeadline { remedies: self.remedies(tasks, who), who });
        }
        let asked_ppm = Means::asked_ppm(tasks);
        if asked_ppm <= self.left_ppm() {
            return Ok(());
        }
        Err(Why::NoRoom { asked_ppm, room: self, remedies: self.remedies(tasks, who), who })
    }

    /// The greatest smaller budget, and the nearest period, with which there is room.
    fn remedies(self, tasks: &[Task], who: usize) -> Vec<Remedy> {
        let Some(own) = tasks.get(who).copied() else { return Vec::new() };
        let fits = |task: Task| {
            let mut trial = tasks.to_vec();
            trial.splice(who..=who, [task]);
            is_taken(&task) && Means::asked_ppm(&trial) <= self.left_ppm()
        };
        let budget = |budget_ns| own.with_budget(budget_ns).is_ok_and(&fits);
        let period = |period_ns| own.with_period(period_ns).is_ok_and(&fits);
        // Less is refused where it is too little for the kernel, so what is halved is what is below
        // a bound that passes.
        let to_ns = if budget(LEAST_DEADLINE_BUDGET_NS) {
            closest(own.budget_ns(), LEAST_DEADLINE_BUDGET_NS, budget)
        } else {
            None
        };
        let budget = to_ns.map(|to_ns| Change::Budget { from_ns: own.budget_ns(), to_ns });
        let (shortest, longest) = (*DEADLINE_PERIODS_NS.start(), (*DEADLINE_PERIODS_NS.end()).min(MAX_NS));
        let to_ns = match own.period_ns() {
            now if now > longest => period(longest).then_some(longest),
            now if now < shortest && period(shortest) => Some(shortest),
            now => closest(now, longest, period),
        };
        let period = to_ns.map(|to_ns| Change::Period { from_ns: own.period_ns(), to_ns });
        [budget, period].into_iter().flatten().map(|change| Remedy { who, change }).collect()
    }
}

/// Whether the kernel takes these numbers at all.
fn is_taken(task: &Task) -> bool {
    DEADLINE_PERIODS_NS.contains(&task.period_ns()) && task.budget_ns() >= LEAST_DEADLINE_BUDGET_NS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::means::Standing;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn room(processors: usize, others_ppm: u64) -> DeadlineRoom {
        DeadlineRoom { processors, most_ppm: 900_000, others_ppm }
    }

    fn one(name: &str, budget_ns: u64, period_ns: u64, standing: Standing) -> Wanting {
        let task = Task::new(budget_ns, period_ns).unwrap();
        Wanting { name: name.to_owned(), task, standing, jobs: None }
    }

    #[test]
    fn what_the_class_can_have_is_counted_over_all_processors_without_what_others_have() {
        let all = vec![
            one("a", 36 * MS, 40 * MS, Standing::Plain),
            one("b", 30 * MS, 40 * MS, Standing::Strict),
            one("c", 10 * MS, 40 * MS, Standing::Has),
        ];
        assert_eq!(room(3, 0).share_out(all.clone()), Vec::new());
        let without = room(2, 0).share_out(all.clone());
        assert_eq!(without.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(
            without[0].to_string(),
            "deadlines for `c`, `b`, `a` would have 190 % of a processor, and the kernel leaves its deadline class 180 % on 2 processors; it would pass with a budget of 32 ms for `a` instead of 36 ms, or with a period of 45 ms for `a` instead of 40 ms"
        );
        let others = room(2, 300_000).share_out(all)[0].to_string();
        assert!(others.contains("leaves its deadline class 180 % on 2 processors"), "{others}");
        assert!(others.contains("of which others on this machine have 30 %"), "{others}");
    }

    #[test]
    fn numbers_that_the_kernel_does_not_take_are_told_with_those_that_it_does() {
        let all = |budget_ns, period_ns| vec![one("a", budget_ns, period_ns, Standing::Plain)];
        let told = |budget_ns, period_ns| room(1, 0).share_out(all(budget_ns, period_ns))[0].to_string();
        let long = told(1_000 * MS, 10_000 * MS);
        assert!(long.contains("`a` can't have a deadline"), "{long}");
        assert!(long.contains("100 us to 4.194304 s") && long.contains("period of 4.194304 s"), "{long}");
        assert!(told(10_000, 50_000).contains("period of 100 us"), "{}", told(10_000, 50_000));
        assert!(told(1_000, MS).contains("1.024 us"), "{}", told(1_000, MS));
        // Nothing that would not do is proposed.
        let nothing = room(1, 900_000).share_out(all(MS, 40 * MS))[0].to_string();
        assert!(!nothing.contains("it would pass"), "{nothing}");
    }

    proptest! {
        /// Tasks that are kept have room together, and a proposal would have had it, and one that
        /// is a nanosecond more not.
        #[test]
        fn what_is_proposed_passes(budgets in prop::collection::vec(1_u64..400, 1..8), others_ppm in 0_u64..900_000, processors in 1_usize..3) {
            let room = room(processors, others_ppm);
            let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
            let all: Vec<Wanting> = budgets.iter().zip(names).map(|(tenths, name)| one(name, tenths * MS / 10, 40 * MS, Standing::Plain)).collect();
            let without = room.share_out(all.clone());
            let is_out = |name: &str| without.iter().any(|one| one.name == name);
            let have: Vec<Task> = all.iter().filter(|one| !is_out(&one.name)).map(|one| one.task).collect();
            prop_assert!(have.is_empty() || Means::asked_ppm(&have) <= room.left_ppm());
            for unkept in &without {
                let Why::NoRoom { remedies, .. } = &unkept.why else { panic!("{unkept:?}") };
                let own = all.iter().find(|one| one.name == unkept.name).unwrap().task;
                let beside: Vec<Task> = all.iter().filter(|one| unkept.names.contains(&one.name) && one.name != unkept.name).map(|one| one.task).collect();
                for remedy in remedies {
                    let (good, bad) = match remedy.change {
                        Change::Budget { to_ns, .. } => (own.with_budget(to_ns), own.with_budget(to_ns + 1)),
                        Change::Period { to_ns, .. } => (own.with_period(to_ns), own.with_period(to_ns - 1)),
                    };
                    let passes = |task: Task| room.check(&[beside.clone(), vec![task]].concat()).is_ok();
                    prop_assert!(passes(good.unwrap()) && !passes(bad.unwrap()));
                }
            }
        }
    }
}
