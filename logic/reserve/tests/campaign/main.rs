//! Admission against simulation, on many generated sets: the exact tests say what a simulation over
//! the hyperperiod shows, no more and no less. A failure prints its seed, from which the set comes
//! again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, reason = "a test may")]

mod generate;
mod levels;
mod oracle;

use generate::{Chance, Deadlines, Periods, hyperperiod, tasks};
use reserve::{Arrivals, Costs, Outcome, Policy, Response, Rule, Scenario, Stretch, Task};

/// Sets of each family; twelve families make 204,000.
const SETS: u64 = 17_000;

fn simulate(rule: Rule, tasks: &[Task], until_ns: u64) -> Outcome {
    let scenario = Scenario {
        rule,
        tasks,
        arrivals: Arrivals::Together,
        given: Stretch::Whole,
        until_ns,
        stop_when_late: true,
        record: false,
    };
    scenario.run()
}

/// Whether somebody is late, by simulation. Without jitter, all repeats after a hyperperiod; with
/// it, or where the processor is overloaded, what is sought may take several.
fn is_late(rule: Rule, tasks: &[Task], expected: bool) -> Option<Outcome> {
    let hyperperiod = hyperperiod(tasks);
    let mut until = hyperperiod;
    loop {
        let outcome = simulate(rule, tasks, until);
        if !outcome.late.is_empty() {
            return Some(outcome);
        }
        if !expected || until > 5_000 * hyperperiod {
            return None;
        }
        until *= 4;
    }
}

fn check_set(seed: u64, rule: Rule, tasks: &[Task]) -> bool {
    let holds = rule.holds(tasks).unwrap();
    let miss = rule.miss(tasks).unwrap();
    assert_eq!(holds, miss.is_none(), "seed {seed}: {rule:?} {tasks:?}");
    let late = is_late(rule, tasks, !holds);
    assert_eq!(holds, late.is_none(), "seed {seed}: {rule:?} {tasks:?} {miss:?} {late:?}");
    if let Some(miss) = miss {
        check_miss(seed, rule, tasks, miss);
    } else if rule.policy != Policy::EarliestDeadline {
        check_responses(seed, rule, tasks);
    } else {
        // The worst for one is seldom what is the worst for another, so no single simulation shows
        // them.
        let shown = simulate(rule, tasks, hyperperiod(tasks)).responses_ns;
        let computed = rule.responses(tasks).unwrap();
        let covered = shown.iter().zip(&computed).zip(tasks);
        assert!(
            covered.clone().all(|((shown, computed), task)| {
                *computed >= Response::Within(*shown) && computed.meets(task.deadline_ns())
            }),
            "seed {seed}: {tasks:?} {shown:?} {computed:?}"
        );
    }
    holds
}

/// Checks that the simulation shows the refusal's figures.
fn check_miss(seed: u64, rule: Rule, tasks: &[Task], miss: reserve::Miss) {
    if let Some((within, work)) = miss.overload {
        // Time starts with the release; the first deadline that is missed is the shortest
        // overloaded time. (Whatever is released up to it counts, and what comes later does not.)
        let outcome = simulate(rule, tasks, within);
        let first = outcome.late.iter().map(|late| late.deadline_ns).min().unwrap();
        assert_eq!(within, first, "seed {seed}: {tasks:?}");
        assert!(work > within);
    } else {
        // Whoever misses first by priority misses with those above it alone, too.
        let order = |task: &Task| match rule.policy {
            Policy::RateMonotonic => task.period_ns(),
            _ => task.deadline_ns(),
        };
        let mut sorted: Vec<(usize, Task)> = tasks.iter().copied().enumerate().collect();
        sorted.sort_by_key(|(_, task)| order(task));
        let level = sorted.iter().position(|(index, _)| *index == miss.who).unwrap();
        let above: Vec<Task> = sorted.iter().map(|(_, task)| *task).take(level + 1).collect();
        assert!(is_late(rule, &above[..level], false).is_none(), "seed {seed}: {tasks:?} {miss:?}");
        let late = is_late(rule, &above, true).expect("the one who was named is late");
        assert!(late.late.iter().all(|late| late.who == level), "seed {seed}: {tasks:?} {miss:?}");
    }
}

/// Each response time is one that happens, and the longest.
fn check_responses(seed: u64, rule: Rule, tasks: &[Task]) {
    let computed: Vec<u64> = rule.responses(tasks).unwrap().into_iter().map(within).collect();
    let hyperperiod = hyperperiod(tasks);
    let mut until = hyperperiod;
    while simulate(rule, tasks, until).responses_ns != computed {
        assert!(until < 5_000 * hyperperiod, "seed {seed}: {rule:?} {tasks:?} {computed:?}");
        until *= 4;
    }
}

fn within(response: Response) -> u64 {
    match response {
        Response::Within(ns) => ns,
        Response::Over(_) | Response::Unbounded => panic!("{response:?} of an admitted set"),
    }
}

fn campaign(family: u64, periods: Periods, deadlines: Deadlines, with_jitter: bool) {
    let mut held = 0;
    for number in 0..SETS {
        let seed = family << 32 | number;
        let set = tasks(&mut Chance(seed), periods, deadlines, with_jitter);
        for policy in [Policy::RateMonotonic, Policy::DeadlineMonotonic, Policy::EarliestDeadline] {
            held += u64::from(check_set(seed, Rule::new(policy), &set));
        }
    }
    println!("{SETS} sets under three policies: {held} of {} hold", 3 * SETS);
    // A campaign that only accepts or only refuses would show nothing.
    assert!(held > SETS / 4 && held < 3 * SETS - SETS / 4);
}

