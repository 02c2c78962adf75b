//! Endpoints that are bound at a daemon, and find each other.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod members;

use std::time::{Duration, Instant};

use endpoint::{
    Access, Address, BindError, Content, Endpoint, Failed, Find, FindError, From, NoPeer, Options, SendError,
    Step, Whom,
};
use members::{Bed, shortly, soon};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::control::EndpointRights;

fn call_error<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, Failed<E>>) -> E {
    match result {
        Err(Failed::Call(error)) => error,
        other => panic!("no error of the call: {other:?}"),
    }
}

fn says(one: &mut Endpoint, to: Address, other: &mut Endpoint, what: &[u8]) {
    one.send_buffered(to, 1, what, soon()).unwrap();
    let mut payload = Vec::new();
    let received = other.receive(&From::Any, &mut payload, soon()).unwrap();
    assert_eq!((received.source, received.content), (one.address(), Content::Message { tag: 1 }));
    assert_eq!(payload, what);
}

#[test]
fn two_find_each_other_by_name_and_speak() {
    let bed = Bed::new();
    let (mut one, mut other) = (bed.bind("left"), bed.bind("right"));
    let right = one.find("right", soon()).unwrap();
    assert_eq!(right, other.address());
    assert_eq!(one.find("right", None).unwrap(), right);
    assert_eq!(one.find(right, None).unwrap(), right);
    says(&mut one, right, &mut other, b"hello");
    let peer = other.peers().next().unwrap();
    assert_eq!(
        (peer.name, peer.domain, peer.address, peer.alive),
        (Some("left"), Some("a"), one.address(), true)
    );
    // The other one did not ask, and knows all the same.
    let left = other.find("left", soon()).unwrap();
    says(&mut other, left, &mut one, b"back");
}

#[test]
fn both_may_ask_at_the_same_time() {
    let bed = Bed::new();
    for round in 0..20 {
        let names = [format!("one{round}"), format!("other{round}")];
        let (mut one, mut other) = (bed.bind(&names[0]), bed.bind(&names[1]));
        std::thread::scope(|scope| {
            scope.spawn(|| one.find(names[1].as_str(), soon()).unwrap());
            other.find(names[0].as_str(), soon()).unwrap();
        });
        let address = other.address();
        says(&mut one, address, &mut other, b"hello");
    }
}

#[test]
fn one_that_is_not_bound_is_waited_for() {
    let bed = Bed::new();
    let mut one = bed.bind("left");
    assert!(matches!(call_error(one.find("right", soon())), FindError::NotBound { .. }));
    assert!(matches!(call_error(one.wait_for_bind("right", shortly())), FindError::TimedOut { .. }));
    let other = std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.wait_for_bind("right", soon()).unwrap());
        let other = bed.bind("right");
        assert_eq!(waits.join().unwrap(), other.address());
        other
    });
    let address = other.address();
    other.unbind().unwrap();
    // It was known, and is dead now.
    assert!(matches!(call_error(one.send(address, 0, b"", soon())), SendError::NoPeer(NoPeer::Dead(_))));
    assert!(matches!(call_error(one.find("right", soon())), FindError::NotBound { .. }));
    let successor = bed.bind("right");
    assert!(successor.address().generation > address.generation);
    assert!(matches!(call_error(one.find(address, soon())), FindError::WrongGeneration { .. }));
    assert_eq!(one.find("right", soon()).unwrap(), successor.address());
}

#[test]
fn who_can_not_be_found_is_said_with_the_reason() {
    let bed = Bed::new();
    bed.daemon().names(&["left", "right", "wall"]);
    let (mut one, _other) = (bed.bind("left"), bed.bind("right"));
    assert!(matches!(call_error(one.find("nobody", soon())), FindError::Unknown { .. }));
    let own = one.address();
    assert!(matches!(call_error(one.find(own, soon())), FindError::Oneself { .. }));
    let none = EndpointRights::default();
    bed.daemon().rights("left", "right", none);
    bed.daemon().rights("right", "left", none);
    assert!(matches!(call_error(one.find("right", soon())), FindError::NotAllowed { .. }));

    assert!(matches!(call_error(Endpoint::bind(Some("nobody"), &bed.options())), BindError::Unknown { .. }));
    assert!(matches!(call_error(Endpoint::bind(Some("left"), &bed.options())), BindError::Busy { .. }));
    let late = Endpoint::bind_by(Some("left"), &bed.options(), shortly());
    assert!(matches!(call_error(late), BindError::TimedOut { last: Some(_) }));
    let nowhere = Options { control: Some("/nonexistent/control.sock".into()), ..Options::default() };
    assert!(matches!(call_error(Endpoint::bind(None, &nowhere)), BindError::NoDaemon(_)));
    assert!(matches!(call_error(Endpoint::bind_by(None, &nowhere, shortly())), BindError::TimedOut { .. }));

    let mut alone = Endpoint::alone(Address { slot: 1, generation: 1 }, &Options::default()).unwrap();
    assert!(matches!(call_error(alone.find("left", soon())), FindError::NoDaemon));
}

#[test]
fn a_name_that_another_program_has_is_waited_for() {
    let bed = Bed::new();
    let first = bed.bind("left");
    std::thread::scope(|scope| {
        let options = bed.options();
        let second = scope.spawn(move || Endpoint::bind_by(Some("left"), &options, soon()).unwrap());
        let address = first.address();
        drop(first);
        assert!(second.join().unwrap().address().generation > address.generation);
    });
}

