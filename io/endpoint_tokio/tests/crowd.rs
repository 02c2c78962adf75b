//! Many that have something at once: more than one look takes in.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod stage;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use channel::{Config, pair};
use endpoint::{Address, From, Options, Rights};
use endpoint_tokio::Endpoint;
use stage::run;

/// Many times as many as are heard at one look: each step takes a look or two.
const CROWD: u32 = 1200;

/// Descriptors of one pair with both of its ends, and of an endpoint.
const DESCRIPTORS: u64 = 12;

fn descriptors_max() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap_or(u64::MAX)
}

fn address(slot: u32) -> Address {
    Address { slot, generation: 1 }
}

/// Runtimes are told once that there is something, and not again because there is still something.
#[test]
fn the_death_of_many_keeps_no_message_of_another_back() {
    let needed = u64::from(CROWD) * DESCRIPTORS;
    if descriptors_max() < needed {
        println!("skipped: it needs {needed} descriptors; raise the limit of open files");
        return;
    }
    run(async {
        let mut server = endpoint::Endpoint::alone(address(1), &Options::default()).unwrap();
        let config = Config { ring_bytes: 4096, ..Config::default() };
        let mut crowd: Vec<endpoint::Endpoint> = (2..CROWD + 2)
            .map(|slot| {
                let mut one = endpoint::Endpoint::alone(address(slot), &Options::default()).unwrap();
                let (here, there) = pair(&config).unwrap();
                server.introduce(one.address(), Rights::ALL, here).unwrap();
                one.introduce(server.address(), Rights::ALL, there).unwrap();
                one
            })
            .collect();
        let mut server = Endpoint::new(server).unwrap();
        let mut into = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut last = crowd.pop().unwrap();
        // The first receive looks at everybody.
        last.send_buffered(address(1), 7, b"here", None).unwrap();
        server.receive(&From::Any, &mut into, Some(deadline)).await.unwrap();
        let received = {
            let mut receive = pin!(server.receive(&From::Any, &mut into, Some(deadline)));
            let mut nobody = Context::from_waker(Waker::noop());
            assert!(receive.as_mut().poll(&mut nobody).is_pending());
            drop(crowd);
            last.send_buffered(address(1), 7, b"still here", None).unwrap();
            receive.await.unwrap()
        };
        assert_eq!(received.source, last.address());
        assert!(Instant::now() < deadline - Duration::from_secs(2), "it came with the deadline alone");
    });
}
