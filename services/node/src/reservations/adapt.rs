//! Adaptations: several promises change in one step, or none; and how long that took to have
//! effect.

use super::actuator::Caveats;
use super::dispatchers::{self, Turn};
use super::{Book, EFFECT_PAUSE, EFFECT_TIMEOUT, Entry, State, choice, refused, tell, unknown};
use admin::reserve::{AdaptRequest, Adapted, Change, MoveRequest};
use admin::{Code, Problem};
use enforce::{Boost, Kind, Vtm};
use reserve::adapt::{Step, Transaction};
use reserve::model::{Manager, Wish};
use reserve::node::Promise;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use topology::{DiskShare, NetworkClass, NetworkShare, ProcessorShare, Reserve};

/// How many adaptations there were, and what the last one took.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Adaptations {
    made: u64,
    refused: u64,
    decide_us: u64,
    commit_us: u64,
    effect_us: Option<u64>,
}

/// An adaptation that is made, and may not have had effect yet.
pub(super) struct Done {
    adapted: Adapted,
    decided: Instant,
    /// Cgroups whose quota has changed, and how many periods each had had then.
    waiting: Vec<(String, u64)>,
    /// The number of the change of each dispatcher.
    generations: Vec<(Kind, u64)>,
    /// How long it may take to have effect.
    patience: Duration,
    /// The domains that get another enforcement, and their promise before.
    others: Vec<(String, Reserve)>,
}

/// The steps of an adaptation that were done so far.
enum Did {
    /// A step of the transaction, by its number.
    Step(usize),
    /// A dispatcher's change.
    Turn(usize),
}

#[derive(Default)]
struct Told {
    did: Vec<Did>,
    caveats: Caveats,
    generations: Vec<(Kind, u64)>,
}

impl Book {
    /// Changes several promises in one step.
    ///
    /// # Errors
    /// Where they can't be kept, or the kernel refused a part: then all is as before.
    pub(crate) fn adapt(&self, request: &AdaptRequest) -> Result<Adapted, Problem> {
        let done = self.adapt_locked(&mut self.lock(), &request.changes);
        self.note(&done, "asked for");
        self.conclude(done)
    }

    /// Has it written down, waits for its effect, and counts it.
    fn conclude(&self, done: Result<Done, Problem>) -> Result<Adapted, Problem> {
        self.write_down();
        self.count(done.and_then(|done| self.await_effect(done)))
    }

    /// Has it written down and counts it; when it has effect is not waited for.
    pub(super) fn conclude_at_once(&self, done: Result<Done, Problem>) -> Result<Adapted, Problem> {
        self.write_down();
        self.count(done.map(|done| done.adapted))
    }

    fn count(&self, done: Result<Adapted, Problem>) -> Result<Adapted, Problem> {
        let mut state = self.lock();
        let counted = &mut state.adaptations;
        match &done {
            Ok(Adapted { decide_us, commit_us, effect_us, .. }) => {
                counted.made += 1;
                (counted.decide_us, counted.commit_us, counted.effect_us) =
                    (*decide_us, *commit_us, *effect_us);
            }
            Err(_) => counted.refused += 1,
        }
        drop(state);
        done
    }

    /// Moves something from one to another in one step.
    ///
    /// # Errors
    /// As [`Book::adapt`]; also where the one has not so much.
    pub(crate) fn shift(&self, request: &MoveRequest) -> Result<Adapted, Problem> {
        let mut state = self.lock();
        let (from, to) = (state.find(&request.from)?, state.find(&request.to)?);
        if from == to {
            return Err(Problem::new(Code::BadRequest, format!("{from} can't give to itself")));
        }
        let changes = shifted(&state, &from, &to, request)?;
        let done = self.adapt_locked(&mut state, &changes);
        drop(state);
        self.note(&done, "asked for");
        self.conclude(done)
    }

