//! Ends that do not share a kernel: what they do without.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, CreateError, End, HugePages, ReceiveError, Receiver, Sender, SpinPolicy, pair};
use sys::region::Region;
use wire::ring as layout;

const RING_BYTES: u32 = 4096;

fn make() -> (End, End, OwnedFd) {
    let (one, other) = pair(&Config { ring_bytes: RING_BYTES, apart: true, ..Config::default() }).unwrap();
    let descriptors = one.into_descriptors();
    let region = descriptors[0].as_fd().try_clone_to_owned().unwrap();
    (End::from_descriptors(descriptors.into()).unwrap(), other, region)
}

fn look(region: &OwnedFd) -> Region {
    Region::map(region, layout::region_bytes(RING_BYTES).try_into().unwrap()).unwrap()
}

/// Offsets of a control word of both rings.
fn both(word: usize) -> [usize; 2] {
    [0, layout::CONTROL_STRIDE].map(|ring| layout::OFFSET_CONTROLS + ring + word)
}

fn echo(mut sender: Sender, mut receiver: Receiver) {
    let mut message = Vec::new();
    while receiver.receive(&mut message, None).is_ok() {
        sender.send(&message, None).unwrap();
    }
}

#[test]
fn the_region_has_a_size_that_devices_have() {
    let (_one, _other, region) = make();
    assert_eq!(sys::memfd::check_sealed(&region).unwrap(), Some(16384));
    assert_eq!(look(&region).load_u64(layout::OFFSET_APART, Relaxed), 1);
}

#[test]
fn nobody_sleeps_on_a_futex_and_nobody_says_where_it_runs() {
    let (one, other, region) = make();
    let (mut sender, mut receiver) = one.open().unwrap();
    receiver.set_spin_policy(SpinPolicy::Never);
    thread::scope(|scope| {
        scope.spawn(move || {
            let (sender, receiver) = other.open().unwrap();
            echo(sender, receiver);
        });
        let mut message = Vec::new();
        for turn in 0..1000_u32 {
            sender.send(&turn.to_le_bytes(), None).unwrap();
            receiver.receive(&mut message, None).unwrap();
            assert_eq!(message, turn.to_le_bytes());
        }
        let region = look(&region);
        for word in [layout::CONTROL_PRODUCER_PROCESSOR, layout::CONTROL_CONSUMER_PROCESSOR] {
            assert_eq!(both(word).map(|at| region.load_u64(at, Relaxed)), [0, 0]);
        }
        for word in [layout::CONTROL_BARRIER, layout::CONTROL_UNFENCED] {
            assert_eq!(both(word).map(|at| region.load_u64(at, Relaxed)), [0, 0]);
        }
        let counts = receiver.counts();
        assert_eq!((counts.futex_sleeps, counts.futex_wakes), (0, 0));
        assert!(counts.doorbell_sleeps > 0, "{counts:?}");
        receiver.close();
    });
}

#[test]
fn a_peer_on_any_processor_is_worth_a_spin() {
    let (one, other, _) = make();
    let (_sender, receiver) = one.open().unwrap();
    drop(other);
    assert!(receiver.is_peer_apart());
}

#[test]
fn what_the_peer_makes_of_the_words_later_changes_nothing() {
    let (one, other, region) = make();
    let (_sender, mut receiver) = one.open().unwrap();
    let words = look(&region);
    words.store_u64(layout::OFFSET_APART, 0, Relaxed);
    for word in [layout::CONTROL_UNFENCED, layout::CONTROL_PRODUCER_PROCESSOR] {
        for at in both(word) {
            words.store_u64(at, u64::MAX, Relaxed);
        }
    }
    let deadline = Instant::now() + Duration::from_millis(20);
    let late = receiver.receive(&mut Vec::new(), Some(deadline)).unwrap_err();
    assert!(matches!(late, ReceiveError::TimedOut), "{late}");
    assert_eq!(receiver.counts().futex_sleeps, 0);
    assert!(receiver.is_peer_apart());
    drop(other);
    let end = receiver.receive(&mut Vec::new(), None).unwrap_err();
    assert!(matches!(end, ReceiveError::Closed), "{end}");
}

#[test]
fn an_allegation_of_being_apart_does_no_harm() {
    let (one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let descriptors = one.into_descriptors();
    look(&descriptors[0]).store_u64(layout::OFFSET_APART, u64::MAX, Relaxed);
    let (mut sender, mut receiver) = End::from_descriptors(descriptors.into()).unwrap().open().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (sender, receiver) = other.open().unwrap();
            echo(sender, receiver);
        });
        sender.send(b"still here", None).unwrap();
        let mut message = Vec::new();
        receiver.receive(&mut message, None).unwrap();
        assert_eq!(message, b"still here");
        receiver.close();
    });
}

#[test]
fn there_are_no_huge_pages_for_a_guest() {
    let config = Config { apart: true, huge_pages: HugePages::Required, ..Config::default() };
    let refused = pair(&config).unwrap_err();
    assert!(matches!(refused, CreateError::HugePages { .. }), "{refused}");
    pair(&Config { huge_pages: HugePages::IfFree, ..config }).unwrap();
}
