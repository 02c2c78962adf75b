//! The jobs of a domain's process with its end of a channel. Each says on standard output how far
//! it is.

use std::time::{Duration, Instant};

use channel::{Config, ReceiveError};
use xen::End;

use crate::Failure;
use crate::measures::{Half, What};

mod hostile;
mod measure;
mod suite;

/// How long one waits for what is about to come: on emulated processors of which others may want
/// the time.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Messages of a talk: some that fill the ring, and several rounds of it.
const MESSAGES: usize = 120;
/// Channels one after the other: with 33 pages each more than the 1,024 that a domain may grant at
/// a time.
pub(crate) const ROUNDS: u8 = 40;
/// Bytes of rings: a region has a page more than two of them have.
const SIZES: [u32; 9] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// How long nothing comes.
const IDLE: Duration = Duration::from_secs(2);
/// Bytes of a ring in most jobs.
const RING_BYTES: u32 = 64 << 10;

/// Runs one job.
pub fn run(name: &str, arguments: &[&str]) -> Result<(), Failure> {
    if let (Some(half), [way, peer, channel, what]) = (half(name), arguments) {
        return measure::run(way, half, peer.parse()?, channel, What::parse(what)?);
    }
    let [how, peer, channel] = arguments else {
        return Err("a job is told how, with whom, by what name".into());
    };
    let peer = peer.parse()?;
    match name {
        "suite-near" => return suite::run(true, how, peer, channel),
        "suite-far" => return suite::run(false, how, peer, channel),
        "many" => return many(how, peer, channel),
        "many-closed" => return many_closed(how, peer, channel),
        "many-sizes" => return many_sizes(how, peer, channel),
        "unopened" => return unopened(peer, channel),
        "hoard" => return hostile::hoards(how, peer, channel),
        "shed" => return hostile::sheds(peer, channel),
        "cling" => return hostile::clings(peer, channel),
        "bad-directory" => return hostile::bad_directory(how, peer),
        _ => {}
    }
    let end = end(how, peer, channel)?;
    println!("there");
    match name {
        "echo" => echo(end),
        "talk" => talk(end),
        "wait" => wait(end),
        "hold" => hold(end),
        "idle" => idle(end),
        "flood" => hostile::floods(&end),
        "stand-flood" => hostile::stands_a_flood(end),
        "scribble" => hostile::scribbles(&end),
        "stand-scribbles" => hostile::stands_scribbles(end),
        _ => Err(format!("no such job: {name}").into()),
    }
}

fn half(name: &str) -> Option<Half> {
    match name {
        "measure-server" => Some(Half::Server),
        "measure-client" => Some(Half::Client),
        _ => None,
    }
}

pub(crate) fn end(how: &str, peer: u16, name: &str) -> Result<End, Failure> {
    if how == "offer" {
        return offer(peer, name, RING_BYTES);
    }
    println!("looking");
    Ok(xen::open(peer, name, Some(Instant::now() + TIMEOUT))?)
}

fn offer(peer: u16, name: &str, ring_bytes: u32) -> Result<End, Failure> {
    Ok(xen::offer(peer, name, &Config { ring_bytes, ..Config::default() })?)
}

pub(crate) fn soon() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

/// Sends back what comes, until no more does.
fn echo(end: End) -> Result<(), Failure> {
    let (mut sender, mut receiver) = end.open()?;
    let mut message = Vec::new();
    loop {
        message.clear();
        match receiver.receive(&mut message, soon()) {
            Ok(_) => sender.send(&message, soon())?,
            Err(ReceiveError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends messages of many lengths, and wants each back.
fn talk(end: End) -> Result<(), Failure> {
    let (mut sender, mut receiver) = end.open()?;
    let longest = RING_BYTES as usize / 2 - 8;
    let mut back = Vec::new();
    for round in 0..MESSAGES {
        let length = (round * 7919) % (longest + 1);
        let message: Vec<u8> = (0..length).map(|at| (at ^ round) as u8).collect();
        sender.send(&message, soon())?;
        back.clear();
        receiver.receive(&mut back, soon())?;
        if back != message {
            return Err(
                format!("message {round} of {length} bytes came back as {} others", back.len()).into()
            );
        }
    }
    Ok(())
}

/// Waits for a message that never comes, and says how that ends.
fn wait(end: End) -> Result<(), Failure> {
    let (_sender, mut receiver) = end.open()?;
    match receiver.receive(&mut Vec::new(), soon()) {
        Err(ReceiveError::Closed) => {
            println!("closed");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// Has it, and does nothing until it is killed.
fn hold(end: End) -> Result<(), Failure> {
    let _both = end.open()?;
    loop {
        std::thread::park();
    }
}

/// Opens and closes a channel as often as would take more pages than a domain may grant, if some
/// stayed behind.
fn many(how: &str, peer: u16, name: &str) -> Result<(), Failure> {
    for round in 0..ROUNDS {
        let (mut sender, mut receiver) = end(how, peer, name)?.open()?;
        if how == "offer" {
            sender.send(&[round], soon())?;
            let over = receiver.receive(&mut Vec::new(), soon());
            if !matches!(over, Err(ReceiveError::Closed)) {
                return Err(format!("round {round}: {over:?}").into());
            }
        } else {
            let mut message = Vec::new();
            receiver.receive(&mut message, soon())?;
            if message != [round] {
                return Err(format!("round {round} got {message:?}").into());
            }
        }
    }
    Ok(())
}

/// Offers a channel as often, to somebody who closes it at once.
fn many_closed(how: &str, peer: u16, name: &str) -> Result<(), Failure> {
    for round in 0..ROUNDS {
        let (_sender, mut receiver) = end(how, peer, name)?.open()?;
        let over = receiver.receive(&mut Vec::new(), soon());
        if !matches!(over, Err(ReceiveError::Closed)) {
            return Err(format!("round {round}: {over:?}").into());
        }
    }
    Ok(())
}

/// A channel of each size after the other, twice: all that they had together is more than one
/// domain may have.
fn many_sizes(how: &str, peer: u16, name: &str) -> Result<(), Failure> {
    for ring_bytes in SIZES.into_iter().chain(SIZES) {
        let end = if how == "offer" { offer(peer, name, ring_bytes)? } else { end(how, peer, name)? };
        let (mut sender, mut receiver) = end.open()?;
        if how == "open" {
            sender.send(b"here", soon())?;
        } else {
            receiver.receive(&mut Vec::new(), soon())?;
            let over = receiver.receive(&mut Vec::new(), soon());
            if !matches!(over, Err(ReceiveError::Closed)) {
                return Err(format!("{ring_bytes} bytes: {over:?}").into());
            }
        }
    }
    Ok(())
}

/// Offers channels that nobody opens, of more pages together than may be granted.
fn unopened(peer: u16, name: &str) -> Result<(), Failure> {
    (0..ROUNDS).try_for_each(|_| end("offer", peer, name).map(drop))
}

/// Sleeps for messages that do not come, and costs nothing meanwhile.
fn idle(end: End) -> Result<(), Failure> {
    let (mut sender, mut receiver) = end.open()?;
    let mut message = Vec::new();
    sender.send(b"", soon())?;
    receiver.receive(&mut message, soon())?;
    let before = processor_time();
    let late = receiver.receive(&mut message, Some(Instant::now() + IDLE));
    let spent = processor_time() - before;
    // The other may be a little earlier.
    if !matches!(late, Err(ReceiveError::TimedOut | ReceiveError::Closed)) || spent > IDLE / 20 {
        return Err(format!("{late:?}, and {} ms of processor time", spent.as_millis()).into());
    }
    Ok(())
}

/// The processor time that this process has used.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
