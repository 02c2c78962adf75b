//! Futures that are dropped, at each of their awaits, waiting and woken: nothing is lost, and
//! nothing is doubled.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod stage;

use std::collections::BTreeSet;

use endpoint::{Content, Failed, From, ReplyError};
use stage::{Drop, ONE, OTHER, asked, or_drop, pair, run, soon};

const CALLS: u32 = 2000;
/// Nobody sends that.
const END: u32 = u32::MAX;

#[test]
fn a_receive_that_is_dropped_has_received_nothing() {
    run(async {
        let (mut one, mut other) = pair();
        let sending = async {
            for number in 0..CALLS {
                // Some wait to be received, some do not, and some come in a crowd.
                match number % 5 {
                    0 => one.send(OTHER, number, b"met", soon()).await.unwrap(),
                    1 => {
                        tokio::task::yield_now().await;
                        one.send_buffered(OTHER, number, b"left", soon()).await.unwrap();
                    }
                    _ => one.send_buffered(OTHER, number, b"left", soon()).await.unwrap(),
                }
            }
            one.send(OTHER, END, b"", soon()).await.unwrap();
        };
        let receiving = async {
            let (mut payload, mut expected, mut dropped) = (Vec::new(), 0, 0);
            for turn in 0.. {
                let receive = other.receive(&From::Any, &mut payload, soon());
                match or_drop(Drop::number(turn), receive).await {
                    None => {
                        dropped += 1;
                        tokio::task::yield_now().await;
                    }
                    Some(received) => {
                        let Content::Message { tag } = received.unwrap().content else {
                            panic!("no message")
                        };
                        if tag == END {
                            break;
                        }
                        assert_eq!(tag, expected, "each once, in order");
                        expected += 1;
                    }
                }
            }
            assert_eq!(expected, CALLS);
            dropped
        };
        let ((), dropped) = tokio::join!(sending, receiving);
        assert!(dropped > 0, "no future was dropped");
    });
}

#[test]
fn a_message_that_is_dropped_was_received_once_or_never_is() {
    for is_buffered in [false, true] {
        let (sent, received, dropped) = run(async {
            let (mut one, mut other) = pair();
            let sending = async {
                let (mut sent, mut dropped) = (Vec::new(), 0);
                for number in 0..CALLS {
                    let done = if is_buffered {
                        or_drop(Drop::number(number), one.send_buffered(OTHER, number, &[1; 600], soon()))
                            .await
                    } else {
                        or_drop(Drop::number(number), one.send(OTHER, number, b"met", soon())).await
                    };
                    match done {
                        Some(done) => {
                            done.unwrap();
                            sent.push(number);
                        }
                        None => {
                            dropped += 1;
                            tokio::task::yield_now().await;
                        }
                    }
                }
                one.send(OTHER, END, b"", soon()).await.unwrap();
                (sent, dropped)
            };
            let receiving = async {
                let (mut payload, mut all) = (Vec::new(), Vec::new());
                loop {
                    let received = other.receive(&From::Any, &mut payload, soon()).await.unwrap();
                    let Content::Message { tag } = received.content else { panic!("no message") };
                    if tag == END {
                        return all;
                    }
                    all.push(tag);
                    if tag % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            };
            let ((sent, dropped), received) = tokio::join!(sending, receiving);
            (sent, received, dropped)
        });
        assert!(received.is_sorted_by(|one, next| one < next), "each once at most, in order");
        let all: BTreeSet<u32> = received.into_iter().collect();
        assert!(sent.iter().all(|number| all.contains(number)), "whatever was said to be sent arrives");
        assert!(dropped > 0, "no future was dropped");
        if is_buffered {
            assert_eq!(all.len(), sent.len(), "of what needs no rendezvous, what was dropped was not sent");
        }
    }
}

#[test]
fn a_request_that_is_dropped_leaves_the_next_one_its_own_reply() {
    run(async {
        let (mut one, mut other) = pair();
        let serving = async {
            let (mut question, mut late) = (Vec::new(), 0);
            loop {
                let received = other.receive(&From::One(ONE), &mut question, soon()).await.unwrap();
                if received.content == (Content::Message { tag: END }) {
                    return late;
                }
                let asked = asked(&received);
                if question[0] % 3 == 0 {
                    tokio::task::yield_now().await;
                }
                match other.reply(&asked, 0, &question) {
                    Ok(()) => {}
                    Err(Failed::Call(ReplyError::Stale(ONE))) => late += 1,
                    Err(why) => panic!("{why}"),
                }
            }
        };
        let asking = async {
            let (mut answer, mut dropped, mut answered) = (Vec::new(), 0, 0);
            for number in 0..CALLS {
                let question = number.to_le_bytes();
                let request = one.send_receive(OTHER, 0, &question, &mut answer, 8, soon());
                match or_drop(Drop::number(number), request).await {
                    None => dropped += 1,
                    Some(replied) => {
                        replied.unwrap();
                        answered += 1;
                        assert_eq!(answer, question, "the reply to another request");
                    }
                }
            }
            one.send(OTHER, END, b"", soon()).await.unwrap();
            (dropped, answered)
        };
        let (late, (dropped, answered)) = tokio::join!(serving, asking);
        assert!(dropped > 0 && answered > 0 && late <= dropped, "{dropped} {answered} {late}");
    });
}

/// A future that is dropped does not leave its peer looking for a deadlock that is none.
#[test]
fn waits_that_were_dropped_are_no_part_of_a_cycle() {
    run(async {
        let (mut one, mut other) = pair();
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for turn in 0..40 {
            // Long enough, now and then, that both have begun to look.
            let pause = std::time::Duration::from_millis(turn % 8);
            let first = tokio::time::timeout(pause, one.send_receive(OTHER, 0, b"?", &mut here, 8, soon()));
            let second =
                other.receive(&From::One(ONE), &mut there, Some(std::time::Instant::now() + pause / 2));
            let (_dropped_or_answered, _received_or_late) = tokio::join!(first, second);
            // Now the other one waits for the one, which waits for nobody.
            one.send_buffered(OTHER, 7, b"", soon()).await.unwrap();
            loop {
                let received = other.receive(&From::One(ONE), &mut there, soon()).await.unwrap();
                if received.content == (Content::Message { tag: 7 }) {
                    break;
                }
            }
        }
    });
}
