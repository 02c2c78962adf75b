//! The half of a stream's end that reads.

use std::io::{self, IoSliceMut, Read};
use std::time::Instant;

use ring::{Record, Violation};

use crate::{Closer, Descriptors, ReceiveError, Receiver, SpinPolicy};

/// Reads bytes. Dropping it closes the channel, for both directions.
///
/// At the end of the stream (the writer finished it, or closed, or died) reads return 0 bytes,
/// after everything that was written before. [`Read`] waits for the first byte as long as it takes;
/// the other methods say how long they wait.
#[derive(Debug)]
pub struct StreamReader {
    receiver: Receiver,
    /// The record that is being read. It is released with its last byte.
    held: Option<Held>,
    /// The writer has finished; nothing behind that counts.
    finished: bool,
    /// The rule that the peer broke: said again at each call, for a stream that broke off must not
    /// look like one that ended.
    broken: Option<Violation>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    record: Record,
    /// Bytes of it that have been read.
    at: usize,
}

/// The next step of a reader.
enum Next {
    Bytes(Held),
    Nothing,
    /// The end: finished, closed or dead, and everything was read.
    End,
}

impl StreamReader {
    pub(crate) fn new(receiver: Receiver) -> Self {
        StreamReader { receiver, held: None, finished: false, broken: None }
    }

    /// Sets when to spin before sleeping.
    pub fn set_spin_policy(&mut self, policy: SpinPolicy) {
        self.receiver.set_spin_policy(policy);
    }

    /// Reads what is there, at most as much as `into` takes; returns how many bytes, 0 at the end
    /// of the stream (or if `into` takes none), or `None` if nothing is there yet.
    ///
    /// # Errors
    /// [`ReceiveError`], other than `TimedOut` and `Closed`.
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<Option<usize>, ReceiveError> {
        if into.is_empty() {
            return Ok(Some(0));
        }
        match self.next()? {
            Next::Bytes(held) => self.take(held, into).map(Some),
            Next::Nothing => Ok(None),
            Next::End => Ok(Some(0)),
        }
    }

    /// As [`StreamReader::try_read`], into several buffers one after the other.
    ///
    /// # Errors
    /// As there.
    pub fn try_read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, ReceiveError> {
        self.fill_parts(parts, StreamReader::try_read)
    }

    /// Reads, waiting for the first byte; returns how many bytes, 0 at the end of the stream (or if
    /// `into` takes none).
    ///
    /// # Errors
    /// [`ReceiveError`], other than `Closed`.
    pub fn read_with(&mut self, into: &mut [u8], deadline: Option<Instant>) -> Result<usize, ReceiveError> {
        loop {
            if let Some(read) = self.try_read(into)? {
                return Ok(read);
            }
            match self.receiver.wait_for(deadline, Receiver::next) {
                // Closed is what the next look finds, too, unless something came before.
                Ok(_) | Err(ReceiveError::Closed) => {}
                Err(error) => return Err(self.keep(error)),
            }
        }
    }

