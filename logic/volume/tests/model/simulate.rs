//! Thousands of runs of larger worlds, each from its seed.

use crate::choices::Choice;
use crate::world::{Broken, Config, Role, World};

const SEEDS: u64 = 10_000;
const STEPS: u32 = 600;

/// A splitmix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// The weight of an event, frequent or rare: a world in which everything breaks at once
/// acknowledges nothing.
fn weight(choice: &Choice) -> usize {
    match choice {
        Choice::Deliver(_) | Choice::DiskDone(..) => 40,
        Choice::Write(..) | Choice::Claim(_) | Choice::Connect(..) | Choice::PowerBack(_) => 10,
        Choice::LeaseOver(_) | Choice::LeaseAgain(_) | Choice::HoldAgain(_) | Choice::AskAgain(_) => 6,
        Choice::Watch(_) | Choice::Double(_) | Choice::HoldEnds(_) => 2,
        Choice::Drop(_)
        | Choice::GiveUp(..)
        | Choice::PowerLost(..)
        | Choice::DiskFails(..)
        | Choice::Release(_) => 1,
    }
}

fn pick<'a>(random: &mut Random, choices: &'a [Choice]) -> Option<&'a Choice> {
    let total: usize = choices.iter().map(weight).sum();
    let mut at = random.below(total.max(1));
    choices.iter().find(|choice| {
        let weight = weight(choice);
        let here = at < weight;
        at = at.saturating_sub(weight);
        here
    })
}

/// How much came of a run.
#[derive(Debug, Default)]
struct Came {
    acknowledged: usize,
    views: u64,
    rejoined: u64,
}

fn run(seed: u64, broken: Option<Broken>) -> Result<Came, String> {
    let mut random = Random(seed);
    let nodes = 2 + random.below(2) as u16;
    let config = Config { nodes, extents: 3, writes: 60, faults: 8, doubles: 8, attempts: 60, broken };
    let mut world = World::new(config);
    let mut came = Came::default();
    let mut before = world.record.current.len();
    for step in 0..STEPS {
        let choices = world.choices();
        let Some(choice) = pick(&mut random, &choices) else { break };
        world.apply(choice).map_err(|why| format!("seed {seed}, step {step}, {choice:?}: {why}"))?;
        came.rejoined += u64::from(world.record.current.len() > before);
        before = world.record.current.len();
    }
    came.views = world.record.view;
    came.acknowledged = world.acknowledged.iter().filter(|value| **value != (0, 0)).count();
    Ok(came)
}

#[test]
fn over_thousands_of_seeds_no_acknowledged_write_is_lost() {
    let mut all = Came::default();
    for seed in 0..SEEDS {
        let came = run(seed, None).unwrap_or_else(|why| panic!("{why}"));
        all.acknowledged += came.acknowledged;
        all.views += came.views;
        all.rejoined += came.rejoined;
    }
    println!("{SEEDS} seeds: {all:?}");
    // The runs are no runs of nothing: writes are acknowledged, primaries replaced, replicas
    // resynced.
    assert!(all.acknowledged as u64 > SEEDS && all.views > 2 * SEEDS && all.rejoined > SEEDS / 2, "{all:?}");
}

#[test]
fn a_clock_that_lies_lets_old_data_be_read_and_loses_nothing() {
    for seed in 0..SEEDS / 5 {
        run(seed, Some(Broken::LyingClock)).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn the_checks_notice_each_rule_that_is_broken() {
    for broken in [Broken::OpensUnquiet, Broken::ClaimsUnquiet] {
        let found = (0..SEEDS).find_map(|seed| run(seed, Some(broken)).err());
        println!("{broken:?}: {found:?}");
        assert!(found.is_some(), "{broken:?} is not noticed");
    }
}

#[test]
fn a_quiet_world_ends_with_all_replicas_current() {
    let config =
        Config { nodes: 3, extents: 2, writes: 10, faults: 0, doubles: 0, attempts: 1000, broken: None };
    for seed in 0..SEEDS / 50 {
        let mut random = Random(seed);
        let mut world = World::new(config);
        for _ in 0..2 * STEPS {
            let choices: Vec<Choice> = world
                .choices()
                .into_iter()
                .filter(|choice| {
                    !matches!(choice, Choice::Release(_) | Choice::Watch(_) | Choice::AskAgain(_))
                })
                .collect();
            let Some(choice) = pick(&mut random, &choices) else { break };
            world.apply(choice).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        assert_eq!(world.record.current.len(), 3, "seed {seed}");
        let primary = world.hosts.values().any(|host| matches!(host.role, Role::Primary(_)));
        assert!(primary, "seed {seed}: nobody is primary");
    }
}
