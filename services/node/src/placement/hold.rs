//! The hold of this node on its claims: monitors are told until when it has it, and what may run
//! elsewhere ends when that has passed.

use super::Following;
use crate::domains::Domains;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The orders that monitors were given.
#[derive(Debug, Default)]
pub(super) struct Hold(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// Until when, in ns of `CLOCK_BOOTTIME`; 0: nothing yet, or that it is over.
    until: u64,
    /// How often that had passed when they were told another time.
    lapses: u64,
}

impl Hold {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self, until: u64, now: u64) {
        let mut told = self.lock();
        told.lapses += u64::from(has_passed(told.until, now));
        told.until = until;
    }

    /// For [`Hold::lapsed_since`].
    pub(super) fn lapses(&self) -> u64 {
        self.lock().lapses
    }

    /// Whether a monitor may have ended its domain since then, because it found that the hold had
    /// passed.
    pub(super) fn lapsed_since(&self, lapses: u64) -> bool {
        let told = self.lock();
        told.lapses != lapses || has_passed(told.until, domain::hold::now_ns())
    }
}

fn has_passed(until: u64, now: u64) -> bool {
    until > 0 && until <= now
}

/// Begins to keep monitors told, and to end what may run elsewhere when this node is cut off.
pub(super) fn keep(node: &Arc<Domains>, following: &Arc<Following>) {
    tokio::spawn(end_with_it(Arc::clone(node), Arc::clone(following)));
    let (run_dir, of, runtime) =
        (node.run_dir().to_path_buf(), Arc::clone(following), tokio::runtime::Handle::current());
    // Not by the threads that do what blocks: all of them may wait for the registry, and a monitor
    // that is told late ends its domain.
    let started =
        std::thread::Builder::new().name("hold".into()).spawn(move || keep_told(&run_dir, &of, &runtime));
    if let Err(error) = started {
        tracing::error!(%error, "no thread to tell monitors how long this node holds its claims: they end what may run elsewhere");
    }
}

fn keep_told(run_dir: &Path, following: &Following, runtime: &tokio::runtime::Handle) {
    let mut hold = following.peers.hold_until();
    // Before this daemon has a lease, what its predecessor wrote holds, and monitors keep to that.
    let mut had_one = false;
    loop {
        let until = *hold.borrow_and_update();
        had_one |= until > 0;
        if had_one {
            match domain::hold::write(run_dir, until) {
                Ok(()) => following.hold.told(until, domain::hold::now_ns()),
                Err(error) => {
                    tracing::error!(%error, "monitors can't be told how long this node holds its claims")
                }
            }
        }
        if runtime.block_on(hold.changed()).is_err() {
            return;
        }
    }
}

async fn end_with_it(node: Arc<Domains>, following: Arc<Following>) {
    let mut hold = following.peers.hold_until();
    let mut lapse = Lapse::default();
    loop {
        let (until, now) = (*hold.borrow_and_update(), domain::hold::now_ns());
        let left = Duration::from_nanos(until.saturating_sub(now));
        if lapse.has_been(until, now) {
            let_go(&node).await;
        }
        tokio::select! {
            changed = hold.changed() => if changed.is_err() { return },
            // tidy(sleep): the hold runs out by itself; only the clock says so.
            () = tokio::time::sleep(left), if !left.is_zero() => {}
        }
    }
}

/// Whether the hold has passed, also where this was not looked at meanwhile and it is held again.
#[derive(Debug, Default)]
struct Lapse {
    /// Until when it was held, as far as that has not been found to be over; 0: it is.
    until: u64,
    /// Before this daemon has a lease, what its predecessor wrote holds.
    had_one: bool,
}

impl Lapse {
    /// By what is known now.
    fn has_been(&mut self, until: u64, now: u64) -> bool {
        let unseen = has_passed(self.until, now);
        self.had_one |= until > 0;
        self.until = if until > now { until } else { 0 };
        unseen || (self.had_one && until <= now)
    }
}

/// This node is cut off: whatever may be started elsewhere ends here, at once.
async fn let_go(node: &Arc<Domains>) {
    let ends = node.all_supervised().into_iter().filter(|supervised| supervised.domain().restart.elsewhere);
    let ends: Vec<_> = ends
        .map(|supervised| {
            tokio::spawn(async move {
                let (dc, domain) = (&supervised.dc, &supervised.name);
                tracing::warn!(dc, domain, "this node is cut off: it ends here, and may start elsewhere");
                if let Err(error) = supervised.stop_at_once().await {
                    tracing::error!(dc, domain, error, "what is left of it can't be removed");
                }
            })
        })
        .collect();
    for end in ends {
        if let Err(error) = end.await {
            tracing::error!(%error, "the end of a domain broke off");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon that was stopped for seconds finds a hold that is not over, of a lease that it has
    /// taken since; what it was about to start is over.
    #[test]
    fn a_hold_that_passed_unseen_is_not_forgotten() {
        let mut lapse = Lapse::default();
        assert!(!lapse.has_been(0, 5), "nothing was held yet");
        assert!(!lapse.has_been(20, 10));
        assert!(!lapse.has_been(30, 15), "it was renewed in time");
        assert!(lapse.has_been(90, 50), "it had passed at 30");
        assert!(!lapse.has_been(90, 60));
        assert!(lapse.has_been(0, 70), "it was given up");
        assert!(!lapse.has_been(190, 80), "it had not passed when it was given up");
        assert!(lapse.has_been(190, 190));
    }

    #[test]
    fn what_a_monitor_may_have_seen_pass_is_remembered() {
        let (hold, second) = (Hold::default(), 1_000_000_000);
        let now = domain::hold::now_ns();
        let before = hold.lapses();
        assert!(!hold.lapsed_since(before), "nobody was told anything");
        hold.told(now + 60 * second, now);
        hold.told(now + 61 * second, now);
        assert!(!hold.lapsed_since(before));
        // It was renewed too late, whether somebody looked meanwhile or not.
        hold.told(now - second, now);
        assert!(hold.lapsed_since(before));
        let meanwhile = hold.lapses();
        hold.told(now + 60 * second, now);
        assert!(hold.lapsed_since(before) && hold.lapsed_since(meanwhile));
        assert!(!hold.lapsed_since(hold.lapses()));
        // Its end is told in time: monitors have ended nothing that this daemon did not.
        hold.told(0, now);
        assert!(!hold.lapsed_since(hold.lapses()));
    }
}
