//! An endpoint that moves: it stops receiving, hands on what has come, and those who sent what it
//! has not consumed send that to its new place.
//!
//! One owner for each message makes that exact. Before [`Endpoint::drain`] has said how far it
//! consumed, a message is in the ring; what was consumed is the moving endpoint's to hand on; what
//! was not is its sender's, who takes it back when it parts from the old place
//! ([`Endpoint::take_back`]). Calls that somebody waits for are decided by their own word, as
//! always: nobody has received them, so they are made again.

use wire::ipc as layout;
use wire::ipc::{Address, HEADER_BYTES, Header, Kind};

use crate::peer::Peer;
use crate::{Content, Endpoint, Link, NoPeer, Received, Way, Word};

/// The messages that an endpoint has sent to a peer that moved, and that were not received there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreceived {
    /// Tags and payloads of messages, the oldest first.
    pub messages: Vec<(u32, Vec<u8>)>,
    /// Bits of notices.
    pub notices: u64,
}

impl Unreceived {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.notices == 0
    }
}

impl<L: Link> Endpoint<L> {
    /// Receives nothing more: it moves. Those who send are not told before they part from it, and
    /// wait meanwhile.
    pub fn seal(&mut self) {
        for peer in &mut self.peers {
            // If this endpoint dies from here on, its senders rely on what the ring says.
            peer.listen();
            peer.stop_listening();
        }
        self.set_sealed(true);
    }

    /// Receives again: it stays.
    pub fn unseal(&mut self) {
        self.set_sealed(false);
    }

    fn set_sealed(&mut self, sealed: bool) {
        self.sealed = sealed;
        for peer in &self.peers {
            peer.link.store(Way::In, Word::Sealed, u64::from(sealed));
        }
    }

    /// Somebody whose request was received, and who waits for the reply.
    #[must_use]
    pub fn unanswered(&self) -> Option<Address> {
        let waits = |peer: &&Peer<L>| {
            // One whose request was passed on to us may not have heard of it yet.
            let is_asking = |id| peer.is_asking(id) || peer.peers_call().0 < id;
            peer.end().is_none() && peer.answering.is_some_and(is_asking)
        };
        self.peers.iter().find(waits).map(|peer| peer.address)
    }

    /// Consumes messages and notices that nobody waits for, from all peers, says to each how far,
    /// and returns them, in the order of each peer. Calls that somebody waits for stay where they
    /// are. Of one peer it consumes a ring at the most: one that sends on keeps the rest.
    pub fn drain(&mut self) -> Vec<(Received, Vec<u8>)> {
        let mut drained = Vec::new();
        for peer in &mut self.peers {
            drain_peer(peer, &mut drained);
            // The ring and the words say exactly how far this has come.
            peer.listen();
            peer.stop_listening();
        }
        drained
    }

    /// Takes the messages back that this endpoint has sent to a peer that moves, and that were not
    /// received: nobody will receive them. Before it parts from that one, and only then.
    ///
    /// # Errors
    /// See [`NoPeer`], when it is not bound.
    pub fn take_back(&mut self, peer: Address) -> Result<Unreceived, NoPeer> {
        let source = self.address();
        let peer = self.peer(peer)?;
        if peer.broken.is_some() || peer.link.load(Way::Out, Word::Sealed) == 0 {
            return Ok(Unreceived::default());
        }
        let read = |bytes: Vec<u8>| {
            let (header, payload) = bytes.split_at_checked(HEADER_BYTES)?;
            let header = Header::read(header.try_into().ok()?, bytes.len()).ok()?;
            let is_ours = header.kind == Kind::Message && header.source == source;
            is_ours.then(|| (header.tag, payload.to_vec()))
        };
        let messages = peer.link.unconsumed().into_iter().filter_map(read).collect();
        Ok(Unreceived { messages, notices: peer.link.take_bits(Way::Out, Word::Notices) })
    }

    /// Whether the call of this endpoint that waits was received by a peer that has moved since:
    /// then its answer is in the ring, because a peer that owes one does not move.
    #[must_use]
    pub fn was_served_by_moved(&self, peer: Address) -> bool {
        let taken = layout::call_word(self.calls, layout::CALL_TAKEN);
        self.link(peer).is_ok_and(|link| {
            link.load(Way::Out, Word::Sealed) != 0 && link.load(Way::Out, Word::Call) == taken
        })
    }

    /// Sends what was taken back to the one that has the peer's place, whose pair is new. False:
    /// not all of it, because it may not be sent there, or does not fit.
    pub fn send_again(&mut self, to: Address, unreceived: &Unreceived) -> bool {
        let source = self.address();
        let Ok(peer) = self.peer(to) else { return unreceived.is_empty() };
        let mut all = true;
        for (tag, payload) in &unreceived.messages {
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            let header = Header { source, tag: *tag, length, kind: Kind::Message, takes: 0, id: 0 };
            all = all && peer.rights.send && peer.offer(&header, payload);
        }
        if unreceived.notices != 0 {
            all &= peer.rights.notify;
            if peer.rights.notify {
                peer.link.set_bits(Way::Out, Word::Notices, unreceived.notices);
                peer.nudge();
            }
        }
        all
    }
}

impl<L: Link> Endpoint<L> {
    /// As [`Endpoint::drain`], of one peer that has moved and is about to be parted from: what it
    /// had sent before is received. Of one that has not moved, nothing.
    ///
    /// # Errors
    /// See [`NoPeer`], when it is not bound.
    pub fn drain_moved(&mut self, peer: Address) -> Result<Vec<(Received, Vec<u8>)>, NoPeer> {
        let peer = self.peer(peer)?;
        let mut drained = Vec::new();
        if peer.broken.is_none() && peer.link.load(Way::Out, Word::Sealed) != 0 {
            drain_peer(peer, &mut drained);
        }
        Ok(drained)
    }
}

fn drain_peer<L: Link>(peer: &mut Peer<L>, drained: &mut Vec<(Received, Vec<u8>)>) {
    let source = peer.address;
    if peer.rights.heeds {
        let bits = peer.link.take_bits(Way::In, Word::Notices);
        if bits != 0 {
            drained.push((Received { source, content: Content::Notices(bits) }, Vec::new()));
        }
    }
    let most = u64::from(peer.link.ring_bytes());
    let mut bytes = 0;
    while bytes < most {
        let Some(header) = peer.front() else { return };
        if matches!(header.kind, Kind::Send | Kind::Request) && waits(peer, header.id) {
            return;
        }
        let mut payload = Vec::new();
        let Some(header) = peer.next(&mut payload) else { return };
        bytes += layout::record_bytes(payload.len()) as u64;
        if header.kind == Kind::Message && peer.rights.hears {
            drained.push((Received { source, content: Content::Message { tag: header.tag } }, payload));
        }
    }
}

/// Whether a call's sender waits for it to be received.
fn waits<L: Link>(peer: &Peer<L>, id: u64) -> bool {
    peer.peers_call() == (id, layout::CALL_WAITING)
}
