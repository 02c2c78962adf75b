//! Sockets with a stranger at the other end, and how they are let go of.
//!
//! A process that takes or closes a Unix socket also closes the descriptors that were sent there
//! and that nobody took. The last reference to a stranger's file may take as long to close as the
//! stranger likes: a TCP socket that lingers (`SO_LINGER`) for an hour does. That must not be the
//! event loop's hour. So such sockets refuse descriptors where the kernel can (Linux 6.16);
//! elsewhere they are closed by threads of their own, of which a domain has a bounded number.

use super::watched;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::OwnedSemaphorePermit;

/// Stack of a thread that closes one socket, in bytes.
const STACK_BYTES: usize = 64 * 1024;

/// A socket of a stranger's, watched by the event loop.
#[derive(Debug)]
pub(crate) struct Guarded {
    /// There until this is dropped.
    socket: Option<AsyncFd<OwnedFd>>,
    /// Whether closing it may take long.
    slow: bool,
    /// Given back when it is closed.
    room: Option<OwnedSemaphorePermit>,
}

impl Guarded {
    /// Has the loop watch a non-blocking socket; `room` is kept until the socket is closed.
    ///
    /// # Errors
    /// Those of `epoll_ctl`.
    pub(crate) fn new(
        socket: OwnedFd,
        interest: Interest,
        room: Option<OwnedSemaphorePermit>,
    ) -> io::Result<Self> {
        let slow = sys::descriptors::may_carry_descriptors(&socket);
        Ok(Self { socket: Some(watched(socket, interest)?), slow, room })
    }

    /// Whether the next packet brings descriptors: then nothing of it is to be taken.
    ///
    /// # Errors
    /// `WouldBlock` where there is no packet.
    pub(crate) fn brings_descriptors(&self) -> io::Result<bool> {
        Ok(self.slow && sys::descriptors::brings_descriptors(self.get_ref())?)
    }
}

impl Deref for Guarded {
    type Target = AsyncFd<OwnedFd>;

    fn deref(&self) -> &Self::Target {
        match &self.socket {
            Some(socket) => socket,
            None => unreachable!("it is taken only when this is dropped"),
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        let (socket, room) = (socket.into_inner(), self.room.take());
        if !self.slow {
            return;
        }
        let closer = std::thread::Builder::new().name("close-socket".into()).stack_size(STACK_BYTES);
        let close = move || {
            drop(socket);
            drop(room);
        };
        if let Err(error) = closer.spawn(close) {
            tracing::warn!(%error, "no thread to close a socket: it was closed by the event loop");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use tokio::sync::Semaphore;

    /// How long the stranger's file takes to close: far longer than anything else here.
    const LINGER: Duration = Duration::from_secs(3);

    /// A connection that has sent more than its peer reads, and whose last close waits for that.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 65_536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&stream, Some(LINGER)).unwrap();
        (stream, peer)
    }

    // A container without any privilege once held up the whole daemon for as long as it liked: it
    // sent, with a harmless request, the last descriptor of a TCP socket that lingers.
    #[tokio::test]
    async fn a_descriptor_that_takes_long_to_close_does_not_hold_up_the_loop() {
        let (stream, _peer) = lingering();
        let (theirs, ours) = sys::descriptors::socket_pair().unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        let room = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&room).acquire_owned().await.unwrap();
        let guarded = Guarded::new(ours, Interest::READABLE, Some(permit)).unwrap();
        assert_eq!(guarded.brings_descriptors().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        sys::descriptors::send_with_descriptors(&theirs, b"{}", &[stream.as_fd()]).unwrap();
        drop(stream);
        assert!(guarded.brings_descriptors().unwrap());
        let begun = Instant::now();
        drop(guarded);
        assert!(begun.elapsed() < LINGER / 3, "the loop waited for a stranger's file");
        // The room is taken until it is over, so that there are not more and more of them.
        assert_eq!(room.available_permits(), 0);
        drop(room.acquire().await.unwrap());
        assert!(begun.elapsed() > LINGER / 3, "nothing lingered: the test shows nothing");
    }
}
