//! A member's end of the control socket: one request at a time, events in between kept in order.

use super::awaiting;
use super::endpoints::{Bound, Introduced};
use super::packet::{self, Packet, PacketError};
use crate::wait::{wait_readable, wait_writable};
use channel::End;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;
use sys::known::Known;
use thiserror::Error;
use wire::control::{
    Consumer, Event, MountedService, Reply, Request, SOCKET_PATH, SOCKET_VARIABLE, ServedService,
};

/// Most events that are kept while a reply is awaited. A node has fewer consumers than this for one
/// server; more means that something is wrong at the other side.
const MAX_NOTICES: usize = 4096;

/// An error at the control socket.
#[derive(Debug, Error)]
pub enum ControlError {
    /// There is no socket to connect to.
    #[error("can't connect to the control socket {}: is the node's daemon running, and is this inside a domain?", path.display())]
    Connect {
        /// Where it should be.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        errno: Errno,
    },
    /// A descriptor that is no packet socket.
    #[error("the descriptor given as control socket is no SOCK_SEQPACKET socket")]
    NoSocket,
    /// The connection is lost or spoke nonsense.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The daemon refused the request.
    #[error("the daemon refused: {message}")]
    Refused {
        /// The errno that fits.
        errno: i32,
        /// The fault and its remedy.
        message: String,
    },
    /// The time was over first.
    #[error("the daemon did not answer in time")]
    Deadline,
    /// Waiting failed.
    #[error("waiting for the control socket failed")]
    Wait(#[source] Errno),
    /// An answer of another kind than was asked for, or more events than can be kept.
    #[error("the daemon sent {0}")]
    Unexpected(&'static str),
    /// The descriptors are no end of a channel.
    #[error("the daemon sent descriptors that are no channel's end")]
    Channel(#[source] channel::OpenError),
    /// The topology no longer lets this domain offer the service.
    #[error("the service is no longer this domain's to offer: {0}")]
    Withdrawn(String),
    /// The kernel gave no descriptor to wait with.
    #[error("can't make what waits for the control socket")]
    Watch(#[source] Errno),
    /// The connection was inherited, so there is no path to connect to again.
    #[error("the control socket was inherited and has no path to connect to again")]
    NoPath,
}

impl ControlError {
    /// Whether the daemon is gone and [`Control::reconnect`] is the way on.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Packet(error) if !error.is_about_one_packet())
    }
}

/// A message that the daemon sends unasked.
#[derive(Debug)]
pub enum Notice {
    /// To a server: a new consumer ([`Event::Attach`]), with our end of its channel.
    Attach {
        /// The name of the served service.
        service: String,
        /// Number of the channel on this node.
        channel: u64,
        /// The consumer's identity.
        consumer: Consumer,
        /// Our end.
        end: End,
        /// The memory that the consumer's domain has with the service, if it has some.
        memory: Option<OwnedFd>,
    },
    /// To an endpoint of this connection: somebody was introduced to it ([`Event::Introduced`]).
    Introduced {
        /// Slot of the endpoint.
        endpoint: u32,
        /// To whom, with our end of the pair's channel.
        introduced: Introduced,
    },
    /// The answer to [`Control::ask_serve`].
    Serving(Vec<ServedService>),
    /// The answer to [`Control::ask_bind`].
    Bound(Bound),
    /// The other answer to what was asked without waiting.
    Refused {
        /// The errno that fits.
        errno: i32,
        /// The fault and its remedy.
        message: String,
    },
    /// The answer to [`Control::start`].
    Answer {
        /// Number of the request.
        id: u64,
        /// The daemon's answer; [`Reply::Refused`] is one of its answers.
        answer: Packet<Reply>,
    },
    /// Any other event.
    Event(Event),
}

/// A member's connection to its node's daemon.
#[derive(Debug)]
pub struct Control {
    socket: Known,
    path: Option<PathBuf>,
    last_id: u64,
    /// Number of the [`Control::ask_serve`], [`Control::ask_offer`] or [`Control::ask_bind`] that
    /// is not answered yet.
    asked: Option<u64>,
    /// The requests that are not answered yet.
    started: BTreeSet<u64>,
    notices: VecDeque<Notice>,
}

impl Control {
    /// Where this process finds its control socket: [`SOCKET_VARIABLE`], or else [`SOCKET_PATH`].
    pub fn path() -> PathBuf {
        std::env::var_os(SOCKET_VARIABLE).map_or_else(|| PathBuf::from(SOCKET_PATH), PathBuf::from)
    }

    /// Connects to the socket at `path`, which must be there.
    ///
    /// # Errors
    /// [`ControlError::Connect`].
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        let socket =
            connect_to(path).map_err(|errno| ControlError::Connect { path: path.to_owned(), errno })?;
        Ok(Self::over(socket, Some(path.to_owned())))
    }

    /// Connects to the socket at `path`, and waits until somebody listens there.
    ///
    /// # Errors
    /// [`ControlError::Deadline`], and [`ControlError::Connect`] where waiting is in vain.
    pub fn connect_when_there(path: &Path, deadline: Option<Instant>) -> Result<Self, ControlError> {
        Ok(Self::over(awaiting::connect_when_there(path, deadline)?, Some(path.to_owned())))
    }

    /// Takes an inherited connection. `path`: where to connect again after the daemon's death, if
    /// anywhere.
    ///
    /// # Errors
    /// [`ControlError::NoSocket`].
    pub fn from_descriptor(socket: OwnedFd, path: Option<PathBuf>) -> Result<Self, ControlError> {
        let is_packets = rustix::net::sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET);
        if !is_packets || rustix::io::ioctl_fionbio(&socket, true).is_err() {
            return Err(ControlError::NoSocket);
        }
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(|_| ControlError::NoSocket)?;
        Ok(Self::over(socket, path))
    }

    fn over(socket: OwnedFd, path: Option<PathBuf>) -> Self {
        Self {
            socket: Known::new(socket),
            path,
            last_id: 0,
            asked: None,
            started: BTreeSet::new(),
            notices: VecDeque::new(),
        }
    }

    /// Waits until the (next) daemon is there, and connects to it. Events of the earlier one that
    /// were not taken yet stay; the caller then asks again for what it wants (`serve`, `services`).
    ///
    /// # Errors
    /// As [`Control::connect_when_there`]; [`ControlError::NoPath`].
    pub fn reconnect(&mut self, deadline: Option<Instant>) -> Result<(), ControlError> {
        let path = self.path.as_deref().ok_or(ControlError::NoPath)?;
        self.socket = Known::new(awaiting::connect_when_there(path, deadline)?);
        self.started.clear();
        Ok(())
    }

    /// Connects again if a daemon is there now; `Ok(false)`: not yet.
    ///
    /// # Errors
    /// [`ControlError::Connect`] where waiting is in vain; [`ControlError::NoPath`].
    pub fn try_reconnect(&mut self) -> Result<bool, ControlError> {
        let path = self.path.as_deref().ok_or(ControlError::NoPath)?;
        match connect_to(path) {
            Ok(socket) => {
                self.socket = Known::new(socket);
                self.started.clear();
                Ok(true)
            }
            Err(errno) if awaiting::may_come(errno) => Ok(false),
            Err(errno) => Err(ControlError::Connect { path: path.to_owned(), errno }),
        }
    }

    /// A descriptor that becomes readable when a socket may have appeared: poll it, then
    /// [`Control::try_reconnect`]. `None` where the folder can't be watched: try again from time to
    /// time.
    pub fn watch_for_daemon(&self) -> Option<awaiting::FolderWatch> {
        awaiting::FolderWatch::new(self.path.as_deref()?)
    }

    /// All that this domain mounts.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn services(&mut self, deadline: Instant) -> Result<Vec<MountedService>, ControlError> {
        match self.ask(|id| Request::Services { id }, deadline)?.message {
            Reply::Services { services, .. } => Ok(services),
            _ => Err(ControlError::Unexpected("another answer than the services")),
        }
    }

