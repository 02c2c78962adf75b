//! Clearing away: one incarnation, one domain, or everything that a node's daemon and monitors left
//! when all were killed.

use crate::cgroup::Cgroups;
use crate::discard;
use crate::error::{Context, Error, Result};
use crate::layout::{DomainId, DomainPaths, Layout};
use crate::mounts;
use crate::runtime::Runtime;
use crate::spec::RuntimeChoice;
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// The objects that were cleared away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Processes that were killed.
    pub processes: usize,
    /// Containers that the OCI runtime was told to forget.
    pub containers: Vec<String>,
    /// Mounts that were detached.
    pub mounts: Vec<String>,
    /// Cgroup directories that were removed, over all hierarchies.
    pub cgroups: usize,
    /// Directories of domains that were removed.
    pub directories: Vec<String>,
    /// The objects that could not be cleared away, and why.
    pub failures: Vec<String>,
}

impl Report {
    /// Whether there was nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.failures.push(crate::error::chain(&error))).ok()
    }
}

/// The cgroup below ours that no sweep of domains touches: what the node's registry runs in. Who
/// keeps that ends it.
pub const SPARED_CGROUP: &str = "+etcd";

/// Clears away every domain of this layout that is not in `keep`: their processes (monitors and
/// frontends too), containers, mounts, cgroups, sockets and files. Logs and unpacked images stay.
/// Doing it again finds nothing to do. Only what is below our cgroup, our run directory and our
/// runtime root is ever touched.
///
/// # Errors
/// When the machine's mounts can't be read; what could not be cleared away is in the report.
pub fn sweep(layout: &Layout, keep: &[DomainId]) -> Result<Report> {
    layout.check()?;
    let cgroups = Cgroups::discover()?;
    let mut report = Report::default();
    for id in leftovers(layout, &cgroups).into_iter().filter(|id| !keep.contains(id)) {
        if let Ok(paths) = layout.domain(&id.dc, &id.name) {
            clear(layout, &cgroups, &paths, true, &mut report);
        }
    }
    for dc in names(&layout.domains()) {
        // Who was killed between making it and making the first domain in it left it empty; what is
        // not empty stays.
        let _ = fs::remove_dir(layout.domains().join(dc));
    }
    if keep.is_empty() {
        // Nothing of ours is to stay, so whatever is there under a name that no domain can have
        // goes as well.
        for cgroup in all_but_the_spared(layout, &cgroups) {
            let killed = report.note(cgroups.kill(&cgroup)).unwrap_or(0);
            let removed = report.note(cgroups.remove(&cgroup)).unwrap_or(0);
            (report.processes, report.cgroups) = (report.processes + killed, report.cgroups + removed);
        }
        detach(&layout.run_dir, &mut report)?;
    }
    discard::finish(layout);
    crate::image::clear_unfinished(&layout.images());
    Ok(report)
}

/// Our whole cgroup; where what outlives all domains is in it, what is beside that.
fn all_but_the_spared(layout: &Layout, cgroups: &Cgroups) -> Vec<String> {
    let children = cgroups.children(&layout.cgroup_name);
    if !children.iter().any(|child| child == SPARED_CGROUP) {
        return vec![layout.cgroup_name.clone()];
    }
    let others = children.iter().filter(|child| *child != SPARED_CGROUP);
    others.map(|child| format!("{}/{child}", layout.cgroup_name)).collect()
}

/// Clears away one domain as [`sweep`] does.
///
/// # Errors
/// The first thing that could not be cleared away.
pub fn remove(layout: &Layout, dc: &str, name: &str) -> Result<Report> {
    let paths = layout.domain(dc, name)?;
    let mut report = Report::default();
    clear(layout, &Cgroups::discover()?, &paths, true, &mut report);
    first_failure(&report)?;
    Ok(report)
}

/// Clears away an incarnation before the next: everything but the directory `inside` and its
/// content.
pub(crate) fn clear_incarnation(layout: &Layout, paths: &DomainPaths) -> Result<()> {
    let mut report = Report::default();
    clear(layout, &Cgroups::discover()?, paths, false, &mut report);
    first_failure(&report)
}

fn first_failure(report: &Report) -> Result<()> {
    match report.failures.first() {
        None => Ok(()),
        Some(failure) => {
            Err(Error::Step { what: "clear away a domain".into(), source: io::Error::other(failure.clone()) })
        }
    }
}

