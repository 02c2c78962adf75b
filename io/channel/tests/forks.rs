//! A fork inherits an open end: whatever the child tries, its parent's channel goes on as if there
//! were no child.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::io::{ErrorKind, Read, Write};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use channel::{Config, Mode, ReceiveError, Receiver, SendError, Sender, StreamReader, StreamWriter, pair};

type Halves = (Sender, Receiver);

/// One test at a time: the children hold copies of all that the program has open.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn open() -> (Halves, Halves) {
    let (one, other) = pair(&Config { ring_bytes: 4096, ..Config::default() }).unwrap();
    (one.open().unwrap(), other.open().unwrap())
}

fn open_stream() -> ((StreamWriter, StreamReader), (StreamWriter, StreamReader)) {
    let config = Config { ring_bytes: 4096, mode: Mode::Stream, ..Config::default() };
    let (one, other) = pair(&config).unwrap();
    (one.open_stream().unwrap(), other.open_stream().unwrap())
}

/// Runs `work` in a fork; fails unless it says true there.
fn child(work: impl FnOnce() -> bool) {
    assert!(sys::fork::in_child(work).unwrap());
}

fn is_forked_send<T>(result: Result<T, SendError>) -> bool {
    matches!(result, Err(SendError::Forked))
}

fn is_forked_receive<T>(result: Result<T, ReceiveError>) -> bool {
    matches!(result, Err(ReceiveError::Forked))
}

/// Both directions carry a message: nothing was lost, doubled, closed or put out of step.
fn expect_alive(one: &mut Halves, other: &mut Halves) {
    let mut got = Vec::new();
    one.0.send(b"there", soon()).unwrap();
    assert_eq!(other.1.receive(&mut got, soon()).unwrap(), 5);
    assert_eq!(got, b"there");
    other.0.send(b"and back", soon()).unwrap();
    assert_eq!(one.1.receive(&mut got, soon()).unwrap(), 8);
    assert_eq!(got, b"and back");
    assert!(!one.0.is_closed() && !one.1.is_closed() && !other.0.is_closed() && !other.1.is_closed());
}

#[test]
fn a_child_is_refused_by_name_and_harms_nothing() {
    let _one = alone();
    let (mut ours, mut theirs) = open();
    ours.0.send(b"first", None).unwrap();
    theirs.0.send(b"for the parent", None).unwrap();
    child(|| {
        let (sender, receiver) = &mut ours;
        let mut got = Vec::new();
        let refused = [
            is_forked_send(sender.try_send(b"stray")),
            is_forked_send(sender.send(b"stray", None)),
            is_forked_send(sender.try_loan(5)),
            is_forked_send(sender.try_begin(5)),
            is_forked_send(sender.wait(5, None)),
            is_forked_send(sender.flush()),
            is_forked_send(sender.prepare_wait(5)),
            is_forked_send(sender.drain_doorbell()),
            is_forked_receive(receiver.try_receive(&mut got)),
            is_forked_receive(receiver.receive(&mut got, None)),
            is_forked_receive(receiver.try_read(|_| ())),
            is_forked_receive(receiver.try_begin()),
            is_forked_receive(receiver.wait(None)),
            is_forked_receive(receiver.drain_doorbell()),
            !receiver.prepare_wait(),
            sender.is_closed() && receiver.is_closed(),
        ];
        sender.cancel_wait();
        receiver.cancel_wait();
        refused.iter().all(|refused| *refused)
    });
    let mut got = Vec::new();
    assert_eq!(theirs.1.receive(&mut got, soon()).unwrap(), 5);
    assert_eq!(got, b"first");
    assert_eq!(ours.1.receive(&mut got, soon()).unwrap(), 14);
    assert_eq!(got, b"for the parent");
    expect_alive(&mut ours, &mut theirs);
}

#[test]
fn a_child_that_closes_or_drops_its_copy_closes_nothing() {
    let _one = alone();
    let (ours, theirs) = open();
    let (mut ours, mut theirs) = (Some(ours), theirs);
    child(|| {
        let Some((sender, receiver)) = &mut ours else { return false };
        sender.closer().close();
        sender.close();
        receiver.close();
        // The child's copy; the parent's stays where it is.
        ours.take().is_some()
    });
    expect_alive(ours.as_mut().unwrap(), &mut theirs);
    // And one that is dropped while its owner unwinds. (Without the hook of a panic, which takes
    // locks that may be held for good.)
    let unwind = || {
        let _dropped_on_the_way = ours.take();
        std::panic::resume_unwind(Box::new("on purpose"))
    };
    assert!(!sys::fork::in_child(unwind).unwrap());
    expect_alive(ours.as_mut().unwrap(), &mut theirs);
}

