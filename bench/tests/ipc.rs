//! The scenario of endpoints for real, as short as it can be: that every arm that this machine has
//! works, not how fast.

use bench::choice::Choice;
use bench::ipc::plan::{CASES, Plan};
use bench::ipc::{Ipc, measure};
use bench::{Results, Scenario, report};

/// A folder with the worker, and without gRPC and zenoh, whether somebody has built these or not:
/// they have tests of their own.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("ipc-worker");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ipc-worker"), place).expect("a link");
    folder
}

fn shortest() -> Plan {
    Plan {
        launches: 1,
        rounds: 1,
        warm_up_ns: 0,
        window_ns: 2_000_000,
        pairs_window_ns: 4_000_000,
        trial_ns: 0,
        tries: false,
    }
}

fn is_noted(results: &Results, arm: &str) -> bool {
    results.notes.iter().any(|note| note.contains(&format!("`{arm}`")))
}

#[test]
fn every_arm_works_or_is_noted() {
    if sys::processor::allowed().expect("our processors").len() < 2 {
        println!("skipped: needs two processors");
        return;
    }
    let folder = folder();
    let binary = folder.path().join("tombolo");
    let results = measure(&shortest(), &Choice::default(), &binary, &mut |_| {}).expect("the scenario runs");
    for case in CASES {
        let condition = case.condition();
        for arm in case.arms() {
            match results.of(&condition, arm.name()).next() {
                Some(measured) => {
                    assert!(measured.window_s > 0.0, "{condition}: {}", arm.name());
                    // A window that was lost to others, on a busy machine, may have no round trip
                    // in it.
                    let whole = !case.is_round_trip();
                    assert!(measured.operations > 0 || !whole, "{condition}: {}", arm.name());
                }
                None => assert!(is_noted(&results, arm.name()), "{condition}: {}", arm.name()),
            }
        }
    }
    for note in results.notes.iter().filter(|note| note.starts_with("no arm")) {
        println!("skipped: {note}");
    }
    the_report_can_be_written(&results);
}

fn the_report_can_be_written(results: &Results) {
    let environment = bench::environment::Environment::read(&[]);
    let verdicts = Ipc.verdicts(results);
    assert!(verdicts.iter().any(|verdict| verdict.promise == "ipc.pairs.8.64B.kernel"), "{verdicts:?}");
    let mut out = Vec::new();
    report::text(&mut out, &Ipc, &environment, results, &verdicts).expect("written");
    let text = String::from_utf8(out).expect("text");
    println!("{text}");
    assert!(text.contains("message queue") && text.contains("ipc.stream.64B.kernel"));
}
