//! Whether the machine slept: what is promised is promised of the time while it is awake.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Both clocks, as closely together as they can be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// `CLOCK_MONOTONIC`, which stands still while the machine sleeps, in ns; before and after the
    /// other one was read.
    pub(super) awake_ns: (u64, u64),
    /// `CLOCK_BOOTTIME`, which goes on.
    pub(super) since_boot_ns: u64,
}

impl Reading {
    pub(super) fn now() -> Self {
        let before_ns = sys::clock::clock_ns();
        let now = clock_gettime(ClockId::Boottime);
        // It begins at boot and is never negative.
        let since_boot_ns = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        Self { awake_ns: (before_ns, sys::clock::clock_ns()), since_boot_ns }
    }
}

/// How often and how long the machine slept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slept {
    times: u32,
    ns: u64,
}

impl Slept {
    pub(super) fn add(&mut self, ns: u64) {
        self.times = self.times.saturating_add(1);
        self.ns = self.ns.saturating_add(ns);
    }

    /// Returns the caveat for a domain that is promised something then.
    pub(super) fn caveat(&self) -> Option<String> {
        let times = match self.times {
            0 => return None,
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        Some(format!(
            "the machine slept {times} meanwhile, for {:.1} s: nobody had anything then, and nothing of it is made up for",
            Duration::from_nanos(self.ns).as_secs_f64()
        ))
    }
}

/// Sees it by how far one clock is ahead of the other.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    /// At most so far, in ns, at the last look.
    ahead_ns: Option<u64>,
}

impl Watcher {
    /// How long the machine has certainly slept since the last look, if it has. The thread that
    /// looks may be kept waiting between two clocks for any time: that is no sleep.
    pub(super) fn look(&mut self, now: Reading) -> Option<u64> {
        let (before_ns, after_ns) = now.awake_ns;
        let at_least = now.since_boot_ns.saturating_sub(after_ns);
        let known = self.ahead_ns;
        // What is known most exactly stays known: the difference only grows.
        let at_most = now.since_boot_ns.saturating_sub(before_ns);
        let slept_ns = known.and_then(|known| at_least.checked_sub(known)).filter(|ns| *ns > 0);
        self.ahead_ns = match known {
            Some(known) if slept_ns.is_none() => Some(known.min(at_most)),
            _ => Some(at_most),
        };
        slept_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn reading(awake_ns: u64, slept_ns: u64, delay_ns: u64) -> Reading {
        Reading {
            awake_ns: (awake_ns, awake_ns + delay_ns),
            since_boot_ns: awake_ns + slept_ns + delay_ns / 2,
        }
    }

    #[test]
    fn sleep_is_what_one_clock_is_ahead_and_waiting_is_none() {
        let mut watcher = Watcher::default();
        assert_eq!(watcher.look(reading(10 * S, 7 * S, 100)), None, "what was before is nobody's here");
        assert_eq!(watcher.look(reading(11 * S, 7 * S, 40)), None);
        // Kept waiting for two seconds between the clocks, twice.
        assert_eq!(watcher.look(reading(12 * S, 7 * S, 2 * S)), None);
        assert_eq!(watcher.look(reading(15 * S, 7 * S, 2 * S)), None);
        // And for an hour between two looks.
        assert_eq!(watcher.look(reading(4_000 * S, 7 * S, 40)), None);
        let slept = watcher.look(reading(4_001 * S, 12 * S, 40)).expect("it slept");
        assert!((5 * S - 1_000..=5 * S).contains(&slept), "{slept}");
        assert_eq!(watcher.look(reading(4_002 * S, 12 * S, 40)), None, "it is told once");
        // Seen late, and told as far as it is certain.
        let slept = watcher.look(reading(4_003 * S, 20 * S, 2 * S)).expect("it slept");
        assert!((7 * S - 1_000..=7 * S + 1).contains(&slept), "{slept}");
    }

    #[test]
    fn the_clocks_of_this_machine_say_that_it_is_awake() {
        let mut watcher = Watcher::default();
        assert!((0..1_000).all(|_| watcher.look(Reading::now()).is_none()));
    }

    #[test]
    fn it_is_told_in_words() {
        let mut slept = Slept::default();
        assert_eq!(slept.caveat(), None);
        slept.add(12_340_000_000);
        assert!(slept.caveat().is_some_and(|text| text.contains("slept once meanwhile, for 12.3 s")));
        slept.add(S);
        assert!(slept.caveat().is_some_and(|text| text.contains("2 times meanwhile, for 13.3 s")));
    }
}
