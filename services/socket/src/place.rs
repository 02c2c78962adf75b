//! Taking places in a domain: entering its namespaces, binding sockets there, giving up privileges.

use crate::order::Daemon;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::thread::ThreadNameSpaceType;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use sys::privilege::Modest;
use wire::socket::{Order, Place};

/// Most descriptors: the connections of the largest services that a domain may take part in, and
/// some for each channel.
const DESCRIPTORS_MAX: u64 = 131_072;
/// Clients that wait in the kernel to be let in; it takes no more than `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// The umask with which every user may read and write a Unix socket.
const UNIX_UMASK: u32 = 0o111;

/// A socket at which programs of the domain connect.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    is_tcp: bool,
}

impl Listener {
    fn bind(at: &Place) -> Result<Self, Errno> {
        match at {
            Place::Tcp(address) => Ok(Self { socket: bind_tcp(*address)?, is_tcp: true }),
            Place::Unix(path) => Ok(Self { socket: bind_unix(path)?, is_tcp: false }),
        }
    }

    /// A socket of the node that listens already.
    pub(crate) fn of_node(socket: OwnedFd) -> Self {
        Self { socket, is_tcp: true }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.is_tcp
    }

    /// Lets clients connect.
    pub(crate) fn open(&self) -> Result<(), Errno> {
        if self.is_tcp { rustix::net::listen(&self.socket, BACKLOG) } else { Ok(()) }
    }

    /// Has them refused. Those that were not let in are reset.
    pub(crate) fn close(&self) {
        // A TCP socket stays bound. A Unix socket could not be opened again: see `turn_away`.
        if self.is_tcp
            && let Err(errno) = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Read)
        {
            tracing::debug!(%errno, "clients are not refused by the kernel");
        }
    }

    /// Closes the connections of those who came while they can't be served. What tells of the next
    /// one, if they are not refused by the kernel.
    pub(crate) fn turn_away(&self) -> Option<&OwnedFd> {
        if self.is_tcp {
            return None;
        }
        while rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).is_ok() {}
        Some(&self.socket)
    }
}

/// Listeners for all mounts, in their order. The process is an unprivileged one in the domain's
/// namespaces after that.
pub(crate) fn take(daemon: &Daemon) -> Result<Vec<Listener>, String> {
    let order = &daemon.order;
    let kinds = ThreadNameSpaceType::NETWORK | ThreadNameSpaceType::MOUNT;
    if let Some(init) = &daemon.init {
        sys::namespace::enter_process(init, kinds)
            .map_err(|e| format!("can't enter the namespaces of the domain: {e} (is it still there?)"))?;
    }
    // Also where the control socket is in a folder that nobody else may look into.
    rustix::process::fchdir(&daemon.folder)
        .map_err(|e| format!("can't enter the folder of the control socket: {e}"))?;
    let bind = |mounted: &wire::socket::Mounted| {
        Listener::bind(&mounted.at).map_err(|errno| refusal(order, mounted, errno))
    };
    let listeners = order.mounts.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
    let number = accounts::user_of_this_process();
    let identity = rustix::process::geteuid().is_root().then_some((number, number));
    sys::privilege::drop_all(Modest { identity, descriptors: DESCRIPTORS_MAX, locked_bytes: None })
        .map_err(|e: io::Error| format!("can't give up privileges: {e}"))?;
    Ok(listeners)
}

fn refusal(order: &Order, mounted: &wire::socket::Mounted, errno: Errno) -> String {
    let help = match errno {
        Errno::ADDRINUSE => "; something listens there already: choose another `at`",
        Errno::NOENT => "; the folder is not there: choose another `at`, or mount one",
        Errno::ROFS => "; the domain can't write there: choose another `at`, such as below /run",
        _ => "",
    };
    format!(
        "the socket service {} can't be at {} in domain {}: {errno}{help}",
        mounted.service, mounted.at, order.domain
    )
}

fn bind_tcp(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // Connections of a relay before this one, and of the channel before, may still be ending when
    // it listens.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

fn bind_unix(path: &str) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    remove_dead(path, &address)?;
    let before = rustix::process::umask(Mode::from_raw_mode(UNIX_UMASK));
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(before);
    bound?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Removes a socket at which nobody listens any more, and nothing else.
fn remove_dead(path: &str, address: &SocketAddrUnix) -> Result<(), Errno> {
    if !std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        return Ok(());
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path),
        _ => Err(Errno::ADDRINUSE),
    }
}
