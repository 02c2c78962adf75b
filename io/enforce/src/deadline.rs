//! Deadline: the kernel's own earliest deadline first, for each thread.
//!
//! A budget is divided among the threads of a virtual task machine, evenly. The kernel's rules: a
//! thread of this class may run on all processors of its root domain, so affinities are lifted;
//! what it starts is an ordinary thread, until the next scan divides the budget anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use reserve::{
    DEADLINE_PERIODS_NS as PERIODS_NS, LEAST_DEADLINE_BUDGET_NS as LEAST_RUNTIME_NS, Policy, Standing,
    Wanting,
};
use sys::schedule::Class;

use crate::enforcer::{Ability, Committed, Effect, Enforcer, Kind, Prepared, Report, VtmReport};
use crate::error::{Context, EnforceError, Result};
use crate::hierarchy::{Hierarchies, Mount};
use crate::jobs::{Job, Team};
use crate::ledger::{Ledger, leave_real_time};
use crate::members::{self, Census};
use crate::place::{self, Arrivals, Config, Site};
use crate::plan::{Plan, Vtm};

/// The runtime that is asked for to see whether the class can be had: less would be used up before
/// it is given back, on a slow machine, and then nothing is had for a whole period.
const TRIED_RUNTIME_NS: u64 = 20_000_000;
/// Most notes that are kept of each.
const MAX_NOTES: usize = 8;

#[derive(Debug)]
struct Kept {
    site: Site,
    census: Census,
    since_ns: u64,
    notes: Vec<String>,
    /// Threads that are in the class, as what, and whose they are.
    set: BTreeMap<u32, (Class, Owner)>,
    arrivals: Arrivals,
    team: Team,
}

/// The process of a thread: the thread's number alone may be another's by now.
#[derive(Debug, Clone, Copy)]
struct Owner {
    process: u32,
    start: u64,
}

impl Owner {
    /// Puts a thread of it out of the class. One that is gone needs nothing, and another one that
    /// has its number nothing either.
    fn let_go(self, thread: u32) {
        if members::is_same(self.process, self.start) && sys::process::is_thread_of(self.process, thread) {
            let _ = leave_real_time(thread, Class::Other { nice: 0 });
        }
    }
}

impl Kept {
    /// Returns the owner of each thread, of those that were seen last.
    fn owners(&self) -> BTreeMap<u32, Owner> {
        let jobs = self.census.jobs.iter();
        let owners = jobs.filter_map(|(process, threads)| {
            let owner = Owner { process: *process, start: self.census.start(*process)? };
            Some(threads.iter().map(move |thread| (*thread, owner)))
        });
        owners.flatten().collect()
    }

    /// Looks who is in it.
    fn look(&mut self, cpu: Option<&Mount>) {
        let here = self.arrivals.of(&self.site, cpu, None, &self.census.jobs);
        self.census.take(&here);
        self.team.look(&self.census);
    }
}

/// Keeps promises by `SCHED_DEADLINE`.
#[derive(Debug)]
pub struct Deadline {
    ability: Ability,
    config: Config,
    hierarchies: Hierarchies,
    ledger: Ledger,
    everywhere: Vec<u32>,
    kept: BTreeMap<String, Kept>,
    in_force: Plan,
    before: Option<Plan>,
    prepared: Option<(u64, Plan, BTreeMap<String, Site>)>,
    tickets: u64,
    generation: u64,
    last: Option<(Committed, u64)>,
}

