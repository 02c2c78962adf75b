//! The simulator: the same decisions in virtual time. What it reports is what a machine would give
//! whose switches take what was said.

mod jobs;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use reserve::Costs;
use reserve::trace::ReplayError;

use crate::core::{Change, Core, Recording};
use crate::enforcer::{Ability, Committed, Effect, Enforcer, Kind, Prepared, Report, VtmReport};
use crate::error::{EnforceError, Result};
use crate::plan::Plan;
use jobs::Simulated;

/// Keeps promises to nobody, in no time.
#[derive(Debug)]
pub struct Simulator {
    ability: Ability,
    now_ns: u64,
    cores: BTreeMap<usize, Core>,
    in_force: Plan,
    before: Option<Plan>,
    prepared: Option<(u64, Plan)>,
    tickets: u64,
    generation: u64,
    committed_ns: u64,
    in_force_ns: u64,
    offered: BTreeMap<String, (u64, u64)>,
    /// The jobs that have budgets, of each machine.
    inside: BTreeMap<String, Simulated>,
    /// The names that have to be seen with the new budget before the change has had effect, and
    /// when the last was.
    awaited: Vec<String>,
    effect_ns: Option<u64>,
}

impl Simulator {
    /// A machine with so many processors, where a switch takes `switch_ns`, at time 0.
    #[must_use]
    pub fn new(processors: usize, switch_ns: u64) -> Self {
        let ability = Ability {
            kind: Kind::Simulator,
            switch_ns,
            most_ppm: 1_000_000,
            processors: (0..processors.max(1)).collect(),
            caveats: vec!["time is virtual: no process gets anything".to_owned()],
        };
        Self {
            ability,
            now_ns: 0,
            cores: BTreeMap::new(),
            in_force: Plan::default(),
            before: None,
            prepared: None,
            tickets: 0,
            generation: 0,
            committed_ns: 0,
            in_force_ns: 0,
            offered: BTreeMap::new(),
            inside: BTreeMap::new(),
            awaited: Vec::new(),
            effect_ns: None,
        }
    }

    /// Lets virtual time go on by so much.
    ///
    /// # Errors
    /// None that is known.
    pub fn advance(&mut self, by_ns: u64) -> Result<()> {
        let until = self.now_ns.saturating_add(by_ns);
        let cores = std::mem::take(&mut self.cores);
        for (processor, mut core) in cores {
            let ran = self.run(&mut core, until);
            self.cores.insert(processor, core);
            ran?;
        }
        self.now_ns = until;
        Ok(())
    }

    fn run(&mut self, core: &mut Core, until: u64) -> Result<()> {
        let (mut now, mut last, mut switching) = (self.now_ns, None, 0);
        let mut here: BTreeSet<String> = BTreeSet::new();
        while now < until {
            core.take_gone(now)?;
            // Whoever begins now does so before it is decided who runs.
            here.clear();
            here.extend(core.ids().filter(|id| self.inside.contains_key(*id)).map(str::to_owned));
            let mut next_ns = u64::MAX;
            for id in &here {
                if let (Some(jobs), Some(number)) = (self.inside.get_mut(id), core.number(id)) {
                    next_ns = next_ns.min(jobs.release(core, number, now)?);
                }
            }
            let decision = core.decide(now);
            if decision.vtm != last {
                switching = self.ability.switch_ns;
            }
            let mut to = decision.until_ns.min(until).min(next_ns);
            let job = decision.vtm.zip(decision.job).and_then(|(vtm, job)| core.member(vtm, job));
            let id = decision.vtm.and_then(|vtm| core.id(vtm)).map(str::to_owned);
            // One that goes has no jobs that anybody looks after.
            let stays = id.as_ref().filter(|id| core.number(id) == decision.vtm);
            let jobs = stays.and_then(|id| self.inside.get_mut(id));
            if let (Some(jobs), Some(who)) = (jobs, job) {
                to = to.min(now.saturating_add(switching).saturating_add(jobs.left_ns(who)));
                let worked = (to - now).saturating_sub(switching);
                if jobs.work(who, worked, to)
                    && let Some(number) = decision.vtm
                {
                    core.turn(number, who, None)?;
                    // One that is behind goes on with its next period at once.
                    if let Some(begun_ns) = jobs.begun_ns(who) {
                        core.turn(number, who, Some(begun_ns))?;
                    }
                }
            }
            let switched = switching.min(to - now);
            switching -= switched;
            if let Some(id) = decision.vtm.and_then(|vtm| core.id(vtm)) {
                let (offered, slots) = self.offered.entry(id.to_owned()).or_default();
                *offered += (to - now).saturating_sub(switched);
                *slots += u64::from(decision.vtm != last);
                if now >= self.in_force_ns && self.awaited.iter().any(|other| other == id) {
                    self.awaited.retain(|other| other != id);
                    if self.awaited.is_empty() {
                        self.effect_ns = Some(to - self.committed_ns);
                    }
                }
            }
            (now, last) = (to, decision.vtm);
        }
        Ok(())
    }

    /// Virtual time, in ns.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The decisions of one processor so far.
    #[must_use]
    pub fn recording(&self, processor: usize) -> Option<&Recording> {
        self.cores.get(&processor)?.recording()
    }

