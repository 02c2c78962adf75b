//! The states of granted buffers: a page of words that the owner of a buffer writes, and whom it
//! granted to reads. The page `docs/spec/grants.md` says the same.

/// Version of this layout.
pub const VERSION: u32 = 1;
/// The first word of the states.
pub const MAGIC: u64 = 0x544e_4152_424d_4f54;
/// Bytes of the states of one buffer.
pub const STATE_BYTES: usize = 4096;
/// Words of the states. The first is [`MAGIC`], the second [`VERSION`].
pub const PLACES: u32 = 512;
/// The first place that a grant may have.
pub const PLACE_FIRST: u32 = 2;
/// Nothing was granted at this place.
pub const STATE_NONE: u64 = 0;
/// Granted.
pub const STATE_LIVE: u64 = 1;
/// The grant stands for another buffer now, or soon.
pub const STATE_MOVED: u64 = 2;
/// Taken back, or the buffer was freed.
pub const STATE_REVOKED: u64 = 3;
/// The owner has ended.
pub const STATE_DEAD: u64 = 4;
/// Most bytes of one buffer, whatever a topology allows: what a program's address space has room
/// for often.
pub const BUFFER_BYTES_MAX: u64 = 0x4000_0000;

/// Bits of a grant's number that its node counts; above them is that node's number in its cluster.
/// With it a grant is positive as C has it, with a sign.
pub const GRANT_BITS: u32 = 51;

/// The number of the node that has made a grant.
#[must_use]
pub const fn node_of_grant(grant: u64) -> u64 {
    grant >> GRANT_BITS
}

/// Bytes of a word of the states.
const WORD_BYTES: usize = 8;

const _: () = {
    assert!(MAGIC == u64::from_le_bytes(*b"TOMBRANT"));
    assert!(PLACES as usize * WORD_BYTES == STATE_BYTES);
    assert!((crate::ipc::NODE_NUMBER_MAX as u64) << GRANT_BITS < 1 << 63);
};

/// The state of one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// [`STATE_LIVE`].
    Live,
    /// [`STATE_MOVED`].
    Moved,
    /// [`STATE_REVOKED`], and whatever else an owner may have written.
    Revoked,
    /// [`STATE_DEAD`].
    Dead,
}

impl State {
    /// As it stands there.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            State::Live => STATE_LIVE,
            State::Moved => STATE_MOVED,
            State::Revoked => STATE_REVOKED,
            State::Dead => STATE_DEAD,
        }
    }

    /// The state that a word stands for. An unknown word is a lie of the owner, about its own
    /// grant.
    #[must_use]
    pub const fn of(word: u64) -> State {
        match word {
            STATE_LIVE => State::Live,
            STATE_MOVED => State::Moved,
            STATE_DEAD => State::Dead,
            _ => State::Revoked,
        }
    }
}

/// Where the word of a place stands, in bytes; `None`: a grant can't have this place.
#[must_use]
pub const fn offset_of(place: u32) -> Option<usize> {
    if place >= PLACE_FIRST && place < PLACES { Some(place as usize * WORD_BYTES) } else { None }
}

/// The first bytes of the states, as their maker writes them.
#[must_use]
pub fn head() -> [u8; 16] {
    let both = u128::from(VERSION) << 64 | u128::from(MAGIC);
    both.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_what_it_was_written_as_and_anything_else_is_over() {
        for state in [State::Live, State::Moved, State::Revoked, State::Dead] {
            assert_eq!(State::of(state.number()), state);
        }
        for lie in [STATE_NONE, 5, u64::MAX] {
            assert_eq!(State::of(lie), State::Revoked);
        }
    }

    #[test]
    fn places_are_inside_and_behind_the_head() {
        assert_eq!([offset_of(0), offset_of(1), offset_of(PLACES), offset_of(u32::MAX)], [None; 4]);
        assert_eq!(offset_of(PLACE_FIRST), Some(head().len()));
        assert_eq!(offset_of(PLACES - 1), Some(STATE_BYTES - WORD_BYTES));
        assert_eq!(head()[..8], MAGIC.to_le_bytes());
    }
}
