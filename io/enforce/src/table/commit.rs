//! Putting a plan in force: whose thread is waited for, and what is undone where one does not
//! answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver};

use reserve::dispatch::MAX_JOBS;

use super::inside::Inside;
use super::lane::{self, Crew, Grip, Order};
use super::{ANSWER_TIMEOUT, Kept, Overrun, Ready, Table, admit, crew, share_ppm};
use crate::core::Change;
use crate::enforcer::Committed;
use crate::error::{EnforceError, Result};
use crate::jobs::Roster;
use crate::members::Census;
use crate::place::{Arrivals, Site};
use crate::plan::{Outside, Plan, Vtm};

/// The outcome of telling the threads of processors.
#[derive(Default)]
struct Told {
    /// When all is in force, at the latest.
    in_force_ns: u64,
    /// The same of those that have said so.
    heard_ns: u64,
    /// The answers of those that were not waited for.
    unheard: Vec<Receiver<Result<u64>>>,
}

impl Table {
    /// The processors on which the same machines have the same jobs and are held alike, and as much
    /// is promised as before or more. What changes there is how much each of them has, which a
    /// thread can't refuse; and nobody outside of the table gets any time, so nobody needs to know
    /// from when on exactly.
    pub(super) fn exchanges(&self, plan: &Plan, sites: &BTreeMap<String, Site>) -> BTreeSet<usize> {
        let old: BTreeMap<&str, &Vtm> = self.in_force.vtms.iter().map(|vtm| (vtm.id.as_str(), vtm)).collect();
        let stays = |vtm: &Vtm| {
            let how = |vtm: &Vtm| (vtm.processor, vtm.outside, vtm.suspended);
            let site = self.kept.get(&vtm.id).map(|kept| &kept.site);
            let alike = |old: &&Vtm| how(old) == how(vtm) && old.inside == vtm.inside;
            old.get(vtm.id.as_str()).is_some_and(alike) && site.is_some() && site == sites.get(&vtm.id)
        };
        let count = |plan: &Plan, number| plan.vtms.iter().filter(|vtm| vtm.processor == number).count();
        let only_exchanges = |number: &usize| {
            plan.vtms.iter().filter(|vtm| vtm.processor == *number).all(&stays)
                && count(plan, *number) == count(&self.in_force, *number)
                && share_ppm(plan, *number) >= share_ppm(&self.in_force, *number)
        };
        self.lanes.keys().copied().filter(only_exchanges).collect()
    }

    pub(super) fn put(&mut self, ready: Ready, begun_ns: u64) -> Result<Committed> {
        let Ready { plan, costs, charged, changes, sites, changed, leaving, exchanges, times, .. } = ready;
        let (mut saved, mut told) = (Vec::new(), Told::default());
        let before = (self.charged, self.tried);
        (self.charged, self.tried) = (charged, charged);
        let given = self.tell(&plan, changes, (sites, &changed, &exchanges), &mut saved, &mut told);
        let in_force_ns = match given {
            Ok(at_ns) => at_ns.max(begun_ns),
            Err(error) => {
                (self.charged, self.tried) = before;
                self.take_back(saved);
                return Err(error);
            }
        };
        let commit_ns = sys::clock::clock_ns() - begun_ns;
        for kept in leaving.iter().filter_map(|id| self.kept.remove(id)) {
            self.leaving.push((kept.site, in_force_ns));
        }
        self.leaving.retain(|(site, _)| self.kept.values().all(|kept| kept.site.dir != site.dir));
        self.generation += 1;
        let committed = Committed { generation: self.generation, commit_ns, in_force_ns };
        self.last = Some((committed, begun_ns));
        (self.unheard, self.heard_ns) = (told.unheard, told.heard_ns);
        let waits = |(id, _): &(String, Option<Kept>)| {
            plan.vtm(id).is_some_and(|vtm| !vtm.suspended).then(|| id.clone())
        };
        self.awaited = saved.iter().filter_map(waits).collect();
        for (id, times) in times {
            if let Some(kept) = self.kept.get_mut(&id) {
                kept.inside.set_times(times);
            }
        }
        self.costs = costs;
        self.before = Some(std::mem::replace(&mut self.in_force, plan));
        Ok(committed)
    }

