//! A daemon: the glue between the product's decisions and the world, in the order of
//! `services/node`. What decides is `lease` and `placement`; what is here asks, waits, and does
//! what they say. `docs/simulation.md` says which steps of `services/node` are written a second
//! time here.

mod books;
mod follow;
mod keep;
mod members;
mod moves;
mod suspicions;

use crate::cluster::client::{Client, Failed};
use crate::cluster::machine::Machine;
use crate::cluster::world::{World, name_of};
use crate::etcd::{Expected, Value};
use crate::time::{Bell, MS};
use books::Books;
use placement::Refusal;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub use books::{Moving, claim_key, drain_key, move_key, placed_key, text};

/// Keys of those who live, each bound to its lease.
pub const ALIVE: &str = "alive/";
/// How long the next daemon takes to be there.
const BEGIN_NS: (u64, u64) = (50 * MS, 500 * MS);

/// See the module.
pub struct Daemon {
    pub(crate) world: Rc<World>,
    pub(crate) number: usize,
    /// Its tasks end with it.
    pub(crate) owner: u64,
    pub(crate) client: Client,
    /// Until when it certainly holds its lease, by its clock; 0: not at all.
    held_until: Cell<u64>,
    /// How often that had passed when it was told anew.
    lapses: Cell<u64>,
    hold_changed: Bell,
    lease: Cell<u64>,
    incarnation: Cell<u64>,
    /// The nodes that live, and the revision of the key that says so.
    alive: RefCell<BTreeMap<String, u64>>,
    /// For those who follow: something has changed.
    poke: Rc<Bell>,
    /// When the renewal was sent that is not answered, by its clock.
    asked: Cell<Option<u64>>,
    asked_bell: Bell,
    members_changed: Cell<bool>,
    books: RefCell<Rc<Books>>,
    was_read: Cell<bool>,
    busy: RefCell<BTreeSet<usize>>,
    ready: RefCell<BTreeSet<usize>>,
    failed: RefCell<BTreeSet<usize>>,
    pub(crate) stuck: RefCell<BTreeMap<usize, Refusal>>,
}

impl Daemon {
    /// Starts one on a machine that has power.
    pub fn start(world: &Rc<World>, machine: usize) {
        // Greater than any before: ids of owners of daemons are above those of machines.
        let owner = (1 << 40) + world.time.steps() * 64 + machine as u64;
        let daemon = Rc::new(Self {
            world: Rc::clone(world),
            number: machine,
            owner,
            client: Client::new(world, machine),
            held_until: Cell::new(0),
            lapses: Cell::new(0),
            hold_changed: Bell::default(),
            lease: Cell::new(0),
            incarnation: Cell::new(0),
            alive: RefCell::default(),
            poke: Rc::default(),
            asked: Cell::new(None),
            asked_bell: Bell::default(),
            members_changed: Cell::new(true),
            books: RefCell::default(),
            was_read: Cell::new(false),
            busy: RefCell::default(),
            ready: RefCell::default(),
            failed: RefCell::default(),
            stuck: RefCell::default(),
        });
        *world.machines[machine].daemon.borrow_mut() = Some(Rc::clone(&daemon));
        let of = Rc::clone(&daemon);
        world.time.spawn(owner, async move {
            of.world.time.pause(of.world.time.between(BEGIN_NS.0, BEGIN_NS.1)).await;
            of.begin();
        });
    }

    fn begin(self: &Rc<Self>) {
        let time = &self.world.time;
        time.spawn(self.owner, Rc::clone(self).keep_lease());
        time.spawn(self.owner, Rc::clone(self).follow_members());
        time.spawn(self.owner, Rc::clone(self).suspect_others());
        time.spawn(self.owner, Rc::clone(self).end_with_hold());
        time.spawn(self.owner, Rc::clone(self).watch_books());
        time.spawn(self.owner, Rc::clone(self).follow());
    }

    /// Ends the daemon of a machine at once.
    pub fn kill(world: &World, machine: usize) {
        let daemon = world.machines[machine].daemon.borrow_mut().take();
        if let Some(daemon) = daemon {
            world.time.end(daemon.owner);
        }
        // What it prepared is nothing yet.
        world.machines[machine].instances.borrow_mut().retain(|_, instance| instance.has_monitor.get());
    }

    /// Its beliefs, for a story.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{}: knows that {:?} live, is busy with {:?}, failed to start {:?}, has no place for {:?}",
            self.me(),
            self.alive.borrow().keys().collect::<Vec<_>>(),
            self.busy.borrow(),
            self.failed.borrow(),
            self.stuck.borrow().values().map(ToString::to_string).collect::<Vec<_>>()
        )
    }

    fn machine(&self) -> &Machine {
        &self.world.machines[self.number]
    }

    pub(crate) fn me(&self) -> String {
        name_of(self.number)
    }

    /// `CLOCK_BOOTTIME` of its machine.
    fn clock(&self) -> u64 {
        self.machine().shows(&self.world.time)
    }

    /// Waits so long by its clock.
    async fn pause(&self, ns: u64) {
        self.world.time.until(self.machine().when(self.clock() + ns)).await;
    }

    /// Whether it holds its claims now.
    pub(crate) fn holds(&self) -> bool {
        self.held_until.get() > self.clock()
    }

    /// Whether the hold has passed since then.
    fn lapsed_since(&self, lapses: u64) -> bool {
        let until = self.held_until.get();
        self.lapses.get() != lapses || (until > 0 && until <= self.clock())
    }

    /// Writes something that goes with this node's lease (`Cluster::put_leased`).
    async fn put_leased(&self, key: &str, value: &Value, expected: Expected) -> Result<u64, Failed> {
        if !self.holds() {
            return Err(Failed::NoLease);
        }
        self.client.put(key, value, expected, self.lease.get()).await
    }
}
