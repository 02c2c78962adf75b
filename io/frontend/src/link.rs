//! The threads and queues of links to backends: the core never waits for one.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use channel::Closer;
use session::{Answers, CallError, Caller, Incoming};

use crate::core::{Answer, NewLink};
use crate::host::Outgoing;
use crate::shared::Shared;

/// Stack of a thread here, in bytes: they call little, and only what they touch takes memory.
pub(crate) const STACK_BYTES: usize = 256 * 1024;
/// Messages that may wait for room in a backend's ring. A backend that leaves more is given up.
const QUEUED_MAX: usize = 16 * 1024;
/// How long a message waits for room before its backend is given up: it is not even reading.
const STALL: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Queue {
    messages: VecDeque<Outgoing>,
    /// A thread is sending from the queue: whoever comes now has to queue up.
    draining: bool,
}

/// The sending half of a link.
#[derive(Clone)]
pub(crate) struct Link {
    caller: Arc<Caller>,
    /// Closes without the caller's lock, which a thread that waits for room holds.
    closer: Closer,
    queue: Arc<Mutex<Queue>>,
}

impl Link {
    /// Starts to receive on `answers`, for `shared`'s service `new`.
    pub(crate) fn start(
        caller: Caller,
        answers: Answers,
        new: NewLink,
        shared: &Arc<Shared>,
    ) -> io::Result<Self> {
        let shared = Arc::clone(shared);
        crate::shared::spawn("link", move || receive(answers, new, &shared))?;
        Ok(Self { closer: caller.closer(), caller: Arc::new(caller), queue: Arc::default() })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends, or queues up where the backend's ring is full. Where the backend has closed the
    /// channel, this is left to the receiver, which takes its last words first.
    pub(crate) fn send(&self, message: Outgoing) {
        let mut queue = self.queue();
        if !queue.draining {
            match self.try_send(&message, None) {
                Ok(()) => return,
                Err(CallError::Full) => {}
                Err(CallError::Closed) => return,
                Err(error) => return self.give_up(&error),
            }
        }
        if queue.messages.len() >= QUEUED_MAX {
            return self.give_up(&CallError::Full);
        }
        queue.messages.push_back(message);
        if !queue.draining {
            let link = self.clone();
            match crate::shared::spawn("queue", move || link.drain()) {
                Ok(()) => queue.draining = true,
                Err(error) => self.give_up(&error),
            }
        }
    }

    /// Ends the link; its receiver hears of it.
    pub(crate) fn hang_up(&self) {
        self.queue().messages.clear();
        self.closer.close();
    }

    fn give_up(&self, error: &(dyn std::error::Error + 'static)) {
        tracing::warn!(error, "the link to a backend is given up");
        self.closer.close();
    }

    fn drain(&self) {
        loop {
            let message = {
                let mut queue = self.queue();
                let Some(message) = queue.messages.pop_front() else {
                    queue.draining = false;
                    return;
                };
                message
            };
            if let Err(error) = self.try_send(&message, Some(Instant::now() + STALL)) {
                if !matches!(error, CallError::Closed) {
                    self.give_up(&error);
                }
                let mut queue = self.queue();
                queue.messages.clear();
                queue.draining = false;
                return;
            }
        }
    }

    fn try_send(&self, message: &Outgoing, deadline: Option<Instant>) -> Result<(), CallError> {
        let to = &self.caller;
        match message {
            Outgoing::Open { session, tag, file, info } => to.open((*session, *tag), *file, info, deadline),
            Outgoing::Request { session, tag, file, line, traced } => {
                to.request((*session, *tag), *file, line, *traced, deadline)
            }
            Outgoing::Control { session, tag, number, data } => {
                to.control((*session, *tag), *number, data, deadline)
            }
            Outgoing::Tree { kind, session, tag, file, payload } => {
                to.ask(*kind, (*session, *tag), *file, payload, deadline)
            }
            Outgoing::Credit { session, bytes } => to.credit(*session, *bytes, deadline),
            Outgoing::Cancel { tag } => to.cancel(*tag, deadline),
            Outgoing::Close { session } => to.close(*session, deadline),
        }
    }
}

/// Takes what the backend says until the link ends.
fn receive(mut answers: Answers, new: NewLink, shared: &Shared) {
    let NewLink { service, epoch } = new;
    loop {
        match answers.next(None) {
            Ok(Incoming::Hello(export)) => shared.with(|core| core.greeted(service, epoch, export)),
            Ok(Incoming::Answer(answer)) => {
                let answer = Answer { tag: answer.tag, result: answer.result, phases: answer.phases };
                shared.with(|core| core.answered(service, epoch, answer));
            }
            Ok(Incoming::Capsule { session, capsule }) => {
                shared.with(|core| core.capsule(service, epoch, session, capsule));
            }
            Ok(Incoming::Record { session, record, capsule }) => {
                shared.with(|core| core.record(service, epoch, session, (record, capsule)));
            }
            Ok(Incoming::Ready { session, ready }) => {
                shared.with(|core| core.readied(service, epoch, session, ready));
            }
            Ok(Incoming::End { session, errno }) => {
                shared.with(|core| core.stream_ended(service, epoch, session, errno));
            }
            Ok(Incoming::Leave { taken }) => shared.with(|core| core.left(service, epoch, taken)),
            Err(error) => {
                let broken = matches!(error, CallError::BadBackend(_) | CallError::Channel(_));
                if broken {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a backend breaks the rules");
                }
                shared.with(|core| core.link_ended(service, epoch, broken));
                return;
            }
        }
    }
}
