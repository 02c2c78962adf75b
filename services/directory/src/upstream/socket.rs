//! Non-blocking sockets to upstreams in the server's loop, and the pool of those that may be used again.
//!
//! Each UDP socket is connected (the kernel drops what does not come from the upstream's address and port) and serves
//! one query at a time. The kernel gives each a random source port. A clean socket goes back to a pool and is used for
//! [`MAX_USES`] queries or [`MAX_AGE`], whichever ends first: off-path guessers have to find both the port and a
//! 16-bit id, and a port that they might find is soon gone.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with, sockopt,
};
use rustix::rand::{GetRandomFlags, getrandom};
use session::{Context, Interest};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Queries that one source port serves.
const MAX_USES: u32 = 16;
/// Longest time that one source port is in use.
const MAX_AGE: Duration = Duration::from_secs(2);
/// Idle sockets kept for one upstream: with fewer than are busy at once, those beyond would be made anew for each query.
const MAX_IDLE: usize = 256;
/// Sockets open at a time, all domains together. The per-domain quota of outstanding requests is what divides them;
/// this stands before the process's limit of descriptors.
const MAX_SOCKETS: usize = 4096;
/// Random bytes fetched from the kernel at a time.
const RANDOM_BYTES: usize = 512;

/// What a socket speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Datagrams.
    Udp,
    /// A stream, for answers that do not fit.
    Tcp,
}

#[derive(Debug)]
struct Socket {
    descriptor: OwnedFd,
    upstream: SocketAddr,
    protocol: Protocol,
    opened: Instant,
    uses: u32,
    /// Which look-up waits on it; `None`: it is idle.
    owner: Option<u64>,
}

/// Sockets, by the token under which the loop watches them.
#[derive(Debug)]
pub struct Sockets {
    slots: Vec<Option<Socket>>,
    free: Vec<u32>,
    idle: HashMap<SocketAddr, Vec<u32>>,
    random: Vec<u8>,
    opened: u64,
    reused: u64,
}

impl Default for Sockets {
    fn default() -> Self {
        let (slots, free, random) = (Vec::new(), Vec::new(), Vec::new());
        Self { slots, free, idle: HashMap::new(), random, opened: 0, reused: 0 }
    }
}

impl Sockets {
    /// A number nobody can guess.
    ///
    /// # Errors
    /// What `getrandom` says; on Linux there is nothing that it could say once the machine is up.
    pub fn random(&mut self) -> Result<u16, Errno> {
        if self.random.len() < 2 {
            let mut bytes = [0; RANDOM_BYTES];
            let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
            self.random.extend_from_slice(bytes.get(..filled).unwrap_or_default());
        }
        match (self.random.pop(), self.random.pop()) {
            (Some(high), Some(low)) => Ok(u16::from_be_bytes([high, low])),
            _ => Err(Errno::IO),
        }
    }

    /// How many are open, idle ones included.
    pub fn open_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many were opened, and how often one was used again, since the start.
    pub const fn counts(&self) -> (u64, u64) {
        (self.opened, self.reused)
    }

    /// Which look-up waits on the socket with this token.
    pub fn owner(&self, token: u32) -> Option<u64> {
        self.get(token).and_then(|socket| socket.owner)
    }

    fn get(&self, token: u32) -> Option<&Socket> {
        self.slots.get(token as usize).and_then(Option::as_ref)
    }

    /// A random idle socket to `upstream` that is still good.
    pub fn take_idle(
        &mut self,
        ctx: &mut dyn Context,
        upstream: SocketAddr,
        owner: u64,
        now: Instant,
    ) -> Result<Option<u32>, Errno> {
        while self.idle.get(&upstream).is_some_and(|list| !list.is_empty()) {
            let choice = usize::from(self.random()?);
            let Some(list) = self.idle.get_mut(&upstream) else { break };
            let token = list.swap_remove(choice % list.len());
            match self.slots.get_mut(token as usize).and_then(Option::as_mut) {
                Some(socket) if now.saturating_duration_since(socket.opened) < MAX_AGE => {
                    socket.owner = Some(owner);
                    self.reused += 1;
                    return Ok(Some(token));
                }
                _ => self.close(ctx, token),
            }
        }
        Ok(None)
    }

