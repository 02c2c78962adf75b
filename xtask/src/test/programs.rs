//! The test programs: one build of them all, and the queue from which they run, two at a time.
//!
//! Cargo would run one program after the other. Most of ours wait for processes and clocks, so two
//! at a time cost no more time than one. A program that measures time runs alone, when the others
//! have ended.

use super::tally::{self, Tally};
use super::times::{self, Times};
use super::watched::Watched;
use cargo_metadata::{Message, TargetKind};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Programs that run at the same time: one for each processor of the smallest machine that is
/// supported.
const LANES: usize = 2;

/// How many tests may fail and be tried once more. Where more of them fail, it is no accident.
const MAX_REPEATED: usize = 6;

/// Programs whose verdicts depend on who else has the processors. They run one at a time, after the
/// others.
const ALONE: [(&str, &str); 9] = [
    ("bench", "*"),
    ("campaign", "plans"),
    ("conformance", "enforcers"),
    ("channel", "sleeping"),
    ("channel", "waiting"),
    ("e2e", "*"),
    ("enforce", "*"),
    ("interface", "*"),
    ("xen_bed", "*"),
];

/// Programs of which another number of tests runs at the same time than there are processors: most
/// tests of the one wait for machines, leases and daemons; those of the other measure what a siege
/// does to whoever is beside it.
const OTHER_THREADS: [(&str, &str, &str); 2] =
    [("e2e", "all", "--test-threads=4"), ("e2e", "long", "--test-threads=1")];

/// Programs that run longest of those that share the processors: they start first, so that nobody
/// waits for one at the end.
const FIRST: [(&str, &str); 4] = [("machine", "*"), ("domain", "*"), ("registry", "*"), ("conformance", "*")];

/// A program that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The package, as `node`.
    pub package: String,
    /// The target, as `node` (its unit tests) or `faults`.
    pub target: String,
    /// The file.
    pub executable: PathBuf,
    /// The package's folder, in which the program runs.
    pub folder: PathBuf,
}

impl Program {
    /// The name under which it is told and logged.
    pub fn name(&self) -> String {
        if self.package == self.target {
            self.package.clone()
        } else {
            format!("{}-{}", self.package, self.target)
        }
    }

    /// How many of its tests run at the same time, where it is not one for each processor.
    fn threads(&self) -> Option<&'static str> {
        let of =
            |&(package, target, _): &(&str, &str, &str)| package == self.package && target == self.target;
        OTHER_THREADS.iter().copied().find(of).map(|(_, _, threads)| threads)
    }

    fn is_in(&self, list: &[(&str, &str)]) -> bool {
        list.iter()
            .any(|(package, target)| *package == self.package && (*target == "*" || *target == self.target))
    }
}

/// The products of one call of cargo.
#[derive(Debug, Default)]
pub struct Built {
    /// Test programs.
    pub tests: Vec<Program>,
    /// Ordinary programs and libraries of C's kind, by file name.
    pub products: BTreeMap<String, PathBuf>,
    /// Whether everything could be built.
    pub succeeded: bool,
}

/// Cargo, without what the cargo that runs us says of this package: build scripts read some of it,
/// and would run again, and all that depends on them be built again, whenever a person had called
/// cargo meanwhile.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let of_package = ["CARGO_MANIFEST_", "CARGO_PKG_"];
    for (name, _) in std::env::vars_os() {
        if of_package.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs cargo with `arguments`, whose progress goes to the terminal, and reads what it made.
pub fn build(
    root: &Path,
    arguments: &[&str],
    environment: &BTreeMap<&str, String>,
) -> std::io::Result<Built> {
    let (verb, rest) = arguments.split_at(1);
    let mut child = cargo()
        .args(verb)
        .args(["--timings", "--message-format=json-render-diagnostics"])
        .args(rest)
        .envs(environment)
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut built = Built::default();
    if let Some(output) = child.stdout.take() {
        for message in Message::parse_stream(BufReader::new(output)) {
            if let Message::CompilerArtifact(artifact) = message? {
                built.take_artifact(artifact);
            }
        }
    }
    built.succeeded = child.wait()?.success();
    built.tests.sort_by_key(Program::name);
    Ok(built)
}

impl Built {
    fn take_artifact(&mut self, artifact: cargo_metadata::Artifact) {
        let folder = artifact.manifest_path.parent().map(|folder| folder.as_std_path().to_path_buf());
        match artifact.executable {
            Some(executable) if artifact.profile.test => {
                let Some(folder) = folder else { return };
                let package = package_name(&artifact.package_id.repr);
                let target = artifact.target.name.clone();
                self.tests.push(Program { package, target, executable: executable.into(), folder });
            }
            Some(executable) => self.take_product(executable.as_std_path()),
            None if artifact.target.kind.contains(&TargetKind::CDyLib) => {
                let libraries = artifact.filenames.iter().filter(|file| file.extension() == Some("so"));
                libraries.for_each(|file| self.take_product(file.as_std_path()));
            }
            None => {}
        }
    }

    fn take_product(&mut self, file: &Path) {
        if let Some(name) = file.file_name() {
            self.products.insert(name.to_string_lossy().into_owned(), file.to_path_buf());
        }
    }
}

/// The package of an id such as `path+file:///somewhere/io/channel#0.1.0` or `...#channel@0.1.0`.
fn package_name(id: &str) -> String {
    let (place, fragment) = id.rsplit_once('#').unwrap_or((id, ""));
    match fragment.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => place.rsplit('/').next().unwrap_or(place).to_owned(),
    }
}

