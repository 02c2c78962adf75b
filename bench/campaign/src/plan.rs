//! The demands of a plan, and the order in which they are measured.

use serde::Serialize;
use sha2::{Digest, Sha256};
use statistics::SplitMix;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use topology::{nanos_text, size_text};

/// The time that beginning and ending a repetition takes, besides its window: two processes start,
/// meet and end.
const AROUND: Duration = Duration::from_millis(120);
/// As [`AROUND`], where each of them starts in a container of its own.
const AROUND_CONTAINERS: Duration = Duration::from_millis(600);

/// Where the two ends are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deployment {
    /// Two processes of the machine.
    Bare,
    /// Each in a network namespace of its own, joined by a veth.
    NetworkNamespace,
    /// Each in a container of its own (runc), in such a network namespace.
    Container,
}

impl Deployment {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bare, Self::NetworkNamespace, Self::Container];

    /// Its word in files.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::NetworkNamespace => "network-namespace",
            Self::Container => "container",
        }
    }
}

/// When requests are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loop {
    /// When the one before was answered.
    Closed,
    /// One after each interval, in ns.
    Periodic(u64),
    /// Independently of each other, after so many ns on average.
    Poisson(u64),
}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Periodic(interval_ns) => write!(f, "periodic {}", nanos_text(*interval_ns)),
            Self::Poisson(interval_ns) => write!(f, "poisson {}", nanos_text(*interval_ns)),
        }
    }
}

/// A plan, admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// The seed that orders, schedules and payloads are made of.
    pub seed: u64,
    /// How often everything is started afresh.
    pub launches: usize,
    /// How long requests are due in each repetition.
    pub window: Duration,
    /// How long a peer may say nothing, beyond what it was told to do.
    pub patience: Duration,
    /// Names of subjects; the first one runs twice, as the A/A arm.
    pub subjects: Vec<String>,
    /// The subject without middleware that the others are decomposed against.
    pub ideal: Option<String>,
    /// Where the ends are; the first one counts as not virtualized.
    pub deployments: Vec<Deployment>,
    /// Bytes of a message.
    pub payloads: Vec<usize>,
    /// How long the server computes for each request, in ns.
    pub work_ns: Vec<u64>,
    /// When requests are due.
    pub loops: Vec<Loop>,
    /// Deadlines that the times are held against, in ns.
    pub deadlines_ns: Vec<u64>,
    /// Commands of foreign programs, by the name behind `exec:`.
    pub adapters: BTreeMap<String, Vec<String>>,
}

/// Circumstances under which all subjects are measured side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Where the ends are.
    pub deployment: Deployment,
    /// Bytes of a message.
    pub payload: usize,
    /// How long the server computes, in ns.
    pub work_ns: u64,
    /// When requests are due.
    pub pace: Loop,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (payload, work) = (size_text(self.payload as u64), nanos_text(self.work_ns));
        write!(f, "{}, {payload}, work {work}, {}", self.deployment.word(), self.pace)
    }
}

/// The name of the A/A arm: the first subject, once more, as if it were another.
pub const AGAIN: &str = " (again)";

/// One repetition to measure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repeat {
    /// In which launch, from 0.
    pub launch: usize,
    /// Under which circumstances.
    pub cell: Cell,
    /// The arm: a subject, or the first one with [`AGAIN`] behind it.
    pub arm: String,
}

impl Repeat {
    /// The subject of the arm.
    #[must_use]
    pub fn subject(&self) -> &str {
        self.arm.strip_suffix(AGAIN).unwrap_or(&self.arm)
    }
}

impl Plan {
    /// All cells, in the order of the report.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &deployment in &self.deployments {
            for &payload in &self.payloads {
                for &work_ns in &self.work_ns {
                    cells.extend(self.loops.iter().map(|&pace| Cell { deployment, payload, work_ns, pace }));
                }
            }
        }
        cells
    }

    /// All arms, in the order of the report.
    #[must_use]
    pub fn arms(&self) -> Vec<String> {
        let again = self.subjects.first().map(|first| format!("{first}{AGAIN}"));
        self.subjects.iter().cloned().chain(again).collect()
    }

    /// Everything to measure, in the order in which it is measured: launch after launch; in each,
    /// cells in an order of the seed, and the arms of a cell one after the other in an order of the
    /// seed. So what changes with time changes all arms of a cell alike.
    #[must_use]
    pub fn order(&self) -> Vec<Repeat> {
        let mut random = SplitMix(self.seed);
        let mut order = Vec::new();
        for launch in 0..self.launches {
            let mut cells = self.cells();
            random.shuffle(&mut cells);
            for cell in cells {
                let mut arms = self.arms();
                random.shuffle(&mut arms);
                order.extend(arms.into_iter().map(|arm| Repeat { launch, cell, arm }));
            }
        }
        order
    }

    /// The time that all of it takes, about.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.order().iter().map(|repeat| self.length_of(repeat)).sum()
    }

    /// The time that one repetition takes, about.
    #[must_use]
    pub fn length_of(&self, repeat: &Repeat) -> Duration {
        let around = if repeat.cell.deployment == Deployment::Container { AROUND_CONTAINERS } else { AROUND };
        self.window + around
    }

    /// The seed of a repetition: of its circumstances alone, so that all arms of a cell have the
    /// same schedule.
    #[must_use]
    pub fn seed_of(&self, repeat: &Repeat) -> u64 {
        let text = format!("{} {} {}", self.seed, repeat.launch, repeat.cell);
        let digest = Sha256::digest(text.as_bytes());
        digest.iter().take(8).fold(0, |seed, &byte| seed << 8 | u64::from(byte))
    }

    /// The fingerprint of this plan, which differs from that of any plan that would measure
    /// something else.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::digest(format!("{self:?}").as_bytes());
        digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn plan() -> Plan {
        crate::presets::read("quick").expect("a preset")
    }

    #[test]
    fn everything_is_measured_once_in_each_launch_and_the_order_is_of_the_seed() {
        let plan = plan();
        let order = plan.order();
        let different: BTreeSet<&Repeat> = order.iter().collect();
        assert_eq!(order.len(), plan.launches * plan.cells().len() * plan.arms().len());
        assert_eq!(different.len(), order.len());
        assert!(order.is_sorted_by_key(|repeat| repeat.launch));
        assert_eq!(order, plan.order());
        assert_ne!(order, Plan { seed: plan.seed + 1, ..plan }.order());
    }

    #[test]
    fn the_arms_of_a_cell_run_one_after_the_other() {
        let plan = plan();
        for group in plan.order().chunks(plan.arms().len()) {
            assert!(group.iter().all(|repeat| repeat.cell == group[0].cell));
        }
    }

    #[test]
    fn there_is_an_arm_beside_the_first_subject_that_is_the_same() {
        let again =
            plan().order().into_iter().find(|repeat| repeat.arm.ends_with(AGAIN)).expect("an A/A arm");
        assert_eq!(again.subject(), plan().subjects[0]);
    }

    #[test]
    fn all_arms_of_a_cell_have_one_schedule_and_cells_have_different_ones() {
        let plan = plan();
        let order = plan.order();
        let seeds: BTreeSet<u64> = order.iter().map(|repeat| plan.seed_of(repeat)).collect();
        assert_eq!(seeds.len(), plan.launches * plan.cells().len());
    }

    #[test]
    fn another_plan_has_another_fingerprint() {
        let plan = plan();
        assert_eq!(plan.fingerprint(), plan.clone().fingerprint());
        assert_ne!(plan.fingerprint(), Plan { launches: plan.launches + 1, ..plan.clone() }.fingerprint());
    }
}
