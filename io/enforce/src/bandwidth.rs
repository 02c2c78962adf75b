//! Bandwidth: the kernel's quota for ordinary processes, and the weight that makes it more than a
//! ceiling.
//!
//! The budget is the quota of the virtual task machine's cgroup; its weight, and that of all
//! cgroups above it, is so high that others do not keep it from using it. The files are held open,
//! so that a change is a few writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::enforcer::{Ability, Committed, Effect, Enforcer, Kind, Prepared, Report, VtmReport};
use crate::error::{Context, EnforceError, Result};
use crate::hierarchy::{self, Hierarchies, Version};
use crate::ledger::{Debt, Ledger};
use crate::members::Census;
use crate::place::{self, Config, Site};
use crate::plan::{Plan, Vtm};

/// Shortest and longest quota and period that the kernel takes, in us.
const SHORTEST_US: u64 = 1_000;
const MAX_PERIOD_US: u64 = 1_000_000;
/// Greatest weight of version 1, and of version 2.
const MAX_SHARES: u64 = 262_144;
const MAX_WEIGHT: u64 = 10_000;
/// How often a value that somebody else changed is set again before we say that it can't be kept.
const MAX_RESTORED: u32 = 3;
/// Most notes that are kept of each.
const MAX_NOTES: usize = 8;

/// The setting of one virtual task machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setting {
    /// `None`: without a ceiling.
    quota_us: Option<u64>,
    period_us: u64,
    burst_us: u64,
    weight: u64,
}

impl Setting {
    fn of(vtm: &Vtm, version: Version) -> Self {
        // The kernel takes no shorter quota than a millisecond, and no longer period than a second:
        // several periods are kept as one, or a part of one.
        let (mut budget_ns, mut period_ns) = (vtm.budget_ns, vtm.period_ns);
        while budget_ns < SHORTEST_US * 1_000 && period_ns * 2 <= MAX_PERIOD_US * 1_000 {
            (budget_ns, period_ns) = (budget_ns * 2, period_ns * 2);
        }
        while period_ns > MAX_PERIOD_US * 1_000 {
            (budget_ns, period_ns) = (budget_ns.div_ceil(2), period_ns.div_ceil(2));
        }
        let period_us = (period_ns / 1_000).max(SHORTEST_US);
        let quota_us = (budget_ns / 1_000).max(SHORTEST_US);
        let most = if version == Version::One { MAX_SHARES } else { MAX_WEIGHT };
        let part = u128::from(most) * u128::from(vtm.budget_ns) / u128::from(vtm.period_ns.max(1));
        let held = vtm.outside.is_held();
        Self {
            quota_us: held.then_some(quota_us),
            period_us,
            burst_us: if held { vtm.burst_ns / 1_000 } else { 0 },
            weight: if held { most } else { u64::try_from(part).unwrap_or(most).clamp(2, most) },
        }
    }

    /// The share of one processor that it lets through, in 2^-20.
    fn share(&self) -> u128 {
        self.quota_us.map_or(u128::MAX, |quota| (u128::from(quota) << 20) / u128::from(self.period_us))
    }
}

/// The open files of one cgroup.
#[derive(Debug)]
struct Files {
    dir: PathBuf,
    version: Version,
    quota: File,
    period: Option<File>,
    burst: Option<File>,
    weight: File,
    now: Option<Setting>,
    restored: u32,
}

impl Files {
    fn names(version: Version) -> [&'static str; 4] {
        match version {
            Version::One => ["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.shares"],
            Version::Two => ["cpu.max", "", "cpu.max.burst", "cpu.weight"],
        }
    }

