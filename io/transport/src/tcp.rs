//! TLS 1.3 over a stream of the kernel's, and TCP as one. The records of TLS are made and opened in two large buffers of our own, so that one
//! system call moves many of them.

use crate::connect::ConnectError;
use crate::connection::Carry;
use crate::locator::Locator;
use crate::tls::{Material, server_name};
use rustls::CommonState;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes that are asked of the socket at once, at most: a system call for 16 full records.
const INCOMING_BYTES: usize = 256 << 10;
/// Bytes that are encrypted at once: they stay in the cache until the socket has them.
const ENCRYPT_BYTES: usize = 64 << 10;
/// What TLS adds to them: 22 bytes for each record of 16 KiB, and a change of keys now and then.
const ENCRYPT_EXTRA_BYTES: usize = 4 << 10;
/// What the socket holds that is not sent yet, where it is to hold little: enough that it never waits for us.
const UNSENT_BYTES: u32 = 32 << 10;
/// Alerts and what else TLS wants to say when a handshake has failed, in records.
const LAST_WORDS_MAX: usize = 4;

/// The part of a TLS session that differs between the two sides.
pub(crate) trait Session: Send + Unpin + 'static {
    type Data;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn common(&self) -> &CommonState;
}

impl Session for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
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
}

/// A stream of the kernel's that TLS goes over.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Whether it can be closed in one direction, and goes on in the other.
    const HALF_CLOSES: bool;

    /// See [`Carry::hold_little`].
    fn hold_little(&self, little: bool);
}

impl Socket for TcpStream {
    const HALF_CLOSES: bool = true;

    fn hold_little(&self, little: bool) {
        if let Err(error) = sys::unsent::limit(self.as_fd(), little.then_some(UNSENT_BYTES)) {
            tracing::debug!(%error, "the socket holds what it likes");
        }
    }
}

