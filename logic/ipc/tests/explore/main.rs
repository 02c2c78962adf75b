//! The machine that ships, explored: two or three endpoints, each with a script of a few calls,
//! every order of every access to what they share, times that run out and endpoints that die at any
//! point. The reference must allow each outcome: a kernel in the middle that does one thing at a
//! time. So a lost wake-up shows (a call that never ends), and so do a message received though its
//! sender was told that it was not, a deadlock that is not reported, or reported to two, or to one
//! who was in none.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]
#![allow(
    deprecated,
    reason = "the generator's scope can't be handed to the links, which is where the steps are"
)]

mod drive;
mod long;
mod reference;
mod script;
mod stand;
mod world;

use drive::{Scene, explore};
use script::Op::{Buffered, Notify, ReceiveAny, ReceiveOne, Relay, Reply, Request, Send};
use script::{Call, Outcome, Outcomes};

/// A ring whose window is nine records without payload.
const NINE: u32 = 768;

fn scene(scripts: &[&[Call]]) -> Scene {
    let scripts = scripts.iter().map(|script| script.to_vec()).collect();
    Scene {
        scripts,
        mortal: None,
        searching: false,
        labels: [1, 2, 3],
        ring_bytes: NINE,
        interruptions: MANY,
        far: false,
    }
}

/// Explores a scene, and returns what came of it.
fn check(scene: &Scene) -> Vec<Outcomes> {
    let allowed = reference::allowed(scene);
    let explored = explore(scene);
    println!(
        "{} states, {} steps, {} outcomes of {} allowed: {:?}",
        explored.states,
        explored.steps,
        explored.outcomes.len(),
        allowed.len(),
        scene.scripts
    );
    for (outcomes, way) in &explored.outcomes {
        let mut shown = outcomes.clone();
        for done in shown.iter_mut().filter(|done| done.last() == Some(&Outcome::Died)) {
            *done = vec![Outcome::Died];
        }
        if !allowed.contains(&shown) {
            // (The generator's hook keeps the texts of panics to itself.)
            println!("{scene:?}\n came to {outcomes:?}\n by {way:?}\n allowed is {allowed:#?}");
            panic!("the reference does not allow what came of a scene");
        }
    }
    assert!(!explored.outcomes.is_empty());
    explored.outcomes.into_keys().collect()
}

/// Two endpoints: every order. Without optimization that takes too long for each day.
const MANY: Option<u8> = if cfg!(debug_assertions) { Some(2) } else { None };
/// Three endpoints make too many steps for every order. Most faults need few interruptions.
const SOME: Option<u8> = if cfg!(debug_assertions) { Some(1) } else { Some(2) };

fn check_some(scene: Scene) -> Vec<Outcomes> {
    check(&Scene { interruptions: SOME, ..scene })
}

fn is_deadlock(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Deadlock { .. })
}

/// How many calls ended with a deadlock.
fn deadlocks(outcomes: &Outcomes) -> usize {
    outcomes.iter().flatten().filter(|outcome| is_deadlock(outcome)).count()
}

#[test]
fn a_rendezvous_is_received_or_withdrawn() {
    let found = check(&scene(&[&[Send(1).timed()], &[ReceiveAny.timed()]]));
    assert_eq!(found.len(), 2, "both or neither: {found:?}");
}

#[test]
fn a_rendezvous_that_nobody_interrupts_is_received() {
    let found = check(&scene(&[
        &[Send(1).patient(), Send(1).patient()],
        &[ReceiveAny.patient(), ReceiveAny.patient()],
    ]));
    assert_eq!(found.len(), 1);
}

#[test]
fn a_withdrawn_message_is_skipped() {
    check(&scene(&[&[Send(1).timed(), Send(1).patient()], &[ReceiveAny.patient()]]));
    check(&scene(&[&[Send(1).timed(), Buffered(1).patient()], &[ReceiveAny.patient(), ReceiveAny.timed()]]));
}

#[test]
fn a_window_is_waited_for() {
    let script = [Buffered(1).patient(); 11];
    let found = check(&scene(&[&script, &[ReceiveAny.patient(); 11]]));
    assert_eq!(found.len(), 1);
}

