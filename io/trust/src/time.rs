//! Times as people read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970 of this node's clock.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The last moment that a certificate can name, 9999-12-31T23:59:59Z.
const LAST_UNIX_S: u64 = 253_402_300_799;

/// `2026-11-22T10:41:25Z`.
pub(crate) fn utc(unix_s: u64) -> String {
    let since = Duration::from_secs(unix_s.min(LAST_UNIX_S));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn any_number_is_a_time() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(u64::MAX), "9999-12-31T23:59:59Z");
    }
}