/// A buffer of which a part is filled.
struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes].into_boxed_slice(), start: 0, end: 0 }
    }

    fn filled(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    fn filled_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.end).unwrap_or_default()
    }

    fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    fn fill(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.bytes.len());
    }

    fn take(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Moves what is filled to the front, where the room behind it is less than `bytes`.
    fn make_room(&mut self, bytes: usize) {
        if self.bytes.len() - self.end < bytes {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

/// What came of looking at what came.
enum Step {
    /// So many bytes for who reads.
    Plain(usize),
    Again,
    /// More is to be read first.
    Read,
    Ended,
}

pub(crate) struct Encrypted<T, S> {
    socket: T,
    session: S,
    incoming: Buffer,
    /// Came while nobody read.
    plain: Vec<u8>,
    taken: usize,
    outgoing: Buffer,
    said_end: bool,
    shut: bool,
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<T: Socket, S: Session> Encrypted<T, S> {
    fn new(socket: T, session: S) -> Self {
        Self {
            socket,
            session,
            incoming: Buffer::new(INCOMING_BYTES),
            plain: Vec::new(),
            taken: 0,
            outgoing: Buffer::new(ENCRYPT_BYTES + ENCRYPT_EXTRA_BYTES),
            said_end: false,
            shut: false,
        }
    }

    /// Looks at what came once.
    fn step(&mut self, hear: &mut dyn FnMut(&[u8])) -> Result<Step, rustls::Error> {
        let UnbufferedStatus { mut discard, state } = self.session.process(self.incoming.filled_mut());
        let step = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                let mut heard = 0;
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    heard += record.payload.len();
                    hear(record.payload);
                }
                Ok(Step::Plain(heard))
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                let written = match data.encode(self.outgoing.room()) {
                    Err(EncodeError::InsufficientSize(size)) => {
                        // Only a handshake is so long, and only where certificates are: the buffer keeps the size.
                        let bytes = self.outgoing.end + size.required_size;
                        let mut grown = std::mem::take(&mut self.outgoing.bytes).into_vec();
                        grown.resize(bytes, 0);
                        self.outgoing.bytes = grown.into_boxed_slice();
                        data.encode(self.outgoing.room())
                    }
                    other => other,
                };
                let written = written.map_err(|error| rustls::Error::General(error.to_string()))?;
                self.outgoing.fill(written);
                Ok(Step::Again)
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // It is in the buffer, in its place.
                data.done();
                Ok(Step::Again)
            }
            Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => Ok(Step::Read),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Ended),
            Ok(_) => Err(rustls::Error::General("early data, which nobody allowed".into())),
            Err(error) => Err(error),
        };
        self.incoming.take(discard);
        step
    }

    fn forget_plain(&mut self) {
        self.plain.clear();
        self.taken = 0;
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.filled().is_empty() {
            let written = ready!(Pin::new(&mut self.socket).poll_write(cx, self.outgoing.filled()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.take(written);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // A record of TLS is below 17 KiB: there is always room for the rest of one.
        self.incoming.make_room(INCOMING_BYTES / 2);
        let mut buffer = ReadBuf::new(self.incoming.room());
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        let read = buffer.filled().len();
        self.incoming.fill(read);
        Poll::Ready(Ok(read))
    }

    /// Lets TLS look at all that came, which is kept for who reads: only then it may be asked to encrypt. No more than the incoming buffer
    /// holds is added to what is kept, because nothing is read from the socket here.
    fn settle(&mut self) -> io::Result<bool> {
        loop {
            match self.keep().map_err(invalid)? {
                Step::Read => return Ok(true),
                Step::Ended => return Ok(false),
                Step::Again | Step::Plain(_) => {}
            }
        }
    }

    /// Looks at what came once, and keeps what is for who reads.
    fn keep(&mut self) -> Result<Step, rustls::Error> {
        let mut plain = std::mem::take(&mut self.plain);
        let step = self.step(&mut |bytes| plain.extend_from_slice(bytes));
        self.plain = plain;
        step
    }

    /// Encrypts the front of `bytes` into the outgoing buffer, which is empty. 0: the other side has ended the connection.
    fn encrypt(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = bytes.get(..ENCRYPT_BYTES).unwrap_or(bytes);
        if !self.settle()? {
            return Ok(0);
        }
        match self.session.process(self.incoming.filled_mut()).state.map_err(invalid)? {
            ConnectionState::WriteTraffic(mut traffic) => {
                let written = traffic.encrypt(bytes, self.outgoing.room()).map_err(|error| match error {
                    EncryptError::EncryptExhausted => io::Error::from(io::ErrorKind::ConnectionAborted),
                    other => invalid(other),
                })?;
                self.outgoing.fill(written);
                Ok(bytes.len())
            }
            _ => Ok(0),
        }
    }

    async fn handshake(&mut self) -> io::Result<()> {
        while self.session.common().is_handshaking() {
            match self.keep() {
                Ok(Step::Read) => {
                    poll_fn(|cx| self.poll_drain(cx)).await?;
                    if self.session.common().is_handshaking() && poll_fn(|cx| self.poll_fill(cx)).await? == 0
                    {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Ok(Step::Again | Step::Plain(_)) => {}
                Ok(Step::Ended) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => {
                    self.last_words().await;
                    return Err(invalid(error));
                }
            }
        }
        self.settle()?;
        poll_fn(|cx| self.poll_drain(cx)).await
    }

    /// Tells the other side why it is refused, as far as the socket takes it.
    async fn last_words(&mut self) {
        for _ in 0..LAST_WORDS_MAX {
            if !matches!(self.keep(), Ok(Step::Again)) {
                break;
            }
        }
        if let Err(error) = poll_fn(|cx| self.poll_drain(cx)).await {
            tracing::debug!(%error, "the other side does not hear why it is refused");
        }
    }
}

impl<T: Socket, S: Session> Carry for Encrypted<T, S> {
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(cx))?;
        let taken = self.encrypt(bytes)?;
        if taken == 0 && !bytes.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        match self.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_drain(cx)
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        while self.plain.is_empty() && !into.is_empty() {
            match self.keep().map_err(invalid)? {
                Step::Plain(_) | Step::Again => {}
                Step::Ended => return Poll::Ready(Ok(0)),
                Step::Read => {
                    if ready!(self.poll_fill(cx))? == 0 {
                        return Poll::Ready(Ok(0));
                    }
                }
            }
        }
        let rest = self.plain.get(self.taken..).unwrap_or_default();
        let filled = rest.len().min(into.len());
        if let (Some(room), Some(rest)) = (into.get_mut(..filled), rest.get(..filled)) {
            room.copy_from_slice(rest);
        }
        self.taken += filled;
        if self.taken == self.plain.len() {
            self.forget_plain();
        }
        Poll::Ready(Ok(filled))
    }

    fn poll_hear(
        &mut self,
        cx: &mut Context<'_>,
        _scratch: &mut [u8],
        hear: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        // What is kept stands in front of all that follows.
        let kept = self.plain.get(self.taken..).unwrap_or_default();
        let mut heard = kept.len();
        if heard > 0 {
            hear(kept);
            self.forget_plain();
        }
        loop {
            match self.step(hear).map_err(invalid)? {
                Step::Plain(more) => heard += more,
                Step::Again => {}
                Step::Ended => break,
                Step::Read if heard > 0 => break,
                Step::Read => {
                    if ready!(self.poll_fill(cx))? == 0 {
                        break;
                    }
                }
            }
        }
        Poll::Ready(Ok(heard))
    }

    fn hold_little(&mut self, little: bool) {
        self.socket.hold_little(little);
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        if !self.said_end {
            self.said_end = true;
            self.settle()?;
            let status = self.session.process(self.incoming.filled_mut());
            if let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state {
                let written = traffic.queue_close_notify(self.outgoing.room()).map_err(invalid)?;
                self.outgoing.fill(written);
            }
            ready!(self.poll_drain(cx))?;
        }
        if T::HALF_CLOSES && !self.shut {
            ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
            self.shut = true;
        }
        // A socket that is closed with something unread in it takes back what it has sent (RFC 9293, 3.10.4).
        loop {
            if T::HALF_CLOSES {
                self.incoming.take(usize::MAX);
            } else if !self.settle()? {
                // Where both end it at the same time, nobody closes a socket before the other has said so by TLS.
                return Poll::Ready(Ok(()));
            }
            self.plain.clear();
            self.taken = 0;
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// A carrier, and who its other end is.
pub(crate) type Known = (Box<dyn Carry>, Result<String, String>);

/// Both sides show who they are.
async fn shake<T: Socket, S: Session>(socket: T, session: S, material: &Material) -> io::Result<Known> {
    let mut encrypted = Encrypted::new(socket, session);
    encrypted.handshake().await?;
    let chain: &[CertificateDer<'_>] = encrypted.session.common().peer_certificates().unwrap_or_default();
    let who = (material.who)(chain);
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

pub(crate) async fn connect(
    locator: Locator,
    material: &Material,
    peer: &str,
) -> Result<Known, ConnectError> {
    let socket = async {
        let socket = TcpStream::connect(locator.address.ip()?).await?;
        socket.set_nodelay(true)?;
        Ok(socket)
    };
    connect_over(socket, locator, material, peer).await
}

pub(crate) async fn accept(socket: TcpStream, material: &Material) -> io::Result<Known> {
    socket.set_nodelay(true)?;
    accept_over(socket, material).await
}
