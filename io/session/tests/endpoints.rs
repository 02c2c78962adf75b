//! The requests of a member for an endpoint, against a stand-in for the daemon.

#![allow(clippy::unwrap_used, reason = "tests")]

use rustix::io::Errno;
use session::{Control, ControlError, Grant, Notice};
use std::time::{Duration, Instant};
use sys::memfd::{Reach, check_granted};
use testing::FakeDaemon;
use wire::control::{EndpointAddress, EndpointRights, Event, GrantAccess, Whom};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn refused<T: std::fmt::Debug>(result: Result<T, ControlError>) -> Errno {
    match result {
        Err(ControlError::Refused { errno, message }) => {
            assert!(!message.is_empty());
            Errno::from_raw_os_error(errno)
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn next(control: &mut Control) -> Notice {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsFd;
    loop {
        if let Some(notice) = control.next_notice().unwrap() {
            return notice;
        }
        let mut polled = [PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN)];
        let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut polled, Some(&patience)), Ok(1), "an event comes");
    }
}

struct Two {
    daemon: FakeDaemon,
    one: Control,
    other: Control,
    at: [EndpointAddress; 2],
    _folder: tempfile::TempDir,
}

fn two(names: [&str; 2]) -> Two {
    let folder = tempfile::tempdir().unwrap();
    let daemon = FakeDaemon::start(folder.path(), &["a", "b"], Vec::new());
    let mut one = Control::connect(&daemon.socket("a")).unwrap();
    let mut other = Control::connect(&daemon.socket("b")).unwrap();
    let at =
        [one.bind(names[0], "", soon()).unwrap().address, other.bind(names[1], "", soon()).unwrap().address];
    Two { daemon, one, other, at, _folder: folder }
}

#[test]
fn two_endpoints_are_introduced_once_and_each_gets_an_end() {
    let Two { daemon, mut one, mut other, at, .. } = two(["left", "right"]);
    let to = || Whom::Name("right".into());
    let introduced = one.introduce(at[0].slot, to(), 0, soon()).unwrap();
    assert_eq!((introduced.peer.name.as_str(), introduced.peer.address), ("right", at[1]));
    assert_eq!(introduced.peer.domain, "b");
    match next(&mut other) {
        Notice::Introduced { endpoint, introduced } => {
            assert_eq!((endpoint, introduced.peer.address), (at[1].slot, at[0]));
        }
        other => panic!("not introduced: {other:?}"),
    }
    assert_eq!(refused(one.introduce(at[0].slot, to(), 0, soon())), Errno::ALREADY);
    assert_eq!(refused(one.introduce(at[0].slot, Whom::Address(at[0]), 0, soon())), Errno::INVAL);
    assert_eq!(refused(one.introduce(at[1].slot, to(), 0, soon())), Errno::BADF);
    let later = EndpointAddress { generation: at[1].generation + 1, ..at[1] };
    assert_eq!(refused(one.introduce(at[0].slot, Whom::Address(later), 0, soon())), Errno::STALE);

    let rights = EndpointRights { send: true, ..EndpointRights::default() };
    daemon.rights("left", "right", rights);
    match next(&mut one) {
        Notice::Event(Event::Rights { endpoint, peer, rights: told }) => {
            assert_eq!((endpoint, peer, told), (at[0].slot, at[1], rights));
        }
        other => panic!("not told: {other:?}"),
    }
}

#[test]
fn an_introduction_waits_for_a_name_and_a_name_is_bound_by_one() {
    let Two { mut one, mut other, at, daemon, .. } = two(["left", "right"]);
    assert_eq!(refused(other.bind("left", "", soon())), Errno::BUSY);
    let to = || Whom::Name("late".into());
    assert_eq!(refused(one.introduce(at[0].slot, to(), 0, soon())), Errno::NOTCONN);
    assert_eq!(refused(one.introduce(at[0].slot, to(), 1, soon())), Errno::TIMEDOUT);
    let late = std::thread::spawn(move || {
        let bound = other.bind("late", "", soon()).unwrap();
        (other, bound)
    });
    let introduced = one.introduce(at[0].slot, to(), 10_000, soon()).unwrap();
    let (mut other, bound) = late.join().unwrap();
    assert_eq!(introduced.peer.address, bound.address);
    other.unbind(bound.address.slot, soon()).unwrap();
    assert_eq!(refused(one.introduce(at[0].slot, to(), 0, soon())), Errno::NOTCONN);

    let again = other.bind("late", "", soon()).unwrap();
    assert!(again.address.generation > bound.address.generation);
    daemon.unbind("late");
    loop {
        if let Notice::Event(Event::Unbound { endpoint, message }) = next(&mut other) {
            assert_eq!(endpoint, again.address.slot);
            assert!(message.contains("late"));
            break;
        }
    }
}

