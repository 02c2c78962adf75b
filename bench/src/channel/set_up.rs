//! From the first contact of two processes to the first answer: connect, and whatever has to be made and passed before
//! a message goes there and one comes back.

use super::meeting::{Meeting, Place};
use super::task::{MORE, Means, Role, Tale, Task};
use super::transport::{Tombolo, Transport};
use super::work::{Talk, Usage};
use crate::histogram::Latencies;
use crate::talk::say;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use sys::clock::clock_ns;

/// Sets up and takes down, again and again; the leader measures.
///
/// # Errors
/// Where something can't be made, and `Unsupported` for means without an idea of connecting.
pub fn run(task: &Task, times: u32, talk: &mut Talk<'_>) -> io::Result<Tale> {
    match task.role {
        Role::Lead => lead(task, times, talk),
        Role::Follow => follow(task, times, talk),
    }
}

fn lead(task: &Task, times: u32, talk: &mut Talk<'_>) -> io::Result<Tale> {
    let mut meeting = Meeting::go(&task.meeting)?;
    let (word, _) = meeting.take(0)?;
    let port = String::from_utf8_lossy(&word).parse().unwrap_or(0);
    if !talk.primed()? {
        return Ok(Tale::default());
    }
    let usage = Usage::now()?;
    let mut tale = Tale::default();
    let mut latencies = Latencies::new();
    for _ in 0..times {
        let begin = clock_ns();
        first_answer(task, port, &mut latencies, begin)?;
        tale.window_ns += clock_ns() - begin;
        tale.operations += 1;
        // The follower has taken its end down, too.
        meeting.together(Role::Lead)?;
    }
    usage.since(Tale { latencies, ..tale })
}

/// Connects, asks, gets an answer; what was made is gone afterwards, but that is not measured.
fn first_answer(task: &Task, port: u16, latencies: &mut Latencies, begin: u64) -> io::Result<()> {
    let done = |latencies: &mut Latencies| latencies.record(clock_ns() - begin);
    match &task.means {
        Means::Tombolo { spin, .. } => {
            let mut meeting = Meeting::go(&task.meeting)?;
            let mut here = Tombolo::take(&mut meeting, task.bytes, *spin)?;
            exchange(&mut here, task.bytes)?;
            done(latencies);
        }
        Means::Unix => {
            let mut stream = Meeting::go(&task.meeting)?.into_stream();
            exchange_bytes(&mut stream, task.bytes)?;
            done(latencies);
        }
        Means::Tcp(address) => {
            let mut stream = TcpStream::connect((address.as_str(), port))?;
            stream.set_nodelay(true)?;
            exchange_bytes(&mut stream, task.bytes)?;
            done(latencies);
        }
        _ => return Err(io::ErrorKind::Unsupported.into()),
    }
    Ok(())
}

fn exchange(transport: &mut impl Transport, bytes: usize) -> io::Result<()> {
    transport.send(&vec![MORE; bytes])?;
    transport.flush()?;
    black_box(transport.receive()?);
    Ok(())
}

fn exchange_bytes(stream: &mut (impl Read + Write), bytes: usize) -> io::Result<()> {
    let mut message = vec![MORE; bytes];
    stream.write_all(&message)?;
    stream.read_exact(&mut message)
}

fn follow(task: &Task, times: u32, talk: &mut Talk<'_>) -> io::Result<Tale> {
    let place = Place::make(&task.meeting)?;
    say(talk.output, "waiting")?;
    let mut meeting = place.meet()?;
    let listener = match &task.means {
        Means::Tcp(address) => Some(TcpListener::bind((address.as_str(), 0))?),
        _ => None,
    };
    let port = listener.as_ref().map_or(Ok(0), |listener| listener.local_addr().map(|at| at.port()))?;
    meeting.give::<OwnedFd>(port.to_string().as_bytes(), &[])?;
    if !talk.primed()? {
        return Ok(Tale::default());
    }
    let usage = Usage::now()?;
    for _ in 0..times {
        accept(task, &place, listener.as_ref())?;
        meeting.together(Role::Follow)?;
    }
    usage.since(Tale::default())
}

fn accept(task: &Task, place: &Place, listener: Option<&TcpListener>) -> io::Result<()> {
    match (&task.means, listener) {
        (&Means::Tombolo { spin, ring_bytes, .. }, _) => {
            let mut meeting = place.meet()?;
            let (mut here, _) = Tombolo::make(&mut meeting, task.bytes, spin, ring_bytes)?;
            black_box(here.receive()?);
            here.send(&vec![MORE; task.bytes])?;
            here.flush()?;
            // It stays until the other has the answer.
            meeting.until_gone()
        }
        (Means::Unix, _) => echo(place.meet()?.into_stream(), task.bytes),
        (Means::Tcp(_), Some(listener)) => {
            let stream = listener.accept()?.0;
            stream.set_nodelay(true)?;
            echo(stream, task.bytes)
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn echo(mut stream: impl Read + Write, bytes: usize) -> io::Result<()> {
    let mut message = vec![MORE; bytes];
    stream.read_exact(&mut message)?;
    stream.write_all(&message)?;
    // The end of the stream: the other has the answer.
    if stream.read(&mut message)? == 0 { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
