//! The requests of a member to the daemon for an endpoint: to be one, to be introduced, to have
//! buffers and to grant them.

use super::client::{Control, ControlError};
use channel::End;
use std::os::fd::OwnedFd;
use std::time::Instant;
use wire::control::{
    EndpointAddress, EndpointPeer, GrantAccess, GrantedBuffer, MAX_KNOWN_PEERS, Reply, Request, Whom,
};

/// An endpoint of this connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Where it is.
    pub address: EndpointAddress,
    /// The token by which the next daemon recognizes the endpoint.
    pub token: String,
    /// Whether it may copy between buffers that were granted to others.
    pub copies: bool,
}

/// Somebody to whom an endpoint of this connection was introduced.
#[derive(Debug)]
pub struct Introduced {
    /// The peer's identity, as the daemon states it.
    pub peer: EndpointPeer,
    /// Number of the pair's channel on this node.
    pub channel: u64,
    /// Our end of it.
    pub end: End,
}

/// The memories of a buffer.
#[derive(Debug)]
pub struct Memories {
    /// Its data.
    pub data: OwnedFd,
    /// The states of its grants.
    pub states: OwnedFd,
}

/// A grant as an owner asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The buffer's number.
    pub buffer: u64,
    /// To whom.
    pub to: EndpointAddress,
    /// The access that is granted.
    pub access: GrantAccess,
    /// Its place in the buffer's states.
    pub place: u32,
    /// 0, or the grant that stands for this buffer from now on.
    pub grant: u64,
}

impl Memories {
    fn of(descriptors: Vec<OwnedFd>) -> Result<Self, ControlError> {
        let two: Result<[OwnedFd; 2], _> = descriptors.try_into();
        let [data, states] = two.map_err(|_| {
            ControlError::Unexpected("other descriptors than those of a buffer's two memories")
        })?;
        Ok(Self { data, states })
    }
}

