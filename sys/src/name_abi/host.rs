//! The `gethostby` functions.

use super::{Failure, Host, KeepErrno, Names, Reply, ask, next, set_errno};
use libc::{c_char, c_int, c_void, hostent, size_t, socklen_t};
use std::cell::RefCell;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// Values of `h_errno` (netdb.h).
const NETDB_INTERNAL: c_int = -1;
const NETDB_SUCCESS: c_int = 0;
const HOST_NOT_FOUND: c_int = 1;
const TRY_AGAIN: c_int = 2;
const NO_RECOVERY: c_int = 3;
const NO_DATA: c_int = 4;
/// Pointers, and numbers of their size, stand at multiples of this.
const ALIGNMENT: usize = align_of::<*mut c_char>();

unsafe extern "C" {
    fn __h_errno_location() -> *mut c_int;
}

fn set_h_errno(value: c_int) {
    // SAFETY: the function returns the address of this thread's h_errno, always valid for storing
    // an int.
    unsafe { *__h_errno_location() = value };
}

fn h_errno_of(failure: Failure) -> c_int {
    match failure {
        Failure::NoName => HOST_NOT_FOUND,
        Failure::NoData => NO_DATA,
        Failure::Again => TRY_AGAIN,
        Failure::Permanent => NO_RECOVERY,
    }
}

/// Where a reentrant function puts its result: its last five arguments.
#[derive(Debug, Clone, Copy)]
pub struct Into {
    entry: *mut hostent,
    buffer: *mut c_char,
    buffer_len: size_t,
    found: *mut *mut hostent,
    error: *mut c_int,
}

impl Into {
    /// The arguments, as they come.
    pub fn new(
        entry: *mut hostent,
        buffer: *mut c_char,
        buffer_len: size_t,
        found: *mut *mut hostent,
        error: *mut c_int,
    ) -> Self {
        Self { entry, buffer, buffer_len, found, error }
    }
}

/// This thread's result of the functions that are not reentrant. The C library has one for all
/// threads; with one for each nothing is lost that is promised, and threads do not disturb each
/// other.
struct Own {
    entry: hostent,
    buffer: Vec<u64>,
}

thread_local! {
    static OWN: RefCell<Own> = const { RefCell::new(Own { entry: EMPTY, buffer: Vec::new() }) };
}

const EMPTY: hostent = hostent {
    h_name: null_mut(),
    h_aliases: null_mut(),
    h_addrtype: 0,
    h_length: 0,
    h_addr_list: null_mut(),
};

/// See gethostbyname(3).
///
/// # Safety
/// The contract of gethostbyname(3): `name` is a string with a NUL.
pub unsafe fn gethostbyname(names: &dyn Names, name: *const c_char) -> *mut hostent {
    // SAFETY: the caller says so.
    match unsafe { ask_name(names, name, libc::AF_INET) } {
        Reply::Elsewhere => next::gethostbyname().map_or_else(nobody, |function| {
            // SAFETY: the caller's contract is this function's.
            unsafe { function(name) }
        }),
        reply => keep(reply),
    }
}

/// See gethostbyname2(3).
///
/// # Safety
/// The contract of gethostbyname2(3): `name` is a string with a NUL.
pub unsafe fn gethostbyname2(names: &dyn Names, name: *const c_char, family: c_int) -> *mut hostent {
    // SAFETY: the caller says so.
    match unsafe { ask_name(names, name, family) } {
        Reply::Elsewhere => next::gethostbyname2().map_or_else(nobody, |function| {
            // SAFETY: the caller's contract is this function's.
            unsafe { function(name, family) }
        }),
        reply => keep(reply),
    }
}

/// See gethostbyaddr(3).
///
/// # Safety
/// The contract of gethostbyaddr(3): `address` is valid for reading `length` bytes.
pub unsafe fn gethostbyaddr(
    names: &dyn Names,
    address: *const c_void,
    length: socklen_t,
    family: c_int,
) -> *mut hostent {
    // SAFETY: the caller says so.
    match unsafe { ask_address(names, address, length, family) } {
        Reply::Elsewhere => next::gethostbyaddr().map_or_else(nobody, |function| {
            // SAFETY: the caller's contract is this function's.
            unsafe { function(address, length, family) }
        }),
        reply => keep(reply),
    }
}

