//! Layout of a channel's region: one header page and two rings. The page `docs/spec/ring.md` says
//! the same.
//!
//! A region is shared by two ends that do not trust each other. Each word has one writer, named
//! below; what another party wrote is an allegation that the reader checks. All words are 64 bits,
//! little-endian, aligned.

/// First word of a region: the bytes `TOMBRING`.
pub const MAGIC: u64 = 0x474e_4952_424d_4f54;
/// Version of this layout. Version 1: messages, committed in band. Version 2: a sleeper says how it
/// sleeps, and a producer whether it fences; the maker says what the channel carries and how long
/// spinning pays.
pub const VERSION: u64 = 2;
/// Bytes of the header page, which come before the two rings.
pub const HEADER_BYTES: usize = 4096;
/// Fewest bytes of one ring.
pub const RING_BYTES_MIN: u32 = 4096;
/// Most bytes of one ring.
pub const RING_BYTES_MAX: u32 = 16 << 20;

/// Where [`MAGIC`] stands. The words below [`OFFSET_ENDS`] are written by the maker before anybody
/// else sees the region.
pub const OFFSET_MAGIC: usize = 0;
/// Where [`VERSION`] stands.
pub const OFFSET_VERSION: usize = 8;
/// Where the bytes of one ring stand.
pub const OFFSET_RING_BYTES: usize = 16;
/// Where the bytes of the whole region stand: header page and both rings.
pub const OFFSET_REGION_BYTES: usize = 24;
/// Where the mode stands: what the maker says that the two ends exchange, [`MODE_MESSAGES`] or
/// [`MODE_STREAM`].
pub const OFFSET_MODE: usize = 32;
/// Where it stands how long spinning pays, in ns: what the maker has measured a wake-up to cost; 0
/// when it has not.
pub const OFFSET_SPIN_NS: usize = 40;
/// Where it stands whether the two ends share a kernel: 0 when they do, 1 when one of them is in a
/// guest. Then nobody sleeps on a futex or leaves out a fence, and numbers of processors mean
/// nothing.
pub const OFFSET_APART: usize = 48;
/// Mode of a channel that carries messages.
pub const MODE_MESSAGES: u64 = 0;
/// Mode of a channel that carries bytes: where a record ends means nothing, and an empty one ends
/// the stream.
pub const MODE_STREAM: u64 = 1;

/// Where the state word of the first end (the offerer) stands; the second end's follows by
/// [`END_STRIDE`]. Each end writes its own.
pub const OFFSET_ENDS: usize = 256;
/// Bytes from one end's state to the next.
pub const END_STRIDE: usize = 128;

/// Where the control words of the first ring stand; the second ring's follow by [`CONTROL_STRIDE`].
pub const OFFSET_CONTROLS: usize = 512;
/// Bytes from one ring's control words to the next ring's.
pub const CONTROL_STRIDE: usize = 512;

/// In a ring's control words: up to where, in bytes since the start, the consumer has released the
/// ring. Written by the consumer.
pub const CONTROL_CONSUMED: usize = 0;
/// In a ring's control words: 1 when the consumer orders the producer's memory before it sleeps
/// (membarrier(2)), so that the producer need not. Written by the consumer when it opens.
pub const CONTROL_BARRIER: usize = 8;
/// In a ring's control words: how the consumer sleeps, 0 when it does not: [`SLEEPS_ON_DOORBELL`]
/// or [`SLEEPS_ON_FUTEX`]. Set by the consumer, cleared by whoever wakes it.
pub const CONTROL_SLEEPING: usize = 128;
/// In a ring's control words: the `consumed` that a sleeping producer waits for, plus how it
/// sleeps; 0 when it does not wait. Set by the producer, cleared by whoever wakes it.
pub const CONTROL_WANTED: usize = 256;
/// In a ring's control words: the processor that the producer ran on last, plus one; 0 when
/// unknown. Written by the producer.
pub const CONTROL_PRODUCER_PROCESSOR: usize = 264;
/// In a ring's control words: 1 while the producer does not fence after a commit. Written by the
/// producer.
pub const CONTROL_UNFENCED: usize = 272;
/// In a ring's control words: the processor that the consumer ran on last, plus one; 0 when
/// unknown. Written by the consumer.
pub const CONTROL_CONSUMER_PROCESSOR: usize = 384;
/// In a ring's control words: most bytes of a message in pieces that the consumer puts together; 0:
/// it takes none. Written by the consumer, and never made less.
pub const CONTROL_MESSAGE_LIMIT: usize = 392;

