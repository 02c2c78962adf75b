//! The cost of a switch here, measured when a table starts and charged to each slot.

use std::sync::OnceLock;
use std::sync::mpsc;

use reserve::{Costs, Means};
use sys::schedule::Class;

use crate::members;
use crate::place::{self, Site};

use super::lane::{self, JOB_PRIORITY, LANE_PRIORITY};

/// How often each step is measured.
const ROUNDS: usize = 64;
/// The dearest of so many per hundred is left out: what interrupts a measurement is not the switch.
const COUNTED_PERCENT: usize = 95;
/// The time that is added to each switch: the decision, two writes to a freezer, and cold caches,
/// in ns. They can't be tried without a cgroup full of processes.
const BASE_NS: u64 = 25_000;
/// The most that is charged for one thread's change of class, in ns: a measurement of more was
/// disturbed.
const MAX_CLASS_NS: u64 = 20_000;

/// The cost of a switch.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    class_ns: u64,
}

impl Cost {
    /// To or from a virtual task machine with so many threads, in ns: as many leave as come. For
    /// one that leaves or comes the kernel changes its class, and holds it or lets it go, which is
    /// a walk over threads that takes about half as long.
    pub fn for_threads(self, threads: usize) -> u64 {
        let threads = u64::try_from(threads.max(1)).unwrap_or(u64::MAX);
        let all = self.class_ns.saturating_mul(3).saturating_mul(threads).saturating_add(BASE_NS);
        all.min(reserve::MAX_SWITCH_NS)
    }
}

/// Most threads of one virtual task machine that a switch is charged for: it takes some
/// milliseconds then. Those beyond are ordinary threads in its slots.
pub const MAX_CHARGED_THREADS: usize = crate::members::MAX_THREADS;

/// Whether a thread of ours may be real-time.
///
/// # Errors
/// The kernel's.
pub fn try_real_time() -> std::io::Result<()> {
    let tried = std::thread::spawn(|| sys::schedule::set_class(0, Class::Fifo { priority: LANE_PRIORITY }));
    tried.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
}

/// Measures how long it takes to change a thread's class, by one that sleeps.
pub fn measure(real_time: bool) -> Cost {
    let (tell, told) = mpsc::sync_channel(1);
    let (end, ended) = mpsc::sync_channel::<()>(1);
    let sleeper = std::thread::spawn(move || {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        // Whoever measures waits for this, and its going ends the sleep.
        let _ = tell.send(u32::try_from(own).unwrap_or(0));
        let _ = ended.recv();
    });
    let own = std::process::id();
    let mut spans = Vec::with_capacity(ROUNDS);
    if let Ok(thread) = told.recv() {
        for round in 0..ROUNDS {
            let real = Class::RoundRobin { priority: JOB_PRIORITY };
            let class = if real_time && round % 2 == 0 { real } else { Class::Other { nice: 0 } };
            let before = sys::clock::clock_ns();
            let set = lane::set_class(own, thread, class);
            if set.is_ok() {
                spans.push(sys::clock::clock_ns() - before);
            }
        }
    }
    drop(end);
    if sleeper.join().is_err() {
        spans.clear();
    }
    spans.sort_unstable();
    let counted = spans.len() * COUNTED_PERCENT / 100;
    let class_ns = spans.get(counted.saturating_sub(1)).copied().unwrap_or(MAX_CLASS_NS);
    Cost { class_ns: class_ns.min(MAX_CLASS_NS) }
}

/// The needs and abilities of tables on this machine, where each virtual task machine has one
/// thread; tried and measured once. A dispatcher that runs has measured for itself and knows how
/// many threads there are.
#[must_use]
pub fn means() -> Means {
    static SWITCH_NS: OnceLock<u64> = OnceLock::new();
    let switch_ns = *SWITCH_NS.get_or_init(|| measure(try_real_time().is_ok()).for_threads(1));
    means_of(switch_ns)
}

/// The same where a switch costs that.
#[must_use]
pub fn means_of(switch_ns: u64) -> Means {
    // A cost is bounded where it is worked out; one that nobody believes is the dearest that is
    // believed.
    let costs = Costs::new(switch_ns.min(reserve::MAX_SWITCH_NS)).unwrap_or_default();
    Means { costs, most_ppm: super::MAX_PPM }
}

/// The threads of the largest of them, as far as their switches are charged for.
pub fn charged_threads<'a>(sites: impl Iterator<Item = &'a Site>) -> usize {
    let threads_of = |site: &Site| {
        let processes = site.processes_up_to(place::MAX_LOOKED).into_iter();
        let threads = |pid| members::threads_up_to(pid, MAX_CHARGED_THREADS).len();
        processes.map(threads).take(MAX_CHARGED_THREADS).sum::<usize>()
    };
    sites.map(threads_of).max().unwrap_or(1).clamp(1, MAX_CHARGED_THREADS)
}
