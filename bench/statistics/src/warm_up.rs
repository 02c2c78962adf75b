//! From when on a series counts: the first samples of a launch are of cold caches, first faults and
//! a governor that wakes up.

/// Samples of a batch, whose mean stands for them: the 5 of MSER-5.
const BATCH: usize = 5;

/// How many values at the beginning are of the warm-up: the rule MSER-5 (White 1997; White, Cobb
/// and Spratt 2000). It drops that beginning without which the mean of the rest has the least
/// standard error. `None` where that is more than half of the series: then it never settled, and a
/// longer one is needed.
#[must_use]
pub fn settled(series: &[f64]) -> Option<usize> {
    let batches: Vec<f64> =
        series.chunks_exact(BATCH).map(|batch| batch.iter().sum::<f64>() / BATCH as f64).collect();
    if batches.len() < 4 {
        return Some(0);
    }
    let best = least_error(&batches);
    (best <= batches.len() / 2).then_some(best * BATCH)
}

/// The number of batches to drop. The last few are never all that is left: two that are equal by
/// chance would have no error at all.
fn least_error(batches: &[f64]) -> usize {
    let last = batches.len() - 2;
    // From the end, so that each sum is made out of the one before. Welford's form: large means
    // don't swallow small spreads.
    let (mut mean, mut squares, mut count) = (0.0, 0.0, 0.0);
    let mut best = (f64::INFINITY, 0);
    for (drop, value) in batches.iter().enumerate().rev() {
        count += 1.0;
        let before = value - mean;
        mean += before / count;
        squares += before * (value - mean);
        let error = squares / (count * count);
        if drop < last && error <= best.0 {
            best = (error, drop);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SplitMix;

    fn noisy(length: usize, level: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut random = SplitMix(3);
        (0..length).map(|at| level(at) + random.unit()).collect()
    }

    #[test]
    fn a_cold_beginning_is_found() {
        let series = noisy(1_000, |at| if at < 100 { 50.0 - at as f64 * 0.4 } else { 10.0 });
        let settled = settled(&series).expect("it settles");
        assert!((90..=160).contains(&settled), "{settled}");
    }

    #[test]
    fn what_was_warm_from_the_start_loses_little() {
        let settled = settled(&noisy(1_000, |_| 10.0)).expect("it settles");
        assert!(settled < 300, "{settled}");
    }

    #[test]
    fn what_never_settles_is_said_not_to() {
        assert_eq!(settled(&noisy(1_000, |at| if at < 800 { 50.0 } else { 10.0 })), None);
        assert_eq!(settled(&[1.0; 7]), Some(0));
    }
}
