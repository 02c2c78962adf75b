//! A process at the other end that dies by `kill -9`: the task that waits is told, after what was
//! committed.
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "../../channel/tests/other_process/mod.rs"]
mod other_process;

use std::future::Future;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use channel::{Config, End, ReceiveError, SendError, pair};

const TIMEOUT: Duration = Duration::from_secs(30);
const ROUNDS: usize = 20;

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, work).await.expect("it hangs") })
}

/// Another process with the other end, which does what `role` says until it is killed.
fn start(role: &str) -> (other_process::Other, End) {
    let (ours, theirs) = pair(&Config { ring_bytes: 4096, ..Config::default() }).unwrap();
    let other = other_process::start(role);
    let descriptors = theirs.into_descriptors();
    let passed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    other.pass(&passed);
    (other, ours)
}

#[test]
#[ignore = "the other process of these tests"]
fn child() {
    let Some(role) = other_process::role() else {
        return println!("skipped: it is started by the other tests");
    };
    let Some(descriptors) = other_process::receive(End::DESCRIPTORS) else { return };
    let (mut sender, mut receiver) = End::from_descriptors(descriptors).unwrap().open().unwrap();
    let patience = Some(Instant::now() + TIMEOUT);
    match role.as_str() {
        "flood" => {
            let mut number = 0_u64;
            while sender.send(&number.to_le_bytes(), patience).is_ok() {
                number += 1;
            }
        }
        // Says that it is there, and takes nothing from then on.
        "deaf" => {
            sender.send(b"here", patience).unwrap();
            // The line to the parent: its end is ours.
            other_process::receive(1);
        }
        "silent" => {
            sender.send(b"here", patience).unwrap();
            let _end = receiver.receive(&mut Vec::new(), patience);
        }
        role => panic!("no such role: {role}"),
    }
}

#[test]
fn a_receiver_takes_what_was_committed_and_is_then_told() {
    for round in 0..ROUNDS {
        let (mut other, end) = start("flood");
        run(async {
            let (_sender, mut receiver) = channel_tokio::open(end).unwrap();
            let (mut number, mut message) = (0_u64, Vec::new());
            let error = loop {
                match receiver.receive(&mut message).await {
                    Ok(_) => assert_eq!(message, number.to_le_bytes()),
                    Err(error) => break error,
                }
                number += 1;
                if number == 10 + 100 * round as u64 {
                    other.child.kill().unwrap();
                }
            };
            assert!(matches!(error, ReceiveError::Closed), "{error}");
            assert!(number >= 10);
        });
        other.child.wait().unwrap();
    }
}

#[test]
fn a_receiver_that_waits_is_woken() {
    let (mut other, end) = start("silent");
    run(async {
        let (_sender, mut receiver) = channel_tokio::open(end).unwrap();
        let mut message = Vec::new();
        receiver.receive(&mut message).await.unwrap();
        let killed = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            other.child.kill().unwrap();
        };
        let (received, ()) = tokio::join!(receiver.receive(&mut message), killed);
        assert!(matches!(received, Err(ReceiveError::Closed)), "{received:?}");
    });
    other.child.wait().unwrap();
}

#[test]
fn a_sender_that_waits_for_room_is_woken() {
    let (mut other, end) = start("deaf");
    run(async {
        let (mut sender, mut receiver) = channel_tokio::open(end).unwrap();
        receiver.receive(&mut Vec::new()).await.unwrap();
        let sending = async {
            loop {
                if let Err(error) = sender.send(&[1; 500]).await {
                    break error;
                }
            }
        };
        let killed = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            other.child.kill().unwrap();
        };
        let (error, ()) = tokio::join!(sending, killed);
        assert!(matches!(error, SendError::Closed), "{error}");
    });
    other.child.wait().unwrap();
}
