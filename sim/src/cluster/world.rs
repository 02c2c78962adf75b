//! The world: machines, the registry, the network between them, what people want of it, and what
//! must never be.

use crate::cluster::coordination::{self, History, Server};
use crate::cluster::links;
use crate::cluster::machine::{Instance, Machine};
use crate::etcd::{Change, Etcd};
use crate::network::{Faults, Network, Place};
use crate::time::{Bell, MS, Time};
use placement::{Want, Wish};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

/// A rule that is broken on purpose, to see that the checks notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A node takes over from one that it suspects before that one has stopped.
    HastyHeir,
    /// A claim is put whoever has it.
    RudeClaim,
    /// A monitor lets its domain run when the hold has passed.
    DeafMonitor,
    /// The server of keys and locks answers before the registry has what it decided.
    EarlyAnswer,
    /// A program takes it for certain that a message is not received of which nobody knows.
    LyingCaller,
    /// A daemon that was cut off between the books and the start goes on with it: so it was in the
    /// product, until this simulation found it.
    StaleStart,
}

/// The distributed container of all domains.
pub const DC: &str = "dc";
/// The longest silence of a connection of a watch before its client takes it for broken.
const WATCH_SILENCE_NS: u64 = 8_000 * MS;
/// How long after its end a lease is ended at the latest: etcd looks twice a second.
const EXPIRY_LATE_NS: u64 = 500 * MS;
/// The most things that happen in one world: a world that goes round in a circle fails, and does
/// not hang.
const MAX_STEPS: u64 = 4_000_000;

/// Of what the world is made.
#[derive(Debug, Clone)]
pub struct Config {
    /// From which everything follows.
    pub seed: u64,
    /// Machines.
    pub machines: usize,
    /// Domains, beside one that serves keys and locks.
    pub domains: usize,
    /// The network.
    pub faults: Faults,
    /// The most by which a clock runs fast or slow.
    pub drift_ppm: u64,
    /// The pause between two misfortunes, on average.
    pub trouble_every_ns: u64,
    /// For how long misfortunes happen.
    pub trouble_ns: u64,
    /// How long afterwards everything has to be as it should.
    pub quiet_ns: u64,
    /// See [`Planted`].
    pub planted: Option<Planted>,
}

impl Config {
    /// The world of a seed.
    #[must_use]
    pub fn of(seed: u64, planted: Option<Planted>) -> Self {
        let mut random = crate::random::Random::new(seed ^ 0x0005_eed0_fac1);
        let faults = Faults {
            usual_ns: [2, 5, 20, 100][random.index(4)] * MS,
            lost: [0, 5, 20, 60][random.index(4)],
            doubled: random.below(30),
            late: [0, 2, 10][random.index(3)],
        };
        Self {
            seed,
            machines: 2 + random.index(3),
            domains: 1 + random.index(4),
            faults,
            drift_ppm: [100, 20_000][random.index(2)],
            trouble_every_ns: random.between(600, 4_000) * MS,
            trouble_ns: 20_000 * MS,
            quiet_ns: 20_000 * MS,
            planted,
        }
    }
}

/// A watch of the registry, at its client.
pub struct Watch {
    place: Place,
    prefix: String,
    /// Changes that are not at the client yet, and since when the first one waits.
    on_the_way: RefCell<VecDeque<Change>>,
    since: Cell<u64>,
    moving: Cell<bool>,
    /// Changes that have come.
    pub inbox: RefCell<VecDeque<Change>>,
    /// It will tell nothing more.
    pub is_broken: Cell<bool>,
    /// Rings when something has come.
    pub bell: Rc<Bell>,
}

/// A domain that people want.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Its needs.
    pub want: Want,
    /// `dc/NAME`.
    pub path: String,
}

/// The outcome of a run, so that a run of nothing is noticed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Came {
    /// Starts of domains.
    pub starts: u64,
    /// Domains that were started elsewhere than before.
    pub elsewhere: u64,
    /// Lives of nodes that another one ended, because they left a suspicion stand.
    pub ended_by_suspicion: u64,
    /// Times at which a node stopped what others may take over.
    pub fenced: u64,
    /// Planned moves that came to an end.
    pub moves: u64,
    /// Machines that lost power, and daemons that were killed or stood still.
    pub deaths: u64,
    /// Ways that were cut.
    pub cuts: u64,
    /// Answers of the server of keys, and grants of its locks.
    pub answers: u64,
    /// Grants of locks.
    pub grants: u64,
    /// Messages and requests that endpoints received over links, and replies.
    pub received: u64,
    /// Replies over links.
    pub replies: u64,
    /// Things that happened.
    pub steps: u64,
}