    /// As [`StreamReader::read_with`], into several buffers one after the other.
    ///
    /// # Errors
    /// As there.
    pub fn read_vectored_with(
        &mut self,
        parts: &mut [IoSliceMut<'_>],
        deadline: Option<Instant>,
    ) -> Result<usize, ReceiveError> {
        let read = self.fill_parts(parts, |reader, into| reader.read_with(into, deadline).map(Some))?;
        Ok(read.unwrap_or(0))
    }

    /// Reads into the first part that takes something with `first`, and into the rest what is
    /// there.
    fn fill_parts(
        &mut self,
        parts: &mut [IoSliceMut<'_>],
        first: impl FnOnce(&mut Self, &mut [u8]) -> Result<Option<usize>, ReceiveError>,
    ) -> Result<Option<usize>, ReceiveError> {
        let mut parts = parts.iter_mut().filter(|part| !part.is_empty());
        let Some(part) = parts.next() else { return Ok(Some(0)) };
        let Some(mut read) = first(self, part)? else { return Ok(None) };
        let mut filled = read == part.len();
        for part in parts {
            if !filled {
                break;
            }
            // What is wrong now is so at the next call, too; what was read before must not be lost.
            let Ok(Next::Bytes(held)) = self.next() else { break };
            let now = self.take(held, part)?;
            read += now;
            filled = now == part.len();
        }
        Ok(Some(read))
    }

    fn next(&mut self) -> Result<Next, ReceiveError> {
        if let Some(violation) = self.broken {
            return Err(violation.into());
        }
        if self.finished {
            return Ok(Next::End);
        }
        if let Some(held) = self.held {
            self.receiver.check_here()?;
            return Ok(Next::Bytes(held));
        }
        let record = match self.receiver.next() {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(Next::Nothing),
            Err(ReceiveError::Closed) => return Ok(Next::End),
            Err(error) => return Err(self.keep(error)),
        };
        if record.len() == 0 {
            self.finished = true;
            self.receiver.release(record)?;
            return Ok(Next::End);
        }
        Ok(Next::Bytes(Held { record, at: 0 }))
    }

    /// Reads from `held` on, as far as `into` takes it and something is there. Each record gives at
    /// least a byte, so `into` bounds the turns.
    fn take(&mut self, mut held: Held, into: &mut [u8]) -> Result<usize, ReceiveError> {
        let mut read = 0;
        loop {
            let now = (held.record.len() - held.at).min(into.len() - read);
            let inside = self.receiver.copy(&held.record, held.at, &mut into[read..read + now]);
            debug_assert!(inside, "a record keeps its length");
            read += now;
            held.at += now;
            self.held = (held.at < held.record.len()).then_some(held);
            if self.held.is_some() {
                return Ok(read);
            }
            self.receiver.release(held.record)?;
            if read == into.len() {
                return Ok(read);
            }
            // What is wrong now is so at the next call, too; what was read before must not be lost.
            match self.next() {
                Ok(Next::Bytes(next)) => held = next,
                Ok(Next::Nothing | Next::End) | Err(_) => return Ok(read),
            }
        }
    }

    fn keep(&mut self, error: ReceiveError) -> ReceiveError {
        if let ReceiveError::Corrupt(violation) = error {
            self.broken = Some(violation);
        }
        error
    }

    /// Whether the writer has finished the stream and everything before was read: an end of the
    /// file without this is a close, or a death, somewhere in the middle.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// The descriptors that an event loop watches.
    #[must_use]
    pub fn descriptors(&self) -> Descriptors<'_> {
        self.receiver.descriptors()
    }

    /// Says to the peer that we are going to sleep and want to be rung. False: there is something
    /// (bytes, or the end), so do not sleep.
    pub fn prepare_wait(&mut self) -> bool {
        let has_something = self.held.is_some() || self.finished || self.broken.is_some();
        !has_something && self.receiver.prepare_wait()
    }

    /// Says that we are awake again. Needed after every [`StreamReader::prepare_wait`] that
    /// returned true.
    pub fn cancel_wait(&mut self) {
        self.receiver.cancel_wait();
    }

    /// Takes the rings off the doorbell, and notices the death of the peer. Then try to read.
    ///
    /// # Errors
    /// [`ReceiveError::Doorbell`].
    pub fn drain_doorbell(&mut self) -> Result<(), ReceiveError> {
        self.receiver.drain_doorbell()
    }

    /// Closes the channel, for both halves of this end and for the peer.
    pub fn close(&mut self) {
        self.receiver.close();
    }

    /// A handle that closes the channel from elsewhere.
    #[must_use]
    pub fn closer(&self) -> Closer {
        self.receiver.closer()
    }

    /// Whether the channel is closed, here or there, or the peer is dead. There may still be bytes
    /// to read.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.receiver.is_closed()
    }

    /// Lets go of the end without closing the channel, as [`Receiver::abandon`].
    pub fn abandon(&mut self) {
        self.receiver.abandon();
    }
}

impl Read for StreamReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_with(into, None)?)
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(self.read_vectored_with(parts, None)?)
    }
}