/// Every domain of which there is a trace: a directory, a cgroup, or a container.
fn leftovers(layout: &Layout, cgroups: &Cgroups) -> BTreeSet<DomainId> {
    let mut found = BTreeSet::new();
    for dc in names(&layout.domains()) {
        found.extend(
            names(&layout.domains().join(&dc)).iter().filter_map(|name| DomainId::new(&dc, name).ok()),
        );
    }
    for dc in cgroups.children(&layout.cgroup_name) {
        let below = cgroups.children(&format!("{}/{dc}", layout.cgroup_name));
        let below = below.iter().map(|name| name.strip_suffix("+monitor").unwrap_or(name));
        found.extend(below.filter_map(|name| DomainId::new(&dc, name).ok()));
    }
    found.extend(names(&layout.runtime_root()).iter().filter_map(|id| DomainId::from_runtime_id(id)));
    found
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
}

fn clear(layout: &Layout, cgroups: &Cgroups, paths: &DomainPaths, all: bool, report: &mut Report) {
    // The monitor first, or it would write a status and call the runtime while we do.
    for cgroup in [&paths.monitor_cgroup, &paths.cgroup] {
        report.processes += report.note(cgroups.kill(cgroup)).unwrap_or(0);
    }
    forget_container(layout, paths, report);
    for cgroup in [&paths.monitor_cgroup, &paths.cgroup] {
        report.cgroups += report.note(cgroups.remove(cgroup)).unwrap_or(0);
    }
    cgroups.remove_if_empty(&format!("{}/{}", layout.cgroup_name, paths.id.dc));
    cgroups.remove_if_empty(&layout.cgroup_name);
    if !paths.dir.exists() {
        return;
    }
    let cleared = detach(&paths.dir, report).and_then(|()| delete_files(layout, paths, all));
    if report.note(cleared).is_some() && all {
        report.directories.push(paths.dir.display().to_string());
    }
}

fn forget_container(layout: &Layout, paths: &DomainPaths, report: &mut Report) {
    let id = paths.id.runtime_id();
    let state = layout.runtime_root().join(&id);
    if !state.exists() {
        return;
    }
    let log = layout.runtime_root().join(format!(".{id}.log"));
    let forgotten = match Runtime::choose(layout, RuntimeChoice::Auto) {
        Ok(runtime) => runtime.delete(&id, &log),
        // Its processes and cgroups are ours to end anyway.
        Err(_) => sys::tree::remove(&state).at("remove", &state),
    };
    let _ = fs::remove_file(&log);
    if report.note(forgotten).is_some() {
        report.containers.push(id);
    }
}

/// Detaches what is mounted at and below `dir`, and makes sure of it: what is deleted next must not
/// be somebody's files seen through a mount.
fn detach(dir: &Path, report: &mut Report) -> Result<()> {
    let list = "/proc/thread-self/mountinfo";
    let below =
        |dir: &Path| -> Result<_> { Ok(mounts::below(&fs::read_to_string(list).at("read", list)?, dir)) };
    // The kernel's list has no symbolic links in it.
    let dir = match fs::canonicalize(dir) {
        Ok(dir) => dir,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).at("find", dir),
    };
    let at_itself = dir.clone();
    for point in below(&dir)?.into_iter().filter(|p| *p != at_itself) {
        match unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => report.mounts.push(point.display().to_string()),
            // Gone with the one below which it was.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error).at("unmount", point),
        }
    }
    match below(&dir)?.into_iter().find(|p| *p != at_itself) {
        None => Ok(()),
        Some(point) => Err(io::Error::from(io::ErrorKind::ResourceBusy)).at("unmount", point),
    }
}

fn delete_files(layout: &Layout, paths: &DomainPaths, all: bool) -> Result<()> {
    for name in names(&paths.dir).iter().filter(|name| all || name.as_str() != "inside") {
        discard::discard(layout, &paths.dir.join(name))?;
    }
    if all {
        discard::discard(layout, &paths.dir)?;
        if let Some(dc) = paths.dir.parent() {
            // Another domain may be in it.
            let _ = fs::remove_dir(dc);
        }
    }
    Ok(())
}
