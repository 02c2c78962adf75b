//! The C functions, without their C names.

use super::{Access, Address, Endpoints, Granted, Message, Outgoing, OwnPlace, Peer, Place};
use crate::channel_abi::memory::{self, must, put};
use crate::channel_abi::{Handle, Options, Outcome, call, copy_text, count_of, name_at};
use libc::{c_char, c_int, c_void, size_t, ssize_t};

/// The address that a failed call returns.
const NOBODY: Address = 0;

/// # Safety
/// `options` is null or as [`Options`] says.
pub(super) unsafe fn options_at(options: *const Options) -> Outcome<Options> {
    // SAFETY: the caller says so.
    unsafe { Options::read_for(options, Options::ENDPOINT_FLAGS) }
}

/// # Safety
/// `bytes` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// during `'a`.
pub(super) unsafe fn outgoing<'a>(tag: u32, bytes: *const c_void, length: size_t) -> Outcome<Outgoing<'a>> {
    // SAFETY: the caller says so.
    let bytes = unsafe { memory::bytes(bytes.cast(), length) }?;
    Ok(Outgoing { tag, bytes })
}

/// Writes as many as there is room for, and returns how many there are.
///
/// # Safety
/// `list` is null with a count of 0, or valid for writing so many.
unsafe fn put_some<T: Copy>(all: &[T], list: *mut T, count: size_t) -> Outcome<usize> {
    if count > 0 {
        must(list, "the list")?;
    }
    for (at, one) in all.iter().take(count).enumerate() {
        // SAFETY: `at` is below the count, so the caller says that it lies in the list, and can be
        // written.
        unsafe { put(list.add(at), *one, "the list") }?;
    }
    Ok(all.len())
}

/// `tombolo_endpoint_bind` of the header.
///
/// # Safety
/// `name` is null or ends with NUL; `options` is null or as [`Options`] says.
pub unsafe fn bind(endpoints: &dyn Endpoints, name: *const c_char, options: *const Options) -> Handle {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let name = if name.is_null() { None } else { Some(name_at(name)?) };
            endpoints.bind(name, &options_at(options)?)
        }
    })
}

/// `tombolo_endpoint_pair` of the header.
///
/// # Safety
/// `options` is null or as [`Options`] says; `ends` is null or valid for writing two handles.
pub unsafe fn pair(endpoints: &dyn Endpoints, options: *const Options, ends: *mut Handle) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            must(ends, "the place for the two ends")?;
            let [one, other] = endpoints.endpoint_pair(&options_at(options)?)?;
            put(ends.cast(), [one, other], "the place for the two ends").map(|()| 0)
        }
    })
}

/// `tombolo_endpoint_unbind` of the header.
pub fn unbind(endpoints: &dyn Endpoints, endpoint: Handle) -> c_int {
    call::call(-1, || endpoints.unbind(endpoint).map(|()| 0))
}

/// `tombolo_endpoint_address` of the header.
pub fn address(endpoints: &dyn Endpoints, endpoint: Handle) -> Address {
    call::call(NOBODY, || endpoints.address(endpoint))
}

/// `tombolo_endpoint_name` of the header.
///
/// # Safety
/// `text` is null with a size of 0, or valid for writing `size` bytes, which nobody else touches
/// meanwhile.
pub unsafe fn name(endpoints: &dyn Endpoints, endpoint: Handle, text: *mut c_char, size: size_t) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let into = memory::bytes_mut(text.cast(), size)?;
            Ok(count_of(copy_text(&endpoints.name(endpoint)?, into)))
        }
    })
}

/// `tombolo_endpoint_find` of the header.
///
/// # Safety
/// `whom` is null or ends with NUL.
pub unsafe fn find(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    whom: *const c_char,
    timeout_ns: i64,
) -> Address {
    call::call(NOBODY, || {
        // SAFETY: the caller says so.
        unsafe { endpoints.find(endpoint, name_at(whom)?, call::patience(timeout_ns)?) }
    })
}

/// `tombolo_endpoint_wait` of the header.
///
/// # Safety
/// `whom` is null or ends with NUL.
pub unsafe fn wait(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    whom: *const c_char,
    timeout_ns: i64,
) -> Address {
    call::call(NOBODY, || {
        // SAFETY: the caller says so.
        unsafe { endpoints.wait_for_bind(endpoint, name_at(whom)?, call::patience(timeout_ns)?) }
    })
}

/// `tombolo_endpoint_send` of the header.
///
/// # Safety
/// `bytes` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// meanwhile.
pub unsafe fn send(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    to: Address,
    tag: u32,
    bytes: *const c_void,
    length: size_t,
    timeout_ns: i64,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            endpoints
                .send(endpoint, to, outgoing(tag, bytes, length)?, call::patience(timeout_ns)?)
                .map(|()| 0)
        }
    })
}

