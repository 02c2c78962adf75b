//! Each call, between endpoints of one process that were introduced by hand.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod pairs;

use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, Mode, pair};
use endpoint::{
    Content, Endpoint, Failed, From, Gone, IntroduceError, NoPeer, NotifyError, Options, ReceiveError,
    Received, RelayError, ReplyError, RequestError, Rights, SendError,
};
use pairs::{address, alone, join, join_with, joined, never_spins, past, shortly, soon, two};

fn message(received: &Received) -> u32 {
    match received.content {
        Content::Message { tag } => tag,
        other => panic!("{other:?}"),
    }
}

fn receive_message(endpoint: &mut Endpoint) -> (Received, Vec<u8>) {
    let mut into = Vec::new();
    let received = endpoint.receive(&From::Any, &mut into, soon()).unwrap();
    (received, into)
}

#[test]
fn a_rendezvous_ends_when_the_message_is_received() {
    for options in [Options::default(), never_spins()] {
        let (mut one, mut other) = (alone(1, &options), alone(2, &options));
        join(&mut one, &mut other);
        let receiver = thread::spawn(move || {
            for tag in 0..1000 {
                let (received, payload) = receive_message(&mut other);
                assert_eq!((received.source, message(&received)), (address(1), tag));
                assert_eq!(payload, tag.to_le_bytes());
            }
            other
        });
        for tag in 0..1000_u32 {
            one.send(address(2), tag, &tag.to_le_bytes(), soon()).unwrap();
        }
        let mut other = receiver.join().unwrap();
        // Nobody receives: the message is withdrawn, and never will be.
        let failed = one.send(address(2), 1, b"", shortly());
        assert!(matches!(failed, Err(Failed::Call(SendError::TimedOut(to))) if to == address(2)));
        let nothing = other.receive(&From::Any, &mut Vec::new(), shortly());
        assert!(matches!(nothing, Err(Failed::Call(ReceiveError::TimedOut))));
    }
}

#[test]
fn buffered_messages_come_in_order_and_wait_for_room_alone() {
    let (mut one, mut other) = two();
    // More than the ring holds: the window stops the sender.
    let mut sent = 0_u32;
    let why = loop {
        match one.send_buffered(address(2), sent, &[7; 100], past()) {
            Ok(()) => sent += 1,
            Err(why) => break why,
        }
    };
    assert!(matches!(why, Failed::Call(SendError::TimedOut(_))), "{why}");
    assert!(sent > 20, "{sent}");
    let sender = thread::spawn(move || {
        for tag in sent..5000 {
            one.send_buffered(address(2), tag, &[7; 100], soon()).unwrap();
        }
    });
    for tag in 0..5000 {
        let (received, payload) = receive_message(&mut other);
        assert_eq!((message(&received), payload), (tag, vec![7; 100]));
    }
    sender.join().unwrap();
}

#[test]
fn messages_are_held_back_until_something_waits() {
    let options = Options { batch_bytes: 4096, ..Options::default() };
    let (mut one, mut other) = (alone(1, &options), alone(2, &options));
    join(&mut one, &mut other);
    one.send_buffered(address(2), 1, b"held", None).unwrap();
    assert_eq!(other.try_receive(&From::Any, &mut Vec::new()).unwrap(), None);
    one.flush().unwrap();
    assert_eq!(message(&other.try_receive(&From::Any, &mut Vec::new()).unwrap().unwrap()), 1);
    one.send_buffered(address(2), 2, b"held", None).unwrap();
    assert_eq!(other.try_receive(&From::Any, &mut Vec::new()).unwrap(), None);
    // Whatever waits shows what was held back.
    assert!(one.receive(&From::Any, &mut Vec::new(), past()).is_err());
    assert_eq!(message(&other.try_receive(&From::Any, &mut Vec::new()).unwrap().unwrap()), 2);
    // Who is notified finds what was sent before.
    one.send_buffered(address(2), 2, b"held", None).unwrap();
    one.notify(address(2), 1).unwrap();
    let two = [(); 2].map(|()| other.try_receive(&From::Any, &mut Vec::new()).unwrap().unwrap().content);
    assert_eq!(two, [Content::Notices(1), Content::Message { tag: 2 }]);
    // A rendezvous stands behind what was sent before it.
    one.send_buffered(address(2), 3, b"", None).unwrap();
    let receiver = thread::spawn(move || [(); 2].map(|()| message(&receive_message(&mut other).0)));
    one.send(address(2), 4, b"", soon()).unwrap();
    assert_eq!(receiver.join().unwrap(), [3, 4]);
}

