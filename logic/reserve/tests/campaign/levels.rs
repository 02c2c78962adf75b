//! Tables and the jobs inside: what a table gives is what was promised, and a job that was admitted
//! to it is never late.

use crate::generate::{Chance, Deadlines, Periods, hyperperiod, shares, tasks};
use crate::{SETS, within};
use reserve::{
    Affinity, Arrivals, Costs, Heuristic, PlaceError, Placement, Policy, Response, Rule, Scenario, Stretch,
    Supply, Table, Task, inside, place,
};

fn any_tasks(chance: &mut Chance, deadlines: &[Deadlines]) -> Vec<Task> {
    let kind = chance.of(&[Periods::Harmonic, Periods::LogUniform]);
    let deadlines = chance.of(deadlines);
    tasks(chance, kind, deadlines, false)
}

/// Each task gets its budget in each period before its deadline, nobody gets more, and switches are
/// paid for.
#[test]
fn tables_give_what_was_promised() {
    let mut built = 0;
    for number in 0..SETS {
        let seed = 30 << 32 | number;
        let mut chance = Chance(seed);
        let set =
            any_tasks(&mut chance, &[Deadlines::Implicit, Deadlines::Constrained, Deadlines::Arbitrary]);
        let costs = if chance.one_in(2) { Costs::NONE } else { Costs::new(chance.within(1, 9)).unwrap() };
        let rule = Rule { policy: chance.of(&Policy::ALL), costs };
        let Ok(table) = Table::build(rule, &set) else {
            assert!(!rule.holds(&set).unwrap(), "seed {seed}: {rule:?} {set:?}");
            continue;
        };
        built += 1;
        assert_eq!(table.cycle_ns(), hyperperiod(&set));
        for (who, task) in set.iter().enumerate() {
            let supply = table.supply(who);
            for release in 0..table.cycle_ns() / task.period_ns() {
                let begin = release * task.period_ns();
                let done = supply.given_ns(begin + task.deadline_ns());
                assert!(done >= (release + 1) * task.budget_ns(), "seed {seed}: {rule:?} {set:?} {release}");
                assert!(
                    supply.given_ns(begin) <= release * task.budget_ns(),
                    "seed {seed}: {rule:?} {set:?} {release}"
                );
            }
            let releases = table.cycle_ns() / task.period_ns();
            assert_eq!(supply.total_ns(), releases * task.budget_ns(), "seed {seed}: {rule:?} {set:?}");
        }
        check_slots(seed, rule, &set, &table);
        check_quiet(seed, &set, &table);
    }
    println!("{built} tables of {SETS}");
    assert!(built > SETS / 4);
}

fn check_slots(seed: u64, rule: Rule, set: &[Task], table: &Table) {
    let mut end = 0;
    for slot in table.slots() {
        assert!(
            end <= slot.from_ns && slot.from_ns + slot.switch_ns < slot.to_ns,
            "seed {seed}: {set:?} {slot:?}"
        );
        assert!(slot.from_ns == 0 || slot.switch_ns == rule.costs.switch_ns(), "seed {seed}");
        end = slot.to_ns;
    }
    assert!(end <= table.cycle_ns());
    if rule.costs == Costs::NONE {
        // The simulator decides the same, and was written otherwise.
        let arrivals = Arrivals::Together;
        let until_ns = table.cycle_ns();
        let given = Stretch::Whole;
        let scenario =
            Scenario { rule, tasks: set, arrivals, given, until_ns, stop_when_late: true, record: true };
        assert_eq!(scenario.run().slots, table.slots(), "seed {seed}: {set:?}");
    }
}

/// Quiet times are those, and all those, at which what was released before is done.
fn check_quiet(seed: u64, set: &[Task], table: &Table) {
    let supplies: Vec<Supply> = (0..set.len()).map(|who| table.supply(who)).collect();
    let is_quiet = |time: u64| {
        let done = |(task, supply): (&Task, &Supply)| {
            time.div_ceil(task.period_ns()) * task.budget_ns() == supply.given_ns(time)
        };
        set.iter().zip(&supplies).all(done)
    };
    for time in 1..=table.cycle_ns().min(600) {
        let found = table.next_quiet_ns(time) == time;
        assert_eq!(found, is_quiet(time), "seed {seed}: at {time} of {set:?} {:?}", table.quiet_ns());
    }
    for &(from, to) in table.quiet_ns() {
        assert!(is_quiet(from) && is_quiet(to), "seed {seed}: {from}, {to} of {set:?}");
    }
}

