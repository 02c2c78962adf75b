//! The plan that is to be kept: virtual task machines with their budgets, their members, and what
//! they do outside their time.

use std::collections::BTreeSet;

use reserve::{Costs, MAX_PROCESSORS, MAX_TASKS, Policy, Rule, Task};
use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::jobs::Jobs;

/// Most virtual task machines of one plan: as many as one processor's analysis takes.
pub const MAX_VTMS: usize = MAX_TASKS;
/// Longest name of a virtual task machine: `DC/DOMAIN` with the longest of both, and some.
pub const MAX_ID: usize = 200;
/// Longest path of a cgroup: that of a kernel path.
pub const MAX_CGROUP: usize = 4096;
/// Most processes that one virtual task machine names; more belong into a cgroup.
pub const MAX_PIDS: usize = 4096;

/// The plan of this node, as a whole: a domain that is not in it has nothing promised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// By which a table is built, or that admission went by.
    #[serde(default)]
    pub policy: Order,
    /// Refuse what can't be guaranteed here, instead of saying so.
    #[serde(default)]
    pub strict: bool,
    /// The virtual task machines.
    pub vtms: Vec<Vtm>,
}

/// A virtual task machine: processes that share a promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vtm {
    /// Its name, the same from plan to plan.
    pub id: String,
    /// The members.
    #[serde(default)]
    pub members: Members,
    /// The processor that it is on. Bandwidth and the deadline class let the kernel choose.
    #[serde(default)]
    pub processor: usize,
    /// Processor time in each period, in ns.
    pub budget_ns: u64,
    /// The period, in ns.
    pub period_ns: u64,
    /// By when the budget is had, in ns after the period began; 0: the period.
    #[serde(default)]
    pub deadline_ns: u64,
    /// The time that may be saved up and used beyond the budget at once, in ns (bandwidth: CFS
    /// burst).
    #[serde(default)]
    pub burst_ns: u64,
    /// The order of its jobs.
    #[serde(default)]
    pub inside: Jobs,
    /// The state of its processes outside its time.
    #[serde(default)]
    pub outside: Outside,
    /// Whether it is held for the time being: its time is nobody's (table).
    #[serde(default)]
    pub suspended: bool,
}

/// The members of a virtual task machine. A cgroup holds what its processes start, too; named
/// processes are put into a cgroup where that can be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct Members {
    /// All of this cgroup and those below it, relative to the mount of each hierarchy
    /// (`tombolo/DC/DOMAIN`).
    #[serde(default)]
    pub cgroup: Option<String>,
    /// And these processes.
    #[serde(default)]
    pub pids: Vec<u32>,
}

/// The policies of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The shorter the period.
    #[default]
    RateMonotonic,
    /// The shorter the deadline.
    DeadlineMonotonic,
    /// The task with the earliest deadline runs first.
    EarliestDeadline,
}

impl From<Order> for Policy {
    fn from(order: Order) -> Self {
        match order {
            Order::RateMonotonic => Self::RateMonotonic,
            Order::DeadlineMonotonic => Self::DeadlineMonotonic,
            Order::EarliestDeadline => Self::EarliestDeadline,
        }
    }
}

impl From<Policy> for Order {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::RateMonotonic => Self::RateMonotonic,
            Policy::DeadlineMonotonic => Self::DeadlineMonotonic,
            Policy::EarliestDeadline => Self::EarliestDeadline,
        }
    }
}

/// The state of a virtual task machine's processes outside its time (or, under bandwidth and
/// deadline, once their budget is used up).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Outside {
    /// They wait: the budget is also the most that they get. By the freezer where there is one, by
    /// SIGSTOP elsewhere.
    #[default]
    Held,
    /// They wait, by SIGSTOP and SIGCONT, though there is a freezer.
    Stopped,
    /// They take what nobody wants (`SCHED_IDLE`). Not under deadline.
    Idle,
    /// They compete like everybody else (`SCHED_OTHER`). Not under deadline.
    Fair,
}

impl Outside {
    /// Whether the budget is also the most that they get.
    #[must_use]
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Held | Self::Stopped)
    }
}

