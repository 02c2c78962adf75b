//! The C functions, without their C names; and the macro that gives them those.

use super::memory::{self, must, put};
use super::{Channels, Handle, Options, Outcome, call};
use libc::{c_char, c_int, c_void, iovec, size_t, ssize_t};
use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::IntoRawFd;
use std::ptr::{null, null_mut};

/// # Safety
/// `name` is null or ends with NUL, and lives during `'a`.
pub(crate) unsafe fn name_at<'a>(name: *const c_char) -> Outcome<&'a CStr> {
    let name = must(name, "the name")?;
    // SAFETY: not null, so the caller says it is a string with a NUL that lives.
    Ok(unsafe { CStr::from_ptr(name) })
}

/// A count of bytes as C returns it. No memory holds more.
pub(crate) fn count_of(bytes: usize) -> ssize_t {
    ssize_t::try_from(bytes).unwrap_or(ssize_t::MAX)
}

/// As snprintf(3): as much as there is room for, with a NUL; returns the whole length.
pub(crate) fn copy_text(text: &str, into: &mut [u8]) -> usize {
    if let Some(room) = into.len().checked_sub(1) {
        let fits = room.min(text.len());
        into[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        into[fits] = 0;
    }
    text.len()
}

/// `tombolo_offer` of the header.
///
/// # Safety
/// `name` is null or ends with NUL; `options` is null or as [`Options`] says.
pub unsafe fn offer(channels: &dyn Channels, name: *const c_char, options: *const Options) -> Handle {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let name = name_at(name)?;
            channels.offer(name, &Options::read(options)?)
        }
    })
}

/// `tombolo_accept` of the header.
pub fn accept(channels: &dyn Channels, offer: Handle) -> Handle {
    call::call(-1, || channels.accept(offer))
}

/// `tombolo_open` of the header.
///
/// # Safety
/// `name` is null or ends with NUL; `options` is null or as [`Options`] says.
pub unsafe fn open(channels: &dyn Channels, name: *const c_char, options: *const Options) -> Handle {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let name = name_at(name)?;
            channels.open(name, &Options::read(options)?)
        }
    })
}

/// `tombolo_pair` of the header.
///
/// # Safety
/// `options` is null or as [`Options`] says; `ends` is null or valid for writing two handles.
pub unsafe fn pair(channels: &dyn Channels, options: *const Options, ends: *mut Handle) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            must(ends, "the place for the two ends")?;
            let [one, other] = channels.pair(&Options::read(options)?)?;
            put(ends.cast(), [one, other], "the place for the two ends").map(|()| 0)
        }
    })
}

/// `tombolo_channel_descriptors` of the header.
///
/// # Safety
/// `descriptors` is null or valid for writing [`DESCRIPTORS`](super::DESCRIPTORS) of them.
pub unsafe fn channel_descriptors(
    channels: &dyn Channels,
    channel: Handle,
    descriptors: *mut c_int,
) -> c_int {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            must(descriptors, "the place for the descriptors")?;
            let given = channels.give_descriptors(channel)?.map(IntoRawFd::into_raw_fd);
            put(descriptors.cast(), given, "the place for the descriptors").map(|()| 0)
        }
    })
}

/// `tombolo_from_descriptors` of the header.
///
/// # Safety
/// `descriptors` is null or valid for reading [`DESCRIPTORS`](super::DESCRIPTORS) of them, which
/// are the caller's; `options` is null or as [`Options`] says.
pub unsafe fn from_descriptors(
    channels: &dyn Channels,
    descriptors: *const c_int,
    options: *const Options,
) -> Handle {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let numbers = memory::numbers(descriptors)?;
            let made = channels.take_descriptors(memory::duplicates(&numbers)?, &Options::read(options)?)?;
            memory::close(&numbers);
            Ok(made)
        }
    })
}

/// `tombolo_read` of the header.
///
/// # Safety
/// `buffer` is null with a size of 0, or valid for writing `size` bytes, which nobody else touches
/// meanwhile.
pub unsafe fn read(channels: &dyn Channels, channel: Handle, buffer: *mut c_void, size: size_t) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let into = memory::bytes_mut(buffer.cast(), size)?;
            channels.read(channel, &mut [IoSliceMut::new(into)]).map(count_of)
        }
    })
}

/// `tombolo_readv` of the header.
///
/// # Safety
/// `parts` is null with a count of 0, or valid for reading so many; each is as [`read`] wants it,
/// and no two overlap.
pub unsafe fn readv(channels: &dyn Channels, channel: Handle, parts: *const iovec, count: c_int) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe { channels.read(channel, &mut memory::targets(parts, count)?).map(count_of) }
    })
}