/// How many tests a program has; 0 where it does not say.
pub fn count(program: &Program) -> usize {
    let output = Command::new(&program.executable).arg("--list").stderr(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().filter(|line| line.ends_with(": test")).count()
}

/// The settings of running the programs.
pub struct Run<'a> {
    /// Where their logs go.
    pub logs: &'a Path,
    /// The environment of the programs.
    pub environment: &'a BTreeMap<&'a str, String>,
    /// The command that starts them, where they want root and the caller isn't: `sudo -E`.
    pub runner: &'a [&'a str],
    /// The variables that ask them for more than the ordinary.
    pub arguments: &'a [&'a str],
    /// When the last of them is ended.
    pub ends_at: Instant,
}

/// Runs all programs and enters what they say.
pub fn run(programs: &[Program], how: &Run<'_>, tally: &mut Tally, times: &mut Times) {
    let (alone, mut shared): (Vec<&Program>, Vec<&Program>) =
        programs.iter().partition(|program| program.is_in(&ALONE));
    shared.sort_by_key(|program| !program.is_in(&FIRST));
    let mut outcomes = times.step("programs-shared", |_| run_lanes(shared, LANES, how));
    outcomes.extend(times.step("programs-alone", |_| run_lanes(alone, 1, how)));
    times.step("programs-again", |_| repeat(&mut outcomes, how));
    for outcome in outcomes {
        outcome.enter(tally, times);
    }
}

fn run_lanes<'a>(programs: Vec<&'a Program>, lanes: usize, how: &Run<'_>) -> Vec<Outcome<'a>> {
    let queue = Mutex::new(programs.into_iter());
    let outcomes = Mutex::new(Vec::new());
    let lane = || {
        while let Some(program) = queue.lock().ok().and_then(|mut queue| queue.next()) {
            let outcome = Outcome::of(program, how, &[], "");
            println!("{}", outcome.line());
            if let Ok(mut outcomes) = outcomes.lock() {
                outcomes.push(outcome);
            }
        }
    };
    std::thread::scope(|scope| (0..lanes).for_each(|_| drop(scope.spawn(lane))));
    outcomes.into_inner().unwrap_or_default()
}

/// Tests that failed run once more, one at a time: on a machine that others use as well, a test
/// that passes then is told apart from one that never does.
fn repeat(outcomes: &mut [Outcome<'_>], how: &Run<'_>) {
    let failed: usize = outcomes.iter().map(|outcome| outcome.counted.named_failures().len()).sum();
    if failed > MAX_REPEATED {
        return;
    }
    for outcome in outcomes {
        let names = outcome.counted.named_failures();
        if names.is_empty() || outcome.trouble.is_some() {
            continue;
        }
        println!("==> {}: once more, alone: {}", outcome.program.name(), names.join(", "));
        let mut arguments = vec!["--exact", "--test-threads=1"];
        arguments.extend(names.iter().map(String::as_str));
        let again = Outcome::of(outcome.program, how, &arguments, "-again");
        outcome.counted.repeated(&again.counted);
    }
}

/// How one program ended.
struct Outcome<'a> {
    program: &'a Program,
    counted: tally::Step,
    /// Each test with its time, as the program says.
    tests: Vec<(String, Duration)>,
    took: Duration,
    succeeded: bool,
    /// Why it did not run to its end.
    trouble: Option<String>,
}

