//! One processor's part of a plan: who has which number in its dispatcher, and how a plan takes
//! over from another one. No clock and no thread, so the simulator and the real thread decide by
//! the very same lines.

use std::collections::{BTreeMap, HashMap};

use reserve::dispatch::{Decision, Dispatcher, Inside};
use reserve::trace::{Input, Step};
use reserve::{Rule, Table, Task};

use crate::error::{EnforceError, Result};
use crate::plan::Vtm;

/// Most steps of a recording: half a minute of slots of a millisecond. What comes after is not
/// written down.
pub const MAX_RECORDED: usize = 32_768;

/// The new state of one processor.
#[derive(Debug, Clone)]
pub struct Change {
    /// The table; its tasks are numbered as `vtms` are.
    pub table: Table,
    /// The virtual task machines in it.
    pub vtms: Vec<(String, Inside)>,
}

impl Change {
    /// Works out the table for those of `vtms` that are on `processor`.
    ///
    /// # Errors
    /// Where there is none.
    pub fn build(processor: usize, rule: Rule, vtms: &[Vtm]) -> Result<Self> {
        let here: Vec<&Vtm> = vtms.iter().filter(|vtm| vtm.processor == processor).collect();
        let tasks = here.iter().map(|vtm| vtm.task()).collect::<std::result::Result<Vec<_>, _>>()?;
        let table = Table::build(rule, &tasks).map_err(|source| EnforceError::Table { processor, source })?;
        let vtms = here.iter().map(|vtm| (vtm.id.clone(), (&vtm.inside).into())).collect();
        Ok(Self { table, vtms })
    }
}

/// The decisions since the beginning, and all that they came from.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The first table.
    pub table: Table,
    /// When that began, in ns.
    pub begun_ns: u64,
    /// The orders and decisions.
    pub steps: Vec<Step>,
    /// Whether there was room for all of it.
    pub whole: bool,
}

impl Recording {
    /// Asks a new dispatcher the same again.
    ///
    /// # Errors
    /// At the first step that comes out differently.
    pub fn replay(&self) -> std::result::Result<(), reserve::trace::ReplayError> {
        let fresh = Dispatcher::new(self.table.clone(), &[], self.begun_ns);
        let mut dispatcher =
            fresh.map_err(|source| reserve::trace::ReplayError::Input { step: 0, source })?;
        reserve::trace::replay(&mut dispatcher, &self.steps)
    }
}

#[derive(Debug, Clone)]
struct Machine {
    id: String,
    inside: Inside,
    /// The processes and threads that have places of the dispatcher's, and what they ask for.
    jobs: BTreeMap<u32, (usize, Option<Task>)>,
    /// When it goes, if it does.
    goes_ns: Option<u64>,
}

/// The dispatcher of one processor, with names.
#[derive(Debug)]
pub struct Core {
    dispatcher: Dispatcher,
    machines: Vec<Option<Machine>>,
    told: Vec<Input>,
    recording: Option<Recording>,
}

impl Core {
    /// Begins with nobody at `now_ns`.
    ///
    /// # Errors
    /// None that is known.
    pub fn new(now_ns: u64, record: bool) -> Result<Self> {
        let table = Table::build(Rule::default(), &[])
            .map_err(|source| EnforceError::Table { processor: 0, source })?;
        let recording = record.then(|| Recording {
            table: table.clone(),
            begun_ns: now_ns,
            steps: Vec::new(),
            whole: true,
        });
        let dispatcher = Dispatcher::new(table, &[], now_ns)?;
        Ok(Self { dispatcher, machines: Vec::new(), told: Vec::new(), recording })
    }

