//! The calls in steps, none of which waits: for event loops.

use std::time::Instant;

use ipc::{
    From, Poll, Pulse, Receive, ReceiveError, Received, Reply, Request, RequestError, Send, SendError, Sleep,
};

use crate::failed::Trouble;
use crate::link::Pair;
use crate::member::Member;
use crate::waiting::{ANSWER_WITHIN, HEAR_EVERY, SEARCH_AFTER, label};
use crate::{Endpoint, Failed};

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a call that is not ready needs another step, or has to be cancelled"]
pub enum Step<T> {
    /// The call is over.
    Ready(T),
    /// Another step is worth it when [`Endpoint::descriptor`] is readable, or at this time, or when
    /// the call's own deadline has passed.
    Pending {
        /// When to make another step in any case.
        again_at: Option<Instant>,
    },
}

/// The state that the steps of the call under way have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stepping {
    begun: Instant,
    searched: bool,
    /// Since when its time is over, and another node is asked what became of it.
    late_since: Option<Instant>,
}

impl Endpoint {
    /// A step of a message. Pass the same payload each time; `late`: the call's deadline has
    /// passed.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn step_send(
        &mut self,
        call: &mut Send,
        payload: &[u8],
        late: bool,
    ) -> Result<Step<()>, Failed<SendError>> {
        if self.stepping.is_none() {
            self.meet(call.to(), |rights| rights.send)?;
        }
        self.holding = true;
        let step = self.step(late, true, |logic, pulse| logic.poll_send(call, payload, pulse));
        self.holding = true;
        stepped(step)
    }

    /// A step of a request. Pass the same payload each time.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn step_request(
        &mut self,
        call: &mut Request,
        payload: &[u8],
        into: &mut Vec<u8>,
        late: bool,
    ) -> Result<Step<Reply>, Failed<RequestError>> {
        if self.stepping.is_none() {
            self.meet(call.to(), |rights| rights.request)?;
        }
        stepped(self.step(late, true, |logic, pulse| logic.poll_request(call, payload, into, pulse)))
    }

    /// A step of a receive.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub fn step_receive(
        &mut self,
        call: &mut Receive,
        into: &mut Vec<u8>,
        late: bool,
    ) -> Result<Step<Received>, Failed<ReceiveError>> {
        self.check_here()?;
        self.hear_at_times()?;
        if self.stepping.is_none() {
            self.meet_source(call.from())?;
        }
        loop {
            if self.stepping.is_none() {
                self.move_if_ordered()?;
            }
            if let Some(received) = self.take_queued(call.from(), into) {
                self.cancel_receive(call);
                return Ok(Step::Ready(received));
            }
            let step = stepped(self.step(late, true, |logic, pulse| logic.poll_receive(call, into, pulse)))?;
            match &step {
                Step::Ready(received) if self.answers_again(received) => {}
                Step::Pending { .. } if self.pairs.has_new_backup() => {
                    self.bring_up_backups()?;
                    // A receive that waits may be begun anew.
                    self.cancel_receive(call);
                }
                _ => return Ok(step),
            }
        }
    }

    /// Gives a message up that will not be stepped any more. True: it was received.
    pub fn cancel_send(&mut self, call: &mut Send) -> bool {
        self.stepping = None;
        self.check_here().is_ok() && self.pairs.logic.cancel_send(call)
    }

    /// Gives a request up that will not be stepped any more. True: it was received.
    pub fn cancel_request(&mut self, call: &mut Request) -> bool {
        self.stepping = None;
        self.check_here().is_ok() && self.pairs.logic.cancel_request(call)
    }

    /// Gives a receive up that will not be stepped any more. Nothing is lost: what has come is
    /// still there.
    pub fn cancel_receive(&mut self, call: &mut Receive) {
        self.stepping = None;
        if self.check_here().is_ok() {
            self.pairs.logic.cancel_receive(call);
        }
    }

    /// Receives if there is something to receive.
    ///
    /// # Errors
    /// See [`ReceiveError`], other than `TimedOut`.
    pub fn try_receive(
        &mut self,
        from: &From,
        into: &mut Vec<u8>,
    ) -> Result<Option<Received>, Failed<ReceiveError>> {
        self.check_here()?;
        self.show_held();
        if let Some(received) = self.take_queued(from, into) {
            return Ok(Some(received));
        }
        if let Some(received) = self.pairs.logic.receive_at_once(from, into) {
            return Ok(Some(received));
        }
        if self.pairs.logic.relies_on_doorbells() {
            self.hear()?;
        } else {
            self.hear_at_times()?;
        }
        self.pairs.bury();
        self.bring_up_backups()?;
        self.move_if_ordered()?;
        if let Some(received) = self.take_queued(from, into) {
            return Ok(Some(received));
        }
        let mut call = Receive::new(from.clone());
        loop {
            let polled =
                self.pairs.logic.poll_receive(&mut call, into, Pulse { late: true, ..Pulse::default() });
            match polled {
                Poll::Ready(Ok(received)) => {
                    self.waiting.latest = Some(received.source);
                    if self.answers_again(&received) {
                        call = Receive::new(from.clone());
                        continue;
                    }
                    return Ok(Some(received));
                }
                Poll::Ready(Err(ReceiveError::TimedOut)) => {
                    self.check_bound()?;
                    return Ok(None);
                }
                Poll::Ready(Err(why)) => return Err(Failed::Call(why)),
                Poll::Again | Poll::Sleep(_) => {}
            }
        }
    }

    /// Says to all peers that are named that this endpoint sleeps, so that [`Endpoint::descriptor`]
    /// becomes readable when there is something to receive. False: there is something now, or
    /// perhaps; so receive, and do not sleep.
    ///
    /// # Errors
    /// [`Failed::System`].
    pub fn prepare(&mut self, from: &From) -> Result<bool, Failed<ReceiveError>> {
        self.check_here()?;
        self.show_held();
        self.hear()?;
        self.pairs.bury();
        self.check_bound()?;
        self.pairs.common.set_nap(false);
        let sleeps =
            !self.has_queued(from) && self.pairs.logic.prepare_receive(from) && !self.pairs.common.is_blind();
        self.tell_trouble()?;
        Ok(sleeps)
    }

    /// Takes in whatever has come to the doorbells and from the daemon, without waiting.
    pub(crate) fn hear(&mut self) -> Result<(), Trouble> {
        let heard = self.pairs.hear()?;
        if heard.control
            || self.member.as_ref().and_then(Member::due).is_some_and(|due| due <= Instant::now())
        {
            self.take_in()?;
        }
        Ok(())
    }

    /// Looks once in a while for the daemon's news and for deaths: a flooded endpoint never waits,
    /// and so never listens. Else a new peer would not be received from, and the one that floods
    /// would keep the right to it.
    pub(crate) fn hear_at_times(&mut self) -> Result<(), Trouble> {
        let now = Instant::now();
        if now.duration_since(self.waiting.heard) < HEAR_EVERY {
            return Ok(());
        }
        self.waiting.heard = now;
        self.hear()
    }

    fn step<T>(
        &mut self,
        late: bool,
        searches: bool,
        mut poll: impl FnMut(&mut ipc::Endpoint<Pair>, Pulse) -> Poll<T>,
    ) -> Result<Step<T>, Trouble> {
        self.check_here()?;
        if self.stepping.is_none() {
            self.pairs.bury();
        }
        // Late or not: what has rung is not looked at yet.
        let first = Pulse { spins: true, ..Pulse::default() };
        if let Poll::Ready(done) = poll(&mut self.pairs.logic, first) {
            return self.stepped_to(done);
        }
        self.show_held();
        self.hear()?;
        self.pairs.common.set_nap(false);
        let now = Instant::now();
        let stepping =
            *self.stepping.get_or_insert(Stepping { begun: now, searched: false, late_since: None });
        let due = searches && !stepping.searched && now >= stepping.begun + SEARCH_AFTER;
        let label = if due { Some(label()?) } else { None };
        let late_since = if late { Some(stepping.late_since.unwrap_or(now)) } else { None };
        self.stepping = Some(Stepping { searched: stepping.searched || due, late_since, ..stepping });
        let end = late_since.map(|since| since + ANSWER_WITHIN);
        let pulse = Pulse { late, overdue: end.is_some_and(|end| now >= end), label, spins: false };
        let sleep = match poll(&mut self.pairs.logic, pulse) {
            Poll::Ready(done) => return self.stepped_to(done),
            // So much to drop that others may want a turn.
            Poll::Again => return Ok(Step::Pending { again_at: Some(now) }),
            Poll::Sleep(sleep) => sleep,
        };
        if sleep == Sleep::All {
            self.pairs.bury();
            self.check_bound()?;
        }
        let search_at = (matches!(sleep, Sleep::One(_)) && searches && !stepping.searched && !due)
            .then(|| stepping.begun + SEARCH_AFTER);
        let blind = self.pairs.common.is_blind().then(|| now + crate::waiting::NAP);
        let member = self.member.as_ref().and_then(Member::due);
        self.tell_trouble()?;
        Ok(Step::Pending { again_at: search_at.into_iter().chain(blind).chain(member).chain(end).min() })
    }

    fn stepped_to<T>(&mut self, done: T) -> Result<Step<T>, Trouble> {
        self.stepping = None;
        self.tell_trouble()?;
        Ok(Step::Ready(done))
    }
}

fn stepped<T, E>(step: Result<Step<Result<T, E>>, Trouble>) -> Result<Step<T>, Failed<E>> {
    match step? {
        Step::Ready(Ok(done)) => Ok(Step::Ready(done)),
        Step::Ready(Err(why)) => Err(Failed::Call(why)),
        Step::Pending { again_at } => Ok(Step::Pending { again_at }),
    }
}
