//! Doorbells between domains that do not trust each other, which tell of death as well.
//!
//! A doorbell is a pair of Unix sockets, of which the ringer and the listener hold one each. To
//! ring is to write a byte, to listen is to receive one. The listener's half can't send, takes no
//! descriptors (closing a stranger's file may block), and hangs up when the ringer dies. A peer
//! can't make any of these calls wait: a sender takes no lock that sleeps, the lock of those who
//! receive is the listener's own, and the flags of an open file are changed by those alone who have
//! it: nobody else has a copy of our halves. Where somebody may have (whoever made them, if it was
//! a stranger), [`ring_warily`] says itself that it does not wait.
//!
//! That a ring is *written* is for who can't listen to a socket: inotify(7) tells of writes, to
//! whoever has the [`sight`] of the ringer's half. So the kernel itself passes rings on to a
//! hypervisor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, sockopt,
};
use rustix::pipe::PipeFlags;

/// Bytes of the kernel's memory that a ringer may fill; some rings, and the least that sockets
/// have. A peer can make its own larger, up to what the system allows.
const SOCKET_BYTES: usize = 4096;
/// Rings that fit any doorbell before it is full: of a few it is certain that none was lost.
const FEW_RINGS: usize = 4;
/// Rings taken off at one look at the most, so that a peer that rings all the time keeps nobody
/// listening.
const MAX_RINGS: usize = 1024;

/// The outcome of a listener's look.
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
    let (listener, ringer) = spacious_pair()?;
    sockopt::set_socket_send_buffer_size(&ringer, SOCKET_BYTES)?;
    Ok((listener, ringer))
}

/// The same with room for as many rings as the system lets a socket have, some hundred: for who
/// listens once in a while, because somebody else tells of each ring ([`sight`]). A full doorbell
/// takes no ring, and then nobody is told.
///
/// # Errors
/// Those of socketpair(2).
pub fn spacious_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (listener, ringer) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    crate::descriptors::refuse_descriptors(&listener)?;
    // So the listener can put nothing into the ringer's half, and the two can be told apart.
    rustix::net::shutdown(&listener, Shutdown::Write)?;
    Ok((listener, ringer))
}

/// A descriptor of the half that can be watched for rings (inotify(7), `IN_MODIFY`), and nothing
/// else: who has it can neither ring nor listen, and keeps no half from hanging up.
///
/// # Errors
/// Those of opening `/proc/self/fd/N`: `/proc` must be mounted.
pub fn sight(ringer: impl AsFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", ringer.as_fd().as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether a descriptor may be a [`sight`]: a socket that can be named, and not used.
///
/// # Errors
/// Those of fstat(2) and fcntl(2).
pub fn is_sight(descriptor: impl AsFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(&descriptor)?;
    let flags = rustix::fs::fcntl_getfl(&descriptor)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Socket && flags.contains(OFlags::PATH))
}

/// Makes what tells of an end's life beside other doorbells, and carries nothing: a pipe. Its
/// reading half hangs up, or becomes readable, when who has the writing half is gone, or says so;
/// the writing half tells when nobody has the reading half any more.
///
/// # Errors
/// Those of pipe(2).
pub fn life() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// Whether a descriptor is the reading half of a pipe that makes nobody wait, as [`life`] makes it.
///
/// # Errors
/// Those of fstat(2) and fcntl(2).
pub fn is_life(descriptor: impl AsFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(&descriptor)?;
    let flags = rustix::fs::fcntl_getfl(&descriptor)?;
    let reads = flags.contains(OFlags::NONBLOCK) && flags & OFlags::RWMODE == OFlags::RDONLY;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Fifo && reads)
}

/// Rings. Never blocks, as long as nobody else has a copy of the half; a full doorbell has rings
/// unheard already, and where nobody listens any more nobody is rung (and no signal raised: Unix
/// sockets of this type raise none).
///
/// # Errors
/// Those of write(2).
pub fn ring(ringer: impl AsFd) -> io::Result<()> {
    let ringer = ringer.as_fd();
    rung(rustix::io::retry_on_intr(|| rustix::io::write(ringer, &[1])))
}

