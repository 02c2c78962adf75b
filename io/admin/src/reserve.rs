//! Reservations in the admin protocol.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use topology::{Reserve, nanos_text};

/// Processors, policy, link, memory and disk that a node has for reservations: `GET` and `POST
/// /v1/reserve/node`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    /// The processors that are for reservations, as the kernel numbers them; reservations count
    /// them from 0.
    pub processors: Vec<usize>,
    /// The order on a processor.
    pub policy: PolicyWord,
    /// The cost of one switch, in ns.
    pub switch_ns: u64,
    /// The link; absent: nothing can be promised of one.
    #[serde(default)]
    pub link: Option<LinkSettings>,
    /// The rate of all traffic between domains of this node over its loopback interface, in bits
    /// per second: classes are kept there, too. Absent: that is not kept.
    #[serde(default)]
    pub between_bits: Option<u64>,
    /// Memory for reservations, in bytes.
    pub memory_bytes: u64,
    /// Bandwidth of the disk for reservations, in bytes per second.
    pub disk_bytes: u64,
    /// The same in operations per second.
    pub disk_operations: u64,
}

/// The link of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    /// Its interface.
    pub device: String,
    /// Its rate, in bits per second.
    pub rate_bits: u64,
}

/// The order on a processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyWord {
    /// The shorter the period.
    RateMonotonic,
    /// The shorter the deadline.
    DeadlineMonotonic,
    /// The domain whose deadline comes next goes first.
    #[default]
    EarliestDeadline,
}

impl From<PolicyWord> for reserve::Policy {
    fn from(word: PolicyWord) -> Self {
        match word {
            PolicyWord::RateMonotonic => Self::RateMonotonic,
            PolicyWord::DeadlineMonotonic => Self::DeadlineMonotonic,
            PolicyWord::EarliestDeadline => Self::EarliestDeadline,
        }
    }
}

impl PolicyWord {
    /// The word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RateMonotonic => "rate-monotonic",
            Self::DeadlineMonotonic => "deadline-monotonic",
            Self::EarliestDeadline => "earliest-deadline",
        }
    }

    /// The policy of that word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::RateMonotonic, Self::DeadlineMonotonic, Self::EarliestDeadline]
            .into_iter()
            .find(|policy| policy.as_str() == word)
    }
}

/// A virtual task machine, as `reserve ls` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VtmRow {
    /// `DC/DOMAIN`, or `run/NAME`.
    pub name: String,
    /// Its reservation.
    pub reserve: Reserve,
    /// The processor that gives it, as the kernel numbers it.
    pub processor: Option<usize>,
    /// The enforcement of the processor time.
    pub kept_by: Option<String>,
    /// Why that.
    #[serde(default)]
    pub kept_because: Option<String>,
    /// Its jobs that have budgets of their own.
    #[serde(default)]
    pub jobs: Vec<JobRow>,
    /// Its dispatcher's report, where it has one.
    #[serde(default)]
    pub dispatched: Option<DispatchedRow>,
    /// Whether its promise is in force: its processes are there.
    pub in_force: bool,
    /// Whether it is suspended.
    pub suspended: bool,
    /// Its worst response time, in ns, by the analysis; absent: without a bound, or nothing of a
    /// processor.
    pub response_ns: Option<u64>,
    /// Processor time that it has had, in µs.
    pub cpu_us: Option<u64>,
    /// Periods in which it wanted more than it was promised.
    pub throttled_periods: Option<u64>,
    /// Memory that it uses, in bytes.
    pub memory_bytes: Option<u64>,
    /// How long it, or where the kernel does not tell that the node, has waited for memory, in µs.
    pub memory_pressure_us: Option<u64>,
    /// Bytes that its class of the link has sent.
    pub network_sent_bytes: Option<u64>,
    /// Bytes that have come in through it.
    #[serde(default)]
    pub network_received_bytes: Option<u64>,
    /// Bytes that it has sent to others of this node.
    #[serde(default)]
    pub network_between_bytes: Option<u64>,
    /// The parts that are not guaranteed, and why.
    pub caveats: Vec<String>,
}

/// A job inside a virtual task machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRow {
    /// Its name.
    pub name: String,
    /// Its processor time in each period, in ns.
    pub budget_ns: u64,
    /// How often it begins at most, in ns.
    pub period_ns: u64,
    /// How long it may take, in ns.
    pub deadline_ns: u64,
    /// How long it takes at worst, in ns, on the table in force, or where there is none yet on that
    /// of all that is promised; absent: earliest deadline first has no such number.
    pub response_ns: Option<u64>,
    /// Whether it is always in time, by the same analysis.
    pub in_time: bool,
    /// Its real-time priority in its machine's slots, where a table keeps it.
    pub priority: Option<u32>,
    /// The processes that are it; absent: nobody looks.
    pub processes: Option<usize>,
    /// Their threads that are it.
    pub threads: Option<usize>,
    /// The processor time that these have used, in µs.
    pub used_us: Option<u64>,
}

impl JobRow {
    /// In words.
    #[must_use]
    pub fn line(&self) -> String {
        let by =
            self.response_ns.map_or_else(String::new, |ns| format!(", at worst after {}", nanos_text(ns)));
        let kept = if self.in_time { "in time" } else { "LATE at times" };
        let first = self.priority.map_or_else(String::new, |priority| format!(", priority {priority}"));
        let who = match (self.processes, self.threads) {
            (Some(0), _) => ", nobody is it now".to_owned(),
            (Some(processes), Some(threads)) => format!(", {processes} processes with {threads} threads"),
            _ => String::new(),
        };
        let used = self.used_us.map_or_else(String::new, |us| format!(", has used {us} us"));
        format!(
            "job {}: {} in {}{by}, due after {}: {kept}{first}{who}{used}",
            self.name,
            nanos_text(self.budget_ns),
            nanos_text(self.period_ns),
            nanos_text(self.deadline_ns)
        )
    }
}

