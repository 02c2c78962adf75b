//! A domain, admitted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::placement::Placement;
use super::reserve::Reserve;
use super::socket::{Published, SocketMount};
use super::volume::VolumeMount;
use crate::bounds::{LAYER_BYTES_DEFAULT, LAYER_INODES_DEFAULT};
use crate::name::Name;

/// One isolated execution environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// Unique in its distributed container.
    pub name: Name,
    /// How it is isolated.
    pub kind: DomainKind,
    /// On which node it may run.
    #[serde(default, skip_serializing_if = "Placement::is_default")]
    pub placement: Placement,
    /// Where its file tree comes from; always [`Root::Host`] for a process, and for a machine,
    /// which has its own.
    pub root: Root,
    /// Whether it may write to its root. Never true for [`Root::Host`].
    pub writable: bool,
    /// How much its layer may take; see [`Domain::layer`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<Layer>,
    /// Whether it is in a user namespace of its own. Never true but for a container that has not
    /// the node's network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub userns: bool,
    /// The program that runs in it.
    pub program: Program,
    /// Environment variables of the program, beside those that the daemon sets.
    pub environment: BTreeMap<String, String>,
    /// Secrets of the distributed container that it reads, sorted. Not of a machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Binds of the host's files and directories, in the order in which they are mounted. Empty for
    /// a process and a machine.
    pub mounts: Vec<Mount>,
    /// The user that the program runs as; `None`: the image's, and root where the image names none.
    pub user: Option<User>,
    /// The network that it sees.
    pub network: Network,
    /// Its own host name; `None` for a process, which shares the node's.
    pub hostname: Option<String>,
    /// The working directory, absolute: inside the root for a container, on the node for a process.
    /// `None` is what the image says, and `/` where it says nothing; only with the root of an
    /// image.
    pub workdir: Option<PathBuf>,
    /// The machine's hardware and kernel; `Some` for a machine, and for nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Capabilities that the program keeps, with their full names (`CAP_NET_RAW`), sorted.
    pub capabilities: Vec<String>,
    /// Limits that the kernel enforces on the domain, its frontend included.
    pub limits: Limits,
    /// The reserve that is promised to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<Reserve>,
    /// The rule for a restart when the program ends.
    pub restart: Restart,
    /// How much of its output is kept.
    pub log: LogLimits,
    /// The services it sees below `/srv`, sorted by service.
    pub services: Vec<ServiceMount>,
    /// Whether clients of 9P2000.L see its `/srv` as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nine_p: bool,
    /// The socket services that it sees, sorted by service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<SocketMount>,
    /// Addresses of the node at which others reach its servers, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
    /// The volumes that it has, sorted by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// The lines of its `resolv.conf` beside the stub's address.
    pub resolv: Resolv,
    /// How it is asked to end.
    pub stop: Stop,
    /// Domains that are ready before this one starts, sorted; only those that the file names, see
    /// [`crate::Topology::start_order`] for those that services imply.
    pub after: Vec<Name>,
    /// How `up` knows that it is up.
    pub ready: Ready,
    /// How long `up` waits for [`Domain::ready`] before it fails and rolls back.
    pub ready_timeout_ms: u64,
    /// How it is known that it still does what it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
}

impl Domain {
    /// How much what it writes to its root may take; `None` where it can't write there. Topologies
    /// that were stored before there was a bound have the default.
    #[must_use]
    pub fn layer(&self) -> Option<Layer> {
        self.writable.then(|| self.layer.unwrap_or_default())
    }
}

/// The bounds of what a domain writes to its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Bytes of files.
    pub size_bytes: u64,
    /// Files, directories and links.
    pub inodes: u32,
}

impl Default for Layer {
    fn default() -> Self {
        Self { size_bytes: LAYER_BYTES_DEFAULT, inodes: LAYER_INODES_DEFAULT }
    }
}

/// How a domain is isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DomainKind {
    /// A process of the node with a mount namespace and a cgroup of its own; it sees the node's
    /// files and network.
    Process,
    /// An OCI container.
    Container,
    /// A virtual machine under QEMU.
    Vm,
}

impl DomainKind {
    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Container => "container",
            Self::Vm => "vm",
        }
    }
}

/// Where a domain's file tree comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Root {
    /// A read-only view of the node's own system directories (a process: the node's file tree
    /// itself).
    Host,
    /// A directory of the node.
    Directory {
        /// Absolute.
        path: PathBuf,
    },
    /// An OCI image layout.
    Image {
        /// Absolute; a directory or a tar archive.
        path: PathBuf,
        /// The image of the layout, by `org.opencontainers.image.ref.name`; `None` where it has
        /// only one.
        tag: Option<String>,
    },
    /// An image of the node's store.
    Pulled {
        /// Its name, as the file says it.
        reference: String,
        /// The digest of its manifest, when the file was admitted; `None` where nobody looked.
        digest: Option<String>,
    },
}

impl Root {
    /// Whether an image is what it comes from, which may say what runs, as whom and where.
    #[must_use]
    pub fn is_image(&self) -> bool {
        matches!(self, Self::Image { .. } | Self::Pulled { .. })
    }
}

/// The program that runs in a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Program {
    /// This command: never empty, never through a shell.
    Command(Vec<String>),
    /// The program of the image's configuration; only with the root of an image.
    Image,
    /// The server of these services, sorted, at least one.
    Server(Vec<Name>),
    /// Nothing but what `tombolo exec` starts; only in a machine.
    Nothing,
}

