//! The test run: the checks, the model checker, every package's tests, the end-to-end tests, a bounded fuzz; then one
//! honest line.

mod fuzz;
mod tally;
mod watched;

use crate::tidy;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};
use tally::Tally;
use watched::Watched;

/// How long the steps have together. A run that hangs ends with its tally before whoever started it loses patience: 90 minutes with what is built before and fuzzed behind are common.
const PATIENCE: Duration = Duration::from_secs(62 * 60);

/// How many tests of a step may fail and be tried once more. Where more of them fail, it is no accident.
const MOST_REPEATED: usize = 6;

/// How much to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// What a person runs before each commit.
    Check,
    /// The fuzz targets alone.
    Fuzz,
    /// The domains of a Xen alone.
    Xen,
    /// The guest with TIPC alone, and all that they can show.
    Tipc,
    /// What CI runs.
    Everything,
}

/// One command of the run.
struct Step {
    /// Name of the step and of its log.
    name: &'static str,
    arguments: &'static [&'static str],
    /// Whether `cargo test` runs and its output is counted; else the step only holds or fails.
    counts: bool,
    environment: BTreeMap<&'static str, String>,
}

/// Runs it all, even after a failure, and says what came out. Fails when anything failed.
pub fn run(root: &Path, extent: Extent) -> ExitCode {
    let logs = target(root).join("test-logs");
    if let Err(error) = std::fs::create_dir_all(&logs) {
        eprintln!("test: can't make {}: {error}", logs.display());
        return ExitCode::FAILURE;
    }
    let begin = Instant::now();
    let mut tally = Tally::default();
    if matches!(extent, Extent::Check | Extent::Everything) {
        check_tidy(root, &mut tally);
    }
    run_steps(root, extent, &logs, &mut tally);
    if matches!(extent, Extent::Fuzz | Extent::Everything) {
        announce("fuzz");
        if let Err(error) = fuzz::run(root, &target(root), &logs, &mut tally) {
            tally.fail("fuzz", &error.to_string());
        }
    }
    for line in tally.explanations() {
        println!("{line}");
    }
    println!("logs: {}; {} s", logs.display(), begin.elapsed().as_secs());
    println!("{}", tally.summary());
    if tally.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_steps(root: &Path, extent: Extent, logs: &Path, tally: &mut Tally) {
    let ends_at = Instant::now() + PATIENCE;
    for step in steps(root, extent) {
        announce(step.name);
        if let Err(error) = run_step(root, logs, &step, ends_at, tally) {
            tally.fail(step.name, &error.to_string());
        }
    }
}

fn announce(name: &str) {
    println!("==> {name}");
}

fn check_tidy(root: &Path, tally: &mut Tally) {
    announce("tidy");
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

fn steps(root: &Path, extent: Extent) -> Vec<Step> {
    let step = |name, arguments, counts| Step { name, arguments, counts, environment: BTreeMap::new() };
    let xen = &["test", "--package", "xen_bed", "--no-fail-fast", "--", "--show-output"];
    match extent {
        Extent::Fuzz => return Vec::new(),
        Extent::Xen => return vec![step("xen", xen, true)].into_iter().map(with_root).collect(),
        Extent::Tipc => {
            let mut tipc = step("tipc", &["test", "--package", "e2e", "tipc::", "--", "--show-output"], true);
            tipc.environment.insert("TOMBOLO_TIPC_SUITE", "all".into());
            return vec![with_root(tipc)];
        }
        Extent::Check | Extent::Everything => {}
    }
    let mut steps = vec![
        step("format", &["fmt", "--all", "--check"], false),
        step("format-fuzz", &["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"], false),
        step("lint", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"], false),
    ];
    if extent == Extent::Check {
        let arguments = &[
            "test",
            "--workspace",
            "--exclude",
            "e2e",
            "--lib",
            "--bins",
            "--no-fail-fast",
            "--",
            "--show-output",
        ];
        steps.push(step("unit", arguments, true));
        return steps.into_iter().map(with_root).collect();
    }
    let mut model = step(
        "model",
        &[
            "test",
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
            "--no-fail-fast",
            "--",
            "--show-output",
        ],
        true,
    );
    model.environment.insert("RUSTFLAGS", "--cfg loom".into());
    // Other flags would throw away everything that was built: the model checker builds in a folder of its own.
    model.environment.insert("CARGO_TARGET_DIR", target(root).join("loom").display().to_string());
    steps.push(model);
    steps.push(step(
        "packages",
        &[
            "test",
            "--workspace",
            "--exclude",
            "e2e",
            "--exclude",
            "xen_bed",
            "--no-fail-fast",
            "--",
            "--show-output",
        ],
        true,
    ));
    steps.push(step("xen", xen, true));
    steps.push(step(
        "end-to-end",
        &["test", "--package", "e2e", "--no-fail-fast", "--", "--show-output"],
        true,
    ));
    steps.into_iter().map(with_root).collect()
}

/// Namespaces, mounts and control groups want root: without it, cargo starts the tests (and only them) through sudo.
fn with_root(mut step: Step) -> Step {
    if step.counts && !is_root() {
        step.environment.insert(runner_variable(), "sudo -E".into());
    }
    step
}

/// Whether this process is root, as the kernel says.
fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1)).is_some_and(|effective| effective == "0")
}