/// A sleeper waits for its doorbell.
pub const SLEEPS_ON_DOORBELL: u64 = 1;
/// A sleeper waits for a wake of the futex that is the low half of the word in which it says so.
pub const SLEEPS_ON_FUTEX: u64 = 2;
/// Low bits of `sleeping` and `wanted` that say how; positions have them zero.
pub const SLEEPS_MASK: u64 = 7;

/// State of an end that nobody has opened yet.
pub const END_UNOPENED: u64 = 0;
/// State of an end that is open.
pub const END_OPEN: u64 = 1;
/// State of an end that has been closed.
pub const END_CLOSED: u64 = 2;
/// State of an end that has been closed because the other end broke the rules of this page.
pub const END_REFUSED: u64 = 3;

/// Bytes of the word in front of each record.
pub const RECORD_HEADER_BYTES: usize = 8;
/// Records start at multiples of this many bytes.
pub const RECORD_ALIGN: usize = 8;
/// Bits of a record's word that hold the length of its payload in bytes.
pub const RECORD_LENGTH_BITS: u32 = 28;
/// Kind of a record that carries a message.
pub const RECORD_MESSAGE: u64 = 1;
/// Kind of a record that fills the ring up to its end, because the next message would not fit in
/// one piece.
pub const RECORD_PADDING: u64 = 2;
/// Kind of a record that carries the first piece of a message, of which more follow. What was begun
/// before and has not come to its last piece is abandoned, by this as by a [`RECORD_MESSAGE`].
pub const RECORD_FIRST: u64 = 3;
/// Kind of a record that carries a piece of a message that has been begun, of which more follow.
pub const RECORD_NEXT: u64 = 4;
/// Kind of a record that carries the last piece of a message that has been begun.
pub const RECORD_LAST: u64 = 5;
/// Where the kind stands in a record's word: this many bits up. The kind has four bits.
pub const RECORD_KIND_SHIFT: u32 = 28;
/// Where the sequence stands in a record's word: this many bits up. The sequence has 32 bits.
pub const RECORD_SEQUENCE_SHIFT: u32 = 32;

/// Descriptors that make one end: the region, and four halves of doorbells.
pub const END_DESCRIPTORS: usize = 5;

/// Bytes of the memory in which the register stands that an end in a guest rings by.
pub const BELL_BYTES: usize = 256;
/// Where that register stands; it has 32 bits.
pub const BELL_OFFSET: usize = 12;
/// The value that is stored there when there is a message.
pub const BELL_DATA: u32 = 0x1_0000;
/// The value that is stored there when there is room.
pub const BELL_ROOM: u32 = 0x1_0001;

const KIND_MASK: u64 = 0xf;
const LENGTH_MASK: u64 = (1 << RECORD_LENGTH_BITS) - 1;

// The page must not drift from what both ends have compiled in.
const _: () = {
    assert!(MAGIC == u64::from_le_bytes(*b"TOMBRING"));
    assert!(OFFSET_MODE + 8 <= OFFSET_SPIN_NS && OFFSET_SPIN_NS + 8 <= OFFSET_APART);
    assert!(OFFSET_APART + 8 <= OFFSET_ENDS);
    assert!(OFFSET_ENDS + 2 * END_STRIDE <= OFFSET_CONTROLS);
    assert!(OFFSET_CONTROLS + 2 * CONTROL_STRIDE <= HEADER_BYTES);
    assert!(CONTROL_MESSAGE_LIMIT + 8 <= CONTROL_STRIDE);
    // One line pair (128 bytes: the unit that processors prefetch) has one usual writer.
    assert!(CONTROL_SLEEPING - CONTROL_CONSUMED >= 128);
    assert!(CONTROL_WANTED - CONTROL_SLEEPING >= 128);
    assert!(CONTROL_CONSUMER_PROCESSOR - CONTROL_WANTED >= 128);
    assert!(SLEEPS_MASK < RECORD_ALIGN as u64);
    assert!((RING_BYTES_MAX as u64) < 1 << RECORD_LENGTH_BITS);
    assert!(BELL_DATA == (crate::guest::PEER_ID as u32) << 16 | crate::guest::VECTOR_DATA as u32);
    assert!(BELL_ROOM == (crate::guest::PEER_ID as u32) << 16 | crate::guest::VECTOR_ROOM as u32);
    assert!(RECORD_LENGTH_BITS == RECORD_KIND_SHIFT && RECORD_KIND_SHIFT + 4 == RECORD_SEQUENCE_SHIFT);
    assert!(RING_BYTES_MIN.is_power_of_two() && RING_BYTES_MAX.is_power_of_two());
};

