//! The admin protocol of a node's daemon: the types that both sides share, the [`client`], and the
//! [`place`] where a node keeps its things. Described in `docs/spec/admin.md`.

pub mod adaptation;
#[cfg(feature = "server")]
mod answer;
pub mod client;
mod etcd;
pub mod history;
pub mod place;
mod relocation;
pub mod reserve;
pub mod secret;
pub mod volume;

pub use etcd::{BackupRequest, EtcdMemberRow, EtcdView};
pub use relocation::{DomainMoveRequest, MoveOutcome, MoveReport, ServiceMoveRequest, ServiceMoved};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Version of this protocol: the first part of each path.
pub const VERSION: &str = "v1";
/// Longest body of a request, in bytes: a topology file of the greatest size, in JSON.
pub const MAX_BODY_BYTES: usize = 4 << 20;

/// A daemon's answer at `/v1/version`.
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
    /// The base of its relative paths; absolute.
    pub base: PathBuf,
    /// A word of the caller's own choice, by which it can cancel this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    /// Take the place of another file of the same name.
    #[serde(default)]
    pub replace: bool,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// `POST /v1/cancel`: end an `up` that is under way, or waits for its turn, and restore what was
/// before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// The ticket that the `up` was given.
    pub ticket: String,
}

/// `POST /v1/domains/NAME/act`: do something with one domain, by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Act {
    /// End it where it runs, and start it.
    Restart,
    /// End it, and leave it so until somebody starts it.
    Stop {
        /// Without asking it first.
        #[serde(default)]
        at_once: bool,
    },
    /// Start it, which somebody stopped or which ended.
    Start,
    /// Send its program a signal; what follows is for its restart policy.
    Kill {
        /// The signal's number.
        signal: i32,
    },
}

impl Act {
    /// Returns the verb: `restart`.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Stop { .. } => "stop",
            Self::Start => "start",
            Self::Kill { .. } => "kill",
        }
    }

    /// Returns its participle: `restarted`.
    #[must_use]
    pub fn past(self) -> &'static str {
        match self {
            Self::Restart => "restarted",
            Self::Stop { .. } => "stopped",
            Self::Start => "started",
            Self::Kill { .. } => "signalled",
        }
    }
}

/// Something that happened: a line of `/v1/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts from 1 under one daemon.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The distributed container.
    pub dc: String,
    /// The domain; `None`: it is about the whole distributed container.
    pub domain: Option<String>,
    /// Of a domain its new state; of a distributed container `up`, `rolled-back` or `down`.
    pub what: String,
    /// Why, where that needs words.
    pub why: Option<String>,
}

/// Whether there was something to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// It is being ended; its own answer says how that goes.
    pub cancelled: bool,
}

/// `POST /v1/down`: remove distributed containers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DownRequest {
    /// The distributed container; `None` where `all` is set, or where there is only one.
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
    /// The steps to come, in order.
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
        /// The step.
        what: String,
    },
    /// A step is done.
    Finished {
        /// Counts from 1.
        step: usize,
        /// How many there are.
        of: usize,
        /// The step.
        what: String,
        /// How long it took, in ms.
        took_ms: u64,
    },
    /// Something else worth a line.
    Note {
        /// The words.
        text: String,
    },
    /// It failed, and what was before is being restored.
    RollingBack {
        /// The failure, and its reason.
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
        /// The problem.
        error: Problem,
        /// Whether what was before is restored; `None` where nothing had been touched.
        rolled_back: Option<bool>,
    },
}

/// A problem, for a person and for a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}", help.as_ref().map_or(String::new(), |help| format!("\n  {help}")))]
pub struct Problem {
    /// The problem's code, a word that stays: `unknown-domain`.
    pub code: Code,
    /// The problem, and its place.
    pub message: String,
    /// The remedy.
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
    /// No link to a node of that name.
    UnknownLink,
    /// Nothing is promised to anybody of that name.
    UnknownReservation,
    /// No adaptation has this name.
    UnknownAdaptation,
    /// No such place in the state tree.
    UnknownPath,
    /// The name fits more than one.
    Ambiguous,
    /// The domain does not run now.
    NotRunning,
    /// The operation was tried and failed.
    Failed,
    /// The operation was cancelled, or a `down` ended it.
    Cancelled,
    /// The daemon is ending.
    Ending,
    /// This node belongs to no cluster.
    NoCluster,
    /// No node of that name.
    UnknownNode,
    /// No volume of that name.
    UnknownVolume,
    /// No secret of that name.
    UnknownSecret,
    /// Somebody else has it already.
    Taken,
    /// The caller may not.
    Refused,
}

