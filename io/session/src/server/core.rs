//! The loop's state besides the services: the links, and the watched descriptors. Services see it
//! as their [`Context`].

use super::link::{Link, SendFailure};
use super::service::{Context, Interest, LinkId, ReplyTo};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use wire::service::{MAX_CAPSULE_BYTES, MAX_RECORD_BYTES, Phase, RECORD_OVERHEAD_BYTES};

/// The subject of an event of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The control socket.
    Control,
    /// The folder of the control socket, while there is no daemon.
    Folder,
    /// Somebody wants the loop to end.
    Stop,
    /// A consumer sent something, or is gone.
    Data(LinkId),
    /// A consumer made room, or is gone.
    Room(LinkId),
    /// A descriptor of a service.
    Service {
        /// The service's index.
        service: usize,
        /// Its word for the descriptor.
        token: u32,
    },
}

/// The number of a source stands in the top byte of the event's data, what it is about below.
const SHIFT: u32 = 56;
/// A service's number stands above its token.
const TOKEN_BITS: u32 = 32;
/// Most services of one server: what fits between the top byte and the token.
pub const MAX_SERVICES: usize = 1 << (SHIFT - TOKEN_BITS);

impl Source {
    /// As the kernel keeps it.
    pub fn encode(self) -> u64 {
        let (number, rest) = match self {
            Self::Control => (0, 0),
            Self::Folder => (1, 0),
            Self::Stop => (2, 0),
            Self::Data(LinkId(id)) => (3, id),
            Self::Room(LinkId(id)) => (4, id),
            Self::Service { service, token } => (5, (service as u64) << TOKEN_BITS | u64::from(token)),
        };
        number << SHIFT | rest
    }

    /// From what the kernel kept.
    pub fn decode(data: u64) -> Option<Self> {
        let rest = data & ((1 << SHIFT) - 1);
        Some(match data >> SHIFT {
            0 => Self::Control,
            1 => Self::Folder,
            2 => Self::Stop,
            3 => Self::Data(LinkId(rest)),
            4 => Self::Room(LinkId(rest)),
            5 => Self::Service {
                service: usize::try_from(rest >> TOKEN_BITS).ok()?,
                token: u32::try_from(rest & u64::from(u32::MAX)).ok()?,
            },
            _ => return None,
        })
    }
}

/// The links and the watches.
#[derive(Debug)]
pub struct Core {
    epoll: OwnedFd,
    /// Every consumer.
    pub links: HashMap<LinkId, Link>,
    /// Consumers to be thrown out after the current call, and why.
    pub doomed: Vec<(LinkId, String)>,
    /// The time of this round.
    pub now: Instant,
    /// While the server leaves its service to another one: until when it waits for its own answers.
    pub leaving: Option<Instant>,
}

impl Core {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            links: HashMap::new(),
            doomed: Vec::new(),
            now: Instant::now(),
            leaving: None,
        })
    }

    /// The descriptor to wait on.
    pub fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Watches a descriptor of the loop's own.
    pub fn watch_source(&self, descriptor: impl AsFd, source: Source) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(source.encode()), EventFlags::IN)?)
    }

    /// Ends a watch, of which there may be none.
    pub fn unwatch_source(&self, descriptor: impl AsFd) {
        if let Err(errno) = epoll::delete(&self.epoll, descriptor) {
            tracing::debug!(%errno, "a descriptor was not watched");
        }
    }

    /// Notes what became of sending to a consumer.
    pub fn sent(&mut self, link: LinkId, result: Result<(), SendFailure>) {
        match result {
            Ok(()) => {}
            Err(SendFailure::Channel(channel::SendError::Closed)) => {
                self.doomed.push((link, "it is gone".into()));
            }
            Err(error) => self.doomed.push((link, describe(&error))),
        }
    }
}

/// An error and its causes in one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The core as one service sees it.
pub struct Bound<'c> {
    /// Everything.
    pub core: &'c mut Core,
    /// The service whose calls these are.
    pub service: usize,
}