/// See gethostbyname_r(3).
///
/// # Safety
/// The contract of gethostbyname_r(3): `name` is a string with a NUL, the parts of `into` are valid
/// for writing.
pub unsafe fn gethostbyname_r(names: &dyn Names, name: *const c_char, into: Into) -> c_int {
    // SAFETY: the caller says so.
    match unsafe { ask_name(names, name, libc::AF_INET) } {
        Reply::Elsewhere => next::gethostbyname_r().map_or(libc::ENOSYS, |function| {
            // SAFETY: the caller's contract is this function's.
            unsafe { function(name, into.entry, into.buffer, into.buffer_len, into.found, into.error) }
        }),
        // SAFETY: the caller says so.
        reply => unsafe { give(reply, into) },
    }
}

/// See gethostbyname2_r(3).
///
/// # Safety
/// The contract of gethostbyname2_r(3): `name` is a string with a NUL, the parts of `into` are
/// valid for writing.
pub unsafe fn gethostbyname2_r(names: &dyn Names, name: *const c_char, family: c_int, into: Into) -> c_int {
    // SAFETY: the caller says so.
    match unsafe { ask_name(names, name, family) } {
        Reply::Elsewhere => next::gethostbyname2_r().map_or(libc::ENOSYS, |function| {
            // SAFETY: the caller's contract is this function's.
            unsafe {
                function(name, family, into.entry, into.buffer, into.buffer_len, into.found, into.error)
            }
        }),
        // SAFETY: the caller says so.
        reply => unsafe { give(reply, into) },
    }
}

/// See gethostbyaddr_r(3).
///
/// # Safety
/// The contract of gethostbyaddr_r(3): `address` is valid for reading `length` bytes, the parts of
/// `into` are valid for writing.
pub unsafe fn gethostbyaddr_r(
    names: &dyn Names,
    address: *const c_void,
    length: socklen_t,
    family: c_int,
    into: Into,
) -> c_int {
    // SAFETY: the caller says so.
    match unsafe { ask_address(names, address, length, family) } {
        Reply::Elsewhere => next::gethostbyaddr_r().map_or(libc::ENOSYS, |function| {
            let Into { entry, buffer, buffer_len, found, error } = into;
            // SAFETY: the caller's contract is this function's.
            unsafe { function(address, length, family, entry, buffer, buffer_len, found, error) }
        }),
        // SAFETY: the caller says so.
        reply => unsafe { give(reply, into) },
    }
}

/// Where no library has the function.
fn nobody() -> *mut hostent {
    set_h_errno(NO_RECOVERY);
    null_mut()
}

/// # Safety
/// `name` is null or a string with a NUL.
unsafe fn ask_name(names: &dyn Names, name: *const c_char, family: c_int) -> Reply<Host> {
    let _kept = KeepErrno::new();
    if name.is_null() || ![libc::AF_INET, libc::AF_INET6].contains(&family) {
        return Reply::Elsewhere;
    }
    // SAFETY: not null, so the caller says it is a string with a NUL that lives across this call.
    match unsafe { CStr::from_ptr(name) }.to_str() {
        Ok(name) => ask(|| names.host_by_name(name, family == libc::AF_INET6)),
        Err(_) => Reply::Elsewhere,
    }
}

/// # Safety
/// `address` is null or valid for reading `length` bytes.
unsafe fn ask_address(
    names: &dyn Names,
    address: *const c_void,
    length: socklen_t,
    family: c_int,
) -> Reply<Host> {
    let _kept = KeepErrno::new();
    if address.is_null() {
        return Reply::Elsewhere;
    }
    let address = match (family, length) {
        // SAFETY: so many bytes can be read; bytes need no alignment.
        (libc::AF_INET, 4) => IpAddr::from(Ipv4Addr::from(unsafe { address.cast::<[u8; 4]>().read() })),
        // SAFETY: as above.
        (libc::AF_INET6, 16) => IpAddr::from(Ipv6Addr::from(unsafe { address.cast::<[u8; 16]>().read() })),
        _ => return Reply::Elsewhere,
    };
    ask(|| names.host_by_address(address))
}

