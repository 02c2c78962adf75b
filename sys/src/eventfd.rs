//! Wake-ups between threads that trust each other.
//!
//! Not between domains: an eventfd is one open file, so whoever holds it can fill it and clear its
//! `O_NONBLOCK`, and then our next write blocks. Between domains take [`crate::doorbell`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;

/// A counter that can be polled: readable while it is not zero.
#[derive(Debug)]
pub struct Eventfd(OwnedFd);

impl Eventfd {
    /// Makes one, not readable, close-on-exec, never blocking.
    ///
    /// # Errors
    /// Those of eventfd(2): out of descriptors or memory.
    pub fn new() -> io::Result<Eventfd> {
        Ok(Eventfd(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable. A full counter is readable already, so there is nothing that can fail.
    pub fn signal(&self) {
        let _full = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it unreadable; says whether it was readable.
    pub fn drain(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 8]).is_ok()
    }
}

impl AsFd for Eventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
}
