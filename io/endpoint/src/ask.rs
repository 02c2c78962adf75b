//! Requests to a name, whoever has it: they go on when a backup takes over.

use std::time::Instant;

use ipc::{NoPeer, Reply, Request, RequestError};
use wire::ipc::Address;

use crate::member::RETRY;
use crate::waiting::Patience;
use crate::{Endpoint, Failed, Find, FindError, Step};

/// Why a request to a name has no reply.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody has the name, or the two may not know each other.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The endpoint that may have received it has ended, and its successor does not know of its
    /// replies: it is not known whether the request took effect.
    #[error(
        "endpoint {before} may have received the request, and has ended; {successor} does not know of it: it is not known whether it took effect"
    )]
    Unknown {
        /// The endpoint that may have received it.
        before: Address,
        /// The endpoint that has the name now.
        successor: Address,
    },
}

/// A request to a name, in steps ([`Endpoint::step_ask`]).
#[derive(Debug)]
pub struct Ask {
    name: String,
    tag: u32,
    takes: u32,
    /// The search for the endpoint that has the name; `None`: the request is on its way.
    find: Option<Find>,
    request: Option<Request>,
    /// The first one that may have received it, and has ended.
    received_by: Option<Address>,
}

impl Ask {
    /// A request that takes a reply of at most `takes` bytes. It was not begun yet.
    #[must_use]
    pub fn new(name: &str, tag: u32, takes: usize) -> Ask {
        let takes = u32::try_from(takes).unwrap_or(u32::MAX);
        Ask {
            name: name.to_owned(),
            tag,
            takes,
            find: Some(Find::new(name, true)),
            request: None,
            received_by: None,
        }
    }

    /// Whether this is still the one that may have received it: the daemon does not know yet that
    /// it has ended.
    fn is_no_successor(&self, to: Address) -> bool {
        self.received_by.is_some_and(|before| to.slot == before.slot && to.generation <= before.generation)
    }

    /// The endpoint that was asked is gone: looks for the next one that has the name.
    fn look_again(&mut self) {
        if let Some(request) = self.request.as_ref().filter(|request| !request.is_withdrawn()) {
            // Whoever continues the first one that may have received it knows of the later ones,
            // too.
            self.received_by = self.received_by.or(Some(request.to()));
        }
        self.find = Some(Find::new(self.name.as_str(), true));
    }
}

impl Endpoint {
    /// Sends a request to whoever has the name, and waits for the reply, whose payload, of at most
    /// `takes` bytes, replaces what is in `into`. Waits until the name is bound. If whoever was
    /// asked dies or is superseded, the request is sent again to the backup that takes over, under
    /// the same number: it is answered once. To a successor that took nothing over it is sent again
    /// only if it was not received before.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn ask(
        &mut self,
        name: &str,
        tag: u32,
        payload: &[u8],
        into: &mut Vec<u8>,
        takes: usize,
        deadline: Option<Instant>,
    ) -> Result<Reply, Failed<AskError>> {
        let mut call = Ask::new(name, tag, takes);
        loop {
            let to = self.wait_for_bind(name, deadline).map_err(Failed::of)?;
            if call.is_no_successor(to) {
                let now = Instant::now();
                if deadline.is_some_and(|deadline| now >= deadline) {
                    return Err(Failed::Call(no_successor(to)));
                }
                self.await_daemon(deadline.into_iter().chain([now + RETRY]).min())?;
                continue;
            }
            let request = self.direct(&mut call, to)?;
            self.meet(to, |rights| rights.request)?;
            let patience = Patience { deadline, searches: true };
            let done = self.drive(patience, |logic, pulse| logic.poll_request(request, payload, into, pulse));
            match self.or_cancel(done, |logic| logic.cancel_request(request)) {
                Err(Failed::Call(RequestError::NoPeer(why))) if has_gone(why) => call.look_again(),
                done => return done.map_err(Failed::of),
            }
        }
    }

    /// A step of a request to a name. Pass the same payload each time; `late`: the call's deadline
    /// has passed.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn step_ask(
        &mut self,
        call: &mut Ask,
        payload: &[u8],
        into: &mut Vec<u8>,
        late: bool,
    ) -> Result<Step<Reply>, Failed<AskError>> {
        loop {
            if let Some(find) = &mut call.find {
                match self.step_find(find, late).map_err(Failed::of)? {
                    Step::Pending { again_at } => return Ok(Step::Pending { again_at }),
                    Step::Ready(to) if call.is_no_successor(to) => {
                        if late {
                            return Err(Failed::Call(no_successor(to)));
                        }
                        call.find = Some(Find::new(call.name.as_str(), true));
                        return Ok(Step::Pending { again_at: Some(Instant::now() + RETRY) });
                    }
                    Step::Ready(to) => {
                        self.direct(call, to)?;
                    }
                }
            }
            let Some(request) = &mut call.request else { continue };
            match self.step_request(request, payload, into, late) {
                Err(Failed::Call(RequestError::NoPeer(why))) if has_gone(why) => call.look_again(),
                step => return step.map_err(Failed::of),
            }
        }
    }

    /// Gives a request up that will not be stepped any more. True: it was received, or that is not
    /// known.
    pub fn cancel_ask(&mut self, call: &mut Ask) -> bool {
        let received = call.received_by.is_some();
        match (&mut call.find, &mut call.request) {
            (Some(find), _) => {
                self.cancel_find(find);
                received
            }
            (None, Some(request)) => self.cancel_request(request) || received,
            (None, None) => received,
        }
    }

    /// The request is for this one from now on.
    fn direct<'a>(&self, call: &'a mut Ask, to: Address) -> Result<&'a mut Request, Failed<AskError>> {
        call.find = None;
        if let Some(before) = call.received_by
            && !self.continues_after(to, before)
        {
            return Err(Failed::Call(AskError::Unknown { before, successor: to }));
        }
        match &mut call.request {
            Some(request) => request.redirect(to),
            none => *none = Some(Request::new(to, call.tag, call.takes)),
        }
        Ok(call.request.get_or_insert_with(|| Request::new(to, call.tag, call.takes)))
    }

    /// Whether an endpoint knows the replies of one that had its name before.
    fn continues_after(&self, successor: Address, before: Address) -> bool {
        let continues = self.pairs.info(successor).map_or(0, |info| info.continues);
        successor.generation > before.generation && continues != 0 && continues <= before.generation
    }
}

fn no_successor(before: Address) -> AskError {
    let last = Some(format!("endpoint {before} does not answer any more, and nobody has taken its place"));
    AskError::Find(FindError::TimedOut { last })
}

/// Whether another one may have come, or will come, in the place of whoever was called.
pub(crate) fn has_gone(why: NoPeer) -> bool {
    matches!(
        why,
        NoPeer::Unbound(_) | NoPeer::WrongGeneration { .. } | NoPeer::Dead(_) | NoPeer::Moved { .. }
    )
}
