//! The protocol between endpoints over the channel of their pair: the header of a message, and the
//! words of a pair. The page `docs/spec/ipc.md` says the same.
//!
//! The words stand in the header page of the channel's region, behind the rings' control words
//! (`wire::ring`). All are 64 bits.

use crate::ring;

/// Version of this layout: 2 has calls that are on their way to another node.
pub const VERSION: u32 = 2;

/// Bytes of the header of a message, in front of its payload.
pub const HEADER_BYTES: usize = 32;
/// The same in words of 64 bits.
pub const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// In the header: slot of the endpoint that the message is from, 4 bytes.
pub const HEADER_SLOT: usize = 0;
/// In the header: generation of that endpoint, 4 bytes.
pub const HEADER_GENERATION: usize = 4;
/// In the header: what the sender says the message means, 4 bytes. Not looked at by us.
pub const HEADER_TAG: usize = 8;
/// In the header: bytes of payload, 4 bytes. The same as the record's length less the header.
pub const HEADER_LENGTH: usize = 12;
/// In the header: what kind of record it is, 4 bytes.
pub const HEADER_KIND: usize = 16;
/// In the header of a request: most bytes of payload that its reply may have, 4 bytes. Zero in
/// others.
pub const HEADER_TAKES: usize = 20;
/// In the header: number of the call, 8 bytes. Zero in what nobody waits for.
pub const HEADER_ID: usize = 24;

/// Kind: a message that nobody waits for.
pub const KIND_MESSAGE: u32 = 1;
/// Kind: a message whose sender waits until it is received.
pub const KIND_SEND: u32 = 2;
/// Kind: a message whose sender waits for the reply.
pub const KIND_REQUEST: u32 = 3;
/// Kind: the reply to a request.
pub const KIND_REPLY: u32 = 4;
/// Kind: a request that another endpoint has received and passes on; its source is the requester.
pub const KIND_FORWARD: u32 = 5;
/// Kind: tells a requester that another endpoint answers now; the payload is that one's address.
pub const KIND_REFER: u32 = 6;

/// Bytes of the payload of [`KIND_REFER`]: slot and generation.
pub const REFER_BYTES: usize = 8;

/// Where the words of the first direction stand, from end 0 to end 1; those of the other follow by
/// [`WORDS_STRIDE`].
pub const OFFSET_WORDS: usize = 1536;
/// Bytes from one direction's words to the other's.
pub const WORDS_STRIDE: usize = 512;
/// In a direction's words: the call that waits, and how it stands with it. Written by the
/// direction's sender; by its receiver only from [`CALL_WAITING`] to [`CALL_TAKEN`] or, when it
/// refuses the call, to [`CALL_OVER`], or to either of them over [`CALL_AWAY`].
pub const WORD_CALL: usize = 0;
/// In a direction's words: bytes of records that the receiver has handed out or dropped, replies
/// and referrals not counted. Written by the receiver.
pub const WORD_RECEIVED: usize = 64;
/// In a direction's words: bits of notices. The sender sets bits, the receiver takes all of them.
pub const WORD_NOTICES: usize = 128;
/// In a direction's words: the number of a call that is on its way to another node, and that its
/// sender wants back. Written by the sender.
pub const WORD_WITHDRAW: usize = 192;
/// In a direction's words: 1 while the direction's sender waits for the other and wants to know for
/// whom that one waits. Written by the sender.
pub const WORD_WAITS: usize = 256;
/// In a direction's words: 1 when the direction's receiver is moving, and receives nothing more
/// over this pair: what it has not consumed by then is its sender's to send again, to whoever has
/// the receiver's place. 0 again if it stays. Written by the receiver.
pub const WORD_SEALED: usize = 320;
/// In a direction's words: the greatest label on the way that the direction's sender waits along,
/// and how far it came. Written by the sender.
pub const WORD_PATH: usize = 384;

