//! When a change of a table is in force at the latest, for whoever does not wait for the thread
//! that makes it.

use crate::LATE_NS;

/// The plan that a processor's thread goes by, as far as is known without asking it.
#[derive(Debug, Default)]
pub struct Horizon {
    /// The cycle of the table that was given last, in ns.
    cycle_ns: u64,
    /// The longest cycle of the tables before it that may still be gone by, in ns.
    longest_ns: u64,
    /// From when on the last one is, at the latest.
    by_ns: u64,
}

impl Horizon {
    /// A table of that cycle is given now; when it is in force at the latest. A table that waits is
    /// replaced by the next one, so the one before goes on until then, and is left at a quiet time,
    /// which each cycle has.
    pub fn change(&mut self, now_ns: u64, cycle_ns: u64) -> u64 {
        let settled = now_ns >= self.by_ns;
        self.longest_ns = if settled { self.cycle_ns } else { self.longest_ns.max(self.cycle_ns) };
        self.by_ns = now_ns.saturating_add(LATE_NS).saturating_add(self.longest_ns);
        self.cycle_ns = cycle_ns;
        self.by_ns
    }

    /// The thread has said when it is.
    pub fn settle(&mut self, at_ns: u64) {
        self.by_ns = at_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_waits_for_the_longest_that_may_still_be_in_force() {
        let mut horizon = Horizon::default();
        assert_eq!(horizon.change(1_000, 50_000), 1_000 + LATE_NS);
        let first = 1_000 + LATE_NS;
        assert_eq!(horizon.change(first, 10), first + LATE_NS + 50_000, "the first is in force");
        assert_eq!(horizon.change(first + 1, 20), first + 1 + LATE_NS + 50_000, "and may still be");
        assert_eq!(horizon.change(first + 2, 30), first + 2 + LATE_NS + 50_000);
        horizon.settle(first + 3);
        assert_eq!(horizon.change(first + 3, 40), first + 3 + LATE_NS + 30, "only the last is left");
    }
}
