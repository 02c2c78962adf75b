//! Sockets of TIPC (linux/tipc.h): streams between the nodes of a cluster that the kernel keeps,
//! found by a service's number instead of an address. Unlike those of TCP they can't be closed in
//! one direction alone.

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `AF_TIPC`.
const FAMILY: u16 = 30;
/// `SOL_TIPC`.
const LEVEL: libc::c_int = 271;
/// `TIPC_NODELAY`: small messages go at once (Linux 5.5).
const NO_DELAY: libc::c_int = 138;
/// `TIPC_SERVICE_ADDR`, and `TIPC_SOCKET_ADDR`.
const BY_SERVICE: u8 = 2;
/// See [`BY_SERVICE`].
const BY_SOCKET: u8 = 3;
/// `TIPC_CLUSTER_SCOPE`: all nodes hear of a service.
const CLUSTER_SCOPE: i8 = 2;
/// Numbers of services below this are the kernel's own.
pub const RESERVED_SERVICES: u32 = 64;

/// Where a socket of TIPC is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A socket that is bound to a service.
    Service {
        /// The service's number: `TIPC` calls it type.
        service: u32,
        /// The instance of the service.
        instance: u32,
    },
    /// One socket.
    Socket {
        /// Number of its node; 0: of this one, which has no bearer.
        node: u32,
        /// Number of the socket there.
        port: u32,
    },
}

impl fmt::Display for Address {
    /// `SERVICE:INSTANCE`, or `@NODE:PORT` with the node in the digits of `tipc node list`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { service, instance } => write!(f, "{service}:{instance}"),
            Self::Socket { node, port } => write!(f, "@{node:x}:{port}"),
        }
    }
}

/// `struct sockaddr_tipc`; its words are in the machine's order.
#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    family: u16,
    kind: u8,
    scope: i8,
    /// Service, instance, domain of the look-up; or port, node, nothing.
    words: [u32; 3],
}

const _: () = assert!(size_of::<Raw>() == 16);

impl Raw {
    fn new(address: Address) -> Self {
        let (kind, words) = match address {
            Address::Service { service, instance } => (BY_SERVICE, [service, instance, 0]),
            Address::Socket { node, port } => (BY_SOCKET, [port, node, 0]),
        };
        Self { family: FAMILY, kind, scope: CLUSTER_SCOPE, words }
    }
}

/// A socket for a stream, which does not block.
///
/// # Errors
/// `EAFNOSUPPORT` where the kernel has no TIPC, or its module is not loaded.
pub fn socket() -> io::Result<OwnedFd> {
    let family = AddressFamily::from_raw(FAMILY);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    hurry(socket.as_fd());
    Ok(socket)
}

/// Lets small messages go at once; an older kernel knows no other way.
fn hurry(socket: BorrowedFd<'_>) {
    let on: u32 = 1;
    // SAFETY: the option is an integer of 32 bits, `on` is one that lives until the call returns,
    // and its length goes with it. That it is refused by an older kernel does no harm.
    let _refused = unsafe {
        libc::setsockopt(socket.as_raw_fd(), LEVEL, NO_DELAY, (&raw const on).cast(), size_of::<u32>() as u32)
    };
}

