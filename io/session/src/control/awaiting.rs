//! Waiting for a control socket that is gone, until the next daemon has put one in its place.

use super::client::{ControlError, connect_to};
use crate::wait::{pause_until, wait_readable};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use sys::known::Known;

/// How long to trust that the folder's events tell of everything. A socket that is bound before it
/// listens, or a file system without inotify, would otherwise be waited for in vain.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Room for some events; what they say does not matter, only that there are any.
const EVENT_BYTES: usize = 1024;

/// Tells when a control socket may have appeared.
#[derive(Debug)]
pub struct FolderWatch(Known);

impl FolderWatch {
    /// Watches the folder of `path`; `None` where that is not possible.
    pub fn new(path: &Path) -> Option<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ATTRIB;
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .and_then(|watch| inotify::add_watch(&watch, folder, events).map(|_| Self(Known::new(watch))))
            .inspect_err(
                |errno| tracing::debug!(folder = %folder.display(), %errno, "can't watch, will look again"),
            )
            .ok()
    }

    /// Takes the events off, so that the descriptor is readable again only after another one.
    pub fn drain(&self) {
        let mut space = [MaybeUninit::uninit(); EVENT_BYTES];
        let Ok(watch) = self.0.get() else { return };
        let mut reader = inotify::Reader::new(watch, &mut space);
        while reader.next().is_ok() {}
    }
}

impl AsFd for FolderWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a socket where connecting failed like this may be there later.
pub(super) fn may_come(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN)
}

/// Connects to the socket at `path`, waiting until somebody listens there.
pub(super) fn connect_when_there(path: &Path, deadline: Option<Instant>) -> Result<OwnedFd, ControlError> {
    let mut watch = None;
    loop {
        match connect_to(path) {
            Ok(socket) => return Ok(socket),
            Err(errno) if may_come(errno) => {}
            Err(errno) => return Err(ControlError::Connect { path: path.to_owned(), errno }),
        }
        // Not before it is needed: it takes the kernel some ms to be rid of a watch. From now on it
        // stands before each attempt, so that a socket which comes in between is not missed.
        let Some(watch) = &watch else {
            watch = Some(FolderWatch::new(path));
            continue;
        };
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(ControlError::Deadline);
        }
        let until = deadline.map_or(now + LOOK_AGAIN, |deadline| deadline.min(now + LOOK_AGAIN));
        match watch {
            Some(watch) => {
                wait_readable(watch.as_fd(), Some(until)).map_err(ControlError::Wait)?;
                watch.drain();
            }
            None => pause_until(until),
        }
    }
}
