//! Doorbells between domains that do not trust each other, which tell of death as well.
//!
//! A doorbell is a pipe of which the ringer and the listener hold different open files, so neither can change
//! the other's flags (an eventfd or a shared pipe end could be filled and made blocking by a hostile peer) and
//! nothing that arrives can carry descriptors (a socket's can, and closing a stranger's file may block).
//! The ringer's half is open for reading too, so that ringing at a dead listener raises no `SIGPIPE`; when the
//! ringer dies the listener's half hangs up.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::pipe::{PipeFlags, SpliceFlags};

/// Bytes that an unread doorbell may hold; one page, the least that pipes have.
const PIPE_BYTES: usize = 4096;
/// Rings taken off at once; an honest peer leaves a few at most. One that enlarges the pipe and fills it causes some thousand idle
/// turns, each for hundreds of calls of its own.
const DRAIN_BYTES: usize = 256;

/// What a listener found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nobody rang.
    Silence,
    /// Somebody rang since the last time.
    Ring,
    /// No ring is left, and nobody is left who could ring.
    Death,
}

/// Makes a doorbell: the listener's half and the ringer's half.
///
/// # Errors
/// Those of pipe(2), and of opening `/proc/self/fd/N`: `/proc` must be mounted.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (listener, write_only) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let path = format!("/proc/self/fd/{}", write_only.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let ringer = rustix::fs::open(path, flags, Mode::empty())?;
    // Smaller is kinder to the user's allowance of pipe pages; a refusal costs nothing but that.
    let _kept = rustix::pipe::fcntl_setpipe_size(&ringer, PIPE_BYTES);
    Ok((listener, ringer))
}

/// Rings. Never blocks, as long as nobody else has a copy of the ringer's half; a full pipe has rings unheard already.
///
/// # Errors
/// Those of write(2), other than that the pipe is full.
pub fn ring(ringer: impl AsFd) -> io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::io::write(&ringer, &[1])) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Rings, and never blocks even if somebody has kept a copy of the ringer's half and made it blocking: by tee(2), whose wait
/// is asked of each call. The listener is woken a little later than by [`ring`], because the kernel does not expect that the ringer is
/// about to sleep: with many domains on few processors that costs a fifth of all requests.
///
/// # Errors
/// Those of tee(2) and write(2), other than that the pipe is full.
pub fn ring_warily(ringer: impl AsFd) -> io::Result<()> {
    let ringer = ringer.as_fd();
    match clapper().map(|clapper| rustix::pipe::tee(clapper, ringer, 1, SpliceFlags::NONBLOCK)) {
        Some(Ok(1)) => Ok(()),
        Some(Err(Errno::AGAIN)) if clapper().is_some_and(is_loaded) => Ok(()),
        // No pipe of our own, or the program has closed it, or may not tee.
        _ => ring(ringer),
    }
}

/// The pipe with the byte that wary rings are copies of; one for the process (and its forks: nothing is taken out of it).
fn clapper() -> Option<BorrowedFd<'static>> {
    static CLAPPER: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let clapper = CLAPPER.get_or_init(|| {
        let (keep, load) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        (rustix::io::write(&load, &[1]) == Ok(1)).then_some(keep)
    });
    clapper.as_ref().map(AsFd::as_fd)
}

/// Whether the byte is there: a program that closes descriptors which it does not know may have put another pipe in its place.
fn is_loaded(clapper: BorrowedFd<'_>) -> bool {
    rustix::io::ioctl_fionread(clapper) == Ok(1)
}

/// Takes the rings off. Never blocks (before Linux 6.4: unless whoever made the doorbell makes our half blocking).
///
/// # Errors
/// Those of read(2).
pub fn listen(listener: impl AsFd) -> io::Result<Heard> {
    let listener = listener.as_fd();
    match rustix::io::retry_on_intr(|| read_now(listener, &mut [0; DRAIN_BYTES])) {
        Ok(0) => Ok(Heard::Death),
        Ok(_) => Ok(Heard::Ring),
        Err(Errno::AGAIN) => Ok(Heard::Silence),
        Err(error) => Err(error.into()),
    }
}

/// Reads a pipe without waiting, whatever the flags of the open file are by now, where the kernel knows how to do that with pipes.
fn read_now(listener: BorrowedFd<'_>, rings: &mut [u8]) -> rustix::io::Result<usize> {
    static UNKNOWN: AtomicBool = AtomicBool::new(false);
    if !UNKNOWN.load(Ordering::Relaxed) {
        // No offset: a pipe has none.
        let read =
            rustix::io::preadv2(listener, &mut [IoSliceMut::new(rings)], u64::MAX, ReadWriteFlags::NOWAIT);
        if !matches!(read, Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM)) {
            return read;
        }
        UNKNOWN.store(true, Ordering::Relaxed);
    }
    rustix::io::read(listener, rings)
}

/// Whether nobody is left who could ring. Takes no ring off, never blocks.
///
/// # Errors
/// Those of poll(2).
pub fn is_dead(listener: impl AsFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(&listener, PollFlags::empty())];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&Timespec::default())))?;
    Ok(polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}

/// Whether a pipe has something to read or has hung up. Takes nothing off, never blocks.
///
/// # Errors
/// Those of poll(2).
pub fn is_readable(listener: impl AsFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(&listener, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&Timespec::default())))?;
    Ok(!polled[0].revents().is_empty())
}

