//! Clients of gpsd's protocol, and those that read bare NMEA 0183, at ports of this domain's own
//! `lo`. One thread has all of them.

use crate::desk::Desk;
use location::{Fix, gpsd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// Clients at the same time, at both ports: most. Each has two buffers.
const CLIENTS_MAX: usize = 64;
/// A client that does not read loses its connection at so many bytes: a minute of positions, ten a
/// second.
const OUT_BYTES_MAX: usize = 256 << 10;
/// Positions that wait for the thread: more of them would be old ones.
const QUEUE_MAX: usize = 64;
/// How long nobody is accepted after that failed: without descriptors or memory the listener would
/// be ready again and again.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A position and the name of its source.
type Position = (String, Fix);

/// The way to the thread. Clones lead to the same one.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    queue: Arc<Mutex<VecDeque<Position>>>,
    bell: Arc<UnixStream>,
}

#[derive(Debug)]
struct Client {
    socket: TcpStream,
    wishes: gpsd::Client,
    /// Whether what it says is a request; those that read bare sentences are not listened to.
    answers: bool,
    out: VecDeque<u8>,
}

impl Hub {
    /// Listens at these ports, and serves whoever comes until the process ends.
    ///
    /// # Errors
    /// Where a port is taken, with its number.
    pub(crate) fn start(ports: [Option<u16>; 2], desk: Desk) -> Result<Self, String> {
        let listen = |port: Option<u16>| port.map(listener).transpose();
        let listeners = [listen(ports[0])?, listen(ports[1])?];
        let (bell, answered) = UnixStream::pair().map_err(|error| format!("can't make sockets: {error}"))?;
        for end in [&bell, &answered] {
            end.set_nonblocking(true).map_err(|error| format!("can't make sockets: {error}"))?;
        }
        let this = Self { queue: Arc::default(), bell: Arc::new(bell) };
        let queue = Arc::clone(&this.queue);
        let serve =
            move || Room { listeners, answered, queue, desk, clients: Vec::new(), rests: false }.run();
        let started = std::thread::Builder::new().name("gpsd".into()).spawn(serve);
        started.map_err(|error| format!("can't start a thread: {error}"))?;
        Ok(this)
    }

    /// Tells all clients of a position.
    pub(crate) fn push(&self, source: &str, fix: Fix) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() == QUEUE_MAX {
            queue.pop_front();
        }
        queue.push_back((source.to_owned(), fix));
        drop(queue);
        // A bell that is full has rung.
        let _rung = (&*self.bell).write(&[1]);
    }
}

fn listener(port: u16) -> Result<TcpListener, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .map_err(|error| format!("port {port} of the domain's `lo`: {error}"))?;
    listener.set_nonblocking(true).map_err(|error| format!("port {port}: {error}"))?;
    Ok(listener)
}

struct Room {
    /// Of gpsd's protocol, and of NMEA.
    listeners: [Option<TcpListener>; 2],
    answered: UnixStream,
    queue: Arc<Mutex<VecDeque<Position>>>,
    desk: Desk,
    clients: Vec<Client>,
    /// Whether nobody could be accepted a moment ago.
    rests: bool,
}

impl Room {
    fn run(mut self) {
        loop {
            if let Err(error) = self.wait() {
                // poll(2) fails where there is no memory; the next position tries again.
                tracing::warn!(%error, "clients of positions are not waited for");
                std::thread::yield_now();
            }
            self.answer_bell();
            self.admit();
            self.serve();
        }
    }

    fn wait(&self) -> io::Result<()> {
        let is_full = self.rests || self.clients.len() >= CLIENTS_MAX;
        let mut all = vec![PollFd::new(&self.answered, PollFlags::IN)];
        all.extend(
            self.listeners.iter().flatten().filter(|_| !is_full).map(|one| PollFd::new(one, PollFlags::IN)),
        );
        all.extend(self.clients.iter().map(|client| {
            let out = if client.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::new(&client.socket, PollFlags::IN | out)
        }));
        rustix::io::retry_on_intr(|| poll(&mut all, self.rests.then_some(&REST)))?;
        Ok(())
    }

