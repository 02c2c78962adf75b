//! Services for programs in other languages: the C functions of `include/tombolo/service.h`.
//!
//! As [`crate::channel_abi`], which has the errors: the header's contract is kept here, and the
//! work is a [`Services`]'s.

mod export;
mod names;

pub use export::*;

use crate::channel_abi::{Failure, Handle, Outcome, Patience};
use libc::{c_char, size_t};
use std::ffi::CStr;
use std::os::fd::RawFd;

/// The behaviour of a file that C declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declared {
    /// It is read as a whole.
    Text,
    /// Lines are written to it.
    Control {
        /// Reading it asks as well.
        readable: bool,
        /// Unanswered calls are asked again.
        idempotent: bool,
    },
    /// Lines are asked and answered.
    Session {
        /// ioctl(2) is a call.
        ioctl: bool,
        /// Unanswered calls are asked again.
        idempotent: bool,
    },
    /// Records are published.
    Stream {
        /// How they are kept.
        options: StreamOptions,
        /// Records are written to it as well.
        exchange: bool,
    },
}

/// How a stream keeps records: `struct tombolo_stream_options`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StreamOptions {
    /// Of the structure.
    pub size: u32,
    /// Not 0: new readers begin with the oldest record.
    pub replay: u32,
    /// Records that are kept; 0: the default.
    pub history: u64,
    /// Their bytes; 0: the default.
    pub history_bytes: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// A call of a consumer as C sees it: `struct tombolo_call`. Its pointers lead to memory of the
/// library that stays until the call is answered.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Call {
    /// For the answer.
    pub id: u64,
    /// The number of the file.
    pub file: i32,
    /// [`Call::READ`] and the others.
    pub kind: u32,
    /// The open file.
    pub session: u64,
    /// The bytes that were written, and a NUL.
    pub bytes: *const c_char,
    /// Their number without the NUL.
    pub length: size_t,
    /// Most bytes of the answer.
    pub takes: size_t,
    /// The number of an ioctl.
    pub number: u32,
    /// The caller's user.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
    /// Zero.
    pub reserved: u32,
    /// The caller's distributed container.
    pub dc: *const c_char,
    /// The caller's domain.
    pub domain: *const c_char,
}

impl Call {
    /// A file is read.
    pub const READ: u32 = 1;
    /// A line or a record is written.
    pub const WRITE: u32 = 2;
    /// ioctl(2).
    pub const IOCTL: u32 = 3;
}

/// The implementation behind the C functions. Called from any thread, with handles and numbers that
/// never existed: that is an error, and nothing else.
pub trait Services: Sync {
    /// `tombolo_service_new`.
    fn new_service(&self, name: &CStr) -> Outcome<Handle>;
    /// `tombolo_service_text` and the other declarations; the number of the file.
    fn declare(&self, service: Handle, name: &CStr, verb: &CStr, declared: Declared) -> Outcome<i32>;
    /// `tombolo_service_start`.
    fn start(&self, service: Handle) -> Outcome<()>;
    /// `tombolo_service_next`.
    fn next(&self, service: Handle, patience: Patience) -> Outcome<Call>;
    /// `tombolo_service_answer`, `tombolo_service_refuse`.
    fn answer(&self, service: Handle, id: u64, answer: Result<&[u8], i32>) -> Outcome<()>;
    /// `tombolo_service_is_cancelled`.
    fn is_cancelled(&self, service: Handle, id: u64) -> Outcome<bool>;
    /// `tombolo_service_publish`.
    fn publish(&self, service: Handle, file: i32, record: &[u8]) -> Outcome<()>;
    /// `tombolo_service_descriptor`.
    fn descriptor(&self, service: Handle) -> Outcome<RawFd>;
    /// `tombolo_service_close`.
    fn close_service(&self, service: Handle) -> Outcome<()>;
}

/// The options as a program gives them.
///
/// # Safety
/// `options` is null, or begins with its size, and so many bytes of it can be read.
pub(crate) unsafe fn options_at(options: *const StreamOptions) -> Outcome<StreamOptions> {
    if options.is_null() {
        return Ok(StreamOptions::default());
    }
    // SAFETY: not null, so its first field can be read, as the caller says.
    let size = unsafe { options.cast::<u32>().read_unaligned() };
    if size as usize != size_of::<StreamOptions>() {
        let text = format!(
            "struct tombolo_stream_options says that it has {size} bytes, and it has {}: set `size`",
            size_of::<StreamOptions>()
        );
        return Err(Failure { errno: libc::EINVAL, text });
    }
    // SAFETY: it has the size of this structure, all of which can be read; any bits are a value of
    // it.
    let read = unsafe { options.read_unaligned() };
    if read.reserved != [0; 4] {
        let text = "a reserved field of struct tombolo_stream_options is not zero".to_owned();
        return Err(Failure { errno: libc::EINVAL, text });
    }
    Ok(read)
}
