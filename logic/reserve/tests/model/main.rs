//! The model: every level can be reached from every other, nobody is promised anything twice, and
//! what is refused changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use proptest::prelude::*;
use reserve::adapt::AdaptError;
use reserve::dispatch::Inside;
use reserve::model::{
    Factory, Id, Kind, Level, Manager, Model, ModelError, Parameters, Scheduler, Team, Wish,
};
use reserve::network::{Class, Link};
use reserve::node::{Capacity, Disk};
use reserve::{Affinity, Costs, Heuristic, Policy, Response, Rule, Task};
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;

fn task(budget: u64, period: u64) -> Task {
    Task::new(budget, period).unwrap()
}

fn capacity(processors: usize, policy: Policy) -> Capacity {
    Capacity {
        processors,
        rule: Rule::new(policy),
        link: Link { rate_bits: 10_000_000, queue_bytes: 64_000, packet_bytes: 1_514 },
        memory_bytes: 1 << 30,
        disk: Disk { bytes: 100_000_000, operations: 10_000 },
    }
}

fn model(processors: usize) -> Model {
    Model::new(capacity(processors, Policy::RateMonotonic), Heuristic::FirstFit).unwrap()
}

fn class(rate_bits: u64) -> Class {
    Class { rate_bits, ceiling_bits: 10_000_000, burst_bytes: 16_000, precedence: 0 }
}

fn of(budget: u64, period: u64) -> Wish {
    Wish { task: Some(task(budget, period)), ..Wish::default() }
}

fn kinds(model: &Model, ids: &[Id]) -> Vec<Kind> {
    ids.iter().map(|id| model.resource(*id).unwrap().kind).collect()
}

#[test]
fn one_goes_down_from_a_machine_to_the_node_and_up_again() {
    let mut model = model(2);
    let wish = Wish {
        network: Some(class(1_000_000)),
        memory_bytes: 1 << 20,
        disk: Disk { bytes: 1, operations: 1 },
        ..of(16 * MS, 40 * MS)
    };
    let machine = model.make_machine("shop/player", wish).unwrap();
    let job = model.make_job("shop/player", "decoder", None).unwrap();
    let below = model.resources("shop/player").unwrap();
    assert_eq!(
        kinds(&model, &below),
        [
            Kind::Team,
            Kind::Class,
            Kind::MemoryShare,
            Kind::DiskShare,
            Kind::Processor,
            Kind::Job,
            Kind::Link,
            Kind::Memory,
            Kind::Disk
        ]
    );
    let processor = model.processor(0).unwrap();
    assert_eq!(kinds(&model, &model.above(processor)), [Kind::Team, Kind::Job, Kind::Machine]);
    assert!(model.above(processor).contains(&job) && model.below(job).contains(&processor));
    assert_eq!(model.above(model.processor(1).unwrap()), []);
    model.expel("shop/player").unwrap();
    assert_eq!((model.resource(machine), model.resource(job)), (None, None));
    assert_eq!(model.all().count(), 2 + 3, "two processors, link, memory, disk");
}

#[test]
fn machines_come_where_there_is_room_and_stay_where_they_are() {
    let mut model = model(2);
    model.make_machine("a", of(30, 40)).unwrap();
    model.make_machine("b", of(20, 40)).unwrap();
    model.make_machine("c", of(10, 40)).unwrap();
    let on = |model: &Model, name: &str| model.node().promise(name).unwrap().processor.unwrap().0;
    assert_eq!((on(&model, "a"), on(&model, "b"), on(&model, "c")), (0, 1, 0));
    // Nobody moves who can stay; who can't, moves.
    model.adapt(&[("b", of(25, 40))]).unwrap();
    assert_eq!(on(&model, "b"), 1);
    model.adapt(&[("c", of(15, 40))]).unwrap();
    assert_eq!(on(&model, "c"), 1);
    let error = model.adapt(&[("c", of(16, 40))]).unwrap_err();
    assert!(error.to_string().contains("it would pass with a budget of 15 ns for `c`"), "{error}");
    let only = Wish { affinity: Affinity::only([0]), ..of(10, 40) };
    model.adapt(&[("c", only)]).unwrap();
    assert_eq!(on(&model, "c"), 0);
    let nowhere = Wish { affinity: Affinity::only([7]), ..of(1, 40) };
    assert!(model.adapt(&[("d", nowhere)]).unwrap_err().to_string().contains("processor 7, and there are 2"));
}