/// Each answer is awaited until `deadline`.
impl Control {
    /// Becomes an endpoint, as long as this connection lives. `name`: its name in the topology, or
    /// none. `token`: what an earlier [`Bound`] gave, to be the same one again.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn bind(&mut self, name: &str, token: &str, deadline: Instant) -> Result<Bound, ControlError> {
        let (name, token) = (name.to_owned(), token.to_owned());
        match self.ask(|id| Request::Bind { id, name, token, peers: Vec::new() }, deadline)?.message {
            Reply::Bound { address, token, copies, .. } => Ok(Bound { address, token, copies }),
            _ => Err(ControlError::Unexpected("another answer than an endpoint")),
        }
    }

    /// Becomes a backup of the endpoint of this name, as long as this connection lives.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn back(&mut self, name: &str, deadline: Instant) -> Result<Bound, ControlError> {
        let (name, token) = (name.to_owned(), String::new());
        match self.ask(|id| Request::Back { id, name, token, peers: Vec::new() }, deadline)?.message {
            Reply::Bound { address, token, copies, .. } => Ok(Bound { address, token, copies }),
            _ => Err(ControlError::Unexpected("another answer than an endpoint")),
        }
    }

    /// As [`Control::ask_bind`], of a backup.
    ///
    /// # Errors
    /// [`ControlError::Packet`].
    pub fn ask_back(
        &mut self,
        name: &str,
        token: &str,
        peers: Vec<EndpointAddress>,
    ) -> Result<(), ControlError> {
        let (name, token, peers) = to_be(name, token, peers);
        self.ask_later(|id| Request::Back { id, name, token, peers })
    }

    /// Tells a daemon that does not know it which generations an endpoint continues, without
    /// waiting: there is no answer that matters.
    ///
    /// # Errors
    /// [`ControlError::Packet`].
    pub fn tell_continues(&mut self, endpoint: u32, from: u32) -> Result<(), ControlError> {
        self.tell(|id| Request::Continues { id, endpoint, from }).map(drop)
    }

    /// The same, without waiting: the answer comes as [`super::Notice::Bound`] or
    /// [`super::Notice::Refused`]. `peers`: with whom it has channels, of which the daemon is told
    /// as many as it takes ([`MAX_KNOWN_PEERS`]).
    ///
    /// # Errors
    /// [`ControlError::Packet`].
    pub fn ask_bind(
        &mut self,
        name: &str,
        token: &str,
        peers: Vec<EndpointAddress>,
    ) -> Result<(), ControlError> {
        let (name, token, peers) = to_be(name, token, peers);
        self.ask_later(|id| Request::Bind { id, name, token, peers })
    }

    /// Frees a buffer, without waiting: there is no answer.
    ///
    /// # Errors
    /// [`ControlError::Packet`].
    pub fn tell_free(&mut self, endpoint: u32, buffer: u64) -> Result<(), ControlError> {
        self.tell(|id| Request::Free { id, endpoint, buffer }).map(drop)
    }

    /// Ends an endpoint of this connection.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn unbind(&mut self, endpoint: u32, deadline: Instant) -> Result<(), ControlError> {
        self.have_done(|id| Request::Unbind { id, endpoint }, deadline)
    }

    /// Has an endpoint of this connection introduced to another one. The daemon waits up to
    /// `wait_ms` until that one is bound (clamped to [`wire::control::MAX_WAIT_MS`]); the deadline
    /// is that of the answer, so it lies beyond.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn introduce(
        &mut self,
        endpoint: u32,
        to: Whom,
        wait_ms: u32,
        deadline: Instant,
    ) -> Result<Introduced, ControlError> {
        let packet = self.ask(|id| Request::Introduce { id, endpoint, to, wait_ms }, deadline)?;
        match packet.message {
            Reply::Introduced { peer, channel, .. } => {
                let end = End::from_descriptors(packet.descriptors).map_err(ControlError::Channel)?;
                Ok(Introduced { peer, channel, end })
            }
            _ => Err(ControlError::Unexpected("another answer than an introduction")),
        }
    }

    /// A buffer of `bytes` bytes: its number and its memories.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn buffer(
        &mut self,
        endpoint: u32,
        bytes: u64,
        deadline: Instant,
    ) -> Result<(u64, Memories), ControlError> {
        let packet = self.ask(|id| Request::Buffer { id, endpoint, bytes, replaces: 0 }, deadline)?;
        match packet.message {
            Reply::Buffer { buffer, .. } => Ok((buffer, Memories::of(packet.descriptors)?)),
            _ => Err(ControlError::Unexpected("another answer than a buffer")),
        }
    }

    /// Frees a buffer; each grant that stands for it ends.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn free(&mut self, endpoint: u32, buffer: u64, deadline: Instant) -> Result<(), ControlError> {
        self.have_done(|id| Request::Free { id, endpoint, buffer }, deadline)
    }

    /// Grants a buffer, or has a grant stand for another buffer. Returns the grant's number.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn grant(&mut self, endpoint: u32, grant: Grant, deadline: Instant) -> Result<u64, ControlError> {
        let Grant { buffer, to, access, place, grant } = grant;
        let request = |id| Request::Grant { id, endpoint, buffer, to, access, place, grant };
        match self.ask(request, deadline)?.message {
            Reply::Granted { grant, .. } => Ok(grant),
            _ => Err(ControlError::Unexpected("another answer than a grant")),
        }
    }

    /// Takes a grant back.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn revoke(&mut self, endpoint: u32, grant: u64, deadline: Instant) -> Result<(), ControlError> {
        self.have_done(|id| Request::Revoke { id, endpoint, grant }, deadline)
    }

    /// Returns the buffer that a grant stands for now, and its memories.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn borrow_grant(
        &mut self,
        endpoint: u32,
        grant: u64,
        deadline: Instant,
    ) -> Result<(GrantedBuffer, Memories), ControlError> {
        let packet = self.ask(|id| Request::Borrow { id, endpoint, grant }, deadline)?;
        match packet.message {
            Reply::Borrowed { buffer, .. } if buffer.grant == grant => {
                Ok((buffer, Memories::of(packet.descriptors)?))
            }
            _ => Err(ControlError::Unexpected("another answer than what a grant stands for")),
        }
    }

    fn have_done(
        &mut self,
        request: impl FnOnce(u64) -> Request,
        deadline: Instant,
    ) -> Result<(), ControlError> {
        match self.ask(request, deadline)?.message {
            Reply::Done { .. } => Ok(()),
            _ => Err(ControlError::Unexpected("another answer than that it was done")),
        }
    }
}

/// The fields of a request to be an endpoint, or a backup of one: the daemon is told of as many
/// peers as it takes.
fn to_be(name: &str, token: &str, mut peers: Vec<EndpointAddress>) -> (String, String, Vec<EndpointAddress>) {
    peers.truncate(MAX_KNOWN_PEERS);
    (name.to_owned(), token.to_owned(), peers)
}