fn runner_variable() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER"
    } else {
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER"
    }
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

fn run_step(
    root: &Path,
    logs: &Path,
    step: &Step,
    ends_at: Instant,
    tally: &mut Tally,
) -> std::io::Result<()> {
    let (mut counted, end) = read_step(root, logs, step, step.name, step.arguments, ends_at)?;
    if end.is_ok() && (1..=MOST_REPEATED).contains(&counted.named_failures().len()) {
        repeat(root, logs, step, ends_at, &mut counted)?;
    }
    let slow = counted.slow().join(", ");
    let succeeded = end.as_ref().is_ok_and(std::process::ExitStatus::success);
    if step.counts {
        let succeeded = succeeded || counted.is_mended();
        tally.add(counted, succeeded);
    } else if !succeeded {
        tally.fail(step.name, &format!("cargo {} said no, see above", step.arguments.join(" ")));
    }
    if let Err(reason) = end {
        tally.fail(
            step.name,
            &format!("{reason}; at work for over a minute: {}", if slow.is_empty() { "none" } else { &slow }),
        );
    }
    Ok(())
}

/// Runs the command of a step, and reads what its tests say.
fn read_step(
    root: &Path,
    logs: &Path,
    step: &Step,
    log: &str,
    arguments: &[&str],
    ends_at: Instant,
) -> std::io::Result<(tally::Step, Result<ExitStatus, String>)> {
    let mut log = File::create(logs.join(format!("{log}.log")))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).envs(&step.environment).current_dir(root);
    let mut watched = Watched::start(&mut command, ends_at)?;
    let mut counted = tally::Step::new(step.name);
    while let Some(line) = watched.next_line()? {
        writeln!(log, "{line}")?;
        if counted.read(&line) {
            println!("{line}");
        }
    }
    Ok((counted, watched.finish()?))
}

/// Tests that failed run once more, one at a time: on a machine that others use as well, who passes then is told apart
/// from who never does.
fn repeat(
    root: &Path,
    logs: &Path,
    step: &Step,
    ends_at: Instant,
    counted: &mut tally::Step,
) -> std::io::Result<()> {
    let names = counted.named_failures();
    announce(&format!("{}: once more, alone: {}", step.name, names.join(", ")));
    let mut arguments: Vec<&str> = step.arguments.to_vec();
    arguments.extend(["--exact", "--test-threads=1"]);
    arguments.extend(names.iter().map(String::as_str));
    let (again, _) = read_step(root, logs, step, &format!("{}-again", step.name), &arguments, ends_at)?;
    counted.repeated(&again);
    Ok(())
}
