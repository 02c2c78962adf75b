//! The test run: the checks, one build of everything, the test programs two at a time, the fuzz
//! corpus; then one honest line.

mod affected;
mod expected;
mod fuzz;
mod programs;
#[cfg(test)]
mod shared;
mod tally;
mod times;
mod watched;

use crate::{target, tidy};
use programs::{Built, Program, Run};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tally::Tally;
use times::Times;

/// How long the test programs have together. A run that hangs ends with its tally before CI, which
/// has 90 minutes, ends it.
const PROGRAMS_TIMEOUT: Duration = Duration::from_secs(62 * 60);
/// The same for the long run, which nobody waits for at a keyboard.
const LONG_TIMEOUT: Duration = Duration::from_secs(5 * 60 * 60);

/// Packages that only a bench builds, because they take minutes and no test of ours is in need of
/// them.
const ONLY_FOR_BENCHES: [&str; 2] = ["middleware", "peers"];
/// Packages whose tests boot machines for minutes.
const ONLY_LONG: [&str; 1] = ["xen_bed"];
/// A test program of this name, in any package, is for the long run alone.
const LONG: &str = "long";
/// Programs that the long run asks for more than the ordinary one, and how: by these variables.
const LONGER: [Longer; 8] = [
    Longer { package: "e2e", target: LONG, tests: &[], variable: "TOMBOLO_SIEGE_SECONDS", value: "300" },
    Longer {
        package: "e2e",
        target: "all",
        tests: &["leaks::"],
        variable: "TOMBOLO_LEAK_DOMAINS",
        value: "10000",
    },
    Longer { package: "channel", target: "death", tests: &[], variable: "TOMBOLO_DEATHS", value: "10000" },
    Longer {
        package: "channel",
        target: "death_of_streams",
        tests: &[],
        variable: "TOMBOLO_DEATHS",
        value: "10000",
    },
    Longer {
        package: "channel",
        target: "stress",
        tests: &[],
        variable: "TOMBOLO_STRESS_SECONDS",
        value: "300",
    },
    // Of two domains each.
    Longer { package: "domain", target: "starts", tests: &[], variable: "TOMBOLO_STARTS", value: "500" },
    Longer { package: "e2e", target: LONG, tests: &[], variable: "TOMBOLO_TIPC_SUITE", value: "all" },
    Longer { package: "sim", target: "cluster", tests: &[], variable: "SIM_SEEDS", value: "100000" },
];
/// Has skips that nobody expects, and proofs that did not run, fail a full run: CI sets it.
const STRICT_VARIABLE: &str = "TOMBOLO_STRICT";
/// Has the lints of a full run looked at while its programs are compiled, not in a pass of their
/// own: for CI, which compiles everything once. Who goes on with `cargo test` afterwards would
/// compile our packages once more, because cargo keeps what another compiler made apart.
const LINT_VARIABLE: &str = "TOMBOLO_LINT_IN_BUILD";

/// A program of which the long run asks for more.
struct Longer {
    package: &'static str,
    target: &'static str,
    /// The names of its tests to run; none: all.
    tests: &'static [&'static str],
    variable: &'static str,
    value: &'static str,
}

/// How long the long run fuzzes each target, in seconds, where nobody asks for another time.
const LONG_FUZZ_SECONDS: u64 = 120;
/// The checker of dependencies, below the folder that cargo builds in, where `scripts/deny` has
/// built it.
const DENY_PROGRAM: &str = "tools/bin/cargo-deny";

/// How much to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent {
    /// Only what tests start is built.
    Product,
    /// The checks that a person runs before each commit.
    Check,
    /// The fuzz targets alone, with new inputs.
    Fuzz,
    /// The domains of a Xen alone.
    Xen,
    /// The guest with TIPC alone, and all that they can show.
    Tipc,
    /// The tests that CI runs.
    Everything,
    /// The tests that take too long for that.
    Long,
    /// The programs that a change since a revision can have touched.
    Affected(String),
}

