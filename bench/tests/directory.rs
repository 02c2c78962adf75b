//! The directory scenario for real, as short as it can be: that every arm works, not how fast.

use bench::directory::Directory;
use bench::{Arguments, Scenario};
use std::path::{Path, PathBuf};

/// The release build of this checkout, or `TOMBOLO_BIN`.
fn binary() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    let binary =
        std::env::var_os("TOMBOLO_BIN").map_or_else(|| target.join("product/tombolo"), PathBuf::from);
    testing::assert_fresh(&binary);
    binary
}

#[test]
fn every_arm_answers_in_two_domains_and_nothing_is_left() {
    let binary = binary();
    if !rustix::process::geteuid().is_root() || !binary.exists() {
        println!("skipped: needs root and {} (`make build`)", binary.display());
        return;
    }
    let arguments = Arguments {
        scenario: "directory".into(),
        quick: true,
        choice: bench::choice::Choice::default(),
        domains: vec![2],
        launches: Some(1),
        json: true,
        record: None,
        binary,
    };
    let results = Directory.measure(&arguments, &mut |_| {}).expect("the scenario runs");
    for condition in results.conditions() {
        let arms: Vec<&str> = results.arms(&condition).into_iter().collect();
        assert_eq!(arms, ["device", "naive", "preload", "stub"], "{condition}");
    }
    assert_eq!(results.conditions().len(), 2, "with and without a cache");
    for repetition in &results.repetitions {
        let what = format!("{} {}", repetition.condition, repetition.arm);
        assert_eq!(repetition.failures, 0, "{what}");
        assert!(repetition.latencies.count() > 10, "{what}: {} look-ups", repetition.latencies.count());
        assert!(repetition.processor_ns.is_some_and(|ns| ns > 0), "{what}: no processor time");
    }
    let memory = results.figure("memory per further domain").expect("memory was measured");
    // One short launch says only that it was measured: how much is the bench's to say, on a machine
    // at rest.
    assert!(memory.value.is_finite() && memory.value < 64.0, "{memory:?}");
}
