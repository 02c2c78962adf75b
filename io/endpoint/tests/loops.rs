//! Event loops: calls in steps, none of which waits, and tries between sleeps on the descriptor.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod pairs;

use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;

use endpoint::{
    Content, Endpoint, Failed, From, Receive, ReceiveError, Received, Request, RequestError, Send, SendError,
    Step,
};
use pairs::{TIMEOUT, address, joined, past, soon, two};
use rustix::event::{PollFd, PollFlags};

/// Sleeps until the endpoint's descriptor is readable, or until then.
fn sleep(endpoint: &Endpoint, until: Option<Instant>) {
    let until = until.unwrap_or_else(|| Instant::now() + TIMEOUT);
    let left = session::timespec(until.saturating_duration_since(Instant::now()));
    let descriptor = endpoint.descriptor();
    let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&left)).unwrap();
}

fn is_readable(endpoint: &Endpoint) -> bool {
    sys::doorbell::is_readable(endpoint.descriptor().as_fd()).unwrap()
}

/// Drives steps to their end as an event loop does; says how often it slept.
fn drive<T, E: std::fmt::Debug>(
    endpoint: &mut Endpoint,
    mut step: impl FnMut(&mut Endpoint, bool) -> Result<Step<T>, Failed<E>>,
) -> (Result<T, Failed<E>>, u32) {
    let deadline = Instant::now() + TIMEOUT;
    let mut sleeps = 0;
    loop {
        match step(endpoint, Instant::now() >= deadline) {
            Ok(Step::Ready(done)) => return (Ok(done), sleeps),
            Ok(Step::Pending { again_at }) => sleep(endpoint, again_at.or(Some(deadline))),
            Err(why) => return (Err(why), sleeps),
        }
        sleeps += 1;
    }
}

fn receive(endpoint: &mut Endpoint, from: From) -> Received {
    let mut call = Receive::new(from);
    drive(endpoint, |endpoint, late| endpoint.step_receive(&mut call, &mut Vec::new(), late)).0.unwrap()
}

#[test]
fn each_call_is_made_in_steps() {
    let (mut client, mut server) = two();
    let serving = thread::spawn(move || {
        for _ in 0..300 {
            assert_eq!(receive(&mut server, From::Any).content, Content::Message { tag: 1 });
            let received = receive(&mut server, From::One(address(1)));
            let Content::Request { asked, .. } = received.content else { panic!("{received:?}") };
            server.reply(&asked, 2, b"reply").unwrap();
        }
    });
    let mut into = Vec::new();
    for _ in 0..300 {
        let mut call = Send::rendezvous(address(2), 1);
        drive(&mut client, |client, late| client.step_send(&mut call, b"message", late)).0.unwrap();
        let mut call = Request::new(address(2), 1, 64);
        let asks = |client: &mut Endpoint, late| client.step_request(&mut call, b"request", &mut into, late);
        assert_eq!(drive(&mut client, asks).0.unwrap().tag, 2);
        assert_eq!(into, b"reply");
    }
    serving.join().unwrap();
}

#[test]
fn a_call_that_is_not_stepped_any_more_is_cancelled() {
    let (mut one, mut other) = two();
    let mut call = Send::rendezvous(address(2), 1);
    assert!(matches!(one.step_send(&mut call, b"", false), Ok(Step::Pending { again_at: Some(_) })));
    assert!(!one.cancel_send(&mut call));
    assert_eq!(other.try_receive(&From::Any, &mut Vec::new()).unwrap(), None, "it was withdrawn");
    let mut call = Request::new(address(2), 2, 0);
    assert!(matches!(one.step_request(&mut call, b"", &mut Vec::new(), false), Ok(Step::Pending { .. })));
    let received = other.try_receive(&From::Any, &mut Vec::new()).unwrap().unwrap();
    assert!(one.cancel_request(&mut call), "it was received");
    let Content::Request { asked, .. } = received.content else { panic!("{received:?}") };
    assert!(other.reply(&asked, 0, b"").is_err());
    let mut call = Receive::new(From::Any);
    assert!(matches!(
        one.step_receive(&mut call, &mut Vec::new(), false),
        Ok(Step::Pending { again_at: None })
    ));
    one.cancel_receive(&mut call);
    other.send_buffered(address(1), 3, b"", None).unwrap();
    let received = one.try_receive(&From::Any, &mut Vec::new()).unwrap().unwrap();
    assert_eq!(received.content, Content::Message { tag: 3 });
}

#[test]
fn a_late_step_ends_the_call_and_says_what_was_received() {
    let (mut one, mut other) = two();
    let mut call = Send::rendezvous(address(2), 1);
    let late = one.step_send(&mut call, b"", true);
    assert!(matches!(late, Err(Failed::Call(SendError::TimedOut(_)))));
    let mut call = Request::new(address(2), 2, 0);
    assert!(matches!(one.step_request(&mut call, b"", &mut Vec::new(), false), Ok(Step::Pending { .. })));
    assert!(other.try_receive(&From::Any, &mut Vec::new()).unwrap().is_some());
    let late = one.step_request(&mut call, b"", &mut Vec::new(), true);
    assert!(matches!(late, Err(Failed::Call(RequestError::TimedOut { received: true, .. }))));
    // A reply that is there counts, however late.
    let mut call = Request::new(address(2), 3, 0);
    assert!(matches!(one.step_request(&mut call, b"", &mut Vec::new(), false), Ok(Step::Pending { .. })));
    let received = other.try_receive(&From::Any, &mut Vec::new()).unwrap().unwrap();
    let Content::Request { asked, .. } = received.content else { panic!("{received:?}") };
    other.reply(&asked, 4, b"").unwrap();
    let late = one.step_request(&mut call, b"", &mut Vec::new(), true);
    assert!(matches!(late, Ok(Step::Ready(reply)) if reply.tag == 4));
}

