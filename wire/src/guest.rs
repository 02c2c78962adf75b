//! The protocol between the agent in a guest and the machine process on its node, over the guest's
//! port. Described in `docs/spec/guest.md`.
//!
//! A [`Frame`] is what the port carries; a [`Message`] what it means. [`Decoder`] makes frames out
//! of bytes as they come, [`Message::read`] messages out of frames, and [`Message::encode`] bytes
//! again.

mod json;

pub use json::{
    BadEnding, Boot, Close, End, Ending, Event, ExecEnd, ExecOptions, Exited, Hello, Network, Purpose, Root,
    Shutdown,
};

use thiserror::Error;

/// Version of this protocol.
pub const VERSION: u32 = 1;
/// Name of the virtio-serial port that it is spoken over.
pub const PORT_NAME: &str = "tombolo.agent";
/// Bytes of a frame in front of its payload.
pub const HEADER_BYTES: usize = 12;
/// Longest payload of a frame, in bytes: a packet of the control protocol fits.
pub const MAX_PAYLOAD_BYTES: usize = 65_536;
/// Streams that may be open at a time.
pub const MAX_STREAMS: usize = 512;
/// Channels that a guest may have at a time: each is a PCI device behind a port of its own.
pub const MAX_CHANNELS: usize = 32;
/// The window of a stream: bytes of `DATA` frames, headers included, that a side may send before it
/// is given more.
pub const STREAM_WINDOW_BYTES: usize = 262_144;
/// The peer's number at the doorbell register; the guest's own is 0.
pub const PEER_ID: u16 = 1;
/// Interrupt and ring of *data*.
pub const VECTOR_DATA: u8 = 0;
/// Interrupt and ring of *room*.
pub const VECTOR_ROOM: u8 = 1;
/// Where a member in the guest finds its control socket: where any domain does.
pub const CONTROL_SOCKET: &str = crate::control::SOCKET_PATH;

/// The numbers of the kinds of frames.
pub mod kind {
    /// The agent's first frame.
    pub const HELLO: u8 = 1;
    /// The answer: what the guest is to be.
    pub const BOOT: u8 = 2;
    /// From the agent: what became of it.
    pub const EVENT: u8 = 3;
    /// A stream begins.
    pub const OPEN: u8 = 4;
    /// One message of a stream.
    pub const DATA: u8 = 5;
    /// So many more bytes may come.
    pub const CREDIT: u8 = 6;
    /// Nothing more comes from here.
    pub const CLOSE: u8 = 7;
    /// The next message of the stream carries an end of a channel.
    pub const END: u8 = 8;
    /// From the agent: nobody in the guest has this end any more.
    pub const RELEASE: u8 = 9;
    /// From the node: nobody at the other end is left.
    pub const HANGUP: u8 = 10;
    /// From the node: the peer rings, and no interrupt says so.
    pub const RING: u8 = 11;
    /// Are you there?
    pub const PING: u8 = 12;
    /// I am.
    pub const PONG: u8 = 13;
    /// From the node: end the command, then switch off.
    pub const SHUTDOWN: u8 = 14;
}

/// First byte of a message of an `exec` stream.
pub mod exec {
    /// Standard input; none behind it: its end.
    pub const STDIN: u8 = 0;
    /// Standard output.
    pub const STDOUT: u8 = 1;
    /// Standard error.
    pub const STDERR: u8 = 2;
    /// A signal: one byte, its number.
    pub const SIGNAL: u8 = 3;
    /// The size of the terminal: columns and rows, 2 bytes each, little-endian.
    pub const SIZE: u8 = 4;
    /// How it ended: an [`super::ExecEnd`].
    pub const ENDED: u8 = 5;
}

/// First byte of a message of the `output` stream.
pub mod output {
    /// Standard output of the command.
    pub const STDOUT: u8 = 1;
    /// Standard error of the command.
    pub const STDERR: u8 = 2;
}

/// One frame on the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// One of [`kind`], or something that this version does not know.
    pub kind: u8,
    /// The stream or channel that it is about; 0 is the link itself.
    pub stream: u32,
    /// [`MAX_PAYLOAD_BYTES`] at most.
    pub payload: Vec<u8>,
}

