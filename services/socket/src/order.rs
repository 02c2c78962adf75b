//! The daemons' messages to a relay: those of the one that started it, and of those after it.

use crate::RelayError;
use crate::counts::Relay;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use wire::socket::{Answer, Ask, Order, PACKET_BYTES_MAX};

/// Connections of daemons at a time: the one that waits for our end, and those that ask.
const CONNECTIONS_MAX: usize = 16;

/// Why a process that was started as a relay is none.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// Nobody connects, or nothing comes.
    #[error(
        "a relay is started by the daemon, not by hand: its standard input must be the socket at which daemons ask ({0})"
    )]
    Socket(#[source] io::Error),
    /// The first message is no order.
    #[error("the order is not understood: {0}")]
    NotUnderstood(String),
}

/// The daemon that started this relay, and those that come after.
#[derive(Debug)]
pub(crate) struct Daemon {
    listener: OwnedFd,
    connections: Vec<OwnedFd>,
    pub(crate) order: Order,
    /// A pidfd of the domain's first process; `None`: this process is in the domain already.
    pub(crate) init: Option<OwnedFd>,
    /// The folder of the domain's control socket.
    pub(crate) folder: OwnedFd,
    /// The node's sockets at published addresses, in the order of the order.
    pub(crate) doors: Vec<OwnedFd>,
}

impl Daemon {
    /// Waits for the daemon that started this relay.
    pub(crate) fn first(listener: OwnedFd) -> Result<Self, OrderError> {
        let mut watched = [PollFd::new(&listener, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut watched, None)).map_err(|e| OrderError::Socket(e.into()))?;
        let connection = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC)
            .map_err(|e| OrderError::Socket(e.into()))?;
        let (ask, descriptors) = receive(&connection).map_err(OrderError::Socket)?;
        let (order, inside) = match ask {
            Some(Ask::Start(order)) => (order, false),
            Some(Ask::StartInside(order)) => (order, true),
            _ => return Err(OrderError::NotUnderstood("the first packet is no order".into())),
        };
        let wanted = usize::from(!inside) + 1 + order.publishes.len();
        let mut descriptors = if descriptors.len() == wanted { descriptors } else { Vec::new() }.into_iter();
        let init = if inside { None } else { descriptors.next() };
        let folder = descriptors.next().filter(|_| inside || init.is_some());
        let folder = folder.ok_or_else(|| OrderError::NotUnderstood("a descriptor is missing".into()))?;
        Ok(Self {
            listener,
            connections: vec![connection],
            order,
            init,
            folder,
            doors: descriptors.collect(),
        })
    }

    /// Answers the daemon that started this relay.
    pub(crate) fn answer(&self, answer: &Answer) -> Result<(), RelayError> {
        match self.connections.first() {
            Some(connection) => send(connection, answer).map_err(RelayError::Socket),
            None => Ok(()),
        }
    }

    /// Answers daemons until one says that it is enough.
    pub(crate) fn serve(&mut self, counts: &Relay) -> Result<(), RelayError> {
        loop {
            let ready = self.wait().map_err(|e| RelayError::Socket(e.into()))?;
            let mut gone = Vec::new();
            for (index, connection) in self.connections.iter().enumerate() {
                if !ready.get(index + 1).copied().unwrap_or(false) {
                    continue;
                }
                match self.attend(connection, counts) {
                    Attended::GoesOn => {}
                    Attended::Gone => gone.push(index),
                    Attended::Ends => return Ok(()),
                }
            }
            for index in gone.into_iter().rev() {
                self.connections.remove(index);
            }
            if ready.first().copied().unwrap_or(false)
                && let Ok(connection) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC)
                && self.connections.len() < CONNECTIONS_MAX
            {
                self.connections.push(connection);
            }
        }
    }

    /// Waits for the listener and the connections: which of them have something.
    fn wait(&self) -> Result<Vec<bool>, Errno> {
        let all = std::iter::once(&self.listener).chain(&self.connections);
        let mut watched: Vec<PollFd<'_>> = all.map(|it| PollFd::new(it, PollFlags::IN)).collect();
        match poll(&mut watched, None) {
            Ok(_) => Ok(watched.iter().map(|it| !it.revents().is_empty()).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(errno) => Err(errno),
        }
    }

    /// Answers one packet.
    fn attend(&self, connection: &OwnedFd, counts: &Relay) -> Attended {
        let answer = match receive(connection) {
            Ok((Some(Ask::State), _)) => Answer::State(counts.state()),
            Ok((Some(Ask::Order), _)) => Answer::Order(self.order.clone()),
            Ok((Some(Ask::End), _)) => return Attended::Ends,
            _ => return Attended::Gone,
        };
        if send(connection, &answer).is_ok() { Attended::GoesOn } else { Attended::Gone }
    }
}

/// The outcome of a packet.
enum Attended {
    GoesOn,
    /// The connection is over.
    Gone,
    /// The relay is.
    Ends,
}

fn receive(connection: impl AsFd) -> io::Result<(Option<Ask>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let (length, descriptors) = sys::descriptors::receive_with_descriptors(
        connection,
        &mut bytes,
        sys::descriptors::DESCRIPTORS_MAX,
    )?;
    Ok((serde_json::from_slice(bytes.get(..length).unwrap_or_default()).ok(), descriptors))
}

fn send(connection: impl AsFd, answer: &Answer) -> io::Result<()> {
    sys::descriptors::send_with_descriptors(connection, &serde_json::to_vec(answer)?, &[])
}
