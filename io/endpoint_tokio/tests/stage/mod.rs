//! The common parts of the tests.
#![allow(dead_code, reason = "no test needs all of it")]

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};

use channel::Config;
use endpoint::{Address, Asked, Content, Options, Received, Rights};
use endpoint_tokio::Endpoint;

pub const ONE: Address = Address { slot: 1, generation: 1 };
pub const OTHER: Address = Address { slot: 2, generation: 1 };
pub const SERVER: Address = Address { slot: 3, generation: 1 };

/// Long enough for a machine under load; what is tested is that none of it is needed.
pub const TIMEOUT: Duration = Duration::from_secs(30);

pub fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, work).await.expect("it hangs") })
}

/// A deadline that nothing needs.
pub fn soon() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

fn introduce(one: &mut endpoint::Endpoint, other: &mut endpoint::Endpoint) {
    let (here, there) = channel::pair(&Config { ring_bytes: 16 << 10, ..Config::default() }).unwrap();
    one.introduce(other.address(), Rights::ALL, here).unwrap();
    other.introduce(one.address(), Rights::ALL, there).unwrap();
}

fn alone(address: Address) -> endpoint::Endpoint {
    endpoint::Endpoint::alone(address, &Options::default()).unwrap()
}

/// Two endpoints that know each other, for those who block.
pub fn blocking_pair() -> (endpoint::Endpoint, endpoint::Endpoint) {
    let (mut one, mut other) = (alone(ONE), alone(OTHER));
    introduce(&mut one, &mut other);
    (one, other)
}

/// Two endpoints that know each other.
pub fn pair() -> (Endpoint, Endpoint) {
    let (one, other) = blocking_pair();
    (Endpoint::new(one).unwrap(), Endpoint::new(other).unwrap())
}

/// A server, and two who know it.
pub fn trio() -> (Endpoint, Endpoint, Endpoint) {
    let (mut server, mut one, mut other) = (alone(SERVER), alone(ONE), alone(OTHER));
    introduce(&mut server, &mut one);
    introduce(&mut server, &mut other);
    (Endpoint::new(server).unwrap(), Endpoint::new(one).unwrap(), Endpoint::new(other).unwrap())
}

/// Returns the parts of a request that a reply needs.
pub fn asked(received: &Received) -> Asked {
    match received.content {
        Content::Request { asked, .. } => asked,
        content => panic!("no request: {content:?}"),
    }
}

/// Where a future is dropped.
#[derive(Clone, Copy, Debug)]
pub enum Drop {
    /// As soon as it was polled so often, and waits.
    Waiting(u32),
    /// When it was polled so often and is woken, before it is polled again.
    Woken(u32),
}

impl Drop {
    /// One after the other: each of the first few awaits, in both ways.
    pub fn number(number: u32) -> Drop {
        let polls = number / 2 % 4 + 1;
        if number.is_multiple_of(2) { Drop::Waiting(polls) } else { Drop::Woken(polls) }
    }
}

/// Returns the result of a future, unless it is dropped before.
pub async fn or_drop<F: Future>(at: Drop, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if matches!(at, Drop::Woken(most) if polls == most) {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if matches!(at, Drop::Waiting(most) if polls == most) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