impl Came {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.starts += other.starts;
        self.elsewhere += other.elsewhere;
        self.ended_by_suspicion += other.ended_by_suspicion;
        self.fenced += other.fenced;
        self.moves += other.moves;
        self.deaths += other.deaths;
        self.cuts += other.cuts;
        self.answers += other.answers;
        self.grants += other.grants;
        self.received += other.received;
        self.replies += other.replies;
        self.steps += other.steps;
    }
}

/// See the module.
pub struct World {
    /// Of what it is made.
    pub config: Config,
    /// Its time.
    pub time: Time,
    /// Its network.
    pub network: Network,
    /// Its registry.
    pub etcd: RefCell<Etcd>,
    /// Until when the registry chooses a leader.
    pub election_until: Cell<u64>,
    watches: RefCell<Vec<Weak<Watch>>>,
    /// Its machines.
    pub machines: Vec<Machine>,
    /// The domains that people want.
    pub wanted: Vec<Wanted>,
    /// The machines on which each domain runs, in truth.
    running: RefCell<Vec<BTreeSet<usize>>>,
    last_on: RefCell<BTreeMap<usize, usize>>,
    /// Domains that did not come up because they were meant not to: where they are they stay, until
    /// a person acts.
    pub broken: RefCell<BTreeSet<usize>>,
    /// The servers of keys and locks that run, by machine.
    pub servers: RefCell<BTreeMap<usize, Rc<Server>>>,
    /// The proxies that live, by their machine and the other one.
    pub proxies: RefCell<BTreeMap<(usize, usize), Rc<links::Proxy>>>,
    /// The conversations of endpoints.
    pub talk: RefCell<links::Talk>,
    /// The answers to clients of keys and locks.
    pub history: RefCell<History>,
    /// The outcome.
    pub came: RefCell<Came>,
    failure: RefCell<Option<String>>,
    story: RefCell<Option<Vec<String>>>,
}

impl World {
    /// A world in which nothing has begun.
    #[must_use]
    pub fn new(config: Config) -> Rc<Self> {
        let time = Time::new(config.seed);
        let machines: Vec<Machine> = (0..config.machines).map(|number| Machine::new(number, &time)).collect();
        let mut wanted: Vec<Wanted> =
            (0..config.domains).map(|number| wanted(number, &config, &time)).collect();
        // The last one serves keys and locks.
        let server = Want { elsewhere: true, ..Want::new(DC, &format!("d{}", config.domains), Wish::Any) };
        wanted.push(Wanted { want: server, path: format!("{DC}/d{}", config.domains) });
        Rc::new(Self {
            network: Network::new(config.faults),
            etcd: RefCell::default(),
            election_until: Cell::new(0),
            watches: RefCell::default(),
            machines,
            running: RefCell::new(vec![BTreeSet::new(); wanted.len()]),
            last_on: RefCell::default(),
            wanted,
            broken: RefCell::default(),
            servers: RefCell::default(),
            proxies: RefCell::default(),
            talk: RefCell::default(),
            history: RefCell::default(),
            came: RefCell::default(),
            failure: RefCell::default(),
            story: RefCell::default(),
            time,
            config,
        })
    }

    /// Keeps a line of everything that [`World::tell`] is told.
    pub fn keep_story(&self) {
        *self.story.borrow_mut() = Some(Vec::new());
    }

