//! Claims that a run's launches support: estimates, comparisons with the first subject, deadlines,
//! and where the time goes.

use crate::file;
use crate::plan::{AGAIN, Cell, Deployment, Plan};
use crate::record::{End, Failed, Head, Measured, Records, Skipped};
use bench::histogram::Latencies;
use bench::results::{Condition, Metric, Repetition, Results};
use statistics::Estimate;
use statistics::binomial::{Share, clopper_pearson};
use statistics::claim::{Claim, Comparison, compare_all};
use statistics::factorial::{Decomposition, Square, decompose};
use std::collections::BTreeMap;
use topology::Diagnostics;

/// Everything that a report says.
#[derive(Debug)]
pub struct Analysis {
    /// The machine that it ran on.
    pub head: Head,
    /// The plan that it was asked for.
    pub plan: Plan,
    /// How it ended; `None`: it was killed.
    pub end: Option<End>,
    /// The cells that have results.
    pub cells: Vec<CellReport>,
    /// Where the time of virtualized middleware goes.
    pub decompositions: Vec<Decomposed>,
    /// Cells that could not be measured.
    pub skipped: Vec<Skipped>,
    /// The failures, and how often each came: the first of its kind in each cell and arm.
    pub failed: Vec<(Failed, usize)>,
}

/// All arms under the same circumstances.
#[derive(Debug)]
pub struct CellReport {
    /// Under which.
    pub cell: Cell,
    /// The arms, in the order of the plan.
    pub arms: Vec<ArmReport>,
}

/// One arm of a cell.
#[derive(Debug)]
pub struct ArmReport {
    /// Its name.
    pub arm: String,
    /// Medians over launches of the median, the 99th and the 99.9th percentile of each, in us.
    pub percentiles_us: [Option<Estimate>; 3],
    /// Answered requests per second.
    pub rate: Option<Estimate>,
    /// Processor time of client and server together, in us per request.
    pub processor_us: Option<Estimate>,
    /// Requests that were answered.
    pub samples: u64,
    /// Requests that were not.
    pub unanswered: u64,
    /// Of the samples, those of the warm-up.
    pub warm_up: u64,
    /// Launches in which no end of the warm-up was found.
    pub unsettled: usize,
    /// Of all launches, since they were due.
    pub latencies: Latencies,
    /// Of all launches, since they were sent.
    pub uncorrected: Latencies,
    /// Beside the first subject of the plan; of itself there is none.
    pub comparison: Option<Comparison>,
    /// Beside the plan's deadlines.
    pub deadlines: Vec<Deadline>,
}

/// An arm beside a deadline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deadline {
    /// The deadline, in ns.
    pub deadline_ns: u64,
    /// The share of it that the median and the 99th percentile use.
    pub used: [f64; 2],
    /// The probability of a miss, with its bounds; what was not answered is missed.
    pub missed: Share,
}

/// Where the time of a subject goes in a cell.
#[derive(Debug)]
pub struct Decomposed {
    /// The virtualized cell.
    pub cell: Cell,
    /// The subject.
    pub subject: String,
    /// Its parts, in us.
    pub parts: Decomposition,
}

/// Says what the records support.
///
/// # Errors
/// Where the plan in their head is none that this version knows.
pub fn analyse(records: Records) -> Result<Analysis, Diagnostics> {
    let plan = file::read(&records.head.text, "the plan in the results")?;
    let results = results(&records.measured);
    let mut cells: Vec<CellReport> = Vec::new();
    for cell in plan.cells() {
        let of_cell: Vec<&Measured> =
            records.measured.iter().filter(|measured| measured.which.cell.cell() == Some(cell)).collect();
        let arms =
            plan.arms().into_iter().filter_map(|arm| arm_report(&plan, &results, &cell, arm, &of_cell));
        let arms: Vec<ArmReport> = arms.collect();
        if !arms.is_empty() {
            cells.push(CellReport { cell, arms });
        }
    }
    compare_with_first(&plan, &results, &mut cells);
    let decompositions = decompositions(&plan, &results);
    let failed = failures(records.failed);
    Ok(Analysis {
        head: records.head,
        plan,
        end: records.end,
        cells,
        decompositions,
        skipped: records.skipped,
        failed,
    })
}

