//! Plans of `tombolo bench`: run, report, compare, presets.

use crate::product;
use arguments::BenchCommand;
use campaign::analysis::{analyse, sentence};
use campaign::compare::{Changes, CompareError, compare};
use campaign::plan::Plan;
use campaign::run::{Outcome, Progress, Request, RunError, Watcher, run as measure};
use campaign::{file, page, presets, record, subject};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;
use sys::signals::SignalDescriptor;
use terminal::{Failure, MISUSE, harmless, print, with_causes};

/// Signals that end a run after the repetition under way (signal(7)): SIGINT and SIGTERM.
const ENDING: [i32; 2] = [2, 15];
/// Where nobody sees a bar, a line is printed whenever so many percent are done.
const PERCENT_PER_LINE: usize = 10;

/// Does what was asked for.
pub fn run(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Run { plan, out } => run_plan(plan, out),
        BenchCommand::Report { folder } => {
            let said = report(folder)?;
            print(&said)
        }
        BenchCommand::Compare { before, after, threshold, json } => {
            let threshold = f64::from(*threshold) / 100.0;
            if before.is_file() && after.is_file() {
                return compare_recordings(before, after, threshold, *json);
            }
            compare_runs(before, after, threshold, *json)
        }
        BenchCommand::Preset { name } => preset(name.as_deref()),
    }
}

fn run_plan(path: &Path, out: &Path) -> Result<(), Failure> {
    let (text, name) = text_of(path)?;
    let plan = file::read(&text, &name).map_err(|refused| {
        eprint!("{}", refused.render(std::io::stderr().is_terminal()));
        Failure { code: MISUSE, ..Failure::silent() }
    })?;
    let binary = product()?;
    let request = Request { plan: &plan, text: &text, binary: &binary, out };
    let mut watcher = Watch::start(&plan)?;
    let outcome = measure(&request, &mut watcher).map_err(|error| match error {
        RunError::OtherPlan { .. } => Failure::misuse(error.to_string()),
        _ => Failure::new(with_causes(&error))
            .help(format!("what was measured before is kept in {}", out.display())),
    })?;
    watcher.bar.finish_and_clear();
    print(&report(out)?)?;
    ended(&outcome, out)
}

/// The text of a plan's file, or of a preset where there is no such file.
fn text_of(path: &Path) -> Result<(String, String), Failure> {
    let name = path.display().to_string();
    match (std::fs::read_to_string(path), presets::text(&name)) {
        (Ok(text), _) => Ok((text, name)),
        (Err(_), Some(text)) => Ok((text.to_owned(), name)),
        (Err(error), None) => {
            let known: Vec<&str> = presets::ALL.iter().map(|(name, _)| *name).collect();
            Err(Failure::misuse(format!("{name}: {error}")).help(format!("presets are {}", known.join(", "))))
        }
    }
}

/// How the run ended, where there is more to say than its report does.
fn ended(outcome: &Outcome, out: &Path) -> Result<(), Failure> {
    if !outcome.end.complete {
        let message = format!("interrupted with {} repetitions left", outcome.end.left);
        return Err(Failure::new(message).help(format!("the same command goes on in {}", out.display())));
    }
    if outcome.failed > 0 {
        let message = format!("{} repetitions failed; the report says which, and why", outcome.failed);
        return Err(Failure::new(message).help("the same command tries them again"));
    }
    Ok(())
}

/// Writes the report, and says what the launches support.
fn report(folder: &Path) -> Result<String, Failure> {
    let records = record::read(folder).map_err(|error| Failure::misuse(with_causes(&error)))?;
    let analysis = analyse(records).map_err(|refused| Failure::misuse(refused.to_string()))?;
    let place = folder.join(page::FILE);
    std::fs::write(&place, page::html(&analysis))
        .map_err(|error| Failure::new(format!("{}: {error}", place.display())))?;
    let mut said = String::new();
    for cell in &analysis.cells {
        said += &format!("{}\n", cell.cell);
        for arm in &cell.arms {
            let first = analysis.plan.subjects.first().map_or("", String::as_str);
            match &arm.comparison {
                Some(comparison) => said += &format!("  {}\n", sentence(&arm.arm, first, comparison)),
                None => {
                    let [half, _, _] = &arm.percentiles_us;
                    let us = half.map_or_else(|| "-".to_owned(), |found| format!("{:.2}", found.value));
                    said += &format!("  {}: median {us} us, {} samples\n", arm.arm, arm.samples);
                }
            }
        }
    }
    for skipped in &analysis.skipped {
        said += &format!("skipped: {}: {}\n", skipped.what, skipped.why);
    }
    for (failed, count) in &analysis.failed {
        said += &format!("failed: {}, {count} times: {}\n", failed.which.arm, failed.why);
    }
    said += &format!("{}; the report is {}\n", analysis.state(), place.display());
    Ok(harmless(&said))
}

