//! "A is smaller than B": said where the launches support it, and nowhere else.

use crate::estimate::{Estimate, median, quantile};
use crate::random::SplitMix;
use crate::rank::{RankTest, SIGNIFICANCE, holm, launches_to_show, mann_whitney};

/// Resamples of a ratio, and their seed.
const RESAMPLES: usize = 2_000;
const SEED: u64 = 0x7261_7469_6f6e_7321;

/// The statement that two sets of launches allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The first one's values are smaller.
    Smaller,
    /// The first one's values are larger.
    Larger,
    /// The launches do not tell.
    CantTell {
        /// So many launches of each would show a difference like the one seen, if it is there;
        /// `None`: no number that is worth the time.
        more: Option<usize>,
    },
}

/// Two sets of launches, compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// The ratio of the medians, the first to the second, with its bootstrap interval.
    pub ratio: Estimate,
    /// The rank test by itself.
    pub test: RankTest,
    /// Its probability, corrected for all comparisons made together.
    pub p_corrected: f64,
    /// The statement.
    pub claim: Claim,
}

/// Compares pairs of sets, all that a report compares at once: the more it compares, the more each
/// has to show. `None` where a set is empty or the second one's median is 0.
#[must_use]
pub fn compare_all(pairs: &[(&[f64], &[f64])]) -> Vec<Option<Comparison>> {
    let tests: Vec<Option<RankTest>> =
        pairs.iter().map(|(first, second)| mann_whitney(first, second)).collect();
    let p: Vec<f64> = tests.iter().flatten().map(|test| test.p).collect();
    let mut corrected = holm(&p).into_iter();
    let compared = pairs.iter().zip(tests).map(|((first, second), test)| {
        let test = test?;
        let p_corrected = corrected.next()?;
        let ratio = ratio(first, second)?;
        Some(Comparison { ratio, test, p_corrected, claim: claim(&ratio, test, p_corrected, p.len()) })
    });
    compared.collect()
}

/// Both have to agree: ranks say that there is a difference, and the interval of the ratio says on
/// which side.
fn claim(ratio: &Estimate, test: RankTest, p_corrected: f64, comparisons: usize) -> Claim {
    let is_significant = p_corrected <= SIGNIFICANCE;
    if is_significant && ratio.high < 1.0 {
        return Claim::Smaller;
    }
    if is_significant && ratio.low > 1.0 {
        return Claim::Larger;
    }
    let needed = launches_to_show(test.effect, comparisons);
    Claim::CantTell { more: needed.map(|all| all.saturating_sub(ratio.launches).max(1)) }
}

/// The ratio of the medians; the launches of each set are drawn by themselves.
fn ratio(first: &[f64], second: &[f64]) -> Option<Estimate> {
    let of = |first: &[f64], second: &[f64]| {
        let (above, below) = (median(first)?, median(second)?);
        (below > 0.0).then(|| above / below)
    };
    let value = of(first, second)?;
    let mut random = SplitMix(SEED);
    let mut draw =
        |from: &[f64]| -> Vec<f64> { (0..from.len()).map(|_| from[random.below(from.len())]).collect() };
    let spread: Vec<f64> = (0..RESAMPLES).filter_map(|_| of(&draw(first), &draw(second))).collect();
    let (low, high) = (quantile(&spread, 0.025)?, quantile(&spread, 0.975)?);
    Some(Estimate { value, low, high, launches: first.len().min(second.len()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: [f64; 6] = [10.0, 10.2, 9.9, 10.1, 10.3, 9.8];
    const HIGH: [f64; 6] = [12.0, 12.2, 11.9, 12.1, 12.3, 11.8];

    #[test]
    fn what_is_plain_is_said_in_both_directions() {
        let found = compare_all(&[(&LOW, &HIGH), (&HIGH, &LOW)]);
        let claims: Vec<Claim> = found.into_iter().flatten().map(|found| found.claim).collect();
        assert_eq!(claims, [Claim::Smaller, Claim::Larger]);
    }

    #[test]
    fn three_launches_can_never_claim_and_say_how_many_more_could() {
        let found = compare_all(&[(&LOW[..3], &HIGH[..3])]);
        let Some(Comparison { claim: Claim::CantTell { more: Some(more) }, .. }) = found[0] else {
            panic!("{found:?}");
        };
        assert!((1..10).contains(&more), "{more}");
    }

    #[test]
    fn equals_are_not_told_apart_by_any_number_of_launches() {
        let found = compare_all(&[(&LOW, &LOW)])[0].expect("compared");
        assert_eq!(found.claim, Claim::CantTell { more: None });
        assert!((found.ratio.value - 1.0).abs() < 1e-12);
        assert_eq!(compare_all(&[(&LOW, &[])]), [None]);
    }
}
