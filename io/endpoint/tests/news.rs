//! The daemon's messages are heard by endpoints that never wait, and in time.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod members;

use std::time::{Duration, Instant};

use endpoint::{BindError, Endpoint, Failed, From, Options, ReceiveError, Send, SendError, Step};
use members::{Bed, shortly, soon};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use testing::FakeDaemon;
use wire::control::EndpointRights;

/// More than is received before it is looked for news, and more time than that takes.
const ROUNDS: u32 = 2_000_000;

/// Receives while somebody floods, until `over`; returns how often.
fn flooded(
    [flooder, server]: [&mut Endpoint; 2],
    try_only: bool,
    mut over: impl FnMut(endpoint::Address) -> bool,
) -> u32 {
    let (to, mut into) = (server.address(), Vec::new());
    flooder.send_buffered(to, 1, b"flood", soon()).unwrap();
    (0..ROUNDS)
        .find(|_| {
            // One is always there, so nothing waits.
            flooder.send_buffered(to, 1, b"flood", soon()).unwrap();
            let received = match try_only {
                true => server.try_receive(&From::Any, &mut into).unwrap().unwrap(),
                false => server.receive(&From::Any, &mut into, soon()).unwrap(),
            };
            over(received.source)
        })
        .unwrap_or(ROUNDS)
}

/// A peer that floods kept what the daemon says of others in its socket.
#[test]
fn a_flood_keeps_no_new_peer_away() {
    for try_only in [false, true] {
        let bed = Bed::new();
        let (mut flooder, mut server) = bed.two(["flooder", "server"]);
        flooded([&mut flooder, &mut server], false, |_| true);
        let mut latecomer = bed.bind("latecomer");
        let there = latecomer.find("server", soon()).unwrap();
        latecomer.send_buffered(there, 2, b"hello", soon()).unwrap();
        let source = latecomer.address();
        let rounds = flooded([&mut flooder, &mut server], try_only, |found| found == source);
        assert!(rounds < ROUNDS, "a new peer was never heard");
    }
}

#[test]
fn a_flood_does_not_keep_the_right_to_flood() {
    let bed = Bed::new();
    let (mut flooder, mut server) = bed.two(["flooder", "server"]);
    flooded([&mut flooder, &mut server], false, |_| true);
    bed.daemon().rights("server", "flooder", EndpointRights::default());
    let (to, mut into) = (server.address(), Vec::new());
    let heard = (0..ROUNDS).find(|_| {
        flooder.send_buffered(to, 1, b"flood", soon()).unwrap();
        match server.receive(&From::Any, &mut into, shortly()) {
            Ok(_) => false,
            Err(Failed::Call(ReceiveError::TimedOut)) => true,
            Err(why) => panic!("{why:?}"),
        }
    });
    assert!(heard.is_some(), "what was taken away was never heard of");
    assert!(!server.peers().next().unwrap().rights.hears);
}

/// An endpoint that never waits was refused by what it had been told at first, for ever.
#[test]
fn who_may_more_now_hears_of_it_when_it_would_be_refused() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let right = other.address();
    one.send_buffered(right, 1, b"introduced", soon()).unwrap();
    other.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
    bed.daemon().rights("left", "right", EndpointRights::default());
    let late = Instant::now() + Duration::from_secs(60);
    let refused = |one: &mut Endpoint| match one.send_buffered(right, 1, b"", soon()) {
        Err(Failed::Call(SendError::Refused(_))) => true,
        Ok(()) => false,
        other => panic!("{other:?}"),
    };
    while one.peers().next().unwrap().rights.send {
        assert!(Instant::now() < late);
        let _nothing =
            one.receive(&From::Any, &mut Vec::new(), Some(Instant::now() + Duration::from_millis(5)));
    }
    assert!(refused(&mut one));
    assert!(one.notify(right, 1).is_err());
    bed.daemon().rights("left", "right", FakeDaemon::all_rights());
    while refused(&mut one) {
        assert!(Instant::now() < late, "it may, and is refused all the same");
        std::thread::yield_now();
    }
    one.notify(right, 1).unwrap();
}

/// A call in steps to somebody who was introduced a moment ago knew nobody.
#[test]
fn a_step_knows_whom_the_daemon_has_introduced() {
    let bed = Bed::new();
    let (mut one, mut other) = (bed.bind("left"), bed.bind("right"));
    one.find("right", soon()).unwrap();
    let left = one.address();
    let step = other.step_send(&mut Send::buffered(left, 1), b"hello", false).unwrap();
    assert_eq!(step, Step::Ready(()));
    assert_eq!(one.receive(&From::Any, &mut Vec::new(), soon()).unwrap().source, other.address());
}

/// A bind with a deadline waited for a daemon that does not answer for as long as a bind without
/// one.
#[test]
fn a_bind_keeps_its_deadline_whatever_the_daemon_does() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control.sock");
    // Connections are made, and nobody says anything.
    let mute =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::bind(&mute, &SocketAddrUnix::new(&control).unwrap()).unwrap();
    rustix::net::listen(&mute, 1).unwrap();
    let begun = Instant::now();
    let options = Options { control: Some(control), ..Options::default() };
    let bound = Endpoint::bind_by(Some("left"), &options, Some(begun + Duration::from_millis(50)));
    assert!(matches!(bound, Err(Failed::Call(BindError::TimedOut { .. }))), "{bound:?}");
    assert!(begun.elapsed() < Duration::from_secs(8), "it took {:?}", begun.elapsed());
}

/// Nobody told the next daemon whom an endpoint has channels with, so that it told nobody of their
/// rights.
#[test]
fn the_next_daemon_knows_who_has_a_channel_with_whom() {
    let mut bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let (left, right) = (one.address(), other.address());
    one.send_buffered(right, 1, b"introduced", soon()).unwrap();
    other.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
    bed.kill();
    bed.start();
    let mut third = bed.bind("third");
    // Both are back when the third has found them.
    std::thread::scope(|scope| {
        for endpoint in [&mut one, &mut other] {
            scope.spawn(|| endpoint.receive(&From::Any, &mut Vec::new(), soon()).unwrap());
        }
        for (name, address) in [("left", left), ("right", right)] {
            assert_eq!(third.wait_for_bind(name, soon()).unwrap(), address);
            third.send(address, 1, b"", soon()).unwrap();
        }
    });
    bed.daemon().rights("left", "right", EndpointRights { notify: true, ..EndpointRights::default() });
    let late = Instant::now() + Duration::from_secs(10);
    while one.peer(right).unwrap().rights.send {
        assert!(Instant::now() < late, "the next daemon does not know the pair");
        let _nothing = one.receive(&From::Any, &mut Vec::new(), shortly());
    }
}
