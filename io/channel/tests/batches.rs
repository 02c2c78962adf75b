//! Messages that are held back and shown at once; messages that are begun and finished through
//! pointers.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, ReceiveError, Receiver, SendError, Sender, pair};

const RING_BYTES: u32 = 4096;
const TIMEOUT: Duration = Duration::from_secs(20);

fn deadline() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

fn ends() -> (Sender, Receiver, (Receiver, Sender)) {
    let (one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let (sender, other_receiver) = one.open().unwrap();
    let (other_sender, receiver) = other.open().unwrap();
    (sender, receiver, (other_receiver, other_sender))
}

fn received(receiver: &mut Receiver) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut bytes = Vec::new();
    while let Ok(Some(_)) = receiver.try_receive(&mut bytes) {
        all.push(bytes.clone());
    }
    all
}

#[test]
fn what_is_held_back_shows_when_it_is_flushed() {
    let (mut sender, mut receiver, _rest) = ends();
    sender.set_batch_bytes(1000);
    for message in [&b"one"[..], b"", b"three"] {
        sender.try_send(message).unwrap();
    }
    assert!(received(&mut receiver).is_empty());
    sender.flush().unwrap();
    assert_eq!(received(&mut receiver), [&b"one"[..], b"", b"three"]);
    sender.flush().unwrap();
    assert!(received(&mut receiver).is_empty(), "nothing was held");
}

#[test]
fn a_batch_shows_by_itself_when_it_is_large_enough() {
    let (mut sender, mut receiver, _rest) = ends();
    // More than a quarter of the ring is that quarter: 1024 bytes, which is 9 records of 120.
    sender.set_batch_bytes(usize::MAX);
    for number in 0..8_u8 {
        sender.try_send(&[number; 112]).unwrap();
        assert!(received(&mut receiver).is_empty());
    }
    sender.try_send(&[8; 112]).unwrap();
    assert_eq!(received(&mut receiver).len(), 9);
    sender.set_batch_bytes(0);
    sender.try_send(b"at once").unwrap();
    assert_eq!(received(&mut receiver), [b"at once"]);
}

#[test]
fn a_batch_shows_before_its_sender_runs_out_of_room_or_closes() {
    let (mut sender, mut receiver, _rest) = ends();
    sender.set_batch_bytes(1000);
    sender.try_send(b"in the way").unwrap();
    let long = vec![7; sender.max_message()];
    sender.try_send(&long).unwrap();
    assert_eq!(received(&mut receiver).len(), 2, "more than a batch");
    sender.try_send(&[1; 900]).unwrap();
    let error = loop {
        if let Err(error) = sender.try_send(&long) {
            break error;
        }
    };
    assert!(matches!(error, SendError::Full), "{error}");
    assert!(!received(&mut receiver).is_empty(), "there was no room for the next");
    sender.try_send(b"farewell").unwrap();
    assert!(received(&mut receiver).is_empty());
    drop(sender);
    assert_eq!(received(&mut receiver), [b"farewell"]);
    assert!(matches!(receiver.try_receive(&mut Vec::new()), Err(ReceiveError::Closed)));
}

#[test]
fn a_receiver_that_sleeps_is_woken_once_for_a_batch() {
    let (mut sender, mut receiver, _rest) = ends();
    assert!(receiver.prepare_wait());
    sender.set_batch_bytes(1000);
    for number in 0..8_u8 {
        sender.try_send(&[number; 8]).unwrap();
    }
    assert_eq!(sender.counts().rings, 0);
    sender.flush().unwrap();
    assert_eq!(sender.counts().rings, 1);
    receiver.cancel_wait();
    assert_eq!(received(&mut receiver).len(), 8);
}

#[test]
fn batches_of_any_size_arrive_whole_and_in_order() {
    let (mut sender, mut receiver, _rest) = ends();
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..20_000_u32 {
                sender.set_batch_bytes(number as usize % 1500);
                let mut bytes = number.to_le_bytes().to_vec();
                bytes.resize(4 + number as usize % 300, number as u8);
                sender.send(&bytes, deadline()).unwrap();
            }
            // Its end shows the rest.
        });
        let mut bytes = Vec::new();
        for number in 0..20_000_u32 {
            receiver.receive(&mut bytes, deadline()).unwrap();
            assert_eq!(bytes[..4], number.to_le_bytes());
            assert!(
                bytes.len() == 4 + number as usize % 300
                    && bytes[4..].iter().all(|&byte| byte == number as u8)
            );
        }
        assert!(matches!(receiver.receive(&mut bytes, deadline()), Err(ReceiveError::Closed)));
    });
}

#[test]
fn what_is_begun_is_finished_with_as_much_or_less() {
    let (mut sender, mut receiver, _rest) = ends();
    let place = sender.begin(100, deadline()).unwrap();
    assert_eq!(place.addr() % 8, 0);
    assert!(matches!(sender.finish(101), Err(SendError::TooLong { length: 101, max: 100 })));
    sender.finish(5).unwrap();
    sender.try_begin(30).unwrap();
    sender.cancel();
    sender.try_begin(0).unwrap();
    sender.finish(0).unwrap();
    // The other end's mapping is another, its page offsets are the same.
    let (bytes, length) = receiver.begin(deadline()).unwrap();
    assert_eq!((bytes.addr() % 4096, length), (place.addr() % 4096, 5));
    receiver.finish().unwrap();
    assert_eq!(received(&mut receiver), [b""], "a fresh ring is zero, and what was cancelled never was");
}

#[test]
fn what_is_begun_out_of_order_is_refused_by_name() {
    let (mut sender, mut receiver, _rest) = ends();
    assert!(matches!(sender.finish(0), Err(SendError::OutOfOrder(_))));
    assert!(matches!(receiver.finish(), Err(ReceiveError::OutOfOrder(_))));
    sender.try_begin(8).unwrap();
    assert!(matches!(sender.try_begin(8), Err(SendError::OutOfOrder(_))));
    assert!(matches!(sender.try_send(b"another"), Err(SendError::OutOfOrder(_))));
    assert!(matches!(sender.send(b"another", deadline()), Err(SendError::OutOfOrder(_))));
    sender.finish(8).unwrap();
    sender.try_send(b"another").unwrap();
    assert!(receiver.try_begin().unwrap().is_some());
    assert!(matches!(receiver.try_begin(), Err(ReceiveError::OutOfOrder(_))));
    assert!(matches!(receiver.try_receive(&mut Vec::new()), Err(ReceiveError::OutOfOrder(_))));
    receiver.finish().unwrap();
    assert_eq!(received(&mut receiver), [b"another"]);
    assert!(receiver.try_begin().unwrap().is_none());
    assert!(matches!(sender.try_begin(RING_BYTES as usize), Err(SendError::TooLong { .. })));
    receiver.close();
    assert!(matches!(sender.try_begin(8), Err(SendError::Closed)));
}
