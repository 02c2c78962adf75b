//! The half of a stream's end that writes.

use std::io::{self, IoSlice, Write};
use std::time::Instant;

use ring::Violation;

use crate::parts::Parts;
use crate::sender::Loan;
use crate::{Closer, Descriptors, SendError, Sender, SpinPolicy};

/// Writes bytes. Dropping it closes the channel, for both directions; what was written before can
/// still be read.
///
/// [`Write`] waits for room as long as it takes; the other methods say how long they wait. Errors
/// of [`Write`] are those of a pipe: [`io::ErrorKind::BrokenPipe`] when the channel is closed or
/// the peer dead.
#[derive(Debug)]
pub struct StreamWriter {
    sender: Sender,
    /// Most bytes of a record.
    piece_bytes: usize,
    /// From how many held bytes on they are sent.
    batch_bytes: usize,
    /// Bytes that were written and not yet sent, because they are few.
    held: Vec<u8>,
    finished: bool,
    /// The rule that the peer broke, met behind bytes that had been written: said at each call from
    /// then on.
    broken: Option<Violation>,
}

/// How long to wait for room.
#[derive(Clone, Copy)]
enum Patience {
    /// Not at all.
    None,
    /// Until then; `None` is for ever.
    Until(Option<Instant>),
}

impl StreamWriter {
    pub(crate) fn new(sender: Sender) -> Self {
        let piece_bytes = super::piece_bytes(sender.max_message());
        StreamWriter { sender, piece_bytes, batch_bytes: 0, held: Vec::new(), finished: false, broken: None }
    }

    /// Most bytes that one record carries: what [`StreamWriter::try_write`] writes at once or not
    /// at all.
    #[must_use]
    pub fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// Holds small writes back until they are `bytes` together (at most a piece), or until a flush.
    /// 0, the default: each write shows at once. Whoever expects an answer flushes first. What is
    /// held when the writer is dropped is sent if there is room at once: flush, if it matters.
    pub fn set_batch_bytes(&mut self, bytes: usize) {
        self.batch_bytes = bytes.min(self.piece_bytes);
    }

    /// Sets when to spin before sleeping.
    pub fn set_spin_policy(&mut self, policy: SpinPolicy) {
        self.sender.set_spin_policy(policy);
    }

    /// Writes as much as there is room for, in whole pieces; returns how many bytes.
    ///
    /// # Errors
    /// [`SendError::Full`] if there is no room for the first piece; others but `TimedOut`.
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize, SendError> {
        self.write_parts(&[IoSlice::new(bytes)], Patience::None)
    }

