//! How long it pays to look again and again before sleeping.

/// The cost of a wake-up across processors in ns if nobody has measured it.
const WAKE_DEFAULT_NS: u64 = 20_000;
/// Bounds of what is believed of a measurement: it stands where a peer could have written it.
const WAKE_NS: std::ops::RangeInclusive<u64> = 1_000..=50_000;
/// A spin lasts so many halves of a wake-up: a peer that has to be woken answers after one wake-up
/// and its own work, and to fall asleep just before that costs another one. Spinning in vain at
/// most doubles and a half the price of the sleep.
const SPIN_HALF_WAKES: u64 = 3;
/// So many spins in vain in a row say that the peer is not quick at present. Not fewer: a machine
/// stumbles now and then.
const VAIN_SPINS_MAX: u32 = 3;
/// After so many waits without a spin, try one again: the peer may have become quick.
const PROBE_EVERY: u32 = 64;

/// Giving way so often in vain, in a row, is enough: the peer has nothing for us at present.
const VAIN_MAX: u32 = 4;
/// Giving way so long means that somebody else had the processor for a turn, which is a millisecond
/// or more: a sleeper that is waked need not wait for that. Programs that only take turns, as a
/// dozen pairs do that share it, are through in less.
const TURN_NS: u64 = 250_000;
/// After so many waits at most, giving way is tried again that has cost a turn: then the turns that
/// it costs are a small part of the time.
const REST_MAX: u32 = 64 * PROBE_EVERY;

/// An adaptive spin: whole while it is successful, next to none while it is in vain. Nothing
/// between: a shorter one would miss the same answers.
#[derive(Clone, Debug)]
pub struct Spin {
    max_ns: u64,
    /// Spins in vain, in a row.
    vain_spins: u32,
    waits_since_probe: u32,
    /// Times in a row that giving way was in vain.
    vain: u32,
    waits_since_way: u32,
    /// Waits until giving way is tried again: more each time that it has cost a turn.
    rest: u32,
    /// Times that it was quick since `rest` has changed.
    quick: u32,
    /// Times that it was given at all.
    ways: u64,
}

impl Default for Spin {
    fn default() -> Self {
        Spin::new(0)
    }
}

impl Spin {
    /// A spin where a wake-up costs `wake_ns`, as somebody alleges: within bounds, and 20 us if it
    /// is 0.
    #[must_use]
    pub fn new(wake_ns: u64) -> Spin {
        let wake_ns =
            if wake_ns == 0 { WAKE_DEFAULT_NS } else { wake_ns.clamp(*WAKE_NS.start(), *WAKE_NS.end()) };
        let max_ns = wake_ns * SPIN_HALF_WAKES / 2;
        Spin {
            max_ns,
            vain_spins: 0,
            waits_since_probe: 0,
            vain: 0,
            waits_since_way: 0,
            rest: PROBE_EVERY,
            quick: 0,
            ways: 0,
        }
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

    /// Whether to let the peer have the processor that both share before sleeping, in the wait that
    /// now begins.
    pub fn may_give_way(&mut self) -> bool {
        if self.vain < VAIN_MAX {
            return true;
        }
        self.waits_since_way += 1;
        let probe = self.waits_since_way >= self.rest;
        if probe {
            self.waits_since_way = 0;
        }
        probe
    }

    /// Learns whether what was waited for came while we gave way, and how long that took.
    pub fn gave_way(&mut self, successful: bool, took_ns: u64) {
        self.ways += 1;
        if took_ns >= TURN_NS {
            // Whether it came or not: it would have come sooner.
            self.vain = VAIN_MAX;
            self.rest = (self.rest * 2).min(REST_MAX);
            self.quick = 0;
        } else if successful {
            self.vain = 0;
            self.quick += 1;
            if self.quick >= self.rest {
                self.rest = (self.rest / 2).max(PROBE_EVERY);
                self.quick = 0;
            }
        } else {
            self.vain = self.vain.saturating_add(1);
        }
    }

    /// How often we have given way.
    #[must_use]
    pub fn ways(&self) -> u64 {
        self.ways
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
                spin.gave_way(false, 300);
            }
        }
        assert_eq!(times, VAIN_MAX + 10);
        spin.gave_way(true, 2_000);
        assert!(spin.may_give_way());
    }

    /// On a busy machine each way cost a turn of somebody else, some milliseconds, for an answer
    /// that a sleep would have got in microseconds; and because the answer was there afterwards, it
    /// went on.
    #[test]
    fn giving_way_that_costs_a_turn_is_given_up_at_once_and_tried_more_and_more_seldom() {
        const WAITS: u32 = 100_000;
        let mut spin = Spin::default();
        let mut times = 0;
        for _ in 0..WAITS {
            if spin.may_give_way() {
                times += 1;
                spin.gave_way(true, 3_000_000);
            }
        }
        // One, then after 128 waits, after 256, and so on.
        assert_eq!(times, 1 + 5 + (WAITS - 1 - (128 + 256 + 512 + 1024 + 2048)) / REST_MAX);
        // Also where every other one is quick.
        let (mut spin, mut slow) = (Spin::default(), 0);
        for wait in 0..WAITS {
            if spin.may_give_way() {
                let took_ns = if wait % 2 == 0 { 2_000 } else { 3_000_000 };
                slow += u32::from(took_ns > TURN_NS);
                spin.gave_way(true, took_ns);
            }
        }
        assert!(slow <= 6 + WAITS / REST_MAX, "{slow}");
    }

    #[test]
    fn giving_way_is_done_as_ever_when_others_have_left_the_processor() {
        let mut spin = Spin::default();
        for _ in 0..10 {
            spin.gave_way(true, TURN_NS);
        }
        let mut given = 0;
        for _ in 0..4 * REST_MAX {
            if spin.may_give_way() {
                given += 1;
                spin.gave_way(true, TURN_NS - 1);
            }
        }
        assert_eq!(given, 3 * REST_MAX + 1);
        // And it rests no longer than at first when it fails again.
        spin.gave_way(true, TURN_NS);
        assert_eq!(spin.rest, 2 * PROBE_EVERY);
    }
}