/// A rule that the other side broke: nothing that it says is to be believed any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadFrame {
    /// The payload is said to be longer than any is.
    #[error("a frame announces {bytes} bytes, and {MAX_PAYLOAD_BYTES} are the most")]
    Length {
        /// The length that it alleges.
        bytes: u32,
    },
    /// Bytes of the header that are zero are not.
    #[error("a frame has {found:?} where zeros stand")]
    Padding {
        /// The bytes in its place.
        found: [u8; 3],
    },
    /// A kind that is none.
    #[error("a frame is of kind {found}, which is none")]
    Kind {
        /// Its number.
        found: u8,
    },
    /// A frame of the link names a stream, or one of a stream none.
    #[error("a frame of kind {kind} is about stream {stream}")]
    Stream {
        /// Its kind.
        kind: u8,
        /// The number.
        stream: u32,
    },
    /// A payload that should have another length.
    #[error("a frame of kind {kind} has {bytes} bytes of payload")]
    Payload {
        /// Its kind.
        kind: u8,
        /// Bytes of its payload.
        bytes: usize,
    },
    /// A vector that no end has.
    #[error("a ring names the vector {found}")]
    Vector {
        /// The value in its place.
        found: u8,
    },
    /// JSON that is none, or not what belongs there.
    #[error("a frame of kind {kind} is not understood: {why}")]
    Json {
        /// Its kind.
        kind: u8,
        /// The fault.
        why: String,
    },
}

impl Frame {
    /// Appends the frame's bytes. A payload that is too long is the caller's mistake: it is refused
    /// by whoever reads it.
    pub fn encode(&self, to: &mut Vec<u8>) {
        put(to, self.kind, self.stream, &self.payload);
    }
}

/// Appends a frame: header, then payload.
fn put(to: &mut Vec<u8>, kind: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    to.reserve(HEADER_BYTES + payload.len());
    to.extend_from_slice(&length.to_le_bytes());
    to.extend_from_slice(&[kind, 0, 0, 0]);
    to.extend_from_slice(&stream.to_le_bytes());
    to.extend_from_slice(payload);
}

/// Makes frames out of bytes, however they are cut. It holds a header and what has come of one
/// payload, and no more.
#[derive(Debug, Default)]
pub struct Decoder {
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that have come.
    had: usize,
    /// The part of the payload that has come.
    payload: Vec<u8>,
}

impl Decoder {
    /// Takes bytes from the front of `bytes` until a frame is whole or none are left.
    ///
    /// # Errors
    /// [`BadFrame`], which names the rule; after it nothing further is of use.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, BadFrame> {
        while self.had < HEADER_BYTES {
            let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
            if let Some(place) = self.header.get_mut(self.had) {
                *place = *first;
            }
            self.had += 1;
            *bytes = rest;
        }
        let [l0, l1, l2, l3, kind, z0, z1, z2, s0, s1, s2, s3] = self.header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        if wanted > MAX_PAYLOAD_BYTES {
            return Err(BadFrame::Length { bytes: length });
        }
        if [z0, z1, z2] != [0; 3] {
            return Err(BadFrame::Padding { found: [z0, z1, z2] });
        }
        let missing = wanted.saturating_sub(self.payload.len()).min(bytes.len());
        let (now, later) = bytes.split_at(missing);
        self.payload.extend_from_slice(now);
        *bytes = later;
        if self.payload.len() < wanted {
            return Ok(None);
        }
        self.had = 0;
        let payload = std::mem::take(&mut self.payload);
        Ok(Some(Frame { kind, stream: u32::from_le_bytes([s0, s1, s2, s3]), payload }))
    }

    /// Whether a frame has begun and not ended.
    #[must_use]
    pub fn in_frame(&self) -> bool {
        self.had > 0
    }
}

/// A message: the meaning of a frame.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// See [`kind::HELLO`].
    Hello(Hello),
    /// See [`kind::BOOT`].
    Boot(Box<Boot>),
    /// See [`kind::EVENT`].
    Event(Event),
    /// See [`kind::OPEN`].
    Open {
        /// The new stream.
        stream: u32,
        /// The purpose of the stream.
        purpose: Purpose,
    },
    /// See [`kind::DATA`].
    Data {
        /// Of this stream.
        stream: u32,
        /// The message.
        bytes: Vec<u8>,
    },
    /// See [`kind::CREDIT`].
    Credit {
        /// Of this stream.
        stream: u32,
        /// Bytes that may come beyond what was allowed before.
        bytes: u32,
    },
    /// See [`kind::CLOSE`].
    Close {
        /// Of this stream.
        stream: u32,
        /// Why.
        close: Close,
    },
    /// See [`kind::END`].
    End {
        /// The stream whose next message carries it.
        stream: u32,
        /// The end, and where it is.
        end: End,
    },
    /// See [`kind::RELEASE`].
    Release {
        /// The channel.
        channel: u32,
    },
    /// See [`kind::HANGUP`].
    Hangup {
        /// The channel.
        channel: u32,
    },
    /// See [`kind::RING`].
    Ring {
        /// The channel.
        channel: u32,
        /// [`VECTOR_DATA`] or [`VECTOR_ROOM`].
        vector: u8,
    },
    /// See [`kind::PING`].
    Ping([u8; 8]),
    /// See [`kind::PONG`].
    Pong([u8; 8]),
    /// See [`kind::SHUTDOWN`].
    Shutdown(Shutdown),
}

