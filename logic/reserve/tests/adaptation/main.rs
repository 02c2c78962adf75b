//! Adaptation: each state on the way can be kept, the way back is as good, and nobody is late while
//! tables change, whenever that is asked for.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod online;

use proptest::prelude::*;
use reserve::adapt::{AdaptError, Step};
use reserve::changeover::{ChangeoverError, Guests, first_moment};
use reserve::dispatch::{Dispatcher, Inside};
use reserve::network::{Class, Link};
use reserve::node::{Capacity, Disk, Node, Promise};
use reserve::world::{Recurring, run};
use reserve::{Arrivals, Policy, Rule, Scenario, Stretch, Supply, Table, Task, inside};

const MS: u64 = 1_000_000;

fn task(budget: u64, period: u64) -> Task {
    Task::new(budget, period).unwrap()
}

fn node(policy: Policy, processors: usize) -> Node {
    let capacity = Capacity {
        processors,
        rule: Rule::new(policy),
        link: Link { rate_bits: 10_000_000, queue_bytes: 64_000, packet_bytes: 1_514 },
        memory_bytes: 1 << 30,
        disk: Disk { bytes: 100_000_000, operations: 10_000 },
    };
    Node::new(capacity).unwrap()
}

fn class(rate_bits: u64) -> Class {
    Class { rate_bits, ceiling_bits: 10_000_000, burst_bytes: 16_000, precedence: 0 }
}

fn promise(processor: usize, task: Task, rate_bits: u64) -> Promise {
    let network = (rate_bits > 0).then(|| class(rate_bits));
    Promise { processor: Some((processor, task)), network, memory_bytes: 1 << 20, disk: Disk::default() }
}

fn with(node: &Node, changes: &[(&str, Promise)]) -> Node {
    node.adapt(changes).unwrap().commit()
}

/// The paper's case: video on demand of four streams, and a fifth comes.
fn video() -> Node {
    let gold = promise(0, task(24 * MS, 40 * MS), 5_200_000);
    let best_effort = promise(0, task(16 * MS, 40 * MS), 4_800_000);
    with(&node(Policy::RateMonotonic, 1), &[("gold", gold), ("best-effort", best_effort)])
}

#[test]
fn a_fifth_stream_is_paid_for_by_best_effort_in_one_step_each() {
    let gold = promise(0, task(32 * MS, 40 * MS), 6_400_000);
    let rest = promise(0, task(8 * MS, 40 * MS), 3_600_000);
    let transaction = video().adapt(&[("gold", gold), ("best-effort", rest)]).unwrap();
    let names: Vec<&str> = transaction.steps().iter().map(|step| step.name.as_str()).collect();
    assert_eq!((names, transaction.shrinking()), (vec!["best-effort", "gold"], 1));
    let undone: Vec<Step> = transaction.undo(2);
    assert_eq!(undone.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(), ["gold", "best-effort"]);
    assert_eq!(undone[0].to, *video().promise("gold").unwrap());
    assert_eq!(transaction.commit().promise("gold"), Some(&gold));
}

#[test]
fn one_part_that_does_not_fit_refuses_the_whole() {
    let before = video();
    let gold = |budget: u64, rate: u64| promise(0, task(budget, 40 * MS), rate);
    let words = |change: Promise| before.adapt(&[("gold", change)]).unwrap_err().to_string();
    assert_eq!(
        words(gold(24 * MS + 1, 5_200_000)),
        "processor 0: `gold` would fall behind its 40 ms more and more (rate-monotonic); it would pass with a budget of 24 ms for `gold` \
         instead of 24.000001 ms, or with a period of 56.000001 ms for `gold` instead of 40 ms"
    );
    assert_eq!(
        words(gold(20 * MS, 5_200_001)),
        "network (best-effort, gold): classes of 10000001 bit/s do not fit on a link of 10000000 bit/s; they would if one asked for 1 bit/s less"
    );
    assert_eq!(
        words(Promise { memory_bytes: 1 << 30, ..gold(MS, 1) }),
        "memory: 1.0 GiB would be promised of 1 GiB; it would do if one asked for 1 MiB less"
    );
    assert!(words(promise(1, task(1, 2), 0)).contains("`gold` is on processor 1, and there are 1"));
    let twice = before.adapt(&[("gold", gold(1, 1)), ("gold", gold(1, 1))]).unwrap_err();
    assert_eq!(twice, AdaptError::Twice("gold".into()));
}

