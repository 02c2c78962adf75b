//! Receiving: from any peer, from one, from some.

use wire::ipc as layout;
use wire::ipc::{Address, Header, Kind};

use crate::{Endpoint, Link, NoPeer, Poll, Pulse, ReceiveError, Sleep, Way, Word};

/// From whom to receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// From whoever is bound.
    Any,
    /// From one. An endpoint that waits for one alone may be in a deadlock with it.
    One(Address),
    /// From any of these.
    Some(Vec<Address>),
}

/// A receive that waits.
#[derive(Clone, Debug)]
pub struct Receive {
    from: From,
    label: Option<u64>,
}

impl Receive {
    /// A receive.
    #[must_use]
    pub fn new(from: From) -> Receive {
        Receive { from, label: None }
    }

    /// From whom.
    #[must_use]
    pub fn from(&self) -> &From {
        &self.from
    }
}

/// A received message. Its payload is where the caller wanted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender; of a request that was passed on, the one who asked first.
    pub source: Address,
    /// The message or request itself.
    pub content: Content,
}

/// The content of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A message.
    Message {
        /// The message's tag.
        tag: u32,
    },
    /// A request, which waits for a reply.
    Request {
        /// The request's tag.
        tag: u32,
        /// The data that a reply needs.
        asked: Asked,
    },
    /// Bits of notices, without payload.
    Notices(u64),
}

/// A request that waits for a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub(crate) requester: Address,
    pub(crate) id: u64,
    pub(crate) takes: u32,
    /// The endpoint that has passed it on.
    pub(crate) relayed_by: Option<Address>,
}

impl Asked {
    /// Returns the endpoint that waits for the reply.
    #[must_use]
    pub fn requester(&self) -> Address {
        self.requester
    }

    /// The requester's number of this call: with the requester, it names one request, wherever that
    /// is sent to.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.id
    }

    /// Most bytes of payload that it takes.
    #[must_use]
    pub fn takes(&self) -> u32 {
        self.takes
    }

    /// The endpoint that has passed it on, if one has: that one names the requester and the
    /// request, and has the right to relay. `None`: the requester has asked itself.
    #[must_use]
    pub fn relayed_by(&self) -> Option<Address> {
        self.relayed_by
    }
}

enum Found {
    Something(Received),
    Nothing,
    /// So much to drop that the clock has to be looked at.
    Again,
}

