//! An endpoint behind a handle, and a backup of one.

use crate::failure::{self, failure};
use crate::ongoing::{Ongoing, Wanted};
use crate::polling::{PollSet, deadline_of, poll_until};
use crate::refusals;
use crate::requests::Requests;
use endpoint::{
    Address, Asked, Backup, Borrow, Content, Endpoint, Failed, From, GrantId, Granted, Interrupter, Received,
    Reply, SendError, Step, Whom,
};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};
use sys::channel_abi::{Options, Outcome, Patience};
use sys::endpoint_abi::{Message, Outgoing};
use sys::fork::Origin;

/// How long the daemon may take for its answer where the caller says nothing about it.
pub const ANSWER_TIMEOUT: Patience = Patience::For(Duration::from_secs(10));

/// A backup, until it has taken over.
#[derive(Debug)]
pub struct Standby {
    backup: Backup,
    interrupter: Interrupter,
    /// The options of the endpoint.
    pub options: Options,
    origin: Origin,
}

impl Standby {
    pub fn new(mut backup: Backup, options: &Options) -> Outcome<Self> {
        let interrupter = backup.interrupter().map_err(|error| refusals::of(&error, Patience::Never))?;
        let origin =
            Origin::here().map_err(|error| failure::system("remember whose backup it is", &error))?;
        Ok(Self { backup, interrupter, options: *options, origin })
    }

    pub fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Waits until it has its primary's place.
    pub fn wait(&mut self, patience: Patience) -> Outcome<Endpoint> {
        let waited = self.backup.wait(deadline_of(patience));
        let over = if patience == Patience::Never { Errno::AGAIN } else { Errno::TIMEDOUT };
        match waited.map_err(|error| refusals::of(&error, patience))? {
            Some(endpoint) => Ok(endpoint),
            None => Err(failure(over, "the primary lives: this backup has not taken over")),
        }
    }

    pub fn promote(&mut self) {
        self.backup.promote();
    }

    pub fn state(&self) -> Option<&[u8]> {
        self.backup.state()
    }
}

/// An endpoint, and what its program is in the midst of.
#[derive(Debug)]
pub struct Member {
    pub(crate) endpoint: Endpoint,
    interrupter: Interrupter,
    /// Received, and too long for the program's buffer: of each peer one at most.
    held: VecDeque<(Received, Vec<u8>)>,
    requests: Requests,
    /// The buffer for a received payload before it is the program's.
    pub(crate) payload: Vec<u8>,
    poll: Option<PollSet>,
    /// A call that a signal has interrupted.
    pub(crate) ongoing: Option<Ongoing>,
    pub(crate) is_interruptible: bool,
    /// The process whose endpoint it is.
    origin: Origin,
}

impl Member {
    pub fn new(mut endpoint: Endpoint, options: &Options) -> Outcome<Self> {
        let interrupter = endpoint.interrupter().map_err(|error| failure::of(None, &error))?;
        let origin =
            Origin::here().map_err(|error| failure::system("remember whose endpoint it is", &error))?;
        Ok(Self {
            endpoint,
            interrupter,
            held: VecDeque::new(),
            requests: Requests::new(),
            payload: Vec::new(),
            poll: None,
            ongoing: None,
            is_interruptible: options.has(Options::INTERRUPTIBLE),
            origin,
        })
    }

    pub fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Makes a call that does not wait for a peer, and tells whoever polls what is so after it. One
    /// that a signal has interrupted may go on.
    pub fn call<T>(&mut self, work: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if !self.origin.is_here() {
            let text =
                "this endpoint is the parent's of this process: close the handle here, and bind another one";
            return Err(failure(Errno::STALE, text));
        }
        let outcome = work(self);
        self.settle();
        outcome
    }

    /// Makes a call that may wait: if it is not the one that a signal has interrupted, that one is
    /// given up.
    pub(crate) fn call_wanted<T>(
        &mut self,
        wanted: Option<Wanted<'_>>,
        work: impl FnOnce(&mut Self) -> Outcome<T>,
    ) -> Outcome<T> {
        self.call(|member| {
            if let Some(ongoing) = member.ongoing.take_if(|ongoing| !ongoing.is(wanted)) {
                let _received = ongoing.give_up(&mut member.endpoint);
            }
            work(member)
        })
    }

    /// Gives up the call that a signal has interrupted; true: what it sent had been received.
    pub fn give_up(&mut self) -> bool {
        self.ongoing.take().is_some_and(|ongoing| ongoing.give_up(&mut self.endpoint))
    }

