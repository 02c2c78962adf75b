//! Virtual time: tasks that wait for it, and the order in which everything happens. One thread, no
//! real clock.
//!
//! A task belongs to an *owner* (a daemon's life, a machine), with which it ends or stands still.
//! What happens at one moment happens in the order in which it was asked for, so that a seed gives
//! one history.

use crate::random::Random;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Nanoseconds in a millisecond.
pub const MS: u64 = 1_000_000;

/// An owner, whose tasks end together.
pub type Owner = u64;

type Work = Pin<Box<dyn Future<Output = ()>>>;

enum Due {
    Wake(u64),
    Run(Box<dyn FnOnce()>),
}

struct Task {
    owner: Owner,
    /// `None` while it runs.
    work: Option<Work>,
}

/// Time, tasks and randomness of one world. Clones are the same.
#[derive(Clone, Default)]
pub struct Time(Rc<Inner>);

struct Inner {
    now: Cell<u64>,
    counter: Cell<u64>,
    random: RefCell<Random>,
    due: RefCell<BTreeMap<(u64, u64), Due>>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    current: Cell<u64>,
    /// Owners that stand still, and until when.
    stalled: RefCell<BTreeMap<Owner, u64>>,
    steps: Cell<u64>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            now: Cell::new(0),
            counter: Cell::new(0),
            random: RefCell::new(Random::new(0)),
            due: RefCell::default(),
            tasks: RefCell::default(),
            current: Cell::new(0),
            stalled: RefCell::default(),
            steps: Cell::new(0),
        }
    }
}

