//! The dispatch table: a real-time thread for each processor goes by `reserve`'s dispatcher. Who
//! has the slot runs in the round-robin class, everybody else of the plan is held, or runs as an
//! ordinary process.
//!
//! Jobs are in one cgroup whose real-time bandwidth is about what they are promised together, so
//! the kernel ends what a dead dispatcher left running.

mod bound;
mod commit;
mod cost;
mod horizon;
mod inside;
mod lane;
mod orders;
mod owed;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use reserve::{Costs, Means};
use sys::schedule::Class;

use crate::boost::Boost;
use crate::core::{Change, Recording};
use crate::enforcer::{Ability, Committed, Effect, Enforcer, Kind, Prepared, Report, VtmReport};
use crate::error::{Context, EnforceError, Result};
use crate::hierarchy::{self, Hierarchies, Mount};
use crate::jobs::Roster;
use crate::ledger::{Debt, Ledger};
use crate::members::{self, Census};
use crate::place::{self, Arrivals, Config, Site};
use crate::plan::{Outside, Plan, Vtm};
use bound::{make_bound, without_control_groups};
use horizon::Horizon;
use inside::{Inside, JobTime};
use lane::{Crew, Grip, Handle, Members, Meter, Order, Shared};
use owed::{owe_stops, stopped};

/// The atomics that orders are made of; `tests/model.rs` has other ones.
mod atomics {
    pub use std::sync::atomic::{AtomicU32, Ordering};
    pub use std::sync::{Arc, Mutex};
}

pub use cost::{means, means_of};
pub use lane::LANE_PRIORITY;

/// Most of a processor that is promised, in millionths: the kernel keeps 5 % from all real-time
/// threads, and the dispatcher itself needs some.
pub const MAX_PPM: u64 = 930_000;
/// From when the longer span is taken, in millionths of a processor.
const NEARLY_FULL_PPM: u64 = 700_000;
/// The quota that the kernel begins a cgroup's period with, and the one that we begin its time
/// with, in us.
const FIRST_BOUND_US: (u64, u64) = (1_000, 1_000_000);
/// How long whoever is not promised anything any more stays with us after the change is in force,
/// in ns: its processor's thread lets it go first.
const FAREWELL_NS: u64 = 50_000_000;
/// How long a lane may take to answer: it is the highest of its processor, but for the guardian,
/// and sleeps.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The span over which the kernel bounds real-time time of jobs, in us, and the longest.
const BOUND_PERIOD_US: u64 = 100_000;
const MAX_BOUND_PERIOD_US: u64 = 1_000_000;
/// Of how many virtual task machines one scan looks for who came and went: it takes time that is
/// nobody's budget.
const SCANNED: usize = 8;
/// After so many threads a scan goes on with the others the next time: each that is looked at costs
/// some microseconds, which are nobody's budget.
const SCANNED_THREADS: usize = 512;
/// The time that somebody may use between two looks beyond its slots, in ns, before it is told: to
/// stand still takes some hundred threads that long.
const OVERRUN_TOLERANCE_NS: u64 = 1_000_000;

struct Lane {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    horizon: Horizon,
}

#[derive(Clone)]
struct Kept {
    site: Site,
    grip: Arc<Grip>,
    meter: Arc<Meter>,
    census: Census,
    processor: usize,
    arrivals: Arrivals,
    /// The members and jobs, as its processor's thread was told last.
    told: (BTreeMap<u32, Vec<u32>>, Roster),
    inside: Inside,
    /// Its processes, by what is never another's.
    handles: BTreeMap<u32, Handle>,
    overrun: Overrun,
}

/// The time that one runs beyond its slots.
#[derive(Debug, Clone, Default)]
struct Overrun {
    /// The time that it had used, and that which had been set apart for it, at the last look.
    last_ns: Option<(u64, u64)>,
    total_ns: u64,
}