#[test]
fn a_request_is_answered() {
    for options in [Options::default(), never_spins()] {
        let (mut client, mut server) = (alone(1, &options), alone(2, &options));
        join(&mut client, &mut server);
        let serving = thread::spawn(move || {
            for _ in 0..1000 {
                let mut question = Vec::new();
                let received = server.receive(&From::Any, &mut question, soon()).unwrap();
                let Content::Request { tag, asked } = received.content else { panic!("{received:?}") };
                assert_eq!((asked.requester(), asked.takes()), (address(1), 8));
                let long = server.reply(&asked, 0, &[0; 9]);
                assert!(matches!(long, Err(Failed::Call(ReplyError::TooLong { length: 9, most: 8 }))));
                question.reverse();
                server.reply(&asked, tag + 1, &question).unwrap();
                let again = server.reply(&asked, tag + 1, b"");
                assert!(matches!(again, Err(Failed::Call(ReplyError::Stale(_)))));
            }
        });
        let mut answer = Vec::new();
        for tag in 0..1000 {
            let reply = client.send_receive(address(2), tag, b"abcd", &mut answer, 8, soon()).unwrap();
            assert_eq!((reply.source, reply.tag, answer.as_slice()), (address(2), tag + 1, &b"dcba"[..]));
        }
        serving.join().unwrap();
        let dead = client.send_receive(address(2), 0, b"", &mut answer, 8, soon());
        assert!(matches!(dead, Err(Failed::Call(RequestError::NoPeer(NoPeer::Dead(_))))));
    }
}

#[test]
fn a_request_that_nobody_answers_ends_in_time_and_says_whether_it_was_received() {
    let (mut client, mut server) = two();
    let mut answer = Vec::new();
    let failed = client.send_receive(address(2), 1, b"", &mut answer, 0, shortly());
    assert!(matches!(failed, Err(Failed::Call(RequestError::TimedOut { received: false, .. }))));
    let client = thread::spawn(move || {
        let failed = client.send_receive(
            address(2),
            2,
            b"",
            &mut Vec::new(),
            0,
            Some(Instant::now() + Duration::from_millis(300)),
        );
        (client, matches!(failed, Err(Failed::Call(RequestError::TimedOut { received: true, .. }))))
    });
    let (received, _) = receive_message(&mut server);
    let Content::Request { tag: 2, asked } = received.content else { panic!("{received:?}") };
    let (_client, received) = client.join().unwrap();
    assert!(received);
    assert!(matches!(server.reply(&asked, 0, b""), Err(Failed::Call(ReplyError::Stale(_)))));
}

#[test]
fn a_request_is_passed_on_and_the_other_one_answers() {
    let mut three = joined(3);
    let mut worker = three.pop().unwrap();
    let mut front = three.pop().unwrap();
    let mut client = three.pop().unwrap();
    let fronting = thread::spawn(move || {
        for _ in 0..200 {
            let (received, question) = receive_message(&mut front);
            let Content::Request { asked, .. } = received.content else { panic!("{received:?}") };
            assert_eq!((asked.requester(), asked.relayed_by()), (address(1), None));
            let back = front.relay(&asked, address(1), 0, b"");
            assert!(matches!(back, Err(Failed::Call(RelayError::Refused(_)))));
            front.relay(&asked, address(3), 9, &question).unwrap();
        }
        front
    });
    let working = thread::spawn(move || {
        for _ in 0..200 {
            let (received, question) = receive_message(&mut worker);
            assert_eq!(received.source, address(1));
            let Content::Request { tag: 9, asked } = received.content else { panic!("{received:?}") };
            // That the client has asked, the front says.
            assert_eq!((asked.requester(), asked.relayed_by()), (address(1), Some(address(2))));
            worker.reply(&asked, 11, &question).unwrap();
        }
        worker
    });
    let mut answer = Vec::new();
    for _ in 0..200 {
        let reply = client.send_receive(address(2), 7, b"what?", &mut answer, 64, soon()).unwrap();
        assert_eq!((reply.source, reply.tag, answer.as_slice()), (address(3), 11, &b"what?"[..]));
    }
    fronting.join().unwrap();
    working.join().unwrap();
}