    /// Has the trace know what was changed, and why.
    pub(super) fn note(&self, done: &Result<Done, Problem>, why: &str) {
        if let Ok(done) = done {
            self.history.note(&format!("{}: {why}", done.adapted.steps.join(", ")));
        }
    }

    pub(super) fn adapt_locked(&self, state: &mut State, changes: &[Change]) -> Result<Done, Problem> {
        let begun = Instant::now();
        let (mut wishes, mut teams) = (Vec::new(), BTreeMap::new());
        for change in changes {
            let name = state.find(&change.name)?;
            let (wish, team) = state.asked(&change.reserve)?;
            teams.insert(name.clone(), team);
            wishes.push((name, wish, change.reserve.clone()));
        }
        let asked: Vec<(&str, Wish)> = wishes.iter().map(|(name, wish, _)| (name.as_str(), *wish)).collect();
        let adaptation = state.model.admit_teams(&asked, teams).map_err(|error| refused(&error))?;
        let coming = wishes.iter().map(|(name, _, reserve)| (name.as_str(), reserve)).collect();
        state.admit_tables_of_change(adaptation.transaction().after(), &coming)?;
        let transaction = adaptation.transaction();
        let turns = self.turns(state, transaction.steps())?;
        let decided = Instant::now();
        let strict = wishes.iter().any(|(_, _, reserve)| reserve.strict);
        let boost = Boost::begin();
        let told = self.tell_all(state, transaction, &turns, strict);
        let committed = Instant::now();
        drop(boost);
        let (caveats, generations) = told?;
        let (steps, shrinking) = (transaction.steps().to_vec(), transaction.shrinking());
        state.model.commit(adaptation).map_err(|error| refused(&error))?;
        let mut others = Vec::new();
        for (name, _, reserve) in &wishes {
            if let Some(entry) = state.entries.get_mut(name) {
                let is_other = choice::of(&entry.now).0 != choice::of(reserve).0;
                let is_new = entry.without.take().is_some();
                let other_jobs = (entry.now.policy, &entry.now.jobs) != (reserve.policy, &reserve.jobs);
                let is_other = is_new || is_other || other_jobs;
                if entry.in_force && (is_other || entry.now.outside != reserve.outside) {
                    others.push((name.clone(), entry.now.clone()));
                }
                entry.now.clone_from(reserve);
            }
            state.unwritten.mark(name);
        }
        self.publish(state);
        // All but processor time is in force when the kernel has read it back.
        let of_processors = steps.iter().any(|step| step.from.processor != step.to.processor);
        let at_once = !of_processors && !steps.is_empty();
        let adapted = Adapted {
            steps: steps.iter().map(tell::step).collect(),
            shrinking,
            decide_us: micros(decided - begun),
            commit_us: micros(committed - decided),
            effect_us: at_once.then(|| micros(committed - decided)),
            caveats,
        };
        let waiting = self.waiting(state, &steps);
        let periods = state.model.node().promises().filter_map(|(_, promise)| promise.processor);
        let longest =
            periods.map(|(_, task)| Duration::from_nanos(task.period_ns())).max().unwrap_or_default();
        let patience = (longest * 3).min(EFFECT_TIMEOUT);
        Ok(Done { adapted, decided, waiting, generations, patience, others })
    }

