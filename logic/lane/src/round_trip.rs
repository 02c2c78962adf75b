//! How long a round trip takes, and when what was sent is overdue (RFC 9002, 5 and 6.2).

/// Before anything was measured: a machine of the same network that has other things to do.
const FIRST_US: u64 = 20_000;
/// The least variation of a round trip: less than a clock of event loops can tell.
const VARIES_MIN_US: u64 = 1_000;
/// Shortest wait before a frame is sent again, where nothing else says that it is lost.
const OVERDUE_MIN_US: u64 = 8_000;
/// Longest: waits double.
const OVERDUE_MAX_US: u64 = 500_000;

/// An estimate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoundTrip {
    smooth_us: Option<u64>,
    varies_us: u64,
    least_us: Option<u64>,
}

impl RoundTrip {
    /// One was measured; so long the other side had held it.
    pub fn measured(&mut self, us: u64, held_us: u64) {
        let least = self.least_us.map_or(us, |least| least.min(us));
        self.least_us = Some(least);
        let us = if us >= least.saturating_add(held_us) { us - held_us } else { us };
        match self.smooth_us {
            None => (self.smooth_us, self.varies_us) = (Some(us), us / 2),
            Some(smooth) => {
                self.varies_us = (3 * self.varies_us + smooth.abs_diff(us)) / 4;
                self.smooth_us = Some((7 * smooth + us) / 8);
            }
        }
    }

    /// As it is believed to be, in µs.
    pub fn smooth_us(&self) -> u64 {
        self.smooth_us.unwrap_or(FIRST_US)
    }

    /// The shortest that there was, in µs.
    pub fn least_us(&self) -> u64 {
        self.least_us.unwrap_or(0)
    }

    /// The time after which a frame is lost that was sent so long before another one which has
    /// come.
    pub fn overtaken_us(&self) -> u64 {
        self.smooth_us() * 9 / 8 + VARIES_MIN_US
    }

    /// After so long without an answer it is asked again, the `times`th time.
    pub fn overdue_us(&self, times: u32) -> u64 {
        let once = self.smooth_us() + (4 * self.varies_us).max(VARIES_MIN_US);
        once.max(OVERDUE_MIN_US).saturating_mul(1 << times.min(10)).min(OVERDUE_MAX_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_is_measured_and_leaves_out_what_was_held() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.smooth_us(), FIRST_US);
        for _ in 0..100 {
            trip.measured(1_500, 500);
        }
        trip.measured(400, 0);
        for _ in 0..100 {
            trip.measured(1_500, 500);
        }
        assert!((950..=1_050).contains(&trip.smooth_us()), "{trip:?}");
        assert_eq!(trip.least_us(), 400);
        // Nobody makes it shorter than it can be by saying that it was held long.
        trip.measured(1_000, 1_000_000);
        assert!(trip.smooth_us() >= 900, "{trip:?}");
    }

    #[test]
    fn waits_double_and_end() {
        let trip = RoundTrip::default();
        assert_eq!(trip.overdue_us(1), 2 * trip.overdue_us(0));
        assert_eq!(trip.overdue_us(60), OVERDUE_MAX_US);
    }
}
