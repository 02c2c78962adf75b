//! Where the time of a request goes: phases of one request, histograms of many.

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use wire::directory::PHASES;

/// A phase, by its place in [`PHASES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Phase {
    /// In the channel and the loop, before the service saw the request.
    Queue = 0,
    /// From the caller's words to a question.
    Parse,
    /// Looking into the cache.
    Cache,
    /// Opening a socket, or taking one from the pool.
    Socket,
    /// Connecting it.
    Connect,
    /// Making and sending the query.
    Send,
    /// Waiting for the answer, and fetching it.
    Receive,
    /// Closing the socket, or giving it back.
    Close,
    /// From the answer's bytes to records.
    Decode,
    /// From records to the caller's format.
    Answer,
    /// Attempts that failed.
    Retry,
    /// Holding an answer back.
    Delay,
}

/// Time spent in each phase of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases([u64; PHASES.len()]);

impl Phases {
    /// Adds time to a phase.
    pub fn add(&mut self, phase: Phase, time: Duration) {
        if let Some(place) = self.0.get_mut(phase as usize) {
            *place = place.saturating_add(nanoseconds(time));
        }
    }

    /// Adds the phases of a look-up. Of two that ran side by side, the longer wait counts, and
    /// both's work.
    pub fn merge(&mut self, other: &Self) {
        for (place, (mine, theirs)) in self.0.iter_mut().zip(other.0).enumerate() {
            let waits = place == Phase::Receive as usize || place == Phase::Retry as usize;
            *mine = if waits { (*mine).max(theirs) } else { mine.saturating_add(theirs) };
        }
    }

    /// The phases that took time, as a traced response carries them.
    pub fn list(&self) -> Vec<wire::service::Phase> {
        let spent = (0u16..).zip(self.0).filter(|&(_, nanoseconds)| nanoseconds > 0);
        spent.map(|(phase, nanoseconds)| wire::service::Phase { phase, nanoseconds }).collect()
    }
}

/// Measures laps.
#[derive(Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start or the last lap.
    pub fn lap(&mut self) -> Duration {
        let now = Instant::now();
        let time = now.saturating_duration_since(self.0);
        self.0 = now;
        time
    }
}

/// Nanoseconds, saturating after 584 years.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Parts that an octave is divided into: values are known to a quarter of their size.
const PARTS: usize = 4;
/// Octaves of a 64-bit number, from the one of [`PARTS`] on, and one for all below.
const BUCKETS: usize = PARTS * 63;

/// Counts of times in ns, in buckets that grow with the value. Recording costs a few instructions
/// and no memory.
#[derive(Debug, Clone)]
pub struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
    sum: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), count: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts a time.
    pub fn record(&mut self, value: u64) {
        if let Some(bucket) = self.buckets.get_mut(bucket(value)) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// How many were counted.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The value that `percent` of all do not exceed, to a quarter of its size.
    pub fn percentile(&self, percent: u64) -> u64 {
        let wanted = self.count.saturating_mul(percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (place, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return ceiling(place).min(self.max);
            }
        }
        self.max
    }

    /// For the state tree.
    pub fn state(&self) -> Value {
        json!({
            "count": self.count,
            "mean_ns": self.sum.checked_div(self.count).unwrap_or(0),
            "p50_ns": self.percentile(50),
            "p90_ns": self.percentile(90),
            "p99_ns": self.percentile(99),
            "max_ns": self.max,
        })
    }
}

fn bucket(value: u64) -> usize {
    if value < PARTS as u64 {
        return value as usize;
    }
    let octave = value.ilog2() as usize;
    (octave - 1) * PARTS + (value >> (octave - 2)) as usize % PARTS
}

/// The largest value of a bucket.
fn ceiling(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let (octave, part) = (bucket / PARTS + 1, bucket % PARTS);
    let step = 1u64 << (octave - 2);
    (1u64 << octave) + step * part as u64 + (step - 1)
}

/// A histogram for each phase.
#[derive(Debug, Default)]
pub struct PhaseTimes([Histogram; PHASES.len()]);

impl PhaseTimes {
    /// Counts the time of one phase.
    pub fn record(&mut self, phase: Phase, nanoseconds: u64) {
        if let Some(histogram) = self.0.get_mut(phase as usize) {
            histogram.record(nanoseconds);
        }
    }

    /// Counts the phases of a request, those that took time.
    pub fn record_all(&mut self, phases: &Phases) {
        for (histogram, time) in self.0.iter_mut().zip(phases.0).filter(|&(_, time)| time > 0) {
            histogram.record(time);
        }
    }

    /// For the state tree.
    pub fn state(&self) -> Value {
        let each = PHASES.into_iter().zip(&self.0).filter(|(_, histogram)| histogram.count() > 0);
        Value::Object(each.map(|(name, histogram)| (name.to_string(), histogram.state())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_what_falls_into_it(value: u64) {
            let place = bucket(value);
            prop_assert!(place < BUCKETS);
            prop_assert!(value <= ceiling(place));
            prop_assert!(place == 0 || value > ceiling(place - 1));
        }
    }

    #[test]
    fn percentiles_are_right_to_a_quarter() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|value| histogram.record(value));
        assert!((500..=640).contains(&histogram.percentile(50)), "{}", histogram.percentile(50));
        assert_eq!(histogram.percentile(100), 1000);
    }

    #[test]
    fn side_by_side_the_longer_wait_counts() {
        let (mut a, mut b) = (Phases::default(), Phases::default());
        a.add(Phase::Receive, Duration::from_nanos(5));
        b.add(Phase::Receive, Duration::from_nanos(7));
        b.add(Phase::Send, Duration::from_nanos(1));
        a.add(Phase::Send, Duration::from_nanos(1));
        a.merge(&b);
        let named: Vec<_> = a.list().iter().map(|p| (PHASES[usize::from(p.phase)], p.nanoseconds)).collect();
        assert_eq!(named, [("send", 2), ("receive", 7)]);
    }
}
