//! TIPC, with TLS 1.3 as over TCP. The kernel finds the other node by a service's number, sees
//! within a second and a half that a node is lost, and encrypts nothing that we ask it to.

use crate::connect::ConnectError;
use crate::encrypted::Socket;
use crate::locator::Locator;
use crate::shake::{Known, connect_over};
use crate::tls::Material;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use sys::tipc::{self, Address};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Connections that wait to be accepted: more than handshakes may be under way.
const BACKLOG: i32 = 128;

fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated for types whose descriptor can change or close while it is watched. An `OwnedFd`
    // can do neither.
    #[allow(
        deprecated,
        reason = "an `OwnedFd` keeps what the unsafe constructor asks for, and `unsafe` lives in `sys`"
    )]
    AsyncFd::new(socket)
}

/// Says what is missing, where a number alone does not.
fn explained(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT) => io::Error::new(
            io::ErrorKind::Unsupported,
            "this node's kernel has no TIPC, or has not loaded it: `modprobe tipc` as root (the module is in Debian's linux-image-*, and in \
             kernel-modules-extra of Fedora and RHEL)",
        ),
        Some(Errno::HOSTUNREACH) => io::Error::new(io::ErrorKind::HostUnreachable, unserved()),
        _ => error,
    }
}

/// Looks whether this node's kernel has TIPC; one that has the module loads it for that.
///
/// # Errors
/// `Unsupported`, with what to do, where it has not; those of socket(2).
pub fn check_tipc() -> io::Result<()> {
    tipc::socket().map(drop).map_err(explained)
}

/// Why nobody is found who serves what is asked for.
fn unserved() -> &'static str {
    let alone = tipc::socket().and_then(tipc::local);
    if matches!(alone, Ok(Address::Socket { node: 0, .. })) {
        "TIPC has no bearer on this node: `tipc bearer enable media eth device eth0` as root, with the interface to the other node, and the same there"
    } else {
        "no node that TIPC reaches serves it: `tipc bearer list` on the other node says whether it has a bearer, `tipc node list` here whether that node \
         is up; both need the same `tipc node get netid`"
    }
}

/// Listens for streams of TIPC.
#[derive(Debug)]
pub struct TipcListener {
    socket: AsyncFd<OwnedFd>,
    address: Address,
}

impl TipcListener {
    /// Serves an instance of a service, for all nodes; of instance 0 it takes one that nobody else
    /// has.
    ///
    /// # Errors
    /// The errors of bind(2); `Unsupported`, with what to do, where the kernel has no TIPC;
    /// `InvalidInput` for the address of a socket.
    pub fn bind(address: Address) -> io::Result<Self> {
        let Address::Service { service, instance } = address else {
            let why = "who listens serves an instance of a service; a socket's own address can't be chosen";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let socket = tipc::socket().map_err(explained)?;
        let instance = match (instance, tipc::local(&socket)?) {
            // The kernel chooses it at random, and never twice on a node.
            (0, Address::Socket { port, .. }) => port,
            (instance, _) => instance,
        };
        tipc::bind(&socket, service, instance)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self { socket: watch(socket)?, address: Address::Service { service, instance } })
    }

    /// The address that it serves.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Waits for who connects: the stream, and from where. Dropped before it is ready, it has lost
    /// nobody.
    ///
    /// # Errors
    /// The errors of accept(2).
    pub async fn accept(&self) -> io::Result<(TipcStream, Address)> {
        loop {
            let mut ready = self.socket.readable().await?;
            match tipc::accept(ready.get_inner()) {
                Ok((socket, from)) => return Ok((TipcStream::new(socket)?, from)),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => ready.clear_ready(),
                    // Who came is gone already.
                    Some(Errno::INTR | Errno::NOTCONN) => {}
                    _ => return Err(error),
                },
            }
        }
    }
}

/// A stream of TIPC. It ends in both directions at once.
#[derive(Debug)]
pub struct TipcStream {
    /// There until it is dropped.
    socket: Option<AsyncFd<OwnedFd>>,
}

