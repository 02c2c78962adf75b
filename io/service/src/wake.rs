//! The messages that other threads leave for the thread that serves.

use crate::id::SessionId;
use rustix::io::Errno;
use session::ReplyTo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use sys::eventfd::Eventfd;

/// An answer that came from another thread.
pub struct Answered {
    pub to: ReplyTo,
    pub over: Arc<AtomicBool>,
    pub answer: Result<Vec<u8>, Errno>,
}

/// All that was left since the thread looked last.
#[derive(Default)]
pub struct Inbox {
    pub answers: Vec<Answered>,
    pub ready: Vec<(SessionId, u32)>,
    pub published: bool,
}

/// The way to the thread that serves, for all other threads.
pub struct Wake {
    /// Readable while something is in the inbox.
    pub bell: Eventfd,
    /// Readable when the service shall end.
    pub stop: Eventfd,
    inbox: Mutex<Inbox>,
}

impl Wake {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { bell: Eventfd::new()?, stop: Eventfd::new()?, inbox: Mutex::default() })
    }

    pub fn leave(&self, put: impl FnOnce(&mut Inbox)) {
        put(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.signal();
    }

    pub fn take(&self) -> Inbox {
        self.bell.drain();
        std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Speaks to a running service from any thread, and from a signal handler's thread.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<Wake>);

impl Handle {
    /// Ends [`crate::Service::run`], and every consumer's channel.
    pub fn stop(&self) {
        self.0.stop.signal();
    }

    /// Says what poll(2) says of an open file of [`crate::Service::device`] from now on, in bits of
    /// [`wire::service::ready`].
    pub fn ready(&self, session: SessionId, bits: u32) {
        self.0.leave(|inbox| inbox.ready.push((session, bits)));
    }
}

/// Answers one call later, from any thread: a task of tokio, a worker. Dropped without an answer,
/// it answers `EIO`.
pub struct Later {
    pub(crate) wake: Arc<Wake>,
    pub(crate) to: ReplyTo,
    pub(crate) over: Arc<AtomicBool>,
    pub(crate) most_bytes: usize,
    pub(crate) answered: bool,
}

impl Later {
    /// Answers. Nothing happens where nobody waits any more.
    pub fn answer(mut self, answer: Result<impl Into<Vec<u8>>, Errno>) {
        self.put(answer.map(Into::into));
    }

    /// The most bytes of an answer that the caller takes; what is longer is cut.
    #[must_use]
    pub fn takes(&self) -> usize {
        self.most_bytes
    }

    /// Whether nobody waits any more: the caller was interrupted, has closed the file, or is gone.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn put(&mut self, mut answer: Result<Vec<u8>, Errno>) {
        self.answered = true;
        if let Ok(bytes) = &mut answer {
            bytes.truncate(self.most_bytes);
        }
        let (to, over) = (self.to, Arc::clone(&self.over));
        self.wake.leave(|inbox| inbox.answers.push(Answered { to, over, answer }));
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if !self.answered {
            self.put(Err(Errno::IO));
        }
    }
}
