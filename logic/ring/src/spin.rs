//! How long it pays to look again and again before sleeping.

/// Longest spin in ns if nobody has measured: about what a wake-up across processors costs, so that spinning in vain at
/// most doubles it.
const SPIN_DEFAULT_NS: u64 = 20_000;
/// Bounds of what is believed of a measurement: it stands where a peer could have written it.
const SPIN_NS: std::ops::RangeInclusive<u64> = 1_000..=50_000;
/// Below this a spin catches nothing that the look before the sleep does not.
const SPIN_MIN_NS: u64 = 500;
/// After so many waits without a spin, try one again: the peer may have become quick.
const PROBE_EVERY: u32 = 64;

/// Giving way so often in vain, in a row, is enough: somebody else uses the processor, or the peer has nothing for us.
const VAIN_MAX: u32 = 4;

/// An adaptive spin: long while it is successful, next to none while it is in vain.
#[derive(Clone, Debug)]
pub struct Spin {
    max_ns: u64,
    budget_ns: u64,
    waits_since_probe: u32,
    /// Times in a row that giving way was in vain.
    vain: u32,
    waits_since_way: u32,
}

impl Default for Spin {
    fn default() -> Self {
        Spin::new(0)
    }
}

impl Spin {
    /// A spin of up to `wake_ns`, what somebody alleges that a wake-up costs in ns; within bounds, and 20 us if it is 0.
    #[must_use]
    pub fn new(wake_ns: u64) -> Spin {
        let max_ns =
            if wake_ns == 0 { SPIN_DEFAULT_NS } else { wake_ns.clamp(*SPIN_NS.start(), *SPIN_NS.end()) };
        Spin { max_ns, budget_ns: max_ns, waits_since_probe: 0, vain: 0, waits_since_way: 0 }
    }

    /// The longest spin, in ns.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

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
        self.max_ns
    }

    /// Whether spins have been successful of late.
    #[inline]
    #[must_use]
    pub fn pays(&self) -> bool {
        self.budget_ns >= SPIN_MIN_NS
    }

    /// Whether to let the peer have the processor that both share before sleeping, in the wait that now begins.
    pub fn may_give_way(&mut self) -> bool {
        if self.vain < VAIN_MAX {
            return true;
        }
        self.waits_since_way += 1;
        let probe = self.waits_since_way >= PROBE_EVERY;
        if probe {
            self.waits_since_way = 0;
        }
        probe
    }

    /// Learns whether what was waited for came while we gave way.
    pub fn gave_way(&mut self, successful: bool) {
        self.vain = if successful { 0 } else { self.vain.saturating_add(1) };
    }

    /// Learns how a spin of `budget_ns` ended.
    pub fn end(&mut self, successful: bool) {
        self.budget_ns = if successful { self.max_ns } else { self.budget_ns / 2 };
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
        assert!(spent < 2 * SPIN_DEFAULT_NS + 10 * SPIN_DEFAULT_NS, "{spent}");
        assert!(spent > 9 * SPIN_DEFAULT_NS, "{spent}");
    }

    #[test]
    fn one_success_restores_the_spin() {
        let mut spin = Spin::default();
        for _ in 0..10 {
            spin.end(false);
        }
        assert_eq!(spin.begin(), 0);
        spin.end(true);
        assert_eq!(spin.begin(), SPIN_DEFAULT_NS);
    }

    #[test]
    fn an_allegation_about_the_price_of_a_wake_up_is_believed_within_bounds() {
        assert_eq!(Spin::new(0).max_ns(), SPIN_DEFAULT_NS);
        assert_eq!(Spin::new(1).max_ns(), 1_000);
        assert_eq!(Spin::new(12_345).max_ns(), 12_345);
        assert_eq!(Spin::new(u64::MAX).max_ns(), 50_000);
    }

    #[test]
    fn giving_way_in_vain_is_given_up_and_tried_again() {
        let mut spin = Spin::default();
        let mut times = 0;
        for _ in 0..PROBE_EVERY * 10 + VAIN_MAX {
            if spin.may_give_way() {
                times += 1;
                spin.gave_way(false);
            }
        }
        assert_eq!(times, VAIN_MAX + 10);
        spin.gave_way(true);
        assert!(spin.may_give_way());
    }
}