impl Deadline {
    /// Begins: gives back what a dead one before it owes, and tries whether the kernel has the
    /// class for us.
    ///
    /// # Errors
    /// Where it does not, or the ledger can't be had.
    pub fn new(config: Config) -> Result<Self> {
        let mut ledger = Ledger::open(&config.folder)?;
        ledger.pay()?;
        let everywhere = online()?;
        let all = everywhere.clone();
        let tried = std::thread::spawn(move || {
            sys::schedule::set_affinity(0, &all)?;
            let (runtime_ns, period_ns) = (TRIED_RUNTIME_NS, *PERIODS_NS.end());
            let class = Class::Deadline { runtime_ns, deadline_ns: period_ns, period_ns };
            sys::schedule::set_class(0, class)?;
            leave_real_time(0, Class::Other { nice: 0 })
        });
        let tried = tried.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        if let Err(error) = tried {
            let why = format!(
                "the kernel refuses the class ({error}); run as root or with CAP_SYS_NICE, in the root cpuset, on a kernel with deadline scheduling"
            );
            return Err(EnforceError::Unable { kind: "deadline", why });
        }
        let ability = Ability {
            kind: Kind::Deadline,
            switch_ns: 0,
            most_ppm: crate::room::room(everywhere.len(), &BTreeSet::new()).most_ppm,
            processors: everywhere.iter().map(|&processor| processor as usize).collect(),
            caveats: vec![
                "a budget is divided among the threads that there are: one that sleeps keeps its part from the others"
                    .to_owned(),
                "what a thread starts is an ordinary thread until somebody has looked, every 20 ms: what lives for less is held by nobody"
                    .to_owned(),
                "the kernel places threads on processors by global earliest deadline first: with several processors a deadline may be missed, and nothing is promised of how late it is then"
                    .to_owned(),
            ],
        };
        Ok(Self {
            ability,
            config,
            hierarchies: Hierarchies::discover()?,
            ledger,
            everywhere,
            kept: BTreeMap::new(),
            in_force: Plan::default(),
            before: None,
            prepared: None,
            tickets: 0,
            generation: 0,
            last: None,
        })
    }

    /// The same question that admission asks, of what the kernel has now.
    fn check_room(&self, plan: &Plan) -> Result<()> {
        if plan.vtms.is_empty() {
            return Ok(());
        }
        let ours = self.kept.values().flat_map(|kept| kept.set.keys().copied()).collect();
        let mut wanting = Vec::with_capacity(plan.vtms.len());
        for vtm in &plan.vtms {
            let standing =
                if self.in_force.vtm(&vtm.id) == Some(vtm) { Standing::Has } else { Standing::Plain };
            wanting.push(Wanting { name: vtm.id.clone(), task: vtm.task()?, standing, jobs: None });
        }
        match crate::room::room(self.everywhere.len(), &ours).share_out(wanting).first() {
            Some(unkept) => Err(EnforceError::Unable { kind: "deadline", why: unkept.to_string() }),
            None => Ok(()),
        }
    }

    fn put(&mut self, plan: Plan, mut sites: BTreeMap<String, Site>) -> Result<Committed> {
        let begun_ns = sys::clock::clock_ns();
        let there: BTreeSet<&str> = plan.vtms.iter().map(|vtm| vtm.id.as_str()).collect();
        let is_gone = |id: &&String| !there.contains(id.as_str());
        let leaving: Vec<String> = self.kept.keys().filter(is_gone).cloned().collect();
        let in_force: BTreeMap<&str, &Vtm> =
            self.in_force.vtms.iter().map(|vtm| (vtm.id.as_str(), vtm)).collect();
        let mut changed: Vec<&Vtm> = Vec::new();
        for vtm in &plan.vtms {
            let Some(site) = sites.remove(&vtm.id) else { continue };
            let same_place = self.kept.get(&vtm.id).is_some_and(|kept| kept.site == site);
            if in_force.get(vtm.id.as_str()) == Some(&vtm) && same_place {
                continue;
            }
            if !same_place {
                let (census, set) = (Census::default(), BTreeMap::new());
                let arrivals = Arrivals::default();
                let (notes, mut team) = (Vec::new(), Team::default());
                team.set(&vtm.inside);
                let mut kept = Kept { site, census, since_ns: begun_ns, notes, set, arrivals, team };
                kept.look(self.hierarchies.cpu.as_ref());
                if let Some(old) = self.kept.insert(vtm.id.clone(), kept) {
                    free(&old);
                }
            } else if let Some(kept) = self.kept.get_mut(&vtm.id)
                && kept.team.set(&vtm.inside)
            {
                kept.look(self.hierarchies.cpu.as_ref());
            }
            changed.push(vtm);
        }
        // Whoever goes or gets less makes room for whoever gets more.
        let share = |vtm: &Vtm| (u128::from(vtm.budget_ns) << 20) / u128::from(vtm.period_ns.max(1));
        changed.sort_by_key(|vtm| self.in_force.vtm(&vtm.id).is_none_or(|old| share(vtm) > share(old)));
        let shrinks = changed
            .iter()
            .take_while(|vtm| self.in_force.vtm(&vtm.id).is_some_and(|old| share(vtm) <= share(old)))
            .count();
        let mut done: Vec<String> = Vec::new();
        let mut failed = None;
        for (place, vtm) in changed.iter().enumerate() {
            if place == shrinks {
                leaving.iter().filter_map(|id| self.kept.get(id)).for_each(free);
            }
            done.push(vtm.id.clone());
            if let Some(kept) = self.kept.get_mut(&vtm.id)
                && let Err(error) = divide(kept, vtm, &self.everywhere, true)
            {
                failed = Some(error);
                break;
            }
        }
        if let Some(error) = failed {
            self.take_back(&done, &leaving);
            return Err(error);
        }
        for id in leaving {
            if let Some(kept) = self.kept.remove(&id) {
                free(&kept);
                let processes = kept.site.processes();
                self.ledger.pay_some(|debt| kept.site.is_owed(debt, &processes))?;
            }
        }
        let longest_ns = changed.iter().map(|vtm| vtm.period_ns).max().unwrap_or(0);
        self.generation += 1;
        let now = sys::clock::clock_ns();
        let in_force_ns = now.saturating_add(longest_ns);
        let committed = Committed { generation: self.generation, commit_ns: now - begun_ns, in_force_ns };
        self.last = Some((committed, begun_ns));
        self.before = Some(std::mem::replace(&mut self.in_force, plan));
        Ok(committed)
    }