/// The result of a function that is not reentrant, in this thread's own place.
fn keep(reply: Reply<Host>) -> *mut hostent {
    let host = match reply {
        Reply::Found(host) => host,
        Reply::Failed(failure) => {
            set_h_errno(h_errno_of(failure));
            return null_mut();
        }
        Reply::Elsewhere => return nobody(),
    };
    let kept = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        let own = &mut *own;
        let words = needed(&host).div_ceil(size_of::<u64>()) + 1;
        own.buffer.resize(words.max(own.buffer.len()), 0);
        let buffer: *mut c_char = own.buffer.as_mut_ptr().cast();
        let bytes = own.buffer.len() * size_of::<u64>();
        // SAFETY: the buffer is so long and this thread's own; its next change is in the next call
        // on this thread, which is as long as the result is promised to last.
        let filled = unsafe { fill(&host, buffer, bytes) };
        filled.map(|entry| {
            own.entry = entry;
            &raw mut own.entry
        })
    });
    match kept {
        Ok(Some(entry)) => {
            set_h_errno(NETDB_SUCCESS);
            entry
        }
        // The thread is ending, or a name holds a NUL.
        Ok(None) | Err(_) => nobody(),
    }
}

/// The result of a reentrant function, in the caller's place.
///
/// # Safety
/// The parts of `into` are valid for writing.
unsafe fn give(reply: Reply<Host>, into: Into) -> c_int {
    let (host, error, code) = match reply {
        Reply::Found(host) => (Some(host), NETDB_SUCCESS, 0),
        Reply::Failed(Failure::Again) => (None, TRY_AGAIN, libc::EAGAIN),
        Reply::Failed(Failure::Permanent) | Reply::Elsewhere => (None, NO_RECOVERY, libc::EINVAL),
        // As the C library: that there is none is no failure of the function.
        Reply::Failed(failure) => (None, h_errno_of(failure), 0),
    };
    // SAFETY: the caller says so.
    unsafe {
        *into.found = null_mut();
        *into.error = error;
    }
    let Some(host) = host else { return code };
    if host_has_nul(&host) {
        // SAFETY: the caller says so.
        unsafe { *into.error = NO_RECOVERY };
        return libc::EINVAL;
    }
    // SAFETY: the caller says that the buffer has so many bytes to write to.
    match unsafe { fill(&host, into.buffer, into.buffer_len) } {
        Some(entry) => {
            // SAFETY: the caller says so.
            unsafe {
                *into.entry = entry;
                *into.found = into.entry;
            }
            0
        }
        None => {
            // SAFETY: the caller says so.
            unsafe { *into.error = NETDB_INTERNAL };
            set_errno(libc::ERANGE);
            libc::ERANGE
        }
    }
}

fn host_has_nul(host: &Host) -> bool {
    host.name.contains('\0') || host.aliases.iter().any(|alias| alias.contains('\0'))
}

fn address_bytes(host: &Host) -> usize {
    if host.addresses.first().is_some_and(IpAddr::is_ipv6) { 16 } else { 4 }
}

/// Bytes that a host takes in an aligned buffer.
fn needed(host: &Host) -> usize {
    let pointers = (host.aliases.len() + 1 + host.addresses.len() + 1) * size_of::<*mut c_char>();
    let names: usize = host.aliases.iter().map(|alias| alias.len() + 1).sum();
    pointers + host.addresses.len() * address_bytes(host) + names + host.name.len() + 1
}