    /// Tells each processor's thread what changes there. Waited for is who may still decide
    /// something without knowing it, and who changes more than how much each has. The changing
    /// entries are in `saved`, as they were. Returns when the change is in force, at the latest.
    fn tell(
        &mut self,
        plan: &Plan,
        changes: Vec<(usize, Change)>,
        (mut sites, changed, exchanges): (BTreeMap<String, Site>, &BTreeSet<String>, &BTreeSet<usize>),
        saved: &mut Vec<(String, Option<Kept>)>,
        told: &mut Told,
    ) -> Result<u64> {
        let mut answers = Vec::new();
        for (processor, change) in changes {
            let mut crews = Vec::new();
            let here = plan.vtms.iter().filter(|vtm| vtm.processor == processor);
            for vtm in here.filter(|vtm| changed.contains(&vtm.id)) {
                saved.push((vtm.id.clone(), self.kept.get(&vtm.id).cloned()));
                let real_time = self.real_time;
                let charged = self.charged;
                let kept = self.keep(vtm, &mut sites)?;
                kept.processor = processor;
                kept.meter.first_end_ns.store(0, Ordering::Relaxed);
                kept.meter.fresh_from_ns.store(u64::MAX, Ordering::Relaxed);
                kept.tell(&vtm.id, charged);
                crews.push((vtm.id.clone(), crew(kept, vtm, real_time, charged)));
            }
            let (answer, said) = mpsc::sync_channel(1);
            let Some(lane) = self.lanes.get_mut(&processor) else { return Err(lane::silent()) };
            let cycle_ns = change.table.cycle_ns();
            let fits = crews.iter().all(|(_, crew): &(String, Crew)| crew.jobs.len() <= MAX_JOBS);
            let knows = lane.shared.order(Order::Change { change, crews, answer });
            let at_ns = lane.horizon.change(sys::clock::clock_ns(), cycle_ns);
            if knows && fits && exchanges.contains(&processor) {
                told.in_force_ns = told.in_force_ns.max(at_ns);
                told.unheard.push(said);
            } else {
                answers.push((processor, said));
            }
        }
        for (processor, said) in answers {
            let at_ns = lane::answer(&said, ANSWER_TIMEOUT, self.real_time)??;
            if let Some(lane) = self.lanes.get_mut(&processor) {
                lane.horizon.settle(at_ns);
            }
            told.heard_ns = told.heard_ns.max(at_ns);
        }
        Ok(told.in_force_ns.max(told.heard_ns))
    }

    /// Takes a change back, at each processor whose thread lives: an order that one of them has not
    /// looked at yet is followed by the one that undoes it.
    fn take_back(&mut self, saved: Vec<(String, Option<Kept>)>) {
        let now = sys::clock::clock_ns();
        for (id, before) in saved.into_iter().rev() {
            let came = match before {
                Some(before) => {
                    self.kept.insert(id, before);
                    None
                }
                None => self.kept.remove(&id),
            };
            self.leaving.extend(came.map(|kept| (kept.site, now)));
        }
        for (&processor, lane) in &self.lanes {
            let rule = self.in_force.rule(self.costs);
            let Ok(change) = Change::build(processor, rule, &self.in_force.vtms) else { continue };
            let here = self.in_force.vtms.iter().filter(|vtm| vtm.processor == processor);
            let crews = here.filter_map(|vtm| {
                let kept = self.kept.get(&vtm.id)?;
                Some((vtm.id.clone(), crew(kept, vtm, self.real_time, self.charged)))
            });
            // Nobody waits for the answer: there is nothing left to be done about it.
            let (answer, _) = mpsc::sync_channel(1);
            lane.shared.order(Order::Change { change, crews: crews.collect(), answer });
        }
    }

    fn keep(&mut self, vtm: &Vtm, sites: &mut BTreeMap<String, Site>) -> Result<&mut Kept> {
        let gone = || EnforceError::Gone { id: vtm.id.clone(), what: "where its processes are".to_owned() };
        let site = sites.remove(&vtm.id).ok_or_else(gone)?;
        let same = self.kept.get(&vtm.id).is_some_and(|kept| {
            let is_held_alike = |old: &Vtm| (old.outside, old.suspended) == (vtm.outside, vtm.suspended);
            kept.site == site && self.in_force.vtm(&vtm.id).is_some_and(is_held_alike)
        });
        if !same {
            let grip = match vtm.outside {
                _ if vtm.suspended => site.freezer()?.map_or(Grip::Signals, Grip::Freezer),
                Outside::Held => site.freezer()?.map_or(Grip::Signals, Grip::Freezer),
                Outside::Stopped => Grip::Signals,
                Outside::Idle | Outside::Fair => Grip::Class,
            };
            let meter = self.kept.remove(&vtm.id).map_or_else(Arc::default, |kept| kept.meter);
            let kept = Kept {
                site,
                grip: Arc::new(grip),
                meter,
                census: Census::default(),
                processor: vtm.processor,
                arrivals: Arrivals::default(),
                told: (BTreeMap::new(), Roster::default()),
                inside: Inside::default(),
                handles: BTreeMap::new(),
                overrun: Overrun::default(),
            };
            self.kept.insert(vtm.id.clone(), kept);
        }
        let (bound, cpu) = (self.bound.clone(), self.hierarchies.cpu.clone());
        let kept = self.kept.get_mut(&vtm.id).ok_or_else(gone)?;
        let others = kept.inside.team.set(&vtm.inside);
        if !same || others || kept.processor != vtm.processor {
            kept.look(cpu.as_ref(), bound.as_deref());
            admit(kept, vtm, bound.as_deref());
        }
        Ok(kept)
    }
}