    /// Sends a message and waits until it is received.
    pub fn send(&mut self, to: Address, wanted: Wanted<'_>, tag: u32, patience: Patience) -> Outcome<()> {
        if self.is_interruptible {
            return self.send_in_steps(wanted, patience);
        }
        let sent = self.endpoint.send(to, tag, wanted.bytes, deadline_of(patience));
        sent.map_err(|error| refusals::of(&error, patience))
    }

    /// Sends a message to whoever has a name, and waits until it is received.
    pub fn tell(&mut self, name: &CStr, wanted: Wanted<'_>, tag: u32, patience: Patience) -> Outcome<()> {
        if self.is_interruptible {
            return self.tell_in_steps(wanted, patience);
        }
        let told = self.endpoint.tell(name_of(name.to_bytes())?, tag, wanted.bytes, deadline_of(patience));
        told.map_err(|error| refusals::of(&error, patience))
    }

    /// Begins to move to a program of another domain.
    pub fn start_migration(&mut self, domain: &CStr) -> Outcome<()> {
        if !self.held.is_empty() {
            let text = "a message was received that was too long for the buffer: receive it before the endpoint moves";
            return Err(failure(Errno::BUSY, text));
        }
        let started = self.endpoint.start_migration(name_of(domain.to_bytes())?);
        started.map_err(|error| refusals::of(&error, Patience::Never))
    }

    /// Sends a message and waits until there is room for it.
    pub fn send_buffered(
        &mut self,
        to: Address,
        wanted: Wanted<'_>,
        tag: u32,
        patience: Patience,
    ) -> Outcome<()> {
        if self.ongoing.is_some() {
            return self.send_in_steps(wanted, patience);
        }
        // There seldom is none: the quick way first.
        let first = if self.is_interruptible { Patience::Never } else { patience };
        match self.endpoint.send_buffered(to, tag, wanted.bytes, deadline_of(first)) {
            Err(Failed::Call(SendError::TimedOut(_))) if first != patience => {
                self.send_in_steps(wanted, patience)
            }
            sent => sent.map_err(|error| refusals::of(&error, patience)),
        }
    }

    /// Receives from anybody, or from one.
    pub fn receive(
        &mut self,
        from: Option<Address>,
        into: &mut [u8],
        message: &mut Message,
        patience: Patience,
    ) -> Outcome<usize> {
        let held = self.held.iter().position(|(held, _)| from.is_none_or(|from| held.source == from));
        let (received, payload) = match held.and_then(|at| self.held.remove(at)) {
            Some(held) => held,
            None => {
                let received = self.receive_new(from, patience)?;
                (received, std::mem::take(&mut self.payload))
            }
        };
        *message = self.described(&received, payload.len());
        let Some(room) = into.get_mut(..payload.len()) else {
            let text = format!(
                "the next message has {} bytes, and the buffer only {}: take a larger one, and receive again",
                payload.len(),
                into.len()
            );
            self.held.push_front((received, payload));
            return Err(failure(Errno::MSGSIZE, text));
        };
        room.copy_from_slice(&payload);
        if let Content::Request { asked, .. } = received.content {
            message.request = self.keep(asked);
        }
        let length = payload.len();
        self.payload = payload;
        Ok(length)
    }

    fn receive_new(&mut self, from: Option<Address>, patience: Patience) -> Outcome<Received> {
        if self.is_interruptible {
            return self.receive_in_steps(Wanted::receive(from), patience);
        }
        let from = from.map_or(From::Any, From::One);
        let received = self.endpoint.receive(&from, &mut self.payload, deadline_of(patience));
        received.map_err(|error| refusals::of(&error, patience))
    }

    /// Asks, and waits for the reply, which goes to `into`.
    pub(crate) fn request(
        &mut self,
        to: Address,
        wanted: Wanted<'_>,
        message: Outgoing<'_>,
        into: &mut [u8],
        patience: Patience,
    ) -> Outcome<Message> {
        let Outgoing { tag, bytes } = message;
        let reply = if self.is_interruptible {
            self.request_in_steps(wanted, patience)?
        } else {
            let (takes, deadline) = (into.len(), deadline_of(patience));
            let replied = self.endpoint.send_receive(to, tag, bytes, &mut self.payload, takes, deadline);
            replied.map_err(|error| refusals::of(&error, patience))?
        };
        self.hand_out(reply, into)
    }

