//! Spinning, sleeping and waking.

use std::time::{Duration, Instant};

use channel::{ReceiveError, Receiver, SendError, SpinPolicy};

use crate::messages::{bytes, check, message};
use crate::{Doing as _, Done, Failure, Party, TIMEOUT, deadline, ensure, open, receive, send};

/// Rounds of polling. An emulated machine has a slice of a processor now and then.
const POLLED: u64 = 200;
/// Rounds with a sleep on both sides.
const ASLEEP: u64 = 200;
/// One in so many answers comes late.
const SLOW_ONE_IN: u64 = 50;
/// A deadline that passes.
const SHORT: Duration = Duration::from_millis(20);
/// The messages of the longest kind that the far end sends while nobody reads: some rings full.
const OVERFULL: u64 = 12;

/// Looks until there is a message, without a sleep or a word that one is slept.
fn poll(receiver: &mut Receiver) -> Result<Vec<u8>, Failure> {
    let until = Instant::now() + TIMEOUT;
    let mut message = Vec::new();
    while receiver.try_receive(&mut message).doing("look for a message")?.is_none() {
        ensure(Instant::now() < until, || "nothing came".into())?;
        std::thread::yield_now();
    }
    Ok(message)
}

/// Both ends ask and answer awake, and none rings.
pub(crate) fn polls(us: Box<dyn Party>) -> Done {
    let leads = us.side() == 0;
    let (mut sender, mut receiver) = open(us)?;
    for number in 0..POLLED {
        let wanted = bytes(number, 64);
        if leads {
            sender.try_send(&wanted).doing("send")?;
        }
        let got = poll(&mut receiver)?;
        ensure(got == wanted, || format!("message {number} is another"))?;
        if !leads {
            sender.try_send(&got).doing("send")?;
        }
    }
    let (sent, received) = (sender.counts(), receiver.counts());
    let rung = sent.rings + sent.futex_wakes + received.rings + received.futex_wakes;
    ensure(rung == 0, || format!("an end that was awake was woken: {sent:?}, {received:?}"))?;
    // Whoever leads has the last message, and closes; the other would close the channel under it.
    if leads { Ok(()) } else { crate::closing::until_closed(|| receiver.is_closed()) }
}

pub(crate) fn asks_asleep(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    receiver.set_spin_policy(SpinPolicy::Never);
    let longest = sender.max_message();
    for number in 0..ASLEEP {
        send(&mut sender, &message(number, longest))?;
        check(&receive(&mut receiver)?, number, longest)?;
    }
    let counts = receiver.counts();
    ensure(counts.futex_sleeps + counts.doorbell_sleeps > 0, || format!("nobody slept: {counts:?}"))
}

pub(crate) fn answers_asleep(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    receiver.set_spin_policy(SpinPolicy::Never);
    sender.set_spin_policy(SpinPolicy::Never);
    for number in 0..ASLEEP {
        let question = receive(&mut receiver)?;
        if number % SLOW_ONE_IN == 0 {
            // Whoever asks is asleep by then, however slow it is at that.
            std::thread::park_timeout(SHORT);
        }
        send(&mut sender, &question)?;
    }
    crate::closing::until_closed(|| receiver.is_closed())
}

/// Lets the other end fill its ring and wait, misses deadlines of its own meanwhile, and then makes
/// room.
pub(crate) fn lets_deadlines_pass(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    let longest = sender.max_message();
    let late = loop {
        match sender.send(&bytes(0, longest), Some(Instant::now() + SHORT)) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    ensure(matches!(late, SendError::TimedOut), || format!("a full ring: {late}"))?;
    for number in 0..OVERFULL {
        let got = receive(&mut receiver)?;
        ensure(got == bytes(number, longest), || format!("message {number} is another"))?;
    }
    let late = receiver.receive(&mut Vec::new(), Some(Instant::now() + SHORT));
    ensure(matches!(late, Err(ReceiveError::TimedOut)), || format!("an empty ring: {late:?}"))?;
    // The other end reads now, so there is room.
    send(&mut sender, b"over")?;
    ensure(receive(&mut receiver)? == b"over", || "the other end says something else".into())
}

/// Sends more than the ring takes, to somebody who does not read; then reads what is there.
pub(crate) fn waits_for_room(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    let longest = sender.max_message();
    for number in 0..OVERFULL {
        send(&mut sender, &bytes(number, longest))?;
    }
    while receive(&mut receiver)? != b"over" {}
    send(&mut sender, b"over")?;
    crate::closing::until_closed(|| receiver.is_closed())
}

pub(crate) fn is_closed_by_a_thread(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    send(&mut sender, b"I wait")?;
    let closer = receiver.closer();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::park_timeout(SHORT);
            closer.close();
        });
        let ended = receiver.receive(&mut Vec::new(), deadline());
        ensure(matches!(ended, Err(ReceiveError::Closed)), || format!("closed by a thread: {ended:?}"))
    })
}

pub(crate) fn waits_for_the_end(us: Box<dyn Party>) -> Done {
    let (_sender, mut receiver) = open(us)?;
    ensure(receive(&mut receiver)? == b"I wait", || "another message".into())?;
    let ended = receiver.receive(&mut Vec::new(), deadline());
    ensure(matches!(ended, Err(ReceiveError::Closed)), || format!("the other end has closed: {ended:?}"))
}
