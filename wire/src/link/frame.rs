//! Frames: what the body of a packet says of pairs and of the link.

use super::{
    BadPacket, FLAG_CLOSED, FRAME_HEADER_BYTES, PAIRS_MAX, PIECE_BYTES_MAX, PING_BYTES, RANGE_BYTES,
    RANGES_MAX, STATE_BYTES, kind, length_of, size, u16_at, u32_at, u64_at,
};

/// A pair of endpoints on a link: a place in the table of who opened it, and which one in that
/// place it is. No two pairs of an association are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// The place; its lowest bit is the side that opened the pair.
    pub slot: u32,
    /// From 1.
    pub generation: u32,
}

impl std::fmt::Display for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// The parts of a pair's bytes that have come beyond an offset without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ranges {
    places: [(u64, u64); RANGES_MAX],
    count: usize,
}

impl Ranges {
    /// Adds a range behind all others. `false`: there is no place for it.
    pub fn push(&mut self, from: u64, to: u64) -> bool {
        let Some(place) = self.places.get_mut(self.count) else { return false };
        *place = (from, to);
        self.count += 1;
        true
    }

    /// From and to (exclusive) of each, ascending, with gaps between.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.places.iter().take(self.count).copied()
    }

    fn read(after: u64, bytes: &[u8]) -> Result<Self, BadPacket> {
        let mut ranges = Self::default();
        let mut end = after;
        for range in bytes.as_chunks::<RANGE_BYTES>().0 {
            let (from, to) = (u64_at(range, 0), u64_at(range, 8));
            if from <= end || to <= from || !ranges.push(from, to) {
                return Err(BadPacket::Bounds { what: "a range of a state", found: from });
            }
            end = to;
        }
        Ok(ranges)
    }
}

/// One frame of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// See [`kind::DATA`].
    Data {
        /// Of which pair.
        pair: Pair,
        /// Where in the pair's bytes these begin.
        offset: u64,
        /// At least 1, at most [`PIECE_BYTES_MAX`].
        bytes: &'a [u8],
    },
    /// See [`kind::CLOSE`].
    Close {
        /// The pair.
        pair: Pair,
        /// Where its bytes end.
        offset: u64,
        /// Why; numbers are the users'.
        reason: u32,
    },
    /// See [`kind::STATE`].
    State {
        /// Of which pair.
        pair: Pair,
        /// All bytes before this have come.
        received: u64,
        /// Bytes before this may be sent.
        credit: u64,
        /// The bytes beyond `received` that have come.
        ranges: Ranges,
        /// The close has come, and all before it.
        closed: bool,
    },
    /// See [`kind::GONE`].
    Gone(Pair),
    /// See [`kind::ASK`].
    Ask(Pair),
    /// See [`kind::RESUMED`].
    Resumed,
    /// See [`kind::PING`].
    Ping([u8; PING_BYTES]),
    /// See [`kind::PONG`].
    Pong([u8; PING_BYTES]),
    /// See [`kind::GOODBYE`].
    Goodbye {
        /// Why; numbers are the users'.
        reason: u32,
    },
}

