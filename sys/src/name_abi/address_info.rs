//! `getaddrinfo`.

use super::{AddressInfo, Failure, Hints, KeepErrno, Names, Reply, ask, next, set_errno};
use libc::{addrinfo, c_char, c_int, sockaddr, sockaddr_in, sockaddr_in6};
use std::ffi::{CStr, CString};
use std::net::IpAddr;
use std::ptr::{null, null_mut};

/// `EAI_NODATA` and `EAI_ADDRFAMILY` of netdb.h, which the `libc` crate leaves out for some
/// targets.
const EAI_NODATA: c_int = -5;
/// The meaning of a null `hints` (getaddrinfo(3), NOTES).
const DEFAULT_FLAGS: c_int = libc::AI_V4MAPPED | libc::AI_ADDRCONFIG;
/// The flags that a [`Names`] is asked about. All others (`AI_NUMERICHOST`, `AI_IDN`, unknown ones)
/// are for the C library.
const OUR_FLAGS: c_int = libc::AI_PASSIVE
    | libc::AI_CANONNAME
    | libc::AI_V4MAPPED
    | libc::AI_ALL
    | libc::AI_ADDRCONFIG
    | libc::AI_NUMERICSERV;

/// The kind of socket for a service.
#[derive(Debug, Clone, Copy)]
struct Place {
    socktype: c_int,
    protocol: c_int,
    port: u16,
}

/// See getaddrinfo(3).
///
/// # Safety
/// The contract of getaddrinfo(3): `node`, `service` and `hints` are null or valid (the strings end
/// with NUL), `found` is valid for writing.
pub unsafe fn getaddrinfo(
    names: &dyn Names,
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    found: *mut *mut addrinfo,
) -> c_int {
    let ours = {
        let _kept = KeepErrno::new();
        // SAFETY: the caller's contract is ours.
        unsafe { try_ours(names, node, service, hints) }
    };
    match ours {
        Some(Ok(list)) => {
            // SAFETY: the caller gives a place to write to.
            unsafe { *found = list };
            0
        }
        Some(Err(code)) => code,
        // SAFETY: the caller's contract is the next function's.
        None => unsafe { real(node, service, hints, found) },
    }
}

/// Our answer; `None`: it is for the next library.
///
/// # Safety
/// As [`getaddrinfo`].
unsafe fn try_ours(
    names: &dyn Names,
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
) -> Option<Result<*mut addrinfo, c_int>> {
    if node.is_null() {
        return None;
    }
    // SAFETY: not null, so the caller says it is a string with a NUL that lives across this call.
    let node = unsafe { CStr::from_ptr(node) }.to_str().ok()?;
    // SAFETY: null, or else valid, as the caller says.
    let wished = unsafe { hints.as_ref() };
    let mut asked = wished.map_or(Hints { flags: DEFAULT_FLAGS, family: libc::AF_UNSPEC }, |wished| Hints {
        flags: wished.ai_flags,
        family: wished.ai_family,
    });
    let families = [libc::AF_UNSPEC, libc::AF_INET, libc::AF_INET6];
    if asked.flags & !OUR_FLAGS != 0 || !families.contains(&asked.family) {
        return None;
    }
    let flags = asked.flags;
    // The C library knows services and protocols; a wrong one is an error before any name is looked
    // up. SAFETY: null or a string, as the caller says.
    let places = unsafe { places(service, wished) };
    let places = match places {
        Ok(places) => places,
        Err(code) => return Some(Err(code)),
    };
    if flags & libc::AI_ADDRCONFIG != 0 {
        asked.family = match configured(asked.family) {
            Some(family) => family,
            None => return Some(Err(libc::EAI_NONAME)),
        };
    }
    match ask(|| names.address_info(node, asked)) {
        Reply::Found(info) => Some(build(&info, &places, flags)),
        Reply::Failed(failure) => Some(Err(code_of(failure))),
        Reply::Elsewhere => None,
    }
}

fn code_of(failure: Failure) -> c_int {
    match failure {
        Failure::NoName => libc::EAI_NONAME,
        Failure::NoData => EAI_NODATA,
        Failure::Again => libc::EAI_AGAIN,
        Failure::Permanent => libc::EAI_FAIL,
    }
}

