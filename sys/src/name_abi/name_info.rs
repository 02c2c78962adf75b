//! `getnameinfo`.

use super::{Failure, KeepErrno, Names, Reply, ask, next, set_errno};
use libc::{c_char, c_int, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// The flags that a [`Names`] can serve; with others the C library is asked.
const OUR_FLAGS: c_int = libc::NI_NAMEREQD | libc::NI_NUMERICSERV | libc::NI_DGRAM;

/// See getnameinfo(3).
///
/// # Safety
/// The contract of getnameinfo(3): the address is valid for reading so many bytes, `host` and
/// `service` are null or valid for writing so many.
pub unsafe fn getnameinfo(
    names: &dyn Names,
    (address, address_len): (*const sockaddr, socklen_t),
    (host, host_len): (*mut c_char, socklen_t),
    (service, service_len): (*mut c_char, socklen_t),
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's contract is ours and the next function's, in each of the calls.
    let real = |host, host_len, flags| unsafe {
        real((address, address_len), (host, host_len), (service, service_len), flags)
    };
    // SAFETY: the caller says so.
    let asked = unsafe { address_of(address, address_len) };
    let Some(asked) = asked.filter(|_| !host.is_null() && host_len > 0 && flags & !OUR_FLAGS == 0) else {
        return real(host, host_len, flags);
    };
    let reply = {
        let _kept = KeepErrno::new();
        ask(|| names.host_by_address(asked))
    };
    let name = match reply {
        Reply::Found(found) => found.name,
        Reply::Elsewhere => return real(host, host_len, flags),
        Reply::Failed(Failure::Again) => return libc::EAI_AGAIN,
        Reply::Failed(_) if flags & libc::NI_NAMEREQD != 0 => return libc::EAI_NONAME,
        Reply::Failed(_) => return real(host, host_len, flags | libc::NI_NUMERICHOST),
    };
    if !service.is_null() && service_len > 0 {
        let code = real(null_mut(), 0, flags & !libc::NI_NAMEREQD);
        if code != 0 {
            return code;
        }
    }
    if name.len() >= host_len as usize || name.contains('\0') {
        return libc::EAI_OVERFLOW;
    }
    // SAFETY: the caller gives `host_len` bytes to write to, and the name with its NUL is no
    // longer; a new String can't overlap with them.
    unsafe {
        std::ptr::copy_nonoverlapping(name.as_ptr(), host.cast(), name.len());
        *host.add(name.len()) = 0;
    }
    0
}

/// Calls the next library's function.
///
/// # Safety
/// As [`getnameinfo`].
unsafe fn real(
    (address, address_len): (*const sockaddr, socklen_t),
    (host, host_len): (*mut c_char, socklen_t),
    (service, service_len): (*mut c_char, socklen_t),
    flags: c_int,
) -> c_int {
    let Some(function) = next::getnameinfo() else {
        set_errno(libc::ENOSYS);
        return libc::EAI_SYSTEM;
    };
    // SAFETY: the caller's contract is this function's.
    unsafe { function(address, address_len, host, host_len, service, service_len, flags) }
}

/// The address, if it is an IP address without a scope.
///
/// # Safety
/// `address` is null or valid for reading `length` bytes.
unsafe fn address_of(address: *const sockaddr, length: socklen_t) -> Option<IpAddr> {
    let length = length as usize;
    if address.is_null() || length < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: as many bytes can be read; the caller's pointer need not be aligned for it.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET if length >= size_of::<sockaddr_in>() => {
            // SAFETY: as many bytes can be read.
            let address = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 if length >= size_of::<sockaddr_in6>() => {
            // SAFETY: as many bytes can be read.
            let address = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let plain = address.sin6_scope_id == 0;
            plain.then(|| Ipv6Addr::from(address.sin6_addr.s6_addr).to_canonical())
        }
        _ => None,
    }
}