/// Low bits of the call's word that say how it stands.
pub const CALL_STATE_BITS: u32 = 2;
/// Nobody has called yet; with number 0 alone.
pub const CALL_NONE: u64 = 0;
/// With a number: it is on its way to another node, and only that one knows whether it was
/// received. Written by the receiver that stands in for an endpoint there.
pub const CALL_AWAY: u64 = 0;
/// The caller waits, and nobody has received it.
pub const CALL_WAITING: u64 = 1;
/// It was received.
pub const CALL_TAKEN: u64 = 2;
/// The caller does not wait any more: it had its answer, gave up, or was refused.
pub const CALL_OVER: u64 = 3;

/// Low bits of the path's word that count hops; the label stands above them.
pub const PATH_HOPS_BITS: u32 = 8;
/// A label is passed on so many times. Cycles of more endpoints are not found; an old label that
/// goes round dies.
pub const PATH_HOPS_MAX: u64 = 128;

/// Low bits of a slot, which its node counts. Above them stands the number of that node in its
/// cluster, so that no two nodes have one slot; nobody but daemons looks at it.
pub const SLOT_BITS: u32 = 20;
/// Greatest number of a node. A node without a cluster has 0, and so has the first one of a
/// cluster.
pub const NODE_NUMBER_MAX: u32 = (1 << (32 - SLOT_BITS)) - 1;

/// The number of the node that gave a slot.
#[must_use]
pub const fn node_of_slot(slot: u32) -> u32 {
    slot >> SLOT_BITS
}

/// An endpoint inside one distributed container: it never names a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Its place in the container's table.
    pub slot: u32,
    /// The incarnation of that place, from 1: a successor has another.
    pub generation: u32,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// Why a text is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address is written SLOT.GENERATION, as 3.1, with a generation from 1")]
pub struct NoAddress;

impl std::str::FromStr for Address {
    type Err = NoAddress;

    /// Reads what [`Address`] is displayed as.
    fn from_str(text: &str) -> Result<Address, NoAddress> {
        let number = |digits: &str| {
            // No sign, no blanks: what is read is what would be written, leading zeroes aside.
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| plain).ok_or(NoAddress)
        };
        let (slot, generation) = text.split_once('.').ok_or(NoAddress)?;
        Address::checked(number(slot)?, number(generation)?).map_err(|_| NoAddress)
    }
}

impl Address {
    /// As the payload of [`KIND_REFER`].
    #[must_use]
    pub fn to_bytes(self) -> [u8; REFER_BYTES] {
        (u64::from(self.generation) << 32 | u64::from(self.slot)).to_le_bytes()
    }

    /// Reads the payload of [`KIND_REFER`].
    ///
    /// # Errors
    /// See [`BadHeader`].
    pub fn read(bytes: [u8; REFER_BYTES]) -> Result<Address, BadHeader> {
        let word = u64::from_le_bytes(bytes);
        Address::checked(low(word), low(word >> 32))
    }

    fn checked(slot: u32, generation: u32) -> Result<Address, BadHeader> {
        if generation == 0 { Err(BadHeader::Generation) } else { Ok(Address { slot, generation }) }
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// [`KIND_MESSAGE`].
    Message,
    /// [`KIND_SEND`].
    Send,
    /// [`KIND_REQUEST`].
    Request,
    /// [`KIND_REPLY`].
    Reply,
    /// [`KIND_FORWARD`].
    Forward,
    /// [`KIND_REFER`].
    Refer,
}

impl Kind {
    /// As it stands in a header.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Kind::Message => KIND_MESSAGE,
            Kind::Send => KIND_SEND,
            Kind::Request => KIND_REQUEST,
            Kind::Reply => KIND_REPLY,
            Kind::Forward => KIND_FORWARD,
            Kind::Refer => KIND_REFER,
        }
    }
}

/// A header, checked as far as that is possible without knowing who wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The alleged sender.
    pub source: Address,
    /// A word for the receiver.
    pub tag: u32,
    /// Bytes of payload.
    pub length: u32,
    /// The kind of the record.
    pub kind: Kind,
    /// Most bytes of payload of the reply.
    pub takes: u32,
    /// Number of the call, or 0.
    pub id: u64,
}