impl Overrun {
    fn look(&mut self, used_ns: u64, offered_ns: u64) {
        if let Some((used_before, offered_before)) = self.last_ns.replace((used_ns, offered_ns)) {
            let used = used_ns.saturating_sub(used_before);
            let over = used.saturating_sub(offered_ns.saturating_sub(offered_before));
            if over > OVERRUN_TOLERANCE_NS {
                self.total_ns = self.total_ns.saturating_add(over);
            }
        }
    }
}

impl Kept {
    /// Looks who is in it. Returns whether its processor's thread knows somebody else.
    fn look(&mut self, cpu: Option<&Mount>, bound: Option<&Path>) -> bool {
        let here = self.arrivals.of(&self.site, cpu, bound, &self.census.jobs);
        self.census.take(&here);
        self.inside.team.look(&self.census);
        match &*self.grip {
            // It may use what nobody wants.
            Grip::Class => {}
            // It was free until its first slot.
            _ if self.meter.slots.load(Ordering::Relaxed) == 0 => {}
            Grip::Freezer(_) | Grip::Signals => {
                self.overrun.look(self.census.used_ns(), self.meter.so_far_ns());
            }
        }
        self.handle();
        self.census.jobs != self.told.0 || self.inside.team.roster() != &self.told.1
    }

    /// Takes hold of those who came, and lets go of those who went.
    fn handle(&mut self) {
        let census = &self.census;
        self.handles.retain(|process, handle| census.start(*process) == Some(handle.start));
        for &process in census.jobs.keys() {
            let Some(start) = census.start(process).filter(|_| !self.handles.contains_key(&process)) else {
                continue;
            };
            self.handles.insert(process, Handle::new(process, start));
        }
    }

    /// Its processor's thread is told now.
    fn tell(&mut self, id: &str, charged: usize) -> Members {
        self.told = (self.census.jobs.clone(), self.inside.team.roster().clone());
        let (jobs, ranked) = (self.jobs(charged), self.inside.ranked());
        Members { id: id.to_owned(), jobs, ranked, handles: self.handles.clone() }
    }

    /// Its processes, with as many of their threads as switches are charged for: those that are
    /// jobs first, then the first of each process.
    fn jobs(&self, charged: usize) -> BTreeMap<u32, Vec<u32>> {
        if self.census.threads() <= charged {
            return self.census.jobs.clone();
        }
        let roster = self.inside.team.roster();
        let threads = self.census.jobs.iter().flat_map(|(process, threads)| {
            threads
                .iter()
                .map(move |thread| (!roster.of.contains_key(thread), thread != process, *process, *thread))
        });
        let mut threads: Vec<_> = threads.collect();
        threads.sort_unstable();
        let mut jobs: BTreeMap<u32, Vec<u32>> =
            self.census.jobs.keys().map(|process| (*process, Vec::new())).collect();
        for (_, _, process, thread) in threads.into_iter().take(charged) {
            if let Some(threads) = jobs.get_mut(&process) {
                threads.push(thread);
            }
        }
        jobs
    }

    /// The notes on its threads for a person.
    fn notes(&self, charged: usize) -> Vec<String> {
        let mut notes = Vec::new();
        let count = self.census.threads();
        if count > charged || self.census.is_full() {
            let more = if self.census.is_full() { " and more" } else { "" };
            notes.push(format!(
                "it has {count}{more} threads, and switches are charged for {charged}: the others are ordinary threads in its slots"
            ));
        }
        if self.overrun.total_ns > 0 {
            notes.push(format!(
                "it has run {} us beyond its slots, as ordinary threads: it takes long to stand still",
                self.overrun.total_ns / 1_000
            ));
        }
        notes
    }
}

struct Ready {
    ticket: u64,
    plan: Plan,
    costs: Costs,
    charged: usize,
    changes: Vec<(usize, Change)>,
    sites: BTreeMap<String, Site>,
    /// The names that are not as they are in force, or not in it any more.
    changed: BTreeSet<String>,
    leaving: Vec<String>,
    /// The processors on which time only goes from one to another: their threads are not waited
    /// for.
    exchanges: BTreeSet<usize>,
    /// How long the jobs inside each take on these tables.
    times: BTreeMap<String, Vec<JobTime>>,
}

