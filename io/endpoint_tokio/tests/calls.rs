//! Calls between tasks, and with those who block: waits, times, deadlocks, ends.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod stage;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use endpoint::{Content, Failed, From, NoPeer, ReceiveError, RequestError, SendError};
use stage::{ONE, OTHER, TIMEOUT, asked, pair, run, soon, trio};

#[test]
fn tasks_of_one_thread_ask_each_other() {
    run(async {
        let (mut one, mut other) = pair();
        let serving = async {
            let mut question = Vec::new();
            for _ in 0..3000 {
                let received = other.receive(&From::Any, &mut question, soon()).await.unwrap();
                other.reply(&asked(&received), 5, &question).unwrap();
            }
        };
        let asking = async {
            let mut answer = Vec::new();
            for number in 0..3000_u64 {
                let payload = number.to_le_bytes();
                let reply = one.send_receive(OTHER, 1, &payload, &mut answer, 8, soon()).await.unwrap();
                assert_eq!((reply.source, reply.tag, &answer[..]), (OTHER, 5, &payload[..]));
            }
        };
        tokio::join!(serving, asking);
    });
}

#[test]
fn a_rendezvous_with_a_program_that_blocks() {
    run(async {
        let (one, other) = stage::blocking_pair();
        let mut one = endpoint_tokio::Endpoint::new(one).unwrap();
        let receiving = std::thread::spawn(move || {
            let (mut other, mut payload) = (other, Vec::new());
            for number in 0..500_u32 {
                let received = other.receive(&From::One(ONE), &mut payload, soon()).unwrap();
                assert_eq!(received.content, Content::Message { tag: number });
            }
        });
        for number in 0..500 {
            one.send(OTHER, number, b"x", soon()).await.unwrap();
        }
        receiving.join().unwrap();
    });
}

#[test]
fn a_pair_without_room_holds_the_sender_back_and_lets_others_run() {
    run(async {
        let (mut one, mut other) = pair();
        let sent = AtomicU64::new(0);
        let sending = async {
            for number in 0..2000_u32 {
                one.send_buffered(OTHER, number, &[7; 400], soon()).await.unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
            }
        };
        let receiving = async {
            // Nobody receives: the sender comes as far as there is room, and this task runs
            // nevertheless.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            let so_far = sent.load(Ordering::Relaxed);
            assert!((1..2000).contains(&so_far), "{so_far}");
            let mut payload = Vec::new();
            for number in 0..2000_u32 {
                let received = other.receive(&From::Any, &mut payload, soon()).await.unwrap();
                assert_eq!(received.content, Content::Message { tag: number });
            }
        };
        tokio::join!(sending, receiving);
    });
}

#[test]
fn times_that_are_over_end_each_call() {
    run(async {
        let (mut one, mut other) = pair();
        let mut payload = Vec::new();
        let shortly = || Some(Instant::now() + Duration::from_millis(20));
        let sent = one.send(OTHER, 0, b"x", shortly()).await;
        assert!(matches!(sent, Err(Failed::Call(SendError::TimedOut(OTHER)))), "{sent:?}");
        let received = one.receive(&From::Any, &mut payload, shortly()).await;
        assert!(matches!(received, Err(Failed::Call(ReceiveError::TimedOut))), "{received:?}");
        let replied = one.send_receive(OTHER, 0, b"x", &mut payload, 8, shortly()).await;
        let expected = RequestError::TimedOut { to: OTHER, received: false };
        assert!(matches!(&replied, Err(Failed::Call(why)) if *why == expected), "{replied:?}");
        // What was withdrawn is not received.
        let received = other.receive(&From::Any, &mut payload, Some(Instant::now())).await;
        assert!(matches!(received, Err(Failed::Call(ReceiveError::TimedOut))), "{received:?}");
    });
}

#[test]
fn a_try_finds_what_has_come_since_the_last_wait() {
    run(async {
        let (mut one, mut other) = pair();
        let mut payload = Vec::new();
        for round in 0..100 {
            let waited = other.receive(&From::Any, &mut payload, Some(Instant::now())).await;
            assert!(matches!(waited, Err(Failed::Call(ReceiveError::TimedOut))), "{round}: {waited:?}");
            one.send_buffered(OTHER, round, b"", soon()).await.unwrap();
            let received = other.receive(&From::Any, &mut payload, Some(Instant::now())).await.unwrap();
            assert_eq!(received.content, Content::Message { tag: round });
        }
    });
}

