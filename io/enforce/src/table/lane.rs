//! One processor's thread: it asks who runs, brings that about, and sleeps until it has to ask
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Duration;

use reserve::Task;
use rustix::process::Signal;
use sys::schedule::Class;

use crate::LATE_NS;
use crate::core::{Change, Core, Recording};
use crate::error::{EnforceError, Result};
use crate::hierarchy::Freezer;
use crate::ledger;
use crate::members;
use crate::plan::Outside;

use super::orders::{BETWEEN, Found, Orders};

/// Priority of jobs in their time. Low, so that whatever else is real-time on the machine comes
/// before them.
pub const JOB_PRIORITY: u32 = 2;
/// Priority of the job whose turn it is, and of the lowest of jobs that have a budget of their own;
/// those above it have the next ones.
pub const TURN_PRIORITY: u32 = 3;
/// Priority of this thread: over those that it rules, under the guardian.
pub const LANE_PRIORITY: u32 = 30;
/// From when a wake-up is so late that the machine must have been away, in ns.
const AWAY_NS: u64 = 1_000_000_000;
/// The longest sleep, in ns: a wake-up that got lost costs no more.
const MAX_SLEEP_NS: u64 = 1_000_000_000;

/// Descriptors of processes: half of what a process has by default. Whoever is beyond is known by
/// numbers alone.
pub const MAX_PIDFDS: usize = 512;

/// How long an answer of a lane is looked for before it is slept for, in ns: some wake-ups between
/// processors.
const SPIN_NS: u64 = 200_000;

/// The time that one virtual task machine was given, written by its lane and read by anybody.
#[derive(Debug, Default)]
pub struct Meter {
    pub offered_ns: AtomicU64,
    pub slots: AtomicU64,
    pub late: AtomicU64,
    /// When the slot began that it has; 0: none.
    pub began_ns: AtomicU64,
    pub worst_late_ns: AtomicU64,
    /// When a slot has ended that began under the last change; 0: none yet.
    pub first_end_ns: AtomicU64,
    /// From when slots are of the last change.
    pub fresh_from_ns: AtomicU64,
}

impl Meter {
    /// The time that was set apart for it until now, in ns, with what it has had of the slot that
    /// it has.
    pub fn so_far_ns(&self) -> u64 {
        let offered_ns = self.offered_ns.load(Ordering::Relaxed);
        match self.began_ns.load(Ordering::Relaxed) {
            0 => offered_ns,
            began_ns => offered_ns.saturating_add(sys::clock::clock_ns().saturating_sub(began_ns)),
        }
    }
}

/// The means that holds processes still outside their time.
#[derive(Debug)]
pub enum Grip {
    /// The freezer of their cgroup.
    Freezer(Freezer),
    /// Signals.
    Signals,
    /// Nothing: they go to another class.
    Class,
}

/// A process that is reached by this, and never another one that has its number.
#[derive(Debug, Clone)]
pub struct Handle {
    /// When it started.
    pub start: u64,
    /// `None`: there are no more descriptors for such.
    pub pidfd: Option<Arc<Pidfd>>,
}

/// A descriptor of a process, of which all handles together have [`MAX_PIDFDS`].
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

static PIDFDS: AtomicUsize = AtomicUsize::new(0);

impl Pidfd {
    /// Opens the handle of a process; `None`: it is gone, or there are as many as may be.
    pub fn open(process: u32) -> Option<Self> {
        let may = |count: usize| (count < MAX_PIDFDS).then_some(count + 1);
        PIDFDS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, may).ok()?;
        // What it does not become is given back here.
        sys::process::pidfd_open(process).map(Self).inspect_err(|_| give_pidfd_back()).ok()
    }
}

impl Drop for Pidfd {
    fn drop(&mut self) {
        give_pidfd_back();
    }
}

fn give_pidfd_back() {
    PIDFDS.fetch_sub(1, Ordering::Relaxed);
}

