//! Listening: whoever connects proves who it is before anybody hears of it, within a time, and not
//! too many at once. Where one more comes than may be under way, the one that has taken longest is
//! given up: whoever connects and says nothing keeps nobody out.

use crate::connection::{Connection, HANDSHAKE_LIMIT, say_ready};
use crate::locator::{Address, Kind, Locator, Machine};
use crate::shake::{Known, accept_over};
use crate::tipc::{TipcListener, TipcStream};
use crate::tls::Tls;
use crate::{ethernet, quic, tcp};
use std::io;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

/// Handshakes at a time: each takes memory and some ms of a processor, and ends within
/// [`HANDSHAKE_LIMIT`].
pub const HANDSHAKES_MAX: usize = 64;
/// Of these from one address.
pub const HANDSHAKES_OF_ONE_MAX: usize = 8;
/// After the kernel has refused to accept (too many open files, no memory), it is asked again so
/// much later.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Somebody did not get in, or the kernel let nobody in.
#[derive(Debug, Error)]
#[error("{locator}: {}: {why}", .from.map_or_else(|| "nobody".to_owned(), |from| from.to_string()))]
pub struct Refused {
    /// The locator of the listener.
    pub locator: Locator,
    /// The address that it came from.
    pub from: Option<Address>,
    /// Why.
    pub why: RefusedWhy,
}

/// Why somebody did not get in.
#[derive(Debug, Error)]
pub enum RefusedWhy {
    /// accept(2) failed.
    #[error("can't accept: {0}")]
    Accept(io::Error),
    /// Too many at once, and it was the first of them.
    #[error("it was given up for another: {most} handshakes are under way")]
    Many {
        /// So many there are.
        most: usize,
    },
    /// It did not prove in time who it is.
    #[error("the handshake did not end within {} s", HANDSHAKE_LIMIT.as_secs())]
    Late,
    /// TLS, QUIC or the network.
    #[error("the handshake failed: {0}")]
    Handshake(io::Error),
    /// It has given this connection up, and makes another one.
    #[error("it goes on with another connection")]
    Again,
    /// Its certificate is nobody's.
    #[error("it is no node of this cluster: {0}")]
    Nobody(String),
}

enum Socket {
    Tcp(TcpListener),
    Quic(quinn::Endpoint),
    Tipc(TipcListener),
}

enum Incoming {
    Tcp(tokio::net::TcpStream),
    Quic(Box<quinn::Incoming>),
    Tipc(TipcStream),
}

type Shaken = (Address, Result<Connection, RefusedWhy>);

/// Where a proxy is reached.
pub struct Listener {
    locator: Locator,
    socket: Socket,
    tls: Tls,
    under_way: JoinSet<Shaken>,
    /// The handshakes, in the order in which they came.
    whose: Vec<Handshake>,
}

/// One that is under way.
struct Handshake {
    from: Address,
    task: AbortHandle,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener({})", self.locator)
    }
}

impl Listener {
    /// Listens there; port 0 is any that is free, and so is instance 0 of a service.
    ///
    /// # Errors
    /// The errors of bind(2); `InvalidInput` where the certificate is of no use for QUIC;
    /// `Unsupported` where the kernel has no TIPC.
    pub async fn bind(locator: Locator, tls: Tls) -> io::Result<Self> {
        let (socket, address) = match locator.kind {
            Kind::Tcp | Kind::Ethernet => {
                let listener = TcpListener::bind(locator.address.ip()?).await?;
                let address = listener.local_addr()?.into();
                (Socket::Tcp(listener), address)
            }
            Kind::Quic => {
                let endpoint = quic::listen(locator.address.ip()?, &tls.material())?;
                let address = endpoint.local_addr()?.into();
                (Socket::Quic(endpoint), address)
            }
            Kind::Tipc => {
                let listener = TipcListener::bind(locator.address.tipc()?)?;
                let address = Address::Tipc(listener.address());
                (Socket::Tipc(listener), address)
            }
        };
        let locator = Locator { kind: locator.kind, address };
        Ok(Self { locator, socket, tls, under_way: JoinSet::new(), whose: Vec::new() })
    }

    /// Where it listens, with the port that it got.
    #[must_use]
    pub fn locator(&self) -> Locator {
        self.locator
    }