/// The context that every part of a run shares.
struct Bed<'a> {
    root: &'a Path,
    target: PathBuf,
    logs: PathBuf,
    tally: Tally,
    times: Times,
    /// The variables that have our packages compiled by the linter, where it is to be so.
    compiler: BTreeMap<&'static str, String>,
    /// How long the test programs have together.
    timeout: Duration,
}

/// Runs it all, even after a failure, and says what came out. Fails when anything failed.
pub fn run(root: &Path, extent: Extent) -> ExitCode {
    let target = target(root);
    let logs = target.join("test-logs");
    if let Err(error) = std::fs::create_dir_all(&logs) {
        eprintln!("test: can't make {}: {error}", logs.display());
        return ExitCode::FAILURE;
    }
    let begin = Instant::now();
    let timeout = if extent == Extent::Long { LONG_TIMEOUT } else { PROGRAMS_TIMEOUT };
    let (tally, times) = (Tally::default(), Times::default());
    let in_build = extent == Extent::Everything && std::env::var_os(LINT_VARIABLE).is_some();
    let compiler = if in_build { linter() } else { BTreeMap::new() };
    let mut bed = Bed { root, target, logs, tally, times, compiler, timeout };
    bed.run(&extent);
    if matches!(extent, Extent::Everything | Extent::Long) {
        bed.demand(extent == Extent::Long);
    }
    bed.report(begin.elapsed());
    if bed.tally.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Bed<'_> {
    fn run(&mut self, extent: &Extent) {
        match extent {
            Extent::Product => self.product(),
            Extent::Check => {
                self.checks(true);
                let (tests, _) = ordinary(self.build(&["--lib", "--bins"]));
                self.programs(&tests, &[], &[]);
            }
            Extent::Everything => {
                self.checks(false);
                self.product();
                let (mut tests, long) = ordinary(self.build(&[]));
                tests.extend(self.models());
                self.programs(&tests, &[], &[]);
                self.leave_out(&long);
            }
            Extent::Affected(since) => self.affected(since),
            Extent::Fuzz => self.fuzz(None),
            Extent::Xen => {
                let tests = self.build(&["--package", "xen_bed"]);
                self.programs(&tests, &[], &[]);
            }
            Extent::Tipc => {
                self.product();
                let (_, long) = ordinary(self.build(&["--package", "e2e"]));
                self.programs(&long, &["tipc::"], &[("TOMBOLO_TIPC_SUITE", "all")]);
            }
            Extent::Long => {
                self.deny();
                self.product();
                let (tests, long) = ordinary(self.build(&[]));
                self.programs(&long, &[], &LONGER.map(|longer| (longer.variable, longer.value)));
                for Longer { package, target, tests: which, variable, value } in LONGER {
                    let again = tests.iter().filter(|test| test.package == package && test.target == target);
                    let again: Vec<_> = again.cloned().collect();
                    if !again.is_empty() {
                        self.programs(&again, which, &[(variable, value)]);
                    }
                }
                self.fuzz(Some(LONG_FUZZ_SECONDS));
            }
        }
    }

    /// Holds a full run to more than that nothing fails; where it is to be strict, to all of it.
    fn demand(&mut self, long: bool) {
        let Self { root, logs, tally, .. } = self;
        match expected::unsteady_again(root, tally.unsteady_tests()) {
            Ok(again) => again.iter().for_each(|test| tally.fail("unsteady", test)),
            Err(error) => tally.fail("unsteady", &format!("the ledger can't be kept: {error}")),
        }
        let kept = tally.keep_ran(root, &logs.join(tidy::ran_file(long)));
        if let Err(error) = kept {
            tally.fail("programs", &format!("what ran can't be written down: {error}"));
        }
        if std::env::var_os(STRICT_VARIABLE).is_none() {
            return;
        }
        match expected::unexpected(root, tally.skips()) {
            Ok(skips) => skips.iter().for_each(|skip| tally.fail("skips", skip)),
            Err(error) => tally.fail("skips", &format!("the list of expected ones can't be read: {error}")),
        }
        match tidy::proofs_that_did_not_run(root, &tally.ran(root), long) {
            Ok(proofs) => proofs.iter().for_each(|proof| tally.fail("guarantees", proof)),
            Err(error) => tally.fail("guarantees", &error.to_string()),
        }
    }

    fn report(&mut self, took: Duration) {
        for line in self.tally.explanations() {
            println!("{line}");
        }
        print!("{}", self.times.table());
        let file = self.logs.join("times.tsv");
        if let Err(error) = self.times.keep(&file) {
            println!("test: can't keep the times in {}: {error}", file.display());
        }
        println!("logs: {}; {} s", self.logs.display(), took.as_secs());
        println!("{}", self.tally.summary());
    }

    /// Formatting, tidy, lints; licences and sources where their checker is there or is to be
    /// built.
    fn checks(&mut self, build_deny: bool) {
        announce("tidy");
        let Self { root, tally, times, .. } = self;
        times.step("tidy", |_| check_tidy(root, tally));
        self.cargo("format", &["fmt", "--all", "--check"]);
        if self.compiler.is_empty() {
            let lint = ["clippy", "--workspace", "--all-targets"];
            let arguments = [&lint[..], &excluded(), &["--", "-D", "warnings"]].concat();
            self.cargo("lint", &arguments);
        }
        // It takes minutes to build, once: a run that builds all the rest does not do that, too.
        if build_deny || self.target.join(DENY_PROGRAM).exists() {
            self.deny();
        } else {
            self.tally.leave_out("licences and sources are left to `make deny`, which builds cargo-deny");
        }
    }

    /// Licences, sources and forbidden crates of what is linked.
    fn deny(&mut self) {
        announce("deny");
        let Self { root, target, tally, times, .. } = self;
        let mut command = Command::new(root.join("scripts/deny"));
        command.env("CARGO_TARGET_DIR", target).current_dir(root).stdin(Stdio::null());
        match times.step("deny", |_| command.status()) {
            Ok(status) if status.success() => {}
            Ok(_) => tally.fail("deny", "scripts/deny said no, see above"),
            Err(error) => tally.fail("deny", &error.to_string()),
        }
    }

    /// A command of cargo that only holds or fails.
    fn cargo(&mut self, name: &str, arguments: &[&str]) {
        announce(name);
        let Self { root, tally, times, .. } = self;
        let mut command = programs::cargo();
        command.args(arguments).current_dir(root).stdin(Stdio::null());
        match times.step(name, |_| command.status()) {
            Ok(status) if status.success() => {}
            Ok(_) => tally.fail(name, &format!("cargo {} said no, see above", arguments.join(" "))),
            Err(error) => tally.fail(name, &error.to_string()),
        }
    }

    /// Builds all test programs, with one set of features whatever is asked for: cargo unites those
    /// of the packages that it is asked for, and another set would build everything again.
    fn build(&mut self, arguments: &[&str]) -> Vec<Program> {
        let narrow = arguments.contains(&"--package");
        let mut all = vec!["test", "--no-run"];
        if !narrow {
            all.push("--workspace");
            all.extend(excluded());
        }
        all.extend(arguments);
        let built = self.built("build-tests", &all, &self.compiler.clone());
        // The workers of benches are looked for beside the program that measures them.
        self.place(&built, |name| name != TOMBOLO);
        built.tests
    }

    fn built(&mut self, name: &str, arguments: &[&str], environment: &BTreeMap<&str, String>) -> Built {
        announce(name);
        let Self { root, tally, times, .. } = self;
        let built = times.step(name, |_| programs::build(root, arguments, environment));
        match built {
            Ok(built) => {
                if !built.succeeded {
                    tally.fail(name, &format!("cargo {} said no, see above", arguments.join(" ")));
                }
                built
            }
            Err(error) => {
                tally.fail(name, &error.to_string());
                Built::default()
            }
        }
    }

    /// Builds what the end-to-end tests start, as a release is built but for its speed: `tombolo`
    /// is static, so that it runs inside of any domain.
    fn product(&mut self) {
        let arguments = [
            "rustc",
            "--package",
            TOMBOLO,
            "--bin",
            TOMBOLO,
            "--features",
            SHARED,
            "--",
            "-C",
            "target-feature=+crt-static",
            // A guest has it in its memory, where names that nobody reads take a third of it.
            "-C",
            "strip=symbols",
        ];
        let built = self.built("build-product", &arguments, &self.compiler.clone());
        self.place(&built, |_| true);
        let built = self.built(
            "build-libraries",
            &[
                "build",
                "--lib",
                "--bin",
                "tombolo-bench",
                "--package",
                "preload",
                "--package",
                "libtombolo",
                "--package",
                "measure",
                // It has no library, but so its features hold here, too, and nothing is built
                // again.
                "--package",
                TOMBOLO,
                "--features",
                &format!("{TOMBOLO}/{SHARED}"),
            ],
            &self.compiler.clone(),
        );
        self.place(&built, |_| true);
        let link = self.product_folder().join("libtombolo.so.0");
        let made = std::fs::remove_file(&link).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        });
        if let Err(error) = made.and_then(|()| std::os::unix::fs::symlink("libtombolo.so", &link)) {
            self.tally.fail("build-libraries", &format!("{}: {error}", link.display()));
        }
    }

    /// The folder of what the tests start: nothing in it can be older than the sources, because
    /// each run makes it anew.
    fn product_folder(&self) -> PathBuf {
        self.target.join("product")
    }

    fn place(&mut self, built: &Built, wanted: impl Fn(&str) -> bool) {
        let folder = self.product_folder();
        let placed = std::fs::create_dir_all(&folder).and_then(|()| {
            built.products.iter().filter(|(name, _)| wanted(name)).try_for_each(|(name, file)| {
                let new = folder.join(format!(".{name}"));
                std::fs::copy(file, &new)?;
                // What it was made of, so that tests notice when that has changed since.
                let made_of = file.with_extension("d");
                if made_of.exists() {
                    std::fs::copy(made_of, folder.join(format!("{name}.d")))?;
                }
                std::fs::rename(new, folder.join(name))
            })
        });
        if let Err(error) = placed {
            self.tally.fail("build", &format!("can't fill {}: {error}", folder.display()));
        }
    }

    /// The model checker's programs, which have flags of their own and so a folder of their own.
    fn models(&mut self) -> Vec<Program> {
        let environment = BTreeMap::from([
            ("RUSTFLAGS", "--cfg loom".to_owned()),
            ("CARGO_TARGET_DIR", self.target.join("loom").display().to_string()),
            // To optimise across packages takes longer than it saves.
            ("CARGO_PROFILE_RELEASE_LTO", "off".to_owned()),
            ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16".to_owned()),
        ]);
        let arguments = [
            "test",
            "--no-run",
            "--release",
            "--package",
            "ring",
            "--package",
            "ipc",
            "--package",
            "enforce",
            "--test",
            "model",
            "--test",
            "grants_model",
        ];
        let mut tests = self.built("build-models", &arguments, &environment).tests;
        for test in &mut tests {
            test.target.push_str("-loom");
        }
        tests
    }

    fn programs(&mut self, tests: &[Program], arguments: &[&str], variables: &[(&'static str, &str)]) {
        announce("programs");
        let product = self.product_folder().join(TOMBOLO);
        let mut environment = BTreeMap::from([("CARGO_TARGET_DIR", self.target.display().to_string())]);
        if product.exists() {
            environment.insert("TOMBOLO_BIN", product.display().to_string());
        }
        environment.extend(variables.iter().map(|&(variable, value)| (variable, value.to_owned())));
        let Self { logs, tally, times, timeout, .. } = self;
        let how = Run {
            logs,
            environment: &environment,
            // Namespaces, mounts and control groups want root.
            runner: if is_root() { &[] } else { &["sudo", "-E"] },
            arguments,
            ends_at: Instant::now() + *timeout,
        };
        programs::run(tests, &how, tally, times);
    }

    fn affected(&mut self, since: &str) {
        let affected = match affected::packages(self.root, since) {
            Ok(affected) => affected,
            Err(error) => return self.tally.fail("affected", &error.to_string()),
        };
        println!("affected since {since}: {}", affected.describe());
        self.checks(false);
        if affected.is_affected("e2e") {
            self.product();
        }
        let (tests, long) = ordinary(self.build(&[]));
        let tests: Vec<_> = tests.into_iter().filter(|test| affected.is_affected(&test.package)).collect();
        self.programs(&tests, &[], &[]);
        self.leave_out(&long);
    }

    /// Counts the tests that are left to the long run.
    fn leave_out(&mut self, long: &[Program]) {
        let count: usize = long.iter().map(programs::count).sum();
        let names: Vec<_> = long.iter().map(Program::name).collect();
        self.tally.leave_out(&format!("{count} tests are left to `make test-long`: {}", names.join(", ")));
    }

    fn fuzz(&mut self, seconds: Option<u64>) {
        announce("fuzz");
        let Self { root, target, logs, tally, times, .. } = self;
        if let Err(error) = times.step("fuzz", |_| fuzz::run(root, target, logs, seconds, tally)) {
            tally.fail("fuzz", &error.to_string());
        }
    }
}

/// The program that everything is about.
const TOMBOLO: &str = "tombolo";
/// Its feature that gives other people's packages the features that they have in the test programs,
/// so that they are built once for both.
const SHARED: &str = "tests";

/// The variables that have cargo compile our packages by clippy, which is the compiler and its
/// lints, and fail where one of them complains.
fn linter() -> BTreeMap<&'static str, String> {
    let beside_cargo = |cargo: std::ffi::OsString| Path::new(&cargo).with_file_name("clippy-driver");
    let there = std::env::var_os("CARGO").map(beside_cargo).filter(|driver| driver.is_file());
    let driver = there.unwrap_or_else(|| PathBuf::from("clippy-driver"));
    // Clippy takes its arguments in this form from `cargo clippy`.
    let arguments = ["-D", "warnings"].map(|argument| format!("{argument}__CLIPPY_HACKERY__")).concat();
    BTreeMap::from([("RUSTC_WORKSPACE_WRAPPER", driver.display().to_string()), ("CLIPPY_ARGS", arguments)])
}

/// The programs of an ordinary run, and those that take too long for it.
fn ordinary(tests: Vec<Program>) -> (Vec<Program>, Vec<Program>) {
    let is_long = |test: &Program| ONLY_LONG.contains(&test.package.as_str()) || test.target == LONG;
    let (long, ordinary) = tests.into_iter().partition(is_long);
    (ordinary, long)
}

fn excluded() -> Vec<&'static str> {
    ONLY_FOR_BENCHES.iter().flat_map(|package| ["--exclude", package]).collect()
}

fn announce(name: &str) {
    println!("==> {name}");
}

fn check_tidy(root: &Path, tally: &mut Tally) {
    match tidy::check_repository(root) {
        Ok(violations) => {
            for violation in &violations {
                println!("{violation}");
            }
            if !violations.is_empty() {
                tally.fail("tidy", &format!("{} to mend, see above", violations.len()));
            }
        }
        Err(error) => tally.fail("tidy", &error.to_string()),
    }
}

/// Whether this process is root, as the kernel says.
fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1)).is_some_and(|effective| effective == "0")
}
