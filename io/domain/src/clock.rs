//! Wall-clock time as text (RFC 3339, UTC, nine digits of fraction): what the logs and the status
//! file carry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Length of [`rfc3339`]'s answer: `2026-11-20T06:16:00.123456789Z`. Being fixed, such texts
/// compare as times do.
pub const TEXT_BYTES: usize = 30;

/// The last second that such a text can name, 9999-12-31T23:59:59Z, in seconds since 1970.
const LAST_SECOND: u64 = 253_402_300_799;

/// The time as text; a time before 1970 is 1970, and one that no text can name the last that one
/// can.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let since = Duration::new(since.as_secs().min(LAST_SECOND), since.subsec_nanos());
    humantime::format_rfc3339_nanos(UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        let at = |secs, nanos| rfc3339(UNIX_EPOCH + Duration::new(secs, nanos));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_782_400, 5), "2000-02-29T00:00:00.000000005Z");
        assert_eq!(at(1_709_251_199, 999_999_999), "2024-02-29T23:59:59.999999999Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000000000Z");
        assert_eq!(at(LAST_SECOND + 1, 7), "9999-12-31T23:59:59.000000007Z");
        assert_eq!(at(0, 0).len(), TEXT_BYTES);
    }
}