impl<'a> Frame<'a> {
    /// Appends the frame.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let none = Pair { slot: 0, generation: 0 };
        match self {
            Self::Data { pair, offset, bytes } => put(to, kind::DATA, 0, *pair, *offset, &[bytes]),
            Self::Close { pair, offset, reason } => {
                put(to, kind::CLOSE, 0, *pair, *offset, &[&reason.to_le_bytes()]);
            }
            Self::State { pair, received, credit, ranges, closed } => {
                let mut bytes = [0; RANGES_MAX * RANGE_BYTES];
                for (place, (from, to)) in
                    bytes.as_chunks_mut::<RANGE_BYTES>().0.iter_mut().zip(ranges.iter())
                {
                    *place = (u128::from(to) << 64 | u128::from(from)).to_le_bytes();
                }
                let ranges = bytes.get(..ranges.count * RANGE_BYTES).unwrap_or_default();
                let flags = if *closed { FLAG_CLOSED } else { 0 };
                put(to, kind::STATE, flags, *pair, *received, &[&credit.to_le_bytes(), ranges]);
            }
            Self::Gone(pair) => put(to, kind::GONE, 0, *pair, 0, &[]),
            Self::Ask(pair) => put(to, kind::ASK, 0, *pair, 0, &[]),
            Self::Resumed => put(to, kind::RESUMED, 0, none, 0, &[]),
            Self::Ping(bytes) => put(to, kind::PING, 0, none, 0, &[bytes]),
            Self::Pong(bytes) => put(to, kind::PONG, 0, none, 0, &[bytes]),
            Self::Goodbye { reason } => put(to, kind::GOODBYE, 0, none, 0, &[&reason.to_le_bytes()]),
        }
    }

    /// Takes the next frame from the front of a body; `None` at its end.
    ///
    /// # Errors
    /// See [`BadPacket`].
    pub fn next(body: &mut &'a [u8]) -> Result<Option<Self>, BadPacket> {
        let bytes = *body;
        if bytes.is_empty() {
            return Ok(None);
        }
        let short = BadPacket::Length { what: "a frame", found: bytes.len() };
        let (header, rest) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>().ok_or(short)?;
        let (payload, rest) = rest.split_at_checked(size(u32_at(header, 4))).ok_or(short)?;
        let frame = Self::read(header, payload)?;
        *body = rest;
        Ok(Some(frame))
    }

    fn read(header: &[u8; FRAME_HEADER_BYTES], payload: &'a [u8]) -> Result<Self, BadPacket> {
        let [kind, flags, ..] = *header;
        let pair = Pair { slot: u32_at(header, 8), generation: u32_at(header, 12) };
        let offset = u64_at(header, 16);
        let padding = u32::from(u16_at(header, 2));
        let flags_may = if kind == kind::STATE { FLAG_CLOSED } else { 0 };
        if padding != 0 || flags & !flags_may != 0 {
            return Err(BadPacket::Padding { what: "a frame", found: padding | u32::from(flags) << 16 });
        }
        let of_pair = match kind {
            kind::DATA | kind::CLOSE | kind::STATE | kind::GONE | kind::ASK => true,
            kind::RESUMED | kind::PING | kind::PONG | kind::GOODBYE => false,
            found => return Err(BadPacket::Kind { what: "a frame", found: found.into() }),
        };
        if of_pair != (pair.generation != 0) || (!of_pair && pair.slot != 0) {
            return Err(BadPacket::Pair { kind, generation: pair.generation });
        }
        if size(pair.slot) >= 2 * PAIRS_MAX {
            return Err(BadPacket::Bounds { what: "the slot of a frame", found: pair.slot.into() });
        }
        let has_offset = matches!(kind, kind::DATA | kind::CLOSE | kind::STATE);
        if !has_offset && offset != 0 {
            return Err(BadPacket::Bounds { what: "the offset of a frame", found: offset });
        }
        let wrong = BadPacket::Length { what: "the payload of a frame", found: payload.len() };
        let reason = || payload.try_into().map(u32::from_le_bytes).map_err(|_| wrong);
        Ok(match kind {
            kind::DATA if (1..=PIECE_BYTES_MAX).contains(&payload.len()) => {
                let end = offset.checked_add(payload.len() as u64);
                end.ok_or(BadPacket::Bounds { what: "the offset of a frame", found: offset })?;
                Self::Data { pair, offset, bytes: payload }
            }
            kind::CLOSE => Self::Close { pair, offset, reason: reason()? },
            kind::STATE => {
                let (credit, ranges) = payload.split_first_chunk::<STATE_BYTES>().ok_or(wrong)?;
                if !ranges.len().is_multiple_of(RANGE_BYTES) {
                    return Err(wrong);
                }
                let ranges = Ranges::read(offset, ranges)?;
                let credit = u64::from_le_bytes(*credit);
                Self::State { pair, received: offset, credit, ranges, closed: flags & FLAG_CLOSED != 0 }
            }
            kind::GONE if payload.is_empty() => Self::Gone(pair),
            kind::ASK if payload.is_empty() => Self::Ask(pair),
            kind::RESUMED if payload.is_empty() => Self::Resumed,
            kind::PING => Self::Ping(payload.try_into().map_err(|_| wrong)?),
            kind::PONG => Self::Pong(payload.try_into().map_err(|_| wrong)?),
            kind::GOODBYE => Self::Goodbye { reason: reason()? },
            _ => return Err(wrong),
        })
    }
}

pub(super) fn put(to: &mut Vec<u8>, kind: u8, flags: u8, pair: Pair, offset: u64, payload: &[&[u8]]) {
    let length = payload.iter().map(|part| part.len()).sum();
    to.extend_from_slice(&[kind, flags, 0, 0]);
    to.extend_from_slice(&length_of(length).to_le_bytes());
    to.extend_from_slice(&pair.slot.to_le_bytes());
    to.extend_from_slice(&pair.generation.to_le_bytes());
    to.extend_from_slice(&offset.to_le_bytes());
    for part in payload {
        to.extend_from_slice(part);
    }
}
