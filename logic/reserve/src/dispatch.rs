//! One processor's decisions, two levels deep: the table says whose turn it is, and inside a
//! virtual task machine its own order says which job runs.
//!
//! No clock and no thread: whoever enforces tells it the time and what became of the jobs, and is
//! told who runs and until when. A step allocates nothing.

use crate::table::Table;
use crate::task::{MAX_TASKS, Policy, Task};
use std::collections::VecDeque;

/// Most jobs of one virtual task machine: the processes of a large one.
pub const MAX_JOBS: usize = 4096;

/// The job inside that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Inside {
    /// Each in turn for at most this time, in ns (1 at least); for jobs that nothing is promised to
    /// by name.
    RoundRobin {
        /// Longest turn, in ns.
        turn_ns: u64,
    },
    /// By what the jobs ask for.
    By(Policy),
}

/// A job of a virtual task machine.
#[derive(Debug, Clone, Copy)]
struct Job {
    /// Somebody has this place.
    taken: bool,
    /// Of those that are ready, the least goes first. Round robin has no use for it.
    key: u64,
    ready: bool,
    task: Option<Task>,
}

#[derive(Debug, Clone)]
struct Machine {
    /// Somebody has this place.
    taken: bool,
    inside: Inside,
    jobs: Vec<Job>,
    /// Round robin: who is ready, in order.
    turns: VecDeque<usize>,
    /// Round robin: what is left of the first one's turn, in ns.
    left_ns: u64,
}

/// The machine that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Index of the virtual task machine; `None`: nobody's time.
    pub vtm: Option<usize>,
    /// Index of the job inside it; `None`: none of them is ready.
    pub job: Option<usize>,
    /// When to ask again at the latest, in ns.
    pub until_ns: u64,
}

/// The mistake of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// No such machine.
    #[error("there is no virtual task machine {0} on this processor")]
    NoMachine(usize),
    /// No such job.
    #[error("virtual task machine {vtm} has no job {job}")]
    NoJob {
        /// Index of the machine.
        vtm: usize,
        /// Index of the job.
        job: usize,
    },
    /// Too many of them.
    #[error(
        "{0} jobs are the most of one virtual task machine ({MAX_JOBS}), and {1} virtual task machines those of one processor ({MAX_TASKS})"
    )]
    TooMany(usize, usize),
    /// Ordered by what a job asks for, and it asks for nothing.
    #[error(
        "virtual task machine {vtm} orders its jobs by period or deadline, and job {job} has none; give it one, or use round robin"
    )]
    NoTask {
        /// Index of the machine.
        vtm: usize,
        /// Index of the job.
        job: usize,
    },
}

/// The decisions of one processor.
#[derive(Debug, Clone)]
pub struct Dispatcher {
    table: Table,
    /// When the table began, in ns.
    begun_ns: u64,
    /// The table to come, and when.
    next: Option<(Table, u64)>,
    /// The table that went, until somebody takes it away: freeing memory is not for a dispatcher.
    retired: Option<Table>,
    machines: Vec<Machine>,
    now_ns: u64,
    last: Option<(usize, usize)>,
}

impl Dispatcher {
    /// Begins a table at `now_ns`, with one way of ordering jobs for each index in it.
    ///
    /// # Errors
    /// Where there are more than [`MAX_TASKS`].
    pub fn new(table: Table, insides: &[Inside], now_ns: u64) -> Result<Self, DispatchError> {
        if insides.len() > MAX_TASKS {
            return Err(DispatchError::TooMany(0, insides.len()));
        }
        let machines = insides.iter().map(|inside| Machine::new(*inside)).collect();
        Ok(Self { table, begun_ns: now_ns, next: None, retired: None, machines, now_ns, last: None })
    }