/// Some jobs for a supply, now and then too many.
fn jobs(chance: &mut Chance, supply: &Supply, base_ns: u64) -> Vec<Task> {
    let count = usize::try_from(chance.within(1, 3)).unwrap();
    let share = supply.total_ns() as f64 / supply.cycle_ns() as f64;
    let sum = (share * (0.3 + 0.75 * chance.share())).min(1.0);
    let parts = shares(chance, count, sum);
    let job = |part: f64| {
        let period = base_ns * chance.of(&[1, 2, 3, 4, 6, 8]);
        let budget = ((part * period as f64) as u64).clamp(1, period);
        let deadline = match chance.within(0, 3) {
            0 => chance.within(period.div_ceil(2).max(budget), period),
            1 => chance.within(period, 2 * period),
            _ => period,
        };
        let job = Task::new(budget, period).unwrap().with_deadline(deadline).unwrap();
        let jitter = if chance.one_in(3) { chance.within(0, (deadline - budget).min(period / 2)) } else { 0 };
        job.with_jitter(jitter).unwrap()
    };
    parts.into_iter().map(job).collect()
}

struct Bed<'a> {
    rule: Rule,
    jobs: &'a [Task],
    supply: &'a Supply,
}

impl Bed<'_> {
    /// Returns the outcome of releasing all at `shift_ns` of the cycle, each as late as it may.
    fn run(&self, shift_ns: u64, until_ns: u64, stop_when_late: bool) -> reserve::Outcome {
        let given =
            Stretch::Cycle { stretches: self.supply.stretches(), cycle_ns: self.supply.cycle_ns(), shift_ns };
        let arrivals = Arrivals::Together;
        let scenario = Scenario {
            rule: self.rule,
            tasks: self.jobs,
            arrivals,
            given,
            until_ns,
            stop_when_late,
            record: false,
        };
        scenario.run()
    }

    fn ends(&self) -> impl Iterator<Item = u64> {
        self.supply.stretches().iter().map(|(_, to)| *to)
    }

    fn horizon(&self) -> u64 {
        let cycle = Task::new(1, self.supply.cycle_ns()).unwrap();
        hyperperiod(&[self.jobs, &[cycle]].concat())
    }

    /// Whether somebody is late, whatever end of a stretch they begin at.
    fn is_late(&self, expected: bool) -> bool {
        let mut until = self.horizon();
        loop {
            if self.ends().any(|end| !self.run(end, until, true).late.is_empty()) {
                return true;
            }
            if !expected || until > 500 * self.horizon() {
                return false;
            }
            until *= 4;
        }
    }

    /// The longest responses over all beginnings.
    fn responses(&self, until: u64) -> Vec<u64> {
        let mut longest = vec![0; self.jobs.len()];
        for end in self.ends() {
            let outcome = self.run(end, until, false);
            for (longest, response) in longest.iter_mut().zip(outcome.responses_ns) {
                *longest = response.max(*longest);
            }
        }
        longest
    }
}

/// Jobs are admitted if and only if nobody is late in a simulation that begins at any end of a
/// stretch; and response times are those of the simulation.
#[test]
fn jobs_inside_are_late_only_where_they_were_refused() {
    let (mut held, mut missed) = (0, 0);
    for number in 0..3 * SETS {
        let seed = 31 << 32 | number;
        let mut chance = Chance(seed);
        let set = any_tasks(&mut chance, &[Deadlines::Implicit, Deadlines::Constrained]);
        let outer = Rule::new(chance.of(&Policy::ALL));
        let Ok(table) = Table::build(outer, &set) else { continue };
        let who = usize::try_from(chance.within(0, set.len() as u64 - 1)).unwrap();
        let supply = table.supply(who);
        let jobs = jobs(&mut chance, &supply, set[who].period_ns());
        let rule = Rule::new(chance.of(&Policy::ALL));
        let bed = Bed { rule, jobs: &jobs, supply: &supply };
        let admitted = inside::admit(rule, &jobs, &supply, None);
        let late = bed.is_late(admitted.is_err());
        assert_eq!(admitted.is_err(), late, "seed {seed}: {rule:?} {jobs:?} on {supply:?}: {admitted:?}");
        if late {
            missed += 1;
            continue;
        }
        held += 1;
        if let Some(responses) = inside::responses(rule, &jobs, &supply).unwrap() {
            let computed: Vec<u64> = responses.into_iter().map(within).collect();
            let mut until = bed.horizon();
            while bed.responses(until) != computed {
                assert!(
                    until < 500 * bed.horizon(),
                    "seed {seed}: {rule:?} {jobs:?} on {supply:?}: {computed:?}"
                );
                until *= 4;
            }
        }
    }
    println!("{held} sets of jobs hold, {missed} miss");
    assert!(held > SETS / 4 && missed > SETS / 10);
}

