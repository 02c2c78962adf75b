//! The report: a table for people, JSON lines for programs.

use crate::core_line::State;
use crate::environment::Environment;
use crate::promise::{Verdict, Word};
use crate::results::{Condition, Metric, Results};
use crate::scenario::Scenario;
use crate::statistics::Estimate;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// A column of the table, and a field of the JSON.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// The heading.
    pub heading: &'static str,
    /// Its name in JSON.
    pub field: &'static str,
    /// The figures of its cells.
    pub metric: Metric,
    /// Digits behind the point.
    pub digits: usize,
    /// Whether a column follows with the ratio to the base.
    pub ratio: bool,
    /// Of what ran in this state only; the ratio, too.
    pub state: Option<State>,
}

/// A column without a ratio.
#[must_use]
pub const fn column(heading: &'static str, field: &'static str, metric: Metric, digits: usize) -> Column {
    Column { heading, field, metric, digits, ratio: false, state: None }
}

impl Column {
    /// The same, with the ratio to the base behind it.
    #[must_use]
    pub const fn and_ratio(self) -> Self {
        Self { ratio: true, ..self }
    }

    /// The same, of what ran in one state of the machine only.
    #[must_use]
    pub const fn within(self, state: State) -> Self {
        Self { state: Some(state), ..self }
    }

    fn value(&self, results: &Results, condition: &Condition, arm: &str) -> Option<Estimate> {
        match self.state {
            Some(state) => results.estimate_within(condition, arm, self.metric, state),
            None => results.estimate(condition, arm, self.metric),
        }
    }

    fn ratio(&self, results: &Results, condition: &Condition, arm: &str, base: &str) -> Option<Estimate> {
        match self.state {
            Some(_) => results.ratio_within(condition, [arm, base], self.metric, self.state),
            None => results.ratio(condition, arm, base, self.metric),
        }
    }
}

/// The columns where a scenario does not say otherwise.
pub const COLUMNS: [Column; 4] = [
    column("p50 us", "p50_us", Metric::P50, 1).and_ratio(),
    column("p99 us", "p99_us", Metric::P99, 1),
    column("per s", "per_s", Metric::Rate, 0).and_ratio(),
    column("cpu us/op", "processor_us", Metric::Processor, 1),
];

