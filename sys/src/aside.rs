//! Pipes of strangers, which a thread of its own reads or writes.
//!
//! A process that splices into a pipe or out of it (splice(2), sendfile(2), and so cat(1) of some
//! systems) holds the pipe's lock for as long as the *other* file makes it wait. Everybody else who
//! reads or writes the pipe meanwhile waits in the kernel, and can't be killed there, whatever the
//! flags of the open file say: a reader of the output of a process may so be stopped by that
//! process for as long as it likes. Therefore nobody who has anything else to do touches such a
//! pipe: a thread does, and passes on by a socket, which nobody else has.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

/// The number of bytes that is passed on at once: the default capacity of a pipe.
const CHUNK_BYTES: usize = 64 * 1024;
/// The bytes that a socket takes before its writer waits; the kernel makes it twice as much, for
/// what it needs itself.
const SOCKET_BYTES: usize = 64 * 1024;
/// The bytes that may be on their way between a pipe and its reader or writer aside.
pub const HELD_BYTES: usize = CHUNK_BYTES + 2 * SOCKET_BYTES;
/// Stack of a thread, in bytes: it makes system calls.
const STACK_BYTES: usize = 64 * 1024;

/// Reads the pipe from now on. The socket, which is non-blocking, brings what came out of it, and
/// its end when nobody can write any more. The pipe is closed when the socket is.
///
/// # Errors
/// Those of socketpair(2), fcntl(2) and of starting a thread.
pub fn reader(pipe: OwnedFd) -> io::Result<OwnedFd> {
    let (ours, theirs) = sockets()?;
    pass_out_of(pipe, theirs)?;
    Ok(ours)
}

/// As [`reader`], by a thread of this process for whoever has the other half of `socket`, of
/// [`sockets`]. It ends with the pipe.
///
/// # Errors
/// Those of fcntl(2) and of starting a thread.
pub fn pass_out_of(pipe: OwnedFd, socket: OwnedFd) -> io::Result<JoinHandle<()>> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    beside("pipe reader", pipe, socket, |pipe, socket| {
        let mut bytes = vec![0; CHUNK_BYTES];
        loop {
            let mut set = [PollFd::new(pipe, PollFlags::IN), PollFd::new(socket, PollFlags::RDHUP)];
            if retry_on_intr(|| poll(&mut set, None)).is_err() {
                return;
            }
            let said = set[1].revents();
            if said.intersects(PollFlags::HUP | PollFlags::ERR) {
                return;
            }
            match rustix::io::read(pipe, &mut *bytes) {
                Ok(length) if length > 0 => {
                    if !give(bytes.get(..length).unwrap_or_default(), |rest| {
                        send(socket, rest, SendFlags::NOSIGNAL)
                    }) {
                        return;
                    }
                }
                Err(Errno::AGAIN) if !said.contains(PollFlags::RDHUP) => {}
                Err(Errno::INTR) => {}
                _ => return,
            }
        }
    })
}

/// Nobody waits for more than is in the pipe: the end comes behind that, whoever may write to it
/// still. Where somebody holds the pipe, it comes when they let go.
pub fn finish(reader: impl AsFd) {
    // It may have ended by itself.
    let _ended = rustix::net::shutdown(reader, Shutdown::Write);
}

/// Writes to the pipe from now on what is written to the socket, which is non-blocking. When the
/// socket is closed, or shut down, the pipe is closed behind that; when nobody can read the pipe
/// any more, writing to the socket fails.
///
/// # Errors
/// Those of socketpair(2) and of starting a thread.
pub fn writer(pipe: OwnedFd) -> io::Result<OwnedFd> {
    let (ours, theirs) = sockets()?;
    pass_into(pipe, theirs)?;
    Ok(ours)
}

/// As [`writer`], by a thread of this process for whoever has the other half of `socket`, of
/// [`sockets`]. It ends with the pipe.
///
/// # Errors
/// That of starting a thread.
pub fn pass_into(pipe: OwnedFd, socket: OwnedFd) -> io::Result<JoinHandle<()>> {
    beside("pipe writer", pipe, socket, |pipe, socket| {
        let mut bytes = vec![0; CHUNK_BYTES];
        while let Ok((_, length)) = retry_on_intr(|| recv(socket, &mut *bytes, RecvFlags::empty())) {
            let rest = bytes.get(..length).unwrap_or_default();
            if rest.is_empty() || !give(rest, |rest| rustix::io::write(pipe, rest)) {
                return;
            }
        }
    })
}