/// Calls the next library's function.
///
/// # Safety
/// As [`getaddrinfo`].
unsafe fn real(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    found: *mut *mut addrinfo,
) -> c_int {
    let Some(function) = next::getaddrinfo() else {
        set_errno(libc::ENOSYS);
        return libc::EAI_SYSTEM;
    };
    // SAFETY: the caller's contract is this function's.
    unsafe { function(node, service, hints, found) }
}

/// Asks the C library about a numeric address or about none, which takes no look-up; gives the list
/// to `read`.
///
/// # Safety
/// As [`getaddrinfo`], for `service`.
unsafe fn real_list<T>(
    node: Option<&CStr>,
    service: *const c_char,
    hints: &addrinfo,
    read: impl FnOnce(&[&addrinfo]) -> T,
) -> Result<T, c_int> {
    let mut list: *mut addrinfo = null_mut();
    // SAFETY: `node` and `hints` are borrowed, `service` is as the caller says, `list` lives across
    // the call.
    let code = unsafe { real(node.map_or(null(), CStr::as_ptr), service, hints, &raw mut list) };
    if code != 0 {
        return Err(code);
    }
    let mut entries = Vec::new();
    // SAFETY: the list came from a successful call and is freed only below; each `ai_next` is null
    // or valid until then.
    let mut next = unsafe { list.as_ref() };
    while let Some(entry) = next {
        entries.push(entry);
        // SAFETY: as above.
        next = unsafe { entry.ai_next.as_ref() };
    }
    let result = read(&entries);
    if !list.is_null() {
        // SAFETY: the list came from a successful call, and nothing borrows from it any more:
        // `read` has returned a value that can't.
        unsafe { libc::freeaddrinfo(list) };
    }
    Ok(result)
}

fn hints(flags: c_int, family: c_int) -> addrinfo {
    addrinfo {
        ai_flags: flags,
        ai_family: family,
        ai_socktype: 0,
        ai_protocol: 0,
        ai_addrlen: 0,
        ai_addr: null_mut(),
        ai_canonname: null_mut(),
        ai_next: null_mut(),
    }
}

/// The sockets' types, protocols and ports for a service, as the C library has them for the
/// unspecified address.
///
/// # Safety
/// `service` is null or a string with a NUL.
unsafe fn places(service: *const c_char, wished: Option<&addrinfo>) -> Result<Vec<Place>, c_int> {
    let numeric = wished.map_or(0, |wished| wished.ai_flags & libc::AI_NUMERICSERV);
    let mut asked = hints(libc::AI_PASSIVE | numeric, libc::AF_INET);
    if let Some(wished) = wished {
        asked.ai_socktype = wished.ai_socktype;
        asked.ai_protocol = wished.ai_protocol;
    }
    // Neither node nor service is an error; port 0 stands for no service.
    let service = if service.is_null() { c"0".as_ptr() } else { service };
    let read = |entries: &[&addrinfo]| entries.iter().map(|entry| place(entry)).collect();
    // SAFETY: not null, and a string as the caller says, or our own.
    unsafe { real_list(None, service, &asked, read) }
}

fn place(entry: &addrinfo) -> Place {
    let is_v4 = entry.ai_family == libc::AF_INET
        && !entry.ai_addr.is_null()
        && entry.ai_addrlen as usize >= size_of::<sockaddr_in>();
    let port = if is_v4 {
        // SAFETY: not null, of this family and at least this long, in a list that lives.
        u16::from_be(unsafe { (*entry.ai_addr.cast::<sockaddr_in>()).sin_port })
    } else {
        0
    };
    Place { socktype: entry.ai_socktype, protocol: entry.ai_protocol, port }
}

