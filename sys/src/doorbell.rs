//! Doorbells between domains that do not trust each other, which tell of death as well.
//!
//! A doorbell is a pair of Unix sockets, of which the ringer and the listener hold one each. To ring is to send a byte, to listen is to receive one;
//! each call says itself that it does not wait, so it is of no matter what a peer makes of the flags of an open file. The listener's half can't send, takes no
//! descriptors (closing a stranger's file may block), and hangs up when the ringer dies. A peer can't make any of these calls wait: a sender takes no
//! lock that sleeps, and the lock of those who receive is the listener's own, as long as nobody else has a copy of that half.
//!
//! Pipes are the other kind, for what is to be watched (inotify(7)) or given to a hypervisor: the two halves are different open files, and the ringer's is open
//! for reading too, so that ringing at a dead listener raises no `SIGPIPE`. Whoever reads or writes a pipe from or to memory or a file that makes him wait
//! holds its lock meanwhile, and every other call on the pipe waits for that: so they are between ends that trust each other in this one thing
//! (`docs/spec/ring.md`, "What a peer can and can't do").

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, sockopt,
};
use rustix::pipe::{PipeFlags, SpliceFlags};

/// Bytes that an unread doorbell may hold; one page, the least that pipes have.
const PIPE_BYTES: usize = 4096;
/// Bytes of the kernel's memory that a ringer may fill; some rings, and the least that sockets have. A peer can make its own larger, up to what the system allows.
const SOCKET_BYTES: usize = 4096;
/// Rings taken off a pipe at once; an honest peer leaves a few at most. One that enlarges the pipe and fills it causes some thousand idle
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
/// Those of socketpair(2).
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (listener, ringer) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    sockopt::set_socket_send_buffer_size(&ringer, SOCKET_BYTES)?;
    crate::descriptors::refuse_descriptors(&listener)?;
    // So the listener can put nothing into the ringer's half, and the two can be told apart.
    rustix::net::shutdown(&listener, Shutdown::Write)?;
    Ok((listener, ringer))
}

/// Makes a doorbell that is a pipe.
///
/// # Errors
/// Those of pipe(2), and of opening `/proc/self/fd/N`: `/proc` must be mounted.
pub fn pipe_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (listener, write_only) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let path = format!("/proc/self/fd/{}", write_only.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let ringer = rustix::fs::open(path, flags, Mode::empty())?;
    // Smaller is kinder to the user's allowance of pipe pages; a refusal costs nothing but that.
    let _kept = rustix::pipe::fcntl_setpipe_size(&ringer, PIPE_BYTES);
    Ok((listener, ringer))
}

/// Rings. Never blocks, as long as nobody else has a copy of the ringer's half of a pipe; a full doorbell has rings unheard already, and where nobody listens any more
/// nobody is rung.
///
/// # Errors
/// Those of send(2) and write(2).
pub fn ring(ringer: impl AsFd) -> io::Result<()> {
    match send_ring(ringer.as_fd()) {
        Err(Errno::NOTSOCK) => write_ring(ringer.as_fd()),
        rung => Ok(rung?),
    }
}

