//! The questions of entrances that the service has not answered yet. They survive the service's
//! server: each is asked again of the next one (look-ups change nothing).

use channel::{End, OpenError};
use rustix::io::Errno;
use session::{Answers, CallError, Caller, Incoming};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use wire::service::SESSION_NONE;

/// Most requests that wait for an answer, of all clients of a domain.
pub const MAX_PENDING: usize = 512;
/// Most bytes of such requests together: they are kept to be asked again.
pub const MAX_PENDING_BYTES: usize = 512 * 1024;
/// How long a request may wait for its answer, dead servers included. Resolvers give up earlier;
/// libnss-resolve after two minutes.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How often to look for room in a ring that had none for all that waits. A server reads a full
/// ring within less.
const RESEND_AFTER: Duration = Duration::from_millis(10);

/// The links that the entrances use, each with a channel of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrance {
    /// The DNS stub.
    Stub,
    /// The resolver socket.
    Resolve,
}

impl Entrance {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Stub, Self::Resolve];

    /// As it is called in the control protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stub => "stub",
            Self::Resolve => "resolve",
        }
    }
}

/// A request that has no answer yet.
#[derive(Debug)]
pub struct Pending<O> {
    /// By which link.
    pub entrance: Entrance,
    /// The file of the service.
    pub file: u32,
    /// When it was asked.
    pub asked: Instant,
    /// The question.
    pub payload: Vec<u8>,
    /// The party that gets the answer.
    pub origin: O,
}

#[derive(Debug)]
struct Waiting<O> {
    pending: Pending<O>,
    expires: Instant,
    sent: bool,
}

/// The links, and what waits for their answers.
#[derive(Debug)]
pub struct Backend<O> {
    links: [Option<(Caller, Answers)>; Entrance::ALL.len()],
    /// Links whose ring had no room yet for all that has to be asked.
    is_behind: [bool; Entrance::ALL.len()],
    waiting: BTreeMap<u64, Waiting<O>>,
    waiting_bytes: usize,
    last_tag: u64,
}

impl<O> Backend<O> {
    /// Without links.
    pub fn new() -> Self {
        Self {
            links: [None, None],
            is_behind: [false; 2],
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            last_tag: 0,
        }
    }

    /// Takes a new link into use, and asks by it what has no answer yet. The old one is closed.
    pub fn connect(&mut self, entrance: Entrance, end: End) -> Result<(), OpenError> {
        self.lose(entrance);
        self.links[entrance as usize] = Some(session::open(end)?);
        self.is_behind[entrance as usize] = true;
        self.catch_up(entrance);
        Ok(())
    }

    /// Asks what is not asked yet, as far as there is room in the ring: what waited for a new link
    /// may be more than that takes.
    pub fn catch_up(&mut self, entrance: Entrance) {
        if !self.is_behind[entrance as usize] {
            return;
        }
        let unsent = |waiting: &Waiting<O>| !waiting.sent && waiting.pending.entrance == entrance;
        let tags: Vec<u64> =
            self.waiting.iter().filter(|(_, waiting)| unsent(waiting)).map(|(&tag, _)| tag).collect();
        let is_full = |tag| matches!(self.send(tag, entrance), Err(CallError::Full));
        self.is_behind[entrance as usize] = tags.into_iter().any(is_full);
    }

    /// Forgets a link; its requests wait for the next one.
    pub fn lose(&mut self, entrance: Entrance) {
        self.links[entrance as usize] = None;
        self.is_behind[entrance as usize] = false;
        let of_link = self.waiting.values_mut().filter(|waiting| waiting.pending.entrance == entrance);
        of_link.for_each(|waiting| waiting.sent = false);
    }