#[test]
fn notices_fall_together_and_never_wait() {
    let (mut one, mut other) = two();
    for bit in 0..64 {
        one.notify(address(2), 1 << bit).unwrap();
    }
    let mut into = b"old".to_vec();
    let received = other.receive(&From::Any, &mut into, past()).unwrap();
    assert_eq!((received.source, received.content), (address(1), Content::Notices(u64::MAX)));
    assert!(into.is_empty());
    assert!(matches!(
        other.receive(&From::Any, &mut into, past()),
        Err(Failed::Call(ReceiveError::TimedOut))
    ));
    let waits = thread::spawn(move || other.receive(&From::One(address(1)), &mut Vec::new(), soon()));
    one.notify(address(2), 5).unwrap();
    assert_eq!(waits.join().unwrap().unwrap().content, Content::Notices(5));
}

#[test]
fn receiving_may_name_its_sources() {
    let mut four = joined(4);
    let mut me = four.remove(0);
    for (number, one) in four.iter_mut().enumerate() {
        one.send_buffered(address(1), number as u32, b"", None).unwrap();
    }
    let mut from = |from: From| me.receive(&from, &mut Vec::new(), past()).map(|received| message(&received));
    assert_eq!(from(From::One(address(3))).unwrap(), 1);
    assert!(matches!(from(From::One(address(3))), Err(Failed::Call(ReceiveError::TimedOut))));
    assert_eq!(from(From::Some(vec![address(3), address(4)])).unwrap(), 2);
    assert_eq!(from(From::Any).unwrap(), 0);
    drop(four);
    let all_dead = from(From::Some(vec![address(2), address(3)]));
    assert!(matches!(all_dead, Err(Failed::Call(ReceiveError::NoPeer(NoPeer::Dead(_))))));
}

#[test]
fn peers_are_listed_with_what_may_be_done() {
    let (mut one, mut other) = (alone(1, &Options::default()), alone(2, &Options::default()));
    let rights = Rights { send: true, hears: true, ..Rights::NONE };
    join_with(&mut one, &mut other, &Config::default(), rights);
    let known: Vec<_> = one.peers().map(|peer| (peer.address, peer.name, peer.rights, peer.alive)).collect();
    assert_eq!(known, [(address(2), None, rights, true)]);
    assert_eq!(one.payload_bytes_max(address(2)), Ok(wire::ipc::payload_bytes_max(256 << 10)));
    assert!(matches!(one.notify(address(2), 1), Err(Failed::Call(NotifyError::Refused(_)))));
    let refused = one.send_receive(address(2), 0, b"", &mut Vec::new(), 0, None);
    assert!(matches!(refused, Err(Failed::Call(RequestError::Refused(_)))));
    one.send_buffered(address(2), 0, b"", None).unwrap();
    drop(other);
    assert!(matches!(
        one.send(address(2), 0, b"", None),
        Err(Failed::Call(SendError::NoPeer(NoPeer::Dead(_))))
    ));
    assert!(one.peers().all(|peer| !peer.alive));
}

