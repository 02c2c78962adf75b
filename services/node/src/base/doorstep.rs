//! Sockets at which a daemon finds processes of its own: those that it started, and those that the
//! daemon before it did.

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Daemons that may connect before the process looks: one, and its successor.
const BACKLOG: i32 = 4;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Through a descriptor of the folder, so that a long path does not meet the 108 bytes of a
/// socket's address.
fn open(folder: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

fn address(folder: &OwnedFd, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}.sock", folder.as_raw_fd()))?)
}

/// Makes the listening socket of a process; an old one is replaced.
///
/// # Errors
/// The kernel's.
pub(crate) fn listen(folder: &Path, name: &str) -> io::Result<OwnedFd> {
    std::fs::create_dir_all(folder)?;
    rustix::fs::chmod(folder, Mode::from_raw_mode(0o700))?;
    let at = open(folder)?;
    remove(folder, name)?;
    let socket = socket()?;
    rustix::net::bind(&socket, &address(&at, name)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a process; `None`: none is there.
///
/// # Errors
/// The kernel's.
pub(crate) fn connect(folder: &Path, name: &str) -> io::Result<Option<OwnedFd>> {
    let at = match open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        at => at?,
    };
    let socket = socket()?;
    match rustix::net::connect(&socket, &address(&at, name)?) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes the socket away.
///
/// # Errors
/// The kernel's.
pub(crate) fn remove(folder: &Path, name: &str) -> io::Result<()> {
    let at = open(folder)?;
    match rustix::fs::unlinkat(&at, format!("{name}.sock"), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
