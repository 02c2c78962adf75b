//! Waiting for a condition of another process that gives no event of its own.

use std::time::{Duration, Instant};

/// How long a condition may take before a test gives up. Far above what it takes, so that a busy
/// machine fails no test.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// How often the condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks at `condition` until it holds, and panics with `what` where it does not within
/// [`TIMEOUT`]. Returns how long it took.
pub fn until(what: &str, condition: impl FnMut() -> bool) -> Duration {
    until_within(what, TIMEOUT, condition)
}

/// As [`until`], for what takes longer by its nature.
pub fn until_within(what: &str, patience: Duration, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < patience, "gave up after {patience:?} waiting until {what}");
        pause(LOOK_EVERY);
    }
    start.elapsed()
}

/// Lets `time` pass: the load of a fault test runs meanwhile.
pub fn pause(time: Duration) {
    std::thread::park_timeout(time);
}