    /// As it was before: whoever was changed has what it had, and whoever came has nothing.
    fn take_back(&mut self, done: &[String], leaving: &[String]) {
        for id in done.iter().filter(|id| self.in_force.vtm(id).is_none()) {
            if let Some(kept) = self.kept.remove(id) {
                free(&kept);
            }
        }
        for id in done.iter().rev().chain(leaving) {
            let (Some(vtm), Some(kept)) = (self.in_force.vtm(id), self.kept.get_mut(id)) else { continue };
            if let Err(error) = divide(kept, vtm, &self.everywhere, true) {
                tracing::warn!(%error, vtm = id, "a budget could not be taken back");
            }
        }
    }
}

/// The processors that are there.
pub fn online() -> Result<Vec<u32>> {
    let path = std::path::Path::new("/sys/devices/system/cpu/online");
    let text = crate::hierarchy::read(path)?;
    let mut found = Vec::new();
    for range in text.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(from), Ok(to)) = (from.parse::<u32>(), to.parse::<u32>()) {
            found.extend(from..=to);
        }
    }
    Ok(found)
}

fn free(kept: &Kept) {
    kept.set.iter().for_each(|(thread, (_, owner))| owner.let_go(*thread));
}

/// Gives each thread that was last seen its part. `force`: also to those who seem to have it.
fn divide(kept: &mut Kept, vtm: &Vtm, everywhere: &[u32], force: bool) -> Result<()> {
    let parts = parts(kept, vtm)?;
    // Who has no part any more leaves the class.
    let without: Vec<u32> = kept.set.keys().filter(|thread| !parts.contains_key(thread)).copied().collect();
    for thread in without {
        if let Some((_, owner)) = kept.set.remove(&thread) {
            owner.let_go(thread);
        }
    }
    let owners = kept.owners();
    // Those that have more than their part give first.
    let (old, new): (Vec<_>, Vec<_>) =
        parts.into_iter().partition(|(thread, _)| kept.set.contains_key(thread));
    for (thread, class) in old.into_iter().chain(new) {
        if !force && kept.set.get(&thread).is_some_and(|(known, _)| *known == class) {
            continue;
        }
        let Some(owner) = owners.get(&thread).copied() else { continue };
        if !sys::process::is_thread_of(owner.process, thread) {
            continue;
        }
        let known = kept.set.contains_key(&thread);
        let free = if known { Ok(()) } else { sys::schedule::set_affinity(thread, everywhere) };
        let set = free.and_then(|()| sys::schedule::set_class(thread, class));
        match set {
            Ok(()) => drop(kept.set.insert(thread, (class, owner))),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                return Err(EnforceError::Unable {
                    kind: "deadline",
                    why: format!(
                        "the kernel has no room for `{}`: others have taken deadlines on this machine meanwhile",
                        vtm.id
                    ),
                });
            }
            Err(error) => {
                return Err(error)
                    .doing(format!("put thread {thread} of `{}` into the deadline class", vtm.id));
            }
        }
    }
    Ok(())
}

