//! The bytes that come in on a pair: in order or ahead of it, records out of bytes, and how much
//! more may come.

use std::collections::BTreeMap;

use crate::broken::Broken;
use crate::messages::{Messages, Spare};
use crate::records::Records;
use wire::link::{Pair, RECORD_HEADER_BYTES, Ranges, record};

/// Pieces that are kept ahead of a gap: of datagrams of the smallest kind, more than a common
/// window.
pub(crate) const AHEAD_MAX: usize = 256;
/// A state is sent at once when so much of the window changed: a fourth.
const URGENT_PARTS: u64 = 4;

/// The meaning of a pair's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Open(Vec<u8>),
    Messages(Messages),
    Closed(u32),
}

/// Whether the peer is to be told what came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owes {
    Nothing,
    /// When something is sent anyway, or after a while.
    Soon,
    Now,
}

#[derive(Debug)]
pub(crate) struct Inward {
    /// All before this has come.
    received: u64,
    /// The bytes beyond that have come, without overlaps.
    ahead: BTreeMap<u64, Vec<u8>>,
    records: Records,
    /// Its first record is not whole yet.
    expects_open: bool,
    /// The bytes that do not count for the window any more.
    consumed: u64,
    /// The bytes that were handed out and do.
    held: u64,
    /// Where it ends, and why.
    end: Option<(u64, u32)>,
    closed: bool,
    /// Nobody wants what comes.
    discards: bool,
    window: u64,
    message_bytes: usize,
    /// The last report to the peer.
    told: (u64, u64),
    pub owes: Owes,
}

impl Inward {
    pub fn new(window: u64, message_bytes: usize, expects_open: bool, spare: Spare) -> Self {
        Self {
            received: 0,
            ahead: BTreeMap::new(),
            records: Records::new(spare),
            expects_open,
            consumed: 0,
            held: 0,
            end: None,
            closed: false,
            discards: false,
            window,
            message_bytes,
            told: (0, window),
            owes: Owes::Nothing,
        }
    }

    pub fn credit(&self) -> u64 {
        self.consumed + self.window
    }

    /// The peer's close has come, and all before it.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Bytes that are kept here.
    pub fn kept(&self) -> usize {
        self.records.kept() + self.ahead.values().map(Vec::len).sum::<usize>()
    }

    /// The connection is a new one: the peer is told what came, unless nothing did; then it may not
    /// know of the pair yet.
    pub fn restart(&mut self) {
        if self.received > 0 || self.end.is_some() || !self.ahead.is_empty() {
            self.owes = Owes::Now;
        }
    }

    fn owe(&mut self, owes: Owes) {
        self.owes = self.owes.max(owes);
    }

    /// Sets what the peer is told by how much has changed.
    fn consider(&mut self) {
        let (received, credit) = self.told;
        let enough = self.window / URGENT_PARTS;
        if self.received - received >= enough || self.credit() - credit >= enough {
            self.owe(Owes::Now);
        } else if self.told != (self.received, self.credit()) {
            self.owe(Owes::Soon);
        }
    }

    /// The report to the peer: received, credit, ranges, closed.
    pub fn tell(&mut self) -> (u64, u64, Ranges, bool) {
        self.owes = Owes::Nothing;
        self.told = (self.received, self.credit());
        let mut ranges = Ranges::default();
        let mut range: Option<(u64, u64)> = None;
        for (from, bytes) in &self.ahead {
            let to = from + bytes.len() as u64;
            range = match range {
                Some((first, last)) if last == *from => Some((first, to)),
                Some((first, last)) => {
                    if !ranges.push(first, last) {
                        return (self.received, self.credit(), ranges, self.closed);
                    }
                    Some((*from, to))
                }
                None => Some((*from, to)),
            };
        }
        if let Some((from, to)) = range {
            // Where there is no place left, the peer hears of it later.
            let _named = ranges.push(from, to);
        }
        (self.received, self.credit(), ranges, self.closed)
    }