    /// As [`Member::request`], of whoever has a name.
    pub(crate) fn ask(
        &mut self,
        name: &CStr,
        wanted: Wanted<'_>,
        message: Outgoing<'_>,
        into: &mut [u8],
        patience: Patience,
    ) -> Outcome<Message> {
        let Outgoing { tag, bytes } = message;
        let reply = if self.is_interruptible {
            self.ask_in_steps(wanted, patience)?
        } else {
            let (name, takes, deadline) = (name_of(name.to_bytes())?, into.len(), deadline_of(patience));
            let replied = self.endpoint.ask(name, tag, bytes, &mut self.payload, takes, deadline);
            replied.map_err(|error| refusals::of(&error, patience))?
        };
        self.hand_out(reply, into)
    }

    /// Gives the program a reply.
    fn hand_out(&mut self, reply: Reply, into: &mut [u8]) -> Outcome<Message> {
        let length = self.payload.len();
        // The other side was told how many are taken, and was cut off if it sent more.
        let room = into.get_mut(..length).ok_or_else(|| {
            failure(Errno::PROTO, format!("the reply has {length} bytes, and fewer were asked for"))
        })?;
        room.copy_from_slice(&self.payload);
        Ok(Message {
            kind: Message::REPLY,
            tag: reply.tag,
            source: number_of(reply.source),
            length: u32::try_from(length).unwrap_or(u32::MAX),
            ..Message::default()
        })
    }

    /// Whoever is bound by a name or at an address; `waits`: or is going to be.
    pub fn find(&mut self, whom: &CStr, waits: bool, patience: Patience) -> Outcome<Address> {
        // The daemon always answers; whoever has no time wants to know how it is now.
        let is_try = patience == Patience::Never;
        let (waits, patience) = (waits && !is_try, if is_try { ANSWER_TIMEOUT } else { patience });
        if self.is_interruptible {
            return self.find_in_steps(Wanted::find(whom, waits), patience);
        }
        let (whom, deadline) = (whom_of(whom.to_bytes())?, deadline_of(patience));
        let found = match waits {
            true => self.endpoint.wait_for_bind(whom, deadline),
            false => self.endpoint.find(whom, deadline),
        };
        found.map_err(|error| refusals::of(&error, patience))
    }

    /// Gets hold of what was granted.
    pub fn borrow(&mut self, grant: GrantId, patience: Patience) -> Outcome<Granted> {
        let deadline = deadline_of(patience);
        let mut call = Borrow::new(grant);
        loop {
            let late = deadline.is_some_and(|deadline| deadline <= Instant::now());
            let stepped = self.endpoint.step_borrow(&mut call, late);
            let again_at = match stepped.map_err(|error| refusals::of(&error, patience))? {
                Step::Ready(granted) => return Ok(granted),
                Step::Pending { again_at } => again_at,
            };
            if let Err(why) = self.sleep(deadline.into_iter().chain(again_at).min())
                && (self.is_interruptible || why.errno != Errno::INTR.raw_os_error())
            {
                self.endpoint.cancel_borrow(&mut call);
                return Err(why);
            }
        }
    }

    fn keep(&mut self, asked: Asked) -> u64 {
        let endpoint = &self.endpoint;
        self.requests
            .keep(asked, || endpoint.peers().filter(|peer| peer.alive).map(|peer| peer.address).collect())
    }

    /// Describes a received message for the program, without a request's number.
    fn described(&self, received: &Received, length: usize) -> Message {
        let mut message = Message {
            source: number_of(received.source),
            length: u32::try_from(length).unwrap_or(u32::MAX),
            ..Message::default()
        };
        match received.content {
            Content::Message { tag } => {
                message.kind = Message::MESSAGE;
                message.tag = tag;
            }
            Content::Request { tag, asked } => {
                message.kind = Message::REQUEST;
                message.tag = tag;
                message.takes = asked.takes();
                message.relayed_by = asked.relayed_by().map_or(0, number_of);
            }
            Content::Notices(bits) => {
                message.kind = Message::NOTICES;
                message.notices = bits;
            }
        }
        message
    }

    fn asked(&self, request: u64) -> Outcome<Asked> {
        let unknown = || {
            let text = format!(
                "nobody waits for an answer to request {request}: it has been answered, its requester has asked anew or is gone, or \
                 there never was such a request"
            );
            failure(Errno::CANCELED, text)
        };
        self.requests.find(request).ok_or_else(unknown)
    }

    /// Answers a request; `state`: what a backup has to know after it.
    pub fn reply(&mut self, request: u64, message: Outgoing<'_>, state: Option<&[u8]>) -> Outcome<()> {
        let asked = self.asked(request)?;
        let replied = match state {
            Some(state) => self.endpoint.reply_with_state(&asked, message.tag, message.bytes, state),
            None => self.endpoint.reply(&asked, message.tag, message.bytes),
        };
        let outcome = replied.map_err(|error| refusals::of(&error, Patience::Never));
        self.forget_unless(request, &outcome, &[Errno::MSGSIZE]);
        outcome
    }

