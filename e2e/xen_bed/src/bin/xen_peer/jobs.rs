//! What a process of a domain does with its end of a channel. Each says on standard output how far it is.

use std::time::{Duration, Instant};

use channel::{Config, ReceiveError};
use xen::End;

use crate::Failure;

/// How long one waits for what is about to come: on emulated processors of which others may want the time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Messages of a talk: some that fill the ring, and several rounds of it.
const MESSAGES: usize = 120;
/// Bytes of a ring in most jobs.
const RING_BYTES: u32 = 64 << 10;

/// Runs one job.
pub fn run(name: &str, arguments: &[&str]) -> Result<(), Failure> {
    let [how, peer, channel] = arguments else {
        return Err("a job is told how, with whom, by what name".into());
    };
    let end = end(how, peer.parse()?, channel)?;
    println!("there");
    match name {
        "echo" => echo(end),
        "talk" => talk(end),
        "wait" => wait(end),
        "hold" => hold(end),
        _ => Err(format!("no such job: {name}").into()),
    }
}

fn end(how: &str, peer: u16, name: &str) -> Result<End, Failure> {
    if how == "offer" {
        let config = Config { ring_bytes: RING_BYTES, ..Config::default() };
        return Ok(xen::offer(peer, name, &config)?);
    }
    println!("looking");
    Ok(xen::open(peer, name, Some(Instant::now() + PATIENCE))?)
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
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
