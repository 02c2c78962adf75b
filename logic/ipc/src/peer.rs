//! One peer of an endpoint: its link, and what both have sent and received.

use std::collections::VecDeque;

use wire::ipc as layout;
use wire::ipc::{Address, Header, Kind};

use crate::endpoint::Rights;
use crate::{Broken, Link, NoPeer, Way, Word};

/// A peer that this endpoint is bound to.
#[derive(Debug)]
pub(crate) struct Peer<L> {
    pub address: Address,
    pub rights: Rights,
    pub link: L,
    pub broken: Option<Broken>,
    /// Records that were in front of a reply: read, not yet handed out. Not more than a window.
    stash: VecDeque<(Header, Vec<u8>)>,
    stash_bytes: usize,
    /// Bytes of our records, and of them what the peer has received, as it said last and we
    /// believed.
    sent: u64,
    sent_received: u64,
    /// Bytes of the peer's records that we have handed out or dropped, and of them what we have
    /// told it.
    received: u64,
    received_told: u64,
    /// How much we had told when we woke it last, if it slept.
    received_nudged: u64,
    /// The peer's newest request that we have received and not answered.
    pub answering: Option<u64>,
    /// We have said that we listen.
    pub listens: bool,
    /// Nothing was there when we looked, after we had said that we listen: it rings when there is
    /// something.
    pub quiet: bool,
}

impl<L: Link> Peer<L> {
    pub fn new(address: Address, rights: Rights, link: L) -> Peer<L> {
        Peer {
            address,
            rights,
            link,
            broken: None,
            stash: VecDeque::new(),
            stash_bytes: 0,
            sent: 0,
            sent_received: 0,
            received: 0,
            received_told: 0,
            received_nudged: 0,
            answering: None,
            listens: false,
            quiet: false,
        }
    }

    /// Most bytes of payload that fit this pair.
    pub fn payload_bytes_max(&self) -> usize {
        layout::payload_bytes_max(self.link.ring_bytes())
    }

    fn window(&self) -> u64 {
        layout::window_bytes(self.link.ring_bytes()) as u64
    }

    /// Cuts the peer off.
    pub fn break_off(&mut self, why: Broken) {
        if self.broken.is_none() {
            self.broken = Some(why);
            self.link.close();
        }
    }

    /// Why it can't be called any more. Its actions before it ended show after this.
    pub fn end(&self) -> Option<NoPeer> {
        if let Some(why) = self.broken {
            return Some(NoPeer::Broken(self.address, why));
        }
        self.link.is_closed().then_some(NoPeer::Dead(self.address))
    }

    /// Wakes the peer after a change of a word, if it listens.
    pub fn nudge(&self) {
        // LISTEN: the change shows before we look whether it listens.
        self.link.fence();
        if self.link.take_listener() {
            self.link.ring();
        }
    }

    /// Says that we are about to sleep, and tells what we have received: the peer may wait for
    /// that.
    pub fn listen(&mut self) {
        self.tell_received();
        self.link.listen();
        self.listens = true;
    }

    /// Not asleep any more.
    pub fn stop_listening(&mut self) {
        if self.listens {
            self.link.stop_listening();
        }
        self.listens = false;
        self.quiet = false;
    }

    /// Whether a record of `payload` bytes may be on its way, by what is known: without a look at
    /// what the peer says.
    #[inline]
    pub fn knows_window(&self, payload: usize) -> bool {
        self.sent + layout::record_bytes(payload) as u64 - self.sent_received <= self.window()
    }

    /// Whether a record of `payload` bytes may be on its way now.
    pub fn has_window(&mut self, payload: usize) -> bool {
        if self.knows_window(payload) {
            return true;
        }
        let bytes = layout::record_bytes(payload) as u64;
        let alleged = self.link.load(Way::Out, Word::Received);
        if alleged < self.sent_received || alleged > self.sent {
            let why = Broken::Received { alleged, least: self.sent_received, most: self.sent };
            self.break_off(why);
            return false;
        }
        self.sent_received = alleged;
        self.sent + bytes - alleged <= self.window()
    }

    /// Sends a record that counts.
    #[inline]
    pub fn offer(&mut self, header: &Header, payload: &[u8]) -> bool {
        let sent = self.has_window(payload.len()) && self.link.commit(header, payload);
        if sent {
            self.sent += layout::record_bytes(payload.len()) as u64;
        } else if let Some(why) = self.link.fault() {
            self.break_off(why);
        }
        sent
    }

