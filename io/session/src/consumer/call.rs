//! A consumer's link: many threads may send, one receives.

use super::assembly::{Assembly, BadBackend, Incoming};
use channel::{Closer, Descriptors, End, OpenError, ReceiveError, Receiver, SendError, Sender};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use thiserror::Error;
use wire::service::{Header, Kind, MAX_REQUEST_BYTES, OpenInfo, flags};

/// Why a link to a service failed, or a message did not get through.
#[derive(Debug, Error)]
pub enum CallError {
    /// The server is gone, or has thrown us out: connect again.
    #[error("the link to the service is closed")]
    Closed,
    /// The ring is full: the server is behind.
    #[error("the service does not keep up with the requests")]
    Full,
    /// The time was over first.
    #[error("the service did not answer in time")]
    TimedOut,
    /// More bytes than the protocol or the ring allows.
    #[error("a request of {0} bytes is too long")]
    TooLong(usize),
    /// The server broke the protocol; the link is closed.
    #[error("the service's server broke the protocol")]
    BadBackend(#[from] BadBackend),
    /// The server broke the rules of the channel, or the kernel refused a wait.
    #[error("the channel to the service failed")]
    Channel(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<SendError> for CallError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Closed => Self::Closed,
            SendError::Full => Self::Full,
            SendError::TimedOut => Self::TimedOut,
            SendError::TooLong { length, .. } => Self::TooLong(length),
            other => Self::Channel(Box::new(other)),
        }
    }
}

impl From<ReceiveError> for CallError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Closed => Self::Closed,
            ReceiveError::TimedOut => Self::TimedOut,
            other => Self::Channel(Box::new(other)),
        }
    }
}

/// Opens our end of a channel to a service.
///
/// # Errors
/// The fault of the end.
pub fn open(end: End) -> Result<(Caller, Answers), OpenError> {
    let (sender, receiver) = end.open()?;
    let answers = Answers { receiver, assembly: Assembly::default(), message: Vec::new() };
    Ok((Caller { sender: Mutex::new(sender), last_tag: AtomicU64::new(0) }, answers))
}

/// The half of a link that sends. May be shared; messages of different threads are not mixed.
///
/// Each call that takes a `deadline` waits until then for room in the ring; with `None` it does not
/// wait at all. A tag is chosen before the request is sent, because the answer may come before the
/// call returns: a fresh one from [`Caller::tag`], or any number that is not outstanding.
#[derive(Debug)]
pub struct Caller {
    sender: Mutex<Sender>,
    last_tag: AtomicU64,
}

impl Caller {
    /// A tag that [`Caller::tag`] has not given before on this link.
    pub fn tag(&self) -> u64 {
        self.last_tag.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Opens a session (not 0, not open). Requests in it may follow at once.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn open(
        &self,
        (session, tag): (u64, u64),
        file: u32,
        info: &OpenInfo,
        deadline: Option<Instant>,
    ) -> Result<(), CallError> {
        let info = serde_json::to_vec(info).map_err(|error| CallError::Channel(Box::new(error)))?;
        self.send(Header { session, tag, file, ..Header::new(Kind::Open) }, &info, deadline)
    }

    /// Asks. `traced`: the answer shall say where the time went.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn request(
        &self,
        (session, tag): (u64, u64),
        file: u32,
        payload: &[u8],
        traced: bool,
        deadline: Option<Instant>,
    ) -> Result<(), CallError> {
        let flags = if traced { flags::TRACE } else { 0 };
        self.send(Header { flags, session, tag, file, ..Header::new(Kind::Request) }, payload, deadline)
    }

