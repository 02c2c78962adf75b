//! The C functions, without their C names.

use super::{Call, Declared, Services, StreamOptions, options_at};
use crate::channel_abi::{Failure, Handle, Outcome, call, memory, name_at};
use libc::{c_char, c_int, c_void, size_t};

const READABLE: u32 = 1;
const IDEMPOTENT: u32 = 2;
const IOCTL: u32 = 4;

/// Refuses bits that mean nothing for this file.
fn flags_of(flags: u32, known: u32) -> Outcome<u32> {
    if flags & !known != 0 {
        let text = format!("the flags {flags:#x} have bits that mean nothing for such a file");
        return Err(Failure { errno: libc::EINVAL, text });
    }
    Ok(flags)
}

/// `tombolo_service_new` of the header.
///
/// # Safety
/// `name` is null or ends with NUL.
pub unsafe fn service_new(services: &dyn Services, name: *const c_char) -> Handle {
    call::call(-1, || {
        // SAFETY: the caller says so.
        let name = unsafe { name_at(name) }?;
        services.new_service(name)
    })
}

/// # Safety
/// `name` and `verb` are each null or end with NUL.
unsafe fn declare(
    services: &dyn Services,
    service: Handle,
    (name, verb): (*const c_char, *const c_char),
    declared: impl FnOnce() -> Outcome<Declared>,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        let (name, verb) = unsafe { (name_at(name)?, name_at(verb)?) };
        services.declare(service, name, verb, declared()?)
    })
}

/// `tombolo_service_text` of the header.
///
/// # Safety
/// `name` and `verb` are each null or end with NUL.
pub unsafe fn service_text(
    services: &dyn Services,
    service: Handle,
    name: *const c_char,
    verb: *const c_char,
) -> c_int {
    // SAFETY: the caller says so.
    unsafe { declare(services, service, (name, verb), || Ok(Declared::Text)) }
}

/// `tombolo_service_control` of the header.
///
/// # Safety
/// `name` and `verb` are each null or end with NUL.
pub unsafe fn service_control(
    services: &dyn Services,
    service: Handle,
    name: *const c_char,
    verb: *const c_char,
    flags: u32,
) -> c_int {
    let declared = || {
        let flags = flags_of(flags, READABLE | IDEMPOTENT)?;
        Ok(Declared::Control { readable: flags & READABLE != 0, idempotent: flags & IDEMPOTENT != 0 })
    };
    // SAFETY: the caller says so.
    unsafe { declare(services, service, (name, verb), declared) }
}

/// `tombolo_service_session` of the header.
///
/// # Safety
/// `name` and `verb` are each null or end with NUL.
pub unsafe fn service_session(
    services: &dyn Services,
    service: Handle,
    name: *const c_char,
    verb: *const c_char,
    flags: u32,
) -> c_int {
    let declared = || {
        let flags = flags_of(flags, IOCTL | IDEMPOTENT)?;
        Ok(Declared::Session { ioctl: flags & IOCTL != 0, idempotent: flags & IDEMPOTENT != 0 })
    };
    // SAFETY: the caller says so.
    unsafe { declare(services, service, (name, verb), declared) }
}

/// `tombolo_service_stream` and, with `exchange`, `tombolo_service_exchange` of the header.
///
/// # Safety
/// `name` and `verb` are each null or end with NUL; `options` is null, or begins with its size, and
/// so many bytes of it can be read.
pub unsafe fn service_stream(
    services: &dyn Services,
    service: Handle,
    name: *const c_char,
    verb: *const c_char,
    options: *const StreamOptions,
    exchange: bool,
) -> c_int {
    // SAFETY: the caller says so.
    let declared = || Ok(Declared::Stream { options: unsafe { options_at(options) }?, exchange });
    // SAFETY: the caller says so.
    unsafe { declare(services, service, (name, verb), declared) }
}

/// `tombolo_service_start` of the header.
pub fn service_start(services: &dyn Services, service: Handle) -> c_int {
    call::call(-1, || services.start(service).map(|()| 0))
}

/// `tombolo_service_next` of the header.
///
/// # Safety
/// `into` is null or valid for writing a [`Call`].
pub unsafe fn service_next(
    services: &dyn Services,
    service: Handle,
    into: *mut Call,
    timeout_ns: i64,
) -> c_int {
    call::call(-1, || {
        memory::must(into, "the place for the call")?;
        let next = services.next(service, call::patience(timeout_ns)?)?;
        // SAFETY: the caller says so.
        unsafe { memory::put(into, next, "the place for the call") }.map(|()| 0)
    })
}

/// `tombolo_service_answer` of the header.
///
/// # Safety
/// `bytes` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// meanwhile.
pub unsafe fn service_answer(
    services: &dyn Services,
    service: Handle,
    id: u64,
    bytes: *const c_void,
    length: size_t,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        let bytes = unsafe { memory::bytes(bytes.cast(), length) }?;
        services.answer(service, id, Ok(bytes)).map(|()| 0)
    })
}

/// `tombolo_service_refuse` of the header.
pub fn service_refuse(services: &dyn Services, service: Handle, id: u64, error: c_int) -> c_int {
    call::call(-1, || services.answer(service, id, Err(error)).map(|()| 0))
}

/// `tombolo_service_is_cancelled` of the header.
pub fn service_is_cancelled(services: &dyn Services, service: Handle, id: u64) -> c_int {
    call::call(-1, || services.is_cancelled(service, id).map(c_int::from))
}

/// `tombolo_service_publish` of the header.
///
/// # Safety
/// `record` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// meanwhile.
pub unsafe fn service_publish(
    services: &dyn Services,
    service: Handle,
    file: c_int,
    record: *const c_void,
    length: size_t,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        let record = unsafe { memory::bytes(record.cast(), length) }?;
        services.publish(service, file, record).map(|()| 0)
    })
}

/// `tombolo_service_descriptor` of the header.
pub fn service_descriptor(services: &dyn Services, service: Handle) -> c_int {
    call::call(-1, || services.descriptor(service))
}

/// `tombolo_service_close` of the header.
pub fn service_close(services: &dyn Services, service: Handle) -> c_int {
    call::call(-1, || services.close_service(service).map(|()| 0))
}
