//! Counting what `cargo test` printed. A test that says `skipped: REASON` did not pass; a test
//! program that died without its last word failed; a step that failed without a failed test counts
//! as one failure. A test that failed and passed when it was run once more counts as passed, and is
//! named as unsteady with what it said when it failed.

use crate::tidy::OTHER_PROCESS;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The word of a test that can't run here.
const SKIPPED: &str = "skipped: ";
/// How much of what a failed test said last is repeated at the end, in characters.
const WHY_CHARS: usize = 500;

/// The whole run.
#[derive(Debug, Default)]
pub struct Tally {
    passed: usize,
    failures: Vec<String>,
    skips: Vec<String>,
    /// The tests that passed only when they ran again.
    unsteady: Vec<String>,
    /// The same as `PROGRAM: TEST`.
    unsteady_tests: Vec<String>,
    left_out: Vec<String>,
    /// The tests that ran and passed, with the folder of their package.
    ran: BTreeSet<(PathBuf, String)>,
    /// The tests that this machine can't run, which have said so.
    excused: BTreeSet<(PathBuf, String)>,
}

/// One `cargo test`, line by line.
#[derive(Debug)]
pub struct Step {
    name: String,
    ok: usize,
    passed: BTreeSet<String>,
    failed: Vec<String>,
    /// Those of `failed` that passed when they ran again.
    unsteady: Vec<String>,
    failed_count: usize,
    ignored: usize,
    /// Ignored tests of the current program that are only the child of another test.
    children: usize,
    skipped: BTreeMap<String, String>,
    programs: usize,
    results: usize,
    /// The section of a passed test's output that is being read.
    section: Option<String>,
    in_successes: bool,
    in_failures: bool,
    /// The panics of failed tests, from the line on that has `panicked at`.
    why: BTreeMap<String, String>,
    /// Tests that run for over a minute, as cargo says once, and have not ended.
    slow: Vec<String>,
}

impl Step {
    /// A step that has read nothing yet.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ok: 0,
            passed: BTreeSet::new(),
            failed: Vec::new(),
            unsteady: Vec::new(),
            failed_count: 0,
            ignored: 0,
            children: 0,
            skipped: BTreeMap::new(),
            programs: 0,
            results: 0,
            section: None,
            in_successes: false,
            in_failures: false,
            why: BTreeMap::new(),
            slow: Vec::new(),
        }
    }

    /// Tests that were at work for over a minute when the last line was read.
    pub fn slow(&self) -> Vec<String> {
        self.slow.clone()
    }

    /// How many tests passed so far.
    pub fn passed_count(&self) -> usize {
        self.ok
    }

    /// Each test that failed, with what it said last.
    pub fn told_failures(&self) -> Vec<String> {
        self.failed.iter().map(|test| self.told(test)).collect()
    }

    fn told(&self, test: &str) -> String {
        match self.why.get(test) {
            Some(why) => format!("{test}: {}", why.trim_end()),
            None => test.to_owned(),
        }
    }

    /// The tests that failed, where each has a name and nothing else went wrong.
    pub fn named_failures(&self) -> Vec<String> {
        let all_named = self.failed.len() == self.failed_count && self.results == self.programs;
        if all_named { self.failed.clone() } else { Vec::new() }
    }

    /// Takes in how those that failed did when they ran again. One name in two programs is two
    /// tests, and both have to pass.
    pub fn repeated(&mut self, again: &Step) {
        let passed = |name: &String| again.passed.contains(name) && !again.failed.contains(name);
        let (unsteady, failed) = std::mem::take(&mut self.failed).into_iter().partition(passed);
        (self.unsteady, self.failed) = (unsteady, failed);
        self.failed_count = self.failed.len();
        self.ok += self.unsteady.len();
    }

    /// Whether all that failed has passed since.
    pub fn is_mended(&self) -> bool {
        !self.unsteady.is_empty() && self.failed.is_empty()
    }

    /// Takes in one line; returns whether a person wants to see it.
    pub fn read(&mut self, line: &str) -> bool {
        let words = line.trim_start();
        self.watch_slow(line);
        if words.starts_with("Running ") || words.starts_with("Doc-tests ") {
            self.programs += 1;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.results += 1;
            (self.in_successes, self.in_failures) = (false, false);
            self.read_result(result);
        } else if line == "successes:" {
            (self.in_successes, self.in_failures) = (true, false);
            self.section = None;
        } else if line == "failures:" {
            (self.in_successes, self.in_failures) = (false, true);
            self.section = None;
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failed.push(name.to_owned());
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... ok")) {
            self.passed.insert(name.to_owned());
        } else if line.starts_with("test ") && line.contains(&format!(" ... ignored, {OTHER_PROCESS}")) {
            self.children += 1;
        } else if self.in_successes {
            self.read_success(line);
        } else if self.in_failures {
            self.read_failure(line);
        }
        !self.in_successes
    }

    /// `test NAME has been running for over 60 seconds`, and later `test NAME ... ok`.
    fn watch_slow(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test ") else { return };
        if let Some((name, _)) = rest.split_once(" has been running for over ") {
            self.slow.push(name.to_owned());
        } else if let Some((name, _)) = rest.split_once(" ... ") {
            self.slow.retain(|slow| slow != name);
        }
    }

    fn read_success(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.section = Some(name.to_owned());
        } else if let (Some(test), Some(reason)) = (&self.section, line.strip_prefix(SKIPPED)) {
            let test = format!("{} #{}", test, self.programs);
            self.skipped.entry(test).or_insert_with(|| reason.to_owned());
        }
    }

    fn read_failure(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.section = Some(name.to_owned());
            return;
        }
        let Some(test) = &self.section else { return };
        let place = line.split_once(" panicked at ").map(|(_, place)| place);
        match (self.why.get_mut(test), place) {
            (None, Some(place)) => drop(self.why.insert(test.clone(), place.to_owned())),
            (Some(_), _) if line == "stack backtrace:" => self.section = None,
            (Some(why), _) if why.chars().count() < WHY_CHARS => {
                why.push(' ');
                why.extend(line.trim().chars().take(WHY_CHARS));
            }
            _ => {}
        }
    }

    /// `ok. 3 passed; 0 failed; 1 ignored; ...`
    fn read_result(&mut self, result: &str) {
        let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
        for part in counts.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let Ok(number) = number.parse::<usize>() else { continue };
            match what {
                "passed" => self.ok += number,
                "failed" => self.failed_count += number,
                "ignored" => self.ignored += number.saturating_sub(std::mem::take(&mut self.children)),
                _ => {}
            }
        }
    }
}