/// Keeps promises by a table.
pub struct Table {
    ability: Ability,
    config: Config,
    hierarchies: Hierarchies,
    ledger: Ledger,
    lanes: BTreeMap<usize, Lane>,
    kept: BTreeMap<String, Kept>,
    cost: cost::Cost,
    /// The cgroup of all jobs that bounds their real time, where there can be one.
    bound: Option<PathBuf>,
    /// Its runtime and period.
    bounds_us: (u64, u64),
    /// The sites of those who are not promised anything any more, and when that is in force.
    leaving: Vec<(Site, u64)>,
    real_time: bool,
    in_force: Plan,
    /// The charge for a switch in it, and for how many threads.
    costs: Costs,
    charged: usize,
    /// For how many threads it was tried last to charge switches.
    tried: usize,
    before: Option<Plan>,
    prepared: Option<Ready>,
    tickets: u64,
    generation: u64,
    last: Option<(Committed, u64)>,
    awaited: Vec<String>,
    /// The answers of threads to the last change that were not waited for.
    unheard: Vec<Receiver<Result<u64>>>,
    /// When the last change is in force, as far as threads have said.
    heard_ns: u64,
    next_scanned: usize,
}

impl Table {
    /// Begins: gives back what a dead one owes before anything else, tries what this machine lets
    /// us do, and measures what a switch costs.
    ///
    /// # Errors
    /// Where the ledger can't be had, or nothing can hold processes.
    pub fn new(config: Config) -> Result<Self> {
        let mut ledger = Ledger::open(&config.folder)?;
        ledger.pay()?;
        let hierarchies = Hierarchies::discover()?;
        let mut caveats = Vec::new();
        caveats.extend(without_control_groups(&hierarchies));
        let real_time = match cost::try_real_time() {
            Ok(()) => true,
            Err(error) => {
                caveats.push(format!(
                    "no real-time class here ({error}): slots begin when the kernel gets round to it, and others compete in them; run as root, or with CAP_SYS_NICE and RLIMIT_RTPRIO"
                ));
                false
            }
        };
        let bound =
            if real_time { make_bound(&hierarchies, &config, &mut ledger, &mut caveats)? } else { None };
        let cost = cost::measure(real_time);
        let processors =
            sys::schedule::affinity(0).doing("see our processors")?.into_iter().map(|p| p as usize).collect();
        let ability = Ability {
            kind: Kind::Table,
            switch_ns: cost.for_threads(1),
            most_ppm: MAX_PPM,
            processors,
            caveats,
        };
        Ok(Self {
            ability,
            config,
            hierarchies,
            ledger,
            lanes: BTreeMap::new(),
            kept: BTreeMap::new(),
            cost,
            bound,
            bounds_us: FIRST_BOUND_US,
            leaving: Vec::new(),
            real_time,
            in_force: Plan::default(),
            costs: Costs::default(),
            charged: 1,
            tried: 1,
            before: None,
            prepared: None,
            tickets: 0,
            generation: 0,
            last: None,
            awaited: Vec::new(),
            unheard: Vec::new(),
            heard_ns: 0,
            next_scanned: 0,
        })
    }

    /// The decisions of one processor so far, where [`Config::record`] asked for them.
    ///
    /// # Errors
    /// Where its thread does not answer.
    pub fn recording(&self, processor: usize) -> Result<Option<Recording>> {
        let Some(lane) = self.lanes.get(&processor) else { return Ok(None) };
        let (answer, said) = mpsc::sync_channel(1);
        lane.shared.order(Order::Recording { answer });
        said.recv_timeout(ANSWER_TIMEOUT).map_err(|_| lane::silent())
    }

    fn check_shares(&self, plan: &Plan) -> Result<()> {
        for processor in plan.processors() {
            let asked_ppm = share_ppm(plan, processor);
            if asked_ppm > MAX_PPM {
                return Err(EnforceError::TooMuch { kind: "table", processor, asked_ppm, most_ppm: MAX_PPM });
            }
        }
        match plan.vtms.iter().find(|vtm| !self.ability.processors.contains(&vtm.processor)) {
            Some(vtm) => Err(EnforceError::NoProcessor { id: vtm.id.clone(), processor: vtm.processor }),
            None => Ok(()),
        }
    }