    /// As [`StreamWriter::try_write`], of several buffers one after the other.
    ///
    /// # Errors
    /// As there.
    pub fn try_write_vectored(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, SendError> {
        self.write_parts(parts, Patience::None)
    }

    /// Writes all, waiting for room; returns how many bytes: fewer only if the deadline came, or
    /// the end, after the first.
    ///
    /// # Errors
    /// [`SendError::TimedOut`] if there was no room for the first piece; others but `Full`.
    pub fn write_with(&mut self, bytes: &[u8], deadline: Option<Instant>) -> Result<usize, SendError> {
        self.write_parts(&[IoSlice::new(bytes)], Patience::Until(deadline))
    }

    /// As [`StreamWriter::write_with`], of several buffers one after the other.
    ///
    /// # Errors
    /// As there.
    pub fn write_vectored_with(
        &mut self,
        parts: &[IoSlice<'_>],
        deadline: Option<Instant>,
    ) -> Result<usize, SendError> {
        self.write_parts(parts, Patience::Until(deadline))
    }

    fn write_parts(&mut self, parts: &[IoSlice<'_>], patience: Patience) -> Result<usize, SendError> {
        let mut parts = Parts::new(parts);
        let all = parts.left();
        if all == 0 {
            return Ok(0);
        }
        if self.finished {
            return Err(SendError::Closed);
        }
        self.check_unbroken()?;
        if all < self.batch_bytes.saturating_sub(self.held.len()) {
            self.sender.check_open()?;
            self.hold(&mut parts);
            return Ok(all);
        }
        while parts.left() > 0 {
            match self.push(&mut parts, patience) {
                Ok(()) => {}
                // A doorbell fails after its record has been committed: nobody knows how much was
                // written.
                Err(error @ SendError::Doorbell(_)) => return Err(error),
                // What made this piece fail makes the next call's first one fail, too. But for a
                // broken rule, of which the next call would only see that the channel has been
                // closed.
                Err(error) if parts.left() < all => {
                    if let SendError::Corrupt(violation) = error {
                        self.broken = Some(violation);
                    }
                    break;
                }
                Err(error) => return Err(error),
            }
            if parts.left() > 0 && is_over(patience) {
                break;
            }
        }
        Ok(all - parts.left())
    }

    fn hold(&mut self, parts: &mut Parts<'_, IoSlice<'_>>) {
        while parts.left() > 0 {
            self.held.extend_from_slice(parts.next(usize::MAX));
        }
    }

    /// Sends one record: what is held, and then as much as goes with it.
    fn push(&mut self, parts: &mut Parts<'_, IoSlice<'_>>, patience: Patience) -> Result<(), SendError> {
        let length = self.held.len().saturating_add(parts.left()).min(self.piece_bytes);
        let mut loan = loan(&mut self.sender, length, patience)?;
        let mut inside = loan.write_at(0, &self.held);
        let mut at = self.held.len();
        let mut ahead = *parts;
        while at < length {
            let bytes = ahead.next(length - at);
            inside &= loan.write_at(at, bytes);
            at += bytes.len();
        }
        debug_assert!(inside, "the loan is as long as its parts");
        loan.commit()?;
        *parts = ahead;
        self.held.clear();
        Ok(())
    }

    /// Sends what is held back, waiting for room.
    ///
    /// # Errors
    /// [`SendError`], other than `Full`; what was held is held still.
    pub fn flush_with(&mut self, deadline: Option<Instant>) -> Result<(), SendError> {
        self.send_held(Patience::Until(deadline))
    }

    /// Sends what is held back, if there is room.
    ///
    /// # Errors
    /// [`SendError`], other than `TimedOut`; what was held is held still.
    pub fn try_flush(&mut self) -> Result<(), SendError> {
        self.send_held(Patience::None)
    }

    fn check_unbroken(&self) -> Result<(), SendError> {
        self.broken.map_or(Ok(()), |violation| Err(violation.into()))
    }

    fn send_held(&mut self, patience: Patience) -> Result<(), SendError> {
        self.check_unbroken()?;
        if !self.held.is_empty() {
            self.push(&mut Parts::new(&[]), patience)?;
        }
        // And what the sender holds, whose batches are another matter.
        self.sender.flush()
    }

    /// Ends this direction, waiting for room: the reader gets what was written before and is then
    /// at the end of the file. The other direction goes on, as long as this writer is not dropped.
    /// More writing fails as on a closed channel.
    ///
    /// # Errors
    /// [`SendError`], other than `Full`; the direction is not ended then.
    pub fn finish(&mut self, deadline: Option<Instant>) -> Result<(), SendError> {
        self.end(Patience::Until(deadline))
    }

    /// As [`StreamWriter::finish`], if there is room.
    ///
    /// # Errors
    /// [`SendError`], other than `TimedOut`; the direction is not ended then.
    pub fn try_finish(&mut self) -> Result<(), SendError> {
        self.end(Patience::None)
    }

    fn end(&mut self, patience: Patience) -> Result<(), SendError> {
        if self.finished {
            return Ok(());
        }
        self.send_held(patience)?;
        loan(&mut self.sender, 0, patience)?.commit()?;
        self.finished = true;
        Ok(())
    }

    /// The descriptors that an event loop watches while it waits for room.
    #[must_use]
    pub fn descriptors(&self) -> Descriptors<'_> {
        self.sender.descriptors()
    }

    /// Says to the peer that we wait for room to write `bytes` bytes (or the first piece of them;
    /// 0: to flush or finish) and want to be rung. False: there is room, or the channel is closed,
    /// so do not sleep.
    ///
    /// # Errors
    /// [`SendError::Corrupt`].
    pub fn prepare_wait(&mut self, bytes: usize) -> Result<bool, SendError> {
        let length = self.held.len().saturating_add(bytes).min(self.piece_bytes);
        self.sender.prepare_wait(length)
    }

    /// Says that we are awake again. Needed after every [`StreamWriter::prepare_wait`] that
    /// returned true.
    pub fn cancel_wait(&mut self) {
        self.sender.cancel_wait();
    }

    /// Takes the rings off the doorbell, and notices the death of the peer. Then try to write.
    ///
    /// # Errors
    /// [`SendError::Doorbell`].
    pub fn drain_doorbell(&mut self) -> Result<(), SendError> {
        self.sender.drain_doorbell()
    }

    /// Closes the channel, for both halves of this end and for the peer. What is held back is sent
    /// if there is room at once.
    pub fn close(&mut self) {
        // Nobody waits in a close; whoever must know flushes first.
        let _sent = self.try_flush();
        self.sender.close();
    }

    /// A handle that closes the channel from elsewhere.
    #[must_use]
    pub fn closer(&self) -> Closer {
        self.sender.closer()
    }

    /// Whether the channel is closed, here or there, or the peer is dead.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

fn loan(sender: &mut Sender, length: usize, patience: Patience) -> Result<Loan<'_>, SendError> {
    match patience {
        Patience::None => sender.try_loan(length),
        Patience::Until(deadline) => sender.loan(length, deadline),
    }
}

/// A peer that reads as fast as we write must not make us write beyond the deadline.
fn is_over(patience: Patience) -> bool {
    matches!(patience, Patience::Until(Some(deadline)) if Instant::now() >= deadline)
}

impl Write for StreamWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.write_with(bytes, None)?)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.write_vectored_with(parts, None)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(self.flush_with(None)?)
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.close();
    }
}