    /// Prepares the dispatchers' changes for these steps: nothing has changed yet.
    fn turns(&self, state: &mut State, steps: &[Step]) -> Result<Vec<Turn>, Problem> {
        let last: BTreeMap<&str, &Promise> =
            steps.iter().map(|step| (step.name.as_str(), &step.to)).collect();
        let mut changed: BTreeMap<Kind, (Vec<Vtm>, bool)> = BTreeMap::new();
        for (name, promise) in last {
            let Some(entry) = state.entries.get(name).filter(|entry| entry.in_force) else { continue };
            let Some(kind) = entry.kept_by.filter(|kind| dispatchers::WITH_PROCESS.contains(kind)) else {
                continue;
            };
            let Some(vtm) = state.vtm(name, entry, promise) else {
                let words = format!("{name} is kept by a {kind}, and would be promised no processor time");
                return Err(Problem::new(Code::BadRequest, words).help("leave it some, or end it"));
            };
            let shrinks = steps.iter().any(|step| step.name == name && share(&step.to) < share(&step.from));
            let (vtms, any_shrinks) = changed.entry(kind).or_default();
            *any_shrinks |= shrinks;
            vtms.push(vtm);
        }
        // Who gives goes first.
        let mut changed: Vec<_> = changed.into_iter().collect();
        changed.sort_by_key(|(_, (_, shrinks))| !shrinks);
        let order: enforce::Order = reserve::Policy::from(state.settings.policy).into();
        let mut turns = Vec::new();
        for (kind, (vtms, _)) in changed {
            let turn = state.dispatchers.prepare(kind, order, vtms, &self.there());
            turns.push(turn.map_err(|error| {
                Problem::new(Code::NotAdmitted, format!("the {kind} can't keep this: {error}"))
            })?);
        }
        Ok(turns)
    }

    /// Makes an adaptation true, those that shrink first; or leaves all as it was.
    fn tell_all(
        &self,
        state: &mut State,
        transaction: &Transaction,
        turns: &[Turn],
        strict: bool,
    ) -> Result<(Caveats, Vec<(Kind, u64)>), Problem> {
        let mut told = Told::default();
        let problem = match self.try_tell(state, transaction, turns, &mut told) {
            Ok(()) if !strict || told.caveats.is_empty() => return Ok((told.caveats, told.generations)),
            Ok(()) => Problem::new(
                Code::NotAdmitted,
                format!("this is strict, and not guaranteed here: {}", told.caveats.join("; ")),
            ),
            Err((name, why)) => Problem::new(
                Code::Failed,
                format!("`{name}` could not be adapted, and all is as before: {why}"),
            ),
        };
        let back = transaction.undo(transaction.steps().len());
        for did in told.did.iter().rev() {
            let (name, undone) = match did {
                Did::Step(number) => {
                    let Some(step) = back.get(back.len() - 1 - number) else { continue };
                    (step.name.as_str(), self.perform(state, step).map(drop))
                }
                Did::Turn(number) => {
                    let Some(turn) = turns.get(*number) else { continue };
                    let undone = state.dispatchers.take_back(turn);
                    (turn.kind.name(), undone.map_err(|error| error.to_string()))
                }
            };
            if let Err(error) = undone {
                tracing::error!(name, error, "a step of an adaptation can't be taken back");
            }
        }
        Err(problem)
    }

    fn try_tell(
        &self,
        state: &mut State,
        transaction: &Transaction,
        turns: &[Turn],
        told: &mut Told,
    ) -> Result<(), (String, String)> {
        let (steps, shrinking) = (transaction.steps(), transaction.shrinking());
        let one = |state: &mut State, number: usize, step: &Step, told: &mut Told| {
            // Before it is tried: one that fails may have been done in part.
            told.did.push(Did::Step(number));
            let done = self.perform(state, step);
            done.map(|more| told.caveats.extend(more)).map_err(|why| (step.name.clone(), why))
        };
        for (number, step) in steps.iter().enumerate().take(shrinking) {
            one(state, number, step, told)?;
        }
        let mut in_force_ns = 0;
        for (number, turn) in turns.iter().enumerate() {
            let committed = state.dispatchers.commit(turn);
            let committed = committed.map_err(|error| (turn.kind.name().to_owned(), error.to_string()))?;
            told.did.push(Did::Turn(number));
            told.generations.push((turn.kind, committed.generation));
            let of_it = |step: &&Step| {
                state.entries.get(&step.name).is_some_and(|entry| entry.kept_by == Some(turn.kind))
            };
            if gives_up(steps.iter().filter(of_it)) {
                in_force_ns = in_force_ns.max(committed.in_force_ns);
            }
        }
        for (number, step) in steps.iter().enumerate().skip(shrinking) {
            let by_quota = state.entries.get(&step.name).is_some_and(Entry::is_by_quota);
            if by_quota && share(&step.to) > share(&step.from) && in_force_ns > 0 {
                // What a table gives up is somebody else's only when the table that has less is in
                // force.
                wait_until(std::mem::take(&mut in_force_ns));
            }
            one(state, number, step, told)?;
        }
        Ok(())
    }