impl Tally {
    /// Adds a finished `cargo test`, and whether cargo itself was content.
    pub fn add(&mut self, step: Step, content: bool) {
        self.passed += step.ok.saturating_sub(step.skipped.len());
        self.skips.extend(step.skipped.iter().map(|(test, reason)| {
            let test = test.split(" #").next().unwrap_or(test);
            format!("skipped: {}: {test}: {reason}", step.name)
        }));
        self.skips.extend((0..step.ignored).map(|_| format!("skipped: {}: an ignored test", step.name)));
        let before = self.failures.len();
        for test in &step.failed {
            self.fail(&step.name, &step.told(test));
        }
        self.unsteady_tests.extend(step.unsteady.iter().map(|test| format!("{}: {test}", step.name)));
        self.unsteady.extend(step.unsteady.iter().map(|test| {
            format!("unsteady: {}: passed only when it ran again: {}", step.name, step.told(test))
        }));
        for _ in step.failed.len()..step.failed_count {
            self.fail(&step.name, "a test without a name");
        }
        for _ in step.results..step.programs {
            self.fail(&step.name, "a test program ended without its result line");
        }
        if !content && self.failures.len() == before {
            self.fail(&step.name, "cargo failed before the tests ran, see above");
        }
        if content && step.results == 0 {
            self.fail(&step.name, "no test ran at all");
        }
    }

    /// Notes which tests of a program ran and passed; `folder` is its package's.
    pub fn note_ran(&mut self, folder: &Path, step: &Step) {
        let skipped = |test: &str| step.skipped.keys().any(|key| key.split(" #").next() == Some(test));
        let ran = step.passed.iter().chain(&step.unsteady).filter(|test| !skipped(test));
        self.ran.extend(ran.map(|test| (folder.to_path_buf(), test.clone())));
        let excused = step.passed.iter().filter(|test| skipped(test));
        self.excused.extend(excused.map(|test| (folder.to_path_buf(), test.clone())));
    }

    /// The tests that ran and passed, with the folders of their packages below `root`.
    pub fn ran(&self, root: &Path) -> BTreeSet<(PathBuf, String)> {
        below(root, &self.ran)
    }

