//! Latencies: an HDR histogram of nanoseconds that can travel as text.

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Shortest time that is told from zero, in ns: what the clock counts in.
const LOWEST_NS: u64 = 1;
/// Longest time that is told from longer ones, in ns: a minute.
const HIGHEST_NS: u64 = 60_000_000_000;
/// Digits that are kept of each value.
const DIGITS: u8 = 3;

/// How long things took, in ns. As JSON: a list of pairs, value and count.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self(
            Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS).expect("the constant bounds are valid"),
        )
    }

    /// Notes one; longer than a minute counts as a minute.
    pub fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    /// Takes in what another has noted.
    pub fn merge(&mut self, other: &Self) {
        for (value, count) in other.pairs() {
            self.0.saturating_record_n(value, count);
        }
    }

    /// How many were noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value, in ns, that the share `quantile` (0 to 1) does not exceed; `None` where nothing
    /// was noted.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile))
    }

    /// How many took longer than this.
    #[must_use]
    pub fn count_above(&self, nanoseconds: u64) -> u64 {
        self.pairs().filter(|(value, _)| *value > nanoseconds).map(|(_, count)| count).sum()
    }

    /// The longest, in ns; `None` where nothing was noted.
    #[must_use]
    pub fn longest_ns(&self) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.max())
    }

    /// Each value that was noted, in ns, with how often it was, the shortest first.
    pub fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()))
    }
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.pairs())
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut latencies = Self::new();
        for (value, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            latencies.0.saturating_record_n(value, count);
        }
        Ok(latencies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_three_digits() {
        let mut latencies = Latencies::new();
        (1..=10_000).for_each(|n| latencies.record(n * 1_000));
        let close = |quantile, expected: f64| {
            let found = latencies.quantile_ns(quantile).expect("there are samples") as f64;
            assert!((found - expected).abs() / expected < 0.002, "{found} is not {expected}");
        };
        close(0.5, 5_000_000.0);
        close(0.99, 9_900_000.0);
        assert_eq!(Latencies::new().quantile_ns(0.5), None);
    }

    #[test]
    fn they_survive_the_journey_as_text_and_merge() {
        let mut latencies = Latencies::new();
        [5, 1_234, 1_234, 99_999_999, u64::MAX].iter().for_each(|&ns| latencies.record(ns));
        let text = serde_json::to_string(&latencies).expect("JSON");
        let mut again: Latencies = serde_json::from_str(&text).expect("our own JSON");
        assert_eq!(again.count(), 5);
        assert_eq!(again.quantile_ns(0.5), latencies.quantile_ns(0.5));
        again.merge(&latencies);
        assert_eq!((again.count(), again.quantile_ns(0.5)), (10, latencies.quantile_ns(0.5)));
    }
}