/// Writes the table.
///
/// # Errors
/// Where `out` can't be written.
pub fn text(
    out: &mut dyn Write,
    scenario: &dyn Scenario,
    environment: &Environment,
    results: &Results,
    verdicts: &[Verdict],
) -> io::Result<()> {
    writeln!(out, "{}: {}", scenario.name(), scenario.about())?;
    writeln!(out, "on {}", environment.describe())?;
    writeln!(out, "{}\n", how(results))?;
    for condition in results.conditions() {
        table(out, scenario, results, &condition)?;
    }
    for name in figure_names(results) {
        if let (Some(found), Some(figure)) =
            (results.figure(name), results.figures.iter().find(|f| f.name == name))
        {
            writeln!(out, "{name}: {} {}", interval(found, 2), figure.unit)?;
        }
    }
    results.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
    writeln!(out)?;
    let mut missing = Vec::new();
    for promise in scenario.promises() {
        match verdicts.iter().find(|verdict| verdict.promise == promise.id) {
            Some(verdict) => writeln!(out, "{}", sentence(verdict))?,
            None => missing.push(promise.id),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    writeln!(out, "not judged, because this run did not measure it: {}", missing.join(", "))
}

/// The kind of the figures.
fn how(results: &Results) -> &'static str {
    let mut launches = results.repetitions.iter().map(|repetition| repetition.launch);
    let mut of_figures = results.figures.iter().map(|figure| figure.launch);
    if launches.any(|launch| launch > 0) || of_figures.any(|launch| launch > 0) {
        "medians over launches, in brackets the 95 % interval"
    } else {
        "one launch: medians over its rounds"
    }
}

/// A table as rows of cells; the first row is the heading.
fn table(
    out: &mut dyn Write,
    scenario: &dyn Scenario,
    results: &Results,
    condition: &Condition,
) -> io::Result<()> {
    let (columns, base) = (scenario.columns(condition), scenario.base(condition));
    let mut rows = vec![heading(columns)];
    let mut arms: Vec<&str> = results.arms(condition).into_iter().collect();
    arms.sort_by_key(|arm| scenario.rank(condition, arm));
    for arm in arms {
        rows.push(row(results, condition, arm, base, columns));
    }
    writeln!(out, "{condition} (x: relative to {base})")?;
    let cells = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..cells).map(|at| width(at).unwrap_or(0)).collect();
    for row in &rows {
        let padded = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| {
            // Names stand to the left, figures to the right.
            let left = at == 0 || at + 1 == cells;
            if left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(out, "  {}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    writeln!(out)
}

fn heading(columns: &[Column]) -> Vec<String> {
    let mut cells = vec!["arm".to_owned()];
    for column in columns {
        cells.push(column.heading.to_owned());
        if column.ratio {
            cells.push("x".to_owned());
        }
    }
    cells.extend(["samples".to_owned(), "state".to_owned()]);
    cells
}

fn row(results: &Results, condition: &Condition, arm: &str, base: &str, columns: &[Column]) -> Vec<String> {
    let mut cells = vec![arm.to_owned()];
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for column in columns {
        let found = column.value(results, condition, arm);
        cells.push(or_dash(found.map(|found| interval(found, column.digits))));
        if column.ratio {
            let ratio = column.ratio(results, condition, arm, base);
            cells.push(or_dash(ratio.map(|ratio| format!("{:.2}", ratio.value))));
        }
    }
    cells.extend([results.samples(condition, arm).to_string(), remarks(results, condition, arm)]);
    cells
}

/// In which states the arm ran, and what failed.
fn remarks(results: &Results, condition: &Condition, arm: &str) -> String {
    let count = |state| results.of(condition, arm).filter(|found| found.state == state).count();
    let failures: u64 = results.of(condition, arm).map(|found| found.failures).sum();
    let mut words: Vec<String> =
        [(State::Near, "near"), (State::Far, "far"), (State::Mixed, "mixed"), (State::Single, "single")]
            .into_iter()
            .filter(|(state, _)| count(*state) > 0)
            .map(|(state, name)| format!("{} {name}", count(state)))
            .collect();
    if failures > 0 {
        words.push(format!("{failures} FAILED"));
    }
    words.join(", ")
}

fn interval(found: Estimate, digits: usize) -> String {
    if found.launches == 1 {
        return format!("{:.digits$}", found.value);
    }
    format!("{:.digits$} [{:.digits$}, {:.digits$}]", found.value, found.low, found.high)
}

fn sentence(verdict: &Verdict) -> String {
    let word = match verdict.verdict {
        Word::Holds => "holds    ",
        Word::Fails => "FAILS    ",
        Word::Undecided => "undecided",
    };
    let [low, high] = verdict.ci;
    // A goal of a thousandth is not told from zero by two digits.
    let digits = if verdict.goal > 0.0 && verdict.goal < 0.1 { 5 } else { 2 };
    format!(
        "{word} {}: {:.digits$} {} (goal {} {}; [{low:.digits$}, {high:.digits$}], {} launches, {} samples)",
        verdict.promise,
        verdict.value,
        verdict.unit,
        verdict.relation.sign(),
        verdict.goal,
        verdict.launches,
        verdict.samples
    )
}

fn figure_names(results: &Results) -> Vec<&'static str> {
    let mut names: Vec<&str> = results.figures.iter().map(|figure| figure.name).collect();
    names.dedup();
    names.sort_unstable();
    names.dedup();
    names
}

/// Writes one JSON object a line: the environment, each result, each figure, each promise.
///
/// # Errors
/// Where `out` can't be written.
pub fn json(
    out: &mut dyn Write,
    scenario: &dyn Scenario,
    environment: &Environment,
    results: &Results,
    verdicts: &[Verdict],
) -> io::Result<()> {
    let mut line = |value: Value| writeln!(out, "{value}");
    let depends = scenario.depends();
    line(json!({ "scenario": scenario.name(), "depends": depends, "environment": environment }))?;
    for condition in results.conditions() {
        for arm in results.arms(&condition) {
            line(result(scenario, results, &condition, arm))?;
        }
    }
    for name in figure_names(results) {
        let unit = results.figures.iter().find(|figure| figure.name == name).map(|figure| figure.unit);
        line(
            json!({ "scenario": scenario.name(), "figure": name, "unit": unit, "value": results.figure(name).map(estimated) }),
        )?;
    }
    results.notes.iter().try_for_each(|note| line(json!({ "scenario": scenario.name(), "note": note })))?;
    verdicts.iter().try_for_each(|verdict| line(serde_json::to_value(verdict).map_err(io::Error::other)?))
}

fn result(scenario: &dyn Scenario, results: &Results, condition: &Condition, arm: &str) -> Value {
    let mut object = Map::new();
    object.insert("scenario".into(), scenario.name().into());
    object.extend(condition.0.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str()))));
    object.insert("arm".into(), arm.into());
    for column in scenario.columns(condition) {
        let found = column.value(results, condition, arm);
        object.insert(column.field.into(), found.map_or(Value::Null, estimated));
    }
    object.insert("samples".into(), results.samples(condition, arm).into());
    object.insert(
        "failures".into(),
        results.of(condition, arm).map(|found| found.failures).sum::<u64>().into(),
    );
    let states: Vec<State> = results.of(condition, arm).map(|found| found.state).collect();
    object.insert("states".into(), json!(states));
    Value::Object(object)
}

