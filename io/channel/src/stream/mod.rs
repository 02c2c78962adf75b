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
//! A writer cuts what it is given into records of at most a piece (16 to 64 KiB, and at most a
//! quarter of the ring); a reader takes bytes across records. An empty record is the end of its
//! direction, as `shutdown` is for a socket.

use std::io;

use wire::ring as layout;

use crate::{ReceiveError, Receiver, SendError, Sender};

mod reader;
mod writer;

pub use reader::StreamReader;
pub use writer::StreamWriter;

/// Most bytes that go into one record when many are to be moved. Smaller, and the fixed price of a
/// record shows; larger, and the other end begins to copy out only when much has been copied in.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Less than this goes into one record only where the ring is too small for more.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// Of a ring, a record takes this part if the bounds above allow: then one end copies in while the
/// other copies out, and neither comes to a full or an empty ring at each piece. (Measured with
/// rings of 256 KiB and 1 MiB: 32 and 64 KiB were best.)
const PIECE_PART: usize = 8;

/// Whatever the bounds say, a record takes no more than this part of a ring.
const PIECE_PART_LEAST: usize = 4;

/// How many bytes to put into one record of a ring whose longest message has `max_message` bytes.
pub(crate) fn piece_bytes(max_message: usize) -> usize {
    let ring_bytes = 2 * (max_message + layout::RECORD_HEADER_BYTES);
    let most = ring_bytes / PIECE_PART_LEAST - layout::RECORD_HEADER_BYTES;
    (ring_bytes / PIECE_PART).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX).min(most)
}

impl Sender {
    /// Writes bytes instead of messages from here on. The peer reads bytes, then: see
    /// [`crate::Mode`].
    #[must_use]
    pub fn into_stream(self) -> StreamWriter {
        StreamWriter::new(self)
    }
}

impl Receiver {
    /// Reads bytes instead of messages from here on. The peer writes bytes, then: see
    /// [`crate::Mode`].
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
            SendError::TooLong { .. } | SendError::OutOfOrder(_) => io::ErrorKind::InvalidInput,
            SendError::TimedOut => io::ErrorKind::TimedOut,
            SendError::Corrupt(_) => io::ErrorKind::InvalidData,
            SendError::Doorbell(source) => source.kind(),
            SendError::Forked => io::ErrorKind::PermissionDenied,
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
            ReceiveError::OutOfOrder(_) => io::ErrorKind::InvalidInput,
            ReceiveError::Doorbell(source) => source.kind(),
            ReceiveError::Forked => io::ErrorKind::PermissionDenied,
        };
        io::Error::new(kind, error)
    }
}