fn send_ring(ringer: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::io::retry_on_intr(|| send(ringer, &[1], flags)) {
        Ok(_) | Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET | Errno::CONNREFUSED | Errno::NOTCONN) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn write_ring(ringer: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::io::write(ringer, &[1])) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Rings, and never blocks even if somebody has kept a copy of the ringer's half of a pipe and made it blocking: by tee(2), whose wait
/// is asked of each call. The listener is woken a little later than by [`ring`], because the kernel does not expect that the ringer is
/// about to sleep: with many domains on few processors that costs a fifth of all requests.
///
/// # Errors
/// Those of send(2), tee(2) and write(2), other than that the doorbell is full.
pub fn ring_warily(ringer: impl AsFd) -> io::Result<()> {
    let ringer = ringer.as_fd();
    match send_ring(ringer) {
        Err(Errno::NOTSOCK) => {}
        rung => return Ok(rung?),
    }
    match clapper().map(|clapper| rustix::pipe::tee(clapper, ringer, 1, SpliceFlags::NONBLOCK)) {
        Some(Ok(1)) => Ok(()),
        Some(Err(Errno::AGAIN)) if clapper().is_some_and(is_loaded) => Ok(()),
        // No pipe of our own, or the program has closed it, or may not tee.
        _ => write_ring(ringer),
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

/// Takes a ring off, or more, or hears that there is none. Never blocks (with a pipe before Linux 6.4: unless whoever made it makes our half blocking).
///
/// # Errors
/// Those of recv(2) and read(2).
pub fn listen(listener: impl AsFd) -> io::Result<Heard> {
    let listener = listener.as_fd();
    let heard = match receive(listener, descriptors_are_refused(listener)) {
        Err(Errno::NOTSOCK) => rustix::io::retry_on_intr(|| read_now(listener, &mut [0; DRAIN_BYTES])),
        heard => heard,
    };
    match heard {
        // An empty message is none of ours: a peer that breaks the rules is as good as dead.
        Ok(0) => Ok(Heard::Death),
        Ok(_) => Ok(Heard::Ring),
        Err(Errno::AGAIN) => Ok(Heard::Silence),
        Err(error) => Err(error.into()),
    }
}

/// Whether the kernel sees to it that no descriptors come (Linux 6.16); asked once, of a doorbell that was made here or by whom we trust.
fn descriptors_are_refused(listener: BorrowedFd<'_>) -> bool {
    static REFUSED: OnceLock<bool> = OnceLock::new();
    *REFUSED.get_or_init(|| crate::descriptors::refuse_descriptors(listener).unwrap_or(false))
}

/// Receives a ring: how long it is. Where descriptors may come along, it is looked at before it is taken, and what has some is not: discarding them would close a
/// stranger's files.
fn receive(listener: BorrowedFd<'_>, is_safe: bool) -> rustix::io::Result<usize> {
    if !is_safe {
        match crate::descriptors::brings_descriptors(listener) {
            Ok(false) => {}
            Ok(true) => return Ok(0),
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
    let mut byte = [0];
    rustix::io::retry_on_intr(|| recv(listener, &mut byte, RecvFlags::DONTWAIT)).map(|(_, length)| length)
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

/// Looks whether a descriptor that somebody passed us is this half of a doorbell, a socket or a pipe. Of sockets whose other half is gone either is.
///
/// # Errors
/// Those of fstat(2), fcntl(2), getsockopt(2) and poll(2).
pub fn is_half(descriptor: impl AsFd, half: Half) -> io::Result<bool> {
    let descriptor = descriptor.as_fd();
    let stat = rustix::fs::fstat(descriptor)?;
    let flags = rustix::fs::fcntl_getfl(descriptor)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => is_half_of_sockets(descriptor, half),
        FileType::Fifo if flags.contains(OFlags::NONBLOCK) => {
            let expected = match half {
                Half::Listener => OFlags::RDONLY,
                Half::Ringer => OFlags::RDWR,
            };
            Ok(flags & OFlags::RWMODE == expected)
        }
        _ => Ok(false),
    }
}

/// The listener's can't send, so there the ringer's has nothing more to receive.
fn is_half_of_sockets(socket: BorrowedFd<'_>, half: Half) -> io::Result<bool> {
    if sockopt::socket_domain(socket)? != AddressFamily::UNIX
        || sockopt::socket_type(socket)? != SocketType::SEQPACKET
        || sockopt::socket_acceptconn(socket)?
    {
        return Ok(false);
    }
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&Timespec::default())))?;
    let said = polled[0].revents();
    Ok(said.contains(PollFlags::HUP) || said.contains(PollFlags::RDHUP) == (half == Half::Ringer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::send_with_descriptors;
    use rustix::pipe::splice;
    use std::thread;

    type Make = fn() -> io::Result<(OwnedFd, OwnedFd)>;
    const BOTH: [Make; 2] = [pair, pipe_pair];

    /// Listens until it is silent or dead; how many rings there were, and the last that was heard.
    fn all(listener: &OwnedFd) -> (usize, Heard) {
        let mut rings = 0;
        loop {
            match listen(listener).unwrap() {
                Heard::Ring => rings += 1,
                other => return (rings, other),
            }
        }
    }

    #[test]
    fn rings_are_heard_and_then_death() {
        for make in BOTH {
            let (listener, ringer) = make().unwrap();
            assert_eq!(listen(&listener).unwrap(), Heard::Silence);
            ring(&ringer).unwrap();
            ring_warily(&ringer).unwrap();
            assert!(!is_dead(&listener).unwrap() && is_readable(&listener).unwrap());
            let (rings, then) = all(&listener);
            assert!((1..=2).contains(&rings) && then == Heard::Silence);
            assert!(!is_readable(&listener).unwrap());
            ring(&ringer).unwrap();
            drop(ringer);
            assert!(is_dead(&listener).unwrap() && is_readable(&listener).unwrap());
            assert_eq!(all(&listener), (1, Heard::Death));
            assert_eq!(all(&listener), (0, Heard::Death));
        }
    }

    #[test]
    fn a_ringer_that_somebody_made_blocking_does_not_block_who_is_wary() {
        for make in BOTH {
            let (listener, ringer) = make().unwrap();
            rustix::fs::fcntl_setfl(&ringer, OFlags::empty()).unwrap();
            for _ in 0..100_000 {
                ring_warily(&ringer).unwrap();
            }
            assert_eq!(listen(&listener).unwrap(), Heard::Ring);
        }
    }

    #[test]
    fn a_listener_that_somebody_made_blocking_blocks_nobody() {
        for make in BOTH {
            let (listener, ringer) = make().unwrap();
            let mut bytes = [0];
            let nothing = rustix::io::preadv2(
                &listener,
                &mut [IoSliceMut::new(&mut bytes)],
                u64::MAX,
                ReadWriteFlags::NOWAIT,
            );
            if nothing == Err(Errno::OPNOTSUPP) {
                println!("skipped: this kernel reads no pipe without waiting (Linux 6.4 does)");
                continue;
            }
            rustix::fs::fcntl_setfl(&listener, OFlags::empty()).unwrap();
            assert_eq!(listen(&listener).unwrap(), Heard::Silence);
            ring(&ringer).unwrap();
            assert_eq!(listen(&listener).unwrap(), Heard::Ring);
        }
    }

    /// Whoever splices from a pipe or into one may hold its lock for as long as he likes; of a socket nobody can.
    #[test]
    fn who_splices_holds_up_nobody() {
        let (heard, rung) = pair().unwrap();
        let (hears, rings) = pair().unwrap();
        // What the peer has: the ringer of ours, and the listener of its own.
        let (theirs, its_own) = (rung.try_clone().unwrap(), hears.try_clone().unwrap());
        let (empty, fill) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (drain, full) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&theirs, OFlags::empty()).unwrap();
        rustix::fs::fcntl_setfl(&its_own, OFlags::empty()).unwrap();
        let into = thread::spawn(move || splice(&empty, None, &theirs, None, 100, SpliceFlags::empty()));
        let from = thread::spawn(move || splice(&its_own, None, &full, None, 100, SpliceFlags::empty()));
        for _ in 0..1000 {
            assert_eq!(listen(&heard).unwrap(), Heard::Silence);
            ring(&rings).unwrap();
            ring(&rung).unwrap();
            assert_eq!(all(&heard), (1, Heard::Silence));
        }
        drop((heard, rings, rung, hears));
        // What waits ends with what it waits for.
        drop((fill, drain));
        // Whether it was an error is the kernel's choice.
        let _ended = (into.join().unwrap(), from.join().unwrap());
    }

    #[test]
    fn descriptors_are_not_taken() {
        // As a kernel that refuses them has it.
        let (listener, ringer) = pair().unwrap();
        let gift = std::fs::File::open("/dev/null").unwrap();
        if crate::descriptors::refuse_descriptors(&listener).unwrap() {
            assert!(send_with_descriptors(&ringer, b"!", &[gift.as_fd()]).is_err());
            assert_eq!(all(&listener), (0, Heard::Silence));
        }
        // As one has it that can't.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let sockets = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (listener, ringer) = sockets.unwrap();
        ring(&ringer).unwrap();
        send_with_descriptors(&ringer, b"!", &[gift.as_fd()]).unwrap();
        assert_eq!(receive(listener.as_fd(), false), Ok(1));
        assert_eq!(receive(listener.as_fd(), false), Ok(0), "as good as dead");
        assert!(crate::descriptors::brings_descriptors(&listener).unwrap(), "and still there");
    }

    #[test]
    fn the_listener_says_nothing() {
        let (listener, ringer) = pair().unwrap();
        assert_eq!(send(&listener, b"!", SendFlags::NOSIGNAL), Err(Errno::PIPE));
        assert_eq!(recv(&ringer, &mut [0], RecvFlags::DONTWAIT).unwrap().1, 0);
    }

    #[test]
    fn what_a_wary_ring_copies_is_told_from_another_pipe() {
        let (listener, ringer) = pipe_pair().unwrap();
        ring_warily(ringer.as_fd()).unwrap();
        assert_eq!(listen(&listener).unwrap(), Heard::Ring);
        assert!(is_loaded(clapper().unwrap()));
        assert!(!is_loaded(listener.as_fd()), "an empty pipe is no clapper");
    }

    #[test]
    fn ringing_never_blocks_nor_fails() {
        for make in BOTH {
            let (listener, ringer) = make().unwrap();
            for _ in 0..100_000 {
                ring(&ringer).unwrap();
            }
            drop(listener);
            ring(&ringer).unwrap();
            ring_warily(&ringer).unwrap();
        }
    }

    #[test]
    fn the_halves_do_not_share_their_flags() {
        for make in BOTH {
            let (listener, ringer) = make().unwrap();
            rustix::fs::fcntl_setfl(&listener, OFlags::empty()).unwrap();
            assert!(rustix::fs::fcntl_getfl(&ringer).unwrap().contains(OFlags::NONBLOCK));
        }
    }

    #[test]
    fn halves_are_told_apart() {
        use Half::{Listener, Ringer};
        for make in BOTH {
            let (listener, ringer) = make().unwrap();
            assert!(is_half(&listener, Listener).unwrap() && !is_half(&listener, Ringer).unwrap());
            assert!(is_half(&ringer, Ringer).unwrap() && !is_half(&ringer, Listener).unwrap());
            drop(ringer);
            assert!(is_half(&listener, Listener).unwrap(), "one that is dead, too");
        }
        let event = crate::eventfd::Eventfd::new().unwrap();
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for other in [event.as_fd(), stream.as_fd()] {
            assert!(!is_half(other, Listener).unwrap() && !is_half(other, Ringer).unwrap());
        }
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
