//! Channels for programs in other languages: the C functions of `include/tombolo/channel.h`.
//!
//! The functions here keep the header's contract (null pointers, lengths, `errno`, no unwinding, no
//! cancellation) and hand the work to a [`Channels`]. They have no C names: only a library that
//! expands [`crate::export_channels`] exports those.

pub(crate) mod call;
mod export;
pub(crate) mod memory;
mod options;
mod text;

pub use export::*;
#[doc(hidden)]
pub use libc;
pub use options::Options;
pub use text::error_text;

use libc::c_int;
use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

/// A program's handle: positive, and never used again for something else.
pub type Handle = i64;

/// Descriptors that make one end of a channel: `TOMBOLO_DESCRIPTORS` of the header.
pub const DESCRIPTORS: usize = 5;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For `errno`.
    pub errno: c_int,
    /// For `tombolo_error_text()`: what, where, and what to do.
    pub text: String,
}

/// The outcome of a call.
pub type Outcome<T> = Result<T, Failure>;

/// The two directions of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The half that comes in; for an offer, openers.
    Reading,
    /// The half that goes out.
    Writing,
}

/// How long to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    Never,
    /// So long.
    For(Duration),
    /// As long as it takes.
    Forever,
}

/// The implementation behind the C functions. Called from any thread, also from several at once
/// with the same handle, and with handles that never existed: that is an error, and nothing else.
pub trait Channels: Sync {
    /// `tombolo_offer`.
    fn offer(&self, name: &CStr, options: &Options) -> Outcome<Handle>;
    /// `tombolo_accept`.
    fn accept(&self, offer: Handle) -> Outcome<Handle>;
    /// `tombolo_open`.
    fn open(&self, name: &CStr, options: &Options) -> Outcome<Handle>;
    /// `tombolo_pair`.
    fn pair(&self, options: &Options) -> Outcome<[Handle; 2]>;
    /// `tombolo_channel_descriptors`.
    fn give_descriptors(&self, channel: Handle) -> Outcome<[OwnedFd; DESCRIPTORS]>;
    /// `tombolo_from_descriptors`.
    fn take_descriptors(&self, descriptors: Vec<OwnedFd>, options: &Options) -> Outcome<Handle>;
    /// `tombolo_read`, `tombolo_readv`.
    fn read(&self, channel: Handle, into: &mut [IoSliceMut<'_>]) -> Outcome<usize>;
    /// `tombolo_write`, `tombolo_writev`.
    fn write(&self, channel: Handle, from: &[IoSlice<'_>]) -> Outcome<usize>;
    /// `tombolo_next_length`.
    fn next_length(&self, channel: Handle) -> Outcome<usize>;
    /// `tombolo_loan`: so many writable bytes, which stay where they are until they are given back.
    fn loan(&self, channel: Handle, length: usize) -> Outcome<*mut u8>;
    /// `tombolo_commit`.
    fn commit(&self, channel: Handle, length: usize) -> Outcome<()>;
    /// `tombolo_cancel`.
    fn cancel(&self, channel: Handle) -> Outcome<()>;
    /// `tombolo_view`: the message in place, until it is released; `None` at the end.
    fn view(&self, channel: Handle) -> Outcome<Option<(*const u8, usize)>>;
    /// `tombolo_release`.
    fn release(&self, channel: Handle) -> Outcome<()>;
    /// `tombolo_set_batch`.
    fn set_batch(&self, channel: Handle, bytes: usize) -> Outcome<()>;
    /// `tombolo_flush`.
    fn flush(&self, channel: Handle) -> Outcome<()>;
    /// `tombolo_finish`.
    fn finish(&self, channel: Handle) -> Outcome<()>;
    /// `tombolo_set_timeout`.
    fn set_timeout(&self, handle: Handle, direction: Direction, patience: Patience) -> Outcome<()>;
    /// `tombolo_wait`; false: the time was over.
    fn wait(&self, handle: Handle, direction: Direction, patience: Patience) -> Outcome<bool>;
    /// `tombolo_poll_descriptor`.
    fn poll_descriptor(&self, handle: Handle, direction: Direction) -> Outcome<RawFd>;
    /// `tombolo_set_message_limit`.
    fn set_message_limit(&self, channel: Handle, bytes: usize) -> Outcome<()>;
    /// `tombolo_max_message`.
    fn max_message(&self, channel: Handle) -> Outcome<usize>;
    /// `tombolo_mode`: whether it is a stream.
    fn is_stream(&self, channel: Handle) -> Outcome<bool>;
    /// `tombolo_peer`.
    fn peer(&self, channel: Handle) -> Outcome<String>;
    /// `tombolo_close`.
    fn close(&self, handle: Handle) -> Outcome<()>;
}
