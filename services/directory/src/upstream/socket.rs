//! Non-blocking sockets to upstreams in the server's loop, and the pool of those that may be used
//! again.
//!
//! Each UDP socket is connected (the kernel drops what does not come from the upstream's address
//! and port) and serves one look-up at a time, or the two of one request, A and AAAA, which leave
//! with one system call and often come back with one. The kernel gives each a random source port. A
//! clean socket goes back to a pool and is used for [`MAX_USES`] queries or [`MAX_AGE`], whichever
//! ends first. Off-path guessers have to find both the port and a 16-bit id. Two questions behind
//! one port help them with neither: a guess is for one question, and has to have its id.

use super::outbox::Outbox;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with, sockopt,
};
use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use session::{Context, Interest};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Queries that one source port serves. What a port is worth to somebody who has found it out is
/// not bounded by this, but by two other things: the first packet that is no answer is the last of
/// its port (one that comes while the socket is idle closes it at once, one that comes during a
/// query keeps it out of the pool), and [`MAX_AGE`]. So this only has to be large enough that
/// opening and closing (five system calls) does not weigh on each query, and small enough that a
/// busy server's ports still change many times a second.
const MAX_USES: u32 = 128;
/// Longest time that one source port is in use.
const MAX_AGE: Duration = Duration::from_secs(2);
/// Idle sockets kept for one upstream: with fewer than are busy at once, those beyond would be made
/// anew for each query.
const MAX_IDLE: usize = 256;
/// Sockets open at a time, all domains together, where the process may have twice as many
/// descriptors: the rest are for channels.
const MAX_SOCKETS: usize = 4096;
/// Random bytes fetched from the kernel at a time.
const RANDOM_BYTES: usize = 512;
/// Look-ups that one UDP socket may have under way: A and AAAA of one request.
pub const MAX_WAITERS: usize = 2;

/// The protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Datagrams.
    Udp,
    /// A stream, for answers that do not fit.
    Tcp,
}

/// A look-up that waits on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter {
    /// The look-up.
    pub lookup: u64,
    /// The id of its query; no two on one socket have the same.
    pub message_id: u16,
}

/// The waiters on a socket.
#[derive(Debug, Clone, Copy)]
pub struct Audience {
    /// The socket's token.
    pub token: u32,
    /// The protocol that it speaks.
    pub protocol: Protocol,
    /// To whom.
    pub upstream: SocketAddr,
    waiters: [Option<Waiter>; MAX_WAITERS],
}

impl Audience {
    /// All of them; nobody: the socket is idle.
    pub fn waiters(&self) -> impl Iterator<Item = Waiter> {
        self.waiters.into_iter().flatten()
    }

    /// Returns the waiter that a packet is for, by its id.
    pub fn waiter_for(&self, packet: &[u8]) -> Option<Waiter> {
        let id = u16::from_be_bytes(*packet.first_chunk()?);
        self.waiters().find(|waiter| waiter.message_id == id)
    }
}

#[derive(Debug)]
struct Socket {
    descriptor: OwnedFd,
    upstream: SocketAddr,
    protocol: Protocol,
    opened: Instant,
    uses: u32,
    /// The waiters on it; none: it is idle.
    waiters: [Option<Waiter>; MAX_WAITERS],
    /// Something was unclean: it is not used again.
    spoiled: bool,
}

/// Sockets, by the token under which the loop watches them.
#[derive(Debug, Default)]
pub struct Sockets {
    slots: Vec<Option<Socket>>,
    free: Vec<u32>,
    idle: HashMap<SocketAddr, Vec<u32>>,
    random: Vec<u8>,
    opened: u64,
    reused: u64,
    /// How many may be open; 0: not asked for yet.
    most: usize,
    /// Queries that are to leave together.
    outbox: Outbox,
}

impl Sockets {
    /// A number nobody can guess.
    ///
    /// # Errors
    /// The error of `getrandom`; on Linux there is none once the machine is up.
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

    /// Whether a domain that has `lookups` under way, one of `domains`, may have one more: any may
    /// while half of the sockets are free, and the other half is shared out, so that no domain uses
    /// up what another one needs.
    pub fn may_open(&mut self, lookups: usize, domains: usize) -> bool {
        let half = self.most() / 2;
        let idle: usize = self.idle.values().map(Vec::len).sum();
        self.open_count() - idle < half || lookups < half / domains.max(1)
    }

    fn most(&mut self) -> usize {
        if self.most == 0 {
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            self.most = usize::try_from(limit / 2).map_or(MAX_SOCKETS, |half| half.clamp(1, MAX_SOCKETS));
        }
        self.most
    }

