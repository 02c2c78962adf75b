//! Whether a domain that is up still does what it should. Pure: how each check ended comes in, what
//! to do comes out.

use crate::model::Health;

/// The memory of the checks of one incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// Failures in a row that count.
    failures: u32,
    /// Whether a check has ever ended well.
    passed: bool,
}

/// The verdict of a check on its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No check has ended well, and there is still time for that.
    Starting,
    /// The last check ended well.
    Healthy,
    /// So many checks in a row have failed, fewer than it takes.
    Failing {
        /// How many.
        failures: u32,
    },
    /// As many have failed in a row as it takes: the domain is to be restarted.
    Dead {
        /// How many.
        failures: u32,
    },
}

impl Liveness {
    /// Takes the outcome of one check. `starting`: the domain has had less time than its `ready`
    /// gives it; until it has passed once, failures do not count meanwhile.
    pub fn checked(&mut self, health: &Health, well: bool, starting: bool) -> Standing {
        if well {
            *self = Self { failures: 0, passed: true };
            return Standing::Healthy;
        }
        if starting && !self.passed {
            return Standing::Starting;
        }
        self.failures = self.failures.saturating_add(1);
        match self.failures {
            failures if failures >= health.fails => Standing::Dead { failures },
            failures => Standing::Failing { failures },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(fails: u32) -> Health {
        Health { command: vec!["true".into()], every_ms: 1, timeout_ms: 1, fails }
    }

    #[test]
    fn only_failures_in_a_row_count() {
        let (health, mut liveness) = (health(2), Liveness::default());
        assert_eq!(liveness.checked(&health, true, false), Standing::Healthy);
        assert_eq!(liveness.checked(&health, false, false), Standing::Failing { failures: 1 });
        assert_eq!(liveness.checked(&health, true, false), Standing::Healthy);
        assert_eq!(liveness.checked(&health, false, false), Standing::Failing { failures: 1 });
        assert_eq!(liveness.checked(&health, false, false), Standing::Dead { failures: 2 });
    }

    #[test]
    fn a_start_has_its_time_and_a_domain_that_was_well_has_none() {
        let (health, mut liveness) = (health(1), Liveness::default());
        assert_eq!(liveness.checked(&health, false, true), Standing::Starting);
        assert_eq!(liveness.checked(&health, true, true), Standing::Healthy);
        assert_eq!(liveness.checked(&health, false, true), Standing::Dead { failures: 1 });
        assert_eq!(Liveness::default().checked(&health, false, false), Standing::Dead { failures: 1 });
    }
}
