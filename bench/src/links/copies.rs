//! Copies from and to a buffer that an endpoint of the other node has granted, one after the other.
//! Each node has a proxy process, as it has in a cluster; the workers stand in for both daemons and
//! both programs. Beside them: a question of some bytes that is answered by as many as a copy has,
//! or the other way round, over a socket, with TLS and without.

use super::means::{Direction, Means};
use super::transport::anywhere;
use crate::channel::meeting::Meeting;
use crate::channel::stage::LINE;
use crate::channel::task::{LAST, MORE, Role, Task};
use crate::channel::transport::Transport;
use channel::End;
use endpoint::{Access, Address, Buffer, Endpoint, GrantId, Options};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use session::packet;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wire::control::{EndpointAddress, GrantAccess, GrantedBuffer};
use wire::proxy::{Configure, Open, Order, Report, Station};

/// The program whose role a proxy is, beside the bench.
pub const PROGRAM: &str = "tombolo";
/// How long a copy may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a question, or of an answer, that carries nothing.
const WORD_BYTES: usize = 8;
/// The follower's endpoint, which has the buffer.
const OWNER: Address = Address { slot: 1 << 20 | 1, generation: 1 };
/// The leader's.
const GRANTEE: Address = Address { slot: 1, generation: 1 };
/// Number of the one grant.
const GRANT: u64 = 1 << 52 | 1;
/// The distributed container that both are of.
const CONTAINER: &str = "bench";

fn on_wire(Address { slot, generation }: Address) -> EndpointAddress {
    EndpointAddress { slot, generation }
}