    fn answer_bell(&mut self) {
        let mut rung = [0; 64];
        while matches!((&self.answered).read(&mut rung), Ok(count) if count == rung.len()) {}
        let positions = std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner));
        for (source, fix) in &positions {
            for client in &mut self.clients {
                client.out.extend(client.wishes.told(source, fix).bytes());
            }
        }
    }

    fn admit(&mut self) {
        self.rests = false;
        for (place, listener) in self.listeners.iter().enumerate() {
            let Some(listener) = listener else { continue };
            while self.clients.len() < CLIENTS_MAX {
                let socket = match listener.accept() {
                    Ok((socket, _)) => socket,
                    Err(error) => {
                        self.rests |= error.kind() != ErrorKind::WouldBlock;
                        break;
                    }
                };
                if socket.set_nonblocking(true).is_err() {
                    continue;
                }
                let answers = place == 0;
                let wishes = if answers { gpsd::Client::default() } else { gpsd::Client::listener() };
                let greeting = if answers { gpsd::version() } else { String::new() };
                self.clients.push(Client { socket, wishes, answers, out: greeting.into_bytes().into() });
            }
        }
    }

    fn serve(&mut self) {
        let desk = &self.desk;
        self.clients.retain_mut(|client| client.serve(desk));
    }
}

impl Client {
    /// Reads once and writes what goes without waiting: one that never stops holds up nobody else.
    /// `false`: it is over.
    fn serve(&mut self, desk: &Desk) -> bool {
        let mut bytes = [0; 1024];
        match self.socket.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) if self.answers => {
                let answer = desk.known(|known| self.wishes.take(&bytes[..count], known));
                let Ok(answer) = answer else { return false };
                self.out.extend(answer.bytes());
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return false,
        }
        self.write() && self.out.len() <= OUT_BYTES_MAX
    }

    fn write(&mut self) -> bool {
        while !self.out.is_empty() {
            match self.socket.write(self.out.as_slices().0) {
                Ok(0) => return false,
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // in a test, a panic is a message
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::net::Shutdown;
    use wire::location::Settings;

    fn hub() -> (Hub, u16) {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = Settings {
            sources: vec![],
            accuracy_m: 10,
            hold_ms: 0,
            timeout_ms: 1_000,
            gpsd_port: Some(free),
            nmea_port: None,
        };
        (Hub::start([Some(free), None], Desk::new(&settings)).unwrap(), free)
    }

    #[test]
    fn one_that_never_stops_holds_up_nobody_and_who_has_said_all_is_answered() {
        let (hub, port) = hub();
        let mut flood = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // It ends when its connection does: it reads no answer.
        let flooding = std::thread::spawn(move || while flood.write_all(&b"?POLL;".repeat(1_000)).is_ok() {});
        let watcher = TcpStream::connect(("127.0.0.1", port)).unwrap();
        (&watcher).write_all(b"?WATCH={\"enable\":true,\"json\":true};").unwrap();
        let mut lines = BufReader::new(&watcher).lines().map(Result::unwrap);
        let mut next =
            |class: &str| lines.find(|line| line.contains(&format!("\"class\":\"{class}\""))).unwrap();
        next("WATCH");
        let fix = Fix {
            time_ms: 0,
            latitude: 48.0,
            longitude: 11.0,
            altitude_m: None,
            speed_mps: None,
            course_deg: None,
            accuracy_m: 3.0,
        };
        hub.push("gps", fix);
        assert!(next("TPV").contains("\"device\":\"gps\""));
        let once = TcpStream::connect(("127.0.0.1", port)).unwrap();
        (&once).write_all(b"?DEVICES;").unwrap();
        once.shutdown(Shutdown::Write).unwrap();
        let said: Vec<String> = BufReader::new(&once).lines().map(Result::unwrap).collect();
        assert!(said.len() == 2 && said[1].contains("DEVICES"), "{said:?}");
        flooding.join().unwrap();
    }
}
