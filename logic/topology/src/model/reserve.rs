//! The reserve of a domain, admitted.

use serde::{Deserialize, Serialize};

use crate::bounds::{JOBS_MAX, PATTERN_BYTES_MAX, THREAD_NAME_BYTES_MAX};
use crate::scalar::{nanos_text, rate_text, size_text};
use reserve::dispatch::Inside;
use reserve::model::{Team, Wish};
use reserve::network::Class;
use reserve::node::Disk;
use reserve::{Affinity, Policy, Task, TaskError};
use std::collections::BTreeMap;

/// The reserve of a domain: at least one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// Processor time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<ProcessorShare>,
    /// A class of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkShare>,
    /// Memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bandwidth of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<DiskShare>,
    /// The policy that picks the job that runs in its time.
    #[serde(default, skip_serializing_if = "JobPolicy::is_round_robin")]
    pub policy: JobPolicy,
    /// The jobs that are promised to be in time, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub jobs: BTreeMap<String, Job>,
    /// The mechanism that keeps the processor time.
    #[serde(default)]
    pub enforce: Enforce,
    /// The treatment of its processes when the budget of a period is used up.
    #[serde(default)]
    pub outside: Outside,
    /// Whether a node that can't keep all of it refuses the domain.
    #[serde(default)]
    pub strict: bool,
}

/// Processor time: a budget in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessorShare {
    /// How much, in ns of one processor.
    pub budget_ns: u64,
    /// How often, in ns.
    pub period_ns: u64,
    /// By when in each period, in ns.
    pub deadline_ns: u64,
    /// Of which processor; `None`: the node chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<u32>,
}

/// A process or thread with what it needs of the time of its domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The processes or threads of the job.
    pub who: Who,
    /// How much it takes in each period, in ns.
    pub budget_ns: u64,
    /// How often it begins at most, in ns.
    pub period_ns: u64,
    /// By when it is done after it began, in ns.
    pub deadline_ns: u64,
}

/// The processes or threads of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// Processes whose name or whole command line is like this, with all their threads.
    Process(String),
    /// Threads whose name is like this.
    Thread(String),
}

impl Who {
    /// Looks at the pattern.
    ///
    /// # Errors
    /// Why it can't be one, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let (Self::Process(pattern) | Self::Thread(pattern)) = self;
        if pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!(
                "a pattern has 1 to {PATTERN_BYTES_MAX} bytes, and this one {}",
                pattern.len()
            ));
        }
        if pattern.chars().any(char::is_control) {
            return Err("a pattern has no control characters".to_owned());
        }
        if matches!(self, Self::Thread(_)) && !pattern.contains('*') && pattern.len() > THREAD_NAME_BYTES_MAX
        {
            return Err(format!(
                "the kernel keeps {THREAD_NAME_BYTES_MAX} bytes of a thread's name, so {pattern:?} is nobody's: cut it, or end it with `*`"
            ));
        }
        Ok(())
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(pattern) => write!(f, "process {pattern:?}"),
            Self::Thread(pattern) => write!(f, "thread {pattern:?}"),
        }
    }
}

impl Job {
    /// The same for the analysis.
    ///
    /// # Errors
    /// Where the numbers contradict each other.
    pub fn task(&self) -> Result<Task, TaskError> {
        Task::new(self.budget_ns, self.period_ns)?.with_deadline(self.deadline_ns)
    }
}

/// The policy that picks the job that runs in a domain's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobPolicy {
    /// Each in turn.
    #[default]
    RoundRobin,
    /// The shorter the period, the sooner.
    RateMonotonic,
    /// The shorter the deadline, the sooner.
    DeadlineMonotonic,
    /// The job whose deadline comes next.
    EarliestDeadline,
}

impl JobPolicy {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::RoundRobin, Self::RateMonotonic, Self::DeadlineMonotonic, Self::EarliestDeadline];

    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::RateMonotonic => "rate-monotonic",
            Self::DeadlineMonotonic => "deadline-monotonic",
            Self::EarliestDeadline => "earliest-deadline",
        }
    }

    /// Whether nothing is promised to any job by name.
    #[must_use]
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "that is how serde asks")]
    pub fn is_round_robin(&self) -> bool {
        *self == Self::RoundRobin
    }

    /// For the analysis; `None`: in turn.
    #[must_use]
    pub fn order(self) -> Option<Policy> {
        match self {
            Self::RoundRobin => None,
            Self::RateMonotonic => Some(Policy::RateMonotonic),
            Self::DeadlineMonotonic => Some(Policy::DeadlineMonotonic),
            Self::EarliestDeadline => Some(Policy::EarliestDeadline),
        }
    }
}

