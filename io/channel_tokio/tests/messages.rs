//! Messages between tasks: waits, cancellation, the end.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, End, ReceiveError, SendError, pair};
use channel_tokio::{AsyncReceiver, AsyncSender};

/// Long enough for a machine under load; what is tested is that none of it is needed.
const TIMEOUT: Duration = Duration::from_secs(30);

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, work).await.expect("it hangs") })
}

fn ends() -> (End, End) {
    pair(&Config { ring_bytes: 4096, ..Config::default() }).unwrap()
}

fn open() -> ((AsyncSender, AsyncReceiver), (AsyncSender, AsyncReceiver)) {
    let (one, other) = ends();
    (channel_tokio::open(one).unwrap(), channel_tokio::open(other).unwrap())
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

#[test]
fn tasks_of_one_thread_talk_to_each_other() {
    run(async {
        let ((mut send_1, mut receive_1), (mut send_2, mut receive_2)) = open();
        let server = async move {
            let mut question = Vec::new();
            while receive_2.receive(&mut question).await.is_ok() {
                send_2.send(&question).await.unwrap();
            }
        };
        let client = async move {
            let mut answer = Vec::new();
            for number in 0..5000_u64 {
                send_1.send(&number.to_le_bytes()).await.unwrap();
                let length = receive_1.receive(&mut answer).await.unwrap();
                assert_eq!((length, &answer[..]), (8, &number.to_le_bytes()[..]));
            }
        };
        tokio::join!(server, client);
    });
}

#[test]
fn a_full_channel_holds_the_sender_back_and_lets_others_run() {
    run(async {
        let ((mut sender, _unused), (_quiet, mut receiver)) = open();
        let sent = AtomicU64::new(0);
        let sending = async {
            for number in 0..2000_u64 {
                sender.send(&[number as u8; 500]).await.unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
            }
        };
        let receiving = async {
            // Nobody receives: the sender comes as far as the ring does, and this task runs
            // nevertheless.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            let so_far = sent.load(Ordering::Relaxed);
            assert!((1..=8).contains(&so_far), "{so_far}");
            let mut message = Vec::new();
            for number in 0..2000_u64 {
                receiver.receive(&mut message).await.unwrap();
                assert_eq!(message, [number as u8; 500]);
            }
        };
        tokio::join!(sending, receiving);
    });
}

#[test]
fn the_other_end_need_not_know_tokio() {
    const MESSAGES: u64 = 20_000;
    let (one, other) = ends();
    let thread = thread::spawn(move || {
        let (mut sender, mut receiver) = other.open().unwrap();
        let mut message = Vec::new();
        for number in 0..MESSAGES {
            receiver.receive(&mut message, soon()).unwrap();
            assert_eq!(message, number.to_le_bytes());
            sender.send(&message, soon()).unwrap();
        }
        (sender, receiver)
    });
    run(async {
        let (mut sender, mut receiver) = channel_tokio::open(one).unwrap();
        let sending = async {
            for number in 0..MESSAGES {
                sender.send(&number.to_le_bytes()).await.unwrap();
            }
        };
        let receiving = async {
            for number in 0..MESSAGES {
                let found = receiver.read(|message| message.array::<8>(0)).await.unwrap();
                assert_eq!(found, Some(number.to_le_bytes()));
            }
        };
        tokio::join!(sending, receiving);
    });
    drop(thread.join().unwrap());
}

/// `select!` drops a future at any point at which it waits; here at nearly every one.
#[test]
fn a_receive_that_is_dropped_has_lost_nothing() {
    const MESSAGES: u64 = 10_000;
    let (one, other) = ends();
    let thread = thread::spawn(move || {
        let (mut sender, receiver) = other.open().unwrap();
        for number in 0..MESSAGES {
            sender.send(&number.to_le_bytes(), soon()).unwrap();
            if number % 7 == 0 {
                thread::yield_now();
            }
        }
        (sender, receiver)
    });
    let dropped = run(async {
        let (_sender, mut receiver) = channel_tokio::open(one).unwrap();
        let (mut number, mut dropped, mut message) = (0, 0_u64, Vec::new());
        while number < MESSAGES {
            tokio::select! {
                biased;
                received = receiver.receive(&mut message) => {
                    received.unwrap();
                    assert_eq!(message, u64::to_le_bytes(number));
                    number += 1;
                }
                () = tokio::task::yield_now() => dropped += 1,
            }
        }
        dropped
    });
    println!("{dropped} receives were dropped");
    drop(thread.join().unwrap());
}

/// A send that is dropped has sent nothing, and is done again: each message comes once. Large ones
/// go in pieces, so that they are dropped in the midst of them.
#[test]
fn a_send_that_is_dropped_has_sent_nothing() {
    const MESSAGES: u64 = 2000;
    let message = |number: u64| vec![number as u8; if number.is_multiple_of(3) { 20_000 } else { 300 }];
    let (one, other) = ends();
    let mut their_halves = other.open().unwrap();
    their_halves.1.set_message_limit(1 << 20);
    let thread = thread::spawn(move || {
        let mut got = Vec::new();
        for number in 0..MESSAGES {
            their_halves.1.receive(&mut got, soon()).unwrap();
            assert_eq!(got, message(number), "message {number}");
        }
        assert!(matches!(their_halves.1.receive(&mut got, soon()), Err(ReceiveError::Closed)));
    });
    let dropped = run(async {
        let (mut sender, _receiver) = channel_tokio::open(one).unwrap();
        let (mut number, mut dropped) = (0, 0_u64);
        while number < MESSAGES {
            let bytes = message(number);
            // More and more patience: a large message needs some to go at all.
            let mut patience = 0;
            loop {
                let give_up = async {
                    for _ in 0..patience {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::select! {
                    biased;
                    sent = sender.send(&bytes) => {
                        sent.unwrap();
                        break;
                    }
                    () = give_up => dropped += 1,
                }
                patience = patience * 2 + 1;
            }
            number += 1;
        }
        dropped
    });
    println!("{dropped} sends were dropped");
    assert!(dropped > 0);
    thread.join().unwrap();
}

#[test]
fn a_timeout_ends_a_wait_and_the_channel_goes_on() {
    run(async {
        let ((mut sender, _unused), (_quiet, mut receiver)) = open();
        let mut message = Vec::new();
        let short = Duration::from_millis(5);
        assert!(tokio::time::timeout(short, receiver.receive(&mut message)).await.is_err());
        while tokio::time::timeout(short, sender.send(&[1; 500])).await.is_ok() {}
        assert_eq!(receiver.receive(&mut message).await.unwrap(), 500);
        sender.send(b"x").await.unwrap();
    });
}

#[test]
fn a_close_there_is_the_end_after_what_was_sent() {
    run(async {
        let ((mut sender, unused), (mut peer_sender, mut peer_receiver)) = open();
        sender.send(b"last").await.unwrap();
        drop((sender, unused));
        let mut message = Vec::new();
        assert_eq!(peer_receiver.receive(&mut message).await.unwrap(), 4);
        assert!(matches!(peer_receiver.receive(&mut message).await, Err(ReceiveError::Closed)));
        assert!(matches!(peer_sender.send(b"x").await, Err(SendError::Closed)));
    });
}

#[test]
fn a_close_wakes_whoever_waits_there_and_here() {
    run(async {
        let ((mut sender, mut receiver), (peer_sender, mut peer_receiver)) = open();
        while tokio::time::timeout(Duration::from_millis(5), sender.send(&[1; 500])).await.is_ok() {}
        let closer = sender.closer();
        let (mut here, mut there) = (Vec::new(), Vec::new());
        let close = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            closer.close();
        };
        let drained = async {
            loop {
                if let Err(error) = peer_receiver.receive(&mut there).await {
                    break error;
                }
            }
        };
        // The receiver here waits for a message that never comes; the peer drains the ring and then
        // waits.
        let (received, drained, ()) = tokio::join!(receiver.receive(&mut here), drained, close);
        assert!(matches!(received, Err(ReceiveError::Closed)));
        assert!(matches!(drained, ReceiveError::Closed));
        assert!(matches!(sender.send(b"x").await, Err(SendError::Closed)));
        drop(peer_sender);
    });
}

#[test]
fn a_sender_that_waits_for_room_is_told_of_the_end() {
    for by_death in [false, true] {
        run(async {
            let (one, other) = ends();
            let (mut sender, _receiver) = channel_tokio::open(one).unwrap();
            // Unopened descriptors that go away are what a kill leaves.
            let (mut opened, mut unopened) = (None, None);
            if by_death {
                unopened = Some(other)
            } else {
                opened = Some(channel_tokio::open(other).unwrap())
            };
            let sending = async { while sender.send(&[1; 500]).await.is_ok() {} };
            let ending = async {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                drop((opened.take(), unopened.take()));
            };
            tokio::join!(sending, ending);
            assert!(matches!(sender.send(b"x").await, Err(SendError::Closed)));
        });
    }
}

/// A peer that sends all the time: the receiving task leaves the thread to others now and then.
#[test]
fn a_flood_does_not_keep_the_thread() {
    let (one, other) = ends();
    let thread = thread::spawn(move || {
        let (mut sender, _receiver) = other.open().unwrap();
        while sender.send(b"flood", soon()).is_ok() {}
    });
    run(async {
        let (_sender, mut receiver) = channel_tokio::open(one).unwrap();
        let receiving = async {
            let mut message = Vec::new();
            loop {
                receiver.receive(&mut message).await.unwrap();
            }
        };
        let other_work = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = receiving => unreachable!("it goes on for ever"),
            () = other_work => {}
        }
    });
    thread.join().unwrap();
}

/// A peer that rings all the time and sends nothing.
#[test]
fn rings_for_nothing_do_not_keep_the_thread() {
    let (one, other) = ends();
    let bells = other.into_descriptors();
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let end = std::sync::Arc::clone(&ended);
    let thread = thread::spawn(move || {
        while !end.load(Ordering::Relaxed) {
            // The ringers of the second end: the peer's data and room.
            sys::doorbell::ring(&bells[1]).unwrap();
            sys::doorbell::ring(&bells[3]).unwrap();
        }
    });
    run(async {
        let (_sender, mut receiver) = channel_tokio::open(one).unwrap();
        let mut message = Vec::new();
        let other_work = async {
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            received = receiver.receive(&mut message) => panic!("{received:?}"),
            () = other_work => {}
        }
    });
    ended.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}

/// The halves may be used without tokio afterwards, and the runtime is left with nothing to watch.
#[test]
fn halves_are_given_back() {
    let (one, other) = ends();
    let (mut sender, mut receiver) = other.open().unwrap();
    let (mut async_sender, mut async_receiver) = run(async {
        let (mut sender, mut receiver) = channel_tokio::open(one).unwrap();
        let mut nothing = Vec::new();
        let wait = tokio::time::timeout(Duration::from_millis(5), receiver.receive(&mut nothing));
        assert!(wait.await.is_err());
        sender.send(b"from a task").await.unwrap();
        (sender.into_inner(), receiver.into_inner())
    });
    let mut got = Vec::new();
    receiver.receive(&mut got, soon()).unwrap();
    assert_eq!(got, b"from a task");
    async_sender.send(b"from a thread", soon()).unwrap();
    receiver.receive(&mut got, soon()).unwrap();
    sender.send(b"back", soon()).unwrap();
    assert_eq!(async_receiver.receive(&mut got, soon()).unwrap(), 4);
}
