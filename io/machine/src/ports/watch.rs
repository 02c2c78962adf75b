//! Rings that the kernel itself passes on to QEMU, with no process in between.
//!
//! To ring is to write a byte into the ringer's half of a doorbell (`docs/spec/ring.md`), and the
//! kernel tells whoever watches that half's inode of each write: inotify(7). The sight that comes
//! with an end is good for that, and for nothing else. QEMU listens to such a watch in the place of
//! the doorbell. It becomes readable within the ringer's own call, so nobody has to be woken on the
//! way. It carries nothing but that: equal events that nobody has read are one, so a peer can
//! neither fill it nor keep QEMU reading. And it can be taken off by this process alone, at any
//! time.

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

/// Instances of inotify that a user can have beside ours: there are 128 for each user, and other
/// programs want some as well.
const SPARE_INSTANCES: usize = 16;

/// Room for one event about a doorbell, and more.
const EVENT_BYTES: usize = 64;

/// A watch, as QEMU's ear.
#[derive(Debug)]
pub(crate) struct Watch {
    instance: OwnedFd,
    /// Another instance, to be closed when nothing is to be passed on any more: by then the user
    /// may have none left.
    hush: Option<OwnedFd>,
    /// A doorbell of our own, always watched: what we ring ourselves. Its listening half is read at
    /// once.
    clapper: (OwnedFd, OwnedFd),
    /// The peer's doorbell, by the number of its watch, while it is watched.
    bell: Option<i32>,
}

impl Watch {
    /// One that hears nothing yet but [`Self::ring`].
    ///
    /// # Errors
    /// Where the kernel does not tell of writes to sockets, or the user's instances or watches are
    /// about to run out.
    pub fn new() -> io::Result<Self> {
        let instance = instance()?;
        let spare = (0..SPARE_INSTANCES).map(|_| self::instance()).collect::<io::Result<Vec<_>>>()?;
        close_aside(spare);
        let clapper = sys::doorbell::pair()?;
        watch(&instance, &clapper.1)?;
        let new = Self { instance, hush: Some(self::instance()?), clapper, bell: None };
        new.ring();
        if new.is_quiet() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        rustix::io::read(&new.instance, &mut [0; EVENT_BYTES])?;
        Ok(new)
    }

    /// The socket that QEMU listens at.
    pub fn heard_at(&self) -> &OwnedFd {
        &self.instance
    }

    /// Passes on what is rung from now on, and what was rung before, if anything. Where the kernel
    /// does not, [`Self::passes_on`] says so.
    pub fn listen_to(&mut self, sight: BorrowedFd<'_>, listener: BorrowedFd<'_>) {
        self.bell = watch(&self.instance, sight).ok();
        if sys::doorbell::is_readable(listener).unwrap_or(true) {
            self.ring();
        }
    }

    /// Whether the rings of the peer are passed on without us.
    pub fn passes_on(&self) -> bool {
        self.bell.is_some()
    }

    /// Rings by our own hand.
    pub fn ring(&self) {
        let (listener, ringer) = &self.clapper;
        // Ours at both ends, and read as soon as it is written: there is nothing that can be wrong
        // with it.
        drop(sys::doorbell::ring(ringer));
        drop(sys::doorbell::listen(listener));
    }

    /// Passes nothing on any more. `None`: it did not before.
    ///
    /// The kernel may still be about to tell of a write that had begun. It frees no watch before
    /// all such have ended, and the close of an instance waits (some 20 ms) until all watches that
    /// were taken off are freed. So a thread closes one; nothing comes behind its end but what is
    /// in the instance by then.
    pub fn silence(&mut self) -> Option<Hush> {
        let bell = self.bell.take()?;
        // It can only fail where it is not there: nothing is passed on then either.
        let _gone = inotify::remove_watch(&self.instance, bell);
        Some(Hush(self.hush.take().or_else(|| instance().ok()).and_then(close_aside)))
    }

    /// Whether QEMU has heard all that there was.
    pub fn is_quiet(&self) -> bool {
        rustix::io::ioctl_fionread(&self.instance) == Ok(0)
    }
}

/// The end of the last ring that was passed on.
#[derive(Debug)]
pub(crate) struct Hush(Option<JoinHandle<()>>);