/// Rings, and never blocks even if somebody has kept a copy of the half and made it blocking: that
/// it does not wait is asked of the call. Nobody who watches is told of such a ring.
///
/// # Errors
/// Those of send(2).
pub fn ring_warily(ringer: impl AsFd) -> io::Result<()> {
    let (ringer, flags) = (ringer.as_fd(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    rung(rustix::io::retry_on_intr(|| send(ringer, &[1], flags)))
}

fn rung(done: rustix::io::Result<usize>) -> io::Result<()> {
    match done {
        Ok(_) | Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET | Errno::CONNREFUSED | Errno::NOTCONN) => {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Takes a ring off, or hears that there is none. Never blocks, as long as nobody else has a copy
/// of the half.
///
/// # Errors
/// Those of recv(2).
pub fn listen(listener: impl AsFd) -> io::Result<Heard> {
    let listener = listener.as_fd();
    match receive(listener, descriptors_are_refused(listener)) {
        // An empty message is none of ours: a peer that breaks the rules is as good as dead.
        Ok(0) => Ok(Heard::Death),
        Ok(_) => Ok(Heard::Ring),
        Err(Errno::AGAIN) => Ok(Heard::Silence),
        Err(error) => Err(error.into()),
    }
}

/// Takes all rings off, but for those of a peer that rings all the time. Whether there were so many
/// that the doorbell may have been full, and have lost some. Never blocks; a death is heard by
/// [`listen`] behind it.
///
/// # Errors
/// Those of [`listen`].
pub fn take_all(listener: impl AsFd) -> io::Result<bool> {
    let mut rings = 0;
    while rings < MAX_RINGS && listen(&listener)? == Heard::Ring {
        rings += 1;
    }
    Ok(rings > FEW_RINGS)
}

/// Whether the kernel sees to it that no descriptors come (Linux 6.16); asked once, of a doorbell
/// that was made here or by whom we trust.
fn descriptors_are_refused(listener: BorrowedFd<'_>) -> bool {
    static REFUSED: OnceLock<bool> = OnceLock::new();
    *REFUSED.get_or_init(|| crate::descriptors::refuse_descriptors(listener).unwrap_or(false))
}

/// Receives a ring: how long it is. Where descriptors may come along, it is looked at before it is
/// taken, and what has some is not: discarding them would close a stranger's files.
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

/// Whether nobody is left who could ring. Takes no ring off, never blocks.
///
/// # Errors
/// Those of poll(2).
pub fn is_dead(listener: impl AsFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(&listener, PollFlags::empty())];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&Timespec::default())))?;
    Ok(polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}

/// Whether a descriptor has something to read or has hung up. Takes nothing off, never blocks.
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

/// The two halves of a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// It can be listened to.
    Listener,
    /// It can be rung.
    Ringer,
}