    /// A machine comes; its index, which was nobody's. It gets nothing before a table has it.
    ///
    /// # Errors
    /// Where there are [`MAX_TASKS`] already.
    pub fn add(&mut self, inside: Inside) -> Result<usize, DispatchError> {
        let place = self.machines.iter().position(|machine| !machine.taken).unwrap_or(self.machines.len());
        if place >= MAX_TASKS {
            return Err(DispatchError::TooMany(0, place + 1));
        }
        if place == self.machines.len() {
            self.machines.push(Machine::new(inside));
        } else if let Some(machine) = self.machines.get_mut(place) {
            *machine = Machine::new(inside);
        }
        Ok(place)
    }

    /// A machine goes, with its jobs. The slots that the table still has for it are nobody's time;
    /// its index is free for another.
    ///
    /// # Errors
    /// Where there is no such machine.
    pub fn remove(&mut self, vtm: usize) -> Result<(), DispatchError> {
        let machine = self.machine(vtm)?;
        machine.taken = false;
        machine.jobs.clear();
        machine.turns.clear();
        Ok(())
    }

    fn machine(&mut self, vtm: usize) -> Result<&mut Machine, DispatchError> {
        self.machines.get_mut(vtm).filter(|machine| machine.taken).ok_or(DispatchError::NoMachine(vtm))
    }

    /// A job comes to a machine; its index there, which was nobody's. It is not ready yet.
    ///
    /// # Errors
    /// Where there is no such machine, it is full, or its order needs to know what the job asks
    /// for.
    pub fn join(&mut self, vtm: usize, task: Option<Task>) -> Result<usize, DispatchError> {
        let machine = self.machine(vtm)?;
        let job = machine.jobs.iter().position(|job| !job.taken).unwrap_or(machine.jobs.len());
        if job >= MAX_JOBS {
            return Err(DispatchError::TooMany(job + 1, 1));
        }
        let key = match (machine.inside, task) {
            (Inside::RoundRobin { .. }, _) => 0,
            (Inside::By(Policy::RateMonotonic), Some(task)) => task.period_ns(),
            (Inside::By(Policy::DeadlineMonotonic), Some(task)) => task.deadline_ns(),
            (Inside::By(Policy::EarliestDeadline), Some(_)) => u64::MAX,
            (Inside::By(_), None) => return Err(DispatchError::NoTask { vtm, job }),
        };
        let new = Job { taken: true, key, ready: false, task };
        match machine.jobs.get_mut(job) {
            Some(place) => *place = new,
            None => machine.jobs.push(new),
        }
        // Room for all of them at once, so that no step needs any.
        machine.turns.reserve(machine.jobs.len());
        Ok(job)
    }

    /// A job has work. `begun_ns` is when its period began; its deadline counts from there.
    ///
    /// # Errors
    /// Where there is no such job.
    pub fn ready(&mut self, vtm: usize, job: usize, begun_ns: u64) -> Result<(), DispatchError> {
        let machine = self.machine(vtm)?;
        let found =
            machine.jobs.get_mut(job).filter(|job| job.taken).ok_or(DispatchError::NoJob { vtm, job })?;
        if let (Inside::By(Policy::EarliestDeadline), Some(task)) = (machine.inside, found.task) {
            found.key = begun_ns.saturating_add(task.deadline_ns());
        }
        if !found.ready {
            found.ready = true;
            if let Inside::RoundRobin { turn_ns } = machine.inside {
                if machine.turns.is_empty() {
                    machine.left_ns = turn_ns.max(1);
                }
                machine.turns.push_back(job);
            }
        }
        Ok(())
    }

    /// A job goes; its index is free for another.
    ///
    /// # Errors
    /// Where there is no such job.
    pub fn leave(&mut self, vtm: usize, job: usize) -> Result<(), DispatchError> {
        self.blocked(vtm, job)?;
        if let Some(found) = self.machine(vtm)?.jobs.get_mut(job) {
            found.taken = false;
        }
        Ok(())
    }

