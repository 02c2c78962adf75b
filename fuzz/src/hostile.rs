//! Memory whose other party changes any word between any two looks of ours, as a script says: what
//! a concurrent scribbler can do, without his luck. It also watches what we do: a look outside the
//! ring, or a write to what is not ours, fails.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use ring::Memory;
use wire::ring as layout;

use crate::script::Script;

/// Where the control words stand in the hostile peer's memory, and where the ring does: with guards
/// on all sides.
pub const CONTROL: usize = 64;
/// See [`CONTROL`].
pub const DATA: usize = CONTROL + layout::CONTROL_STRIDE + 64;
/// Bytes behind the ring that nobody may touch.
const GUARD_BYTES: usize = 64;

/// Control words that only the consumer writes.
pub const CONSUMERS: [usize; 4] = [
    layout::CONTROL_CONSUMED,
    layout::CONTROL_BARRIER,
    layout::CONTROL_CONSUMER_PROCESSOR,
    layout::CONTROL_MESSAGE_LIMIT,
];
/// Control words that only the producer writes.
pub const PRODUCERS: [usize; 2] = [layout::CONTROL_PRODUCER_PROCESSOR, layout::CONTROL_UNFENCED];

/// The half of the ring that is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// We write records.
    Producer,
    /// We read them.
    Consumer,
}

/// Memory shared with a hostile peer. Dependable only in what it was told by us, and not even that.
#[derive(Debug)]
pub struct HostilePeer<'s> {
    half: Half,
    capacity: usize,
    state: RefCell<State<'s>>,
}

#[derive(Debug)]
struct State<'s> {
    bytes: Vec<u8>,
    script: Script<'s>,
    /// Our position, as the test says: lies that are nearly right refer to it.
    position: u64,
    /// The producer's: up to where it has shown what it produced; the rest it holds back.
    shown: u64,
    /// The producer's: what the peer has released, as far as it has said so by the rules.
    released: u64,
    /// The last word of the ring that we were shown.
    shown_word: u64,
    /// Looks since the last change of position: no operation may need many.
    looks: usize,
}

/// More looks than any single operation needs: beyond it something goes round.
const LOOKS_MAX: usize = 64;

impl<'s> HostilePeer<'s> {
    /// Zeroed memory with a ring of `capacity` bytes.
    #[must_use]
    pub fn new(half: Half, capacity: usize, script: Script<'s>) -> Self {
        let state = State {
            bytes: vec![0; DATA + capacity + GUARD_BYTES],
            script,
            position: 0,
            shown: 0,
            released: 0,
            shown_word: 0,
            looks: 0,
        };
        HostilePeer { half, capacity, state: RefCell::new(state) }
    }

    /// The script, for the next step.
    pub fn script<T>(&self, read: impl FnOnce(&mut Script<'s>) -> T) -> T {
        read(&mut self.state.borrow_mut().script)
    }

    /// Says where we are, before the next operation, and up to where that has been shown to the
    /// other side.
    ///
    /// # Panics
    /// When a position is none.
    pub fn operation(&self, position: u64, shown: u64) {
        let mut state = self.state.borrow_mut();
        assert!(position.is_multiple_of(layout::RECORD_ALIGN as u64), "position {position} is off the grid");
        assert!(shown <= position, "more is shown than there is");
        state.position = position;
        state.shown = shown;
        state.looks = 0;
    }

    /// Sees to it that a record of `length` bytes at `position` was believed for a good reason:
    /// what was shown last says so.
    ///
    /// # Panics
    /// When it was believed for none.
    pub fn check_belief(&self, position: u64, length: usize) {
        let said = layout::RecordWord::parse(self.state.borrow().shown_word);
        assert_eq!((said.sequence, said.length), (layout::sequence(position), length), "nobody said that");
        assert!(said.kind != 0 && said.kind != layout::RECORD_PADDING, "{said:?} carries nothing");
    }

    /// Sees to it that what stands behind the last record reads "not yet".
    ///
    /// # Panics
    /// When it does not.
    pub fn check_end(&self, position: u64) {
        let word = self.load_truly(DATA + (position % self.capacity as u64) as usize);
        assert_eq!(word, 0, "old bytes stand behind the last record and look like one");
    }

    /// Writes a message's bytes as whoever has a pointer to them does.
    ///
    /// # Panics
    /// When they are not where a message may stand.
    pub fn fill(&self, offset: usize, length: usize) {
        Memory::copy_in(&self, offset, &vec![0x5a; length]);
    }

    /// The position up to which the peer has released, as far as it has said so by the rules.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.state.borrow().released
    }

    fn data(&self) -> Range<usize> {
        DATA..DATA + self.capacity
    }

    fn check_word(&self, offset: usize) {
        let control = CONTROL..CONTROL + layout::CONTROL_STRIDE;
        let good = offset.is_multiple_of(8) && (control.contains(&offset) || self.data().contains(&offset));
        assert!(good, "a word at {offset} is looked at");
    }

