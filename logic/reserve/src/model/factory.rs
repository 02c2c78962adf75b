//! The factories of resources, which also take them away.

use super::{
    Adaptation, Id, Job, Kind, Machine, Manager, Model, ModelError, TURN_NS, Team, Wish, check_name,
};
use crate::dispatch::Inside;
use crate::node::Capacity;
use crate::task::Task;
use std::collections::{BTreeMap, BTreeSet};

/// Makes and removes resources.
pub trait Factory {
    /// Makes a machine that is promised this.
    ///
    /// # Errors
    /// Where there is one of that name, it asks for nothing, or the node can't keep it.
    fn make_machine(&mut self, name: &str, wish: Wish) -> Result<Id, ModelError>;

    /// Makes a job in a machine's team; with a task, one that is in time.
    ///
    /// # Errors
    /// Where there is one of that name, or somebody inside would be late.
    fn make_job(&mut self, machine: &str, job: &str, task: Option<Task>) -> Result<Id, ModelError>;

    /// Removes a job: it ended, or left.
    ///
    /// # Errors
    /// Where there is none.
    fn remove_job(&mut self, machine: &str, job: &str) -> Result<(), ModelError>;

    /// Adds a processor, or opens one that was closed; its number.
    ///
    /// # Errors
    /// Where there are as many as there can be.
    fn add_processor(&mut self) -> Result<usize, ModelError>;

    /// Closes a processor: it gives nobody anything.
    ///
    /// # Errors
    /// While somebody is promised something of it.
    fn remove_processor(&mut self, number: usize) -> Result<(), ModelError>;

    /// Gives the node another link, memory or disk.
    ///
    /// # Errors
    /// Where what is promised does not fit.
    fn resize(&mut self, capacity: Capacity) -> Result<(), ModelError>;
}

impl Factory for Model {
    fn make_machine(&mut self, name: &str, wish: Wish) -> Result<Id, ModelError> {
        if self.machines.contains_key(name) {
            return Err(ModelError::Exists(name.to_owned()));
        }
        if wish.promise(0) == crate::node::Promise::default() {
            return Err(ModelError::Nothing(name.to_owned()));
        }
        self.adapt(&[(name, wish)])?;
        self.machine(name).ok_or_else(|| ModelError::NoMachine(name.to_owned()))
    }

    fn make_job(&mut self, machine: &str, job: &str, task: Option<Task>) -> Result<Id, ModelError> {
        check_name(job)?;
        let known = self.known(machine)?;
        if known.jobs.contains_key(job) {
            return Err(ModelError::JobExists { machine: machine.to_owned(), job: job.to_owned() });
        }
        if known.jobs.len() >= super::MAX_JOBS {
            return Err(ModelError::TooManyJobs(machine.to_owned()));
        }
        let team = known.team;
        let mut after = self.clone();
        let id = after.add(Kind::Job, job);
        if let Some(found) = after.machines.get_mut(machine) {
            found.jobs.insert(job.to_owned(), Job { id, task, suspended: false });
        }
        after.check_inside(&after.node, &after.processor_of(machine), &BTreeMap::new())?;
        after.join(team, id);
        after.redraw(machine);
        *self = after;
        Ok(id)
    }

    fn remove_job(&mut self, machine: &str, job: &str) -> Result<(), ModelError> {
        let found =
            self.machines.get_mut(machine).ok_or_else(|| ModelError::NoMachine(machine.to_owned()))?;
        let gone = found.jobs.remove(job);
        let gone =
            gone.ok_or_else(|| ModelError::NoJob { machine: machine.to_owned(), job: job.to_owned() })?;
        self.drop_resource(gone.id);
        Ok(())
    }

    fn add_processor(&mut self) -> Result<usize, ModelError> {
        if let Some(number) = self.closed.pop_first() {
            return Ok(number);
        }
        let mut capacity = self.node.capacity().clone();
        let number = capacity.processors;
        capacity.processors += 1;
        self.node = self.node.with_capacity(capacity)?;
        let id = self.add(Kind::Processor, &format!("processor {number}"));
        self.processors.push(id);
        self.revision += 1;
        Ok(number)
    }

