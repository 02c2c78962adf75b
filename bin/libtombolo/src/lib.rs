//! libtombolo.so: channels, endpoints and services for programs in C, and in whatever can call C.
//!
//! The functions, their arguments and their errors are those of `include/tombolo/channel.h`,
//! `endpoint.h` and `service.h`; `sys::channel_abi`, `sys::endpoint_abi` and `sys::service_abi`
//! keep that contract towards C, and what is here does the work, without a pointer that C gave.
//! `docs/channels.md`, `docs/endpoints.md` and `docs/services.md` are for users.

mod buffer;
mod endpoints;
mod failure;
mod library;
mod member;
mod naming;
mod offering;
mod ongoing;
mod polling;
mod reading;
mod refusals;
mod requests;
mod service_calls;
mod services;
mod serving;
mod slot;
mod table;
mod whole;
mod writing;

use library::Library;

static LIBRARY: Library = Library::new();

// A test program has no use for the C names.
#[cfg(not(test))]
mod names {
    use super::LIBRARY;
    sys::export_channels!(LIBRARY);
}

#[cfg(not(test))]
mod names_of_endpoints {
    use super::LIBRARY;
    sys::export_endpoints!(LIBRARY);
}

#[cfg(not(test))]
mod names_of_services {
    use super::LIBRARY;
    sys::export_services!(LIBRARY);
}

#[cfg(test)]
const _: &Library = &LIBRARY;
