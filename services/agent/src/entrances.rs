//! The sockets of the native entrances, where programs of a guest look for them.

use crate::Config;
use frontend::Entrances;
use rustix::fs::{AtFlags, CWD, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use wire::guest::Boot;

/// Where the DNS stub answers: the address that systemd's stub has made a custom.
pub(crate) const STUB_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);
const STUB_PORT: u16 = 53;
/// The name of the resolver's socket, which stock `libnss-resolve` looks for.
const RESOLVE_SOCKET: &str = "io.systemd.Resolve";
/// All may connect: what they may ask, the frontend decides.
const SOCKET_MODE: u32 = 0o666;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Those that the guest is to have.
pub(crate) fn make(config: &Config, boot: &Boot) -> Result<Entrances, String> {
    let mut entrances = Entrances::default();
    if boot.stub {
        let (udp, tcp) = bind_stub()
            .map_err(|error| format!("can't listen at {STUB_ADDRESS}:{STUB_PORT} in the guest: {error}"))?;
        (entrances.stub_udp, entrances.stub_tcp) = (Some(udp), Some(tcp));
    }
    if boot.resolve {
        let socket = listen(&config.resolve, RESOLVE_SOCKET, SocketType::STREAM).map_err(|error| {
            format!("can't make the resolver socket in {}: {error}", config.resolve.display())
        })?;
        entrances.resolve = Some(socket);
    }
    Ok(entrances)
}

fn bind_stub() -> io::Result<(OwnedFd, OwnedFd)> {
    let udp = UdpSocket::bind((STUB_ADDRESS, STUB_PORT))?;
    let tcp = TcpListener::bind((STUB_ADDRESS, STUB_PORT))?;
    udp.set_nonblocking(true)?;
    tcp.set_nonblocking(true)?;
    Ok((udp.into(), tcp.into()))
}

/// A socket at which everybody may connect, non-blocking; whoever sees the file can connect. Its
/// folder is made.
pub(crate) fn listen(folder: &Path, name: &str, kind: SocketType) -> io::Result<OwnedFd> {
    fs::create_dir_all(folder)?;
    let (path, new) = (folder.join(name), folder.join(format!(".{name}.new")));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&new)?)?;
    rustix::fs::chmodat(CWD, &new, Mode::from_raw_mode(SOCKET_MODE), AtFlags::empty())?;
    sys::descriptors::refuse_descriptors(&socket)?;
    rustix::net::listen(&socket, BACKLOG)?;
    fs::rename(&new, &path)?;
    Ok(socket)
}