/// A proxy of this node, with this worker in the place of its daemon; killed when dropped.
struct Proxy {
    child: Child,
    daemon: OwnedFd,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Proxy {
    /// Starts one, that is reached at a socket of this path.
    fn start(at: &Path, means: &Means) -> io::Result<Self> {
        let socket = || {
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        };
        let (listener, daemon, address) = (socket()?, socket()?, SocketAddrUnix::new(at)?);
        rustix::net::bind(&listener, &address)?;
        rustix::net::listen(&listener, 1)?;
        rustix::net::connect(&daemon, &address)?;
        let mut command = Command::new(&means.program);
        command.args(["proxy", &means.peer]).stdin(Stdio::from(listener)).stdout(Stdio::null());
        Ok(Self { child: command.spawn()?, daemon })
    }

    fn say(&self, order: &Order, descriptors: &[OwnedFd]) -> io::Result<()> {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        packet::send(&self.daemon, order, &descriptors).map_err(io::Error::other)
    }

    /// Waits until it says what is wanted.
    fn hear<T>(&self, wanted: impl Fn(Report) -> Option<T>) -> io::Result<T> {
        loop {
            match packet::receive::<Report>(&self.daemon).map_err(io::Error::other)?.message {
                Report::Refused { message: why, .. } | Report::Over { why } => {
                    return Err(io::Error::other(why));
                }
                report => {
                    if let Some(found) = wanted(report) {
                        return Ok(found);
                    }
                }
            }
        }
    }

    /// Has it speak with the other node's proxy; the leader's connects.
    fn join(&self, means: &Means, transport: &str, role: Role, meeting: &mut Meeting) -> io::Result<()> {
        let (node, listen, peer_at) = match role {
            Role::Lead => {
                ("lead", Vec::new(), vec![String::from_utf8_lossy(&meeting.take(0)?.0).into_owned()])
            }
            Role::Follow => ("follow", vec![anywhere(transport, means)?.to_string()], Vec::new()),
        };
        let (station, sockets) = if transport == "ethernet" { station()? } else { (None, Vec::new()) };
        let configure = Configure {
            node: node.into(),
            peer: means.peer.clone(),
            epoch: 1,
            identity: means.identity.to_string_lossy().into_owned(),
            listen,
            peer_at,
            transport: transport.into(),
            compression: "none".into(),
            station,
        };
        self.say(&Order::Configure(configure), &sockets)?;
        if role == Role::Follow {
            // By TIPC it listens a moment after it has said hello.
            let listens = self.hear(|report| match report {
                Report::Hello { listens: at, .. } | Report::Listening { at } => {
                    Some(at).filter(|at| !at.is_empty())
                }
                _ => None,
            })?;
            let at = listens.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
            meeting.give::<OwnedFd>(at.as_bytes(), &[])?;
        }
        self.hear(|report| matches!(report, Report::Up { .. }).then_some(()))
    }
}

/// Sockets for frames of Ethernet, and for what.
fn station() -> io::Result<(Option<Station>, Vec<OwnedFd>)> {
    let made = transport::Station::open(LINE)?;
    let (socket, covered) = made.sockets();
    let sockets = [Some(socket), covered].into_iter().flatten().map(|socket| socket.try_clone_to_owned());
    let sys::ethernet::Interface { name, index, mac, mtu } = made.interface().clone();
    let station = Station { interface: name, index, mac, mtu, number: format!("{:016x}", made.number()) };
    Ok((Some(station), sockets.collect::<io::Result<_>>()?))
}

/// The memory that a side has of the buffer.
enum Memory {
    /// The follower's: kept as long as it is granted.
    Owned(#[allow(dead_code, reason = "a buffer that is dropped is granted no more")] Buffer),
    Granted(GrantId),
}

/// One end of the copies.
pub struct Copies<'a> {
    meeting: &'a mut Meeting,
    direction: Direction,
    endpoint: Endpoint,
    memory: Memory,
    message: Vec<u8>,
    _proxy: Proxy,
}

impl<'a> Copies<'a> {
    /// Brings the two together; the follower owns the buffer.
    ///
    /// # Errors
    /// Where a proxy can't be started, or says no.
    pub fn open(
        means: &Means,
        task: &Task,
        (transport, direction): (&str, Direction),
        meeting: &'a mut Meeting,
    ) -> io::Result<Self> {
        let proxy = Proxy::start(&task.meeting.with_extension(&means.peer), means)?;
        proxy.join(means, transport, task.role, meeting)?;
        let address = if task.role == Role::Lead { GRANTEE } else { OWNER };
        let mut endpoint = Endpoint::alone(address, &Options::default()).map_err(io::Error::other)?;
        let memory = match task.role {
            Role::Lead => borrow(&proxy, &mut endpoint)?,
            Role::Follow => lend(&proxy, &mut endpoint, task.bytes)?,
        };
        let message = vec![MORE; task.bytes];
        Ok(Self { meeting, direction, endpoint, memory, message, _proxy: proxy })
    }
}

/// Asks for what the other has granted.
fn borrow(proxy: &Proxy, endpoint: &mut Endpoint) -> io::Result<Memory> {
    let config = channel::Config { ring_bytes: wire::loan::RING_BYTES, ..channel::Config::default() };
    let (near, far): (End, End) = channel::pair(&config).map_err(io::Error::other)?;
    let open = Open::Grant {
        dc: CONTAINER.into(),
        grant: GRANT,
        from: on_wire(GRANTEE),
        name: String::new(),
        domain: "lead".into(),
    };
    proxy.say(&Order::Open { id: 1, open }, &Vec::from(far.into_descriptors()))?;
    proxy.hear(|report| matches!(report, Report::Opened { .. }).then_some(()))?;
    let grant = GrantId::new(GRANT);
    endpoint.take_loan_alone(grant, near).map_err(io::Error::other)?;
    Ok(Memory::Granted(grant))
}

/// Makes a buffer, grants it, and lets the other borrow it.
fn lend(proxy: &Proxy, endpoint: &mut Endpoint, bytes: usize) -> io::Result<Memory> {
    let mut buffer = endpoint.buffer_alone(bytes, Access::Write).map_err(io::Error::other)?;
    let handed = endpoint.grant_alone(&mut buffer, GRANTEE, GRANT).map_err(io::Error::other)?;
    let pair = proxy.hear(|report| match report {
        Report::Asked { pair, open: Open::Grant { grant: GRANT, .. } } => Some(pair),
        _ => None,
    })?;
    let granted = GrantedBuffer {
        grant: GRANT,
        buffer: handed.buffer,
        place: handed.place,
        owner: on_wire(OWNER),
        to: on_wire(GRANTEE),
        access: GrantAccess::Write,
        bytes: handed.bytes,
    };
    proxy.say(&Order::Lend { pair, buffer: granted }, &[handed.data, handed.states])?;
    Ok(Memory::Owned(buffer))
}

impl Transport for Copies<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let Self { endpoint, memory, direction, .. } = self;
        match (message.first(), memory, direction) {
            (Some(&LAST), ..) => {
                self.message.fill(LAST);
                self.meeting.give::<OwnedFd>(b"last", &[])
            }
            (_, Memory::Granted(grant), Direction::Out) => {
                let deadline = Some(Instant::now() + TIMEOUT);
                endpoint.copy_out(message, *grant, 0, deadline).map_err(io::Error::other)
            }
            _ => Ok(()),
        }
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        match self.memory {
            Memory::Granted(_) if self.message.first() == Some(&LAST) => {
                self.meeting.take(0)?;
            }
            Memory::Granted(grant) if self.direction == Direction::In => {
                let deadline = Some(Instant::now() + TIMEOUT);
                self.endpoint.copy_in(grant, 0, &mut self.message, deadline).map_err(io::Error::other)?;
            }
            Memory::Granted(_) => {}
            // Copies need nothing of the buffer's owner, until the last has been made.
            Memory::Owned(_) => {
                self.meeting.take(0)?;
                self.message.fill(LAST);
            }
        }
        Ok(&self.message)
    }
}

/// Questions and answers over what reads and writes, of which one carries a message and the other a
/// word.
pub struct Asked<S> {
    stream: S,
    /// Bytes of what this side sends, and of what comes.
    sends: usize,
    message: Vec<u8>,
}

impl<S> Asked<S> {
    /// One side of it.
    pub fn new(stream: S, task: &Task, direction: Direction) -> Self {
        let (message, word) = (task.bytes, task.bytes.min(WORD_BYTES));
        let is_source = (task.role == Role::Lead) == (direction == Direction::Out);
        let (sends, comes) = if is_source { (message, word) } else { (word, message) };
        Self { stream, sends, message: vec![MORE; comes] }
    }
}

impl<S: Read + Write> Transport for Asked<S> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(message.get(..self.sends).unwrap_or(message))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        self.stream.read_exact(&mut self.message)?;
        Ok(&self.message)
    }
}
