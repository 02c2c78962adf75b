//! One end of what is ours and the kernel's.

use super::copies::{Asked, Copies};
use super::means::{Means, Way};
use crate::channel::meeting::Meeting;
use crate::channel::stage::LINE;
use crate::channel::task::{LAST, Means as Chosen, Role, Tale, Task};
use crate::channel::transport::{Bytes, Job as _, Spinning, Transport};
use crate::channel::work::Messages;
use link::{Config, Event, Sent, Timing};
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use transport::{COMPRESSIONS, Dial, Events, Handle, Kind, Listener, Locator, Settings, Station, Tls};
use trust::Identity;
use wire::link::{Hello, Pair, TIPC_SERVICE, VERSION, VERSION_OLDEST};

/// Window and queue of a pair: two of the longest messages, and little more than a proxy has.
const WINDOW_BYTES: u32 = 640 << 10;
/// Longest message.
const MESSAGE_BYTES: u32 = 256 << 10;
/// Short messages are handed over so many at once, as a proxy hands over what lies in a channel.
const BATCH_MESSAGES: usize = 64;
/// Bytes of such a batch, at most.
const BATCH_BYTES: usize = 16 << 10;
/// So much of what was taken is told at once, at most: well below a window.
const TOLD_BYTES: usize = 64 << 10;
/// A silent peer is lost after so long: longer than any window of a bench.
const SILENCE_MS: u32 = 10_000;
/// How long an answer is looked for before who waits sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long anything may take that is not measured.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the buffer through which a link reads.
const INCOMING_BYTES: usize = 256 << 10;
/// The protocol that raw TLS names.
const PROTOCOL: &[u8] = b"tombolo-bench";

/// Makes this end, and does the job with it.
///
/// # Errors
/// Where it can't be made, among them `Unsupported` for means that need another worker; those of
/// the job.
pub fn with(task: &Task, meeting: &mut Meeting, job: Messages<'_, '_>) -> io::Result<Tale> {
    let Chosen::Link(means) = &task.means else {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this worker has the ways of `tombolo bench link`",
        ));
    };
    match &means.way {
        Way::Link { .. } => job.run(Linked::open(means, task, meeting)?),
        Way::Tcp => {
            let socket = socket(means, task.role, meeting)?;
            job.run(Bytes::new(socket.try_clone()?, socket, task.bytes))
        }
        Way::TcpSpinning => {
            let socket = socket(means, task.role, meeting)?;
            socket.set_nonblocking(true)?;
            let reader = Spinning::new(socket.try_clone()?, TIMEOUT);
            job.run(Bytes::new(reader, Spinning::new(socket, TIMEOUT), task.bytes))
        }
        Way::Tls => match task.role {
            Role::Lead => job.run(Stream::new(lead_tls(means, task, meeting)?, task.bytes)),
            Role::Follow => job.run(Stream::new(follow_tls(means, task, meeting)?, task.bytes)),
        },
        Way::Copies { transport, direction } => {
            job.run(Copies::open(means, task, (transport, *direction), meeting)?)
        }
        Way::Asked { tls: false, direction } => {
            job.run(Asked::new(socket(means, task.role, meeting)?, task, *direction))
        }
        Way::Asked { tls: true, direction } => match task.role {
            Role::Lead => job.run(Asked::new(lead_tls(means, task, meeting)?, task, *direction)),
            Role::Follow => job.run(Asked::new(follow_tls(means, task, meeting)?, task, *direction)),
        },
        Way::Grpc { .. } | Way::Zenoh => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "gRPC and zenoh are in `ipc-peer`"))
        }
    }
}

/// The identity of this worker.
///
/// # Errors
/// Where it is not there.
pub fn identity(means: &Means) -> io::Result<Identity> {
    Identity::load(&means.identity).map_err(io::Error::other)
}

