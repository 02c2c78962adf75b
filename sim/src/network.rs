//! The network between the machines, which drops, delays, doubles and splits.

use crate::time::{MS, Time};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// A machine, or the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The machine of this number.
    Machine(usize),
    /// The registry's members, as their clients see them: one.
    Registry,
}

/// How bad it is, all the time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The longest that a packet takes, most of the time.
    pub usual_ns: u64,
    /// Thousandths that are lost.
    pub lost: u64,
    /// Thousandths that come twice.
    pub doubled: u64,
    /// Thousandths that are very late.
    pub late: u64,
}

/// The shortest that a packet takes.
const SHORTEST_NS: u64 = MS / 10;
/// The longest that a packet takes which is very late.
const VERY_LATE_NS: u64 = 3_000 * MS;

/// See the module.
#[derive(Default)]
pub struct Network {
    faults: Cell<Faults>,
    /// Ways that carry nothing, from and to.
    cut: RefCell<BTreeSet<(Place, Place)>>,
}

impl Network {
    /// A whole network.
    #[must_use]
    pub fn new(faults: Faults) -> Self {
        Self { faults: Cell::new(faults), cut: RefCell::default() }
    }

    /// Carries nothing from one to the other until [`Network::mend`].
    pub fn cut(&self, from: Place, to: Place) {
        self.cut.borrow_mut().insert((from, to));
    }

    /// Carries again.
    pub fn mend(&self, from: Place, to: Place) {
        self.cut.borrow_mut().remove(&(from, to));
    }

    /// Mends everything, and loses nothing from now on.
    pub fn mend_all(&self) {
        self.faults.set(Faults { usual_ns: 5 * MS, ..Faults::default() });
        self.cut.borrow_mut().clear();
    }

    /// Whether nothing gets through.
    #[must_use]
    pub fn is_cut(&self, from: Place, to: Place) -> bool {
        self.cut.borrow().contains(&(from, to))
    }

    /// How long a packet takes that is not lost.
    #[must_use]
    pub fn delay(&self, time: &Time) -> u64 {
        let longest =
            if time.per_mille(self.faults.get().late) { VERY_LATE_NS } else { self.faults.get().usual_ns };
        time.between(SHORTEST_NS, longest.max(SHORTEST_NS + 1))
    }

    /// When copies of a packet that is sent now arrive: none, one or two.
    #[must_use]
    pub fn arrivals(&self, time: &Time, from: Place, to: Place) -> [Option<u64>; 2] {
        if self.is_cut(from, to) || time.per_mille(self.faults.get().lost) {
            return [None; 2];
        }
        let first = time.now() + self.delay(time);
        let second = time.per_mille(self.faults.get().doubled).then(|| time.now() + self.delay(time));
        [Some(first), second]
    }
}
