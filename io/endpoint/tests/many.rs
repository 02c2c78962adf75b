//! Many peers: more than there are words for one sleep, and one that floods.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod pairs;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use channel::Config;
use endpoint::{Content, Endpoint, Failed, From, NoPeer, Options, Rights, SendError};
use pairs::{address, alone, join, join_with, soon};

/// More than one sleep takes words, and more than are heard at once.
const MANY: u32 = 150;

fn with_peers(count: u32) -> (Endpoint, Vec<Endpoint>) {
    let mut me = alone(1, &Options::default());
    let mut peers: Vec<Endpoint> = (2..count + 2).map(|slot| alone(slot, &Options::default())).collect();
    let config = Config { ring_bytes: 4096, ..Config::default() };
    for peer in &mut peers {
        join_with(&mut me, peer, &config, Rights::ALL);
    }
    (me, peers)
}

#[test]
fn each_of_many_is_heard() {
    for count in [1, 2, 3, 16, 17, MANY] {
        let (mut me, peers) = with_peers(count);
        assert_eq!(me.peers().count(), count as usize);
        // Two threads, so that some come while we sleep.
        let mut halves = [Vec::new(), Vec::new()];
        for (number, peer) in peers.into_iter().enumerate() {
            halves[number % 2].push(peer);
        }
        let senders = halves.map(|mut half| {
            thread::spawn(move || {
                for round in 0..20 {
                    for peer in &mut half {
                        peer.send(address(1), round, b"", soon()).unwrap();
                    }
                }
                half
            })
        });
        let mut received: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for _ in 0..count * 20 {
            let got = me.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
            let Content::Message { tag } = got.content else { panic!("{got:?}") };
            received.entry(got.source.slot).or_default().push(tag);
        }
        assert_eq!(received.len(), count as usize);
        assert!(received.values().all(|tags| tags.iter().copied().eq(0..20)), "{count} peers");
        let mut all: Vec<Endpoint> = senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect();
        // The deaths of all but one change nothing for that one.
        let mut last = all.pop().unwrap();
        drop(all);
        let sends = thread::spawn(move || (last.send(address(1), 99, b"", soon()).unwrap(), last));
        let got = me.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
        assert_eq!(got.content, Content::Message { tag: 99 });
        sends.join().unwrap();
    }
}

/// Of two that send as fast as they can, one floods with the longest messages; each gets every
/// other turn.
#[test]
fn one_that_floods_gets_its_turn_and_no_more() {
    let (mut me, mut floods, mut modest) =
        (alone(1, &Options::default()), alone(2, &Options::default()), alone(3, &Options::default()));
    join(&mut me, &mut floods);
    join(&mut me, &mut modest);
    let most = me.payload_bytes_max(address(2)).unwrap();
    let flooding = thread::spawn(move || {
        let long = vec![1; most];
        while floods.send_buffered(address(1), 0, &long, None).is_ok() {}
    });
    for _ in 0..200 {
        modest.send_buffered(address(1), 7, b"short", None).unwrap();
        modest.send_buffered(address(1), 7, b"short", None).unwrap();
        // From the moment that it has been heard, it gets every other turn; until then, it is
        // looked at once in 64 receives.
        let mut turns = 0;
        let mut found = 0;
        while found < 2 {
            let got = me.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
            turns += 1;
            found += u32::from(got.source == address(3));
        }
        assert!(turns <= 64 + 4, "{turns} turns for two messages");
    }
    drop(me);
    flooding.join().unwrap();
}

/// A peer that does not receive fills its own window; nobody else waits for it.
#[test]
fn one_that_is_stuck_costs_only_itself() {
    let (mut me, mut peers) = with_peers(2);
    let mut stuck = 0;
    while me.send_buffered(address(2), stuck, &[1; 100], pairs::past()).is_ok() {
        stuck += 1;
    }
    assert!(stuck > 0);
    let mut other = peers.pop().unwrap();
    let hearing = thread::spawn(move || {
        for tag in 0..1000 {
            let got = other.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
            assert_eq!(got.content, Content::Message { tag });
        }
    });
    for tag in 0..1000 {
        me.send_buffered(address(3), tag, &[1; 100], soon()).unwrap();
    }
    hearing.join().unwrap();
}

/// A server held the channels of dead clients until somebody took their slots.
#[test]
fn the_channels_of_the_dead_go_when_all_that_they_sent_was_received() {
    let (mut me, mut peers) = with_peers(20);
    for peer in &mut peers[10..] {
        peer.send_buffered(address(1), 3, b"legacy", None).unwrap();
    }
    assert!(!me.prepare(&From::Any).unwrap());
    drop(peers);
    let mut received = 0;
    while me.receive(&From::Any, &mut Vec::new(), pairs::shortly()).is_ok() {
        received += 1;
    }
    assert_eq!((received, me.peers().count()), (10, 0));
    for slot in 2..22 {
        let dead = me.send(address(slot), 0, b"", soon());
        assert!(matches!(dead, Err(Failed::Call(SendError::NoPeer(NoPeer::Dead(_))))), "{dead:?}");
    }
}

/// Whoever was received from was gone from the list of peers when it had ended right after, and
/// nobody could say who it was.
#[test]
fn whoever_was_received_from_is_known_until_the_next_call() {
    let (mut me, mut peers) = with_peers(1);
    assert!(me.prepare(&From::Any).unwrap());
    peers[0].send_buffered(address(1), 1, b"last words", None).unwrap();
    drop(peers);
    let received = me.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
    assert_eq!(me.peers().map(|peer| peer.address).collect::<Vec<_>>(), [received.source]);
    assert!(me.prepare(&From::Any).unwrap());
    assert_eq!(me.peers().count(), 0);
}

/// A receive from some of the peers looked again and again instead of sleeping, because the others
/// had not been told that it sleeps.
#[test]
fn whoever_waits_for_some_sleeps() {
    let cpu = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
    };
    let (mut me, mut peers) = with_peers(3);
    for from in [From::Any, From::Some(vec![address(2), address(3)]), From::One(address(3))] {
        let before = cpu();
        // Longer than all the spins, and many naps.
        for _ in 0..10 {
            let deadline = Some(Instant::now() + Duration::from_millis(20));
            assert!(me.receive(&from, &mut Vec::new(), deadline).is_err());
        }
        let spent = cpu() - before;
        assert!(spent < Duration::from_millis(60), "{spent:?} of 200 ms on the processor, from {from:?}");
        peers[1].send_buffered(address(1), 1, b"", None).unwrap();
        me.receive(&from, &mut Vec::new(), soon()).unwrap();
    }
}