/// Lays a host out in a buffer: both lists of pointers, then the addresses, then the names. `None`:
/// it does not fit, or a name holds a NUL.
///
/// # Safety
/// `buffer` is valid for writing `length` bytes.
unsafe fn fill(host: &Host, buffer: *mut c_char, length: usize) -> Option<hostent> {
    let padding = buffer.align_offset(ALIGNMENT);
    if host_has_nul(host) || padding.checked_add(needed(host))? > length {
        return None;
    }
    let width = address_bytes(host);
    let lists = (host.addresses.len() + 1 + host.aliases.len() + 1) * size_of::<*mut c_char>();
    // SAFETY: everything below stays within `padding + needed(host)` bytes of the buffer, which was
    // compared with its length: the lists take `lists` bytes, then each address `width` bytes, then
    // each name its bytes and a NUL. The lists begin at an aligned address. Nothing of the buffer
    // is borrowed, and what is copied from does not overlap with it.
    unsafe {
        let start = buffer.add(padding);
        let addresses: *mut *mut c_char = start.cast();
        let aliases = addresses.add(host.addresses.len() + 1);
        let mut at = start.add(lists);
        for (number, address) in host.addresses.iter().enumerate() {
            *addresses.add(number) = at;
            match address {
                IpAddr::V4(address) if width == 4 => at.cast::<[u8; 4]>().write(address.octets()),
                IpAddr::V6(address) if width == 16 => at.cast::<[u8; 16]>().write(address.octets()),
                _ => return None,
            }
            at = at.add(width);
        }
        *addresses.add(host.addresses.len()) = null_mut();
        for (number, alias) in host.aliases.iter().enumerate() {
            *aliases.add(number) = at;
            at = put(alias, at);
        }
        *aliases.add(host.aliases.len()) = null_mut();
        put(&host.name, at);
        let family = if width == 16 { libc::AF_INET6 } else { libc::AF_INET };
        Some(hostent {
            h_name: at,
            h_aliases: aliases,
            h_addrtype: family,
            h_length: width as c_int,
            h_addr_list: addresses,
        })
    }
}

/// Writes a string and its NUL; returns where they end.
///
/// # Safety
/// `at` is valid for writing that many bytes.
unsafe fn put(text: &str, at: *mut c_char) -> *mut c_char {
    // SAFETY: the caller says so.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), at.cast(), text.len());
        *at.add(text.len()) = 0;
        at.add(text.len() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        Host {
            name: "host.example".into(),
            aliases: vec!["alias.example".into()],
            addresses: vec![IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2])],
        }
    }

    #[test]
    fn a_host_fits_exactly_or_not_at_all() {
        for shift in 0..ALIGNMENT {
            let bytes = needed(&host()) + (ALIGNMENT - shift) % ALIGNMENT;
            let mut buffer = vec![0x5555_5555_5555_5555_u64; bytes.div_ceil(8) + 2];
            // SAFETY: the buffer is longer than the shift and the bytes together.
            let start = unsafe { buffer.as_mut_ptr().cast::<c_char>().add(shift) };
            // SAFETY: as above.
            assert!(unsafe { fill(&host(), start, bytes - 1) }.is_none());
            // SAFETY: as above.
            let entry = unsafe { fill(&host(), start, bytes) }.expect("it fits");
            // SAFETY: `fill` has made strings and lists that end, in the buffer that lives.
            unsafe {
                assert_eq!(CStr::from_ptr(entry.h_name), c"host.example");
                assert_eq!(CStr::from_ptr(*entry.h_aliases), c"alias.example");
                assert!((*entry.h_aliases.add(1)).is_null());
                let second = (*entry.h_addr_list.add(1)).cast::<[u8; 4]>().read();
                assert_eq!((second, entry.h_length), ([192, 0, 2, 2], 4));
                assert!((*entry.h_addr_list.add(2)).is_null());
            }
            let end = shift + bytes;
            // SAFETY: one byte behind what was given, still in the allocation.
            assert_eq!(unsafe { *buffer.as_ptr().cast::<u8>().add(end) }, 0x55, "wrote beyond the end");
        }
    }
}
