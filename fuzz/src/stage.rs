//! A channel with an end of ours, a peer that speaks by the rules, and a hand of the peer's that
//! writes what it likes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use channel::{Config, End, Mode, Receiver, Sender, pair};
use sys::region::Region;
use wire::ring as layout;

use crate::script::Script;

/// The smallest ring there is: scripts get around it.
pub const RING_BYTES: u32 = layout::RING_BYTES_MIN;
/// The time by which a call may miss its deadline, on a machine under load, before it counts as a
/// hang.
pub const SLACK: Duration = Duration::from_secs(5);
/// How long a call waits here: enough to come to its sleep.
pub const WAIT: Duration = Duration::from_micros(30);

/// The memory that the peer can reach.
#[derive(Debug)]
pub struct Hand {
    /// The region, once more.
    pub region: Region,
    memory: OwnedFd,
    /// Data, ring of our data, room, ring of our room.
    doorbells: Vec<OwnedFd>,
    /// The end that is ours.
    pub side: usize,
}

/// The assertions that a scribble has made worthless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Messages from the peer need not be what it sent.
    pub inward: bool,
    /// Messages of ours need not come as we sent them.
    pub outward: bool,
    /// The channel may look closed.
    pub states: bool,
}

impl Damage {
    /// Both damages.
    pub fn add(&mut self, other: Damage) {
        self.inward |= other.inward;
        self.outward |= other.outward;
        self.states |= other.states;
    }

    /// Whether anything at all is damaged that could break a rule.
    #[must_use]
    pub fn any(&self) -> bool {
        self.inward || self.outward
    }
}

/// The two ends and the hand. `side` says which end is ours: the first of the two.
///
/// # Panics
/// When the machine has no memory or descriptors for it.
#[must_use]
pub fn ends(side: usize, mode: Mode) -> (End, End, Hand) {
    let (zero, one) = pair(&Config { ring_bytes: RING_BYTES, mode, ..Config::default() }).expect("a channel");
    let (ours, theirs) = if side == 0 { (zero, one) } else { (one, zero) };
    let descriptors = theirs.into_descriptors();
    let copy = |descriptor: &OwnedFd| descriptor.as_fd().try_clone_to_owned().expect("a descriptor");
    let mut copies: Vec<OwnedFd> = descriptors.iter().map(copy).collect();
    let memory = copies.remove(if side == 0 { 4 } else { 0 });
    let region = Region::map(&memory, layout::region_bytes(RING_BYTES) as usize).expect("a mapping");
    let theirs = End::from_descriptors(descriptors.into()).expect("an end");
    (ours, theirs, Hand { region, memory, doorbells: copies, side })
}

/// The same, opened for messages.
///
/// # Panics
/// As [`ends`].
#[must_use]
pub fn opened(side: usize) -> ((Sender, Receiver), (Sender, Receiver), Hand) {
    let (ours, theirs, hand) = ends(side, Mode::Messages);
    (ours.open().expect("our end"), theirs.open().expect("the peer's end"), hand)
}

/// Offset of a control word of ring `ring`.
#[must_use]
pub fn control(ring: usize, word: usize) -> usize {
    layout::OFFSET_CONTROLS + ring * layout::CONTROL_STRIDE + word
}

/// Offset of a ring's first byte.
#[must_use]
pub fn data(ring: usize) -> usize {
    layout::HEADER_BYTES + ring * RING_BYTES as usize
}

/// Bytes that a script may scribble at once.
const SCRIBBLE_BYTES: usize = 64;

impl Hand {
    /// The ring in which we send.
    #[must_use]
    pub fn outward(&self) -> usize {
        self.side
    }

    /// The ring in which we receive.
    #[must_use]
    pub fn inward(&self) -> usize {
        1 - self.side
    }

    /// The damage of a write of `length` bytes at `offset`.
    fn damage(&self, offset: usize, length: usize) -> Damage {
        let range = offset..offset + length;
        let hits = |start: usize, bytes: usize| range.start < start + bytes && start < range.end;
        // Whoever believes a wrong limit sends what the other end refuses.
        let believed = [layout::CONTROL_CONSUMED, layout::CONTROL_MESSAGE_LIMIT];
        let ring = |ring| {
            hits(data(ring), RING_BYTES as usize) || believed.iter().any(|word| hits(control(ring, *word), 8))
        };
        Damage {
            inward: ring(self.inward()),
            outward: ring(self.outward()),
            states: hits(layout::OFFSET_ENDS, 2 * layout::END_STRIDE),
        }
    }