    /// How many were opened, and how often one was used again, since the start.
    pub const fn counts(&self) -> (u64, u64) {
        (self.opened, self.reused)
    }

    /// The waiters on the socket with this token, and whom they wait for; `None`: there is no such
    /// socket.
    pub fn audience(&self, token: u32) -> Option<Audience> {
        let Socket { protocol, upstream, waiters, .. } = *self.get(token)?;
        Some(Audience { token, protocol, upstream, waiters })
    }

    fn get(&self, token: u32) -> Option<&Socket> {
        self.slots.get(token as usize).and_then(Option::as_ref)
    }

    fn get_mut(&mut self, token: u32) -> Option<&mut Socket> {
        self.slots.get_mut(token as usize).and_then(Option::as_mut)
    }

    /// Lets `lookup` wait on a socket, under a random id that nobody else there has.
    ///
    /// # Errors
    /// As [`Sockets::random`]; [`Errno::BUSY`] if there is no place.
    pub fn wait_on(&mut self, token: u32, lookup: u64) -> Result<u16, Errno> {
        let mut message_id = self.random()?;
        let taken = |id: u16, socket: &Socket| socket.waiters.iter().flatten().any(|w| w.message_id == id);
        while self.get(token).is_some_and(|socket| taken(message_id, socket)) {
            message_id = self.random()?;
        }
        let socket = self.get_mut(token).ok_or(Errno::BADF)?;
        let place = socket.waiters.iter_mut().find(|place| place.is_none()).ok_or(Errno::BUSY)?;
        *place = Some(Waiter { lookup, message_id });
        Ok(message_id)
    }

    /// A random idle socket to `upstream` that is still good.
    pub fn take_idle(
        &mut self,
        ctx: &mut dyn Context,
        upstream: SocketAddr,
        now: Instant,
    ) -> Result<Option<u32>, Errno> {
        while self.idle.get(&upstream).is_some_and(|list| !list.is_empty()) {
            let choice = usize::from(self.random()?);
            let Some(list) = self.idle.get_mut(&upstream) else { break };
            let token = list.swap_remove(choice % list.len());
            match self.get(token) {
                Some(socket) if now.saturating_duration_since(socket.opened) < MAX_AGE => {
                    self.reused += 1;
                    return Ok(Some(token));
                }
                _ => self.close(ctx, token),
            }
        }
        Ok(None)
    }