    fn open(dir: &Path, version: Version) -> Result<Self> {
        let open = |name: &str| {
            let path = dir.join(name);
            OpenOptions::new().read(true).write(true).open(&path).at("open", path)
        };
        let [quota, period, burst, weight] = Self::names(version);
        Ok(Self {
            dir: dir.to_owned(),
            version,
            quota: open(quota)?,
            period: if period.is_empty() { None } else { Some(open(period)?) },
            // Linux before 5.14 has none.
            burst: if dir.join(burst).exists() { Some(open(burst)?) } else { None },
            weight: open(weight)?,
            now: None,
            restored: 0,
        })
    }

    /// The values that stand in them, to be put back. They are put back from the last to the first.
    fn debts(dir: &Path, version: Version) -> Vec<Debt> {
        let names = Self::names(version).into_iter().filter(|name| !name.is_empty());
        let there = names.filter_map(|name| {
            let path = dir.join(name);
            hierarchy::read(&path).ok().map(|value| Debt::File { path, value })
        });
        // A quota is lifted first, whatever the period is.
        let mut debts: Vec<Debt> = there.collect();
        debts.reverse();
        debts
    }

    fn set(&mut self, to: Setting) -> io::Result<()> {
        let before = self.now;
        let put = |file: &File, value: String| file.write_all_at(value.as_bytes(), 0);
        let same = |old: u64, new: u64, now: Option<Setting>| now.is_some() && old == new;
        let old = before.unwrap_or(to);
        if let Some(burst) = self.burst.as_ref().filter(|_| !same(old.burst_us, 0, before)) {
            put(burst, "0".to_owned())?;
        }
        match &self.period {
            None => {
                let quota = to.quota_us.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
                if before.is_none() || (old.quota_us, old.period_us) != (to.quota_us, to.period_us) {
                    put(&self.quota, format!("{quota} {}", to.period_us))?;
                }
            }
            Some(period) => {
                let quota = to.quota_us.map_or_else(|| "-1".to_owned(), |quota| quota.to_string());
                // Whatever was between is not more than both: a longer period first, a shorter one
                // last.
                let longer = before.is_none() || to.period_us > old.period_us;
                if longer {
                    put(period, to.period_us.to_string())?;
                }
                if before.is_none() || old.quota_us != to.quota_us {
                    put(&self.quota, quota)?;
                }
                if !longer && to.period_us != old.period_us {
                    put(period, to.period_us.to_string())?;
                }
            }
        }
        if let Some(burst) = self.burst.as_ref().filter(|_| to.burst_us > 0) {
            put(burst, to.burst_us.to_string())?;
        }
        if !same(old.weight, to.weight, before) {
            put(&self.weight, to.weight.to_string())?;
        }
        self.now = Some(to);
        Ok(())
    }

    /// The value that somebody else has set, if it is not ours.
    fn stranger(&self) -> Option<String> {
        let set = self.now?;
        let read = |file: &File| {
            let mut text = [0_u8; 64];
            let length = file.read_at(&mut text, 0).ok()?;
            Some(String::from_utf8_lossy(text.get(..length)?).trim_end().to_owned())
        };
        let quota = set.quota_us.map(|quota| quota.to_string());
        let wanted = match self.version {
            Version::One => quota.unwrap_or_else(|| "-1".to_owned()),
            Version::Two => format!("{} {}", quota.as_deref().unwrap_or("max"), set.period_us),
        };
        let [name, _, _, weight_name] = Self::names(self.version);
        let found = read(&self.quota)?;
        if found != wanted {
            return Some(format!("{} of {} to `{found}`", name, self.dir.display()));
        }
        let found = read(&self.weight)?;
        (found != set.weight.to_string())
            .then(|| format!("{} of {} to `{found}`", weight_name, self.dir.display()))
    }
}

#[derive(Debug)]
struct Kept {
    files: Files,
    site: Site,
    census: Census,
    since_ns: u64,
    notes: Vec<String>,
}

