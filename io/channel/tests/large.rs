//! Messages that are longer than a record, or than the ring: whole or not at all.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, End, ReceiveError, Receiver, SendError, Sender, SpinPolicy, Violation, pair};
use wire::ring as layout;

type Halves = (Sender, Receiver);

const RING_BYTES: u32 = 4096;
/// Longer than both rings together.
const LIMIT: usize = 1 << 20;

fn open(limit: usize) -> (Halves, Halves) {
    let (one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let (ours, mut theirs) = (one.open().unwrap(), other.open().unwrap());
    theirs.1.set_message_limit(limit);
    (ours, theirs)
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

/// A message that is no other one's beginning.
fn message(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn a_message_longer_than_the_ring_arrives_whole() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(LIMIT);
    let lengths = [2040, 2041, 4096, 5000, 100_000, LIMIT - 1, LIMIT, 0, 3, LIMIT];
    thread::scope(|scope| {
        scope.spawn(move || {
            for (number, length) in (0..).zip(lengths) {
                sender.send(&message(number, length), soon()).unwrap();
            }
        });
        let mut got = vec![1; 10];
        for (number, length) in (0..).zip(lengths) {
            assert_eq!(receiver.receive(&mut got, soon()).unwrap(), length);
            assert_eq!(got, message(number, length), "message {number}");
        }
        assert!(matches!(receiver.receive(&mut got, soon()), Err(ReceiveError::Closed)));
    });
}

#[test]
fn messages_of_every_length_keep_their_order_and_their_seams() {
    const MESSAGES: u64 = 3000;
    let length = |number: u64| (number.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 50) as usize;
    for policy in [SpinPolicy::Never, SpinPolicy::Adaptive] {
        let ((mut sender, _unused), (_quiet, mut receiver)) = open(LIMIT);
        sender.set_spin_policy(policy);
        receiver.set_spin_policy(policy);
        thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    let whole = message(number, length(number));
                    // In parts that fit no piece.
                    let (one, rest) = whole.split_at(whole.len() / 3);
                    sender.send_vectored(&[one, b"", rest], soon()).unwrap();
                }
            });
            let mut got = Vec::new();
            for number in 0..MESSAGES {
                receiver.receive(&mut got, soon()).unwrap();
                assert_eq!(got, message(number, length(number)), "message {number}");
            }
        });
    }
}

#[test]
fn an_assembled_message_is_read_in_place_too() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(LIMIT);
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..4 {
                sender.send(&message(number, 50_000), soon()).unwrap();
            }
        });
        let expected = message(0, 50_000);
        assert_eq!(receiver.next_length(soon()).unwrap(), 50_000);
        let read = receiver.read(soon(), |alleged| {
            assert!(!alleged.copy_to(49_999, &mut [0; 2]) && !alleged.copy_to(usize::MAX, &mut [0; 2]));
            assert_eq!(alleged.array::<3>(777).unwrap(), expected[777..780]);
            let mut copy = b"before ".to_vec();
            alleged.append_to(&mut copy);
            assert_eq!(copy[7..], expected);
            alleged.len()
        });
        assert_eq!(read.unwrap(), 50_000);

        receiver.wait(soon()).unwrap();
        assert!(!receiver.prepare_wait(), "a message is there, if not in the ring");
        let (_first, length) = receiver.begin(soon()).unwrap();
        assert_eq!(length, 50_000);
        assert!(matches!(receiver.try_receive(&mut Vec::new()), Err(ReceiveError::OutOfOrder(_))));
        receiver.finish().unwrap();
        let mut got = Vec::new();
        for number in 2..4 {
            receiver.wait(soon()).unwrap();
            assert_eq!(receiver.try_receive(&mut got).unwrap(), Some(50_000));
            assert_eq!(got, message(number, 50_000));
        }
    });
}

