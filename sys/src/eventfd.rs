//! Wake-ups between threads that trust each other.
//!
//! Not between domains: an eventfd is one open file, so whoever holds it can fill it and clear its
//! `O_NONBLOCK`, and then our next write blocks. Between domains take [`crate::doorbell`].

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::pipe::PipeFlags;

use crate::known::{Known, is_in_a_foreign_program};

/// The kernel's name of an eventfd.
const LINK: &[u8] = b"anon_inode:[eventfd]";

/// Bytes that a pipe in its place holds: the least that a pipe has.
const PIPE_BYTES: usize = 4096;

/// A counter that can be polled: readable while it is not zero.
#[derive(Debug)]
pub struct Eventfd(Known);

impl Eventfd {
    /// Makes one, not readable, close-on-exec, never blocking. In a foreign program
    /// ([`crate::known`]) it is a pipe with both its ends in one descriptor, because all eventfds
    /// have one inode.
    ///
    /// # Errors
    /// Those of eventfd(2): out of descriptors or memory.
    pub fn new() -> io::Result<Eventfd> {
        // Without `/proc`, an eventfd has to do.
        if is_in_a_foreign_program()
            && let Ok(pipe) = pipe()
        {
            return Ok(Eventfd(Known::new(pipe)));
        }
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Eventfd(Known::new(event)))
    }

    /// Makes it readable. A full counter is readable already, so there is nothing that can fail,
    /// but that a foreign program has closed it: then nobody waits for it either.
    pub fn signal(&self) {
        if let Ok(event) = self.0.get() {
            let _full = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    /// Makes it unreadable; says whether it was readable.
    pub fn drain(&self) -> bool {
        self.0.get().is_ok_and(|event| rustix::io::read(event, &mut [0_u8; PIPE_BYTES]).is_ok())
    }

    /// Whether a foreign program has left it alone.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.is_there()
    }
}

fn pipe() -> io::Result<OwnedFd> {
    let (reader, _writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let both = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    rustix::pipe::fcntl_setpipe_size(&both, PIPE_BYTES)?;
    Ok(both)
}

/// One that somebody else has made, which must not make its readers and writers wait.
impl From<OwnedFd> for Eventfd {
    fn from(event: OwnedFd) -> Self {
        Eventfd(Known::new(event))
    }
}

impl AsFd for Eventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a descriptor that somebody passed us is an eventfd which does not make its readers wait.
///
/// # Errors
/// Those of readlink(2) on `/proc/self/fd/N` (`/proc` must be mounted) and fcntl(2).
pub fn is_eventfd(descriptor: impl AsFd) -> io::Result<bool> {
    let path = format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd());
    let link = rustix::fs::readlink(path, Vec::new())?;
    let flags = rustix::fs::fcntl_getfl(&descriptor)?;
    Ok(link.as_bytes() == LINK && flags.contains(OFlags::NONBLOCK))
}

/// Makes an eventfd unreadable that others have as well; says whether it was readable. Never blocks
/// (before Linux 5.8: unless one of the others makes it blocking).
///
/// # Errors
/// Those of read(2).
pub fn drain_shared(event: impl AsFd) -> io::Result<bool> {
    let mut count = [0; 8];
    let read = rustix::io::retry_on_intr(|| {
        // No offset: an eventfd has none.
        let mut parts = [IoSliceMut::new(&mut count)];
        rustix::io::preadv2(&event, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT)
    });
    let read = match read {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
            rustix::io::retry_on_intr(|| rustix::io::read(&event, &mut count))
        }
        read => read,
    };
    match read {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_seen_once() {
        let event = Eventfd::new().unwrap();
        assert!(!event.drain());
        event.signal();
        event.signal();
        assert!(event.drain());
        assert!(!event.drain());
    }

    #[test]
    fn in_a_foreign_program_it_has_an_inode_of_its_own_and_does_the_same() {
        let done = crate::fork::in_child(|| {
            crate::known::live_in_a_foreign_program();
            let (event, other) = (Eventfd::new().unwrap(), Eventfd::new().unwrap());
            let inode = |event: &Eventfd| rustix::fs::fstat(event).unwrap().st_ino;
            let mut signals = inode(&event) != inode(&other) && !event.drain();
            for _ in 0..3 * PIPE_BYTES {
                event.signal();
            }
            signals &= crate::doorbell::is_readable(&event).unwrap();
            signals && event.drain() && !event.drain() && !crate::doorbell::is_readable(&event).unwrap()
        });
        assert!(done.unwrap());
    }

    #[test]
    fn one_that_somebody_made_blocking_blocks_nobody() {
        let event = Eventfd::new().unwrap();
        rustix::fs::fcntl_setfl(&event, OFlags::empty()).unwrap();
        let mut count = [0; 8];
        let known =
            rustix::io::preadv2(&event, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT);
        if known == Err(Errno::OPNOTSUPP) {
            println!("skipped: this kernel reads no eventfd without waiting (Linux 5.8 does)");
            return;
        }
        assert!(!drain_shared(&event).unwrap());
        event.signal();
        assert!(drain_shared(&event).unwrap());
        assert!(!drain_shared(&event).unwrap());
    }

    #[test]
    fn eventfds_are_told_apart() {
        let event = Eventfd::new().unwrap();
        assert!(is_eventfd(&event).unwrap());
        assert!(!is_eventfd(crate::doorbell::pair().unwrap().0).unwrap());
        assert!(!is_eventfd(crate::memfd::sealed("anon_inode:[eventfd]", 4096).unwrap()).unwrap());
        rustix::fs::fcntl_setfl(&event, OFlags::empty()).unwrap();
        assert!(!is_eventfd(&event).unwrap(), "it could make us wait");
    }
}