#[test]
fn one_step_moves_from_one_to_the_other_or_nothing_moves() {
    let mut model = model(1);
    model.adapt(&[("gold", of(24 * MS, 40 * MS)), ("rest", of(16 * MS, 40 * MS))]).unwrap();
    let before = model.clone();
    let error = model.adapt(&[("gold", of(32 * MS, 40 * MS))]).unwrap_err();
    assert!(matches!(error, ModelError::Adapt(AdaptError::Refused(_))), "{error}");
    assert_eq!(model, before);
    let admitted = model.admit(&[("gold", of(32 * MS, 40 * MS)), ("rest", of(8 * MS, 40 * MS))]).unwrap();
    assert_eq!((model == before, admitted.transaction().shrinking()), (true, 1));
    let stale = admitted.clone();
    model.commit(admitted).unwrap();
    assert_eq!(model.node().promise("gold").unwrap().processor.unwrap().1.budget_ns(), 32 * MS);
    assert_eq!(model.commit(stale), Err(ModelError::Stale));
}

#[test]
fn jobs_inside_are_held_to_what_their_machine_has() {
    let mut model = model(1);
    model.make_machine("player", of(16 * MS, 40 * MS)).unwrap();
    model.make_machine("rest", of(24 * MS, 40 * MS)).unwrap();
    let machine = model.machine("player").unwrap();
    let team = *model.resource(machine).unwrap().below.first().unwrap();
    assert_eq!(
        model.parameters(team).unwrap(),
        Parameters::Team(Inside::RoundRobin { turn_ns: reserve::model::TURN_NS })
    );
    model.set_parameters(team, Parameters::Team(Inside::By(Policy::EarliestDeadline))).unwrap();
    let job = model.make_job("player", "audio", Some(task(8 * MS, 80 * MS))).unwrap();
    let before = model.clone();
    let error = model.make_job("player", "video", Some(task(13 * MS, 40 * MS))).unwrap_err();
    assert!(matches!(&error, ModelError::Inside { machine, .. } if machine == "player"), "{error}");
    let error = model.adapt(&[("player", of(2 * MS, 40 * MS))]).unwrap_err();
    assert!(matches!(&error, ModelError::Inside { .. }), "{error}");
    // A table needs periods that go together.
    let odd = model.adapt(&[("odd", of(1, 39_999_999)), ("rest", of(MS, 40 * MS))]).unwrap_err();
    assert!(matches!(&odd, ModelError::NoTable { machine, .. } if machine == "player"), "{odd}");
    assert_eq!(model, before);
    model.set_parameters(job, Parameters::Job(None)).unwrap();
    model.adapt(&[("player", of(2 * MS, 40 * MS))]).unwrap();
    model.remove_job("player", "audio").unwrap();
    assert_eq!(model.resource(job), None);
}