/// One bind mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Absolute path on the node.
    pub source: PathBuf,
    /// Absolute path in the domain, without `.` and `..`.
    pub target: PathBuf,
    /// Whether the domain may only read it.
    pub read_only: bool,
}

/// A number, or a name that the root's `/etc/passwd` or `/etc/group` translates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IdOrName {
    /// A uid or gid.
    Id(u32),
    /// A name; never all digits.
    Name(String),
}

/// The user that a program runs as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The user.
    pub user: IdOrName,
    /// The group; `None` is the user's own, and the same number where the user has no entry.
    pub group: Option<IdOrName>,
}

/// The network that a domain sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// A network namespace of its own that has only `lo`.
    None,
    /// The node's.
    Host,
}

impl Network {
    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Host => "host",
        }
    }
}

/// Limits that the kernel enforces; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Processor time in thousandths of one processor: 500 is half of one.
    pub cpu_milli: Option<u32>,
    /// Memory and page cache, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: u32,
}

/// When a program that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// However it ended.
    Always,
    /// When it ended with a code other than 0, or by a signal.
    OnFailure,
    /// Not at all.
    Never,
}

impl RestartPolicy {
    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::OnFailure => "on-failure",
            Self::Never => "never",
        }
    }
}

/// The rule for a restart when a program ends; [`crate::Backoff`] decides by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// When it is started again.
    pub policy: RestartPolicy,
    /// The first pause; each further one is twice as long.
    pub backoff_ms: u64,
    /// The longest pause.
    pub max_backoff_ms: u64,
    /// How many restarts in a row before the domain is given up; `None` is no end.
    pub max_retries: Option<u32>,
    /// Whether it is started on another node when its own is lost.
    #[serde(default, skip_serializing_if = "is_false")]
    pub elsewhere: bool,
}

/// The value in stored topologies that were written before the word was there.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_false(value: &bool) -> bool {
    !value
}

/// How much of a domain's output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLimits {
    /// Size at which a log file is rotated, in bytes.
    pub max_bytes: u64,
    /// Log files that are kept, the current one included.
    pub files: u32,
}

/// A service as one domain sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceMount {
    /// The service.
    pub service: Name,
    /// The name of its directory below `/srv`; unique in the domain.
    pub at: Name,
    /// Whether it answers as a DNS stub at 127.0.0.53 in the domain, which then has a `resolv.conf`
    /// that says so.
    pub stub: bool,
    /// Whether it answers at the socket that stock `libnss-resolve` talks to.
    pub resolve: bool,
    /// Whether `libtombolo_preload.so` is put into the program's `LD_PRELOAD`.
    pub preload: bool,
    /// The targets of its files here, by their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
}

/// The targets of a file of a service in one domain; one of them at least is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The name of the file in the service's folder.
    pub file: String,
    /// Within this time 99 of 100 calls are answered, in ns.
    pub p99_ns: Option<u64>,
    /// Within this time each call is answered, in ns.
    pub deadline_ns: Option<u64>,
    /// So many calls are answered, or records come, in a second.
    pub rate: Option<u32>,
    /// The greatest age of the last record, in ns.
    pub age_ns: Option<u64>,
}

/// The lines of a domain's `resolv.conf` beside the stub's address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resolv {
    /// `search`: suffixes for short names, in order.
    pub search: Vec<String>,
    /// `options ndots:`: names with fewer dots try the search list first.
    pub ndots: u8,
}

/// How a domain is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// The signal that asks.
    pub signal: Signal,
    /// How long it may take before it is killed.
    pub timeout_ms: u64,
}

/// The signals that can ask a domain to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    /// SIGHUP.
    Hup,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
    /// SIGKILL: no time to clean up.
    Kill,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGTERM, the default.
    Term,
    /// SIGWINCH, which some web servers take as a graceful stop.
    Winch,
}

impl Signal {
    /// Every signal, in the order of their numbers.
    pub const ALL: [Self; 8] =
        [Self::Hup, Self::Int, Self::Quit, Self::Kill, Self::Usr1, Self::Usr2, Self::Term, Self::Winch];

    /// The word in the file: `"TERM"`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hup => "HUP",
            Self::Int => "INT",
            Self::Quit => "QUIT",
            Self::Kill => "KILL",
            Self::Usr1 => "USR1",
            Self::Usr2 => "USR2",
            Self::Term => "TERM",
            Self::Winch => "WINCH",
        }
    }

    /// The signal's number on x86, Arm and RISC-V (signal(7)).
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::Hup => 1,
            Self::Int => 2,
            Self::Quit => 3,
            Self::Kill => 9,
            Self::Usr1 => 10,
            Self::Usr2 => 12,
            Self::Term => 15,
            Self::Winch => 28,
        }
    }
}

/// How it is known that a domain still does what it should; [`crate::Liveness`] counts by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// Run inside the domain; 0 is well.
    pub command: Vec<String>,
    /// Pause between two checks.
    pub every_ms: u64,
    /// How long one may take.
    pub timeout_ms: u64,
    /// Failures in a row after which the domain is restarted.
    pub fails: u32,
}

/// How `up` knows that a domain is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ready {
    /// Its program runs: nothing more was asked.
    Started,
    /// Each of its servers has registered with the daemon. Always so where [`Program::Server`]
    /// runs, never elsewhere.
    Registered,
    /// A TCP connection to this address, from the node's network, is accepted. Only with
    /// [`Network::Host`].
    Tcp(SocketAddr),
    /// This command, run inside the domain, ends with 0.
    Command(Vec<String>),
}
