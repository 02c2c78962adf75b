//! The same questions to somebody else's analysis: the crate `response-time-analysis`, whose
//! theorems are verified in Coq (Bozhko and Brandenburg, ECRTS 2020). It counts from when work is
//! ready, not from when its period began, so the task that is asked about has no jitter here.

use crate::generate::{Chance, Deadlines, Periods, tasks};
use crate::{SETS, within};
use reserve::{Policy, Rule, Task};
use response_time_analysis::arrival::Sporadic;
use response_time_analysis::demand::RBF;
use response_time_analysis::time::{Duration, Service};
use response_time_analysis::wcet::Scalar;
use response_time_analysis::{edf, fixed_priority};

/// Where it gives up; no answer that is asked for here is so long.
const LIMIT_NS: u64 = 100_000_000;

type Demand = RBF<Sporadic, Scalar>;

fn demand(task: &Task) -> Demand {
    let arrivals = Sporadic::new(Duration::from(task.period_ns()), Duration::from(task.jitter_ns()));
    RBF::new(arrivals, Scalar::new(Service::from(task.budget_ns())))
}

/// The response time of the last of `tasks`, below all the others.
fn lowest(tasks: &[Task]) -> Option<u64> {
    let (own, above) = tasks.split_last()?;
    let above: Vec<Demand> = above.iter().map(demand).collect();
    let limit = Duration::from(LIMIT_NS);
    let found = fixed_priority::fully_preemptive::dedicated_uniproc_rta(&demand(own), &above, limit);
    found.ok().map(u64::from)
}

fn without_jitter(task: &Task) -> Task {
    let plain = Task::new(task.budget_ns(), task.period_ns()).unwrap();
    plain.with_deadline(task.deadline_ns()).unwrap()
}

#[test]
fn response_times_are_those_of_another_implementation() {
    let mut compared = 0;
    for number in 0..SETS {
        let seed = 20 << 32 | number;
        let mut chance = Chance(seed);
        let kind = chance.of(&[Periods::Harmonic, Periods::LogUniform]);
        let mut set = tasks(&mut chance, kind, Deadlines::Arbitrary, true);
        set.sort_by_key(Task::period_ns);
        // What fills the processor without an end in sight the other one does not answer.
        let share: f64 = set.iter().map(|task| task.budget_ns() as f64 / task.period_ns() as f64).sum();
        if share > 0.99 {
            continue;
        }
        let last = set.last_mut().unwrap();
        *last = without_jitter(last);
        let responses = Rule::new(Policy::RateMonotonic).responses(&set).unwrap();
        let ours = within(*responses.last().unwrap());
        assert_eq!(lowest(&set), Some(ours), "seed {seed}: {set:?}");
        compared += 1;
    }
    println!("{compared} response times compared");
    assert!(compared > SETS / 2);
}

#[test]
fn earliest_deadlines_are_met_where_another_implementation_says_so() {
    let (mut held, mut missed) = (0, 0);
    for number in 0..SETS {
        let seed = 21 << 32 | number;
        let mut chance = Chance(seed);
        let kind = chance.of(&[Periods::Harmonic, Periods::LogUniform]);
        let deadlines = chance.of(&[Deadlines::Implicit, Deadlines::Constrained, Deadlines::Arbitrary]);
        let set = tasks(&mut chance, kind, deadlines, false);
        let share: f64 = set.iter().map(|task| task.budget_ns() as f64 / task.period_ns() as f64).sum();
        if share > 0.99 {
            continue;
        }
        let ours = Rule::new(Policy::EarliestDeadline).holds(&set).unwrap();
        let responses: Vec<u64> = (0..set.len()).map(|index| edf_response(&set, index)).collect();
        let theirs = responses.iter().zip(&set).all(|(response, task)| *response <= task.deadline_ns());
        let own: Vec<u64> =
            Rule::new(Policy::EarliestDeadline).responses(&set).unwrap().into_iter().map(within).collect();
        assert_eq!(own, responses, "seed {seed}: {set:?}");
        assert_eq!(ours, theirs, "seed {seed}: {set:?}");
        held += u64::from(ours);
        missed += u64::from(!ours);
    }
    println!("{held} sets hold and {missed} miss");
    assert!(held > SETS / 10 && missed > SETS / 50);
}

fn edf_response(set: &[Task], index: usize) -> u64 {
    let demands: Vec<Demand> = set.iter().map(demand).collect();
    let task = |index: usize| edf::fully_preemptive::Task {
        rbf: &demands[index],
        deadline: Duration::from(set[index].deadline_ns()),
    };
    let others: Vec<_> = (0..set.len()).filter(|other| *other != index).map(task).collect();
    let limit = Duration::from(LIMIT_NS);
    let found = edf::fully_preemptive::dedicated_uniproc_rta(&task(index), &others, limit);
    found.map(u64::from).unwrap_or(u64::MAX)
}