impl TipcStream {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: Some(watch(socket)?) })
    }

    /// Connects.
    ///
    /// # Errors
    /// The errors of connect(2); `Unsupported` where the kernel has no TIPC and `HostUnreachable`
    /// where nobody serves it, with what to do.
    pub async fn connect(to: Address) -> io::Result<Self> {
        let stream = Self::new(tipc::socket().map_err(explained)?)?;
        let socket = stream.socket()?;
        let mut begun = tipc::connect(socket, to);
        loop {
            match begun.as_ref().err().and_then(Errno::from_io_error) {
                Some(Errno::INPROGRESS | Errno::ALREADY) => {}
                Some(Errno::ISCONN) => return Ok(stream),
                // That it was refused is told once.
                Some(Errno::INVAL) => {
                    rustix::net::sockopt::socket_error(socket)??;
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                _ => {
                    begun.map_err(explained)?;
                    return Ok(stream);
                }
            }
            let mut ready = socket.writable().await?;
            begun = tipc::connect(socket, to);
            if begun.as_ref().err().and_then(Errno::from_io_error) == Some(Errno::ALREADY) {
                // A socket that is not connected yet is called ready before it begins.
                ready.clear_ready();
            }
        }
    }

    fn socket(&self) -> io::Result<&AsyncFd<OwnedFd>> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// Whether all that the socket took is on its way. If not, the kernel lets who closes it wait, for
/// 8 s at most.
fn is_idle(socket: impl AsFd) -> bool {
    let mut asked = [PollFd::new(&socket, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let idle = PollFlags::OUT | PollFlags::HUP | PollFlags::ERR;
    poll(&mut asked, Some(&at_once)).is_ok() && asked.iter().any(|socket| socket.revents().intersects(idle))
}

/// Ends it where nobody waits for that.
fn aside<T: AsFd + Send + 'static>(socket: T, end: impl FnOnce(T) + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if !is_idle(&socket) => drop(runtime.spawn_blocking(move || end(socket))),
        _ => end(socket),
    }
}

impl Drop for TipcStream {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            aside(socket.into_inner(), drop);
        }
    }
}

/// The result of a call; `None` where it would wait.
fn done<T>(result: rustix::io::Result<T>) -> Option<io::Result<T>> {
    match result {
        Err(Errno::AGAIN) => None,
        other => Some(other.map_err(io::Error::from)),
    }
}

impl AsyncRead for TipcStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let socket = self.socket()?;
        loop {
            let mut ready = ready!(socket.poll_read_ready(cx))?;
            let received =
                rustix::net::recv(ready.get_inner(), into.initialize_unfilled(), RecvFlags::DONTWAIT);
            match received.map(|(bytes, _)| bytes) {
                Err(Errno::INTR) => continue,
                // The end was told before.
                Err(Errno::NOTCONN) => return Poll::Ready(Ok(())),
                other => match done(other) {
                    None => ready.clear_ready(),
                    Some(bytes) => {
                        into.advance(bytes?);
                        return Poll::Ready(Ok(()));
                    }
                },
            }
        }
    }
}

impl AsyncWrite for TipcStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let socket = self.socket()?;
        loop {
            let mut ready = ready!(socket.poll_write_ready(cx))?;
            match rustix::net::send(ready.get_inner(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => continue,
                other => match done(other) {
                    None => ready.clear_ready(),
                    Some(sent) => return Poll::Ready(sent),
                },
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends both directions, behind what was sent.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.socket()?.get_ref().try_clone()?;
        aside(socket, |socket| {
            if let Err(error) = rustix::net::shutdown(socket, Shutdown::Both) {
                tracing::debug!(%error, "a stream of TIPC has ended already");
            }
        });
        Poll::Ready(Ok(()))
    }
}

impl Socket for TipcStream {
    const HALF_CLOSES: bool = false;

    fn hold_little(&self, _: bool) {
        // The kernel has no bound of its own for what waits in a socket of TIPC beyond the window
        // of the connection.
    }
}

pub(crate) async fn connect(
    locator: Locator,
    material: &Material,
    peer: &str,
) -> Result<Known, ConnectError> {
    let socket = async { TipcStream::connect(locator.address.tipc()?).await };
    connect_over(socket, locator, material, peer).await
}