fn call(
    socket: BorrowedFd<'_>,
    address: Address,
    what: unsafe extern "C" fn(libc::c_int, *const libc::sockaddr, libc::socklen_t) -> libc::c_int,
) -> io::Result<()> {
    let raw = Raw::new(address);
    // SAFETY: `what` is bind(2) or connect(2), which read as many bytes behind the pointer as they
    // are told; those of `raw`, which lives until the call returns and has no padding. The
    // descriptor is open for as long as it is borrowed.
    let done =
        unsafe { what(socket.as_raw_fd(), (&raw const raw).cast(), size_of::<Raw>() as libc::socklen_t) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Serves an instance of a service from now on, for all nodes; several sockets may, and who
/// connects gets one of them.
///
/// # Errors
/// Those of bind(2): `EACCES` for a service of the kernel's own.
pub fn bind(socket: impl AsFd, service: u32, instance: u32) -> io::Result<()> {
    call(socket.as_fd(), Address::Service { service, instance }, libc::bind)
}

/// Connects, or begins to: said again, it says how far that is.
///
/// # Errors
/// `EINPROGRESS` and `EALREADY` while it is under way, `EISCONN` when it is done; `EHOSTUNREACH`
/// where nobody serves it.
pub fn connect(socket: impl AsFd, to: Address) -> io::Result<()> {
    call(socket.as_fd(), to, libc::connect)
}

/// Accepts who wants to connect, without waiting: the connection, and where it comes from.
///
/// # Errors
/// Those of accept(2), of which `WouldBlock` says that nobody does.
pub fn accept(socket: impl AsFd) -> io::Result<(OwnedFd, Address)> {
    let accepted = rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    hurry(accepted.as_fd());
    let from = remote(&accepted)?;
    Ok((accepted, from))
}

type Name = unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn name(socket: BorrowedFd<'_>, what: Name) -> io::Result<Address> {
    let mut raw = Raw { family: 0, kind: 0, scope: 0, words: [0; 3] };
    let mut length = size_of::<Raw>() as libc::socklen_t;
    // SAFETY: `what` is getsockname(2) or getpeername(2), which write at most `length` bytes to
    // `raw`; any bytes are a value of its plain numbers.
    let done = unsafe { what(socket.as_raw_fd(), (&raw mut raw).cast(), &raw mut length) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    match raw {
        Raw { family: FAMILY, kind: BY_SOCKET, words: [port, node, _], .. } => {
            Ok(Address::Socket { node, port })
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Where the socket itself is; its node is 0 as long as this one has no bearer.
///
/// # Errors
/// Those of getsockname(2).
pub fn local(socket: impl AsFd) -> io::Result<Address> {
    name(socket.as_fd(), libc::getsockname)
}

/// Where the other end of its connection is.
///
/// # Errors
/// Those of getpeername(2).
pub fn remote(socket: impl AsFd) -> io::Result<Address> {
    name(socket.as_fd(), libc::getpeername)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket, unless the kernel has none; then why.
    fn have() -> Option<OwnedFd> {
        match socket() {
            Ok(socket) => Some(socket),
            Err(error) => {
                println!("skipped: this kernel has no TIPC (modprobe tipc): {error}");
                None
            }
        }
    }

    #[test]
    fn addresses_are_written_as_the_tools_of_tipc_write_them() {
        assert_eq!(Address::Service { service: 4711, instance: 2 }.to_string(), "4711:2");
        assert_eq!(Address::Socket { node: 0x0100_1002, port: 99 }.to_string(), "@1001002:99");
    }

    #[test]
    fn a_service_is_found_and_who_connects_is_known() {
        let (Some(listener), Some(near)) = (have(), have()) else { return };
        let Address::Socket { port, .. } = local(&listener).unwrap() else { panic!("no socket's address") };
        bind(&listener, 4711, port).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        let begun = connect(&near, Address::Service { service: 4711, instance: port }).unwrap_err();
        assert_eq!(begun.raw_os_error(), Some(libc::EINPROGRESS));
        let (far, from) = accept(&listener).unwrap();
        assert_eq!(from, local(&near).unwrap());
        assert_eq!(remote(&near).unwrap(), local(&far).unwrap());
        let done = connect(&near, Address::Service { service: 4711, instance: port }).unwrap_err();
        assert_eq!(done.raw_os_error(), Some(libc::EISCONN));
        assert_eq!(accept(&listener).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_nobody_serves_and_what_is_the_kernels_is_refused() {
        let Some(socket) = have() else { return };
        let nobody = connect(&socket, Address::Service { service: 4711, instance: 0 }).unwrap_err();
        assert_eq!(nobody.raw_os_error(), Some(libc::EHOSTUNREACH));
        assert_eq!(bind(&socket, RESERVED_SERVICES - 1, 0).unwrap_err().raw_os_error(), Some(libc::EACCES));
    }
}
