//! The next library's functions of the same names: the C library's.

use libc::{addrinfo, c_char, c_int, c_void, hostent, size_t, sockaddr, socklen_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Defines a look-up of the next function called `$symbol`, as `$type`, found once.
macro_rules! next {
    ($name:ident, $symbol:literal, $type:ident = fn($($argument:ty),*) -> $result:ty) => {
        type $type = unsafe extern "C" fn($($argument),*) -> $result;

        /// The next function of this name; `None` where no library has one.
        pub fn $name() -> Option<$type> {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let address = find(&FOUND, $symbol)?;
            // SAFETY: the address is that of the C library's function of this name, whose type this
            // is, and a function's address is kept as a pointer is: what POSIX asks of systems with
            // dlsym(3). Read as such.
            Some(unsafe { (&raw const address).cast::<$type>().read() })
        }
    };
}

fn find(found: &AtomicPtr<c_void>, symbol: &CStr) -> Option<*mut c_void> {
    let mut address = found.load(Ordering::Relaxed);
    if address.is_null() {
        // SAFETY: the symbol ends with NUL; RTLD_NEXT asks for the library behind the one this code
        // is in.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, symbol.as_ptr()) };
        found.store(address, Ordering::Relaxed);
    }
    (!address.is_null()).then_some(address)
}

next!(getaddrinfo, c"getaddrinfo", GetAddrInfo =
    fn(*const c_char, *const c_char, *const addrinfo, *mut *mut addrinfo) -> c_int);
next!(getnameinfo, c"getnameinfo", GetNameInfo =
    fn(*const sockaddr, socklen_t, *mut c_char, socklen_t, *mut c_char, socklen_t, c_int) -> c_int);
next!(gethostbyname, c"gethostbyname", GetHostByName = fn(*const c_char) -> *mut hostent);
next!(gethostbyname2, c"gethostbyname2", GetHostByName2 = fn(*const c_char, c_int) -> *mut hostent);
next!(gethostbyaddr, c"gethostbyaddr", GetHostByAddr = fn(*const c_void, socklen_t, c_int) -> *mut hostent);
next!(gethostbyname_r, c"gethostbyname_r", GetHostByNameR =
    fn(*const c_char, *mut hostent, *mut c_char, size_t, *mut *mut hostent, *mut c_int) -> c_int);
next!(gethostbyname2_r, c"gethostbyname2_r", GetHostByName2R =
    fn(*const c_char, c_int, *mut hostent, *mut c_char, size_t, *mut *mut hostent, *mut c_int) -> c_int);
next!(gethostbyaddr_r, c"gethostbyaddr_r", GetHostByAddrR =
    fn(*const c_void, socklen_t, c_int, *mut hostent, *mut c_char, size_t, *mut *mut hostent, *mut c_int) -> c_int);
