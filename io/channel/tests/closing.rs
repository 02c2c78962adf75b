//! The effects of a close: the peer learns of it, still receives the rest, and nothing is left.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, End, ReceiveError, Receiver, SendError, Sender, pair};

type Halves = (Sender, Receiver);

fn open() -> (Halves, Halves) {
    let (one, other) = pair(&Config { ring_bytes: 4096, ..Config::default() }).unwrap();
    (one.open().unwrap(), other.open().unwrap())
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn fill(sender: &mut Sender) -> usize {
    std::iter::from_fn(|| sender.try_send(&[3; 300]).ok()).count()
}

#[test]
fn what_was_committed_is_received_and_then_the_end() {
    let ((mut sender, receiver), (mut peer_sender, mut peer_receiver)) = open();
    let sent = fill(&mut sender);
    sender.close();
    assert!(sender.is_closed() && receiver.is_closed() && peer_receiver.is_closed());
    assert!(matches!(sender.try_send(b"more"), Err(SendError::Closed)));
    assert!(matches!(peer_sender.try_send(b"answer"), Err(SendError::Closed)));
    let mut got = Vec::new();
    for _ in 0..sent {
        assert_eq!(peer_receiver.receive(&mut got, soon()).unwrap(), 300);
    }
    for _ in 0..2 {
        assert!(matches!(peer_receiver.receive(&mut got, soon()), Err(ReceiveError::Closed)));
        assert!(matches!(peer_receiver.try_receive(&mut got), Err(ReceiveError::Closed)));
    }
}

#[test]
fn whoever_closes_is_done_at_once() {
    let ((mut sender, mut receiver), (mut peer_sender, _peer_receiver)) = open();
    peer_sender.send(b"unread", None).unwrap();
    sender.close();
    assert!(matches!(receiver.try_receive(&mut Vec::new()), Err(ReceiveError::Closed)));
}

/// Runs `wait` in a thread until it sleeps, then `end`; the wait must be over with the word that
/// `wait` checks.
fn wakes(wait: impl FnOnce() + Send, end: impl FnOnce()) {
    thread::scope(|scope| {
        let (about, is_about) = mpsc::channel();
        let waiter = scope.spawn(move || {
            about.send(rustix::thread::gettid()).unwrap();
            wait();
        });
        let thread_id = is_about.recv().unwrap();
        // An observable event instead of a delay: the kernel says that the thread sleeps.
        let status = format!("/proc/self/task/{}/stat", thread_id.as_raw_nonzero());
        let limit = Instant::now() + Duration::from_secs(20);
        while !std::fs::read_to_string(&status).is_ok_and(|stat| stat.contains(") S ")) {
            assert!(Instant::now() < limit, "the waiter never slept");
            thread::yield_now();
        }
        end();
        waiter.join().unwrap();
    });
}

fn expect_closed(receiver: &mut Receiver) {
    let result = receiver.receive(&mut Vec::new(), soon());
    assert!(matches!(result, Err(ReceiveError::Closed)), "{result:?}");
}

fn expect_no_room(sender: &mut Sender) {
    let result = sender.send(&[3; 300], soon());
    assert!(matches!(result, Err(SendError::Closed)), "{result:?}");
}

#[test]
fn a_close_wakes_the_peer_and_our_own_other_half() {
    for side in 0..2 {
        let ((mut sender, mut receiver), (peer_sender, mut peer_receiver)) = open();
        if side == 0 {
            wakes(|| expect_closed(&mut receiver), || sender.close());
        } else {
            wakes(|| expect_closed(&mut peer_receiver), || sender.close());
        }
        drop(peer_sender);
    }
    for side in 0..2 {
        let ((mut sender, mut receiver), (_peer_sender, mut peer_receiver)) = open();
        fill(&mut sender);
        if side == 0 {
            wakes(|| expect_no_room(&mut sender), || receiver.close());
        } else {
            wakes(|| expect_no_room(&mut sender), || peer_receiver.close());
        }
    }
}

#[test]
fn dropping_a_half_or_a_handle_elsewhere_closes() {
    let ((sender, mut receiver), _peer) = open();
    wakes(|| expect_closed(&mut receiver), || drop(sender));
    let ((sender, mut receiver), (_peer_sender, mut peer_receiver)) = open();
    let closer = sender.closer();
    wakes(|| expect_closed(&mut receiver), || closer.close());
    expect_closed(&mut peer_receiver);
    drop((sender, receiver));
    closer.close();
}

#[test]
fn an_end_that_is_dropped_unopened_closes() {
    let (one, other) = pair(&Config::default()).unwrap();
    let (mut sender, mut receiver) = one.open().unwrap();
    wakes(|| expect_closed(&mut receiver), || drop(other));
    assert!(sender.is_closed());
    assert!(matches!(sender.try_send(b"x"), Err(SendError::Closed)));
}

#[test]
fn a_receiver_that_only_polls_learns_of_a_death() {
    let (one, other) = pair(&Config::default()).unwrap();
    let (_sender, mut receiver) = one.open().unwrap();
    drop(other);
    let mut looks = 0;
    while receiver.try_receive(&mut Vec::new()).is_ok() {
        looks += 1;
        assert!(looks < 10_000, "it was never told");
    }
}

#[test]
fn a_sender_that_only_polls_learns_of_a_death() {
    let (one, other) = pair(&Config { ring_bytes: 4096, ..Config::default() }).unwrap();
    let (mut sender, _receiver) = one.open().unwrap();
    drop(other);
    fill(&mut sender);
    assert!(matches!(sender.try_send(&[3; 300]), Err(SendError::Closed)));
}

#[test]
fn an_event_loop_hears_of_the_end() {
    let ((sender, receiver), (_peer_sender, mut peer_receiver)) = open();
    assert!(peer_receiver.prepare_wait());
    drop((sender, receiver));
    let watched = peer_receiver.descriptors();
    sys::doorbell::wait(watched.doorbell, watched.lifeline, Some(20_000_000_000)).unwrap();
    peer_receiver.drain_doorbell().unwrap();
    assert!(matches!(peer_receiver.try_receive(&mut Vec::new()), Err(ReceiveError::Closed)));
    assert!(!peer_receiver.prepare_wait(), "nobody will ring any more");
}

#[test]
fn ends_travel_as_descriptors_and_keep_their_side() {
    let (one, other) = pair(&Config { ring_bytes: 4096, ..Config::default() }).unwrap();
    let one = End::from_descriptors(one.into_descriptors().into()).unwrap();
    let other = End::from_descriptors(other.into_descriptors().into()).unwrap();
    let ((mut sender, _receiver), (_sender, mut receiver)) = (one.open().unwrap(), other.open().unwrap());
    sender.send(b"x", None).unwrap();
    assert_eq!(receiver.receive(&mut Vec::new(), soon()).unwrap(), 1);
}

/// A parent and its fork's child hold the same descriptors; here duplicates stand for the parent's.
#[test]
fn an_end_that_a_child_abandons_stays_open_for_its_parent() {
    let (one, other) = pair(&Config { ring_bytes: 4096, ..Config::default() }).unwrap();
    let held = one.into_descriptors();
    let copies: Vec<OwnedFd> = held.iter().map(|fd| fd.as_fd().try_clone_to_owned().unwrap()).collect();
    let (sender, mut receiver) = End::from_descriptors(copies).unwrap().open().unwrap();
    let (_peer_sender, mut peer_receiver) = other.open().unwrap();
    receiver.abandon();
    drop((sender, receiver));
    assert!(!peer_receiver.is_closed());
    drop(held);
    expect_closed(&mut peer_receiver);
}
