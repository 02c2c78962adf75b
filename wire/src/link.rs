//! The protocol between the proxies of two nodes. The page `docs/spec/link.md` says the same.
//!
//! A [`Packet`] is what a transport carries: one datagram, or a piece of a byte stream that
//! [`Decoder`] cuts out. Its body is a [`Hello`], a [`Refusal`], or frames ([`Frame::next`]).
//! Numbers are little-endian.

mod frame;

pub use frame::{Frame, Pair, Ranges};

use thiserror::Error;

/// Version of this protocol.
pub const VERSION: u16 = 1;
/// The oldest version that is still spoken: a release speaks its own and the one before.
pub const VERSION_OLDEST: u16 = 1;
/// First word of a hello: `TOMBLINK`.
pub const MAGIC: u64 = 0x4b4e_494c_424d_4f54;
/// Bytes of a packet in front of its body.
pub const PACKET_HEADER_BYTES: usize = 32;
/// Longest body of a packet, in bytes, compressed or not.
pub const PACKET_BODY_BYTES_MAX: usize = 262_144;
/// Bytes of a hello that all versions have in common.
pub const HELLO_BYTES: usize = 48;
/// Longest hello, with what later versions put behind it.
pub const HELLO_BYTES_MAX: usize = 1024;
/// Bytes of a refusal.
pub const REFUSAL_BYTES: usize = 8;
/// Bytes of a frame in front of its payload.
pub const FRAME_HEADER_BYTES: usize = 24;
/// Most bytes of a pair that one frame carries: then it is another pair's turn.
pub const PIECE_BYTES_MAX: usize = 16_384;
/// Bytes of a record in front of its content.
pub const RECORD_HEADER_BYTES: usize = 8;
/// Longest content of the record that opens a pair.
pub const OPEN_BYTES_MAX: usize = 512;
/// Longest message that anybody may take.
pub const MESSAGE_BYTES_MAX: usize = 16_777_216;
/// Smallest window of a pair: the record that opens it always fits.
pub const WINDOW_BYTES_MIN: usize = 4096;
/// Largest window of a pair.
pub const WINDOW_BYTES_MAX: usize = 33_554_432;
/// Most pairs that one side may have opened at a time.
pub const PAIRS_MAX: usize = 65_536;
/// Ranges that a state names at most.
pub const RANGES_MAX: usize = 4;
/// Bytes of a range: where it begins and where it ends.
pub const RANGE_BYTES: usize = 16;
/// Bytes of a state before its ranges.
pub const STATE_BYTES: usize = 8;
/// Bytes of the reason of a close or a goodbye.
pub const REASON_BYTES: usize = 4;
/// Bytes that a ping carries and its pong brings back.
pub const PING_BYTES: usize = 8;
/// Smallest datagram that a transport may offer: a hello and any frame but a piece fit.
pub const DATAGRAM_BYTES_MIN: usize = 1280;
/// Shortest time after which a side may call a silent peer lost, in ms.
pub const SILENCE_MS_MIN: u32 = 100;
/// Longest such time, in ms.
pub const SILENCE_MS_MAX: u32 = 600_000;
/// Number of the service that proxies are found by in TIPC, each as an instance of it: `tomb`.
pub const TIPC_SERVICE: u32 = 0x746f_6d62;

/// The kinds of a packet's body.
pub mod packet {
    /// A hello.
    pub const HELLO: u8 = 1;
    /// Frames.
    pub const FRAMES: u8 = 2;
    /// A refusal: the last packet.
    pub const REFUSAL: u8 = 3;
}

/// How a body was made smaller.
pub mod compression {
    /// Not at all.
    pub const NONE: u8 = 0;
    /// An LZ4 block.
    pub const LZ4: u8 = 1;
    /// A Zstandard frame.
    pub const ZSTD: u8 = 2;
}

/// The numbers of the kinds of frames.
pub mod kind {
    /// Bytes of a pair, from an offset.
    pub const DATA: u8 = 1;
    /// A pair's bytes end at this offset.
    pub const CLOSE: u8 = 2;
    /// A report of a pair's bytes that have come, and how many may come.
    pub const STATE: u8 = 3;
    /// This pair is over, and all of it was received.
    pub const GONE: u8 = 4;
    /// The states of all pairs stand before this.
    pub const RESUMED: u8 = 5;
    /// Are you there?
    pub const PING: u8 = 6;
    /// I am.
    pub const PONG: u8 = 7;
    /// This association is over.
    pub const GOODBYE: u8 = 8;
    /// Say again what the state of this pair is.
    pub const ASK: u8 = 9;
}

