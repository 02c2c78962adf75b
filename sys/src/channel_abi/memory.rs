//! The caller's memory: what C points to, as slices.

use super::{DESCRIPTORS, Failure, Outcome};
use libc::{c_int, iovec};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{FromRawFd, OwnedFd};

/// Most parts of a vectored call (Linux: `UIO_MAXIOV`).
pub const PARTS_MAX: c_int = 1024;

fn fault(what: &str) -> Failure {
    Failure { errno: libc::EFAULT, text: format!("{what} is a null pointer") }
}

fn check(pointer: *const u8, length: usize) -> Outcome<()> {
    if pointer.is_null() && length > 0 {
        return Err(fault("the buffer"));
    }
    if isize::try_from(length).is_err() {
        let text = format!("a buffer can't have {length} bytes");
        return Err(Failure { errno: libc::EINVAL, text });
    }
    Ok(())
}

/// Bytes to read from.
///
/// # Safety
/// `pointer` is null with a length of 0, or valid for reading `length` bytes, which nobody writes
/// during `'a`.
pub(crate) unsafe fn bytes<'a>(pointer: *const u8, length: usize) -> Outcome<&'a [u8]> {
    check(pointer, length)?;
    if pointer.is_null() {
        return Ok(&[]);
    }
    // SAFETY: not null; valid for as many bytes and unchanged, as the caller says; no longer than
    // isize::MAX.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// Bytes to write to.
///
/// # Safety
/// `pointer` is null with a length of 0, or valid for writing `length` bytes, which nobody else
/// touches during `'a`. They need not have been written before: what C leaves in them is some byte
/// each.
pub(crate) unsafe fn bytes_mut<'a>(pointer: *mut u8, length: usize) -> Outcome<&'a mut [u8]> {
    check(pointer, length)?;
    if pointer.is_null() {
        return Ok(&mut []);
    }
    // SAFETY: as in `bytes`, and nobody else touches them. They come from another language, which
    // has no notion of bytes that are none, and nobody here reads them before they are written.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
}

/// # Safety
/// `parts` is null with a count of 0, or valid for reading so many.
unsafe fn parts<'a>(parts: *const iovec, count: c_int) -> Outcome<&'a [iovec]> {
    if !(0..=PARTS_MAX).contains(&count) {
        let text = format!("a vectored call takes 0 to {PARTS_MAX} parts, not {count}");
        return Err(Failure { errno: libc::EINVAL, text });
    }
    if count == 0 {
        return Ok(&[]);
    }
    if parts.is_null() {
        return Err(fault("the list of parts"));
    }
    // SAFETY: not null, and so many can be read, as the caller says; the count is small.
    Ok(unsafe { std::slice::from_raw_parts(parts, count.unsigned_abs() as usize) })
}

/// The parts of `writev`.
///
/// # Safety
/// `list` is null with a count of 0, or valid for reading so many; each as [`bytes`] wants it.
pub(crate) unsafe fn sources<'a>(list: *const iovec, count: c_int) -> Outcome<Vec<IoSlice<'a>>> {
    // SAFETY: as the caller says.
    let list = unsafe { parts(list, count) }?;
    // SAFETY: as the caller says of each.
    list.iter().map(|part| Ok(IoSlice::new(unsafe { bytes(part.iov_base.cast(), part.iov_len) }?))).collect()
}

/// The parts of `readv`.
///
/// # Safety
/// `list` is null with a count of 0, or valid for reading so many; each as [`bytes_mut`] wants it,
/// so no two overlap.
pub(crate) unsafe fn targets<'a>(list: *const iovec, count: c_int) -> Outcome<Vec<IoSliceMut<'a>>> {
    // SAFETY: as the caller says.
    let list = unsafe { parts(list, count) }?;
    // SAFETY: as the caller says of each.
    list.iter()
        .map(|part| Ok(IoSliceMut::new(unsafe { bytes_mut(part.iov_base.cast(), part.iov_len) }?)))
        .collect()
}

/// A place for a result.
///
/// # Safety
/// `pointer` is null, or valid for writing a `T`.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T, what: &str) -> Outcome<()> {
    if pointer.is_null() {
        return Err(fault(what));
    }
    // SAFETY: not null, valid for writing as the caller says; what was there is plain and need not
    // be dropped.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// A pointer that must be there.
pub(crate) fn must<T>(pointer: *const T, what: &str) -> Outcome<*const T> {
    if pointer.is_null() { Err(fault(what)) } else { Ok(pointer) }
}

/// The numbers of an end's descriptors.
///
/// # Safety
/// `numbers` is null, or valid for reading [`DESCRIPTORS`] of them.
pub(crate) unsafe fn numbers(numbers: *const c_int) -> Outcome<[c_int; DESCRIPTORS]> {
    let numbers = must(numbers, "the list of descriptors")?;
    // SAFETY: not null, and so many can be read, as the caller says.
    Ok(unsafe { numbers.cast::<[c_int; DESCRIPTORS]>().read_unaligned() })
}

/// Duplicates of descriptors, close-on-exec. Numbers that are none are an error.
pub(crate) fn duplicates(numbers: &[c_int]) -> Outcome<Vec<OwnedFd>> {
    numbers.iter().map(|number| duplicate(*number)).collect()
}

fn duplicate(number: c_int) -> Outcome<OwnedFd> {
    // SAFETY: any number may be asked about; one that is no descriptor is an error.
    let new = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    if new < 0 {
        let error = std::io::Error::last_os_error();
        let text = format!("can't take over descriptor {number}: {error}");
        return Err(Failure { errno: error.raw_os_error().unwrap_or(libc::EBADF), text });
    }
    // SAFETY: the kernel has just made it, for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

/// Closes descriptors that the caller gives up.
///
/// # Safety
/// They are the caller's, who does not use them any more.
pub(crate) unsafe fn close(numbers: &[c_int]) {
    for number in numbers {
        // SAFETY: the caller's to close, as it says. Linux closes even where it reports an error.
        let _closed = unsafe { libc::close(*number) };
    }
}
