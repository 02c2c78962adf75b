//! The scenario of links for real, as short as it can be: that every arm that this machine has
//! works, not how fast.

use bench::choice::Choice;
use bench::links::copies::PROGRAM;
use bench::links::measure;
use bench::links::plan::{Arm, CASES, Plan};
use std::path::Path;

/// A folder with the worker, and with the program whose role a proxy is where that was built;
/// without gRPC and zenoh, whether somebody has built these or not: they have tests of their own.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = Path::new(env!("CARGO_BIN_EXE_link-worker"));
    for program in ["link-worker", PROGRAM] {
        let built = worker.with_file_name(program);
        if built.is_file() {
            std::os::unix::fs::symlink(built, folder.path().join(program)).expect("a link");
        }
    }
    folder
}

#[test]
fn every_arm_works_or_is_noted() {
    if let Err(error) = bench::channel::stage::Network::make() {
        println!("skipped: {error}");
        return;
    }
    let folder = folder();
    let plan = Plan { launches: 1, rounds: 1, warm_up_ns: 0, window_ns: 4_000_000 };
    let results = measure(&plan, &Choice::default(), &folder.path().join("tombolo"), &mut |_| {})
        .expect("the scenario runs");
    let has_tipc = transport::check_tipc().is_ok();
    let noted = |arm: &str| results.notes.iter().any(|note| note.contains(&format!("`{arm}`")));
    for case in CASES {
        let condition = case.condition();
        for arm in case.arms().iter().filter(|arm| !arm.is_peer()) {
            if *arm == Arm::Tipc && !has_tipc {
                assert!(noted(arm.name()), "{:?}", results.notes);
                continue;
            }
            if case.has_proxies()
                && !folder.path().join(PROGRAM).exists()
                && *arm != Arm::Tcp
                && *arm != Arm::Tls
            {
                assert!(noted(PROGRAM), "{:?}", results.notes);
                continue;
            }
            let measured = results.of(&condition, arm.name()).next().expect("it was measured");
            assert!(measured.operations > 0 && measured.window_s > 0.0, "{condition}: {}", arm.name());
        }
    }
    assert!(["grpc", "grpc tls", "zenoh"].into_iter().all(noted), "{:?}", results.notes);
}
