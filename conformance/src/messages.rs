//! Messages: whole, once, in order, of all lengths, by every way of sending them.

use std::io::Write as _;
use std::time::Instant;

use channel::{Receiver, SendError, Sender};

use crate::{Doing as _, Done, Failure, Party, deadline, ensure, open, receive, send};

/// Questions with an answer each.
const QUESTIONS: u64 = 200;
/// Messages of a flood.
const FLOOD: u64 = 800;
/// Messages of a batch's test, and bytes that are held back.
const BATCHED: u64 = 500;
const BATCH_BYTES: usize = 2048;
/// Messages that take several records.
const LARGE: u64 = 6;
/// One in so many is as long as messages may be; the others are short, or as long as a page.
const HUGE_ONE_IN: u64 = 97;
/// The length of an ordinary message at most, in bytes.
const ORDINARY_BYTES: usize = 700;

/// Message `number` where messages have `longest` bytes at most: always the same, and unlike its
/// neighbours.
pub(crate) fn message(number: u64, longest: usize) -> Vec<u8> {
    let mixed = mix(number);
    let length = match number {
        _ if number.is_multiple_of(HUGE_ONE_IN) => longest - (mixed % 9) as usize,
        _ => (mixed % (ORDINARY_BYTES as u64 + 1)) as usize,
    };
    bytes(number, length.min(longest))
}

/// `length` bytes that tell which they are.
pub(crate) fn bytes(number: u64, length: usize) -> Vec<u8> {
    (0..length.div_ceil(8))
        .flat_map(|at| mix(number ^ (at as u64) << 32).to_le_bytes())
        .take(length)
        .collect()
}

/// `SplitMix64`'s finish (Steele et al. 2014): neighbours have nothing in common.
pub(crate) fn mix(word: u64) -> u64 {
    let mut word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

pub(crate) fn check(got: &[u8], number: u64, longest: usize) -> Done {
    let wanted = message(number, longest);
    ensure(got == wanted, || {
        format!("message {number} came as {} bytes, not as it was sent ({})", got.len(), wanted.len())
    })
}

/// The end of a flood: a message that none of its own is, with their number.
fn end(count: u64) -> Vec<u8> {
    [b"the end, after ".as_slice(), &count.to_le_bytes()].concat()
}

pub(crate) fn asks(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    let longest = sender.max_message();
    for number in 0..QUESTIONS {
        send(&mut sender, &message(number, longest))?;
        check(&receive(&mut receiver)?, number, longest)?;
    }
    send(&mut sender, &end(QUESTIONS))
}

/// Sends back what comes, until the end.
pub(crate) fn answers(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    loop {
        let question = receive(&mut receiver)?;
        if question == end(QUESTIONS) {
            return Ok(());
        }
        send(&mut sender, &question)?;
    }
}

/// Sends messages by `one`, says how many they were, and waits until the other has them.
fn flood(
    us: Box<dyn Party>,
    count: u64,
    mut one: impl FnMut(&mut Sender, &[u8]) -> Result<(), SendError>,
) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    let longest = sender.max_message();
    for number in 0..count {
        one(&mut sender, &message(number, longest)).doing("send one of a flood")?;
    }
    sender.flush().doing("flush")?;
    send(&mut sender, &end(count))?;
    sender.flush().doing("flush")?;
    ensure(receive(&mut receiver)? == b"all there", || "the other end says something else".into())
}

pub(crate) fn floods(us: Box<dyn Party>) -> Done {
    flood(us, FLOOD, |sender, message| sender.send(message, deadline()))
}

pub(crate) fn batches(us: Box<dyn Party>) -> Done {
    flood(us, BATCHED, |sender, message| {
        sender.set_batch_bytes(BATCH_BYTES);
        sender.send(message, deadline())
    })
}

pub(crate) fn lends(us: Box<dyn Party>) -> Done {
    flood(us, BATCHED, |sender, message| {
        let mut loan = sender.loan(message.len(), deadline())?;
        loan.write_all(message).map_err(SendError::Doorbell)?;
        loan.commit()
    })
}

/// Takes a flood, half of it in place, and says so.
pub(crate) fn takes(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    take_flood(&mut receiver)?;
    send(&mut sender, b"all there")
}

fn take_flood(receiver: &mut Receiver) -> Done {
    let longest = receiver.max_message();
    let mut got = Vec::new();
    for number in 0.. {
        if number % 2 == 0 {
            receiver.receive(&mut got, deadline()).doing("receive one of a flood")?;
        } else {
            got.clear();
            receiver.read(deadline(), |message| message.append_to(&mut got)).doing("read one in place")?;
        }
        if got == end(number) {
            return Ok(());
        }
        check(&got, number, longest)?;
    }
    Ok(())
}

/// Two threads at each end: one floods, the other takes.
pub(crate) fn both(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    let longest = sender.max_message();
    std::thread::scope(|scope| {
        let floods = scope.spawn(move || {
            for number in 0..FLOOD {
                send(&mut sender, &message(number, longest))?;
            }
            send(&mut sender, &end(FLOOD))?;
            // Whoever lets go of a half closes both.
            Ok(sender)
        });
        let taken = take_flood(&mut receiver);
        let sender = floods.join().unwrap_or_else(|_| Err(Failure::wrong("a thread panicked")));
        taken?;
        let mut sender = sender?;
        // Neither end closes before both have said that they are done.
        send(&mut sender, b"done")?;
        ensure(receive(&mut receiver)? == b"done", || "something came behind the end".into())?;
        match receiver.receive(&mut Vec::new(), Some(Instant::now() + crate::closing::LINGER)) {
            Err(_) => Ok(()),
            Ok(length) => Err(Failure::Wrong(format!("{length} bytes came behind the end"))),
        }
    })
}

/// As long as some rings: it can't ever be in the ring as a whole.
fn large(number: u64, max_message: usize) -> Vec<u8> {
    bytes(number, max_message * 5 + (mix(number) % 1000) as usize)
}

pub(crate) fn sends_pieces(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    let max_message = sender.max_message();
    ensure(receive(&mut receiver)? == b"I take them", || "the other end says something else".into())?;
    for number in 0..LARGE {
        if number == LARGE / 2 {
            // Its time is over before it has begun; whatever went of it is abandoned.
            match sender.send(&large(u64::MAX, max_message), Some(Instant::now())) {
                Err(SendError::TimedOut) => {}
                other => return Err(Failure::Wrong(format!("a message out of time: {other:?}"))),
            }
        }
        send(&mut sender, &large(number, max_message))?;
    }
    ensure(receive(&mut receiver)? == b"all there", || "the other end says something else".into())
}

pub(crate) fn takes_pieces(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    let max_message = receiver.max_message();
    receiver.set_message_limit(max_message * 6 + 1000);
    send(&mut sender, b"I take them")?;
    for number in 0..LARGE {
        let got = receive(&mut receiver)?;
        ensure(got == large(number, max_message), || {
            format!("message {number} in pieces came as {} other bytes", got.len())
        })?;
    }
    send(&mut sender, b"all there")
}