#[test]
fn who_asks_for_nothing_gets_what_he_always_got() {
    let (one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let ((mut sender, _unused), (_quiet, mut receiver)) = (one.open().unwrap(), other.open().unwrap());
    assert_eq!((sender.message_limit(), receiver.message_limit()), (2040, 2040));
    let error = sender.send(&[7; 2041], soon()).unwrap_err();
    assert!(matches!(error, SendError::TooLong { length: 2041, max: 2040 }), "{error}");
    assert_eq!(receiver.try_receive(&mut Vec::new()).unwrap(), None);

    receiver.set_message_limit(5000);
    assert_eq!((sender.message_limit(), receiver.message_limit()), (5000, 5000));
    receiver.set_message_limit(100);
    assert_eq!((sender.message_limit(), receiver.message_limit()), (5000, 5000), "it has been promised");
    let error = sender.send(&[7; 5001], soon()).unwrap_err();
    assert!(matches!(error, SendError::TooLong { length: 5001, max: 5000 }), "{error}");
    let error = sender.try_send_from(&[7; 5001], &mut 0).unwrap_err();
    assert!(matches!(error, SendError::TooLong { length: 5001, max: 5000 }), "{error}");
    // All or nothing, and all does not fit at once.
    let error = sender.try_send(&[7; 2041]).unwrap_err();
    assert!(matches!(error, SendError::TooLong { length: 2041, max: 2040 }), "{error}");
    assert_eq!(receiver.try_receive(&mut Vec::new()).unwrap(), None);
}

#[test]
fn a_deadline_in_the_midst_of_a_message_sends_nothing_of_it() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(LIMIT);
    let mut got = Vec::new();
    sender.send(b"before", soon()).unwrap();
    for (number, next) in [(1, 100), (2, 20_000), (3, 1)] {
        let deadline = Instant::now() + Duration::from_millis(10);
        let error = sender.send(&message(90, 50_000), Some(deadline)).unwrap_err();
        assert!(matches!(error, SendError::TimedOut), "{error}");
        assert!(Instant::now() >= deadline);
        if number == 1 {
            assert_eq!(receiver.try_receive(&mut got).unwrap(), Some(6), "what was sent before it came");
        }
        assert_eq!(receiver.try_receive(&mut got).unwrap(), None, "half of a message is none");
        thread::scope(|scope| {
            let sending = scope.spawn(|| sender.send(&message(number, next), soon()).unwrap());
            receiver.receive(&mut got, soon()).unwrap();
            assert_eq!(got, message(number, next), "the next one comes, and nothing of the abandoned one");
            sending.join().unwrap();
        });
    }
    assert_eq!(receiver.try_receive(&mut got).unwrap(), None);
}

#[test]
fn a_sender_that_goes_in_the_midst_of_a_message_leaves_nothing_of_it() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(LIMIT);
    sender.send(b"before", soon()).unwrap();
    sender.send(&[7; 50_000], Some(Instant::now())).unwrap_err();
    drop(sender);
    let mut got = Vec::new();
    assert_eq!(receiver.receive(&mut got, soon()).unwrap(), 6);
    assert!(matches!(receiver.receive(&mut got, soon()), Err(ReceiveError::Closed)));
    assert!(matches!(receiver.try_receive(&mut got), Err(ReceiveError::Closed)));
}

#[test]
fn a_receiver_that_goes_in_the_midst_of_a_message_ends_the_send() {
    let ((mut sender, _unused), (quiet, mut receiver)) = open(LIMIT);
    thread::scope(|scope| {
        let sending = scope.spawn(move || sender.send(&[7; LIMIT], soon()));
        while receiver.try_receive(&mut Vec::new()).unwrap().is_none() && !receiver.is_closed() {
            if receiver.prepare_wait() {
                receiver.cancel_wait();
                break;
            }
        }
        drop((quiet, receiver));
        assert!(matches!(sending.join().unwrap(), Err(SendError::Closed)));
    });
}

/// Both sides in event loops: the sender goes on where it stopped.
#[test]
fn event_loops_move_a_large_message() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(LIMIT);
    let wait = |watched: channel::Descriptors<'_>| {
        sys::doorbell::wait(watched.doorbell, watched.lifeline, Some(20_000_000_000)).unwrap();
    };
    const MESSAGES: u64 = 50;
    let length = |number: u64| 1 + (number * 7919 % 40_000) as usize;
    let sending = thread::spawn(move || {
        for number in 0..MESSAGES {
            let (whole, mut sent) = (message(number, length(number)), 0);
            while let Err(error) = sender.try_send_from(&whole, &mut sent) {
                assert!(matches!(error, SendError::Full), "{error}");
                if sender.prepare_wait(sender.piece_bytes().min(whole.len() - sent)).unwrap() {
                    wait(sender.descriptors());
                    sender.cancel_wait();
                    sender.drain_doorbell().unwrap();
                }
            }
            assert_eq!(sent, whole.len());
        }
        sender
    });
    let (mut got, mut number) = (Vec::new(), 0);
    while number < MESSAGES {
        if receiver.try_receive(&mut got).unwrap().is_some() {
            assert_eq!(got, message(number, length(number)), "message {number}");
            number += 1;
        } else if receiver.prepare_wait() {
            wait(receiver.descriptors());
            receiver.cancel_wait();
            receiver.drain_doorbell().unwrap();
        }
    }
    drop(sending.join().unwrap());
}

#[test]
fn something_else_in_between_abandons_a_message() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(LIMIT);
    let (large, mut sent, mut got) = (message(1, 50_000), 0, Vec::new());
    assert!(matches!(sender.try_send_from(&large, &mut sent), Err(SendError::Full)));
    assert!(sent > 0 && sent < large.len());
    assert_eq!(receiver.try_receive(&mut got).unwrap(), None);
    sender.send(b"else", soon()).unwrap();
    assert_eq!(receiver.receive(&mut got, soon()).unwrap(), 4);
    assert_eq!(got, b"else");
}

/// A peer that writes records itself.
struct Hostile {
    region: std::os::fd::OwnedFd,
    at: u64,
    _bells: Vec<std::os::fd::OwnedFd>,
}

