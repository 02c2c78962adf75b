//! How long it pays to look again and again before sleeping.

/// Longest spin in ns: about what a wake-up across processors costs, so that spinning in vain at most doubles it.
const SPIN_MAX_NS: u64 = 20_000;
/// Below this a spin catches nothing that the look before the sleep does not.
const SPIN_MIN_NS: u64 = 500;
/// After so many waits without a spin, try one again: the peer may have become quick.
const PROBE_EVERY: u32 = 64;

/// An adaptive spin: long while it is successful, next to none while it is in vain.
#[derive(Clone, Debug)]
pub struct Spin {
    budget_ns: u64,
    waits_since_probe: u32,
}

impl Default for Spin {
    fn default() -> Self {
        Spin { budget_ns: SPIN_MAX_NS, waits_since_probe: 0 }
    }
}

impl Spin {
    /// How long to spin in the wait that now begins, in ns; 0 is not at all.
    pub fn begin(&mut self) -> u64 {
        if self.budget_ns >= SPIN_MIN_NS {
            return self.budget_ns;
        }
        self.waits_since_probe += 1;
        if self.waits_since_probe < PROBE_EVERY {
            return 0;
        }
        self.waits_since_probe = 0;
        SPIN_MAX_NS
    }

    /// Learns how a spin of `budget_ns` ended.
    pub fn end(&mut self, successful: bool) {
        self.budget_ns = if successful { SPIN_MAX_NS } else { self.budget_ns / 2 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vain_spins_shorten_to_nothing_and_are_tried_again() {
        let mut spin = Spin::default();
        let mut spent = 0;
        for _ in 0..PROBE_EVERY * 10 {
            let budget = spin.begin();
            spent += budget;
            if budget > 0 {
                spin.end(false);
            }
        }
        // The first few halvings, then one probe in 64 waits.
        assert!(spent < 2 * SPIN_MAX_NS + 10 * SPIN_MAX_NS, "{spent}");
        assert!(spent > 9 * SPIN_MAX_NS, "{spent}");
    }

    #[test]
    fn one_success_restores_the_spin() {
        let mut spin = Spin::default();
        for _ in 0..10 {
            spin.end(false);
        }
        assert_eq!(spin.begin(), 0);
        spin.end(true);
        assert_eq!(spin.begin(), SPIN_MAX_NS);
    }
}