impl Problem {
    /// A problem with nothing to advise.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), help: None }
    }

    /// Adds the advice on what to do.
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
    /// The node that it runs on, in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `process`, `container` or `vm`.
    pub kind: String,
    /// `starting`, `running`, `stopping`, `waiting` (for the next start), `ended`, `failed`,
    /// `stopped` (by hand).
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
    /// How it ended last: `exit 1`, `signal 9`; of a machine also its outcome, as `panicked: Kernel
    /// panic ...`.
    pub last_exit: Option<String>,
    /// Why it is as it is, where that needs words.
    pub why: Option<String>,
    /// The outcome of its health checks, where it has some and runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthRow>,
    /// Processor time of the domain and its frontend, in µs.
    pub cpu_us: Option<u64>,
    /// Memory of the domain and its frontend, in bytes.
    pub memory_bytes: Option<u64>,
    /// The use of its writable layer, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerRow>,
    /// Its reservation, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promised: Option<String>,
    /// Processes and threads of the domain and its frontend.
    pub processes: Option<u64>,
    /// The program: the command's words.
    pub command: Vec<String>,
    /// `NAME:/srv/AT` of each service it mounts.
    pub services: Vec<String>,
    /// The machine, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineRow>,
}

/// The health of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthRow {
    /// `starting`: no check has ended well yet; `healthy`; `failing`: fewer in a row have failed
    /// than it takes; `unhealthy`: as many, and it is ended.
    pub state: String,
    /// Failures in a row.
    pub failures: u32,
    /// After how many it is restarted.
    pub fails: u32,
    /// Why the last check failed.
    pub last_failure: Option<String>,
}

/// The layer of a domain with a writable root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRow {
    /// Bytes of files that it may have.
    pub size_bytes: u64,
    /// Files, directories and links that it may have.
    pub inodes: u64,
    /// How many of the bytes are used, while it runs.
    pub used_bytes: Option<u64>,
    /// How many of the files.
    pub used_inodes: Option<u64>,
}

/// The machine of a domain of kind `vm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRow {
    /// Processors that the guest sees.
    pub cpus: u32,
    /// Memory that the guest sees, in bytes.
    pub memory_bytes: u64,
    /// The accelerator that runs the guest's instructions: `kvm` or `tcg`. These and what follows
    /// are absent while there is no machine.
    pub accel: Option<String>,
    /// Why they are emulated, where the node was to choose; absent also where an earlier daemon
    /// did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated_because: Option<String>,
    /// Version of QEMU.
    pub qemu: Option<String>,
    /// `booting`, or `running`: its command, or what `exec` starts.
    pub guest: Option<String>,
    /// The machine's last report on its guest, where there is one.
    pub said: Option<String>,
    /// How the machine before this one ended, or this one where it has.
    pub outcome: Option<domain::Outcome>,
}

/// The cluster, as `node ls` lists it: `/v1/nodes`. On a single node everything is empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodesView {
    /// The cluster's name.
    pub cluster: Option<String>,
    /// This node's.
    pub me: Option<String>,
    /// Whether this node may do nothing that others might do in its place.
    pub fenced: bool,
    /// Why, where it is.
    pub why: Option<String>,
    /// Whether the cluster knows this node no more.
    pub removed: bool,
    /// The troubles that somebody should look at, each in a sentence.
    #[serde(default)]
    pub troubles: Vec<String>,
    /// Where its registry is.
    pub etcd: Vec<String>,
    /// Why strangers may write into it, where nobody said that this is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unprotected: Option<String>,
    /// All nodes, by name.
    pub nodes: Vec<NodeRow>,
}