impl Bound<'_> {
    /// A link, if it is this service's.
    fn link(&mut self, link: LinkId) -> Option<&mut Link> {
        self.core.links.get_mut(&link).filter(|found| found.service == self.service)
    }

    fn data(&self, token: u32) -> EventData {
        EventData::new_u64(Source::Service { service: self.service, token }.encode())
    }
}

impl Context for Bound<'_> {
    fn now(&self) -> Instant {
        self.core.now
    }

    fn answer(&mut self, to: ReplyTo, answer: Result<&[u8], Errno>, phases: &[Phase]) {
        let now = self.core.now;
        let Some(link) = self.link(to.link) else { return };
        if link.book.answered(to, answer.is_ok()) {
            let sent = link.respond(to, answer, phases, now);
            self.core.sent(to.link, sent);
        }
    }

    fn capsule(&mut self, link: LinkId, session: u64, capsule: &[u8]) {
        let now = self.core.now;
        let Some(found) = self.link(link).filter(|found| found.book.is_open(session)) else { return };
        let sent = found.capsule(session, capsule, now);
        self.core.sent(link, sent);
    }

    fn record(&mut self, link: LinkId, session: u64, record: &[u8], capsule: &[u8]) -> bool {
        let now = self.core.now;
        let Some(found) = self.link(link) else { return false };
        if record.len() > MAX_RECORD_BYTES || capsule.len() > MAX_CAPSULE_BYTES {
            tracing::error!(
                session,
                bytes = record.len(),
                "a record of a stream is too long and was not sent"
            );
            return false;
        }
        // What is queued has a bound that many streams together would break.
        if found.is_stalled() {
            found.owes_room = true;
            return false;
        }
        if !found.book.spend(session, record.len() + RECORD_OVERHEAD_BYTES) {
            return false;
        }
        let sent = found.record(session, record, capsule, now);
        self.core.sent(link, sent);
        true
    }

    fn credit_left(&self, link: LinkId, session: u64) -> u64 {
        let link = self.core.links.get(&link).filter(|found| found.service == self.service);
        link.map_or(0, |found| found.book.credit(session))
    }

    fn ready(&mut self, link: LinkId, session: u64, ready: u32) {
        let now = self.core.now;
        let Some(found) = self.link(link).filter(|found| found.book.is_open(session)) else { return };
        let sent = found.ready(session, ready, now);
        self.core.sent(link, sent);
    }

    fn memory(&self, link: LinkId) -> Option<BorrowedFd<'_>> {
        let found = self.core.links.get(&link).filter(|found| found.service == self.service)?;
        Some(found.memory.as_ref()?.as_fd())
    }

    fn end(&mut self, link: LinkId, session: u64, errno: Option<Errno>) {
        let now = self.core.now;
        let Some(found) = self.link(link).filter(|found| found.book.is_open(session)) else { return };
        let sent = found.end(session, errno, now);
        self.core.sent(link, sent);
    }

    fn detach(&mut self, link: LinkId, reason: &str) {
        if self.link(link).is_some() {
            self.core.doomed.push((link, reason.to_owned()));
        }
    }

    fn watch(&mut self, descriptor: BorrowedFd<'_>, token: u32, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.core.epoll, descriptor, self.data(token), flags_of(interest))?)
    }

    fn rewatch(&mut self, descriptor: BorrowedFd<'_>, token: u32, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.core.epoll, descriptor, self.data(token), flags_of(interest))?)
    }

    fn unwatch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.core.epoll, descriptor)?)
    }
}

fn flags_of(interest: Interest) -> EventFlags {
    match interest {
        Interest::Read => EventFlags::IN,
        Interest::Write => EventFlags::OUT,
        Interest::Both => EventFlags::IN | EventFlags::OUT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_survive_the_kernel() {
        let service = Source::Service { service: MAX_SERVICES - 1, token: u32::MAX };
        for source in [
            Source::Control,
            Source::Folder,
            Source::Stop,
            Source::Data(LinkId(7)),
            Source::Room(LinkId(1 << 50)),
            service,
        ] {
            assert_eq!(Source::decode(source.encode()), Some(source));
        }
        assert_eq!(Source::decode(u64::MAX), None);
    }
}
