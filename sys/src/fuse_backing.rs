//! Memory behind files of a FUSE mount: mmap(2) reaches it without asking the mount's server
//! (`FUSE_DEV_IOC_BACKING_OPEN` of `linux/fuse.h`, Linux 6.9).

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    descriptor: i32,
    flags: u32,
    padding: u64,
}

// SAFETY: the opcode is `_IOW(FUSE_DEV_IOC_MAGIC, 1, struct fuse_backing_map)`: the kernel reads
// one such structure, which `self` is, writes nothing, and returns a number.
unsafe impl Ioctl for BackingMap {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<BackingMap>(229, 1)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self).cast()
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(number)
    }
}

/// Makes `memory` something that the server of the mount at `fuse` can put behind its files.
/// Answers its number there, which is good for as long as the mount lives; the kernel holds the
/// memory until then.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_ADMIN`, or where the server has not asked for passthrough at
/// `INIT`; `ENOTTY` from kernels that know none.
pub fn open(fuse: impl AsFd, memory: impl AsFd) -> io::Result<u32> {
    let map = BackingMap { descriptor: memory.as_fd().as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: the opcode belongs to `/dev/fuse`; another file refuses it. It changes nothing of
    // this process.
    let number = unsafe { rustix::ioctl::ioctl(fuse, map) }?;
    u32::try_from(number).map_err(|_| io::Error::other("the kernel's number of a memory is negative"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_that_is_no_fuse_session_is_refused() {
        let memory = crate::memfd::sealed("test", 4096).unwrap();
        let error = super::open(&memory, &memory).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }
}
