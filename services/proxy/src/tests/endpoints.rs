//! Pairs of endpoints: every call, over two proxies, with the endpoints that programs have.

use super::*;
use endpoint::{
    Address, Content, Endpoint, Failed, From, NoPeer, Options, ReceiveError, ReplyError, RequestError,
    Rights, SendError,
};
use wire::control::EndpointAddress;

const HERE: Address = Address { slot: 1, generation: 3 };
const THERE: Address = Address { slot: 1 << 20 | 1, generation: 5 };

fn on_wire(Address { slot, generation }: Address) -> EndpointAddress {
    EndpointAddress { slot, generation }
}

fn pair_open(ring_bytes: u32) -> Open {
    Open::Endpoints {
        dc: "shop".into(),
        from: on_wire(HERE),
        name: "camera".into(),
        domain: "eye".into(),
        to: on_wire(THERE),
        ring_bytes,
    }
}

/// An endpoint on each node, which know each other.
async fn met(a: &mut Node, b: &mut Node, config: &Config) -> (Endpoint, Endpoint) {
    let (near, to_a) = channel_pair(config).expect("a channel");
    let (far, to_b) = channel_pair(config).expect("a channel");
    a.id += 1;
    let id = a.id;
    a.say(&Order::Open { id, open: pair_open(config.ring_bytes) }, Some(to_a));
    let Report::Asked { pair, .. } = b.hear().await else { panic!("nothing is asked") };
    b.say(&Order::Accept { pair }, Some(to_b));
    assert_eq!(a.hear().await, Report::Opened { id });
    let mut here = Endpoint::alone(HERE, &Options::default()).expect("an endpoint");
    let mut there = Endpoint::alone(THERE, &Options::default()).expect("an endpoint");
    here.introduce(THERE, Rights::ALL, near).expect("introduced");
    there.introduce(HERE, Rights::ALL, far).expect("introduced");
    (here, there)
}

async fn both() -> (Node, Node, Endpoint, Endpoint) {
    let (mut a, mut b) = joined().await;
    let (here, there) = met(&mut a, &mut b, &Config::default()).await;
    (a, b, here, there)
}

/// Two programs at the same time.
async fn at_once<S: Send + 'static, T: Send + 'static>(
    one: impl FnOnce() -> S + Send + 'static,
    other: impl FnOnce() -> T + Send + 'static,
) -> (S, T) {
    let other = tokio::task::spawn_blocking(other);
    let one = aside(one).await;
    (one, tokio::time::timeout(TIMEOUT, other).await.expect("in time").expect("no panic"))
}

fn in_ms(ms: u64) -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(ms))
}

#[tokio::test]
async fn every_call_is_what_it_is_on_one_node() {
    let (_a, _b, mut here, mut there) = both().await;
    let serve = move || {
        let mut bytes = Vec::new();
        let mut seen = Vec::new();
        let mut over = false;
        // A message may overtake a notice that was set before it.
        while !over || !seen.contains(&(0, 3)) {
            let received = there.receive(&From::Any, &mut bytes, soon()).expect("received");
            assert_eq!(received.source, HERE);
            match received.content {
                Content::Request { tag, asked } => there.reply(&asked, tag + 1, &bytes).expect("it waits"),
                Content::Message { tag: 9 } => over = true,
                Content::Message { tag } => seen.push((tag, bytes.len())),
                Content::Notices(bits) => seen.push((0, usize::try_from(bits).expect("few"))),
            }
        }
        there.send(HERE, 10, b"over", soon()).expect("received");
        (there, seen)
    };
    let call = move || {
        let mut answer = Vec::new();
        for count in 0..200_usize {
            let question = vec![count as u8; count * 61 % 9000];
            let reply = here.send_receive(THERE, 7, &question, &mut answer, 9000, soon()).expect("answered");
            assert!(reply.tag == 8 && reply.source == THERE && answer == question);
        }
        for count in 0..300_u32 {
            here.send_buffered(THERE, 1000 + count, &[1; 3000], soon()).expect("room");
        }
        here.flush().expect("shown");
        here.send(THERE, 5, b"five", soon()).expect("received");
        here.notify(THERE, 3).expect("set");
        here.send(THERE, 9, b"", soon()).expect("received");
        let received = here.receive(&From::One(THERE), &mut answer, soon()).expect("received");
        assert_eq!((received.content, answer.as_slice()), (Content::Message { tag: 10 }, &b"over"[..]));
        here
    };
    let (_here, (_there, seen)) = at_once(call, serve).await;
    let messages: Vec<u32> = seen.iter().map(|(tag, _)| *tag).filter(|tag| *tag >= 1000).collect();
    assert_eq!(messages, (1000..1300).collect::<Vec<u32>>());
    assert!(seen.contains(&(5, 4)) && seen.contains(&(0, 3)), "{seen:?}");
}

