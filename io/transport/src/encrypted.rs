//! TLS 1.3 over a stream of the kernel's, from the end of the handshake on. Records are sealed in the buffer from which they go out, several for one
//! system call, and opened in the one into which they came.

use crate::buffer::Buffer;
use crate::connection::Carry;
use crate::records::{
    CARRIED_BYTES_MAX, EXTRA_BYTES, HEADER_BYTES, Opened, Opener, Sealer, Secrets, alert_of, close_notify,
};
use rustls::{ContentType, Error};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are asked of the socket at once, at most: a system call for 16 full records.
pub(crate) const INCOMING_BYTES: usize = 256 << 10;
/// Bytes that are sealed for one system call: they stay in the cache until the socket has them.
const OUTGOING_BYTES: usize = 64 << 10;
/// The same where what comes later may have to go first.
const OUTGOING_BYTES_LITTLE: usize = 32 << 10;

/// A stream of the kernel's that TLS goes over.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Whether it can be closed in one direction, and goes on in the other.
    const HALF_CLOSES: bool;

    /// See [`Carry::hold_little`].
    fn hold_little(&self, little: bool);
}

/// The outcome of looking at bytes that came.
enum Step {
    /// So many bytes for who reads.
    Plain(usize),
    Again,
    /// More is to be read first.
    Read,
    Ended,
}

pub(crate) struct Encrypted<T> {
    socket: T,
    sealer: Sealer,
    opener: Opener,
    secrets: Box<dyn Secrets>,
    incoming: Buffer,
    /// Came while nobody read.
    plain: Vec<u8>,
    taken: usize,
    /// Records, and one that is put together at their end.
    outgoing: Vec<u8>,
    /// So much of them has the socket.
    drained: usize,
    /// Where the record begins that is put together.
    begun: Option<usize>,
    /// So much is handed to the socket at once.
    batch_bytes: usize,
    /// The other side wants another key of us.
    owes_key: bool,
    /// Nothing more comes.
    ended: bool,
    said_end: bool,
    shut: bool,
}

pub(crate) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<T: Socket> Encrypted<T> {
    /// `incoming`: came behind the handshake, `plain`: and was opened.
    pub fn new(
        socket: T,
        (sealer, opener, secrets): (Sealer, Opener, Box<dyn Secrets>),
        incoming: Buffer,
        plain: Vec<u8>,
    ) -> Self {
        Self {
            socket,
            sealer,
            opener,
            secrets,
            incoming,
            plain,
            taken: 0,
            outgoing: Vec::with_capacity(OUTGOING_BYTES + 2 * (CARRIED_BYTES_MAX + EXTRA_BYTES)),
            drained: 0,
            begun: None,
            batch_bytes: OUTGOING_BYTES,
            owes_key: false,
            ended: false,
            said_end: false,
            shut: false,
        }
    }

    /// Looks at the next record, if it is whole.
    fn step(&mut self, hear: &mut dyn FnMut(&[u8])) -> Result<Step, Error> {
        if self.ended {
            return Ok(Step::Ended);
        }
        let Some(length) = Opener::length(self.incoming.filled())? else { return Ok(Step::Read) };
        let record = self.incoming.filled_mut().get_mut(..length).unwrap_or_default();
        let step = match self.opener.open(record, self.secrets.as_mut())? {
            Opened::Data(bytes) => {
                hear(bytes);
                Step::Plain(bytes.len())
            }
            Opened::Rekeyed(wants) => {
                self.owes_key |= wants;
                Step::Again
            }
            Opened::Nothing => Step::Again,
            Opened::Ended => {
                self.ended = true;
                Step::Ended
            }
        };
        self.incoming.take(length);
        Ok(step)
    }

    /// The same; the other side is told of what is no record, as far as the socket takes it now.
    fn heard(&mut self, cx: &mut Context<'_>, hear: &mut dyn FnMut(&[u8])) -> io::Result<Step> {
        let error = match self.step(hear) {
            Ok(step) => return Ok(step),
            Err(error) => error,
        };
        if let Some(alert) = alert_of(&error)
            && !self.said_end
        {
            self.said_end = true;
            self.drop_begun();
            let said = self.sealer.whole(ContentType::Alert, &alert, &mut self.outgoing);
            if said.is_err() || matches!(self.poll_drain(cx), Poll::Ready(Err(_))) {
                tracing::debug!(%error, "the other side does not hear what is wrong with its records");
            }
        }
        Err(invalid(error))
    }

    /// Looks at the next record, and keeps what is for who reads.
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

    fn waiting(&self) -> usize {
        self.outgoing.len() - self.drained
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.outgoing.get(self.drained..).filter(|rest| !rest.is_empty()) {
            let written = ready!(Pin::new(&mut self.socket).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.drained += written;
        }
        self.outgoing.clear();
        self.drained = 0;
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

    /// Begins a record behind those that wait, with another key where it is time for one.
    fn begin(&mut self) -> io::Result<()> {
        if self.owes_key || self.sealer.is_worn() {
            self.owes_key = false;
            self.sealer.rekey(self.secrets.as_mut(), &mut self.outgoing).map_err(invalid)?;
        }
        self.begun = Some(self.outgoing.len());
        Sealer::begin(&mut self.outgoing);
        Ok(())
    }

    /// Ends it, if there is something in it.
    fn end(&mut self) -> io::Result<()> {
        let Some(start) = self.begun.take() else { return Ok(()) };
        if self.outgoing.len() <= start + HEADER_BYTES {
            self.outgoing.truncate(start);
            return Ok(());
        }
        self.sealer.end(ContentType::ApplicationData, &mut self.outgoing, start).map_err(invalid)
    }

    /// Drops a record that was begun: nothing of it goes out in clear.
    fn drop_begun(&mut self) {
        if let Some(start) = self.begun.take() {
            self.outgoing.truncate(start);
        }
    }
}

impl<T: Socket> Carry for Encrypted<T> {
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.drop_begun();
        ready!(self.poll_drain(cx))?;
        let bytes = bytes.get(..OUTGOING_BYTES).unwrap_or(bytes);
        for carried in bytes.chunks(CARRIED_BYTES_MAX) {
            self.begin()?;
            self.outgoing.extend_from_slice(carried);
            self.end()?;
        }
        match self.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.drop_begun();
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
        self.drop_begun();
        // What the socket has in part has it whole before more is put behind: so there is never more than one batch.
        if self.drained > 0 || self.waiting() >= self.batch_bytes {
            ready!(self.poll_drain(cx))?;
        }
        self.begin()?;
        Poll::Ready(Ok(Some(&mut self.outgoing)))
    }

    fn placed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.end()?;
        if self.waiting() >= self.batch_bytes
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
        self.drop_begun();
        ready!(self.poll_drain(cx))?;
        if !self.said_end {
            self.said_end = true;
            self.sealer.whole(ContentType::Alert, &close_notify(), &mut self.outgoing).map_err(invalid)?;
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
            } else {
                // Where both end it at the same time, nobody closes a socket before the other has said so by TLS.
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