    /// Bytes of the pair. `gaps`: something may be missing before them.
    pub fn data(
        &mut self,
        pair: Pair,
        offset: u64,
        bytes: &[u8],
        gaps: bool,
        items: &mut Vec<Item>,
    ) -> Result<(), Broken> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.credit() {
            return Err(Broken::Window { pair, end, credit: self.credit() });
        }
        if let Some((last, _)) = self.end.filter(|(last, _)| end > *last) {
            return Err(Broken::Close { pair, offset: last });
        }
        if offset > self.received {
            if !gaps {
                return Err(Broken::Gap { pair, offset, received: self.received });
            }
            self.owe(Owes::Now);
            self.keep(offset, bytes);
            return Ok(());
        }
        if end <= self.received {
            // The peer has not heard that it was received.
            self.owe(Owes::Now);
            return Ok(());
        }
        if !self.ahead.is_empty() {
            self.owe(Owes::Now);
        }
        self.absorb(pair, behind(bytes, self.received - offset), items)?;
        while let Some(first) = self.ahead.first_entry().filter(|first| *first.key() <= self.received) {
            let (from, bytes) = first.remove_entry();
            self.absorb(pair, behind(&bytes, self.received - from), items)?;
        }
        self.consider();
        self.finish(items);
        Ok(())
    }

    /// Keeps what is ahead of a gap, as far as there is place and it is not there already. Bytes
    /// that are not kept are sent again.
    fn keep(&mut self, offset: u64, bytes: &[u8]) {
        let before = self.ahead.range(..=offset).next_back();
        let from = before.map_or(offset, |(from, bytes)| offset.max(from + bytes.len() as u64));
        let bytes = behind(bytes, from - offset);
        let room = self.ahead.range(from..).next().map_or(u64::MAX, |(next, _)| next - from);
        let bytes = bytes.get(..usize::try_from(room).unwrap_or(usize::MAX)).unwrap_or(bytes);
        if !bytes.is_empty() && self.ahead.len() < AHEAD_MAX {
            self.ahead.insert(from, bytes.to_vec());
        }
    }

    /// The pair's bytes end at `offset`.
    pub fn close(
        &mut self,
        pair: Pair,
        (offset, reason): (u64, u32),
        gaps: bool,
        items: &mut Vec<Item>,
    ) -> Result<(), Broken> {
        self.owe(Owes::Now);
        let furthest =
            self.ahead.last_key_value().map_or(self.received, |(from, bytes)| from + bytes.len() as u64);
        let moved = self.end.is_some_and(|(end, _)| end != offset);
        if offset < furthest || moved {
            return Err(Broken::Close { pair, offset });
        }
        if offset > self.credit() {
            return Err(Broken::Window { pair, end: offset, credit: self.credit() });
        }
        if offset > self.received && !gaps {
            return Err(Broken::Gap { pair, offset, received: self.received });
        }
        self.end.get_or_insert((offset, reason));
        self.finish(items);
        Ok(())
    }

    fn finish(&mut self, items: &mut Vec<Item>) {
        let Some((end, reason)) = self.end else { return };
        if end == self.received && !self.closed {
            self.closed = true;
            self.records = Records::default();
            self.owe(Owes::Now);
            items.push(Item::Closed(reason));
        }
    }

    fn absorb(&mut self, pair: Pair, bytes: &[u8], items: &mut Vec<Item>) -> Result<(), Broken> {
        self.received += bytes.len() as u64;
        if self.discards {
            self.consumed += bytes.len() as u64;
            return Ok(());
        }
        let (mut rest, message_bytes) = (bytes, self.message_bytes);
        loop {
            let expects_open = self.expects_open;
            let check = |kind, length| {
                let open = kind == record::OPEN;
                if open != expects_open || (!open && length > message_bytes) {
                    return Err(Broken::Record { pair, kind, bytes: length });
                }
                Ok(())
            };
            let most = if expects_open { 1 } else { usize::MAX };
            let Some(run) = self.records.next(&mut rest, most, check)? else { return Ok(()) };
            let cost = run.bytes.len() as u64;
            if std::mem::take(&mut self.expects_open) {
                self.consumed += cost;
                items.push(Item::Open(run.bytes.get(RECORD_HEADER_BYTES..).unwrap_or_default().to_vec()));
            } else {
                self.held += cost;
                items.push(Item::Messages(Messages::new(run.bytes, run.count, &self.records.spare)));
            }
        }
    }

    /// So many bytes of what was handed out do not count any more; never more than there are.
    pub fn consume(&mut self, bytes: usize) {
        let bytes = (bytes as u64).min(self.held);
        self.held -= bytes;
        self.consumed += bytes;
        self.consider();
    }

    /// From now on nobody wants what comes.
    pub fn discard(&mut self) {
        self.discards = true;
        self.consumed += std::mem::take(&mut self.held) + self.records.kept() as u64;
        self.records = Records::default();
        self.consider();
    }
}

fn behind(bytes: &[u8], skip: u64) -> &[u8] {
    usize::try_from(skip).ok().and_then(|skip| bytes.get(skip..)).unwrap_or_default()
}
