//! The C library's name look-ups, interposed: what a preloaded library exports in their place.
//!
//! The functions here have the C library's contracts and hand the decision to a [`Names`]. They
//! have no C names: only a library that expands [`crate::interpose_names`] exports those, so
//! nothing else that links this crate interposes anything. What a [`Names`] leaves to others goes
//! on to the next library's function of the same name.

mod address_info;
mod fork;
mod host;
mod name_info;
mod next;

pub use address_info::getaddrinfo;
pub use fork::fork_generation;
pub use host::{
    Into, gethostbyaddr, gethostbyaddr_r, gethostbyname, gethostbyname_r, gethostbyname2, gethostbyname2_r,
};
#[doc(hidden)]
pub use libc;
pub use name_info::getnameinfo;

use libc::c_int;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A resolver's answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<T> {
    /// An answer.
    Found(T),
    /// No answer, and nobody else shall be asked.
    Failed(Failure),
    /// Not for us: the next library's function is called.
    Elsewhere,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// There is no such name.
    NoName,
    /// The name has nothing of what was asked for.
    NoData,
    /// Not now; perhaps later.
    Again,
    /// Not now and not later.
    Permanent,
}

/// The wishes of a call of `getaddrinfo`, besides the names: the fields of `struct addrinfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hints {
    /// `AI_*` bits.
    pub flags: c_int,
    /// `AF_UNSPEC`, `AF_INET` or `AF_INET6`.
    pub family: c_int,
}

/// The findings of `getaddrinfo`, before sockets' types and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressInfo {
    /// The name at the end of the chain, where `AI_CANONNAME` asks for it.
    pub canonical: Option<String>,
    /// The addresses, in the order for the program.
    pub addresses: Vec<IpAddr>,
}

/// The findings of the `gethostby` functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The official name.
    pub name: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// Addresses, all of one family.
    pub addresses: Vec<IpAddr>,
}

/// A resolver that stands in for the C library's. Called on any thread, also in the child of a
/// fork.
pub trait Names: Sync {
    /// `getaddrinfo` of a name.
    fn address_info(&self, node: &str, hints: Hints) -> Reply<AddressInfo>;
    /// `gethostbyname2` of a name: addresses of one family (IPv6 or else IPv4).
    fn host_by_name(&self, name: &str, v6: bool) -> Reply<Host>;
    /// `gethostbyaddr`, and `getnameinfo` with names.
    fn host_by_address(&self, address: IpAddr) -> Reply<Host>;
}

/// Asks a resolver. A panic must not cross into C: then the next library is asked.
fn ask<T>(question: impl FnOnce() -> Reply<T>) -> Reply<T> {
    let _uncancelled = Uncancelled::new();
    catch_unwind(AssertUnwindSafe(question)).unwrap_or(Reply::Elsewhere)
}

/// Keeps the thread from being cancelled: that would unwind through locks that are held.
pub(crate) struct Uncancelled(c_int);

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of Linux's C libraries.
const CANCEL_DISABLE: c_int = 1;

