//! Two recordings of a scenario (`tombolo bench SCENARIO --record FILE`) held against each other,
//! promise by promise.

use crate::promise::Relation;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Fields of the environment that have to be the same for figures of two runs to be comparable.
const SAME: [&str; 5] = ["processor", "processors", "kernel", "governor", "virtualised"];

/// Why two recordings can't be compared.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// One can't be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// One is no recording.
    #[error("{file}:{line}: {what}: a recording is what `tombolo bench SCENARIO --record FILE` writes")]
    Line {
        /// The file.
        file: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The fault.
        what: String,
    },
    /// They judge no promise that both have.
    #[error("{before} and {after} have no promise in common: record the same scenario twice")]
    Nothing {
        /// The first file.
        before: PathBuf,
        /// The second one.
        after: PathBuf,
    },
}

/// The change of a promise's figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The intervals are apart, on the good side.
    Better,
    /// The intervals are apart, on the bad side, by more than the threshold.
    Worse,
    /// The intervals are apart, on the bad side, by no more than the threshold.
    Forgiven,
    /// The intervals overlap, or one run has a single launch.
    Undecided,
}

impl Outcome {
    /// The word for people and programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::Forgiven => "worse, within the threshold",
            Self::Undecided => "can't tell",
        }
    }
}

/// The verdict of one promise in one recording.
#[derive(Debug, Clone, PartialEq)]
struct Judged {
    promise: String,
    unit: String,
    relation: Relation,
    /// Value, low and high end of its interval.
    values: [f64; 3],
    launches: u64,
}

/// A promise in both recordings.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The promise.
    pub promise: String,
    /// The unit of its figures.
    pub unit: String,
    /// Value, low and high end of the interval, before.
    pub before: [f64; 3],
    /// The same after.
    pub after: [f64; 3],
    /// Better or worse.
    pub outcome: Outcome,
}

/// All promises of two recordings.
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    /// Those that both have.
    pub all: Vec<Change>,
    /// Why the two may not be comparable.
    pub warnings: Vec<String>,
}

/// Compares two recordings. A figure that is worse by less than `threshold` (0.05: 5 %) is
/// forgiven.
///
/// # Errors
/// [`RecordingError`].
pub fn compare(before: &Path, after: &Path, threshold: f64) -> Result<Changes, RecordingError> {
    let (environment, then) = read(before)?;
    let (environment_after, now) = read(after)?;
    let differs = |name: &&&str| environment[**name] != environment_after[**name];
    let warnings = SAME.iter().filter(differs).map(|name| {
        let (then, now) = (&environment[*name], &environment_after[*name]);
        format!("`{name}` was {then} and is {now}: the two ran on different machines")
    });
    let all: Vec<Change> = now
        .iter()
        .filter_map(|now| Some(change(then.iter().find(|then| then.promise == now.promise)?, now, threshold)))
        .collect();
    if all.is_empty() {
        return Err(RecordingError::Nothing { before: before.to_owned(), after: after.to_owned() });
    }
    Ok(Changes { all, warnings: warnings.collect() })
}

fn change(before: &Judged, after: &Judged, threshold: f64) -> Change {
    let [then, then_low, then_high] = before.values;
    let [now, now_low, now_high] = after.values;
    let (is_worse, is_better) = match after.relation {
        Relation::AtMost => (now_low > then_high, now_high < then_low),
        Relation::AtLeast => (now_high < then_low, now_low > then_high),
    };
    let outcome = match () {
        () if before.launches < 2 || after.launches < 2 => Outcome::Undecided,
        () if is_better => Outcome::Better,
        () if is_worse && (now - then).abs() > threshold * then.abs() => Outcome::Worse,
        () if is_worse => Outcome::Forgiven,
        () => Outcome::Undecided,
    };
    let Judged { promise, unit, values, .. } = after.clone();
    Change { promise, unit, before: before.values, after: values, outcome }
}

/// The environment and the verdicts of a recording.
fn read(file: &Path) -> Result<(Value, Vec<Judged>), RecordingError> {
    let text = std::fs::read_to_string(file)
        .map_err(|source| RecordingError::Read { file: file.to_owned(), source })?;
    let mut environment = Value::Null;
    let mut all = Vec::new();
    for (line, said) in text.lines().enumerate() {
        let wrong = |what: String| RecordingError::Line { file: file.to_owned(), line: line + 1, what };
        let mut value: Value = serde_json::from_str(said).map_err(|error| wrong(error.to_string()))?;
        if let Some(found) = value.get_mut("environment") {
            environment = found.take();
        } else if value.get("promise").is_some() {
            all.push(judged(&value).ok_or_else(|| wrong("a promise lacks a field".into()))?);
        }
    }
    Ok((environment, all))
}

