//! The round trip of one cache line between two processors: the state of the machine that polled
//! figures depend on.
//!
//! Virtual processors are placed by a host that we do not see. When it moves one to another cache
//! domain, every figure that polls shared memory moves with it, by a factor of two to five, within
//! seconds.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Round trips before the measured ones: both threads have started and the line is shared.
const WARM_UP: u64 = 200;
/// Round trips that are measured: about a millisecond in all.
const MEASURED: u64 = 2_000;
/// Below this the two processors share a cache; far ones are around 450 ns.
const NEAR_NS: f64 = 220.0;
/// Tries before a thread gives way, so that the measurement ends on one processor too.
const TIMEOUT: u32 = 1_000;

/// Where the two processors are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// They share a cache.
    Near,
    /// They do not.
    Far,
    /// It changed between the two measurements.
    Mixed,
    /// There is only one processor.
    Single,
}

/// A cache line of its own, so that nothing else is measured.
#[repr(align(128))]
struct Line(AtomicU64);

/// The mean round trip between the first two processors that this thread may use, in ns; `None`
/// where there is only one.
#[must_use]
pub fn round_trip_ns() -> Option<f64> {
    let allowed = sys::processor::allowed().ok()?;
    let [first, second, ..] = allowed.as_slice() else { return None };
    let line = Line(AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| answer(&line.0, *second));
        scope.spawn(|| ask(&line.0, *first)).join().ok()
    })
}

/// The state of the machine between two measurements, before and after.
#[must_use]
pub fn state(before_ns: Option<f64>, after_ns: Option<f64>) -> State {
    match (before_ns, after_ns) {
        (Some(before), Some(after)) if before < NEAR_NS && after < NEAR_NS => State::Near,
        (Some(before), Some(after)) if before >= NEAR_NS && after >= NEAR_NS => State::Far,
        (Some(_), Some(_)) => State::Mixed,
        _ => State::Single,
    }
}

/// Writes odd numbers, waits for even ones.
fn ask(line: &AtomicU64, processor: u32) -> f64 {
    // A thread that can't be pinned measures too, with more noise.
    let _ = sys::processor::pin(&[processor]);
    let mut begin = Instant::now();
    for round in 0..WARM_UP + MEASURED {
        if round == WARM_UP {
            begin = Instant::now();
        }
        line.store(2 * round + 1, Ordering::Release);
        wait_for(line, 2 * round + 2);
    }
    begin.elapsed().as_nanos() as f64 / MEASURED as f64
}

fn answer(line: &AtomicU64, processor: u32) {
    let _ = sys::processor::pin(&[processor]);
    for round in 0..WARM_UP + MEASURED {
        wait_for(line, 2 * round + 1);
        line.store(2 * round + 2, Ordering::Release);
    }
}

fn wait_for(line: &AtomicU64, value: u64) {
    let mut tries = 0_u32;
    while line.load(Ordering::Acquire) != value {
        tries += 1;
        if tries.is_multiple_of(TIMEOUT) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_is_measured_where_there_are_two_processors() {
        let processors = sys::processor::allowed().expect("our processors").len();
        let measured = round_trip_ns();
        assert_eq!(measured.is_some(), processors > 1);
        assert!(measured.is_none_or(|ns| ns > 1.0), "{measured:?}");
    }

    #[test]
    fn a_state_needs_both_measurements_to_agree() {
        assert_eq!(state(Some(100.0), Some(120.0)), State::Near);
        assert_eq!(state(Some(450.0), Some(480.0)), State::Far);
        assert_eq!(state(Some(100.0), Some(480.0)), State::Mixed);
        assert_eq!(state(None, None), State::Single);
    }
}
