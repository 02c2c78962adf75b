//! Where the processes of a virtual task machine are: in a cgroup that was named, in one of ours,
//! or nowhere but in `/proc`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{EnforceError, Result};
use crate::hierarchy::{self, Freezer, Hierarchies, Mount, Version};
use crate::ledger::{Debt, Ledger};
use crate::members;
use crate::plan::{Plan, Vtm};

/// How often a process is seen on its way before it is taken as it is: some seconds of scans, far
/// more than a container runtime takes.
const MAX_SEEN: u32 = 100;
/// How often descendants are looked for that were started while others were moved.
const ROUNDS: usize = 4;
/// Most processes of one virtual task machine that are looked at: one more than could have a thread
/// that is looked after, which tells that there are more.
pub const MAX_LOOKED: usize = members::MAX_THREADS + 1;

/// Where an enforcer keeps its things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The folder of its ledger, which survives it, and which no other enforcer uses.
    pub folder: PathBuf,
    /// The cgroup, relative to the hierarchies' mounts, in which it makes those that it needs.
    pub group: String,
    /// Write down all decisions, for a replay.
    pub record: bool,
}

impl Config {
    /// With the defaults.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, group: impl Into<String>) -> Self {
        Self { folder: folder.into(), group: group.into(), record: false }
    }
}

/// The processes on the way into a virtual task machine: a container runtime puts a process into
/// one cgroup after the other, and one that is real-time by then is taken by none that has no
/// real-time bandwidth.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    seen: BTreeMap<u32, u32>,
}

impl Arrivals {
    /// Those of its processes that have arrived. Who is `known` has; who was seen on the way often
    /// enough has no more to go.
    pub fn of(
        &mut self,
        site: &Site,
        cpu: Option<&Mount>,
        bound: Option<&Path>,
        known: &BTreeMap<u32, Vec<u32>>,
    ) -> Vec<u32> {
        let all = site.processes_up_to(MAX_LOOKED);
        let Some((mount, (own, _))) = cpu.zip(site.cpu.as_ref()) else { return all };
        self.seen.retain(|pid, _| all.binary_search(pid).is_ok());
        let mut has_arrived = |pid: &u32| {
            if known.contains_key(pid) {
                return true;
            }
            // One that is gone is nobody's to wait for.
            let at = mount.of_process(*pid);
            if at.is_none_or(|at| at.starts_with(own) || Some(at.as_path()) == bound) {
                return true;
            }
            let seen = self.seen.entry(*pid).or_default();
            *seen += 1;
            *seen > MAX_SEEN
        };
        all.into_iter().filter(|pid| has_arrived(pid)).collect()
    }
}

/// Where the processes of one virtual task machine are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The cgroup by which they are found and frozen.
    pub dir: Option<(PathBuf, Version)>,
    /// The cgroup with the controller `cpu`.
    pub cpu: Option<(PathBuf, Version)>,
    /// The number of the first one's directory: one that was removed and made again is another,
    /// whose files have to be opened anew.
    pub inode: u64,
    /// Where there is no cgroup: they, with when they started; and their descendants.
    pub pids: Vec<(u32, u64)>,
}