fn judged(value: &Value) -> Option<Judged> {
    let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
    let end = |index: usize| value.get("ci")?.get(index)?.as_f64();
    let relation = match value.get("relation")?.as_str()? {
        "<=" => Relation::AtMost,
        ">=" => Relation::AtLeast,
        _ => return None,
    };
    Some(Judged {
        promise: text("promise")?,
        unit: text("unit")?,
        relation,
        values: [value.get("value")?.as_f64()?, end(0)?, end(1)?],
        launches: value.get("launches")?.as_u64()?,
    })
}

impl Changes {
    /// Whether a figure became worse by more than the threshold, and the launches support it.
    #[must_use]
    pub fn has_regression(&self) -> bool {
        self.all.iter().any(|change| change.outcome == Outcome::Worse)
    }

    /// A table as Markdown has it, which people can read, too.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::from("| promise | before | after | verdict |\n| --- | ---: | ---: | --- |\n");
        for Change { promise, unit, before, after, outcome } in &self.all {
            let [then, now] =
                [before, after].map(|[value, low, high]| format!("{value} {unit} [{low}, {high}]"));
            let _infallible = writeln!(out, "| `{promise}` | {then} | {now} | {} |", outcome.word());
        }
        out.push_str("\nIn brackets 95 % intervals over launches; intervals that overlap tell nothing.\n");
        for warning in &self.warnings {
            let _infallible = writeln!(out, "\nNote: {warning}.");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(
        folder: &Path,
        name: &str,
        kernel: &str,
        promises: &[(&str, &str, [f64; 3], u64)],
    ) -> PathBuf {
        let mut text =
            format!("{}\n", serde_json::json!({ "scenario": "s", "environment": { "kernel": kernel } }));
        for (promise, relation, [value, low, high], launches) in promises {
            let line = serde_json::json!({ "promise": promise, "value": value, "unit": "x", "relation": relation,
                "goal": 1.0, "holds": true, "verdict": "holds", "ci": [low, high], "launches": launches, "samples": 9 });
            text += &format!("{line}\n");
        }
        let file = folder.join(name);
        std::fs::write(&file, text).expect("written");
        file
    }

    #[test]
    fn worse_is_what_lies_beyond_both_intervals_on_the_bad_side() {
        let folder = tempfile::tempdir().expect("a folder");
        let before = [
            ("a.time", "<=", [1.0, 0.9, 1.1], 5),
            ("b.rate", ">=", [10.0, 9.0, 11.0], 5),
            ("c.time", "<=", [1.0, 0.9, 1.1], 5),
            ("d.rate", ">=", [10.0, 9.9, 10.1], 5),
            ("e.once", "<=", [1.0, 1.0, 1.0], 1),
            ("f.gone", "<=", [1.0, 1.0, 1.0], 5),
        ];
        let after = [
            ("a.time", "<=", [1.3, 1.2, 1.4], 5),
            ("b.rate", ">=", [13.0, 12.0, 14.0], 5),
            ("c.time", "<=", [1.05, 1.0, 1.2], 5),
            ("d.rate", ">=", [9.7, 9.6, 9.8], 5),
            ("e.once", "<=", [2.0, 2.0, 2.0], 5),
        ];
        let before = recording(folder.path(), "before", "1", &before);
        let after = recording(folder.path(), "after", "2", &after);
        let changes = compare(&before, &after, 0.05).expect("compared");
        let outcomes: Vec<Outcome> = changes.all.iter().map(|change| change.outcome).collect();
        use Outcome::{Better, Forgiven, Undecided, Worse};
        assert_eq!(outcomes, [Worse, Better, Undecided, Forgiven, Undecided]);
        assert!(changes.has_regression() && changes.warnings[0].contains("`kernel` was \"1\" and is \"2\""));
        assert!(changes.markdown().contains("| `a.time` | 1 x [0.9, 1.1] | 1.3 x [1.2, 1.4] | WORSE |"));
        assert!(!compare(&after, &after, 0.05).expect("compared").has_regression());
    }

    #[test]
    fn files_that_are_no_recordings_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let one = recording(folder.path(), "one", "1", &[("a", "<=", [1.0, 1.0, 1.0], 5)]);
        let other = recording(folder.path(), "other", "1", &[("b", "<=", [1.0, 1.0, 1.0], 5)]);
        let error =
            |before: &Path, after: &Path| compare(before, after, 0.0).expect_err("refused").to_string();
        assert!(error(&one, &other).contains("no promise in common"));
        let torn = folder.path().join("torn");
        std::fs::write(&torn, "{\"promise\":\"a\"}\n").expect("written");
        assert!(error(&one, &torn).contains("torn:1: a promise lacks a field"));
        std::fs::write(&torn, "words\n").expect("written");
        assert!(error(&torn, &one).contains("torn:1: expected value"));
        assert!(error(&folder.path().join("absent"), &one).contains("absent: No such file"));
    }
}