/// `tombolo_endpoint_send_buffered` of the header.
///
/// # Safety
/// `bytes` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// meanwhile.
pub unsafe fn send_buffered(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    to: Address,
    tag: u32,
    bytes: *const c_void,
    length: size_t,
    timeout_ns: i64,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            endpoints
                .send_buffered(endpoint, to, outgoing(tag, bytes, length)?, call::patience(timeout_ns)?)
                .map(|()| 0)
        }
    })
}

/// `tombolo_endpoint_flush` of the header.
pub fn flush(endpoints: &dyn Endpoints, endpoint: Handle) -> c_int {
    call::call(-1, || endpoints.flush_held(endpoint).map(|()| 0))
}

/// `tombolo_endpoint_call` of the header.
///
/// # Safety
/// `bytes` as [`send`] wants it; `buffer` is null with a size of 0, or valid for writing `size`
/// bytes, which nobody else touches meanwhile; `reply` is null or valid for writing a [`Message`].
#[allow(clippy::too_many_arguments, reason = "the header has them")]
pub unsafe fn call(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    to: Address,
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
            let message = endpoints.call(
                endpoint,
                to,
                outgoing(tag, bytes, length)?,
                into,
                call::patience(timeout_ns)?,
            )?;
            if !reply.is_null() {
                put(reply, message, "the place for the reply")?;
            }
            Ok(count_of(message.length as usize))
        }
    })
}

/// `tombolo_endpoint_give_up` of the header.
pub fn give_up(endpoints: &dyn Endpoints, endpoint: Handle) -> c_int {
    call::call(-1, || endpoints.give_up(endpoint).map(c_int::from))
}

/// `tombolo_endpoint_receive` of the header.
///
/// # Safety
/// `buffer` is null with a size of 0, or valid for writing `size` bytes, which nobody else touches
/// meanwhile; `message` is null or valid for writing a [`Message`].
pub unsafe fn receive(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    from: Address,
    buffer: *mut c_void,
    size: size_t,
    message: *mut Message,
    timeout_ns: i64,
) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            must(message, "the place for what the message is")?;
            let into = memory::bytes_mut(buffer.cast(), size)?;
            let mut came = Message::default();
            let received = endpoints.receive(endpoint, from, into, &mut came, call::patience(timeout_ns)?);
            put(message, came, "the place for what the message is")?;
            received.map(count_of)
        }
    })
}

/// `tombolo_endpoint_reply` of the header.
///
/// # Safety
/// `bytes` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// meanwhile.
pub unsafe fn reply(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    request: u64,
    tag: u32,
    bytes: *const c_void,
    length: size_t,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe { endpoints.reply(endpoint, request, outgoing(tag, bytes, length)?).map(|()| 0) }
    })
}

/// `tombolo_endpoint_relay` of the header.
///
/// # Safety
/// `bytes` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// meanwhile.
pub unsafe fn relay(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    request: u64,
    to: Address,
    tag: u32,
    bytes: *const c_void,
    length: size_t,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe { endpoints.relay(endpoint, request, to, outgoing(tag, bytes, length)?).map(|()| 0) }
    })
}

/// `tombolo_endpoint_notify` of the header.
pub fn notify(endpoints: &dyn Endpoints, endpoint: Handle, to: Address, bits: u64) -> c_int {
    call::call(-1, || endpoints.notify(endpoint, to, bits).map(|()| 0))
}

/// `tombolo_endpoint_max_message` of the header.
pub fn max_message(endpoints: &dyn Endpoints, endpoint: Handle, to: Address) -> ssize_t {
    call::call(-1, || endpoints.max_message_to(endpoint, to).map(count_of))
}

/// `tombolo_endpoint_peers` of the header.
///
/// # Safety
/// `peers` is null with a count of 0, or valid for writing so many.
pub unsafe fn peers(endpoints: &dyn Endpoints, endpoint: Handle, peers: *mut Peer, count: size_t) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe { put_some(&endpoints.peers(endpoint)?, peers, count).map(count_of) }
    })
}

/// `tombolo_endpoint_peer` of the header.
///
/// # Safety
/// `peer` is null or valid for writing a [`Peer`].
pub unsafe fn peer(endpoints: &dyn Endpoints, endpoint: Handle, address: Address, peer: *mut Peer) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            must(peer, "the place for the peer")?;
            put(peer, endpoints.peer_at(endpoint, address)?, "the place for the peer").map(|()| 0)
        }
    })
}

/// `tombolo_endpoint_buffer` of the header.
pub fn buffer(endpoints: &dyn Endpoints, endpoint: Handle, bytes: size_t, access: c_int) -> Handle {
    call::call(-1, || endpoints.buffer(endpoint, bytes, Access::of(access)?))
}