#[test]
fn rights_change_while_two_speak() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let right = other.address();
    says(&mut one, right, &mut other, b"allowed");
    bed.daemon().rights("left", "right", EndpointRights { notify: true, ..EndpointRights::default() });
    let late = Instant::now() + Duration::from_secs(60);
    while one.peers().next().unwrap().rights.send {
        assert!(Instant::now() < late);
        // Whatever waits takes news in.
        let _nothing = one.receive(&From::Any, &mut Vec::new(), shortly());
    }
    assert!(matches!(call_error(one.send_buffered(right, 0, b"", soon())), SendError::Refused(_)));
    one.notify(right, 1).unwrap();
}

#[test]
fn an_endpoint_that_the_topology_takes_away_is_dead_and_says_why() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let there = other.address();
    says(&mut one, there, &mut other, b"introduced");
    bed.daemon().unbind("left");
    let gone = one.wait_for_bind("third", soon());
    assert!(matches!(&gone, Err(Failed::Ended { why }) if why.contains("left")), "{gone:?}");
    assert!(matches!(one.buffer(10, Access::Read), Err(Failed::Ended { .. })));
    let right = other.address();
    let ended = one.send(right, 0, b"", soon());
    assert!(matches!(&ended, Err(Failed::Ended { why }) if why.contains("left")), "{ended:?}");
    let ended = one.receive(&From::Any, &mut Vec::new(), None);
    assert!(matches!(&ended, Err(Failed::Ended { .. })), "{ended:?}");
    let left = one.address();
    assert!(matches!(call_error(other.send(left, 0, b"", soon())), SendError::NoPeer(NoPeer::Dead(_))));
}

#[test]
fn channels_outlive_the_daemon_and_the_next_one_meets_the_same_endpoints() {
    let mut bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let (left, right) = (one.address(), other.address());
    for _ in 0..3 {
        bed.kill();
        says(&mut one, right, &mut other, b"without a daemon");
        assert!(matches!(
            call_error(one.wait_for_bind("third", shortly())),
            FindError::TimedOut { last: Some(_) }
        ));
        assert_eq!(one.find("right", soon()).unwrap(), right);
        bed.start();
        let third = bed.bind("third");
        assert_ne!(third.address().slot, left.slot);
        assert_ne!(third.address().slot, right.slot);
        assert_eq!(one.wait_for_bind("third", soon()).unwrap(), third.address());
        assert_eq!((one.address(), other.address()), (left, right));
        says(&mut other, left, &mut one, b"still");
        // The other one comes back while it waits.
        let mut fourth = bed.bind("fourth");
        let waits = std::thread::scope(|scope| {
            scope.spawn(|| other.receive(&From::Any, &mut Vec::new(), soon()).unwrap());
            let found = fourth.wait_for_bind("right", soon()).unwrap();
            fourth.send(found, 4, b"", soon()).unwrap();
            found
        });
        assert_eq!(waits, right);
    }
}

#[test]
fn who_finds_its_name_taken_at_the_next_daemon_waits_until_it_is_free() {
    let mut bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let (left, right) = (one.address(), other.address());
    bed.kill();
    bed.start();
    let usurper = bed.bind("left");
    let late = call_error(one.wait_for_bind("third", shortly()));
    assert!(matches!(late, FindError::TimedOut { .. }));
    says(&mut one, right, &mut other, b"still here");
    let third = bed.bind("third");
    drop(usurper);
    assert_eq!(one.wait_for_bind("third", soon()).unwrap(), third.address());
    assert_eq!(one.address(), left);
}

#[test]
fn a_name_that_no_packet_holds_is_unknown() {
    let bed = Bed::new();
    let mut one = bed.bind("left");
    let long = "x".repeat(100_000);
    assert!(matches!(call_error(one.wait_for_bind(long.as_str(), None)), FindError::Unknown { .. }));
    assert!(matches!(call_error(Endpoint::bind(Some(&long), &bed.options())), BindError::Unknown { .. }));
}

#[test]
fn who_waits_for_a_name_goes_on_waiting_at_the_next_daemon() {
    let mut bed = Bed::new();
    let mut one = bed.bind("left");
    let options = bed.options();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.wait_for_bind("right", soon()).unwrap());
        bed.kill();
        bed.start();
        let other = Endpoint::bind(Some("right"), &options).unwrap();
        assert_eq!(waits.join().unwrap(), other.address());
    });
}

#[test]
fn a_search_is_made_in_steps() {
    let bed = Bed::new();
    let mut one = bed.bind("left");
    let mut call = Find::new("right", true);
    let pending = one.step_find(&mut call, false).unwrap();
    assert!(matches!(pending, Step::Pending { .. }));
    let other = bed.bind("right");
    loop {
        let mut polled = [PollFd::from_borrowed_fd(one.descriptor(), PollFlags::IN)];
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut polled, Some(&patience)), Ok(1));
        match one.step_find(&mut call, false).unwrap() {
            Step::Ready(address) => break assert_eq!(address, other.address()),
            Step::Pending { .. } => {}
        }
    }
    let mut call = Find::new(Whom::Name("late"), true);
    assert!(matches!(one.step_find(&mut call, false).unwrap(), Step::Pending { .. }));
    one.cancel_find(&mut call);
    // What was cancelled does not stand in the way of what comes.
    let late = bed.bind("late");
    assert_eq!(one.find("late", soon()).unwrap(), late.address());
    let mut call = Find::new("nobody", true);
    assert!(matches!(call_error(one.step_find(&mut call, true)), FindError::TimedOut { .. }));
}