#[test]
fn notices_come_together_and_none_is_lost() {
    check(&scene(&[
        &[Notify(1, 1).patient(), Notify(1, 2).patient()],
        &[ReceiveAny.patient(), ReceiveAny.timed()],
    ]));
    check(&scene(&[
        &[Notify(2, 1).patient(), Buffered(2).patient()],
        &[Notify(2, 2).patient()],
        &[ReceiveAny.patient(), ReceiveAny.patient(), ReceiveAny.patient()],
    ]));
}

#[test]
fn a_request_is_answered_once_or_given_up() {
    check(&scene(&[&[Request(1).patient()], &[ReceiveAny.patient(), Reply.patient(), Reply.patient()]]));
    check(&scene(&[&[Request(1).timed(), Request(1).timed()], &[ReceiveAny.patient(), Reply.patient()]]));
    check(&scene(&[
        &[Request(1).timed(), Request(1).patient()],
        &[ReceiveAny.patient(), Reply.patient(), ReceiveAny.timed(), Reply.patient()],
    ]));
}

#[test]
fn what_is_in_front_of_a_reply_is_received_later() {
    check(&scene(&[
        &[Request(1).patient(), ReceiveAny.patient()],
        &[Buffered(0).patient(), ReceiveAny.patient(), Reply.patient()],
    ]));
    check(&scene(&[
        &[Request(1).timed(), ReceiveAny.timed()],
        &[Send(0).timed(), ReceiveAny.patient(), Reply.patient()],
    ]));
}

#[test]
fn whoever_dies_is_missed_by_nobody_for_long() {
    for mortal in [0, 1] {
        for other in [&[ReceiveAny.patient(), Reply.patient()], &[ReceiveOne(0).patient(), Reply.patient()]] {
            for call in [Send(1), Request(1)] {
                check(&Scene { mortal: Some(mortal), ..scene(&[&[call.patient()], other]) });
            }
        }
    }
}

#[test]
fn two_that_send_to_each_other_are_a_deadlock_for_one() {
    for one in [Send(1), Request(1), ReceiveOne(1)] {
        for other in [Send(0), Request(0), ReceiveOne(0)] {
            let scripts: [&[Call]; 2] = [&[one.patient()], &[other.patient()]];
            let found = check(&Scene { searching: true, ..scene(&scripts) });
            let receives = matches!(one, ReceiveOne(_)) != matches!(other, ReceiveOne(_));
            assert!(found.iter().all(|outcomes| deadlocks(outcomes) == usize::from(!receives)), "{found:?}");
        }
    }
}

#[test]
fn a_deadlock_ends_with_a_time_out_just_as_well() {
    check(&Scene { searching: true, ..scene(&[&[Send(1).timed()], &[Send(0).timed()]]) });
    check(&Scene { searching: true, ..scene(&[&[Send(1).timed()], &[Request(0).patient()]]) });
}

/// One call ends: that of the greatest label.
#[test]
fn three_that_wait_in_a_circle_are_a_deadlock_for_one() {
    for labels in [[1, 2, 3], [3, 1, 2]] {
        let scripts: [&[Call]; 3] = [&[Send(1).patient()], &[Send(2).patient()], &[Send(0).patient()]];
        let found = check(&Scene { searching: true, interruptions: SOME, labels, ..scene(&scripts) });
        assert!(found.iter().all(|outcomes| deadlocks(outcomes) == 1), "{found:?}");
    }
}

#[test]
fn whoever_waits_for_a_deadlock_is_in_none() {
    let scripts: [&[Call]; 3] = [&[Send(1).patient()], &[Send(0).patient()], &[Send(0).patient()]];
    let found =
        check(&Scene { searching: true, interruptions: Some(1), labels: [1, 2, 3], ..scene(&scripts) });
    assert!(found.iter().all(|outcomes| !is_deadlock(&outcomes[2][0])), "{found:?}");
}

