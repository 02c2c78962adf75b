//! A machine: its clock, its power, the domains that run on it and their monitors, which outlive
//! its daemon.

use crate::cluster::daemon::Daemon;
use crate::cluster::links;
use crate::cluster::world::{Planted, World};
use crate::time::{Bell, Clock, MS, Time};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How long a monitor takes to end its domain at once: half of what the margin leaves for it with
/// clocks that differ by a twenty-fifth.
const END_AT_ONCE_NS: (u64, u64) = (MS, 150 * MS);
/// How long a daemon prepares a domain before there is a monitor, and how long that takes to start
/// it; how long a domain takes to end as its file says.
const PREPARE_NS: (u64, u64) = (10 * MS, 900 * MS);
const START_NS: (u64, u64) = (10 * MS, 200 * MS);
const END_NS: (u64, u64) = (20 * MS, 400 * MS);

/// See the module.
pub struct Machine {
    /// Its number.
    pub number: usize,
    /// Its clock, which begins anew with its power.
    pub clock: Cell<Clock>,
    /// How often it was started: the owner of what lives as long as its power.
    pub boot: Cell<u64>,
    /// Whether it has power.
    pub is_on: Cell<bool>,
    /// Until when the daemon said that the node holds its claims, by the machine's clock
    /// (`RUN/hold`).
    pub hold: Cell<u64>,
    /// The domains that are there, by number.
    pub instances: RefCell<BTreeMap<usize, Rc<Instance>>>,
    /// Its daemon.
    pub daemon: RefCell<Option<Rc<Daemon>>>,
}

/// A life of a domain on a machine.
pub struct Instance {
    /// The domain.
    pub domain: usize,
    /// It has a monitor, which outlives the daemon.
    pub has_monitor: Cell<bool>,
    /// It has been started, and has not ended.
    pub runs: Cell<bool>,
    /// It is over.
    pub is_over: Cell<bool>,
    bell: Bell,
}

impl Machine {
    /// One without power.
    #[must_use]
    pub fn new(number: usize, time: &Time) -> Self {
        Self {
            number,
            clock: Cell::new(Clock::new(time.now(), 0, 0)),
            boot: Cell::new(0),
            is_on: Cell::new(false),
            hold: Cell::new(0),
            instances: RefCell::default(),
            daemon: RefCell::default(),
        }
    }

    /// The owner of what lives as long as its power.
    #[must_use]
    pub fn owner(&self) -> u64 {
        1_000_000 * (self.number as u64 + 1) + self.boot.get()
    }

    /// The time that its clock shows.
    #[must_use]
    pub fn shows(&self, time: &Time) -> u64 {
        self.clock.get().shows(time.now())
    }

    /// When its clock shows this.
    #[must_use]
    pub fn when(&self, shown: u64) -> u64 {
        self.clock.get().when(shown)
    }
}

/// It has power, a clock of another speed than before, and a daemon.
pub fn power_on(world: &Rc<World>, machine: usize) {
    let at = &world.machines[machine];
    if at.is_on.replace(true) {
        return;
    }
    let time = &world.time;
    let (drift, showed) = (world.config.drift_ppm, time.between(5_000, 60_000) * MS);
    let fast = i64::try_from(time.between(0, 2 * drift + 1)).unwrap_or(0) - i64::try_from(drift).unwrap_or(0);
    at.clock.set(Clock::new(time.now(), showed, fast));
    at.boot.set(at.boot.get() + 1);
    at.hold.set(0);
    world.tell(|| format!("n{machine} has power, its clock is {fast} ppm fast"));
    Daemon::start(world, machine);
    links::power_on(world, machine);
}

/// Everything on it is over at once.
pub fn power_off(world: &Rc<World>, machine: usize) {
    let at = &world.machines[machine];
    if !at.is_on.replace(false) {
        return;
    }
    world.tell(|| format!("n{machine} loses power"));
    Daemon::kill(world, machine);
    world.time.end(at.owner());
    for other in 0..world.machines.len() {
        links::stop(world, machine, other);
    }
    world.servers.borrow_mut().remove(&machine);
    let instances = at.instances.take();
    for (domain, instance) in instances {
        instance.is_over.set(true);
        world.ends(domain, machine);
    }
}

impl Instance {
    /// A domain that a daemon begins to prepare.
    pub fn new(machine: &Machine, domain: usize) -> Rc<Self> {
        let instance = Rc::new(Self {
            domain,
            has_monitor: Cell::new(false),
            runs: Cell::new(false),
            is_over: Cell::new(false),
            bell: Bell::default(),
        });
        machine.instances.borrow_mut().insert(domain, Rc::clone(&instance));
        instance
    }

    /// Prepares it, and starts it under a monitor of its own. Whether it runs then.
    pub async fn start(self: &Rc<Self>, world: &Rc<World>, machine: usize) -> bool {
        world.time.pause(world.time.between(PREPARE_NS.0, PREPARE_NS.1)).await;
        if self.is_over.get() {
            return false;
        }
        self.has_monitor.set(true);
        let (of, monitored) = (Rc::clone(world), Rc::clone(self));
        world.time.spawn(world.machines[machine].owner(), async move { monitored.live(&of, machine).await });
        while !self.runs.get() && !self.is_over.get() {
            self.bell.wait(&world.time, u64::MAX).await;
        }
        self.runs.get()
    }

    /// The monitor: it starts the domain, and ends it when the hold has passed, whatever became of
    /// the daemon.
    async fn live(self: Rc<Self>, world: &Rc<World>, machine: usize) {
        let (time, at) = (&world.time, &world.machines[machine]);
        let elsewhere = world.wanted[self.domain].want.elsewhere;
        let heeds = elsewhere && world.config.planted != Some(Planted::DeafMonitor);
        let starts_at = time.now() + time.between(START_NS.0, START_NS.1);
        while !self.is_over.get() {
            // What it reads counts until that has passed, or something else happens.
            let hold = at.hold.get();
            if heeds && hold <= at.shows(time) {
                if self.runs.get() {
                    time.pause(time.between(END_AT_ONCE_NS.0, END_AT_ONCE_NS.1)).await;
                }
                return self.over(world, machine);
            }
            if !self.runs.get() && time.now() >= starts_at {
                self.runs.set(true);
                world.begins(&self, machine);
                self.bell.ring(time);
            }
            let starts = if self.runs.get() { u64::MAX } else { starts_at };
            let next = if heeds { starts.min(at.when(hold)) } else { starts };
            if next == u64::MAX {
                return;
            }
            time.until(next).await;
        }
    }

    fn over(&self, world: &World, machine: usize) {
        if self.is_over.replace(true) {
            return;
        }
        let mut instances = world.machines[machine].instances.borrow_mut();
        if instances.get(&self.domain).is_some_and(|there| std::ptr::eq(&**there, self)) {
            instances.remove(&self.domain);
        }
        drop(instances);
        if self.runs.replace(false) {
            world.ends(self.domain, machine);
        }
        self.bell.ring(&world.time);
    }

    /// Ends it as its file says.
    pub async fn stop(&self, world: &World, machine: usize) {
        world.time.pause(world.time.between(END_NS.0, END_NS.1)).await;
        self.over(world, machine);
    }

    /// Ends it at once.
    pub async fn stop_at_once(&self, world: &World, machine: usize) {
        world.time.pause(world.time.between(END_AT_ONCE_NS.0, END_AT_ONCE_NS.1)).await;
        self.over(world, machine);
    }
}