/// Wherever jobs begin, and whatever they take of their jitter, and though switches cost.
#[test]
fn admitted_jobs_are_not_late_whenever_they_come() {
    let mut held = 0;
    for number in 0..3 * SETS {
        let seed = 32 << 32 | number;
        let mut chance = Chance(seed);
        let set = any_tasks(&mut chance, &[Deadlines::Implicit]);
        let costs = Costs::new(chance.within(0, 3)).unwrap();
        let outer = Rule { policy: chance.of(&Policy::ALL), costs };
        let Ok(table) = Table::build(outer, &set) else { continue };
        let who = usize::try_from(chance.within(0, set.len() as u64 - 1)).unwrap();
        let supply = table.supply(who);
        let jobs = jobs(&mut chance, &supply, set[who].period_ns());
        let rule = Rule { policy: chance.of(&Policy::ALL), costs };
        if inside::admit(rule, &jobs, &supply, None).is_err() {
            continue;
        }
        held += 1;
        let offsets: Vec<u64> = jobs.iter().map(|job| chance.within(0, 2 * job.period_ns())).collect();
        let shift_ns = chance.within(0, table.cycle_ns() - 1);
        let given = Stretch::Cycle { stretches: supply.stretches(), cycle_ns: supply.cycle_ns(), shift_ns };
        let arrivals = Arrivals::Offset(&offsets, seed);
        let until_ns = 2 * Bed { rule, jobs: &jobs, supply: &supply }.horizon();
        let scenario =
            Scenario { rule, tasks: &jobs, arrivals, given, until_ns, stop_when_late: true, record: false };
        assert_eq!(scenario.run().late, [], "seed {seed}: {rule:?} {jobs:?} on {supply:?} at {shift_ns}");
    }
    println!("{held} sets of jobs were admitted");
    assert!(held > SETS / 4);
}

/// Whatever heuristic places, each processor holds by itself, and affinities are kept.
#[test]
fn places_hold_on_each_processor() {
    let (mut placed, mut refused) = (0, 0);
    for number in 0..SETS / 4 {
        let seed = 33 << 32 | number;
        let mut chance = Chance(seed);
        let mut set = any_tasks(&mut chance, &[Deadlines::Implicit, Deadlines::Constrained]);
        set.extend(any_tasks(&mut chance, &[Deadlines::Implicit]));
        let placements: Vec<Placement> = set
            .iter()
            .map(|task| {
                let affinity = if chance.one_in(4) { Affinity::only([0, 2]) } else { Affinity::ANY };
                Placement { task: *task, affinity }
            })
            .collect();
        let rule = Rule::new(chance.of(&Policy::ALL));
        let heuristics = [Heuristic::FirstFit, Heuristic::BestFit, Heuristic::WorstFit, Heuristic::NextFit];
        let processors = usize::try_from(chance.within(1, 3)).unwrap();
        let places = match place(rule, chance.of(&heuristics), processors, &placements) {
            Ok(places) => places,
            Err(PlaceError::NoPlace { who, tried }) => {
                assert!(who < set.len() && !tried.is_empty(), "seed {seed}");
                refused += 1;
                continue;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        placed += 1;
        for processor in 0..processors {
            let here = |index: &usize| places[*index] == processor;
            let own: Vec<Task> = (0..set.len()).filter(here).map(|index| set[index]).collect();
            assert!(rule.miss(&own).unwrap().is_none(), "seed {seed}: {own:?} on {processor}");
            assert!((0..set.len()).filter(here).all(|index| placements[index].affinity.allows(processor)));
        }
    }
    println!("{placed} sets placed, {refused} refused");
    assert!(placed > SETS / 20 && refused > SETS / 20);
}

/// Inside a whole processor the answers are those of a processor.
#[test]
fn a_whole_processor_is_a_table_like_any_other() {
    for number in 0..SETS / 4 {
        let seed = 34 << 32 | number;
        let mut chance = Chance(seed);
        let set =
            any_tasks(&mut chance, &[Deadlines::Implicit, Deadlines::Constrained, Deadlines::Arbitrary]);
        let whole = Table::build(Rule::default(), &[Task::new(1_000, 1_000).unwrap()]).unwrap().supply(0);
        let rule = Rule::new(chance.of(&Policy::ALL));
        let holds = rule.miss(&set).unwrap();
        let inside = inside::admit(rule, &set, &whole, None);
        assert_eq!(holds.is_none(), inside.is_ok(), "seed {seed}: {rule:?} {set:?} {holds:?} {inside:?}");
        let alone = rule.responses(&set).unwrap();
        if let Some(inside) = inside::responses(rule, &set, &whole).unwrap() {
            assert_eq!(alone, inside, "seed {seed}: {rule:?} {set:?}");
        }
        assert!(alone.iter().all(|response| !matches!(response, Response::Over(_))));
    }
}
