//! The C functions of backups, and of requests to a name, without their C names.

use super::export::{options_at, outgoing};
use super::{Endpoints, Message};
use crate::channel_abi::memory::{self, put};
use crate::channel_abi::{Handle, Options, call, count_of, name_at};
use libc::{c_char, c_int, c_void, size_t, ssize_t};

/// `tombolo_endpoint_ask` of the header.
///
/// # Safety
/// `name` is null or ends with NUL; `bytes` is null with a length of 0, or valid for reading
/// `length` bytes, which nobody writes meanwhile; `buffer` is null with a size of 0, or valid for
/// writing `size` bytes, which nobody else touches meanwhile; `reply` is null or valid for writing
/// a [`Message`].
#[allow(clippy::too_many_arguments, reason = "the header has them")]
pub unsafe fn ask(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    name: *const c_char,
    tag: u32,
    bytes: *const c_void,
    length: size_t,
    buffer: *mut c_void,
    size: size_t,
    reply: *mut Message,
    timeout_ns: i64,
) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let into = memory::bytes_mut(buffer.cast(), size)?;
            let (name, message) = (name_at(name)?, outgoing(tag, bytes, length)?);
            let message = endpoints.ask(endpoint, name, message, into, call::patience(timeout_ns)?)?;
            if !reply.is_null() {
                put(reply, message, "the place for the reply")?;
            }
            Ok(count_of(message.length as usize))
        }
    })
}

/// `tombolo_endpoint_bind_backup` of the header.
///
/// # Safety
/// `name` is null or ends with NUL; `options` is null or as [`Options`] says.
pub unsafe fn bind_backup(endpoints: &dyn Endpoints, name: *const c_char, options: *const Options) -> Handle {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe { endpoints.bind_backup(name_at(name)?, &options_at(options)?) }
    })
}

/// `tombolo_endpoint_take_over` of the header.
pub fn take_over(endpoints: &dyn Endpoints, backup: Handle, timeout_ns: i64) -> Handle {
    call::call(-1, || endpoints.take_over(backup, call::patience(timeout_ns)?))
}

/// `tombolo_endpoint_promote` of the header.
pub fn promote(endpoints: &dyn Endpoints, backup: Handle) -> c_int {
    call::call(-1, || endpoints.promote(backup).map(|()| 0))
}

/// `tombolo_endpoint_reply_with_state` of the header.
///
/// # Safety
/// `bytes` and `state` are each null with a length of 0, or valid for reading so many bytes, which
/// nobody writes meanwhile.
#[allow(clippy::too_many_arguments, reason = "the header has them")]
pub unsafe fn reply_with_state(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    request: u64,
    tag: u32,
    bytes: *const c_void,
    length: size_t,
    state: *const c_void,
    state_length: size_t,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let state = memory::bytes(state.cast(), state_length)?;
            let message = outgoing(tag, bytes, length)?;
            endpoints.reply_with_state(endpoint, request, message, state).map(|()| 0)
        }
    })
}

/// `tombolo_endpoint_keep_state` of the header.
///
/// # Safety
/// `state` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// meanwhile.
pub unsafe fn keep_state(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    state: *const c_void,
    length: size_t,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe { endpoints.keep_state(endpoint, memory::bytes(state.cast(), length)?).map(|()| 0) }
    })
}

/// `tombolo_endpoint_state` of the header.
///
/// # Safety
/// `buffer` is null with a size of 0, or valid for writing `size` bytes, which nobody else touches
/// meanwhile.
pub unsafe fn state(endpoints: &dyn Endpoints, whose: Handle, buffer: *mut c_void, size: size_t) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe { endpoints.state(whose, memory::bytes_mut(buffer.cast(), size)?).map(count_of) }
    })
}

/// `tombolo_endpoint_tell` of the header.
///
/// # Safety
/// `name` is null or ends with NUL; `bytes` is null with a length of 0, or valid for reading
/// `length` bytes, which nobody writes meanwhile.
pub unsafe fn tell(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    name: *const c_char,
    tag: u32,
    bytes: *const c_void,
    length: size_t,
    timeout_ns: i64,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let (name, message) = (name_at(name)?, outgoing(tag, bytes, length)?);
            endpoints.tell(endpoint, name, message, call::patience(timeout_ns)?).map(|()| 0)
        }
    })
}

/// `tombolo_endpoint_migrate_start` of the header.
///
/// # Safety
/// `domain` is null or ends with NUL.
pub unsafe fn migrate_start(endpoints: &dyn Endpoints, endpoint: Handle, domain: *const c_char) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe { endpoints.migrate_start(endpoint, name_at(domain)?).map(|()| 0) }
    })
}

/// `tombolo_endpoint_migrate_commit` of the header.
pub fn migrate_commit(endpoints: &dyn Endpoints, endpoint: Handle) -> c_int {
    call::call(-1, || endpoints.migrate_commit(endpoint).map(|()| 0))
}

/// `tombolo_endpoint_migrate_roll_back` of the header.
pub fn migrate_roll_back(endpoints: &dyn Endpoints, endpoint: Handle) -> c_int {
    call::call(-1, || endpoints.migrate_roll_back(endpoint).map(|()| 0))
}
