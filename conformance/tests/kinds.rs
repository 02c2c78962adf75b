//! The suite, over every kind of ends that one process can have.
#![allow(clippy::unwrap_used, reason = "a test may")]

use channel::{Config, End, pair};
use conformance::{Failure, Given, fake, run_all};

fn conforms(ring_bytes: u32, apart: bool, make: impl Fn(End, End) -> (End, End)) {
    let config = Config { ring_bytes, apart, ..Config::default() };
    let make = || {
        let (one, other) = pair(&config).unwrap();
        let (one, other) = make(one, other);
        Ok::<_, Failure>((Given::new(one).unwrap(), Given::new(other).unwrap()))
    };
    let done = run_all(make, |scenario, done| match done {
        Ok(()) => println!("ok       {}", scenario.name),
        Err(failure) => println!("{}: {failure}", scenario.name),
    });
    done.unwrap();
}

#[test]
fn memfd() {
    conforms(256 << 10, false, |one, other| (one, other));
}

#[test]
fn memfd_with_the_smallest_rings() {
    conforms(4 << 10, false, |one, other| (other, one));
}

#[test]
fn memfd_apart() {
    conforms(64 << 10, true, |one, other| (one, other));
}

#[test]
fn a_device_and_a_memfd() {
    conforms(64 << 10, true, |one, other| (fake::device(one).unwrap(), other));
}

#[test]
fn a_memfd_and_a_device() {
    conforms(4 << 10, true, |one, other| (one, fake::device(other).unwrap()));
}

#[test]
fn two_devices() {
    conforms(256 << 10, true, |one, other| (fake::device(other).unwrap(), fake::device(one).unwrap()));
}
