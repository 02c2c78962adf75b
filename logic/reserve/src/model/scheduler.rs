//! The schedules, and the machines that for the time being do not run.

use super::{Id, Kind, Manager, Model, ModelError, Wish};
use crate::dispatch::Inside;
use crate::node::Promise;
use crate::table::{Table, TableError};
use crate::task::Task;
use std::collections::BTreeMap;

/// A scheduler's knowledge of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameters {
    /// Of a machine: what it is promised.
    Machine(Promise),
    /// Of a team: how it shares among its jobs.
    Team(Inside),
    /// Of a job: its budget, period and deadline, where it has any.
    Job(Option<Task>),
}

/// The schedule of one processor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Its number.
    pub processor: usize,
    /// The machines on it, in the order of the table's indices.
    pub machines: Vec<String>,
    /// The machines that are suspended: their turns pass unused.
    pub suspended: Vec<usize>,
    /// When each runs; or why there is no table, so that something else has to keep the promises.
    pub table: Result<Table, TableError>,
}

/// Schedules machines, teams and jobs.
pub trait Scheduler {
    /// A machine or a job does not run until it is resumed. Its promise stays.
    ///
    /// # Errors
    /// Where it is none of these.
    fn suspend(&mut self, id: Id) -> Result<(), ModelError>;

    /// It runs again.
    ///
    /// # Errors
    /// Where it is none of these.
    fn resume(&mut self, id: Id) -> Result<(), ModelError>;

    /// Whether a machine or a job is suspended, by itself or with its machine.
    ///
    /// # Errors
    /// Where it is none of these.
    fn is_suspended(&self, id: Id) -> Result<bool, ModelError>;

    /// The schedule of each processor on which any machine is.
    fn schedule(&self) -> Vec<Schedule>;

    /// The parameters of a machine, a team or a job.
    ///
    /// # Errors
    /// Where it is none of these.
    fn parameters(&self, id: Id) -> Result<Parameters, ModelError>;

    /// Others.
    ///
    /// # Errors
    /// Where they are another kind's, or somebody would be late.
    fn set_parameters(&mut self, id: Id, parameters: Parameters) -> Result<(), ModelError>;
}

impl Model {
    /// The kind of a resource and the name of the machine that it belongs to.
    fn owner(&self, id: Id) -> Result<(Kind, String, String), ModelError> {
        let found = self.resources.get(&id).ok_or(ModelError::NoResource(id))?;
        let top = if found.kind == Kind::Machine { Some(id) } else { self.above(id).last().copied() };
        let owner = top.and_then(|top| self.resources.get(&top)).map_or("", |top| top.name.as_str());
        Ok((found.kind, owner.to_owned(), found.name.clone()))
    }

    fn unfit(id: Id, found: Kind, wanted: &'static str) -> ModelError {
        ModelError::Unfit { id, found, wanted }
    }

    fn set_suspended(&mut self, id: Id, suspended: bool) -> Result<(), ModelError> {
        let (kind, owner, name) = self.owner(id)?;
        match (kind, self.machines.get_mut(&owner)) {
            (Kind::Machine, Some(machine)) => machine.suspended = suspended,
            (Kind::Job, Some(machine)) => match machine.jobs.get_mut(&name) {
                Some(job) => job.suspended = suspended,
                None => return Err(ModelError::NoResource(id)),
            },
            (other, _) => return Err(Self::unfit(id, other, "only a machine or a job can be suspended")),
        }
        Ok(())
    }
}

impl Scheduler for Model {
    fn suspend(&mut self, id: Id) -> Result<(), ModelError> {
        self.set_suspended(id, true)
    }

    fn resume(&mut self, id: Id) -> Result<(), ModelError> {
        self.set_suspended(id, false)
    }

    fn is_suspended(&self, id: Id) -> Result<bool, ModelError> {
        let (kind, owner, name) = self.owner(id)?;
        match (kind, self.machines.get(&owner)) {
            (Kind::Machine | Kind::Team, Some(machine)) => Ok(machine.suspended),
            (Kind::Job, Some(machine)) => {
                Ok(machine.suspended || machine.jobs.get(&name).is_some_and(|job| job.suspended))
            }
            (other, _) => Err(Self::unfit(id, other, "only a machine or a job can be suspended")),
        }
    }

    fn schedule(&self) -> Vec<Schedule> {
        let one = |processor: usize| {
            let machines: Vec<String> =
                self.node.on_processor(processor).map(|(name, _)| name.to_owned()).collect();
            if machines.is_empty() {
                return None;
            }
            let is_suspended = |name: &String| self.machines.get(name).is_some_and(|found| found.suspended);
            let suspended =
                (0..machines.len()).filter(|index| machines.get(*index).is_some_and(is_suspended));
            let suspended = suspended.collect();
            let table = self.node.table(processor).map(|(_, table)| table);
            Some(Schedule { processor, machines, suspended, table })
        };
        (0..self.node.capacity().processors).filter_map(one).collect()
    }

    fn parameters(&self, id: Id) -> Result<Parameters, ModelError> {
        let (kind, owner, name) = self.owner(id)?;
        let known = self.machines.get(&owner);
        match (kind, known) {
            (Kind::Machine, Some(_)) => {
                Ok(Parameters::Machine(self.node.promise(&owner).copied().unwrap_or_default()))
            }
            (Kind::Team, Some(machine)) => Ok(Parameters::Team(machine.inside)),
            (Kind::Job, Some(machine)) => {
                Ok(Parameters::Job(machine.jobs.get(&name).and_then(|job| job.task)))
            }
            (other, _) => Err(Self::unfit(id, other, "only machines, teams and jobs have parameters")),
        }
    }

    fn set_parameters(&mut self, id: Id, parameters: Parameters) -> Result<(), ModelError> {
        let (kind, owner, name) = self.owner(id)?;
        if let (Kind::Machine, Parameters::Machine(promise)) = (kind, parameters) {
            return self.adapt(&[(&owner, Wish::of(&promise))]);
        }
        let mut after = self.clone();
        match (kind, parameters, after.machines.get_mut(&owner)) {
            (Kind::Team, Parameters::Team(inside), Some(machine)) => machine.inside = inside,
            (Kind::Job, Parameters::Job(task), Some(machine)) => match machine.jobs.get_mut(&name) {
                Some(job) => job.task = task,
                None => return Err(ModelError::NoResource(id)),
            },
            (other, ..) => return Err(Self::unfit(id, other, "these are parameters of another kind")),
        }
        after.check_inside(&after.node, &after.processor_of(&owner), &BTreeMap::new())?;
        *self = after;
        Ok(())
    }
}