impl Message {
    /// Reads a frame as a message.
    ///
    /// # Errors
    /// [`BadFrame`]: it means nothing.
    pub fn read(frame: Frame) -> Result<Self, BadFrame> {
        let Frame { kind, stream, payload } = frame;
        let of_link =
            matches!(kind, kind::HELLO | kind::BOOT | kind::EVENT | kind::PING | kind::PONG | kind::SHUTDOWN);
        // Channels are numbered by the node as it likes, so theirs is not looked at.
        let of_stream = matches!(kind, kind::OPEN | kind::DATA | kind::CREDIT | kind::CLOSE | kind::END);
        if (of_link && stream != 0) || (of_stream && stream == 0) {
            return Err(BadFrame::Stream { kind, stream });
        }
        Ok(match kind {
            kind::HELLO => Self::Hello(json::read(kind, &payload)?),
            kind::BOOT => Self::Boot(json::read(kind, &payload)?),
            kind::EVENT => Self::Event(json::read(kind, &payload)?),
            kind::OPEN => Self::Open { stream, purpose: json::read(kind, &payload)? },
            kind::DATA => Self::Data { stream, bytes: payload },
            kind::CREDIT => Self::Credit { stream, bytes: u32::from_le_bytes(exactly(kind, &payload)?) },
            kind::CLOSE => Self::Close { stream, close: json::read(kind, &payload)? },
            kind::END => Self::End { stream, end: json::read(kind, &payload)? },
            kind::RELEASE => exactly::<0>(kind, &payload).map(|_| Self::Release { channel: stream })?,
            kind::HANGUP => exactly::<0>(kind, &payload).map(|_| Self::Hangup { channel: stream })?,
            kind::RING => match exactly(kind, &payload)? {
                [vector @ (VECTOR_DATA | VECTOR_ROOM)] => Self::Ring { channel: stream, vector },
                [found] => return Err(BadFrame::Vector { found }),
            },
            kind::PING => Self::Ping(exactly(kind, &payload)?),
            kind::PONG => Self::Pong(exactly(kind, &payload)?),
            kind::SHUTDOWN => Self::Shutdown(json::read(kind, &payload)?),
            found => return Err(BadFrame::Kind { found }),
        })
    }

    /// Appends the message's frame. Texts and lists that make its JSON longer than a payload are
    /// the caller's mistake: whoever reads it refuses it.
    pub fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::Hello(said) => put(to, kind::HELLO, 0, &json::write(said)),
            Self::Boot(said) => put(to, kind::BOOT, 0, &json::write(said)),
            Self::Event(said) => put(to, kind::EVENT, 0, &json::write(said)),
            Self::Open { stream, purpose } => put(to, kind::OPEN, *stream, &json::write(purpose)),
            Self::Data { stream, bytes } => put(to, kind::DATA, *stream, bytes),
            Self::Credit { stream, bytes } => put(to, kind::CREDIT, *stream, &bytes.to_le_bytes()),
            Self::Close { stream, close } => put(to, kind::CLOSE, *stream, &json::write(close)),
            Self::End { stream, end } => put(to, kind::END, *stream, &json::write(end)),
            Self::Release { channel } => put(to, kind::RELEASE, *channel, &[]),
            Self::Hangup { channel } => put(to, kind::HANGUP, *channel, &[]),
            Self::Ring { channel, vector } => put(to, kind::RING, *channel, &[*vector]),
            Self::Ping(bytes) => put(to, kind::PING, 0, bytes),
            Self::Pong(bytes) => put(to, kind::PONG, 0, bytes),
            Self::Shutdown(said) => put(to, kind::SHUTDOWN, 0, &json::write(said)),
        }
    }
}

/// The share of a stream's window that a message of so many bytes takes: an empty one is not free.
#[must_use]
pub const fn window_cost(payload: usize) -> usize {
    HEADER_BYTES + payload
}

fn exactly<const N: usize>(kind: u8, payload: &[u8]) -> Result<[u8; N], BadFrame> {
    payload.try_into().map_err(|_| BadFrame::Payload { kind, bytes: payload.len() })
}

#[cfg(test)]
mod tests;
