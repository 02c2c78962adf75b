//! The scenarios with virtual machines for real, as short as they can be: that every arm works, not
//! how fast.

use bench::channel::between::plan::{Arm, Ends, Plan, Timing};
use bench::channel::between::{Between, measure};
use bench::directory::guest::Guest;
use bench::{Arguments, BenchError, Results, Scenario, machines, report};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Emulated guests take all processors there are: one test at a time.
static PROCESSORS: Mutex<()> = Mutex::new(());

/// The release build of this checkout, or `TOMBOLO_BIN`.
fn binary() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    let binary =
        std::env::var_os("TOMBOLO_BIN").map_or_else(|| target.join("product/tombolo"), PathBuf::from);
    testing::assert_fresh(&binary);
    binary
}

/// The binary, and this test's turn; `None`, and a printed reason, where this machine can have no
/// guests.
fn binary_for_guests() -> Option<(PathBuf, MutexGuard<'static, ()>)> {
    let binary = binary();
    if !rustix::process::geteuid().is_root() || !binary.exists() {
        println!("skipped: needs root and {} (`make build`)", binary.display());
        return None;
    }
    match machines::check() {
        // A test that failed while it had its turn says so itself.
        Ok(()) => Some((binary, PROCESSORS.lock().unwrap_or_else(PoisonError::into_inner))),
        Err(error @ BenchError::Missing { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn shortest() -> Plan {
    let timing = Timing {
        warm_up_ns: 0,
        window_ns: 20_000_000,
        settle_ns: 300_000_000,
        idle_ns: 50_000_000,
        idle_rounds: 1,
    };
    Plan { launches: 1, rounds: 1, timing }
}

fn every_arm_works(ends: Ends, binary: &Path) -> Results {
    let results = measure(ends, &shortest(), binary, &mut |_| {}).expect("the scenario runs");
    for case in ends.cases() {
        let condition = case.condition(ends);
        for arm in case.arms() {
            let what = format!("{condition}: {}", arm.name());
            // TCP over virtio-net may stall, and is noted then.
            let stalled = *arm == Arm::Tcp && results.notes.iter().any(|note| note.contains("TCP failed"));
            let Some(measured) = results.of(&condition, arm.name()).next() else {
                assert!(stalled, "{what} is missing: {:?}", results.notes);
                continue;
            };
            assert!(measured.operations > 0, "{what}: nothing was done");
            assert!(measured.processor_ns.is_some_and(|ns| ns > 0), "{what}: no processor time");
        }
    }
    let mut out = Vec::new();
    let (scenario, environment) = (Between(ends), bench::environment::Environment::read(&[]));
    report::text(&mut out, &scenario, &environment, &results, &scenario.verdicts(&results)).expect("written");
    let text = String::from_utf8(out).expect("text");
    println!("{text}");
    for promise in ends.promises() {
        assert!(text.contains(promise.id), "{} is not in the report", promise.id);
    }
    results
}

#[test]
fn a_guest_and_the_host_exchange_messages_by_every_arm() {
    let Some((binary, _turn)) = binary_for_guests() else { return };
    let results = every_arm_works(Ends::VmHost, &binary);
    let idle = results.figure("processor time of the host's end of an idle channel").expect("it was watched");
    assert!(idle.value >= 0.0);
    let name = bench::channel::between::promises::IDLE_SWITCHES;
    let switches = results.figure(name).expect("they were counted");
    assert!(switches.value < 50.0, "the guest's end did not sleep: {switches:?}");
}

#[test]
fn two_guests_exchange_messages_by_every_arm() {
    let Some((binary, _turn)) = binary_for_guests() else { return };
    every_arm_works(Ends::VmVm, &binary);
}

#[test]
fn a_guest_looks_names_up_by_every_arm() {
    let Some((binary, _turn)) = binary_for_guests() else { return };
    let arguments = Arguments {
        scenario: Guest.name().into(),
        quick: true,
        choice: bench::choice::Choice::default(),
        domains: vec![],
        launches: Some(1),
        json: true,
        record: None,
        binary,
    };
    let results = Guest.measure(&arguments, &mut |_| {}).expect("the scenario runs");
    for condition in results.conditions() {
        let arms: Vec<&str> = results.arms(&condition).into_iter().collect();
        assert_eq!(arms, ["device", "naive", "preload", "stub"], "{condition}");
    }
    for repetition in &results.repetitions {
        let what = format!("{} {}", repetition.condition, repetition.arm);
        // A packet of the guest's own resolver may be lost where everything else is busy, too;
        // nothing of ours may.
        assert!(repetition.failures == 0 || repetition.arm == "naive", "{what}: {}", repetition.failures);
        assert!(repetition.latencies.count() > 0, "{what}: no look-ups");
    }
    let first = Guest.verdicts(&results);
    assert!(first.iter().any(|verdict| verdict.promise == "directory.vm.first_name" && verdict.value > 0.1));
}