impl Uncancelled {
    pub(crate) fn new() -> Self {
        let mut old = 0;
        // SAFETY: `old` lives across the call, which has no other preconditions.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut old) };
        Self(old)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state is one that the function has returned; the old one is not wanted.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Puts `errno` back as it was: a look-up that succeeds leaves it alone.
struct KeepErrno(c_int);

impl KeepErrno {
    fn new() -> Self {
        Self(errno())
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

fn errno() -> c_int {
    // SAFETY: the function returns the address of this thread's errno, always valid.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above; an int may be stored there.
    unsafe { *libc::__errno_location() = value };
}

/// Exports the C library's functions for name look-ups from the library that expands this, decided
/// by a `static` that implements [`Names`](crate::name_abi::Names). To be expanded once, in a
/// `cdylib`.
#[macro_export]
macro_rules! interpose_names {
    ($names:path) => {
        use $crate::name_abi::libc as c;

        /// See getaddrinfo(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn getaddrinfo(
            node: *const c::c_char,
            service: *const c::c_char,
            hints: *const c::addrinfo,
            found: *mut *mut c::addrinfo,
        ) -> c::c_int {
            // SAFETY: the caller keeps the contract of getaddrinfo(3), which is what the callee
            // asks for.
            unsafe { $crate::name_abi::getaddrinfo(&$names, node, service, hints, found) }
        }

        /// See getnameinfo(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn getnameinfo(
            address: *const c::sockaddr,
            address_len: c::socklen_t,
            host: *mut c::c_char,
            host_len: c::socklen_t,
            service: *mut c::c_char,
            service_len: c::socklen_t,
            flags: c::c_int,
        ) -> c::c_int {
            let (host, service) = ((host, host_len), (service, service_len));
            // SAFETY: the caller keeps the contract of getnameinfo(3), which is what the callee
            // asks for.
            unsafe { $crate::name_abi::getnameinfo(&$names, (address, address_len), host, service, flags) }
        }

        /// See gethostbyname(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn gethostbyname(name: *const c::c_char) -> *mut c::hostent {
            // SAFETY: the caller keeps the contract of gethostbyname(3), which is what the callee
            // asks for.
            unsafe { $crate::name_abi::gethostbyname(&$names, name) }
        }

        /// See gethostbyname2(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn gethostbyname2(name: *const c::c_char, family: c::c_int) -> *mut c::hostent {
            // SAFETY: the caller keeps the contract of gethostbyname2(3), which is what the callee
            // asks for.
            unsafe { $crate::name_abi::gethostbyname2(&$names, name, family) }
        }

        /// See gethostbyaddr(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn gethostbyaddr(
            address: *const c::c_void,
            address_len: c::socklen_t,
            family: c::c_int,
        ) -> *mut c::hostent {
            // SAFETY: the caller keeps the contract of gethostbyaddr(3), which is what the callee
            // asks for.
            unsafe { $crate::name_abi::gethostbyaddr(&$names, address, address_len, family) }
        }

        /// See gethostbyname_r(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn gethostbyname_r(
            name: *const c::c_char,
            entry: *mut c::hostent,
            buffer: *mut c::c_char,
            buffer_len: c::size_t,
            found: *mut *mut c::hostent,
            error: *mut c::c_int,
        ) -> c::c_int {
            let into = $crate::name_abi::Into::new(entry, buffer, buffer_len, found, error);
            // SAFETY: the caller keeps the contract of gethostbyname_r(3), which is what the callee
            // asks for.
            unsafe { $crate::name_abi::gethostbyname_r(&$names, name, into) }
        }

        /// See gethostbyname2_r(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn gethostbyname2_r(
            name: *const c::c_char,
            family: c::c_int,
            entry: *mut c::hostent,
            buffer: *mut c::c_char,
            buffer_len: c::size_t,
            found: *mut *mut c::hostent,
            error: *mut c::c_int,
        ) -> c::c_int {
            let into = $crate::name_abi::Into::new(entry, buffer, buffer_len, found, error);
            // SAFETY: the caller keeps the contract of gethostbyname2_r(3), which is what the
            // callee asks for.
            unsafe { $crate::name_abi::gethostbyname2_r(&$names, name, family, into) }
        }

        /// See gethostbyaddr_r(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn gethostbyaddr_r(
            address: *const c::c_void,
            address_len: c::socklen_t,
            family: c::c_int,
            entry: *mut c::hostent,
            buffer: *mut c::c_char,
            buffer_len: c::size_t,
            found: *mut *mut c::hostent,
            error: *mut c::c_int,
        ) -> c::c_int {
            let into = $crate::name_abi::Into::new(entry, buffer, buffer_len, found, error);
            // SAFETY: the caller keeps the contract of gethostbyaddr_r(3), which is what the callee
            // asks for.
            unsafe { $crate::name_abi::gethostbyaddr_r(&$names, address, address_len, family, into) }
        }
    };
}