fn compare_runs(before: &Path, after: &Path, threshold: f64, json: bool) -> Result<(), Failure> {
    let changes = compare(before, after, threshold).map_err(|error| match error {
        CompareError::Plan(refused) => Failure::misuse(refused.to_string()),
        error => Failure::misuse(with_causes(&error)),
    })?;
    if json {
        print_changes(&changes)?;
    } else {
        print(&harmless(&changes.markdown()))?;
    }
    if changes.has_regression() { Err(Failure::silent()) } else { Ok(()) }
}

fn compare_recordings(before: &Path, after: &Path, threshold: f64, json: bool) -> Result<(), Failure> {
    let changes = bench::compare::compare(before, after, threshold)
        .map_err(|error| Failure::misuse(with_causes(&error)))?;
    if json {
        for change in &changes.all {
            let line = serde_json::json!({
                "promise": change.promise,
                "unit": change.unit,
                "before": change.before,
                "after": change.after,
                "verdict": change.outcome.word(),
            });
            print(&format!("{line}\n"))?;
        }
    } else {
        print(&harmless(&changes.markdown()))?;
    }
    if changes.has_regression() { Err(Failure::silent()) } else { Ok(()) }
}

fn print_changes(changes: &Changes) -> Result<(), Failure> {
    for change in &changes.all {
        let comparison = &change.comparison;
        let line = serde_json::json!({
            "cell": record::Where::from(&change.cell),
            "arm": change.arm,
            "before_us": change.p50_us[0],
            "after_us": change.p50_us[1],
            "ratio": comparison.ratio.value,
            "ci": [comparison.ratio.low, comparison.ratio.high],
            "p_corrected": comparison.p_corrected,
            "effect": comparison.test.effect,
            "verdict": change.words(changes.threshold),
        });
        print(&format!("{line}\n"))?;
    }
    Ok(())
}

fn preset(name: Option<&str>) -> Result<(), Failure> {
    let Some(name) = name else {
        let mut said = String::from("presets\n");
        for (name, text) in presets::ALL {
            let about = text.lines().next().unwrap_or_default().trim_start_matches("# ");
            said += &format!("  {name:<24} {about}\n");
        }
        said += "subjects\n";
        for subject in subject::ALL {
            said += &format!("  {:<24} {}\n", subject.name, subject.about);
        }
        said += &format!("  {:<24} {}\n", "exec:NAME", "a program of yours: docs/spec/bench-adapter.md");
        return print(&said);
    };
    let known: Vec<&str> = presets::ALL.iter().map(|(name, _)| *name).collect();
    match presets::text(name) {
        Some(text) => print(text),
        None => Err(Failure::misuse(format!("there is no preset `{name}`"))
            .help(format!("presets are {}", known.join(", ")))),
    }
}

/// Shows progress, and hears signals.
struct Watch {
    bar: ProgressBar,
    /// Without a terminal: the next share that is worth a line.
    next_percent: usize,
    signals: SignalDescriptor,
    is_over: bool,
}

impl Watch {
    fn start(plan: &Plan) -> Result<Self, Failure> {
        let signals = SignalDescriptor::block(&ENDING)
            .map_err(|error| Failure::new(format!("listening for Ctrl-C: {error}")))?;
        let is_shown = std::io::stderr().is_terminal();
        let bar = if is_shown { ProgressBar::new(0) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg}") {
            bar.set_style(style);
        }
        if !is_shown {
            eprintln!("{}: some {}", plan.name, rounded(plan.length()));
        }
        Ok(Self { bar, next_percent: PERCENT_PER_LINE, signals, is_over: false })
    }
}

impl Watcher for Watch {
    fn progress(&mut self, progress: &Progress) {
        let left = rounded(progress.left);
        self.bar.set_length(progress.all as u64);
        self.bar.set_position(progress.done as u64);
        self.bar.set_message(format!("{left} left; {}", progress.next));
        let percent = progress.done * 100 / progress.all.max(1);
        if self.bar.is_hidden() && percent >= self.next_percent {
            self.next_percent = percent + PERCENT_PER_LINE;
            eprintln!("{percent} %, {left} left; {}", progress.next);
        }
    }

    fn is_over(&mut self) -> bool {
        // A descriptor that can't be read tells of no signal.
        self.is_over |= matches!(self.signals.take(), Ok(Some(_)));
        self.is_over
    }
}

fn rounded(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}