/// `tombolo_endpoint_grant` of the header.
pub fn grant(endpoints: &dyn Endpoints, endpoint: Handle, buffer: Handle, to: Address) -> i64 {
    call::call(-1, || endpoints.grant(endpoint, buffer, to))
}

/// `tombolo_endpoint_revoke` of the header.
pub fn revoke(endpoints: &dyn Endpoints, endpoint: Handle, buffer: Handle, grant: i64) -> c_int {
    call::call(-1, || endpoints.revoke(endpoint, buffer, grant).map(|()| 0))
}

/// `tombolo_endpoint_granted` of the header.
///
/// # Safety
/// `granted` is null or valid for writing a [`Granted`].
pub unsafe fn granted(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    grant: i64,
    granted: *mut Granted,
    timeout_ns: i64,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            must(granted, "the place for what was granted")?;
            put(
                granted,
                endpoints.granted(endpoint, grant, call::patience(timeout_ns)?)?,
                "the place for what was granted",
            )
            .map(|()| 0)
        }
    })
}

/// `tombolo_endpoint_copy_in` of the header.
///
/// # Safety
/// `into` is null with a length of 0, or valid for writing `length` bytes, which nobody else
/// touches meanwhile.
pub unsafe fn copy_in(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    from: i64,
    offset: u64,
    into: *mut c_void,
    length: size_t,
    timeout_ns: i64,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let into = memory::bytes_mut(into.cast(), length)?;
            endpoints
                .copy_in(endpoint, Place { grant: from, offset }, into, call::patience(timeout_ns)?)
                .map(|()| 0)
        }
    })
}

/// `tombolo_endpoint_copy_out` of the header.
///
/// # Safety
/// `from` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// meanwhile.
pub unsafe fn copy_out(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    from: *const c_void,
    length: size_t,
    to: i64,
    offset: u64,
    timeout_ns: i64,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let from = memory::bytes(from.cast(), length)?;
            endpoints
                .copy_out(endpoint, from, Place { grant: to, offset }, call::patience(timeout_ns)?)
                .map(|()| 0)
        }
    })
}

/// `tombolo_endpoint_copy` of the header.
#[allow(clippy::too_many_arguments, reason = "the header has them")]
pub fn copy(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    from: i64,
    from_offset: u64,
    to: i64,
    to_offset: u64,
    length: u64,
    timeout_ns: i64,
) -> c_int {
    call::call(-1, || {
        let from = Place { grant: from, offset: from_offset };
        let to = Place { grant: to, offset: to_offset };
        endpoints.copy(endpoint, from, to, length, call::patience(timeout_ns)?).map(|()| 0)
    })
}

/// `tombolo_endpoint_copy_to_own` of the header.
#[allow(clippy::too_many_arguments, reason = "the header has them")]
pub fn copy_to_own(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    from: i64,
    from_offset: u64,
    buffer: Handle,
    offset: u64,
    length: u64,
    timeout_ns: i64,
) -> c_int {
    call::call(-1, || {
        let (from, to) = (Place { grant: from, offset: from_offset }, OwnPlace { buffer, offset });
        endpoints.copy_to_own(endpoint, from, to, length, call::patience(timeout_ns)?).map(|()| 0)
    })
}

/// `tombolo_endpoint_copy_from_own` of the header.
#[allow(clippy::too_many_arguments, reason = "the header has them")]
pub fn copy_from_own(
    endpoints: &dyn Endpoints,
    endpoint: Handle,
    buffer: Handle,
    offset: u64,
    to: i64,
    to_offset: u64,
    length: u64,
    timeout_ns: i64,
) -> c_int {
    call::call(-1, || {
        let (from, to) = (OwnPlace { buffer, offset }, Place { grant: to, offset: to_offset });
        endpoints.copy_from_own(endpoint, from, to, length, call::patience(timeout_ns)?).map(|()| 0)
    })
}

/// `tombolo_buffer_read` of the header.
///
/// # Safety
/// `into` is null with a length of 0, or valid for writing `length` bytes, which nobody else
/// touches meanwhile.
pub unsafe fn buffer_read(
    endpoints: &dyn Endpoints,
    buffer: Handle,
    offset: u64,
    into: *mut c_void,
    length: size_t,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let into = memory::bytes_mut(into.cast(), length)?;
            endpoints.buffer_read(buffer, offset, into).map(|()| 0)
        }
    })
}

/// `tombolo_buffer_write` of the header.
///
/// # Safety
/// `from` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// meanwhile.
pub unsafe fn buffer_write(
    endpoints: &dyn Endpoints,
    buffer: Handle,
    offset: u64,
    from: *const c_void,
    length: size_t,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let from = memory::bytes(from.cast(), length)?;
            endpoints.buffer_write(buffer, offset, from).map(|()| 0)
        }
    })
}
