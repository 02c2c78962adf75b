//! Control groups by direct file writes: version 1 (a hierarchy per controller), version 2, and
//! machines that have both.
//!
//! Every path here is relative to the mount of each hierarchy (`tombolo/DC/DOMAIN`), and every
//! operation is done in all hierarchies that matter. Nothing outside the path that the caller names
//! is ever touched.

mod kill;
mod pin;
mod share;
mod usage;
mod weight;

pub use share::{Device, MAX_PERIOD_US, Quota, QuotaFile, SHORTEST_PERIOD_US};
pub use usage::{Memory, Usage};
pub use weight::{Demand, USUAL_WEIGHT};

use crate::error::{Context, Error, Result};
use crate::spec::Limits;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Controllers that limit, account or find the processes of a domain. In the other hierarchies of
/// version 1 (cpuset, blkio, devices) only the OCI runtime makes directories, and we remove them.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "memory", "pids", "freezer"];
/// The period over which a processor limit is kept, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// How long the removal of a cgroup is tried: the kernel lets go of a dead task's cgroup a moment
/// after its pidfd says that it ended, and has no event for it in version 1.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two such attempts.
const REMOVE_PAUSE: Duration = Duration::from_millis(2);
/// How often a cgroup is made anew whose parent was removed meanwhile: each time somebody else has
/// to find it empty within microseconds, and there are fewer domains than this.
const MAX_ATTEMPTS: u32 = 1000;
/// Deepest nesting of cgroups that we descend into.
const MAX_DEPTH: usize = 16;

/// The kernel's two interfaces of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    version: Version,
    controllers: Vec<String>,
}

impl Hierarchy {
    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|c| c == controller)
    }
    /// Whether domains' processes are put here (see [`CONTROLLERS`]).
    fn holds_domains(&self) -> bool {
        self.version == Version::Two || CONTROLLERS.iter().any(|c| self.has(c))
    }
}

/// The hierarchies of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
}

/// The part of a domain that a process belongs to; all share the domain's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The domain's own processes.
    Payload,
    /// Its frontend.
    Frontend,
    /// Its relay: what carries connections to other domains, and from them.
    Relay,
}

impl Part {
    /// The last component of its cgroup.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::Frontend => "frontend",
            Self::Relay => "relay",
        }
    }
}

impl Cgroups {
    /// Finds the hierarchies in `/proc/thread-self/mountinfo`.
    ///
    /// # Errors
    /// When that file can't be read.
    pub fn discover() -> Result<Self> {
        let path = "/proc/thread-self/mountinfo";
        Ok(Self::from_mountinfo(&fs::read_to_string(path).at("read", path)?, Path::new("/")))
    }

    /// The same from a given text, with all mount points below `prefix`: for trying both versions
    /// on any machine.
    #[must_use]
    pub fn from_mountinfo(text: &str, prefix: &Path) -> Self {
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for mount in crate::mounts::parse(text) {
            let at = prefix.join(crate::layout::relative(&mount.point));
            let (version, controllers) = match mount.fs_type.as_str() {
                "cgroup" => (Version::One, mount.super_options.split(',').map(str::to_owned).collect()),
                "cgroup2" => (Version::Two, words(&at.join("cgroup.controllers"))),
                _ => continue,
            };
            // A later mount hides an earlier one on the same place, and a second view of one
            // hierarchy adds nothing.
            hierarchies.retain(|h| h.mount != at);
            if !hierarchies.iter().any(|h| h.version == version && h.controllers == controllers) {
                hierarchies.push(Hierarchy { mount: at, version, controllers });
            }
        }
        Self { hierarchies }
    }

    /// Whether there is any hierarchy to hold a domain's processes together with.
    #[must_use]
    pub fn usable(&self) -> bool {
        self.hierarchies.iter().any(Hierarchy::holds_domains)
    }