    /// Writes down what will be done to those who come, and bounds what all may take.
    fn announce(&mut self, plan: &Plan, sites: &BTreeMap<String, Site>) -> Result<()> {
        let mut owed = Vec::new();
        for vtm in &plan.vtms {
            let Some(site) = sites.get(&vtm.id) else { continue };
            owed.extend(site.debts());
            if let (Some((dir, _)), Some(bound)) = (&site.cpu, &self.bound)
                && dir != bound
            {
                // Whoever is in it then, what it started too, goes back to where its own limits
                // are: those below after those above, so they come first.
                if let Some((from, _)) = &site.dir {
                    let parts = hierarchy::directories(from).into_iter().filter_map(|part| {
                        let to = dir.join(part.file_name()?);
                        to.is_dir().then_some(Debt::Move { from: part, to })
                    });
                    owed.extend(parts);
                    owed.push(Debt::Move { from: from.clone(), to: dir.clone() });
                }
            }
            if grip_is_signals(vtm, site) {
                let mut census = Census::default();
                census.take(&site.processes_up_to(place::MAX_LOOKED));
                owed.extend(stopped(&census));
            }
        }
        self.ledger.owe(owed)?;
        self.ledger_stops(plan, sites)
    }

    fn ledger_stops(&mut self, plan: &Plan, sites: &BTreeMap<String, Site>) -> Result<()> {
        let by_signal: Vec<u32> = plan
            .vtms
            .iter()
            .filter_map(|vtm| sites.get(&vtm.id).filter(|site| grip_is_signals(vtm, site)))
            .flat_map(Site::processes)
            .collect();
        if by_signal.is_empty() { Ok(()) } else { self.ledger.mark_stopped(&by_signal) }
    }

    fn set_bound(&mut self, plans: [&Plan; 2]) -> Result<()> {
        let Some(bound) = &self.bound else { return Ok(()) };
        let all = || plans.iter().flat_map(|plan| &plan.vtms);
        let longest_us = all().map(|vtm| vtm.period_ns / 1_000).max().unwrap_or(0);
        let fullest = plans
            .iter()
            .flat_map(|plan| plan.processors().into_iter().map(|number| share_ppm(plan, number)))
            .max();
        // Over a longer span what a table gives varies less: where little is left over, only that
        // keeps the kernel from stepping in on its own.
        let is_full = fullest.is_some_and(|ppm| ppm > NEARLY_FULL_PPM);
        let shortest_us = if is_full { MAX_BOUND_PERIOD_US } else { BOUND_PERIOD_US };
        let period_us = (2 * longest_us).clamp(shortest_us, MAX_BOUND_PERIOD_US);
        let mut most = 0;
        for plan in plans {
            for processor in plan.processors() {
                let here = plan.vtms.iter().filter(|vtm| vtm.processor == processor);
                // What a table gives within any such span: the shares, and of each the budget of
                // one period more.
                let within = here.map(|vtm| {
                    let share =
                        u128::from(period_us) * u128::from(vtm.budget_ns) / u128::from(vtm.period_ns.max(1));
                    u64::try_from(share).unwrap_or(u64::MAX).saturating_add(vtm.budget_ns / 1_000)
                });
                most = within.fold(0_u64, u64::saturating_add).max(most);
            }
        }
        let runtime_us = most.clamp(1_000, period_us * MAX_PPM / 1_000_000);
        let now = self.bounds_us;
        if now == (runtime_us, period_us) {
            return Ok(());
        }
        let (runtime, period) = (bound.join("cpu.rt_runtime_us"), bound.join("cpu.rt_period_us"));
        let (set_runtime, set_period) = (
            || hierarchy::write(&runtime, &runtime_us.to_string()),
            || hierarchy::write(&period, &period_us.to_string()),
        );
        // In between it is never more than the kernel has, nor so little that those who run are
        // ended.
        let set = if period_us >= now.1 {
            set_period().and_then(|()| set_runtime())
        } else {
            set_runtime().and_then(|()| set_period())
        };
        set.map_err(|error| EnforceError::Unable {
            kind: "table",
            why: format!(
                "the kernel does not give {runtime_us} us of real-time bandwidth in {period_us} us to {} ({error}); other cgroups beside it have the rest (cpu.rt_runtime_us)",
                bound.display()
            ),
        })?;
        self.bounds_us = (runtime_us, period_us);
        Ok(())
    }

