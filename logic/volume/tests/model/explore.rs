//! Every order of every step, at small sizes.

use crate::choices::Choice;
use crate::world::{Body, Broken, Config, World};
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use volume::Node;

/// Two nodes, one extent.
const SMALL: Config =
    Config { nodes: 2, extents: 1, writes: 1, faults: 1, doubles: 0, attempts: 2, broken: None };

/// More states than any of these worlds has: a rule that lets states grow without end is noticed.
const MAX_STATES: usize = 6_000_000;

/// Visits all states; the number of them, or what went wrong.
fn explore(config: Config) -> Result<usize, String> {
    let hashers = (RandomState::new(), RandomState::new());
    let mark = |world: &World| (hashers.0.hash_one(world), hashers.1.hash_one(world));
    let first = World::new(config);
    let mut seen = HashSet::from([mark(&first)]);
    let mut next = VecDeque::from([first]);
    while let Some(world) = next.pop_front() {
        for choice in world.choices() {
            let mut after = world.clone();
            after.apply(&choice).map_err(|why| format!("{why}; at {choice:?} of {world:#?}"))?;
            if seen.insert(mark(&after)) {
                next.push_back(after);
            }
        }
        assert!(seen.len() < MAX_STATES, "the world is not small");
    }
    Ok(seen.len())
}

#[test]
fn in_every_order_no_acknowledged_write_is_lost_and_no_two_views_acknowledge_at_once() {
    for config in [SMALL, Config { writes: 2, faults: 0, doubles: 1, ..SMALL }] {
        let states = explore(config).unwrap_or_else(|why| panic!("{why}"));
        println!("{config:?}: {states} states");
        assert!(states > 1000, "{states}");
    }
}

#[test]
fn a_clock_that_lies_loses_nothing_in_any_order() {
    let lying = Config { broken: Some(Broken::LyingClock), ..SMALL };
    explore(lying).unwrap_or_else(|why| panic!("{why}"));
}

/// A replica of an earlier view, and a request for a session that arrives late: after the backup
/// became primary, acknowledged, and lost power. A backup that does not know of its own view lets
/// the old primary write over what it acknowledged.
fn a_late_request_for_a_session(broken: Option<Broken>) -> Result<(), String> {
    let (old, new) = (Node(1), Node(2));
    let mut world = World::new(Config { writes: 2, faults: 2, attempts: 9, broken, ..SMALL });
    let arrives = |world: &mut World, wanted: fn(&Body) -> bool| {
        let at = world.net.iter().position(|message| wanted(&message.body));
        at.map_or(Ok(()), |at| world.apply(&Choice::Deliver(at)))
    };
    let is_change = |body: &Body| matches!(body, Body::Change(..));
    let is_news = |body: &Body| matches!(body, Body::News(..));
    for node in [old, new] {
        world.apply(&Choice::Claim(node))?;
        arrives(&mut world, is_change)?;
        arrives(&mut world, is_news)?;
        if node == old {
            world.apply(&Choice::HoldEnds(old))?;
            world.apply(&Choice::LeaseOver(old))?;
        }
    }
    world.apply(&Choice::Write(new, 0))?;
    world.apply(&Choice::DiskDone(new, 0))?;
    assert_eq!(world.acknowledged[0].0, 2, "the second view has acknowledged a write");
    world.apply(&Choice::PowerLost(new, 0))?;
    world.apply(&Choice::PowerBack(new))?;
    arrives(&mut world, |body| *body == Body::Open(1))?;
    arrives(&mut world, |body| matches!(body, Body::Opened(_)))?;
    world.apply(&Choice::Write(old, 0))?;
    arrives(&mut world, |body| matches!(body, Body::Store { value: (1, _), .. }))?;
    let disk = world.hosts[&new].pending.is_empty();
    if disk { Ok(()) } else { world.apply(&Choice::DiskDone(new, 0)) }
}

#[test]
fn a_node_that_starts_again_lets_no_primary_of_an_earlier_view_write() {
    a_late_request_for_a_session(None).unwrap_or_else(|why| panic!("{why}"));
    let found = a_late_request_for_a_session(Some(Broken::ForgetsView));
    assert!(found.is_err(), "the rule is not needed, or the world does not show that it is");
}