/// Keeps promises by quota and weight.
#[derive(Debug)]
pub struct Bandwidth {
    ability: Ability,
    config: Config,
    hierarchies: Hierarchies,
    ledger: Ledger,
    kept: BTreeMap<String, Kept>,
    /// Files of those who come with what was prepared.
    coming: BTreeMap<String, Kept>,
    in_force: Plan,
    before: Option<Plan>,
    prepared: Option<(u64, Plan)>,
    tickets: u64,
    generation: u64,
    last: Option<Committed>,
}

impl Bandwidth {
    /// Begins: gives back what a dead one before it owes, and looks what this machine has.
    ///
    /// # Errors
    /// Where there is no controller, or the ledger can't be had.
    pub fn new(config: Config) -> Result<Self> {
        let mut ledger = Ledger::open(&config.folder)?;
        ledger.pay()?;
        let hierarchies = Hierarchies::discover()?;
        let Some(cpu) = &hierarchies.cpu else {
            return Err(EnforceError::Unable {
                kind: "bandwidth",
                why: "no mounted cgroup hierarchy has the controller `cpu`; mount one, or boot a kernel with CONFIG_CFS_BANDWIDTH".to_owned(),
            });
        };
        if cpu.is_read_only() {
            return Err(EnforceError::Unable {
                kind: "bandwidth",
                why: format!(
                    "{} is read-only, and a quota is written there; mount it writable, or have a table keep it, which stops processes by signals where it has no control groups",
                    cpu.path.display()
                ),
            });
        }
        if !cpu.path.join("cgroup.procs").exists()
            || rustix::fs::access(&cpu.path, rustix::fs::Access::WRITE_OK).is_err()
        {
            return Err(EnforceError::Unable {
                kind: "bandwidth",
                why: format!(
                    "{} is not ours to write; run as root, or have a part of it delegated",
                    cpu.path.display()
                ),
            });
        }
        let ability = Ability {
            kind: Kind::Bandwidth,
            switch_ns: 0,
            most_ppm: 1_000_000,
            processors: sys::schedule::affinity(0).doing("see our processors")?.into_iter().map(|p| p as usize).collect(),
            caveats: vec![
                "the budget is had within the period only as far as weights go: real-time threads of others, and the kernel's own, come first; no deadline is guaranteed".to_owned(),
                "the kernel takes what was used by slices of some milliseconds, so the budget of one period may be over or under by that".to_owned(),
            ],
        };
        Ok(Self {
            ability,
            config,
            hierarchies,
            ledger,
            kept: BTreeMap::new(),
            coming: BTreeMap::new(),
            in_force: Plan::default(),
            before: None,
            prepared: None,
            tickets: 0,
            generation: 0,
            last: None,
        })
    }

    /// The cgroups between the mount and this one: a weight counts among brothers only.
    fn above(&self, dir: &Path) -> Vec<PathBuf> {
        let Some(cpu) = &self.hierarchies.cpu else { return Vec::new() };
        let up = dir.ancestors().skip(1);
        up.take_while(|path| *path != cpu.path && path.starts_with(&cpu.path)).map(Path::to_owned).collect()
    }

    /// Raises those above, which were written down before.
    fn raise(&self, dir: &Path, version: Version) -> Result<()> {
        let [_, _, _, name] = Files::names(version);
        let most = if version == Version::One { MAX_SHARES } else { MAX_WEIGHT };
        self.above(dir).iter().try_for_each(|path| hierarchy::write(&path.join(name), &most.to_string()))
    }