    /// The domain's corner of the state tree.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn about(&mut self, deadline: Instant) -> Result<Value, ControlError> {
        match self.ask(|id| Request::About { id }, deadline)?.message {
            Reply::About { about, .. } => Ok(about),
            _ => Err(ControlError::Unexpected("another answer than what the domain is")),
        }
    }

    /// Sends a request whose answer comes as a notice, or not at all.
    pub(super) fn tell(&mut self, request: impl FnOnce(u64) -> Request) -> Result<u64, ControlError> {
        self.last_id += 1;
        packet::send(self.socket()?, &request(self.last_id), &[])?;
        Ok(self.last_id)
    }

    /// A connection to where the state of this domain's service of kind `coordination` is kept
    /// (`docs/spec/coordination.md`).
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn keep_state(&mut self, service: &str, deadline: Instant) -> Result<OwnedFd, ControlError> {
        let answer = self.ask(|id| Request::KeepState { id, service: service.to_owned() }, deadline)?;
        match (answer.message, answer.descriptors.into_iter().next()) {
            (Reply::State { .. }, Some(socket)) => Ok(socket),
            _ => Err(ControlError::Unexpected("another answer than a connection to state")),
        }
    }

    /// Sends a request, without waiting: its answer comes as [`Notice::Answer`], with the number
    /// that is returned. A connection that is lost loses the answer with it.
    ///
    /// # Errors
    /// [`ControlError::Packet`].
    pub fn start(&mut self, request: impl FnOnce(u64) -> Request) -> Result<u64, ControlError> {
        let id = self.tell(request)?;
        self.started.insert(id);
        Ok(id)
    }

    /// Sends a request whose answer comes as a notice.
    pub(super) fn ask_later(&mut self, request: impl FnOnce(u64) -> Request) -> Result<(), ControlError> {
        self.asked = Some(self.tell(request)?);
        Ok(())
    }

    /// Says that this is the server of the domain's services. Does not wait: what to serve comes as
    /// [`Notice::Serving`].
    ///
    /// # Errors
    /// [`ControlError::Packet`].
    pub fn ask_serve(&mut self) -> Result<(), ControlError> {
        self.ask_later(|id| Request::Serve { id })
    }

    /// Says that this program offers the channel service, or the service of kind `program`, called
    /// `service`. Does not wait: the answer comes as [`Notice::Serving`] or [`Notice::Refused`].
    ///
    /// # Errors
    /// [`ControlError::Packet`].
    pub fn ask_offer(&mut self, service: &str) -> Result<(), ControlError> {
        let service = service.to_owned();
        self.ask_later(|id| Request::Offer { id, service, stand_by: false, serving: false })
    }

    /// The same of a service of kind `program`, whose answer comes when this program has it: where
    /// another program offers it and the service has backups, this one stands by. `serving`: it has
    /// served it before, and has its consumers.
    ///
    /// # Errors
    /// [`ControlError::Packet`].
    pub fn ask_offer_in_turn(&mut self, service: &str, serving: bool) -> Result<(), ControlError> {
        let service = service.to_owned();
        self.ask_later(|id| Request::Offer { id, service, stand_by: true, serving })
    }

    /// Says that this program has left the service, and stands by for it from now on. Does not
    /// wait, as [`Control::ask_offer_in_turn`].
    ///
    /// # Errors
    /// [`ControlError::Packet`].
    pub fn step_back(&mut self, service: &str) -> Result<(), ControlError> {
        let service = service.to_owned();
        self.ask_later(|id| Request::StepBack { id, service })
    }

    /// The same, and waits for the answer: the service with its settings.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn offer(&mut self, service: &str, deadline: Instant) -> Result<ServedService, ControlError> {
        let request =
            |id| Request::Offer { id, service: service.to_owned(), stand_by: false, serving: false };
        match self.ask(request, deadline)?.message {
            Reply::Serving { services, .. } => services
                .into_iter()
                .find(|served| served.name == service)
                .ok_or(ControlError::Unexpected("another service than the one that is offered")),
            _ => Err(ControlError::Unexpected("another answer than what is offered")),
        }
    }

    /// A channel to a service: its number on this node and our end. `ring_bytes`: wished bytes of
    /// each ring, 0 leaves it to the daemon.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn connect_service(
        &mut self,
        service: &str,
        entrance: &str,
        ring_bytes: u32,
        deadline: Instant,
    ) -> Result<(u64, End), ControlError> {
        self.connect_waiting(service, entrance, (ring_bytes, 0), deadline)
    }

    /// The same, where the daemon shall wait up to `wait_ms` for a server (clamped to
    /// [`wire::control::MAX_WAIT_MS`]). The deadline is that of the answer, so it lies beyond.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn connect_waiting(
        &mut self,
        service: &str,
        entrance: &str,
        (ring_bytes, wait_ms): (u32, u32),
        deadline: Instant,
    ) -> Result<(u64, End), ControlError> {
        let request = |id| Request::Connect {
            id,
            service: service.to_owned(),
            entrance: entrance.to_owned(),
            ring_bytes,
            wait_ms,
        };
        let packet = self.ask(request, deadline)?;
        match packet.message {
            Reply::Connected { channel, .. } => {
                let end = End::from_descriptors(packet.descriptors).map_err(ControlError::Channel)?;
                Ok((channel, end))
            }
            _ => Err(ControlError::Unexpected("another answer than a channel")),
        }
    }

    /// Answers [`Event::Inspect`].
    ///
    /// # Errors
    /// [`ControlError::Packet`]; [`PacketError::NotReady`] in it: the daemon does not read, drop
    /// the answer.
    pub fn report_state(&mut self, id: u64, state: Value) -> Result<(), ControlError> {
        Ok(packet::send(self.socket()?, &Request::State { id, state }, &[])?)
    }

    /// The next event, if one is there. Does not wait; poll [`Control::as_fd`].
    ///
    /// # Errors
    /// [`ControlError::is_gone`] ones end the connection; others cost only the packet.
    pub fn next_notice(&mut self) -> Result<Option<Notice>, ControlError> {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return Ok(Some(notice));
            }
            match packet::receive::<Reply>(self.socket()?) {
                Ok(packet) => self.keep(packet)?,
                Err(PacketError::NotReady) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a request and waits for its reply.
    pub(super) fn ask(
        &mut self,
        request: impl FnOnce(u64) -> Request,
        deadline: Instant,
    ) -> Result<Packet<Reply>, ControlError> {
        self.last_id += 1;
        let id = self.last_id;
        let request = request(id);
        loop {
            match packet::send(self.socket()?, &request, &[]) {
                Ok(()) => break,
                Err(PacketError::NotReady) => self.until(wait_writable, deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
        loop {
            match packet::receive::<Reply>(self.socket()?) {
                Ok(packet) => match &packet.message {
                    Reply::Refused { id: refused, errno, message } if *refused == id || *refused == 0 => {
                        return Err(ControlError::Refused { errno: *errno, message: message.clone() });
                    }
                    reply if number(reply) == Some(id) => return Ok(packet),
                    _ => self.keep(packet)?,
                },
                Err(PacketError::NotReady) => self.until(wait_readable, deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The connection, for one use. One that the program has closed is lost, as one that the daemon
    /// has.
    fn socket(&self) -> Result<BorrowedFd<'_>, PacketError> {
        self.socket.get().map_err(PacketError::Socket)
    }

    fn until(
        &self,
        wait: impl Fn(BorrowedFd<'_>, Option<Instant>) -> Result<bool, Errno>,
        deadline: Instant,
    ) -> Result<(), ControlError> {
        match wait(self.socket()?, Some(deadline)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ControlError::Deadline),
            Err(errno) => Err(ControlError::Wait(errno)),
        }
    }

    /// Keeps an event for [`Control::next_notice`]. The reply to a request that nobody waits for
    /// any more is dropped, and with it the channel that may have come along.
    fn keep(&mut self, packet: Packet<Reply>) -> Result<(), ControlError> {
        if self.notices.len() >= MAX_NOTICES {
            return Err(ControlError::Unexpected("more events than can be kept"));
        }
        if let Some(id) = number(&packet.message).filter(|number| self.started.remove(number)) {
            self.notices.push_back(Notice::Answer { id, answer: packet });
            return Ok(());
        }
        let asked = number(&packet.message).filter(|number| Some(*number) == self.asked);
        let notice = match packet.message {
            Reply::Event(Event::Attach { service, channel, consumer, memory }) => {
                let mut descriptors = packet.descriptors;
                let memory = if memory { descriptors.pop() } else { None };
                let end = End::from_descriptors(descriptors).map_err(ControlError::Channel)?;
                Notice::Attach { service, channel, consumer, end, memory }
            }
            Reply::Event(Event::Introduced { endpoint, peer, channel }) => {
                let end = End::from_descriptors(packet.descriptors).map_err(ControlError::Channel)?;
                Notice::Introduced { endpoint, introduced: Introduced { peer, channel, end } }
            }
            Reply::Event(other) => Notice::Event(other),
            Reply::Serving { services, .. } if asked.is_some() => Notice::Serving(services),
            Reply::Bound { address, token, copies, .. } if asked.is_some() => {
                Notice::Bound(Bound { address, token, copies })
            }
            Reply::Refused { errno, message, .. } if asked.is_some() => Notice::Refused { errno, message },
            _ => return Ok(()),
        };
        if asked.is_some() {
            self.asked = None;
        }
        self.notices.push_back(notice);
        Ok(())
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn number(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Services { id, .. }
        | Reply::Connected { id, .. }
        | Reply::Backed { id, .. }
        | Reply::Serving { id, .. }
        | Reply::About { id, .. }
        | Reply::Machine { id }
        | Reply::Bound { id, .. }
        | Reply::Promoted { id, .. }
        | Reply::Introduced { id, .. }
        | Reply::Buffer { id, .. }
        | Reply::Granted { id, .. }
        | Reply::Borrowed { id, .. }
        | Reply::Lent { id, .. }
        | Reply::State { id }
        | Reply::Done { id }
        | Reply::Refused { id, .. } => Some(*id),
        Reply::Event(_) => None,
    }
}

/// Connects a socket of ours to `path`.
pub(super) fn connect_to(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &SocketAddrUnix::new(path)?))?;
    Ok(socket)
}
