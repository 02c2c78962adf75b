//! Endpoints that were introduced to each other by hand.
#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::time::{Duration, Instant};

use channel::{Config, SpinPolicy, pair};
use endpoint::{Address, Endpoint, Options, Rights};

/// Longer than anything here takes, on the busiest machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub fn soon() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

/// A deadline that is short, for what does not come.
pub fn shortly() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(20))
}

/// A deadline that has passed: a try.
pub fn past() -> Option<Instant> {
    Some(Instant::now())
}

pub fn address(slot: u32) -> Address {
    Address { slot, generation: 1 }
}

pub fn alone(slot: u32, options: &Options) -> Endpoint {
    Endpoint::alone(address(slot), options).unwrap()
}

pub fn never_spins() -> Options {
    Options { spin: SpinPolicy::Never, ..Options::default() }
}

pub fn join(one: &mut Endpoint, other: &mut Endpoint) {
    join_with(one, other, &Config { ring_bytes: 16 << 10, ..Config::default() }, Rights::ALL);
}

pub fn join_with(one: &mut Endpoint, other: &mut Endpoint, config: &Config, rights: Rights) {
    let (here, there) = pair(config).unwrap();
    one.introduce(other.address(), rights, here).unwrap();
    other.introduce(one.address(), rights, there).unwrap();
}

/// So many endpoints, each joined to each, in slots from 1.
pub fn joined(count: u32) -> Vec<Endpoint> {
    let mut endpoints: Vec<Endpoint> = (1..=count).map(|slot| alone(slot, &Options::default())).collect();
    for second in 1..endpoints.len() {
        let (before, from) = endpoints.split_at_mut(second);
        for first in before {
            join(first, &mut from[0]);
        }
    }
    endpoints
}

pub fn two() -> (Endpoint, Endpoint) {
    let mut both = joined(2);
    let second = both.pop().unwrap();
    (both.pop().unwrap(), second)
}