impl Time {
    /// Begins at 0.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let time = Self::default();
        *time.0.random.borrow_mut() = Random::new(seed);
        time
    }

    /// True time, in ns.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.0.now.get()
    }

    /// How many things have happened.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.steps.get()
    }

    /// A number of `from..to`.
    #[must_use]
    pub fn between(&self, from: u64, to: u64) -> u64 {
        self.0.random.borrow_mut().between(from, to)
    }

    /// True in so many of a thousand cases.
    #[must_use]
    pub fn per_mille(&self, chance: u64) -> bool {
        self.0.random.borrow_mut().per_mille(chance)
    }

    /// An index below `length`.
    #[must_use]
    pub fn index(&self, length: usize) -> usize {
        self.0.random.borrow_mut().index(length)
    }

    fn count(&self) -> u64 {
        self.0.counter.set(self.0.counter.get() + 1);
        self.0.counter.get()
    }

    /// Does something at a moment, whoever lives then.
    pub fn at(&self, at: u64, run: impl FnOnce() + 'static) {
        let key = (at.max(self.now()), self.count());
        self.0.due.borrow_mut().insert(key, Due::Run(Box::new(run)));
    }

    /// Begins a task.
    pub fn spawn(&self, owner: Owner, work: impl Future<Output = ()> + 'static) {
        let id = self.count();
        self.0.tasks.borrow_mut().insert(id, Task { owner, work: Some(Box::pin(work)) });
        self.wake(id);
    }

    /// Ends all tasks of an owner at once, wherever they are.
    pub fn end(&self, owner: Owner) {
        let ended: Vec<Task> = {
            let mut tasks = self.0.tasks.borrow_mut();
            let ids: Vec<u64> =
                tasks.iter().filter(|(_, task)| task.owner == owner).map(|(id, _)| *id).collect();
            ids.iter().filter_map(|id| tasks.remove(id)).collect()
        };
        // What they hold is dropped after the table is free again.
        drop(ended);
        self.0.stalled.borrow_mut().remove(&owner);
    }

    /// An owner's tasks stand still until then.
    pub fn stall(&self, owner: Owner, until: u64) {
        self.0.stalled.borrow_mut().insert(owner, until);
    }

    fn wake(&self, task: u64) {
        let key = (self.now(), self.count());
        self.0.due.borrow_mut().insert(key, Due::Wake(task));
    }

    /// Waits until a moment of true time.
    pub async fn until(&self, at: u64) {
        let mut asked = false;
        poll_fn(|_| {
            if self.now() >= at {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut asked, true) {
                let key = (at, self.count());
                self.0.due.borrow_mut().insert(key, Due::Wake(self.0.current.get()));
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits so long, of true time.
    pub async fn pause(&self, ns: u64) {
        self.until(self.now() + ns).await;
    }

    /// Lets everything happen that is due before `until`, as long as `go_on` says so.
    pub fn run(&self, until: u64, mut go_on: impl FnMut() -> bool) {
        while go_on() {
            let Some(((at, _), due)) = self.next_before(until) else { break };
            self.0.now.set(at);
            self.0.steps.set(self.steps() + 1);
            match due {
                Due::Run(run) => run(),
                Due::Wake(task) => self.poll(task),
            }
        }
        self.0.now.set(self.now().max(until));
    }

    fn next_before(&self, until: u64) -> Option<((u64, u64), Due)> {
        let mut due = self.0.due.borrow_mut();
        let first = due.first_entry()?;
        (first.key().0 < until).then(|| first.remove_entry())
    }

    fn poll(&self, id: u64) {
        let mut work = {
            let mut tasks = self.0.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(&id) else { return };
            let stalled = self.0.stalled.borrow().get(&task.owner).copied();
            if let Some(until) = stalled.filter(|until| *until > self.now()) {
                drop(tasks);
                let key = (until, self.count());
                self.0.due.borrow_mut().insert(key, Due::Wake(id));
                return;
            }
            let Some(work) = task.work.take() else { return };
            work
        };
        self.0.current.set(id);
        let polled = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let mut tasks = self.0.tasks.borrow_mut();
        if polled.is_ready() {
            tasks.remove(&id);
        } else if let Some(task) = tasks.get_mut(&id) {
            task.work = Some(work);
        }
    }

    /// Drops everything that is still to happen, and with it what the world's tasks hold of each
    /// other.
    pub fn finish(&self) {
        let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
        let due = std::mem::take(&mut *self.0.due.borrow_mut());
        drop((tasks, due));
    }
}

/// Wakes a task that waits for it; rung before, it is not waited for.
#[derive(Default)]
pub struct Bell {
    rung: Cell<bool>,
    waiting: RefCell<Vec<u64>>,
}

impl Bell {
    /// Rings.
    pub fn ring(&self, time: &Time) {
        self.rung.set(true);
        for task in self.waiting.take() {
            time.wake(task);
        }
    }

    /// Waits until it rings, or until a moment of true time. Whether it rang.
    pub async fn wait(&self, time: &Time, until: u64) -> bool {
        let mut asked = false;
        poll_fn(|_| {
            if self.rung.take() {
                return Poll::Ready(true);
            }
            if time.now() >= until {
                return Poll::Ready(false);
            }
            if !std::mem::replace(&mut asked, true) {
                let key = (until, time.count());
                time.0.due.borrow_mut().insert(key, Due::Wake(time.0.current.get()));
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.contains(&time.0.current.get()) {
                waiting.push(time.0.current.get());
            }
            Poll::Pending
        })
        .await
    }
}

/// A machine's clock, which nobody sets, and which runs fast or slow.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// True time at which it began.
    began: u64,
    /// The time that it showed then.
    showed: u64,
    /// Millionths by which it is too fast.
    fast_ppm: i64,
}

impl Clock {
    /// Begins now.
    #[must_use]
    pub fn new(now: u64, showed: u64, fast_ppm: i64) -> Self {
        Self { began: now, showed, fast_ppm }
    }

    /// The time that it shows.
    #[must_use]
    pub fn shows(&self, now: u64) -> u64 {
        let passed = i128::from(now.saturating_sub(self.began));
        let shown = passed + passed * i128::from(self.fast_ppm) / 1_000_000;
        self.showed + u64::try_from(shown).unwrap_or(0)
    }

    /// The first moment of true time at which it shows this, or more.
    #[must_use]
    pub fn when(&self, shown: u64) -> u64 {
        let left = i128::from(shown.saturating_sub(self.showed));
        let passed = left * 1_000_000 / (1_000_000 + i128::from(self.fast_ppm));
        let mut at = self.began + u64::try_from(passed).unwrap_or(0);
        while self.shows(at) < shown {
            at += 1;
        }
        at
    }
}