/// The fault of a header that a peer has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// The record is shorter than a header.
    #[error("a record of {0} bytes is shorter than the header of a message")]
    Short(usize),
    /// It alleges another length than its record has.
    #[error("a message alleges {alleged} bytes of payload where its record has {found}")]
    Length {
        /// The alleged length.
        alleged: u32,
        /// The length that is there.
        found: usize,
    },
    /// There is no such kind.
    #[error("a message alleges to be of kind {0}, which does not exist")]
    Kind(u32),
    /// Generation 0 is nobody's.
    #[error("a message alleges generation 0, which nobody has")]
    Generation,
    /// A call without a number, a number without a call, or one of more bits than there are.
    #[error("a message of kind {kind} alleges number {id}")]
    Id {
        /// Its kind.
        kind: u32,
        /// Its number.
        id: u64,
    },
    /// Only requests say what they take.
    #[error("a message of kind {kind} alleges to take a reply of {takes} bytes")]
    Takes {
        /// Its kind.
        kind: u32,
        /// The length that it alleges.
        takes: u32,
    },
    /// An address has another length.
    #[error("the address of an endpoint has {found} bytes and not 8")]
    Refer {
        /// The length that is there.
        found: u32,
    },
}

#[inline]
const fn two(first: u32, second: u32) -> u64 {
    (second as u64) << 32 | first as u64
}

#[inline]
fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default()
}

impl Header {
    /// The header in front of the payload, as words whose little-endian bytes it is.
    #[inline]
    #[must_use]
    pub fn to_words(self) -> [u64; HEADER_WORDS] {
        [
            two(self.source.slot, self.source.generation),
            two(self.tag, self.length),
            two(self.kind.number(), self.takes),
            self.id,
        ]
    }

    /// The bytes in front of the payload.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let words = self.to_words();
        let mut bytes = [0; HEADER_BYTES];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// The tag in the header of a message that nobody waits for, of `source`, with `payload` bytes.
    /// `None`: it is another header, or none.
    #[inline]
    #[must_use]
    pub fn tag_of_message(words: [u64; HEADER_WORDS], source: Address, payload: usize) -> Option<u32> {
        let [address, tag_and_length, kind_and_takes, id] = words;
        let is_message = address == two(source.slot, source.generation)
            && kind_and_takes == u64::from(KIND_MESSAGE)
            && id == 0
            && tag_and_length >> 32 == payload as u64;
        is_message.then_some(low(tag_and_length))
    }

    /// Reads the header of a record of `record_bytes`, header included.
    ///
    /// # Errors
    /// See [`BadHeader`].
    pub fn read(bytes: [u8; HEADER_BYTES], record_bytes: usize) -> Result<Header, BadHeader> {
        let words = bytes.as_chunks::<4>().0;
        let word = |at: usize| words.get(at / 4).map_or(0, |four| u32::from_le_bytes(*four));
        let found = record_bytes.checked_sub(HEADER_BYTES).ok_or(BadHeader::Short(record_bytes))?;
        let (length, kind, takes) = (word(HEADER_LENGTH), word(HEADER_KIND), word(HEADER_TAKES));
        let source = Address::checked(word(HEADER_SLOT), word(HEADER_GENERATION))?;
        let id = u64::from(word(HEADER_ID + 4)) << 32 | u64::from(word(HEADER_ID));
        if usize::try_from(length) != Ok(found) {
            return Err(BadHeader::Length { alleged: length, found });
        }
        let (kind, waits) = match kind {
            KIND_MESSAGE => (Kind::Message, false),
            KIND_SEND => (Kind::Send, true),
            KIND_REQUEST => (Kind::Request, true),
            KIND_REPLY => (Kind::Reply, true),
            KIND_FORWARD => (Kind::Forward, true),
            KIND_REFER => (Kind::Refer, true),
            unknown => return Err(BadHeader::Kind(unknown)),
        };
        if (id == 0) == waits || id > CALL_ID_MAX {
            return Err(BadHeader::Id { kind: kind.number(), id });
        }
        if takes != 0 && !matches!(kind, Kind::Request | Kind::Forward) {
            return Err(BadHeader::Takes { kind: kind.number(), takes });
        }
        if kind == Kind::Refer && found != REFER_BYTES {
            return Err(BadHeader::Refer { found: length });
        }
        Ok(Header { source, tag: word(HEADER_TAG), length, kind, takes, id })
    }
}

