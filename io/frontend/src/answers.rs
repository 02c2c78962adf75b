//! Answers of the core to others than the kernel.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sys::eventfd::Eventfd;

/// In a request's number: it did not come from the kernel, which counts its own from 2, and marks
/// those that it sends again by the bit above.
pub(crate) const MARK: u64 = 1 << 62;

/// An answer of the core.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) unique: u64,
    pub(crate) errno: i32,
    pub(crate) bytes: Vec<u8>,
}

/// Where the core's answers wait for the thread that serves.
pub(crate) struct Answers {
    waiting: Mutex<Vec<Answered>>,
    pub(crate) alarm: Eventfd,
}

impl Answers {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { waiting: Mutex::default(), alarm: Eventfd::new()? })
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Answered>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, unique: u64, errno: i32, parts: &[&[u8]]) {
        self.waiting().push(Answered { unique, errno, bytes: parts.concat() });
        self.alarm.signal();
    }

    pub(crate) fn take(&self) -> Vec<Answered> {
        std::mem::take(&mut *self.waiting())
    }
}
