//! Decisions in virtual time: what jobs get, and that a trace comes to the same decisions again.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use proptest::prelude::*;
use reserve::dispatch::{Decision, DispatchError, Dispatcher, Inside};
use reserve::trace::{Input, ReplayError, replay};
use reserve::world::{Recurring, run};
use reserve::{Policy, Rule, Table, Task, inside};

const MS: u64 = 1_000_000;

fn task(budget: u64, period: u64) -> Task {
    Task::new(budget, period).unwrap()
}

fn table(tasks: &[Task]) -> Table {
    Table::build(Rule::default(), tasks).unwrap()
}

/// A dispatcher with jobs, and the jobs.
fn dispatcher(table: Table, inside: Inside, jobs: &[Vec<Task>]) -> (Dispatcher, Vec<Recurring>) {
    let mut dispatcher = Dispatcher::new(table, &vec![inside; jobs.len()], 0).unwrap();
    let mut recurring = Vec::new();
    for (vtm, tasks) in jobs.iter().enumerate() {
        for task in tasks {
            let job = dispatcher.join(vtm, Some(*task)).unwrap();
            recurring.push(Recurring { vtm, job, task: *task, offset_ns: 0 });
        }
    }
    (dispatcher, recurring)
}

#[test]
fn jobs_of_a_machine_take_turns_and_get_the_same() {
    let hungry = vec![task(100 * MS, 100 * MS); 4];
    let gold = table(&[task(32 * MS, 40 * MS), task(8 * MS, 40 * MS)]);
    let (mut dispatcher, jobs) =
        dispatcher(gold, Inside::RoundRobin { turn_ns: MS }, &[hungry.clone(), hungry]);
    let history = run(&mut dispatcher, &jobs, 400 * MS, None).unwrap();
    assert_eq!(history.given_ns, [80 * MS, 80 * MS, 80 * MS, 80 * MS, 20 * MS, 20 * MS, 20 * MS, 20 * MS]);
}

#[test]
fn a_turn_goes_on_in_the_next_slot() {
    let gold = table(&[task(3, 10), task(7, 10)]);
    let mut dispatcher = Dispatcher::new(gold, &[Inside::RoundRobin { turn_ns: 4 }; 2], 0).unwrap();
    for _ in 0..2 {
        let job = dispatcher.join(0, None).unwrap();
        dispatcher.ready(0, job, 0).unwrap();
    }
    let decision = |job: Option<usize>, vtm: usize, until_ns: u64| Decision { vtm: Some(vtm), job, until_ns };
    assert_eq!(dispatcher.decide(0), decision(Some(0), 0, 3));
    assert_eq!(dispatcher.decide(3), decision(None, 1, 10));
    assert_eq!(dispatcher.decide(10), decision(Some(0), 0, 11));
    assert_eq!(dispatcher.decide(11), decision(Some(1), 0, 13));
    assert_eq!(dispatcher.decide(13), decision(None, 1, 20));
    // The other two of its four.
    assert_eq!(dispatcher.decide(20), decision(Some(1), 0, 22));
    dispatcher.blocked(0, 1).unwrap();
    assert_eq!(dispatcher.decide(21), decision(Some(0), 0, 23));
    // A clock that goes back stands still.
    assert_eq!(dispatcher.decide(5), decision(Some(0), 0, 23));
}

#[test]
fn machines_and_jobs_come_and_go_and_their_numbers_are_used_again() {
    let turns = Inside::RoundRobin { turn_ns: 5 };
    let mut dispatcher = Dispatcher::new(table(&[task(3, 10), task(7, 10)]), &[turns; 2], 0).unwrap();
    let jobs = [0, 1].map(|vtm| dispatcher.join(vtm, None).unwrap());
    dispatcher.ready(0, jobs[0], 0).unwrap();
    dispatcher.leave(0, jobs[0]).unwrap();
    assert_eq!(dispatcher.leave(0, jobs[0]), Err(DispatchError::NoJob { vtm: 0, job: 0 }));
    assert_eq!(dispatcher.join(0, None), Ok(jobs[0]));
    dispatcher.remove(0).unwrap();
    assert_eq!(dispatcher.remove(0), Err(DispatchError::NoMachine(0)));
    assert_eq!(dispatcher.decide(0), Decision { vtm: None, job: None, until_ns: 3 });
    // A third that takes the first one's number, and then one behind all.
    assert_eq!((dispatcher.add(turns), dispatcher.add(turns)), (Ok(0), Ok(2)));
    let next = table(&[task(4, 10), task(6, 10)]).renumbered(&[2, 1]);
    assert_eq!(dispatcher.decide(3), Decision { vtm: Some(1), job: None, until_ns: 10 });
    assert_eq!(dispatcher.adopt(next, 0), 10);
    assert_eq!(dispatcher.decide(10), Decision { vtm: Some(2), job: None, until_ns: 14 });
    assert_eq!(dispatcher.decide(14), Decision { vtm: Some(1), job: None, until_ns: 20 });
    // A processor that nobody has reserved anything of.
    let second = 1_000_000_000;
    assert_eq!(dispatcher.adopt(table(&[]), 15), 20);
    assert_eq!(dispatcher.decide(20), Decision { vtm: None, job: None, until_ns: 20 + second });
    // It may be left at any moment.
    assert_eq!(dispatcher.adopt(table(&[task(1, 2)]), 777), 777);
}