    /// Opens a socket for `owner` and watches it.
    ///
    /// # Errors
    /// [`Errno::NFILE`] at [`MAX_SOCKETS`], and what `socket` and `epoll_ctl` say.
    pub fn open(
        &mut self,
        ctx: &mut dyn Context,
        upstream: SocketAddr,
        protocol: Protocol,
        owner: u64,
        now: Instant,
    ) -> Result<u32, Errno> {
        if self.open_count() >= MAX_SOCKETS {
            return Err(Errno::NFILE);
        }
        let family = if upstream.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let kind = if protocol == Protocol::Udp { SocketType::DGRAM } else { SocketType::STREAM };
        let descriptor = socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        let token =
            self.free.last().copied().unwrap_or_else(|| u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        let interest = if protocol == Protocol::Udp { Interest::Read } else { Interest::Both };
        ctx.watch(descriptor.as_fd(), token, interest).map_err(|error| errno_of(&error))?;
        let socket = Socket { descriptor, upstream, protocol, opened: now, uses: 0, owner: Some(owner) };
        self.free.pop();
        match self.slots.get_mut(token as usize) {
            Some(slot) => *slot = Some(socket),
            None => self.slots.push(Some(socket)),
        }
        self.opened += 1;
        Ok(token)
    }

    /// Connects a socket to its upstream. A stream that is still on its way is no error.
    ///
    /// # Errors
    /// What `connect` says.
    pub fn connect(&self, token: u32) -> Result<(), Errno> {
        let socket = self.get(token).ok_or(Errno::BADF)?;
        match connect(&socket.descriptor, &socket.upstream) {
            Err(Errno::INPROGRESS) | Ok(()) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Whether a stream has connected; the error, if it could not.
    ///
    /// # Errors
    /// What `SO_ERROR` holds; [`Errno::AGAIN`] while it is on its way.
    pub fn connected(&self, token: u32) -> Result<(), Errno> {
        let socket = self.get(token).ok_or(Errno::BADF)?;
        sockopt::socket_error(&socket.descriptor)??;
        let mut ready = [PollFd::new(&socket.descriptor, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut ready, Some(&at_once))? == 0 { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// Sends; how many bytes went.
    ///
    /// # Errors
    /// What `send` says.
    pub fn send(&mut self, token: u32, bytes: &[u8]) -> Result<usize, Errno> {
        let socket = self.slots.get_mut(token as usize).and_then(Option::as_mut).ok_or(Errno::BADF)?;
        socket.uses += 1;
        send(&socket.descriptor, bytes, SendFlags::NOSIGNAL)
    }

    /// Receives; how many bytes came.
    ///
    /// # Errors
    /// What `recv` says.
    pub fn receive(&self, token: u32, buffer: &mut [u8]) -> Result<usize, Errno> {
        let socket = self.get(token).ok_or(Errno::BADF)?;
        recv(&socket.descriptor, buffer, RecvFlags::empty()).map(|(_, came)| came)
    }

    /// A stream that has sent everything wants only to read from now on.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub fn only_read(&self, ctx: &mut dyn Context, token: u32) -> Result<(), Errno> {
        let socket = self.get(token).ok_or(Errno::BADF)?;
        ctx.rewatch(socket.descriptor.as_fd(), token, Interest::Read).map_err(|error| errno_of(&error))
    }

    /// Gives a socket back after a clean answer: kept if it may be used again.
    pub fn give_back(&mut self, ctx: &mut dyn Context, token: u32, now: Instant) {
        let Some(socket) = self.slots.get_mut(token as usize).and_then(Option::as_mut) else { return };
        let fresh = socket.uses < MAX_USES && now.saturating_duration_since(socket.opened) < MAX_AGE;
        socket.owner = None;
        let upstream = socket.upstream;
        if fresh && socket.protocol == Protocol::Udp {
            let list = self.idle.entry(upstream).or_default();
            if list.len() < MAX_IDLE {
                list.push(token);
                return;
            }
        }
        self.close(ctx, token);
    }

    /// Closes a socket. What may still come to it reaches nobody.
    pub fn close(&mut self, ctx: &mut dyn Context, token: u32) {
        let Some(socket) = self.slots.get_mut(token as usize).and_then(Option::take) else { return };
        if let Err(error) = ctx.unwatch(socket.descriptor.as_fd()) {
            tracing::warn!(%error, "an upstream's socket could not be taken out of the loop");
        }
        self.free.push(token);
    }

    /// Something came to a socket that nobody waits on: it is of no use any more.
    pub fn retire_idle(&mut self, ctx: &mut dyn Context, token: u32) {
        let Some(socket) = self.get(token) else { return };
        let upstream = socket.upstream;
        if let Some(list) = self.idle.get_mut(&upstream) {
            list.retain(|&other| other != token);
        }
        self.close(ctx, token);
    }

    /// Closes all idle sockets: the upstreams have changed.
    pub fn retire_all_idle(&mut self, ctx: &mut dyn Context) {
        for token in std::mem::take(&mut self.idle).into_values().flatten() {
            self.close(ctx, token);
        }
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