    /// The first hierarchy of those that hold domains of which nothing can be written from here,
    /// whoever we are, as in many containers: nothing can be held together or kept then.
    #[must_use]
    pub fn read_only(&self) -> Option<&Path> {
        let is_read_only = |mount: &Path| {
            rustix::fs::statvfs(mount)
                .is_ok_and(|of| of.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
        };
        let mounts = self.hierarchies.iter().filter(|h| h.holds_domains()).map(|h| h.mount.as_path());
        mounts.into_iter().find(|mount| is_read_only(mount))
    }

    /// The controllers that some hierarchy offers.
    #[must_use]
    pub fn offers(&self, controller: &str) -> bool {
        self.hierarchies.iter().any(|h| h.has(controller))
    }

    /// Whether some controllers are in hierarchies of version 1 and others in the one of version 2.
    pub(crate) fn is_mixed(&self) -> bool {
        let has =
            |version| self.hierarchies.iter().any(|h| h.version == version && !h.controllers.is_empty());
        has(Version::One) && has(Version::Two)
    }

    /// Makes the cgroup `path` in every hierarchy that holds domains, with its controllers at work.
    ///
    /// # Errors
    /// When a directory can't be made.
    pub fn create(&self, path: &str) -> Result<()> {
        self.hierarchies.iter().filter(|h| h.holds_domains()).try_for_each(|h| make(h, path))
    }

    /// As [`Cgroups::create`], in the other hierarchies of version 1 too, for the cgroup of a
    /// domain: the OCI runtime makes directories there step by step, and a parent that is empty
    /// meanwhile is taken for one that nobody uses ([`Cgroups::remove_if_empty`]).
    ///
    /// # Errors
    /// When a directory can't be made where domains are held.
    pub(crate) fn create_for_domain(&self, path: &str) -> Result<()> {
        self.create(path)?;
        for hierarchy in self.hierarchies.iter().filter(|h| !h.holds_domains()) {
            if let Err(error) = make(hierarchy, path) {
                // One that the runtime can't do without is missed by the runtime, which says so.
                tracing::debug!(%error, "a cgroup that only the runtime uses can't be made beforehand");
            }
        }
        Ok(())
    }

    /// Sets the limits of the cgroup `path`, and lifts those that are absent.
    ///
    /// # Errors
    /// [`Error::Controller`] for a limit that no hierarchy can keep; [`Error::File`] when the
    /// kernel refuses a value.
    pub fn limit(&self, path: &str, limits: &Limits) -> Result<()> {
        self.limit_cpu(path, limits.cpu)?;
        self.limit_memory(path, limits.memory_bytes)?;
        self.limit_one(path, "pids", "processes", "pids.max", &maximum(limits.pids), limits.pids.is_some())
    }

    fn limit_cpu(&self, path: &str, cpu: Option<f64>) -> Result<()> {
        let quota = cpu.map(|c| (c * CPU_PERIOD_US as f64).round().max(1000.0) as u64);
        match self.with("cpu") {
            Some(Hierarchy { version: Version::One, mount, .. }) => {
                write(&mount.join(path).join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
                let quota = quota.map_or_else(|| "-1".to_owned(), |q| q.to_string());
                write(&mount.join(path).join("cpu.cfs_quota_us"), &quota)
            }
            _ => {
                let value = format!("{} {CPU_PERIOD_US}", maximum(quota));
                self.limit_one(path, "cpu", "processor time", "cpu.max", &value, cpu.is_some())
            }
        }
    }

    fn limit_memory(&self, path: &str, bytes: Option<u64>) -> Result<()> {
        let Some(Hierarchy { version: Version::One, mount, .. }) = self.with("memory") else {
            self.limit_one(path, "memory", "memory", "memory.max", &maximum(bytes), bytes.is_some())?;
            return self.limit_one(
                path,
                "memory",
                "swap",
                "memory.swap.max",
                bytes.map_or("max", |_| "0"),
                false,
            );
        };
        let (plain, swap) = (
            mount.join(path).join("memory.limit_in_bytes"),
            mount.join(path).join("memory.memsw.limit_in_bytes"),
        );
        let value = bytes.map_or_else(|| "-1".to_owned(), |b| b.to_string());
        // With swap accounting, the sum can't be below the plain limit, so which goes first depends
        // on the direction.
        if swap.exists() && bytes.is_none() {
            write(&swap, &value)?;
        }
        write(&plain, &value)?;
        if swap.exists() && bytes.is_some() { write(&swap, &value) } else { Ok(()) }
    }

    /// One value in one file; `needed` tells whether a machine that can't is an error.
    fn limit_one(
        &self,
        path: &str,
        controller: &'static str,
        what: &'static str,
        file: &str,
        value: &str,
        needed: bool,
    ) -> Result<()> {
        let file = self.with(controller).map(|h| h.mount.join(path).join(file)).filter(|f| f.exists());
        match file {
            Some(file) => write(&file, value),
            None if needed => Err(Error::Controller { what, controller }),
            None => Ok(()),
        }
    }

    /// Moves a process, all its threads included, to the cgroup `path`, which must exist.
    ///
    /// # Errors
    /// When the kernel refuses, such as for a process that is gone.
    pub fn join(&self, path: &str, pid: u32) -> Result<()> {
        // Where only some cgroups are made, as for those that are bound to processors, it is put
        // where there is one.
        let takes = |h: &&Hierarchy| {
            h.holds_domains() || (h.has("cpuset") && h.mount.join(path).join("cgroup.procs").exists())
        };
        for hierarchy in self.hierarchies.iter().filter(takes) {
            write(&hierarchy.mount.join(path).join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// The processes of the cgroup `path` and those below it, in any hierarchy; none when there is
    /// no such cgroup.
    #[must_use]
    pub fn processes(&self, path: &str) -> Vec<u32> {
        let mut pids = Vec::new();
        for hierarchy in &self.hierarchies {
            collect(&hierarchy.mount.join(path), MAX_DEPTH, &mut pids);
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Removes the cgroup `path` and those below it from every hierarchy, and tells how many
    /// directories went.
    ///
    /// # Errors
    /// When a process is left in one.
    pub fn remove(&self, path: &str) -> Result<usize> {
        let deadline = Instant::now() + REMOVE_TIMEOUT;
        let mut removed = 0;
        for hierarchy in &self.hierarchies {
            remove_tree(&hierarchy.mount.join(path), MAX_DEPTH, deadline, &mut removed)?;
        }
        Ok(removed)
    }

    /// Removes the cgroup `path` where it is empty, without waiting: for parents that others may
    /// still be using.
    pub fn remove_if_empty(&self, path: &str) {
        for hierarchy in &self.hierarchies {
            // A directory that is in use or gone is as it should be.
            let _ = fs::remove_dir(hierarchy.mount.join(path));
        }
    }

    /// The names of the cgroups directly below `path`, in any hierarchy.
    #[must_use]
    pub fn children(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> =
            self.hierarchies.iter().flat_map(|h| directories(&h.mount.join(path))).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The resources that the cgroup `path` uses now and has used so far.
    #[must_use]
    pub fn usage(&self, path: &str) -> Usage {
        usage::read(self, path)
    }

    fn with(&self, controller: &str) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|h| h.has(controller))
    }
}

/// Makes the cgroup `path` in one hierarchy.
fn make(hierarchy: &Hierarchy, path: &str) -> Result<()> {
    while_parents_vanish(|| make_once(hierarchy, path))
}

/// Does it again where something was not there: somebody else may remove a parent before there is
/// anything in it.
pub(crate) fn while_parents_vanish<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..MAX_ATTEMPTS {
        match attempt() {
            Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
    }
    attempt()
}

fn make_once(hierarchy: &Hierarchy, path: &str) -> Result<()> {
    let mut at = hierarchy.mount.clone();
    for component in path.split('/') {
        delegate(hierarchy, &at);
        at.push(component);
        match fs::create_dir(&at) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e).at("create cgroup", &at),
            _ => {}
        }
    }
    Ok(())
}

/// Puts the controllers that we use at work in the children of a version 2 cgroup. Failing is no
/// error here: a limit that is asked for and can't be set is one, and says so in
/// [`Cgroups::limit`].
fn delegate(hierarchy: &Hierarchy, at: &Path) {
    if hierarchy.version == Version::One {
        return;
    }
    let (offered, at_work) =
        (words(&at.join("cgroup.controllers")), words(&at.join("cgroup.subtree_control")));
    for controller in
        CONTROLLERS.iter().filter(|c| offered.iter().any(|o| o == *c) && !at_work.iter().any(|a| a == *c))
    {
        if let Err(error) = write(&at.join("cgroup.subtree_control"), &format!("+{controller}")) {
            tracing::debug!(%error, controller, "a cgroup controller can't be delegated");
        }
    }
}

fn write(path: &Path, value: &str) -> Result<()> {
    // Not `fs::write`: a cgroup file is neither created nor truncated.
    let mut file = fs::OpenOptions::new().write(true).open(path).at("open", path)?;
    io::Write::write_all(&mut file, value.as_bytes()).at("write to", path)
}

fn words(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

fn maximum(value: Option<u64>) -> String {
    value.map_or_else(|| "max".to_owned(), |v| v.to_string())
}

fn directories(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let kept = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    kept.filter_map(|e| e.file_name().into_string().ok()).collect()
}

fn collect(path: &Path, depth: usize, pids: &mut Vec<u32>) {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    pids.extend(text.lines().filter_map(|l| l.parse::<u32>().ok()).filter(|&p| p != 0));
    if depth > 0 {
        directories(path).iter().for_each(|child| collect(&path.join(child), depth - 1, pids));
    }
}

fn remove_tree(path: &Path, depth: usize, deadline: Instant, removed: &mut usize) -> Result<()> {
    if depth > 0 {
        for child in directories(path) {
            remove_tree(&path.join(child), depth - 1, deadline, removed)?;
        }
    }
    loop {
        match fs::remove_dir(path) {
            Ok(()) => {
                *removed += 1;
                return Ok(());
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e)
                if e.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
                    && Instant::now() < deadline =>
            {
                // tidy(sleep): version 1 has no event for a cgroup becoming empty; bounded by
                // REMOVE_TIMEOUT
                std::thread::sleep(REMOVE_PAUSE);
            }
            Err(e) => return Err(e).at("remove cgroup", path),
        }
    }
}

#[cfg(test)]
mod tests;
