//! Reservations: how long decisions and adaptations take, and what those who were promised
//! something get of it while everybody else wants everything.
//!
//! Decisions are taken in virtual time and timed one by one. Adaptations move a tenth from one to
//! another: admitted by the model, then told to the kernel, as the daemon does it. Load is
//! `stress-ng` where it is installed, else loops of shells, one for each processor and one more,
//! all outside; whoever is promised something is inside a cgroup of its own with a quota.

mod enforced;
mod link;
mod load;
mod logic;

use crate::promise::{Promise, Relation, Verdict};
use crate::results::{Condition, Figure, Results};
use crate::scenario::{Arguments, BenchError, Scenario};
use crate::statistics::{estimate, quantile};
use std::time::Duration;

/// The scenario.
#[derive(Debug, Clone, Copy)]
pub struct Reserve;

/// The part of it that is measured by itself: changes of a dispatch table, in some seconds for each
/// launch.
#[derive(Debug, Clone, Copy)]
pub struct Tables;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How often everything is done afresh.
    pub launches: usize,
    /// Decisions of each size.
    pub decisions: usize,
    /// Adaptations of each number of machines.
    pub adaptations: usize,
    /// Changes under each enforcement, of each number of machines.
    pub commits: usize,
    /// Windows of 1 s in which it is counted what is delivered.
    pub seconds: usize,
    /// Periods of the load that must not miss.
    pub periods: usize,
    /// Changes of the network.
    pub changes: usize,
}

impl Plan {
    /// The plan that is quoted.
    #[must_use]
    pub fn full() -> Self {
        Self {
            launches: 5,
            decisions: 100_000,
            adaptations: 1_000,
            commits: 500,
            seconds: 10,
            periods: 6_000,
            changes: 50,
        }
    }

    /// Whether it works.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            launches: 1,
            decisions: 2_000,
            adaptations: 50,
            commits: 20,
            seconds: 1,
            periods: 50,
            changes: 3,
        }
    }
}

const fn promise(id: &'static str, about: &'static str, unit: &'static str, goal: f64) -> Promise {
    Promise { id, about, unit, relation: Relation::AtMost, goal }
}

/// The promises; each is a figure of the same name.
const PROMISES: [Promise; 14] = [
    promise("reserve.decide.200x200", "one decision among 200 machines of 200 jobs, p99", "us", 20.0),
    promise(
        "reserve.adapt.2",
        "an adaptation of processor time among 2 machines, admitted and in the kernel, p99",
        "us",
        50.0,
    ),
    promise("reserve.adapt.20", "the same among 20", "us", 100.0),
    promise("reserve.adapt.200", "the same among 200", "us", 1000.0),
    promise(
        "reserve.table.2",
        "a commit of another dispatch table for 2 machines of real processes, p99",
        "us",
        50.0,
    ),
    promise("reserve.table.20", "the same for 20", "us", 100.0),
    promise("reserve.table.200", "the same for 200", "us", 1000.0),
    promise(
        "reserve.effect.table",
        "from that commit until each machine has had a slot of the new table, by the dispatcher's own events, p99, in periods",
        "x",
        2.5,
    ),
    promise(
        "reserve.delivered.1s",
        "processor time of 16 ms in 40, delivered over 1 s under load on every processor: how far it is from what was promised",
        "%",
        1.0,
    ),
    promise("reserve.delivered.10s", "the same over 10 s", "%", 1.0),
    promise(
        "reserve.misses",
        "periods of 10 ms in which 1 ms of work with a promise of 2 ms was not done, under load on every processor",
        "%",
        0.01,
    ),
    promise(
        "reserve.network.adapt",
        "another rate for a class of the link, of what goes out and of what comes in, set and read back, p99",
        "us",
        1000.0,
    ),
    promise(
        "reserve.network.effect",
        "what is sent in the 50 ms after that: how far it is from the new rate",
        "%",
        5.0,
    ),
    promise(
        "reserve.effect.cpu",
        "from the commit of an adaptation until the kernel's first period with the new budget, p99, in periods",
        "x",
        1.5,
    ),
];

