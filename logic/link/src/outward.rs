//! The bytes that go out on a pair: those that wait, those that are on their way, and those that
//! are sent again.

use std::collections::VecDeque;

use crate::broken::Broken;
use wire::link::{Pair, RECORD_HEADER_BYTES, Ranges, record_header};

/// So many states that tell of a gap and of nothing new at its front mean that something was lost,
/// and not only overtaken (RFC 5681, 3.2).
const REPEATS_OF_A_LOSS: u32 = 3;
/// The time until something is sent again doubles so often at most.
const DOUBLINGS_MAX: u32 = 4;

/// Records of so many bytes are put together first: to put a piece into the queue costs more than
/// its bytes.
const SHORT_BYTES: usize = 128;

#[derive(Debug)]
pub(crate) struct Outward {
    /// From `acked` on.
    bytes: VecDeque<u8>,
    /// Bytes that are held at most: so much memory is taken for them.
    most: usize,
    /// The peer has all before this.
    acked: u64,
    /// The offset of the byte that is sent next.
    next: u64,
    /// The end of what was ever sent.
    highest: u64,
    /// The peer allows all before this.
    credit: u64,
    /// The bytes beyond `acked` that the peer has.
    has: Ranges,
    /// Nothing more comes behind what waits, and why.
    close: Option<u32>,
    /// The close is on its way.
    close_sent: bool,
    /// It was sent at least once.
    close_known: bool,
    close_acked: bool,
    /// When what is on its way is taken for lost, in ms; only where something can be lost.
    resend_at: Option<u64>,
    doublings: u32,
    repeats: u32,
    /// No loss is seen a second time before this was received.
    recover: u64,
    /// The peer is to say again what it allows.
    ask: bool,
    /// Somebody wants to queue so many bytes and could not.
    pub wanted: usize,
}

/// The piece that a pair sends next.
pub(crate) enum Piece<'a> {
    Bytes { offset: u64, bytes: &'a [u8] },
    Close { offset: u64, reason: u32 },
    Ask,
}

