//! Whether to look again before sleeping: to be woken costs more than an answer that is just on its
//! way.

use std::time::{Duration, Instant};

/// Waits that were spun through lift this, others lower it: spinning goes on only while every
/// fourth of them pays.
const WORTH_MAX: i32 = 64;
const PAID: i32 = 3;
const WASTED: i32 = 1;
/// A wait that was slept through and was short makes it worth one more try.
const WOULD_HAVE_PAID: i32 = 1;
/// Short is so many times the time to spin: where both sides sleep, each is woken late.
const SHORT_ASLEEP: u32 = 4;

pub(super) struct Spin {
    most: Duration,
    /// Since when nothing happened.
    quiet: Option<Instant>,
    asleep: bool,
    worth: i32,
}

impl Spin {
    pub fn new(most: Duration) -> Self {
        Self { most, quiet: None, asleep: false, worth: 1 }
    }

    /// Something happened.
    pub fn happened(&mut self, now: Instant) {
        if self.most.is_zero() {
            return;
        }
        if let Some(since) = self.quiet.take() {
            let short = if self.asleep { self.most * SHORT_ASLEEP } else { self.most };
            let soon = now.saturating_duration_since(since) < short;
            let gain = match (soon, self.asleep) {
                (true, false) => PAID,
                (true, true) => WOULD_HAVE_PAID,
                (false, _) => 0,
            };
            self.worth = (self.worth + gain).min(WORTH_MAX);
        }
        self.asleep = false;
    }

    /// Nothing happened: whether to look again at once.
    pub fn again(&mut self, now: Instant) -> bool {
        if self.most.is_zero() || self.asleep {
            return false;
        }
        let since = *self.quiet.get_or_insert(now);
        if self.worth > 0 && now.saturating_duration_since(since) < self.most {
            return true;
        }
        if self.worth > 0 {
            self.worth -= WASTED;
        }
        self.asleep = true;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(50);

    /// One wait that ends after `wait`; whether it was spun through.
    fn wait(spin: &mut Spin, wait: Duration) -> bool {
        let begun = Instant::now();
        while spin.again(Instant::now()) {
            if begun.elapsed() >= wait {
                spin.happened(Instant::now());
                return true;
            }
        }
        while begun.elapsed() < wait {
            std::hint::spin_loop();
        }
        spin.happened(Instant::now());
        false
    }

    #[test]
    fn who_is_never_answered_soon_stops_spinning() {
        let mut spin = Spin::new(SHORT);
        for _ in 0..200 {
            wait(&mut spin, 4 * SHORT_ASLEEP * SHORT);
        }
        assert!(!spin.again(Instant::now()), "it spins for nothing");
    }

    #[test]
    fn who_is_answered_soon_spins_again() {
        let mut spin = Spin::new(Duration::from_secs(5));
        for _ in 0..200 {
            spin.worth = 0;
            wait(&mut spin, Duration::from_micros(1));
            assert!(spin.worth > 0);
        }
        assert!(wait(&mut spin, Duration::from_micros(1)));
    }

    #[test]
    fn no_time_to_spin_means_never() {
        let mut spin = Spin::new(Duration::ZERO);
        spin.happened(Instant::now());
        assert!(!spin.again(Instant::now()));
    }
}
