//! How fast one service may write: etcd keeps what was overwritten until it compacts, and a disk is
//! shared.

use std::time::{Duration, Instant};

/// Bytes that one service may write in a second, over longer times: an hour of it fits into etcd's
/// usual 2 GiB.
const BYTES_PER_SECOND: u64 = 512 * 1024;
/// Bytes that it may write at once: a quarter of what it may keep.
const BURST_BYTES: u64 = 2 * 1024 * 1024;
/// The cost of each commit beside its bytes: a page of the engine.
const COMMIT_BYTES: u64 = 1024;

/// A bucket of bytes that fills with time. It may be in debt: the next one waits until that is
/// paid.
#[derive(Debug)]
pub(super) struct Budget {
    /// When the bucket will be full, if nothing is written.
    full_at: Instant,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes so many bytes out; how long to wait before they are written.
    pub(super) fn pause(&mut self, bytes: usize, now: Instant) -> Duration {
        let cost = (bytes as u64 + COMMIT_BYTES) * 1_000_000 / BYTES_PER_SECOND;
        self.full_at = self.full_at.max(now) + Duration::from_micros(cost);
        let whole = Duration::from_micros(BURST_BYTES * 1_000_000 / BYTES_PER_SECOND);
        self.full_at.duration_since(now).saturating_sub(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_what_is_more_waits_as_long_as_it_takes() {
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        let mut written = 0;
        while budget.pause(64 * 1024, begin) == Duration::ZERO {
            written += 64 * 1024;
        }
        assert!((BURST_BYTES - 128 * 1024..=BURST_BYTES).contains(&written), "{written}");
        let mut now = begin;
        let mut more = 0;
        while now < begin + Duration::from_secs(20) {
            now += budget.pause(64 * 1024, now);
            more += 64 * 1024;
        }
        let rate = more / 20;
        assert!((BYTES_PER_SECOND * 8 / 10..=BYTES_PER_SECOND * 11 / 10).contains(&rate), "{rate}");
    }
}
