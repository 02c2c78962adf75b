//! From the first contact of two processes to the first answer: connect, and whatever has to be
//! made and passed before a message goes there and one comes back.

use super::meeting::{Meeting, Place};
use super::task::{MORE, Means, Role, Tale, Task};
use super::transport::{Tombolo, Transport};
use super::work::{Talk, Usage};
use crate::histogram::Latencies;
use crate::talk::say;
use channel::{End, ReceiveError};
use session::{Control, Offer};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use sys::clock::clock_ns;

/// How long the daemon may take for one thing.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The entrance that a program names to the daemon: the program itself, no entrance of ours.
const ENTRANCE: &str = "api";

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
        Means::Service { opening, name, .. } => {
            let end = open_by_daemon(opening, name);
            let mut here = Tombolo::of(end?, task.bytes, true)?;
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

/// As a program of the domain does it: connect to the control socket, ask for the service, get an
/// end.
fn open_by_daemon(control: &Path, name: &str) -> io::Result<End> {
    let deadline = Instant::now() + TIMEOUT;
    let mut control = Control::connect(control).map_err(io::Error::other)?;
    let opened = control.connect_waiting(name, ENTRANCE, (0, TIMEOUT.as_millis() as u32), deadline);
    Ok(opened.map_err(io::Error::other)?.1)
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
    let mut door = Door::open(task, place)?;
    let port = door.port()?;
    meeting.give::<OwnedFd>(port.to_string().as_bytes(), &[])?;
    if !talk.primed()? {
        return Ok(Tale::default());
    }
    let usage = Usage::now()?;
    for _ in 0..times {
        door.answer_first(task)?;
        meeting.together(Role::Follow)?;
    }
    usage.since(Tale::default())
}

/// Where the follower is found.
enum Door {
    Path(Place),
    Port(TcpListener),
    Service(Box<Offer>),
}

impl Door {
    fn open(task: &Task, place: Place) -> io::Result<Self> {
        match &task.means {
            Means::Tcp(address) => Ok(Self::Port(TcpListener::bind((address.as_str(), 0))?)),
            Means::Service { offering, name, .. } => {
                let offer = Offer::at(offering, name, Instant::now() + TIMEOUT);
                Ok(Self::Service(Box::new(offer.map_err(io::Error::other)?)))
            }
            _ => Ok(Self::Path(place)),
        }
    }

    fn port(&self) -> io::Result<u16> {
        match self {
            Self::Port(listener) => listener.local_addr().map(|at| at.port()),
            _ => Ok(0),
        }
    }

    /// Lets the next one in, and answers its first message.
    fn answer_first(&mut self, task: &Task) -> io::Result<()> {
        match (self, &task.means) {
            (Self::Path(place), &Means::Tombolo { spin, ring_bytes, .. }) => {
                let mut meeting = place.meet()?;
                let (mut here, _) = Tombolo::make(&mut meeting, task.bytes, spin, ring_bytes)?;
                answer(&mut here, task.bytes)?;
                // It stays until the other has the answer.
                meeting.until_gone()
            }
            (Self::Path(place), Means::Unix) => echo(place.meet()?.into_stream(), task.bytes),
            (Self::Port(listener), _) => {
                let stream = listener.accept()?.0;
                stream.set_nodelay(true)?;
                echo(stream, task.bytes)
            }
            (Self::Service(offer), _) => {
                let (end, _) = offer.accept(Some(Instant::now() + TIMEOUT)).map_err(io::Error::other)?;
                let mut here = Tombolo::of(end, task.bytes, true)?;
                answer(&mut here, task.bytes)?;
                until_closed(&mut here)
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

fn answer(here: &mut Tombolo, bytes: usize) -> io::Result<()> {
    black_box(here.receive()?);
    here.send(&vec![MORE; bytes])?;
    here.flush()
}

/// Waits until the other end is gone: then it has the answer.
fn until_closed(here: &mut Tombolo) -> io::Result<()> {
    match here.halves().1.wait(Some(Instant::now() + TIMEOUT)) {
        Err(ReceiveError::Closed) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
        Ok(()) => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn echo(mut stream: impl Read + Write, bytes: usize) -> io::Result<()> {
    let mut message = vec![MORE; bytes];
    stream.read_exact(&mut message)?;
    stream.write_all(&message)?;
    // The end of the stream: the other has the answer.
    if stream.read(&mut message)? == 0 { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