    /// Asks; without a link, as soon as there is one.
    ///
    /// # Errors
    /// The request itself, where there are too many already.
    pub fn ask(&mut self, pending: Pending<O>, now: Instant) -> Result<(), Pending<O>> {
        let bytes = self.waiting_bytes + pending.payload.len();
        if self.waiting.len() >= MAX_PENDING || bytes > MAX_PENDING_BYTES {
            return Err(pending);
        }
        self.waiting_bytes = bytes;
        self.last_tag += 1;
        let (tag, entrance) = (self.last_tag, pending.entrance);
        self.waiting.insert(tag, Waiting { pending, expires: now + ANSWER_LIMIT, sent: false });
        match self.send(tag, entrance) {
            // No ring would ever have room for it.
            Err(CallError::TooLong(_)) => self.take(tag).map_or(Ok(()), Err),
            Err(CallError::Full) => {
                self.is_behind[entrance as usize] = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sends what is not sent yet; a link that is closed is noticed when it is received from.
    fn send(&mut self, tag: u64, entrance: Entrance) -> Result<(), CallError> {
        let Some((caller, _)) = &self.links[entrance as usize] else { return Ok(()) };
        let Some(waiting) = self.waiting.get_mut(&tag) else { return Ok(()) };
        if waiting.sent || waiting.pending.entrance != entrance {
            return Ok(());
        }
        let Pending { file, payload, .. } = &waiting.pending;
        caller.request((SESSION_NONE, tag), *file, payload, false, None)?;
        waiting.sent = true;
        Ok(())
    }

    fn take(&mut self, tag: u64) -> Option<Pending<O>> {
        let waiting = self.waiting.remove(&tag)?;
        self.waiting_bytes -= waiting.pending.payload.len();
        Some(waiting.pending)
    }

    /// The next answer of a link, given to `deliver` with the request. False: there is none for
    /// now.
    ///
    /// # Errors
    /// The link is broken, and forgotten.
    pub fn receive(
        &mut self,
        entrance: Entrance,
        deliver: impl FnOnce(Pending<O>, Result<&[u8], Errno>),
    ) -> Result<bool, CallError> {
        let Some((_, answers)) = &mut self.links[entrance as usize] else { return Ok(false) };
        let answer = match answers.try_next() {
            Ok(None) => return Ok(false),
            Ok(Some(Incoming::Answer(answer))) => answer,
            // What an entrance asks for has no stream behind it.
            Ok(Some(
                Incoming::Hello(_)
                | Incoming::Capsule { .. }
                | Incoming::Record { .. }
                | Incoming::Ready { .. }
                | Incoming::End { .. }
                // The end of the channel, which follows, is what counts here.
                | Incoming::Leave { .. },
            )) => return Ok(true),
            Err(error) => {
                self.lose(entrance);
                return Err(error);
            }
        };
        // Not `self.take`: the answer still borrows the link.
        if let Some(waiting) = self.waiting.remove(&answer.tag) {
            self.waiting_bytes -= waiting.pending.payload.len();
            deliver(waiting.pending, answer.result);
        }
        Ok(true)
    }

    /// The descriptor that rings when a link has something.
    pub fn doorbell(&self, entrance: Entrance) -> Option<BorrowedFd<'_>> {
        self.links[entrance as usize].as_ref().map(|(_, answers)| answers.descriptors().doorbell)
    }

    /// Asks all links to ring. False: one has something already.
    pub fn prepare_wait(&mut self) -> bool {
        self.links.iter_mut().flatten().all(|(_, answers)| answers.prepare_wait())
    }

    /// Says that we are awake.
    pub fn woken(&mut self) {
        for (_, answers) in self.links.iter_mut().flatten() {
            if let Err(error) = answers.woken() {
                // Receiving will find the link broken as well.
                tracing::debug!(%error, "a link's doorbell failed");
            }
        }
    }

    /// Gives up what has waited too long, oldest first.
    pub fn expired(&mut self, now: Instant) -> Option<Pending<O>> {
        let (&tag, first) = self.waiting.first_key_value()?;
        if first.expires > now {
            return None;
        }
        if let (true, Some((caller, _))) = (first.sent, &self.links[first.pending.entrance as usize]) {
            // Spares the server the work; it does no harm unsaid.
            let _unsaid = caller.cancel(tag, None);
        }
        self.take(tag)
    }

    /// When the oldest has waited too long, or [`Backend::catch_up`] is to look for room again.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let expires = self.waiting.first_key_value().map(|(_, first)| first.expires);
        let resend = self.is_behind.contains(&true).then(|| now + RESEND_AFTER);
        expires.into_iter().chain(resend).min()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}
