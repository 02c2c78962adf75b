//! The channel scenario for real, as short as it can be: that every arm that this machine has
//! works, not how fast.

use bench::channel::plan::{Arm, CALLS, CASES, Kind, Plan, Timing};
use bench::channel::{Channel, measure};
use bench::choice::Choice;
use bench::results::Metric;
use bench::{Results, Scenario, report};
use std::path::Path;

/// The folder holds the worker, but no peer: that has tests of its own.
fn worker() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_channel-worker"))
}

fn shortest() -> Plan {
    let timing = Timing {
        warm_up_ns: 0,
        window_ns: 2_000_000,
        transfer_bytes: 1 << 22,
        traced_bytes: 1 << 20,
        idle_channels: 10,
        idle_ns: 10_000_000,
    };
    Plan { launches: 1, rounds: 1, timing }
}

fn is_noted(results: &Results, arm: &str) -> bool {
    results.notes.iter().any(|note| note.contains(&format!("`{arm}`")))
}

#[test]
fn every_arm_works_or_is_noted_and_nothing_is_left() {
    if sys::processor::allowed().expect("our processors").len() < 2 {
        println!("skipped: needs two processors");
        return;
    }
    let results = measure(&shortest(), &Choice::default(), worker(), &mut |_| {}).expect("the scenario runs");
    for case in CASES {
        let condition = case.condition();
        for arm in case.arms() {
            let measured = results.of(&condition, arm.name()).next();
            let Some(measured) = measured else {
                let untraced = case == CALLS && results.notes.iter().any(|note| note.contains("strace"));
                assert!(untraced || is_noted(&results, arm.name()), "{condition}: {}", arm.name());
                continue;
            };
            // A window that was lost to others, on a busy machine, has no operation in it.
            let whole = matches!(case.kind, Kind::Transfer | Kind::Calls | Kind::SetUp);
            assert!(measured.operations > 0 || !whole, "{condition}: {}", arm.name());
            assert_eq!(measured.calls.is_some(), case == CALLS, "{condition}: {}", arm.name());
        }
    }
    assert!(results.arms(&CASES[0].condition()).contains(Arm::Tombolo.name()));
    what_is_counted_is_plausible(&results);
    the_report_can_be_written(&results);
}

fn what_is_counted_is_plausible(results: &Results) {
    let condition = CALLS.condition();
    if let Some(calls) = results.estimate(&condition, Arm::Pipe.name(), Metric::Calls) {
        // 32 messages: as many writes, and at least one read.
        assert!(calls.value > 32.0, "{calls:?}");
    }
    let processor = results.figure("processor time of 1000 idle channels").expect("it was watched");
    assert!(processor.value >= 0.0);
    if let Some(memory) = results.figure("memory of an idle channel beyond its rings") {
        // Ten channels only: what is counted in pages of both processes drowns them. More than
        // nothing it is.
        assert!(memory.value > 1.0, "{memory:?}");
    }
}

fn the_report_can_be_written(results: &Results) {
    let environment = bench::environment::Environment::read(&[]);
    let verdicts = Channel.verdicts(results);
    assert!(!verdicts.is_empty());
    let mut out = Vec::new();
    report::text(&mut out, &Channel, &environment, results, &verdicts).expect("written");
    let text = String::from_utf8(out).expect("text");
    println!("{text}");
    assert!(text.contains("memcpy") && text.contains("channel.rtt.busy.64B.line"));
}