/// How one fares, as its dispatcher counts since it came.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatchedRow {
    /// Its processes.
    pub jobs: usize,
    /// Their threads.
    pub threads: usize,
    /// Processor time that was set apart for it, in µs.
    pub offered_us: u64,
    /// The processor time that its threads have used, in their slots and outside, in µs.
    pub used_us: u64,
    /// Slots of the table that it has had.
    pub slots: u64,
    /// Those of them that were late.
    pub late_slots: u64,
    /// How late one has begun at most, in µs.
    pub worst_late_us: u64,
    /// Events that somebody should know of.
    pub notes: Vec<String>,
}

/// All that a node has promised: `GET /v1/reserve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    /// Its capacity.
    pub node: NodeSettings,
    /// Its promises.
    pub vtms: Vec<VtmRow>,
    /// All resources, with those that they stand on.
    pub resources: Vec<ResourceRow>,
    /// Whether it is a node of a cluster: then other nodes may promise what this one can't.
    #[serde(default)]
    pub in_cluster: bool,
    /// The cost of its dispatch tables, and the domains on them.
    #[serde(default)]
    pub table: Option<TableRow>,
    /// The room of the kernel's deadline class, and the domains in it, where one wants deadlines.
    #[serde(default)]
    pub deadline: Option<DeadlineRow>,
}

/// The room of the kernel's deadline class on a node, and the domains in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineRow {
    /// Over how many processors.
    pub processors: usize,
    /// Most of each of them that all deadlines may have, in millionths.
    pub most_ppm: u64,
    /// The share of it that others have than domains with reservations, in millionths of one
    /// processor.
    pub others_ppm: u64,
    /// The domains that have deadlines, or will have them when their processes are there.
    pub vtms: Vec<String>,
    /// The domains that asked for deadlines and have none, and why: a quota keeps them.
    pub without: BTreeMap<String, String>,
}

/// The cost of dispatch tables on a node, and the domains on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRow {
    /// The charge of a switch, in ns.
    pub switch_ns: u64,
    /// Most of a processor that slots may have, in millionths.
    pub most_ppm: u64,
    /// The domains that have slots, or will have them when their processes are there.
    pub vtms: Vec<String>,
    /// The domains that asked for a table and have none, and why: a quota keeps them.
    pub without: BTreeMap<String, String>,
}

/// A resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceRow {
    /// Its number.
    pub id: u64,
    /// `machine`, `team`, `job`, `class`, `memory share`, `disk share`, `processor`, `link`,
    /// `memory`, `disk`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The resources that it stands on.
    pub below: Vec<u64>,
}

/// Gives each of the named this promise, in one step: `POST /v1/reserve/adapt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptRequest {
    /// The new reservations.
    pub changes: Vec<Change>,
}

/// One promise that becomes another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The domain.
    pub name: String,
    /// The reservation.
    pub reserve: Reserve,
}

/// Takes this from one and gives it to another, in one step: `POST /v1/reserve/move`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The domain that gives.
    pub from: String,
    /// The domain that gets.
    pub to: String,
    /// Processor time in each of the giver's periods, in ns; the other gets the same share of its
    /// own.
    #[serde(default)]
    pub cpu_ns: u64,
    /// Network, in bits per second.
    #[serde(default)]
    pub network_bits: u64,
    /// Memory, in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Disk, in bytes per second.
    #[serde(default)]
    pub io_bytes: u64,
    /// Disk, in operations per second.
    #[serde(default)]
    pub io_operations: u64,
}

/// The outcome of an adaptation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapted {
    /// The steps in their order: those that shrink first.
    pub steps: Vec<String>,
    /// How many of them shrink.
    pub shrinking: usize,
    /// From the request until it was decided, in µs.
    pub decide_us: u64,
    /// From then until all was in the kernel, in µs.
    pub commit_us: u64,
    /// From then until the kernel began the first period with the new budget of everybody that
    /// runs, in µs; absent: nobody wanted to run.
    pub effect_us: Option<u64>,
    /// The parts that are not guaranteed.
    pub caveats: Vec<String>,
}

/// Promises something to the process that asks and those that it starts: `POST /v1/reserve/run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The name, after `run/`; absent: its number.
    #[serde(default)]
    pub name: Option<String>,
    /// The process, as the node counts.
    pub pid: u32,
    /// The reservation.
    pub reserve: Reserve,
}

/// The promise to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// The whole name.
    pub name: String,
    /// The parts that are not guaranteed.
    pub caveats: Vec<String>,
}

/// The recent promises, use, misses and changes with their reasons: `GET /v1/reserve/trace`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Now, in milliseconds since 1970.
    pub now_ms: u64,
    /// Looks, the oldest first.
    pub marks: Vec<Mark>,
    /// Changes, the oldest first.
    pub notes: Vec<Note>,
}

/// One look at a domain or process that is promised processor time. Use and misses count from when
/// it came.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The domain.
    pub name: String,
    /// On which processor, as the kernel numbers it.
    pub processor: Option<usize>,
    /// Its budget then, in ns.
    pub budget_ns: u64,
    /// In each of these, in ns.
    pub period_ns: u64,
    /// Processor time that it has had, in ns.
    pub cpu_ns: Option<u64>,
    /// Periods or slots that it has missed.
    pub missed: Option<u64>,
    /// All of them.
    pub periods: Option<u64>,
}

/// A change of promises.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The change, and its reason.
    pub what: String,
}

/// The domain to suspend or resume: `POST /v1/reserve/suspend`, `POST /v1/reserve/resume`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// The domain.
    pub name: String,
}
