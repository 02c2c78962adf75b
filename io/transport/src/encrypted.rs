//! TLS 1.3 over a stream of the kernel's. The session is rustls', without buffers of its own: it
//! opens records in the buffer into which they came, and seals those that go out behind each other,
//! several for one system call.

use crate::buffer::Buffer;
use crate::connection::Carry;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{CommonState, Error};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes that one record carries.
const CARRIED_BYTES_MAX: usize = 1 << 14;
/// The bytes of a record beside its content, and those of a change of keys in front of it, at most.
const EXTRA_BYTES: usize = 64;
/// Bytes that are asked of the socket at once, at most: a system call for 16 full records.
const INCOMING_BYTES: usize = 256 << 10;
/// Bytes that are sealed for one system call: they stay in the cache until the socket has them.
const OUTGOING_BYTES: usize = 64 << 10;
/// The same where what comes later may have to go first.
const OUTGOING_BYTES_LITTLE: usize = 32 << 10;
/// Room for a batch, a record that made it one, and an alert or a part of a handshake behind it.
const OUTGOING_ROOM_BYTES: usize = OUTGOING_BYTES + 2 * (CARRIED_BYTES_MAX + EXTRA_BYTES);

/// A stream of the kernel's that TLS goes over.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Whether it can be closed in one direction, and goes on in the other.
    const HALF_CLOSES: bool;

    /// See [`Carry::hold_little`].
    fn hold_little(&self, little: bool);
}

/// A TLS session of either side.
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

/// Content that is sealed where the session stands.
#[derive(Clone, Copy)]
enum Outward<'a> {
    Nothing,
    Data(&'a [u8]),
    /// Nothing follows.
    End,
}

/// The outcome of looking at bytes that came.
enum Step {
    /// So many bytes for who reads.
    Plain(usize),
    Again,
    /// More is to be read first. What was to be sealed is.
    Read,
    /// Both sides have said that nothing follows.
    Ended,
}

pub(crate) struct Encrypted<T, S> {
    socket: T,
    session: S,
    incoming: Buffer,
    /// Came while nobody read.
    plain: Vec<u8>,
    taken: usize,
    /// Records.
    outgoing: Buffer,
    /// A packet that is put together, and is sealed then.
    packet: Vec<u8>,
    /// So much is handed to the socket at once.
    batch_bytes: usize,
    /// Nothing more comes.
    ended: bool,
    said_end: bool,
    shut: bool,
}

pub(crate) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn general(error: impl std::fmt::Display) -> Error {
    Error::General(error.to_string())
}

impl<T: Socket, S: Session> Encrypted<T, S> {
    pub fn new(socket: T, session: S) -> Self {
        Self {
            socket,
            session,
            incoming: Buffer::new(INCOMING_BYTES),
            plain: Vec::new(),
            taken: 0,
            outgoing: Buffer::new(OUTGOING_ROOM_BYTES),
            packet: Vec::with_capacity(CARRIED_BYTES_MAX),
            batch_bytes: OUTGOING_BYTES,
            ended: false,
            said_end: false,
            shut: false,
        }
    }

    pub fn session(&self) -> &S {
        &self.session
    }