/// A class of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkShare {
    /// The promised rate, in bits per second.
    pub rate_bits: u64,
    /// The most that it may use while others don't, in bits per second; `None`: all of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling_bits: Option<u64>,
    /// How much may come at once, in bytes.
    pub burst_bytes: u64,
    /// The class for the rate that others leave.
    pub class: NetworkClass,
}

/// Bandwidth of the disk; one of the two at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskShare {
    /// Bytes in each second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Operations in each second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations: Option<u64>,
}

/// The class for the rate that others leave of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkClass {
    /// Before all others.
    Gold,
    /// After gold.
    Silver,
    /// After the others.
    #[default]
    BestEffort,
}

impl NetworkClass {
    /// All of them, the first served first.
    pub const ALL: [Self; 3] = [Self::Gold, Self::Silver, Self::BestEffort];

    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gold => "gold",
            Self::Silver => "silver",
            Self::BestEffort => "best-effort",
        }
    }

    /// Returns the precedence: 0 is served first.
    #[must_use]
    pub fn precedence(self) -> u8 {
        match self {
            Self::Gold => 0,
            Self::Silver => 1,
            Self::BestEffort => 2,
        }
    }
}

/// The mechanism that keeps the processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforce {
    /// The mechanism that suits the node and the domain.
    #[default]
    Auto,
    /// The kernel's own quota for a cgroup.
    Bandwidth,
    /// A dispatch table.
    Table,
    /// The kernel's deadline class.
    Deadline,
}

impl Enforce {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Bandwidth, Self::Table, Self::Deadline];

    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bandwidth => "bandwidth",
            Self::Table => "table",
            Self::Deadline => "deadline",
        }
    }
}

/// The treatment of processes that have used up their budget of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outside {
    /// They wait: the budget is also the most that they get.
    #[default]
    Held,
    /// They take what nobody wants.
    Idle,
    /// They compete like everybody else.
    Fair,
}

impl Outside {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Held, Self::Idle, Self::Fair];

    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Idle => "idle",
            Self::Fair => "fair",
        }
    }
}

impl ProcessorShare {
    /// The same for the analysis.
    ///
    /// # Errors
    /// Where the numbers contradict each other.
    pub fn task(&self) -> Result<Task, TaskError> {
        Task::new(self.budget_ns, self.period_ns)?.with_deadline(self.deadline_ns)
    }
}

impl Reserve {
    /// Returns the request to a node whose link has `link_bits` bits per second.
    ///
    /// # Errors
    /// Where a budget can't be had; not of what a file said, which was looked at.
    pub fn wish(&self, link_bits: u64) -> Result<Wish, TaskError> {
        let class = |share: NetworkShare| Class {
            rate_bits: share.rate_bits,
            ceiling_bits: share.ceiling_bits.unwrap_or(link_bits.max(share.rate_bits)),
            burst_bytes: share.burst_bytes,
            precedence: share.class.precedence(),
        };
        let processor =
            self.cpu.and_then(|cpu| cpu.processor).and_then(|number| usize::try_from(number).ok());
        Ok(Wish {
            task: self.cpu.map(|cpu| cpu.task()).transpose()?,
            affinity: processor.map_or(Affinity::ANY, |number| Affinity::only([number])),
            network: self.network.map(class),
            memory_bytes: self.memory_bytes.unwrap_or(0),
            disk: self.io.map_or_else(Disk::default, |io| Disk {
                bytes: io.bytes.unwrap_or(0),
                operations: io.operations.unwrap_or(0),
            }),
        })
    }

    /// How its time is shared inside.
    ///
    /// # Errors
    /// Where a job's numbers contradict each other; not of what a file said, which was looked at.
    pub fn team(&self) -> Result<Team, TaskError> {
        let Some(policy) = self.policy.order() else { return Ok(Team::default()) };
        let jobs = self.jobs.iter().map(|(name, job)| Ok((name.clone(), job.task()?)));
        Ok(Team { inside: Inside::By(policy), jobs: jobs.collect::<Result<_, TaskError>>()? })
    }

    /// Checks that the keys of the processor agree with each other. The error has the
    /// contradiction, and the remedy.
    ///
    /// # Errors
    /// Those two.
    pub fn check(&self) -> Result<(), (String, String)> {
        self.check_outside()?;
        self.check_jobs()
    }

