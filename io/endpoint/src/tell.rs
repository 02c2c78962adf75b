//! Messages to a name, whoever has it: they go on when the endpoint moves, or a backup takes over.

use std::time::Instant;

use ipc::{NoPeer, Send, SendError};
use wire::ipc::Address;

use crate::ask::has_gone;
use crate::member::RETRY;
use crate::waiting::Patience;
use crate::{Endpoint, Failed, Find, FindError, Step};

/// Why a message to a name was not sent.
#[derive(Debug, thiserror::Error)]
pub enum TellError {
    /// Nobody has the name, or the two may not know each other.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It was not sent.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// A message to a name, in steps ([`Endpoint::step_tell`]).
#[derive(Debug)]
pub struct Tell {
    name: String,
    tag: u32,
    /// The search for the endpoint that has the name; `None`: the message is on its way.
    find: Option<Find>,
    send: Option<Send>,
    /// The endpoint that was called last, in vain.
    before: Option<Address>,
}

impl Tell {
    /// A message that was not begun yet.
    #[must_use]
    pub fn new(name: &str, tag: u32) -> Tell {
        Tell { name: name.to_owned(), tag, find: Some(Find::new(name, true)), send: None, before: None }
    }
}

impl Endpoint {
    /// A step of a message to a name: as [`Endpoint::tell`]. Pass the same payload each time;
    /// `late`: the call's deadline has passed.
    ///
    /// # Errors
    /// See [`TellError`].
    pub fn step_tell(
        &mut self,
        call: &mut Tell,
        payload: &[u8],
        late: bool,
    ) -> Result<Step<()>, Failed<TellError>> {
        loop {
            if let Some(find) = &mut call.find {
                match self.step_find(find, late).map_err(Failed::of)? {
                    Step::Pending { again_at } => return Ok(Step::Pending { again_at }),
                    Step::Ready(to) if call.before.is_some_and(|before| is_no_successor(to, before)) => {
                        if late {
                            return Err(Failed::Call(SendError::NoPeer(NoPeer::Dead(to)).into()));
                        }
                        call.find = Some(Find::new(call.name.as_str(), true));
                        return Ok(Step::Pending { again_at: Some(Instant::now() + RETRY) });
                    }
                    Step::Ready(to) => (call.find, call.send) = (None, Some(Send::rendezvous(to, call.tag))),
                }
            }
            let Some(send) = &mut call.send else { continue };
            match self.step_send(send, payload, late) {
                Err(Failed::Call(SendError::NoPeer(why))) if has_gone(why) && send.is_withdrawn() => {
                    call.before = Some(send.to());
                    call.find = Some(Find::new(call.name.as_str(), true));
                }
                step => return step.map_err(Failed::of),
            }
        }
    }

    /// Gives a message up that will not be stepped any more. True: it was received, or that is not
    /// known.
    pub fn cancel_tell(&mut self, call: &mut Tell) -> bool {
        match (&mut call.find, &mut call.send) {
            (Some(find), _) => {
                self.cancel_find(find);
                false
            }
            (None, Some(send)) => self.cancel_send(send),
            (None, None) => false,
        }
    }

    /// Sends a message to whoever has the name, and waits until it is received: a rendezvous. Waits
    /// until the name is bound. If whoever has it moves or dies before it has received the message,
    /// the next one receives it: one of them, and once.
    ///
    /// # Errors
    /// See [`TellError`].
    pub fn tell(
        &mut self,
        name: &str,
        tag: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), Failed<TellError>> {
        let mut before = None;
        loop {
            let to = self.find_next(name, before, deadline)?;
            self.meet(to, |rights| rights.send)?;
            let mut call = Send::rendezvous(to, tag);
            let patience = Patience { deadline, searches: true };
            let done = self.drive(patience, |logic, pulse| logic.poll_send(&mut call, payload, pulse));
            match self.or_cancel(done, |logic| logic.cancel_send(&mut call)) {
                Err(Failed::Call(SendError::NoPeer(why))) if has_gone(why) && call.is_withdrawn() => {
                    before = Some(to);
                }
                done => return done.map_err(Failed::of),
            }
        }
    }

    /// As [`Endpoint::tell`], and waits only until there is room for the message. What was sent so
    /// to an endpoint that moves is received at its new place; what was sent to one that dies ends
    /// with it.
    ///
    /// # Errors
    /// See [`TellError`].
    pub fn tell_buffered(
        &mut self,
        name: &str,
        tag: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), Failed<TellError>> {
        let mut before = None;
        loop {
            let to = self.find_next(name, before, deadline)?;
            match self.send_buffered(to, tag, payload, deadline) {
                Err(Failed::Call(SendError::NoPeer(why))) if has_gone(why) => before = Some(to),
                done => return done.map_err(Failed::of),
            }
        }
    }

    /// Looks up the present holder of the name, if it is another one than the one that was called
    /// in vain.
    fn find_next(
        &mut self,
        name: &str,
        before: Option<Address>,
        deadline: Option<Instant>,
    ) -> Result<Address, Failed<TellError>> {
        loop {
            let to = self.wait_for_bind(name, deadline).map_err(Failed::of)?;
            if !before.is_some_and(|before| is_no_successor(to, before)) {
                return Ok(to);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Failed::Call(SendError::NoPeer(NoPeer::Dead(to)).into()));
            }
            self.await_daemon(deadline.into_iter().chain([now + RETRY]).min())?;
        }
    }
}

/// Whether this is still the one that was called in vain: the daemon does not know yet that it has
/// ended.
fn is_no_successor(to: Address, before: Address) -> bool {
    to.slot == before.slot && to.generation <= before.generation
}