#[tokio::test]
async fn a_message_that_was_not_received_in_time_never_is() {
    let (_a, _b, mut here, mut there) = both().await;
    let here = aside(move || {
        for tag in 0..20 {
            let late = here.send(THERE, tag, b"late", in_ms(2 + u64::from(tag)));
            assert!(
                matches!(late, Err(Failed::Call(SendError::TimedOut(THERE) | SendError::Unknown(THERE)))),
                "{late:?}"
            );
            // What was not answered within its time is withdrawn nevertheless: nobody receives
            // meanwhile.
        }
        let mut answer = Vec::new();
        let late = here.send_receive(THERE, 50, b"?", &mut answer, 8, in_ms(20));
        assert!(
            matches!(
                late,
                Err(Failed::Call(RequestError::TimedOut { received: false, .. } | RequestError::Unknown(_)))
            ),
            "{late:?}"
        );
        here.send_buffered(THERE, 99, b"", soon()).expect("room");
        here.flush().expect("shown");
        here
    })
    .await;
    aside(move || {
        let received = there.receive(&From::Any, &mut Vec::new(), soon()).expect("received");
        assert_eq!(received.content, Content::Message { tag: 99 });
    })
    .await;
    drop(here);
}

#[tokio::test]
async fn who_gives_up_a_request_that_was_received_says_so_and_its_reply_is_stale() {
    let (_a, _b, mut here, mut there) = both().await;
    let received = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let late = Arc::clone(&received);
    let serve = move || {
        let came = there.receive(&From::Any, &mut Vec::new(), soon()).expect("received");
        let Content::Request { asked, .. } = came.content else { panic!("no request") };
        received.store(true, std::sync::atomic::Ordering::Release);
        // A notice comes behind what its sender has given up before.
        let came = there.receive(&From::Any, &mut Vec::new(), soon()).expect("received");
        assert_eq!(came.content, Content::Notices(1));
        let stale = there.reply(&asked, 1, b"late");
        assert!(matches!(stale, Err(Failed::Call(ReplyError::Stale(HERE)))), "{stale:?}");
        there
    };
    let call = move || {
        let mut call = endpoint::Request::new(THERE, 1, 8);
        let error = loop {
            let late = late.load(std::sync::atomic::Ordering::Acquire);
            match here.step_request(&mut call, b"?", &mut Vec::new(), late) {
                Ok(endpoint::Step::Pending { .. }) => std::thread::yield_now(),
                Ok(endpoint::Step::Ready(_)) => panic!("nobody has answered"),
                Err(error) => break error,
            }
        };
        // A busy machine may take longer to say it than anybody waits.
        let right = matches!(
            error,
            Failed::Call(RequestError::TimedOut { received: true, .. } | RequestError::Unknown(_))
        );
        assert!(right, "{error:?}");
        here.notify(THERE, 1).expect("set");
        here
    };
    let _both = at_once(call, serve).await;
}