    /// Returns the peer's own call: its number and its state.
    pub fn peers_call(&self) -> (u64, u64) {
        layout::call_of(self.link.load(Way::In, Word::Call))
    }

    /// Whether the peer says that it waits for our reply to its request.
    pub fn is_asking(&self, id: u64) -> bool {
        self.peers_call() == (id, layout::CALL_TAKEN)
    }

    /// Whether there is something to receive, be it good or bad, or it has ended.
    pub fn has_something(&mut self) -> bool {
        self.end().is_some() || self.has_left_something()
    }

    /// As [`Peer::has_something`], whether it has ended or not. A peer that was cut off has left
    /// nothing.
    pub fn has_left_something(&mut self) -> bool {
        self.broken.is_none()
            && (!self.stash.is_empty()
                || self.rights.heeds && self.link.load(Way::In, Word::Notices) != 0
                || !matches!(self.link.look(), Ok(None)))
    }

    /// The next record in the ring, checked, not yet taken.
    pub fn look(&mut self) -> Option<Header> {
        if self.broken.is_some() {
            return None;
        }
        let header = match self.link.look() {
            Ok(header) => header?,
            Err(why) => {
                self.break_off(why);
                return None;
            }
        };
        let most = self.payload_bytes_max();
        if header.length as usize > most {
            self.break_off(Broken::Length { length: header.length, most });
            return None;
        }
        if header.kind != Kind::Forward && header.source != self.address {
            self.break_off(Broken::Source { alleged: header.source, expected: self.address });
            return None;
        }
        Some(header)
    }

    /// Takes the record that was looked at, and puts it aside; false: the peer has sent too much.
    pub fn put_aside(&mut self, header: Header) -> bool {
        let mut payload = Vec::new();
        self.link.take(&mut payload);
        self.stash_bytes += layout::record_bytes(payload.len());
        let most = layout::window_bytes(self.link.ring_bytes());
        if self.stash_bytes > most {
            self.break_off(Broken::Window { bytes: self.stash_bytes, most });
            return false;
        }
        self.stash.push_back((header, payload));
        true
    }

    /// The next message, if there is nothing out of the ordinary to do for it; its tag.
    #[inline]
    pub fn next_message(&mut self, into: &mut Vec<u8>) -> Option<u32> {
        if !self.rights.hears || self.broken.is_some() || !self.stash.is_empty() {
            return None;
        }
        let most = self.payload_bytes_max();
        let tag = self.link.take_message(self.address, most, into)?;
        self.count_received(into.len());
        Some(tag)
    }

    #[inline]
    fn count_received(&mut self, payload: usize) {
        self.received += layout::record_bytes(payload) as u64;
        // Often enough that a stream does not stop, seldom enough that it costs next to nothing; a
        // peer that sleeps is woken for more.
        if self.received - self.received_told >= self.window() / 4 {
            self.say_received();
            if self.received - self.received_nudged >= self.window() / 2 {
                self.tell_received();
            }
        }
    }

    /// The header of the record that [`Peer::next`] takes.
    pub fn front(&mut self) -> Option<Header> {
        match self.stash.front() {
            Some((header, _)) => Some(*header),
            None => self.look(),
        }
    }

    /// The next record that counts or does not: one that was put aside, or one of the ring. It has
    /// been taken.
    pub fn next(&mut self, into: &mut Vec<u8>) -> Option<Header> {
        let header = if let Some((header, payload)) = self.stash.pop_front() {
            *into = payload;
            self.stash_bytes -= layout::record_bytes(into.len());
            header
        } else {
            let header = self.look()?;
            self.link.take(into);
            header
        };
        if counts(header.kind) {
            self.count_received(into.len());
        }
        Some(header)
    }

    fn say_received(&mut self) {
        if self.received != self.received_told {
            self.received_told = self.received;
            self.link.store(Way::In, Word::Received, self.received);
        }
    }

    /// Says what we have received, and wakes the peer if it waits for that.
    fn tell_received(&mut self) {
        self.say_received();
        if self.received != self.received_nudged {
            self.received_nudged = self.received;
            self.nudge();
        }
    }
}

/// Whether a record counts against the window.
pub(crate) fn counts(kind: Kind) -> bool {
    !matches!(kind, Kind::Reply | Kind::Refer)
}
