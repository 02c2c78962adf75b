//! Endpoints that move: what was sent is received once and in order, whoever is queued is served at
//! the new place, and who goes nowhere hears why.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod members;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use endpoint::{Access, Backup, Content, Endpoint, Failed, From, MigrateError, Options};
use members::{Bed, soon};

/// The one domain of the stand-in for the daemon.
const HERE: &str = "a";
/// How often the endpoint moves.
const MOVES: usize = 8;

fn backup(bed: &Bed) -> Backup {
    Backup::bind("sink", &bed.options()).unwrap()
}

/// Both in turn, until the backup has what the primary has.
fn stand_by(primary: &mut Endpoint, backup: &mut Backup) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                // The daemon is listened to, and backups are told everything: nobody is received
                // from.
                primary.prepare(&From::Some(Vec::new())).unwrap();
                primary.keep_state(b"").unwrap();
                std::thread::yield_now();
            }
        });
        let until = Instant::now() + Duration::from_secs(60);
        while !backup.is_ready() {
            assert!(backup.wait(Some(Instant::now() + Duration::from_millis(1))).unwrap().is_none());
            assert!(Instant::now() < until, "it is never ready");
        }
        // It stays in `wait` for as long as records are handed to it.
        done.store(true, Ordering::Release);
        assert!(backup.wait(Some(Instant::now() + Duration::from_millis(50))).unwrap().is_none());
    });
}

/// Moves an endpoint to a backup.
fn migrate(mut old: Endpoint, mut new: Backup) -> Endpoint {
    std::thread::scope(|scope| {
        let takes = scope.spawn(move || new.wait(soon()).unwrap().expect("it takes the place"));
        old.start_migration(HERE).unwrap();
        old.commit_migration().unwrap();
        let ended = old.receive(&From::Any, &mut Vec::new(), soon());
        assert!(matches!(ended, Err(Failed::Ended { .. })), "{ended:?}");
        takes.join().unwrap()
    })
}

fn number(received: &[u8]) -> u64 {
    u64::from_le_bytes(received.try_into().unwrap())
}

/// Receives numbers in order, until this one.
fn receive_until(me: &mut Endpoint, next: &mut u64, last: u64) {
    let mut payload = Vec::new();
    while *next < last {
        let received = me.receive(&From::Any, &mut payload, soon()).unwrap();
        let Content::Message { .. } = received.content else { panic!("{received:?}") };
        assert_eq!(number(&payload), *next, "once, and in order");
        *next += 1;
    }
}

#[test]
fn what_was_sent_before_a_move_is_received_after_it_once_and_in_order() {
    for batch_bytes in [0, 1 << 12] {
        let bed = Bed::new();
        let mut sink = bed.bind("sink");
        let mut source = Endpoint::bind(None, &Options { batch_bytes, ..bed.options() }).unwrap();
        let (mut sent, mut next) = (0_u64, 0);
        for _ in 0..MOVES {
            for _ in 0..20 {
                source.tell_buffered("sink", 0, &sent.to_le_bytes(), soon()).unwrap();
                sent += 1;
            }
            let mut other = backup(&bed);
            stand_by(&mut sink, &mut other);
            // Some are received here, some are queued, some are held back by their sender.
            receive_until(&mut sink, &mut next, sent - 15);
            sink = migrate(sink, other);
        }
        source.tell_buffered("sink", 0, &sent.to_le_bytes(), soon()).unwrap();
        source.flush().unwrap();
        receive_until(&mut sink, &mut next, sent + 1);
    }
}