/// The records as the core of the bench has them.
fn results(measured: &[Measured]) -> Results {
    let repetitions = measured.iter().filter_map(|measured| {
        let processor_ns = measured.client_processor_ns.zip(measured.server_processor_ns);
        Some(Repetition {
            condition: condition(&measured.which.cell.cell()?),
            arm: measured.which.arm.clone().into(),
            launch: measured.which.launch,
            round: 0,
            state: measured.state,
            latencies: measured.latencies.clone(),
            operations: measured.operations,
            bytes: measured.which.cell.payload_bytes as u64,
            failures: measured.unanswered,
            window_s: measured.window_ns as f64 / 1e9,
            processor_ns: processor_ns.map(|(client, server)| client + server),
            guest_ns: None,
            switches: measured.switches,
            calls: None,
        })
    });
    Results { repetitions: repetitions.collect(), ..Results::default() }
}

fn condition(cell: &Cell) -> Condition {
    Condition(vec![("cell", cell.to_string())])
}

fn arm_report(
    plan: &Plan,
    results: &Results,
    cell: &Cell,
    arm: String,
    of_cell: &[&Measured],
) -> Option<ArmReport> {
    let condition = condition(cell);
    let (mut latencies, mut uncorrected) = (Latencies::new(), Latencies::new());
    let (mut unanswered, mut warm_up, mut unsettled) = (0, 0, 0);
    let own: Vec<&&Measured> = of_cell.iter().filter(|measured| measured.which.arm == arm).collect();
    own.first()?;
    for measured in own {
        latencies.merge(&measured.latencies);
        uncorrected.merge(&measured.uncorrected);
        unanswered += measured.unanswered;
        warm_up += measured.warm_up;
        unsettled += usize::from(measured.is_unsettled);
    }
    let estimate = |metric| results.estimate(&condition, &arm, metric);
    let deadlines = plan.deadlines_ns.iter().filter_map(|&ns| deadline(ns, &latencies, unanswered)).collect();
    Some(ArmReport {
        percentiles_us: [Metric::P50, Metric::P99, Metric::P999].map(estimate),
        rate: estimate(Metric::Rate),
        processor_us: estimate(Metric::Processor),
        samples: results.samples(&condition, &arm),
        unanswered,
        warm_up,
        unsettled,
        latencies,
        uncorrected,
        comparison: None,
        deadlines,
        arm,
    })
}

fn deadline(deadline_ns: u64, latencies: &Latencies, unanswered: u64) -> Option<Deadline> {
    let used = |quantile| latencies.quantile_ns(quantile).map(|ns| ns as f64 / deadline_ns as f64);
    let missed =
        clopper_pearson(latencies.count_above(deadline_ns) + unanswered, latencies.count() + unanswered)?;
    Some(Deadline { deadline_ns, used: [used(0.5)?, used(0.99)?], missed })
}

/// All medians of a report beside those of the first subject, as one family of comparisons. The A/A
/// arm is one of them, like any other.
fn compare_with_first(plan: &Plan, results: &Results, cells: &mut [CellReport]) {
    let Some(first) = plan.subjects.first() else { return };
    let values = |cell: &Cell, arm: &str| -> Vec<f64> {
        results.values(&condition(cell), arm, Metric::P50).into_values().collect()
    };
    let mut compared: Vec<(&mut ArmReport, [Vec<f64>; 2])> = Vec::new();
    for CellReport { cell, arms } in cells {
        let base = values(cell, first);
        for arm in arms.iter_mut().filter(|arm| arm.arm != *first) {
            let own = values(cell, &arm.arm);
            compared.push((arm, [own, base.clone()]));
        }
    }
    let pairs: Vec<(&[f64], &[f64])> =
        compared.iter().map(|(_, [own, base])| (own.as_slice(), base.as_slice())).collect();
    let found = compare_all(&pairs);
    for ((arm, _), comparison) in compared.iter_mut().zip(found) {
        arm.comparison = comparison;
    }
}