/// The kinds of records of a pair's bytes.
pub mod record {
    /// The first of who opens it: for whom it is.
    pub const OPEN: u32 = 1;
    /// A message.
    pub const MESSAGE: u32 = 2;
}

/// Flag of a state: the close of the pair was received, and all before it.
pub const FLAG_CLOSED: u8 = 1;

/// Why somebody is refused.
pub mod refusal {
    /// No version that both speak.
    pub const VERSION: u32 = 1;
    /// Both have the same side.
    pub const SIDE: u32 = 2;
    /// A newer incarnation has been heard.
    pub const EPOCH: u32 = 3;
    /// A rule of the protocol was broken.
    pub const BROKEN: u32 = 4;
}

/// The fault of a peer's bytes. Nothing that it says is to be believed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadPacket {
    /// Fewer bytes than what they should be takes.
    #[error("{what} has {found} bytes")]
    Length {
        /// The expected content.
        what: &'static str,
        /// How many there are, or are announced.
        found: usize,
    },
    /// No such kind.
    #[error("{what} is of kind {found}, which is none")]
    Kind {
        /// Of what.
        what: &'static str,
        /// The number.
        found: u32,
    },
    /// Padding that is not zero.
    #[error("{what} has {found:#x} where zero stands")]
    Padding {
        /// In what.
        what: &'static str,
        /// The value in its place.
        found: u32,
    },
    /// No such compression, or one of a body that has none.
    #[error("a packet of kind {kind} is compressed by {found}")]
    Compression {
        /// Kind of the packet.
        kind: u8,
        /// The number.
        found: u8,
    },
    /// An epoch that nobody has.
    #[error("a packet is from epoch 0")]
    Epoch,
    /// It is no hello of this protocol.
    #[error("a hello begins with {found:#x}")]
    Magic {
        /// The word.
        found: u64,
    },
    /// A number of a hello or a frame is out of its bounds.
    #[error("{what} is {found}, out of its bounds")]
    Bounds {
        /// Of which field.
        what: &'static str,
        /// The number.
        found: u64,
    },
    /// A frame of the link names a pair, or one of a pair none.
    #[error("a frame of kind {kind} is about generation {generation}")]
    Pair {
        /// Its kind.
        kind: u8,
        /// The generation.
        generation: u32,
    },
}

/// `N` bytes from `at`, which the caller makes sure are there; zeros otherwise.
#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

#[inline]
fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[inline]
fn length_of(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn within(what: &'static str, found: u32, least: usize, most: usize) -> Result<u32, BadPacket> {
    if (least..=most).contains(&size(found)) {
        Ok(found)
    } else {
        Err(BadPacket::Bounds { what, found: found.into() })
    }
}

/// The header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet {
    /// One of [`packet`].
    pub kind: u8,
    /// One of [`compression`]: of the body.
    pub compression: u8,
    /// Bytes of the body as it is carried.
    pub carried: u32,
    /// Bytes of the body when it is not compressed.
    pub plain: u32,
    /// Incarnation of who sends it; not 0.
    pub from: u64,
    /// Incarnation that it is for; 0: not known yet.
    pub to: u64,
}

impl Packet {
    /// The header of a body that is not compressed.
    #[must_use]
    pub fn plain(kind: u8, body: usize, from: u64, to: u64) -> Self {
        let body = length_of(body);
        Self { kind, compression: compression::NONE, carried: body, plain: body, from, to }
    }

    /// The bytes in front of the body.
    #[must_use]
    pub fn to_bytes(self) -> [u8; PACKET_HEADER_BYTES] {
        let mut bytes = [0; PACKET_HEADER_BYTES];
        let fields = self.carried.to_le_bytes().into_iter().chain([self.kind, self.compression, 0, 0]);
        let fields = fields.chain(self.plain.to_le_bytes()).chain([0; 4]);
        let fields = fields.chain(self.from.to_le_bytes()).chain(self.to.to_le_bytes());
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        bytes
    }

