//! The one trait, and what goes in and out of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::plan::Plan;

/// How promises are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A real-time thread for each processor goes by a table that repeats.
    Table,
    /// The kernel's bandwidth control for ordinary processes (CFS quota).
    Bandwidth,
    /// The kernel's own earliest deadline first (`SCHED_DEADLINE`).
    Deadline,
    /// In virtual time.
    Simulator,
}

impl Kind {
    /// All of them that keep promises to processes, the strongest first.
    pub const REAL: [Self; 3] = [Self::Table, Self::Deadline, Self::Bandwidth];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Bandwidth => "bandwidth",
            Self::Deadline => "deadline",
            Self::Simulator => "simulator",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        [Self::Table, Self::Bandwidth, Self::Deadline, Self::Simulator]
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                format!("`{text}` is no enforcement; give table, deadline, bandwidth or simulator")
            })
    }
}

/// The abilities of an enforcer on this machine. Measured and tried when it starts, not guessed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ability {
    /// The kind.
    pub kind: Kind,
    /// The cost of one switch, in ns: admission charges two for each release.
    pub switch_ns: u64,
    /// Most of one processor that can be promised, in millionths.
    pub most_ppm: u64,
    /// The processors that can be promised.
    pub processors: Vec<usize>,
    /// The things that are not guaranteed here, and why, in whole sentences. Empty: all is.
    pub caveats: Vec<String>,
}

/// A plan that was looked at, and worked out as far as can be before it is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The number of the preparation, to be said to [`Enforcer::commit`].
    pub ticket: u64,
    /// The charge for a switch in it, in ns.
    pub switch_ns: u64,
    /// The things that are not guaranteed of it, and why.
    pub caveats: Vec<String>,
}

/// A change that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Counts the changes.
    pub generation: u64,
    /// How long the commit took, in ns of the monotonic clock, as its caller saw it.
    pub commit_ns: u64,
    /// When the change is in force at all processors at the latest, on the monotonic clock, in ns.
    pub in_force_ns: u64,
}

/// When a change had effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// The change.
    pub generation: u64,
    /// From the call of commit until each virtual task machine that was changed had the new budget
    /// for the first time, in ns: seen by the enforcer's own events. `None`: not yet.
    pub after_ns: Option<u64>,
}

/// How one virtual task machine fares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct VtmReport {
    /// Its name.
    pub id: String,
    /// Its processes.
    pub jobs: usize,
    /// Their threads.
    pub threads: usize,
    /// The time that was set apart for it since it came, in ns: the length of its slots without the
    /// switches.
    pub offered_ns: u64,
    /// The time that its threads have used since it came, in its time and outside, in ns, as the
    /// kernel counts.
    pub used_ns: u64,
    /// Slots, or throttled periods under bandwidth.
    pub slots: u64,
    /// Slots that were lost or late by more than [`crate::LATE_NS`].
    pub late: u64,
    /// How late a slot has begun at most, in ns.
    pub worst_late_ns: u64,
    /// The time that it has run beyond its slots, in ns: its threads stood still later than they
    /// were told to. They are ordinary threads then.
    #[serde(default)]
    pub overrun_ns: u64,
    /// The latest events that somebody should know of.
    pub notes: Vec<String>,
    /// Its jobs that have a budget of their own.
    #[serde(default)]
    pub inside: Vec<JobReport>,
}

/// How a job fares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct JobReport {
    /// Its name.
    pub name: String,
    /// The processes that are it.
    pub processes: usize,
    /// Their threads that are it.
    pub threads: usize,
    /// The time that these have used since they came, in ns.
    pub used_ns: u64,
    /// The real-time priority that orders it in its machine's slots. Absent where the kernel goes
    /// by deadlines.
    #[serde(default)]
    pub priority: Option<u32>,
    /// How long it takes at worst, in ns: by the analysis of the table in force, or as the
    /// simulator has seen. Absent where there is no such number.
    #[serde(default)]
    pub response_ns: Option<u64>,
    /// How long it may take, in ns.
    pub deadline_ns: u64,
    /// Whether it is late at times, by the same.
    pub late: bool,
}

/// How all fare.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Report {
    /// The change that is in force.
    pub generation: u64,
    /// On the monotonic clock, in ns.
    pub at_ns: u64,
    /// Each.
    pub vtms: Vec<VtmReport>,
    /// How often the clock was found far ahead, and the table taken up where it should be.
    pub resynchronised: u64,
    /// Longest decision, in ns.
    pub worst_decision_ns: u64,
    /// The time that 99 of 100 decisions took at most, in ns, as the slowest processor counts.
    #[serde(default)]
    pub decision_p99_ns: u64,
    /// The events that somebody should know of.
    pub notes: Vec<String>,
}

/// Keeps promises. All of a plan is in force, or nothing of it.
///
/// `prepare` takes its time and limits nobody; `commit` is short. Processes that are listed one by
/// one are put into a cgroup of the enforcer's, without limits yet, when their plan is prepared,
/// and go back when they are let go. Whoever shrinks does so before anybody grows; a table takes
/// over at a quiet time of the old one, so nobody misses during the change.
pub trait Enforcer: Send {
    /// The kind of enforcement.
    fn kind(&self) -> Kind;

    /// Its abilities here.
    fn ability(&self) -> &Ability;

    /// Looks at a whole plan, and works out what there is to do.
    ///
    /// # Errors
    /// Where it can't be kept; nothing has changed.
    fn prepare(&mut self, plan: &Plan) -> Result<Prepared>;

    /// Puts what was prepared last in force, in place of what is.
    ///
    /// # Errors
    /// Where that failed; all is as before then. [`crate::EnforceError::Stale`] for what was not
    /// prepared last.
    fn commit(&mut self, prepared: &Prepared) -> Result<Committed>;

    /// Goes back to what was in force before the last commit.
    ///
    /// # Errors
    /// Where there is nothing to go back to, or it failed.
    fn roll_back(&mut self) -> Result<Committed>;

    /// Waits at most so long for the last change to have effect.
    ///
    /// # Errors
    /// Where nobody can tell.
    fn effect(&mut self, at_most: Duration) -> Result<Effect>;

    /// How all fare.
    ///
    /// # Errors
    /// Where nobody can tell.
    fn report(&mut self) -> Result<Report>;

    /// Looks for processes that came and went, and for others who set what is ours, where no thread
    /// of its own does.
    ///
    /// # Errors
    /// Where that can't be seen.
    fn scan(&mut self) -> Result<()>;

    /// Gives everybody back: nobody is held, throttled or in a real-time class, what was moved is
    /// where it was.
    ///
    /// # Errors
    /// The resources that could not be given back; all else was.
    fn release(&mut self) -> Result<()>;
}
