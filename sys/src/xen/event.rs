//! Event channels: one bit of news between two domains, in both directions, and a descriptor that
//! is readable when there is some.

use std::ffi::{CStr, c_ulong};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use crate::xen::{ask, open, request};

const DEVICE: &CStr = c"/dev/xen/evtchn";
/// `struct ioctl_evtchn_bind_interdomain`: the domain, its port.
const BIND_INTERDOMAIN: c_ulong = request(b'E', 1, 8);
/// `struct ioctl_evtchn_bind_unbound_port`: the domain.
const BIND_UNBOUND: c_ulong = request(b'E', 2, 4);
/// `struct ioctl_evtchn_notify`: our port.
const NOTIFY: c_ulong = request(b'E', 4, 4);

/// Our end of an event channel, with a descriptor of its own. Unbound on drop: what the peer rings
/// then goes nowhere, and nothing tells the peer (see [`crate::xen::grant::Notice`] for what does).
#[derive(Debug)]
pub struct Port {
    device: OwnedFd,
    number: u32,
}

impl Port {
    /// Makes one that domain `peer` alone may bind to.
    ///
    /// # Errors
    /// `NotFound` where there is no `/dev/xen/evtchn` (no Xen, or the module `xen-evtchn` is not
    /// loaded); the hypervisor's, such as `ENOSPC` when this domain has no port left.
    pub fn offer(peer: u16) -> io::Result<Port> {
        let device = open(DEVICE)?;
        let mut domain = u32::from(peer);
        // SAFETY: the driver copies one word of four bytes, in and not out.
        let number = unsafe { ask(&device, BIND_UNBOUND, ptr::from_mut(&mut domain).cast()) }?;
        Ok(Port { device, number })
    }

    /// Binds to port `theirs` that domain `peer` has made for us. Both sides hear one ring for
    /// nothing when that is done.
    ///
    /// # Errors
    /// As [`Port::offer`], and `EINVAL` where the peer has no such port, or not for us, or it is
    /// bound already.
    pub fn bind(peer: u16, theirs: u32) -> io::Result<Port> {
        let device = open(DEVICE)?;
        let mut words = [u32::from(peer), theirs];
        // SAFETY: the driver copies two words of four bytes, in and not out.
        let number = unsafe { ask(&device, BIND_INTERDOMAIN, words.as_mut_ptr().cast()) }?;
        Ok(Port { device, number })
    }

    /// Its number in this domain.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Rings the peer. Never blocks; rings that were not heard yet become one. Where nobody is
    /// bound it goes nowhere.
    ///
    /// # Errors
    /// Those of the hypervisor, which for a port of ours has none.
    pub fn ring(&self) -> io::Result<()> {
        let mut port = self.number;
        // SAFETY: the driver copies one word of four bytes, in and not out.
        unsafe { ask(&self.device, NOTIFY, ptr::from_mut(&mut port).cast()) }.map(|_zero| ())
    }

    /// Takes the rings off, and says whether there were any. Never blocks. Until then the kernel
    /// holds back further ones, so that a peer that rings all the time costs us one interrupt for
    /// each time that we look.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn listen(&self) -> io::Result<bool> {
        let mut port = [0; 4];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.device, &mut port)) {
            Ok(0) | Err(Errno::AGAIN) => Ok(false),
            Ok(_) => {
                // Hear further ones.
                rustix::io::retry_on_intr(|| rustix::io::write(&self.device, &port))?;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Port {
    /// Readable when the peer rang.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
