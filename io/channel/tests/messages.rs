//! The view of two honest ends: messages whole, once, in order; waits that end when they should.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, ReceiveError, Receiver, SendError, Sender, SpinPolicy, pair};

type Halves = (Sender, Receiver);

fn open(ring_bytes: u32) -> (Halves, Halves) {
    let (one, other) = pair(&Config { ring_bytes, ..Config::default() }).unwrap();
    (one.open().unwrap(), other.open().unwrap())
}

/// For what should happen at once; long enough for a machine under load.
fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

#[test]
fn both_directions_carry_messages() {
    let ((mut send_1, mut receive_1), (mut send_2, mut receive_2)) = open(4096);
    let mut got = vec![9; 100];
    send_1.send(b"to two", None).unwrap();
    send_2.send(b"to one", None).unwrap();
    assert_eq!(receive_2.receive(&mut got, soon()).unwrap(), 6);
    assert_eq!(got, b"to two");
    assert_eq!(receive_1.receive(&mut got, soon()).unwrap(), 6);
    assert_eq!(got, b"to one");
    assert_eq!(receive_1.try_receive(&mut got).unwrap(), None);
    assert_eq!(got, b"to one", "nothing came, nothing changes");
}

#[test]
fn an_empty_message_is_a_message() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(4096);
    let mut got = Vec::new();
    sender.send(b"", None).unwrap();
    assert_eq!(receiver.try_receive(&mut got).unwrap(), Some(0));
    assert_eq!(receiver.try_receive(&mut got).unwrap(), None);
}

#[test]
fn the_longest_message_fits_and_a_longer_one_is_refused() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(4096);
    let longest = vec![7; sender.max_message()];
    let mut got = Vec::new();
    for _ in 0..10 {
        sender.try_send(&longest).unwrap();
        assert_eq!(receiver.try_receive(&mut got).unwrap(), Some(longest.len()));
        assert_eq!(got, longest);
        assert_eq!(receiver.try_receive(&mut got).unwrap(), None);
    }
    let error = sender.try_send(&vec![7; longest.len() + 1]).unwrap_err();
    assert!(matches!(error, SendError::TooLong { length: 2041, max: 2040 }), "{error}");
    assert_eq!(sender.max_message(), receiver.max_message());
}

#[test]
fn a_message_is_put_together_from_parts_and_in_place() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(4096);
    let mut got = Vec::new();
    sender.send_vectored(&[b"head", b"", b"and payload"], None).unwrap();
    receiver.receive(&mut got, soon()).unwrap();
    assert_eq!(got, b"headand payload");

    let mut loan = sender.loan(8, None).unwrap();
    assert!(loan.write_at(6, b"gh") && loan.write_at(0, b"abcdef"));
    assert!(!loan.write_at(7, b"xy") && !loan.write_at(usize::MAX, b"x"), "beyond the end");
    loan.commit().unwrap();
    let read = receiver
        .read(soon(), |message| {
            assert!(message.array::<9>(0).is_none() && message.array::<2>(7).is_none());
            (message.len(), message.array::<2>(6))
        })
        .unwrap();
    assert_eq!(read, (8, Some(*b"gh")));

    {
        let mut loan = sender.loan(4, None).unwrap();
        assert_eq!(loan.write(b"abc").unwrap() + loan.write(b"defg").unwrap(), 4);
        assert_eq!(loan.write(b"x").unwrap(), 0);
    }
    assert_eq!(receiver.try_receive(&mut got).unwrap(), None, "never committed");
}

#[test]
fn a_full_channel_says_so_and_a_deadline_ends_the_wait() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(4096);
    let mut sent = 0;
    while sender.try_send(&[1; 500]).is_ok() {
        sent += 1;
    }
    assert!(matches!(sender.try_send(&[1; 500]), Err(SendError::Full)));
    let deadline = Instant::now() + Duration::from_millis(20);
    assert!(matches!(sender.send(&[1; 500], Some(deadline)), Err(SendError::TimedOut)));
    assert!(Instant::now() >= deadline);
    let mut got = Vec::new();
    for _ in 0..sent {
        assert!(receiver.try_receive(&mut got).unwrap().is_some());
    }
    let deadline = Instant::now() + Duration::from_millis(20);
    assert!(matches!(receiver.receive(&mut got, Some(deadline)), Err(ReceiveError::TimedOut)));
    assert!(Instant::now() >= deadline);
    assert!(matches!(receiver.receive(&mut got, Some(Instant::now())), Err(ReceiveError::TimedOut)));
    sender.try_send(&[1; 500]).unwrap();
}

