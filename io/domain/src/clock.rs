//! Wall-clock time as text (RFC 3339, UTC, nine digits of fraction): what the logs and the status file carry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Length of [`rfc3339`]'s answer: `2026-11-20T06:16:00.123456789Z`. Being fixed, such texts compare as times do.
pub const TEXT_BYTES: usize = 30;

/// The time as text; a time before 1970 is 1970.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:09}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_nanos()
    )
}

/// Year, month and day of a number of days since 1970-01-01, in the proleptic Gregorian calendar (the usual arithmetic
/// on 400-year eras that begin in March, so that the leap day comes last).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
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
        assert_eq!(at(0, 0).len(), TEXT_BYTES);
    }
}