#[test]
fn who_is_suspended_keeps_the_promise_and_is_told_to_the_schedule() {
    let mut model = model(1);
    let player = model.make_machine("player", of(16 * MS, 40 * MS)).unwrap();
    model.make_machine("rest", of(24 * MS, 40 * MS)).unwrap();
    let job = model.make_job("player", "decoder", None).unwrap();
    assert!(!model.is_suspended(job).unwrap());
    model.suspend(player).unwrap();
    assert!(model.is_suspended(job).unwrap());
    let schedule = model.schedule();
    assert_eq!((schedule.len(), schedule[0].suspended.as_slice()), (1, &[0][..]));
    assert_eq!(schedule[0].machines, ["player", "rest"]);
    assert_eq!(schedule[0].table.as_ref().unwrap().cycle_ns(), 40 * MS);
    assert!(model.adapt(&[("more", of(1, 40 * MS))]).is_err(), "its time is still promised");
    model.resume(player).unwrap();
    model.suspend(job).unwrap();
    assert!(model.is_suspended(job).unwrap() && !model.is_suspended(player).unwrap());
    let link = model.all().find(|(_, found)| found.kind == Kind::Link).unwrap().0;
    assert!(matches!(model.suspend(link), Err(ModelError::Unfit { .. })));
    assert!(matches!(model.parameters(link), Err(ModelError::Unfit { .. })));
    assert!(matches!(
        model.set_parameters(job, Parameters::Team(Inside::By(Policy::RateMonotonic))),
        Err(ModelError::Unfit { .. })
    ));
}

#[test]
fn processors_come_and_go_and_policies_change_where_all_is_kept() {
    let mut model = model(1);
    model.make_machine("a", of(30, 40)).unwrap();
    assert!(matches!(model.remove_processor(0), Err(ModelError::InUse { .. })));
    assert!(model.make_machine("b", of(30, 40)).is_err());
    assert_eq!(model.add_processor().unwrap(), 1);
    model.make_machine("b", of(30, 40)).unwrap();
    model.expel("a").unwrap();
    model.remove_processor(0).unwrap();
    assert!(model.make_machine("a", of(30, 40)).is_err(), "processor 0 is closed");
    assert_eq!(model.add_processor().unwrap(), 0);
    model.make_machine("a", of(2, 4)).unwrap();
    model.make_machine("c", Wish { affinity: Affinity::only([0]), ..of(3, 6) }).unwrap_err();
    model.set_policy(Rule::new(Policy::EarliestDeadline)).unwrap();
    model.make_machine("c", Wish { affinity: Affinity::only([0]), ..of(3, 6) }).unwrap();
    let before = model.clone();
    model.set_policy(Rule::new(Policy::RateMonotonic)).unwrap_err();
    model.set_policy(Rule { costs: Costs::new(1).unwrap(), ..before.policy() }).unwrap_err();
    let small = Capacity {
        link: Link { rate_bits: 0, ..before.node().capacity().link },
        ..before.node().capacity().clone()
    };
    assert_eq!(model, before);
    model.resize(small).unwrap();
    assert!(model.adapt(&[("a", Wish { network: Some(class(1)), ..of(2, 4) })]).is_err());
}

#[test]
fn what_is_no_name_no_wish_or_unknown_is_refused() {
    let mut model = model(1);
    assert_eq!(model.make_machine("", of(1, 2)).unwrap_err(), ModelError::Name(0));
    assert_eq!(model.make_machine("a", Wish::default()).unwrap_err(), ModelError::Nothing("a".into()));
    model.make_machine("a", of(1, 2)).unwrap();
    assert_eq!(model.make_machine("a", of(1, 2)).unwrap_err(), ModelError::Exists("a".into()));
    assert_eq!(model.expel("b").unwrap_err(), ModelError::NoMachine("b".into()));
    assert!(matches!(model.make_job("b", "x", None), Err(ModelError::NoMachine(_))));
    model.make_job("a", "x", None).unwrap();
    assert!(matches!(model.make_job("a", "x", None), Err(ModelError::JobExists { .. })));
    assert!(matches!(model.remove_job("a", "y"), Err(ModelError::NoJob { .. })));
    assert!(matches!(model.remove_processor(3), Err(ModelError::Adapt(_))));
    let twice = model.adapt(&[("a", of(1, 2)), ("a", of(1, 2))]).unwrap_err();
    assert_eq!(twice, ModelError::Adapt(AdaptError::Twice("a".into())));
}

