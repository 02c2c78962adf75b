//! Whether one set of values tends to be larger than another: by ranks, so that no distribution has
//! to be assumed and an outlier counts as one value and no more.

use statrs::function::erf::{erfc, erfc_inv};

/// Up to this product of the two numbers the distribution of U is counted out; above, the normal
/// one is as good, to three digits.
const EXACT_PAIRS: usize = 400;
/// The share of false alarms that a report allows itself, over all of its comparisons.
pub const SIGNIFICANCE: f64 = 0.05;
/// The probability with which a recommended number of launches shows what is there.
const POWER: f64 = 0.8;
/// More launches than this are not recommended: what needs them is too small to care about.
const LAUNCHES_MAX: usize = 1_000;

/// The result of the test of Mann and Whitney (1947) on two sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankTest {
    /// Pairs in which the value of the first set is the larger one; equal ones count half.
    pub u: f64,
    /// Two-sided: the probability of a U at least as extreme if both sets come from one
    /// distribution.
    pub p: f64,
    /// Rank-biserial correlation (Wendt 1972; Kerby 2014): -1 where all of the first set are
    /// smaller, 1 where all are larger.
    pub effect: f64,
}

/// Compares two sets; `None` where one is empty. Exact without ties and for small sets, otherwise
/// by the normal distribution with corrections for ties and continuity.
#[must_use]
pub fn mann_whitney(first: &[f64], second: &[f64]) -> Option<RankTest> {
    let pairs = first.len() * second.len();
    if pairs == 0 {
        return None;
    }
    let mut all: Vec<(f64, bool)> = first.iter().map(|&value| (value, true)).collect();
    all.extend(second.iter().map(|&value| (value, false)));
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (rank_sum, ties) = ranks_of_first(&all);
    let own = first.len() as f64;
    let u = rank_sum - own * (own + 1.0) / 2.0;
    let p = if ties == 0.0 && pairs <= EXACT_PAIRS {
        exact_p(first.len(), second.len(), u)
    } else {
        normal_p(first.len(), second.len(), u, ties)
    };
    Some(RankTest { u, p, effect: 2.0 * u / pairs as f64 - 1.0 })
}

/// The sum of the ranks of the first set, and the sum of `t^3 - t` over groups of `t` equal values.
fn ranks_of_first(sorted: &[(f64, bool)]) -> (f64, f64) {
    let (mut sum, mut ties, mut start) = (0.0, 0.0, 0);
    for group in sorted.chunk_by(|a, b| a.0 == b.0) {
        let size = group.len() as f64;
        // Equal values share the mean of their ranks.
        let rank = start as f64 + (size + 1.0) / 2.0;
        sum += rank * group.iter().filter(|(_, is_first)| *is_first).count() as f64;
        ties += size * size * size - size;
        start += group.len();
    }
    (sum, ties)
}

/// By counting all orders of the two sets.
fn exact_p(first: usize, second: usize, u: f64) -> f64 {
    let counts = orders(first, second);
    let all: f64 = counts.iter().sum();
    let pairs = first * second;
    let extreme = (u.max(pairs as f64 - u)) as usize;
    let tail: f64 = counts.iter().skip(extreme).sum();
    (2.0 * tail / all).min(1.0)
}

/// In how many orders of two sets of these sizes U is 0, 1, ...: the coefficients of the Gaussian
/// binomial.
fn orders(first: usize, second: usize) -> Vec<f64> {
    let pairs = first * second;
    let mut counts = vec![0.0; pairs + 1];
    counts[0] = 1.0;
    for size in 1..=first {
        // Times (1 - q^(second + size)), then divided by (1 - q^size).
        for at in (second + size..=pairs).rev() {
            counts[at] -= counts[at - second - size];
        }
        for at in size..=pairs {
            counts[at] += counts[at - size];
        }
    }
    counts
}

fn normal_p(first: usize, second: usize, u: f64, ties: f64) -> f64 {
    let (first, second) = (first as f64, second as f64);
    let (pairs, all) = (first * second, first + second);
    let variance = pairs / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let distance = (u.max(pairs - u) - pairs / 2.0 - 0.5) / variance.sqrt();
    erfc(distance / std::f64::consts::SQRT_2).min(1.0)
}