#[test]
fn a_request_that_is_passed_on_is_answered_by_the_third() {
    let relays: &[Call] = &[ReceiveAny.patient(), Relay(2).patient()];
    let answers: &[Call] = &[ReceiveAny.patient(), Reply.patient()];
    let found = check_some(scene(&[&[Request(1).patient()], relays, answers]));
    assert_eq!(found.len(), 1);
    check_some(scene(&[&[Request(1).timed()], relays, answers]));
    for mortal in 0..3 {
        check(&Scene {
            mortal: Some(mortal),
            interruptions: SOME,
            ..scene(&[&[Request(1).patient()], relays, answers])
        });
    }
}

#[test]
fn two_that_send_to_a_third_are_both_received() {
    let scripts: [&[Call]; 3] =
        [&[Send(2).patient()], &[Buffered(2).patient()], &[ReceiveAny.patient(), ReceiveAny.patient()]];
    check_some(scene(&scripts));
}

/// Four parties make even more.
const FEW: Option<u8> = if cfg!(debug_assertions) { Some(0) } else { Some(1) };

/// On two nodes, with those that stand in between: what comes of it, the same reference allows.
fn check_far(scripts: &[&[Call]], searching: bool, mortal: Option<usize>) -> Vec<Outcomes> {
    check(&Scene { far: true, searching, mortal, interruptions: FEW, ..scene(scripts) })
}

#[test]
fn between_two_nodes_a_rendezvous_is_received_or_withdrawn() {
    let found = check_far(&[&[Send(1).timed()], &[ReceiveAny.timed()]], false, None);
    assert_eq!(found.len(), 2, "both or neither: {found:?}");
    check_far(
        &[&[Send(1).patient(), Send(1).timed()], &[ReceiveAny.patient(), ReceiveAny.timed()]],
        false,
        None,
    );
    check_far(&[&[Send(1).timed(), Send(1).patient()], &[ReceiveAny.patient()]], false, None);
    check_far(&[&[Send(1).timed(), Buffered(1).patient()], &[ReceiveAny.patient()]], false, None);
}

#[test]
fn between_two_nodes_a_window_is_waited_for() {
    let found = check_far(&[&[Buffered(1).patient(); 11], &[ReceiveAny.patient(); 11]], false, None);
    assert_eq!(found.len(), 1);
}

#[test]
fn between_two_nodes_a_request_is_answered_once_or_given_up() {
    check_far(
        &[&[Request(1).patient()], &[ReceiveAny.patient(), Reply.patient(), Reply.patient()]],
        false,
        None,
    );
    check_far(
        &[&[Request(1).timed(), Request(1).timed()], &[ReceiveAny.patient(), Reply.patient()]],
        false,
        None,
    );
    let scripts: [&[Call]; 2] = [
        &[Request(1).patient(), ReceiveAny.patient()],
        &[Buffered(0).patient(), ReceiveAny.patient(), Reply.patient()],
    ];
    check_far(&scripts, false, None);
}

#[test]
fn between_two_nodes_notices_come_behind_what_was_sent_before() {
    let found = check_far(
        &[
            &[Buffered(1).patient(), Notify(1, 1).patient(), Notify(1, 2).patient()],
            &[ReceiveAny.patient(), ReceiveAny.patient(), ReceiveAny.timed()],
        ],
        false,
        None,
    );
    assert!(!found.is_empty());
}

#[test]
fn between_two_nodes_whoever_dies_is_missed_by_nobody_for_long() {
    for mortal in [0, 1] {
        for call in [Send(1), Request(1)] {
            check_far(&[&[call.patient()], &[ReceiveAny.patient(), Reply.patient()]], false, Some(mortal));
        }
    }
}

#[test]
fn between_two_nodes_two_that_wait_for_each_other_are_a_deadlock_for_one() {
    for one in [Send(1), Request(1), ReceiveOne(1)] {
        for other in [Send(0), Request(0), ReceiveOne(0)] {
            let scripts: [&[Call]; 2] = [&[one.patient()], &[other.patient()]];
            let found = check_far(&scripts, true, None);
            let receives = matches!(one, ReceiveOne(_)) != matches!(other, ReceiveOne(_));
            assert!(found.iter().all(|outcomes| deadlocks(outcomes) == usize::from(!receives)), "{found:?}");
        }
    }
    check_far(&[&[Send(1).timed()], &[Send(0).timed()]], true, None);
}