    fn remove_processor(&mut self, number: usize) -> Result<(), ModelError> {
        let processors = self.node.capacity().processors;
        if number >= processors {
            let name = format!("processor {number}");
            return Err(crate::node::NodeError::NoProcessor { name, processor: number, processors }.into());
        }
        let names: Vec<String> = self.node.on_processor(number).map(|(name, _)| name.to_owned()).collect();
        if !names.is_empty() {
            return Err(ModelError::InUse { processor: number, names });
        }
        self.closed.insert(number);
        self.revision += 1;
        Ok(())
    }

    fn resize(&mut self, capacity: Capacity) -> Result<(), ModelError> {
        let (processors, rule) = (self.node.capacity().processors, self.node.capacity().rule);
        self.node = self.node.with_capacity(Capacity { processors, rule, ..capacity })?;
        self.revision += 1;
        Ok(())
    }
}

impl Model {
    pub(super) fn processor_of(&self, machine: &str) -> BTreeSet<usize> {
        let promise = self.node.promise(machine);
        promise.and_then(|promise| promise.processor).map(|(number, _)| number).into_iter().collect()
    }

    /// Puts an admitted adaptation into force.
    ///
    /// # Errors
    /// [`ModelError::Stale`] where something was changed since.
    pub fn commit(&mut self, adaptation: Adaptation) -> Result<(), ModelError> {
        if adaptation.revision != self.revision {
            return Err(ModelError::Stale);
        }
        self.node = adaptation.transaction.commit();
        self.revision += 1;
        let mut teams = adaptation.teams;
        for (name, affinity) in adaptation.affinities {
            let is_there = self.node.promise(&name).is_some();
            match (self.machines.get_mut(&name), is_there) {
                (Some(machine), true) => machine.affinity = affinity,
                (None, true) => self.found(&name, affinity),
                (Some(_), false) => self.dissolve(&name),
                (None, false) => {}
            }
            if let Some(team) = teams.remove(&name) {
                self.staff(&name, team);
            }
            self.redraw(&name);
        }
        Ok(())
    }

    fn found(&mut self, name: &str, affinity: crate::partition::Affinity) {
        let id = self.add(Kind::Machine, name);
        let team = self.add(Kind::Team, name);
        self.join(id, team);
        let inside = Inside::RoundRobin { turn_ns: TURN_NS };
        let machine = Machine { id, team, inside, suspended: false, affinity, jobs: BTreeMap::new() };
        self.machines.insert(name.to_owned(), machine);
    }

    /// Gives a machine this team in place of the one that it has: a job of the same name stays the
    /// same resource.
    fn staff(&mut self, name: &str, team: Team) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        let place = machine.team;
        machine.inside = team.inside;
        let mut before = std::mem::take(&mut machine.jobs);
        let mut jobs = BTreeMap::new();
        for (job, task) in team.jobs {
            let known = before.remove(&job);
            let suspended = known.as_ref().is_some_and(|job| job.suspended);
            let id = known.map_or_else(|| self.add(Kind::Job, &job), |job| job.id);
            self.join(place, id);
            jobs.insert(job, Job { id, task: Some(task), suspended });
        }
        for gone in before.into_values() {
            self.drop_resource(gone.id);
        }
        if let Some(machine) = self.machines.get_mut(name) {
            machine.jobs = jobs;
        }
    }

    fn dissolve(&mut self, name: &str) {
        let Some(machine) = self.machines.remove(name) else { return };
        for job in machine.jobs.values() {
            self.drop_resource(job.id);
        }
        let shares = [Kind::Class, Kind::MemoryShare, Kind::DiskShare];
        for id in shares.map(|kind| self.child(machine.id, kind)).into_iter().flatten() {
            self.drop_resource(id);
        }
        self.drop_resource(machine.team);
        self.drop_resource(machine.id);
    }
}