    fn put(&mut self, plan: Plan) -> Result<Committed> {
        let begun_ns = sys::clock::clock_ns();
        self.kept.append(&mut self.coming);
        let mut changes: Vec<(String, Setting)> = Vec::new();
        for vtm in &plan.vtms {
            let Some(kept) = self.kept.get(&vtm.id) else {
                return Err(EnforceError::Gone { id: vtm.id.clone(), what: "its cgroup".to_owned() });
            };
            let to = Setting::of(vtm, kept.files.version);
            if kept.files.now != Some(to) {
                changes.push((vtm.id.clone(), to));
            }
        }
        // Whoever gets less goes first.
        changes.sort_by_key(|(id, to)| {
            let now = self.kept.get(id).and_then(|kept| kept.files.now);
            now.is_none_or(|now| to.share() > now.share())
        });
        let mut done: Vec<(String, Setting)> = Vec::new();
        for (id, to) in changes {
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            let before = kept.files.now;
            if let Err(source) = kept.files.set(to) {
                let path = kept.files.dir.clone();
                self.take_back(&done);
                return Err(EnforceError::File { action: "set the budget of", path, source });
            }
            if let Some(before) = before {
                done.push((id, before));
            }
        }
        let there: BTreeSet<&str> = plan.vtms.iter().map(|vtm| vtm.id.as_str()).collect();
        let is_gone = |id: &&String| !there.contains(id.as_str());
        let leaving: Vec<String> = self.kept.keys().filter(is_gone).cloned().collect();
        for id in leaving {
            self.let_go(&id)?;
        }
        self.generation += 1;
        let in_force_ns = sys::clock::clock_ns();
        let committed =
            Committed { generation: self.generation, commit_ns: in_force_ns - begun_ns, in_force_ns };
        self.last = Some(committed);
        self.before = Some(std::mem::replace(&mut self.in_force, plan));
        Ok(committed)
    }

    fn take_back(&mut self, done: &[(String, Setting)]) {
        for (id, before) in done.iter().rev() {
            if let Some(kept) = self.kept.get_mut(id)
                && let Err(error) = kept.files.set(*before)
            {
                tracing::warn!(%error, vtm = id, "a budget could not be taken back");
            }
        }
    }

    /// Puts back what stood in the files of somebody who is not promised anything any more.
    fn let_go(&mut self, id: &str) -> Result<()> {
        let Some(kept) = self.kept.remove(id) else { return Ok(()) };
        let dir = kept.files.dir.clone();
        let is_its = |debt: &Debt| matches!(debt, Debt::File { path, .. } if path.parent() == Some(&dir));
        for debt in self.ledger.debts().iter().rev().filter(|debt| is_its(debt)) {
            if let Debt::File { path, value } = debt
                && path.exists()
            {
                hierarchy::write(path, value)?;
            }
        }
        self.ledger.strike(is_its)
    }
}

impl Enforcer for Bandwidth {
    fn kind(&self) -> Kind {
        Kind::Bandwidth
    }

