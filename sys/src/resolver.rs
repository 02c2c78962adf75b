//! Name look-ups as every dynamic program makes them: `getaddrinfo` of the C library, with whatever
//! `nsswitch.conf` and `LD_PRELOAD` make of it.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why a look-up gave no address.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The resolver said so: an `EAI_*` number and its text (getaddrinfo(3)).
    #[error("{text} ({code})")]
    Resolver {
        /// The number.
        code: i32,
        /// Its text.
        text: String,
    },
    /// A system call failed.
    #[error("the resolver met an error of the system: {0}")]
    System(#[from] io::Error),
}

/// The list that `getaddrinfo` allocated; freed when dropped.
struct List(*mut libc::addrinfo);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a successful getaddrinfo, is not null, and is freed only
        // here.
        unsafe { libc::freeaddrinfo(self.0) }
    }
}

/// The addresses of `name`, both families, one per address, in the order of the C library.
///
/// # Errors
/// [`LookupError`] as `getaddrinfo` reports it.
pub fn addresses(name: &CStr) -> Result<Vec<IpAddr>, LookupError> {
    // SAFETY: an addrinfo of zeros is what getaddrinfo(3) asks for as hints: no flags, any family,
    // null pointers.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_socktype = libc::SOCK_STREAM;
    let mut found: *mut libc::addrinfo = std::ptr::null_mut();
    // SAFETY: `name` ends with NUL, the service may be null, `hints` and `found` live across the
    // call.
    let code =
        unsafe { libc::getaddrinfo(name.as_ptr(), std::ptr::null(), &raw const hints, &raw mut found) };
    match code {
        0 if found.is_null() => Ok(Vec::new()),
        0 => Ok(collect(&List(found))),
        libc::EAI_SYSTEM => Err(io::Error::last_os_error().into()),
        code => Err(LookupError::Resolver { code, text: text(code) }),
    }
}

fn text(code: i32) -> String {
    // SAFETY: gai_strerror takes any number and returns a static string.
    let text = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
    text.to_string_lossy().into_owned()
}

fn collect(list: &List) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    let mut next = list.0;
    while !next.is_null() {
        // SAFETY: `next` is an element of the list, which lives as long as `list`; the C library
        // linked it.
        let element = unsafe { &*next };
        addresses.extend(address(element));
        next = element.ai_next;
    }
    addresses
}

fn address(element: &libc::addrinfo) -> Option<IpAddr> {
    if element.ai_addr.is_null() {
        return None;
    }
    match element.ai_family {
        libc::AF_INET if element.ai_addrlen as usize >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: not null, AF_INET, and at least as long as a sockaddr_in; read without asking
            // for alignment.
            let socket = unsafe { element.ai_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(socket.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 if element.ai_addrlen as usize >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: not null, AF_INET6, and at least as long as a sockaddr_in6; read without
            // asking for alignment.
            let socket = unsafe { element.ai_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(socket.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_addresses_come_back_as_they_are() {
        let v4 = addresses(c"192.0.2.7").expect("a literal needs no server");
        assert_eq!(v4, [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7))]);
        let v6 = addresses(c"2001:db8::7").expect("a literal needs no server");
        assert_eq!(v6, [IpAddr::V6("2001:db8::7".parse().expect("an address"))]);
    }

    #[test]
    fn nonsense_is_an_error_with_a_text() {
        let error = addresses(c"").expect_err("an empty name has no address");
        assert!(matches!(&error, LookupError::Resolver { code: libc::EAI_NONAME, .. }), "{error}");
        assert!(error.to_string().len() > 5);
    }
}
