//! The bounded fuzz: each target of `fuzz/` over its corpus and then some seconds further, under
//! AddressSanitizer.
//!
//! Built with the stable compiler: the sanitizer and the coverage are switched on by flags that
//! only `RUSTC_BOOTSTRAP` allows, so that nobody needs a nightly toolchain. `cargo fuzz run TARGET`
//! works as well, where one is.

use super::programs::cargo;
use super::tally::Tally;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// How long each target goes on behind its corpus, in seconds; the variable asks for another time.
const SECONDS: u64 = 12;
const SECONDS_VARIABLE: &str = "TOMBOLO_FUZZ_SECONDS";
/// A single input that takes longer hangs: most take a millisecond.
const TIMEOUT_SECONDS: u64 = 25;
/// A target that needs more memory has a leak.
const MEMORY_MIB: u64 = 2048;
/// Longest input: a few hundred steps of a script.
const INPUT_BYTES: u64 = 600;
/// Targets at once. Half of a processor each would do for some, but two threads of one target want
/// two.
const LANES: usize = 2;

/// The flags that `cargo fuzz` passes to the compiler, and overflow checks.
const RUSTFLAGS: [&str; 9] = [
    "--cfg fuzzing",
    "-Zsanitizer=address",
    "-Cdebug-assertions -Coverflow-checks",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// The platform that is built for. Naming it keeps the flags off build scripts and macros, which
/// run here and now.
const PLATFORM: &str =
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };

/// Builds all targets and runs each; a target is one test.
pub fn run(
    root: &Path,
    target: &Path,
    logs: &Path,
    seconds: Option<u64>,
    tally: &mut Tally,
) -> std::io::Result<()> {
    let names = names(root)?;
    if let Some(reason) = impossible() {
        for name in &names {
            tally.skip("fuzz", name, &reason);
        }
        return Ok(());
    }
    let place = target.join("fuzz");
    if !build(root, &place, &logs.join("fuzz-build.log"))? {
        tally.fail(
            "fuzz",
            &format!("the targets do not build, see {}", logs.join("fuzz-build.log").display()),
        );
        return Ok(());
    }
    let tally = Mutex::new(tally);
    let queue = Mutex::new(names);
    std::thread::scope(|scope| {
        let lane = || {
            while let Some(name) = queue.lock().ok().and_then(|mut names| names.pop()) {
                let outcome = run_target(root, &place, logs, &name, seconds.unwrap_or(SECONDS));
                if let Ok(mut tally) = tally.lock() {
                    note(&mut tally, &name, outcome);
                }
            }
        };
        for _ in 0..LANES {
            scope.spawn(lane);
        }
    });
    Ok(())
}

/// The targets, last first.
fn names(root: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort_by(|one, other| other.cmp(one));
    Ok(names)
}

/// Why fuzzing can't be done here, if it can't.
fn impossible() -> Option<String> {
    let answers = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if answers("g++", "--version").is_none() {
        return Some("libFuzzer wants a C++ compiler; install g++ (`make deps`)".into());
    }
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let sysroot = answers(&rustc, "--print=sysroot")?;
    let libraries = Path::new(&sysroot).join("lib/rustlib").join(PLATFORM).join("lib");
    let entries = std::fs::read_dir(&libraries).ok().into_iter().flatten().flatten();
    let has_runtime =
        entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().contains("rt.asan"));
    (!has_runtime).then(|| format!("this toolchain has no AddressSanitizer (in {})", libraries.display()))
}

fn build(root: &Path, place: &Path, log: &Path) -> std::io::Result<bool> {
    let log = File::create(log)?;
    let status = cargo()
        .args([
            "build",
            "--release",
            "--package",
            "fuzz",
            "--features",
            "fuzzing",
            "--bins",
            "--target",
            PLATFORM,
        ])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", RUSTFLAGS.join(" "))
        .env("CARGO_TARGET_DIR", place)
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()?;
    Ok(status.success())
}

/// How a target ended.
struct Outcome {
    passed: bool,
    /// How many inputs were run, as far as the log says.
    inputs: String,
    log: PathBuf,
}

fn run_target(root: &Path, place: &Path, logs: &Path, name: &str, seconds: u64) -> std::io::Result<Outcome> {
    let found = place.join("corpus").join(name);
    let artifacts = place.join("artifacts");
    std::fs::create_dir_all(&found)?;
    std::fs::create_dir_all(&artifacts)?;
    let seconds = std::env::var(SECONDS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(seconds);
    let log_path = logs.join(format!("fuzz-{name}.log"));
    let log = File::create(&log_path)?;
    let mut command = Command::new(place.join(PLATFORM).join("release").join(name));
    command
        .args([
            format!("-max_total_time={seconds}"),
            format!("-timeout={TIMEOUT_SECONDS}"),
            format!("-rss_limit_mb={MEMORY_MIB}"),
            format!("-max_len={INPUT_BYTES}"),
            "-len_control=0".into(),
            "-print_final_stats=1".into(),
            format!("-artifact_prefix={}/{name}-", artifacts.display()),
        ])
        // What is new goes into the first folder; the corpus that is kept is only read.
        .arg(&found)
        // The search for leaked memory needs ptrace, which some machines refuse.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let kept = root.join("fuzz/corpus").join(name);
    if kept.is_dir() {
        command.arg(kept);
    }
    let status = command.status()?;
    let text = String::from_utf8_lossy(&std::fs::read(&log_path)?).into_owned();
    let counted = text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let inputs = counted.map(|count| count.trim().to_owned()).unwrap_or_default();
    Ok(Outcome { passed: status.success() && !inputs.is_empty() && inputs != "0", inputs, log: log_path })
}

fn note(tally: &mut Tally, name: &str, outcome: std::io::Result<Outcome>) {
    match outcome {
        Ok(outcome) if outcome.passed => {
            println!("test {name} ... ok ({} inputs)", outcome.inputs);
            tally.pass();
        }
        Ok(outcome) => {
            println!("test {name} ... FAILED");
            tally.fail("fuzz", &format!("{name}: see {}, which names the input", outcome.log.display()));
        }
        Err(error) => tally.fail("fuzz", &format!("{name}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_known_to_cargo() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root");
        let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).expect("a manifest");
        let names = names(root).expect("a folder of targets");
        assert!(!names.is_empty());
        for name in names {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is no [[bin]]");
        }
    }
}
