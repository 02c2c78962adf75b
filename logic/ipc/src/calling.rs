//! Calls that go out: messages, with a rendezvous or without, and requests.

use wire::ipc as layout;
use wire::ipc::{Address, Header, Kind};

use crate::peer::Peer;
use crate::{Broken, Endpoint, Link, NoPeer, Poll, Pulse, RequestError, SendError, Sleep, Way, Word};

/// A message on its way. Poll it with the same payload each time.
#[derive(Clone, Debug)]
pub struct Send(Outgoing);

impl Send {
    /// A message whose sender waits until it is received: a rendezvous.
    #[must_use]
    pub fn rendezvous(to: Address, tag: u32) -> Send {
        Send(Outgoing::new(Kind::Send, to, tag, 0))
    }

    /// A message whose sender waits only until there is room for it.
    #[must_use]
    pub fn buffered(to: Address, tag: u32) -> Send {
        Send(Outgoing::new(Kind::Message, to, tag, 0))
    }

    /// To whom.
    #[must_use]
    pub fn to(&self) -> Address {
        self.0.to
    }

    /// After it has failed because its receiver is gone: whether nobody has received it, nor ever
    /// will. False: that is not known.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.0.withdrawn
    }
}

/// A request on its way, and the wait for its reply. Poll it with the same payload each time.
#[derive(Clone, Debug)]
pub struct Request(Outgoing);

impl Request {
    /// A request that takes a reply of at most `takes` bytes.
    #[must_use]
    pub fn new(to: Address, tag: u32, takes: u32) -> Request {
        Request(Outgoing::new(Kind::Request, to, tag, takes))
    }

    /// Of whom the answer is awaited: whom it was sent to, or to whom it was passed on.
    #[must_use]
    pub fn to(&self) -> Address {
        self.0.to
    }

    /// After it has failed because its receiver is gone: whether nobody has received it, nor ever
    /// will. False: somebody has, or that is not known.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.0.withdrawn
    }

    /// Sends a request that has failed to another one, under the same number: whoever remembers the
    /// replies of the one before knows it by that.
    pub fn redirect(&mut self, to: Address) {
        self.0 = Outgoing { to, stage: Stage::New, label: None, withdrawn: false, ..self.0 };
    }
}

/// The reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The endpoint that has answered: the one asked, or the one to which the request was passed
    /// on.
    pub source: Address,
    /// The reply's tag, whose meaning the two agree on.
    pub tag: u32,
}

#[derive(Clone, Debug)]
struct Outgoing {
    kind: Kind,
    /// The endpoint that has to act: the one called, then the one to which it was passed on.
    to: Address,
    tag: u32,
    takes: u32,
    id: u64,
    stage: Stage,
    label: Option<u64>,
    /// It has failed, and nobody has received it or ever will.
    withdrawn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was done.
    New,
    /// Waits for room.
    Room,
    /// Was committed; waits for the other one.
    Committed,
    /// Was on its way to another node when it was given up: that one is asked whether it was
    /// received.
    Withdrawing(Why),
    /// It is over, or was given up.
    Over,
}

/// Why a call is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Late,
    Deadlock,
}

impl Why {
    fn failure(self, received: bool) -> Failure {
        match self {
            Why::Late => Failure::TimedOut { received },
            Why::Deadlock => Failure::Deadlock { received },
        }
    }
}

/// The result of giving a call up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    /// It never will be received.
    Withdrawn,
    /// It was received before.
    Received,
    /// Another node was asked.
    Asked,
    /// Another node has not answered.
    Unknown,
}

/// Why an outgoing call failed.
enum Failure {
    NoPeer(NoPeer),
    Refused,
    TooLong { length: usize, most: usize },
    Deadlock { received: bool },
    TimedOut { received: bool },
    Unknown,
    Elsewhere(Address),
}

impl std::convert::From<NoPeer> for Failure {
    fn from(why: NoPeer) -> Self {
        Failure::NoPeer(why)
    }
}

type Attempt = Result<Option<Reply>, Failure>;

impl Outgoing {
    fn new(kind: Kind, to: Address, tag: u32, takes: u32) -> Outgoing {
        Outgoing { kind, to, tag, takes, id: 0, stage: Stage::New, label: None, withdrawn: false }
    }

