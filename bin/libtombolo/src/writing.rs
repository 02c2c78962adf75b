//! Outgoing data: messages, or bytes.

use crate::failure::{self, busy, failure};
use crate::polling::{Half, PollSet, deadline_of, wait};
use channel::{Descriptors, SendError, Sender, SpinPolicy, StreamWriter};
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::RawFd;
use sys::channel_abi::{Failure, Outcome, Patience};

/// The sending half of an end in use.
#[derive(Debug)]
pub struct Writing {
    half: Outgoing,
    poll: Option<PollSet>,
    /// Bytes that the program may write to, by a pointer that it has.
    lent: Option<usize>,
}

#[derive(Debug)]
struct Outgoing {
    kind: Kind,
    /// The room to wait for, in bytes: the length that was refused last.
    wanted: usize,
    /// A message that goes in pieces, and has not gone to its end.
    unfinished: Option<Unfinished>,
}

/// How far a message in pieces came. It goes on when a message as long is written that begins with
/// what was sent: where it lies says nothing, because a program that has given it up writes the
/// next one from the same buffer.
#[derive(Debug)]
struct Unfinished {
    length: usize,
    sent: Vec<u8>,
}

impl Unfinished {
    /// Whether `message` may go on where this one was left.
    fn is_begun_by(&self, message: &[u8]) -> bool {
        self.length == message.len() && message.starts_with(&self.sent)
    }
}

#[derive(Debug)]
enum Kind {
    Messages(Sender),
    Stream(StreamWriter),
}

impl Writing {
    pub fn messages(sender: Sender) -> Self {
        Self::new(Kind::Messages(sender))
    }

    pub fn stream(writer: StreamWriter) -> Self {
        Self::new(Kind::Stream(writer))
    }

    fn new(kind: Kind) -> Self {
        Self { half: Outgoing { kind, wanted: 1, unfinished: None }, poll: None, lent: None }
    }

    pub fn never_spin(&mut self) {
        match &mut self.half.kind {
            Kind::Messages(sender) => sender.set_spin_policy(SpinPolicy::Never),
            Kind::Stream(writer) => writer.set_spin_policy(SpinPolicy::Never),
        }
    }

    pub fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Writes a message, or bytes; returns how many.
    pub fn write(&mut self, from: &[IoSlice<'_>], patience: Patience) -> Outcome<usize> {
        self.check_free()?;
        let length = from.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()));
        let written = match &mut self.half.kind {
            Kind::Messages(sender) => {
                let unfinished = self.half.unfinished.take();
                if length > sender.max_message() {
                    write_long(sender, from, unfinished, &mut self.half.unfinished, patience).map(|()| length)
                } else {
                    write_message(sender, from, patience).map(|()| length)
                }
            }
            Kind::Stream(writer) => match patience {
                Patience::Never => writer.try_write_vectored(from),
                _ => writer.write_vectored_with(from, deadline_of(patience)),
            },
        };
        self.said(length, written)
    }

    /// Lends the place of a message.
    pub fn loan(&mut self, length: usize, patience: Patience) -> Outcome<*mut u8> {
        self.check_free()?;
        let Kind::Messages(sender) = &mut self.half.kind else { return Err(no_messages()) };
        let begun = match patience {
            Patience::Never => sender.try_begin(length),
            _ => sender.begin(length, deadline_of(patience)),
        };
        let begun = self.said(length, begun)?;
        self.lent = Some(length);
        Ok(begun)
    }

    /// Sends what was lent.
    pub fn commit(&mut self, length: usize) -> Outcome<()> {
        let lent = self.lent.ok_or_else(nothing_lent)?;
        if length > lent {
            let text = format!("{length} bytes can't be committed of a loan of {lent}; it is still yours");
            return Err(failure(Errno::MSGSIZE, text));
        }
        self.lent = None;
        let Kind::Messages(sender) = &mut self.half.kind else { return Err(no_messages()) };
        let finished = sender.finish(length);
        // The receiver drops what came of another message.
        self.half.unfinished = None;
        // A channel that has ended keeps nothing of it.
        sender.cancel();
        self.said(length, finished)
    }

    pub fn cancel(&mut self) -> Outcome<()> {
        let gave_up = self.half.unfinished.take().is_some();
        if self.lent.take().is_none() && !gave_up {
            return Err(nothing_lent());
        }
        if let Kind::Messages(sender) = &mut self.half.kind {
            sender.cancel();
        }
        Ok(())
    }

    pub fn set_batch(&mut self, bytes: usize, patience: Patience) -> Outcome<()> {
        self.check_free()?;
        // What is held back belongs to the old bound.
        self.flush(patience)?;
        match &mut self.half.kind {
            Kind::Messages(sender) => sender.set_batch_bytes(bytes),
            Kind::Stream(writer) => writer.set_batch_bytes(bytes),
        }
        Ok(())
    }

    pub fn flush(&mut self, patience: Patience) -> Outcome<()> {
        self.check_free()?;
        let flushed = match &mut self.half.kind {
            Kind::Messages(sender) => sender.flush(),
            Kind::Stream(writer) => match patience {
                Patience::Never => writer.try_flush(),
                _ => writer.flush_with(deadline_of(patience)),
            },
        };
        self.said(0, flushed)
    }

    pub fn finish(&mut self, patience: Patience) -> Outcome<()> {
        let Kind::Stream(writer) = &mut self.half.kind else {
            let text = "only a stream can be finished in one direction: close the channel, or send a message that says so";
            return Err(failure(Errno::OPNOTSUPP, text));
        };
        let finished = match patience {
            Patience::Never => writer.try_finish(),
            _ => writer.finish(deadline_of(patience)),
        };
        self.said(0, finished)
    }

    /// Shows what is held back as far as there is room: the channel is about to be closed.
    pub fn part(&mut self) {
        // Whoever must know flushes before it closes.
        let _sent = match &mut self.half.kind {
            Kind::Messages(sender) if self.lent.is_none() => sender.flush(),
            Kind::Messages(_) => Ok(()),
            Kind::Stream(writer) => writer.try_flush(),
        };
    }

    pub fn max_message(&self) -> usize {
        match &self.half.kind {
            Kind::Messages(sender) => sender.message_limit(),
            Kind::Stream(writer) => writer.piece_bytes(),
        }
    }

    pub fn wait(&mut self, patience: Patience) -> Outcome<bool> {
        self.check_free()?;
        let waited = wait(&mut self.half, patience);
        if let Some(poll) = &mut self.poll {
            poll.arm(&mut self.half);
        }
        waited
    }

    pub fn poll_descriptor(&mut self) -> Outcome<RawFd> {
        if let Some(poll) = &self.poll {
            return Ok(poll.descriptor());
        }
        let Descriptors { doorbell, lifeline } = self.half.descriptors();
        let poll = PollSet::new(&[doorbell, lifeline])?;
        let descriptor = poll.descriptor();
        self.poll = Some(poll);
        Ok(descriptor)
    }

    /// The outcome of a call that wanted room for `length` bytes; what is polled tells when there
    /// is some.
    fn said<T>(&mut self, length: usize, done: Result<T, SendError>) -> Outcome<T> {
        let refused = matches!(done, Err(SendError::Full | SendError::TimedOut));
        if refused {
            self.half.wanted = length;
        }
        if let Some(poll) = &mut self.poll {
            if refused {
                poll.arm(&mut self.half);
            } else {
                poll.raise();
            }
        }
        done.map_err(|error| failure::sending(&error))
    }

    fn check_free(&self) -> Outcome<()> {
        if self.is_lent() { Err(busy("filling in a loan of this channel")) } else { Ok(()) }
    }
}

