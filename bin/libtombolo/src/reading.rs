//! Incoming data: messages, or bytes.

use crate::failure::{self, busy, failure, would_wait};
use crate::polling::{Half, PollSet, deadline_of, wait};
use channel::{Closer, Descriptors, ReceiveError, Receiver, SpinPolicy, StreamReader};
use rustix::io::Errno;
use std::io::IoSliceMut;
use std::os::fd::RawFd;
use sys::channel_abi::{Outcome, Patience};

/// The receiving half of an end in use.
#[derive(Debug)]
pub struct Reading {
    half: Incoming,
    poll: Option<PollSet>,
    /// A pointer into the channel's memory is with the program.
    is_viewed: bool,
}

#[derive(Debug)]
enum Incoming {
    Messages(Receiver),
    Stream(StreamReader),
}

impl Reading {
    pub fn messages(receiver: Receiver) -> Self {
        Self { half: Incoming::Messages(receiver), poll: None, is_viewed: false }
    }

    pub fn stream(reader: StreamReader) -> Self {
        Self { half: Incoming::Stream(reader), poll: None, is_viewed: false }
    }

    pub fn never_spin(&mut self) {
        match &mut self.half {
            Incoming::Messages(receiver) => receiver.set_spin_policy(SpinPolicy::Never),
            Incoming::Stream(reader) => reader.set_spin_policy(SpinPolicy::Never),
        }
    }

    pub fn closer(&self) -> Closer {
        match &self.half {
            Incoming::Messages(receiver) => receiver.closer(),
            Incoming::Stream(reader) => reader.closer(),
        }
    }

    pub fn is_viewed(&self) -> bool {
        self.is_viewed
    }