    fn word(&self, state: u64) -> u64 {
        layout::call_word(self.id, state)
    }

    /// Does not wait any more, unless another node has to be asked what became of the call.
    fn give_up<L: Link>(&mut self, peer: &Peer<L>, why: Why) -> GivenUp {
        let before = std::mem::replace(&mut self.stage, Stage::Over);
        if self.kind == Kind::Message || self.id == 0 {
            return GivenUp::Withdrawn;
        }
        let (waiting, over) = (self.word(layout::CALL_WAITING), self.word(layout::CALL_OVER));
        // CALL: either it was received before, or it never will be.
        let found = peer.link.replace(Way::Out, Word::Call, waiting, over);
        if !matches!(before, Stage::Committed | Stage::Withdrawing(_)) || found == waiting {
            return GivenUp::Withdrawn;
        }
        if found == self.word(layout::CALL_AWAY) {
            self.stage = Stage::Withdrawing(why);
            if before == Stage::Committed {
                peer.link.store(Way::Out, Word::Withdraw, self.id);
                peer.nudge();
            }
            return GivenUp::Asked;
        }
        self.let_go(peer, found)
    }

    /// The same, for good: what another node may answer is not waited for.
    fn give_up_for_good<L: Link>(&mut self, peer: &Peer<L>, why: Why) -> GivenUp {
        let given = self.give_up(peer, why);
        if given != GivenUp::Asked {
            return given;
        }
        self.stage = Stage::Over;
        let (away, over) = (self.word(layout::CALL_AWAY), self.word(layout::CALL_OVER));
        // CALL: the answer may have come at this moment.
        let found = peer.link.replace(Way::Out, Word::Call, away, over);
        if found != away {
            return self.let_go(peer, found);
        }
        peer.nudge();
        GivenUp::Unknown
    }

    /// Somebody else has decided about the call.
    fn let_go<L: Link>(&self, peer: &Peer<L>, found: u64) -> GivenUp {
        if found != self.word(layout::CALL_TAKEN) {
            return GivenUp::Withdrawn;
        }
        peer.link.store(Way::Out, Word::Call, self.word(layout::CALL_OVER));
        if self.kind == Kind::Request {
            // Whoever stands in for an endpoint of another node has to say there that nobody waits
            // for a reply.
            peer.nudge();
        }
        GivenUp::Received
    }
}

impl<L: Link> Endpoint<L> {
    /// Sends a message that nobody waits for, if there is nothing to do but that. False: nothing
    /// was done, and polling a [`Send::buffered`] finds out what there is.
    #[inline]
    pub fn post(&mut self, to: Address, tag: u32, payload: &[u8]) -> bool {
        let source = self.address();
        if self.peer_of_last_time(to).is_none() && self.index(to).is_err() {
            return false;
        }
        let Some(peer) = self.peer_of_last_time(to) else { return false };
        // That it has ended, the link knows.
        let usual = peer.rights.send
            && payload.len() <= peer.payload_bytes_max()
            && peer.broken.is_none()
            && peer.knows_window(payload.len());
        if !usual {
            return false;
        }
        let length = payload.len() as u32;
        peer.offer(&Header { source, tag, length, kind: Kind::Message, takes: 0, id: 0 }, payload)
    }