    /// A job has no work.
    ///
    /// # Errors
    /// Where there is no such job.
    pub fn blocked(&mut self, vtm: usize, job: usize) -> Result<(), DispatchError> {
        let machine = self.machine(vtm)?;
        let found =
            machine.jobs.get_mut(job).filter(|job| job.taken).ok_or(DispatchError::NoJob { vtm, job })?;
        found.ready = false;
        if let Some(place) = machine.turns.iter().position(|turn| *turn == job) {
            machine.turns.remove(place);
            if let (0, Inside::RoundRobin { turn_ns }) = (place, machine.inside) {
                machine.left_ns = turn_ns.max(1);
            }
        }
        Ok(())
    }

    /// Another table takes over where the present one has nothing left to do; when that is, in ns.
    /// It replaces one that was waiting. `not_before_ns` may be later than now, where more has to
    /// be waited for.
    pub fn adopt(&mut self, table: Table, not_before_ns: u64) -> u64 {
        let since = not_before_ns.max(self.now_ns).saturating_sub(self.begun_ns);
        let at_ns = self.begun_ns.saturating_add(self.table.next_quiet_ns(since));
        self.next = Some((table, at_ns));
        at_ns
    }

    /// The table that an adopted one has replaced, to be freed elsewhere.
    pub fn take_retired(&mut self) -> Option<Table> {
        self.retired.take()
    }

    /// Returns the task that has the processor at `now_ns`. A clock that goes back is taken to
    /// stand still.
    pub fn decide(&mut self, now_ns: u64) -> Decision {
        let now_ns = now_ns.max(self.now_ns);
        self.charge(now_ns - self.now_ns);
        self.now_ns = now_ns;
        if let Some((table, at_ns)) = self.next.take_if(|(_, at_ns)| *at_ns <= now_ns) {
            self.retired = Some(std::mem::replace(&mut self.table, table));
            self.begun_ns = at_ns;
        }
        let cycle_ns = self.table.cycle_ns();
        let inside_ns = (now_ns - self.begun_ns) % cycle_ns;
        let turn = self.table.at(inside_ns);
        let mut until_ns = (now_ns - inside_ns).saturating_add(turn.until_ns);
        if let Some((_, at_ns)) = &self.next {
            until_ns = until_ns.min(*at_ns);
        }
        let machine = turn.who.and_then(|who| self.machines.get(who)).filter(|machine| machine.taken);
        let vtm = machine.and(turn.who);
        let (job, turn_ns) = machine.map_or((None, None), Machine::first);
        if let Some(turn_ns) = turn_ns {
            until_ns = until_ns.min(now_ns.saturating_add(turn_ns));
        }
        self.last = vtm.zip(job);
        Decision { vtm, job, until_ns }
    }

    /// Takes what was run from the turn of who ran.
    fn charge(&mut self, ran_ns: u64) {
        let Some((vtm, job)) = self.last else { return };
        let Some(machine) = self.machines.get_mut(vtm) else { return };
        let Inside::RoundRobin { turn_ns } = machine.inside else { return };
        if machine.turns.front() != Some(&job) {
            return;
        }
        machine.left_ns = machine.left_ns.saturating_sub(ran_ns);
        if machine.left_ns == 0 {
            machine.left_ns = turn_ns.max(1);
            machine.turns.rotate_left(1);
        }
    }
}

impl Machine {
    fn new(inside: Inside) -> Self {
        Self { taken: true, inside, jobs: Vec::new(), turns: VecDeque::new(), left_ns: 0 }
    }

    /// The job that goes first, and for round robin what is left of its turn.
    fn first(&self) -> (Option<usize>, Option<u64>) {
        match self.inside {
            Inside::RoundRobin { .. } => {
                (self.turns.front().copied(), (self.turns.len() > 1).then_some(self.left_ns))
            }
            Inside::By(_) => {
                let ready = self.jobs.iter().enumerate().filter(|(_, job)| job.ready);
                (ready.min_by_key(|(index, job)| (job.key, *index)).map(|(index, _)| index), None)
            }
        }
    }
}