impl Hostile {
    /// And the honest receiver, which takes up to `limit` bytes.
    fn new(ring_bytes: u32, limit: usize) -> (Hostile, Halves) {
        let (one, other) = pair(&Config { ring_bytes, ..Config::default() }).unwrap();
        let mut descriptors = Vec::from(one.into_descriptors());
        let region = descriptors.remove(0);
        let mut honest = other.open().unwrap();
        honest.1.set_message_limit(limit);
        (Hostile { region, at: 0, _bells: descriptors }, honest)
    }

    fn put(&mut self, kind: u64, length: usize) {
        let word = layout::record_word(kind, length, self.at);
        let place = layout::HEADER_BYTES as u64 + self.at;
        rustix::io::pwrite(self.region.as_fd(), &word.to_le_bytes(), place).unwrap();
        self.at += layout::record_bytes(length) as u64;
    }
}

#[test]
fn pieces_beyond_the_limit_close_the_channel_by_name() {
    let (mut hostile, (_sender, mut receiver)) = Hostile::new(1 << 20, 600_000);
    hostile.put(layout::RECORD_FIRST, 400_000);
    hostile.put(layout::RECORD_NEXT, 200_000);
    assert_eq!(receiver.try_receive(&mut Vec::new()).unwrap(), None, "just within");
    hostile.put(layout::RECORD_LAST, 1);
    let error = receiver.try_receive(&mut Vec::new()).unwrap_err();
    assert!(matches!(error, ReceiveError::Corrupt(Violation::Message { limit: 600_000, .. })), "{error:?}");
    assert!(receiver.is_closed());

    // Without a limit that was said, what one record takes is the limit.
    let (mut hostile, (_sender, mut receiver)) = Hostile::new(RING_BYTES, 0);
    hostile.put(layout::RECORD_FIRST, 1000);
    hostile.put(layout::RECORD_LAST, 1041);
    let error = receiver.try_receive(&mut Vec::new()).unwrap_err();
    assert!(matches!(error, ReceiveError::Corrupt(Violation::Message { limit: 2040, .. })), "{error:?}");
}

#[test]
fn pieces_of_nothing_close_the_channel_by_name() {
    for (kinds, length) in [
        (&[layout::RECORD_NEXT][..], 8),
        (&[layout::RECORD_LAST], 8),
        (&[layout::RECORD_FIRST], 0),
        (&[layout::RECORD_FIRST, layout::RECORD_LAST, layout::RECORD_NEXT], 8),
        (&[layout::RECORD_FIRST, layout::RECORD_MESSAGE, layout::RECORD_LAST], 8),
    ] {
        let (mut hostile, (_sender, mut receiver)) = Hostile::new(RING_BYTES, LIMIT);
        for kind in kinds {
            hostile.put(*kind, length);
        }
        let mut taken = 0;
        let error = loop {
            match receiver.try_receive(&mut Vec::new()) {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
            assert!(taken < 10, "{kinds:?}");
        };
        assert!(matches!(error, ReceiveError::Corrupt(Violation::Piece { .. })), "{kinds:?}: {error:?}");
    }
}

/// Each look takes one of them, so a deadline is looked at in between, and none of them stays in
/// memory.
#[test]
fn messages_that_are_begun_and_never_ended_come_to_nothing() {
    let (mut hostile, (_sender, mut receiver)) = Hostile::new(64 << 10, LIMIT);
    for _ in 0..1000 {
        hostile.put(layout::RECORD_FIRST, 8);
    }
    hostile.put(layout::RECORD_MESSAGE, 5);
    for _ in 0..2000 {
        if let Some(length) = receiver.try_receive(&mut Vec::new()).unwrap() {
            assert_eq!(length, 5);
            return;
        }
        assert!(!receiver.prepare_wait(), "there is more");
    }
    panic!("the whole message did not come");
}

/// A hostile receiver's limit: the sender wastes its time until the deadline, and that is all.
#[test]
fn a_limit_that_nobody_keeps_costs_a_deadline() {
    let (one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let theirs = other.into_descriptors();
    let (mut sender, _receiver) = one.open().unwrap();
    let word = layout::OFFSET_CONTROLS + layout::CONTROL_MESSAGE_LIMIT;
    let [.., region] = &theirs;
    rustix::io::pwrite(region, &u64::MAX.to_le_bytes(), word as u64).unwrap();
    assert_eq!(sender.message_limit(), usize::MAX);
    let deadline = Instant::now() + Duration::from_millis(10);
    let error = sender.send(&vec![7; 10 << 20], Some(deadline)).unwrap_err();
    assert!(matches!(error, SendError::TimedOut), "{error}");
    rustix::io::pwrite(region, &1_u64.to_le_bytes(), word as u64).unwrap();
    assert_eq!(sender.message_limit(), sender.max_message());
    drop(End::from_descriptors(theirs.into()));
}