/// Greatest number of a call: it stands above the state in [`WORD_CALL`].
pub const CALL_ID_MAX: u64 = (1 << 62) - 1;

/// The call's word: call `id` stands as `state` says.
#[must_use]
pub const fn call_word(id: u64, state: u64) -> u64 {
    id << CALL_STATE_BITS | state
}

/// Number and state in a call's word.
#[must_use]
pub const fn call_of(word: u64) -> (u64, u64) {
    (word >> CALL_STATE_BITS, word & ((1 << CALL_STATE_BITS) - 1))
}

/// The path's word: `label` came over `hops` endpoints. A label has 56 bits, and 0 is none.
#[must_use]
pub const fn path_word(label: u64, hops: u64) -> u64 {
    if label == 0 { 0 } else { label << PATH_HOPS_BITS | hops }
}

/// Label and hops in a path's word.
#[must_use]
pub const fn path_of(word: u64) -> (u64, u64) {
    (word >> PATH_HOPS_BITS, word & ((1 << PATH_HOPS_BITS) - 1))
}

/// Bytes of a ring that the record of a message of `payload` bytes takes, with its word.
#[must_use]
pub const fn record_bytes(payload: usize) -> usize {
    (ring::RECORD_HEADER_BYTES + HEADER_BYTES + payload).next_multiple_of(ring::RECORD_ALIGN)
}

/// Most bytes of payload over a channel whose rings have `ring_bytes` each: a record is a sixteenth
/// of the ring at most.
#[must_use]
pub const fn payload_bytes_max(ring_bytes: u32) -> usize {
    ring_bytes as usize / 16 - HEADER_BYTES - ring::RECORD_HEADER_BYTES
}

/// Bytes of records that may be on their way in one direction, from their commit until the receiver
/// has handed them out: half of the ring. Replies do not count, and find room in what is left.
#[must_use]
pub const fn window_bytes(ring_bytes: u32) -> usize {
    ring_bytes as usize / 2
}

/// Whether a ring that carries a whole window still has room for two replies: another quarter may
/// be read and not yet published, and one padding is shorter than a record.
const fn has_room_for_replies(ring_bytes: u32) -> bool {
    let record = record_bytes(payload_bytes_max(ring_bytes));
    let unpublished = ring_bytes as usize / 4;
    window_bytes(ring_bytes) + unpublished + 3 * record + ring::RECORD_HEADER_BYTES <= ring_bytes as usize
}