/// A connection between the two workers.
///
/// # Errors
/// Those of the socket and of the meeting.
pub fn socket(means: &Means, role: Role, meeting: &mut Meeting) -> io::Result<TcpStream> {
    let stream = match role {
        Role::Lead => TcpStream::connect(place(means, meeting)?)?,
        Role::Follow => {
            let listener = TcpListener::bind((means.address, 0))?;
            tell(listener.local_addr()?, meeting)?;
            listener.accept()?.0
        }
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The leader hears at which port the follower listens.
///
/// # Errors
/// Where the follower is gone, or says something else.
pub fn place(means: &Means, meeting: &mut Meeting) -> io::Result<SocketAddr> {
    let (port, _) = meeting.take(0)?;
    let port = String::from_utf8_lossy(&port).parse().map_err(io::Error::other)?;
    Ok(SocketAddr::new(means.address, port))
}

/// The follower says at which port it listens.
///
/// # Errors
/// Where the leader is gone.
pub fn tell(address: SocketAddr, meeting: &mut Meeting) -> io::Result<()> {
    meeting.give::<OwnedFd>(address.port().to_string().as_bytes(), &[])
}

/// Where a follower's link listens: at any port of its address, or any instance of the service of
/// TIPC.
///
/// # Errors
/// `Other` for a transport that there is not.
pub fn anywhere(transport: &str, means: &Means) -> io::Result<Locator> {
    let locator = if transport == Kind::Tipc.name() {
        format!("{transport}:{TIPC_SERVICE}:0")
    } else {
        format!("{transport}:{}", SocketAddr::new(means.address, 0))
    };
    locator.parse().map_err(io::Error::other)
}

fn lead_tls(means: &Means, task: &Task, meeting: &mut Meeting) -> io::Result<impl Read + Write + use<>> {
    let config = identity(means)?.client(&[PROTOCOL]).map_err(io::Error::other)?;
    let name = trust::server_name(&means.peer).map_err(io::Error::other)?;
    let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
    Ok(StreamOwned::new(session, Buffered::new(socket(means, task.role, meeting)?)?))
}

fn follow_tls(means: &Means, task: &Task, meeting: &mut Meeting) -> io::Result<impl Read + Write + use<>> {
    let config = identity(means)?.server(&[PROTOCOL]).map_err(io::Error::other)?;
    let session = ServerConnection::new(config).map_err(io::Error::other)?;
    Ok(StreamOwned::new(session, Buffered::new(socket(means, task.role, meeting)?)?))
}

/// A socket that is read through a buffer as large as that of a link: raw TLS then makes as few
/// system calls for bulk.
struct Buffered {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Buffered {
    fn new(socket: TcpStream) -> io::Result<Self> {
        Ok(Self { reader: BufReader::with_capacity(INCOMING_BYTES, socket.try_clone()?), writer: socket })
    }
}

impl Read for Buffered {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into)
    }
}

impl Write for Buffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Messages of one size over what reads and writes.
struct Stream<S> {
    stream: S,
    message: Vec<u8>,
}

impl<S> Stream<S> {
    fn new(stream: S, bytes: usize) -> Self {
        Self { stream, message: vec![0; bytes] }
    }
}

impl<S: Read + Write> Transport for Stream<S> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(message)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        self.stream.read_exact(&mut self.message)?;
        Ok(&self.message)
    }
}

/// A link, driven by this thread while it waits.
struct Linked {
    handle: Handle,
    events: Events,
    pairs: Vec<Pair>,
    /// The index of the pair that sent last; the next one sends next.
    turn: usize,
    /// Came while room was waited for.
    came: VecDeque<(Pair, link::Messages)>,
    /// The messages that are taken from now; the first of them was handed out.
    now: Option<(Pair, link::Messages)>,
    /// Messages that were not handed over yet, one behind the other, and where each ends; of the
    /// only pair.
    batch: (Vec<u8>, Vec<usize>),
    /// Pairs on which the last message has come.
    ended: usize,
    /// Taken of a pair and not told yet: messages, and their bytes.
    taken: Option<(Pair, usize, usize)>,
    role: Role,
    // Last: it drives the others.
    runtime: Runtime,
}

