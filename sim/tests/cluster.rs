//! Thousands of clusters, each from its seed.

use sim::cluster::world::{Came, Planted};

/// Seeds of an ordinary run: some 15 s of one processor.
const SEEDS: u64 = 1_000;
/// Of these, one shows each fault that is put in.
const FINDS: u64 = 1_000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs `SIM_SEED` alone, or `SIM_SEEDS` from the first on.
fn seeds() -> std::ops::Range<u64> {
    match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIM_SEEDS").unwrap_or(SEEDS),
    }
}

#[test]
fn a_cluster_keeps_its_promises_whatever_happens_to_it() {
    let mut all = Came::default();
    let seeds = seeds();
    for seed in seeds.clone() {
        let ended = sim::cluster::run(seed, None, false);
        if let Some(why) = ended.failure {
            panic!("seed {seed}: {why}; `cargo run -p sim -- --seed {seed}` tells its story");
        }
        all.add(&ended.came);
    }
    println!("seeds {seeds:?}: {all:?}");
    let count = seeds.end - seeds.start;
    // The runs are no runs of nothing.
    if count >= 100 {
        assert!(all.elsewhere > count && all.fenced > count && all.moves > count / 4, "{all:?}");
        assert!(all.ended_by_suspicion > count / 20, "{all:?}");
        assert!(all.answers > 50 * count && all.grants > 3 * count, "{all:?}");
        assert!(all.received > 40 * count && all.replies > 10 * count, "{all:?}");
    }
}

/// Rules that the product keeps, broken one by one.
#[test]
fn each_rule_that_is_broken_on_purpose_is_found_out() {
    let rules = [
        Planted::HastyHeir,
        Planted::RudeClaim,
        Planted::DeafMonitor,
        Planted::EarlyAnswer,
        Planted::LyingCaller,
    ];
    for planted in rules {
        let found =
            (0..FINDS).find_map(|seed| Some((seed, sim::cluster::run(seed, Some(planted), false).failure?)));
        println!("{planted:?}: {found:?}");
        assert!(found.is_some(), "{planted:?} is not found");
    }
}

/// A daemon had read that it has a claim, stood still or was cut off until another node had it,
/// took a new lease, and went on with the start: two ran. Another counted the lapses of its hold
/// from after one, took its domain's end for a failed start, and never started it again.
#[test]
fn what_the_product_once_got_wrong_is_found_out() {
    let planted = Some(Planted::StaleStart);
    let found = (0..SEEDS).find_map(|seed| Some((seed, sim::cluster::run(seed, planted, false).failure?)));
    println!("{planted:?}: {found:?}");
    let (seed, _) = found.expect("it is found");
    assert_eq!(sim::cluster::run(seed, None, false).failure, None, "seed {seed} fails as it is mended");
}

#[test]
fn a_seed_gives_one_story() {
    let tell = || {
        let ended = sim::cluster::run(7, None, true);
        (ended.story, ended.came, ended.failure)
    };
    assert_eq!(tell(), tell());
}