#[test]
fn whoever_moves_waits_for_room_and_two_full_processors_do_not_swap() {
    let full = |processor: usize| promise(processor, task(8, 10), 0);
    let small = |processor: usize| promise(processor, task(2, 10), 0);
    let start = with(&node(Policy::RateMonotonic, 3), &[("a", full(0)), ("b", full(1)), ("c", small(0))]);
    // Round the ring: b has to leave before a comes.
    let transaction = start.adapt(&[("a", full(1)), ("b", full(2))]).unwrap();
    let names: Vec<&str> = transaction.steps().iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["b", "a"]);
    let error = start.adapt(&[("a", full(1)), ("b", full(0))]).unwrap_err();
    assert!(matches!(&error, AdaptError::NoWay { name, .. } if name == "a"), "{error}");
    assert!(
        error.to_string().contains("`a` can't move before somebody makes room for it (processor 1: "),
        "{error}"
    );
    // Together with c there is not even a place to end.
    let error = start.adapt(&[("b", full(0))]).unwrap_err();
    assert!(matches!(error, AdaptError::Refused(_)), "{error}");
}

/// Many at once come in one step each, but no more than some may move.
#[test]
fn a_whole_file_is_admitted_at_once_and_moves_are_counted() {
    let names: Vec<String> = (100..200).map(|number| format!("vtm-{number}")).collect();
    let all = |processor: usize| {
        names
            .iter()
            .map(|name| (name.as_str(), promise(processor, task(MS, 100 * MS), 0)))
            .collect::<Vec<_>>()
    };
    let start = with(&node(Policy::RateMonotonic, 2), &all(0));
    let (on_it, table) = start.table(0).unwrap();
    assert_eq!((on_it.len(), on_it[99], table.slots().len()), (100, "vtm-199", 100));
    let error = start.adapt(&all(1)).unwrap_err();
    assert_eq!(error, AdaptError::TooManyOrdered(100));
    let half = with(&start, &all(1)[..50]);
    assert_eq!((half.on_processor(0).count(), half.on_processor(1).count()), (50, 50));
}