fn decompositions(plan: &Plan, results: &Results) -> Vec<Decomposed> {
    let (Some(ideal), Some(bare)) = (&plan.ideal, plan.deployments.first()) else { return Vec::new() };
    let mut found = Vec::new();
    for cell in plan.cells().into_iter().filter(|cell| cell.deployment != *bare) {
        for subject in plan.subjects.iter().filter(|subject| *subject != ideal) {
            let squares = squares(results, [ideal, subject], &cell, *bare);
            if let Some(parts) = decompose(&squares) {
                found.push(Decomposed { cell, subject: subject.clone(), parts });
            }
        }
    }
    found
}

/// The launches that have all four.
fn squares(results: &Results, [ideal, subject]: [&str; 2], cell: &Cell, bare: Deployment) -> Vec<Square> {
    let on_bare = Cell { deployment: bare, ..*cell };
    let of = |cell: &Cell, arm: &str| -> BTreeMap<usize, f64> {
        results.values(&condition(cell), arm, Metric::P50)
    };
    let [ideal_bare, middleware_bare] = [of(&on_bare, ideal), of(&on_bare, subject)];
    let [ideal_virtual, middleware_virtual] = [of(cell, ideal), of(cell, subject)];
    let launches = ideal_bare.iter().filter_map(|(launch, &ideal_bare)| {
        Some(Square {
            ideal_bare,
            middleware_bare: *middleware_bare.get(launch)?,
            ideal_virtual: *ideal_virtual.get(launch)?,
            middleware_virtual: *middleware_virtual.get(launch)?,
        })
    });
    launches.collect()
}

fn failures(failed: Vec<Failed>) -> Vec<(Failed, usize)> {
    let mut found: Vec<(Failed, usize)> = Vec::new();
    for failure in failed {
        let same = |known: &&mut (Failed, usize)| {
            known.0.which.cell == failure.which.cell && known.0.which.arm == failure.which.arm
        };
        match found.iter_mut().find(same) {
            Some((_, count)) => *count += 1,
            None => found.push((failure, 1)),
        }
    }
    found
}

impl Analysis {
    /// In how many of how many cells the A/A arm was told apart from itself: each one is a false
    /// alarm.
    #[must_use]
    pub fn false_alarms(&self) -> (usize, usize) {
        let arms = self.cells.iter().flat_map(|cell| &cell.arms).filter(|arm| arm.arm.ends_with(AGAIN));
        let claims: Vec<Claim> = arms.filter_map(|arm| Some(arm.comparison?.claim)).collect();
        let alarms = claims.iter().filter(|claim| !matches!(claim, Claim::CantTell { .. })).count();
        (alarms, claims.len())
    }

    /// The words on the run as a whole.
    #[must_use]
    pub fn state(&self) -> String {
        match &self.end {
            Some(End { complete: true, .. }) => "complete".to_owned(),
            Some(End { left, .. }) => format!("interrupted: {left} repetitions are left"),
            None => "interrupted: the run was killed".to_owned(),
        }
    }
}

/// A comparison in words: of `arm` with `base`.
#[must_use]
pub fn sentence(arm: &str, base: &str, comparison: &Comparison) -> String {
    let Estimate { value, low, high, .. } = comparison.ratio;
    let figures = format!("{value:.2} [{low:.2}, {high:.2}] of its median");
    match comparison.claim {
        Claim::Smaller => format!("{arm} is faster than {base}: {figures}"),
        Claim::Larger => format!("{arm} is slower than {base}: {figures}"),
        Claim::CantTell { more: Some(more) } => {
            format!("can't tell {arm} from {base} ({figures}); {more} more launches would")
        }
        Claim::CantTell { more: None } => {
            format!("can't tell {arm} from {base} ({figures}); no number of launches worth the time would")
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
