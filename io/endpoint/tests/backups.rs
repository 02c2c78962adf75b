//! Backups: they take what a primary hands over, and its place; callers go on, and each request is
//! counted once.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod members;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use endpoint::{AskError, Backup, Content, Endpoint, Failed, From, ReplyError, StateError};
use members::{Bed, soon};
use wire::movement::STATE_BYTES_MAX;

/// How often the primary ends.
const ENDS: u64 = 5;
/// Requests of each caller between two ends.
const REQUESTS: u64 = 50;

/// Answers so many requests with their count, from the state on that it has, and hands the count
/// over; then ends.
fn count(mut me: Endpoint, requests: u64) {
    let mut payload = Vec::new();
    for _ in 0..requests {
        let received = me.receive(&From::Any, &mut payload, soon()).unwrap();
        let Content::Request { asked, .. } = received.content else { panic!("{received:?}") };
        let count = number(me.state().unwrap_or_default()) + 1;
        me.reply_with_state(&asked, 0, &count.to_le_bytes(), &count.to_le_bytes()).unwrap();
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn ask(me: &mut Endpoint) -> Result<u64, Failed<AskError>> {
    let mut reply = Vec::new();
    me.ask("counter", 0, b"", &mut reply, 8, soon()).map(|_| number(&reply))
}

fn caller(bed: &Bed) -> Endpoint {
    Endpoint::bind(None, &bed.options()).unwrap()
}

fn backup(bed: &Bed) -> Backup {
    Backup::bind("counter", &bed.options()).unwrap()
}

/// Waits until a backup has all that its primary has. The primary has to be in a call that waits.
fn ready(backup: &mut Backup) {
    let until = Instant::now() + Duration::from_secs(60);
    while !backup.is_ready() {
        assert!(backup.wait(Some(Instant::now() + Duration::from_millis(1))).unwrap().is_none());
        assert!(Instant::now() < until, "it is never ready");
    }
}

#[test]
fn callers_go_on_from_backup_to_backup() {
    let bed = Bed::new();
    let mut primary = bed.bind("counter");
    let mut caller = caller(&bed);
    let mut last = 0;
    for _ in 0..ENDS {
        let mut next = backup(&bed);
        // One that was not told everything takes nobody's place.
        while_it_receives(&mut primary, &mut next);
        primary = std::thread::scope(|scope| {
            let counts = scope.spawn(move || count(primary, REQUESTS));
            let takes_over = scope.spawn(move || next.wait(soon()).unwrap().expect("it takes over"));
            for _ in 0..REQUESTS {
                last += 1;
                assert_eq!(ask(&mut caller).unwrap(), last);
            }
            counts.join().unwrap();
            takes_over.join().unwrap()
        });
        assert_eq!(primary.name(), Some("counter"));
        assert_eq!(number(primary.state().unwrap()), last);
    }
}

#[test]
fn a_primary_that_was_superseded_releases_no_reply() {
    let bed = Bed::new();
    let mut primary = bed.bind("counter");
    let mut other = backup(&bed);
    while_it_receives(&mut primary, &mut other);
    let mut caller = caller(&bed);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| ask(&mut caller).unwrap());
        // It has received the request, and hangs.
        let received = primary.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
        let Content::Request { asked, .. } = received.content else { panic!("{received:?}") };
        other.promote();
        let me = other.wait(soon()).unwrap().expect("it takes over");
        count(me, 1);
        assert_eq!(asks.join().unwrap(), 1, "the backup has counted it, and nobody else");
        let seven = 7_u64.to_le_bytes();
        let late = primary.reply_with_state(&asked, 0, &seven, &seven);
        assert!(matches!(late, Err(Failed::Ended { .. })), "{late:?}");
    });
    assert!(other.wait(soon()).is_err(), "it is a backup no more");
}

#[test]
fn a_backup_that_takes_nothing_is_released_and_told_everything_anew() {
    let bed = Bed::new();
    let mut primary = bed.bind("counter");
    let mut stuck = backup(&bed);
    while_it_receives(&mut primary, &mut stuck);
    assert_eq!(primary.backups().count(), 1);
    // It is not in `wait`: the primary goes on without it.
    primary.keep_state(b"one").unwrap();
    assert_eq!(primary.backups().count(), 0);
    assert_eq!(stuck.state(), None);
    while_it_receives(&mut primary, &mut stuck);
    assert_eq!(stuck.state(), Some(&b"one"[..]));
    drop(primary);
    let me = stuck.wait(soon()).unwrap().expect("it takes over");
    assert_eq!(me.state(), Some(&b"one"[..]));
}