    /// Reads the header, and checks all that can be checked without its body.
    ///
    /// # Errors
    /// See [`BadPacket`].
    pub fn read(bytes: [u8; PACKET_HEADER_BYTES]) -> Result<Self, BadPacket> {
        let [_, _, _, _, kind, compression, ..] = bytes;
        let (carried, plain) = (u32_at(&bytes, 0), u32_at(&bytes, 8));
        let padding = u32::from(u16_at(&bytes, 6)) | u32_at(&bytes, 12);
        if padding != 0 {
            return Err(BadPacket::Padding { what: "a packet", found: padding });
        }
        if !matches!(kind, packet::HELLO | packet::FRAMES | packet::REFUSAL) {
            return Err(BadPacket::Kind { what: "a packet", found: kind.into() });
        }
        let most = match kind {
            packet::HELLO => HELLO_BYTES_MAX,
            packet::REFUSAL => REFUSAL_BYTES,
            _ => PACKET_BODY_BYTES_MAX,
        };
        for found in [carried, plain] {
            if size(found) > most {
                return Err(BadPacket::Length { what: "the body of a packet", found: size(found) });
            }
        }
        let may = compression == compression::NONE
            || (kind == packet::FRAMES && matches!(compression, compression::LZ4 | compression::ZSTD));
        if !may || (compression == compression::NONE && carried != plain) {
            return Err(BadPacket::Compression { kind, found: compression });
        }
        let (from, to) = (u64_at(&bytes, 16), u64_at(&bytes, 24));
        if from == 0 {
            return Err(BadPacket::Epoch);
        }
        Ok(Self { kind, compression, carried, plain, from, to })
    }

    /// Splits a datagram into header and body.
    ///
    /// # Errors
    /// See [`BadPacket`]; also a datagram that is longer or shorter than its header says.
    pub fn split(datagram: &[u8]) -> Result<(Self, &[u8]), BadPacket> {
        let short = BadPacket::Length { what: "a datagram", found: datagram.len() };
        let (header, body) = datagram.split_first_chunk().ok_or(short)?;
        let header = Self::read(*header)?;
        if body.len() == size(header.carried) { Ok((header, body)) } else { Err(short) }
    }
}

/// Cuts packets out of a byte stream, however it comes. It holds a header and what has come of one
/// body, and no more.
#[derive(Debug, Default)]
pub struct Decoder {
    header: [u8; PACKET_HEADER_BYTES],
    /// Bytes of the header that have come.
    had: usize,
    body: Vec<u8>,
}

impl Decoder {
    /// Takes bytes from the front of `bytes` until a packet is whole or none are left.
    ///
    /// # Errors
    /// [`BadPacket`]; after it nothing further is of use.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<(Packet, Vec<u8>)>, BadPacket> {
        while self.had < PACKET_HEADER_BYTES {
            let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
            if let Some(place) = self.header.get_mut(self.had) {
                *place = *first;
            }
            self.had += 1;
            *bytes = rest;
        }
        let header = Packet::read(self.header)?;
        let missing = size(header.carried).saturating_sub(self.body.len()).min(bytes.len());
        let (now, later) = bytes.split_at(missing);
        self.body.extend_from_slice(now);
        *bytes = later;
        if self.body.len() < size(header.carried) {
            return Ok(None);
        }
        self.had = 0;
        Ok(Some((header, std::mem::take(&mut self.body))))
    }
}

/// The first message of each side, about itself. It holds for as long as the incarnation lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hello {
    /// The oldest version that it speaks.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
    /// 0 or 1: the pairs that it opens have slots whose lowest bit is this.
    pub side: u8,
    /// Compressions that it takes: bit `1 << number` for each.
    pub compressions: u8,
    /// Pairs that the other may have opened at a time.
    pub pairs: u32,
    /// Bytes that may come on a pair before more are allowed.
    pub window_bytes: u32,
    /// Longest message that it takes, in bytes.
    pub message_bytes: u32,
    /// When it calls a silent peer lost, in ms.
    pub silence_ms: u32,
}