    /// Goes on with a message.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn poll_send(
        &mut self,
        call: &mut Send,
        payload: &[u8],
        pulse: Pulse,
    ) -> Poll<Result<(), SendError>> {
        let to = call.0.to;
        map(self.poll_outgoing(&mut call.0, payload, &mut Vec::new(), pulse), |done| match done {
            Ok(_) => Ok(()),
            Err(Failure::NoPeer(why)) => Err(SendError::NoPeer(why)),
            Err(Failure::Refused | Failure::Elsewhere(_)) => Err(SendError::Refused(to)),
            Err(Failure::TooLong { length, most }) => Err(SendError::TooLong { length, most }),
            // What was received was sent, however late we look.
            Err(Failure::Deadlock { received: true } | Failure::TimedOut { received: true }) => Ok(()),
            Err(Failure::Deadlock { received: false }) => Err(SendError::Deadlock(to)),
            Err(Failure::TimedOut { received: false }) => Err(SendError::TimedOut(to)),
            Err(Failure::Unknown) => Err(SendError::Unknown(to)),
        })
    }

    /// Goes on with a request; the payload of the reply replaces what is in `into`.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn poll_request(
        &mut self,
        call: &mut Request,
        payload: &[u8],
        into: &mut Vec<u8>,
        pulse: Pulse,
    ) -> Poll<Result<Reply, RequestError>> {
        let polled = self.poll_outgoing(&mut call.0, payload, into, pulse);
        let to = call.0.to;
        map(polled, |done| {
            done.map_err(|failure| match failure {
                Failure::NoPeer(why) => RequestError::NoPeer(why),
                Failure::Refused => RequestError::Refused(to),
                Failure::TooLong { length, most } => RequestError::TooLong { length, most },
                Failure::Deadlock { received } => RequestError::Deadlock { to, received },
                Failure::TimedOut { received } => RequestError::TimedOut { to, received },
                Failure::Unknown => RequestError::Unknown(to),
                Failure::Elsewhere(to) => RequestError::Elsewhere(to),
            })
        })
    }

    /// Gives a message up whose caller does not poll it any more. True: it was received, or only
    /// another node knows.
    pub fn cancel_send(&mut self, call: &mut Send) -> bool {
        self.cancel(&mut call.0)
    }

    /// Gives a request up whose caller does not poll it any more. True: it was received, or only
    /// another node knows.
    pub fn cancel_request(&mut self, call: &mut Request) -> bool {
        self.cancel(&mut call.0)
    }

    fn cancel(&mut self, call: &mut Outgoing) -> bool {
        self.end_search();
        let Ok(peer) = self.peer(call.to) else { return false };
        peer.stop_listening();
        !matches!(call.give_up_for_good(peer, Why::Late), GivenUp::Withdrawn)
    }

    fn poll_outgoing(
        &mut self,
        call: &mut Outgoing,
        payload: &[u8],
        into: &mut Vec<u8>,
        pulse: Pulse,
    ) -> Poll<Result<Reply, Failure>> {
        call.label = call.label.or(pulse.label);
        let mut listens = false;
        loop {
            let mut again = false;
            let to = call.to;
            let attempt = match self.attempt(call, payload, into, pulse, &mut again) {
                Ok(None) if again => return Poll::Again,
                // It was passed on: to sleep on the old one would be in vain.
                Ok(None) if to != call.to => {
                    listens = false;
                    continue;
                }
                Ok(None) if listens || pulse.spins => return Poll::Sleep(Sleep::One(to)),
                Ok(None) => {
                    // LISTEN: say that we sleep, then look once more.
                    if let Ok(peer) = self.peer(to) {
                        peer.listen();
                    }
                    listens = true;
                    continue;
                }
                Ok(Some(reply)) => Ok(reply),
                Err(failure) => {
                    call.withdrawn |= matches!(call.stage, Stage::New | Stage::Room);
                    self.after_parting(call, failure)
                }
            };
            self.end_search();
            if let Ok(peer) = self.peer(call.to) {
                peer.stop_listening();
            }
            return Poll::Ready(attempt);
        }
    }

    /// A call has failed because its receiver was parted from while it waited: whether it was
    /// received before, is known.
    fn after_parting(&self, call: &mut Outgoing, failure: Failure) -> Result<Reply, Failure> {
        let known =
            self.parted.filter(|(peer, word)| *peer == call.to && layout::call_of(*word).0 == call.id);
        let (Failure::NoPeer(_), Stage::Committed, Some((source, word))) = (&failure, call.stage, known)
        else {
            return Err(failure);
        };
        let taken = word == call.word(layout::CALL_TAKEN);
        call.withdrawn |= word == call.word(layout::CALL_OVER);
        if taken && call.kind == Kind::Send { Ok(Reply { source, tag: 0 }) } else { Err(failure) }
    }

    /// Does what can be done without waiting.
    fn attempt(
        &mut self,
        call: &mut Outgoing,
        payload: &[u8],
        into: &mut Vec<u8>,
        pulse: Pulse,
        again: &mut bool,
    ) -> Attempt {
        if call.stage == Stage::New {
            self.begin(call, payload)?;
        }
        if let Some(reply) = self.advance(call, payload, into, again)? {
            return Ok(Some(reply));
        }
        if pulse.late {
            let peer = self.peer(call.to)?;
            let given = if pulse.overdue {
                call.give_up_for_good(peer, Why::Late)
            } else {
                call.give_up(peer, Why::Late)
            };
            return given_up(given, Why::Late);
        }
        let to = call.to;
        let Some(glance) = self.glance(to, call.label) else { return Ok(None) };
        if let Some(reply) = self.advance(call, payload, into, again)? {
            return Ok(Some(reply));
        }
        if *again || call.to != to || !self.conclude(glance) {
            return Ok(None);
        }
        let given = call.give_up(self.peer(to)?, Why::Deadlock);
        given_up(given, Why::Deadlock)
    }

    /// Does the next stage, if its time has come.
    fn advance(
        &mut self,
        call: &mut Outgoing,
        payload: &[u8],
        into: &mut Vec<u8>,
        again: &mut bool,
    ) -> Attempt {
        if call.stage == Stage::Room {
            let source = self.address();
            let peer = self.peer(call.to)?;
            if let Some(why) = peer.end() {
                call.give_up_for_good(peer, Why::Late);
                call.withdrawn = true;
                return Err(why.into());
            }
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            let header =
                Header { source, tag: call.tag, length, kind: call.kind, takes: call.takes, id: call.id };
            if peer.offer(&header, payload) {
                call.stage = Stage::Committed;
            }
        }
        if matches!(call.stage, Stage::Committed | Stage::Withdrawing(_))
            && let Some(reply) = self.hear_of(call, into, again)?
        {
            call.stage = Stage::Over;
            return Ok(Some(reply));
        }
        Ok(None)
    }

    fn begin(&mut self, call: &mut Outgoing, payload: &[u8]) -> Result<(), Failure> {
        let id = if call.id == 0 { self.calls + 1 } else { call.id };
        let peer = self.peer(call.to)?;
        if let Some(why) = peer.end() {
            return Err(why.into());
        }
        let allowed = if call.kind == Kind::Request { peer.rights.request } else { peer.rights.send };
        if !allowed {
            return Err(Failure::Refused);
        }
        let most = peer.payload_bytes_max();
        if payload.len() > most {
            return Err(Failure::TooLong { length: payload.len(), most });
        }
        call.takes = call.takes.min(u32::try_from(most).unwrap_or(u32::MAX));
        call.stage = Stage::Room;
        if call.kind != Kind::Message {
            call.id = id;
            // CALL: it shows that we wait before the record does.
            peer.link.store(Way::Out, Word::Call, call.word(layout::CALL_WAITING));
            self.calls = self.calls.max(id);
        }
        Ok(())
    }

    /// Looks what has become of a call that was committed.
    fn hear_of(&mut self, call: &mut Outgoing, into: &mut Vec<u8>, again: &mut bool) -> Attempt {
        let sent = Reply { source: call.to, tag: 0 };
        if call.kind == Kind::Message {
            return Ok(Some(sent));
        }
        let drops = self.limits.drops;
        let peer = self.peer(call.to)?;
        // END: first whether it lives, then what it did.
        let end = peer.end();
        if call.kind == Kind::Request {
            match look_for_reply(peer, call, into, drops) {
                Looked::Nothing => {}
                Looked::Again => *again = true,
                Looked::Reply(tag) => return Ok(Some(Reply { tag, ..sent })),
                Looked::Referred(to) => return self.follow(call, to),
            }
        }
        match judge(peer, call) {
            Judged::Waits => {}
            Judged::Taken if call.kind == Kind::Send => return Ok(Some(sent)),
            Judged::Taken => {
                // Another node has answered; a reply would have been there before.
                if let Stage::Withdrawing(why) = call.stage
                    && call.give_up(peer, why) != GivenUp::Asked
                {
                    return Err(why.failure(true));
                }
            }
            Judged::Refused => {
                return Err(match std::mem::replace(&mut call.stage, Stage::Over) {
                    Stage::Withdrawing(why) => why.failure(false),
                    _ => Failure::Refused,
                });
            }
        }
        match end.or_else(|| peer.broken.map(|why| NoPeer::Broken(peer.address, why))) {
            None => Ok(None),
            Some(why) => {
                // Nobody will receive it any more; and if it was received before, the reply won't
                // come.
                let given = call.give_up_for_good(peer, Why::Late);
                call.withdrawn = given == GivenUp::Withdrawn;
                let received = given == GivenUp::Received;
                if received && call.kind == Kind::Send { Ok(Some(sent)) } else { Err(why.into()) }
            }
        }
    }

    /// The request was passed on: from now on somebody else has to answer.
    fn follow(&mut self, call: &mut Outgoing, to: Address) -> Attempt {
        let before = self.peer(call.to)?;
        before.link.store(Way::Out, Word::Call, call.word(layout::CALL_OVER));
        before.stop_listening();
        if self.index(to).is_err() {
            call.stage = Stage::Over;
            return Err(Failure::Elsewhere(to));
        }
        call.to = to;
        let peer = self.peer(to)?;
        peer.link.store(Way::Out, Word::Call, call.word(layout::CALL_TAKEN));
        Ok(None)
    }
}