    /// The words that a half may write, besides the producer's ring.
    fn check_write(&self, offset: usize) {
        let theirs: &[usize] = match self.half {
            Half::Producer => &CONSUMERS,
            Half::Consumer => &PRODUCERS,
        };
        assert!(!theirs.contains(&offset.wrapping_sub(CONTROL)), "the peer's word at {offset} is written");
        if self.half == Half::Consumer {
            assert!(!self.data().contains(&offset), "the consumer writes into the ring at {offset}");
        }
    }

    /// The producer writes only where everything has been released, and what has not been shown.
    fn check_room(&self, offset: usize, length: usize) {
        if !self.data().contains(&offset) {
            return;
        }
        let state = self.state.borrow();
        let start = (state.shown % self.capacity as u64) as usize;
        let ahead = (offset - DATA + self.capacity - start) % self.capacity;
        let free = self.capacity - (state.shown - state.released) as usize;
        assert!(ahead + length <= free, "{length} bytes at {offset} are not free: {state:?}");
    }

    fn check_bytes(&self, offset: usize, length: usize) {
        let data = self.data();
        let inside = data.contains(&offset) || (length == 0 && offset == data.end);
        assert!(inside && length <= data.end - offset, "{length} bytes at {offset} are not the ring's");
    }

    fn load_truly(&self, offset: usize) -> u64 {
        let state = self.state.borrow();
        u64::from_le_bytes(std::array::from_fn(|index| state.bytes[offset + index]))
    }

    fn store_truly(&self, offset: usize, value: u64) {
        self.state.borrow_mut().bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// The value that we are shown at `offset`, and whether it stays.
    fn lie(&self, offset: usize) -> Option<(u64, bool)> {
        let mut state = self.state.borrow_mut();
        let position = state.position;
        let script = &mut state.script;
        let kind = script.byte();
        let stays = kind & 0x80 == 0;
        let value = match kind & 0x7f {
            // A true record, or nearly: kind and length are the hostile peer's, the place is right.
            1..=16 => layout::record_word(script.below(7) as u64, script.below(self.capacity + 16), position),
            17..=20 => {
                let length = self.capacity - (position % self.capacity as u64) as usize;
                layout::record_word(layout::RECORD_PADDING, length.saturating_sub(8), position)
            }
            // The record behind a padding.
            21..=24 => {
                let start = position.next_multiple_of(self.capacity as u64);
                layout::record_word(layout::RECORD_MESSAGE, script.below(self.capacity), start)
            }
            25..=40 => position.wrapping_sub(8 * script.below(64) as u64),
            41..=44 => position.wrapping_add(script.word()),
            45..=52 => script.word(),
            53..=56 => 0,
            57..=60 => self.load_truly_of(&state.bytes, offset) ^ 1 << (kind % 64),
            _ => return None,
        };
        Some((value, stays))
    }

    fn load_truly_of(&self, bytes: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|index| bytes[offset + index]))
    }

    fn look(&self, offset: usize) -> u64 {
        self.check_word(offset);
        {
            let mut state = self.state.borrow_mut();
            state.looks += 1;
            assert!(state.looks <= LOOKS_MAX, "an operation goes round: {state:?}");
        }
        let shown = match self.lie(offset) {
            Some((value, true)) => {
                self.store_truly(offset, value);
                value
            }
            Some((value, false)) => value,
            None => self.load_truly(offset),
        };
        if self.data().contains(&offset) {
            self.state.borrow_mut().shown_word = shown;
        }
        if self.half == Half::Producer && offset == CONTROL + layout::CONTROL_CONSUMED {
            let mut state = self.state.borrow_mut();
            let by_the_rules = shown >= state.released
                && shown <= state.shown
                && shown.is_multiple_of(layout::RECORD_ALIGN as u64);
            if by_the_rules {
                state.released = shown;
            }
        }
        shown
    }
}

impl Memory for &HostilePeer<'_> {
    fn load(&self, offset: usize, _order: Ordering) -> u64 {
        self.look(offset)
    }

    fn store(&self, offset: usize, value: u64, _order: Ordering) {
        self.check_word(offset);
        self.check_write(offset);
        self.check_room(offset, 8);
        self.store_truly(offset, value);
    }

    fn swap(&self, offset: usize, value: u64, _order: Ordering) -> u64 {
        let found = self.look(offset);
        self.check_write(offset);
        self.check_room(offset, 8);
        self.store_truly(offset, value);
        found
    }

    fn fence(&self) {}

    fn no_fence(&self) {}

    fn barrier(&self) -> bool {
        self.script(|script| script.byte()) % 8 != 1
    }

    fn copy_in(&self, offset: usize, from: &[u8]) {
        assert_eq!(self.half, Half::Producer, "the consumer writes bytes into the ring");
        self.check_bytes(offset, from.len());
        self.check_room(offset, from.len());
        self.state.borrow_mut().bytes[offset..offset + from.len()].copy_from_slice(from);
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.check_bytes(offset, into.len());
        into.copy_from_slice(&self.state.borrow().bytes[offset..offset + into.len()]);
    }
}
