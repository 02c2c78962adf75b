//! A client on a stream: DNS over TCP, or varlink on a Unix socket. Bounded in what it may send and
//! leave unread.

use rustix::event::epoll::EventFlags;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Most clients of one kind at a time; more are sent away.
pub const MAX_CLIENTS: usize = 64;
/// How long a client may be silent while nothing is outstanding (RFC 7766 section 6.2.3).
pub const IDLE_LIMIT: Duration = Duration::from_secs(10);
/// Requests of one TCP client that may be outstanding; more stay unread.
const MAX_PIPELINED: usize = 16;
/// Longest message of a varlink client: a name and some flags.
const MAX_CALL_BYTES: usize = 4096;
/// Most unread answers of one client: the longest DNS message and some.
const MAX_UNREAD_BYTES: usize = 128 * 1024;
/// Bytes read at once.
const READ_BYTES: usize = 4096;

/// The bytes on the way.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A client.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Requests without an answer.
    pub outstanding: usize,
    /// The events that the loop watches it for.
    pub watched: EventFlags,
    /// It sends no more.
    ended: bool,
    active: Instant,
}

/// The client is gone, or broke the framing, or leaves its answers unread.
#[derive(Debug)]
pub struct Hopeless;

impl Client {
    /// Of the stub.
    pub fn tcp(socket: TcpStream, now: Instant) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self::over(Socket::Tcp(socket), now))
    }

    /// Of the resolver socket.
    pub fn unix(socket: UnixStream, now: Instant) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self::over(Socket::Unix(socket), now))
    }

    fn over(socket: Socket, active: Instant) -> Self {
        Self {
            socket,
            input: Vec::new(),
            output: Vec::new(),
            outstanding: 0,
            watched: EventFlags::empty(),
            ended: false,
            active,
        }
    }

    /// Whether it is a client of the stub.
    pub fn is_dns(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }

    /// Reads some of what is there.
    pub fn read(&mut self, now: Instant) -> Result<(), Hopeless> {
        let mut chunk = [0; READ_BYTES];
        let read = match &mut self.socket {
            Socket::Tcp(socket) => socket.read(&mut chunk),
            Socket::Unix(socket) => socket.read(&mut chunk),
        };
        match read {
            Ok(0) => self.ended = true,
            Ok(bytes) => {
                if self.outstanding == 0 && self.input.is_empty() {
                    self.active = now;
                }
                self.input.extend_from_slice(chunk.get(..bytes).unwrap_or_default());
            }
            Err(error) if is_harmless(&error) => {}
            Err(_) => return Err(Hopeless),
        }
        Ok(())
    }

    /// The next whole message, without its frame, as far as the client may have one more
    /// outstanding.
    pub fn message(&mut self) -> Result<Option<Vec<u8>>, Hopeless> {
        if self.outstanding >= self.most_outstanding() {
            return Ok(None);
        }
        let (skip, length, frame) = if self.is_dns() {
            let Some(head) = self.input.first_chunk::<2>() else { return Ok(None) };
            let length = usize::from(u16::from_be_bytes(*head));
            (2, length, 2 + length)
        } else {
            match self.input.iter().position(|byte| *byte == 0) {
                Some(length) => (0, length, length + 1),
                None if self.input.len() > MAX_CALL_BYTES => return Err(Hopeless),
                None => return Ok(None),
            }
        };
        if self.input.len() < frame {
            return Ok(None);
        }
        let message = self.input.get(skip..skip + length).map(<[u8]>::to_vec);
        self.input.drain(..frame);
        Ok(message)
    }

    /// Sends a message, or keeps it until there is room. Framed as its kind wants it.
    pub fn send(&mut self, message: &[u8], now: Instant) -> Result<(), Hopeless> {
        if self.is_dns() {
            let length = u16::try_from(message.len()).map_err(|_| Hopeless)?;
            self.output.extend_from_slice(&length.to_be_bytes());
        }
        self.output.extend_from_slice(message);
        self.active = now;
        self.write()?;
        if self.output.len() > MAX_UNREAD_BYTES { Err(Hopeless) } else { Ok(()) }
    }

    /// Writes what there is room for.
    pub fn write(&mut self) -> Result<(), Hopeless> {
        while !self.output.is_empty() {
            let written = match &mut self.socket {
                Socket::Tcp(socket) => socket.write(&self.output),
                Socket::Unix(socket) => socket.write(&self.output),
            };
            match written {
                Ok(0) => return Err(Hopeless),
                Ok(bytes) => drop(self.output.drain(..bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(Hopeless),
            }
        }
        Ok(())
    }

    /// The events to watch it for.
    pub fn interest(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        if !self.ended && self.outstanding < self.most_outstanding() {
            flags |= EventFlags::IN;
        }
        if !self.output.is_empty() {
            flags |= EventFlags::OUT;
        }
        flags
    }

    /// Whether nothing more can come of it.
    pub fn is_done(&self) -> bool {
        self.ended && self.outstanding == 0 && self.output.is_empty()
    }

    /// When it has been silent for too long.
    pub fn deadline(&self) -> Option<Instant> {
        (self.outstanding == 0).then(|| self.active + IDLE_LIMIT)
    }

    fn most_outstanding(&self) -> usize {
        if self.is_dns() { MAX_PIPELINED } else { 1 }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// Whether an error says only "not now".
pub fn is_harmless(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
