//! One socket of the domain, and how it ends.
//!
//! A TCP socket lingers for no time until it is closed in order: so it is reset whenever it is not,
//! also by the death of this process. Who reads at its other end never takes a stream that was cut
//! off for one that has ended.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use wire::socket::Place;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A connected socket, or one that connects.
#[derive(Debug)]
pub(crate) struct Local {
    socket: OwnedFd,
    is_tcp: bool,
}

impl Local {
    /// Accepts at a listening socket; `None`: nobody is there now.
    pub(crate) fn accept(listener: impl AsFd, is_tcp: bool) -> Result<Option<Self>, Errno> {
        match rustix::net::accept_with(listener, FLAGS) {
            Ok(socket) => Self::of(socket, is_tcp).map(Some),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Connects, or begins to: writable when that is over.
    pub(crate) fn connect(to: &Place) -> Result<Self, Errno> {
        match to {
            Place::Tcp(address) => {
                let family = match address {
                    SocketAddr::V4(_) => AddressFamily::INET,
                    SocketAddr::V6(_) => AddressFamily::INET6,
                };
                let local =
                    Self::of(rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)?, true)?;
                match rustix::net::connect(&local.socket, address) {
                    Ok(()) | Err(Errno::INPROGRESS) => Ok(local),
                    Err(errno) => Err(errno),
                }
            }
            Place::Unix(path) => {
                let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
                rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_str())?)?;
                Self::of(socket, false)
            }
        }
    }

    fn of(socket: OwnedFd, is_tcp: bool) -> Result<Self, Errno> {
        if is_tcp {
            sockopt::set_tcp_nodelay(&socket, true)?;
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
            // A byte that was sent as urgent stays where it is in the stream, instead of being
            // lost.
            sockopt::set_socket_oobinline(&socket, true)?;
        }
        Ok(Self { socket, is_tcp })
    }

    /// The port at its other end; 0 where there is none.
    pub(crate) fn peer_port(&self) -> u16 {
        let peer = if self.is_tcp { rustix::net::getpeername(&self.socket).ok().flatten() } else { None };
        peer.and_then(|peer| SocketAddr::try_from(peer).ok()).map_or(0, |peer| peer.port())
    }

    pub(crate) fn read(&self, into: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::retry_on_intr(|| rustix::net::recv(&self.socket, &mut *into, RecvFlags::DONTWAIT))
            .map(|(read, _)| read)
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, bytes, flags))
    }

    /// Sends no more.
    pub(crate) fn finish(&self) -> Result<(), Errno> {
        rustix::net::shutdown(&self.socket, Shutdown::Write)
    }

    /// The error that it has met, if any.
    pub(crate) fn error(&self) -> Option<Errno> {
        match sockopt::socket_error(&self.socket) {
            Ok(met) => met.err(),
            Err(errno) => Some(errno),
        }
    }

    /// Closes it after both directions have ended: what the kernel still has to send is sent.
    pub(crate) fn close(self) {
        if self.is_tcp
            && let Err(errno) = sockopt::set_socket_linger(&self.socket, None)
        {
            tracing::debug!(%errno, "a socket is reset that should have been closed");
        }
    }
}

impl AsFd for Local {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
