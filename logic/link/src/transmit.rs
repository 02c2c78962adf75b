//! The packets that are to be carried: one at a time, with as many frames as fit.

use crate::link::{Farewell, Link};
use crate::outward::Piece;
use crate::schedule::Next;
use wire::link::{
    DATAGRAM_BYTES_MIN, FRAME_HEADER_BYTES, Frame, PACKET_BODY_BYTES_MAX, PACKET_HEADER_BYTES,
    PIECE_BYTES_MAX, Packet, Pair, RANGE_BYTES, RANGES_MAX, REASON_BYTES, STATE_BYTES, packet,
};

/// Longest frame but for pieces.
const FRAME_BYTES_MAX: usize = FRAME_HEADER_BYTES + STATE_BYTES + RANGES_MAX * RANGE_BYTES;
/// No piece is begun where less of it than this fits: its header would cost more than it.
const PIECE_BYTES_MIN: usize = 64;

/// A packet that is being filled.
struct Body<'a> {
    to: &'a mut Vec<u8>,
    start: usize,
    most: usize,
}

impl Body<'_> {
    fn room(&self) -> usize {
        (self.start + self.most).saturating_sub(self.to.len())
    }

    fn fits_frame(&self) -> bool {
        self.room() >= FRAME_BYTES_MAX
    }

    fn is_empty(&self) -> bool {
        self.to.len() == self.start + PACKET_HEADER_BYTES
    }
}

impl Link {
    /// Appends the next packet, of at most `most` bytes, to `to`. `false`: there is nothing to send
    /// now, or less than [`DATAGRAM_BYTES_MIN`] are too few.
    pub fn poll_transmit(&mut self, now_ms: u64, most: usize, to: &mut Vec<u8>) -> bool {
        let Some(on) = self.connection.on_mut() else { return false };
        let datagram = match on.transport {
            crate::Transport::Stream => PACKET_HEADER_BYTES + PACKET_BODY_BYTES_MAX,
            crate::Transport::Datagrams { bytes } => bytes.min(PACKET_HEADER_BYTES + PACKET_BODY_BYTES_MAX),
        };
        let most = most.min(datagram);
        if most < DATAGRAM_BYTES_MIN {
            return false;
        }
        let start = to.len();
        to.extend_from_slice(&[0; PACKET_HEADER_BYTES]);
        let mut body = Body { to, start, most };
        let known = self.peer.map_or(0, |peer| peer.epoch);
        let kind = self.fill(now_ms, &mut body, known);
        let soon_at = now_ms.saturating_add(self.config.timing.state_after_ms);
        if let Some(on) = self.connection.on_mut() {
            if self.pairs.take_waits() && on.transport.is_lossy() {
                on.resend_at.get_or_insert(now_ms.saturating_add(self.config.timing.resend_after_ms));
            }
            on.soon_at = self.pairs.has_soon().then(|| on.soon_at.unwrap_or(soon_at));
        }
        let Some((kind, peer)) = kind else {
            to.truncate(start);
            return false;
        };
        let header = Packet::plain(kind, to.len() - start - PACKET_HEADER_BYTES, self.config.epoch, peer);
        if let Some(place) = to.get_mut(start..start + PACKET_HEADER_BYTES) {
            place.copy_from_slice(&header.to_bytes());
        }
        if let Some(on) = self.connection.on_mut() {
            on.sent_ms = now_ms;
        }
        true
    }