/// Writes a message of the stress run: its number, then bytes that follow from it.
fn stress_message(number: u64, into: &mut Vec<u8>) {
    into.clear();
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let length = (state >> 57) as usize;
    into.extend_from_slice(&number.to_le_bytes());
    for _ in 0..length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        into.push(state as u8);
    }
}

fn stress(messages: u64, ring_bytes: u32, policy: SpinPolicy) {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(ring_bytes);
    sender.set_spin_policy(policy);
    receiver.set_spin_policy(policy);
    let end = Instant::now() + Duration::from_secs(120);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut message = Vec::new();
            for number in 0..messages {
                stress_message(number, &mut message);
                sender.send(&message, Some(end)).unwrap();
            }
        });
        let (mut got, mut expected) = (Vec::new(), Vec::new());
        for number in 0..messages {
            receiver.receive(&mut got, Some(end)).unwrap();
            stress_message(number, &mut expected);
            assert_eq!(got, expected, "message {number}");
        }
        assert!(matches!(receiver.receive(&mut got, Some(end)), Err(ReceiveError::Closed)));
    });
}

#[test]
fn a_million_messages_arrive() {
    stress(1_000_000, 64 << 10, SpinPolicy::Adaptive);
}

/// The smallest ring and no spinning: both sides sleep all the time.
#[test]
fn messages_arrive_between_sleepers() {
    stress(100_000, 4096, SpinPolicy::Never);
}

#[test]
fn a_question_and_its_answer_take_turns_asleep() {
    let ((mut send_1, mut receive_1), (mut send_2, mut receive_2)) = open(4096);
    receive_1.set_spin_policy(SpinPolicy::Never);
    receive_2.set_spin_policy(SpinPolicy::Never);
    let server = thread::spawn(move || {
        let mut question = Vec::new();
        while receive_2.receive(&mut question, soon()).is_ok() {
            send_2.send(&question, soon()).unwrap();
        }
    });
    let mut answer = Vec::new();
    for number in 0..20_000_u64 {
        send_1.send(&number.to_le_bytes(), soon()).unwrap();
        receive_1.receive(&mut answer, soon()).unwrap();
        assert_eq!(answer, number.to_le_bytes());
    }
    drop(send_1);
    server.join().unwrap();
}

#[test]
fn an_event_loop_is_woken_for_each_message() {
    let ((mut sender, _unused), (_quiet, mut receiver)) = open(4096);
    const MESSAGES: u64 = 20_000;
    let sending = thread::spawn(move || {
        for number in 0..MESSAGES {
            sender.send(&number.to_le_bytes(), soon()).unwrap();
        }
        sender
    });
    let (mut got, mut number) = (Vec::new(), 0_u64);
    while number < MESSAGES {
        while receiver.try_receive(&mut got).unwrap().is_some() {
            assert_eq!(got, number.to_le_bytes());
            number += 1;
        }
        if number < MESSAGES && receiver.prepare_wait() {
            let watched = receiver.descriptors();
            sys::doorbell::wait(watched.doorbell, watched.lifeline, Some(20_000_000_000)).unwrap();
            receiver.cancel_wait();
            receiver.drain_doorbell().unwrap();
        }
    }
    drop(sending.join().unwrap());
}

#[test]
fn the_length_of_the_next_message_is_known_before_it_is_taken() {
    let (one, other) = pair(&Config::default()).unwrap();
    let ((mut sender, _receiver), (_sender, mut receiver)) = (one.open().unwrap(), other.open().unwrap());
    assert_eq!(receiver.try_next_length().unwrap(), None);
    sender.send(b"hello", None).unwrap();
    sender.send(b"", None).unwrap();
    assert_eq!(receiver.next_length(None).unwrap(), 5);
    assert_eq!(receiver.try_next_length().unwrap(), Some(5), "it stays");
    let mut message = Vec::new();
    receiver.receive(&mut message, None).unwrap();
    assert_eq!(message, b"hello");
    assert_eq!(receiver.try_next_length().unwrap(), Some(0));
    receiver.receive(&mut message, None).unwrap();
    drop(sender);
    assert!(matches!(receiver.next_length(None), Err(ReceiveError::Closed)));
}
