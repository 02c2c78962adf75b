//! How fast connections may come.

use std::time::Duration;

/// A second, in the unit in which room is counted.
const SECOND_NS: u128 = 1_000_000_000;

/// So many in a second, and at most a burst at once. Time comes in as an argument: since any moment
/// that stays the same.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    per_second: u32,
    burst: u32,
    /// When there will be room for a whole burst again, were nobody to come.
    full_at_ns: u128,
}

impl Rate {
    /// `per_second` and `burst` are at least 1.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self { per_second: per_second.max(1), burst: burst.max(1), full_at_ns: 0 }
    }

    /// Takes room for one, or says how long until there is some.
    ///
    /// # Errors
    /// The time until the next one may come.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        let each = SECOND_NS / u128::from(self.per_second);
        let most = each * u128::from(self.burst);
        let now = now.as_nanos();
        let full_at = self.full_at_ns.max(now) + each;
        if full_at > now + most {
            let wait = full_at - now - most;
            return Err(Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX)));
        }
        self.full_at_ns = full_at;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_then_one_after_the_other() {
        let mut rate = Rate::new(10, 3);
        let at = Duration::from_millis;
        let start = 5_000;
        assert_eq!((0..3).map(|_| rate.take(at(start))).filter(Result::is_ok).count(), 3);
        assert_eq!(rate.take(at(start)), Err(at(100)));
        assert_eq!(rate.take(at(start + 40)), Err(at(60)));
        assert_eq!(rate.take(at(start + 100)), Ok(()));
        assert_eq!(rate.take(at(start + 100)), Err(at(100)));
        // After a pause there is a burst again, and no more than that.
        let later = start + 60_000;
        assert_eq!((0..9).map(|_| rate.take(at(later))).filter(Result::is_ok).count(), 3);
    }
}