fn no_messages() -> Failure {
    failure(
        Errno::OPNOTSUPP,
        "this channel carries a stream of bytes, which has no messages to lend: write to it",
    )
}

fn nothing_lent() -> Failure {
    failure(Errno::INVAL, "nothing of this channel is lent: tombolo_loan() comes first")
}

/// Writes a message that goes in one piece.
fn write_message(sender: &mut Sender, from: &[IoSlice<'_>], patience: Patience) -> Result<(), SendError> {
    let parts: Vec<&[u8]>;
    let parts = if let [whole] = from {
        &[&**whole][..]
    } else {
        parts = from.iter().map(|part| &**part).collect();
        &parts
    };
    match patience {
        Patience::Forever => sender.send_vectored(parts, None),
        // In one record, and so whole or not at all: a time-out leaves no half of it behind.
        Patience::For(_) => {
            let length = parts.iter().map(|part| part.len()).sum();
            match sender.try_send_vectored(parts) {
                Err(SendError::Full) => {}
                sent => return sent,
            }
            sender.wait(length, deadline_of(patience))?;
            sender.try_send_vectored(parts)
        }
        Patience::Never => sender.try_send_vectored(parts),
    }
}

/// Writes a message that goes in pieces, from where it was left, if it is the one that was.
fn write_long(
    sender: &mut Sender,
    from: &[IoSlice<'_>],
    unfinished: Option<Unfinished>,
    left: &mut Option<Unfinished>,
    patience: Patience,
) -> Result<(), SendError> {
    let joined: Vec<u8>;
    let message = if let [whole] = from {
        &**whole
    } else {
        joined = from.iter().flat_map(|part| part.iter().copied()).collect();
        &joined
    };
    let begun = unfinished.filter(|found| found.is_begun_by(message));
    let mut sent = begun.as_ref().map_or(0, |found| found.sent.len());
    let deadline = deadline_of(patience);
    let written = loop {
        match sender.try_send_from(message, &mut sent) {
            Err(SendError::Full) if patience != Patience::Never => {}
            written => break written,
        }
        let piece = sender.piece_bytes().min(message.len() - sent);
        if let Err(error) = sender.wait(piece, deadline) {
            break Err(error);
        }
    };
    if matches!(written, Err(SendError::Full | SendError::TimedOut)) {
        let mut before = begun.map(|found| found.sent).unwrap_or_default();
        before.extend_from_slice(message.get(before.len()..sent).unwrap_or_default());
        *left = Some(Unfinished { length: message.len(), sent: before });
    }
    written
}

impl Half for Outgoing {
    fn descriptors(&self) -> Descriptors<'_> {
        match &self.kind {
            Kind::Messages(sender) => sender.descriptors(),
            Kind::Stream(writer) => writer.descriptors(),
        }
    }

    fn prepare(&mut self) -> Outcome<bool> {
        let prepared = match &mut self.kind {
            Kind::Messages(sender) => {
                let most =
                    if self.unfinished.is_some() { sender.piece_bytes() } else { sender.max_message() };
                sender.prepare_wait(self.wanted.min(most))
            }
            Kind::Stream(writer) => writer.prepare_wait(self.wanted),
        };
        prepared.map_err(|error| failure::sending(&error))
    }

    fn awake(&mut self) {
        match &mut self.kind {
            Kind::Messages(sender) => sender.cancel_wait(),
            Kind::Stream(writer) => writer.cancel_wait(),
        }
    }

    fn drain(&mut self) -> Outcome<()> {
        let drained = match &mut self.kind {
            Kind::Messages(sender) => sender.drain_doorbell(),
            Kind::Stream(writer) => writer.drain_doorbell(),
        };
        drained.map_err(|error| failure::sending(&error))
    }
}