/// Gives a thread of a process a class. Where the thread is none of this process any more, nobody
/// gets it.
///
/// # Errors
/// The kernel's; `NotFound` where it is none.
pub fn set_class(process: u32, thread: u32, class: Class) -> std::io::Result<()> {
    if !sys::process::is_thread_of(process, thread) {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    sys::schedule::set_class(thread, class)
}

impl Handle {
    /// Returns the handle of a process that was seen with this time of start.
    pub fn new(process: u32, start: u64) -> Self {
        // A number may be another's by now: then this is no handle of whom was seen.
        let pidfd = Pidfd::open(process).filter(|_| members::is_same(process, start));
        Self { start, pidfd: pidfd.map(Arc::new) }
    }

    /// Whether it, or a thread of it, is there: then its number is nobody else's. Where there is no
    /// descriptor, that is not known.
    pub fn is_there(&self) -> bool {
        self.pidfd.as_ref().is_none_or(|pidfd| !sys::process::has_ended(&pidfd.0))
    }

    /// Sends a signal to it, or to nobody.
    ///
    /// # Errors
    /// Where it is no more.
    pub fn send(&self, process: u32, signal: Signal) -> std::io::Result<()> {
        match &self.pidfd {
            Some(pidfd) => sys::process::pidfd_send_signal(&pidfd.0, signal),
            None if members::is_it(process, self.start) => sys::process::kill(process, signal),
            None => Err(std::io::ErrorKind::NotFound.into()),
        }
    }
}

/// The processes of one virtual task machine, as a lane rules them.
#[derive(Debug)]
pub struct Crew {
    pub jobs: BTreeMap<u32, Vec<u32>>,
    /// Its jobs that have a budget of their own, where that is so: then there are no turns.
    pub ranked: Option<Ranked>,
    pub grip: Arc<Grip>,
    /// Its processes, by what is never another's.
    pub handles: BTreeMap<u32, Handle>,
    pub outside: Outside,
    /// Whether they get a real-time class in their time.
    pub real_time: bool,
    /// Whether their time is nobody's: they are held, come what may.
    pub suspended: bool,
    pub meter: Arc<Meter>,
}

/// The ranks of a virtual task machine's members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranked {
    /// The priority of each thread that is a job; the others have [`JOB_PRIORITY`].
    pub priorities: BTreeMap<u32, u32>,
    /// The jobs that somebody is, by their index.
    pub present: Vec<(u32, Option<Task>)>,
}

impl Crew {
    /// The members, as the dispatcher is told.
    fn members(&self) -> Vec<(u32, Option<Task>)> {
        match &self.ranked {
            Some(ranked) => ranked.present.clone(),
            None => self.jobs.keys().map(|process| (*process, None)).collect(),
        }
    }
}

/// An order to a lane.
#[derive(Debug)]
pub enum Order {
    /// Another table, with crews of those who are new; answered with when it is in force.
    Change { change: Change, crews: Vec<(String, Crew)>, answer: SyncSender<Result<u64>> },
    /// The members of a virtual task machine from now on. Memory that is to be freed comes back in
    /// the order's place.
    Members(Members),
    /// Asks for the decisions so far.
    Recording { answer: SyncSender<Option<Recording>> },
    /// Let everybody go, and end.
    Stop,
}

/// The members of a virtual task machine.
#[derive(Debug)]
pub struct Members {
    pub id: String,
    pub jobs: BTreeMap<u32, Vec<u32>>,
    pub ranked: Option<Ranked>,
    pub handles: BTreeMap<u32, Handle>,
}

/// The state that a lane and its owner share.
#[derive(Debug, Default)]
pub struct Shared {
    pub(super) orders: Orders<Order>,
    /// Changes when a slot has ended that somebody waits for.
    pub ended: AtomicU32,
    pub resynchronised: AtomicU64,
    pub worst_decision_ns: AtomicU64,
    /// How many decisions took so many whole us; the last of these counts all that took longer.
    pub decisions: [AtomicU64; DECISION_STEPS],
}

/// How many whole us are told apart in what decisions take.
pub const DECISION_STEPS: usize = 32;

impl Shared {
    /// Gives an order, and wakes the lane where it may sleep. `true`: the lane decides nothing any
    /// more without it.
    pub fn order(&self, order: Order) -> bool {
        let found = self.orders.give(order);
        if found == (Found::Between { first: true }) {
            sys::schedule::wake(self.orders.place());
        }
        found != Found::Within
    }
}

struct Seat {
    crew: Crew,
    /// Whether all of its threads are in the class that they have now.
    raised: bool,
    /// Whether any of them may be real-time.
    is_real: bool,
    held: bool,
    /// Processes that we stopped, by signal.
    stopped: BTreeMap<u32, Handle>,
}

/// The thread's own.
struct Lane {
    core: Core,
    seats: BTreeMap<usize, Seat>,
    shared: Arc<Shared>,
    running: Option<usize>,
    turn: Option<u32>,
    began_ns: u64,
}