#[test]
fn rights_change_and_notices_that_were_not_heeded_are_gone() {
    let (mut one, mut other) = two();
    other.set_rights(address(1), Rights { heeds: false, ..Rights::ALL }).unwrap();
    one.notify(address(2), 1).unwrap();
    assert_eq!(other.try_receive(&From::Any, &mut Vec::new()).unwrap(), None);
    other.set_rights(address(1), Rights::ALL).unwrap();
    assert_eq!(other.try_receive(&From::Any, &mut Vec::new()).unwrap(), None);
    one.notify(address(2), 2).unwrap();
    let received = other.try_receive(&From::Any, &mut Vec::new()).unwrap().unwrap();
    assert_eq!(received.content, Content::Notices(2));
    one.set_rights(address(2), Rights::NONE).unwrap();
    assert!(matches!(one.notify(address(2), 1), Err(Failed::Call(NotifyError::Refused(_)))));
    assert!(matches!(one.set_rights(address(9), Rights::ALL), Err(Failed::Call(NoPeer::Unbound(_)))));
}

#[test]
fn nobody_is_reached_by_a_wrong_address() {
    let (mut one, _other) = two();
    let failed = |one: &mut Endpoint, slot, generation| {
        let to = endpoint::Address { slot, generation };
        match one.send(to, 0, b"", soon()) {
            Err(Failed::Call(SendError::NoPeer(why))) => why,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(failed(&mut one, 7, 1), NoPeer::Unbound(_)));
    assert!(matches!(failed(&mut one, 1, 1), NoPeer::Oneself(_)));
    assert!(matches!(failed(&mut one, 2, 2), NoPeer::WrongGeneration { found: 1, .. }));
    one.part(address(2), Gone::Moved(address(5))).unwrap();
    assert!(matches!(failed(&mut one, 2, 1), NoPeer::Moved { to, .. } if to == address(5)));
}

#[test]
fn a_successor_takes_the_place_of_who_was_there() {
    let (mut one, other) = two();
    drop(other);
    let second = endpoint::Address { slot: 2, generation: 2 };
    let mut successor = Endpoint::alone(second, &Options::default()).unwrap();
    join(&mut one, &mut successor);
    one.send_buffered(second, 3, b"", None).unwrap();
    assert_eq!(message(&receive_message(&mut successor).0), 3);
    let (here, _there) = pair(&Config::default()).unwrap();
    let old = one.introduce(address(2), Rights::ALL, here);
    assert!(matches!(old, Err(Failed::Call(IntroduceError::NoPeer(NoPeer::WrongGeneration { .. })))));
    one.send_buffered(second, 4, b"", None).unwrap();
    assert_eq!(message(&receive_message(&mut successor).0), 4);
    let sleeps = thread::spawn(move || receive_message(&mut successor).0);
    one.send(second, 5, b"", soon()).unwrap();
    assert_eq!(message(&sleeps.join().unwrap()), 5);
}

#[test]
fn a_channel_of_bytes_joins_nobody() {
    let mut one = alone(1, &Options::default());
    let (here, _there) = pair(&Config { mode: Mode::Stream, ..Config::default() }).unwrap();
    let refused = one.introduce(address(2), Rights::ALL, here);
    assert!(matches!(refused, Err(Failed::Call(IntroduceError::Open { .. }))), "{refused:?}");
}

#[test]
fn a_message_that_is_too_long_is_refused_with_the_most_that_fits() {
    let (mut one, mut other) = two();
    let most = one.payload_bytes_max(address(2)).unwrap();
    let refused = one.send_buffered(address(2), 0, &vec![1; most + 1], None);
    assert!(matches!(refused, Err(Failed::Call(SendError::TooLong { .. }))));
    one.send_buffered(address(2), 0, &vec![1; most], None).unwrap();
    assert_eq!(receive_message(&mut other).1, vec![1; most]);
}

#[test]
fn another_thread_ends_a_call_that_waits() {
    for from in [From::Any, From::One(address(2))] {
        let (mut one, _other) = two();
        let interrupter = one.interrupter().unwrap();
        let waits = thread::spawn(move || (one.receive(&from, &mut Vec::new(), None), one));
        interrupter.interrupt();
        let (ended, mut one) = waits.join().unwrap();
        assert!(matches!(ended, Err(Failed::Interrupted)), "{ended:?}");
        assert!(matches!(one.flush(), Err(Failed::Interrupted)));
    }
}