    /// One act of malice: anything anywhere, or almost right where it hurts. Returns what it
    /// damages.
    ///
    /// # Panics
    /// When the machine refuses a write into the region.
    pub fn scribble(&self, script: &mut Script<'_>) -> Damage {
        let (inward, outward) = (self.inward(), self.outward());
        match script.below(12) {
            0 | 1 => self.word(script.below(layout::HEADER_BYTES / 4 / 8) * 8, script.word()),
            2 | 3 => {
                // Almost a record, where we read next or near it.
                let next = self.load(control(inward, layout::CONTROL_CONSUMED));
                let position = next.wrapping_add(8 * script.below(32) as u64);
                let kind = [1, 1, 2, 3, 4, 5, 0, 15][script.below(8)];
                let length = script.below(RING_BYTES as usize + 16);
                let place = (position % u64::from(RING_BYTES)) as usize & !7;
                self.word(data(inward) + place, layout::record_word(kind, length, position))
            }
            4 => {
                // Almost what we have sent.
                let now = self.load(control(outward, layout::CONTROL_CONSUMED));
                let moved = now.wrapping_add((8 * script.below(256) as u64).wrapping_sub(512));
                self.word(control(outward, layout::CONTROL_CONSUMED), moved)
            }
            5 => {
                let flags = [
                    layout::CONTROL_SLEEPING,
                    layout::CONTROL_WANTED,
                    layout::CONTROL_PRODUCER_PROCESSOR,
                    layout::CONTROL_CONSUMER_PROCESSOR,
                    layout::CONTROL_BARRIER,
                    layout::CONTROL_UNFENCED,
                    layout::CONTROL_MESSAGE_LIMIT,
                ];
                let ring = script.below(2);
                self.word(control(ring, flags[script.below(flags.len())]), script.word())
            }
            6 => self.word(layout::OFFSET_ENDS + layout::END_STRIDE * script.below(2), script.word()),
            7 => {
                let offset = script.below(layout::region_bytes(RING_BYTES) as usize - SCRIBBLE_BYTES);
                let bytes: [u8; SCRIBBLE_BYTES] = script.bytes();
                let length = script.below(SCRIBBLE_BYTES) + 1;
                let written = rustix::io::pwrite(&self.memory, &bytes[..length], offset as u64);
                assert_eq!(written, Ok(length));
                self.damage(offset, length)
            }
            8 => {
                let offset = script.below(data(1) / 8 + RING_BYTES as usize / 8) * 8;
                self.word(offset, 0)
            }
            9 => self.punch(script),
            _ => {
                self.ring_doorbells();
                Damage::default()
            }
        }
    }

    fn load(&self, offset: usize) -> u64 {
        self.region.load_u64(offset, Ordering::Relaxed)
    }

    fn word(&self, offset: usize, value: u64) -> Damage {
        self.region.store_u64(offset, value, Ordering::Relaxed);
        self.damage(offset, 8)
    }

    /// Takes pages away: they read as zero afterwards.
    fn punch(&self, script: &mut Script<'_>) -> Damage {
        let (page, pages) = (script.below(3), script.below(3) + 1);
        let length = pages * 4096;
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.memory, flags, page as u64 * 4096, length as u64).expect("a hole");
        self.damage(page * 4096, length)
    }

    /// Rings for nothing.
    ///
    /// # Panics
    /// When a pipe can't be written.
    pub fn ring_doorbells(&self) {
        for ringer in [1, 3] {
            sys::doorbell::ring(&self.doorbells[ringer]).expect("a ring");
        }
    }
}

/// Makes a call with a deadline, and sees to it that it keeps it.
///
/// # Panics
/// When it does not.
pub fn in_time<T>(call: impl FnOnce(Option<Instant>) -> T) -> T {
    let deadline = Instant::now() + WAIT;
    let result = call(Some(deadline));
    assert!(Instant::now() < deadline + SLACK, "a call hung");
    result
}
