//! The controller of a budget against the share of work that is missed.
//!
//! It takes for true what holds for whoever drops what is late: of a demand `d` in each period a
//! budget `b` does `b`, so the share that is missed is `m = 1 - b / d`, and `d = b / (1 - m)`. That
//! is the next budget, with a little to spare; one step, and not a search.

use crate::figure::Figure;
use serde::{Deserialize, Serialize};

/// By what a budget grows at most at a time: a share that is not to be believed does not take
/// everything at once.
pub const FEEDBACK_GROWTH_MAX: u64 = 4;
/// By what it grows where all is missed: then the share does not say how much is lacking.
const BLIND_GROWTH: u64 = 2;
/// A share from which on it does not say how much is lacking, in thousandths of a percent: 95 %.
const BLIND_FROM: u64 = 95_000;
/// The share that is given beyond the measured need: one part in this many, 3 %.
const SPARE: u64 = 32;
/// Less is given only where that is at least one part in this many.
const WORTHWHILE: u64 = 10;
/// Budgets are whole multiples of this, in ns.
const GRAIN_NS: u64 = 10_000;
/// All, in thousandths of a percent.
const WHOLE: u64 = 100_000;

/// The controller's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feedback {
    /// The share, in percent, that may be missed.
    pub target: Figure,
    /// For how many samples in a row it has to be kept before less is given.
    pub calm_samples: u32,
}

/// The use since the last sample, where the kernel tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Processor time in each period, in ns.
    pub used_ns: Option<u64>,
}

impl Feedback {
    /// The budget after one with which the share `missed` was missed. `enough_ns` was enough a
    /// moment ago, where that is known.
    #[must_use]
    pub fn more(&self, budget_ns: u64, missed: Figure, enough_ns: Option<u64>) -> u64 {
        let missed = missed.0.min(WHOLE);
        let needed = if missed >= BLIND_FROM {
            if let Some(enough_ns) = enough_ns.filter(|enough_ns| *enough_ns > budget_ns) {
                return enough_ns;
            }
            budget_ns.saturating_mul(BLIND_GROWTH)
        } else {
            ceil(budget_ns, WHOLE, WHOLE - missed).min(budget_ns.saturating_mul(FEEDBACK_GROWTH_MAX))
        };
        with_spare(needed)
    }

    /// The budget after one with which nothing to speak of was missed, of which `peak_ns` was used
    /// at most; `None`: as it is.
    #[must_use]
    pub fn less(&self, budget_ns: u64, peak_ns: Option<u64>) -> Option<u64> {
        let part = budget_ns / WORTHWHILE;
        let least_worthwhile = budget_ns.saturating_sub(part);
        let next = peak_ns.map_or(least_worthwhile, with_spare);
        (next <= least_worthwhile).then_some(next)
    }
}

fn with_spare(needed_ns: u64) -> u64 {
    let spared = needed_ns.saturating_add(needed_ns / SPARE);
    spared.div_ceil(GRAIN_NS).saturating_mul(GRAIN_NS)
}

fn ceil(value: u64, times: u64, by: u64) -> u64 {
    let product = u128::from(value) * u128::from(times);
    u64::try_from(product.div_ceil(u128::from(by.max(1)))).unwrap_or(u64::MAX)
}
