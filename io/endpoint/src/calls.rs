//! The calls that wait by themselves.

use std::time::Instant;

use ipc::{
    Asked, From, NotifyError, Poll, Receive, ReceiveError, Received, RelayError, Reply, ReplyError, Request,
    RequestError, Rights, Send, SendError,
};
use wire::ipc::Address;

use crate::failed::Trouble;
use crate::member::Member;
use crate::waiting::Patience;
use crate::{Endpoint, Failed};

impl Endpoint {
    /// Sends a message and waits until it is received: a rendezvous. A message whose sender was
    /// told otherwise is never received.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(
        &mut self,
        to: Address,
        tag: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), Failed<SendError>> {
        self.meet(to, |rights| rights.send)?;
        let mut call = Send::rendezvous(to, tag);
        let patience = Patience { deadline, searches: true };
        let done = self.drive(patience, |logic, pulse| logic.poll_send(&mut call, payload, pulse));
        self.or_cancel(done, |logic| logic.cancel_send(&mut call))
    }

    /// Sends a message, and waits only until there is room for it. It may be held back for a while:
    /// see [`crate::Options::batch_bytes`].
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline]
    pub fn send_buffered(
        &mut self,
        to: Address,
        tag: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), Failed<SendError>> {
        self.holding = true;
        // In a fork's child, the link refuses.
        if !self.is_interrupted() && self.pairs.logic.post(to, tag, payload) {
            return Ok(());
        }
        self.send_room(to, tag, payload, deadline)
    }

    #[cold]
    fn send_room(
        &mut self,
        to: Address,
        tag: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), Failed<SendError>> {
        self.meet(to, |rights| rights.send)?;
        let mut call = Send::buffered(to, tag);
        let patience = Patience { deadline, searches: true };
        let done = self.drive(patience, |logic, pulse| logic.poll_send(&mut call, payload, pulse));
        self.holding = true;
        self.or_cancel(done, |logic| logic.cancel_send(&mut call))
    }

    /// Shows peers what was held back.
    ///
    /// # Errors
    /// [`Failed::System`]; the messages were sent nevertheless.
    pub fn flush(&mut self) -> Result<(), Failed<SendError>> {
        self.check_here()?;
        self.show_held();
        Ok(self.tell_trouble()?)
    }

    /// Sends a request and waits for the reply, whose payload, of at most `takes` bytes, replaces
    /// what is in `into`.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn send_receive(
        &mut self,
        to: Address,
        tag: u32,
        payload: &[u8],
        into: &mut Vec<u8>,
        takes: usize,
        deadline: Option<Instant>,
    ) -> Result<Reply, Failed<RequestError>> {
        self.meet(to, |rights| rights.request)?;
        let mut call = Request::new(to, tag, u32::try_from(takes).unwrap_or(u32::MAX));
        let patience = Patience { deadline, searches: true };
        let done = self.drive(patience, |logic, pulse| logic.poll_request(&mut call, payload, into, pulse));
        self.or_cancel(done, |logic| logic.cancel_request(&mut call))
    }

    /// Receives; the payload replaces what is in `into`. Peers take turns: one that floods costs
    /// the others their turn and no more.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    #[inline]
    pub fn receive(
        &mut self,
        from: &From,
        into: &mut Vec<u8>,
        deadline: Option<Instant>,
    ) -> Result<Received, Failed<ReceiveError>> {
        self.check_here()?;
        if !self.pairs.inbox.is_empty()
            && let Some(received) = self.take_queued(from, into)
        {
            return Ok(received);
        }
        if let Some(received) = self.pairs.logic.receive_at_once(from, into) {
            self.waiting.burst = self.waiting.burst.saturating_add(1);
            return Ok(received);
        }
        self.receive_any(from, into, deadline)
    }

    #[cold]
    fn receive_any(
        &mut self,
        from: &From,
        into: &mut Vec<u8>,
        deadline: Option<Instant>,
    ) -> Result<Received, Failed<ReceiveError>> {
        self.back_off();
        self.hear_at_times()?;
        self.meet_source(from)?;
        let patience = Patience { deadline, searches: matches!(from, From::One(_)) };
        loop {
            self.bring_up_backups()?;
            self.move_if_ordered()?;
            if let Some(received) = self.take_queued(from, into) {
                return Ok(received);
            }
            let mut call = Receive::new(from.clone());
            let done =
                self.drive(patience, |logic, pulse| match logic.poll_receive(&mut call, into, pulse) {
                    Poll::Ready(done) => Poll::Ready(Some(done)),
                    // A backup that has come does not wait for a message.
                    Poll::Again | Poll::Sleep(_) if logic.has_news() => Poll::Ready(None),
                    Poll::Again => Poll::Again,
                    Poll::Sleep(sleep) => Poll::Sleep(sleep),
                });
            let done = match done {
                Ok(Some(done)) => Ok(done),
                Ok(None) => {
                    self.pairs.logic.cancel_receive(&mut call);
                    continue;
                }
                Err(trouble) => Err(trouble),
            };
            if let Ok(Ok(received)) = &done {
                self.waiting.latest = Some(received.source);
                if self.answers_again(received) {
                    continue;
                }
            }
            return self.or_cancel(done, |logic| logic.cancel_receive(&mut call));
        }
    }

    /// Answers a request. It waits for nobody but this endpoint's backups, which have to take the
    /// reply before it is released. `Ok`: the requester was waiting then.
    ///
    /// # Errors
    /// See [`ReplyError`].
    pub fn reply(&mut self, asked: &Asked, tag: u32, payload: &[u8]) -> Result<(), Failed<ReplyError>> {
        self.reply_after_backups(asked, tag, payload, None)
    }

    /// Passes a request on to another endpoint, which answers it. It never waits.
    ///
    /// # Errors
    /// See [`RelayError`].
    pub fn relay(
        &mut self,
        asked: &Asked,
        to: Address,
        tag: u32,
        payload: &[u8],
    ) -> Result<(), Failed<RelayError>> {
        self.check_here()?;
        self.meet(to, |rights| rights.relay)?;
        self.pairs.logic.relay(asked, to, tag, payload).map_err(Failed::Call)
    }

    /// Sets bits at a peer, which receives all that were set since the last time together, and
    /// finds what was sent to it before. It never waits.
    ///
    /// # Errors
    /// See [`NotifyError`].
    pub fn notify(&mut self, to: Address, bits: u64) -> Result<(), Failed<NotifyError>> {
        self.check_here()?;
        self.meet(to, |rights| rights.notify)?;
        self.show_held();
        self.pairs.logic.notify(to, bits).map_err(Failed::Call)
    }

    /// Reads the daemon's news where a peer is unknown or lacks the right: an introduction, or a
    /// change of rights, may lie unread in the daemon's socket.
    #[inline]
    pub(crate) fn meet(&mut self, peer: Address, may: fn(&Rights) -> bool) -> Result<(), Trouble> {
        if self.member.is_some() && !self.pairs.logic.rights(peer).is_ok_and(|rights| may(&rights)) {
            self.check_here()?;
            self.hear()?;
            if self.pairs.logic.rights(peer).is_err() {
                self.check_bound()?;
            }
        }
        Ok(())
    }

    /// The same, of whoever alone is to be received from.
    #[inline]
    pub(crate) fn meet_source(&mut self, from: &From) -> Result<(), Trouble> {
        // What it may not say, it may say any time: that is waited for.
        if let From::One(source) = from { self.meet(*source, |_| true) } else { Ok(()) }
    }

    /// Nobody comes to an endpoint that the daemon has ended.
    pub(crate) fn check_bound(&self) -> Result<(), Trouble> {
        let over = self.member.as_ref().and_then(Member::over);
        over.map_or(Ok(()), |why| Err(Trouble::Ended { why: why.to_owned() }))
    }

    /// A call that the machine could not go on with is given up.
    #[inline]
    pub(crate) fn or_cancel<T, E, X>(
        &mut self,
        done: Result<Result<T, E>, Trouble>,
        cancel: impl FnOnce(&mut ipc::Endpoint<crate::link::Pair>) -> X,
    ) -> Result<T, Failed<E>> {
        match done {
            Ok(done) => done.map_err(Failed::Call),
            Err(trouble) => {
                if !matches!(trouble, Trouble::Forked) {
                    cancel(&mut self.pairs.logic);
                }
                Err(trouble.into())
            }
        }
    }
}
