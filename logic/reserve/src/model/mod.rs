//! Resources at several levels, and those who make, manage and schedule them.
//!
//! A *virtual task machine* stands at the top. Below it are its parts: a *team* of jobs, a *class*
//! of the link, its shares of memory and disk. Below a team are its *jobs* (processes, threads),
//! and at the bottom is what the node has: processors, the link, memory, the disk. Each resource
//! knows what is directly above and below it, so one can go from a processor up to those who were
//! promised something of it, and from a machine down to what that stands on.
//!
//! | who | does |
//! | --- | --- |
//! | [`Factory`] | makes machines and jobs, adds and removes what the node has |
//! | [`Manager`] | admits, reserves, expels, adapts; says what a machine has; knows the policy |
//! | [`Scheduler`] | suspends and resumes, says who runs when, knows the parameters of each |
//!
//! All of them are one [`Model`], for what they decide hangs together; under them is one
//! [`Node`](crate::node::Node), which does the arithmetic.

mod factory;
mod manager;
mod placing;
mod resource;
mod scheduler;

use crate::adapt::{AdaptError, Transaction};
use crate::admission::AdmitError;
use crate::dispatch::Inside;
use crate::fixed_priority::Response;
use crate::network::Class;
use crate::node::{Capacity, Disk, Node, NodeError, Promise};
use crate::partition::{Affinity, Heuristic};
use crate::table::TableError;
use crate::task::Task;
use std::collections::{BTreeMap, BTreeSet};

pub use factory::Factory;
pub use manager::Manager;
pub use resource::{Id, Kind, Level, Resource};
pub use scheduler::{Parameters, Schedule, Scheduler};

/// Most jobs that a machine's team has: what an analysis looks at together.
pub const MAX_JOBS: usize = crate::task::MAX_TASKS;
/// Longest name of a machine or a job, in bytes: a distributed container's and a domain's, and what
/// stands between.
pub const MAX_NAME: usize = 256;

/// The wish for a machine. The default is nothing, and a machine that is given nothing is expelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wish {
    /// The task on a processor.
    pub task: Option<Task>,
    /// The processors that may give it.
    pub affinity: Affinity,
    /// A class of the link.
    pub network: Option<Class>,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Disk.
    pub disk: Disk,
}

impl Default for Wish {
    fn default() -> Self {
        Self { task: None, affinity: Affinity::ANY, network: None, memory_bytes: 0, disk: Disk::default() }
    }
}

impl Wish {
    /// The wish that asks for what was promised: the same processor, and no other.
    pub fn of(promise: &Promise) -> Self {
        Self {
            task: promise.processor.map(|(_, task)| task),
            affinity: promise.processor.map_or(Affinity::ANY, |(number, _)| Affinity::only([number])),
            network: promise.network,
            memory_bytes: promise.memory_bytes,
            disk: promise.disk,
        }
    }

    fn promise(&self, processor: usize) -> Promise {
        Promise {
            processor: self.task.map(|task| (processor, task)),
            network: self.network,
            memory_bytes: self.memory_bytes,
            disk: self.disk,
        }
    }
}

/// Why something is not done. Nothing is changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The node can't keep it, or can't get there.
    #[error(transparent)]
    Adapt(#[from] AdaptError),
    /// Jobs inside a machine would be late.
    #[error("inside `{machine}`: {}", told(cause, jobs))]
    Inside {
        /// The machine.
        machine: String,
        /// The names of its jobs, by the indices that the cause has.
        jobs: Vec<String>,
        /// Why.
        cause: AdmitError,
    },
    /// Jobs inside were promised to be in time, and there is no table to tell by.
    #[error(
        "the jobs inside `{machine}` have deadlines, which are kept by a table, and processor {processor} has none: {cause}"
    )]
    NoTable {
        /// The machine.
        machine: String,
        /// On which processor.
        processor: usize,
        /// Why there is none.
        cause: TableError,
    },
    /// Nobody of that name.
    #[error("there is no virtual task machine `{0}`")]
    NoMachine(String),
    /// There is one already.
    #[error("there is a virtual task machine `{0}` already; adapt it, or expel it first")]
    Exists(String),
    /// No such job.
    #[error("`{machine}` has no job `{job}`")]
    NoJob {
        /// The machine that has the job.
        machine: String,
        /// The job.
        job: String,
    },
    /// A job of that name is there.
    #[error("`{machine}` has a job `{job}` already")]
    JobExists {
        /// The machine that has the job.
        machine: String,
        /// The job.
        job: String,
    },
    /// More jobs than there may be.
    #[error("`{0}` has {MAX_JOBS} jobs, the most that there may be")]
    TooManyJobs(String),
    /// No resource has that number, or no longer.
    #[error("there is no resource {0}")]
    NoResource(Id),
    /// Not one that this can be done with.
    #[error("resource {id} is {found}; {wanted}")]
    Unfit {
        /// The resource.
        id: Id,
        /// Its kind.
        found: Kind,
        /// The kind that is needed.
        wanted: &'static str,
    },
    /// Somebody was promised something of it.
    #[error("processor {processor} is promised to {}; expel them or move them first", names.join(", "))]
    InUse {
        /// The processor.
        processor: usize,
        /// To whom.
        names: Vec<String>,
    },
    /// A machine asks for no more than nothing.
    #[error("`{0}` asks for nothing; give it some processor time, network, memory or disk")]
    Nothing(String),
    /// No name for a machine or a job.
    #[error("a name has 1 to {MAX_NAME} bytes, and this one {0}")]
    Name(usize),
    /// Something else was changed since it was admitted.
    #[error("something else was changed meanwhile; ask again")]
    Stale,
}