#[test]
fn tasks_that_wait_for_each_other_are_told() {
    run(async {
        let (mut one, mut other) = pair();
        let (mut here, mut there) = (Vec::new(), Vec::new());
        // One of both is told, and its future ends; then the other's peer receives what it waits
        // for.
        let first = async {
            match one.send_receive(OTHER, 0, b"one", &mut here, 8, soon()).await {
                Err(Failed::Call(RequestError::Deadlock { to: OTHER, received: false })) => {
                    let received = one.receive(&From::One(OTHER), &mut here, soon()).await.unwrap();
                    one.reply(&asked(&received), 0, b"").unwrap();
                    true
                }
                replied => {
                    replied.unwrap();
                    false
                }
            }
        };
        let second = async {
            match other.send_receive(ONE, 0, b"other", &mut there, 8, soon()).await {
                Err(Failed::Call(RequestError::Deadlock { to: ONE, received: false })) => {
                    let received = other.receive(&From::One(ONE), &mut there, soon()).await.unwrap();
                    other.reply(&asked(&received), 0, b"").unwrap();
                    true
                }
                replied => {
                    replied.unwrap();
                    false
                }
            }
        };
        let (first, second) = tokio::join!(first, second);
        assert!(first != second, "one of both, and one only");
    });
}

#[test]
fn the_end_of_a_peer_ends_what_waits_for_it() {
    run(async {
        for round in 0..3 {
            let (mut one, mut other) = pair();
            let mut payload = Vec::new();
            other.send_buffered(ONE, 9, b"last", soon()).await.unwrap();
            let ending = async {
                tokio::task::yield_now().await;
                drop(other);
            };
            let waiting = async {
                match round {
                    0 => one.send(OTHER, 0, b"x", soon()).await.map_err(|why| why.to_string()),
                    1 => {
                        let replied = one.send_receive(OTHER, 0, b"x", &mut payload, 8, soon()).await;
                        replied.map(|_| ()).map_err(|why| why.to_string())
                    }
                    _ => {
                        let received = one.receive(&From::One(OTHER), &mut payload, soon()).await.unwrap();
                        assert_eq!(received.content, Content::Message { tag: 9 });
                        let received = one.receive(&From::One(OTHER), &mut payload, soon()).await;
                        received.map(|_| ()).map_err(|why| why.to_string())
                    }
                }
            };
            let (waited, ()) = tokio::join!(waiting, ending);
            assert_eq!(waited.unwrap_err(), NoPeer::Dead(OTHER).to_string());
        }
    });
}

/// Waiting for one peer, the other's doorbell is heard once, and does not keep the task awake.
#[test]
fn a_peer_that_floods_keeps_nobody_from_running() {
    run(async {
        let (mut server, mut asker, mut flooder) = trio();
        let rounds = AtomicU64::new(0);
        let flooding = async {
            let mut sent = 0_u32;
            loop {
                flooder.send_buffered(stage::SERVER, sent, &[0; 100], None).await.unwrap();
                sent += 1;
                if sent.is_multiple_of(16) {
                    tokio::task::yield_now().await;
                }
            }
        };
        let serving = async {
            let mut payload = Vec::new();
            loop {
                let received = server.receive(&From::Any, &mut payload, soon()).await.unwrap();
                if let Content::Request { asked, .. } = received.content {
                    server.reply(&asked, 0, &payload).unwrap();
                }
            }
        };
        let asking = async {
            let mut answer = Vec::new();
            for _ in 0..200 {
                asker.send_receive(stage::SERVER, 0, b"?", &mut answer, 8, soon()).await.unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        };
        tokio::select! {
            () = flooding => {}
            () = serving => {}
            () = asking => {}
        }
        assert_eq!(rounds.load(Ordering::Relaxed), 200);
    });
}

#[test]
fn an_endpoint_goes_back_to_those_who_block() {
    run(async {
        let (mut one, other) = pair();
        let mut payload = Vec::new();
        one.send_buffered(OTHER, 1, b"x", soon()).await.unwrap();
        assert_eq!(one.get_ref().address(), ONE);
        let mut other = other.into_inner();
        let received = other.receive(&From::Any, &mut payload, Some(Instant::now() + TIMEOUT)).unwrap();
        assert_eq!((received.source, &payload[..]), (ONE, &b"x"[..]));
    });
}

/// Its futures go from thread to thread.
#[test]
fn tasks_on_several_threads_ask_each_other() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut server, one, other) = trio();
        let serving = tokio::spawn(async move {
            let mut payload = Vec::new();
            for _ in 0..2000 {
                let received = server.receive(&From::Any, &mut payload, soon()).await.unwrap();
                server.reply(&asked(&received), 0, &payload).unwrap();
            }
        });
        let mut asking = tokio::task::JoinSet::new();
        for mut asker in [one, other] {
            asking.spawn(async move {
                let mut answer = Vec::new();
                for number in 0..1000_u64 {
                    let question = number.to_le_bytes();
                    let asked = asker.send_receive(stage::SERVER, 0, &question, &mut answer, 8, soon());
                    asked.await.unwrap();
                    assert_eq!(answer, question);
                }
            });
        }
        while let Some(done) = asking.join_next().await {
            done.unwrap();
        }
        serving.await.unwrap();
    });
}