#[test]
fn a_buffer_is_granted_moved_and_taken_back() {
    let Two { mut one, mut other, at, daemon: _alive, _folder } = two(["left", "right"]);
    let (buffer, memories) = one.buffer(at[0].slot, 5000, soon()).unwrap();
    let wish = Grant { buffer, to: at[1], access: GrantAccess::Read, place: 2, grant: 0 };
    let grant = one.grant(at[0].slot, wish, soon()).unwrap();
    assert_eq!(check_granted(&memories.data, Reach::Read).unwrap(), Some(8192));
    assert_eq!(refused(one.borrow_grant(at[0].slot, grant, soon())), Errno::INVAL);
    let (borrowed, theirs) = other.borrow_grant(at[1].slot, grant, soon()).unwrap();
    assert_eq!((borrowed.buffer, borrowed.bytes, borrowed.owner), (buffer, 5000, at[0]));
    assert_eq!(check_granted(&theirs.states, Reach::Read).unwrap(), Some(4096));

    let (fresh, _memories) = one.buffer(at[0].slot, 5000, soon()).unwrap();
    let moved = Grant { buffer: fresh, grant, ..wish };
    assert_eq!(one.grant(at[0].slot, moved, soon()).unwrap(), grant);
    assert!(matches!(next(&mut other), Notice::Event(Event::Moved { grant: told, .. }) if told == grant));
    assert_eq!(other.borrow_grant(at[1].slot, grant, soon()).unwrap().0.buffer, fresh);
    one.revoke(at[0].slot, grant, soon()).unwrap();
    assert!(matches!(next(&mut other), Notice::Event(Event::Revoked { grant: told, .. }) if told == grant));
    assert_eq!(refused(other.borrow_grant(at[1].slot, grant, soon())), Errno::KEYREVOKED);
    one.free(at[0].slot, fresh, soon()).unwrap();
    assert_eq!(refused(one.free(at[0].slot, fresh, soon())), Errno::NOENT);
    one.tell_free(at[0].slot, buffer).unwrap();
    assert_eq!(refused(one.free(at[0].slot, buffer, soon())), Errno::NOENT);

    let (buffer, _memories) = one.buffer(at[0].slot, 1, soon()).unwrap();
    let grant = one.grant(at[0].slot, Grant { buffer, ..wish }, soon()).unwrap();
    drop(one);
    let late = soon();
    // The daemon sees the end of a connection when it comes to it.
    while let Ok(_still) = other.borrow_grant(at[1].slot, grant, late) {
        assert!(Instant::now() < late);
        std::thread::yield_now();
    }
    assert_eq!(refused(other.borrow_grant(at[1].slot, grant, soon())), Errno::OWNERDEAD);
}

#[test]
fn an_endpoint_is_the_same_again_at_the_next_daemon_and_others_are_new() {
    let Two { daemon, mut one, mut other, _folder, .. } = two(["left", "right"]);
    let bound = one.bind("third", "", soon()).unwrap();
    daemon.kill();
    let daemon = FakeDaemon::start(_folder.path(), &["a", "b"], Vec::new());
    one.reconnect(Some(soon())).unwrap();
    one.ask_bind("third", &bound.token, Vec::new()).unwrap();
    match next(&mut one) {
        Notice::Bound(again) => assert_eq!(again.address, bound.address),
        other => panic!("not bound: {other:?}"),
    }
    other.reconnect(Some(soon())).unwrap();
    assert_eq!(refused(other.bind("right", &bound.token, soon())), Errno::ACCESS);
    let fresh = other.bind("right", "", soon()).unwrap();
    assert!(fresh.address.slot != bound.address.slot);
    other.ask_bind("third", "", Vec::new()).unwrap();
    assert!(matches!(next(&mut other), Notice::Refused { errno, .. } if errno == Errno::BUSY.raw_os_error()));
    daemon.kill();
}
