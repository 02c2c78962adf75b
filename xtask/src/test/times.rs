//! Where the time of a run goes: its steps, programs and tests. Shown at the end, kept in
//! `times.tsv` beside the logs.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// How many of the slowest programs and tests are shown; the file has all of them.
const MAX_SHOWN: usize = 12;

/// One step of a run.
#[derive(Debug)]
struct Step {
    name: String,
    took: Duration,
    /// The share of the processors' time in which they had work, where the kernel tells it.
    busy: Option<f64>,
}

/// The times of one run.
#[derive(Debug, Default)]
pub struct Times {
    steps: Vec<Step>,
    programs: Vec<(String, Duration)>,
    tests: Vec<(String, Duration)>,
}

impl Times {
    /// Runs a step and notes how long it took.
    pub fn step<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let (begin, before) = (Instant::now(), Ticks::now());
        let result = work(self);
        let busy = before.zip(Ticks::now()).and_then(|(before, after)| after.busy_since(before));
        self.steps.push(Step { name: name.to_owned(), took: begin.elapsed(), busy });
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
            ("steps", self.steps.iter().map(Step::row).collect()),
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
        let steps: Vec<_> = self.steps.iter().map(|step| (step.name.clone(), step.took)).collect();
        for (kind, rows) in [("step", &steps), ("program", &self.programs), ("test", &self.tests)] {
            for (name, took) in rows {
                let _strings_take_all = writeln!(text, "{kind}\t{name}\t{:.3}", took.as_secs_f64());
            }
        }
        std::fs::write(file, text)
    }
}

impl Step {
    fn row(&self) -> (String, Duration) {
        let busy = self.busy.map(|busy| format!("; processors {:.0} % busy", busy * 100.0));
        (format!("{}{}", self.name, busy.unwrap_or_default()), self.took)
    }
}

/// The time of all processors since the machine started, in the kernel's ticks.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    idle: u64,
    total: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Reads the first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq,
    /// softirq, steal.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks = line.split_whitespace().take(8).map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { idle, total: ticks.iter().sum() })
    }

    fn busy_since(self, before: Self) -> Option<f64> {
        let total = self.total.checked_sub(before.total).filter(|&total| total > 0)?;
        let idle = self.idle.saturating_sub(before.idle).min(total);
        Some((total - idle) as f64 / total as f64)
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
    fn the_share_of_busy_processors_is_read() {
        let ticks = |line| Ticks::parse(line).expect("a line of the kernel");
        let before = ticks("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1");
        assert_eq!(ticks("cpu  40 0 30 110 20 0 0 0 5 0").busy_since(before), Some(0.5));
        assert_eq!(before.busy_since(before), None);
        for line in ["", "cpu", "cpu  1 2", "cpu0 1 2 3 4 5 6 7 8", "cpu  a b c d e f g h"] {
            assert!(Ticks::parse(line).is_none(), "{line}");
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