/// The class of each thread that gets one: that of its job, whose budget its threads share; the
/// others share what jobs leave of the whole, where that is enough for the kernel.
fn parts(kept: &Kept, vtm: &Vtm) -> Result<BTreeMap<u32, Class>> {
    let class = |runtime_ns, deadline_ns, period_ns| Class::Deadline { runtime_ns, deadline_ns, period_ns };
    let too_little = |whose: String, count: u64, runtime_ns: u64| EnforceError::Unable {
        kind: "deadline",
        why: format!(
            "{whose} has {count} threads, each of which would get {runtime_ns} ns, and the kernel takes no less than {LEAST_RUNTIME_NS}"
        ),
    };
    let all = kept.census.jobs.values().flatten().copied();
    let (ranked, others): (Vec<u32>, Vec<u32>) =
        all.partition(|thread| kept.team.roster().of.contains_key(thread));
    let mut parts = BTreeMap::new();
    let jobs = kept.team.jobs().by().map_or(&[][..], |(_, jobs)| jobs);
    for thread in ranked {
        let Some((index, job)) =
            kept.team.roster().of.get(&thread).and_then(|index| Some((*index, jobs.get(*index)?)))
        else {
            continue;
        };
        let threads = kept.team.roster().threads.get(index).copied().unwrap_or(1).max(1);
        let count = u64::try_from(threads).unwrap_or(u64::MAX);
        let runtime_ns = job.budget_ns / count;
        if runtime_ns < LEAST_RUNTIME_NS {
            return Err(too_little(format!("job `{}` of `{}`", job.name, vtm.id), count, runtime_ns));
        }
        parts.insert(thread, class(runtime_ns, job.deadline_ns, job.period_ns));
    }
    let count = u64::try_from(others.len().max(1)).unwrap_or(u64::MAX);
    let of_jobs: u128 = jobs.iter().map(|job| in_period(job, vtm.period_ns)).sum();
    let left = u128::from(vtm.budget_ns).saturating_sub(of_jobs);
    let runtime_ns = u64::try_from(left).unwrap_or(u64::MAX) / count;
    match (runtime_ns >= LEAST_RUNTIME_NS, jobs.is_empty()) {
        (true, _) => {
            let deadline_ns = vtm.task()?.deadline_ns();
            parts.extend(
                others.into_iter().map(|thread| (thread, class(runtime_ns, deadline_ns, vtm.period_ns))),
            );
        }
        (false, true) => return Err(too_little(format!("`{}`", vtm.id), count, runtime_ns)),
        // Its jobs have all of it: whoever is none of them is an ordinary process.
        (false, false) => {}
    }
    Ok(parts)
}

/// The time of a job in each period of its machine, in ns, rounded up.
fn in_period(job: &Job, period_ns: u64) -> u128 {
    (u128::from(job.budget_ns) * u128::from(period_ns)).div_ceil(u128::from(job.period_ns.max(1)))
}

/// A thread of the class that has used its budget up waits, and has no way to be an ordinary one
/// meanwhile. The kernel could let it take what the class leaves (`SCHED_FLAG_RECLAIM`), but then
/// it does so before all ordinary threads, those with quotas among them.
fn check_outside(vtm: &Vtm) -> Result<()> {
    if vtm.outside.is_held() {
        return Ok(());
    }
    let why = format!(
        "the kernel holds threads of `{}` that have used their budget up; take `held`, or a table for `idle` and `fair`",
        vtm.id
    );
    Err(EnforceError::Unable { kind: "deadline", why })
}

/// Jobs have deadlines here, and no ranks; together they have no more than their machine, and
/// numbers that the kernel takes.
fn check_jobs(vtm: &Vtm) -> Result<()> {
    let Some((policy, jobs)) = vtm.inside.by() else { return Ok(()) };
    let unable = |why: String| Err(EnforceError::Unable { kind: "deadline", why });
    if policy != Policy::EarliestDeadline {
        return unable(format!(
            "the jobs of `{}` are {policy}, and the deadline class goes by deadlines; take a table",
            vtm.id
        ));
    }
    if let Some(job) = jobs.iter().find(|job| !PERIODS_NS.contains(&job.period_ns)) {
        return unable(format!(
            "job `{}` of `{}` has a period of {} ns, and the kernel takes {} to {}",
            job.name,
            vtm.id,
            job.period_ns,
            PERIODS_NS.start(),
            PERIODS_NS.end()
        ));
    }
    let asked: u128 = jobs.iter().map(|job| in_period(job, vtm.period_ns)).sum();
    // Each was rounded up.
    if asked > u128::from(vtm.budget_ns) + jobs.len() as u128 {
        return unable(format!(
            "the jobs of `{}` want {asked} ns in each of its periods, and it is promised {}",
            vtm.id, vtm.budget_ns
        ));
    }
    Ok(())
}