/// Runs a processor until it is told to stop. The calling thread is the lane.
///
/// # Errors
/// None that is known.
pub fn run(shared: Arc<Shared>, record: bool) -> Result<()> {
    let core = Core::new(sys::clock::clock_ns(), record)?;
    let mut lane = Lane { core, seats: BTreeMap::new(), shared, running: None, turn: None, began_ns: 0 };
    let mut due_ns = sys::clock::clock_ns();
    loop {
        if !lane.obey() {
            break;
        }
        let now = sys::clock::clock_ns();
        if now.saturating_sub(due_ns) > AWAY_NS {
            lane.shared.resynchronised.fetch_add(1, Ordering::Relaxed);
        }
        for number in lane.core.take_gone(now)? {
            lane.dismiss(number);
        }
        let decision = lane.core.decide(now);
        let took = sys::clock::clock_ns().saturating_sub(now);
        lane.shared.worst_decision_ns.fetch_max(took, Ordering::Relaxed);
        let step = usize::try_from(took / 1_000).unwrap_or(usize::MAX).min(DECISION_STEPS - 1);
        if let Some(count) = lane.shared.decisions.get(step) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        lane.turn_to(decision.vtm, decision.job, now, due_ns);
        due_ns = decision.until_ns;
        let until = due_ns.min(now.saturating_add(MAX_SLEEP_NS));
        if lane.shared.orders.end() {
            sys::schedule::sleep_until(lane.shared.orders.place(), BETWEEN, until);
        }
        if until < due_ns {
            due_ns = until;
        }
    }
    let numbers: Vec<usize> = lane.seats.keys().copied().collect();
    numbers.into_iter().for_each(|number| lane.dismiss(number));
    Ok(())
}

impl Lane {
    /// Begins a round, and does what was ordered. `false`: stop.
    fn obey(&mut self) -> bool {
        for order in self.shared.orders.begin() {
            match order {
                Order::Stop => return false,
                Order::Members(members) => self.new_members(members),
                Order::Recording { answer } => {
                    // Who asked may have gone.
                    let _ = answer.try_send(self.core.recording().cloned());
                }
                Order::Change { change, crews, answer } => {
                    let now = sys::clock::clock_ns();
                    let _ = answer.try_send(self.change(change, crews, now));
                }
            }
        }
        true
    }

    fn change(&mut self, change: Change, crews: Vec<(String, Crew)>, now: u64) -> Result<u64> {
        let at_ns = self.core.change(change, now)?;
        for (id, crew) in crews {
            let Some(number) = self.core.number(&id) else { continue };
            self.core.members(number, &crew.members(), now)?;
            crew.meter.fresh_from_ns.store(at_ns, Ordering::Relaxed);
            crew.meter.first_end_ns.store(0, Ordering::Relaxed);
            match self.seats.get_mut(&number) {
                Some(seat)
                    if Arc::ptr_eq(&seat.crew.grip, &crew.grip)
                        && (seat.crew.outside, seat.crew.suspended) == (crew.outside, crew.suspended) =>
                {
                    seat.take(crew.jobs, crew.ranked, crew.handles);
                }
                Some(seat) => {
                    seat.give_back();
                    *seat = Seat::new(crew);
                    if self.running != Some(number) || seat.crew.suspended {
                        seat.leave();
                    }
                }
                None => {
                    let mut seat = Seat::new(crew);
                    seat.leave();
                    self.seats.insert(number, seat);
                }
            }
        }
        Ok(at_ns)
    }

    fn new_members(&mut self, Members { id, jobs, ranked, handles }: Members) {
        let now = sys::clock::clock_ns();
        let Some(number) = self.core.number(&id) else { return };
        let Some(seat) = self.seats.get_mut(&number) else { return };
        seat.take(jobs, ranked, handles);
        if let Err(error) = self.core.members(number, &seat.crew.members(), now) {
            tracing::warn!(%error, vtm = id, "more processes than are dispatched");
        }
        if self.running == Some(number) && !seat.crew.suspended {
            seat.enter(self.turn);
        } else {
            seat.leave();
        }
    }

    fn dismiss(&mut self, number: usize) {
        if self.running == Some(number) {
            (self.running, self.turn) = (None, None);
        }
        if let Some(mut seat) = self.seats.remove(&number) {
            seat.give_back();
        }
    }

