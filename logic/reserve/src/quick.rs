//! Sums that say yes without a search. None of them says no.

use crate::fraction::{self, ONE, compare_to_one};
use crate::task::{Policy, Task};
use std::cmp::Ordering;

/// How it is known that everybody meets the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The processor is not over-full, and under this policy and with these deadlines nothing else
    /// is needed.
    Utilisation,
    /// `(1 + U/n)^n <= 2`, which is Liu and Layland's bound `U <= n(2^(1/n) - 1)`.
    LiuLayland,
    /// The product of all `1 + U` is 2 at most (Bini, Buttazzo and Buttazzo 2003).
    Hyperbolic,
    /// Each response time was worked out.
    ResponseTimes,
    /// All work that falls due was summed up.
    Demand,
}

impl std::fmt::Display for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Utilisation => "by utilisation",
            Self::LiuLayland => "by the bound of Liu and Layland",
            Self::Hyperbolic => "by the hyperbolic bound",
            Self::ResponseTimes => "by response times",
            Self::Demand => "by processor demand",
        })
    }
}

/// A proof that costs a few divisions for each task, where there is one. Switches cost nothing
/// here.
pub fn accept(policy: Policy, tasks: &[Task]) -> Option<Proof> {
    if tasks.iter().any(|task| task.jitter_ns() > 0 || task.deadline_ns() < task.period_ns()) {
        return None;
    }
    match policy {
        Policy::EarliestDeadline => fits(tasks).then_some(Proof::Utilisation),
        Policy::RateMonotonic => accept_rate_monotonic(tasks),
        // With deadlines beyond periods this order may be another one, for which the bounds do not
        // hold.
        Policy::DeadlineMonotonic => tasks
            .iter()
            .all(|task| task.deadline_ns() == task.period_ns())
            .then(|| accept_rate_monotonic(tasks))
            .flatten(),
    }
}

fn accept_rate_monotonic(tasks: &[Task]) -> Option<Proof> {
    if is_below_liu_layland(tasks) {
        Some(Proof::LiuLayland)
    } else if is_below_hyperbola(tasks) {
        Some(Proof::Hyperbolic)
    } else if is_harmonic(tasks) && fits(tasks) {
        Some(Proof::Utilisation)
    } else {
        None
    }
}

fn fits(tasks: &[Task]) -> bool {
    compare_to_one(tasks.iter().map(|task| (task.budget_ns(), task.period_ns()))) != Ordering::Greater
}

fn shares(tasks: &[Task]) -> impl Iterator<Item = u128> {
    tasks.iter().map(|task| fraction::up(task.budget_ns(), task.period_ns()))
}

fn is_below_liu_layland(tasks: &[Task]) -> bool {
    let Ok(count) = u128::try_from(tasks.len()) else { return false };
    let sum: u128 = shares(tasks).sum();
    let factor = ONE + sum.div_ceil(count.max(1));
    is_product_at_most_two(tasks.iter().map(|_| factor))
}

fn is_below_hyperbola(tasks: &[Task]) -> bool {
    is_product_at_most_two(shares(tasks).map(|share| ONE + share))
}

fn is_product_at_most_two(factors: impl Iterator<Item = u128>) -> bool {
    let mut product = ONE;
    for factor in factors {
        if factor > 2 * ONE {
            return false;
        }
        product = fraction::product_up(product, factor);
        if product > 2 * ONE {
            return false;
        }
    }
    true
}

/// Whether of any two periods one divides the other.
pub(crate) fn is_harmonic(tasks: &[Task]) -> bool {
    let mut periods: Vec<u64> = tasks.iter().map(Task::period_ns).collect();
    periods.sort_unstable();
    periods.windows(2).all(|pair| matches!(pair, [shorter, longer] if longer % shorter == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(numbers: &[(u64, u64)]) -> Vec<Task> {
        numbers.iter().map(|&(budget, period)| Task::new(budget, period).unwrap()).collect()
    }

    #[test]
    fn each_bound_accepts_at_its_edge_and_not_beyond() {
        let accept = |numbers: &[(u64, u64)]| accept(Policy::RateMonotonic, &tasks(numbers));
        // Two of 0.4142: the bound is 0.8284.
        assert_eq!(accept(&[(4142, 10_000), (4142, 10_001)]), Some(Proof::LiuLayland));
        assert_eq!(accept(&[(4143, 10_000), (4143, 10_001)]), None);
        // 3/4 and 1/7: (7/4)(8/7) is 2. (A seventh is rounded up, so a hair less.)
        assert_eq!(accept(&[(3_000_000, 4_000_000), (999_999, 7_000_000)]), Some(Proof::Hyperbolic));
        assert_eq!(accept(&[(3000, 4000), (1001, 7000)]), None);
        assert_eq!(accept(&[(32, 40), (8, 40)]), Some(Proof::Utilisation));
        assert_eq!(accept(&[(32, 40), (9, 40)]), None);
        assert_eq!(accept(&[(1, 2), (1, 3), (1, 6)]), None);
    }

    #[test]
    fn early_deadlines_and_jitter_need_the_exact_test() {
        let early = [Task::new(1, 10).unwrap().with_deadline(9).unwrap()];
        let late = [Task::new(1, 10).unwrap().with_jitter(1).unwrap()];
        for policy in [Policy::RateMonotonic, Policy::DeadlineMonotonic, Policy::EarliestDeadline] {
            assert_eq!(accept(policy, &early), None);
            assert_eq!(accept(policy, &late), None);
        }
        let long = [Task::new(1, 10).unwrap().with_deadline(20).unwrap()];
        assert_eq!(accept(Policy::DeadlineMonotonic, &long), None);
        assert_eq!(accept(Policy::EarliestDeadline, &long), Some(Proof::Utilisation));
    }
}