    pub fn relay(&mut self, request: u64, to: Address, message: Outgoing<'_>) -> Outcome<()> {
        let asked = self.asked(request)?;
        let relayed = self.endpoint.relay(&asked, to, message.tag, message.bytes);
        let outcome = relayed.map_err(|error| refusals::of(&error, Patience::Never));
        // Of these the requester knows nothing, and still waits for an answer from here.
        let still_waits = [
            Errno::MSGSIZE,
            Errno::AGAIN,
            Errno::PERM,
            Errno::NOTCONN,
            Errno::INVAL,
            Errno::STALE,
            Errno::PIPE,
            Errno::REMCHG,
            Errno::PROTO,
        ];
        self.forget_unless(request, &outcome, &still_waits);
        outcome
    }

    fn forget_unless(&mut self, request: u64, outcome: &Outcome<()>, still_waits: &[Errno]) {
        let waits = |errno: &Errno| outcome.as_ref().is_err_and(|why| why.errno == errno.raw_os_error());
        if !still_waits.iter().any(waits) {
            self.requests.forget(request);
        }
    }

    /// Sleeps until there is something to receive; false: the time was over.
    pub fn wait(&mut self, patience: Patience) -> Outcome<bool> {
        let deadline = deadline_of(patience);
        self.call_wanted(None, |member| {
            loop {
                if !member.held.is_empty() || !member.prepare()? {
                    return Ok(true);
                }
                if patience == Patience::Never || !member.sleep(deadline)? {
                    return Ok(false);
                }
            }
        })
    }

    /// Has its peers ring when there is something to receive; false: there is something.
    fn prepare(&mut self) -> Outcome<bool> {
        self.endpoint.prepare(&From::Any).map_err(|error| refusals::of(&error, Patience::Never))
    }

    /// Sleeps until something may have come; false: the time was over. `EINTR`: a signal handler
    /// ran.
    pub(crate) fn sleep(&self, until: Option<Instant>) -> Outcome<bool> {
        let descriptor = self.endpoint.descriptor();
        poll_until(&[descriptor], until)
    }

    pub fn poll_descriptor(&mut self) -> Outcome<RawFd> {
        self.call(|member| {
            if let Some(poll) = &member.poll {
                return Ok(poll.descriptor());
            }
            let poll = PollSet::new(&[member.endpoint.descriptor()])?;
            Ok(member.poll.insert(poll).descriptor())
        })
    }

    /// Makes the descriptor that is polled say what is so.
    fn settle(&mut self) {
        if self.poll.is_none() {
            return;
        }
        if let Some(poll) = &mut self.poll {
            poll.lower();
        }
        // Whatever is wrong, the next call says.
        let is_quiet = self.held.is_empty() && self.prepare().unwrap_or(false);
        if let Some(poll) = self.poll.as_mut().filter(|_| !is_quiet) {
            poll.raise();
        }
    }
}

/// Longest text that says whom to find, in bytes: the names of a topology file are shorter, so a
/// longer one is a mistake.
const WHOM_BYTES_MAX: usize = 255;

/// Parses a peer's name or address: an address as people write it, or else a name.
pub fn whom_of(text: &[u8]) -> Outcome<Whom<'_>> {
    let name = name_of(text)?;
    Ok(name.parse().map_or(Whom::Name(name), Whom::Address))
}

/// The name of an endpoint.
pub fn name_of(text: &[u8]) -> Outcome<&str> {
    if text.is_empty() {
        return Err(failure(Errno::INVAL, "an empty name names no endpoint"));
    }
    if text.len() > WHOM_BYTES_MAX {
        let text =
            format!("an endpoint's name has {WHOM_BYTES_MAX} bytes at most, and this one {}", text.len());
        return Err(failure(Errno::NAMETOOLONG, text));
    }
    str::from_utf8(text)
        .map_err(|_| failure(Errno::INVAL, "an endpoint's name is UTF-8, and this one is not"))
}

/// An address as the program has it.
pub fn number_of(address: Address) -> u64 {
    u64::from(address.generation) << 32 | u64::from(address.slot)
}

/// The address of somebody.
pub fn address_of(number: u64) -> Outcome<Address> {
    let (slot, generation) = (number & u64::from(u32::MAX), number >> 32);
    match (u32::try_from(slot), u32::try_from(generation)) {
        (Ok(slot), Ok(generation)) if generation > 0 => Ok(Address { slot, generation }),
        _ => Err(failure(Errno::INVAL, format!("{number:#x} is the address of nobody"))),
    }
}