    fn turn_to(&mut self, vtm: Option<usize>, job: Option<usize>, now: u64, due_ns: u64) {
        let turn = vtm.zip(job).and_then(|(vtm, job)| self.core.process(vtm, job));
        if vtm == self.running {
            if turn != self.turn
                && let Some(seat) = vtm.and_then(|number| self.seats.get_mut(&number))
            {
                seat.pass_on(self.turn, turn);
            }
            self.turn = turn;
            return;
        }
        let leaves = self.running.filter(|number| self.seats.contains_key(number));
        if let Some(seat) = leaves.and_then(|number| self.seats.get_mut(&number)) {
            seat.yield_time();
            seat.crew.meter.began_ns.store(0, Ordering::Relaxed);
            seat.count(self.began_ns, now, &self.shared);
        }
        let late_ns = now.saturating_sub(due_ns);
        if let Some(seat) = vtm.and_then(|number| self.seats.get_mut(&number)) {
            seat.crew.meter.began_ns.store(sys::clock::clock_ns(), Ordering::Relaxed);
            seat.enter(turn);
            let meter = &seat.crew.meter;
            meter.slots.fetch_add(1, Ordering::Relaxed);
            meter.worst_late_ns.fetch_max(late_ns, Ordering::Relaxed);
            meter.late.fetch_add(u64::from(late_ns > LATE_NS), Ordering::Relaxed);
        }
        (self.running, self.turn, self.began_ns) = (vtm, turn, sys::clock::clock_ns());
        // Holding somebody waits for locks of the kernel's, and the next one does not wait for
        // that.
        if let Some(seat) = leaves.and_then(|number| self.seats.get_mut(&number)) {
            seat.hold();
        }
    }
}

impl Seat {
    fn new(crew: Crew) -> Self {
        Self { crew, raised: false, is_real: false, held: false, stopped: BTreeMap::new() }
    }

    /// Other processes and threads are in it from now on. Those that are not among its threads any
    /// more are ordinary ones.
    fn take(
        &mut self,
        jobs: BTreeMap<u32, Vec<u32>>,
        ranked: Option<Ranked>,
        handles: BTreeMap<u32, Handle>,
    ) {
        let before = std::mem::replace(&mut self.crew.jobs, jobs);
        let known = std::mem::replace(&mut self.crew.handles, handles);
        self.crew.ranked = ranked;
        self.raised = false;
        if self.is_real {
            let now: BTreeSet<u32> = self.crew.jobs.values().flatten().copied().collect();
            let there = |process: &u32| known.get(process).is_none_or(Handle::is_there);
            for (process, threads) in before.into_iter().filter(|(process, _)| there(process)) {
                for thread in threads.into_iter().filter(|thread| !now.contains(thread)) {
                    // A thread that is gone needs nothing.
                    let _ = set_class(process, thread, Class::Other { nice: 0 });
                }
            }
        }
    }

    /// Its processes that are there, with their threads.
    fn there(&self) -> impl Iterator<Item = (u32, &[u32])> {
        let jobs = self.crew.jobs.iter().map(|(process, threads)| (*process, threads.as_slice()));
        jobs.filter(|(process, _)| self.crew.handles.get(process).is_none_or(Handle::is_there))
    }

    fn class_of(&self, process: u32, thread: u32, turn: Option<u32>) -> Class {
        let priority = match &self.crew.ranked {
            Some(ranked) => ranked.priorities.get(&thread).copied().unwrap_or(JOB_PRIORITY),
            None if Some(process) == turn => TURN_PRIORITY,
            None => JOB_PRIORITY,
        };
        Class::RoundRobin { priority }
    }

    fn raise(&self, process: u32, threads: &[u32], turn: Option<u32>) {
        for thread in threads {
            // A thread that is gone needs nothing; one that may not is seen by the scan.
            let _ = set_class(process, *thread, self.class_of(process, *thread, turn));
        }
    }

    /// Its time begins.
    fn enter(&mut self, turn: Option<u32>) {
        if self.crew.suspended {
            return;
        }
        if self.crew.real_time && !self.raised {
            self.there().for_each(|(process, threads)| self.raise(process, threads, turn));
            (self.raised, self.is_real) = (true, true);
        } else if self.crew.real_time {
            self.pass_on(None, turn);
        }
        match &*self.crew.grip {
            Grip::Freezer(freezer) if self.held => drop(freezer.set(false)),
            Grip::Signals => {
                self.proceed();
            }
            Grip::Freezer(_) | Grip::Class => {}
        }
        self.held = false;
    }