#[test]
fn the_descriptor_is_readable_when_somebody_has_something() {
    let mut three = joined(3);
    let (mut third, mut second) = (three.pop().unwrap(), three.pop().unwrap());
    let mut me = three.pop().unwrap();
    for round in 0..100 {
        assert!(me.prepare(&From::Any).unwrap());
        assert!(!is_readable(&me));
        let sender = if round % 2 == 0 { &mut second } else { &mut third };
        match round % 3 {
            0 => sender.send_buffered(address(1), round, b"", None).unwrap(),
            1 => sender.notify(address(1), 1).unwrap(),
            _ => {
                sender.send_buffered(address(1), round, b"", None).unwrap();
                sender.notify(address(1), 1).unwrap();
            }
        }
        sleep(&me, None);
        let mut count = 0;
        while me.try_receive(&From::Any, &mut Vec::new()).unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, if round % 3 == 2 { 2 } else { 1 }, "round {round}");
    }
}

#[test]
fn what_is_there_already_needs_no_sleep() {
    let (mut me, mut other) = two();
    other.send_buffered(address(1), 1, b"", None).unwrap();
    assert!(!me.prepare(&From::Any).unwrap());
    assert!(me.try_receive(&From::Any, &mut Vec::new()).unwrap().is_some());
    other.notify(address(1), 1).unwrap();
    assert!(!me.prepare(&From::Any).unwrap());
    assert!(me.try_receive(&From::Any, &mut Vec::new()).unwrap().is_some());
    assert!(me.prepare(&From::Any).unwrap());
}

/// A try found nothing although there was something, because a peer that is known to ring is not
/// looked at before it is heard.
#[test]
fn whoever_has_rung_is_heard_by_a_try() {
    let (mut me, mut other) = two();
    for tag in 0..10 {
        assert!(me.prepare(&From::Any).unwrap());
        other.send_buffered(address(1), tag, b"", None).unwrap();
        let received = match tag % 3 {
            0 => me.receive(&From::Any, &mut Vec::new(), past()).unwrap(),
            1 => me.try_receive(&From::Any, &mut Vec::new()).unwrap().unwrap(),
            _ => match me.step_receive(&mut Receive::new(From::Any), &mut Vec::new(), true).unwrap() {
                Step::Ready(received) => received,
                Step::Pending { .. } => panic!("it is late"),
            },
        };
        assert_eq!(received.content, Content::Message { tag });
    }
}

#[test]
fn a_peer_that_goes_is_heard_of_once() {
    let (mut me, other) = two();
    assert!(me.prepare(&From::Any).unwrap());
    drop(other);
    sleep(&me, None);
    assert!(is_readable(&me));
    assert_eq!(me.try_receive(&From::Any, &mut Vec::new()).unwrap(), None);
    assert!(!is_readable(&me), "what has hung up does not keep an event loop awake");
    let dead = me.receive(&From::One(address(2)), &mut Vec::new(), soon());
    assert!(matches!(dead, Err(Failed::Call(ReceiveError::NoPeer(_)))));
}

#[test]
fn an_interrupter_makes_the_descriptor_readable_and_ends_steps() {
    let (mut me, _other) = two();
    let interrupter = me.interrupter().unwrap();
    let mut call = Receive::new(From::Any);
    assert!(matches!(me.step_receive(&mut call, &mut Vec::new(), false), Ok(Step::Pending { .. })));
    let other_thread = thread::spawn(move || interrupter.interrupt());
    sleep(&me, None);
    other_thread.join().unwrap();
    assert!(matches!(me.step_receive(&mut call, &mut Vec::new(), false), Err(Failed::Interrupted)));
}

#[test]
fn a_deadlock_is_found_in_steps_as_well() {
    let (mut one, mut other) = two();
    let patient = thread::spawn(move || other.send(address(1), 1, b"", soon()));
    let mut call = Send::rendezvous(address(2), 1);
    let (ended, _) = drive(&mut one, |one, late| one.step_send(&mut call, b"", late));
    // One of the two is told; whom the other called is received then, or gone.
    let mine = matches!(ended, Err(Failed::Call(SendError::Deadlock(_))));
    if mine {
        drop(one);
    } else {
        // The other gave up: nobody is left who would receive ours.
        assert!(matches!(ended, Err(Failed::Call(SendError::NoPeer(_)))), "{ended:?}");
    }
    let theirs = matches!(patient.join().unwrap(), Err(Failed::Call(SendError::Deadlock(_))));
    assert!(mine != theirs, "mine {mine}, theirs {theirs}");
}