impl Outward {
    pub fn new(window: u64, most: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            most,
            acked: 0,
            next: 0,
            highest: 0,
            credit: window,
            has: Ranges::default(),
            close: None,
            close_sent: false,
            close_known: false,
            close_acked: false,
            resend_at: None,
            doublings: 0,
            repeats: 0,
            recover: 0,
            ask: false,
            wanted: 0,
        }
    }

    fn end(&self) -> u64 {
        self.acked + self.bytes.len() as u64
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_closed(&self) -> bool {
        self.close.is_some()
    }

    pub fn close_acked(&self) -> bool {
        self.close_acked
    }

    /// Whether the peer may know that it is closed.
    pub fn close_known(&self) -> bool {
        self.close_known
    }

    /// Memory for so many bytes more: twice as much as before, but no more than may be held.
    fn make_room(&mut self, more: usize) {
        let (held, room) = (self.bytes.len(), self.bytes.capacity());
        if held + more > room {
            let wanted = room.saturating_mul(2).min(self.most).max(held + more);
            self.bytes.reserve_exact(wanted - held);
        }
    }

    /// Memory that is taken for what is held.
    #[cfg(test)]
    fn room(&self) -> usize {
        self.bytes.capacity()
    }

    /// A record, whose content lies in two pieces.
    pub fn push(&mut self, kind: u32, parts: [&[u8]; 2]) {
        let length = parts.iter().map(|part| part.len()).sum();
        let header = record_header(kind, length);
        self.make_room(RECORD_HEADER_BYTES + length);
        let mut short = [0; SHORT_BYTES];
        if let Some(whole) = short.get_mut(..RECORD_HEADER_BYTES + length) {
            let mut rest = &mut *whole;
            for piece in [&header, parts[0], parts[1]] {
                let (place, behind) = rest.split_at_mut(piece.len());
                place.copy_from_slice(piece);
                rest = behind;
            }
            self.bytes.extend(&*whole);
            return;
        }
        // Of a slice, and not of an array: it is copied at once.
        self.bytes.extend(&header);
        parts.into_iter().for_each(|part| self.bytes.extend(part));
    }

    /// Nothing more is queued. `now`: nor is what waits sent, but for what the peer may have
    /// already.
    pub fn close(&mut self, reason: u32, now: bool) {
        if !self.close_known && now {
            let kept = usize::try_from(self.highest - self.acked).unwrap_or(usize::MAX);
            self.bytes.truncate(kept);
        }
        self.close.get_or_insert(reason);
    }

    /// The connection is a new one: what was not received is sent again, and how long to wait for
    /// it is not known.
    pub fn restart(&mut self) {
        self.rewind();
        self.ask = false;
        (self.doublings, self.repeats, self.recover) = (0, 0, 0);
    }

    fn rewind(&mut self) {
        self.next = self.acked;
        self.close_sent = self.close_acked;
        self.resend_at = None;
    }

    /// Passes over what the peer has already.
    fn skip(&mut self) {
        for (from, to) in self.has.iter() {
            if self.next >= from && self.next < to {
                self.next = to;
            }
        }
    }

    pub fn is_ready(&mut self) -> bool {
        self.skip();
        self.ask
            || self.next < self.end().min(self.credit)
            || (self.next == self.end() && self.close.is_some() && !self.close_sent)
    }

    /// Takes the piece that is sent next, `most` bytes of it. `lossy`: it is taken for lost so many
    /// ms after this time.
    pub fn take(&mut self, most: usize, lossy: Option<(u64, u64)>) -> Option<Piece<'_>> {
        if !self.is_ready() {
            return None;
        }
        if self.resend_at.is_none() {
            self.resend_at = lossy.map(|(now, after)| now.saturating_add(after << self.doublings));
        }
        if std::mem::take(&mut self.ask) {
            return Some(Piece::Ask);
        }
        let offset = self.next;
        if offset == self.end() {
            self.close_sent = true;
            self.close_known = true;
            return self.close.map(|reason| Piece::Close { offset, reason });
        }
        let stop = self.has.iter().map(|(from, _)| from).find(|from| *from > offset).unwrap_or(u64::MAX);
        let length = self.end().min(self.credit).min(stop) - offset;
        let skip = usize::try_from(offset - self.acked).ok()?;
        let (front, back) = self.bytes.as_slices();
        // What is not in one piece in memory is sent in two.
        let bytes = front.get(skip..).filter(|rest| !rest.is_empty());
        let bytes = bytes.or_else(|| back.get(skip.saturating_sub(front.len())..))?;
        let bytes = bytes.get(..usize::try_from(length).ok()?.min(most).min(bytes.len()))?;
        self.next += bytes.len() as u64;
        self.highest = self.highest.max(self.next);
        Some(Piece::Bytes { offset, bytes })
    }

    /// The peer says what it has. `window`: the peer's, so what it may allow at most. `lossy`: gaps
    /// are losses.
    pub fn hear(
        &mut self,
        pair: Pair,
        (received, credit): (u64, u64),
        (ranges, closed): (Ranges, bool),
        (window, lossy): (u64, bool),
    ) -> Result<(), Broken> {
        let sent = self.highest;
        let furthest = ranges.iter().last().map_or(received, |(_, to)| to);
        if furthest > sent || (closed && !(self.close_known && received == self.end())) {
            return Err(Broken::State { pair, received: furthest, sent });
        }
        if credit > sent.saturating_add(window) {
            return Err(Broken::Credit { pair, credit });
        }
        if credit > self.credit {
            self.credit = credit;
            if self.acked == self.highest {
                (self.ask, self.resend_at, self.doublings) = (false, None, 0);
            }
        }
        self.close_acked |= closed;
        if received < self.acked {
            return Ok(());
        }
        if received > self.acked {
            let gone = usize::try_from(received - self.acked).unwrap_or(usize::MAX).min(self.bytes.len());
            self.bytes.drain(..gone);
            self.acked = received;
            self.next = self.next.max(received);
            (self.resend_at, self.doublings, self.repeats) = (None, 0, 0);
        } else if lossy && ranges != self.has {
            self.repeats += 1;
        }
        self.has = ranges;
        if self.repeats >= REPEATS_OF_A_LOSS && self.acked >= self.recover {
            self.recover = self.highest;
            self.repeats = 0;
            self.next = self.acked;
        }
        if self.close_acked {
            self.resend_at = None;
        }
        Ok(())
    }

    fn is_on_its_way(&self) -> bool {
        self.acked < self.highest || (self.close_sent && !self.close_acked)
    }

    /// Whether a state is waited for: something is on its way, or there is no credit for what is to
    /// be sent. A state that gives more may be lost, and nothing else would bring another.
    pub fn is_waiting(&self) -> bool {
        self.is_on_its_way() || (self.next >= self.credit && self.next < self.end())
    }

    /// When what is on its way is taken for lost: `after_ms` from now if nothing else was said.
    pub fn resend_at(&mut self, now_ms: u64, after_ms: u64) -> Option<u64> {
        if !self.is_waiting() {
            return None;
        }
        Some(*self.resend_at.get_or_insert(now_ms.saturating_add(after_ms << self.doublings)))
    }

    /// Sends again what is taken for lost by now.
    pub fn expire(&mut self, now_ms: u64) {
        if self.resend_at.is_some_and(|at| at <= now_ms) {
            self.ask = !self.is_on_its_way() && self.is_waiting();
            self.rewind();
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::link::record;

    /// Memory grew twofold: a queue of half a MiB had up to one.
    #[test]
    fn a_full_queue_has_no_more_memory_than_it_may_hold() {
        const MOST: usize = 512 << 10;
        for length in [1, 100, 4096, 32 << 10, 200_000, 262_000] {
            let mut outward = Outward::new(0, MOST);
            while outward.held() + RECORD_HEADER_BYTES + length <= MOST {
                outward.push(record::MESSAGE, [&vec![7; length], &[]]);
            }
            assert!(outward.room() <= MOST + 1, "{} bytes for records of {length}", outward.room());
        }
    }
}