impl Site {
    fn new(dir: Option<(PathBuf, Version)>, cpu: Option<(PathBuf, Version)>, pids: Vec<(u32, u64)>) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let inode = dir.as_ref().and_then(|(dir, _)| dir.metadata().ok()).map_or(0, |found| found.ino());
        Self { dir, cpu, inode, pids }
    }

    /// All its processes.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        match &self.dir {
            Some((dir, _)) => hierarchy::processes(dir),
            None => self.listed(),
        }
    }

    /// So many of them at most, in order.
    #[must_use]
    pub fn processes_up_to(&self, most: usize) -> Vec<u32> {
        match &self.dir {
            Some((dir, _)) => hierarchy::processes_up_to(dir, most),
            None => {
                let mut listed = self.listed();
                listed.truncate(most);
                listed
            }
        }
    }

    fn listed(&self) -> Vec<u32> {
        let alive = self.pids.iter().filter(|(pid, start)| members::is_it(*pid, *start));
        let mut found: Vec<u32> =
            alive.flat_map(|(pid, _)| std::iter::once(*pid).chain(members::descendants(*pid))).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Finds or makes the place of each virtual task machine. What is made and moved stands in the
/// ledger before.
///
/// # Errors
/// Where a cgroup or process is not there, or can't be put where it should be.
pub fn settle(
    plan: &Plan,
    known: &BTreeMap<String, Site>,
    hierarchies: &Hierarchies,
    config: &Config,
    ledger: &mut Ledger,
) -> Result<BTreeMap<String, Site>> {
    let mut sites = BTreeMap::new();
    for vtm in &plan.vtms {
        let site = match &vtm.members.cgroup {
            Some(path) => named(vtm, path, hierarchies)?,
            None => listed(vtm, known.get(&vtm.id), hierarchies, config, ledger)?,
        };
        sites.insert(vtm.id.clone(), site);
    }
    Ok(sites)
}

/// Finds where the members of each virtual task machine are now. It makes and moves nothing:
/// processes without a cgroup are a list.
///
/// # Errors
/// Where a cgroup or process is not there.
pub fn find(
    plan: &Plan,
    known: &BTreeMap<String, Site>,
    hierarchies: &Hierarchies,
) -> Result<BTreeMap<String, Site>> {
    let site_of = |vtm: &Vtm| match &vtm.members.cgroup {
        Some(path) => named(vtm, path, hierarchies),
        None => {
            let known = known.get(&vtm.id);
            let pids = alive(vtm, known.is_some())?;
            let known = known.filter(|known| known.pids == pids);
            Ok(known.cloned().unwrap_or_else(|| Site::new(None, None, pids)))
        }
    };
    plan.vtms.iter().map(|vtm| Ok((vtm.id.clone(), site_of(vtm)?))).collect()
}

/// The listed processes that are alive, with when they started.
fn alive(vtm: &Vtm, is_known: bool) -> Result<Vec<(u32, u64)>> {
    let mut pids = Vec::new();
    for &pid in &vtm.members.pids {
        match members::state_and_start(pid) {
            Some((state, start)) if !matches!(state, 'Z' | 'X') => pids.push((pid, start)),
            // Whoever was in it and has ended is no reason to refuse a change of the others.
            _ if is_known => {}
            _ => return Err(EnforceError::Gone { id: vtm.id.clone(), what: format!("process {pid}") }),
        }
    }
    Ok(pids)
}

fn below(mount: Option<&Mount>, path: &str) -> Option<(PathBuf, Version)> {
    let mount = mount?;
    let dir = mount.path.join(path);
    dir.is_dir().then_some((dir, mount.version))
}

fn named(vtm: &Vtm, path: &str, hierarchies: &Hierarchies) -> Result<Site> {
    let cpu = below(hierarchies.cpu.as_ref(), path);
    let dir = below(hierarchies.membership(), path).or_else(|| cpu.clone());
    if dir.is_none() {
        return Err(EnforceError::Gone { id: vtm.id.clone(), what: format!("cgroup {path}") });
    }
    Ok(Site::new(dir, cpu, Vec::new()))
}

fn listed(
    vtm: &Vtm,
    known: Option<&Site>,
    hierarchies: &Hierarchies,
    config: &Config,
    ledger: &mut Ledger,
) -> Result<Site> {
    let pids = alive(vtm, known.is_some())?;
    if let Some(known) = known.filter(|known| known.pids == pids) {
        return Ok(known.clone());
    }
    // `/` of its name would be a level more.
    let path = format!("{}/vtm-{}", config.group, vtm.id.replace('/', "+"));
    // Nobody is moved about where nothing can be written.
    let writable: Vec<&Mount> = hierarchies.each().filter(|mount| !mount.is_read_only()).collect();
    let mut owed = Vec::new();
    for &(pid, start) in &pids {
        let homes = writable.iter().filter_map(|mount| mount.of_process(pid)).collect();
        let affinity = sys::schedule::affinity(pid).unwrap_or_default();
        let nice = match sys::schedule::class(pid) {
            Ok(sys::schedule::Class::Other { nice }) => nice,
            _ => 0,
        };
        owed.push(Debt::Process { pid, start, nice, affinity, homes, stopped: false });
    }
    for mount in &writable {
        if !mount.path.join(&config.group).is_dir() {
            owed.push(Debt::Made { dir: mount.path.join(&config.group) });
        }
        owed.push(Debt::Made { dir: mount.path.join(&path) });
        // What they have started is in there, too, and belongs where they came from.
        if let Some(to) = pids.first().and_then(|(pid, _)| mount.of_process(*pid)) {
            owed.push(Debt::Move { from: mount.path.join(&path), to });
        }
    }
    ledger.owe(owed)?;
    let mut made = Vec::new();
    for mount in writable {
        match mount.create(&path).and_then(|dir| put(&dir, &pids).map(|()| dir)) {
            Ok(dir) => made.push((mount, dir)),
            Err(error) => tracing::debug!(%error, vtm = vtm.id, "no cgroup of its own"),
        }
    }
    let find = |wanted: Option<&Mount>| {
        let found = made.iter().find(|(mount, _)| Some(*mount) == wanted);
        found.map(|(mount, dir)| (dir.clone(), mount.version))
    };
    let (dir, cpu) = (find(hierarchies.freezer.as_ref()), find(hierarchies.cpu.as_ref()));
    Ok(Site::new(dir.or_else(|| cpu.clone()), cpu, pids))
}

fn put(dir: &Path, pids: &[(u32, u64)]) -> Result<()> {
    for (pid, start) in pids {
        // Its number may be another's by now.
        if !members::is_it(*pid, *start) {
            continue;
        }
        match hierarchy::write(&dir.join("cgroup.procs"), &pid.to_string()) {
            Err(_) if !members::is_it(*pid, *start) => {}
            other => other?,
        }
    }
    // What they started before, and meanwhile: whoever is in there starts nothing outside any more.
    for _ in 0..ROUNDS {
        let inside = hierarchy::processes(dir);
        let outside = pids.iter().flat_map(|(pid, _)| members::descendants(*pid));
        let left: Vec<u32> = outside.filter(|pid| !inside.contains(pid)).collect();
        for pid in &left {
            // One that has ended meanwhile needs no place.
            let _ = hierarchy::write(&dir.join("cgroup.procs"), &pid.to_string());
        }
        if left.is_empty() {
            break;
        }
    }
    Ok(())
}

impl Site {
    /// The freezer, where there is one.
    ///
    /// # Errors
    /// Where it can't be opened.
    pub fn freezer(&self) -> Result<Option<Freezer>> {
        match &self.dir {
            Some((dir, version)) if dir.join(Freezer::name(*version)).exists() => {
                match Freezer::open(dir, *version) {
                    // Nobody can freeze anything from here, so there is none.
                    Err(EnforceError::File { source, .. })
                        if source.kind() == std::io::ErrorKind::ReadOnlyFilesystem =>
                    {
                        Ok(None)
                    }
                    other => other.map(Some),
                }
            }
            _ => Ok(None),
        }
    }

    /// Whether that is owed to it alone.
    #[must_use]
    pub fn is_owed(&self, debt: &Debt, processes: &[u32]) -> bool {
        let is_ours =
            |dir: &Path| [&self.dir, &self.cpu].into_iter().flatten().any(|(own, _)| own.as_path() == dir);
        match debt {
            Debt::Group { dir, .. } | Debt::Frozen { dir, .. } | Debt::Made { dir } => is_ours(dir),
            Debt::Move { from, .. } => {
                [&self.dir, &self.cpu].into_iter().flatten().any(|(own, _)| from.starts_with(own))
            }
            Debt::Process { pid, start, .. } => {
                processes.contains(pid) || self.pids.contains(&(*pid, *start))
            }
            Debt::File { path, .. } => path.parent().is_some_and(is_ours),
        }
    }

    /// The debts for its processes: which would have to be given back, and how.
    #[must_use]
    pub fn debts(&self) -> Vec<Debt> {
        let Some((dir, version)) = &self.dir else { return Vec::new() };
        let first = self.processes().first().copied();
        // Whoever comes into an empty one later could run where we may.
        let affinity = first.and_then(|pid| sys::schedule::affinity(pid).ok());
        let affinity = affinity.or_else(|| sys::schedule::affinity(0).ok()).unwrap_or_default();
        let mut owed = vec![Debt::Group { dir: dir.clone(), affinity }];
        if dir.join(Freezer::name(*version)).exists() {
            owed.push(Debt::Frozen { dir: dir.clone(), two: *version == Version::Two });
        }
        owed
    }
}
