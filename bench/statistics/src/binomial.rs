//! How often something rare happens: a share with a bound, also where it was never seen.

use statrs::function::beta::beta_reg;

/// Halvings of an interval until neighbours of `f64` are left.
const HALVINGS: u32 = 200;

/// A share with the interval that holds the true probability in 95 of 100 runs, or more often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// The value that was seen.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// The exact interval of Clopper and Pearson (1934) at 95 %. It never covers less than it says, and
/// has an upper bound above 0 where nothing was seen. Trials count as independent of each other.
/// `None` without trials.
#[must_use]
pub fn clopper_pearson(seen: u64, trials: u64) -> Option<Share> {
    if trials == 0 || seen > trials {
        return None;
    }
    let (count, all) = (seen as f64, trials as f64);
    let tail = 0.025;
    let low = if seen == 0 { 0.0 } else { inverse_beta(count, all - count + 1.0, tail) };
    let high = if seen == trials { 1.0 } else { inverse_beta(count + 1.0, all - count, 1.0 - tail) };
    Some(Share { value: count / all, low, high })
}

/// The interval of Wilson (1927) at 95 %: narrower, and right on average. `None` without trials.
#[must_use]
pub fn wilson(seen: u64, trials: u64) -> Option<Share> {
    if trials == 0 || seen > trials {
        return None;
    }
    // The 97.5 % quantile of the normal distribution.
    let z = 1.959_963_984_540_054_f64;
    let (all, share) = (trials as f64, seen as f64 / trials as f64);
    let scale = 1.0 + z * z / all;
    let middle = (share + z * z / (2.0 * all)) / scale;
    let half = z / scale * (share * (1.0 - share) / all + z * z / (4.0 * all * all)).sqrt();
    // At the ends the two halves cancel, but for rounding.
    let low = if seen == 0 { 0.0 } else { middle - half };
    let high = if seen == trials { 1.0 } else { middle + half };
    Some(Share { value: share, low, high })
}

/// Where the regularised incomplete beta function has this value.
fn inverse_beta(a: f64, b: f64, value: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if beta_reg(a, b, middle) < value {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_seen_has_the_bound_of_the_rule_of_three() {
        // 1 - 0.025^(1/n), about 3.7/n.
        let share = clopper_pearson(0, 1_000).expect("trials");
        let exact = 1.0 - 0.025_f64.powf(1.0 / 1_000.0);
        assert!((share.high - exact).abs() < 1e-12 && share.low == 0.0, "{share:?}");
        assert_eq!(clopper_pearson(7, 7).map(|share| share.high), Some(1.0));
    }

    #[test]
    fn no_trials_say_nothing() {
        assert_eq!((clopper_pearson(0, 0), wilson(0, 0), clopper_pearson(2, 1)), (None, None, None));
    }

    #[test]
    fn millions_of_trials_are_no_trouble() {
        let share = clopper_pearson(3, 50_000_000).expect("trials");
        assert!(share.low > 1e-8 && share.low < 6e-8 && share.high > 6e-8 && share.high < 2e-7, "{share:?}");
    }
}
