//! Two runs of a plan held against each other: a gate for regressions, and a table for a pull
//! request.

use crate::analysis::{Analysis, CellReport, analyse};
use crate::plan::{AGAIN, Cell};
use crate::record::{Measured, RecordError, Records, read};
use serde_json::Value;
use statistics::claim::{Claim, Comparison, compare_all};
use statistics::median;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use topology::Diagnostics;

/// The parts of the environment that have to be the same for figures of two runs to be comparable.
const SAME: [&str; 5] = ["processor", "processors", "kernel", "governor", "virtualised"];

/// Why two runs can't be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// One can't be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The plan of one is none that this version knows.
    #[error("{0}")]
    Plan(#[from] Diagnostics),
    /// They have nothing in common.
    #[error("{before} and {after} have no arm of a cell in common: run the same plan twice")]
    Nothing {
        /// The first directory.
        before: String,
        /// The second one.
        after: String,
    },
}

/// One arm of one cell in both runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Under which circumstances.
    pub cell: Cell,
    /// The arm.
    pub arm: String,
    /// The medians over launches of the median, before and after, in us.
    pub p50_us: [f64; 2],
    /// After, beside before.
    pub comparison: Comparison,
}

/// The changes of a run's figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    /// All that both have.
    pub all: Vec<Change>,
    /// Why the two may not be comparable.
    pub warnings: Vec<String>,
    /// Changes for the worse by less than this share are no regressions.
    pub threshold: f64,
}

/// Compares the results of two directories. Medians that grew by less than `threshold` (0.05: 5 %)
/// are no regressions.
///
/// # Errors
/// [`CompareError`].
pub fn compare(before: &Path, after: &Path, threshold: f64) -> Result<Changes, CompareError> {
    let records = [read(before)?, read(after)?];
    let found = changes(records, threshold)?;
    if found.all.is_empty() {
        let name = |path: &Path| path.display().to_string();
        return Err(CompareError::Nothing { before: name(before), after: name(after) });
    }
    Ok(found)
}

fn changes([before, after]: [Records; 2], threshold: f64) -> Result<Changes, Diagnostics> {
    let values = [by_arm(&before.measured), by_arm(&after.measured)];
    let [before, after] = [analyse(before)?, analyse(after)?];
    let warnings = warnings(&before, &after);
    let mut all = Vec::new();
    let mut pairs: Vec<[Vec<f64>; 2]> = Vec::new();
    for CellReport { cell, arms } in &after.cells {
        for arm in arms.iter().filter(|arm| !arm.arm.ends_with(AGAIN)) {
            let key = (*cell, arm.arm.clone());
            if let (Some(then), Some(now)) = (values[0].get(&key), values[1].get(&key)) {
                all.push(key);
                pairs.push([now.clone(), then.clone()]);
            }
        }
    }
    let borrowed: Vec<(&[f64], &[f64])> =
        pairs.iter().map(|[now, then]| (now.as_slice(), then.as_slice())).collect();
    let compared = all.into_iter().zip(compare_all(&borrowed)).zip(&pairs);
    let all = compared.filter_map(|(((cell, arm), comparison), [now, then])| {
        Some(Change { cell, arm, p50_us: [median(then)?, median(now)?], comparison: comparison? })
    });
    Ok(Changes { all: all.collect(), warnings, threshold })
}

/// The median of each launch, in us.
fn by_arm(measured: &[Measured]) -> BTreeMap<(Cell, String), Vec<f64>> {
    let mut found: BTreeMap<(Cell, String), Vec<f64>> = BTreeMap::new();
    for measured in measured {
        let half = measured.latencies.quantile_ns(0.5).map(|ns| ns as f64 / 1e3);
        if let Some((cell, us)) = measured.which.cell.cell().zip(half) {
            found.entry((cell, measured.which.arm.clone())).or_default().push(us);
        }
    }
    found
}