/// `tombolo_write` of the header.
///
/// # Safety
/// `bytes` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// meanwhile.
pub unsafe fn write(
    channels: &dyn Channels,
    channel: Handle,
    bytes: *const c_void,
    length: size_t,
) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let from = memory::bytes(bytes.cast(), length)?;
            channels.write(channel, &[IoSlice::new(from)]).map(count_of)
        }
    })
}

/// `tombolo_writev` of the header.
///
/// # Safety
/// `parts` is null with a count of 0, or valid for reading so many; each is as [`write`] wants it.
pub unsafe fn writev(channels: &dyn Channels, channel: Handle, parts: *const iovec, count: c_int) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe { channels.write(channel, &memory::sources(parts, count)?).map(count_of) }
    })
}

/// `tombolo_next_length` of the header.
pub fn next_length(channels: &dyn Channels, channel: Handle) -> ssize_t {
    call::call(-1, || channels.next_length(channel).map(count_of))
}

/// `tombolo_loan` of the header.
pub fn loan(channels: &dyn Channels, channel: Handle, length: size_t) -> *mut c_void {
    call::call(null_mut(), || channels.loan(channel, length).map(<*mut u8>::cast))
}

/// `tombolo_commit` of the header.
pub fn commit(channels: &dyn Channels, channel: Handle, length: size_t) -> c_int {
    call::call(-1, || channels.commit(channel, length).map(|()| 0))
}

/// `tombolo_cancel` of the header.
pub fn cancel(channels: &dyn Channels, channel: Handle) -> c_int {
    call::call(-1, || channels.cancel(channel).map(|()| 0))
}

/// `tombolo_view` of the header.
///
/// # Safety
/// `bytes` is null or valid for writing a pointer.
pub unsafe fn view(channels: &dyn Channels, channel: Handle, bytes: *mut *const c_void) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            must(bytes, "the place for the view")?;
            let (start, length) = channels.view(channel)?.unwrap_or((null(), 0));
            put(bytes, start.cast(), "the place for the view").map(|()| count_of(length))
        }
    })
}

/// `tombolo_release` of the header.
pub fn release(channels: &dyn Channels, channel: Handle) -> c_int {
    call::call(-1, || channels.release(channel).map(|()| 0))
}

/// `tombolo_set_batch` of the header.
pub fn set_batch(channels: &dyn Channels, channel: Handle, bytes: size_t) -> c_int {
    call::call(-1, || channels.set_batch(channel, bytes).map(|()| 0))
}

/// `tombolo_flush` of the header.
pub fn flush(channels: &dyn Channels, channel: Handle) -> c_int {
    call::call(-1, || channels.flush(channel).map(|()| 0))
}

/// `tombolo_finish` of the header.
pub fn finish(channels: &dyn Channels, channel: Handle) -> c_int {
    call::call(-1, || channels.finish(channel).map(|()| 0))
}

/// `tombolo_set_timeout` of the header.
pub fn set_timeout(channels: &dyn Channels, handle: Handle, direction: c_int, timeout_ns: i64) -> c_int {
    call::call(-1, || {
        channels.set_timeout(handle, call::direction(direction)?, call::patience(timeout_ns)?).map(|()| 0)
    })
}

/// `tombolo_wait` of the header.
pub fn wait(channels: &dyn Channels, handle: Handle, direction: c_int, timeout_ns: i64) -> c_int {
    call::call(-1, || {
        channels.wait(handle, call::direction(direction)?, call::patience(timeout_ns)?).map(c_int::from)
    })
}

/// `tombolo_poll_descriptor` of the header.
pub fn poll_descriptor(channels: &dyn Channels, handle: Handle, direction: c_int) -> c_int {
    call::call(-1, || channels.poll_descriptor(handle, call::direction(direction)?))
}

/// `tombolo_set_message_limit` of the header.
pub fn set_message_limit(channels: &dyn Channels, channel: Handle, bytes: size_t) -> c_int {
    call::call(-1, || channels.set_message_limit(channel, bytes).map(|()| 0))
}

/// `tombolo_max_message` of the header.
pub fn max_message(channels: &dyn Channels, channel: Handle) -> ssize_t {
    call::call(-1, || channels.max_message(channel).map(count_of))
}

/// `tombolo_mode` of the header.
pub fn mode(channels: &dyn Channels, channel: Handle) -> c_int {
    call::call(-1, || channels.is_stream(channel).map(c_int::from))
}

/// `tombolo_peer` of the header.
///
/// # Safety
/// `text` is null with a size of 0, or valid for writing `size` bytes, which nobody else touches
/// meanwhile.
pub unsafe fn peer(channels: &dyn Channels, channel: Handle, text: *mut c_char, size: size_t) -> ssize_t {
    call::call(-1, || {
        // SAFETY: the caller says so.
        unsafe {
            let into = memory::bytes_mut(text.cast(), size)?;
            Ok(count_of(copy_text(&channels.peer(channel)?, into)))
        }
    })
}