impl Vtm {
    /// A virtual task machine of processes that are named, with the defaults.
    #[must_use]
    pub fn new(id: impl Into<String>, budget_ns: u64, period_ns: u64) -> Self {
        Self {
            id: id.into(),
            members: Members::default(),
            processor: 0,
            budget_ns,
            period_ns,
            deadline_ns: 0,
            burst_ns: 0,
            inside: Jobs::default(),
            outside: Outside::default(),
            suspended: false,
        }
    }

    /// Its demand.
    ///
    /// # Errors
    /// Where the numbers are none ([`reserve::TaskError`]).
    pub fn task(&self) -> Result<Task, PlanError> {
        let deadline_ns = if self.deadline_ns == 0 { self.period_ns } else { self.deadline_ns };
        Task::new(self.budget_ns, self.period_ns)
            .and_then(|task| task.with_deadline(deadline_ns))
            .map_err(|source| PlanError::Task { id: self.id.clone(), source })
    }

    fn check(&self) -> Result<(), PlanError> {
        let id = || self.id.clone();
        if self.id.is_empty() || self.id.len() > MAX_ID || self.id.contains(['\0', '\n']) {
            return Err(PlanError::Name(self.id.chars().take(MAX_ID).collect()));
        }
        self.task()?;
        if self.processor >= MAX_PROCESSORS {
            return Err(PlanError::Processor { id: id(), processor: self.processor });
        }
        self.inside.check(&self.id)?;
        if self.burst_ns > self.budget_ns {
            return Err(PlanError::Burst { id: id(), burst_ns: self.burst_ns, budget_ns: self.budget_ns });
        }
        self.members.check(&self.id)
    }
}

impl Members {
    /// These processes.
    #[must_use]
    pub fn pids(pids: &[u32]) -> Self {
        Self { cgroup: None, pids: pids.to_vec() }
    }

    /// Those of a cgroup.
    #[must_use]
    pub fn cgroup(path: impl Into<String>) -> Self {
        Self { cgroup: Some(path.into()), pids: Vec::new() }
    }

    fn check(&self, id: &str) -> Result<(), PlanError> {
        if let Some(path) = &self.cgroup {
            let strange = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
            if path.len() > MAX_CGROUP || path.split('/').any(strange) {
                return Err(PlanError::Cgroup { id: id.to_owned(), path: path.clone() });
            }
        }
        if self.pids.len() > MAX_PIDS {
            return Err(PlanError::TooManyPids { id: id.to_owned(), count: self.pids.len() });
        }
        match self.pids.iter().find(|&&pid| pid <= 1 || i32::try_from(pid).is_err()) {
            Some(&pid) => Err(PlanError::Pid { id: id.to_owned(), pid }),
            None => Ok(()),
        }
    }
}

impl Plan {
    /// A plan for these.
    #[must_use]
    pub fn new(vtms: Vec<Vtm>) -> Self {
        Self { vtms, ..Self::default() }
    }

    /// Looks at all numbers and names; whether the machine has what they speak of is the enforcer's
    /// to see.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.vtms.len() > MAX_VTMS {
            return Err(PlanError::TooMany(self.vtms.len()));
        }
        let (mut names, mut cgroups, mut pids) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for vtm in &self.vtms {
            vtm.check()?;
            if !names.insert(vtm.id.as_str()) {
                return Err(PlanError::Twice(vtm.id.clone()));
            }
            if let Some(path) = vtm.members.cgroup.as_deref().filter(|path| !cgroups.insert(*path)) {
                return Err(PlanError::Shared { id: vtm.id.clone(), what: format!("the cgroup {path}") });
            }
            if let Some(pid) = vtm.members.pids.iter().find(|pid| !pids.insert(**pid)) {
                return Err(PlanError::Shared { id: vtm.id.clone(), what: format!("process {pid}") });
            }
        }
        Ok(())
    }

    /// The rule of this plan, where a switch costs so much.
    #[must_use]
    pub fn rule(&self, costs: Costs) -> Rule {
        Rule { policy: self.policy.into(), costs }
    }

    /// The virtual task machine of that name.
    #[must_use]
    pub fn vtm(&self, id: &str) -> Option<&Vtm> {
        self.vtms.iter().find(|vtm| vtm.id == id)
    }

    /// The processors that somebody is on, in order.
    #[must_use]
    pub fn processors(&self) -> Vec<usize> {
        self.vtms.iter().map(|vtm| vtm.processor).collect::<BTreeSet<_>>().into_iter().collect()
    }
}