/// A refusal with the names of the jobs.
fn told(cause: &AdmitError, jobs: &[String]) -> String {
    let AdmitError::Refused(refusal) = cause else { return cause.to_string() };
    let name = |index: usize| {
        jobs.get(index).map_or_else(|| format!("job {}", index + 1), |name| format!("job `{name}`"))
    };
    refusal.told(name).to_string()
}

impl From<NodeError> for ModelError {
    fn from(error: NodeError) -> Self {
        Self::Adapt(AdaptError::Refused(error))
    }
}

/// A virtual task machine, as the model keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Machine {
    id: Id,
    team: Id,
    inside: Inside,
    suspended: bool,
    affinity: Affinity,
    jobs: BTreeMap<String, Job>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Job {
    id: Id,
    task: Option<Task>,
    suspended: bool,
}

/// How a machine's team shares its time, and the jobs that are promised to be in time. The default:
/// each in turn, and nothing is promised to any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    /// The order of the jobs.
    pub inside: Inside,
    /// The jobs, by name.
    pub jobs: BTreeMap<String, Task>,
}

impl Default for Team {
    fn default() -> Self {
        Self { inside: Inside::RoundRobin { turn_ns: TURN_NS }, jobs: BTreeMap::new() }
    }
}

/// A job of a machine, on what the table of its processor gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed {
    /// Its name.
    pub name: String,
    /// The task that it asks for.
    pub task: Task,
    /// How long it takes at worst; `None` where the policy has no such number (earliest deadline
    /// first).
    pub response: Option<Response>,
}

/// An adaptation that was admitted, and is not in force before it is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adaptation {
    transaction: Transaction,
    affinities: Vec<(String, Affinity)>,
    teams: BTreeMap<String, Team>,
    revision: u64,
}

impl Adaptation {
    /// The steps, in which order, and back.
    pub fn transaction(&self) -> &Transaction {
        &self.transaction
    }
}

/// All resources of a node, and what is promised of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    node: Node,
    heuristic: Heuristic,
    /// Processors that take nobody.
    closed: BTreeSet<usize>,
    resources: BTreeMap<Id, Resource>,
    machines: BTreeMap<String, Machine>,
    processors: Vec<Id>,
    link: Id,
    memory: Id,
    disk: Id,
    next: u64,
    revision: u64,
}

/// Time that a job of a round robin has at once, where nobody says otherwise, in ns: a tick of many
/// kernels.
pub const TURN_NS: u64 = 1_000_000;

impl Model {
    /// A node that has promised nothing. Its processors are numbered from 0.
    ///
    /// # Errors
    /// Where it has more processors than are known how to handle.
    pub fn new(capacity: Capacity, heuristic: Heuristic) -> Result<Self, ModelError> {
        let node = Node::new(capacity)?;
        let count = node.capacity().processors;
        let mut model = Self {
            node,
            heuristic,
            closed: BTreeSet::new(),
            resources: BTreeMap::new(),
            machines: BTreeMap::new(),
            processors: Vec::new(),
            link: Id::NONE,
            memory: Id::NONE,
            disk: Id::NONE,
            next: 1,
            revision: 0,
        };
        for number in 0..count {
            let id = model.add(Kind::Processor, &format!("processor {number}"));
            model.processors.push(id);
        }
        model.link = model.add(Kind::Link, "link");
        model.memory = model.add(Kind::Memory, "memory");
        model.disk = model.add(Kind::Disk, "disk");
        Ok(model)
    }

    /// The arithmetic below: what is promised to whom.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// A resource, and what is directly above and below it.
    pub fn resource(&self, id: Id) -> Option<&Resource> {
        self.resources.get(&id)
    }

