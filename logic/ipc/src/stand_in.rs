//! A stand-in is, on an endpoint's node, in the place of a peer on another node: it has the other
//! end of their channel, tells over a link the acts of the endpoint, and repeats in the endpoint's
//! channel the acts of the peer that the link tells. There is one on each of both nodes.
//!
//! The two copy: records, and the words of both directions (`docs/spec/proxy.md`). Bytes count
//! against a window from end to end, so there is always room for what comes. Whether a call was
//! received, the receiver's node decides, because its receiver does not wait for an answer; a call
//! that has left its node is *away* until that one says, and its caller asks for it back.
//!
//! Messages over the link come once and in order. The endpoint's words and the link's messages are
//! allegations alike.

use std::collections::VecDeque;

use wire::ipc as layout;
use wire::ipc::{Address, Header, Kind};

use crate::peer::counts;
use crate::{Broken, Link, Way, Word};

/// A message between two stand-ins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Said {
    /// A record, as it stood in the ring.
    Record(Header, Vec<u8>),
    /// This call was received.
    Taken(u64),
    /// This call was refused, or withdrawn before it was received.
    Over(u64),
    /// The caller does not want this call any more. Answered by one of the two above, unless they,
    /// or the reply, are on their way.
    Withdraw(u64),
    /// So many bytes of records were handed out or dropped, in all.
    Received(u64),
    /// Bits of notices were set.
    Notices(u64),
    /// The path that is published for the search for deadlocks.
    Path(u64),
}

/// How far one has come with what its endpoint did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "there may be more"]
pub enum Turn {
    /// There may be more: come again when what was said is on its way.
    More,
    /// There was nothing more.
    Idle,
    /// The endpoint has ended, or its program. All that it did before has been said.
    Ended,
}

/// Records that are taken in one turn: then others have theirs.
const RECORDS_PER_TURN: usize = 16;

/// A call of the peer that the endpoint has not decided.
#[derive(Clone, Copy, Debug)]
struct Calling {
    id: u64,
    /// It was said that it was received.
    told: bool,
}

/// See the module.
#[derive(Debug)]
pub struct StandIn<L> {
    link: L,
    /// The endpoint on this node.
    local: Address,
    /// The peer, for whom this stands in.
    remote: Address,
    /// Bytes of the endpoint's records that went over the link, those that were dropped instead,
    /// and of the former what the peer has received.
    passed: u64,
    dropped: u64,
    acked: u64,
    /// The endpoint's call that is away, or was received and not answered.
    away: Option<u64>,
    /// The call that was asked back last.
    asked: u64,
    /// Bytes of the peer's records that are in the ring or were, of them what the endpoint said it
    /// has received, and what was said of that.
    sent: u64,
    received: u64,
    calling: Option<Calling>,
    /// Notices that were taken, and not said.
    notices: u64,
    /// The path of the search that was told last.
    path: u64,
}

impl<L: Link> StandIn<L> {
    /// Takes the place of `remote` at the other end of a channel that was made for it and `local`
    /// alone.
    #[must_use]
    pub fn new(link: L, local: Address, remote: Address) -> StandIn<L> {
        // PATH: whatever the endpoint publishes is passed on, so it wakes us for it.
        link.store(Way::Out, Word::Waits, 1);
        StandIn {
            link,
            local,
            remote,
            passed: 0,
            dropped: 0,
            acked: 0,
            away: None,
            asked: 0,
            sent: 0,
            received: 0,
            calling: None,
            notices: 0,
            path: 0,
        }
    }

