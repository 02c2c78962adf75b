//! The specification of a domain, fully resolved: paths absolute, sizes in bytes, nothing left to
//! look up in a topology.

use crate::error::{Error, Result};
use crate::layout::DomainId;
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// Most mounts that one domain may ask for; the kernel's bound is far higher, a mistake is far more
/// likely.
pub const MAX_MOUNTS: usize = 128;
/// Most bytes of command line and environment together, well under the kernel's 2 MiB, so that
/// `execve` can't refuse.
pub const MAX_COMMAND_BYTES: usize = 1024 * 1024;
/// Smallest memory limit: what the runtime's own start-up needs inside the domain's cgroup.
pub const MIN_MEMORY_BYTES: u64 = 8 * 1024 * 1024;
/// Smallest layer: mount points and the files of `/etc` that are made for each container.
pub const MIN_LAYER: Layer = Layer { bytes: 1024 * 1024, inodes: 256 };
/// Smallest limit on processes: the runtime needs several threads inside the cgroup while it starts
/// the command.
pub const MIN_PIDS: u64 = 8;

/// One incarnation of a domain, as it is to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainSpec {
    /// The distributed container that it belongs to.
    pub dc: String,
    /// Its name there.
    pub name: String,
    /// How it is isolated.
    pub kind: Kind,
    /// The root that it sees as `/`.
    #[serde(default)]
    pub root: Root,
    /// Whether it may write to its root (into a layer of its own that ends with it).
    #[serde(default)]
    pub writable: bool,
    /// How much its layer may take; absent: the default. What is not writable has a layer of its
    /// own size, for mount points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<Layer>,
    /// Whether it is in a user namespace of its own, with the machine's numbers and bounds of its
    /// own for what the kernel counts by user. Only of a container that has not the machine's
    /// network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub userns: bool,
    /// Program and arguments; empty for an image: the image's own.
    #[serde(default)]
    pub command: Vec<String>,
    /// Variables, in order; they win over the image's.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    /// Directories and files of the host that it sees, the daemon's own additions included.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// `NAME`, `UID`, `NAME:GROUP` or `UID:GID`, looked up in the domain's own `/etc/passwd`;
    /// absent: the image's user, or root.
    #[serde(default)]
    pub user: Option<String>,
    /// Its network.
    #[serde(default)]
    pub network: Network,
    /// Its host name; absent: its name. A process domain has the machine's.
    #[serde(default)]
    pub hostname: Option<String>,
    /// Working directory; absent: the image's, or `/`.
    #[serde(default)]
    pub workdir: Option<PathBuf>,
    /// Capabilities that it keeps (`CAP_NET_RAW` or `net_raw`); all others are dropped.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// The limits of its resources.
    #[serde(default)]
    pub limits: Limits,
    /// How much of its output is kept.
    #[serde(default)]
    pub log: LogLimits,
    /// How it is asked to end.
    #[serde(default)]
    pub stop: Stop,
    /// The text of its `/etc/resolv.conf`; absent: the machine's with the host's network, none
    /// without. A process domain sees it bound over the machine's, within its own mount namespace.
    #[serde(default)]
    pub resolv_conf: Option<String>,
    /// The OCI runtime for containers.
    #[serde(default)]
    pub runtime: RuntimeChoice,
    /// The order of a machine; for [`Kind::Vm`], and for no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Whether it ends when its node no longer holds its claims: see [`crate::hold`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
}

/// How a domain is isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A process of the machine with a mount namespace, a cgroup and privileges of its own, and the
    /// machine's view otherwise.
    Process,
    /// An OCI container.
    Container,
    /// A virtual machine: an OCI container in which our machine process runs, and QEMU below it.
    Vm,
}

impl Kind {
    /// Whether an OCI runtime makes it.
    #[must_use]
    pub fn is_container(self) -> bool {
        match self {
            Self::Container | Self::Vm => true,
            Self::Process => false,
        }
    }
}

/// The files that the machine process of a domain of kind [`Kind::Vm`] finds
/// (`docs/spec/machine.md`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The order that it runs: written into its directory as it stands here.
    pub order: serde_json::Value,
    /// Whether it may use `/dev/kvm`, where there is one.
    pub kvm: bool,
}

/// The root that a container sees as `/`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Root {
    /// The machine's own system directories, read-only, with an `/etc` made for it and nothing
    /// private.
    #[default]
    Host,
    /// A directory that holds a system.
    Directory(PathBuf),
    /// An OCI image layout: a directory or a tar.
    Image {
        /// Where.
        path: PathBuf,
        /// The image of several (`org.opencontainers.image.ref.name`).
        #[serde(default)]
        tag: Option<String>,
    },
}

/// The bounds of what a container writes to its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Bytes of files.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