    /// Makes one step true in the kernel, for whoever is there; processor time that a dispatcher
    /// keeps is not for this.
    fn perform(&self, state: &mut State, step: &Step) -> Result<Caveats, String> {
        let State { entries, links, settings, .. } = state;
        let Some(entry) = entries.get(&step.name).filter(|entry| entry.in_force) else {
            return Ok(Vec::new());
        };
        let changed = self.actuator.keep_change(&entry.cgroup, &step.from, &step.to, entry.is_by_quota());
        let mut caveats = match changed {
            // Who has just ended is not there to be kept anything.
            Err(_) if !self.actuator.cgroups().exists(&entry.cgroup) => return Ok(Vec::new()),
            other => other?,
        };
        let number = |promise: &Promise| promise.processor.map(|(number, _)| number);
        if number(&step.from) != number(&step.to) && entry.kept_by != Some(Kind::Deadline) {
            let processor = number(&step.to).and_then(|number| settings.processors.get(number).copied());
            caveats.extend(self.actuator.pin(&entry.cgroup, processor));
        }
        if step.from.network != step.to.network {
            let cgroups = self.actuator.cgroups();
            let changed = links.change(&step.name, &entry.cgroup, &step.to, settings, cgroups);
            caveats.extend(changed.map_err(|why| format!("the network: {why}"))?);
        }
        Ok(caveats)
    }

    /// Returns the domains whose quota has changed, and the number of periods that each has had so
    /// far.
    fn waiting(&self, state: &State, steps: &[Step]) -> Vec<(String, u64)> {
        let cgroups = self.actuator.cgroups();
        let changed = steps.iter().filter(|step| step.from.processor != step.to.processor);
        let entries = changed.filter_map(|step| state.entries.get(&step.name));
        let by_quota = entries.filter(|entry| entry.in_force && entry.is_by_quota());
        by_quota
            .filter_map(|entry| Some((entry.cgroup.clone(), cgroups.quota_periods(&entry.cgroup)?)))
            .collect()
    }

    /// Waits until an adaptation has had effect, as the kernel's counts of periods and the
    /// dispatchers' own events say; others go on meanwhile. Then, whoever is to be kept by
    /// something else from now on is.
    fn await_effect(&self, done: Done) -> Result<Adapted, Problem> {
        let Done { mut adapted, decided, mut waiting, mut generations, patience, others } = done;
        let cgroups = self.actuator.cgroups();
        let mut last_us = 0;
        let mut is_seen = !waiting.is_empty() || !generations.is_empty();
        while is_seen && !(waiting.is_empty() && generations.is_empty()) {
            if !waiting.is_empty() {
                waiting.retain(|(cgroup, before)| {
                    cgroups.quota_periods(cgroup).is_some_and(|periods| periods <= *before)
                });
                last_us = micros(decided.elapsed());
            }
            let mut is_lost = false;
            generations.retain(|(kind, generation)| match self.lock().dispatchers.effect(*kind) {
                Some(effect) if effect.generation == *generation => {
                    last_us = last_us.max(effect.after_ns.map_or(0, |ns| ns / 1_000));
                    effect.after_ns.is_none()
                }
                // Another change came after it, or the dispatcher has died.
                _ => {
                    is_lost = true;
                    false
                }
            });
            is_seen = !is_lost && decided.elapsed() < patience;
            if is_seen && !(waiting.is_empty() && generations.is_empty()) {
                // tidy(sleep): the kernel counts periods and has no event for a new one; bounded by
                // `patience`.
                std::thread::sleep(EFFECT_PAUSE);
            }
        }
        if is_seen {
            adapted.effect_us = Some(last_us);
        }
        for (name, before) in others {
            if let Err(why) = self.keep(&name) {
                let mut state = self.lock();
                if let Some(entry) = state.entries.get_mut(&name) {
                    (entry.now.enforce, entry.now.outside) = (before.enforce, before.outside);
                    (entry.now.policy, entry.now.jobs) = (before.policy, before.jobs);
                }
                state.unwritten.mark(&name);
                drop(state);
                self.write_down();
                if let Err(error) = self.keep(&name) {
                    tracing::error!(name, error, "it can't be kept as before");
                }
                let words = format!("{name} has the new numbers, and is kept as before: {why}");
                return Err(Problem::new(Code::Failed, words));
            }
            let kept_by = self.lock().entries.get(&name).and_then(|entry| entry.kept_by);
            adapted.steps.extend(kept_by.map(|kind| format!("{name}: kept by {kind} from now on")));
        }
        Ok(adapted)
    }
}