/// Corrects the probabilities of several tests for their number (Holm 1979): whoever calls those at
/// most [`SIGNIFICANCE`] significant is wrong about any of them with that probability.
#[must_use]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut corrected = vec![0.0; p.len()];
    let mut largest: f64 = 0.0;
    for (place, &index) in order.iter().enumerate() {
        largest = largest.max((p[index] * (p.len() - place) as f64).min(1.0));
        corrected[index] = largest;
    }
    corrected
}

/// How many launches each of two arms needs so that a difference as large as the one seen shows
/// with a probability of 80 %, among so many comparisons; `None` where that are more than a
/// thousand, or nothing was seen. By Noether (1987), and never fewer than the exact test needs to
/// be able to speak at all.
#[must_use]
pub fn launches_to_show(effect: f64, comparisons: usize) -> Option<usize> {
    let significance = SIGNIFICANCE / comparisons.max(1) as f64;
    let normal = |tail: f64| std::f64::consts::SQRT_2 * erfc_inv(2.0 * tail);
    let both = normal(significance / 2.0) + normal(1.0 - POWER);
    // Both arms are of one size: 1/2 * 1/2 of all; the effect is twice the distance of P(larger)
    // from a half.
    let distance = effect.abs() / 2.0;
    let all = both * both / (12.0 * 0.25 * distance * distance);
    if !all.is_finite() || all / 2.0 > LAUNCHES_MAX as f64 {
        return None;
    }
    Some(((all / 2.0).ceil() as usize).max(launches_to_speak(comparisons)))
}

/// The fewest launches of each arm with which the most extreme result is significant among so many
/// comparisons.
#[must_use]
pub fn launches_to_speak(comparisons: usize) -> usize {
    let significance = SIGNIFICANCE / comparisons.max(1) as f64;
    // Two of C(2n, n) orders are the most extreme ones.
    let (mut launches, mut p) = (1_usize, 1.0);
    while p > significance {
        launches += 1;
        p *= launches as f64 / (2.0 * (2.0 * launches as f64 - 1.0));
    }
    launches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_orders_are_counted() {
        assert_eq!(orders(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(orders(3, 4).iter().sum::<f64>(), 35.0);
        assert_eq!(orders(10, 10).iter().sum::<f64>(), 184_756.0);
    }

    #[test]
    fn nothing_can_be_said_of_nothing_or_of_equals() {
        assert_eq!(mann_whitney(&[], &[1.0]), None);
        let same = mann_whitney(&[3.0; 5], &[3.0; 5]).expect("two sets");
        assert_eq!((same.p, same.effect), (1.0, 0.0));
    }

    #[test]
    fn as_few_launches_as_can_speak_do() {
        assert_eq!(launches_to_speak(1), 4);
        // With four launches each, the most extreme result has p = 2/70.
        let apart = mann_whitney(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]).expect("two sets");
        assert!((apart.p - 2.0 / 70.0).abs() < 1e-12 && apart.effect == -1.0, "{apart:?}");
        for comparisons in [1, 2, 10, 100] {
            let launches = launches_to_speak(comparisons);
            let p = |launches: usize| {
                let low: Vec<f64> = (0..launches).map(|n| n as f64).collect();
                let high: Vec<f64> = low.iter().map(|n| n + 1e6).collect();
                mann_whitney(&low, &high).expect("two sets").p * comparisons as f64
            };
            assert!(p(launches) <= SIGNIFICANCE && p(launches - 1) > SIGNIFICANCE, "{comparisons}");
        }
    }

    #[test]
    fn a_smaller_effect_needs_more_launches_and_none_is_shown_by_none() {
        let few = launches_to_show(0.9, 1).expect("a number");
        let many = launches_to_show(0.3, 1).expect("a number");
        assert!(few < many && launches_to_show(0.3, 20) > Some(many), "{few} {many}");
        assert_eq!(launches_to_show(0.0, 1), None);
        assert_eq!(launches_to_show(0.01, 1), None);
    }
}