const _: () = assert!(OFFSET_WORDS >= ring::OFFSET_CONTROLS + 2 * ring::CONTROL_STRIDE);
const _: () = assert!(OFFSET_WORDS + 2 * WORDS_STRIDE <= ring::HEADER_BYTES);
const _: () = assert!(WORD_PATH + 8 <= WORDS_STRIDE);
const _: () = assert!(HEADER_ID + 8 == HEADER_BYTES);
const _: () = assert!(PATH_HOPS_MAX < 1 << PATH_HOPS_BITS);
const _: () =
    assert!(has_room_for_replies(ring::RING_BYTES_MIN) && has_room_for_replies(ring::RING_BYTES_MAX));

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REQUEST: Header = Header {
        source: Address { slot: 7, generation: 3 },
        tag: 0xdead_beef,
        length: 5,
        kind: Kind::Request,
        takes: 900,
        id: 1 << 40 | 9,
    };

    fn with(at: usize, word: u32) -> Result<Header, BadHeader> {
        let mut bytes = REQUEST.to_bytes();
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        Header::read(bytes, HEADER_BYTES + 5)
    }

    #[test]
    fn a_header_comes_back_as_it_was() {
        assert_eq!(Header::read(REQUEST.to_bytes(), HEADER_BYTES + 5), Ok(REQUEST));
        assert_eq!(Address::read(REQUEST.source.to_bytes()), Ok(REQUEST.source));
    }

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let greatest = Address { slot: u32::MAX, generation: u32::MAX };
        assert_eq!(greatest.to_string().parse(), Ok(greatest));
        for bad in ["", "3", "3.", ".1", "3.0", "3.1.1", "+3.1", "3.-1", " 3.1", "4294967296.1", "planner"] {
            assert_eq!(bad.parse::<Address>(), Err(NoAddress), "{bad:?}");
        }
    }

    #[test]
    fn each_broken_rule_has_its_name() {
        assert_eq!(Header::read(REQUEST.to_bytes(), 31), Err(BadHeader::Short(31)));
        assert_eq!(with(HEADER_LENGTH, 6), Err(BadHeader::Length { alleged: 6, found: 5 }));
        assert_eq!(with(HEADER_KIND, 0), Err(BadHeader::Kind(0)));
        assert_eq!(with(HEADER_KIND, 0x103), Err(BadHeader::Kind(0x103)));
        assert_eq!(with(HEADER_GENERATION, 0), Err(BadHeader::Generation));
        assert_eq!(with(HEADER_KIND, KIND_SEND), Err(BadHeader::Takes { kind: 2, takes: 900 }));
        assert_eq!(with(HEADER_KIND, KIND_MESSAGE), Err(BadHeader::Id { kind: 1, id: REQUEST.id }));
        let id = u64::from(u32::MAX) << 32 | 9;
        assert_eq!(with(HEADER_ID + 4, u32::MAX), Err(BadHeader::Id { kind: 3, id }));
        let refer = Header { kind: Kind::Refer, takes: 0, ..REQUEST };
        assert_eq!(Header::read(refer.to_bytes(), HEADER_BYTES + 5), Err(BadHeader::Refer { found: 5 }));
        assert_eq!(Address::read([0; 8]), Err(BadHeader::Generation));
    }

    #[test]
    fn words_come_apart_as_they_were_put_together() {
        assert_eq!(call_of(call_word(CALL_ID_MAX, CALL_OVER)), (CALL_ID_MAX, CALL_OVER));
        assert_eq!(path_of(path_word((1 << 56) - 1, PATH_HOPS_MAX)), ((1 << 56) - 1, PATH_HOPS_MAX));
        assert_eq!(path_word(0, 5), 0);
    }

    proptest! {
        #[test]
        fn the_short_way_reads_what_the_long_one_reads(
            slot in 0_u32..3, generation in 0_u32..3, tag: u32, length in 0_u32..3, kind in 0_u32..8, takes in 0_u32..2,
            id in 0_u64..2, payload in 0_usize..3,
        ) {
            let words = [slot, generation, tag, length, kind, takes, id as u32, 0];
            let mut bytes = [0; HEADER_BYTES];
            for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            let source = Address { slot: 1, generation: 1 };
            let long = Header::read(bytes, HEADER_BYTES + payload).ok();
            let long = long.filter(|header| header.kind == Kind::Message && header.source == source);
            let words = std::array::from_fn(|at| u64::from_le_bytes(bytes.as_chunks().0[at]));
            prop_assert_eq!(Header::tag_of_message(words, source, payload), long.map(|header| header.tag));
        }

        #[test]
        fn whatever_is_read_is_written_the_same(bytes: [u8; HEADER_BYTES], kind in 0_u32..8, record in 0_usize..100) {
            let mut bytes = bytes;
            bytes[HEADER_KIND..HEADER_KIND + 4].copy_from_slice(&kind.to_le_bytes());
            let length = u32::try_from(record.saturating_sub(HEADER_BYTES)).unwrap_or(0);
            bytes[HEADER_LENGTH..HEADER_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
            bytes[HEADER_ID + 7] &= 0x3f;
            if let Ok(header) = Header::read(bytes, record) {
                prop_assert_eq!(header.to_bytes(), bytes);
            }
        }
    }
}