#[test]
fn senders_that_never_stop_lose_nothing_while_the_endpoint_moves_again_and_again() {
    let bed = Bed::new();
    let mut sink = bed.bind("sink");
    let stop = AtomicBool::new(false);
    let options = bed.options();
    std::thread::scope(|scope| {
        let buffered = scope.spawn(|| {
            let mut me = Endpoint::bind(None, &options).unwrap();
            let mut sent = 0_u64;
            while !stop.load(Ordering::Acquire) {
                me.tell_buffered("sink", 0, &sent.to_le_bytes(), soon()).unwrap();
                sent += 1;
            }
            (me.address().slot, sent, me)
        });
        let rendezvous = scope.spawn(|| {
            let mut me = Endpoint::bind(None, &options).unwrap();
            let mut sent = 0_u64;
            while !stop.load(Ordering::Acquire) {
                me.tell("sink", 1, &sent.to_le_bytes(), soon()).unwrap();
                sent += 1;
            }
            (me.address().slot, sent, me)
        });
        let asks = scope.spawn(|| {
            let mut me = Endpoint::bind(None, &options).unwrap();
            let (mut asked, mut reply) = (0_u64, Vec::new());
            while !stop.load(Ordering::Acquire) {
                me.ask("sink", 2, &asked.to_le_bytes(), &mut reply, 8, soon()).unwrap();
                assert_eq!(number(&reply), asked);
                asked += 1;
            }
            (me.address().slot, asked, me)
        });
        // By tag: what comes next.
        let mut next = [0_u64; 3];
        let mut payload = Vec::new();
        let mut take = |me: &mut Endpoint, next: &mut [u64; 3]| {
            let patience = Instant::now() + Duration::from_millis(20);
            if let Ok(received) = me.receive(&From::Any, &mut payload, Some(patience)) {
                let tag = match received.content {
                    Content::Message { tag } => tag,
                    Content::Request { tag, asked } => {
                        me.reply(&asked, 0, &payload).unwrap();
                        tag
                    }
                    Content::Notices(_) => panic!("{received:?}"),
                };
                let next = &mut next[tag as usize];
                assert_eq!(number(&payload), *next, "of {tag}: once, and in order");
                *next += 1;
            }
        };
        for _ in 0..MOVES {
            let before = next;
            while (0..3).any(|tag| next[tag] < before[tag] + 2) {
                take(&mut sink, &mut next);
            }
            let mut other = backup(&bed);
            stand_by(&mut sink, &mut other);
            sink = migrate(sink, other);
        }
        stop.store(true, Ordering::Release);
        while !(buffered.is_finished() && rendezvous.is_finished() && asks.is_finished()) {
            take(&mut sink, &mut next);
        }
        let ends = [buffered.join().unwrap(), rendezvous.join().unwrap(), asks.join().unwrap()];
        while (0..3).any(|tag| next[tag] < ends[tag].1) {
            take(&mut sink, &mut next);
        }
        for (tag, (_, sent, _)) in ends.iter().enumerate() {
            assert_eq!(next[tag], *sent, "of {tag}: all were received");
        }
    });
}

#[test]
fn a_migration_that_is_rolled_back_changes_nothing() {
    let bed = Bed::new();
    let mut sink = bed.bind("sink");
    let mut source = Endpoint::bind(None, &bed.options()).unwrap();
    let mut other = backup(&bed);
    stand_by(&mut sink, &mut other);
    let before = sink.address();
    for sent in 0..3_u64 {
        source.tell_buffered("sink", 0, &sent.to_le_bytes(), soon()).unwrap();
        source.notify(before, 1 << sent).unwrap();
    }
    sink.start_migration(HERE).unwrap();
    let refused = sink.start_migration(HERE);
    assert!(matches!(refused, Err(Failed::Call(MigrateError::Moving { .. }))), "{refused:?}");
    let refused = sink.receive(&From::Any, &mut Vec::new(), soon());
    assert!(matches!(refused, Err(Failed::Moving)), "{refused:?}");
    sink.roll_back_migration().unwrap();
    let refused = sink.roll_back_migration();
    assert!(matches!(refused, Err(Failed::Call(MigrateError::NotMoving))), "{refused:?}");
    let refused = sink.commit_migration();
    assert!(matches!(refused, Err(Failed::Call(MigrateError::NotMoving))), "{refused:?}");
    let mut payload = Vec::new();
    let received = sink.receive(&From::Any, &mut payload, soon()).unwrap();
    assert_eq!(received.content, Content::Notices(7));
    receive_until(&mut sink, &mut 0, 3);
    assert_eq!(sink.address(), before);
}

#[test]
fn a_new_place_that_does_not_take_it_leaves_the_endpoint_where_it_was() {
    let bed = Bed::new();
    let mut sink = bed.bind("sink");
    let mut source = Endpoint::bind(None, &bed.options()).unwrap();
    source.tell_buffered("sink", 0, &0_u64.to_le_bytes(), soon()).unwrap();
    for ends in [false, true] {
        let mut other = backup(&bed);
        stand_by(&mut sink, &mut other);
        sink.start_migration(HERE).unwrap();
        // It ends, or is not in the call that waits.
        let kept = (!ends).then_some(other);
        let refused = sink.commit_migration();
        assert!(matches!(refused, Err(Failed::Call(MigrateError::RolledBack { .. }))), "{refused:?}");
        drop(kept);
    }
    source.tell_buffered("sink", 0, &1_u64.to_le_bytes(), soon()).unwrap();
    receive_until(&mut sink, &mut 0, 2);
}