/// One node, as `node show` shows it: `/v1/nodes/NAME`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Where other nodes reach it.
    pub address: String,
    /// Whether it has a lease.
    pub alive: bool,
    /// Whether it is the one that was asked.
    pub me: bool,
    /// Its incarnation.
    pub incarnation: Option<u64>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its processors.
    pub cpus: u32,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// The release of its program.
    pub version: String,
    /// When it joined, in seconds of Unix time.
    pub joined_unix_s: u64,
    /// The number of its certificate.
    pub certificate: String,
    /// Until when that is valid; each node knows its own.
    pub certificate_until_unix_s: Option<u64>,
    /// Whether it may let others join; each node knows it of itself.
    pub authority: Option<bool>,
    /// The amounts that it may still promise; absent: it does not tell.
    #[serde(default)]
    pub free: Option<FreeRow>,
}

/// The amounts that a node may still promise, when all domains that are given to it have the
/// reservations of their files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeRow {
    /// Of each of its processors that are for reservations, in millionths.
    pub processors_ppm: Vec<u64>,
    /// Of its link, in bits per second; absent: it has none for that.
    pub network_bits: Option<u64>,
    /// Of its memory.
    pub memory_bytes: u64,
    /// Of its disk, a second.
    pub disk_bytes: u64,
    /// The same in operations.
    pub disk_operations: u64,
}

/// `POST /v1/cluster/init`: begin a cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitRequest {
    /// The cluster's name.
    pub cluster: String,
    /// This node's.
    pub name: String,
    /// Where other nodes reach it.
    pub address: String,
    /// Labels of this node.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Endpoints of etcd; none: the cluster brings up its own.
    #[serde(default)]
    pub etcd: Vec<String>,
    /// The prefix of every key there.
    #[serde(default)]
    pub prefix: Option<String>,
    /// The authority of its certificates, as PEM.
    #[serde(default)]
    pub etcd_authority_pem: Option<String>,
    /// Our certificate for it, as PEM.
    #[serde(default)]
    pub etcd_certificate_pem: Option<String>,
    /// Our key for it, as PEM.
    #[serde(default)]
    pub etcd_key_pem: Option<String>,
    /// Whether it may let everybody in who reaches it.
    #[serde(default)]
    pub insecure_etcd: bool,
}

/// `POST /v1/cluster/join`: become a node of a cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// A node of it: ADDRESS or ADDRESS:PORT.
    pub at: String,
    /// The token, as `node token` printed it.
    pub token: String,
    /// How this node is to be called.
    pub name: String,
    /// Where other nodes reach it; without one, from where it asks.
    #[serde(default)]
    pub address: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Whether the cluster's etcd may let everybody in who reaches it.
    #[serde(default)]
    pub insecure_etcd: bool,
}

/// `POST /v1/cluster/token`: let a machine in.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// How long it is good for.
    #[serde(default)]
    pub ttl_s: Option<u64>,
    /// Whether who joins with it may let others join, too.
    pub may_issue: bool,
}

/// The answer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    /// The token: a secret.
    pub token: String,
    /// Until when it is good, by the clock of the node that made it.
    pub expires_unix_s: u64,
    /// How long that is.
    pub ttl_s: u64,
    /// Where to join with it.
    pub address: String,
}

/// `POST /v1/cluster/remove`: take a node out.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveRequest {
    /// The node.
    pub node: String,
    /// Also where it is alive.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/cluster/rotate`: another certificate for this node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotateRequest {
    /// Nobody is to believe the earlier ones any more.
    #[serde(default)]
    pub revoke: bool,
}

/// `POST /v1/cluster/authority/replace`: another authority.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplaceRequest {
    /// No other: the registry was put back to before the authority was replaced, and is to name
    /// this node's again.
    #[serde(default)]
    pub restored: bool,
}

/// The cluster's authority, as `node authority` shows it: `/v1/cluster/authority`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityView {
    /// The cluster's name.
    pub cluster: String,
    /// The authority's fingerprint: SHA-256 of its certificate, in hexadecimal digits.
    pub fingerprint: String,
    /// Until when it is valid, in seconds of Unix time.
    pub valid_until_unix_s: u64,
    /// Whether this node has its key.
    pub here: bool,
    /// Whether this node's own certificate is of none of the authorities that the registry names.
    pub stranger: bool,
    /// The authority that is to take its place, while it is replaced.
    pub replacement: Option<ReplacementView>,
}

