//! Many streams over one port of a guest (`docs/spec/guest.md`): numbers, windows and closing, the
//! same for both sides.
//!
//! [`Streams`] decides and never waits: what the other side said goes in ([`Streams::hear`]), what
//! is to be said comes out as messages. [`Outbox`] holds those until the port takes them. Neither
//! reads a clock, nor allocates for what a peer only announces.

mod outbox;

pub use outbox::{Outbox, Overflow};

use std::collections::BTreeMap;
use thiserror::Error;
use wire::guest::{
    Close, End, MAX_PAYLOAD_BYTES, MAX_STREAMS, Message, Purpose, STREAM_WINDOW_BYTES, window_cost,
};

/// The consumed bytes of a window at which they are given back: four messages of credit for a
/// window, and a sender whose receiver has caught up always has room for a whole payload.
const GRANT_BYTES: usize = STREAM_WINDOW_BYTES / 4;

/// The side of the port: the two number their streams so that they never collide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The machine process: its streams have odd numbers.
    Node,
    /// The agent: even ones, from 2.
    Agent,
}

impl Side {
    fn first(self) -> u32 {
        match self {
            Self::Node => 1,
            Self::Agent => 2,
        }
    }

    /// Whether this side may open a stream of that number.
    fn owns(self, stream: u32) -> bool {
        stream != 0 && stream % 2 == self.first() % 2
    }

    fn other(self) -> Self {
        match self {
            Self::Node => Self::Agent,
            Self::Agent => Self::Node,
        }
    }
}

/// All streams of one side of a port.
#[derive(Debug)]
pub struct Streams {
    side: Side,
    open: BTreeMap<u32, Stream>,
    /// The number that the next stream of ours tries first.
    next: u32,
}

#[derive(Debug)]
struct Stream {
    /// The bytes of the window that we may send.
    ours: usize,
    /// The bytes of the window that the other side may send.
    theirs: usize,
    /// The bytes of theirs that were consumed and not given back yet.
    consumed: usize,
    /// The bytes that were received and not consumed yet: nobody consumes more.
    held: usize,
    /// An end that the next message carries.
    end: Option<End>,
    we_closed: bool,
    they_closed: bool,
}

impl Stream {
    fn new() -> Self {
        Self {
            ours: STREAM_WINDOW_BYTES,
            theirs: STREAM_WINDOW_BYTES,
            consumed: 0,
            held: 0,
            end: None,
            we_closed: false,
            they_closed: false,
        }
    }
}

/// The meaning of the other side's message for the streams.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// It opened a stream.
    Opened {
        /// Its number.
        stream: u32,
        /// The purpose.
        purpose: Purpose,
    },
    /// It sent a message. Say [`Streams::consumed`] when it has been passed on.
    Data {
        /// On which stream.
        stream: u32,
        /// The message.
        bytes: Vec<u8>,
        /// The end of a channel that it carries.
        end: Option<End>,
    },
    /// We may send more than before.
    Room {
        /// On which stream.
        stream: u32,
    },
    /// It closed a stream. Unless this side has closed it before, it is to do so
    /// ([`Streams::close`]) when what was received has been passed on.
    Closed {
        /// The stream.
        stream: u32,
        /// Why.
        close: Close,
    },
    /// It is for a stream that this side has closed. An end that it carried is nobody's.
    Late(Option<End>),
    /// It is not about streams.
    Other(Message),
    /// It has no consequence yet.
    Nothing,
}

/// A rule that the other side broke.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Broken {
    /// It opened a stream under a number that is not its own to give.
    #[error("it opened stream {stream}, whose number is the other side's to give")]
    Number {
        /// The number.
        stream: u32,
    },
    /// It opened a stream that is open.
    #[error("it opened stream {stream}, which is open")]
    Twice {
        /// The number.
        stream: u32,
    },
    /// It has as many streams as a side may have.
    #[error("it opened more than {MAX_STREAMS} streams")]
    Streams,
    /// It speaks of a stream that nobody opened, or that it closed itself.
    #[error("it speaks on stream {stream}, which is not open")]
    NotOpen {
        /// The number.
        stream: u32,
    },
    /// It sent more than it was allowed.
    #[error("it sent {bytes} bytes on stream {stream}, where {left} were left of its window")]
    Window {
        /// The stream.
        stream: u32,
        /// The bytes that it sent, as the window counts.
        bytes: usize,
        /// The bytes that it might have sent.
        left: usize,
    },
    /// It allows more than a window.
    #[error("it allows more than {STREAM_WINDOW_BYTES} bytes on stream {stream}")]
    Credit {
        /// The stream.
        stream: u32,
    },
    /// It announced an end and sent no message that carries it.
    #[error("it announced an end of a channel on stream {stream} and sent none")]
    LostEnd {
        /// The stream.
        stream: u32,
    },
    /// An agent gives no ends away.
    #[error("it announced an end of a channel, which only a node does")]
    ForeignEnd,
}