/// The longest response of the last of three tasks from all offsets.
fn longest_of_last(rule: Rule, set: &[Task; 3]) -> u64 {
    let mut longest = 0;
    let period = |index: usize| 0..set[index].period_ns();
    for (first, second, last) in
        period(0).flat_map(|one| period(1).flat_map(move |two| period(2).map(move |three| (one, two, three))))
    {
        let offsets = [first, second, last];
        let (arrivals, given, until_ns) =
            (Arrivals::Offset(&offsets, 0), Stretch::Whole, 4 * hyperperiod(set));
        let scenario =
            Scenario { rule, tasks: set, arrivals, given, until_ns, stop_when_late: false, record: false };
        longest = longest.max(scenario.run().responses_ns[2]);
    }
    longest
}

/// Under earliest deadline first each response time is the longest over all offsets.
#[test]
fn each_response_under_earliest_deadlines_is_reached_from_some_offset() {
    let rule = Rule::new(Policy::EarliestDeadline);
    let mut compared = 0;
    for number in 0..SETS / 20 {
        let mut chance = Chance(14 << 32 | number);
        let task = |chance: &mut Chance, most: u64| {
            let period = chance.within(3, 7);
            let budget = chance.within(1, most.min(period));
            Task::new(budget, period).unwrap().with_deadline(chance.within(budget, 2 * period)).unwrap()
        };
        let set = [task(&mut chance, 2), task(&mut chance, 3), task(&mut chance, 2)];
        let share: u64 = set.iter().map(|task| task.budget_ns() * hyperperiod(&set) / task.period_ns()).sum();
        if share > hyperperiod(&set) {
            continue;
        }
        for computed in 0..set.len() {
            // Of equal deadlines those of who was named first go first: so the last is who has to
            // wait for all.
            let mut order = set;
            order.swap(computed, 2);
            let response = within(rule.responses(&order).unwrap()[2]);
            assert_eq!(response, longest_of_last(rule, &order), "set {number}: {order:?}");
        }
        compared += 1;
    }
    println!("{compared} sets compared");
    assert!(compared > SETS / 80);
}

macro_rules! campaigns {
    ($($name:ident: $family:literal, $periods:ident, $deadlines:ident, $jitter:literal;)*) => {
        $(#[test]
        fn $name() {
            campaign($family, Periods::$periods, Deadlines::$deadlines, $jitter);
        })*
    };
}

campaigns! {
    harmonic_implicit: 1, Harmonic, Implicit, false;
    harmonic_constrained: 2, Harmonic, Constrained, false;
    harmonic_arbitrary: 3, Harmonic, Arbitrary, false;
    harmonic_implicit_with_jitter: 4, Harmonic, Implicit, true;
    harmonic_constrained_with_jitter: 5, Harmonic, Constrained, true;
    harmonic_arbitrary_with_jitter: 6, Harmonic, Arbitrary, true;
    log_uniform_implicit: 7, LogUniform, Implicit, false;
    log_uniform_constrained: 8, LogUniform, Constrained, false;
    log_uniform_arbitrary: 9, LogUniform, Arbitrary, false;
    log_uniform_implicit_with_jitter: 10, LogUniform, Implicit, true;
    log_uniform_constrained_with_jitter: 11, LogUniform, Constrained, true;
    log_uniform_arbitrary_with_jitter: 12, LogUniform, Arbitrary, true;
}

/// With switches that take their time nobody who was admitted is late, whatever the offsets.
#[test]
fn switches_that_cost_make_nobody_late() {
    let mut held = 0;
    for number in 0..4 * SETS {
        let seed = 13 << 32 | number;
        let mut chance = Chance(seed);
        let periods = chance.of(&[Periods::Harmonic, Periods::LogUniform]);
        let deadlines = chance.of(&[Deadlines::Implicit, Deadlines::Constrained, Deadlines::Arbitrary]);
        let jitter = chance.one_in(2);
        let set = tasks(&mut chance, periods, deadlines, jitter);
        let policy = chance.of(&[Policy::RateMonotonic, Policy::DeadlineMonotonic, Policy::EarliestDeadline]);
        let rule = Rule { policy, costs: Costs::new(chance.within(1, 12)).unwrap() };
        if !rule.holds(&set).unwrap() {
            continue;
        }
        held += 1;
        let offsets: Vec<u64> = set.iter().map(|task| chance.within(0, task.period_ns())).collect();
        for arrivals in [Arrivals::Together, Arrivals::Offset(&offsets, seed)] {
            let until_ns = 2 * hyperperiod(&set);
            let given = Stretch::Whole;
            let scenario = Scenario {
                rule,
                tasks: &set,
                arrivals,
                given,
                until_ns,
                stop_when_late: true,
                record: false,
            };
            let outcome = scenario.run();
            assert_eq!(outcome.late, [], "seed {seed}: {rule:?} {set:?} {arrivals:?}");
        }
    }
    println!("{held} of {} sets were admitted", 4 * SETS);
    assert!(held > SETS / 4);
}