#[test]
fn whoever_waits_is_served_at_the_new_place() {
    let bed = Bed::new();
    let mut sink = bed.bind("sink");
    let mut other = backup(&bed);
    stand_by(&mut sink, &mut other);
    let options = bed.options();
    std::thread::scope(|scope| {
        sink.start_migration(HERE).unwrap();
        let tells = scope.spawn(|| Endpoint::bind(None, &options).unwrap().tell("sink", 4, b"first", soon()));
        let asks = scope.spawn(|| {
            let mut reply = Vec::new();
            let mut me = Endpoint::bind(None, &options).unwrap();
            me.ask("sink", 5, b"second", &mut reply, 16, soon()).map(|_| reply)
        });
        // They wait: nobody receives. The endpoint hears that they have come, and they have sent.
        while sink.peers().count() < 3 {
            sink.roll_back_migration().unwrap();
            let nobody = sink.find("nobody", soon());
            assert!(nobody.is_err(), "{nobody:?}");
            sink.start_migration(HERE).unwrap();
        }
        let takes = scope.spawn(|| other.wait(soon()).unwrap().expect("it takes the place"));
        sink.commit_migration().unwrap();
        let mut me = takes.join().unwrap();
        let mut payload = Vec::new();
        for _ in 0..2 {
            let received = me.receive(&From::Any, &mut payload, soon()).unwrap();
            match received.content {
                Content::Message { tag: 4 } => assert_eq!(payload, b"first"),
                Content::Request { tag: 5, asked } => me.reply(&asked, 0, &payload).unwrap(),
                _ => panic!("{received:?}"),
            }
        }
        tells.join().unwrap().unwrap();
        assert_eq!(asks.join().unwrap().unwrap(), b"second");
    });
}

#[test]
fn who_goes_nowhere_hears_why() {
    let bed = Bed::new();
    let mut sink = bed.bind("sink");
    let why = |failed: Result<(), Failed<MigrateError>>| match failed {
        Err(Failed::Call(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(matches!(why(sink.start_migration("nowhere")), MigrateError::NoRoom { .. }));
    let mut unnamed = Endpoint::bind(None, &bed.options()).unwrap();
    assert_eq!(why(unnamed.start_migration(HERE)), MigrateError::NoName);

    let mut other = backup(&bed);
    stand_by(&mut sink, &mut other);
    let buffer = sink.buffer(4096, Access::Write).unwrap();
    assert_eq!(why(sink.start_migration(HERE)), MigrateError::Buffers { count: 1 });
    drop(buffer);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| unnamed.ask("sink", 0, b"", &mut Vec::new(), 8, soon()).map(drop));
        let received = sink.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
        let Content::Request { asked, .. } = received.content else { panic!("{received:?}") };
        let refused = why(sink.start_migration(HERE));
        assert_eq!(refused, MigrateError::Unanswered { requester: received.source });
        let answers = scope.spawn(|| {
            assert!(other.wait(Some(Instant::now() + Duration::from_millis(300))).unwrap().is_none())
        });
        sink.reply(&asked, 0, b"").unwrap();
        asks.join().unwrap().unwrap();
        answers.join().unwrap();
    });
    sink.start_migration(HERE).unwrap();
    sink.roll_back_migration().unwrap();
}

// The old place ends after it has stopped receiving: what nobody has consumed is received at the
// new place, and who waits is served there.
#[test]
fn an_old_place_that_dies_on_the_way_leaves_the_rings_to_the_new_one() {
    let bed = Bed::new();
    let mut sink = bed.bind("sink");
    let mut source = Endpoint::bind(None, &bed.options()).unwrap();
    let mut other = backup(&bed);
    stand_by(&mut sink, &mut other);
    for sent in 0..3_u64 {
        source.tell_buffered("sink", 0, &sent.to_le_bytes(), soon()).unwrap();
    }
    sink.start_migration(HERE).unwrap();
    drop(sink);
    let mut me = other.wait(soon()).unwrap().expect("it takes over");
    source.tell_buffered("sink", 0, &3_u64.to_le_bytes(), soon()).unwrap();
    receive_until(&mut me, &mut 0, 4);
}