/// The authority that is to take the place of this one, and why it has not yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacementView {
    /// The next authority's fingerprint.
    pub fingerprint: String,
    /// The node where that was begun.
    pub by: String,
    /// When, in seconds of Unix time.
    pub since_unix_s: u64,
    /// Nodes that have not done their part.
    pub waits_for: Vec<WaitsFor>,
}

/// A node that a replacement waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsFor {
    /// The node.
    pub node: String,
    /// Whether it has a lease.
    pub alive: bool,
    /// The part that is missing, and the remedy.
    pub why: String,
}

/// The outcome, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// The sentence.
    pub said: String,
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
    /// Whether a program is bound to it, on this node or another one.
    pub bound: bool,
    /// The node where that is, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The program's process, as this node counts.
    pub pid: Option<u32>,
    /// Endpoints to which it was introduced and that are still there.
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

/// `POST /v1/endpoints/NAME`: has an endpoint move to a backup in another domain, or stay. Answered
/// by [`Migrating`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migration {
    /// The domain; without it, an order that was not followed yet is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// An endpoint that was told to move, which it does when its program receives next.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Migrating {
    /// Its distributed container.
    pub dc: String,
    /// Its name.
    pub endpoint: String,
    /// `SLOT.GENERATION` of whoever had the name then; after the move the generation is another.
    pub before: String,
}

/// The parameters with which the CLI runs a command in a domain by itself:
/// `/v1/domains/DC/DOMAIN/entry`.
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
    /// The node that has it, where that is another than the one that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// `POST /v1/domains/NAME/exec`: run a command in a domain, on whichever node it is. What follows
/// is as in `docs/spec/remote.md`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// With a terminal.
    pub tty: bool,
    /// With the caller's standard input.
    pub interactive: bool,
    /// Columns and rows of the caller's terminal.
    #[serde(default)]
    pub size: Option<(u16, u16)>,
    /// Variables, beside those of the domain.
    pub environment: Vec<(String, String)>,
    /// Its user.
    pub user: Option<String>,
    /// Where it starts.
    pub workdir: Option<PathBuf>,
    /// Program and arguments.
    pub command: Vec<String>,
}

/// One link to another node, as `link ls` lists it: an element of `/v1/links`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRow {
    /// The other node.
    pub node: String,
    /// Both proxies speak.
    pub up: bool,
    /// `connects` or `listens`: what this node's proxy does.
    pub side: String,
    /// The transport that carries it now; empty while none does.
    pub transport: String,
    /// The transport that is to carry it.
    pub wanted_transport: String,
    /// `none`, `lz4`, `zstd`, `auto`.
    pub compression: String,
    /// The interface of this node that frames of raw Ethernet go over, or would; none: there is
    /// none that they could.
    #[serde(default)]
    pub interface: Option<String>,
    /// Where the side listens that does, as locators.
    pub at: Vec<String>,
    /// The proxy's process.
    pub pid: Option<u32>,
    /// The proxy's number: each is greater than the one before.
    pub epoch: u64,
    /// Proxies that ended under this daemon.
    pub restarts: u64,
    /// Since when it is as it is.
    pub since_unix_s: u64,
    /// The last measured round trip, in ms.
    pub round_trip_ms: Option<u64>,
    /// Channels over it.
    pub pairs: u64,
    /// Messages that went out, in all.
    pub messages_out: u64,
    /// Messages that came in.
    pub messages_in: u64,
    /// Bytes that went out, compressed, before they were encrypted.
    pub bytes_out: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// Why it is down, or is not carried by what is wanted, for a person; else empty.
    pub why: String,
}

/// The changes of `link set`: a POST to `/v1/links/NODE`. Absent fields stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    /// `tcp`, `quic`, `ethernet` or `tipc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// `none`, `lz4`, `zstd`, `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// The interface of this node that frames of raw Ethernet go over; `auto`: the one that bears
    /// this node's address. The other node has a setting of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}
