//! The halves of a stream: what tokio reads from and writes to.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use channel::{Closer, ReceiveError, SendError, StreamReader, StreamWriter};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::bells::{Bells, Half, poll};
use crate::receiver::ready_or_pending;

/// Reads bytes. Dropping it closes the channel, for both directions.
#[derive(Debug)]
pub struct AsyncStreamReader {
    bells: Bells,
    reader: StreamReader,
}

/// Writes bytes. Dropping it closes the channel, for both directions; `shutdown` ends its own
/// alone.
#[derive(Debug)]
pub struct AsyncStreamWriter {
    bells: Bells,
    writer: StreamWriter,
    /// Bytes that we wait for room for.
    wanted: usize,
}

impl Half for AsyncStreamReader {
    type Error = ReceiveError;

    fn bells(&self) -> &Bells {
        &self.bells
    }

    fn prepare_wait(&mut self) -> Result<bool, ReceiveError> {
        Ok(self.reader.prepare_wait())
    }

    fn cancel_wait(&mut self) {
        self.reader.cancel_wait();
    }

    fn drain(&mut self) -> Result<(), ReceiveError> {
        self.reader.drain_doorbell()
    }

    fn refused(error: io::Error) -> ReceiveError {
        ReceiveError::Doorbell(error)
    }
}

impl Half for AsyncStreamWriter {
    type Error = SendError;

    fn bells(&self) -> &Bells {
        &self.bells
    }

    fn prepare_wait(&mut self) -> Result<bool, SendError> {
        self.writer.prepare_wait(self.wanted)
    }

    fn cancel_wait(&mut self) {
        self.writer.cancel_wait();
    }

    fn drain(&mut self) -> Result<(), SendError> {
        self.writer.drain_doorbell()
    }

    fn refused(error: io::Error) -> SendError {
        SendError::Doorbell(error)
    }
}

impl AsyncStreamReader {
    /// Waits for a reader's bytes by the current runtime.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2) and of duplicating two descriptors; the channel is closed then.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(reader: StreamReader) -> io::Result<AsyncStreamReader> {
        Ok(AsyncStreamReader { bells: Bells::new(&reader.descriptors())?, reader })
    }

    /// Whether the end of the file was the writer's own doing, and no close or death: see
    /// [`StreamReader::is_finished`].
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.reader.is_finished()
    }

    /// A handle that closes the channel from elsewhere.
    #[must_use]
    pub fn closer(&self) -> Closer {
        self.reader.closer()
    }

    /// The reader itself: for its settings, and for what does not wait.
    pub fn get_mut(&mut self) -> &mut StreamReader {
        &mut self.reader
    }

    /// Gives the reader back to those who wait otherwise.
    #[must_use]
    pub fn into_inner(mut self) -> StreamReader {
        self.reader.cancel_wait();
        self.reader
    }
}

impl AsyncStreamWriter {
    /// Waits for a writer's room by the current runtime.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2) and of duplicating two descriptors; the channel is closed then.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(writer: StreamWriter) -> io::Result<AsyncStreamWriter> {
        Ok(AsyncStreamWriter { bells: Bells::new(&writer.descriptors())?, writer, wanted: 0 })
    }

    /// A handle that closes the channel from elsewhere.
    #[must_use]
    pub fn closer(&self) -> Closer {
        self.writer.closer()
    }

    /// The writer itself: for its settings, and for what does not wait.
    pub fn get_mut(&mut self) -> &mut StreamWriter {
        &mut self.writer
    }

    /// Gives the writer back to those who wait otherwise.
    #[must_use]
    pub fn into_inner(mut self) -> StreamWriter {
        self.writer.cancel_wait();
        self.writer
    }

    /// Polls `attempt`, which needs room for `wanted` bytes.
    fn poll_attempt<T>(
        &mut self,
        cx: &mut Context<'_>,
        wanted: usize,
        mut attempt: impl FnMut(&mut StreamWriter) -> Result<T, SendError>,
    ) -> Poll<io::Result<T>> {
        self.wanted = wanted;
        let done = poll(self, cx, |half| match attempt(&mut half.writer) {
            Err(SendError::Full) => Poll::Pending,
            result => Poll::Ready(result),
        });
        done.map_err(io::Error::from)
    }
}

impl AsyncRead for AsyncStreamReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let place = into.initialize_unfilled();
        let read = poll(self.get_mut(), cx, |half| ready_or_pending(half.reader.try_read(place)));
        read.map(|read| {
            into.advance(read?);
            Ok(())
        })
    }
}

impl AsyncWrite for AsyncStreamWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_attempt(cx, bytes.len(), |writer| writer.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // Saturating: a wait is for a piece at most.
        let length = parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()));
        self.get_mut().poll_attempt(cx, length, |writer| writer.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_attempt(cx, 0, StreamWriter::try_flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_attempt(cx, 0, StreamWriter::try_finish)
    }
}
