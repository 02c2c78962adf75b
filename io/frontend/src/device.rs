//! The kernel's end: `/dev/fuse`, the mount, and the bytes of replies.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use polyfuse_kernel::{FUSE_NOTIFY_POLL, fuse_notify_poll_wakeup_out, fuse_out_header};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use zerocopy::IntoBytes;

use crate::abi;

/// Most bytes of data in one `WRITE` and one `READ` request; longer calls are split by the kernel.
pub(crate) const TRANSFER_BYTES_MAX: usize = 128 * 1024;
/// The buffer that requests are read into: the data and one page for the heads (the kernel asks for
/// 4 KiB at least).
const REQUEST_BYTES: usize = TRANSFER_BYTES_MAX + 4096;

/// The buffer that requests are read into, all of whose memory is there: a frontend that is killed
/// while the kernel copies a request into a page that is not fails that request with `EIO`, instead
/// of leaving it to its successor.
pub(crate) fn request_buffer() -> Vec<u8> {
    // Zeros would come as memory that is provided when it is first touched.
    vec![u8::MAX; REQUEST_BYTES]
}

/// The appearance of the mount to the domain.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The source shown in `/proc/mounts`.
    pub source: String,
    /// Owner of the mount in `/proc/mounts`; the files' owner comes from [`crate::Config`].
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self { source: "tombolo".into(), uid: 0, gid: 0 }
    }
}

/// Opens `/dev/fuse`, close-on-exec. A duplicate of the descriptor keeps the mount alive while a
/// frontend is away.
///
/// # Errors
/// The errors of open(2): `NotFound` where the kernel has no FUSE (load the module `fuse`),
/// `PermissionDenied` where the device is closed to the caller.
pub fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Makes a FUSE mount on `device` that belongs to no namespace yet; attach it with move_mount(2).
/// All users may enter it, and the kernel checks the permission bits.
///
/// # Errors
/// The errors of fsopen(2), fsconfig(2) and fsmount(2); needs `CAP_SYS_ADMIN`.
pub fn mount_detached(device: &OwnedFd, options: &MountOptions) -> io::Result<OwnedFd> {
    let device = device.as_fd().as_raw_fd().to_string();
    let (uid, gid) = (options.uid.to_string(), options.gid.to_string());
    let settings = [
        ("source", options.source.as_str()),
        ("subtype", "tombolo"),
        ("fd", &device),
        ("rootmode", "40755"),
        ("user_id", &uid),
        ("group_id", &gid),
        ("allow_other", ""),
        ("default_permissions", ""),
    ];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    sys::mount::detached("fuse", &settings, attributes)
}

/// The outcome of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replied {
    /// The kernel took it.
    Taken,
    /// Nobody waits for it any more.
    Gone,
}

/// The session's descriptor.
pub(crate) struct Device(OwnedFd);

impl Device {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Waits for the next request and reads it into `buffer`; `None` when the mount is gone.
    pub(crate) fn next(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(bytes) => return Ok(Some(bytes)),
                // ENOENT: the request was given up while it was read. ENODEV: unmounted.
                // ECONNABORTED: aborted.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Another holder of the descriptor may have made it non-blocking.
    fn wait(&self) -> io::Result<()> {
        let mut set = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut set, None))?;
        Ok(())
    }

    /// Answers `unique` with `errno` (0: success) and `parts`.
    pub(crate) fn reply(&self, unique: u64, errno: i32, parts: &[&[u8]]) -> io::Result<Replied> {
        match self.write(unique, -errno, parts) {
            Ok(()) => Ok(Replied::Taken),
            Err(Errno::NOENT) => Ok(Replied::Gone),
            // The mount ends; the reader will hear of it.
            Err(Errno::NODEV | Errno::CONNABORTED | Errno::PERM) => Ok(Replied::Gone),
            Err(error) => Err(error.into()),
        }
    }

    /// Wakes the pollers that came with `handle`.
    pub(crate) fn notify_poll(&self, handle: u64) -> io::Result<()> {
        let body = fuse_notify_poll_wakeup_out { kh: handle };
        self.notify(FUSE_NOTIFY_POLL, body.as_bytes())
    }

    /// Asks for everything again that was read and never answered.
    pub(crate) fn notify_resend(&self) -> io::Result<()> {
        self.notify(abi::FUSE_NOTIFY_RESEND, &[])
    }

    fn notify(&self, code: u32, body: &[u8]) -> io::Result<()> {
        match self.write(0, code.cast_signed(), &[body]) {
            Ok(()) | Err(Errno::NODEV | Errno::CONNABORTED | Errno::PERM) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&self, unique: u64, error: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let bytes = size_of::<fuse_out_header>() + parts.iter().map(|p| p.len()).sum::<usize>();
        let head = fuse_out_header { len: u32::try_from(bytes).map_err(|_| Errno::MSGSIZE)?, error, unique };
        let mut slices = Vec::with_capacity(1 + parts.len());
        slices.push(IoSlice::new(head.as_bytes()));
        slices.extend(parts.iter().filter(|p| !p.is_empty()).map(|p| IoSlice::new(p)));
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.0, &slices)).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of a range of our own memory that are there, as the kernel counts them.
    fn present(bytes: &[u8]) -> usize {
        let first = bytes.as_ptr().addr().div_ceil(4096);
        let last = (bytes.as_ptr().addr() + bytes.len()) / 4096;
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut entries = vec![0; (last - first) * 8];
        std::os::unix::fs::FileExt::read_exact_at(&map, &mut entries, first as u64 * 8).unwrap();
        // The highest bit of an entry.
        entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count()
    }

    /// A frontend was killed while the kernel copied the first long request into its buffer, and a
    /// write of a program failed with `EIO`.
    #[test]
    fn all_memory_of_the_buffer_for_requests_is_there_before_the_first() {
        // Its first and its last bytes may share their pages with others.
        assert!(present(&request_buffer()) >= REQUEST_BYTES / 4096 - 1);
        // What was only reserved is not there: the count can tell.
        assert!(present(&vec![0; 64 * REQUEST_BYTES]) < 8);
    }
}