#[tokio::test]
async fn a_call_ends_by_its_time_when_the_link_is_cut_and_says_that_nobody_knows() {
    let (a, _b, mut here, mut there) = both().await;
    a.carrier.net().cut();
    let begun = Instant::now();
    let mut here = aside(move || {
        // Nobody waits longer than that for what is to be away.
        let late = here.send(THERE, 1, b"lost?", in_ms(1000));
        let unknown = matches!(late, Err(Failed::Call(SendError::Unknown(THERE))));
        assert!(unknown || matches!(late, Err(Failed::Call(SendError::TimedOut(THERE)))), "{late:?}");
        let late = here.send_receive(THERE, 2, b"?", &mut Vec::new(), 8, in_ms(1000));
        let unknown = matches!(late, Err(Failed::Call(RequestError::Unknown(THERE))));
        let timed_out = matches!(late, Err(Failed::Call(RequestError::TimedOut { received: false, .. })));
        assert!(unknown || timed_out, "{late:?}");
        here
    })
    .await;
    assert!(begun.elapsed() < TIMEOUT);
    a.carrier.net().connect();
    // Both were withdrawn by the time that anybody could receive them, or received once: and what
    // comes then, comes.
    let serve = move || {
        let mut tags = Vec::new();
        while tags.last() != Some(&3) {
            match there.receive(&From::Any, &mut Vec::new(), soon()).expect("received").content {
                Content::Message { tag } | Content::Request { tag, .. } => tags.push(tag),
                Content::Notices(_) => panic!("nobody has notified"),
            }
        }
        (there, tags)
    };
    let (_here, (_there, tags)) = at_once(
        move || {
            here.send(THERE, 3, b"", soon()).expect("received");
            here
        },
        serve,
    )
    .await;
    assert!(tags.is_sorted() && tags.len() <= 3, "{tags:?}");
}

#[tokio::test]
async fn two_that_wait_for_each_other_are_told_of_the_deadlock() {
    let (_a, _b, mut here, mut there) = both().await;
    fn dead(sent: &Result<(), Failed<SendError>>) -> bool {
        matches!(sent, Err(Failed::Call(SendError::Deadlock(_))))
    }
    /// Whoever is told of the deadlock receives the other one's message.
    fn send(endpoint: &mut Endpoint, to: Address) -> (bool, bool) {
        let sent = endpoint.send(to, 1, b"", soon());
        let told = dead(&sent);
        (
            told,
            if told { endpoint.receive(&From::Any, &mut Vec::new(), soon()).is_ok() } else { sent.is_ok() },
        )
    }
    let (one, other) =
        at_once(move || (send(&mut here, THERE), here), move || (send(&mut there, HERE), there)).await;
    assert!(one.0.0 != other.0.0 && one.0.1 && other.0.1, "{:?} {:?}", one.0, other.0);
}

#[tokio::test]
async fn who_dies_is_dead_for_its_peer_on_the_other_node_and_what_it_sent_before_counts() {
    let (_a, _b, mut here, mut there) = both().await;
    let here = aside(move || {
        for tag in 0..10 {
            here.send_buffered(THERE, tag, b"", soon()).expect("room");
        }
        here.flush().expect("shown");
        here
    })
    .await;
    drop(here);
    aside(move || {
        let mut bytes = Vec::new();
        for wanted in 0..10 {
            let received = there.receive(&From::One(HERE), &mut bytes, soon()).expect("received");
            assert_eq!(received.content, Content::Message { tag: wanted });
        }
        let dead = there.receive(&From::One(HERE), &mut bytes, soon());
        assert!(matches!(dead, Err(Failed::Call(ReceiveError::NoPeer(NoPeer::Dead(HERE))))), "{dead:?}");
        let dead = there.send(HERE, 1, b"", soon());
        assert!(matches!(dead, Err(Failed::Call(SendError::NoPeer(NoPeer::Dead(HERE))))), "{dead:?}");
    })
    .await;
}