impl Default for Layer {
    fn default() -> Self {
        Self { bytes: 256 * 1024 * 1024, inodes: 65_536 }
    }
}

/// A container's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// A network namespace of its own with nothing but `lo`, which is up.
    #[default]
    None,
    /// The machine's.
    Host,
}

/// The choice of an OCI runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeChoice {
    /// runc if there is one, otherwise a crun that works here.
    #[default]
    Auto,
    /// runc.
    Runc,
    /// crun.
    Crun,
}

/// A directory or file of the host in the domain's tree; submounts come along, set-user-id bits and
/// devices don't.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Path on the host.
    pub source: PathBuf,
    /// Path in the domain.
    pub target: PathBuf,
    /// Whether nothing can be written through it.
    pub read_only: bool,
}

/// The limits of a domain, its frontend included. Absent means unlimited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Processors, such as 0.5.
    #[serde(default)]
    pub cpu: Option<f64>,
    /// Memory, swap included, in bytes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    #[serde(default)]
    pub pids: Option<u64>,
}

/// How much of a domain's output is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// Size at which a log file is set aside, in bytes.
    pub max_bytes: u64,
    /// Number of files, the current one included.
    pub files: u32,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { max_bytes: 10 * 1024 * 1024, files: 3 }
    }
}

/// How a domain is asked to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Signal number that asks for it.
    pub signal: i32,
    /// Milliseconds that it has before it is killed.
    pub timeout_ms: u64,
}

impl Default for Stop {
    fn default() -> Self {
        Self { signal: rustix::process::Signal::TERM.as_raw(), timeout_ms: 10_000 }
    }
}

impl DomainSpec {
    /// The least that a domain needs; the rest is the default.
    #[must_use]
    pub fn new(dc: &str, name: &str, kind: Kind, command: &[&str]) -> Self {
        Self {
            dc: dc.to_owned(),
            name: name.to_owned(),
            kind,
            root: Root::Host,
            writable: false,
            layer: None,
            userns: false,
            command: command.iter().map(|&s| s.to_owned()).collect(),
            environment: Vec::new(),
            mounts: Vec::new(),
            user: None,
            network: Network::None,
            hostname: None,
            workdir: None,
            capabilities: Vec::new(),
            limits: Limits::default(),
            log: LogLimits::default(),
            stop: Stop::default(),
            resolv_conf: None,
            runtime: RuntimeChoice::Auto,
            machine: None,
            held: false,
        }
    }

    /// Its id.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn id(&self) -> Result<DomainId> {
        DomainId::new(&self.dc, &self.name)
    }

    /// Refuses what can't work, before anything is touched.
    ///
    /// # Errors
    /// [`Error::Name`] or [`Error::Specification`], which names the field.
    pub fn check(&self) -> Result<()> {
        self.id()?;
        self.check_command()?;
        self.check_paths()?;
        self.check_numbers()?;
        for name in &self.capabilities {
            crate::privilege::capability(name)?;
        }
        if self.kind == Kind::Process && self.root != Root::Host {
            return refuse(
                "a process domain has the machine's own root: set root = host, or kind = container",
            );
        }
        if (self.kind == Kind::Vm) != self.machine.is_some() {
            return refuse("machine: a domain of kind vm has one, and no other has");
        }
        if self.kind == Kind::Vm && (self.root != Root::Host || self.writable) {
            return refuse(
                "a domain of kind vm has the root host, of which QEMU is a part, and does not write to it",
            );
        }
        if self.userns && (self.kind != Kind::Container || self.network == Network::Host) {
            return refuse(
                "userns: only a container that has not the machine's network has a user namespace of its own",
            );
        }
        if let Some(hostname) = &self.hostname
            && (hostname.is_empty()
                || hostname.len() > 64
                || !hostname.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b)))
        {
            return refuse("hostname: 1 to 64 letters, digits, '-' or '.'");
        }
        Ok(())
    }

    fn check_command(&self) -> Result<()> {
        if self.command.is_empty() && !matches!(self.root, Root::Image { .. }) {
            return refuse("command: is empty, and only an image has a command of its own");
        }
        let words = self.command.iter().map(String::len);
        let variables = self.environment.iter().map(|(k, v)| k.len() + v.len() + 1);
        if words.chain(variables).map(|n| n + 1).sum::<usize>() > MAX_COMMAND_BYTES {
            return refuse(format!(
                "command and environment are longer than {MAX_COMMAND_BYTES} bytes together"
            ));
        }
        if self.command.iter().any(|w| w.contains('\0')) || self.command.first().is_some_and(String::is_empty)
        {
            return refuse("command: a NUL byte, or an empty program name");
        }
        for (key, value) in &self.environment {
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                return refuse(format!(
                    "environment: {key:?} is no name of a variable, or its value holds a NUL byte"
                ));
            }
        }
        Ok(())
    }

    fn check_paths(&self) -> Result<()> {
        if self.mounts.len() > MAX_MOUNTS {
            return refuse(format!("mounts: {} of them, and {MAX_MOUNTS} is the most", self.mounts.len()));
        }
        for mount in &self.mounts {
            check_node_path("mounts.source", &mount.source)?;
            check_path("mounts.target", &mount.target)?;
            if mount.target == Path::new("/") {
                return refuse("mounts.target: / is the root itself; set root instead");
            }
        }
        match &self.root {
            Root::Host => {}
            Root::Directory(path) | Root::Image { path, .. } => check_node_path("root", path)?,
        }
        self.workdir.as_deref().map_or(Ok(()), |path| check_path("workdir", path))
    }

    fn check_numbers(&self) -> Result<()> {
        let Limits { cpu, memory_bytes, pids } = self.limits;
        if cpu.is_some_and(|c| !(0.01..=4096.0).contains(&c)) {
            return refuse("limits.cpu: 0.01 to 4096 processors");
        }
        if memory_bytes.is_some_and(|m| m < MIN_MEMORY_BYTES || m > i64::MAX as u64) {
            return refuse(format!("limits.memory: at least {MIN_MEMORY_BYTES} bytes"));
        }
        if pids.is_some_and(|p| !(MIN_PIDS..=4_194_304).contains(&p)) {
            return refuse(format!("limits.pids: {MIN_PIDS} to 4194304"));
        }
        if self.layer.is_some_and(|l| l.bytes < MIN_LAYER.bytes || l.inodes < MIN_LAYER.inodes) {
            return refuse(format!(
                "layer: at least {} bytes and {} inodes",
                MIN_LAYER.bytes, MIN_LAYER.inodes
            ));
        }
        if self.log.max_bytes < 4096 || !(1..=100).contains(&self.log.files) {
            return refuse("log: max_bytes of at least 4096, and 1 to 100 files");
        }
        if rustix::process::Signal::from_named_raw(self.stop.signal).is_none() {
            return refuse(format!("stop.signal: {} is no signal", self.stop.signal));
        }
        Ok(())
    }
}