    /// Waits for the next who proved who it is. Dropped before it is ready, it has lost nobody.
    ///
    /// # Errors
    /// [`Refused`]: to be noted; the listener goes on.
    pub async fn accept(&mut self) -> Result<Connection, Refused> {
        loop {
            let locator = self.locator;
            tokio::select! {
                shaken = self.under_way.join_next_with_id(), if !self.under_way.is_empty() => {
                    let Some(shaken) = shaken else { continue };
                    let id = shaken.as_ref().map_or_else(tokio::task::JoinError::id, |(id, _)| *id);
                    self.whose.retain(|one| one.task.id() != id);
                    // One that was given up was told of then.
                    let Ok((_, (from, done))) = shaken else { continue };
                    if matches!(done, Err(RefusedWhy::Again)) {
                        continue;
                    }
                    return done.map_err(|why| Refused { locator, from: Some(from), why });
                }
                came = next(&self.socket) => {
                    let (from, incoming) = match came {
                        Ok(came) => came,
                        Err(error) => {
                            // tidy(sleep): the kernel tells of nothing when it can accept again.
                            tokio::time::sleep(ACCEPT_AGAIN).await;
                            return Err(Refused { locator, from: None, why: RefusedWhy::Accept(error) });
                        }
                    };
                    if let Some((first, most)) = self.begin(from, incoming) {
                        return Err(Refused { locator, from: Some(first), why: RefusedWhy::Many { most } });
                    }
                }
            }
        }
    }

    /// Gives up the one that has taken longest, of that address or of the one that has most, where
    /// there are as many as may be. Returns whose it was.
    fn make_room(&mut self, for_it: Machine) -> Option<(Address, usize)> {
        let count = |machine: Machine| self.whose.iter().filter(|one| one.from.machine() == machine).count();
        let (whose, most) = if count(for_it) >= HANDSHAKES_OF_ONE_MAX {
            (for_it, HANDSHAKES_OF_ONE_MAX)
        } else if self.whose.len() >= HANDSHAKES_MAX {
            // Of several that have most, the one whose first came first.
            let greediest = self.whose.iter().rev().max_by_key(|one| count(one.from.machine()))?;
            (greediest.from.machine(), HANDSHAKES_MAX)
        } else {
            return None;
        };
        let first = self.whose.iter().position(|one| one.from.machine() == whose)?;
        let first = self.whose.remove(first);
        first.task.abort();
        Some((first.from, most))
    }

    /// Begins a handshake. Returns whose was given up for it.
    fn begin(&mut self, from: Address, incoming: Incoming) -> Option<(Address, usize)> {
        let incoming = match incoming {
            Incoming::Quic(incoming) => match quic::validated(*incoming) {
                Some(incoming) => Incoming::Quic(Box::new(incoming)),
                // It comes again with a proof that its address is its own.
                None => return None,
            },
            other => other,
        };
        let given_up = self.make_room(from.machine());
        let (material, kind) = (self.tls.material(), self.locator.kind);
        let task = self.under_way.spawn(async move {
            let shake = async {
                let (mut carrier, who): Known = match incoming {
                    Incoming::Tcp(socket) if kind == Kind::Ethernet => {
                        ethernet::accept(socket, &material).await?
                    }
                    Incoming::Tcp(socket) => {
                        tcp::accept(socket, &material).await.map_err(RefusedWhy::Handshake)?
                    }
                    Incoming::Quic(incoming) => {
                        quic::accept(*incoming, &material).await.map_err(RefusedWhy::Handshake)?
                    }
                    Incoming::Tipc(socket) => {
                        accept_over(socket, &material).await.map_err(RefusedWhy::Handshake)?
                    }
                };
                let peer = who.map_err(RefusedWhy::Nobody)?;
                say_ready(carrier.as_mut()).await.map_err(RefusedWhy::Handshake)?;
                Ok(Connection::new(carrier, peer, kind, from))
            };
            let done = tokio::time::timeout(HANDSHAKE_LIMIT, shake).await;
            (from, done.unwrap_or(Err(RefusedWhy::Late)))
        });
        self.whose.push(Handshake { from, task });
        given_up
    }
}

async fn next(socket: &Socket) -> io::Result<(Address, Incoming)> {
    match socket {
        Socket::Tcp(listener) => {
            listener.accept().await.map(|(socket, from)| (from.into(), Incoming::Tcp(socket)))
        }
        Socket::Tipc(listener) => {
            listener.accept().await.map(|(socket, from)| (Address::Tipc(from), Incoming::Tipc(socket)))
        }
        Socket::Quic(endpoint) => {
            let incoming = endpoint.accept().await.ok_or(io::ErrorKind::NotConnected)?;
            Ok((incoming.remote_address().into(), Incoming::Quic(Box::new(incoming))))
        }
    }
}
