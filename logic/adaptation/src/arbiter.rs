//! Where the node has no room for what one wants: others give, as far as their file lets them; or
//! it gets what fits; or it makes do with a worse level.

use crate::adapter::{Settings, worse};
use crate::amounts::Amounts;

/// Most trials in search of what fits: each halves what is in question, so a budget of an hour is
/// known to the microsecond.
pub const SEARCH_STEPS_MAX: u32 = 32;
/// The result is exact to this part of the wish; less is not worth a change.
const WORTH: u64 = 64;

/// Somebody who may give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Giver {
    /// Its name.
    pub name: String,
    /// Its amounts now.
    pub has: Amounts,
    /// The most that it gets back: the amounts of its file. Nothing comes back to one that has an
    /// adaptation of its own, which asks for it.
    pub home: Amounts,
    /// Its period, in ns: budgets of other periods are exchanged by share.
    pub period_ns: u64,
    /// The least that is left to it; `None`: that is not taken from it.
    pub least_cpu_ns: Option<u64>,
    /// The same of the link, in bits per second.
    pub least_network_bits: Option<u64>,
}

/// The outcome of a wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Its own amounts now.
    pub own: Amounts,
    /// The amounts of the givers now, of those who give.
    pub others: Vec<(String, Amounts)>,
    /// The amounts that it wanted and may not have: the budget and rate that would fit are those of
    /// `own`.
    pub lacks: Option<Amounts>,
}

/// Finds what of `wanted` can be had: from the node, else from the givers in their order, else as
/// much of it as fits, else a worse level. `fits` says whether the node could keep this all at
/// once.
pub fn arbitrate(
    settings: &Settings,
    period_ns: u64,
    has: Amounts,
    wanted: Amounts,
    givers: &[Giver],
    mut fits: impl FnMut(Amounts, &[(String, Amounts)]) -> bool,
) -> Granted {
    if fits(wanted, &[]) {
        return Granted { own: wanted, others: Vec::new(), lacks: None };
    }
    let given = take(period_ns, has, wanted, givers);
    if !given.is_empty() && fits(wanted, &given) {
        return Granted { own: wanted, others: given, lacks: None };
    }
    let (mut low, mut high) = (0_u64, u64::from(u32::MAX));
    let mut found = None;
    let mut trials = 0;
    while high - low > u64::from(u32::MAX) / WORTH && trials < SEARCH_STEPS_MAX {
        trials += 1;
        let middle = low + (high - low) / 2;
        let part = between(has, wanted, middle);
        let given = take(period_ns, has, part, givers);
        if part != has && fits(part, &given) {
            found = Some((part, given));
            low = middle;
        } else {
            high = middle;
        }
    }
    match found {
        // Whoever needs not give keeps what it has.
        Some((own, _)) if fits(own, &[]) => Granted { own, others: Vec::new(), lacks: Some(wanted) },
        Some((own, others)) => Granted { own, others, lacks: Some(wanted) },
        None => Granted { own: worse(settings, has), others: Vec::new(), lacks: Some(wanted) },
    }
}

/// The part of the way from one to the other that is `part` of 2^32 - 1.
fn between(has: Amounts, wanted: Amounts, part: u64) -> Amounts {
    let mix = |from: Option<u64>, to: Option<u64>| {
        let (from, to) = (from?, to?);
        let way = u128::from(to.saturating_sub(from)) * u128::from(part) / u128::from(u32::MAX);
        Some(from.saturating_add(u64::try_from(way).unwrap_or(0)))
    };
    Amounts {
        cpu_ns: mix(has.cpu_ns, wanted.cpu_ns),
        network_bits: mix(has.network_bits, wanted.network_bits),
        level: has.level,
    }
}

/// Returns the amounts that givers have left when they have given, the first ones first.
fn take(period_ns: u64, has: Amounts, wanted: Amounts, givers: &[Giver]) -> Vec<(String, Amounts)> {
    let gained = |from: Option<u64>, to: Option<u64>| to.unwrap_or(0).saturating_sub(from.unwrap_or(0));
    // In billionths of a processor, rounded up: a giver gives no less than is taken.
    let mut share = ceil(gained(has.cpu_ns, wanted.cpu_ns), BILLION, period_ns.max(1));
    let mut bits = gained(has.network_bits, wanted.network_bits);
    let mut given = Vec::new();
    for giver in givers {
        let mut left = giver.has;
        if let (Some(now), Some(least)) = (giver.has.cpu_ns, giver.least_cpu_ns) {
            let asked = ceil(share, giver.period_ns, BILLION);
            let taken = asked.min(now.saturating_sub(least));
            let covered = u128::from(taken) * u128::from(BILLION) / u128::from(giver.period_ns.max(1));
            share =
                if taken == asked { 0 } else { share.saturating_sub(u64::try_from(covered).unwrap_or(0)) };
            left.cpu_ns = Some(now - taken);
        }
        if let (Some(now), Some(least)) = (giver.has.network_bits, giver.least_network_bits) {
            let taken = bits.min(now.saturating_sub(least));
            bits -= taken;
            left.network_bits = Some(now - taken);
        }
        if left != giver.has {
            given.push((giver.name.clone(), left));
        }
    }
    given
}

/// Returns the amounts of givers when one has returned its surplus: the last ones that give get
/// back first, up to the amounts of their files. The rest is the node's.
#[must_use]
pub fn give_back(period_ns: u64, has: Amounts, to: Amounts, givers: &[Giver]) -> Vec<(String, Amounts)> {
    let freed = |from: Option<u64>, to: Option<u64>| from.unwrap_or(0).saturating_sub(to.unwrap_or(0));
    // In billionths of a processor, rounded down: nobody gets more than is free.
    let mut share = floor(freed(has.cpu_ns, to.cpu_ns), BILLION, period_ns.max(1));
    let mut bits = freed(has.network_bits, to.network_bits);
    let mut returned = Vec::new();
    for giver in givers.iter().rev() {
        let mut after = giver.has;
        if let (Some(now), Some(home)) = (giver.has.cpu_ns, giver.home.cpu_ns) {
            let got = floor(share, giver.period_ns, BILLION).min(home.saturating_sub(now));
            share = share.saturating_sub(ceil(got, BILLION, giver.period_ns.max(1)));
            after.cpu_ns = Some(now + got);
        }
        if let (Some(now), Some(home)) = (giver.has.network_bits, giver.home.network_bits) {
            let got = bits.min(home.saturating_sub(now));
            bits -= got;
            after.network_bits = Some(now + got);
        }
        if after != giver.has {
            returned.push((giver.name.clone(), after));
        }
    }
    returned
}

const BILLION: u64 = 1_000_000_000;

fn ceil(value: u64, times: u64, by: u64) -> u64 {
    let product = u128::from(value) * u128::from(times);
    u64::try_from(product.div_ceil(u128::from(by.max(1)))).unwrap_or(u64::MAX)
}

fn floor(value: u64, times: u64, by: u64) -> u64 {
    let product = u128::from(value) * u128::from(times);
    u64::try_from(product / u128::from(by.max(1))).unwrap_or(u64::MAX)
}