    /// Opens a socket and watches it. Nobody waits on it yet.
    ///
    /// # Errors
    /// [`Errno::NFILE`] where as many are in use as may be, and what `socket` and `epoll_ctl` say.
    pub fn open(
        &mut self,
        ctx: &mut dyn Context,
        upstream: SocketAddr,
        protocol: Protocol,
        now: Instant,
    ) -> Result<u32, Errno> {
        if self.open_count() >= self.most() && !self.make_room(ctx) {
            return Err(Errno::NFILE);
        }
        let family = if upstream.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let kind = if protocol == Protocol::Udp { SocketType::DGRAM } else { SocketType::STREAM };
        let descriptor = socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        let token =
            self.free.last().copied().unwrap_or_else(|| u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        let interest = if protocol == Protocol::Udp { Interest::Read } else { Interest::Both };
        ctx.watch(descriptor.as_fd(), token, interest).map_err(|error| errno_of(&error))?;
        let waiters = [None; MAX_WAITERS];
        let socket = Socket { descriptor, upstream, protocol, opened: now, uses: 0, waiters, spoiled: false };
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
    /// The error of `connect`.
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
    /// The error in `SO_ERROR`; [`Errno::AGAIN`] while it is on its way.
    pub fn connected(&self, token: u32) -> Result<(), Errno> {
        let socket = self.get(token).ok_or(Errno::BADF)?;
        sockopt::socket_error(&socket.descriptor)??;
        let mut ready = [PollFd::new(&socket.descriptor, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut ready, Some(&at_once))? == 0 { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// From now on, queries wait for [`Sockets::send_together`], so that those that belong together
    /// leave together.
    pub fn hold_queries(&mut self) {
        self.outbox.open();
    }

    /// The socket whose query to `upstream` is being held, if another may leave with it.
    pub fn companion(&self, upstream: SocketAddr) -> Option<u32> {
        let token = self.outbox.only_token()?;
        let socket = self.get(token).filter(|socket| socket.upstream == upstream && !socket.spoiled)?;
        socket.waiters.iter().any(Option::is_none).then_some(token)
    }

    /// Sends `lookup`'s query over UDP, or keeps it for [`Sockets::send_together`].
    ///
    /// # Errors
    /// The error of `send`.
    pub fn send_query(&mut self, token: u32, lookup: u64, query: &[u8]) -> Result<(), Errno> {
        if !self.outbox.hold(token, lookup, query) {
            return self.send(token, query).map(drop);
        }
        if let Some(socket) = self.get_mut(token) {
            socket.uses = socket.uses.saturating_add(1);
        }
        Ok(())
    }

    /// Sends what was held. Gives the look-ups whose queries were held, and how it went.
    pub fn send_together(&mut self) -> Vec<(u64, Result<(), Errno>)> {
        let mut outbox = std::mem::take(&mut self.outbox);
        let sent = outbox.send(|token| self.get(token).map(|socket| socket.descriptor.as_fd()));
        // Its memory is used again.
        self.outbox = outbox;
        sent
    }

    /// Sends; how many bytes went.
    ///
    /// # Errors
    /// The error of `send`.
    pub fn send(&mut self, token: u32, bytes: &[u8]) -> Result<usize, Errno> {
        let socket = self.get_mut(token).ok_or(Errno::BADF)?;
        socket.uses = socket.uses.saturating_add(1);
        send(&socket.descriptor, bytes, SendFlags::NOSIGNAL)
    }

    /// Receives; how many bytes came.
    ///
    /// # Errors
    /// The error of `recv`.
    pub fn receive(&self, token: u32, buffer: &mut [u8]) -> Result<usize, Errno> {
        let socket = self.get(token).ok_or(Errno::BADF)?;
        recv(&socket.descriptor, buffer, RecvFlags::empty()).map(|(_, came)| came)
    }

    /// Receives as many datagrams as look-ups wait, those that are there; their lengths. Fewer than
    /// wait: there were no more.
    ///
    /// # Errors
    /// The error of `recvmmsg`.
    pub fn receive_datagrams(
        &self,
        audience: &Audience,
        [first, second]: [&mut [u8]; MAX_WAITERS],
    ) -> Result<Vec<usize>, Errno> {
        let socket = self.get(audience.token).ok_or(Errno::BADF)?;
        if audience.waiters().count() < MAX_WAITERS {
            let (_, came) = recv(&socket.descriptor, first, RecvFlags::empty())?;
            return Ok(vec![came]);
        }
        sys::datagrams::receive(&socket.descriptor, &mut [first, second]).map_err(|error| errno_of(&error))
    }

    /// A stream that has sent everything wants only to read from now on.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub fn only_read(&self, ctx: &mut dyn Context, token: u32) -> Result<(), Errno> {
        let socket = self.get(token).ok_or(Errno::BADF)?;
        ctx.rewatch(socket.descriptor.as_fd(), token, Interest::Read).map_err(|error| errno_of(&error))
    }

    /// `lookup` waits no more on a socket. Once nobody does, the socket is kept if everything about
    /// it was `clean` and it may be used again.
    pub fn leave(&mut self, ctx: &mut dyn Context, token: u32, lookup: u64, clean: bool, now: Instant) {
        let Some(socket) = self.get_mut(token) else { return };
        for place in &mut socket.waiters {
            if place.is_some_and(|waiter| waiter.lookup == lookup) {
                *place = None;
            }
        }
        socket.spoiled |= !clean;
        if socket.waiters.iter().any(Option::is_some) {
            return;
        }
        let fresh = socket.uses < MAX_USES && now.saturating_duration_since(socket.opened) < MAX_AGE;
        let upstream = socket.upstream;
        if fresh && !socket.spoiled && socket.protocol == Protocol::Udp {
            let list = self.idle.entry(upstream).or_default();
            if list.len() < MAX_IDLE {
                list.push(token);
                return;
            }
        }
        self.close(ctx, token);
    }

    /// Closes a socket. What may still come to it reaches nobody.
    fn close(&mut self, ctx: &mut dyn Context, token: u32) {
        let Some(socket) = self.slots.get_mut(token as usize).and_then(Option::take) else { return };
        if let Err(error) = ctx.unwatch(socket.descriptor.as_fd()) {
            tracing::warn!(%error, "an upstream's socket could not be taken out of the loop");
        }
        self.outbox.forget(token);
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

    /// Closes an idle socket, to whichever upstream it is. False: there is none.
    fn make_room(&mut self, ctx: &mut dyn Context) -> bool {
        let token = self.idle.values_mut().find_map(Vec::pop);
        token.inspect(|&token| self.close(ctx, token)).is_some()
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