    /// An `ioctl` of number `number`.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn control(
        &self,
        (session, tag): (u64, u64),
        number: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), CallError> {
        self.send(Header { session, tag, file: number, ..Header::new(Kind::Control) }, payload, deadline)
    }

    /// Asks about a tree or for bytes at an offset: one of the kinds from [`Kind::Lookup`] on, with
    /// the payload that `wire::service` makes for it.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn ask(
        &self,
        kind: Kind,
        (session, tag): (u64, u64),
        file: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), CallError> {
        self.send(Header { session, tag, file, ..Header::new(kind) }, payload, deadline)
    }

    /// Takes so many more bytes of records of a stream, [`wire::service::RECORD_OVERHEAD_BYTES`]
    /// for each included.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn credit(&self, session: u64, bytes: u32, deadline: Option<Instant>) -> Result<(), CallError> {
        self.send(Header { session, file: bytes, ..Header::new(Kind::Credit) }, &[], deadline)
    }

    /// Asks for the service's counters, as JSON.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn state(&self, tag: u64, deadline: Option<Instant>) -> Result<(), CallError> {
        self.send(Header { tag, ..Header::new(Kind::State) }, &[], deadline)
    }

    /// Says that nobody waits for `tag` any more. Its answer may be under way already: ignore it,
    /// and do not use the tag again. Whoever cancels an opening closes the session as well.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn cancel(&self, tag: u64, deadline: Option<Instant>) -> Result<(), CallError> {
        self.send(Header { tag, ..Header::new(Kind::Cancel) }, &[], deadline)
    }

    /// Ends a session and everything outstanding in it.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn close(&self, session: u64, deadline: Option<Instant>) -> Result<(), CallError> {
        self.send(Header { session, ..Header::new(Kind::Close) }, &[], deadline)
    }

    /// Closes the link: [`Answers`] ends after what has come already.
    pub fn hang_up(&self) {
        self.sender().close();
    }

    /// A handle that closes the link from anywhere.
    pub fn closer(&self) -> Closer {
        self.sender().closer()
    }

    fn sender(&self) -> MutexGuard<'_, Sender> {
        // A panic of another thread leaves no message half sent: a loan that is not committed was
        // never there.
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, mut header: Header, payload: &[u8], deadline: Option<Instant>) -> Result<(), CallError> {
        header.length = length(payload)?;
        let mut sender = self.sender();
        let _: () = match deadline {
            Some(deadline) => sender.send_vectored(&[&header.encode(), payload], Some(deadline))?,
            None => sender.try_send_vectored(&[&header.encode(), payload])?,
        };
        Ok(())
    }
}

/// The length of a request's payload for its header.
pub(super) fn length(payload: &[u8]) -> Result<u32, CallError> {
    u32::try_from(payload.len())
        .ok()
        .filter(|_| payload.len() <= MAX_REQUEST_BYTES)
        .ok_or(CallError::TooLong(payload.len()))
}

/// The half of a link that receives.
#[derive(Debug)]
pub struct Answers {
    pub(super) receiver: Receiver,
    pub(super) assembly: Assembly,
    pub(super) message: Vec<u8>,
}

impl Answers {
    /// Returns the server's next message; waits until `deadline`, or for good. The bytes are lent
    /// until the next call.
    ///
    /// # Errors
    /// [`CallError::TimedOut`]; everything else ends the link.
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Incoming<'_>, CallError> {
        let whole = loop {
            self.receiver.receive(&mut self.message, deadline)?;
            if let Some(whole) = self.take()? {
                break whole;
            }
        };
        Ok(self.assembly.lend(whole, &self.message))
    }

    /// Returns the server's next message, if there is one. The bytes are lent until the next call.
    ///
    /// # Errors
    /// All of them end the link.
    pub fn try_next(&mut self) -> Result<Option<Incoming<'_>>, CallError> {
        let whole = loop {
            if self.receiver.try_receive(&mut self.message)?.is_none() {
                return Ok(None);
            }
            if let Some(whole) = self.take()? {
                break whole;
            }
        };
        Ok(Some(self.assembly.lend(whole, &self.message)))
    }

    pub(super) fn take(&mut self) -> Result<Option<super::assembly::Whole>, CallError> {
        self.assembly.take(&self.message).map_err(|error| {
            self.receiver.close();
            error.into()
        })
    }

    /// Returns the descriptors that an event loop watches, together with [`Answers::prepare_wait`]
    /// before it sleeps and [`Answers::woken`] after.
    pub fn descriptors(&self) -> Descriptors<'_> {
        self.receiver.descriptors()
    }

    /// Asks to be rung. False: there is something already, do not sleep.
    pub fn prepare_wait(&mut self) -> bool {
        self.receiver.prepare_wait()
    }

    /// Says that we are awake, and takes the rings off. Then [`Answers::try_next`] until there is
    /// nothing.
    ///
    /// # Errors
    /// [`CallError::Channel`].
    pub fn woken(&mut self) -> Result<(), CallError> {
        self.receiver.cancel_wait();
        Ok(self.receiver.drain_doorbell()?)
    }
}