    /// Kind of the packet, and for which incarnation it is.
    fn fill(&mut self, now_ms: u64, body: &mut Body<'_>, peer: u64) -> Option<(u8, u64)> {
        match self.farewell.take() {
            Some(Farewell::Refusal { to, refusal }) => {
                body.to.extend_from_slice(&refusal.to_bytes());
                return Some((packet::REFUSAL, to));
            }
            Some(Farewell::Goodbye { reason }) if peer != 0 => {
                Frame::Goodbye { reason }.encode(body.to);
                return Some((packet::FRAMES, peer));
            }
            _ => {}
        }
        if self.over.is_some() {
            return None;
        }
        let resend_after_ms = self.config.timing.resend_after_ms;
        let on = self.connection.on_mut()?;
        if std::mem::take(&mut on.hello_due) {
            if on.transport.is_lossy() && !on.up {
                on.hello_at = Some(now_ms.saturating_add(resend_after_ms));
            }
            body.to.extend_from_slice(&self.config.hello.to_bytes());
            return Some((packet::HELLO, peer));
        }
        if !on.up {
            return None;
        }
        self.put_link(now_ms, body);
        self.put_states(body);
        self.put_pieces(now_ms, body);
        if !body.is_empty() {
            while body.fits_frame()
                && let Some(pair) = self.pairs.next_soon()
            {
                self.put_state(pair, body);
            }
        }
        (!body.is_empty()).then_some((packet::FRAMES, peer))
    }

    fn put_link(&mut self, now_ms: u64, body: &mut Body<'_>) {
        let Some(on) = self.connection.on_mut() else { return };
        if let Some(bytes) = on.pong.take() {
            Frame::Pong(bytes).encode(body.to);
        }
        if std::mem::take(&mut on.ping_due) {
            on.ping = Some(now_ms);
            Frame::Ping(now_ms.to_le_bytes()).encode(body.to);
        }
    }

    fn put_states(&mut self, body: &mut Body<'_>) {
        while body.fits_frame()
            && let Some(pair) = self.pairs.next_urgent()
        {
            self.put_state(pair, body);
        }
        while body.fits_frame()
            && let Some(pair) = self.pairs.next_gone()
        {
            Frame::Gone(pair).encode(body.to);
        }
        let told = !self.pairs.has_urgent() && !self.pairs.has_gone();
        if let Some(on) = self.connection.on_mut()
            && told
            && !on.resumed_sent
            && body.fits_frame()
        {
            on.resumed_sent = true;
            Frame::Resumed.encode(body.to);
        }
    }

    fn put_state(&mut self, pair: Pair, body: &mut Body<'_>) {
        let Some(entry) = self.pairs.get(pair) else { return };
        let (received, credit, ranges, closed) = entry.inn.tell();
        Frame::State { pair, received, credit, ranges, closed }.encode(body.to);
    }

    fn put_pieces(&mut self, now_ms: u64, body: &mut Body<'_>) {
        let after_ms = self.config.timing.resend_after_ms;
        let Some(on) = self.connection.on_mut().filter(|on| on.resumed_heard) else { return };
        let lossy = on.transport.is_lossy().then_some((now_ms, after_ms));
        on.held_until = None;
        while body.room() >= FRAME_HEADER_BYTES + PIECE_BYTES_MIN.max(REASON_BYTES) {
            let (pair, class, most) = match self.pairs.next_ready(now_ms) {
                Next::Pair { pair, class, most } => (pair, class, most),
                Next::NotBefore(at) => {
                    if let Some(on) = self.connection.on_mut() {
                        on.held_until = Some(at);
                    }
                    return;
                }
                Next::Nobody => return,
            };
            let most = most.min(body.room() - FRAME_HEADER_BYTES).min(PIECE_BYTES_MAX);
            let begun = body.to.len();
            let Some(entry) = self.pairs.get(pair) else { continue };
            match entry.out.take(most, lossy) {
                Some(Piece::Bytes { offset, bytes }) => Frame::Data { pair, offset, bytes }.encode(body.to),
                Some(Piece::Close { offset, reason }) => {
                    Frame::Close { pair, offset, reason }.encode(body.to)
                }
                Some(Piece::Ask) => Frame::Ask(pair).encode(body.to),
                None => continue,
            }
            self.pairs.schedule.spent(class, body.to.len() - begun);
            self.settle(pair);
        }
    }
}