    fn lane(&mut self, processor: usize) -> Result<()> {
        if self.lanes.contains_key(&processor) {
            return Ok(());
        }
        let shared = Arc::new(Shared::default());
        let (own, record, real_time) = (Arc::clone(&shared), self.config.record, self.real_time);
        let number = u32::try_from(processor).unwrap_or(u32::MAX);
        let (up, is_up) = mpsc::sync_channel(1);
        let work = move || {
            let ready = sys::schedule::set_affinity(0, &[number]).and_then(|()| {
                let class = Class::Fifo { priority: LANE_PRIORITY };
                if real_time { sys::schedule::set_class(0, class) } else { Ok(()) }
            });
            let good = ready.is_ok();
            // Whoever started us waits for this.
            let _ = up.send(ready);
            if good && let Err(error) = lane::run(own, record) {
                tracing::error!(%error, processor, "the dispatcher of a processor ended");
            }
        };
        let name = format!("lane {processor}");
        let thread =
            std::thread::Builder::new().name(name).spawn(work).doing("start a dispatcher's thread")?;
        is_up.recv_timeout(ANSWER_TIMEOUT).map_err(|_| lane::silent())?.doing("make a thread real-time")?;
        self.lanes.insert(processor, Lane { shared, thread: Some(thread), horizon: Horizon::default() });
        Ok(())
    }
}

impl Table {
    /// Charges switches for more threads, which were started since the table was made: as many as
    /// there is room for beside what is promised.
    fn charge(&mut self, threads: usize) {
        let most = threads.next_power_of_two().min(cost::MAX_CHARGED_THREADS);
        self.tried = most;
        let mut charged = most;
        while charged > self.charged {
            let built = Costs::new(self.cost.for_threads(charged)).ok().and_then(|costs| {
                let rule = self.in_force.rule(costs);
                let build = |number: &usize| Change::build(*number, rule, &self.in_force.vtms);
                let changes = self.lanes.keys().map(|number| Ok((*number, build(number)?)));
                Some((costs, changes.collect::<Result<Vec<_>>>().ok()?))
            });
            if let Some((costs, changes)) = built {
                self.recharge(costs, charged, changes);
                return;
            }
            charged /= 2;
        }
    }

    fn recharge(&mut self, costs: Costs, charged: usize, changes: Vec<(usize, Change)>) {
        (self.costs, self.charged) = (costs, charged);
        for (id, times) in inside::times(&self.in_force, costs, &changes) {
            if let Some(kept) = self.kept.get_mut(&id) {
                kept.inside.set_times(times);
            }
        }
        for (processor, change) in changes {
            let Some(lane) = self.lanes.get_mut(&processor) else { continue };
            let cycle_ns = change.table.cycle_ns();
            // Nobody waits for the answer: what is promised is the same.
            let (answer, _) = mpsc::sync_channel(1);
            lane.shared.order(Order::Change { change, crews: Vec::new(), answer });
            lane.horizon.change(sys::clock::clock_ns(), cycle_ns);
        }
        for (id, kept) in &mut self.kept {
            if let Some(lane) = self.lanes.get(&kept.processor) {
                lane.shared.order(Order::Members(kept.tell(id, charged)));
            }
        }
    }

