//! One consumer's channel, seen from the server: what came, what is queued to go, what is owed.

use super::book::Book;
use super::service::{LinkId, ReplyTo};
use channel::{End, OpenError, Receiver, SendError, Sender, SpinPolicy};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;
use thiserror::Error;
use wire::control::Consumer;
use wire::service::{
    Export, HEADER_BYTES, Header, Kind, MAX_ANSWER_BYTES, MAX_CAPSULE_BYTES, MAX_RESPONSE_BYTES, Phase, flags,
};

/// Most bytes that wait for room in one consumer's ring: two of the longest answers. More, and the
/// consumer does not read; it is thrown out rather than remembered for.
pub const MAX_QUEUED_BYTES: usize = 2 * MAX_ANSWER_BYTES;
/// Most phases that one answer reports; a service has fewer.
const MAX_PHASES: usize = 64;

/// Why a consumer is thrown out.
#[derive(Debug, Error)]
pub enum SendFailure {
    /// It lets its answers pile up.
    #[error("it does not read its answers: {0} bytes are queued for it")]
    DoesNotRead(usize),
    /// Its channel is closed or broken.
    #[error("its channel is no more")]
    Channel(#[source] SendError),
}

/// A consumer.
#[derive(Debug)]
pub struct Link {
    /// Its number here.
    pub id: LinkId,
    /// Its number on the node.
    pub channel: u64,
    /// The index of the service that the consumer uses.
    pub service: usize,
    /// The consumer's identity.
    pub consumer: Consumer,
    /// Takes its messages.
    pub receiver: Receiver,
    /// Its sessions and requests.
    pub book: Book,
    /// The memory that its domain has with the service.
    pub memory: Option<OwnedFd>,
    /// Whether its sleeping flag is set, so that it rings before the next message needs a look.
    pub asleep: bool,
    /// Whether a record found no room: its service is to be told when there is some.
    pub owes_room: bool,
    /// Whether its last word has been said.
    pub left: bool,
    sender: Sender,
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    wants_room: bool,
    /// Since when the queue makes no progress.
    stalled_since: Option<Instant>,
}

impl Link {
    /// Opens the channel and says hello.
    pub fn open(
        (id, channel, service): (LinkId, u64, usize),
        consumer: Consumer,
        end: End,
        export: &Export,
    ) -> Result<Self, OpenError> {
        let (mut sender, mut receiver) = end.open()?;
        // The loop spins for all its links at once, and never waits on one.
        sender.set_spin_policy(SpinPolicy::Never);
        receiver.set_spin_policy(SpinPolicy::Never);
        let book = Book::new(id, export, &consumer.verbs);
        Ok(Self {
            id,
            channel,
            service,
            consumer,
            receiver,
            book,
            memory: None,
            asleep: false,
            owes_room: false,
            left: false,
            sender,
            queue: VecDeque::new(),
            queued_bytes: 0,
            wants_room: false,
            stalled_since: None,
        })
    }

    /// The descriptor that rings when there is room again.
    pub fn room_doorbell(&self) -> std::os::fd::BorrowedFd<'_> {
        self.sender.descriptors().doorbell
    }

