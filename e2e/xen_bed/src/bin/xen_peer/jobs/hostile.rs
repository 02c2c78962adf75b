//! Peers that mean ill, and those who have to stand them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use channel::{Doorbell as _, ReceiveError, SendError};
use sys::xen::event::Port;
use sys::xen::grant::Memory;
use wire::xen::{self as layout, Offer};
use xen::End;

use crate::Failure;
use crate::jobs::{ROUNDS, end, soon};

/// How long a call is allowed to take.
const SHORT: Duration = Duration::from_millis(300);
/// How long it goes on.
const LONG: Duration = Duration::from_secs(2);
/// Calls that a peer's scribbles are stood for.
const CALLS: usize = 200;

/// A mark like any other.
const MARK: u64 = 77;

/// Rings all the time, without a message.
pub fn floods(end: &End) -> Result<(), Failure> {
    loop {
        end.data.ring()?;
        end.room.ring()?;
    }
}

/// Waits for messages and for room meanwhile: each wait ends with its deadline.
pub fn stands_a_flood(end: End) -> Result<(), Failure> {
    let (mut sender, mut receiver) = end.open()?;
    let soon = || Some(Instant::now() + SHORT);
    for _ in 0..3 {
        let late = receiver.receive(&mut Vec::new(), soon());
        if !matches!(late, Err(ReceiveError::TimedOut)) {
            return Err(format!("a wait for a message: {late:?}").into());
        }
    }
    let message = vec![0; sender.max_message()];
    let full = std::iter::repeat_with(|| sender.send(&message, soon())).find(Result::is_err);
    match full {
        Some(Err(SendError::TimedOut)) => Ok(()),
        other => Err(format!("a wait for room: {other:?}").into()),
    }
}

/// Writes any words anywhere in the region, and rings.
pub fn scribbles(end: &End) -> Result<(), Failure> {
    let words = end.region.len() as u64 / 8;
    let until = Instant::now() + LONG;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    while Instant::now() < until {
        for _ in 0..1000 {
            // xorshift64 (Marsaglia 2003)
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let offset = usize::try_from(random % words)? * 8;
            let value = if random & 0x100 == 0 { random } else { random % 4096 };
            end.region.store_u64(offset, value, Ordering::Relaxed);
        }
        end.data.ring()?;
        end.room.ring()?;
    }
    Ok(())
}

/// Uses the channel as if nothing were wrong. What it gets are messages, or errors that say so;
/// nothing else happens.
pub fn stands_scribbles(end: End) -> Result<(), Failure> {
    let (mut sender, mut receiver) = match end.open() {
        Ok(both) => both,
        // The header is the scribbler's as well.
        Err(refused) => {
            println!("refused at once: {refused}");
            return Ok(());
        }
    };
    let mut message = Vec::new();
    for _ in 0..CALLS {
        let soon = Some(Instant::now() + SHORT / 100);
        message.clear();
        let received = receiver.receive(&mut message, soon);
        let sent = sender.send(&[7; 100], soon);
        for (what, over) in [
            (
                format!("{received:?}"),
                matches!(received, Err(ReceiveError::Closed | ReceiveError::Corrupt(_))),
            ),
            (format!("{sent:?}"), matches!(sent, Err(SendError::Closed | SendError::Corrupt(_)))),
        ] {
            if over {
                println!("{what}");
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Opens channels one after the other and keeps the memory of each, but says that it lives no more.
pub fn hoards(how: &str, peer: u16, name: &str) -> Result<(), Failure> {
    for round in 0..ROUNDS {
        let End { region, data, room, life, .. } = end(how, peer, name)?;
        // Never unmapped while this runs.
        std::mem::forget(region);
        drop((data, room, life));
        println!("round {round}");
    }
    Ok(())
}

/// Channels that somebody may have, with 34 pages each, before it is to let go of one of them:
/// three quarters of what a domain may grant.
const CLUNG: u8 = 22;

/// Opens channels one after the other, and lets go of none.
pub fn clings(peer: u16, name: &str) -> Result<(), Failure> {
    for _ in 0..CLUNG {
        let (mut sender, receiver) = end("open", peer, name)?.open()?;
        sender.send(b"here", soon())?;
        std::mem::forget((sender, receiver));
    }
    println!("clings");
    loop {
        std::thread::park();
    }
}

/// Offers channels one after the other to somebody who clings to them, until that is refused;
/// others are offered some all the same.
pub fn sheds(peer: u16, name: &str) -> Result<(), Failure> {
    for _ in 0..CLUNG {
        let (sender, mut receiver) = end("offer", peer, name)?.open()?;
        receiver.receive(&mut Vec::new(), soon())?;
        drop((sender, receiver));
    }
    match end("offer", peer, name) {
        Err(refused) if refused.to_string().contains("three quarters") => println!("{refused}"),
        other => return Err(format!("one more: {:?}", other.map(drop)).into()),
    }
    end("offer", 0, name).map(drop)
}

/// Grants a directory that breaks a rule, and says what an offer of it would be.
pub fn bad_directory(kind: &str, peer: u16) -> Result<(), Failure> {
    let port = || Port::offer(peer);
    let (data, room, life) = (port()?, port()?, port()?);
    let mut memory = Memory::new(peer)?;
    memory.grow(1)?;
    let directory = &memory.map(0, 1)?;
    let mut words = [
        (layout::OFFSET_MAGIC, layout::MAGIC),
        (layout::OFFSET_VERSION, layout::VERSION),
        (layout::OFFSET_PAGES, 3),
        (layout::OFFSET_MARK, MARK),
        (layout::end(0) + layout::END_ALIVE, 1),
        (layout::end(0) + layout::END_CAME, 1),
    ];
    match kind {
        "magic" => words[0].1 = 7,
        "version" => words[1].1 += 1,
        "pages" => words[2].1 = 4,
        // All of them are zero, which is the grant of the console's.
        "references" => {}
        _ => return Err(format!("no such fault: {kind}").into()),
    }
    for (offset, value) in words {
        directory.store_u64(offset, value, Ordering::Release);
    }
    let reference = memory.references().first().copied().unwrap_or(0);
    let offer = Offer {
        directory: reference,
        data: data.number(),
        room: room.number(),
        life: life.number(),
        mark: MARK,
    };
    println!("{offer}");
    loop {
        std::thread::park();
    }
}