/// Looks whether a descriptor that somebody passed us is this half of a doorbell. Of one whose
/// other half is gone either is.
///
/// # Errors
/// Those of fstat(2), getsockopt(2) and poll(2).
pub fn is_half(descriptor: impl AsFd, half: Half) -> io::Result<bool> {
    let socket = descriptor.as_fd();
    let stat = rustix::fs::fstat(socket)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket
        || rustix::fs::fcntl_getfl(socket)?.contains(OFlags::PATH)
        || sockopt::socket_domain(socket)? != AddressFamily::UNIX
        || sockopt::socket_type(socket)? != SocketType::SEQPACKET
        || sockopt::socket_acceptconn(socket)?
    {
        return Ok(false);
    }
    // The listener's can't send, so there the ringer's has nothing more to receive.
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&Timespec::default())))?;
    let said = polled[0].revents();
    Ok(said.contains(PollFlags::HUP) || said.contains(PollFlags::RDHUP) == (half == Half::Ringer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::send_with_descriptors;
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use rustix::pipe::{SpliceFlags, splice};
    use std::thread;

    type Make = fn() -> io::Result<(OwnedFd, OwnedFd)>;
    const BOTH: [Make; 2] = [pair, spacious_pair];

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
            assert_eq!(all(&listener), (2, Heard::Silence));
            assert!(!is_readable(&listener).unwrap());
            ring(&ringer).unwrap();
            drop(ringer);
            assert!(is_dead(&listener).unwrap() && is_readable(&listener).unwrap());
            assert_eq!(all(&listener), (1, Heard::Death));
            assert_eq!(all(&listener), (0, Heard::Death));
        }
    }

    #[test]
    fn of_few_rings_none_is_lost() {
        for make in BOTH {
            let (listener, ringer) = make().unwrap();
            assert!(!take_all(&listener).unwrap());
            (0..FEW_RINGS).for_each(|_| ring(&ringer).unwrap());
            assert!(!take_all(&listener).unwrap(), "that fits");
            assert_eq!(listen(&listener).unwrap(), Heard::Silence);
            (0..10_000).for_each(|_| ring(&ringer).unwrap());
            assert!(take_all(&listener).unwrap());
            drop(ringer);
            assert!(!take_all(&listener).unwrap());
            assert_eq!(listen(&listener).unwrap(), Heard::Death);
        }
        let (listener, ringer) = spacious_pair().unwrap();
        (0..10_000).for_each(|_| ring(&ringer).unwrap());
        assert!(all(&listener).0 > 50);
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
        let (listener, ringer) = pair().unwrap();
        rustix::fs::fcntl_setfl(&listener, OFlags::empty()).unwrap();
        assert_eq!(listen(&listener).unwrap(), Heard::Silence);
        ring(&ringer).unwrap();
        assert_eq!(listen(&listener).unwrap(), Heard::Ring);
    }

    /// Whoever splices from a pipe or into one may hold its lock for as long as he likes; of a
    /// socket nobody can.
    #[test]
    fn who_splices_holds_up_nobody() {
        for make in BOTH {
            let (heard, rung) = make().unwrap();
            let (hears, rings) = make().unwrap();
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

    /// That nobody is there who listens kills no program that has left SIGPIPE as it was, as those
    /// in C have.
    #[test]
    fn who_rings_at_a_dead_listener_gets_no_signal() {
        let (listener, ringer) = pair().unwrap();
        drop(listener);
        let script = "printf x >&0; echo $?";
        let output = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(ringer)
            .stderr(std::process::Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.trim() != "0" && !said.is_empty(), "{said} {output:?}");
    }

    #[test]
    fn the_halves_do_not_share_their_flags() {
        let (listener, ringer) = pair().unwrap();
        rustix::fs::fcntl_setfl(&listener, OFlags::empty()).unwrap();
        assert!(rustix::fs::fcntl_getfl(&ringer).unwrap().contains(OFlags::NONBLOCK));
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
        let (hears, _says) = life().unwrap();
        let (_listener, ringer) = pair().unwrap();
        let sight = sight(&ringer).unwrap();
        for other in [event.as_fd(), stream.as_fd(), hears.as_fd(), sight.as_fd()] {
            assert!(!is_half(other, Listener).unwrap() && !is_half(other, Ringer).unwrap());
        }
        for other in [event.as_fd(), stream.as_fd(), hears.as_fd(), ringer.as_fd()] {
            assert!(!is_sight(other).unwrap());
        }
        assert!(is_sight(&sight).unwrap() && is_life(&hears).unwrap() && !is_life(&ringer).unwrap());
    }

    #[test]
    fn who_has_the_sight_is_told_of_rings_and_keeps_nobody_alive() {
        let (listener, ringer) = pair().unwrap();
        let sight = sight(&ringer).unwrap();
        assert_eq!(send(&sight, b"!", SendFlags::NOSIGNAL), Err(Errno::BADF));
        let instance = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        let path = format!("/proc/self/fd/{}", sight.as_raw_fd());
        inotify::add_watch(&instance, path, WatchFlags::MODIFY).unwrap();
        let told = || rustix::io::read(&instance, &mut [0; 64]).is_ok();
        assert!(!told());
        ring(&ringer).unwrap();
        assert!(told() && !told());
        drop(ringer);
        assert_eq!(all(&listener), (1, Heard::Death));
        assert!(!told());
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