    /// Takes a change, which is in force at the next quiet time, which is returned, in ns. It
    /// replaces one that was waiting.
    ///
    /// # Errors
    /// Where there are too many machines; nothing has changed then.
    pub fn change(&mut self, change: Change, now_ns: u64) -> Result<u64> {
        let mut numbers = Vec::with_capacity(change.vtms.len());
        let mut added = Vec::new();
        let is_there = |(number, machine): (usize, &Option<Machine>)| {
            machine.as_ref().map(|machine| ((machine.id.clone(), machine.inside), number))
        };
        let known: HashMap<(String, Inside), usize> =
            self.machines.iter().enumerate().filter_map(is_there).collect();
        for (id, inside) in change.vtms {
            let key = (id, inside);
            let found = known.get(&key).copied();
            let (id, inside) = key;
            let number = match found {
                Some(number) => number,
                None => match self.add(id, inside) {
                    Ok(number) => {
                        added.push(number);
                        number
                    }
                    Err(error) => {
                        for number in added {
                            self.remove(number)?;
                        }
                        return Err(error);
                    }
                },
            };
            numbers.push(number);
        }
        let table = change.table.renumbered(&numbers);
        if self.recording.is_some() {
            self.told.push(Input::Adopt { table: table.clone(), not_before_ns: now_ns });
        }
        let at_ns = self.dispatcher.adopt(table, now_ns);
        let mut stays = vec![false; self.machines.len()];
        numbers.iter().filter_map(|number| stays.get_mut(*number).map(|stays| *stays = true)).for_each(drop);
        for (machine, stays) in self.machines.iter_mut().zip(stays) {
            if let Some(machine) = machine {
                machine.goes_ns = (!stays).then_some(at_ns);
            }
        }
        Ok(at_ns)
    }

    fn add(&mut self, id: String, inside: Inside) -> Result<usize> {
        let number = self.dispatcher.add(inside)?;
        self.note(Input::Add { inside });
        if number >= self.machines.len() {
            self.machines.resize_with(number + 1, || None);
        }
        self.machines[number] = Some(Machine { id, inside, jobs: BTreeMap::new(), goes_ns: None });
        Ok(number)
    }

    fn remove(&mut self, vtm: usize) -> Result<()> {
        self.dispatcher.remove(vtm)?;
        self.note(Input::Remove { vtm });
        if let Some(place) = self.machines.get_mut(vtm) {
            *place = None;
        }
        Ok(())
    }

    fn note(&mut self, input: Input) {
        if self.recording.is_some() {
            self.told.push(input);
        }
    }

    /// Says who is in a virtual task machine now, all of them, in order: its processes, or where
    /// its jobs have budgets the indices of those jobs that somebody is. Whether they have work is
    /// the kernel's to see: they count as ready.
    ///
    /// # Errors
    /// Where there are too many, or no such machine.
    pub fn members(&mut self, vtm: usize, members: &[(u32, Option<Task>)], now_ns: u64) -> Result<()> {
        let Some(Some(machine)) = self.machines.get_mut(vtm) else {
            return Err(reserve::dispatch::DispatchError::NoMachine(vtm).into());
        };
        let mut known = std::mem::take(&mut machine.jobs);
        let stays = |who: u32, task: Option<Task>| members.contains(&(who, task));
        let gone: Vec<(u32, usize)> = known
            .iter()
            .filter(|(who, (_, task))| !stays(**who, *task))
            .map(|(who, (job, _))| (*who, *job))
            .collect();
        for (who, job) in gone {
            known.remove(&who);
            self.dispatcher.leave(vtm, job)?;
            self.note(Input::Leave { vtm, job });
        }
        for &(who, task) in members {
            if known.contains_key(&who) {
                continue;
            }
            let job = self.dispatcher.join(vtm, task)?;
            self.note(Input::Join { vtm, task });
            self.dispatcher.ready(vtm, job, now_ns)?;
            self.note(Input::Ready { vtm, job, begun_ns: now_ns });
            known.insert(who, (job, task));
        }
        if let Some(Some(machine)) = self.machines.get_mut(vtm) {
            machine.jobs = known;
        }
        Ok(())
    }

