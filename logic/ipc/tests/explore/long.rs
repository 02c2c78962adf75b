//! Longer scripts of three endpoints than can be explored: one random way through each, and what
//! must hold at its end whatever it was.

use proptest::prelude::*;
use proptest::sample::Index;

use crate::drive::{Scene, walk};
use crate::script::{Call, Op, Outcome, Outcomes, tag};

/// A call of one of two endpoints, to the other.
fn far_call(me: usize) -> impl Strategy<Value = Call> {
    (0_u8..9, any::<bool>()).prop_map(move |(kind, timed)| {
        let op = match kind {
            0 | 1 => Op::Send(1 - me),
            2 => Op::Buffered(1 - me),
            3 | 4 => Op::Request(1 - me),
            5 => Op::ReceiveAny,
            6 => Op::ReceiveOne(1 - me),
            7 => Op::Notify(1 - me, 1),
            _ => Op::Reply,
        };
        Call { op, timed }
    })
}

/// A call of endpoint `me`; a message to itself becomes one to the next.
fn call(me: usize) -> impl Strategy<Value = Call> {
    let other = (0_usize..2).prop_map(move |other| (me + 1 + other) % 3);
    (0_u8..8, other, any::<bool>()).prop_map(|(kind, other, timed)| {
        let op = match kind {
            0 => Op::Send(other),
            1 => Op::Buffered(other),
            2 => Op::Request(other),
            3 | 4 => Op::ReceiveAny,
            5 => Op::ReceiveOne(other),
            _ => Op::Reply,
        };
        Call { op, timed }
    })
}

fn script(me: usize) -> impl Strategy<Value = Vec<Call>> {
    prop::collection::vec(call(me), 1..12)
}

/// How often a message was received.
fn received(outcomes: &[Outcome], source: usize, wanted: u32) -> usize {
    let is_it = |outcome: &&Outcome| match outcome {
        Outcome::Message { source: from, tag } | Outcome::Request { source: from, tag } => {
            (*from, *tag) == (source, wanted)
        }
        _ => false,
    };
    outcomes.iter().filter(is_it).count()
}

/// A message was received as often as its sender was told.
fn check_message(scripts: &[Vec<Call>], outcomes: &Outcomes, me: usize, index: usize, lost: bool) {
    let (op, outcome) = (scripts[me][index].op, outcomes[me][index]);
    let (Op::Send(to) | Op::Buffered(to) | Op::Request(to)) = op else { return };
    let times = received(&outcomes[to], me, tag(me, index));
    // Whoever died may have received it, and never said so.
    let died = outcomes[to].contains(&Outcome::Died);
    let right = match (op, outcome) {
        (Op::Buffered(_), Outcome::Done) => times <= 1,
        (_, Outcome::Done | Outcome::Reply { .. }) => times == 1 || died,
        (_, Outcome::TimedOut { received } | Outcome::Deadlock { received }) => {
            times == usize::from(received) || died && received
        }
        // Who stood in for it has died: nobody knows.
        (_, Outcome::Dead) => died || lost && times <= 1,
        (_, Outcome::Blocked | Outcome::Died) => times <= 1,
        _ => false,
    };
    assert!(right, "endpoint {me}, call {index}: {outcome:?}, received {times} times");
}

/// Nobody sleeps who could go on, and no cycle is left.
fn check_sleepers(scripts: &[Vec<Call>], outcomes: &Outcomes) {
    let blocked = |me: usize| {
        let last = outcomes[me].len().checked_sub(1)?;
        (outcomes[me][last] == Outcome::Blocked).then(|| scripts[me][last].op)
    };
    for me in 0..scripts.len() {
        let mut at = me;
        for _ in 0..scripts.len() {
            let Some(target) = blocked(at).and_then(Op::target) else { break };
            assert_ne!(target, me, "endpoint {me} waits for itself");
            at = target;
        }
        if let Some(Op::Send(to) | Op::Buffered(to) | Op::Request(to)) = blocked(me) {
            let listens = match blocked(to) {
                Some(Op::ReceiveAny) => true,
                Some(Op::ReceiveOne(from)) => from == me,
                _ => false,
            };
            let taken = outcomes[me]
                .len()
                .checked_sub(1)
                .is_some_and(|last| received(&outcomes[to], me, tag(me, last)) == 1);
            assert!(!listens || taken, "endpoint {to} sleeps although {me} waits to be received");
        }
    }
}

fn check_order(outcomes: &Outcomes) {
    for done in outcomes {
        let mut last = [None; 3];
        for outcome in done {
            if let Outcome::Message { source, tag } | Outcome::Request { source, tag } = *outcome {
                assert!(last[source] < Some(tag), "from {source}: {tag} after {:?}", last[source]);
                last[source] = Some(tag);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 500 } else { 5_000 }))]

    #[test]
    fn long_scripts_keep_what_short_ones_promise(
        scripts in (script(0), script(1), script(2)),
        ways in prop::collection::vec(any::<Index>(), 64..2_000),
        mortal in prop::option::weighted(0.3, 0_usize..3),
        labels in Just([1, 2, 3]).prop_shuffle(),
    ) {
        let scripts = vec![scripts.0, scripts.1, scripts.2];
        let scene = Scene { scripts: scripts.clone(), mortal, searching: true, labels, ring_bytes: crate::NINE, interruptions: None, far: false };
        let mut step = 0;
        let outcomes = walk(&scene, |count| {
            step += 1;
            assert!(step < 100_000, "it does not end");
            ways[step % ways.len()].index(count)
        });
        check_order(&outcomes);
        check_sleepers(&scripts, &outcomes);
        for (me, done) in outcomes.iter().enumerate() {
            assert!(!done.contains(&Outcome::Wrong), "{outcomes:?}");
            for index in 0..done.len() {
                check_message(&scripts, &outcomes, me, index, false);
            }
        }
    }

    #[test]
    fn long_scripts_on_two_nodes_keep_it_too(
        scripts in (prop::collection::vec(far_call(0), 1..12), prop::collection::vec(far_call(1), 1..12)),
        ways in prop::collection::vec(any::<Index>(), 64..2_000),
        mortal in prop::option::weighted(0.3, 0_usize..4),
        labels in Just([1, 2, 3]).prop_shuffle(),
    ) {
        let scripts = vec![scripts.0, scripts.1];
        let scene = Scene { scripts: scripts.clone(), mortal, searching: true, labels, ring_bytes: crate::NINE, interruptions: None, far: true };
        let mut step = 0;
        let outcomes = walk(&scene, |count| {
            step += 1;
            assert!(step < 100_000, "it does not end");
            ways[step % ways.len()].index(count)
        });
        check_order(&outcomes);
        check_sleepers(&scripts, &outcomes);
        for (me, done) in outcomes.iter().enumerate() {
            assert!(!done.contains(&Outcome::Wrong), "{outcomes:?}");
            for index in 0..done.len() {
                check_message(&scripts, &outcomes, me, index, mortal.is_some_and(|mortal| mortal > 1));
            }
        }
    }
}