    /// A line of the story, where one is kept.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut *self.story.borrow_mut() {
            let now = self.time.now();
            story.push(format!("{:>6}.{:03} ms  {}", now / MS, now % MS / 1_000, line()));
        }
    }

    /// The story so far.
    pub fn take_story(&self) -> Vec<String> {
        self.story.borrow_mut().take().unwrap_or_default()
    }

    /// Something is that must not be. The first counts.
    pub fn fail(&self, why: String) {
        self.tell(|| format!("FAILED: {why}"));
        let mut failure = self.failure.borrow_mut();
        if failure.is_none() {
            *failure = Some(format!("at {} ms: {why}", self.time.now() / MS));
        }
    }

    /// Why it failed.
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Lets time pass, for so long.
    pub fn run(&self, ns: u64) {
        let until = self.time.now() + ns;
        self.time.run(until, || {
            if self.time.steps() > MAX_STEPS && self.failure().is_none() {
                self.fail(format!("{MAX_STEPS} things happened, and it is not over"));
            }
            self.failure.borrow().is_none()
        });
    }

    /// A domain begins to run on a machine.
    pub fn begins(self: &Rc<Self>, instance: &Rc<Instance>, machine: usize) {
        let domain = instance.domain;
        if domain == self.config.domains {
            let server = coordination::serve(Rc::clone(self), machine, Rc::clone(instance));
            self.time.spawn(self.machines[machine].owner(), server);
        }
        self.tell(|| format!("{} runs on n{machine}", self.wanted[domain].path));
        let mut came = self.came.borrow_mut();
        came.starts += 1;
        if self.last_on.borrow_mut().insert(domain, machine).is_some_and(|last| last != machine) {
            came.elsewhere += 1;
        }
        drop(came);
        let others = {
            let mut running = self.running.borrow_mut();
            running[domain].insert(machine);
            running[domain].clone()
        };
        if others.len() > 1 {
            self.fail(format!("domain {} runs on machines {others:?} at once", self.wanted[domain].path));
        }
    }

    /// It runs there no more.
    pub fn ends(&self, domain: usize, machine: usize) {
        if self.running.borrow_mut()[domain].remove(&machine) {
            self.tell(|| format!("{} has ended on n{machine}", self.wanted[domain].path));
        }
    }

    /// Where a domain runs.
    pub fn runs_on(&self, domain: usize) -> Option<usize> {
        self.running.borrow()[domain].first().copied()
    }

    /// A watch of all keys that begin so, from now on.
    pub fn watch(&self, place: Place, prefix: &str, bell: &Rc<Bell>) -> Rc<Watch> {
        let watch = Rc::new(Watch {
            place,
            prefix: prefix.to_owned(),
            on_the_way: RefCell::default(),
            since: Cell::new(0),
            moving: Cell::new(false),
            inbox: RefCell::default(),
            is_broken: Cell::new(false),
            bell: Rc::clone(bell),
        });
        self.watches.borrow_mut().push(Rc::downgrade(&watch));
        watch
    }

    /// Breaks watches, as a connection that is reset does.
    pub fn break_watches(&self, of: usize) {
        for watch in self.watches.borrow().iter().filter_map(Weak::upgrade) {
            if watch.place == Place::Machine(of) {
                watch.is_broken.set(true);
                watch.bell.ring(&self.time);
            }
        }
    }

    /// A change is on its way to those who watch.
    pub fn spread(self: &Rc<Self>) {
        let changes = self.etcd.borrow_mut().take_changes();
        if changes.is_empty() {
            return;
        }
        self.watches.borrow_mut().retain(|watch| watch.strong_count() > 0);
        let watches: Vec<Rc<Watch>> = self.watches.borrow().iter().filter_map(Weak::upgrade).collect();
        for watch in watches {
            let seen = changes.iter().filter(|change| change.key.starts_with(&watch.prefix));
            let before = watch.on_the_way.borrow().len();
            watch.on_the_way.borrow_mut().extend(seen.cloned());
            if watch.on_the_way.borrow().len() > before && !watch.moving.replace(true) {
                watch.since.set(self.time.now());
                let delay = self.network.delay(&self.time);
                self.move_watch(&watch, self.time.now() + delay);
            }
        }
    }

    /// In order, again and again until it is there, or until the client has not heard for too long.
    fn move_watch(self: &Rc<Self>, watch: &Rc<Watch>, at: u64) {
        let (world, watch) = (Rc::downgrade(self), Rc::downgrade(watch));
        self.time.at(at, move || {
            let (Some(world), Some(watch)) = (world.upgrade(), watch.upgrade()) else { return };
            if world.network.is_cut(Place::Registry, watch.place) {
                if world.time.now() - watch.since.get() > WATCH_SILENCE_NS {
                    watch.is_broken.set(true);
                    watch.bell.ring(&world.time);
                } else {
                    world.move_watch(&watch, world.time.now() + 200 * MS);
                }
                return;
            }
            watch.moving.set(false);
            watch.inbox.borrow_mut().append(&mut watch.on_the_way.borrow_mut());
            watch.bell.ring(&world.time);
        });
    }

    /// Ends leases as their time passes.
    pub async fn keep_leases(self: Rc<Self>) {
        loop {
            self.time.pause(self.time.between(EXPIRY_LATE_NS / 10, EXPIRY_LATE_NS)).await;
            if self.election_until.get() <= self.time.now() {
                self.etcd.borrow_mut().expire(self.time.now());
                self.spread();
            }
        }
    }
}

fn wanted(number: usize, config: &Config, time: &Time) -> Wanted {
    let wish = match time.index(5) {
        0 => Wish::Named(name_of(time.index(config.machines))),
        1 | 2 => Wish::Spread,
        _ => Wish::Any,
    };
    let named = matches!(wish, Wish::Named(_));
    let want =
        Want { elsewhere: !named && time.per_mille(800), ..Want::new(DC, &format!("d{number}"), wish) };
    Wanted { want, path: format!("{DC}/d{number}") }
}

/// The name of a machine.
#[must_use]
pub fn name_of(machine: usize) -> String {
    format!("n{machine}")
}

/// The machine of a name.
#[must_use]
pub fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix('n')?.parse().ok()
}
