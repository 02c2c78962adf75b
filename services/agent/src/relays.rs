//! Members of the domain in the guest, and what the node says to them.

use crate::agent::Agent;
use crate::ends::{DEVICE_TIMEOUT, Unmade};
use crate::error::AgentError;
use crate::relay::{Carried, Queued, Relay, Taken};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use wire::control::{MAX_PACKET_BYTES, Reply};
use wire::guest::{Close, End, MAX_STREAMS, Message, Purpose};

/// Streams that members may have: the command's output has one, too.
const MAX_MEMBERS: usize = MAX_STREAMS - 8;

/// How long no connection is taken after there were no descriptors or no memory for one: nothing
/// tells when somebody has gone.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl Agent {
    /// Whether another connection of a member can be served.
    pub fn may_accept(&self) -> bool {
        let rested = self.accept_again.is_none_or(|at| Instant::now() >= at);
        rested && !self.is_leaving() && self.relays.len() < MAX_MEMBERS
    }

    /// Takes a connection of a member.
    pub fn accept(&mut self) -> Result<(), AgentError> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let accepted = rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let socket = match accepted {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(()),
            Err(errno) => {
                // Who connects waits: somebody else must go first.
                tracing::warn!(%errno, "a connection to the control socket can't be taken");
                self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                return Ok(());
            }
        };
        match self.streams.open(Purpose::Control {}) {
            Ok((stream, open)) => {
                self.relays.insert(stream, Relay::new(socket));
                self.say(&open)
            }
            // Streams that only the node has not closed yet count as well.
            Err(full) => {
                tracing::warn!(%full, "a member is turned away");
                Ok(())
            }
        }
    }

    /// The events to wait for on behalf of a relay.
    pub fn relay_interest(&self, stream: u32, relay: &Relay) -> Option<PollFlags> {
        let reads = !relay.closing && self.port_wants_more() && self.streams.has_room(stream);
        let writes =
            relay.queue.front().is_some_and(|first| !matches!(first.carried, Carried::Announced(..)));
        // A socket that has hung up is always ready: as long as nothing can be taken from it, it is
        // left alone.
        if relay.hung && !reads {
            return None;
        }
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, reads);
        flags.set(PollFlags::OUT, writes);
        Some(flags)
    }

    pub fn relay_ready(&mut self, stream: u32, flags: PollFlags) -> Result<(), AgentError> {
        if flags.contains(PollFlags::OUT) {
            self.flush_relay(stream)?;
        }
        let room = self.port_wants_more() && self.streams.has_room(stream);
        let Some(relay) = self.relays.get_mut(&stream) else { return Ok(()) };
        if flags.intersects(PollFlags::HUP | PollFlags::ERR) {
            relay.hung = true;
        }
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) || (!room && !relay.closing) {
            return Ok(());
        }
        match relay.take() {
            Taken::Packet(_) if relay.closing => Ok(()),
            Taken::Packet(bytes) => self.send(stream, bytes),
            Taken::TooLong => self.refuse_packet(stream),
            Taken::Nothing => Ok(()),
            Taken::Gone => self.end_relay(stream, Close::default()),
        }
    }

    /// Sends a message on a stream of which it is known that there is room.
    pub fn send(&mut self, stream: u32, bytes: Vec<u8>) -> Result<(), AgentError> {
        match self.streams.send(stream, bytes) {
            Ok(message) => self.say(&message),
            // The node has closed it meanwhile: nobody would hear it.
            Err(error) => {
                tracing::debug!(stream, %error, "a message goes nowhere");
                Ok(())
            }
        }
    }

    /// A member sent a packet that is longer than any may be: it costs only itself.
    fn refuse_packet(&mut self, stream: u32) -> Result<(), AgentError> {
        let refusal = Reply::Refused {
            id: 0,
            errno: Errno::MSGSIZE.raw_os_error(),
            message: format!("a packet is longer than the {MAX_PACKET_BYTES} bytes that are allowed"),
        };
        let bytes = serde_json::to_vec(&refusal).unwrap_or_default();
        if let Some(relay) = self.relays.get_mut(&stream) {
            relay.queue.push_back(Queued { bytes, cost: 0, carried: Carried::Nothing });
        }
        self.flush_relay(stream)
    }

    /// The node says something to a member.
    pub fn relay_data(&mut self, stream: u32, bytes: Vec<u8>, end: Option<End>) -> Result<(), AgentError> {
        let cost = bytes.len();
        let carried = match end {
            None => Carried::Nothing,
            Some(end) if end.side > 1 => {
                return Err(AgentError::Unexpected("an end that is neither the first nor the second"));
            }
            Some(end) if self.ends.announce(&end) => Carried::Announced(end, Instant::now() + DEVICE_TIMEOUT),
            Some(end) => {
                tracing::warn!(
                    channel = end.channel,
                    "the node announces a channel that is open, or too many"
                );
                return Err(AgentError::Unexpected("an end of a channel that is open, or one too many"));
            }
        };
        if let Some(relay) = self.relays.get_mut(&stream) {
            relay.queue.push_back(Queued { bytes, cost, carried });
        }
        self.flush_relay(stream)
    }

    /// Passes on to a member what it takes.
    pub fn flush_relay(&mut self, stream: u32) -> Result<(), AgentError> {
        while let Some(mut first) = self.relays.get_mut(&stream).and_then(|relay| relay.queue.pop_front()) {
            if let Carried::Announced(end, deadline) = &first.carried {
                let why = match self.ends.make(end) {
                    Ok(descriptors) => {
                        first.carried = Carried::Made(Box::new(descriptors));
                        self.put_back(stream, first)?;
                        continue;
                    }
                    Err(Unmade::Yet(_)) if Instant::now() < *deadline => return self.put_back(stream, first),
                    Err(Unmade::Yet(what)) => {
                        format!("its device did not come up in {DEVICE_TIMEOUT:?}: {what} is missing")
                    }
                    Err(Unmade::Ever(why)) => why,
                };
                tracing::warn!(channel = end.channel, why, "an end of a channel can't be passed on");
                self.drop_end(stream, first)?;
                continue;
            }
            let Some(relay) = self.relays.get(&stream) else { return Ok(()) };
            let none: &[OwnedFd] = &[];
            let descriptors = if let Carried::Made(made) = &first.carried { &made[..] } else { none };
            match relay.pass(&first.bytes, descriptors) {
                Ok(()) => {
                    let cost = first.cost;
                    drop(first);
                    self.consumed(stream, cost)?;
                    self.passed_on(stream)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.put_back(stream, first);
                }
                Err(_) => return self.end_relay(stream, Close::default()),
            }
        }
        let finished = self.relays.get(&stream).is_some_and(|relay| relay.closing && relay.queue.is_empty());
        if finished { self.end_relay(stream, Close::default()) } else { Ok(()) }
    }

    /// Nothing goes on before this one does.
    fn put_back(&mut self, stream: u32, first: Queued) -> Result<(), AgentError> {
        if let Some(relay) = self.relays.get_mut(&stream) {
            relay.queue.push_front(first);
        }
        Ok(())
    }

    /// The packet at the head carried an end that can't be made: it goes on as a refusal, or not at
    /// all.
    fn drop_end(&mut self, stream: u32, first: Queued) -> Result<(), AgentError> {
        let Queued { bytes, cost, carried } = first;
        if let Carried::Announced(end, _) = &carried {
            self.ends.forget(end.channel);
            self.say(&Message::Release { channel: end.channel })?;
        }
        match serde_json::from_slice(&bytes) {
            Ok(Reply::Connected { id, .. } | Reply::Introduced { id, .. }) => {
                self.put_back(stream, Queued { bytes: refused(id), cost, carried: Carried::Nothing })
            }
            _ => self.consumed(stream, cost),
        }
    }

    /// Looks for the devices that packets wait for.
    pub fn look_for_devices(&mut self) -> Result<(), AgentError> {
        if !self.ends.awaits() {
            return Ok(());
        }
        let waits = |relay: &Relay| {
            relay.queue.front().is_some_and(|first| matches!(first.carried, Carried::Announced(..)))
        };
        let waiting: Vec<u32> =
            self.relays.iter().filter(|(_, relay)| waits(relay)).map(|(stream, _)| *stream).collect();
        waiting.into_iter().try_for_each(|stream| self.flush_relay(stream))
    }

    /// Ends of channels that nobody here has any more.
    pub fn tell_released(&mut self) -> Result<(), AgentError> {
        let released = self.ends.take_released();
        released.into_iter().try_for_each(|channel| self.say(&Message::Release { channel }))
    }

    /// The node has closed a stream: what it sent before goes out, then the member is hung up on.
    pub fn relay_closed(&mut self, stream: u32) -> Result<(), AgentError> {
        if let Some(relay) = self.relays.get_mut(&stream) {
            relay.closing = true;
        }
        self.flush_relay(stream)
    }

    /// Hangs up on a member and closes its stream. Ends that were on their way to it are released.
    pub fn end_relay(&mut self, stream: u32, close: Close) -> Result<(), AgentError> {
        let Some(relay) = self.relays.remove(&stream) else { return Ok(()) };
        for queued in relay.queue {
            // One that is made tells of its release itself.
            if let Carried::Announced(end, _) = queued.carried {
                self.ends.forget(end.channel);
                self.say(&Message::Release { channel: end.channel })?;
            }
        }
        match self.streams.close(stream, close) {
            Some(close) => self.say(&close),
            None => Ok(()),
        }
    }
}

fn refused(id: u64) -> Vec<u8> {
    let refusal = Reply::Refused {
        id,
        errno: Errno::IO.raw_os_error(),
        message: "the channel's device did not come up in this guest: see its console (`tombolo logs`)"
            .into(),
    };
    serde_json::to_vec(&refusal).unwrap_or_default()
}
