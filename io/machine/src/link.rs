//! The machine's own connection to the daemon, which comes back when the daemon does.

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use session::packet::{self, Packet, PacketError};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use wire::control::{Event, GuestState, Reply, Request};

/// Number of the one request that is answered.
const ID: u64 = 1;
/// Most states that wait for a daemon that does not read: the last ones are those that count.
const MAX_WAITING: usize = 16;

/// A message of the daemon, or the end of its connection.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Run a frontend with this order and these private sockets: of the frontend, of its entrances.
    Frontend(serde_json::Value, [OwnedFd; 2]),
    /// It does not want this machine.
    Refused(String),
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Link {
    path: PathBuf,
    accel: &'static str,
    qemu: String,
    socket: Option<OwnedFd>,
    waiting: VecDeque<Request>,
    /// The guest's phase, for a daemon that comes; it is told whether the frontend is up, too.
    phase: GuestState,
    frontend_up: bool,
}

impl Link {
    pub fn new(path: &Path, accel: &'static str, qemu: String) -> Self {
        let (socket, waiting) = (None, VecDeque::new());
        let (phase, frontend_up) = (GuestState::Booting, false);
        Self { path: path.to_owned(), accel, qemu, socket, waiting, phase, frontend_up }
    }

    /// Whether there is a connection.
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// Connects, if a daemon is there, and says what there is to know.
    pub fn try_connect(&mut self) {
        let Ok(socket) = connect(&self.path) else { return };
        self.socket = Some(socket);
        let (accel, qemu) = (self.accel.to_owned(), self.qemu.clone());
        self.waiting = [Request::Machine { id: ID, accel, qemu }, state(self.phase, "")].into();
        if self.frontend_up {
            self.waiting.push_back(state(GuestState::FrontendUp, ""));
        }
        self.flush();
    }

    /// The guest has come this far.
    pub fn tell(&mut self, reached: GuestState, message: &str) {
        match reached {
            GuestState::FrontendUp => self.frontend_up = true,
            GuestState::FrontendDown => self.frontend_up = false,
            GuestState::Booting | GuestState::Started => self.phase = reached,
        }
        if self.is_there() && self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(state(reached, message));
            self.flush();
        }
    }

    /// The descriptor to poll, and for what.
    pub fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, !self.waiting.is_empty());
        self.socket.as_ref().map(|socket| (socket.as_fd(), wanted))
    }

    /// Something can be written or read.
    pub fn ready(&mut self) -> Option<Heard> {
        self.flush();
        let socket = self.socket.as_ref()?;
        match packet::receive::<Reply>(socket) {
            Ok(packet) => self.understand(packet),
            Err(error) => {
                if !error.is_about_one_packet() {
                    self.socket = None;
                }
                None
            }
        }
    }

    fn understand(&mut self, Packet { message, descriptors }: Packet<Reply>) -> Option<Heard> {
        match message {
            Reply::Event(Event::Frontend { order }) => {
                let sockets = <[OwnedFd; 2]>::try_from(descriptors).ok()?;
                Some(Heard::Frontend(order, sockets))
            }
            Reply::Refused { message, .. } => {
                // Where a machine of before is still there, a later attempt fares better.
                self.socket = None;
                Some(Heard::Refused(message))
            }
            _ => None,
        }
    }

    fn flush(&mut self) {
        while let (Some(request), Some(socket)) = (self.waiting.front(), &self.socket) {
            match packet::send(socket, request, &[]) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(PacketError::NotReady) => return,
                Err(_) => self.socket = None,
            }
        }
    }
}

fn state(state: GuestState, message: &str) -> Request {
    Request::Guest { state, message: message.to_owned() }
}

/// Connects to the control socket. Never waits.
pub(crate) fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &SocketAddrUnix::new(path)?))?;
    Ok(socket)
}
