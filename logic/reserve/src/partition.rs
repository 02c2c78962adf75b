//! Several processors: each task has one, chosen once, and each processor passes the exact test by
//! itself.

use crate::admission::{AdmitError, Rule};
use crate::refusal::Refusal;
use crate::task::{MAX_TASKS, Policy, Task};
use std::cmp::Ordering;

/// Most processors of a node: the bits of an [`Affinity`].
pub const MAX_PROCESSORS: usize = 128;

/// The processors on which a task may run, one bit for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Affinity(u128);

impl Affinity {
    /// Any processor.
    pub const ANY: Self = Self(u128::MAX);

    /// These, by number; those from [`MAX_PROCESSORS`] on are nobody's.
    pub fn only(processors: impl IntoIterator<Item = usize>) -> Self {
        Self(
            processors
                .into_iter()
                .filter(|number| *number < MAX_PROCESSORS)
                .fold(0, |bits, number| bits | 1 << number),
        )
    }

    /// Whether the processor of that number is among them.
    pub fn allows(self, processor: usize) -> bool {
        processor < MAX_PROCESSORS && self.0 >> processor & 1 == 1
    }
}

/// The order in which processors that pass the test get a task. Tasks come by falling utilisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Heuristic {
    /// The first: leaves whole processors free.
    #[default]
    FirstFit,
    /// The fullest: leaves the largest gaps for those to come.
    BestFit,
    /// The emptiest: spreads the load.
    WorstFit,
    /// The one that took the last task, or the next: cheapest, and no better than that.
    NextFit,
}

/// A task and where it may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The task that it asks for.
    pub task: Task,
    /// Where.
    pub affinity: Affinity,
}

/// Why tasks can't be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Somebody passes nowhere. By this heuristic; another may find a place.
    #[error("no processor takes reservation {}: {}", who + 1, nearest(tried))]
    NoPlace {
        /// Index of the task.
        who: usize,
        /// For each processor that it may use and that refused it, why; indices in it are those of
        /// the whole set.
        tried: Vec<(usize, Refusal)>,
    },
    /// It may run nowhere.
    #[error("reservation {} may use none of the {processors} processors", who + 1)]
    NoProcessor {
        /// Index of the task.
        who: usize,
        /// How many there are.
        processors: usize,
    },
    /// More processors than a set has bits.
    #[error("{0} processors are more than {MAX_PROCESSORS}, the most that are placed on")]
    TooManyProcessors(usize),
    /// A processor's test could not tell.
    #[error(transparent)]
    Admit(AdmitError),
}

/// The refusal that asks for the least.
fn nearest(tried: &[(usize, Refusal)]) -> String {
    let asks = |refusal: &Refusal| refusal.smallest_cut_ns().unwrap_or(u64::MAX);
    match tried.iter().min_by_key(|(processor, refusal)| (asks(refusal), *processor)) {
        Some((processor, refusal)) => format!("on processor {processor}, which is nearest to it, {refusal}"),
        None => "there is none".into(),
    }
}

/// Places all tasks on `processors` of the same rule; the processor of each, in the order of
/// `placements`. The same input gives the same places.
///
/// # Errors
/// Where a task finds no place, or it can't be told.
pub fn place(
    rule: Rule,
    heuristic: Heuristic,
    processors: usize,
    placements: &[Placement],
) -> Result<Vec<usize>, PlaceError> {
    if processors > MAX_PROCESSORS {
        return Err(PlaceError::TooManyProcessors(processors));
    }
    if placements.len() > MAX_TASKS {
        return Err(PlaceError::Admit(AdmitError::TooMany(placements.len())));
    }
    let mut order: Vec<usize> = (0..placements.len()).collect();
    order
        .sort_by(|&one, &other| fuller(&placements[other].task, &placements[one].task).then(one.cmp(&other)));
    let mut search = Search { rule, heuristic, placements, filled: vec![Vec::new(); processors], last: 0 };
    let mut places = vec![0; placements.len()];
    for who in order {
        places[who] = search.place(who)?;
    }
    Ok(places)
}

/// Compares utilisations, exactly.
fn fuller(one: &Task, other: &Task) -> Ordering {
    let (left, right) = (
        u128::from(one.budget_ns()) * u128::from(other.period_ns()),
        u128::from(other.budget_ns()) * u128::from(one.period_ns()),
    );
    left.cmp(&right)
}

struct Search<'a> {
    rule: Rule,
    heuristic: Heuristic,
    placements: &'a [Placement],
    /// The tasks on each processor.
    filled: Vec<Vec<usize>>,
    /// The processor that took the last task.
    last: usize,
}

