//! Memory and events that two domains of a Xen hypervisor share, through the devices that every
//! Linux kernel has for it: `/dev/xen/gntalloc`, `/dev/xen/gntdev` and `/dev/xen/evtchn` (modules
//! `xen-gntalloc`, `xen-gntdev`, `xen-evtchn`; the structures are those of the kernel's
//! `include/uapi/xen/`).

pub mod event;
pub mod grant;

use std::ffi::{CStr, c_ulong, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// A request of these drivers: `_IOC(_IOC_NONE, KIND, NUMBER, BYTES)`, which says no direction
/// although bytes go both ways.
const fn request(kind: u8, number: u8, bytes: usize) -> c_ulong {
    ((bytes as c_ulong) << 16) | ((kind as c_ulong) << 8) | number as c_ulong
}

fn open(device: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::open(device, flags, Mode::empty())?)
}

/// Asks a driver of this module. What it answers is in `argument` afterwards; the result is what
/// the call returned.
///
/// # Safety
/// `argument` points to as many bytes, readable and writable, as the driver takes for this request
/// and these contents, and holds no pointer that the driver would follow.
unsafe fn ask(device: impl AsFd, request: c_ulong, argument: *mut c_void) -> io::Result<u32> {
    loop {
        // SAFETY: the descriptor is open as long as the borrow; the rest is the caller's promise.
        let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), request, argument) };
        match u32::try_from(result) {
            Ok(result) => return Ok(result),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