impl Scenario for Reserve {
    fn name(&self) -> &'static str {
        "reserve"
    }

    fn about(&self) -> &'static str {
        "reservations: decisions, adaptations, and what is delivered, in time and sent while everybody else wants everything"
    }

    fn promises(&self) -> &'static [Promise] {
        &PROMISES
    }

    fn base(&self, _: &Condition) -> &'static str {
        ""
    }

    fn depends(&self) -> &'static [&'static str] {
        &["sys", "logic/reserve", "io/enforce"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        &[]
    }

    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
        let plan = if arguments.quick { Plan::quick() } else { Plan::full() };
        let launches = arguments.launches.unwrap_or(plan.launches).max(1);
        Ok(measure(&Plan { launches, ..plan }, progress))
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let judged = PROMISES.iter().filter_map(|promise| {
            let values: Vec<f64> = results
                .figures
                .iter()
                .filter(|figure| figure.name == promise.id)
                .map(|figure| figure.value)
                .collect();
            Some(promise.judge(estimate(&values)?, values.len() as u64))
        });
        judged.collect()
    }
}

impl Scenario for Tables {
    fn name(&self) -> &'static str {
        "reserve --part table"
    }

    fn about(&self) -> &'static str {
        "reservations: changes of a dispatch table alone"
    }

    fn promises(&self) -> &'static [Promise] {
        Reserve.promises()
    }

    fn base(&self, condition: &Condition) -> &'static str {
        Reserve.base(condition)
    }

    fn depends(&self) -> &'static [&'static str] {
        &["sys", "logic/reserve", "io/enforce"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        Reserve.peers()
    }

    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
        let plan = if arguments.quick { Plan::quick() } else { Plan::full() };
        let launches = arguments.launches.unwrap_or(plan.launches).max(1);
        let mut results = Results::default();
        for launch in 0..launches {
            progress(&format!("launch {} of {launches}: changes of a table", launch + 1));
            let mut put = |name: &'static str, unit: &'static str, value: f64| {
                results.figures.push(Figure { name, unit, launch, value });
            };
            let notes = enforced::tables(&plan, &mut put);
            results.note(notes);
        }
        Ok(results)
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        Reserve.verdicts(results)
    }
}

/// Measures what this machine can; what it can't is noted.
#[must_use]
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Results {
    let mut results = Results::default();
    for launch in 0..plan.launches {
        progress(&format!("launch {} of {}: decisions", launch + 1, plan.launches));
        let mut put = |name: &'static str, unit: &'static str, value: f64| {
            results.figures.push(Figure { name, unit, launch, value });
        };
        logic::measure(plan, &mut put);
        let mut notes = Vec::new();
        progress(&format!("launch {} of {}: changes under each enforcement", launch + 1, plan.launches));
        notes.extend(enforced::measure(plan, &mut put));
        progress(&format!("launch {} of {}: processors under load", launch + 1, plan.launches));
        if !load::has_stress_ng() {
            notes.push("stress-ng is not installed: the load is loops of shells".to_owned());
        }
        if let Err(why) = load::measure(plan, &mut put) {
            notes.push(format!("no promises of processors in the kernel: {why}"));
        }
        progress(&format!("launch {} of {}: network", launch + 1, plan.launches));
        if let Err(why) = link::measure(plan, &mut put) {
            notes.push(format!("no classes of a link: {why}"));
        }
        results.note(notes);
    }
    results
}

/// Where a part puts its figures: name, unit, value.
type Put<'a> = dyn FnMut(&'static str, &'static str, f64) + 'a;

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1_000.0
}

fn p99(values: &[f64]) -> f64 {
    quantile(values, 0.99).unwrap_or(0.0)
}