impl Linked {
    fn open(means: &Means, task: &Task, meeting: &mut Meeting) -> io::Result<Self> {
        let Way::Link { transport, compression, spin } = &means.way else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let tls = Tls::of(&identity(means)?).map_err(io::Error::other)?;
        if transport == Kind::Ethernet.name() {
            tls.set_station(Some(Station::open(LINE)?));
        }
        let mut listener = None;
        let dial = match task.role {
            Role::Lead => {
                let (at, _) = meeting.take(0)?;
                let at = String::from_utf8_lossy(&at).parse().map_err(io::Error::other)?;
                Some(Dial { locators: vec![at], tls })
            }
            Role::Follow => {
                let bound = runtime.block_on(Listener::bind(anywhere(transport, means)?, tls))?;
                meeting.give::<OwnedFd>(bound.locator().to_string().as_bytes(), &[])?;
                listener = Some(bound);
                None
            }
        };
        let settings = Settings {
            peer: means.peer.clone(),
            link: config(task.role, means.pairs),
            compression: compression.parse().map_err(io::Error::other)?,
            dial,
            spin: if *spin { SPIN } else { Duration::ZERO },
        };
        let (handle, events, driver) = transport::start(settings).map_err(io::Error::other)?;
        runtime.spawn(driver.run());
        if let Some(mut listener) = listener {
            let handle = handle.clone();
            runtime.spawn(async move {
                while let Ok(connection) = listener.accept().await {
                    if handle.adopt(connection).is_err() {
                        break;
                    }
                }
            });
        }
        let mut linked = Self {
            handle,
            events,
            pairs: Vec::new(),
            turn: 0,
            came: VecDeque::new(),
            now: None,
            batch: (Vec::new(), Vec::new()),
            ended: 0,
            taken: None,
            role: task.role,
            runtime,
        };
        linked.make_pairs(means.pairs)?;
        linked.drive_until_together(meeting)?;
        Ok(linked)
    }

    /// The leader opens the pairs, the follower waits for them.
    fn make_pairs(&mut self, pairs: u32) -> io::Result<()> {
        let count = usize::try_from(pairs).unwrap_or(1);
        while self.pairs.len() < count {
            match self.next()? {
                Event::Up { .. } if self.role == Role::Lead => {
                    for _ in 0..count {
                        self.pairs.push(self.handle.open(b"bench").map_err(io::Error::other)?);
                    }
                }
                Event::Opened { pair, .. } => self.pairs.push(pair),
                Event::Up { .. } => {}
                other => return Err(unexpected(&other)),
            }
        }
        Ok(())
    }

    /// Waits until both have come this far, and drives the link meanwhile: the openings of the
    /// pairs are on their way.
    fn drive_until_together(&mut self, meeting: &mut Meeting) -> io::Result<()> {
        let (tell, told) = tokio::sync::oneshot::channel();
        let role = self.role;
        std::thread::scope(|scope| {
            // Nobody listens any more only if the runtime has failed, which is told below.
            scope.spawn(|| tell.send(meeting.together(role)).is_ok());
            self.runtime.block_on(told).map_err(io::Error::other)?
        })
    }

    /// A message was taken. It is told with others of its pair, before anything is waited for.
    fn consume(&mut self, pair: Pair, bytes: usize) {
        match &mut self.taken {
            Some((of, messages, sum)) if *of == pair && *sum < TOLD_BYTES => {
                *messages += 1;
                *sum += bytes;
            }
            taken => {
                let before = taken.replace((pair, 1, bytes));
                if let Some((pair, messages, bytes)) = before {
                    self.handle.consumed_all(pair, messages, bytes);
                }
            }
        }
    }

