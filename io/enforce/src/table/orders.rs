//! How a processor's thread is given orders, and from when on it can't decide anything without
//! them. Nobody waits here, and nothing is woken: that is the caller's.
//!
//! The thread works in rounds: it begins one, takes its orders, decides, acts, and ends it, and
//! then it may sleep. One word says where it is. Who changes it does so in one step, so all these
//! steps have one order, and of two that follow each other the second sees what was done before the
//! first. Whoever gives an order finds the thread
//!
//! - *between* two rounds: the next one begins after that, and takes the order;
//! - or *within* a round, which may have begun without it: its end finds that somebody rang, and
//!   the next round begins at once.
//!
//! Orders are a chain. A link is written once, by its giver, and read once, by the thread; so a
//! link whose giver has rung is nobody's but the thread's, and a link that is locked is of somebody
//! who is still to ring. So the thread waits for nobody, and misses nothing that was rung for.
//! `tests/model.rs` explores this file as it is.

use super::atomics::{Arc, AtomicU32, Mutex, Ordering};
use std::sync::{PoisonError, TryLockError};

/// The word while nothing is decided. The thread sleeps as long as the word is this, and nothing
/// else.
pub const BETWEEN: u32 = 1;
/// Somebody rang since the last round began.
const RUNG: u32 = 2;

/// Where an order found its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Between two rounds: nothing is decided any more without the order.
    Between {
        /// Nobody else has rung: who gave it has to wake the thread.
        first: bool,
    },
    /// Within a round that may have begun without it. The thread does not sleep before it has taken
    /// it.
    Within,
}

/// The next order and what follows, once there is one.
#[derive(Debug)]
struct Link<T>(Mutex<Option<(T, Arc<Link<T>>)>>);

impl<T> Link<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(None)))
    }
}

/// Orders of one processor's thread.
#[derive(Debug)]
pub struct Orders<T> {
    /// Where the next order goes: of those who give.
    end: Mutex<Arc<Link<T>>>,
    /// Where the next order comes from: of the thread alone.
    next: Mutex<Arc<Link<T>>>,
    /// [`BETWEEN`] and [`RUNG`]. The thread sets the first and clears both; whoever gives sets the
    /// second.
    place: AtomicU32,
}

impl<T> Default for Orders<T> {
    /// Within a round: a thread that is still to come has not ended one.
    fn default() -> Self {
        let link = Link::new();
        Self { end: Mutex::new(Arc::clone(&link)), next: Mutex::new(link), place: AtomicU32::new(0) }
    }
}

impl<T> Orders<T> {
    /// Gives an order.
    pub fn give(&self, order: T) -> Found {
        let link = Link::new();
        {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            *end.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((order, Arc::clone(&link)));
            *end = link;
        }
        // Pairs with `begin` and `end`.
        let before = self.place.fetch_or(RUNG, Ordering::AcqRel);
        match before & BETWEEN {
            0 => Found::Within,
            _ => Found::Between { first: before & RUNG == 0 },
        }
    }

    /// The thread begins a round, and takes all that was rung for, in order.
    pub fn begin(&self) -> Vec<T> {
        // Pairs with `give`: whose ring came before this is seen below; whose ring comes after
        // finds the thread within.
        self.place.swap(0, Ordering::AcqRel);
        let mut taken = Vec::new();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((order, after)) = Self::take(&next) {
            taken.push(order);
            *next = after;
        }
        taken
    }

    fn take(link: &Link<T>) -> Option<(T, Arc<Link<T>>)> {
        match link.0.try_lock() {
            Ok(mut there) => there.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            // Of somebody who has not rung yet.
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The thread has acted. `true`: it may sleep on [`Self::place`]; `false`: somebody rang, and
    /// the next round is due.
    pub fn end(&self) -> bool {
        // Pairs with `give`: whoever finds the thread between rounds sees what it did in them.
        self.place.compare_exchange(0, BETWEEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The word that the thread sleeps on, and is woken by.
    pub fn place(&self) -> &AtomicU32 {
        &self.place
    }
}
