//! libtombolo.so: channels for programs in C, and in whatever can call C.
//!
//! The functions, their arguments and their errors are those of `include/tombolo/channel.h`; `sys::channel_abi` keeps that
//! contract towards C, and what is here does the work, without a pointer that C gave. `docs/channels.md` is for users.

mod failure;
mod library;
mod naming;
mod offering;
mod polling;
mod reading;
mod slot;
mod table;
mod writing;

use library::Library;

static LIBRARY: Library = Library::new();

// A test program has no use for the C names.
#[cfg(not(test))]
sys::export_channels!(LIBRARY);

#[cfg(test)]
const _: &Library = &LIBRARY;