    /// Writes down which tests ran and passed, one a line: folder, test. Those that this machine
    /// can't run stand beside them: that they are skipped is told elsewhere, and is no fault of a
    /// page.
    pub fn keep_ran(&self, root: &Path, file: &Path) -> std::io::Result<()> {
        let mut text = String::new();
        for (folder, test) in self.ran(root).union(&below(root, &self.excused)) {
            let _strings_take_all = writeln!(text, "{}\t{test}", folder.display());
        }
        std::fs::write(file, text)
    }

    /// A line for each test that was skipped.
    pub fn skips(&self) -> &[String] {
        &self.skips
    }

    /// The tests that passed only when they ran again, as `PROGRAM: TEST`.
    pub fn unsteady_tests(&self) -> &[String] {
        &self.unsteady_tests
    }

    /// Notes one test that passed.
    pub fn pass(&mut self) {
        self.passed += 1;
    }

    /// Notes one test that can't run here.
    pub fn skip(&mut self, step: &str, test: &str, reason: &str) {
        self.skips.push(format!("skipped: {step}: {test}: {reason}"));
    }

    /// Says what another run does, and this one does not.
    pub fn leave_out(&mut self, what: &str) {
        self.left_out.push(what.to_owned());
    }

    /// Notes one failure.
    pub fn fail(&mut self, step: &str, what: &str) {
        self.failures.push(format!("FAILED: {step}: {what}"));
    }

    /// Whether nothing failed.
    pub fn holds(&self) -> bool {
        self.failures.is_empty()
    }

    /// A line for each test that was skipped, passed at the second time only, or failed.
    pub fn explanations(&self) -> impl Iterator<Item = &str> {
        self.skips
            .iter()
            .chain(&self.unsteady)
            .chain(&self.left_out)
            .chain(&self.failures)
            .map(String::as_str)
    }

    /// The last line of the run.
    pub fn summary(&self) -> String {
        let unsteady = match self.unsteady.len() {
            0 => String::new(),
            count => format!(" ({count} of them only when run again)"),
        };
        let (failed, skipped) = (self.failures.len(), self.skips.len());
        format!("{} passed{unsteady}, {failed} failed, {skipped} skipped", self.passed)
    }
}