    fn next(&mut self) -> io::Result<Event> {
        if let Some(event) = self.events.try_next() {
            return Ok(event);
        }
        if let Some((pair, messages, bytes)) = self.taken.take() {
            self.handle.consumed_all(pair, messages, bytes);
        }
        let events = &mut self.events;
        let next = self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, events.next()).await });
        next.map_err(|_| io::ErrorKind::TimedOut)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Waits for messages.
    fn take(&mut self) -> io::Result<()> {
        let (pair, messages) = match self.came.pop_front() {
            Some(came) => came,
            None => match self.next()? {
                Event::Messages { pair, messages } => (pair, messages),
                Event::Room(_) => return Ok(()),
                other => return Err(unexpected(&other)),
            },
        };
        self.now = Some((pair, messages));
        Ok(())
    }

    fn send_on(&mut self, pair: Pair, message: &[u8]) -> io::Result<()> {
        while self.handle.send(pair, message).map_err(io::Error::other)? == Sent::Full {
            self.await_room()?;
        }
        Ok(())
    }

    fn await_room(&mut self) -> io::Result<()> {
        loop {
            match self.next()? {
                Event::Room(_) => return Ok(()),
                Event::Messages { pair, messages } => self.came.push_back((pair, messages)),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Puts a message behind those that go with it.
    fn gather(&mut self, message: &[u8]) -> io::Result<()> {
        let (bytes, ends) = &mut self.batch;
        bytes.extend_from_slice(message);
        ends.push(bytes.len());
        let full = ends.len() == BATCH_MESSAGES || bytes.len() + message.len() > BATCH_BYTES;
        if full { self.hand_over() } else { Ok(()) }
    }

    /// Hands over what was gathered.
    fn hand_over(&mut self) -> io::Result<()> {
        let (bytes, ends) = std::mem::take(&mut self.batch);
        let Some(pair) = self.pairs.first().copied().filter(|_| !ends.is_empty()) else { return Ok(()) };
        let (mut begin, mut handed) = (0, 0);
        while handed < ends.len() {
            let rest = ends.get(handed..).unwrap_or_default().iter();
            let messages = rest.scan(begin, |from, end| bytes.get(std::mem::replace(from, *end)..*end));
            let queued = self.handle.send_all(pair, messages).map_err(io::Error::other)?;
            handed += queued;
            begin = handed.checked_sub(1).and_then(|last| ends.get(last)).copied().unwrap_or(0);
            if queued == 0 {
                self.await_room()?;
            }
        }
        self.batch = (bytes, ends);
        self.batch.0.clear();
        self.batch.1.clear();
        Ok(())
    }
}

fn unexpected(event: &Event) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the link said {event:?}"))
}

fn config(role: Role, pairs: u32) -> Config {
    let hello = Hello {
        oldest: VERSION_OLDEST,
        newest: VERSION,
        side: u8::from(role == Role::Follow),
        compressions: COMPRESSIONS,
        pairs,
        window_bytes: WINDOW_BYTES,
        message_bytes: MESSAGE_BYTES,
        silence_ms: SILENCE_MS,
    };
    let queue_bytes = usize::try_from(WINDOW_BYTES).unwrap_or(usize::MAX);
    Config { epoch: 1, hello, queue_bytes, timing: Timing::default() }
}

impl Transport for Linked {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if self.pairs.len() == 1 && message.len() <= BATCH_BYTES / 2 {
            return self.gather(message);
        }
        self.hand_over()?;
        if message.first() == Some(&LAST) {
            // The last of all pairs: what was sent before it may be on any of them.
            return self.pairs.clone().into_iter().try_for_each(|pair| self.send_on(pair, message));
        }
        self.turn = (self.turn + 1) % self.pairs.len().max(1);
        let pair = self.pairs.get(self.turn).copied().ok_or(io::ErrorKind::NotConnected)?;
        self.send_on(pair, message)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hand_over()
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        self.hand_over()?;
        loop {
            if let Some((_, messages)) = &mut self.now {
                messages.pass();
            }
            while self.now.as_ref().is_none_or(|(_, messages)| messages.count() == 0) {
                self.take()?;
            }
            let first = self.now.as_ref().and_then(|(pair, messages)| Some((*pair, messages.first()?)));
            let Some((pair, bytes, last)) =
                first.map(|(pair, message)| (pair, message.len(), message.first() == Some(&LAST)))
            else {
                continue;
            };
            self.consume(pair, bytes);
            self.ended += usize::from(last);
            if !last || self.ended == self.pairs.len() {
                break;
            }
        }
        let message = self.now.as_ref().and_then(|(_, messages)| messages.first());
        message.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        // The leader has the last answer, and says so; until then the follower's is on its way.
        if self.role == Role::Lead {
            self.handle.goodbye(0);
        }
        let events = &mut self.events;
        let end = async { while events.next().await.is_some() {} };
        let ended = self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, end).await });
        if ended.is_err() {
            eprintln!("the link did not end in time");
        }
    }
}
