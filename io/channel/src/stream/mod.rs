//! Streams: bytes without seams, on top of records.
//!
//! ```
//! use std::io::{Read, Write};
//!
//! use channel::{Config, Mode, pair};
//!
//! let (one, other) = pair(&Config { mode: Mode::Stream, ..Config::default() })?;
//! let (mut writer, _reader) = one.open_stream()?;
//! let (_writer, mut reader) = other.open_stream()?;
//! writer.write_all(b"hello, ")?;
//! writer.write_all(b"world")?;
//! writer.finish(None)?;
//! let mut text = String::new();
//! reader.read_to_string(&mut text)?;
//! assert_eq!(text, "hello, world");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A writer cuts what it is given into records of at most [`PIECE_BYTES`]; a reader takes bytes across records. An empty record
//! is the end of its direction, as `shutdown` is for a socket.

use std::io;

use crate::{ReceiveError, Receiver, SendError, Sender};

mod reader;
mod writer;

pub use reader::StreamReader;
pub use writer::StreamWriter;

/// Most bytes that a writer puts into one record. Smaller, and the fixed price of a record shows; larger, and the reader
/// begins to copy out only when much has been copied in, and the ring has left the second-level cache meanwhile.
const PIECE_BYTES: usize = 32 << 10;

/// A piece takes at most this part of a ring, so that one is written while others are read.
const PIECE_PART: usize = 4;

impl Sender {
    /// Writes bytes instead of messages from here on. The peer reads bytes, then: see [`crate::Mode`].
    #[must_use]
    pub fn into_stream(self) -> StreamWriter {
        StreamWriter::new(self)
    }
}

impl Receiver {
    /// Reads bytes instead of messages from here on. The peer writes bytes, then: see [`crate::Mode`].
    #[must_use]
    pub fn into_stream(self) -> StreamReader {
        StreamReader::new(self)
    }
}

/// The error that a program knows from pipes and sockets; the cause is kept in it.
impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        let kind = match &error {
            SendError::Full => io::ErrorKind::WouldBlock,
            SendError::Closed => io::ErrorKind::BrokenPipe,
            SendError::TooLong { .. } => io::ErrorKind::InvalidInput,
            SendError::TimedOut => io::ErrorKind::TimedOut,
            SendError::Corrupt(_) => io::ErrorKind::InvalidData,
            SendError::Doorbell(source) => source.kind(),
        };
        io::Error::new(kind, error)
    }
}

/// As for [`SendError`]; a receiver of messages meets the end as [`io::ErrorKind::UnexpectedEof`].
impl From<ReceiveError> for io::Error {
    fn from(error: ReceiveError) -> Self {
        let kind = match &error {
            ReceiveError::Closed => io::ErrorKind::UnexpectedEof,
            ReceiveError::TimedOut => io::ErrorKind::TimedOut,
            ReceiveError::Corrupt(_) => io::ErrorKind::InvalidData,
            ReceiveError::Doorbell(source) => source.kind(),
        };
        io::Error::new(kind, error)
    }
}