impl<'a> Outcome<'a> {
    fn of(program: &'a Program, how: &Run<'_>, arguments: &[&str], suffix: &str) -> Self {
        let begin = Instant::now();
        let mut outcome = Self {
            program,
            counted: tally::Step::new(&program.name()),
            tests: Vec::new(),
            took: Duration::ZERO,
            succeeded: false,
            trouble: None,
        };
        match outcome.read(how, arguments, suffix) {
            Ok(Ok(status)) => outcome.succeeded = status.success(),
            Ok(Err(reason)) => {
                let slow = outcome.counted.slow().join(", ");
                let slow = if slow.is_empty() { "none" } else { &slow };
                outcome.trouble = Some(format!("{reason}; at work for over a minute: {slow}"));
            }
            Err(error) => outcome.trouble = Some(error.to_string()),
        }
        outcome.took = begin.elapsed();
        outcome
    }

    fn read(
        &mut self,
        how: &Run<'_>,
        arguments: &[&str],
        suffix: &str,
    ) -> std::io::Result<Result<std::process::ExitStatus, String>> {
        let name = self.program.name();
        let mut log = File::create(how.logs.join(format!("{name}{suffix}.log")))?;
        let mut command = match how.runner {
            [] => Command::new(&self.program.executable),
            [runner, arguments @ ..] => {
                let mut command = Command::new(runner);
                command.args(arguments).arg(&self.program.executable);
                command
            }
        };
        command
            .args(["--show-output", "-Zunstable-options", "--report-time"])
            .args(how.arguments)
            // A test that is tried again runs alone.
            .args(if arguments.is_empty() { self.program.threads() } else { None })
            .args(arguments)
            .current_dir(&self.program.folder)
            .env("CARGO_MANIFEST_DIR", &self.program.folder)
            // The time of each test is told only where unstable options are.
            .env("RUSTC_BOOTSTRAP", "1")
            .envs(how.environment);
        self.counted.read(&format!("Running {name}"));
        let mut watched = Watched::start(&mut command, how.ends_at)?;
        while let Some(line) = watched.next_line()? {
            writeln!(log, "{line}")?;
            let (line, took) = times::split(&line);
            if let Some((test, took)) = took {
                self.tests.push((test.to_owned(), took));
            }
            self.counted.read(line);
        }
        watched.finish()
    }

    /// The line that a person sees of it while the run goes on.
    fn line(&self) -> String {
        let state = if self.succeeded { "ok    " } else { "FAILED" };
        let mut line = format!(
            "{state} {:<40} {:>5} passed {:>7.1} s",
            self.program.name(),
            self.counted.passed_count(),
            self.took.as_secs_f64()
        );
        for failure in self.counted.told_failures() {
            line.push_str("\n       ");
            line.push_str(&failure);
        }
        line
    }

    fn enter(self, tally: &mut Tally, times: &mut Times) {
        let name = self.program.name();
        times.program(&name, self.took);
        for (test, took) in self.tests {
            times.test(&name, &test, took);
        }
        let content = self.succeeded || self.counted.is_mended();
        tally.note_ran(&self.program.folder, &self.counted);
        if let Some(trouble) = self.trouble {
            tally.fail(&name, &trouble);
        }
        tally.add(self.counted, content);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_known_by_its_id() {
        assert_eq!(package_name("path+file:///somewhere/io/channel#0.1.0"), "channel");
        assert_eq!(package_name("path+file:///somewhere/io/else#channel@0.1.0"), "channel");
    }

    #[test]
    fn what_measures_time_runs_alone() {
        let program = |package: &str, target: &str| Program {
            package: package.into(),
            target: target.into(),
            executable: "/bin/true".into(),
            folder: "/".into(),
        };
        assert!(program("conformance", "enforcers").is_in(&ALONE));
        assert!(program("e2e", "all").is_in(&ALONE));
        assert!(!program("conformance", "kinds").is_in(&ALONE));
        assert_eq!(program("node", "node").name(), "node");
        assert_eq!(program("conformance", "kinds").name(), "conformance-kinds");
    }
}