    /// All of them, in the order in which they were made.
    pub fn all(&self) -> impl Iterator<Item = (Id, &Resource)> {
        self.resources.iter().map(|(id, resource)| (*id, resource))
    }

    /// The machine of that name.
    pub fn machine(&self, name: &str) -> Option<Id> {
        self.machines.get(name).map(|machine| machine.id)
    }

    /// The names of all machines.
    pub fn machines(&self) -> impl Iterator<Item = &str> {
        self.machines.keys().map(String::as_str)
    }

    /// A processor, by its number.
    pub fn processor(&self, number: usize) -> Option<Id> {
        self.processors.get(number).copied()
    }

    /// Everything above a resource, nearest first: who stands on it.
    pub fn above(&self, id: Id) -> Vec<Id> {
        self.reach(id, |resource| &resource.above)
    }

    /// Everything below a resource, nearest first: what it stands on.
    pub fn below(&self, id: Id) -> Vec<Id> {
        self.reach(id, |resource| &resource.below)
    }

    fn reach(&self, from: Id, next: impl Fn(&Resource) -> &BTreeSet<Id>) -> Vec<Id> {
        let mut found: Vec<Id> = Vec::new();
        let mut seen = BTreeSet::from([from]);
        let mut at = 0;
        let mut here = Some(from);
        while let Some(id) = here {
            let neighbours = self.resources.get(&id).map(&next).into_iter().flatten();
            found.extend(neighbours.copied().filter(|id| seen.insert(*id)));
            here = found.get(at).copied();
            at += 1;
        }
        found
    }

    fn add(&mut self, kind: Kind, name: &str) -> Id {
        let id = Id::numbered(self.next);
        self.next += 1;
        self.resources.insert(id, Resource::new(kind, name));
        id
    }

    fn join(&mut self, above: Id, below: Id) {
        if let Some(resource) = self.resources.get_mut(&above) {
            resource.below.insert(below);
        }
        if let Some(resource) = self.resources.get_mut(&below) {
            resource.above.insert(above);
        }
    }

    fn part(&mut self, above: Id, below: Id) {
        if let Some(resource) = self.resources.get_mut(&above) {
            resource.below.remove(&below);
        }
        if let Some(resource) = self.resources.get_mut(&below) {
            resource.above.remove(&above);
        }
    }

    fn drop_resource(&mut self, id: Id) {
        let Some(gone) = self.resources.remove(&id) else { return };
        for above in gone.above {
            if let Some(resource) = self.resources.get_mut(&above) {
                resource.below.remove(&id);
            }
        }
        for below in gone.below {
            if let Some(resource) = self.resources.get_mut(&below) {
                resource.above.remove(&id);
            }
        }
    }

    /// Makes the levels between a machine and the node's own what its promise says.
    fn redraw(&mut self, name: &str) {
        let Some(machine) = self.machines.get(name) else { return };
        let (id, team) = (machine.id, machine.team);
        let jobs: Vec<Id> = machine.jobs.values().map(|job| job.id).collect();
        let promise = self.node.promise(name).copied().unwrap_or_default();
        let on = promise.processor.and_then(|(number, _)| self.processors.get(number).copied());
        for place in jobs.iter().copied().chain([team]) {
            for processor in self.processors.clone() {
                if on == Some(processor) {
                    self.join(place, processor);
                } else {
                    self.part(place, processor);
                }
            }
        }
        let has_disk = promise.disk != Disk::default();
        for (kind, wanted, bottom) in [
            (Kind::Class, promise.network.is_some(), self.link),
            (Kind::MemoryShare, promise.memory_bytes > 0, self.memory),
            (Kind::DiskShare, has_disk, self.disk),
        ] {
            let found = self.child(id, kind);
            match (found, wanted) {
                (None, true) => {
                    let share = self.add(kind, name);
                    self.join(id, share);
                    self.join(share, bottom);
                }
                (Some(share), false) => self.drop_resource(share),
                _ => {}
            }
        }
    }

    fn child(&self, of: Id, kind: Kind) -> Option<Id> {
        let below = &self.resources.get(&of)?.below;
        below.iter().copied().find(|id| self.resources.get(id).is_some_and(|found| found.kind == kind))
    }

    fn known(&self, name: &str) -> Result<&Machine, ModelError> {
        self.machines.get(name).ok_or_else(|| ModelError::NoMachine(name.to_owned()))
    }
}

fn check_name(name: &str) -> Result<(), ModelError> {
    if name.is_empty() || name.len() > MAX_NAME { Err(ModelError::Name(name.len())) } else { Ok(()) }
}