    /// A job begins, or has nothing more to do; for whoever sees that.
    ///
    /// # Errors
    /// Where there is no such machine or job.
    pub fn turn(&mut self, vtm: usize, who: u32, begun_ns: Option<u64>) -> Result<()> {
        let machine = self.machines.get(vtm).and_then(Option::as_ref);
        let machine = machine.ok_or(reserve::dispatch::DispatchError::NoMachine(vtm))?;
        let job = machine.jobs.get(&who).map(|(job, _)| *job);
        let job = job.ok_or(reserve::dispatch::DispatchError::NoJob { vtm, job: usize::MAX })?;
        let input = if let Some(begun_ns) = begun_ns {
            self.dispatcher.ready(vtm, job, begun_ns)?;
            Input::Ready { vtm, job, begun_ns }
        } else {
            self.dispatcher.blocked(vtm, job)?;
            Input::Blocked { vtm, job }
        };
        self.note(input);
        Ok(())
    }

    /// Decides who runs at `now_ns`.
    pub fn decide(&mut self, now_ns: u64) -> Decision {
        let decision = self.dispatcher.decide(now_ns);
        if let Some(recording) = &mut self.recording {
            if recording.steps.len() < MAX_RECORDED {
                let inputs = std::mem::take(&mut self.told);
                recording.steps.push(Step { at_ns: now_ns, inputs, decision });
            } else {
                recording.whole = false;
                self.told.clear();
            }
        }
        decision
    }

    /// Takes those who have gone by `now_ns`: their table is not in force any more. Their numbers
    /// are free after that.
    ///
    /// # Errors
    /// None that is known.
    pub fn take_gone(&mut self, now_ns: u64) -> Result<Vec<usize>> {
        let due = |machine: &Option<Machine>| {
            machine.as_ref().and_then(|machine| machine.goes_ns).is_some_and(|at| at <= now_ns)
        };
        let gone: Vec<usize> = (0..self.machines.len()).filter(|&vtm| due(&self.machines[vtm])).collect();
        for &vtm in &gone {
            self.remove(vtm)?;
        }
        Ok(gone)
    }

    /// A table that is not used any more, to be freed elsewhere.
    pub fn take_retired(&mut self) -> Option<Table> {
        self.dispatcher.take_retired()
    }

    /// The number of a virtual task machine that is here to stay.
    #[must_use]
    pub fn number(&self, id: &str) -> Option<usize> {
        let is = |machine: &Option<Machine>| {
            machine.as_ref().is_some_and(|machine| machine.id == id && machine.goes_ns.is_none())
        };
        self.machines.iter().position(is)
    }

    /// The names of those that are here to stay.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        let stays = self.machines.iter().flatten().filter(|machine| machine.goes_ns.is_none());
        stays.map(|machine| machine.id.as_str())
    }

    /// The name of a number.
    #[must_use]
    pub fn id(&self, vtm: usize) -> Option<&str> {
        self.machines.get(vtm)?.as_ref().map(|machine| machine.id.as_str())
    }

    /// The process that has the turn of a job; where jobs have budgets, the kernel goes by their
    /// priorities, and there is none.
    #[must_use]
    pub fn process(&self, vtm: usize, job: usize) -> Option<u32> {
        let machine = self.machines.get(vtm)?.as_ref()?;
        let by_turns = matches!(machine.inside, Inside::RoundRobin { .. });
        self.member(vtm, job).filter(|_| by_turns)
    }

    /// The process or thread that has a place of the dispatcher's.
    #[must_use]
    pub fn member(&self, vtm: usize, job: usize) -> Option<u32> {
        let machine = self.machines.get(vtm)?.as_ref()?;
        machine.jobs.iter().find(|(_, (place, _))| *place == job).map(|(who, _)| *who)
    }

    /// The recorded decisions, where that was asked for.
    #[must_use]
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_ref()
    }
}