/// Both in turn, until the backup has what the primary has.
fn while_it_receives(primary: &mut Endpoint, backup: &mut Backup) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut payload = Vec::new();
            while !done.load(Ordering::Acquire) {
                let nothing = primary.receive(
                    &From::Any,
                    &mut payload,
                    Some(Instant::now() + Duration::from_millis(1)),
                );
                assert!(nothing.is_err(), "{nothing:?}");
            }
        });
        // What it had does not count once it has heard that it was released.
        assert!(backup.wait(Some(Instant::now() + Duration::from_millis(20))).unwrap().is_none());
        ready(backup);
        done.store(true, Ordering::Release);
    });
}

#[test]
fn a_primary_goes_on_when_its_backup_ends_and_when_the_daemon_has_died_before() {
    let mut bed = Bed::new();
    let mut primary = bed.bind("counter");
    let mut first = backup(&bed);
    while_it_receives(&mut primary, &mut first);
    drop(first);
    primary.keep_state(b"one").unwrap();
    let mut second = backup(&bed);
    while_it_receives(&mut primary, &mut second);
    bed.kill();
    // Messages do not pass through the daemon.
    let keeps = std::thread::scope(|scope| {
        let keeps = scope.spawn(|| primary.keep_state(b"two"));
        assert!(second.wait(Some(Instant::now() + Duration::from_millis(100))).unwrap().is_none());
        keeps.join().unwrap()
    });
    keeps.unwrap();
    assert_eq!(second.state(), Some(&b"two"[..]));
    drop(primary);
    bed.start();
    let me = second.wait(soon()).unwrap().expect("it asks the next daemon");
    assert_eq!((me.name(), me.state()), (Some("counter"), Some(&b"two"[..])));
}

#[test]
fn a_state_of_any_length_is_handed_over_and_one_that_is_too_long_is_refused() {
    let bed = Bed::new();
    let mut primary = bed.bind("counter");
    let long: Vec<u8> = (0..STATE_BYTES_MAX).map(|at| at as u8).collect();
    primary.keep_state(&long).unwrap();
    let mut other = backup(&bed);
    while_it_receives(&mut primary, &mut other);
    assert_eq!(other.state(), Some(long.as_slice()));
    let longer = vec![0; STATE_BYTES_MAX + 1];
    let refused = primary.keep_state(&longer);
    assert!(matches!(refused, Err(Failed::Call(StateError::TooLong { .. }))), "{refused:?}");
    let mut caller = caller(&bed);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| ask(&mut caller).unwrap());
        let waits = scope.spawn(|| other.wait(soon()).unwrap().expect("it takes over"));
        let received = primary.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
        let Content::Request { asked, .. } = received.content else { panic!("{received:?}") };
        let refused = primary.reply_with_state(&asked, 0, b"", &longer);
        assert!(matches!(refused, Err(Failed::Call(ReplyError::StateTooLong { .. }))), "{refused:?}");
        // The request still waits.
        primary.reply_with_state(&asked, 0, &5_u64.to_le_bytes(), b"").unwrap();
        assert_eq!(asks.join().unwrap(), 5);
        drop(primary);
        assert_eq!(waits.join().unwrap().state(), Some(&b""[..]));
    });
}

#[test]
fn a_successor_that_knows_nothing_is_not_sent_what_may_have_been_received() {
    let bed = Bed::new();
    let mut primary = bed.bind("counter");
    let mut caller = caller(&bed);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| ask(&mut caller));
        let mut payload = Vec::new();
        primary.receive(&From::Any, &mut payload, soon()).unwrap();
        drop(primary);
        let _successor = bed.bind("counter");
        let failed = asks.join().unwrap();
        assert!(matches!(failed, Err(Failed::Call(AskError::Unknown { .. }))), "{failed:?}");
    });
    // What nobody has received goes to the successor.
    let primary = bed.bind("counter");
    caller.find("counter", soon()).unwrap();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| ask(&mut caller).unwrap());
        drop(primary);
        count(bed.bind("counter"), 1);
        assert_eq!(asks.join().unwrap(), 1);
    });
}
