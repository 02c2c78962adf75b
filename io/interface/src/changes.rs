//! News of interfaces: that one has come, gone, or is otherwise than before. What it is has to be
//! asked.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Interfaces, of all that rtnetlink(7) has news of (`RTMGRP_LINK`).
const OF_LINKS: u32 = 1;
/// Most news that are taken at once; others are taken the next time.
const MOST: usize = 1_024;

/// A socket that is readable when an interface of the calling thread's network namespace has
/// changed.
#[derive(Debug)]
pub struct Changes(OwnedFd);

impl Changes {
    /// From now on.
    ///
    /// # Errors
    /// The errors of socket(2) and bind(2).
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, OF_LINKS))?;
        Ok(Self(socket))
    }
}

impl From<Changes> for OwnedFd {
    fn from(changes: Changes) -> Self {
        changes.0
    }
}

/// Takes what has come: it is enough to know that something has. Where more came than there was
/// room for, that is so, too.
pub fn drain(socket: impl AsFd) {
    let mut news = [0_u8; 64];
    for _ in 0..MOST {
        match rustix::net::recv(&socket, &mut news, RecvFlags::TRUNC) {
            Ok(_) | Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