/// Returns the share of a processor that a promise takes, in 2^-20.
fn share(promise: &Promise) -> u128 {
    let task = promise.processor.map(|(_, task)| task);
    task.map_or(0, |task| (u128::from(task.budget_ns()) << 20) / u128::from(task.period_ns().max(1)))
}

/// Whether all of these together leave more of a processor to others than before; what goes from
/// one of them to another does not.
fn gives_up<'a>(steps: impl Iterator<Item = &'a Step>) -> bool {
    let number = |promise: &Promise| promise.processor.map(|(number, _)| number);
    let mut shares: BTreeMap<Option<usize>, (u128, u128)> = BTreeMap::new();
    for step in steps {
        shares.entry(number(&step.from)).or_default().0 += share(&step.from);
        shares.entry(number(&step.to)).or_default().1 += share(&step.to);
    }
    shares.values().any(|(from, to)| to < from)
}

/// Until that time of the monotonic clock, or as long as an adaptation may take to have effect.
fn wait_until(at_ns: u64) {
    let left = Duration::from_nanos(at_ns.saturating_sub(sys::clock::clock_ns()));
    // tidy(sleep): the time at which a table takes over is known; bounded by EFFECT_TIMEOUT.
    std::thread::sleep(left.min(EFFECT_TIMEOUT));
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The two promises after something went from one to the other.
fn shifted(state: &State, from: &str, to: &str, request: &MoveRequest) -> Result<Vec<Change>, Problem> {
    let now =
        |name: &str| state.entries.get(name).map(|entry| entry.now.clone()).ok_or_else(|| unknown(name));
    let (mut giver, mut taker) = (now(from)?, now(to)?);
    let lacks = |what: &str| {
        let problem = Problem::new(Code::NotAdmitted, format!("{from} has not so much {what} to give"));
        problem.help(format!("`tombolo reserve show {from}` says what it has"))
    };
    let nothing =
        MoveRequest { from: request.from.clone(), to: request.to.clone(), ..MoveRequest::default() };
    if *request == nothing {
        let problem = Problem::new(Code::BadRequest, "nothing is moved");
        return Err(problem.help("say what: --cpu 8ms, --network 1mbit, --memory 16MiB, --io-bytes 1MB"));
    }
    if request.cpu_ns > 0 {
        let mut cpu = giver.cpu.ok_or_else(|| lacks("processor time"))?;
        let own = taker.cpu.unwrap_or(ProcessorShare { budget_ns: 0, processor: None, ..cpu });
        // The same share of the other's period; what does not divide stays nobody's.
        let gain = u128::from(request.cpu_ns) * u128::from(own.period_ns) / u128::from(cpu.period_ns.max(1));
        let gain = u64::try_from(gain).unwrap_or(u64::MAX);
        cpu.budget_ns = cpu.budget_ns.checked_sub(request.cpu_ns).ok_or_else(|| lacks("processor time"))?;
        giver.cpu = (cpu.budget_ns > 0).then_some(cpu);
        taker.cpu = Some(ProcessorShare { budget_ns: own.budget_ns.saturating_add(gain), ..own });
    }
    if request.network_bits > 0 {
        let mut share = giver.network.ok_or_else(|| lacks("of the network"))?;
        let own =
            taker.network.unwrap_or(NetworkShare { rate_bits: 0, class: NetworkClass::default(), ..share });
        share.rate_bits =
            share.rate_bits.checked_sub(request.network_bits).ok_or_else(|| lacks("of the network"))?;
        giver.network = (share.rate_bits > 0).then_some(share);
        let rate_bits = own.rate_bits.saturating_add(request.network_bits);
        let ceiling_bits = own.ceiling_bits.map(|ceiling| ceiling.max(rate_bits));
        taker.network = Some(NetworkShare { rate_bits, ceiling_bits, ..own });
    }
    let less = |has: Option<u64>, wanted: u64, what: &str| -> Result<Option<u64>, Problem> {
        if wanted == 0 {
            return Ok(has);
        }
        let left = has.unwrap_or(0).checked_sub(wanted).ok_or_else(|| lacks(what))?;
        Ok((left > 0).then_some(left))
    };
    let more = |has: Option<u64>, wanted: u64| match wanted {
        0 => has,
        wanted => Some(has.unwrap_or(0).saturating_add(wanted)),
    };
    giver.memory_bytes = less(giver.memory_bytes, request.memory_bytes, "memory")?;
    taker.memory_bytes = more(taker.memory_bytes, request.memory_bytes);
    if request.io_bytes > 0 || request.io_operations > 0 {
        let has = giver.io.unwrap_or(DiskShare { bytes: None, operations: None });
        let own = taker.io.unwrap_or(DiskShare { bytes: None, operations: None });
        let left = DiskShare {
            bytes: less(has.bytes, request.io_bytes, "of the disk")?,
            operations: less(has.operations, request.io_operations, "of the disk")?,
        };
        giver.io = (left.bytes.is_some() || left.operations.is_some()).then_some(left);
        taker.io = Some(DiskShare {
            bytes: more(own.bytes, request.io_bytes),
            operations: more(own.operations, request.io_operations),
        });
    }
    let has_any = giver.network.is_some() || giver.memory_bytes.is_some() || giver.io.is_some();
    if state.wish(&giver)?.task.is_none() && !has_any {
        return Err(lacks("and still be promised anything").help(format!(
            "{from} would be promised nothing; leave it something, or take its reservation out of the file"
        )));
    }
    Ok(vec![Change { name: from.to_owned(), reserve: giver }, Change { name: to.to_owned(), reserve: taker }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use reserve::Task;

    fn step(name: &str, from: Option<(usize, u64)>, to: Option<(usize, u64)>) -> Step {
        let promise = |what: Option<(usize, u64)>| {
            let processor = what.map(|(number, budget_ns)| (number, Task::new(budget_ns, 100).unwrap()));
            Promise { processor, network: None, memory_bytes: 0, disk: reserve::node::Disk::default() }
        };
        Step { name: name.to_owned(), from: promise(from), to: promise(to) }
    }

    #[test]
    fn what_goes_from_one_to_another_is_given_up_to_nobody() {
        let given = [step("a", Some((0, 30)), Some((0, 20))), step("b", Some((0, 10)), Some((0, 20)))];
        assert!(!gives_up(given.iter()));
        assert!(gives_up(given[..1].iter()));
        assert!(!gives_up(given[1..].iter()));
        // Step by step it comes to the same.
        let halves = [step("a", Some((0, 30)), Some((0, 10))), step("a", Some((0, 10)), Some((0, 40)))];
        assert!(!gives_up(halves.iter()));
        // Another processor has it: the first has something left.
        assert!(gives_up([step("a", Some((0, 30)), Some((1, 40)))].iter()));
        assert!(gives_up([step("a", Some((0, 30)), None)].iter()));
        assert!(!gives_up(std::iter::empty()));
    }
}
