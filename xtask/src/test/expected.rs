//! The demands on a full run beyond that nothing fails: each test that a guarantee names ran,
//! nothing was skipped but what is expected, and no test is unsteady twice within two weeks.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Tests that may be skipped, one a line: `PROGRAM: TEST: WHY`.
const SKIPS: &str = "xtask/expected_skips.txt";
/// When which test passed only when it ran again: `YYYY-MM-DD PROGRAM: TEST`.
const LEDGER: &str = "xtask/unsteady.txt";
/// For so many days an entry counts.
const DAYS: u64 = 14;
const DAY_S: u64 = 86_400;

/// The skips that are on no list, of lines as `skipped: PROGRAM: TEST: REASON`.
pub fn unexpected(root: &Path, skips: &[String]) -> std::io::Result<Vec<String>> {
    let list = std::fs::read_to_string(root.join(SKIPS))?;
    Ok(unexpected_of(&list, skips))
}

fn unexpected_of(list: &str, skips: &[String]) -> Vec<String> {
    let lines = list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let expected: BTreeSet<String> =
        lines.filter_map(|line| Some(line.rsplit_once(": ")?.0.to_owned())).collect();
    let is_expected = |skip: &&String| {
        let words = skip.strip_prefix("skipped: ").unwrap_or(skip);
        expected
            .iter()
            .any(|test| words.strip_prefix(test.as_str()).is_some_and(|rest| rest.starts_with(": ")))
    };
    let unexpected = skips.iter().filter(|skip| !is_expected(skip));
    unexpected.map(|skip| format!("{skip} (not in {SKIPS})")).collect()
}

/// Enters unsteady tests, as `PROGRAM: TEST`, into the ledger. Those that were unsteady not long
/// ago are returned.
pub fn unsteady_again(root: &Path, tests: &[String]) -> std::io::Result<Vec<String>> {
    if tests.is_empty() {
        return Ok(Vec::new());
    }
    let path = root.join(LEDGER);
    let ledger = std::fs::read_to_string(&path)?;
    let today = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / DAY_S);
    let (ledger, again) = entered(&ledger, tests, today);
    std::fs::write(&path, ledger)?;
    Ok(again)
}

/// The ledger with these tests in it, and those that were in it already. `today` counts days from
/// 1970 on.
fn entered(ledger: &str, tests: &[String], today: u64) -> (String, Vec<String>) {
    let mut text = String::new();
    let mut again = Vec::new();
    for line in ledger.lines() {
        let entry = line.split_once(' ').and_then(|(date, test)| Some((day_of(date)?, date, test)));
        let Some((day, date, test)) = entry.filter(|_| !line.starts_with('#')) else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        // What is older says nothing any more.
        if day + DAYS < today {
            continue;
        }
        if day != today && tests.iter().any(|unsteady| unsteady == test) {
            again.push(format!(
                "{test}: unsteady today and on {date}: mend it, {LEDGER} says when it may be so again"
            ));
        }
        text.push_str(line);
        text.push('\n');
    }
    for test in tests {
        let line = format!("{} {test}\n", date_of(today));
        if !text.contains(&line) {
            text.push_str(&line);
        }
    }
    (text, again)
}

/// Days from 1970 on to a date of the Gregorian calendar (Hinnant, "chrono-Compatible Low-Level
/// Date Algorithms").
fn day_of(date: &str) -> Option<u64> {
    let mut parts = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) || parts.next().is_some() {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some((era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year).saturating_sub(719_468))
}

fn date_of(days: u64) -> String {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (day, month) =
        (of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn a_skip_is_expected_by_its_program_and_its_test() {
        let list = "# why\ne2e-all: kvm::a_guest_runs: no KVM on machines that are guests\n";
        let skips = texts(&[
            "skipped: e2e-all: kvm::a_guest_runs: needs /dev/kvm",
            "skipped: e2e-all: kvm::a_guest_runs_twice: needs /dev/kvm",
            "skipped: domain: kvm::a_guest_runs: needs /dev/kvm",
        ]);
        let unexpected = unexpected_of(list, &skips);
        assert_eq!(unexpected.len(), 2);
        assert!(unexpected[0].contains("twice") && unexpected[1].contains("domain: "), "{unexpected:?}");
        assert_eq!(unexpected_of("", &[]), [] as [String; 0]);
    }

    #[test]
    fn who_is_unsteady_twice_within_two_weeks_is_named_and_old_entries_go() {
        let day = day_of("2026-11-28").expect("a date");
        let ledger = "# words\n2026-11-13 all: a\n2026-11-14 all: b\n2026-11-28 all: c\n";
        let (ledger, again) = entered(ledger, &texts(&["all: a", "all: b", "all: c"]), day);
        assert_eq!(
            ledger,
            "# words\n2026-11-14 all: b\n2026-11-28 all: c\n2026-11-28 all: a\n2026-11-28 all: b\n"
        );
        // A second run of the same day sees the same change.
        assert_eq!(again.len(), 1);
        assert!(again[0].starts_with("all: b: unsteady today and on 2026-11-14"), "{again:?}");
    }

    #[test]
    fn dates_are_counted_over_leap_years_and_back() {
        for (date, day) in
            [("1970-01-01", 0), ("2000-02-29", 11_016), ("2026-11-28", 20_785), ("2100-03-01", 47_541)]
        {
            assert_eq!((day_of(date), date_of(day).as_str()), (Some(day), date));
        }
        assert_eq!((day_of("2026-13-01"), day_of("yesterday")), (None, None));
    }
}
