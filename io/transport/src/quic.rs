//! QUIC: one stream in both directions of one connection. Losses, congestion and the path's size
//! are QUIC's business; its datagrams would make them the link's.

use crate::connect::ConnectError;
use crate::connection::Carry;
use crate::listener::HANDSHAKES_MAX;
use crate::locator::Locator;
use crate::shake::Known;
use crate::tls::Material;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig, TransportConfig, VarInt,
};
use rustls::pki_types::CertificateDer;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The bytes that may be on their way, in each direction: 10 Gbit/s over a round trip of 6 ms, and
/// no more memory than that for a peer.
const WINDOW_BYTES: u32 = 8 << 20;
/// Kept of what comes before somebody has looked at a connection, whoever it is of: the first
/// flight of a handshake.
const INCOMING_BYTES: u64 = 64 << 10;
/// A packet of QUIC goes out so often though nobody has anything to say: well below [`IDLE_LIMIT`].
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// QUIC's own end of a connection that is silent; links have a shorter one.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// Code of a connection that is ended in order, or because who was there is not wanted.
const CLOSED: VarInt = VarInt::from_u32(0);
/// See [`CLOSED`].
const UNWANTED: VarInt = VarInt::from_u32(1);

fn transport() -> io::Result<Arc<TransportConfig>> {
    let mut config = TransportConfig::default();
    let idle = IDLE_LIMIT.try_into().map_err(other)?;
    config
        .max_concurrent_bidi_streams(1_u32.into())
        .max_concurrent_uni_streams(0_u32.into())
        .datagram_receive_buffer_size(None)
        .stream_receive_window(WINDOW_BYTES.into())
        .receive_window(WINDOW_BYTES.into())
        .send_window(WINDOW_BYTES.into())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(idle));
    Ok(Arc::new(config))
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::other(error)
}

fn unusable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

fn server(material: &Material) -> io::Result<ServerConfig> {
    let crypto = QuicServerConfig::try_from(material.server.clone()).map_err(unusable)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config
        .transport_config(transport()?)
        .max_incoming(HANDSHAKES_MAX)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES * HANDSHAKES_MAX as u64);
    Ok(config)
}

pub(crate) fn listen(address: SocketAddr, material: &Material) -> io::Result<Endpoint> {
    Endpoint::server(server(material)?, address)
}

/// One that has shown that its address is its own; `None`: it was asked to.
pub(crate) fn validated(incoming: quinn::Incoming) -> Option<quinn::Incoming> {
    if incoming.remote_address_validated() {
        return Some(incoming);
    }
    match incoming.retry() {
        Ok(()) => None,
        Err(incoming) => Some(incoming.into_incoming()),
    }
}

struct Quic {
    send: SendStream,
    receive: RecvStream,
    connection: Connection,
    /// Of the connecting side, it drives the connection's socket.
    _endpoint: Option<Endpoint>,
    finished: bool,
}

impl Drop for Quic {
    fn drop(&mut self) {
        self.connection.close(CLOSED, b"");
    }
}

fn who(connection: &Connection, material: &Material) -> Result<String, String> {
    let chain =
        connection.peer_identity().and_then(|found| found.downcast::<Vec<CertificateDer<'static>>>().ok());
    (material.who)(chain.as_deref().map(Vec::as_slice).unwrap_or_default())
}

/// The accepting side opens the stream, when it knows who is there.
pub(crate) async fn accept(incoming: quinn::Incoming, material: &Material) -> io::Result<Known> {
    let connecting = incoming.accept_with(Arc::new(server(material)?)).map_err(other)?;
    let connection = connecting.await.map_err(other)?;
    let who = who(&connection, material);
    if who.is_err() {
        connection.close(UNWANTED, b"no node of this cluster");
    }
    let (send, receive) = match connection.open_bi().await {
        Ok(streams) => streams,
        Err(error) => match who {
            Ok(_) => return Err(other(error)),
            Err(why) => return Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
        },
    };
    Ok((Box::new(Quic { send, receive, connection, _endpoint: None, finished: false }), who))
}

pub(crate) async fn connect(
    locator: Locator,
    material: &Material,
    peer: &str,
) -> Result<Known, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { locator, source };
    let handshake = |why: String| ConnectError::Handshake { locator, why };
    let address = locator.address.ip().map_err(unreachable)?;
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let endpoint = Endpoint::client(any).map_err(unreachable)?;
    let crypto =
        QuicClientConfig::try_from(material.client.clone()).map_err(|error| handshake(error.to_string()))?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport().map_err(unreachable)?);
    let name = format!("{peer}.node.tombolo");
    let connecting =
        endpoint.connect_with(config, address, &name).map_err(|_| ConnectError::Name(peer.to_owned()))?;
    let connection = connecting.await.map_err(|error| handshake(error.to_string()))?;
    let who = who(&connection, material);
    let streams = connection.accept_bi().await;
    let (send, receive) =
        streams.map_err(|error| ConnectError::NotReady { locator, source: other(error) })?;
    let quic = Quic { send, receive, connection, _endpoint: Some(endpoint), finished: false };
    Ok((Box::new(quic), who))
}

impl Carry for Quic {
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, bytes)
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // QUIC holds nothing back but for congestion.
        Poll::Ready(Ok(()))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(into);
        ready!(AsyncRead::poll_read(Pin::new(&mut self.receive), cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.finished {
            self.finished = true;
            if self.send.finish().is_err() {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            }
        }
        // What comes meanwhile is not wanted; its end says that the other side has ended, too.
        let mut waste = [0; 4096];
        loop {
            let mut buffer = ReadBuf::new(&mut waste);
            ready!(AsyncRead::poll_read(Pin::new(&mut self.receive), cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
