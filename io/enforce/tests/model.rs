//! How the thread of a processor is given orders, explored: every order of every step of those who
//! give and of the thread that decides (`RUSTFLAGS="--cfg loom"`).
//!
//! Two things must hold: once a commit is over nothing is decided without it, though nobody has
//! waited for the thread; and nobody waits for ever.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test may")]

mod atomics {
    pub use loom::sync::atomic::{AtomicU32, Ordering};
    pub use loom::sync::{Arc, Mutex};
}
#[path = "../src/table/orders.rs"]
mod orders;

use std::sync::atomic::AtomicU32 as Plain;
use std::sync::atomic::Ordering::SeqCst;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use orders::{BETWEEN, Found, Orders};

/// Where every order takes too long for each day.
const MANY: Option<usize> = Some(4);

/// An order to a thread.
enum Order {
    /// Go by this plan from now on.
    Plan(u32),
    /// Something else that it takes at once.
    Other,
    Stop,
}

/// The processor's orders, and the sleep on their word as futex(2) does it.
struct World {
    orders: Orders<Order>,
    bed: (Mutex<()>, Condvar),
    /// The plan that was committed, in the order in which things really happen: loom takes no
    /// notice of it.
    committed: Plain,
    /// For the thread that waits until a plan is taken.
    answer: (Mutex<u32>, Condvar),
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            orders: Orders::default(),
            bed: (Mutex::new(()), Condvar::new()),
            committed: Plain::new(0),
            answer: (Mutex::new(0), Condvar::new()),
        })
    }

    fn wake(&self) {
        let _bed = self.bed.0.lock().unwrap();
        self.bed.1.notify_all();
    }

    fn sleep(&self) {
        let bed = self.bed.0.lock().unwrap();
        if self.orders.place().load(std::sync::atomic::Ordering::Acquire) == BETWEEN {
            drop(self.bed.1.wait(bed).unwrap());
        }
    }

    fn give(&self, order: Order) -> Found {
        let found = self.orders.give(order);
        if found == (Found::Between { first: true }) {
            self.wake();
        }
        found
    }

    /// As the table commits: waits for the answer only of a thread that was within a round.
    fn commit(&self, plan: u32) {
        if self.give(Order::Plan(plan)) == Found::Within {
            let mut answered = self.answer.0.lock().unwrap();
            while *answered < plan {
                answered = self.answer.1.wait(answered).unwrap();
            }
        }
        self.committed.fetch_max(plan, SeqCst);
    }

    /// The thread. Its first sleeps end at their time, before anybody rings, as often as is said.
    fn lane(&self, mut early: u32) -> u32 {
        let mut plan = 0;
        loop {
            for order in self.orders.begin() {
                match order {
                    Order::Plan(number) => {
                        plan = number;
                        *self.answer.0.lock().unwrap() = plan;
                        self.answer.1.notify_all();
                    }
                    Order::Other => {}
                    Order::Stop => return plan,
                }
            }
            // It decides, and does what it has decided; others come in between.
            thread::yield_now();
            let committed = self.committed.load(SeqCst);
            assert!(plan >= committed, "plan {plan} is acted by when {committed} was committed");
            if !self.orders.end() {
                continue;
            }
            if early > 0 {
                early -= 1;
            } else {
                self.sleep();
            }
        }
    }
}

/// Every order; or those in which threads are interrupted so often.
fn explore(interruptions: Option<usize>, early: u32, give: impl Fn(&World) + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = interruptions;
    model.check(move || {
        let world = World::new();
        let lane = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.lane(early))
        };
        give(&world);
        world.give(Order::Stop);
        let committed = world.committed.load(SeqCst);
        assert_eq!(lane.join().unwrap(), committed, "the thread ends by the last plan");
    });
}

#[test]
fn nothing_is_decided_without_a_plan_that_was_committed() {
    explore(None, 0, |world| world.commit(1));
    explore(None, 1, |world| world.commit(1));
}

#[test]
fn nor_while_something_else_is_being_given() {
    explore(None, 1, |world| {
        world.commit(1);
        world.give(Order::Other);
    });
}

#[test]
fn nor_when_plans_follow_each_other() {
    explore(MANY, 1, |world| {
        world.commit(1);
        world.commit(2);
    });
}

#[test]
fn several_may_give() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = MANY;
    model.check(|| {
        let world = World::new();
        let spawn = |work: fn(&World)| {
            let world = Arc::clone(&world);
            thread::spawn(move || work(&world))
        };
        let lane = spawn(|world| assert_eq!(world.lane(1), 1));
        let other = spawn(|world| {
            let _ = world.give(Order::Other);
        });
        world.commit(1);
        other.join().unwrap();
        world.give(Order::Stop);
        lane.join().unwrap();
    });
}