    /// Reads a message or bytes; 0 is the end.
    pub fn read(&mut self, into: &mut [IoSliceMut<'_>], patience: Patience) -> Outcome<usize> {
        self.check_free()?;
        let read = match &mut self.half {
            Incoming::Messages(receiver) => read_message(receiver, into, patience),
            Incoming::Stream(reader) => read_bytes(reader, into, patience),
        };
        self.settle();
        read
    }

    pub fn next_length(&mut self, patience: Patience) -> Outcome<usize> {
        self.check_free()?;
        let Incoming::Messages(receiver) = &mut self.half else { return Err(no_messages()) };
        let length = next_length(receiver, patience);
        self.settle();
        length?.ok_or_else(|| failure(Errno::NODATA, "no message will come any more: the channel has ended"))
    }

    pub fn set_message_limit(&mut self, bytes: usize) -> Outcome<()> {
        self.check_free()?;
        let Incoming::Messages(receiver) = &mut self.half else { return Err(no_messages()) };
        receiver.set_message_limit(bytes);
        Ok(())
    }

    /// Shows the next message where it is; `None`: the end.
    pub fn view(&mut self, patience: Patience) -> Outcome<Option<(*const u8, usize)>> {
        self.check_free()?;
        let Incoming::Messages(receiver) = &mut self.half else { return Err(no_messages()) };
        let begun = match patience {
            Patience::Never => match receiver.try_begin() {
                Ok(None) => Err(would_wait("message")),
                Ok(Some(view)) => Ok(Some(view)),
                Err(ReceiveError::Closed) => Ok(None),
                Err(error) => Err(failure::receiving(&error)),
            },
            _ => match receiver.begin(deadline_of(patience)) {
                Ok(view) => Ok(Some(view)),
                Err(ReceiveError::Closed) => Ok(None),
                Err(error) => Err(failure::receiving(&error)),
            },
        };
        self.is_viewed = matches!(begun, Ok(Some(_)));
        if !self.is_viewed {
            self.settle();
        }
        begun
    }

    pub fn release(&mut self) -> Outcome<()> {
        if !self.is_viewed {
            return Err(failure(Errno::INVAL, "no message is being viewed that could be released"));
        }
        self.is_viewed = false;
        let Incoming::Messages(receiver) = &mut self.half else { return Err(no_messages()) };
        let released = receiver.finish().map_err(|error| failure::receiving(&error));
        self.settle();
        released
    }

    pub fn wait(&mut self, patience: Patience) -> Outcome<bool> {
        self.check_free()?;
        let waited = wait(&mut self.half, patience);
        self.settle();
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
        if !self.is_viewed {
            self.settle();
        }
        Ok(descriptor)
    }

    /// Makes the descriptor that is polled say what is so.
    fn settle(&mut self) {
        let Some(poll) = &mut self.poll else { return };
        // The cheap look first: while messages are there, nobody needs a doorbell.
        let has_something = match &mut self.half {
            Incoming::Messages(receiver) => !matches!(receiver.try_next_length(), Ok(None)),
            Incoming::Stream(_) => false,
        };
        if has_something {
            poll.raise();
        } else {
            poll.arm(&mut self.half);
        }
    }

    fn check_free(&self) -> Outcome<()> {
        if self.is_viewed { Err(busy("viewing a message of this channel")) } else { Ok(()) }
    }
}

fn no_messages() -> sys::channel_abi::Failure {
    failure(Errno::OPNOTSUPP, "this channel carries a stream of bytes, which has no messages: read it")
}

/// The length of the next message; `None`: the end.
fn next_length(receiver: &mut Receiver, patience: Patience) -> Outcome<Option<usize>> {
    let found = match patience {
        Patience::Never => match receiver.try_next_length() {
            Ok(Some(length)) => Ok(length),
            Ok(None) => return Err(would_wait("message")),
            Err(error) => Err(error),
        },
        _ => receiver.next_length(deadline_of(patience)),
    };
    match found {
        Ok(length) => Ok(Some(length)),
        Err(ReceiveError::Closed) => Ok(None),
        Err(error) => Err(failure::receiving(&error)),
    }
}

fn read_message(receiver: &mut Receiver, into: &mut [IoSliceMut<'_>], patience: Patience) -> Outcome<usize> {
    let Some(length) = next_length(receiver, patience)? else { return Ok(0) };
    let room = into.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()));
    if length > room {
        let text = format!(
            "the next message has {length} bytes, and the buffer only {room}: take a larger one (tombolo_next_length() says how large)"
        );
        return Err(failure(Errno::MSGSIZE, text));
    }
    let read = receiver.try_read(|message| {
        // A hostile peer may have changed the length since.
        if message.len() != length {
            return None;
        }
        let mut at = 0;
        for part in into {
            let now = part.len().min(length - at);
            let inside = part.get_mut(..now).is_some_and(|part| message.copy_to(at, part));
            debug_assert!(inside, "the parts take the message");
            at += now;
        }
        Some(length)
    });
    match read {
        Ok(Some(Some(length))) => Ok(length),
        Ok(_) => Err(failure(Errno::PROTO, "the other end changed a message while it was read")),
        Err(ReceiveError::Closed) => Ok(0),
        Err(error) => Err(failure::receiving(&error)),
    }
}

fn read_bytes(reader: &mut StreamReader, into: &mut [IoSliceMut<'_>], patience: Patience) -> Outcome<usize> {
    let read = match patience {
        Patience::Never => reader.try_read_vectored(into).and_then(|read| read.ok_or(ReceiveError::TimedOut)),
        _ => reader.read_vectored_with(into, deadline_of(patience)),
    };
    match read {
        Err(ReceiveError::TimedOut) if patience == Patience::Never => Err(would_wait("byte")),
        Err(error) => Err(failure::receiving(&error)),
        Ok(read) => Ok(read),
    }
}

impl Half for Incoming {
    fn descriptors(&self) -> Descriptors<'_> {
        match self {
            Self::Messages(receiver) => receiver.descriptors(),
            Self::Stream(reader) => reader.descriptors(),
        }
    }

    fn prepare(&mut self) -> Outcome<bool> {
        Ok(match self {
            Self::Messages(receiver) => receiver.prepare_wait(),
            Self::Stream(reader) => reader.prepare_wait(),
        })
    }

    fn awake(&mut self) {
        match self {
            Self::Messages(receiver) => receiver.cancel_wait(),
            Self::Stream(reader) => reader.cancel_wait(),
        }
    }

    fn drain(&mut self) -> Outcome<()> {
        let drained = match self {
            Self::Messages(receiver) => receiver.drain_doorbell(),
            Self::Stream(reader) => reader.drain_doorbell(),
        };
        drained.map_err(|error| failure::receiving(&error))
    }
}
