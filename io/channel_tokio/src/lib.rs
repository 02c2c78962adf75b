//! Channels for programs that wait with tokio.
//!
//! ```
//! use channel::{Config, pair};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
//! let (one, other) = pair(&Config::default())?;
//! let (mut sender, _receiver) = channel_tokio::open(one)?;
//! let (_sender, mut receiver) = channel_tokio::open(other)?;
//! sender.send(b"hello").await?;
//! let mut message = Vec::new();
//! receiver.receive(&mut message).await?;
//! assert_eq!(message, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds, beyond what `channel` says
//! - Every future may be dropped before it is ready (`select!`, a timeout), and nothing is lost: a
//!   message that was not received is received next, one that was not sent is not sent, of one that
//!   goes in pieces nothing arrives.
//! - Nothing spins and nothing blocks: a wait is a wait on a descriptor, and the runtime's thread
//!   goes on with other tasks. A peer that floods, or rings for nothing, does not keep a task from
//!   yielding.
//! - The peer may be any program with the other end, and need not know tokio.
//!
//! All constructors need a runtime with I/O enabled, and panic without one, as tokio's own types
//! do.

mod bells;
mod passing;
mod receiver;
mod sender;
mod stream;

use channel::{End, OpenError, OpenOptions};

pub use receiver::AsyncReceiver;
pub use sender::AsyncSender;
pub use stream::{AsyncStreamReader, AsyncStreamWriter};

fn watch(source: std::io::Error) -> OpenError {
    OpenError::System { action: "have the runtime watch the doorbells of a channel's end", source }
}

/// Opens an end of a channel that carries messages.
///
/// # Errors
/// See [`OpenError`]; the end is closed then.
///
/// # Panics
/// Outside of a runtime with I/O enabled.
pub fn open(end: End) -> Result<(AsyncSender, AsyncReceiver), OpenError> {
    open_with(end, &OpenOptions::default())
}

/// As [`open`], with wishes about the memory.
///
/// # Errors
/// As there.
///
/// # Panics
/// As there.
pub fn open_with(end: End, options: &OpenOptions) -> Result<(AsyncSender, AsyncReceiver), OpenError> {
    let (sender, receiver) = end.open_with(options)?;
    Ok((AsyncSender::new(sender).map_err(watch)?, AsyncReceiver::new(receiver).map_err(watch)?))
}

/// Opens an end of a channel that carries a stream.
///
/// # Errors
/// See [`OpenError`]; the end is closed then.
///
/// # Panics
/// Outside of a runtime with I/O enabled.
pub fn open_stream(end: End) -> Result<(AsyncStreamWriter, AsyncStreamReader), OpenError> {
    open_stream_with(end, &OpenOptions::default())
}

/// As [`open_stream`], with wishes about the memory.
///
/// # Errors
/// As there.
///
/// # Panics
/// As there.
pub fn open_stream_with(
    end: End,
    options: &OpenOptions,
) -> Result<(AsyncStreamWriter, AsyncStreamReader), OpenError> {
    let (writer, reader) = end.open_stream_with(options)?;
    Ok((AsyncStreamWriter::new(writer).map_err(watch)?, AsyncStreamReader::new(reader).map_err(watch)?))
}
