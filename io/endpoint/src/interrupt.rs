//! Ending the call of another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sys::eventfd::Eventfd;

use crate::Endpoint;

/// Ends the call that waits now, in whatever thread, and all later ones, with
/// [`crate::Failed::Interrupted`].
#[derive(Clone, Debug)]
pub struct Interrupter(Arc<Flag>);

#[derive(Debug)]
struct Flag {
    raised: AtomicBool,
    event: Eventfd,
}

impl Interrupter {
    pub(crate) fn new() -> io::Result<Interrupter> {
        Ok(Interrupter(Arc::new(Flag { raised: AtomicBool::new(false), event: Eventfd::new()? })))
    }

    /// Ends the endpoint's calls, for good.
    pub fn interrupt(&self) {
        self.0.raised.store(true, Ordering::Release);
        self.0.event.signal();
    }

    /// Whether that was said.
    #[inline]
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.0.raised.load(Ordering::Acquire)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

impl Endpoint {
    /// Whether another thread has ended this endpoint's calls.
    #[inline]
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupter.as_ref().is_some_and(Interrupter::is_interrupted)
    }
}