/// The sockets between a pipe's thread and who uses it: that one's first, which is non-blocking.
///
/// # Errors
/// Those of socketpair(2), setsockopt(2) and fcntl(2).
pub fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    for end in [&ours, &theirs] {
        rustix::net::sockopt::set_socket_send_buffer_size(end, SOCKET_BYTES)?;
    }
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

fn beside(
    name: &str,
    pipe: OwnedFd,
    socket: OwnedFd,
    work: impl FnOnce(&OwnedFd, &OwnedFd) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || {
        work(&pipe, &socket);
        // In this order, so that who hears of the end finds the pipe closed.
        drop(pipe);
        drop(socket);
    })
}

/// Passes on all of it; false where nobody takes it any more.
fn give(bytes: &[u8], mut write: impl FnMut(&[u8]) -> rustix::io::Result<usize>) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        match retry_on_intr(|| write(rest)) {
            Ok(length) if length > 0 => rest = rest.get(length..).unwrap_or_default(),
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    /// As a user of it waits.
    fn read(socket: &OwnedFd, bytes: &mut [u8]) -> usize {
        poll(&mut [PollFd::new(socket, PollFlags::IN)], None).unwrap();
        rustix::io::read(socket, bytes).unwrap()
    }

    #[test]
    fn what_is_written_comes_out_and_then_the_end() {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let socket = reader(out).unwrap();
        let text: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
        let written = text.clone();
        let writer = std::thread::spawn(move || std::fs::File::from(into).write_all(&written).unwrap());
        let (mut all, mut bytes) = (Vec::new(), vec![0; 10_000]);
        loop {
            match read(&socket, &mut bytes) {
                0 => break,
                length => all.extend_from_slice(&bytes[..length]),
            }
        }
        writer.join().unwrap();
        assert!(all == text);
    }

    #[test]
    fn who_has_finished_hears_what_is_there_and_the_end_though_others_can_write() {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let socket = reader(out).unwrap();
        rustix::io::write(&into, b"last words").unwrap();
        finish(&socket);
        let mut bytes = [0; 100];
        assert_eq!(read(&socket, &mut bytes), 10);
        assert_eq!(read(&socket, &mut bytes), 0);
        // Who writes still finds that nobody reads.
        assert_eq!(rustix::io::write(&into, b"more"), Err(Errno::PIPE));
    }

    #[test]
    fn who_splices_stops_nobody_but_the_thread() {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (mut far, near) = UnixStream::pair().unwrap();
        let socket = reader(out).unwrap();
        let splicer = std::thread::spawn(move || splice(&near, None, &into, None, 100, SpliceFlags::empty()));
        // The pipe's lock is held until `far` says something: nothing comes, and nobody waits.
        assert_eq!(rustix::io::read(&socket, &mut [0; 10]), Err(Errno::AGAIN));
        far.write_all(b"at last").unwrap();
        let mut bytes = [0; 100];
        assert_eq!(read(&socket, &mut bytes), 7);
        splicer.join().unwrap().unwrap();
        assert_eq!(read(&socket, &mut bytes), 0);
    }

    #[test]
    fn input_goes_in_and_its_end_behind_it() {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let socket = writer(into).unwrap();
        assert_eq!(rustix::io::write(&socket, b"some input"), Ok(10));
        drop(socket);
        let mut text = String::new();
        std::fs::File::from(out).read_to_string(&mut text).unwrap();
        assert_eq!(text, "some input");
    }

    #[test]
    fn who_writes_for_nobody_is_told() {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let socket = writer(into).unwrap();
        drop(out);
        rustix::io::write(&socket, b"lost").unwrap();
        poll(&mut [PollFd::new(&socket, PollFlags::RDHUP)], None).unwrap();
        assert_eq!(send(&socket, b"more", SendFlags::NOSIGNAL), Err(Errno::PIPE));
    }
}