/// Waits until one of two descriptors has something to read or hangs up, or the time is over.
/// Returns early on a signal handler, like poll(2); callers loop anyway.
///
/// # Errors
/// Those of poll(2), other than `EINTR`.
pub fn wait(one: BorrowedFd<'_>, other: BorrowedFd<'_>, timeout_ns: Option<u64>) -> io::Result<()> {
    let timeout = timeout_ns.map(|ns| Timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    });
    let mut polled =
        [PollFd::from_borrowed_fd(one, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Which half of a doorbell a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// It can be listened to.
    Listener,
    /// It can be rung.
    Ringer,
}

/// Looks whether a descriptor that somebody passed us is half of a doorbell, and which.
///
/// # Errors
/// Those of fstat(2) and fcntl(2).
pub fn half(descriptor: impl AsFd) -> io::Result<Option<Half>> {
    let stat = rustix::fs::fstat(&descriptor)?;
    let flags = rustix::fs::fcntl_getfl(&descriptor)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo || !flags.contains(OFlags::NONBLOCK) {
        return Ok(None);
    }
    Ok(match flags & OFlags::RWMODE {
        mode if mode == OFlags::RDONLY => Some(Half::Listener),
        mode if mode == OFlags::RDWR => Some(Half::Ringer),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_heard_and_then_death() {
        let (listener, ringer) = pair().unwrap();
        assert_eq!(listen(&listener).unwrap(), Heard::Silence);
        ring(&ringer).unwrap();
        ring(&ringer).unwrap();
        assert!(!is_dead(&listener).unwrap() && is_readable(&listener).unwrap());
        assert_eq!(listen(&listener).unwrap(), Heard::Ring);
        assert!(!is_readable(&listener).unwrap());
        assert_eq!(listen(&listener).unwrap(), Heard::Silence);
        ring(&ringer).unwrap();
        drop(ringer);
        assert!(is_dead(&listener).unwrap() && is_readable(&listener).unwrap());
        assert_eq!(listen(&listener).unwrap(), Heard::Ring);
        assert_eq!(listen(&listener).unwrap(), Heard::Death);
    }

    #[test]
    fn a_ringer_that_somebody_made_blocking_does_not_block_who_is_wary() {
        let (listener, ringer) = pair().unwrap();
        rustix::fs::fcntl_setfl(&ringer, OFlags::empty()).unwrap();
        for _ in 0..100_000 {
            ring_warily(&ringer).unwrap();
        }
        assert_eq!(listen(&listener).unwrap(), Heard::Ring);
    }

    #[test]
    fn a_listener_that_somebody_made_blocking_blocks_nobody() {
        let (listener, ringer) = pair().unwrap();
        let mut bytes = [0];
        let nothing = rustix::io::preadv2(
            &listener,
            &mut [IoSliceMut::new(&mut bytes)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        );
        if nothing == Err(Errno::OPNOTSUPP) {
            println!("skipped: this kernel reads no pipe without waiting (Linux 6.4 does)");
            return;
        }
        rustix::fs::fcntl_setfl(&listener, OFlags::empty()).unwrap();
        assert_eq!(listen(&listener).unwrap(), Heard::Silence);
        ring(&ringer).unwrap();
        assert_eq!(listen(&listener).unwrap(), Heard::Ring);
    }

    #[test]
    fn what_a_wary_ring_copies_is_told_from_another_pipe() {
        let (listener, ringer) = pair().unwrap();
        ring_warily(ringer.as_fd()).unwrap();
        assert_eq!(listen(&listener).unwrap(), Heard::Ring);
        assert!(is_loaded(clapper().unwrap()));
        assert!(!is_loaded(listener.as_fd()), "an empty pipe is no clapper");
    }

    #[test]
    fn ringing_never_blocks_nor_fails() {
        let (listener, ringer) = pair().unwrap();
        for _ in 0..100_000 {
            ring(&ringer).unwrap();
        }
        drop(listener);
        ring(&ringer).unwrap();
    }

    #[test]
    fn the_halves_do_not_share_their_flags() {
        let (listener, ringer) = pair().unwrap();
        rustix::fs::fcntl_setfl(&listener, OFlags::empty()).unwrap();
        assert!(rustix::fs::fcntl_getfl(&ringer).unwrap().contains(OFlags::NONBLOCK));
    }

    #[test]
    fn halves_are_told_apart() {
        let (listener, ringer) = pair().unwrap();
        assert_eq!(half(&listener).unwrap(), Some(Half::Listener));
        assert_eq!(half(&ringer).unwrap(), Some(Half::Ringer));
        assert_eq!(half(crate::eventfd::Eventfd::new().unwrap()).unwrap(), None);
    }

    #[test]
    fn a_wait_ends_in_time() {
        let (listener, _ringer) = pair().unwrap();
        let (other, _also) = pair().unwrap();
        let start = crate::clock::clock_ns();
        wait(listener.as_fd(), other.as_fd(), Some(3_000_000)).unwrap();
        assert!(crate::clock::clock_ns() - start >= 3_000_000);
        assert_eq!(listen(&listener).unwrap(), Heard::Silence);
    }
}