fn warnings(before: &Analysis, after: &Analysis) -> Vec<String> {
    let mut warnings = Vec::new();
    for name in SAME {
        let of = |analysis: &Analysis| analysis.head.environment.get(name).cloned().unwrap_or(Value::Null);
        let (then, now) = (of(before), of(after));
        if then != now {
            warnings.push(format!("`{name}` was {then} and is {now}: the two ran on different machines"));
        }
    }
    if before.head.fingerprint != after.head.fingerprint {
        warnings.push("the two plans differ; what both have is compared".to_owned());
    }
    for (which, analysis) in [("first", before), ("second", after)] {
        if analysis.state() != "complete" {
            warnings.push(format!("the {which} run is {}", analysis.state()));
        }
        let (alarms, of) = analysis.false_alarms();
        if alarms > 0 {
            warnings.push(format!(
                "in the {which} run the A/A arm was told from itself in {alarms} of {of} cells"
            ));
        }
    }
    warnings
}

impl Change {
    /// The words on it.
    #[must_use]
    pub fn words(&self, threshold: f64) -> String {
        match self.comparison.claim {
            Claim::Smaller => "faster".to_owned(),
            Claim::Larger if self.is_regression(threshold) => "SLOWER".to_owned(),
            Claim::Larger => "slower, within the threshold".to_owned(),
            Claim::CantTell { more: Some(more) } => format!("can't tell; {more} more launches would"),
            Claim::CantTell { more: None } => "can't tell".to_owned(),
        }
    }

    fn is_regression(&self, threshold: f64) -> bool {
        self.comparison.claim == Claim::Larger && self.comparison.ratio.value > 1.0 + threshold
    }
}

impl Changes {
    /// Whether something became slower by more than the threshold, and the launches support it.
    #[must_use]
    pub fn has_regression(&self) -> bool {
        self.all.iter().any(|change| change.is_regression(self.threshold))
    }

    /// A table as Markdown has it, which people can read, too.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::from(
            "| arm | cell | before, us | after, us | ratio | p, corrected | verdict |\n| --- | --- | ---: | ---: | ---: | ---: | --- |\n",
        );
        for change in &self.all {
            let ratio = change.comparison.ratio;
            let [before, after] = change.p50_us;
            let verdict = change.words(self.threshold);
            let verdict =
                if change.is_regression(self.threshold) { format!("**{verdict}**") } else { verdict };
            let _infallible = writeln!(
                out,
                "| {} | {} | {before:.2} | {after:.2} | {:.2} [{:.2}, {:.2}] | {:.3} | {verdict} |",
                change.arm.replace('|', "\\|"),
                change.cell,
                ratio.value,
                ratio.low,
                ratio.high,
                change.comparison.p_corrected,
            );
        }
        out.push_str("\nCompared are the medians of launches; in brackets 95 % intervals over launches.\n");
        for warning in &self.warnings {
            let _infallible = writeln!(out, "\nNote: {warning}.");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::tests::made_up;

    fn found(factor: f64, threshold: f64) -> Changes {
        let runs =
            [made_up(|_, _| 50.0), made_up(|subject, _| if subject == "udp" { 50.0 * factor } else { 50.0 })];
        changes(runs, threshold).expect("plans")
    }

    #[test]
    fn only_what_became_slower_is_a_regression() {
        let slower = found(1.3, 0.05);
        assert!(slower.has_regression());
        let table = slower.markdown();
        assert!(
            table.contains("| udp | bare, 64B, work 0ns, closed |") && table.contains("**SLOWER**"),
            "{table}"
        );
        assert!(table.contains("| tcp |") && !table.contains("(again)"), "{table}");
        assert_eq!(table.matches("**SLOWER**").count(), 2);
    }

    #[test]
    fn a_threshold_forgives_what_is_small_and_gains_are_none() {
        assert!(!found(1.3, 0.5).has_regression());
        assert!(found(1.3, 0.5).markdown().contains("slower, within the threshold"));
        assert!(!found(0.7, 0.0).has_regression());
        assert!(!found(1.0, 0.0).has_regression());
    }

    #[test]
    fn other_machines_and_cut_runs_are_pointed_out() {
        let mut other = made_up(|_, _| 50.0);
        other.head.environment["kernel"] = "7.0".into();
        other.end = None;
        let warnings = changes([made_up(|_, _| 50.0), other], 0.05).expect("plans").warnings;
        assert!(warnings.iter().any(|warning| warning.contains("`kernel`")), "{warnings:?}");
        assert!(warnings.iter().any(|warning| warning.contains("killed")), "{warnings:?}");
    }
}