    /// Comes to the same decisions as a recorded dispatcher, of a simulator or of a real thread, or
    /// names the first that differs.
    ///
    /// # Errors
    /// Replays a recording.
    pub fn replay(recording: &Recording) -> std::result::Result<(), ReplayError> {
        recording.replay()
    }

    fn changes(&self, plan: &Plan) -> Result<Vec<(usize, Change)>> {
        let costs = Costs::new(self.ability.switch_ns).unwrap_or_default();
        let mut processors = plan.processors();
        processors.extend(self.cores.keys().copied().filter(|known| !plan.processors().contains(known)));
        let build = |processor| {
            Change::build(processor, plan.rule(costs), &plan.vtms).map(|change| (processor, change))
        };
        processors.into_iter().map(build).collect()
    }

    fn put(&mut self, plan: Plan) -> Result<Committed> {
        let changes = self.changes(&plan)?;
        let mut in_force_ns = self.now_ns;
        for (processor, change) in changes {
            let core = match self.cores.entry(processor) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(Core::new(self.now_ns, true)?)
                }
            };
            let at_ns = core.change(change, self.now_ns)?;
            in_force_ns = in_force_ns.max(at_ns);
            for vtm in plan.vtms.iter().filter(|vtm| vtm.processor == processor) {
                let Some(number) = core.number(&vtm.id) else { continue };
                if vtm.inside.by().is_none() {
                    self.inside.remove(&vtm.id);
                    let members: Vec<(u32, Option<reserve::Task>)> =
                        vtm.members.pids.iter().map(|pid| (*pid, None)).collect();
                    core.members(number, &members, self.now_ns)?;
                } else if self.inside.get(&vtm.id).is_none_or(|known| known.jobs() != &vtm.inside) {
                    let jobs = Simulated::new(&vtm.inside, self.now_ns);
                    core.members(number, &jobs.members(), self.now_ns)?;
                    self.inside.insert(vtm.id.clone(), jobs);
                }
            }
        }
        let changed = plan.vtms.iter().filter(|vtm| self.in_force.vtm(&vtm.id) != Some(*vtm));
        self.awaited = changed.map(|vtm| vtm.id.clone()).collect();
        self.effect_ns = self.awaited.is_empty().then_some(0);
        self.offered.retain(|id, _| plan.vtm(id).is_some());
        self.inside.retain(|id, _| plan.vtm(id).is_some());
        self.generation += 1;
        (self.committed_ns, self.in_force_ns) = (self.now_ns, in_force_ns);
        self.before = Some(std::mem::replace(&mut self.in_force, plan));
        Ok(Committed { generation: self.generation, commit_ns: 0, in_force_ns })
    }
}

impl Enforcer for Simulator {
    fn kind(&self) -> Kind {
        Kind::Simulator
    }

    fn ability(&self) -> &Ability {
        &self.ability
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared> {
        plan.check()?;
        if let Some(vtm) = plan.vtms.iter().find(|vtm| !self.ability.processors.contains(&vtm.processor)) {
            return Err(EnforceError::NoProcessor { id: vtm.id.clone(), processor: vtm.processor });
        }
        self.changes(plan)?;
        self.tickets += 1;
        self.prepared = Some((self.tickets, plan.clone()));
        let caveats = self.ability.caveats.clone();
        Ok(Prepared { ticket: self.tickets, switch_ns: self.ability.switch_ns, caveats })
    }

    fn commit(&mut self, prepared: &Prepared) -> Result<Committed> {
        match self.prepared.take() {
            Some((ticket, plan)) if ticket == prepared.ticket => self.put(plan),
            _ => Err(EnforceError::Stale),
        }
    }

    fn roll_back(&mut self) -> Result<Committed> {
        let plan = self.before.take().ok_or(EnforceError::NothingToUndo)?;
        let committed = self.put(plan)?;
        self.before = None;
        Ok(committed)
    }

    fn effect(&mut self, at_most: Duration) -> Result<Effect> {
        if self.effect_ns.is_none() {
            self.advance(u64::try_from(at_most.as_nanos()).unwrap_or(u64::MAX))?;
        }
        Ok(Effect { generation: self.generation, after_ns: self.effect_ns })
    }

    fn report(&mut self) -> Result<Report> {
        let vtm = |vtm: &crate::plan::Vtm| {
            let (offered_ns, slots) = self.offered.get(&vtm.id).copied().unwrap_or_default();
            let jobs = vtm.members.pids.len();
            let used_ns = if jobs == 0 { 0 } else { offered_ns };
            VtmReport {
                id: vtm.id.clone(),
                jobs,
                threads: jobs,
                offered_ns,
                used_ns,
                slots,
                inside: self.inside.get(&vtm.id).map_or_else(Vec::new, Simulated::reports),
                ..VtmReport::default()
            }
        };
        let vtms = self.in_force.vtms.iter().map(vtm).collect();
        Ok(Report { generation: self.generation, at_ns: self.now_ns, vtms, ..Report::default() })
    }

    fn scan(&mut self) -> Result<()> {
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        self.put(Plan::default())?;
        self.before = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