    /// Gives back those whose time with us is over.
    fn bid_farewell(&mut self) -> Result<()> {
        let now = sys::clock::clock_ns();
        let is_due = |(_, at_ns): &(Site, u64)| now > at_ns.saturating_add(FAREWELL_NS);
        for (site, _) in self.leaving.extract_if(.., |leaving| is_due(leaving)).collect::<Vec<_>>() {
            let processes = site.processes();
            self.ledger.pay_some(|debt| site.is_owed(debt, &processes))?;
        }
        Ok(())
    }
}

/// The time that 99 of 100 decisions of one processor took at most, in ns.
fn p99_ns(shared: &Shared, worst_ns: u64) -> u64 {
    let counts = shared.decisions.each_ref().map(|count| count.load(Ordering::Relaxed));
    let most = counts.iter().sum::<u64>() * 99 / 100;
    let mut so_far = 0;
    for (us, count) in (1..).zip(&counts[..lane::DECISION_STEPS - 1]) {
        so_far += count;
        if so_far >= most {
            return us * 1_000;
        }
    }
    worst_ns
}

/// The share of a processor that is asked for, in millionths. A demand that makes no sense is
/// refused elsewhere.
fn share_ppm(plan: &Plan, processor: usize) -> u64 {
    let here = plan.vtms.iter().filter(|vtm| vtm.processor == processor);
    let tasks: Vec<reserve::Task> = here.filter_map(|vtm| vtm.task().ok()).collect();
    Means::asked_ppm(&tasks)
}

fn refuse_strict(plan: &Plan, caveats: &[String]) -> Result<()> {
    if plan.strict && !caveats.is_empty() {
        return Err(EnforceError::Strict(caveats.to_vec()));
    }
    Ok(())
}

fn grip_is_signals(vtm: &Vtm, site: &Site) -> bool {
    let by_choice = vtm.outside == Outside::Stopped && !vtm.suspended;
    let is_held = vtm.outside == Outside::Held || vtm.suspended;
    by_choice || (is_held && !matches!(site.freezer(), Ok(Some(_))))
}

/// Binds the threads to their processor, and puts the processes where the kernel bounds them.
fn admit(kept: &mut Kept, vtm: &Vtm, bound: Option<&Path>) {
    let processor = u32::try_from(vtm.processor).unwrap_or(u32::MAX);
    for (process, threads) in &kept.census.jobs {
        if let Some(bound) = bound {
            // A process that ended meanwhile is seen by the next scan, and its number may be
            // another's.
            if !kept.census.start(*process).is_some_and(|start| members::is_it(*process, start)) {
                continue;
            }
            let _ = hierarchy::write(&bound.join("cgroup.procs"), &process.to_string());
        }
        for thread in threads.iter().filter(|thread| sys::process::is_thread_of(*process, **thread)) {
            let _ = sys::schedule::set_affinity(*thread, &[processor]);
        }
    }
}

fn crew(kept: &Kept, vtm: &Vtm, real_time: bool, charged: usize) -> Crew {
    Crew {
        jobs: kept.jobs(charged),
        handles: kept.handles.clone(),
        ranked: kept.inside.ranked(),
        grip: Arc::clone(&kept.grip),
        outside: vtm.outside,
        real_time,
        suspended: vtm.suspended,
        meter: Arc::clone(&kept.meter),
    }
}

impl Enforcer for Table {
    fn kind(&self) -> Kind {
        Kind::Table
    }

