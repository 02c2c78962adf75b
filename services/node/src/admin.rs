//! What the admin socket speaks, in the types that both sides share. Described in `docs/spec/admin.md`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of this protocol: the first part of each path.
pub const VERSION: &str = "v1";
/// Longest body of a request, in bytes: a topology file of the greatest size, in JSON.
pub const MAX_BODY_BYTES: usize = 4 << 20;

/// What a daemon says of itself at `/v1/version`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Version {
    /// Version of the program.
    pub version: String,
    /// Its process id.
    pub pid: u32,
}

/// `POST /v1/up`: bring this topology up.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpRequest {
    /// The text of the topology file.
    pub text: String,
    /// Its name, for messages.
    pub file: PathBuf,
    /// What its relative paths start from; absolute.
    pub base: PathBuf,
}

/// `POST /v1/down`: remove distributed containers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DownRequest {
    /// Which; `None` where `all` is set, or where there is only one.
    #[serde(default)]
    pub dc: Option<String>,
    /// Every one.
    #[serde(default)]
    pub all: bool,
}

/// One line of a long answer. The last one is [`Progress::Done`] or [`Progress::Failed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "progress", rename_all = "snake_case")]
pub enum Progress {
    /// What will be done, in order.
    Plan {
        /// One sentence each.
        steps: Vec<String>,
    },
    /// A step has begun.
    Started {
        /// Counts from 1.
        step: usize,
        /// How many there are.
        of: usize,
        /// What is done.
        what: String,
    },
    /// A step is done.
    Finished {
        /// Counts from 1.
        step: usize,
        /// How many there are.
        of: usize,
        /// What was done.
        what: String,
        /// How long it took, in ms.
        took_ms: u64,
    },
    /// Something else worth a line.
    Note {
        /// What.
        text: String,
    },
    /// It failed, and what was before is being restored.
    RollingBack {
        /// What failed, and why.
        reason: String,
    },
    /// All is done.
    Done {
        /// One line that says what.
        summary: String,
        /// Whether anything was changed.
        changed: bool,
    },
    /// It failed for good.
    Failed {
        /// What is wrong.
        error: Problem,
        /// Whether what was before is restored; `None` where nothing had been touched.
        rolled_back: Option<bool>,
    },
}

/// What is wrong, for a person and for a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}", help.as_ref().map_or(String::new(), |help| format!("\n  {help}")))]
pub struct Problem {
    /// Which problem, as a word that stays: `unknown-domain`.
    pub code: Code,
    /// What is wrong, and where.
    pub message: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

/// The kinds of [`Problem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The request itself can't be understood.
    BadRequest,
    /// The topology file was not admitted.
    NotAdmitted,
    /// No distributed container of that name.
    UnknownDc,
    /// No domain of that name.
    UnknownDomain,
    /// No service of that name.
    UnknownService,
    /// No endpoint of that name or address.
    UnknownEndpoint,
    /// No such place in the state tree.
    UnknownPath,
    /// The name fits more than one.
    Ambiguous,
    /// The domain does not run now.
    NotRunning,
    /// It was tried and failed.
    Failed,
    /// The daemon is ending.
    Ending,
}

impl Problem {
    /// A problem with nothing to advise.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), help: None }
    }

    /// The same, with what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// One domain, as `ps` lists it: an element of `/v1/domains`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DomainRow {
    /// Its distributed container.
    pub dc: String,
    /// Its name.
    pub domain: String,
    /// `process`, `container` or `vm`.
    pub kind: String,
    /// `starting`, `running`, `stopping`, `waiting` (for the next start), `ended`, `failed`.
    pub state: String,
    /// Its first process, as this node counts.
    pub pid: Option<u32>,
    /// The parent that holds its output and exit code.
    pub monitor_pid: Option<u32>,
    /// Its frontend.
    pub frontend_pid: Option<u32>,
    /// Seconds since its present incarnation started.
    pub up_s: Option<u64>,
    /// How often it was started again by its restart policy.
    pub restarts: u64,
    /// How often its frontend was replaced.
    pub frontend_restarts: u64,
    /// How it ended last: `exit 1`, `signal 9`; of a machine also its outcome, as `panicked: Kernel panic ...`.
    pub last_exit: Option<String>,
    /// Why it is as it is, where that needs words.
    pub why: Option<String>,
    /// Processor time of the domain and its frontend, in µs.
    pub cpu_us: Option<u64>,
    /// Memory of the domain and its frontend, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads of the domain and its frontend.
    pub processes: Option<u64>,
    /// What the program is: the command's words.
    pub command: Vec<String>,
    /// `NAME:/srv/AT` of each service it mounts.
    pub services: Vec<String>,
    /// The machine, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineRow>,
}

/// The machine of a domain of kind `vm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRow {
    /// Processors that the guest sees.
    pub cpus: u32,
    /// Memory that the guest sees, in bytes.
    pub memory_bytes: u64,
    /// What runs the guest's instructions: `kvm` or `tcg`. These and what follows are absent while there is no machine.
    pub accel: Option<String>,
    /// Version of QEMU.
    pub qemu: Option<String>,
    /// `booting`, or `running`: its command, or what `exec` starts.
    pub guest: Option<String>,
    /// What the machine said last of its guest, where it said something.
    pub said: Option<String>,
    /// How the machine before this one ended, or this one where it has.
    pub outcome: Option<domain::Outcome>,
}

/// One service, as `service ls` lists it: an element of `/v1/services`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceRow {
    /// Its distributed container.
    pub dc: String,
    /// Its name.
    pub service: String,
    /// Its kind.
    pub kind: String,
    /// The domain that hosts its backend, or whose program offers the channel.
    pub domain: String,
    /// Whether a server is there, or a program that offers the channel.
    pub up: bool,
    /// The server's process, or that program's.
    pub server_pid: Option<u32>,
    /// How many servers it has had.
    pub generation: u64,
    /// The domains that mount it, or may open it where it is a channel.
    pub consumers: Vec<String>,
    /// Channels that are open to it.
    pub channels: usize,
}

/// One endpoint, as `endpoint ls` lists it: an element of `/v1/endpoints`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRow {
    /// Its distributed container.
    pub dc: String,
    /// Its name; `None`: it has none.
    pub endpoint: Option<String>,
    /// `SLOT.GENERATION` of whoever is bound to it now.
    pub address: Option<String>,
    /// The domain of its programs.
    pub domain: String,
    /// Whether a program is bound to it.
    pub bound: bool,
    /// That program, as this node counts.
    pub pid: Option<u32>,
    /// Those to whom it was introduced and that are still there.
    pub peers: usize,
    /// Members that wait until it is bound.
    pub waiting: usize,
    /// Its buffers that can be granted.
    pub buffers: usize,
    /// Its grants of them.
    pub grants: usize,
    /// Shared memory of its pairs and its buffers, as large as it may become.
    pub bytes: u64,
}

/// What the CLI needs to run a command in a domain by itself: `/v1/domains/DC/DOMAIN/entry`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// Its distributed container.
    pub dc: String,
    /// Its name.
    pub domain: String,
    /// Our binary, as the domain sees it.
    pub program: String,
    /// Where the domain's things are.
    pub layout: domain::Layout,
}
