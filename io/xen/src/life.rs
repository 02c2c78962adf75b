//! Whether the peer lives: its process, of which our kernel or its own tells, and its domain, of
//! which XenStore does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags};
use rustix::pipe::PipeFlags;
use sys::eventfd::Eventfd;
use sys::region::Region;
use sys::xen::event::Port;
use wire::xen as layout;

use crate::granted::Noticed;
use crate::store::{Store, StoreError};

/// The entries that are watched.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Ours: 0 for the offerer.
    pub side: usize,
    /// The directory page, with the notice of our own death on it.
    pub directory: Region,
    /// The offerer's: that notice, which is to be forgotten when the channel is over.
    pub notice: Option<Noticed>,
    /// Rung when the peer comes or goes.
    pub port: Port,
    /// Watches the peer's entry.
    pub store: Store,
    /// The path of the peer's entry.
    pub theirs: String,
    /// The path of our entry, and its content.
    pub ours: (String, String),
}

/// The thread that watches. Dropped, it takes our entry out of XenStore, lets go of the directory
/// (which tells the peer) and ends.
#[derive(Debug)]
pub(crate) struct Life {
    stop: std::sync::Arc<Eventfd>,
    thread: Option<JoinHandle<()>>,
}

impl Life {
    /// Starts it, and returns the reading half of a pipe that hangs up when the peer is gone.
    pub fn watch(watched: Watched) -> io::Result<(Self, OwnedFd)> {
        let (hears, life) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let stop = std::sync::Arc::new(Eventfd::new()?);
        let stopped = std::sync::Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("tombolo-xen".to_owned())
            .spawn(move || watched.until(&stopped, life))?;
        Ok((Self { stop, thread: Some(thread) }, hears))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, it would have said so.
            let _ended = thread.join();
        }
    }
}

impl Watched {
    fn until(mut self, stop: &Eventfd, life: OwnedFd) {
        let mut life = Some(life);
        let mut seeing = true;
        while !stop.drain() {
            // A device that fails would be readable all the time, and a peer that can't be seen any
            // more is as good as gone.
            seeing = seeing
                && self.look().is_ok_and(|is_gone| {
                    if is_gone {
                        // Whoever reads it is hung up on.
                        life = None;
                    }
                    true
                });
            if !seeing {
                life = None;
            }
            let mut polled = [
                PollFd::new(stop, PollFlags::IN),
                PollFd::new(&self.port, PollFlags::IN),
                PollFd::from_borrowed_fd(self.store.as_fd(), PollFlags::IN),
            ];
            // What a peer that is gone still causes is taken off as well: it would pile up in our
            // kernel.
            let watched = if seeing { polled.len() } else { 1 };
            match rustix::event::poll(polled.split_at_mut(watched).0, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => seeing = false,
            }
        }
        if let Some(notice) = &self.notice {
            // The memory stays granted, so the kernel does not say that this end is gone.
            self.directory.store_u64(layout::end(0) + layout::END_ALIVE, 0, Ordering::Release);
            // A port that can't be rung has nobody at its other end; a notice that stays holds on
            // to the port until the process ends.
            let (_told, _forgotten) = (self.port.ring(), notice.forget());
        }
        // A store that can't be reached keeps the entry: the next offer of this name replaces it,
        // and so does the domain's end.
        let (path, content) = &self.ours;
        let _retracted = self.store.retract(path, content);
    }

    /// Takes off what came, and judges by what is there.
    fn look(&mut self) -> Result<bool, StoreError> {
        self.port.listen().map_err(StoreError::Device)?;
        Ok(self.is_domain_gone()? || self.is_process_gone())
    }

    /// The peer has come, and is not alive.
    fn is_process_gone(&self) -> bool {
        self.has_come() && !is_alive(&self.directory, 1 - self.side)
    }

    fn has_come(&self) -> bool {
        self.directory.load_u64(layout::end(1 - self.side) + layout::END_CAME, Ordering::Acquire) != 0
    }

    /// The peer has come, and what it wrote into XenStore is not there any more.
    fn is_domain_gone(&mut self) -> Result<bool, StoreError> {
        if !self.store.has_changed()? {
            return Ok(false);
        }
        // In this order: a peer writes into XenStore, and comes then. One that comes meanwhile is
        // looked at next time.
        let came = self.has_come();
        Ok(came && self.store.read(&self.theirs)?.is_none())
    }
}

/// Whether the process of end `side` lives, as far as the directory says.
pub(crate) fn is_alive(directory: &Region, side: usize) -> bool {
    directory.load_u64(layout::end(side) + layout::END_ALIVE, Ordering::Acquire) != 0
}

/// Says in the directory that end `side` has come, and lives until its kernel says otherwise.
pub(crate) fn come(directory: &Region, side: usize) {
    let words = layout::end(side);
    directory.store_u64(words + layout::END_ALIVE, 1, Ordering::Release);
    directory.store_u64(words + layout::END_CAME, 1, Ordering::Release);
}