#[test]
fn a_fork_in_the_midst_of_a_message_sends_it_once() {
    let _one = alone();
    let (mut ours, mut theirs) = open();
    let mut loan = ours.0.loan(4, None).unwrap();
    assert!(loan.write_at(0, b"ab"));
    {
        let mut copy = Some(loan);
        child(|| {
            let Some(mut loan) = copy.take() else { return false };
            !loan.write_at(0, b"XX") && loan.write(b"XX").is_err() && is_forked_send(loan.commit())
        });
        loan = copy.take().unwrap();
    }
    assert!(loan.write_at(2, b"cd"));
    loan.commit().unwrap();
    let mut got = Vec::new();
    assert_eq!(theirs.1.receive(&mut got, soon()).unwrap(), 4);
    assert_eq!(got, b"abcd");

    // Read in place by the parent, and given back by the child.
    ours.0.send(b"in place", None).unwrap();
    let (_place, length) = theirs.1.begin(soon()).unwrap();
    child(|| is_forked_receive(theirs.1.finish()));
    ours.0.begin(3, soon()).unwrap();
    child(|| is_forked_send(ours.0.finish(3)));
    ours.0.cancel();
    assert_eq!(length, 8);
    theirs.1.finish().unwrap();
    let inside = ours.1.try_receive(&mut got).unwrap();
    assert_eq!(inside, None);
    expect_alive(&mut ours, &mut theirs);
}

#[test]
fn what_a_parent_holds_back_is_not_sent_by_its_child() {
    let _one = alone();
    let (ours, mut theirs) = open();
    let mut ours = Some(ours);
    let sender = &mut ours.as_mut().unwrap().0;
    sender.set_batch_bytes(1000);
    sender.send(b"held", None).unwrap();
    child(|| ours.take().is_some());
    let mut got = Vec::new();
    assert_eq!(theirs.1.try_receive(&mut got).unwrap(), None);
    ours.as_mut().unwrap().0.flush().unwrap();
    assert_eq!(theirs.1.try_receive(&mut got).unwrap(), Some(4));
    assert_eq!(theirs.1.try_receive(&mut got).unwrap(), None);
}

#[test]
fn a_stream_is_its_openers_too() {
    let _one = alone();
    let ((writer, _unused), (_quiet, mut reader)) = open_stream();
    let mut writer = Some(writer);
    let parents = writer.as_mut().unwrap();
    parents.write_all(b"abc").unwrap();
    parents.set_batch_bytes(100);
    parents.write_all(b"def").unwrap();
    let mut one = [0];
    reader.read_exact(&mut one).unwrap();
    child(|| {
        let Some(writer) = &mut writer else { return false };
        let kinds = [
            writer.write(b"x").map_err(|error| error.kind()),
            writer.write(&[7; 500]).map_err(|error| error.kind()),
            writer.flush().map(|()| 0).map_err(|error| error.kind()),
            reader.read(&mut [0; 8]).map_err(|error| error.kind()),
        ];
        let refused = kinds.iter().all(|kind| *kind == Err(ErrorKind::PermissionDenied));
        let finished = is_forked_send(writer.finish(None)) && is_forked_send(writer.try_finish());
        refused && finished && !reader.prepare_wait()
    });
    child(|| writer.take().is_some());
    let mut writer = writer.unwrap();
    writer.write_all(b"ghi").unwrap();
    writer.finish(soon()).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "bcdefghi");
}

/// Channels that the child makes are its own.
#[test]
fn a_child_may_have_channels_of_its_own() {
    let _one = alone();
    let (mut ours, mut theirs) = open();
    child(|| {
        let (mut own, mut other) = open();
        expect_alive(&mut own, &mut other);
        let grandchild = sys::fork::in_child(|| is_forked_send(own.0.try_send(b"x")));
        grandchild.is_ok_and(|refused| refused) && is_forked_send(ours.0.try_send(b"x"))
    });
    expect_alive(&mut ours, &mut theirs);
}

/// An end that was not opened yet is opened by whoever is first, the parent or the child, and by
/// nobody else.
#[test]
fn an_end_that_is_not_open_yet_goes_to_one_of_them() {
    let _one = alone();
    let (one, other) = pair(&Config { ring_bytes: 4096, ..Config::default() }).unwrap();
    let mut one = Some(one);
    let (_sender, mut receiver) = other.open().unwrap();
    child(|| {
        let Some((mut sender, _receiver)) = one.take().and_then(|end| end.open().ok()) else { return false };
        sender.send(b"from the child", soon()).is_ok()
    });
    let mut got = Vec::new();
    assert_eq!(receiver.receive(&mut got, soon()).unwrap(), 14);
    assert!(matches!(receiver.receive(&mut got, soon()), Err(ReceiveError::Closed)));
    let error = one.take().unwrap().open().unwrap_err();
    assert!(matches!(error, channel::OpenError::Reopened { .. }), "{error}");
}