impl Hello {
    /// The body of its packet.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let fields = MAGIC.to_le_bytes().into_iter().chain(self.oldest.to_le_bytes());
        let fields = fields.chain(self.newest.to_le_bytes()).chain([self.side, self.compressions, 0, 0]);
        let fields = fields.chain(self.pairs.to_le_bytes()).chain(self.window_bytes.to_le_bytes());
        let fields = fields.chain(self.message_bytes.to_le_bytes()).chain(self.silence_ms.to_le_bytes());
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        bytes
    }

    /// Reads the body of its packet. These bytes mean the same in all versions; what stands behind
    /// them is of later ones and is not looked at.
    ///
    /// # Errors
    /// See [`BadPacket`].
    pub fn read(body: &[u8]) -> Result<Self, BadPacket> {
        if !(HELLO_BYTES..=HELLO_BYTES_MAX).contains(&body.len()) {
            return Err(BadPacket::Length { what: "a hello", found: body.len() });
        }
        let found = u64_at(body, 0);
        if found != MAGIC {
            return Err(BadPacket::Magic { found });
        }
        let [side, compressions] = array(body, 12);
        let (oldest, newest) = (u16_at(body, 8), u16_at(body, 10));
        if oldest == 0 || oldest > newest {
            return Err(BadPacket::Bounds { what: "the oldest version of a hello", found: oldest.into() });
        }
        if side > 1 {
            return Err(BadPacket::Bounds { what: "the side of a hello", found: side.into() });
        }
        let pairs = within("pairs of a hello", u32_at(body, 16), 1, PAIRS_MAX)?;
        let window = within("the window of a hello", u32_at(body, 20), WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)?;
        let most = MESSAGE_BYTES_MAX.min(size(window) - RECORD_HEADER_BYTES);
        let message_bytes = within("the longest message of a hello", u32_at(body, 24), 1, most)?;
        let silence = (size(SILENCE_MS_MIN), size(SILENCE_MS_MAX));
        let silence_ms = within("the silence of a hello", u32_at(body, 28), silence.0, silence.1)?;
        Ok(Self {
            oldest,
            newest,
            side,
            compressions,
            pairs,
            window_bytes: window,
            message_bytes,
            silence_ms,
        })
    }

    /// The version that both speak: the newest of them.
    #[must_use]
    pub fn common_version(&self, other: &Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

/// Why the other is refused, and what is spoken here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// One of [`refusal`]; later versions may have more.
    pub reason: u32,
    /// The oldest version that is spoken here.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

impl Refusal {
    /// The body of its packet.
    #[must_use]
    pub fn to_bytes(self) -> [u8; REFUSAL_BYTES] {
        let versions = u64::from(self.newest) << 48 | u64::from(self.oldest) << 32;
        (versions | u64::from(self.reason)).to_le_bytes()
    }

    /// Reads the body of its packet.
    ///
    /// # Errors
    /// [`BadPacket::Length`].
    pub fn read(body: &[u8]) -> Result<Self, BadPacket> {
        if body.len() != REFUSAL_BYTES {
            return Err(BadPacket::Length { what: "a refusal", found: body.len() });
        }
        Ok(Self { reason: u32_at(body, 0), oldest: u16_at(body, 4), newest: u16_at(body, 6) })
    }
}

/// The header of a record of a pair's bytes.
#[must_use]
#[inline]
pub fn record_header(kind: u32, length: usize) -> [u8; RECORD_HEADER_BYTES] {
    (u64::from(kind) << 32 | u64::from(length_of(length))).to_le_bytes()
}

/// Kind and length of a record.
///
/// # Errors
/// [`BadPacket::Kind`], or [`BadPacket::Bounds`] where it is longer than any of its kind.
#[inline]
pub fn read_record_header(bytes: [u8; RECORD_HEADER_BYTES]) -> Result<(u32, usize), BadPacket> {
    let (length, kind) = (size(u32_at(&bytes, 0)), u32_at(&bytes, 4));
    let most = match kind {
        record::OPEN => OPEN_BYTES_MAX,
        record::MESSAGE => MESSAGE_BYTES_MAX,
        found => return Err(BadPacket::Kind { what: "a record", found }),
    };
    if length > most {
        return Err(BadPacket::Bounds { what: "the length of a record", found: length as u64 });
    }
    Ok((kind, length))
}

const _: () = assert!(RECORD_HEADER_BYTES + OPEN_BYTES_MAX <= WINDOW_BYTES_MIN);
const _: () = assert!(RECORD_HEADER_BYTES + MESSAGE_BYTES_MAX <= WINDOW_BYTES_MAX);
const _: () = assert!(PACKET_HEADER_BYTES + FRAME_HEADER_BYTES + PIECE_BYTES_MAX <= PACKET_BODY_BYTES_MAX);
const _: () = assert!(PACKET_HEADER_BYTES + HELLO_BYTES_MAX <= DATAGRAM_BYTES_MIN);
const _: () = assert!(VERSION < VERSION_OLDEST + 2);

#[cfg(test)]
mod tests;