/// Bytes of a region with rings of `ring_bytes` each.
pub const fn region_bytes(ring_bytes: u32) -> u64 {
    HEADER_BYTES as u64 + 2 * ring_bytes as u64
}

/// Bytes of a region for ends that do not share a kernel: the size of a PCI device's memory is a
/// power of two. What is beyond the rings is never touched.
pub const fn apart_region_bytes(ring_bytes: u32) -> u64 {
    region_bytes(ring_bytes).next_power_of_two()
}

/// Whether a ring may have this many bytes: a power of two within the bounds.
pub const fn is_ring_bytes(bytes: u64) -> bool {
    bytes.is_power_of_two() && bytes >= RING_BYTES_MIN as u64 && bytes <= RING_BYTES_MAX as u64
}

/// Longest message, in bytes, of a ring of `ring_bytes`. A record never takes more than half of the
/// ring, so that with its padding it always fits an empty ring, wherever that stands.
pub const fn max_message(ring_bytes: usize) -> usize {
    ring_bytes / 2 - RECORD_HEADER_BYTES
}

/// Bytes that a record with a payload of `length` bytes takes, header and filling included.
pub const fn record_bytes(length: usize) -> usize {
    RECORD_HEADER_BYTES + length.next_multiple_of(RECORD_ALIGN)
}

/// Sequence number of the record that starts at `position` (bytes since the start): the record
/// unit's low bits.
pub const fn sequence(position: u64) -> u32 {
    (position / RECORD_ALIGN as u64) as u32
}

/// A record's word: what the consumer waits for. It is never zero; zero means "not yet committed".
pub const fn record_word(kind: u64, length: usize, position: u64) -> u64 {
    (sequence(position) as u64) << RECORD_SEQUENCE_SHIFT
        | (kind & KIND_MASK) << RECORD_KIND_SHIFT
        | (length as u64 & LENGTH_MASK)
}

/// The allegation of a record's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordWord {
    /// One of the kinds (`RECORD_*`), or nonsense.
    pub kind: u64,
    /// Bytes of payload.
    pub length: usize,
    /// Should be [`sequence`] of the record's position.
    pub sequence: u32,
}

impl RecordWord {
    /// Takes a word apart; every word has a reading, and the reader judges it.
    pub const fn parse(word: u64) -> Self {
        RecordWord {
            kind: word >> RECORD_KIND_SHIFT & KIND_MASK,
            length: (word & LENGTH_MASK) as usize,
            sequence: (word >> RECORD_SEQUENCE_SHIFT) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_word_says_what_was_put_in() {
        let word = record_word(RECORD_MESSAGE, 777, 8 * 5);
        assert_eq!(RecordWord::parse(word), RecordWord { kind: RECORD_MESSAGE, length: 777, sequence: 5 });
        assert_ne!(
            record_word(RECORD_MESSAGE, 0, 0),
            0,
            "an empty first message must differ from no message"
        );
    }

    #[test]
    fn sequences_go_round() {
        assert_eq!(sequence(8 << 32), 0);
        assert_eq!(sequence((8 << 32) + 16), 2);
    }

    #[test]
    fn the_longest_message_fits_twice() {
        assert_eq!(2 * record_bytes(max_message(4096)), 4096);
        assert_eq!(record_bytes(0), 8);
        assert_eq!(record_bytes(1), 16);
    }

    #[test]
    fn ring_sizes_are_bounded_powers_of_two() {
        assert!(is_ring_bytes(4096) && is_ring_bytes(16 << 20));
        for bad in [0, 1, 2048, 4097, 3 << 12, 32 << 20, u64::MAX] {
            assert!(!is_ring_bytes(bad), "{bad}");
        }
    }
}
