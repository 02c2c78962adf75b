//! Periods that go well together: a table that repeats after a year is no table.

use crate::fraction::{self, ONE};
use crate::task::Task;

/// Periods that make a hyperperiod too long, and periods near them that do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discord {
    /// Indices of the tasks whose periods do not go with the shorter ones.
    pub who: Vec<usize>,
    /// For each task a period of a harmonic set, in ns, none longer than its own: budgets that stay
    /// promise no less.
    pub harmonic_ns: Vec<u64>,
}

/// The length of a cycle of all `tasks`, in ns, with at most `most` releases in it.
///
/// # Errors
/// Where there is none: who is to blame and what would do.
pub(crate) fn cycle(tasks: &[Task], most: u64) -> Result<u64, Discord> {
    let fits = |cycle: u64| tasks.iter().map(|task| cycle / task.period_ns()).sum::<u64>() <= most;
    let whole = fraction::hyperperiod(tasks.iter().map(Task::period_ns)).filter(|cycle| fits(*cycle));
    whole.ok_or_else(|| Discord { who: to_blame(tasks, fits), harmonic_ns: nearest(tasks) })
}

/// Goes from the shortest period up, and blames each that does not fit to those before it that do.
fn to_blame(tasks: &[Task], fits: impl Fn(u64) -> bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.sort_by_key(|&index| tasks[index].period_ns());
    let (mut cycle, mut blamed) = (1, Vec::new());
    for index in order {
        match fraction::common_multiple(cycle, tasks[index].period_ns()).filter(|cycle| fits(*cycle)) {
            Some(longer) => cycle = longer,
            None => blamed.push(index),
        }
    }
    blamed.sort_unstable();
    blamed
}

/// A period for each task: a base times a power of two, not longer than its own. Of the bases, of
/// which each task proposes one, the one that costs least utilisation (Han and Tyan's
/// specialization, RTSS 1997).
fn nearest(tasks: &[Task]) -> Vec<u64> {
    let Some(shortest) = tasks.iter().map(Task::period_ns).min() else { return Vec::new() };
    let proposals = tasks.iter().map(|task| {
        let mut base = task.period_ns();
        while base > shortest {
            base /= 2;
        }
        base.max(1)
    });
    let cost = |base: u64| -> u128 {
        let share =
            |task: &Task| (u128::from(task.budget_ns()) * ONE) / u128::from(rounded(task.period_ns(), base));
        tasks.iter().map(share).sum()
    };
    let base = proposals.min_by_key(|&base| (cost(base), std::cmp::Reverse(base))).unwrap_or(shortest);
    tasks.iter().map(|task| rounded(task.period_ns(), base)).collect()
}

fn rounded(period: u64, base: u64) -> u64 {
    let mut rounded = base;
    while rounded.checked_mul(2).is_some_and(|next| next <= period) {
        rounded *= 2;
    }
    rounded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(numbers: &[(u64, u64)]) -> Vec<Task> {
        numbers.iter().map(|&(budget, period)| Task::new(budget, period).unwrap()).collect()
    }

    #[test]
    fn periods_in_harmony_have_a_short_cycle() {
        assert_eq!(cycle(&tasks(&[(1, 40), (1, 80), (1, 20)]), 100), Ok(80));
        assert_eq!(cycle(&tasks(&[(1, 4), (1, 6)]), 5), Ok(12));
    }

    #[test]
    fn the_odd_one_is_blamed_and_gets_a_period_that_fits() {
        let set = tasks(&[(1, 40_000), (1, 39_989), (1, 20_000), (1, 80_001)]);
        let discord = cycle(&set, 1_000).unwrap_err();
        assert_eq!(discord.who, [1, 3]);
        assert_eq!(discord.harmonic_ns, [39_988, 39_988, 19_994, 79_976]);
    }

    #[test]
    fn too_many_releases_are_too_many_even_in_harmony() {
        assert!(cycle(&tasks(&[(1, 10), (1, 10_000_000)]), 1_000).is_err());
    }
}
