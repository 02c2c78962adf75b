//! What is known about each upstream of the topology: who answers is asked first.

use crate::failure::Failure;
use crate::measure::{Histogram, nanoseconds};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Failures in a row after which an upstream is asked last.
const FAILURES_UNTIL_DOWN: u32 = 3;
/// How long it is asked last, then it gets its place back.
const DOWN_FOR: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Upstream {
    address: SocketAddr,
    answers: u64,
    timeouts: u64,
    failures: u64,
    /// Packets that were not the answer: noise, or somebody guesses ids.
    strays: u64,
    in_a_row: u32,
    last_failure: Option<Instant>,
    latency: Histogram,
}

/// The upstreams of the topology, in its order.
#[derive(Debug, Default)]
pub struct Health {
    upstreams: Vec<Upstream>,
}

impl Health {
    /// Knows nothing yet of these.
    pub fn new(addresses: &[SocketAddr]) -> Self {
        let upstreams = addresses.iter().map(|&address| Upstream {
            address,
            answers: 0,
            timeouts: 0,
            failures: 0,
            strays: 0,
            in_a_row: 0,
            last_failure: None,
            latency: Histogram::default(),
        });
        Self { upstreams: upstreams.collect() }
    }

    fn find(&mut self, address: SocketAddr) -> Option<&mut Upstream> {
        self.upstreams.iter_mut().find(|upstream| upstream.address == address)
    }

    /// An upstream answered, with whatever code.
    pub fn answered(&mut self, address: SocketAddr, latency: Duration) {
        if let Some(upstream) = self.find(address) {
            upstream.answers += 1;
            upstream.in_a_row = 0;
            upstream.latency.record(nanoseconds(latency));
        }
    }

    /// An attempt failed.
    pub fn failed(&mut self, address: SocketAddr, failure: Failure, now: Instant) {
        if let Some(upstream) = self.find(address) {
            match failure {
                Failure::TimedOut => upstream.timeouts += 1,
                _ => upstream.failures += 1,
            }
            upstream.in_a_row = upstream.in_a_row.saturating_add(1);
            upstream.last_failure = Some(now);
        }
    }

    /// A packet came that was not the answer.
    pub fn stray(&mut self, address: SocketAddr) {
        if let Some(upstream) = self.find(address) {
            upstream.strays += 1;
        }
    }

    /// Whether an upstream shall be asked last. One that is not of the topology never is: nothing is remembered of it.
    pub fn is_down(&self, address: SocketAddr, now: Instant) -> bool {
        self.upstreams.iter().any(|upstream| {
            upstream.address == address
                && upstream.in_a_row >= FAILURES_UNTIL_DOWN
                && upstream.last_failure.is_some_and(|at| now.saturating_duration_since(at) < DOWN_FOR)
        })
    }

    /// For the state tree.
    pub fn state(&self, now: Instant) -> Value {
        let each = self.upstreams.iter().map(|upstream| {
            json!({
                "address": upstream.address.to_string(),
                "down": self.is_down(upstream.address, now),
                "answers": upstream.answers,
                "timeouts": upstream.timeouts,
                "failures": upstream.failures,
                "strays": upstream.strays,
                "latency": upstream.latency.state(),
            })
        });
        Value::Array(each.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_three_times_is_asked_last_for_a_while() {
        let (address, start) = ("127.0.0.1:53".parse().unwrap(), Instant::now());
        let mut health = Health::new(&[address]);
        for _ in 0..3 {
            assert!(!health.is_down(address, start));
            health.failed(address, Failure::TimedOut, start);
        }
        assert!(health.is_down(address, start));
        assert!(!health.is_down(address, start + DOWN_FOR));
        health.answered(address, Duration::ZERO);
        assert!(!health.is_down(address, start));
    }
}
