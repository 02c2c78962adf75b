//! Medians, and how sure one may be of them.

use crate::random::SplitMix;

/// Resamples of a bootstrap: enough that the bounds move less than the launches do.
const RESAMPLES: usize = 2_000;
/// Seed of the resampling: the same values give the same interval.
const SEED: u64 = 0x746f_6d62_6f6c_6f21;
/// The interval covers this share of the resampled medians.
const CONFIDENCE: f64 = 0.95;

/// From so many launches on they are resampled.
const RESAMPLED_FROM: usize = 3;

/// A value with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The median over launches.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// How many launches stand behind it.
    pub launches: usize,
}

/// The value at `quantile` (0 to 1), interpolated between neighbours; `None` of nothing.
#[must_use]
pub fn quantile(values: &[f64], quantile: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let place = quantile.clamp(0.0, 1.0) * last as f64;
    let (below, part) = (place.floor() as usize, place.fract());
    let (low, high) = (sorted.get(below)?, sorted.get((below + 1).min(last))?);
    Some(low + (high - low) * part)
}

/// The median; `None` of nothing.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The median over launches with its interval: the percentile bootstrap. Fewer than three launches
/// give their range, which is all that they can say.
#[must_use]
pub fn estimate(launches: &[f64]) -> Option<Estimate> {
    if launches.len() < RESAMPLED_FROM {
        let (value, low, high) = (median(launches)?, quantile(launches, 0.0)?, quantile(launches, 1.0)?);
        return Some(Estimate { value, low, high, launches: launches.len() });
    }
    estimate_of(launches, median)
}

/// Whatever `statistic` makes of a set of launches, with its percentile bootstrap interval:
/// launches are drawn with replacement, and the statistic is taken anew. `None` where it gives
/// nothing for the launches as they are. Where only some resamples have none, the others count.
#[must_use]
pub fn estimate_of<T: Clone>(launches: &[T], statistic: impl Fn(&[T]) -> Option<f64>) -> Option<Estimate> {
    let value = statistic(launches)?;
    let mut random = SplitMix(SEED);
    let mut sample = launches.to_vec();
    let resample = |_| {
        sample.fill_with(|| launches[random.below(launches.len())].clone());
        statistic(&sample)
    };
    let spread: Vec<f64> = (0..RESAMPLES).filter_map(resample).collect();
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let (low, high) = (quantile(&spread, tail)?, quantile(&spread, 1.0 - tail)?);
    Some(Estimate { value, low, high, launches: launches.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_known_values() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&values), Some(2.5));
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 1.0), Some(4.0));
        assert_eq!(quantile(&values, 0.25), Some(1.75));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn equal_launches_leave_no_doubt() {
        let sure = estimate(&[5.0; 7]).expect("seven values");
        assert_eq!((sure.value, sure.low, sure.high, sure.launches), (5.0, 5.0, 5.0, 7));
    }

    #[test]
    fn the_interval_holds_the_median_and_not_the_outlier() {
        let unsure = estimate(&[10.0, 11.0, 9.0, 10.5, 9.5, 10.2, 9.8, 500.0, 10.1]).expect("nine values");
        assert_eq!(unsure.value, 10.1);
        assert!(unsure.low >= 9.5 && unsure.low <= 10.1, "{unsure:?}");
        assert!(unsure.high >= 10.1 && unsure.high <= 11.0, "{unsure:?}");
    }

    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_it_says() {
        // Values around 100, uniformly; the interval of 15 of them has to hold 100 in most of 200
        // trials. The percentile bootstrap of a median is a little narrow at this size, hence 85 %
        // and not 95 %.
        let mut random = SplitMix(1);
        let mut draw = || 90.0 + random.below(2_001) as f64 / 100.0;
        let trials: Vec<Estimate> =
            (0..200).filter_map(|_| estimate(&std::array::from_fn::<f64, 15, _>(|_| draw()))).collect();
        let held = trials.iter().filter(|e| e.low <= 100.0 && 100.0 <= e.high).count();
        assert!(held >= 170, "{held} of 200");
    }

    #[test]
    fn two_launches_give_their_range() {
        let range = estimate(&[3.0, 1.0]).expect("two values");
        assert_eq!((range.value, range.low, range.high), (2.0, 1.0, 3.0));
        assert_eq!(estimate(&[]), None);
    }
}