    fn ability(&self) -> &Ability {
        &self.ability
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared> {
        plan.check()?;
        if plan.strict && !plan.vtms.is_empty() {
            return Err(EnforceError::Strict(self.ability.caveats.clone()));
        }
        let known = self.kept.iter().map(|(id, kept)| (id.clone(), kept.site.clone())).collect();
        let mut sites = place::settle(plan, &known, &self.hierarchies, &self.config, &mut self.ledger)?;
        self.coming.clear();
        let mut touched = BTreeSet::new();
        for vtm in &plan.vtms {
            let Some(site) = sites.remove(&vtm.id) else { continue };
            if self.kept.get(&vtm.id).is_some_and(|kept| kept.site == site) {
                continue;
            }
            let Some((dir, version)) = site.cpu.clone() else {
                let what = "a cgroup with the controller `cpu`".to_owned();
                return Err(EnforceError::Gone { id: vtm.id.clone(), what });
            };
            let mut owed = Files::debts(&dir, version);
            let [_, _, _, weight] = Files::names(version);
            for path in self.above(&dir).into_iter().map(|path| path.join(weight)) {
                if touched.insert(path.clone()) {
                    owed.push(Debt::File { value: hierarchy::read(&path)?, path });
                }
            }
            self.ledger.owe(owed)?;
            self.raise(&dir, version)?;
            let (files, census) = (Files::open(&dir, version)?, Census::default());
            let since_ns = sys::clock::clock_ns();
            self.coming.insert(vtm.id.clone(), Kept { files, site, census, since_ns, notes: Vec::new() });
        }
        self.tickets += 1;
        self.prepared = Some((self.tickets, plan.clone()));
        let mut caveats = self.ability.caveats.clone();
        let ordered = plan.vtms.iter().filter(|vtm| vtm.inside.by().is_some());
        caveats.extend(ordered.map(|vtm| {
            format!(
                "`{}`: a quota does not order the jobs inside: none of them has a deadline that is kept",
                vtm.id
            )
        }));
        Ok(Prepared { ticket: self.tickets, switch_ns: 0, caveats })
    }

    fn commit(&mut self, prepared: &Prepared) -> Result<Committed> {
        match self.prepared.take() {
            Some((ticket, plan)) if ticket == prepared.ticket => {
                let _boost = crate::boost::Boost::begin();
                self.put(plan)
            }
            _ => Err(EnforceError::Stale),
        }
    }

    fn roll_back(&mut self) -> Result<Committed> {
        let plan = self.before.take().ok_or(EnforceError::NothingToUndo)?;
        let prepared = self.prepare(&plan)?;
        let committed = self.commit(&prepared)?;
        self.before = None;
        Ok(committed)
    }

    /// The kernel fills up a quota when it is set, so a change has effect when it is made.
    fn effect(&mut self, _at_most: Duration) -> Result<Effect> {
        Ok(Effect { generation: self.generation, after_ns: self.last.map(|last| last.commit_ns) })
    }

    fn report(&mut self) -> Result<Report> {
        let at_ns = sys::clock::clock_ns();
        let mut vtms = Vec::new();
        for vtm in &self.in_force.vtms {
            let Some(kept) = self.kept.get_mut(&vtm.id) else { continue };
            kept.census.take(&kept.site.processes_up_to(place::MAX_LOOKED));
            let passed = u128::from(at_ns.saturating_sub(kept.since_ns));
            let offered = passed * u128::from(vtm.budget_ns) / u128::from(vtm.period_ns.max(1));
            let stat = hierarchy::read(&kept.files.dir.join("cpu.stat")).unwrap_or_default();
            let throttled = stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok());
            vtms.push(VtmReport {
                id: vtm.id.clone(),
                jobs: kept.census.jobs.len(),
                threads: kept.census.threads(),
                offered_ns: u64::try_from(offered).unwrap_or(u64::MAX),
                used_ns: kept.census.used_ns(),
                slots: throttled.unwrap_or(0),
                notes: kept.notes.clone(),
                ..VtmReport::default()
            });
        }
        Ok(Report { generation: self.generation, at_ns, vtms, ..Report::default() })
    }

    fn scan(&mut self) -> Result<()> {
        for (id, kept) in &mut self.kept {
            kept.census.take(&kept.site.processes_up_to(place::MAX_LOOKED));
            let Some(what) = kept.files.stranger() else { continue };
            let Some(to) = kept.files.now.filter(|_| kept.files.restored < MAX_RESTORED) else { continue };
            kept.files.restored += 1;
            let said =
                if kept.files.restored < MAX_RESTORED { "set back" } else { "set back for the last time" };
            kept.notes.push(format!("somebody else set {what}; {said}"));
            if kept.notes.len() > MAX_NOTES {
                kept.notes.remove(0);
            }
            tracing::warn!(vtm = id, what, "somebody else sets what is ours");
            kept.files.now = None;
            kept.files.set(to).at("set the budget of", &kept.files.dir)?;
        }
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        (self.in_force, self.before, self.prepared) = (Plan::default(), None, None);
        self.kept.clear();
        self.coming.clear();
        self.ledger.pay().map(drop)
    }
}

impl Drop for Bandwidth {
    /// In order: nobody stays throttled by one who is not there.
    fn drop(&mut self) {
        if let Err(error) = self.ledger.pay() {
            tracing::warn!(%error, "not all could be given back");
        }
    }
}