impl<L: Link> Endpoint<L> {
    /// Goes on with a receive; the payload replaces what is in `into`. Each peer gets one turn
    /// after the other, and one message a turn.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub fn poll_receive(
        &mut self,
        call: &mut Receive,
        into: &mut Vec<u8>,
        pulse: Pulse,
    ) -> Poll<Result<Received, ReceiveError>> {
        call.label = call.label.or(pulse.label);
        let everybody = self.looks_at_everybody();
        let mut listens = false;
        loop {
            match self.find(&call.from, into, everybody) {
                Ok(Found::Something(received)) => return self.received(&call.from, Ok(received)),
                // A peer that sends what is to be dropped faster than we drop it wins no time.
                Ok(Found::Again) if !pulse.late => return Poll::Again,
                Ok(Found::Again | Found::Nothing) => {}
                Err(why) => return self.received(&call.from, Err(why.into())),
            }
            if pulse.late {
                return self.received(&call.from, Err(ReceiveError::TimedOut));
            }
            if let From::One(source) = call.from
                && let Some(glance) = self.glance(source, call.label)
            {
                let result = match self.find(&call.from, into, everybody) {
                    Ok(Found::Something(received)) => Some(Ok(received)),
                    Ok(Found::Again) => return Poll::Again,
                    Ok(Found::Nothing) => {
                        self.conclude(glance).then_some(Err(ReceiveError::Deadlock(source)))
                    }
                    Err(why) => Some(Err(why.into())),
                };
                if let Some(result) = result {
                    return self.received(&call.from, result);
                }
            }
            if listens || pulse.spins {
                return Poll::Sleep(match call.from {
                    From::One(source) => Sleep::One(source),
                    From::Any | From::Some(_) => self.all_quiet(&call.from, listens),
                });
            }
            self.listen_to(&call.from);
            listens = true;
        }
    }

    /// Receives a message, if the peer whose turn it is has one that nobody waits for, and there is
    /// nothing to do but that. `None`: nothing was done, and polling a [`Receive`] finds out what
    /// there is.
    #[inline]
    pub fn receive_at_once(&mut self, from: &From, into: &mut Vec<u8>) -> Option<Received> {
        if self.search.is_some() || self.listens || self.looks_at_everybody() {
            return None;
        }
        let index = match from {
            From::Any if self.turn < self.peers.len() => self.turn,
            From::Any => 0,
            From::One(source) => self.index(*source).ok()?,
            From::Some(_) => return None,
        };
        let peer = self.peers.get_mut(index)?;
        if peer.quiet || peer.rights.heeds && peer.link.load(Way::In, Word::Notices) != 0 {
            return None;
        }
        let tag = peer.next_message(into)?;
        let source = peer.address;
        if matches!(from, From::Any) {
            self.turn = index + 1;
        }
        self.receives -= 1;
        Some(Received { source, content: Content::Message { tag } })
    }

    /// Whether those are looked at, too, that have not rung.
    fn looks_at_everybody(&self) -> bool {
        self.receives == 0
    }

    /// Gives a receive up whose caller does not poll it any more. Nothing is lost: what has come is
    /// still there.
    pub fn cancel_receive(&mut self, _call: &mut Receive) {
        self.end_search();
    }

    /// LISTEN: says to all that we wait for that we sleep; then we look once more.
    fn listen_to(&mut self, from: &From) {
        self.listens = true;
        if let From::One(source) = *from {
            if let Ok(peer) = self.peer(source) {
                peer.listen();
            }
            return;
        }
        for peer in &mut self.peers {
            if is_from(from, peer.address) && !peer.quiet {
                peer.listen();
            }
        }
    }

    /// Nothing was there after all had been told that we listen: until one rings, it need not be
    /// looked at.
    fn all_quiet(&mut self, from: &From, listened: bool) -> Sleep {
        if listened {
            self.quiet = true;
            for peer in &mut self.peers {
                peer.quiet = is_from(from, peer.address);
            }
        }
        Sleep::All
    }

    /// Says to all that are named that we sleep, and looks whether there is something of them.
    /// False: there is, or perhaps; so receive, and do not sleep. For event loops, which sleep on
    /// all doorbells and then receive until there is nothing.
    pub fn prepare_receive(&mut self, from: &From) -> bool {
        self.listen_to(from);
        let nothing = self.peers.iter_mut().all(|peer| !is_from(from, peer.address) || !peer.has_something());
        if nothing {
            self.all_quiet(from, true);
        }
        nothing
    }

    fn received(
        &mut self,
        from: &From,
        result: Result<Received, ReceiveError>,
    ) -> Poll<Result<Received, ReceiveError>> {
        self.end_search();
        let full = self.limits.receives_per_full_look.saturating_sub(1);
        self.receives = self.receives.checked_sub(1).unwrap_or(full);
        // Whoever is quiet stays so, and rings when it has something: that costs less than telling
        // all of them each time.
        if std::mem::take(&mut self.listens) {
            for peer in &mut self.peers {
                if peer.listens && !peer.quiet && is_from(from, peer.address) {
                    peer.stop_listening();
                }
            }
        }
        Poll::Ready(result)
    }

    /// Looks at each peer once, beginning with the one whose turn it is.
    fn find(&mut self, from: &From, into: &mut Vec<u8>, everybody: bool) -> Result<Found, NoPeer> {
        if let From::One(source) = *from {
            let index = self.index(source)?;
            let end = self.peers.get(index).and_then(|peer| peer.end());
            let found = self.find_of(index, into);
            let end = end.or_else(|| {
                self.peers.get(index).and_then(|peer| Some(NoPeer::Broken(peer.address, peer.broken?)))
            });
            return match (found, end) {
                (Found::Nothing, Some(why)) => Err(why),
                (found, _) => Ok(found),
            };
        }
        // END: first whether all of them are gone, then what they did.
        let gone = self.all_gone(from);
        let count = self.peers.len();
        let mut again = false;
        let mut next = self.turn;
        for _ in 0..count {
            let index = if next < count { next } else { 0 };
            next = index + 1;
            let looked_at = self
                .peers
                .get(index)
                .is_some_and(|peer| is_from(from, peer.address) && (everybody || !peer.quiet));
            if !looked_at {
                continue;
            }
            match self.find_of(index, into) {
                Found::Something(received) => {
                    if let Some(peer) = self.peers.get_mut(index) {
                        peer.quiet = false;
                    }
                    self.turn = index + 1;
                    return Ok(Found::Something(received));
                }
                Found::Again => again = true,
                Found::Nothing => {}
            }
        }
        match gone {
            _ if again => Ok(Found::Again),
            Some(why) => Err(why),
            None => Ok(Found::Nothing),
        }
    }

    /// Whether all that were named are gone, and why the first of them is.
    fn all_gone(&self, from: &From) -> Option<NoPeer> {
        let From::Some(some) = from else { return None };
        let gone = |address: &Address| match self.index(*address) {
            Ok(index) => self.peers.get(index).and_then(|peer| peer.end()),
            Err(why) => Some(why),
        };
        let first = some.first().and_then(gone)?;
        some.iter().all(|address| gone(address).is_some()).then_some(first)
    }

    fn find_of(&mut self, index: usize, into: &mut Vec<u8>) -> Found {
        let drops = self.limits.drops;
        let Some(peer) = self.peers.get_mut(index) else { return Found::Nothing };
        let source = peer.address;
        if peer.rights.heeds && peer.link.load(Way::In, Word::Notices) != 0 {
            let bits = peer.link.take_bits(Way::In, Word::Notices);
            if bits != 0 {
                into.clear();
                return Found::Something(Received { source, content: Content::Notices(bits) });
            }
        }
        if let Some(tag) = peer.next_message(into) {
            return Found::Something(Received { source, content: Content::Message { tag } });
        }
        for _ in 0..drops {
            let Some(peer) = self.peers.get_mut(index) else { return Found::Nothing };
            let Some(header) = peer.next(into) else { return Found::Nothing };
            if let Some(received) = self.accept(index, header) {
                return Found::Something(received);
            }
        }
        Found::Again
    }

    /// Decides about a record that has been taken; `None`: it is dropped.
    fn accept(&mut self, index: usize, header: Header) -> Option<Received> {
        let peer = self.peers.get_mut(index)?;
        let (rights, tag, source, by) = (peer.rights, header.tag, header.source, peer.address);
        let message = Some(Received { source, content: Content::Message { tag } });
        match header.kind {
            Kind::Message => message.filter(|_| rights.hears),
            Kind::Send if self.take_call(index, &header, rights.hears) => message,
            Kind::Request if self.take_call(index, &header, rights.answers) => self.ask(&header, None),
            // What is its own to ask, it asks itself, if it may.
            Kind::Forward if rights.answers_relayed && source != by => self.ask(&header, Some(by)),
            // Refused, withdrawn, or the answer to a call that is over.
            Kind::Send | Kind::Request | Kind::Forward | Kind::Reply | Kind::Refer => None,
        }
    }

    /// Meets a caller that waits: true, and it is received, for the caller, too.
    fn take_call(&mut self, index: usize, header: &Header, allowed: bool) -> bool {
        let Some(peer) = self.peers.get_mut(index) else { return false };
        let waiting = layout::call_word(header.id, layout::CALL_WAITING);
        let state = if allowed { layout::CALL_TAKEN } else { layout::CALL_OVER };
        let new = layout::call_word(header.id, state);
        // CALL: either it is received now, or it was withdrawn before.
        let found = peer.link.replace(Way::In, Word::Call, waiting, new);
        // Who asks sleeps until there is a reply: no need to wake it for less.
        if found == waiting && (header.kind == Kind::Send || !allowed) {
            peer.nudge();
        }
        found == waiting && allowed
    }

    fn ask(&mut self, header: &Header, relayed_by: Option<Address>) -> Option<Received> {
        let source = header.source;
        // Whom we can't answer, nobody may ask for.
        let requester = self.peer(source).ok()?;
        if relayed_by.is_some()
            && requester.answering.is_some_and(|id| id != header.id && requester.is_asking(id))
        {
            // It waits for another answer of ours, so it has not asked for this one.
            return None;
        }
        requester.answering = Some(header.id);
        let asked = Asked { requester: source, id: header.id, takes: header.takes, relayed_by };
        Some(Received { source, content: Content::Request { tag: header.tag, asked } })
    }
}

fn is_from(from: &From, address: Address) -> bool {
    match from {
        From::Any => true,
        From::One(one) => *one == address,
        From::Some(some) => some.contains(&address),
    }
}