impl Search<'_> {
    fn place(&mut self, who: usize) -> Result<usize, PlaceError> {
        let candidates = self.candidates(who);
        if candidates.is_empty() {
            return Err(PlaceError::NoProcessor { who, processors: self.filled.len() });
        }
        for &processor in &candidates {
            if self.passes(processor, who)? {
                self.filled[processor].push(who);
                self.last = processor;
                return Ok(processor);
            }
        }
        Err(PlaceError::NoPlace { who, tried: self.refusals(&candidates, who)? })
    }

    /// Where the task may go, the preferred first.
    fn candidates(&self, who: usize) -> Vec<usize> {
        let affinity = self.placements[who].affinity;
        let mut candidates: Vec<usize> =
            (0..self.filled.len()).filter(|&number| affinity.allows(number)).collect();
        let count = self.filled.len().max(1);
        match self.heuristic {
            Heuristic::FirstFit => {}
            Heuristic::BestFit => candidates.sort_by_key(|&number| std::cmp::Reverse(self.taken(number))),
            Heuristic::WorstFit => candidates.sort_by_key(|&number| self.taken(number)),
            Heuristic::NextFit => candidates.sort_by_key(|&number| (number + count - self.last) % count),
        }
        candidates
    }

    /// How much of a processor is taken, in fixed point: it only orders.
    fn taken(&self, processor: usize) -> u128 {
        let tasks = self.filled[processor].iter().map(|&who| self.placements[who].task);
        tasks.map(|task| crate::fraction::up(task.budget_ns(), task.period_ns())).sum()
    }

    /// The tasks that would share the processor, in the order of the whole set, so that ties are
    /// broken as they are there.
    fn together(&self, processor: usize, who: usize) -> Vec<usize> {
        let mut together = self.filled[processor].clone();
        together.push(who);
        together.sort_unstable();
        together
    }

    fn tasks(&self, indices: &[usize]) -> Vec<Task> {
        indices.iter().map(|&index| self.placements[index].task).collect()
    }

    fn passes(&self, processor: usize, who: usize) -> Result<bool, PlaceError> {
        let together = self.together(processor, who);
        let newcomer: Vec<usize> = together.iter().position(|&index| index == who).into_iter().collect();
        self.rule.still_holds(&self.tasks(&together), &newcomer).map_err(PlaceError::Admit)
    }

    fn refusals(&self, candidates: &[usize], who: usize) -> Result<Vec<(usize, Refusal)>, PlaceError> {
        let mut refusals = Vec::new();
        for &processor in candidates {
            let together = self.together(processor, who);
            let newcomer = together.iter().position(|&index| index == who);
            match self.rule.admit(&self.tasks(&together), newcomer) {
                Err(AdmitError::Refused(refusal)) => refusals.push((processor, refusal.renamed(&together))),
                Err(other) => return Err(PlaceError::Admit(other)),
                Ok(_) => {}
            }
        }
        Ok(refusals)
    }
}

impl Policy {
    /// All policies, for those who try each.
    pub const ALL: [Self; 3] = [Self::RateMonotonic, Self::DeadlineMonotonic, Self::EarliestDeadline];
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Heuristic; 4] =
        [Heuristic::FirstFit, Heuristic::BestFit, Heuristic::WorstFit, Heuristic::NextFit];

    fn anywhere(numbers: &[(u64, u64)]) -> Vec<Placement> {
        let placement = |&(budget, period): &(u64, u64)| Placement {
            task: Task::new(budget, period).unwrap(),
            affinity: Affinity::ANY,
        };
        numbers.iter().map(placement).collect()
    }

    fn placed(heuristic: Heuristic, numbers: &[(u64, u64)]) -> Result<Vec<usize>, PlaceError> {
        place(Rule::new(Policy::EarliestDeadline), heuristic, 3, &anywhere(numbers))
    }

    #[test]
    fn each_heuristic_places_in_its_own_way() {
        let set = [(50, 100), (30, 100), (20, 100), (40, 100)];
        assert_eq!(placed(Heuristic::FirstFit, &set).unwrap(), [0, 1, 1, 0]);
        assert_eq!(placed(Heuristic::BestFit, &set).unwrap(), [0, 1, 1, 0]);
        assert_eq!(placed(Heuristic::WorstFit, &set).unwrap(), [0, 2, 2, 1]);
        assert_eq!(placed(Heuristic::NextFit, &set).unwrap(), [0, 1, 1, 0]);
        let gaps = [(60, 100), (50, 100), (45, 100), (40, 100)];
        assert_eq!(placed(Heuristic::FirstFit, &gaps).unwrap(), [0, 1, 1, 0]);
        assert_eq!(placed(Heuristic::NextFit, &gaps).unwrap(), [0, 1, 1, 2]);
    }

    #[test]
    fn affinity_binds_and_nothing_fits_nowhere() {
        for heuristic in ALL {
            let mut set = anywhere(&[(50, 100), (60, 100)]);
            for placement in &mut set {
                placement.affinity = Affinity::only([1]);
            }
            let error = place(Rule::default(), heuristic, 3, &set).unwrap_err();
            let words = "no processor takes reservation 1: on processor 1, which is nearest to it, reservation 2 would fall behind its \
                         100 ns more and more (rate-monotonic); it would pass with a budget of 40 ns for reservation 1 instead of 50 ns, \
                         or with a period of 170 ns for reservation 1 instead of 100 ns";
            assert_eq!(error.to_string(), words);
            set[0].affinity = Affinity::only([7]);
            let error = place(Rule::default(), heuristic, 3, &set).unwrap_err();
            assert_eq!(error.to_string(), "reservation 1 may use none of the 3 processors");
        }
    }
}
