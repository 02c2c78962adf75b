//! The handshake of TLS 1.3 over a stream of the kernel's.

use crate::buffer::Buffer;
use crate::connect::ConnectError;
use crate::connection::Carry;
use crate::encrypted::{Encrypted, INCOMING_BYTES, Socket, invalid};
use crate::locator::Locator;
use crate::records::{Opener, Sealer, Secrets};
use crate::tls::{Material, server_name};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{CommonState, Error, ExtractedSecrets};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::ready;
use tokio::io::ReadBuf;

/// Alerts and what else TLS wants to say when a handshake has failed, in records.
const LAST_WORDS_MAX: usize = 4;

/// The part of a TLS session that differs between the two sides.
trait Session: Send + Unpin + 'static {
    type Data;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn common(&self) -> &CommonState;
    fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Secrets>), Error>;
}

impl Session for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Secrets>), Error> {
        let (secrets, following) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, Box::new(following)))
    }
}

impl Session for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn finish(self) -> Result<(ExtractedSecrets, Box<dyn Secrets>), Error> {
        let (secrets, following) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, Box::new(following)))
    }
}

/// The outcome of looking at bytes that came.
enum Step {
    Again,
    /// More is to be read first.
    Read,
    Ended,
}

/// A handshake that is under way.
struct Shaking<T, S> {
    socket: T,
    session: S,
    incoming: Buffer,
    outgoing: Vec<u8>,
    /// Came with the handshake's end.
    plain: Vec<u8>,
}

impl<T: Socket, S: Session> Shaking<T, S> {
    /// Looks at what came once.
    fn step(&mut self) -> Result<Step, Error> {
        let UnbufferedStatus { mut discard, state } = self.session.process(self.incoming.filled_mut());
        let step = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    self.plain.extend_from_slice(record.payload);
                }
                Ok(Step::Again)
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                let start = self.outgoing.len();
                // It says how much it needs.
                let needs = match data.encode(&mut []) {
                    Ok(written) => written,
                    Err(EncodeError::InsufficientSize(size)) => size.required_size,
                    Err(other) => return Err(Error::General(other.to_string())),
                };
                self.outgoing.resize(start + needs, 0);
                let written = match self.outgoing.get_mut(start..) {
                    Some(room) if needs > 0 => data.encode(room),
                    _ => Ok(0),
                };
                let written = written.map_err(|error| Error::General(error.to_string()))?;
                self.outgoing.truncate(start + written);
                Ok(Step::Again)
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // It is in the buffer, in its place.
                data.done();
                Ok(Step::Again)
            }
            Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => Ok(Step::Read),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Ended),
            Ok(_) => Err(Error::General("early data, which nobody allowed".into())),
            Err(error) => Err(error),
        };
        self.incoming.take(discard);
        step
    }

    async fn drain(&mut self) -> io::Result<()> {
        let mut rest = &self.outgoing[..];
        while !rest.is_empty() {
            let written = poll_fn(|cx| Pin::new(&mut self.socket).poll_write(cx, rest)).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = rest.get(written..).unwrap_or_default();
        }
        self.outgoing.clear();
        Ok(())
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.incoming.make_room(INCOMING_BYTES / 2);
        let (socket, incoming) = (&mut self.socket, &mut self.incoming);
        let read = poll_fn(|cx| {
            let mut buffer = ReadBuf::new(incoming.room());
            ready!(Pin::new(&mut *socket).poll_read(cx, &mut buffer))?;
            std::task::Poll::Ready(Ok::<usize, io::Error>(buffer.filled().len()))
        });
        match read.await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.incoming.fill(read);
                Ok(())
            }
        }
    }

    async fn handshake(&mut self) -> io::Result<()> {
        loop {
            match self.step() {
                Ok(Step::Read) => {
                    self.drain().await?;
                    if !self.session.common().is_handshaking() {
                        return Ok(());
                    }
                    self.fill().await?;
                }
                Ok(Step::Again) => {}
                Ok(Step::Ended) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => {
                    self.last_words().await;
                    return Err(invalid(error));
                }
            }
        }
    }

    /// Tells the other side why it is refused, as far as the socket takes it.
    async fn last_words(&mut self) {
        for _ in 0..LAST_WORDS_MAX {
            if !matches!(self.step(), Ok(Step::Again)) {
                break;
            }
        }
        if let Err(error) = self.drain().await {
            tracing::debug!(%error, "the other side does not hear why it is refused");
        }
    }
}

/// A carrier, and who its other end is.
pub(crate) type Known = (Box<dyn Carry>, Result<String, String>);

/// The whole handshake, and what is said of the other side's certificates.
async fn shaken<T: Socket, S: Session, W>(
    socket: T,
    session: S,
    who: impl FnOnce(&[CertificateDer<'_>]) -> W,
) -> io::Result<(Encrypted<T>, W)> {
    let incoming = Buffer::new(INCOMING_BYTES);
    let mut shaking = Shaking { socket, session, incoming, outgoing: Vec::new(), plain: Vec::new() };
    shaking.handshake().await?;
    let Shaking { socket, session, incoming, plain, .. } = shaking;
    let who = who(session.common().peer_certificates().unwrap_or_default());
    let (secrets, following) = session.finish().map_err(invalid)?;
    let sealer = Sealer::new(&secrets.tx.1, secrets.tx.0).map_err(invalid)?;
    let opener = Opener::new(&secrets.rx.1, secrets.rx.0).map_err(invalid)?;
    Ok((Encrypted::new(socket, (sealer, opener, following), incoming, plain), who))
}

/// Both sides show who they are.
async fn shake<T: Socket, S: Session>(socket: T, session: S, material: &Material) -> io::Result<Known> {
    let (encrypted, who) = shaken(socket, session, |chain| (material.who)(chain)).await?;
    Ok((Box::new(encrypted), who))
}

/// The connecting side's part, over whatever `socket` comes to.
pub(crate) async fn connect_over<T: Socket>(
    socket: impl Future<Output = io::Result<T>>,
    locator: Locator,
    material: &Material,
    peer: &str,
) -> Result<Known, ConnectError> {
    let name = server_name(peer).map_err(|_| ConnectError::Name(peer.to_owned()))?;
    let handshake = |why: String| ConnectError::Handshake { locator, why };
    let session = UnbufferedClientConnection::new(material.client.clone(), name)
        .map_err(|error| handshake(error.to_string()))?;
    let socket = socket.await.map_err(|source| ConnectError::Unreachable { locator, source })?;
    shake(socket, session, material).await.map_err(|error| handshake(error.to_string()))
}

/// The accepting side's part.
pub(crate) async fn accept_over<T: Socket>(socket: T, material: &Material) -> io::Result<Known> {
    let session = UnbufferedServerConnection::new(material.server.clone()).map_err(invalid)?;
    shake(socket, session, material).await
}

/// The connecting side alone, for tests of what follows.
#[cfg(test)]
pub(crate) async fn client<T: Socket>(
    socket: T,
    config: std::sync::Arc<rustls::ClientConfig>,
    peer: &str,
) -> io::Result<Encrypted<T>> {
    let name = server_name(peer).map_err(io::Error::other)?;
    let session = UnbufferedClientConnection::new(config, name).map_err(invalid)?;
    shaken(socket, session, |_| ()).await.map(|(encrypted, ())| encrypted)
}
