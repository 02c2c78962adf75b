//! The health of each upstream of the topology: those that answer are asked first.
//!
//! Whether an upstream answers is judged for each domain by its own look-ups alone ([`Standing`]):
//! what another domain asks, names that never get an answer among it, must not decide whom this one
//! asks (`docs/adr/0060-each-domain-judges-upstreams-by-itself.md`). What is counted for the
//! administrator is of all ([`Health`]).

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
            upstream.latency.record(nanoseconds(latency));
        }
    }

    /// An attempt failed. Whether the upstream is one of the topology's: of no other is anything
    /// remembered.
    pub fn failed(&mut self, address: SocketAddr, failure: Failure) -> bool {
        let Some(upstream) = self.find(address) else { return false };
        match failure {
            Failure::TimedOut => upstream.timeouts += 1,
            _ => upstream.failures += 1,
        }
        true
    }

    /// A packet came that was not the answer.
    pub fn stray(&mut self, address: SocketAddr) {
        if let Some(upstream) = self.find(address) {
            upstream.strays += 1;
        }
    }

    /// For the state tree; `domains` are the standings of all.
    pub fn state<'a>(&self, domains: impl Iterator<Item = &'a Standing> + Clone, now: Instant) -> Value {
        let each = self.upstreams.iter().map(|upstream| {
            let down_for = domains.clone().filter(|domain| domain.is_down(upstream.address, now)).count();
            json!({
                "address": upstream.address.to_string(),
                "down": down_for > 0,
                "down_for": down_for,
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

/// An upstream that has failed one domain, and not answered it since.
#[derive(Debug)]
struct Failing {
    address: SocketAddr,
    in_a_row: u32,
    last: Instant,
}

/// How the topology's upstreams stand with one domain.
#[derive(Debug, Default)]
pub struct Standing {
    /// As many as the topology has upstreams at the most: see [`Health::failed`].
    failing: Vec<Failing>,
}

impl Standing {
    /// An upstream answered the domain.
    pub fn answered(&mut self, address: SocketAddr) {
        self.failing.retain(|failing| failing.address != address);
    }

    /// An upstream of the topology did not.
    pub fn failed(&mut self, address: SocketAddr, now: Instant) {
        match self.failing.iter_mut().find(|failing| failing.address == address) {
            Some(failing) => {
                failing.in_a_row = failing.in_a_row.saturating_add(1);
                failing.last = now;
            }
            None => self.failing.push(Failing { address, in_a_row: 1, last: now }),
        }
    }

    /// Whether the domain shall ask an upstream last.
    pub fn is_down(&self, address: SocketAddr, now: Instant) -> bool {
        self.failing.iter().any(|failing| {
            failing.address == address
                && failing.in_a_row >= FAILURES_UNTIL_DOWN
                && now.saturating_duration_since(failing.last) < DOWN_FOR
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_three_times_is_asked_last_for_a_while() {
        let (address, start) = ("127.0.0.1:53".parse().unwrap(), Instant::now());
        let mut standing = Standing::default();
        for _ in 0..3 {
            assert!(!standing.is_down(address, start));
            standing.failed(address, start);
        }
        assert!(standing.is_down(address, start));
        assert!(!standing.is_down(address, start + DOWN_FOR));
        standing.answered(address);
        assert!(!standing.is_down(address, start));
    }

    #[test]
    fn of_upstreams_that_are_not_the_topologys_nothing_is_remembered() {
        let [ours, other] = ["127.0.0.1:53", "127.0.0.2:53"].map(|text| text.parse().unwrap());
        let mut health = Health::new(&[ours]);
        assert!(health.failed(ours, Failure::TimedOut));
        assert!(!health.failed(other, Failure::TimedOut));
    }
}