#[tokio::test]
async fn records_that_are_longer_than_a_message_of_the_link_cross_whole() {
    let (mut a, mut b) = joined().await;
    let (mut here, mut there) =
        met(&mut a, &mut b, &Config { ring_bytes: 1 << 21, ..Config::default() }).await;
    let long: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
    let sent = long.clone();
    let (_here, (_there, came)) = at_once(
        move || {
            for _ in 0..50 {
                here.send_buffered(THERE, 1, &sent, soon()).expect("room");
            }
            here.send(THERE, 2, &sent, soon()).expect("received");
            here
        },
        move || {
            let (mut bytes, mut came) = (Vec::new(), Vec::new());
            for _ in 0..51 {
                there.receive(&From::Any, &mut bytes, soon()).expect("received");
                came.push(bytes.clone());
            }
            (there, came)
        },
    )
    .await;
    assert!(came.iter().all(|bytes| *bytes == long));
}

#[tokio::test]
async fn a_pair_is_parted_when_the_daemon_says_so() {
    let (a, _b, mut here, there) = both().await;
    a.say(&Order::Part { dc: "shop".into(), endpoints: [on_wire(THERE), on_wire(HERE)] }, None);
    for (mut endpoint, peer) in [(there, HERE)] {
        aside(move || {
            let dead = endpoint.receive(&From::One(peer), &mut Vec::new(), soon());
            assert!(matches!(dead, Err(Failed::Call(ReceiveError::NoPeer(NoPeer::Dead(_))))), "{dead:?}");
        })
        .await;
    }
    aside(move || {
        let dead = here.receive(&From::One(THERE), &mut Vec::new(), soon());
        assert!(matches!(dead, Err(Failed::Call(ReceiveError::NoPeer(NoPeer::Dead(_))))), "{dead:?}");
    })
    .await;
}

#[tokio::test]
async fn words_that_do_not_belong_on_a_pair_of_endpoints_end_it_and_no_other() {
    let garbage: [&[u8]; 7] = [
        &[],
        &[word::WHOLE, 1],
        &[word::TAKEN, 1],
        &[word::RECORD, 1, 2, 3],
        &[word::RECORD | word::MORE],
        // So much was never sent.
        &[word::RECEIVED, 9, 0, 0, 0, 0, 0, 0, 0],
        &[200, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    for message in garbage {
        let (mut a, mut b) = joined().await;
        let (near, to_a) = channel_pair(&Config::default()).expect("a channel");
        a.id += 1;
        a.say(&Order::Open { id: a.id, open: pair_open(Config::default().ring_bytes) }, Some(to_a));
        let Report::Asked { pair, .. } = b.hear().await else { panic!("nothing is asked") };
        // This test is the other proxy from here on.
        let pair = Pair { slot: pair as u32, generation: (pair >> 32) as u32 };
        b.carrier.send(pair, &[word::ACCEPTED]).expect("accepted");
        assert!(matches!(a.hear().await, Report::Opened { .. }));
        let message = if *message == [word::RECORD | word::MORE] {
            [&[word::RECORD | word::MORE][..], &[0; 32000]].concat()
        } else {
            message.to_vec()
        };
        b.carrier.send(pair, &message).expect("sent");
        let mut here = Endpoint::alone(HERE, &Options::default()).expect("an endpoint");
        here.introduce(THERE, Rights::ALL, near).expect("introduced");
        aside(move || {
            let dead = here.receive(&From::One(THERE), &mut Vec::new(), soon());
            assert!(matches!(dead, Err(Failed::Call(ReceiveError::NoPeer(NoPeer::Dead(_))))), "{dead:?}");
        })
        .await;
        // Nobody has answered there.
        assert!(matches!(b.hear().await, Report::Withdrawn { .. }));
        let _others = met(&mut a, &mut b, &Config::default()).await;
    }
}
