//! The scenario of services for real, as short as it can be: that every arm works or is noted, not
//! how fast.

use bench::choice::Choice;
use bench::services::arms::{ARMS, Arm, WORKS};
use bench::services::{Plan, Services, measure};
use bench::{Scenario, report};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The product of this checkout, or `TOMBOLO_BIN`.
fn binary() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    let binary =
        std::env::var_os("TOMBOLO_BIN").map_or_else(|| target.join("product/tombolo"), PathBuf::from);
    testing::assert_fresh(&binary);
    binary
}

#[test]
fn every_view_and_every_peer_does_its_work_or_is_noted() {
    let binary = binary();
    if !rustix::process::geteuid().is_root() || !binary.exists() {
        println!("skipped: needs root and {} (`make build`)", binary.display());
        return;
    }
    let window = Duration::from_millis(1);
    let plan = Plan { launches: 1, rounds: 1, warm_up: Duration::ZERO, window, choice: Choice::default() };
    let results = measure(&plan, &binary, &mut |_| {}).expect("the scenario runs");
    let noted = |arm: Arm| results.notes.iter().any(|note| note.contains(&format!("`{}`", arm.name())));
    for note in &results.notes {
        println!("skipped: {note}");
    }
    for work in WORKS {
        let condition = work.condition();
        for arm in ARMS.into_iter().filter(|arm| arm.does(work) && !noted(*arm)) {
            let measured = results.samples(&condition, arm.name());
            assert!(measured > 0, "{condition}: nothing was done by {}", arm.name());
        }
    }
    for arm in ARMS.into_iter().filter(|arm| !matches!(arm, Arm::Libfuse | Arm::Diod)) {
        assert!(!noted(arm), "{} needs nothing that may be missing", arm.name());
    }
    let verdicts = Services.verdicts(&results);
    let environment = bench::environment::Environment::read(&[]);
    for write in [report::text, report::json] {
        let mut out = Vec::new();
        write(&mut out, &Services, &environment, &results, &verdicts).expect("a report");
        let told = String::from_utf8_lossy(&out);
        assert!(noted(Arm::Diod) || told.contains("services.9p.read.4KiB.diod"), "{told}");
    }
}