impl Enforcer for Deadline {
    fn kind(&self) -> Kind {
        Kind::Deadline
    }

    fn ability(&self) -> &Ability {
        &self.ability
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared> {
        plan.check()?;
        if plan.strict && !plan.vtms.is_empty() {
            return Err(EnforceError::Strict(self.ability.caveats.clone()));
        }
        plan.vtms.iter().try_for_each(check_outside)?;
        self.check_room(plan)?;
        plan.vtms.iter().try_for_each(check_jobs)?;
        let known: BTreeMap<String, Site> =
            self.kept.iter().map(|(id, kept)| (id.clone(), kept.site.clone())).collect();
        let sites = place::settle(plan, &known, &self.hierarchies, &self.config, &mut self.ledger)?;
        self.ledger.owe(sites.values().flat_map(Site::debts).collect())?;
        for kept in self.kept.values_mut() {
            kept.look(self.hierarchies.cpu.as_ref());
        }
        self.tickets += 1;
        self.prepared = Some((self.tickets, plan.clone(), sites));
        Ok(Prepared { ticket: self.tickets, switch_ns: 0, caveats: self.ability.caveats.clone() })
    }

    fn commit(&mut self, prepared: &Prepared) -> Result<Committed> {
        match self.prepared.take() {
            Some((ticket, plan, sites)) if ticket == prepared.ticket => {
                let _boost = crate::boost::Boost::begin();
                self.put(plan, sites)
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

    /// The kernel takes new numbers over where a thread's budget is filled up next, and does not
    /// say when: the end of the longest period is the latest.
    fn effect(&mut self, _at_most: Duration) -> Result<Effect> {
        let after = self.last.map(|(committed, begun_ns)| committed.in_force_ns - begun_ns);
        Ok(Effect { generation: self.generation, after_ns: Some(after.unwrap_or(0)) })
    }

    fn report(&mut self) -> Result<Report> {
        let at_ns = sys::clock::clock_ns();
        let mut vtms = Vec::new();
        for vtm in &self.in_force.vtms {
            let Some(kept) = self.kept.get_mut(&vtm.id) else { continue };
            kept.look(self.hierarchies.cpu.as_ref());
            let passed = u128::from(at_ns.saturating_sub(kept.since_ns));
            let offered = passed * u128::from(vtm.budget_ns) / u128::from(vtm.period_ns.max(1));
            vtms.push(VtmReport {
                id: vtm.id.clone(),
                jobs: kept.census.jobs.len(),
                threads: kept.census.threads(),
                offered_ns: u64::try_from(offered).unwrap_or(u64::MAX),
                used_ns: kept.census.used_ns(),
                notes: kept.notes.iter().cloned().chain(kept.team.notes()).collect(),
                inside: kept.team.reports(),
                ..VtmReport::default()
            });
        }
        Ok(Report { generation: self.generation, at_ns, vtms, ..Report::default() })
    }

    fn scan(&mut self) -> Result<()> {
        for vtm in &self.in_force.vtms {
            let Some(kept) = self.kept.get_mut(&vtm.id) else { continue };
            let taken: Vec<u32> = kept
                .set
                .keys()
                .copied()
                .filter(|thread| matches!(sys::schedule::class(*thread), Ok(class) if !class.is_real_time()))
                .collect();
            if !taken.is_empty() {
                kept.notes.push("somebody else took a thread out of its class; set back".to_owned());
                if kept.notes.len() > MAX_NOTES {
                    kept.notes.remove(0);
                }
                kept.set.retain(|thread, _| !taken.contains(thread));
            }
            kept.look(self.hierarchies.cpu.as_ref());
            if let Err(error) = divide(kept, vtm, &self.everywhere, false) {
                kept.notes.push(error.to_string());
                if kept.notes.len() > MAX_NOTES {
                    kept.notes.remove(0);
                }
            }
        }
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        (self.in_force, self.before, self.prepared, self.last) = (Plan::default(), None, None, None);
        std::mem::take(&mut self.kept).values().for_each(free);
        self.ledger.pay().map(drop)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, "not all could be given back");
        }
    }
}
