//! Until when a node holds its claims: a number that the daemon writes and monitors read.
//!
//! A domain that may be started on another node must have ended here by the time that somebody else
//! may start it, whatever became of the daemon. So its monitor ends it when the number has passed.
//! It is a time of `CLOCK_BOOTTIME`, which no clock of the wall moves and which goes on while the
//! machine sleeps.

use crate::error::Result;
use crate::exchange;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The file, in the run directory.
const FILE: &str = "hold";

/// Digits of the greatest number: room is kept for it, so that it can be renewed when the disk is
/// full.
const MAX_DIGITS: usize = 20;

/// The time now, in ns of `CLOCK_BOOTTIME`.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// Says until when the node of this run directory holds its claims; 0: no longer.
///
/// # Errors
/// When the file can't be written: then what it said before stays, and passes.
pub fn write(run_dir: &Path, until_ns: u64) -> Result<()> {
    exchange::replace(&run_dir.join(FILE), until_ns.to_string().as_bytes(), MAX_DIGITS)
}

/// How long the node still holds its claims. Nothing that can be read means not at all.
pub(crate) fn left(run_dir: &Path) -> Duration {
    let text = fs::read_to_string(run_dir.join(FILE)).unwrap_or_default();
    let until_ns: u64 = text.trim().parse().unwrap_or(0);
    Duration::from_nanos(until_ns.saturating_sub(now_ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_t_be_read_is_no_hold() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(left(folder.path()), Duration::ZERO);
        write(folder.path(), now_ns() + 5_000_000_000).unwrap();
        let found = left(folder.path());
        assert!(found > Duration::from_secs(3) && found <= Duration::from_secs(5), "{found:?}");
        fs::write(folder.path().join(FILE), "soon").unwrap();
        assert_eq!(left(folder.path()), Duration::ZERO);
        write(folder.path(), 0).unwrap();
        assert_eq!(left(folder.path()), Duration::ZERO);
    }
}