/// The family that is left where only configured ones are wanted; `None`: the one that is asked for
/// is not configured. The C library knows: it refuses a numeric address of a family that is not.
fn configured(family: c_int) -> Option<c_int> {
    let is_there = |node: &CStr| {
        let asked = hints(libc::AI_ADDRCONFIG | libc::AI_NUMERICHOST, family);
        // SAFETY: there is no service.
        unsafe { real_list(Some(node), null(), &asked, |_| ()) }.is_ok()
    };
    match family {
        libc::AF_INET => is_there(c"127.0.0.1").then_some(family),
        libc::AF_INET6 => is_there(c"::1").then_some(family),
        // Neither, as on a machine with nothing but a loopback device, is the same as both.
        _ => Some(match (is_there(c"127.0.0.1"), is_there(c"::1")) {
            (true, false) => libc::AF_INET,
            (false, true) => libc::AF_INET6,
            _ => libc::AF_UNSPEC,
        }),
    }
}

/// The list for the caller, allocated as the C library does, so that its `freeaddrinfo` frees it.
fn build(info: &AddressInfo, places: &[Place], flags: c_int) -> Result<*mut addrinfo, c_int> {
    let mut first: *mut addrinfo = null_mut();
    // Built from the end: each entry points to the one that is there already.
    for address in info.addresses.iter().rev() {
        for place in places.iter().rev() {
            let Some(entry) = entry(*address, *place, flags) else {
                free(first);
                return Err(libc::EAI_MEMORY);
            };
            // SAFETY: `entry` has just been allocated and written as an addrinfo.
            unsafe { (*entry).ai_next = first };
            first = entry;
        }
    }
    if first.is_null() {
        return Err(EAI_NODATA);
    }
    if let Some(name) = &info.canonical {
        let Ok(name) = CString::new(name.as_str()) else {
            free(first);
            return Err(libc::EAI_FAIL);
        };
        // SAFETY: the name ends with NUL; the copy is the C library's to free.
        let copy = unsafe { libc::strdup(name.as_ptr()) };
        if copy.is_null() {
            free(first);
            return Err(libc::EAI_MEMORY);
        }
        // SAFETY: the list is not empty, and nobody else has it yet.
        unsafe { (*first).ai_canonname = copy };
    }
    Ok(first)
}

fn free(list: *mut addrinfo) {
    if !list.is_null() {
        // SAFETY: built above, entry by entry, as the C library builds them.
        unsafe { libc::freeaddrinfo(list) };
    }
}

/// One entry with its address behind it, in one allocation; `None`: no memory.
fn entry(address: IpAddr, place: Place, flags: c_int) -> Option<*mut addrinfo> {
    let (family, length) = match address {
        IpAddr::V4(_) => (libc::AF_INET, size_of::<sockaddr_in>()),
        IpAddr::V6(_) => (libc::AF_INET6, size_of::<sockaddr_in6>()),
    };
    // SAFETY: the size is not zero; zeroed memory is a valid addrinfo and a valid address of either
    // kind.
    let entry: *mut addrinfo = unsafe { libc::calloc(1, size_of::<addrinfo>() + length) }.cast();
    if entry.is_null() {
        return None;
    }
    // SAFETY: one addrinfo further is within the allocation, and as aligned as an addrinfo, which
    // is enough for addresses.
    let socket_address: *mut sockaddr = unsafe { entry.add(1) }.cast();
    match address {
        // SAFETY: the allocation has room for this address behind the addrinfo, aligned, zeroed,
        // and ours alone.
        IpAddr::V4(address) => unsafe {
            let to = &mut *socket_address.cast::<sockaddr_in>();
            to.sin_family = libc::AF_INET as u16;
            to.sin_port = place.port.to_be();
            to.sin_addr.s_addr = u32::from_ne_bytes(address.octets());
        },
        // SAFETY: as above.
        IpAddr::V6(address) => unsafe {
            let to = &mut *socket_address.cast::<sockaddr_in6>();
            to.sin6_family = libc::AF_INET6 as u16;
            to.sin6_port = place.port.to_be();
            to.sin6_addr.s6_addr = address.octets();
        },
    }
    // SAFETY: allocated above with room for an addrinfo, zeroed, and ours alone.
    let to = unsafe { &mut *entry };
    to.ai_flags = flags;
    to.ai_family = family;
    to.ai_socktype = place.socktype;
    to.ai_protocol = place.protocol;
    to.ai_addrlen = length as u32;
    to.ai_addr = socket_address;
    Some(entry)
}