/// The tests with the folders of their packages below `root`.
fn below(root: &Path, tests: &BTreeSet<(PathBuf, String)>) -> BTreeSet<(PathBuf, String)> {
    let folder = |folder: &Path| folder.strip_prefix(root).unwrap_or(folder).to_path_buf();
    tests.iter().map(|(of, test)| (folder(of), test.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(output: &str, content: bool) -> Tally {
        let mut step = Step::new("unit");
        for line in output.lines() {
            step.read(line);
        }
        let mut tally = Tally::default();
        tally.add(step, content);
        tally
    }

    const GOOD: &str = "\
     Running unittests src/lib.rs (target/debug/deps/a-1)
test a ... ok
test b ... ok
successes:
---- b stdout ----
skipped: needs root; run through sudo
skipped: needs root; said twice by one test
successes:
    a
    b
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
   Doc-tests a
test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn a_skipped_test_has_not_passed() {
        let tally = tally(GOOD, true);
        assert_eq!(tally.summary(), "2 passed, 0 failed, 2 skipped");
        assert!(tally.holds());
        let said: Vec<&str> = tally.explanations().collect();
        assert_eq!(said[0], "skipped: unit: b: needs root; run through sudo");
    }

    #[test]
    fn the_child_of_a_test_is_no_test() {
        let output = "     Running a\ntest child ... ignored, the other process of the test below\n\
                      test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured";
        assert_eq!(tally(output, true).summary(), "1 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn a_failed_test_is_named() {
        let output = GOOD
            .replace("test a ... ok", "test a ... FAILED")
            .replace("ok. 2 passed; 0", "FAILED. 1 passed; 1");
        let tally = tally(&output, false);
        assert_eq!(tally.summary(), "1 passed, 1 failed, 2 skipped");
        assert!(!tally.holds());
        assert!(tally.explanations().any(|line| line == "FAILED: unit: a"));
    }

    #[test]
    fn who_passes_when_it_runs_again_has_passed_and_is_told() {
        let failing = |name: &str, why: &str| {
            format!(
                "test {name} ... FAILED\nfailures:\n---- {name} stdout ----\nthread '{name}' (7) panicked at src/a.rs:1:2:\n\
                 {why}\nstack backtrace:\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n"
            )
        };
        let read = |output: &str| {
            let mut step = Step::new("unit");
            for line in output.lines() {
                step.read(line);
            }
            step
        };
        let ran = |again: &str| {
            let both =
                format!(" Running one\n{} Running two\n{}", failing("a", "once"), failing("b", "late"));
            let mut step = read(&both);
            assert_eq!(step.named_failures(), ["a", "b"]);
            step.repeated(&read(again));
            let mended = step.is_mended();
            let mut tally = Tally::default();
            tally.add(step, mended);
            (tally.summary(), tally.explanations().map(str::to_owned).collect::<Vec<_>>())
        };
        let (summary, said) = ran("test a ... ok\ntest b ... ok\n");
        assert_eq!(summary, "2 passed (2 of them only when run again), 0 failed, 0 skipped");
        assert_eq!(said[0], "unsteady: unit: passed only when it ran again: a: src/a.rs:1:2: once");
        let (summary, said) = ran("test a ... ok\ntest b ... FAILED\n");
        assert_eq!(summary, "1 passed (1 of them only when run again), 1 failed, 0 skipped");
        assert_eq!(said[1], "FAILED: unit: b: src/a.rs:1:2: late");
        // Who has not run again has not passed, and one of two with the same name is not enough.
        assert_eq!(ran("").0, "0 passed, 2 failed, 0 skipped");
        assert_eq!(
            ran("test a ... ok\ntest b ... ok\ntest b ... FAILED\n").0.split(',').nth(1),
            Some(" 1 failed")
        );
    }

    #[test]
    fn what_is_no_failure_of_a_test_is_not_tried_again() {
        let mut step = Step::new("unit");
        for line in [
            "test a ... FAILED",
            " Running two",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored",
            " Running three",
        ] {
            step.read(line);
        }
        assert_eq!(step.named_failures(), [] as [&str; 0], "a program died");
    }

    #[test]
    fn why_a_test_failed_is_said_once_more_at_the_end() {
        let long = "x".repeat(WHY_CHARS + 100);
        let output = format!(
            "test a ... FAILED\ntest b ... FAILED\nfailures:\n\n---- a stdout ----\nbefore\n\nthread 'a' (7) panicked at src/a.rs:1:2:\n\
             assertion failed: it holds\n  left: 1\nstack backtrace:\n   0: noise\n\n---- b stdout ----\n\
             thread 'b' (8) panicked at src/b.rs:3:4:\n{long}\nand more\nstack backtrace:\n\nfailures:\n    a\n    b\n\n\
             test result: FAILED. 0 passed; 2 failed; 0 ignored"
        );
        let tally = tally(&output, false);
        let said: Vec<&str> = tally.explanations().collect();
        assert_eq!(said[0], "FAILED: unit: a: src/a.rs:1:2: assertion failed: it holds left: 1");
        assert!(said[1].starts_with("FAILED: unit: b: src/b.rs:3:4: xxx") && said[1].len() < WHY_CHARS + 100);
    }

    #[test]
    fn a_program_that_died_without_its_last_word_failed() {
        let output = "     Running tests/a.rs (x)\ntest a ... ok\n     Running tests/b.rs (y)\ntest result: ok. 1 passed; 0 failed; 0 ignored";
        assert_eq!(tally(output, false).summary(), "1 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_build_that_failed_is_a_failure_and_so_is_a_run_without_tests() {
        assert_eq!(tally("error: could not compile `a`", false).summary(), "0 passed, 1 failed, 0 skipped");
        assert_eq!(tally("", true).summary(), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn who_is_at_work_for_long_is_known_until_it_ends() {
        let mut step = Step::new("unit");
        step.read("test a has been running for over 60 seconds");
        step.read("test b has been running for over 60 seconds");
        step.read("test a ... ok");
        assert_eq!(step.slow(), ["b"]);
    }

    #[test]
    fn the_output_of_tests_that_passed_is_not_shown() {
        let mut step = Step::new("unit");
        let shown: Vec<&str> = GOOD.lines().filter(|line| step.read(line)).collect();
        assert!(shown.contains(&"test a ... ok") && !shown.iter().any(|line| line.contains("needs root")));
    }
}