/// `tombolo_close` of the header.
pub fn close(channels: &dyn Channels, handle: Handle) -> c_int {
    call::call(-1, || channels.close(handle).map(|()| 0))
}

/// Exports the functions of `include/tombolo/channel.h` from the library that expands this, done by
/// a `static` that implements [`Channels`](crate::channel_abi::Channels). To be expanded once, in a
/// `cdylib`.
#[macro_export]
macro_rules! export_channels {
    ($channels:path) => {
        use $crate::channel_abi::libc as c;
        use $crate::channel_abi::{Handle, Options};

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_error_text() -> *const c::c_char {
            $crate::channel_abi::error_text()
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_offer(name: *const c::c_char, options: *const Options) -> Handle {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::offer(&$channels, name, options) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_accept(offer: Handle) -> Handle {
            $crate::channel_abi::accept(&$channels, offer)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_open(name: *const c::c_char, options: *const Options) -> Handle {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::open(&$channels, name, options) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_pair(options: *const Options, ends: *mut Handle) -> c::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::pair(&$channels, options, ends) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_channel_descriptors(
            channel: Handle,
            descriptors: *mut c::c_int,
        ) -> c::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::channel_descriptors(&$channels, channel, descriptors) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_from_descriptors(
            descriptors: *const c::c_int,
            options: *const Options,
        ) -> Handle {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::from_descriptors(&$channels, descriptors, options) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_read(
            channel: Handle,
            buffer: *mut c::c_void,
            size: c::size_t,
        ) -> c::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::read(&$channels, channel, buffer, size) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_readv(
            channel: Handle,
            parts: *const c::iovec,
            count: c::c_int,
        ) -> c::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::readv(&$channels, channel, parts, count) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_write(
            channel: Handle,
            bytes: *const c::c_void,
            length: c::size_t,
        ) -> c::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::write(&$channels, channel, bytes, length) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_writev(
            channel: Handle,
            parts: *const c::iovec,
            count: c::c_int,
        ) -> c::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::writev(&$channels, channel, parts, count) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_next_length(channel: Handle) -> c::ssize_t {
            $crate::channel_abi::next_length(&$channels, channel)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_loan(channel: Handle, length: c::size_t) -> *mut c::c_void {
            $crate::channel_abi::loan(&$channels, channel, length)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_commit(channel: Handle, length: c::size_t) -> c::c_int {
            $crate::channel_abi::commit(&$channels, channel, length)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_cancel(channel: Handle) -> c::c_int {
            $crate::channel_abi::cancel(&$channels, channel)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_view(channel: Handle, bytes: *mut *const c::c_void) -> c::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::view(&$channels, channel, bytes) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_release(channel: Handle) -> c::c_int {
            $crate::channel_abi::release(&$channels, channel)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_set_batch(channel: Handle, bytes: c::size_t) -> c::c_int {
            $crate::channel_abi::set_batch(&$channels, channel, bytes)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_flush(channel: Handle) -> c::c_int {
            $crate::channel_abi::flush(&$channels, channel)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_finish(channel: Handle) -> c::c_int {
            $crate::channel_abi::finish(&$channels, channel)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_set_timeout(
            handle: Handle,
            direction: c::c_int,
            timeout_ns: i64,
        ) -> c::c_int {
            $crate::channel_abi::set_timeout(&$channels, handle, direction, timeout_ns)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_wait(handle: Handle, direction: c::c_int, timeout_ns: i64) -> c::c_int {
            $crate::channel_abi::wait(&$channels, handle, direction, timeout_ns)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_poll_descriptor(handle: Handle, direction: c::c_int) -> c::c_int {
            $crate::channel_abi::poll_descriptor(&$channels, handle, direction)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_set_message_limit(channel: Handle, bytes: c::size_t) -> c::c_int {
            $crate::channel_abi::set_message_limit(&$channels, channel, bytes)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_max_message(channel: Handle) -> c::ssize_t {
            $crate::channel_abi::max_message(&$channels, channel)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_mode(channel: Handle) -> c::c_int {
            $crate::channel_abi::mode(&$channels, channel)
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_peer(
            channel: Handle,
            text: *mut c::c_char,
            size: c::size_t,
        ) -> c::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { $crate::channel_abi::peer(&$channels, channel, text, size) }
        }

        /// See `include/tombolo/channel.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_close(handle: Handle) -> c::c_int {
            $crate::channel_abi::close(&$channels, handle)
        }
    };
}
