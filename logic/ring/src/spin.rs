//! How long it pays to look again and again before sleeping.

/// What a wake-up across processors costs in ns if nobody has measured it.
const WAKE_DEFAULT_NS: u64 = 20_000;
/// Bounds of what is believed of a measurement: it stands where a peer could have written it.
const WAKE_NS: std::ops::RangeInclusive<u64> = 1_000..=50_000;
/// A spin lasts so many halves of a wake-up: a peer that has to be woken answers after one wake-up and its own work, and to
/// fall asleep just before that costs another one. Spinning in vain at most doubles and a half the price of the sleep.
const SPIN_HALF_WAKES: u64 = 3;
/// So many spins in vain in a row say that the peer is not quick at present. Not fewer: a machine stumbles now and then.
const VAIN_SPINS_MAX: u32 = 3;
/// After so many waits without a spin, try one again: the peer may have become quick.
const PROBE_EVERY: u32 = 64;

/// Giving way so often in vain, in a row, is enough: somebody else uses the processor, or the peer has nothing for us.
const VAIN_MAX: u32 = 4;

/// An adaptive spin: whole while it is successful, next to none while it is in vain. Nothing between: a shorter one would miss the
/// same answers.
#[derive(Clone, Debug)]
pub struct Spin {
    max_ns: u64,
    /// Spins in vain, in a row.
    vain_spins: u32,
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
    /// A spin where a wake-up costs `wake_ns`, as somebody alleges: within bounds, and 20 us if it is 0.
    #[must_use]
    pub fn new(wake_ns: u64) -> Spin {
        let wake_ns =
            if wake_ns == 0 { WAKE_DEFAULT_NS } else { wake_ns.clamp(*WAKE_NS.start(), *WAKE_NS.end()) };
        let max_ns = wake_ns * SPIN_HALF_WAKES / 2;
        Spin { max_ns, vain_spins: 0, waits_since_probe: 0, vain: 0, waits_since_way: 0 }
    }

    /// The longest spin, in ns.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// How long to spin in the wait that now begins, in ns; 0 is not at all.
    pub fn begin(&mut self) -> u64 {
        if self.pays() {
            return self.max_ns;
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
        self.vain_spins < VAIN_SPINS_MAX
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

    /// Learns how a spin ended.
    pub fn end(&mut self, successful: bool) {
        self.vain_spins = if successful { 0 } else { self.vain_spins.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vain_spins_are_given_up_and_tried_again() {
        let mut spin = Spin::default();
        let mut spins = 0;
        for _ in 0..PROBE_EVERY * 10 + VAIN_SPINS_MAX {
            if spin.begin() > 0 {
                spins += 1;
                spin.end(false);
            }
        }
        assert_eq!(spins, VAIN_SPINS_MAX + 10);
    }

    #[test]
    fn one_stumble_changes_nothing_and_one_success_restores_the_spin() {
        let mut spin = Spin::default();
        spin.end(false);
        assert_eq!(spin.begin(), spin.max_ns());
        for _ in 0..10 {
            spin.end(false);
        }
        assert_eq!(spin.begin(), 0);
        spin.end(true);
        assert_eq!(spin.begin(), spin.max_ns());
    }

    #[test]
    fn an_allegation_about_the_price_of_a_wake_up_is_believed_within_bounds() {
        assert_eq!(Spin::new(0).max_ns(), 30_000);
        assert_eq!(Spin::new(1).max_ns(), 1_500);
        assert_eq!(Spin::new(12_000).max_ns(), 18_000);
        assert_eq!(Spin::new(u64::MAX).max_ns(), 75_000);
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