#[test]
fn what_is_not_there_is_an_error_and_not_a_panic() {
    let mut dispatcher =
        Dispatcher::new(table(&[task(1, 2)]), &[Inside::By(Policy::RateMonotonic)], 0).unwrap();
    assert_eq!(dispatcher.ready(1, 0, 0), Err(DispatchError::NoMachine(1)));
    assert_eq!(dispatcher.ready(0, 0, 0), Err(DispatchError::NoJob { vtm: 0, job: 0 }));
    assert_eq!(dispatcher.blocked(0, 9), Err(DispatchError::NoJob { vtm: 0, job: 9 }));
    assert_eq!(dispatcher.join(0, None), Err(DispatchError::NoTask { vtm: 0, job: 0 }));
    let error = DispatchError::NoTask { vtm: 0, job: 0 }.to_string();
    assert!(error.contains("give it one, or use round robin"), "{error}");
    let trace = [reserve::trace::Step {
        at_ns: 0,
        inputs: vec![Input::Blocked { vtm: 3, job: 0 }],
        decision: dispatcher.decide(0),
    }];
    assert!(matches!(replay(&mut dispatcher, &trace), Err(ReplayError::Input { step: 0, .. })));
}

fn any_jobs() -> impl Strategy<Value = Vec<Vec<Task>>> {
    let job = (1_u64..4, prop::sample::select(vec![20_u64, 40, 60, 80]))
        .prop_map(|(budget, period)| task(budget, period));
    prop::collection::vec(prop::collection::vec(job, 1..4), 3..4)
}

fn any_inside() -> impl Strategy<Value = Inside> {
    let by = prop::sample::select(Policy::ALL.to_vec()).prop_map(Inside::By);
    prop_oneof![by, (1_u64..5).prop_map(|turn_ns| Inside::RoundRobin { turn_ns })]
}

proptest! {
    /// The same inputs come to the same decisions, also where a table changes on the way; and a
    /// decision that was altered is found.
    #[test]
    fn a_trace_replays(jobs in any_jobs(), inside in any_inside(), at in 0_u64..200, altered in any::<prop::sample::Index>()) {
        let first = table(&[task(8, 20), task(6, 20), task(12, 40)]);
        let second = table(&[task(4, 20), task(10, 20), task(12, 40)]);
        let (mut one, recurring) = dispatcher(first, inside, &jobs);
        let mut other = one.clone();
        let mut third = one.clone();
        let history = run(&mut one, &recurring, 480, Some((at, second))).unwrap();
        prop_assert_eq!(replay(&mut other, &history.trace), Ok(()));
        let mut trace = history.trace;
        let step = altered.index(trace.len());
        trace[step].decision.until_ns += 1;
        let found = replay(&mut third, &trace);
        prop_assert!(matches!(found, Err(ReplayError::Differs { step: at, .. }) if at == step), "{:?}", found);
    }

    /// Jobs that were admitted to what the table gives are in time, wherever they begin.
    #[test]
    fn admitted_jobs_are_in_time(jobs in any_jobs(), policy in prop::sample::select(Policy::ALL.to_vec()), offsets in prop::collection::vec(0_u64..80, 12)) {
        let table = table(&[task(8, 20), task(6, 20), task(12, 40)]);
        let rule = Rule::new(policy);
        let admitted: Vec<bool> =
            jobs.iter().enumerate().map(|(vtm, jobs)| inside::admit(rule, jobs, &table.supply(vtm), None).is_ok()).collect();
        let (mut dispatcher, mut recurring) = dispatcher(table, Inside::By(policy), &jobs);
        for (job, offset_ns) in recurring.iter_mut().zip(offsets) {
            job.offset_ns = offset_ns;
        }
        let history = run(&mut dispatcher, &recurring, 1_000, None).unwrap();
        for overdue in history.overdue {
            prop_assert!(!admitted[recurring[overdue.who].vtm], "{:?} of {:?}", overdue, recurring);
        }
    }
}