    /// Lets the session take one step: it looks at what came, or puts what it has to say behind
    /// what goes out, or seals `outward` there.
    ///
    /// The session always sees all that came: of a message that is not whole yet it remembers where
    /// it is in there.
    fn step(&mut self, outward: Outward<'_>, hear: &mut dyn FnMut(&[u8])) -> Result<Step, Error> {
        let UnbufferedStatus { mut discard, state } = self.session.process(self.incoming.filled_mut());
        let (step, sealed) = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                let mut heard = 0;
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    heard += record.payload.len();
                    hear(record.payload);
                }
                (Ok(Step::Plain(heard)), Ok(0))
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                (Ok(Step::Again), data.encode(self.outgoing.room()).map_err(general))
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // It is in the buffer, in its place.
                data.done();
                (Ok(Step::Again), Ok(0))
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                let sealed = match outward {
                    Outward::Nothing => Ok(0),
                    Outward::Data(content) => traffic.encrypt(content, self.outgoing.room()).map_err(general),
                    Outward::End => traffic.queue_close_notify(self.outgoing.room()).map_err(general),
                };
                (Ok(Step::Read), sealed)
            }
            Ok(ConnectionState::BlockedHandshake) => (Ok(Step::Read), Ok(0)),
            Ok(ConnectionState::PeerClosed) => {
                self.ended = true;
                (Ok(Step::Again), Ok(0))
            }
            Ok(ConnectionState::Closed) => (Ok(Step::Ended), Ok(0)),
            Ok(_) => (Err(general("early data, which nobody allowed")), Ok(0)),
            Err(error) => (Err(error), Ok(0)),
        };
        self.incoming.take(discard);
        self.outgoing.fill(sealed?);
        step
    }

    /// Looks at what came; the other side is told of what is no record, as far as the socket takes
    /// it now.
    fn heard(&mut self, cx: &mut Context<'_>, hear: &mut dyn FnMut(&[u8])) -> io::Result<Step> {
        if self.ended {
            return Ok(Step::Ended);
        }
        self.step(Outward::Nothing, hear).map_err(|error| {
            self.last_words(cx, &error);
            invalid(error)
        })
    }

    /// Tells the other side why it is refused, as far as the socket takes it.
    fn last_words(&mut self, cx: &mut Context<'_>, error: &Error) {
        // Nothing is opened behind it, and nothing sealed.
        (self.ended, self.said_end) = (true, true);
        while self.session.common().wants_write() {
            if let Err(also) = self.step(Outward::Nothing, &mut |_| ()) {
                tracing::debug!(%error, %also, "there is no room for what is wrong with the other side's records");
                break;
            }
        }
        if matches!(self.poll_drain(cx), Poll::Ready(Err(_))) {
            tracing::debug!(%error, "the other side does not hear what is wrong with its records");
        }
    }

    /// Looks at what came, and keeps what is for who reads.
    fn keep(&mut self, cx: &mut Context<'_>) -> io::Result<Step> {
        let mut plain = std::mem::take(&mut self.plain);
        let step = self.heard(cx, &mut |bytes| plain.extend_from_slice(bytes));
        self.plain = plain;
        step
    }

    fn forget_plain(&mut self) {
        self.plain.clear();
        self.taken = 0;
    }

    /// Drains what goes out, then reads until the handshake is over. What came behind it is kept.
    pub fn poll_shake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.keep(cx)? {
                Step::Again | Step::Plain(_) => {}
                Step::Ended => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Step::Read => {
                    ready!(self.poll_drain(cx))?;
                    if !self.session.common().is_handshaking() {
                        return Poll::Ready(Ok(()));
                    }
                    if ready!(self.poll_fill(cx))? == 0 {
                        return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                    }
                }
            }
        }
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

    /// Seals `outward` behind what goes out; what came meanwhile is kept.
    fn seal(&mut self, cx: &mut Context<'_>, outward: Outward<'_>) -> io::Result<()> {
        if self.said_end {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut plain = std::mem::take(&mut self.plain);
        let sealed = loop {
            match self.step(outward, &mut |bytes| plain.extend_from_slice(bytes)) {
                Ok(Step::Again | Step::Plain(_)) => {}
                Ok(Step::Read) => break Ok(()),
                Ok(Step::Ended) => break Err(io::ErrorKind::BrokenPipe.into()),
                Err(error) => {
                    self.last_words(cx, &error);
                    break Err(invalid(error));
                }
            }
        };
        self.plain = plain;
        sealed
    }
}

impl<T: Socket, S: Session> Carry for Encrypted<T, S> {
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(cx))?;
        let bytes = bytes.get(..OUTGOING_BYTES).unwrap_or(bytes);
        for carried in bytes.chunks(CARRIED_BYTES_MAX) {
            self.seal(cx, Outward::Data(carried))?;
        }
        match self.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_drain(cx)
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        while self.plain.is_empty() && !into.is_empty() {
            match self.keep(cx)? {
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
            match self.heard(cx, hear)? {
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

    fn packet_bytes(&self) -> usize {
        CARRIED_BYTES_MAX
    }

    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<&mut Vec<u8>>>> {
        // What the socket has in part has it whole before more is put behind: so there is never
        // more than one batch.
        if self.outgoing.is_taken_from() || self.outgoing.filled().len() >= self.batch_bytes {
            ready!(self.poll_drain(cx))?;
        }
        self.packet.clear();
        Poll::Ready(Ok(Some(&mut self.packet)))
    }

    fn placed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.packet.is_empty() {
            let packet = std::mem::take(&mut self.packet);
            let sealed = self.seal(cx, Outward::Data(&packet));
            self.packet = packet;
            sealed?;
        }
        if self.outgoing.filled().len() >= self.batch_bytes
            && let Poll::Ready(Err(error)) = self.poll_drain(cx)
        {
            return Err(error);
        }
        Ok(())
    }

    fn hold_little(&mut self, little: bool) {
        self.batch_bytes = if little { OUTGOING_BYTES_LITTLE } else { OUTGOING_BYTES };
        self.socket.hold_little(little);
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        if !self.said_end {
            self.seal(cx, Outward::End)?;
            self.said_end = true;
            ready!(self.poll_drain(cx))?;
        }
        if T::HALF_CLOSES && !self.shut {
            ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
            self.shut = true;
        }
        // A socket that is closed with something unread in it takes back what it has sent (RFC
        // 9293, 3.10.4).
        loop {
            if T::HALF_CLOSES {
                // The session sees nothing of it any more.
                self.ended = true;
                self.incoming.take(usize::MAX);
            } else {
                // Where both end it at the same time, nobody closes a socket before the other has
                // said so by TLS.
                loop {
                    match self.keep(cx)? {
                        Step::Read => break,
                        Step::Ended => return Poll::Ready(Ok(())),
                        Step::Again | Step::Plain(_) => {}
                    }
                }
            }
            self.forget_plain();
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