impl Hush {
    /// Whether nothing is under way any more.
    pub fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

/// Drops something in a thread of its own: the close of an instance may wait until watches are
/// freed, of whomever.
pub(crate) fn close_aside(something: impl Send + 'static) -> Option<JoinHandle<()>> {
    // Where there is no thread, it is dropped here and now.
    std::thread::Builder::new().name("close".to_owned()).spawn(move || drop(something)).ok()
}

fn instance() -> io::Result<OwnedFd> {
    Ok(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?)
}

/// Watches the ringer's half of a doorbell for writes.
fn watch(instance: &OwnedFd, ringer: impl AsFd) -> io::Result<i32> {
    let path = format!("/proc/self/fd/{}", ringer.as_fd().as_raw_fd());
    Ok(inotify::add_watch(instance, path, WatchFlags::MODIFY)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use sys::doorbell::{listen, ring, sight, spacious_pair};

    /// A watch; none, said, where this machine has no instances or no such events.
    fn watch() -> Option<Watch> {
        Watch::new().inspect_err(|error| println!("skipped: no watch for a doorbell here: {error}")).ok()
    }

    /// Reads as QEMU does: 512 bytes, and again as long as it gets as many. Whether it heard
    /// something.
    fn hears(watch: &Watch) -> bool {
        let mut bytes = [0; 512];
        match rustix::io::read(watch.heard_at(), &mut bytes) {
            Ok(read) => {
                assert!((1..bytes.len()).contains(&read), "QEMU would read on");
                true
            }
            Err(errno) => {
                assert_eq!(errno, rustix::io::Errno::AGAIN);
                false
            }
        }
    }

    #[test]
    fn a_ring_is_passed_on_without_us() {
        let Some(mut watch) = watch() else { return };
        let (listener, ringer) = spacious_pair().unwrap();
        assert!(!hears(&watch) && !watch.passes_on());
        ring(&ringer).unwrap();
        watch.listen_to(sight(&ringer).unwrap().as_fd(), listener.as_fd());
        assert!(watch.passes_on());
        assert!(hears(&watch), "what was rung before is not lost");
        for _ in 0..1000 {
            ring(&ringer).unwrap();
            assert!(hears(&watch) && watch.is_quiet() && !hears(&watch));
            listen(&listener).unwrap();
        }
        assert!(!hears(&watch), "that we read is no ring");
        watch.ring();
        assert!(hears(&watch), "our own");
    }

    #[test]
    fn however_often_it_is_rung_there_is_little_to_read() {
        let Some(mut watch) = watch() else { return };
        let (listener, ringer) = spacious_pair().unwrap();
        watch.listen_to(sight(&ringer).unwrap().as_fd(), listener.as_fd());
        for _ in 0..100_000 {
            ring(&ringer).unwrap();
        }
        assert!(hears(&watch) && !hears(&watch));
    }

    #[test]
    fn the_death_of_the_peer_is_no_ring() {
        let Some(mut watch) = watch() else { return };
        let (listener, ringer) = spacious_pair().unwrap();
        watch.listen_to(sight(&ringer).unwrap().as_fd(), listener.as_fd());
        drop(ringer);
        assert!(!hears(&watch));
    }

    // What is passed on once the device goes reaches a handler in freed memory.
    #[test]
    fn behind_the_hush_nothing_comes() {
        if watch().is_none() {
            return;
        }
        for round in 0..30 {
            let mut watch = Watch::new().unwrap();
            let (listener, ringer) = spacious_pair().unwrap();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            ring(&ringer).unwrap();
                            listen(&listener).unwrap();
                        }
                    });
                }
                watch.listen_to(sight(&ringer).unwrap().as_fd(), listener.as_fd());
                while !hears(&watch) {}
                let hush = watch.silence().unwrap();
                assert!(watch.silence().is_none() && !watch.passes_on());
                hush.0.unwrap().join().unwrap();
                while hears(&watch) {}
                for _ in 0..2_000 {
                    ring(&ringer).unwrap();
                    assert!(watch.is_quiet(), "round {round}: a ring came behind the hush");
                }
                over.store(true, Ordering::Relaxed);
            });
        }
    }
}
