//! An open loop: requests are due by a schedule, whether the one before was answered or not, as
//! users come whether a system is slow or not.
//!
//! A closed loop sends the next request when the answer to the last has come. While the system
//! stalls it sends nothing, so a stall of any length is one slow sample among thousands:
//! *coordinated omission* (Tene 2013). Here, latency counts from the instant when the request was
//! due; what had to wait for a stall has that wait in its latency.
//!
//! One client asks, one request at a time: a request that is due while another is under way waits
//! at the client. [`run`] is the loop that workers run, over a clock that is handed in; tests hand
//! in a simulated one.

use crate::random::SplitMix;

/// When requests are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// One after each interval.
    Periodic,
    /// Independently of each other, so many per interval on average.
    Poisson,
}

/// The instants at which requests are due, in ns from the beginning; it never ends.
#[derive(Debug, Clone)]
pub struct Schedule {
    arrivals: Arrivals,
    interval_ns: f64,
    random: SplitMix,
    next_ns: f64,
}

impl Schedule {
    /// With this mean interval, at least 1 ns.
    #[must_use]
    pub fn new(arrivals: Arrivals, interval_ns: u64, seed: u64) -> Self {
        Self { arrivals, interval_ns: interval_ns.max(1) as f64, random: SplitMix(seed), next_ns: 0.0 }
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let due = self.next_ns;
        self.next_ns += match self.arrivals {
            Arrivals::Periodic => self.interval_ns,
            Arrivals::Poisson => self.random.exponential(self.interval_ns),
        };
        Some(due as u64)
    }
}

/// The surroundings of the loop: time, and somebody to ask.
pub trait Exchange {
    /// Why an exchange ends the loop.
    type Error;
    /// Now, in ns of a clock that never jumps.
    fn now_ns(&mut self) -> u64;
    /// Waits for an instant of that clock; returns at once where it is over.
    fn wait_until(&mut self, instant_ns: u64);
    /// Asks and waits for the answer. `false`: there was none, which is counted and has no latency.
    ///
    /// # Errors
    /// An error that ends the loop.
    fn exchange(&mut self) -> Result<bool, Self::Error>;
}

/// One exchange that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// From the instant when it was due to its answer, in ns.
    pub latency_ns: u64,
    /// From the instant when it was sent, in ns: what a loop would say that omits what it had to
    /// wait for.
    pub uncorrected_ns: u64,
}

/// The samples of a loop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    /// In the order in which they were due.
    pub answered: Vec<Sample>,
    /// Exchanges without an answer.
    pub unanswered: u64,
    /// From the beginning to the last answer, in ns.
    pub elapsed_ns: u64,
    /// Whether it ended early because there were as many samples as may be kept.
    pub is_full: bool,
}

/// Asks by the schedule until what is due lies beyond the window, or so many were answered. Without
/// a schedule the loop is closed: each is due when the one before was answered.
///
/// # Errors
/// The error of an exchange, which ends the loop.
pub fn run<E: Exchange>(
    exchange: &mut E,
    mut schedule: Option<Schedule>,
    window_ns: u64,
    samples_max: usize,
) -> Result<Samples, E::Error> {
    let begin_ns = exchange.now_ns();
    let mut samples = Samples::default();
    let mut free_ns = begin_ns;
    loop {
        let due_ns = match schedule.as_mut().and_then(Iterator::next) {
            Some(offset_ns) => begin_ns + offset_ns,
            None => free_ns,
        };
        if due_ns >= begin_ns + window_ns {
            return Ok(samples);
        }
        if samples.answered.len() >= samples_max {
            samples.is_full = true;
            return Ok(samples);
        }
        exchange.wait_until(due_ns);
        let sent_ns = exchange.now_ns();
        let is_answered = exchange.exchange()?;
        free_ns = exchange.now_ns();
        samples.elapsed_ns = free_ns - begin_ns;
        if is_answered {
            let uncorrected_ns = free_ns - sent_ns;
            let latency_ns = if schedule.is_some() { free_ns - due_ns } else { uncorrected_ns };
            samples.answered.push(Sample { latency_ns, uncorrected_ns });
        } else {
            samples.unanswered += 1;
        }
    }
}
