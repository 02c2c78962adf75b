//! Calls that never wait: replies, relays, notices.

use wire::ipc as layout;
use wire::ipc::{Address, Header, Kind};

use crate::peer::Peer;
use crate::{Asked, Endpoint, Link, NotifyError, RelayError, ReplyError, Way, Word};

impl<L: Link> Endpoint<L> {
    /// Sets bits at a peer, which receives all that were set since it received notices last,
    /// together.
    ///
    /// # Errors
    /// See [`NotifyError`].
    pub fn notify(&mut self, to: Address, bits: u64) -> Result<(), NotifyError> {
        let peer = self.peer(to)?;
        if let Some(why) = peer.end() {
            return Err(why.into());
        }
        if !peer.rights.notify {
            return Err(NotifyError::Refused(to));
        }
        if bits != 0 {
            peer.link.set_bits(Way::Out, Word::Notices, bits);
            peer.nudge();
        }
        Ok(())
    }

    /// Answers a request. `Ok`: the requester was waiting when the reply was sent; its time may be
    /// over at that very moment.
    ///
    /// # Errors
    /// See [`ReplyError`].
    pub fn reply(&mut self, asked: &Asked, tag: u32, payload: &[u8]) -> Result<(), ReplyError> {
        let source = self.address();
        let peer = self.peer(asked.requester)?;
        let (length, most) = (payload.len(), asked.takes as usize);
        if length > most {
            return Err(ReplyError::TooLong { length, most });
        }
        if let Some(why) = peer.end() {
            return Err(why.into());
        }
        if !is_waited_for(peer, asked) {
            return Err(ReplyError::Stale(asked.requester));
        }
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let header = Header { source, tag, length, kind: Kind::Reply, takes: 0, id: asked.id };
        peer.answering = None;
        if peer.link.commit(&header, payload) { Ok(()) } else { Err(ReplyError::NoRoom(asked.requester)) }
    }

    /// Passes a request on: `to` answers it, and this endpoint has nothing to do with it any more.
    ///
    /// # Errors
    /// See [`RelayError`].
    pub fn relay(&mut self, asked: &Asked, to: Address, tag: u32, payload: &[u8]) -> Result<(), RelayError> {
        let source = self.address();
        self.may_relay(asked, to, payload.len())?;
        // First the other learns what to answer, then the requester who answers: if we end between
        // the two, the requester hears that we are dead, and not of somebody who knows nothing of
        // it. An answer may come before the referral; it is found when that is followed.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let (requester, takes, id) = (asked.requester, asked.takes, asked.id);
        let forwarded = Header { source: requester, tag, length, kind: Kind::Forward, takes, id };
        let other = self.peer(to)?;
        if !other.offer(&forwarded, payload) {
            return Err(RelayError::Full(to));
        }
        let length = layout::REFER_BYTES as u32;
        let header = Header { source, tag: 0, length, kind: Kind::Refer, takes: 0, id };
        let peer = self.peer(requester)?;
        peer.answering = None;
        // The room for that is there and stays.
        if peer.link.commit(&header, &to.to_bytes()) { Ok(()) } else { Err(RelayError::NoRoom(requester)) }
    }

    fn may_relay(&mut self, asked: &Asked, to: Address, length: usize) -> Result<(), RelayError> {
        let other = self.peer(to)?;
        if let Some(why) = other.end() {
            return Err(why.into());
        }
        if !other.rights.relay || to == asked.requester {
            return Err(RelayError::Refused(to));
        }
        let most = other.payload_bytes_max();
        if length > most {
            return Err(RelayError::TooLong { length, most });
        }
        if !other.has_window(length) {
            return Err(RelayError::Full(to));
        }
        let requester = self.peer(asked.requester)?;
        if let Some(why) = requester.end() {
            return Err(why.into());
        }
        if is_waited_for(requester, asked) { Ok(()) } else { Err(RelayError::Stale(asked.requester)) }
    }
}

/// Whether a reply would find somebody who waits for it.
fn is_waited_for<L: Link>(peer: &Peer<L>, asked: &Asked) -> bool {
    // Of one that was passed on the requester may not have heard yet.
    let not_yet = asked.relayed_by.is_some() && peer.peers_call().0 < asked.id;
    peer.answering == Some(asked.id) && (not_yet || peer.is_asking(asked.id))
}
