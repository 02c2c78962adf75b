//! The end of a channel: closed by one of the two, or by a death.

use std::time::{Duration, Instant};

use channel::{ReceiveError, Receiver, SendError, Sender};

use crate::messages::bytes;
use crate::{Done, Failure, Party, TIMEOUT, deadline, ensure, open, receive, send};

/// Messages that are under way when the end comes.
const UNDER_WAY: u64 = 20;
/// Bytes of each: together they fit into the smallest ring.
const SHORT_BYTES: usize = 100;
/// How long an end that has nothing more to say stays, in case something comes.
pub(crate) const LINGER: Duration = Duration::from_millis(50);

/// Waits until the other end has closed: it has something to take yet.
pub(crate) fn until_closed(mut is_closed: impl FnMut() -> bool) -> Done {
    let until = Instant::now() + TIMEOUT;
    while !is_closed() {
        ensure(Instant::now() < until, || "the other end does not close".into())?;
        std::thread::park_timeout(Duration::from_millis(1));
    }
    Ok(())
}

/// As a death leaves it: descriptors and memory are gone, and nobody was told.
fn die(sender: Sender, mut receiver: Receiver) {
    receiver.abandon();
    drop((sender, receiver));
}

fn send_some(sender: &mut Sender) -> Done {
    (0..UNDER_WAY).try_for_each(|number| send(sender, &bytes(number, SHORT_BYTES)))
}

fn closed(received: &Result<usize, ReceiveError>) -> Done {
    ensure(matches!(received, Err(ReceiveError::Closed)), || format!("the other end is gone: {received:?}"))
}

pub(crate) fn sends_and_closes(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    ensure(receive(&mut receiver)? == b"here", || "another message".into())?;
    send_some(&mut sender)?;
    receiver.close();
    closed(&receiver.receive(&mut Vec::new(), deadline()))?;
    let late = sender.send(b"", deadline());
    ensure(matches!(late, Err(SendError::Closed)), || format!("this end is closed: {late:?}"))
}

pub(crate) fn dies(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    ensure(receive(&mut receiver)? == b"here", || "another message".into())?;
    send_some(&mut sender)?;
    die(sender, receiver);
    Ok(())
}

/// Gets all that was sent, then the end, in both directions.
pub(crate) fn receives_and_ends(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    send(&mut sender, b"here")?;
    for number in 0..UNDER_WAY {
        let got = receive(&mut receiver)?;
        ensure(got == bytes(number, SHORT_BYTES), || format!("message {number} is another"))?;
    }
    closed(&receiver.receive(&mut Vec::new(), deadline()))?;
    let late = sender.send(b"", deadline());
    ensure(matches!(late, Err(SendError::Closed)), || format!("the other end is gone: {late:?}"))
}

pub(crate) fn learns_of_the_close(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    send(&mut sender, b"go")?;
    closed(&receiver.receive(&mut Vec::new(), deadline()))?;
    let late = sender.send(b"", deadline());
    ensure(matches!(late, Err(SendError::Closed)), || format!("the other end is gone: {late:?}"))
}

pub(crate) fn closes(us: Box<dyn Party>) -> Done {
    let (sender, mut receiver) = open(us)?;
    ensure(receive(&mut receiver)? == b"go", || "another message".into())?;
    drop(sender);
    closed(&receiver.receive(&mut Vec::new(), deadline()))
}

/// The other end is asleep by then, or about to be.
pub(crate) fn dies_when_told(us: Box<dyn Party>) -> Done {
    let (sender, mut receiver) = open(us)?;
    ensure(receive(&mut receiver)? == b"go", || "another message".into())?;
    std::thread::park_timeout(LINGER);
    die(sender, receiver);
    Ok(())
}

/// Waits for room that nobody makes any more.
pub(crate) fn floods_until_the_end(us: Box<dyn Party>) -> Done {
    let (mut sender, _receiver) = open(us)?;
    send(&mut sender, b"go")?;
    let longest = sender.max_message();
    loop {
        match sender.send(&bytes(0, longest), deadline()) {
            Ok(()) => {}
            Err(SendError::Closed) => return Ok(()),
            Err(other) => return Err(Failure::Wrong(format!("the other end is gone: {other}"))),
        }
    }
}
