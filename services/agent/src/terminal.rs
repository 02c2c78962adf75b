//! A terminal for a further process: the master stays with the agent.

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The character that a terminal takes for the end of its input at the start of a line, by its
/// default settings (`VEOF`).
pub(crate) const END_OF_INPUT: &[u8] = b"\x04";

/// Makes one: master, non-blocking, and slave.
pub(crate) fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    rustix::io::ioctl_fionbio(&master, true)?;
    Ok((master, slave))
}

/// Sets the size from a message of the node: columns and rows. A wrong size is a blemish only.
pub(crate) fn resize(master: impl AsFd, message: [u8; 4]) {
    let [c0, c1, r0, r1] = message;
    let size = Winsize {
        ws_col: u16::from_le_bytes([c0, c1]),
        ws_row: u16::from_le_bytes([r0, r1]),
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    if let Err(errno) = tcsetwinsize(master, size) {
        tracing::debug!(%errno, "a terminal keeps its size");
    }
}
