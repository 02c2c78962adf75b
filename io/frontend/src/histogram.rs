//! Latencies, cheaply: four buckets to each power of two of nanoseconds.

use serde_json::{Value, json};

/// Powers of two that are told apart: up to 2^40 ns, 18 minutes.
const POWERS: usize = 40;
/// Buckets in each power of two: a value is known within an eighth.
const PARTS: usize = 4;

/// Counts of durations.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    buckets: [u32; POWERS * PARTS],
    count: u64,
    sum_ns: u64,
    max_ns: u64,
    /// The last one, and by how much each differed from the one before it, together.
    last_ns: u64,
    moved_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        let buckets = [0; POWERS * PARTS];
        Self { buckets, count: 0, sum_ns: 0, max_ns: 0, last_ns: 0, moved_ns: 0 }
    }
}

impl Histogram {
    pub(crate) fn record(&mut self, ns: u64) {
        if let Some(bucket) = self.buckets.get_mut(bucket_of(ns)) {
            *bucket = bucket.saturating_add(1);
        }
        if self.count > 0 {
            self.moved_ns = self.moved_ns.saturating_add(ns.abs_diff(self.last_ns));
        }
        self.last_ns = ns;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// The middle of the bucket in which the quantile `part` of `whole` lies, in ns; 0 when nothing
    /// was recorded.
    fn quantile(&self, part: u64, whole: u64) -> u64 {
        let rank = (self.count * part).div_ceil(whole).max(1);
        let mut seen = 0;
        for (at, &count) in self.buckets.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank {
                return middle_of(at).min(self.max_ns);
            }
        }
        0
    }

    /// How many durations.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The longest, in ns.
    pub(crate) fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Their mean, in ns; 0 when nothing was recorded.
    pub(crate) fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// The duration that 99 of 100 do not exceed, in ns.
    pub(crate) fn p99_ns(&self) -> u64 {
        self.quantile(99, 100)
    }

    /// As the state tree shows it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "count": self.count,
            "mean_ns": self.mean_ns(),
            "jitter_ns": self.moved_ns.checked_div(self.count).unwrap_or(0),
            "p50_ns": self.quantile(50, 100),
            "p90_ns": self.quantile(90, 100),
            "p99_ns": self.quantile(99, 100),
            "p999_ns": self.quantile(999, 1000),
            "max_ns": self.max_ns,
        })
    }
}

fn bucket_of(ns: u64) -> usize {
    let power = ns.max(4).ilog2();
    let part = (ns.max(4) >> (power - 2)) as usize % PARTS;
    (power as usize * PARTS + part).min(POWERS * PARTS - 1)
}

fn middle_of(bucket: usize) -> u64 {
    let (power, part) = (bucket / PARTS, (bucket % PARTS) as u64);
    let width = 1_u64 << power.saturating_sub(2);
    (4 + part) * width + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_the_one_before_is_jitter() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.to_json()["jitter_ns"], 0);
        for ns in [1_000, 1_000, 3_000, 2_000] {
            histogram.record(ns);
        }
        assert_eq!(histogram.to_json()["jitter_ns"], 3_000 / 4);
    }

    #[test]
    fn every_duration_is_known_within_an_eighth() {
        for ns in [4, 5, 100, 999, 12_345, 1_000_000, 7_000_000_000, 1 << 39] {
            let mut histogram = Histogram::default();
            histogram.record(ns);
            histogram.max_ns = u64::MAX;
            let found = histogram.quantile(50, 100);
            assert!(found.abs_diff(ns) <= ns / 8 + 1, "{ns} became {found}");
        }
    }

    #[test]
    fn quantiles_are_where_they_belong() {
        let mut histogram = Histogram::default();
        (0..90).for_each(|_| histogram.record(1_000));
        (0..10).for_each(|_| histogram.record(1_000_000));
        let near = |found: u64, wanted: u64| found.abs_diff(wanted) <= wanted / 8;
        assert!(near(histogram.quantile(50, 100), 1_000));
        assert!(near(histogram.quantile(99, 100), 1_000_000));
        assert_eq!(Histogram::default().to_json()["p99_ns"], 0);
        histogram.record(0);
        histogram.record(u64::MAX);
        assert_eq!(histogram.to_json()["count"], 102);
    }
}