fn estimated(found: Estimate) -> Value {
    json!({ "value": found.value, "ci": [found.low, found.high], "launches": found.launches })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Latencies;
    use crate::results::{Figure, Repetition};
    use std::borrow::Cow;

    fn results() -> Results {
        let repetition = |arm: &'static str, ns| {
            let mut latencies = Latencies::new();
            latencies.record(ns);
            let condition = Condition(vec![("cache", "none".into()), ("domains", "8".into())]);
            let (state, failures, window_s) = (State::Far, u64::from(arm == "stub"), 1.0);
            Repetition {
                condition,
                arm: Cow::Borrowed(arm),
                launch: 0,
                round: 0,
                state,
                latencies,
                operations: 1,
                bytes: 0,
                failures,
                window_s,
                processor_ns: None,
                guest_ns: None,
                switches: None,
                calls: None,
            }
        };
        let figures = vec![Figure { name: "memory per further domain", unit: "MiB", launch: 0, value: 2.5 }];
        let repetitions = vec![repetition("naive", 10_000), repetition("stub", 20_000)];
        Results { repetitions, figures, notes: vec!["the third arm needs root".into()] }
    }

    fn environment() -> Environment {
        Environment::read(&[])
    }

    #[test]
    fn people_get_a_table_with_ratios_states_and_failures() {
        let mut out = Vec::new();
        let scenario = crate::directory::Directory;
        text(&mut out, &scenario, &environment(), &results(), &[]).expect("written");
        let text = String::from_utf8(out).expect("text");
        let row =
            text.lines().find(|line| line.trim_start().starts_with("stub")).expect("the row of the stub");
        assert!(row.contains(" 20.0  2.00 ") && row.contains("1 far, 1 FAILED"), "{row}");
        assert!(text.contains("note: the third arm needs root"));
        assert!(text.contains("not judged, because") && text.contains("directory.private.p50"), "{text}");
        assert!(text.contains("cache=none domains=8") && text.contains("memory per further domain: 2.50"));
    }

    #[test]
    fn what_was_launched_again_is_said_also_of_figures_alone() {
        let mut results = results();
        assert!(how(&results).contains("one launch"));
        results.figures[0].launch = 1;
        assert!(how(&results).contains("over launches"));
        results.figures.clear();
        results.repetitions[1].launch = 4;
        assert!(how(&results).contains("over launches"));
    }

    #[test]
    fn programs_get_one_object_a_line() {
        let mut out = Vec::new();
        let scenario = crate::directory::Directory;
        json(&mut out, &scenario, &environment(), &results(), &[]).expect("written");
        let lines: Vec<Value> = String::from_utf8(out)
            .expect("text")
            .lines()
            .map(|line| serde_json::from_str(line).expect("each line is an object"))
            .collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[4]["note"], "the third arm needs root");
        assert!(lines[0]["environment"]["kernel"].is_string());
        assert_eq!(lines[2]["arm"], "stub");
        assert_eq!(lines[2]["domains"], "8");
        assert_eq!(lines[3]["value"]["value"], 2.5);
    }
}
