//! The report: a table for people, JSON lines for programs.

use crate::core_line::State;
use crate::environment::Environment;
use crate::promise::Verdict;
use crate::results::{Condition, Metric, Results};
use crate::scenario::Scenario;
use crate::statistics::Estimate;
use serde_json::{Map, Value, json};
use std::io::{self, Write};

/// The columns: heading, metric, digits behind the point.
const COLUMNS: [(&str, Metric, usize); 4] = [
    ("p50 us", Metric::P50, 1),
    ("p99 us", Metric::P99, 1),
    ("per s", Metric::Rate, 0),
    ("cpu us/op", Metric::Processor, 1),
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
    writeln!(
        out,
        "medians over launches, in brackets the 95 % interval; ratios are to `{}`\n",
        scenario.base()
    )?;
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
    writeln!(out)?;
    verdicts.iter().try_for_each(|verdict| writeln!(out, "{}", sentence(verdict)))
}

fn table(
    out: &mut dyn Write,
    scenario: &dyn Scenario,
    results: &Results,
    condition: &Condition,
) -> io::Result<()> {
    writeln!(out, "{condition}")?;
    write!(out, "  {:<8}", "arm")?;
    for (heading, _, _) in COLUMNS {
        write!(out, "  {heading:>24}")?;
    }
    writeln!(out, "  {:>8}  {:>8}  {:>9}  state", "p50 x", "per s x", "samples")?;
    for arm in results.arms(condition) {
        write!(out, "  {arm:<8}")?;
        for (_, metric, digits) in COLUMNS {
            let cell = results
                .estimate(condition, arm, metric)
                .map_or_else(|| "-".into(), |found| interval(found, digits));
            write!(out, "  {cell:>24}")?;
        }
        for metric in [Metric::P50, Metric::Rate] {
            let ratio = results.ratio(condition, arm, scenario.base(), metric);
            write!(out, "  {:>8}", ratio.map_or_else(|| "-".into(), |ratio| format!("{:.2}", ratio.value)))?;
        }
        writeln!(out, "  {:>9}  {}", results.samples(condition, arm), remarks(results, condition, arm))?;
    }
    writeln!(out)
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
    format!("{:.digits$} [{:.digits$}, {:.digits$}]", found.value, found.low, found.high)
}

fn sentence(verdict: &Verdict) -> String {
    let word = if verdict.holds { "holds     " } else { "DOES NOT  " };
    let [low, high] = verdict.ci;
    format!(
        "{word} {}: {:.2} {} (goal {} {}; [{low:.2}, {high:.2}], {} launches, {} samples)",
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
    line(json!({ "scenario": scenario.name(), "environment": environment }))?;
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
    verdicts.iter().try_for_each(|verdict| line(serde_json::to_value(verdict).map_err(io::Error::other)?))
}

fn result(scenario: &dyn Scenario, results: &Results, condition: &Condition, arm: &str) -> Value {
    let mut object = Map::new();
    object.insert("scenario".into(), scenario.name().into());
    object.extend(condition.0.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str()))));
    object.insert("arm".into(), arm.into());
    for (name, metric) in [
        ("p50_us", Metric::P50),
        ("p99_us", Metric::P99),
        ("per_s", Metric::Rate),
        ("processor_us", Metric::Processor),
    ] {
        object.insert(name.into(), results.estimate(condition, arm, metric).map_or(Value::Null, estimated));
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

    fn results() -> Results {
        let repetition = |arm, ns| {
            let mut latencies = Latencies::new();
            latencies.record(ns);
            let condition = Condition(vec![("cache", "none".into()), ("domains", "8".into())]);
            let (state, failures, window_s) = (State::Far, u64::from(arm == "stub"), 1.0);
            Repetition {
                condition,
                arm,
                launch: 0,
                round: 0,
                state,
                latencies,
                failures,
                window_s,
                processor_ns: None,
            }
        };
        let figures = vec![Figure { name: "memory per further domain", unit: "MiB", launch: 0, value: 2.5 }];
        Results { repetitions: vec![repetition("naive", 10_000), repetition("stub", 20_000)], figures }
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
        assert!(
            row.contains("20.0 [20.0, 20.0]") && row.contains("2.00") && row.contains("1 far, 1 FAILED"),
            "{row}"
        );
        assert!(text.contains("cache=none domains=8") && text.contains("memory per further domain: 2.50"));
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
        assert_eq!(lines.len(), 4);
        assert!(lines[0]["environment"]["kernel"].is_string());
        assert_eq!(lines[2]["arm"], "stub");
        assert_eq!(lines[2]["domains"], "8");
        assert_eq!(lines[3]["value"]["value"], 2.5);
    }
}