    fn ability(&self) -> &Ability {
        &self.ability
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared> {
        plan.check()?;
        self.check_shares(plan)?;
        inside::refuse_deadlines(plan)?;
        let known: BTreeMap<String, Site> =
            self.kept.iter().map(|(id, kept)| (id.clone(), kept.site.clone())).collect();
        let found = place::find(plan, &known, &self.hierarchies)?;
        let charged = cost::charged_threads(found.values());
        let switch_ns = self.cost.for_threads(charged);
        let costs = Costs::new(switch_ns).map_err(|error| EnforceError::Dispatcher(error.to_string()))?;
        let mut processors = plan.processors();
        processors.extend(self.lanes.keys().copied().filter(|known| !plan.processors().contains(known)));
        let mut changes = Vec::new();
        for &processor in &processors {
            changes.push((processor, Change::build(processor, plan.rule(costs), &plan.vtms)?));
        }
        let times = inside::times(plan, costs, &changes);
        let mut caveats = self.ability.caveats.clone();
        caveats.extend(times.iter().flat_map(|(id, times)| inside::caveats(plan, id, times)));
        refuse_strict(plan, &caveats)?;
        let sites = place::settle(plan, &known, &self.hierarchies, &self.config, &mut self.ledger)?;
        for vtm in plan.vtms.iter().filter(|vtm| vtm.outside == Outside::Held) {
            if sites.get(&vtm.id).is_some_and(|site| grip_is_signals(vtm, site)) {
                caveats.push(format!("`{}` has no freezer: it is held by signals, which its parents see, and what it starts runs free for some moments", vtm.id));
            }
        }
        refuse_strict(plan, &caveats)?;
        self.announce(plan, &sites)?;
        // Wide enough for both, until the next change.
        let before = self.in_force.clone();
        self.set_bound([&before, plan])?;
        for processor in processors {
            self.lane(processor)?;
        }
        // All that can be looked for now is not looked for in the commit.
        let in_force: BTreeMap<&str, &Vtm> =
            self.in_force.vtms.iter().map(|vtm| (vtm.id.as_str(), vtm)).collect();
        let is_same = |vtm: &&Vtm| {
            let site = self.kept.get(&vtm.id).map(|kept| &kept.site);
            in_force.get(vtm.id.as_str()) == Some(vtm) && site.is_some() && site == sites.get(&vtm.id)
        };
        let changed = plan.vtms.iter().filter(|vtm| !is_same(vtm)).map(|vtm| vtm.id.clone()).collect();
        let there: BTreeSet<&str> = plan.vtms.iter().map(|vtm| vtm.id.as_str()).collect();
        let leaving = self.kept.keys().filter(|id| !there.contains(id.as_str())).cloned().collect();
        let exchanges = self.exchanges(plan, &sites);
        self.tickets += 1;
        let (ticket, plan) = (self.tickets, plan.clone());
        let ready =
            Ready { ticket, plan, costs, charged, changes, sites, changed, leaving, exchanges, times };
        self.prepared = Some(ready);
        Ok(Prepared { ticket: self.tickets, switch_ns, caveats })
    }

    fn commit(&mut self, prepared: &Prepared) -> Result<Committed> {
        let begun_ns = sys::clock::clock_ns();
        match self.prepared.take() {
            Some(ready) if ready.ticket == prepared.ticket => {
                let _boost = Boost::begin();
                self.put(ready, begun_ns)
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

    fn effect(&mut self, at_most: Duration) -> Result<Effect> {
        let Some((committed, begun_ns)) = self.last else {
            return Ok(Effect { generation: 0, after_ns: Some(0) });
        };
        let end_ns =
            sys::clock::clock_ns().saturating_add(u64::try_from(at_most.as_nanos()).unwrap_or(u64::MAX));
        while let Some(said) = self.unheard.last() {
            let left = Duration::from_nanos(end_ns.saturating_sub(sys::clock::clock_ns()));
            match said.recv_timeout(left) {
                Ok(at_ns) => self.heard_ns = self.heard_ns.max(at_ns?),
                Err(RecvTimeoutError::Disconnected) => return Err(lane::silent()),
                Err(RecvTimeoutError::Timeout) => {
                    return Ok(Effect { generation: committed.generation, after_ns: None });
                }
            }
            self.unheard.pop();
        }
        let mut last_ns = self.heard_ns.max(begun_ns);
        for id in &self.awaited {
            let Some(kept) = self.kept.get(id) else { continue };
            let Some(lane) = self.lanes.get(&kept.processor) else { continue };
            loop {
                let ended = lane.shared.ended.load(Ordering::SeqCst);
                let at_ns = kept.meter.first_end_ns.load(Ordering::Relaxed);
                if at_ns > 0 {
                    last_ns = last_ns.max(at_ns);
                    break;
                }
                if sys::clock::clock_ns() >= end_ns {
                    return Ok(Effect { generation: committed.generation, after_ns: None });
                }
                sys::schedule::sleep_until(&lane.shared.ended, ended, end_ns);
            }
        }
        Ok(Effect { generation: committed.generation, after_ns: Some(last_ns - begun_ns) })
    }

    fn report(&mut self) -> Result<Report> {
        let mut report =
            Report { generation: self.generation, at_ns: sys::clock::clock_ns(), ..Report::default() };
        for (id, kept) in &mut self.kept {
            kept.look(self.hierarchies.cpu.as_ref(), self.bound.as_deref());
            let meter = &kept.meter;
            report.vtms.push(VtmReport {
                id: id.clone(),
                jobs: kept.census.jobs.len(),
                threads: kept.census.threads(),
                offered_ns: meter.offered_ns.load(Ordering::Relaxed),
                used_ns: kept.census.used_ns(),
                slots: meter.slots.load(Ordering::Relaxed),
                late: meter.late.load(Ordering::Relaxed),
                worst_late_ns: meter.worst_late_ns.load(Ordering::Relaxed),
                overrun_ns: kept.overrun.total_ns,
                notes: [kept.notes(self.charged), kept.inside.team.notes()].concat(),
                inside: kept.inside.reports(),
            });
        }
        for lane in self.lanes.values() {
            report.resynchronised += lane.shared.resynchronised.load(Ordering::Relaxed);
            let worst = lane.shared.worst_decision_ns.load(Ordering::Relaxed);
            report.worst_decision_ns = report.worst_decision_ns.max(worst);
            report.decision_p99_ns = report.decision_p99_ns.max(p99_ns(&lane.shared, worst));
        }
        Ok(report)
    }

    fn scan(&mut self) -> Result<()> {
        self.bid_farewell()?;
        let ids: Vec<String> = self.kept.keys().cloned().collect();
        let (mut looked_at, mut steps) = (0, 0);
        while steps < ids.len().min(SCANNED) && looked_at < SCANNED_THREADS {
            let step = steps;
            steps += 1;
            let Some(id) = ids.get((self.next_scanned + step) % ids.len()) else { continue };
            let (Some(kept), Some(vtm)) = (self.kept.get_mut(id), self.in_force.vtm(id)) else { continue };
            let changed = kept.look(self.hierarchies.cpu.as_ref(), self.bound.as_deref());
            looked_at += kept.census.threads();
            if changed {
                if matches!(*kept.grip, Grip::Signals) {
                    owe_stops(&mut self.ledger, &kept.census)?;
                }
                admit(kept, vtm, self.bound.as_deref());
                if let Some(lane) = self.lanes.get(&kept.processor) {
                    lane.shared.order(Order::Members(kept.tell(id, self.charged)));
                }
            }
        }
        self.next_scanned = if ids.is_empty() { 0 } else { (self.next_scanned + steps) % ids.len() };
        let most = self.kept.values().map(|kept| kept.census.threads()).max().unwrap_or(0);
        if most.next_power_of_two().min(cost::MAX_CHARGED_THREADS) > self.tried.max(self.charged) {
            self.charge(most);
        }
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        for lane in self.lanes.values() {
            lane.shared.order(Order::Stop);
        }
        for (_, mut lane) in std::mem::take(&mut self.lanes) {
            if let Some(thread) = lane.thread.take()
                && thread.join().is_err()
            {
                tracing::error!("a dispatcher's thread panicked; what it did is given back from the ledger");
            }
        }
        self.kept.clear();
        self.leaving.clear();
        self.unheard.clear();
        self.bounds_us = FIRST_BOUND_US;
        (self.in_force, self.before, self.prepared, self.last) = (Plan::default(), None, None, None);
        self.ledger.pay()?;
        let mut caveats = Vec::new();
        self.bound = if self.real_time {
            make_bound(&self.hierarchies, &self.config, &mut self.ledger, &mut caveats)?
        } else {
            None
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