/// Why nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// The other side gave no room; [`Heard::Room`] tells of it.
    #[error("the stream's window is used up")]
    NoRoom,
    /// One of the two sides has closed the stream.
    #[error("the stream is closed")]
    Closed,
}

/// A side has as many streams as it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{MAX_STREAMS} streams are open, and more are not allowed")]
pub struct Full;

impl Streams {
    /// No streams yet.
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self { side, open: BTreeMap::new(), next: side.first() }
    }

    /// Opens a stream: its number, and what to say.
    ///
    /// # Errors
    /// [`Full`].
    pub fn open(&mut self, purpose: Purpose) -> Result<(u32, Message), Full> {
        if self.count(self.side) >= MAX_STREAMS {
            return Err(Full);
        }
        // Fewer are open than there are numbers, so one is found.
        while self.open.contains_key(&self.next) {
            self.next = self.following();
        }
        let stream = self.next;
        self.next = self.following();
        self.open.insert(stream, Stream::new());
        Ok((stream, Message::Open { stream, purpose }))
    }

    fn following(&self) -> u32 {
        self.next.checked_add(2).unwrap_or(self.side.first())
    }

    fn count(&self, side: Side) -> usize {
        self.open.keys().filter(|stream| side.owns(**stream)).count()
    }

    /// Bytes of the longest message that may be sent on a stream now; none where nothing may.
    #[must_use]
    pub fn room(&self, stream: u32) -> Option<usize> {
        let found = self.speaking(stream)?;
        Some(found.ours.checked_sub(window_cost(0))?.min(MAX_PAYLOAD_BYTES))
    }

    /// Whether any message may be sent on a stream now, however long: for sources whose messages
    /// can't be cut.
    #[must_use]
    pub fn has_room(&self, stream: u32) -> bool {
        self.room(stream) == Some(MAX_PAYLOAD_BYTES)
    }

    /// Whether the number is in use: one of the two sides has not closed it yet.
    #[must_use]
    pub fn is_open(&self, stream: u32) -> bool {
        self.open.contains_key(&stream)
    }

    /// Numbers in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether no number is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// A stream that neither side has closed.
    fn speaking(&self, stream: u32) -> Option<&Stream> {
        self.open.get(&stream).filter(|found| !found.we_closed && !found.they_closed)
    }

    /// Sends a message: what to say.
    ///
    /// # Errors
    /// [`SendError`]; the bytes are lost then, so ask [`Streams::room`] before taking them from
    /// anywhere.
    pub fn send(&mut self, stream: u32, bytes: Vec<u8>) -> Result<Message, SendError> {
        if self.speaking(stream).is_none() {
            return Err(SendError::Closed);
        }
        let found = self.open.get_mut(&stream).ok_or(SendError::Closed)?;
        let cost = window_cost(bytes.len());
        if bytes.len() > MAX_PAYLOAD_BYTES || cost > found.ours {
            return Err(SendError::NoRoom);
        }
        found.ours -= cost;
        Ok(Message::Data { stream, bytes })
    }

    /// Sends a message that carries an end of a channel: what to say, in this order.
    ///
    /// # Errors
    /// As [`Streams::send`].
    pub fn send_end(&mut self, stream: u32, end: End, bytes: Vec<u8>) -> Result<[Message; 2], SendError> {
        let data = self.send(stream, bytes)?;
        Ok([Message::End { stream, end }, data])
    }

    /// A received message of so many bytes has been passed on: what to say, if anything.
    pub fn consumed(&mut self, stream: u32, payload: usize) -> Option<Message> {
        let found = self.open.get_mut(&stream)?;
        let cost = window_cost(payload).min(found.held);
        found.held -= cost;
        found.consumed += cost;
        if found.we_closed || found.they_closed || found.consumed < GRANT_BYTES {
            return None;
        }
        let granted = std::mem::take(&mut found.consumed);
        found.theirs += granted;
        Some(Message::Credit { stream, bytes: u32::try_from(granted).unwrap_or(u32::MAX) })
    }

    /// Closes this side of a stream: what to say, if it was open. What comes on it from now on is
    /// [`Heard::Late`].
    pub fn close(&mut self, stream: u32, close: Close) -> Option<Message> {
        let found = self.open.get_mut(&stream)?;
        if found.we_closed {
            return None;
        }
        found.we_closed = true;
        if found.they_closed {
            self.open.remove(&stream);
        }
        Some(Message::Close { stream, close })
    }

    /// Takes a message of the other side.
    ///
    /// # Errors
    /// [`Broken`]: the other side is not to be listened to any more.
    pub fn hear(&mut self, message: Message) -> Result<Heard, Broken> {
        match message {
            Message::Open { stream, purpose } => self.hear_open(stream, purpose),
            Message::Data { stream, bytes } => self.hear_data(stream, bytes),
            Message::Credit { stream, bytes } => self.hear_credit(stream, bytes),
            Message::Close { stream, close } => self.hear_close(stream, close),
            Message::End { stream, end } => self.hear_end(stream, end),
            other => Ok(Heard::Other(other)),
        }
    }

    fn hear_open(&mut self, stream: u32, purpose: Purpose) -> Result<Heard, Broken> {
        let other = self.side.other();
        if !other.owns(stream) {
            return Err(Broken::Number { stream });
        }
        if self.open.contains_key(&stream) {
            return Err(Broken::Twice { stream });
        }
        if self.count(other) >= MAX_STREAMS {
            return Err(Broken::Streams);
        }
        self.open.insert(stream, Stream::new());
        Ok(Heard::Opened { stream, purpose })
    }

    /// The stream that a message of the other side names: one that it has not closed.
    fn named(&mut self, stream: u32) -> Result<&mut Stream, Broken> {
        let found = self.open.get_mut(&stream).filter(|found| !found.they_closed);
        found.ok_or(Broken::NotOpen { stream })
    }

    fn hear_data(&mut self, stream: u32, bytes: Vec<u8>) -> Result<Heard, Broken> {
        let found = self.named(stream)?;
        let cost = window_cost(bytes.len());
        let left = found.theirs;
        found.theirs = left.checked_sub(cost).ok_or(Broken::Window { stream, bytes: cost, left })?;
        let end = found.end.take();
        if found.we_closed {
            return Ok(Heard::Late(end));
        }
        found.held += cost;
        Ok(Heard::Data { stream, bytes, end })
    }

    fn hear_credit(&mut self, stream: u32, bytes: u32) -> Result<Heard, Broken> {
        let found = self.named(stream)?;
        let more = usize::try_from(bytes).unwrap_or(usize::MAX);
        let all = found.ours.saturating_add(more);
        if all > STREAM_WINDOW_BYTES {
            return Err(Broken::Credit { stream });
        }
        found.ours = all;
        Ok(if found.we_closed { Heard::Late(None) } else { Heard::Room { stream } })
    }

    fn hear_close(&mut self, stream: u32, close: Close) -> Result<Heard, Broken> {
        let found = self.named(stream)?;
        if found.end.is_some() {
            return Err(Broken::LostEnd { stream });
        }
        found.they_closed = true;
        if found.we_closed {
            self.open.remove(&stream);
        }
        Ok(Heard::Closed { stream, close })
    }

    fn hear_end(&mut self, stream: u32, end: End) -> Result<Heard, Broken> {
        if self.side == Side::Node {
            return Err(Broken::ForeignEnd);
        }
        let found = self.named(stream)?;
        if found.end.is_some() {
            return Err(Broken::LostEnd { stream });
        }
        found.end = Some(end);
        Ok(Heard::Nothing)
    }
}