/// Returns the outcome of a call that was given up; nothing as long as another node is asked.
fn given_up(given: GivenUp, why: Why) -> Attempt {
    match given {
        GivenUp::Asked => Ok(None),
        GivenUp::Withdrawn => Err(why.failure(false)),
        GivenUp::Received => Err(why.failure(true)),
        GivenUp::Unknown => Err(Failure::Unknown),
    }
}

enum Judged {
    Waits,
    Taken,
    Refused,
}

/// How it stands with a call, as its word says.
fn judge<L: Link>(peer: &mut Peer<L>, call: &Outgoing) -> Judged {
    let found = peer.link.load(Way::Out, Word::Call);
    if found == call.word(layout::CALL_WAITING) || found == call.word(layout::CALL_AWAY) {
        Judged::Waits
    } else if found == call.word(layout::CALL_TAKEN) {
        Judged::Taken
    } else if found == call.word(layout::CALL_OVER) {
        Judged::Refused
    } else {
        peer.break_off(Broken::Call { id: call.id, found });
        Judged::Waits
    }
}

enum Looked {
    Nothing,
    Again,
    Reply(u32),
    Referred(Address),
}

/// Looks for the reply, and puts aside what is in front of it.
fn look_for_reply<L: Link>(peer: &mut Peer<L>, call: &Outgoing, into: &mut Vec<u8>, drops: u32) -> Looked {
    for _ in 0..drops {
        let Some(header) = peer.look() else { return Looked::Nothing };
        match header.kind {
            Kind::Reply | Kind::Refer => {
                peer.link.take(into);
                if header.id != call.id {
                    continue; // Stale.
                }
                let length = header.length;
                if header.kind == Kind::Reply {
                    if length > call.takes {
                        peer.break_off(Broken::Length { length, most: call.takes as usize });
                        return Looked::Nothing;
                    }
                    peer.link.store(Way::Out, Word::Call, call.word(layout::CALL_OVER));
                    return Looked::Reply(header.tag);
                }
                let address = <[u8; layout::REFER_BYTES]>::try_from(into.as_slice())
                    .map_err(|_| layout::BadHeader::Refer { found: length })
                    .and_then(Address::read);
                match address {
                    Ok(to) => return Looked::Referred(to),
                    Err(why) => {
                        peer.break_off(why.into());
                        return Looked::Nothing;
                    }
                }
            }
            _ if !peer.put_aside(header) => return Looked::Nothing,
            _ => {}
        }
    }
    Looked::Again
}

fn map<T, U>(polled: Poll<T>, with: impl FnOnce(T) -> U) -> Poll<U> {
    match polled {
        Poll::Ready(done) => Poll::Ready(with(done)),
        Poll::Again => Poll::Again,
        Poll::Sleep(sleep) => Poll::Sleep(sleep),
    }
}