fn any_promise() -> impl Strategy<Value = Promise> {
    let period = prop::sample::select(vec![10_u64, 15, 20, 30, 40, 60]);
    let task = (period, 0.02..0.5_f64, 0.5..1.3_f64).prop_map(|(period, share, deadline)| {
        let period = period * 100;
        let budget = ((period as f64 * share) as u64).max(1);
        let deadline = ((period as f64 * deadline) as u64).max(budget);
        task(budget, period).with_deadline(deadline).unwrap()
    });
    let network = prop::option::of((1_u64..4_000_000).prop_map(class));
    let rest = (0_u64..1 << 29, 0_u64..50_000_000, 0_u64..5_000);
    (prop::option::of((0_usize..2, task)), network, rest).prop_map(
        |(processor, network, (memory_bytes, bytes, operations))| Promise {
            processor,
            network,
            memory_bytes,
            disk: Disk { bytes, operations },
        },
    )
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A node after steps, each checked.
fn walk(from: &Node, steps: &[Step]) -> Result<Node, TestCaseError> {
    let mut state = from.clone();
    for step in steps {
        prop_assert_eq!(state.promise(&step.name).copied().unwrap_or_default(), step.from);
        let transaction = state.adapt(&[(&step.name, step.to)]);
        prop_assert!(transaction.is_ok(), "{:?} at {:?}", transaction, step);
        state = transaction.unwrap().commit();
        prop_assert_eq!(state.check_all(), Ok(()));
    }
    Ok(state)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]
    /// Whatever is changed: it is refused where the end can't be kept; else each step leads to what
    /// can, and so does each step back.
    #[test]
    fn every_state_on_the_way_there_and_back_can_be_kept(
        start in prop::collection::vec(any_promise(), 5),
        changes in prop::collection::vec(prop::option::of(any_promise()), 5),
        policy in prop::sample::select(Policy::ALL.to_vec()),
    ) {
        let mut before = node(policy, 2);
        for (name, promise) in NAMES.iter().zip(start) {
            if let Ok(transaction) = before.adapt(&[(name, promise)]) {
                before = transaction.commit();
            }
        }
        let changes: Vec<(&str, Promise)> =
            NAMES.iter().zip(changes).filter_map(|(name, change)| Some((*name, change?))).collect();
        match before.adapt(&changes) {
            Ok(transaction) => {
                let steps = transaction.steps().to_vec();
                for done in 0..=steps.len() {
                    let there = walk(&before, &steps[..done])?;
                    let back = walk(&there, &transaction.undo(done))?;
                    prop_assert_eq!(&back, &before);
                }
                let after = walk(&before, &steps)?;
                prop_assert_eq!(after.check_all(), Ok(()));
                prop_assert_eq!(after, transaction.commit());
            }
            Err(AdaptError::NoWay { .. }) => {}
            Err(AdaptError::Refused(_)) => {
                let mut expected = node(policy, 2);
                let mut keeps = true;
                for name in NAMES {
                    let changed = changes.iter().find(|(found, _)| *found == name).map(|(_, promise)| *promise);
                    let promise = changed.or_else(|| before.promise(name).copied()).unwrap_or_default();
                    match expected.adapt(&[(name, promise)]) {
                        Ok(transaction) => expected = transaction.commit(),
                        Err(_) => keeps = false,
                    }
                }
                prop_assert!(!keeps, "{:?} to {:?} can be kept", before, changes);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

/// Returns the supply of a machine across a change, as one long cycle.
fn spliced(before: &Supply, after: &Supply, at_ns: u64, until_ns: u64) -> Vec<(u64, u64)> {
    let repeated = |supply: &Supply, from: u64, to: u64| {
        let mut stretches = Vec::new();
        for cycle in 0..=(to - from) / supply.cycle_ns() {
            let begin = from + cycle * supply.cycle_ns();
            let own = supply.stretches().iter().map(|(one, other)| (begin + one, (begin + other).min(to)));
            stretches.extend(own.filter(|(one, other)| one < other));
        }
        stretches
    };
    let mut all = repeated(before, 0, at_ns);
    all.extend(repeated(after, at_ns, until_ns));
    all
}

/// For every moment at which a change may be asked for, and every instant at which jobs may come
/// around it: nobody is late; and a moment that was passed over is one at which somebody would have
/// been.
#[test]
fn nobody_is_late_whenever_a_change_is_asked_for_and_jobs_come() {
    let machines = [
        [task(4, 10), task(6, 20), task(6, 20)],
        [task(2, 10), task(10, 20), task(4, 20)],
        [task(3, 10), task(3, 20), task(11, 20)],
    ];
    let jobs = [
        vec![task(2, 20), task(2, 40)],
        vec![task(1, 10)],
        vec![task(3, 20).with_deadline(18).unwrap(), task(1, 40)],
        vec![task(2, 40).with_jitter(5).unwrap(), task(3, 40).with_deadline(60).unwrap()],
    ];
    let (mut moments, mut delayed, mut never) = (0, 0, 0);
    for from in &machines {
        for to in machines.iter().filter(|to| *to != from) {
            for outer in Policy::ALL {
                let tables = [from, to].map(|set| Table::build(Rule::new(outer), set).unwrap());
                for (jobs, policy) in jobs.iter().flat_map(|jobs| Policy::ALL.map(|policy| (jobs, policy))) {
                    for machine in 0..3 {
                        let guests =
                            [Guests { rule: Rule::new(policy), jobs, before: machine, after: machine }];
                        match check_change(&tables, &guests) {
                            Some((found, waited)) => (moments, delayed) = (moments + found, delayed + waited),
                            None => never += 1,
                        }
                    }
                }
            }
        }
    }
    println!(
        "{moments} moments checked, {delayed} of them later than the tables alone allow; {never} times jobs did not fit"
    );
    assert!(moments > 1_000 && delayed > 50 && never > 0);
}

/// Asks for a change at each moment of a cycle; `None` where the jobs are late under one of the
/// tables alone.
fn check_change(tables: &[Table; 2], guests: &[Guests<'_>; 1]) -> Option<(u64, u64)> {
    let [old, new] = tables;
    let guest = &guests[0];
    let supplies = [old.supply(guest.before), new.supply(guest.after)];
    if supplies.iter().any(|supply| inside::admit(guest.rule, guest.jobs, supply, None).is_err()) {
        assert!(matches!(first_moment(old, new, guests, 0), Err(ChangeoverError::Inside { .. })));
        return None;
    }
    let (mut moments, mut delayed) = (0, 0);
    for asked in 0..old.cycle_ns() {
        let plain = old.next_quiet_ns(asked);
        let moment = match first_moment(old, new, guests, asked) {
            Ok(moment) => moment,
            Err(ChangeoverError::Never { .. }) => {
                assert!(is_somebody_late(&supplies, guest, plain), "{guest:?} at {plain}");
                delayed += 1;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(moment >= plain);
        moments += 1;
        assert!(!is_somebody_late(&supplies, guest, moment), "{guest:?} at {moment} of {old:?} {new:?}");
        if moment > plain {
            delayed += 1;
            assert!(is_somebody_late(&supplies, guest, plain), "{guest:?} at {plain} would have done");
        }
    }
    Some((moments, delayed))
}

fn is_somebody_late(supplies: &[Supply; 2], guest: &Guests<'_>, moment: u64) -> bool {
    // Some cycles before, so that jobs can have come long ago.
    let at_ns = 6 * supplies[0].cycle_ns() + moment;
    let cycle_ns = at_ns + 20 * supplies[1].cycle_ns();
    let stretches = spliced(&supplies[0], &supplies[1], at_ns, cycle_ns);
    (0..at_ns).any(|shift_ns| {
        let given = Stretch::Cycle { stretches: &stretches, cycle_ns, shift_ns };
        let until_ns = at_ns - shift_ns + 160;
        let arrivals = Arrivals::Together;
        let scenario = Scenario {
            rule: guest.rule,
            tasks: guest.jobs,
            arrivals,
            given,
            until_ns,
            stop_when_late: true,
            record: false,
        };
        !scenario.run().late.is_empty()
    })
}

/// The same through the dispatcher: machines that are busy all the time get what was promised
/// before, across and after a change, whenever it is asked for.
#[test]
fn machines_get_what_was_promised_across_a_change() {
    let sets = [[task(24, 40), task(16, 40)], [task(32, 40), task(8, 40)], [task(10, 20), task(20, 80)]];
    for from in &sets {
        for to in sets.iter().filter(|to| *to != from) {
            let tables = [from, to].map(|set| Table::build(Rule::default(), set).unwrap());
            for asked in 0..tables[0].cycle_ns() {
                let mut dispatcher =
                    Dispatcher::new(tables[0].clone(), &[Inside::RoundRobin { turn_ns: 3 }; 2], 0).unwrap();
                let jobs = [0, 1].map(|vtm| {
                    let hungry = task(1_000, 1_000);
                    let job = dispatcher.join(vtm, None).unwrap();
                    Recurring { vtm, job, task: hungry, offset_ns: 0 }
                });
                let moment = tables[0].next_quiet_ns(asked);
                let until = moment + tables[1].cycle_ns();
                let history = run(&mut dispatcher, &jobs, until, Some((asked, tables[1].clone()))).unwrap();
                for vtm in 0..2 {
                    // All that was released before the change is done at it, and a cycle of the new
                    // table after it.
                    let old = moment.div_ceil(from[vtm].period_ns()) * from[vtm].budget_ns();
                    let new = tables[1].cycle_ns() / to[vtm].period_ns() * to[vtm].budget_ns();
                    assert_eq!(history.given_ns[vtm], old + new, "{from:?} {to:?} at {asked}");
                }
                assert_eq!(dispatcher.take_retired().as_ref(), Some(&tables[0]));
            }
        }
    }
}