fn refuse<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Specification(message.into()))
}

/// A path inside the domain, whose links the domain may make: so none that climbs.
fn check_path(field: &str, path: &Path) -> Result<()> {
    if path.components().any(|c| matches!(c, Component::ParentDir)) {
        return refuse(format!("{field}: {} climbs by ..", path.display()));
    }
    check_node_path(field, path)
}

/// A path of the node, which is whoever's that wrote the topology: `../data` beside the file is
/// fine.
fn check_node_path(field: &str, path: &Path) -> Result<()> {
    let text = path.to_str().is_some_and(|p| !p.contains(['\0', '\n']) && p.len() < 4096);
    if path.is_absolute() && text {
        Ok(())
    } else {
        refuse(format!("{field}: {} is no absolute path", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> DomainSpec {
        DomainSpec::new("dc", "d", Kind::Container, &["true"])
    }

    #[test]
    fn each_impossible_value_is_refused_with_its_field() {
        type Break = fn(&mut DomainSpec);
        let cases: [(&str, Break); 15] = [
            ("layer", |s| s.layer = Some(Layer { bytes: 4096, inodes: 256 })),
            ("name", |s| s.name = "../x".into()),
            ("command", |s| s.command.clear()),
            ("command", |s| s.command = vec!["a\0b".into()]),
            ("environment", |s| s.environment = vec![("a=b".into(), String::new())]),
            ("mounts.source", |s| {
                s.mounts = vec![Mount { source: "x".into(), target: "/y".into(), read_only: true }]
            }),
            ("mounts.target", |s| {
                s.mounts = vec![Mount { source: "/x".into(), target: "/a/../..".into(), read_only: true }]
            }),
            ("limits.cpu", |s| s.limits.cpu = Some(f64::NAN)),
            ("limits.memory", |s| s.limits.memory_bytes = Some(1)),
            ("limits.pids", |s| s.limits.pids = Some(0)),
            ("stop.signal", |s| s.stop.signal = 4711),
            ("capabilit", |s| s.capabilities = vec!["CAP_FLY".into()]),
            ("machine", |s| s.machine = Some(Machine { order: serde_json::Value::Null, kvm: false })),
            ("machine", |s| s.kind = Kind::Vm),
            ("hostname", |s| s.hostname = Some("a b".into())),
        ];
        assert!(spec().check().is_ok());
        for (field, break_it) in cases {
            let mut broken = spec();
            break_it(&mut broken);
            let message = broken.check().expect_err(field).to_string();
            assert!(message.contains(field), "{field}: {message}");
        }
    }
}