    /// Puts its threads into the ordinary class, so that none runs in the time of somebody who is
    /// real-time.
    fn lower(&mut self) {
        let idle = matches!(*self.crew.grip, Grip::Class) && self.crew.outside == Outside::Idle;
        for (process, threads) in self.there() {
            for thread in threads {
                // By way of the ordinary class. A thread that is gone needs nothing.
                let lowered = set_class(process, *thread, Class::Other { nice: 0 });
                if idle && lowered.is_ok() {
                    let _ = sys::schedule::set_class(*thread, Class::Idle);
                }
            }
        }
        (self.raised, self.is_real) = (false, false);
    }

    /// Its time ends: its threads are no longer real-time. The kernel holds processes still a
    /// moment after it was told to, and until then they would run in the next one's time.
    fn yield_time(&mut self) {
        if self.is_real || matches!(*self.crew.grip, Grip::Class) {
            self.lower();
        }
    }

    /// Its time ends, and it is held.
    fn leave(&mut self) {
        self.yield_time();
        self.hold();
    }

    /// Holds its processes still.
    fn hold(&mut self) {
        match &*self.crew.grip {
            Grip::Freezer(freezer) => drop(freezer.set(true)),
            Grip::Signals => {
                for (&process, handle) in &self.crew.handles {
                    // Whoever is stopped already was stopped by somebody else, who will continue
                    // it.
                    let own = self.stopped.get(&process).is_some_and(|known| known.start == handle.start);
                    let other =
                        !own && members::state_and_start(process).is_some_and(|(state, _)| state == 'T');
                    if !other && handle.send(process, Signal::STOP).is_ok() {
                        self.stopped.insert(process, handle.clone());
                    }
                }
            }
            Grip::Class => {}
        }
        self.held = true;
    }

    /// Continues whom we have stopped.
    fn proceed(&mut self) {
        for (process, handle) in std::mem::take(&mut self.stopped) {
            // One that has ended needs nothing.
            let _ = handle.send(process, Signal::CONT);
        }
    }

    /// Another job's turn.
    fn pass_on(&mut self, from: Option<u32>, to: Option<u32>) {
        // What a job with a budget of its own has for a priority does not change.
        if !self.crew.real_time || self.crew.suspended || self.crew.ranked.is_some() {
            return;
        }
        if self.crew.jobs.len() > 1 {
            let changes = |process| Some(process) == from || Some(process) == to || from.is_none();
            let those = self.there().filter(|(process, _)| changes(*process));
            those.for_each(|(process, threads)| self.raise(process, threads, to));
        }
    }

    /// Out of real time, then free.
    fn give_back(&mut self) {
        for (process, threads) in self.there() {
            for thread in threads.iter().filter(|thread| sys::process::is_thread_of(process, **thread)) {
                // A thread that is gone needs nothing.
                let _ = ledger::leave_real_time(*thread, Class::Other { nice: 0 });
            }
        }
        if let Grip::Freezer(freezer) = &*self.crew.grip
            && let Err(error) = freezer.set(false)
        {
            tracing::warn!(%error, "a cgroup could not be thawed");
        }
        self.proceed();
        (self.raised, self.is_real, self.held) = (false, false, false);
    }

    fn count(&self, began_ns: u64, now: u64, shared: &Shared) {
        let meter = &self.crew.meter;
        meter.offered_ns.fetch_add(now.saturating_sub(began_ns), Ordering::Relaxed);
        let fresh = began_ns >= meter.fresh_from_ns.load(Ordering::Relaxed);
        if fresh && meter.first_end_ns.load(Ordering::Relaxed) == 0 {
            meter.first_end_ns.store(now, Ordering::Relaxed);
            shared.ended.fetch_add(1, Ordering::SeqCst);
            sys::schedule::wake(&shared.ended);
        }
    }
}

/// Waits for what a lane answers. `spins`: the caller is real-time and below each lane, so it keeps
/// no lane from its processor, and saves the wake-up where it is on another one.
///
/// # Errors
/// Where none comes in that time, or the lane has ended.
pub fn answer<T>(said: &Receiver<T>, at_most: Duration, spins: bool) -> Result<T> {
    let end_ns = sys::clock::clock_ns() + if spins { SPIN_NS } else { 0 };
    while sys::clock::clock_ns() < end_ns {
        match said.try_recv() {
            Ok(answer) => return Ok(answer),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
            Err(TryRecvError::Disconnected) => return Err(silent()),
        }
    }
    said.recv_timeout(at_most).map_err(|_| silent())
}

/// The error for a lane that does not answer.
pub fn silent() -> EnforceError {
    EnforceError::Dispatcher("a processor's thread does not answer; the machine is overloaded by other real-time threads, or it ended".to_owned())
}
