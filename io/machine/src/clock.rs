//! Time as far as it was there for this process.

use std::time::{Duration, Instant};

/// How much later than asked for a wait may end and still count in full, in ms. What is beyond was
/// not there for QEMU either: the machine was frozen or the node asleep, and nobody is hung for
/// that.
const LATE_MS: u64 = 1000;

/// Counts ms since the start, without those that were not there.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Instant,
    now_ms: u64,
}

impl Clock {
    pub fn start() -> Self {
        Self { last: Instant::now(), now_ms: 0 }
    }

    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// A wait that was to end after `asked_ms` has ended now.
    pub fn woke(&mut self, asked_ms: u64) {
        let now = Instant::now();
        self.advance(now.saturating_duration_since(self.last), asked_ms);
        self.last = now;
    }

    fn advance(&mut self, passed: Duration, asked_ms: u64) {
        let passed = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        self.now_ms = self.now_ms.saturating_add(passed.min(asked_ms.saturating_add(LATE_MS)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_machine_was_frozen_does_not_count() {
        let mut clock = Clock::start();
        clock.advance(Duration::from_millis(700), 500);
        assert_eq!(clock.now_ms(), 700);
        clock.advance(Duration::from_secs(3600), 500);
        assert_eq!(clock.now_ms(), 700 + 500 + LATE_MS);
    }
}
