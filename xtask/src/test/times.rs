//! Where the time of a run goes: its steps, programs and tests. Shown at the end, kept in `times.tsv` beside the logs.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many of the slowest programs and tests are shown; the file has all of them.
const MAX_SHOWN: usize = 12;

/// The times of one run.
#[derive(Debug, Default)]
pub struct Times {
    steps: Vec<(String, Duration)>,
    programs: Vec<(String, Duration)>,
    tests: Vec<(String, Duration)>,
}

impl Times {
    /// Runs a step and notes how long it took.
    pub fn step<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let begin = Instant::now();
        let result = work(self);
        self.steps.push((name.to_owned(), begin.elapsed()));
        result
    }

    /// Notes a program.
    pub fn program(&mut self, name: &str, took: Duration) {
        self.programs.push((name.to_owned(), took));
    }

    /// Notes a test of a program.
    pub fn test(&mut self, program: &str, name: &str, took: Duration) {
        self.tests.push((format!("{program}: {name}"), took));
    }

    /// All steps, and the slowest programs and tests.
    pub fn table(&mut self) -> String {
        self.programs.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        self.tests.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let mut table = String::new();
        let slowest = |rows: &[(String, Duration)]| rows.iter().take(MAX_SHOWN).cloned().collect::<Vec<_>>();
        for (title, rows) in [
            ("steps", self.steps.clone()),
            ("slowest programs", slowest(&self.programs)),
            ("slowest tests", slowest(&self.tests)),
        ] {
            if rows.is_empty() {
                continue;
            }
            let _strings_take_all = writeln!(table, "{title}:");
            for (name, took) in rows {
                let _strings_take_all = writeln!(table, "  {:>7.1} s  {name}", took.as_secs_f64());
            }
        }
        table
    }

    /// Keeps all of it, one line each: kind, name, seconds.
    pub fn keep(&self, file: &Path) -> std::io::Result<()> {
        let mut text = String::new();
        for (kind, rows) in [("step", &self.steps), ("program", &self.programs), ("test", &self.tests)] {
            for (name, took) in rows {
                let _strings_take_all = writeln!(text, "{kind}\t{name}\t{:.3}", took.as_secs_f64());
            }
        }
        std::fs::write(file, text)
    }
}

/// A line as `test NAME ... ok <0.123s>`: the line without the time, and the test with it.
pub fn split(line: &str) -> (&str, Option<(&str, Duration)>) {
    let parted = || {
        let (front, time) = line.strip_suffix("s>")?.rsplit_once(" <")?;
        let (name, _) = front.strip_prefix("test ")?.split_once(" ... ")?;
        let took = Duration::try_from_secs_f64(time.parse().ok()?).ok()?;
        Some((front, (name, took)))
    };
    match parted() {
        Some((front, test)) => (front, Some(test)),
        None => (line, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_test_is_read_and_taken_off() {
        assert_eq!(
            split("test a::b ... ok <1.250s>"),
            ("test a::b ... ok", Some(("a::b", Duration::from_millis(1250))))
        );
        for line in ["test a ... ok", "test a ... ok <xs>", "said <1.0s>", "test result: ok. <1s>"] {
            assert_eq!(split(line), (line, None), "{line}");
        }
    }

    #[test]
    fn the_slowest_come_first_and_all_are_kept() {
        let mut times = Times::default();
        times.step("programs", |times| {
            times.program("a", Duration::from_secs(1));
            times.program("b", Duration::from_secs(2));
            for number in 0..100 {
                times.test("b", &format!("t{number}"), Duration::from_millis(number));
            }
        });
        let table = times.table();
        let place = |text: &str| table.find(text).unwrap_or_else(|| panic!("{text} in {table}"));
        assert!(place("2.0 s  b") < place("1.0 s  a"));
        assert!(table.contains("b: t99") && !table.contains("b: t50"));
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("times.tsv");
        times.keep(&file).expect("written");
        assert_eq!(std::fs::read_to_string(&file).expect("text").lines().count(), 103);
    }
}