    /// Whether answers wait for room. Such a consumer's messages are left where they are.
    pub fn is_stalled(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Since when answers wait and none got through.
    pub fn stalled_since(&self) -> Option<Instant> {
        self.stalled_since
    }

    /// Bytes that wait for room.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Sends the greeting.
    pub fn hello(&mut self, export: &[u8], now: Instant) -> Result<(), SendFailure> {
        self.send(Header::new(Kind::Hello), &[export], now)
    }

    /// Sends a capsule; one that is too long is the service's mistake, and dropped.
    pub fn capsule(&mut self, session: u64, capsule: &[u8], now: Instant) -> Result<(), SendFailure> {
        if capsule.len() > MAX_CAPSULE_BYTES {
            tracing::error!(session, bytes = capsule.len(), "a capsule is too long and was dropped");
            return Ok(());
        }
        self.send(Header { session, ..Header::new(Kind::Capsule) }, &[capsule], now)
    }

    /// Sends one record of a stream and the state of the session after it.
    pub fn record(
        &mut self,
        session: u64,
        record: &[u8],
        capsule: &[u8],
        now: Instant,
    ) -> Result<(), SendFailure> {
        let file = u32::try_from(capsule.len()).unwrap_or(u32::MAX);
        self.send(Header { session, file, ..Header::new(Kind::Record) }, &[record, capsule], now)
    }

    /// Says what poll(2) says of a device.
    pub fn ready(&mut self, session: u64, ready: u32, now: Instant) -> Result<(), SendFailure> {
        self.send(Header { session, file: ready, ..Header::new(Kind::Ready) }, &[], now)
    }

    /// Says the last word: nothing more is taken, and what has no answer has not been taken, but
    /// for these requests.
    pub fn leave(&mut self, taken: impl Iterator<Item = u64>, now: Instant) -> Result<(), SendFailure> {
        let taken: Vec<u8> = taken.flat_map(u64::to_le_bytes).collect();
        self.left = true;
        self.send(Header::new(Kind::Leave), &[&taken], now)
    }

    /// Ends a stream.
    pub fn end(&mut self, session: u64, errno: Option<Errno>, now: Instant) -> Result<(), SendFailure> {
        let status = errno.map_or(0, |errno| errno.raw_os_error().unsigned_abs());
        self.send(Header { session, status, flags: flags::END, ..Header::new(Kind::Record) }, &[], now)
    }

    /// Sends an answer, in pieces if it is long.
    pub fn respond(
        &mut self,
        to: ReplyTo,
        answer: Result<&[u8], Errno>,
        phases: &[Phase],
        now: Instant,
    ) -> Result<(), SendFailure> {
        let answer = answer
            .and_then(|bytes| if bytes.len() > MAX_ANSWER_BYTES { Err(Errno::MSGSIZE) } else { Ok(bytes) });
        let (status, bytes) = match answer {
            Ok(bytes) => (0, bytes),
            Err(errno) => (errno.raw_os_error().unsigned_abs(), &[][..]),
        };
        let head = Header { status, session: to.session, tag: to.tag, ..Header::new(Kind::Response) };
        let mut trailer = Vec::new();
        let mut last = head;
        if to.traced {
            last.flags = flags::TRACE;
            last.file = Phase::append(phases.get(..MAX_PHASES).unwrap_or(phases), &mut trailer);
        }
        let room = self.sender.max_message().min(MAX_RESPONSE_BYTES + HEADER_BYTES);
        let piece_bytes = room.saturating_sub(HEADER_BYTES + trailer.len()).max(1);
        let mut rest = bytes;
        while rest.len() > piece_bytes {
            let (piece, others) = rest.split_at(piece_bytes);
            self.send(Header { flags: flags::MORE, ..head }, &[piece], now)?;
            rest = others;
        }
        self.send(last, &[rest, &trailer], now)
    }

    /// Sends one message or queues it.
    fn send(&mut self, mut header: Header, payload: &[&[u8]], now: Instant) -> Result<(), SendFailure> {
        let length: usize = payload.iter().map(|part| part.len()).sum();
        header.length = u32::try_from(length).unwrap_or(u32::MAX);
        let head = header.encode();
        let first = payload.first().copied().unwrap_or_default();
        let second = payload.get(1).copied().unwrap_or_default();
        if self.queue.is_empty() {
            match self.sender.try_send_vectored(&[&head, first, second]) {
                Ok(()) => return Ok(()),
                Err(SendError::Full) => {}
                Err(error) => return Err(SendFailure::Channel(error)),
            }
        }
        let message = [&head[..], first, second].concat();
        self.queued_bytes += message.len();
        self.queue.push_back(message);
        self.stalled_since.get_or_insert(now);
        if self.queued_bytes > MAX_QUEUED_BYTES {
            return Err(SendFailure::DoesNotRead(self.queued_bytes));
        }
        // Whoever has something queued has asked to be rung, so nothing is queued for ever.
        if self.wants_room { Ok(()) } else { self.flush(now) }
    }

    /// Sends what is queued, as far as there is room; then the room doorbell will ring.
    pub fn flush(&mut self, now: Instant) -> Result<(), SendFailure> {
        if self.wants_room {
            self.sender.cancel_wait();
            self.wants_room = false;
        }
        while let Some(message) = self.queue.front() {
            match self.sender.try_send(message) {
                Ok(()) => {
                    self.queued_bytes -= message.len();
                    self.queue.pop_front();
                    self.stalled_since = Some(now);
                }
                Err(SendError::Full) => {
                    if self.sender.prepare_wait(message.len()).map_err(SendFailure::Channel)? {
                        self.wants_room = true;
                        return Ok(());
                    }
                }
                Err(error) => return Err(SendFailure::Channel(error)),
            }
        }
        self.stalled_since = None;
        Ok(())
    }

    /// Takes the rings off the room doorbell.
    pub fn hear_room(&mut self) -> Result<(), SendFailure> {
        self.sender.drain_doorbell().map_err(SendFailure::Channel)
    }
}
