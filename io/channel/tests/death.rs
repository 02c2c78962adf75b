//! Processes that die by `kill -9` at random moments: the survivor wakes, receives what was committed, whole and in
//! order, and learns of the end; nothing is left of the channel.
//!
//! One test alone in its program, because it counts the program's descriptors.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, End, ReceiveError, Receiver, SendError, Sender, SpinPolicy, pair};

const ROUNDS: u64 = 300;
const ROLE: &str = "TOMBOLO_TEST_DEATH_ROLE";
/// Long enough for a machine under load; what is tested is that none of it is needed.
const PATIENCE: Duration = Duration::from_secs(20);

fn deadline() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

fn message(number: u64, into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(&number.to_le_bytes());
    into.resize(8 + (number * 37 % 500) as usize, number as u8);
}

/// What the child does until it is killed. With a role that nobody knows it fails, and so does the parent's test.
fn live(role: &str, mut sender: Sender, mut receiver: Receiver) {
    let (mut number, mut bytes) = (0, Vec::new());
    match role {
        "flood" => loop {
            message(number, &mut bytes);
            sender.send(&bytes, deadline()).unwrap();
            number += 1;
        },
        "echo" => {
            receiver.set_spin_policy(SpinPolicy::Never);
            sender.send(b"", deadline()).unwrap();
            while receiver.receive(&mut bytes, deadline()).is_ok() {
                sender.send(&bytes, deadline()).unwrap();
            }
        }
        "deaf" => {
            sender.send(b"", deadline()).unwrap();
            // The parent's lifeline: the end of its process is the end of ours.
            sys::descriptors::receive_with_descriptors(std::io::stdin(), &mut [0], 0).unwrap();
        }
        other => panic!("no role {other}"),
    }
}

#[test]
#[ignore = "the other process of the test below, which starts it"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (_, descriptors) =
        sys::descriptors::receive_with_descriptors(std::io::stdin(), &mut [0; 8], End::DESCRIPTORS).unwrap();
    let (sender, receiver) = End::from_descriptors(descriptors).unwrap().open().unwrap();
    live(&role, sender, receiver);
}

fn start(role: &str, end: End) -> (Child, OwnedFd) {
    let (ours, theirs) = sys::descriptors::socket_pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(ROLE, role)
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let descriptors = end.into_descriptors();
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    sys::descriptors::send_with_descriptors(&ours, b"an end", &borrowed).unwrap();
    (child, ours)
}

/// Receives the flood until it ends; every message is the next one, and whole.
fn outlive_flood(receiver: &mut Receiver) {
    let (mut got, mut expected, mut number) = (Vec::new(), Vec::new(), 1);
    loop {
        match receiver.receive(&mut got, deadline()) {
            Ok(_) => {
                message(number, &mut expected);
                assert_eq!(got, expected);
                number += 1;
            }
            Err(ReceiveError::Closed) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn outlive_echo(sender: &mut Sender, receiver: &mut Receiver) {
    let (mut got, mut bytes) = (Vec::new(), Vec::new());
    for number in 0.. {
        message(number, &mut bytes);
        match sender.send(&bytes, deadline()) {
            Ok(()) => {}
            Err(SendError::Closed) => return,
            Err(error) => panic!("{error}"),
        }
        match receiver.receive(&mut got, deadline()) {
            Ok(_) => assert_eq!(got, bytes),
            Err(ReceiveError::Closed) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Both halves sleep, in two threads: one for want of room, one for want of messages.
fn outlive_deaf(sender: &mut Sender, receiver: &mut Receiver) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let error = loop {
                if let Err(error) = sender.send(&[1; 1000], deadline()) {
                    break error;
                }
            };
            assert!(matches!(error, SendError::Closed), "{error}");
        });
        let error = receiver.receive(&mut Vec::new(), deadline()).unwrap_err();
        assert!(matches!(error, ReceiveError::Closed), "{error}");
    });
}

fn round(role: &str, delay: Duration, policy: SpinPolicy) {
    let (one, other) = pair(&Config { ring_bytes: 16 << 10 }).unwrap();
    let (mut sender, mut receiver) = one.open().unwrap();
    receiver.set_spin_policy(policy);
    let (mut child, lifeline) = start(role, other);
    // Its first message: it lives.
    receiver.receive(&mut Vec::new(), deadline()).unwrap();
    thread::scope(|scope| {
        let survivor = scope.spawn(|| match role {
            "flood" => outlive_flood(&mut receiver),
            "echo" => outlive_echo(&mut sender, &mut receiver),
            _ => outlive_deaf(&mut sender, &mut receiver),
        });
        // No event to wait for: the moment is meant to be any.
        let moment = Instant::now() + delay;
        while Instant::now() < moment {
            thread::yield_now();
        }
        child.kill().unwrap();
        survivor.join().unwrap();
    });
    child.wait().unwrap();
    drop(lifeline);
    assert!(sender.is_closed() && receiver.is_closed());
    let error = sender.send(b"x", deadline()).unwrap_err();
    assert!(matches!(error, SendError::Closed), "{error}");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mapped_regions() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("tombolo-channel")).count()
}

#[test]
fn whoever_survives_learns_of_it_and_nothing_is_left() {
    let before = descriptors();
    // A generator of our own, seeded by the clock; the seed tells a failure's moments.
    let seed = sys::clock::clock_ns() | 1;
    println!("seed {seed}");
    let mut state = seed;
    for number in 0..ROUNDS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let delay = Duration::from_nanos(state % 1_500_000);
        let role = ["flood", "echo", "deaf"][(number % 3) as usize];
        let policy = if number % 2 == 0 { SpinPolicy::Adaptive } else { SpinPolicy::Never };
        round(role, delay, policy);
    }
    assert_eq!(descriptors(), before, "descriptors are left");
    assert_eq!(mapped_regions(), 0, "a region is left");
}
