//! How a half of an end sleeps: at first for a moment on a futex, which costs one system call there
//! and one to wake; then on its doorbell, for as long as it takes.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ring::{Prepared, Wake};
use sys::futex::Woken;
use sys::region::Region;

/// Longest sleep on a futex, which tells nothing of the peer's death, and in which a peer that
/// moves sleepers about can keep us. Well under the time in which a death is to be noticed.
pub(crate) const FUTEX_SLEEP: Duration = Duration::from_millis(1);

/// The cost of a wake-up across processors on this machine, in ns, for [`crate::Config::spin_ns`];
/// `None` where that can't be measured (one processor, or no threads). Takes some milliseconds the
/// first time; so it is for a long-lived process that makes channels for others.
#[must_use]
pub fn wake_price_ns() -> Option<u32> {
    static PRICE: OnceLock<Option<u32>> = OnceLock::new();
    *PRICE.get_or_init(|| sys::wake::price_ns().ok().flatten())
}

/// The cost of waking and sleeping of a half of an end so far. Each sleep and each wake is a system
/// call or two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sleeps on a futex.
    pub futex_sleeps: u64,
    /// Those of them that nobody ended before their time.
    pub futex_sleeps_in_vain: u64,
    /// Sleeps on a doorbell.
    pub doorbell_sleeps: u64,
    /// Times that a peer on our processor was let run before a sleep.
    pub ways: u64,
    /// Times that the peer was woken through a futex.
    pub futex_wakes: u64,
    /// Times that the peer's doorbell was rung.
    pub rings: u64,
}

impl Counts {
    /// Counts what is about to be done for the peer.
    pub(crate) fn wake(&mut self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::Futex => self.futex_wakes += 1,
            Wake::Doorbell => self.rings += 1,
        }
    }
}

/// Whether short sleeps pay at present: they do while somebody ends them.
#[derive(Debug)]
pub(crate) struct Habit {
    short: bool,
}

impl Default for Habit {
    fn default() -> Self {
        Habit { short: true }
    }
}

/// How a short sleep went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nap {
    /// Look again.
    Ended,
    /// Nobody came: sleep on the doorbell.
    InVain,
}

impl Habit {
    /// Whether to sleep on a futex first.
    pub(crate) fn is_short(&self) -> bool {
        self.short
    }

    /// Sleeps on the futex of the word at `offset` that [`Prepared`] says.
    pub(crate) fn nap(
        &mut self,
        region: &Region,
        offset: usize,
        prepared: &Prepared,
        deadline: Option<Instant>,
        counts: &mut Counts,
    ) -> Nap {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let at_most = left.map_or(FUTEX_SLEEP, |left| left.min(FUTEX_SLEEP));
        counts.futex_sleeps += 1;
        match region.sleep(offset, prepared.word, at_most) {
            Woken::Perhaps => Nap::Ended,
            // The deadline's doing, perhaps, and nothing is learnt from that; the caller looks at
            // it.
            Woken::TimeOver if at_most < FUTEX_SLEEP => Nap::Ended,
            Woken::TimeOver | Woken::Never => {
                counts.futex_sleeps_in_vain += 1;
                self.short = false;
                Nap::InVain
            }
        }
    }

    /// Learns how long a sleep on the doorbell took: a short one would have been cheaper on the
    /// futex.
    pub(crate) fn slept(&mut self, since: Instant) {
        self.short = since.elapsed() < FUTEX_SLEEP;
    }
}