    /// The channel.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// The channel, for whatever is no business of the calls.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    fn window(&self) -> u64 {
        layout::window_bytes(self.link.ring_bytes()) as u64
    }

    /// Says that we are about to sleep (LISTEN): make a turn after that.
    pub fn listen(&mut self) {
        self.link.listen();
    }

    /// Not asleep any more.
    pub fn stop_listening(&mut self) {
        self.link.stop_listening();
    }

    fn nudge(&self) {
        // LISTEN: the change shows before we look whether it listens.
        self.link.fence();
        if self.link.take_listener() {
            self.link.ring();
        }
    }

    /// Looks what the endpoint has done, and says it: in the order in which it has to be heard.
    ///
    /// # Errors
    /// A rule that the endpoint has broken. Its channel is closed then.
    pub fn turn(&mut self, say: &mut VecDeque<Said>) -> Result<Turn, Broken> {
        let turned = self.look_at_all(say);
        if turned.is_err() {
            self.link.close();
        }
        turned
    }

    fn look_at_all(&mut self, say: &mut VecDeque<Said>) -> Result<Turn, Broken> {
        // END: first whether it lives, then what it did.
        let ended = self.link.is_closed();
        // PATH: what is published was so after all that the endpoint did before; all that is said
        // first.
        let path = self.link.load(Way::In, Word::Path);
        self.notices |= match self.link.load(Way::In, Word::Notices) {
            0 => 0,
            _ => self.link.take_bits(Way::In, Word::Notices),
        };
        self.look_at_peers_call(say)?;
        self.look_at_received(say)?;
        if !self.pass_records(say)? {
            return Ok(Turn::More);
        }
        self.look_at_own_call(say);
        // What was sent before a notice is there when that comes.
        if self.notices != 0 {
            say.push_back(Said::Notices(std::mem::take(&mut self.notices)));
        }
        if path != self.path {
            self.path = path;
            say.push_back(Said::Path(path));
        }
        Ok(if ended { Turn::Ended } else { Turn::Idle })
    }

    /// How it stands with the peer's call.
    fn look_at_peers_call(&mut self, say: &mut VecDeque<Said>) -> Result<(), Broken> {
        let Some(calling) = &mut self.calling else { return Ok(()) };
        let id = calling.id;
        let found = self.link.load(Way::Out, Word::Call);
        if found == layout::call_word(id, layout::CALL_TAKEN) {
            if !std::mem::replace(&mut calling.told, true) {
                say.push_back(Said::Taken(id));
            }
        } else if found == layout::call_word(id, layout::CALL_OVER) {
            self.calling = None;
            say.push_back(Said::Over(id));
        } else if found != layout::call_word(id, layout::CALL_WAITING) {
            return Err(Broken::Call { id, found });
        }
        Ok(())
    }

    fn look_at_received(&mut self, say: &mut VecDeque<Said>) -> Result<(), Broken> {
        let alleged = self.link.load(Way::Out, Word::Received);
        if alleged < self.received || alleged > self.sent {
            return Err(Broken::Received { alleged, least: self.received, most: self.sent });
        }
        if alleged != self.received {
            self.received = alleged;
            say.push_back(Said::Received(alleged));
        }
        Ok(())
    }

    /// Takes records out of the ring; false: there may be more.
    fn pass_records(&mut self, say: &mut VecDeque<Said>) -> Result<bool, Broken> {
        for _ in 0..RECORDS_PER_TURN {
            let Some(header) = self.link.look()? else { return Ok(true) };
            let most = layout::payload_bytes_max(self.link.ring_bytes());
            if header.length as usize > most {
                return Err(Broken::Length { length: header.length, most });
            }
            if header.kind != Kind::Forward && header.source != self.local {
                return Err(Broken::Source { alleged: header.source, expected: self.local });
            }
            let mut payload = Vec::new();
            self.link.take(&mut payload);
            self.pass(header, payload, say)?;
        }
        Ok(false)
    }

    fn pass(&mut self, header: Header, payload: Vec<u8>, say: &mut VecDeque<Said>) -> Result<(), Broken> {
        let (id, bytes) = (header.id, layout::record_bytes(payload.len()) as u64);
        match header.kind {
            Kind::Send | Kind::Request => {
                let waiting = layout::call_word(id, layout::CALL_WAITING);
                // CALL: either it goes, or it was withdrawn before.
                let found =
                    self.link.replace(Way::In, Word::Call, waiting, layout::call_word(id, layout::CALL_AWAY));
                if found != waiting {
                    self.dropped += bytes;
                    self.say_received();
                    return Ok(());
                }
                self.away = Some(id);
            }
            Kind::Reply | Kind::Refer => self.answered(id),
            Kind::Message | Kind::Forward => {}
        }
        if counts(header.kind) {
            self.passed += bytes;
            let on_the_way = self.passed - self.acked;
            if on_the_way > self.window() {
                let (bytes, most) = (on_the_way as usize, self.window() as usize);
                return Err(Broken::Window { bytes, most });
            }
        }
        say.push_back(Said::Record(header, payload));
        Ok(())
    }

    /// The endpoint has answered a call of the peer's: that it was received is in the answer.
    fn answered(&mut self, id: u64) {
        if self.calling.is_some_and(|calling| calling.id == id) {
            self.calling = None;
            let (taken, over) =
                (layout::call_word(id, layout::CALL_TAKEN), layout::call_word(id, layout::CALL_OVER));
            self.link.replace(Way::Out, Word::Call, taken, over);
        }
    }

    /// Whether the endpoint has given its own call up.
    fn look_at_own_call(&mut self, say: &mut VecDeque<Said>) {
        let Some(id) = self.away else { return };
        let found = self.link.load(Way::In, Word::Call);
        if found == layout::call_word(id, layout::CALL_AWAY) {
            let wanted_back = self.link.load(Way::In, Word::Withdraw) == id;
            if wanted_back && std::mem::replace(&mut self.asked, id) != id {
                say.push_back(Said::Withdraw(id));
            }
        } else if found != layout::call_word(id, layout::CALL_TAKEN) {
            self.away = None;
            if std::mem::replace(&mut self.asked, id) != id {
                say.push_back(Said::Withdraw(id));
            }
        }
    }

    fn say_received(&self) {
        self.link.store(Way::In, Word::Received, self.dropped + self.acked);
        self.nudge();
    }

    /// Does what the link says of the peer; what is to be said to that goes behind what waits.
    ///
    /// # Errors
    /// A rule that the other one has broken.
    pub fn hear(&mut self, said: Said, say: &mut VecDeque<Said>) -> Result<(), Broken> {
        match said {
            Said::Record(header, payload) => return self.put(&header, &payload),
            Said::Taken(id) => self.decide(id, layout::CALL_TAKEN),
            Said::Over(id) => {
                self.decide(id, layout::CALL_OVER);
                self.away = self.away.filter(|away| *away != id);
            }
            Said::Withdraw(id) => self.withdraw(id, say),
            Said::Received(bytes) => {
                if bytes < self.acked || bytes > self.passed {
                    return Err(Broken::Received { alleged: bytes, least: self.acked, most: self.passed });
                }
                self.acked = bytes;
                self.say_received();
            }
            Said::Notices(bits) => {
                self.link.set_bits(Way::Out, Word::Notices, bits);
                self.nudge();
            }
            Said::Path(path) => {
                self.link.store(Way::Out, Word::Path, path);
                // PATH: what we have published shows before we look who waits.
                self.link.fence();
                if self.link.load(Way::In, Word::Waits) != 0 {
                    self.nudge();
                }
            }
        }
        Ok(())
    }

    /// The peer's node says what became of the endpoint's call, if that is still to be said.
    fn decide(&self, id: u64, state: u64) {
        let away = layout::call_word(id, layout::CALL_AWAY);
        // CALL: the endpoint may have given it up for good.
        if self.link.replace(Way::In, Word::Call, away, layout::call_word(id, state)) == away {
            self.nudge();
        }
    }

    /// The peer does not want its call any more.
    fn withdraw(&mut self, id: u64, say: &mut VecDeque<Said>) {
        let Some(calling) = self.calling.take_if(|calling| calling.id == id) else { return };
        let [waiting, taken, over] = [layout::CALL_WAITING, layout::CALL_TAKEN, layout::CALL_OVER]
            .map(|state| layout::call_word(id, state));
        // CALL: either it was received before, or it never will be.
        if self.link.replace(Way::Out, Word::Call, waiting, over) != taken {
            say.push_back(Said::Over(id));
        } else {
            self.link.replace(Way::Out, Word::Call, taken, over);
            if !calling.told {
                say.push_back(Said::Taken(id));
            }
        }
    }

    /// A record of the peer goes into the ring.
    fn put(&mut self, header: &Header, payload: &[u8]) -> Result<(), Broken> {
        let most = layout::payload_bytes_max(self.link.ring_bytes());
        if payload.len() > most {
            return Err(Broken::Length { length: header.length, most });
        }
        if (header.kind == Kind::Forward) == (header.source == self.remote) {
            return Err(Broken::Source { alleged: header.source, expected: self.remote });
        }
        match header.kind {
            Kind::Reply | Kind::Refer if !self.is_waited_for(header.id) => return Ok(()),
            Kind::Reply | Kind::Refer => self.away = self.away.filter(|away| *away != header.id),
            Kind::Send | Kind::Request => {
                // CALL: it shows that the peer waits before the record does.
                let waiting = layout::call_word(header.id, layout::CALL_WAITING);
                self.link.store(Way::Out, Word::Call, waiting);
                self.calling = Some(Calling { id: header.id, told: false });
            }
            Kind::Message | Kind::Forward => {}
        }
        if counts(header.kind) {
            let bytes = layout::record_bytes(payload.len()) as u64;
            let alleged = self.link.load(Way::Out, Word::Received);
            // What the endpoint alleges is judged in its own turn.
            let on_the_way = (self.sent + bytes).saturating_sub(alleged);
            if on_the_way > self.window() {
                let (bytes, most) = (on_the_way as usize, self.window() as usize);
                return Err(Broken::Window { bytes, most });
            }
            self.sent += bytes;
        }
        if self.link.commit(header, payload) || self.link.is_closed() {
            return Ok(());
        }
        Err(self.link.fault().unwrap_or(Broken::Window { bytes: payload.len(), most: 0 }))
    }

    /// Whether the endpoint waits for an answer to this call; of one that was passed on it may not
    /// have heard yet.
    fn is_waited_for(&mut self, id: u64) -> bool {
        let away = layout::call_word(id, layout::CALL_AWAY);
        let taken = layout::call_word(id, layout::CALL_TAKEN);
        // CALL: an answer says that the call was received.
        let found = self.link.replace(Way::In, Word::Call, away, taken);
        found == away || found == taken || layout::call_of(found).0 < id
    }
}