/// An act on a model.
#[derive(Debug, Clone)]
enum Act {
    Adapt(Vec<(usize, Wish)>),
    Expel(usize),
    Join(usize, usize),
    Leave(usize, usize),
    Add,
    Close(usize),
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const JOBS: [&str; 3] = ["x", "y", "z"];

fn any_wish() -> impl Strategy<Value = Wish> {
    let wanted = (prop::sample::select(vec![10_u64, 20, 30, 40]), 1_u64..9);
    let network = prop::option::of((1_u64..6_000_000).prop_map(class));
    (prop::option::of(wanted), network, 0_u64..1 << 29, 0_u64..3, prop::option::of(0_usize..3)).prop_map(
        |(wanted, network, memory_bytes, bytes, only)| Wish {
            task: wanted.map(|(period, tenths)| task(period * tenths / 10, period)),
            affinity: only.map_or(Affinity::ANY, |number| Affinity::only([number])),
            network,
            memory_bytes,
            disk: Disk { bytes, operations: 0 },
        },
    )
}

fn any_act() -> impl Strategy<Value = Act> {
    let name = || 0..NAMES.len();
    prop_oneof![
        4 => prop::collection::vec((name(), any_wish()), 1..4).prop_map(Act::Adapt),
        1 => name().prop_map(Act::Expel),
        2 => (name(), 0..JOBS.len()).prop_map(|(name, job)| Act::Join(name, job)),
        1 => (name(), 0..JOBS.len()).prop_map(|(name, job)| Act::Leave(name, job)),
        1 => Just(Act::Add),
        1 => (0_usize..3).prop_map(Act::Close),
    ]
}

fn perform(model: &mut Model, act: &Act) -> Result<(), ModelError> {
    match act {
        Act::Adapt(changes) => {
            let changes: Vec<(&str, Wish)> =
                changes.iter().map(|(name, wish)| (NAMES[*name], *wish)).collect();
            model.adapt(&changes)
        }
        Act::Expel(name) => model.expel(NAMES[*name]),
        Act::Join(name, job) => model.make_job(NAMES[*name], JOBS[*job], None).map(drop),
        Act::Leave(name, job) => model.remove_job(NAMES[*name], JOBS[*job]),
        Act::Add if model.node().capacity().processors > 2 => Ok(()),
        Act::Add => model.add_processor().map(drop),
        Act::Close(number) => model.remove_processor(*number),
    }
}

/// Every edge is known at both ends and goes down; machines are those that are promised something,
/// each once; who has a processor is above it, and nobody else.
fn is_sound(model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(model.node().check_all(), Ok(()));
    for (id, resource) in model.all() {
        for below in &resource.below {
            let other = model.resource(*below);
            prop_assert!(other.is_some_and(|other| other.above.contains(&id)), "{} {}", id, below);
            prop_assert!(other.is_some_and(|other| other.kind.level() < resource.kind.level()));
        }
        for above in &resource.above {
            prop_assert!(model.resource(*above).is_some_and(|other| other.below.contains(&id)));
        }
        let topmost = resource.above.is_empty();
        prop_assert!(topmost || resource.kind != Kind::Machine);
        prop_assert!(
            !topmost || matches!(resource.kind.level(), Level::Machine | Level::Node),
            "{:?}",
            resource
        );
    }
    let machines: Vec<&str> = model.machines().collect();
    let promised: Vec<&str> = model.node().promises().map(|(name, _)| name).collect();
    prop_assert_eq!(&machines, &promised);
    for name in machines {
        let machine = model.machine(name).unwrap();
        let named =
            model.all().filter(|(_, found)| found.kind == Kind::Machine && found.name == name).count();
        prop_assert_eq!(named, 1);
        let promise = model.node().promise(name).unwrap();
        for number in 0..model.node().capacity().processors {
            let stands_on = model.below(machine).contains(&model.processor(number).unwrap());
            prop_assert_eq!(stands_on, promise.processor.is_some_and(|(own, _)| own == number));
        }
        let has = |kind| kinds(model, &model.resources(name).unwrap()).contains(&kind);
        prop_assert_eq!(has(Kind::Link), promise.network.is_some());
        prop_assert_eq!(has(Kind::Memory), promise.memory_bytes > 0);
        prop_assert_eq!(has(Kind::Disk), promise.disk != Disk::default());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    /// Whatever is done to it, in whatever order.
    #[test]
    fn a_model_stays_sound_and_what_is_refused_changes_nothing(
        acts in prop::collection::vec(any_act(), 1..24),
        policy in prop::sample::select(Policy::ALL.to_vec()),
        heuristic in prop::sample::select(vec![Heuristic::FirstFit, Heuristic::BestFit, Heuristic::WorstFit, Heuristic::NextFit]),
    ) {
        let mut model = Model::new(capacity(2, policy), heuristic).unwrap();
        for act in acts {
            let before = model.clone();
            if perform(&mut model, &act).is_err() {
                prop_assert_eq!(&model, &before);
            }
            is_sound(&model)?;
        }
    }
}

fn team(policy: Policy, jobs: &[(&str, u64, u64, u64)]) -> Team {
    let job = |(name, budget, period, deadline): &(&str, u64, u64, u64)| {
        ((*name).to_owned(), task(budget * MS, period * MS).with_deadline(deadline * MS).unwrap())
    };
    Team { inside: Inside::By(policy), jobs: jobs.iter().map(job).collect() }
}

#[test]
fn jobs_are_admitted_with_their_machine_by_the_table_and_refused_by_name() {
    let mut model = model(1);
    let teams = |team: Team| BTreeMap::from([("film/gold".to_owned(), team)]);
    let (gold, rest) = (of(8 * MS, 40 * MS), of(20 * MS, 80 * MS));
    let both = [("film/gold", gold), ("film/rest", rest)];
    // Two releases of `fast` fall into the time without slots, so the slow one is late behind them.
    let jobs = team(Policy::RateMonotonic, &[("fast", 4, 40, 40), ("slow", 5, 80, 45)]);
    let error = model.admit_teams(&both, teams(jobs)).unwrap_err();
    let words = error.to_string();
    assert!(
        words.contains("inside `film/gold`: job `slow` would take 77 ms of its 45 ms (rate-monotonic)")
            && words.contains("it would pass with a budget of 4 ms for job `slow` instead of 5 ms"),
        "{words}"
    );
    assert_eq!((model.machine("film/gold"), model.machine("film/rest")), (None, None));
    // The same jobs by their deadlines.
    let jobs = team(Policy::RateMonotonic, &[("fast", 4, 40, 40), ("slow", 4, 80, 80)]);
    let admitted = model.admit_teams(&both, teams(jobs)).unwrap();
    model.commit(admitted).unwrap();
    let timed = model.timed("film/gold");
    let told: Vec<(&str, Option<Response>)> =
        timed.iter().map(|timed| (timed.name.as_str(), timed.response)).collect();
    assert_eq!(told[0], ("fast", Some(Response::Within(36 * MS))));
    assert!(matches!(told[1], ("slow", Some(Response::Within(ns))) if ns <= 80 * MS), "{told:?}");
    let below = model.resources("film/gold").unwrap();
    assert_eq!(kinds(&model, &below).iter().filter(|kind| **kind == Kind::Job).count(), 2);
    // Less for the machine is refused while its jobs want it, and another team is another matter.
    let error = model.adapt(&[("film/gold", of(5 * MS, 40 * MS))]).unwrap_err();
    assert!(matches!(&error, ModelError::Inside { .. }), "{error}");
    let fewer = teams(team(Policy::EarliestDeadline, &[("fast", 4, 40, 40)]));
    let admitted = model.admit_teams(&[("film/gold", of(6 * MS, 40 * MS))], fewer).unwrap();
    model.commit(admitted).unwrap();
    assert_eq!(model.timed("film/gold").iter().map(|timed| timed.response).collect::<Vec<_>>(), [None]);
    assert_eq!(model.timed("film/rest"), []);
    model.expel("film/gold").unwrap();
    assert!(model.all().all(|(_, resource)| resource.kind != Kind::Job));
}
