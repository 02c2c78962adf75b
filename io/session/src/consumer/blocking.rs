//! One thread, one question at a time.

use super::assembly::{Answer, Incoming};
use super::call::{Answers, CallError, length};
use channel::{End, Sender};
use std::time::Instant;
use wire::service::{Export, Header, Kind, OpenInfo, SESSION_NONE, flags};

/// A link for one question at a time. Keeps its buffers, so that a call allocates nothing.
#[derive(Debug)]
pub struct Blocking {
    sender: Sender,
    answers: Answers,
    export: Export,
    last_tag: u64,
}

impl Blocking {
    /// Opens our end of a channel and waits for the server's greeting.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn open(end: End, deadline: Option<Instant>) -> Result<Self, CallError> {
        let (sender, receiver) = end.open().map_err(|error| CallError::Channel(Box::new(error)))?;
        let mut answers = Answers { receiver, assembly: Default::default(), message: Vec::new() };
        let export = match answers.next(deadline)? {
            Incoming::Hello(export) => export,
            // The assembly has let nothing else through before the greeting.
            Incoming::Answer(_)
            | Incoming::Capsule { .. }
            | Incoming::Record { .. }
            | Incoming::Ready { .. }
            | Incoming::End { .. }
            | Incoming::Leave { .. } => return Err(CallError::Closed),
        };
        Ok(Self { sender, answers, export, last_tag: 0 })
    }

    /// Returns the service's export.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Asks `file` with the domain's defaults and waits for the answer. The bytes are lent until
    /// the next call.
    ///
    /// # Errors
    /// [`CallError`]; an errno of the service is in the answer.
    pub fn call(
        &mut self,
        file: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<Answer<'_>, CallError> {
        let header = Header { session: SESSION_NONE, file, ..Header::new(Kind::Request) };
        self.ask(header, payload, deadline)
    }

    /// As [`Blocking::call`], and the answer says where the time went.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call_traced(
        &mut self,
        file: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<Answer<'_>, CallError> {
        let header = Header { file, flags: flags::TRACE, ..Header::new(Kind::Request) };
        self.ask(header, payload, deadline)
    }

    /// Opens `session` (not 0, not open) on `file`; the answer has no bytes.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn open_session(
        &mut self,
        session: u64,
        file: u32,
        info: &OpenInfo,
        deadline: Option<Instant>,
    ) -> Result<Answer<'_>, CallError> {
        let info = serde_json::to_vec(info).map_err(|error| CallError::Channel(Box::new(error)))?;
        self.ask(Header { session, file, ..Header::new(Kind::Open) }, &info, deadline)
    }

    /// Asks in an open session.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call_in(
        &mut self,
        session: u64,
        file: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<Answer<'_>, CallError> {
        self.ask(Header { session, file, ..Header::new(Kind::Request) }, payload, deadline)
    }

    /// An `ioctl` in an open session.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn control(
        &mut self,
        session: u64,
        number: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<Answer<'_>, CallError> {
        self.ask(Header { session, file: number, ..Header::new(Kind::Control) }, payload, deadline)
    }

    /// The service's counters, as JSON.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn state(&mut self, deadline: Option<Instant>) -> Result<Answer<'_>, CallError> {
        self.ask(Header::new(Kind::State), &[], deadline)
    }

    /// Ends a session.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn close_session(&mut self, session: u64, deadline: Option<Instant>) -> Result<(), CallError> {
        let header = Header { session, ..Header::new(Kind::Close) };
        Ok(self.sender.send(&header.encode(), deadline)?)
    }

    /// Lets go of the link without closing it: for the child of a fork, whose parent goes on using
    /// it.
    pub fn abandon(mut self) {
        self.answers.receiver.abandon();
    }

    fn ask(
        &mut self,
        mut header: Header,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<Answer<'_>, CallError> {
        self.last_tag += 1;
        header.tag = self.last_tag;
        header.length = length(payload)?;
        self.sender.send_vectored(&[&header.encode(), payload], deadline)?;
        let whole = loop {
            if let Err(error) = self.answers.receiver.receive(&mut self.answers.message, deadline) {
                let error = CallError::from(error);
                if matches!(error, CallError::TimedOut) {
                    self.cancel(header.tag);
                }
                return Err(error);
            }
            match self.answers.take()? {
                // Nothing more comes: the next server is another connection's.
                Some(super::assembly::Whole::Leave) => return Err(CallError::Closed),
                // An answer with another tag is late: its question was given up.
                Some(super::assembly::Whole::Answer(whole)) if whole.tag == header.tag => break whole,
                _ => {}
            }
        };
        Ok(self.answers.assembly.lend_answer(whole, &self.answers.message))
    }

    /// Spares the server the work, if there is room to say so.
    fn cancel(&mut self, tag: u64) {
        let header = Header { tag, ..Header::new(Kind::Cancel) };
        let _not_needed_for_correctness = self.sender.try_send(&header.encode());
    }
}