    /// The same of what is done outside of a budget.
    pub(crate) fn check_outside(&self) -> Result<(), (String, String)> {
        if self.outside != Outside::Held && self.kept_by().0 == Enforce::Deadline {
            let word = self.outside.as_str();
            return Err((
                format!("deadlines hold whoever has used its budget up, so there is no outside = \"{word}\""),
                "say outside = \"held\", or enforce = \"table\" (which keeps no earliest-deadline jobs)"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// The same of jobs.
    pub(crate) fn check_jobs(&self) -> Result<(), (String, String)> {
        let word = self.policy.as_str();
        let refuse = |message: String, help: &str| Err((message, help.to_owned()));
        if self.policy.is_round_robin() {
            if self.jobs.is_empty() {
                return Ok(());
            }
            return refuse(
                "jobs with budgets and periods are not run in turn".to_owned(),
                "say by what they go: policy = \"rate-monotonic\" (or \"deadline-monotonic\", \"earliest-deadline\")",
            );
        }
        if self.jobs.is_empty() {
            return refuse(
                format!("{word} orders jobs, and none is named"),
                "jobs.decode = { process = \"decoder\", budget = \"4ms\", period = \"40ms\" }, or leave the policy out",
            );
        }
        if self.jobs.len() > JOBS_MAX {
            return refuse(
                format!("{} jobs are more than {JOBS_MAX}", self.jobs.len()),
                "name those that have deadlines; all others run when none of these wants to",
            );
        }
        if self.cpu.is_none() {
            return refuse(
                "jobs have their time of the processor time that is promised, and none is".to_owned(),
                "add cpu = { budget = \"16ms\", period = \"40ms\" }",
            );
        }
        let (kept_by, why) = match self.policy {
            JobPolicy::EarliestDeadline => {
                (Enforce::Deadline, "the kernel alone sees when a job begins and until when it has")
            }
            _ => (Enforce::Table, "priorities inside are those of a table's slots"),
        };
        if self.enforce != Enforce::Auto && self.enforce != kept_by {
            return refuse(
                format!(
                    "{word} jobs are kept by `{}`, not by `{}`: {why}",
                    kept_by.as_str(),
                    self.enforce.as_str()
                ),
                "leave `enforce` out, or take another policy",
            );
        }
        Ok(())
    }

    /// Returns the mechanism that is to keep its processor time (never [`Enforce::Auto`]), and the
    /// reason.
    #[must_use]
    pub fn kept_by(&self) -> (Enforce, &'static str) {
        let is_early = self.cpu.is_some_and(|cpu| cpu.deadline_ns < cpu.period_ns);
        match self.enforce {
            Enforce::Auto if self.policy == JobPolicy::EarliestDeadline => {
                (Enforce::Deadline, "its jobs go by their deadlines, and the kernel sees when each begins")
            }
            Enforce::Auto if !self.policy.is_round_robin() => {
                (Enforce::Table, "its jobs have ranks, which are priorities in a table's slots")
            }
            Enforce::Auto if self.strict && is_early => (
                Enforce::Table,
                "it is strict and has a deadline within its period, which a quota can't keep",
            ),
            Enforce::Auto => (
                Enforce::Bandwidth,
                "the kernel keeps a quota by itself whoever dies, it needs no real-time class, and it holds what is started, too",
            ),
            asked => (asked, "it was asked for"),
        }
    }

    /// In words, a line for each thing that is promised.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let cpu = self.cpu.map(|cpu| {
            let mut line = format!("cpu {} in {}", nanos_text(cpu.budget_ns), nanos_text(cpu.period_ns));
            if cpu.deadline_ns != cpu.period_ns {
                line += &format!(", by {}", nanos_text(cpu.deadline_ns));
            }
            if let Some(number) = cpu.processor {
                line += &format!(", of processor {number}");
            }
            if self.enforce != Enforce::Auto {
                line += &format!(", kept by {}", self.enforce.as_str());
            }
            if self.outside != Outside::Held {
                line += &format!(", {} outside of it", self.outside.as_str());
            }
            line
        });
        let network = self.network.map(|share| {
            let ceiling =
                share.ceiling_bits.map_or_else(String::new, |bits| format!(" up to {}", rate_text(bits)));
            let (rate, burst) = (rate_text(share.rate_bits), size_text(share.burst_bytes));
            format!("network {rate}{ceiling}, {burst} at once, {}", share.class.as_str())
        });
        let memory = self.memory_bytes.map(|bytes| format!("memory {}", size_text(bytes)));
        let io = self.io.map(|io| {
            let bytes = io.bytes.map(|bytes| format!("{} a second", size_text(bytes)));
            let operations = io.operations.map(|count| format!("{count} operations a second"));
            let parts: Vec<String> = bytes.into_iter().chain(operations).collect();
            format!("disk {}", parts.join(", "))
        });
        let strict = self.strict.then(|| "all of it, or it does not start".to_owned());
        let jobs = self.jobs.iter().map(|(name, job)| {
            let by = if job.deadline_ns == job.period_ns {
                String::new()
            } else {
                format!(", by {}", nanos_text(job.deadline_ns))
            };
            format!(
                "job {name}: {} in {}{by}, {} ({})",
                nanos_text(job.budget_ns),
                nanos_text(job.period_ns),
                job.who,
                self.policy.as_str()
            )
        });
        let jobs: Vec<String> = jobs.collect();
        cpu.into_iter().chain(jobs).chain([network, memory, io, strict].into_iter().flatten()).collect()
    }
}
