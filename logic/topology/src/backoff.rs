//! When a program that ended is started again. Pure: what happened and how long it took come in, a
//! decision comes out.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{Restart, RestartPolicy};

/// A run of at least this long, in ms, counts as a success: the pauses start over. It is as long as
/// the usual longest pause; a domain with a longer one takes that.
pub const STABLE_MS: u64 = 10_000;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was ended because it no longer did what it should.
    Unhealthy,
    /// It could not be started.
    NotStarted,
}

impl Exit {
    /// Whether it did what it was meant to do.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

/// The decision on a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Start it again after this pause.
    RestartAfter(Duration),
    /// Leave it ended.
    GiveUp(GiveUp),
}

/// Why a domain stays ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum GiveUp {
    /// It ended with 0, and its policy restarts failures only.
    #[error("its program is done, and its policy is on-failure")]
    Done,
    /// Its policy restarts nothing.
    #[error("its policy is never")]
    Never,
    /// It has been restarted as often as it may be.
    #[error("it failed again after {restarts} restarts in a row, as many as max_retries allows")]
    Retries {
        /// How often.
        restarts: u32,
    },
}

/// The memory of one domain's restarts. It can be stored, so that a daemon's successor goes on
/// where it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    restart: Restart,
    /// Restarts in a row, none of which led to a stable run.
    restarts: u32,
}

impl Backoff {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new(restart: Restart) -> Self {
        Self { restart, restarts: 0 }
    }

    /// Restarts in a row so far.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Takes another policy without forgetting what has happened.
    pub fn set_policy(&mut self, restart: Restart) {
        self.restart = restart;
    }

    /// Decides about a program that ended with `exit` after it had run for `ran`.
    pub fn ended(&mut self, exit: Exit, ran: Duration) -> Decision {
        if let Some(reason) = self.refusal(exit) {
            return Decision::GiveUp(reason);
        }
        if ran >= Duration::from_millis(STABLE_MS.max(self.restart.max_backoff_ms)) {
            self.restarts = 0;
        }
        if self.restart.max_retries.is_some_and(|max| self.restarts >= max) {
            return Decision::GiveUp(GiveUp::Retries { restarts: self.restarts });
        }
        let pause = self.pause();
        self.restarts = self.restarts.saturating_add(1);
        Decision::RestartAfter(pause)
    }

    fn refusal(&self, exit: Exit) -> Option<GiveUp> {
        match self.restart.policy {
            RestartPolicy::Never => Some(GiveUp::Never),
            RestartPolicy::OnFailure if exit.is_success() => Some(GiveUp::Done),
            RestartPolicy::OnFailure | RestartPolicy::Always => None,
        }
    }

    /// Twice as long each time, up to the bound.
    fn pause(&self) -> Duration {
        let factor = 1_u64.checked_shl(self.restarts).unwrap_or(u64::MAX);
        Duration::from_millis(self.restart.backoff_ms.saturating_mul(factor).min(self.restart.max_backoff_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    fn restart(policy: RestartPolicy, max_retries: Option<u32>) -> Restart {
        Restart { policy, backoff_ms: 200, max_backoff_ms: 10_000, max_retries, elsewhere: false }
    }

    fn pauses(backoff: &mut Backoff, count: usize) -> Vec<u64> {
        let mut next = || match backoff.ended(Exit::Code(1), SHORT) {
            Decision::RestartAfter(pause) => u64::try_from(pause.as_millis()).unwrap(),
            Decision::GiveUp(reason) => panic!("gave up: {reason}"),
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn pauses_double_up_to_the_bound_and_stay_there() {
        let mut backoff = Backoff::new(restart(RestartPolicy::Always, None));
        assert_eq!(pauses(&mut backoff, 8), [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert!(pauses(&mut backoff, 200).iter().all(|pause| *pause == 10_000));
    }

    #[test]
    fn a_stable_run_starts_over() {
        let mut backoff = Backoff::new(restart(RestartPolicy::Always, None));
        pauses(&mut backoff, 5);
        let stable = Duration::from_millis(STABLE_MS);
        let first = Decision::RestartAfter(Duration::from_millis(200));
        assert_ne!(backoff.ended(Exit::Code(1), stable - SHORT), first);
        assert_eq!(backoff.ended(Exit::Code(1), stable), first);
    }

    #[test]
    fn policies_differ_in_what_they_restart() {
        let decide = |policy, exit| Backoff::new(restart(policy, None)).ended(exit, SHORT);
        let again = Decision::RestartAfter(Duration::from_millis(200));
        assert_eq!(decide(RestartPolicy::Always, Exit::Code(0)), again);
        assert_eq!(decide(RestartPolicy::OnFailure, Exit::Code(0)), Decision::GiveUp(GiveUp::Done));
        assert_eq!(decide(RestartPolicy::OnFailure, Exit::Code(1)), again);
        assert_eq!(decide(RestartPolicy::OnFailure, Exit::Signal(9)), again);
        assert_eq!(decide(RestartPolicy::OnFailure, Exit::NotStarted), again);
        assert_eq!(decide(RestartPolicy::OnFailure, Exit::Unhealthy), again);
        assert_eq!(decide(RestartPolicy::Never, Exit::Signal(9)), Decision::GiveUp(GiveUp::Never));
    }

    #[test]
    fn retries_are_counted_in_a_row() {
        let mut backoff = Backoff::new(restart(RestartPolicy::OnFailure, Some(2)));
        pauses(&mut backoff, 2);
        let end = Decision::GiveUp(GiveUp::Retries { restarts: 2 });
        assert_eq!(backoff.ended(Exit::Code(1), SHORT), end);
        assert_eq!(backoff.ended(Exit::Code(1), SHORT), end);
        let mut none = Backoff::new(restart(RestartPolicy::Always, Some(0)));
        assert_eq!(none.ended(Exit::Code(1), SHORT), Decision::GiveUp(GiveUp::Retries { restarts: 0 }));
    }

    #[test]
    fn a_successor_goes_on_where_the_daemon_stopped() {
        let mut backoff = Backoff::new(restart(RestartPolicy::Always, None));
        pauses(&mut backoff, 3);
        let json = serde_json::to_string(&backoff).unwrap();
        let mut successor: Backoff = serde_json::from_str(&json).unwrap();
        assert_eq!(pauses(&mut successor, 1), [1600]);
        successor.set_policy(restart(RestartPolicy::Never, None));
        assert_eq!(successor.ended(Exit::Code(1), SHORT), Decision::GiveUp(GiveUp::Never));
        assert_eq!(successor.restarts(), 4);
    }
}
