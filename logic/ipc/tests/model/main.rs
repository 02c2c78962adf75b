//! The state machine that ships, model-checked: two endpoints over the words of one pair, in every
//! interleaving and every legal reordering, up to some preemptions. `tests/explore` takes memory to
//! be sequentially consistent; here it is what the orderings of `docs/spec/ipc.md` make of it.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p ipc --release --test model`. A lost wake-up shows
//! as a deadlock of the model's threads.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test may")]

mod scenes;
mod weakened;
mod world;

use scenes::Scene;

#[test]
fn a_rendezvous_wakes_whoever_sleeps() {
    Scene::Rendezvous.check();
}

#[test]
fn a_rendezvous_whose_time_runs_out_is_received_or_not_and_both_know() {
    Scene::Late.check();
}

#[test]
fn a_request_is_answered() {
    Scene::Request.check();
}

#[test]
fn a_notice_wakes_whoever_sleeps() {
    Scene::Notice.check();
}

#[test]
fn of_two_that_wait_for_each_other_one_is_told() {
    Scene::Deadlock.check();
}

#[test]
fn what_was_sent_before_an_end_is_received_before_it() {
    Scene::End.check();
}
