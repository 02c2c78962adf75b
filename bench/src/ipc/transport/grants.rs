//! Bulk through granted buffers, of which several parts are full or on their way at a time.

use super::super::copies::{Bulk, PLACES};
use super::super::means::{Hints, Tuning};
use super::endpoint::{Couple, options};
use crate::channel::meeting::Meeting;
use crate::channel::task::{Role, Task};
use endpoint::{Access, Buffer, Content, From, GrantId, Handed};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;

/// Most parts of a buffer: each has a bit of a notice, and one bit is for the end.
const PARTS_MAX: usize = 32;
/// Fewest: while one is copied out another is filled.
const PARTS_MIN: usize = 2;
/// The bit, or the tag, that says that everything was taken.
pub(super) const TAKEN: usize = 63;
/// Number of the one grant.
const GRANT: u64 = 1;
/// So many bytes are told of at once, or a quarter of the parts: a word to the other end costs as
/// much as some KiB.
const TOLD_BYTES: usize = 32 << 10;
/// Bytes of a message without payload in a ring.
const HINT_BYTES: usize = 64;

/// The signals of the two about parts.
#[derive(Debug)]
pub(super) struct Signals {
    pub couple: Couple,
    hints: Hints,
    /// Parts that the other one has told of, and TAKEN.
    told: u64,
    /// Parts that the other one is still to be told of, by a notice.
    untold: u64,
    /// As many are told of at once.
    at_once: u32,
    payload: Vec<u8>,
}

impl Signals {
    /// For so many parts of so many bytes.
    pub fn open(
        meeting: &mut Meeting,
        role: Role,
        hints: Hints,
        (parts, part_bytes): (usize, usize),
    ) -> io::Result<Self> {
        let at_once = (TOLD_BYTES / part_bytes.max(1)).min(parts / 4).max(1);
        // Messages are held back by the endpoint, notices here.
        let options = options(true, if at_once > 1 { at_once * HINT_BYTES } else { 0 });
        let couple = Couple::open(meeting, role, &Tuning::plain(0), &options)?;
        // The receiver's buffer is free at first.
        let told = if role == Role::Lead { (1 << parts) - 1 } else { 0 };
        Ok(Self { couple, hints, told, untold: 0, at_once: at_once as u32, payload: Vec::new() })
    }

    pub fn tell(&mut self, part: usize) -> io::Result<()> {
        let Couple { endpoint, peer } = &mut self.couple;
        match self.hints {
            Hints::Notices => {
                self.untold |= 1 << part;
                if self.untold.count_ones() >= self.at_once { self.show() } else { Ok(()) }
            }
            Hints::Messages => {
                endpoint.send_buffered(*peer, part as u32, &[], None).map_err(io::Error::other)
            }
        }
    }

    /// Tells of all parts that the other one has not been told of.
    pub fn show(&mut self) -> io::Result<()> {
        let Couple { endpoint, peer } = &mut self.couple;
        match std::mem::take(&mut self.untold) {
            0 => endpoint.flush().map_err(io::Error::other),
            bits => endpoint.notify(*peer, bits).map_err(io::Error::other),
        }
    }

    pub fn wait_for(&mut self, part: usize) -> io::Result<()> {
        while self.told & 1 << part == 0 {
            if self.untold != 0 {
                self.show()?;
            }
            let endpoint = &mut self.couple.endpoint;
            let received = endpoint.receive(&From::Any, &mut self.payload, None).map_err(io::Error::other)?;
            self.told |= match received.content {
                Content::Notices(bits) => bits,
                Content::Message { tag } if tag < u64::BITS => 1 << tag,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
        }
        self.told &= !(1 << part);
        Ok(())
    }
}

/// The sender fills parts of a buffer of its own, the receiver copies out of them: both copy, at
/// the same time.
#[derive(Debug)]
pub struct Slots {
    signals: Signals,
    memory: Memory,
    piece_bytes: usize,
    parts: usize,
    /// Pieces so far.
    number: usize,
    message: Vec<u8>,
}

/// The memory that either side has of the buffer.
#[derive(Debug)]
pub(super) enum Memory {
    Owned(Buffer),
    Granted(GrantId),
}

impl Slots {
    /// Brings the two together; the leader owns the buffer.
    ///
    /// # Errors
    /// Those of [`Couple::open`] and of grants.
    pub fn open(meeting: &mut Meeting, task: &Task, tuning: &Tuning) -> io::Result<Self> {
        let piece_bytes = tuning.piece_bytes;
        let parts = (tuning.buffer_bytes / piece_bytes.max(1)).clamp(PARTS_MIN, PARTS_MAX);
        let mut signals = Signals::open(meeting, task.role, Hints::Messages, (parts, piece_bytes))?;
        let memory = match task.role {
            Role::Lead => own(meeting, &mut signals.couple, parts * piece_bytes, Access::Read)?,
            Role::Follow => take(meeting, &mut signals.couple, Access::Read)?,
        };
        Ok(Self { signals, memory, piece_bytes, parts, number: 0, message: vec![1; task.bytes] })
    }

    /// The part that is next, and where it begins.
    fn turn(&mut self) -> (usize, u64) {
        let part = self.number % self.parts;
        self.number += 1;
        (part, (part * self.piece_bytes) as u64)
    }
}

impl Bulk for Slots {
    fn give(&mut self, message: &[u8]) -> io::Result<()> {
        for piece in message.chunks(self.piece_bytes) {
            let (part, offset) = self.turn();
            self.signals.wait_for(part)?;
            let Memory::Owned(buffer) = &mut self.memory else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            buffer.write(offset, piece).map_err(io::Error::other)?;
            self.signals.tell(part)?;
        }
        Ok(())
    }

    fn take(&mut self, places: &[usize; PLACES]) -> io::Result<[u64; PLACES]> {
        let mut message = std::mem::take(&mut self.message);
        for piece in message.chunks_mut(self.piece_bytes) {
            let (part, offset) = self.turn();
            self.signals.wait_for(part)?;
            let Memory::Granted(grant) = self.memory else { return Err(io::ErrorKind::InvalidInput.into()) };
            let endpoint = &mut self.signals.couple.endpoint;
            endpoint.copy_in(grant, offset, piece, None).map_err(io::Error::other)?;
            self.signals.tell(part)?;
        }
        self.message = message;
        super::super::copies::words_at(&self.message, places)
    }

    fn acknowledge(&mut self) -> io::Result<()> {
        self.signals.tell(TAKEN)?;
        self.signals.show()
    }

    fn acknowledged(&mut self) -> io::Result<()> {
        self.signals.wait_for(TAKEN)
    }
}

/// The sender copies whole messages straight into parts of a buffer of the receiver's.
#[derive(Debug)]
pub struct Places {
    signals: Signals,
    memory: Memory,
    message_bytes: usize,
    parts: usize,
    /// Messages so far.
    number: usize,
}

impl Places {
    /// Brings the two together; the follower owns the buffer.
    ///
    /// # Errors
    /// Those of [`Couple::open`] and of grants.
    pub fn open(meeting: &mut Meeting, task: &Task, tuning: &Tuning, hints: Hints) -> io::Result<Self> {
        let parts = (tuning.buffer_bytes / task.bytes.max(1)).clamp(PARTS_MIN, PARTS_MAX);
        let mut signals = Signals::open(meeting, task.role, hints, (parts, task.bytes))?;
        let memory = match task.role {
            Role::Lead => take(meeting, &mut signals.couple, Access::Write)?,
            Role::Follow => own(meeting, &mut signals.couple, parts * task.bytes, Access::Write)?,
        };
        Ok(Self { signals, memory, message_bytes: task.bytes, parts, number: 0 })
    }

    fn turn(&mut self) -> (usize, u64) {
        let part = self.number % self.parts;
        self.number += 1;
        (part, (part * self.message_bytes) as u64)
    }
}

impl Bulk for Places {
    fn give(&mut self, message: &[u8]) -> io::Result<()> {
        let (part, offset) = self.turn();
        self.signals.wait_for(part)?;
        let Memory::Granted(grant) = self.memory else { return Err(io::ErrorKind::InvalidInput.into()) };
        let endpoint = &mut self.signals.couple.endpoint;
        endpoint.copy_out(message, grant, offset, None).map_err(io::Error::other)?;
        self.signals.tell(part)
    }

    fn take(&mut self, places: &[usize; PLACES]) -> io::Result<[u64; PLACES]> {
        let (part, offset) = self.turn();
        self.signals.wait_for(part)?;
        let Memory::Owned(buffer) = &self.memory else { return Err(io::ErrorKind::InvalidInput.into()) };
        let words = words_of(buffer, offset, places)?;
        self.signals.tell(part)?;
        Ok(words)
    }

    fn acknowledge(&mut self) -> io::Result<()> {
        self.signals.tell(TAKEN)?;
        self.signals.show()
    }

    fn acknowledged(&mut self) -> io::Result<()> {
        self.signals.wait_for(TAKEN)
    }
}

/// The words at these places of a message that begins at an offset of a buffer.
pub(super) fn words_of(buffer: &Buffer, offset: u64, places: &[usize; PLACES]) -> io::Result<[u64; PLACES]> {
    let mut words = [0; PLACES];
    for (word, &place) in words.iter_mut().zip(places) {
        let mut bytes = [0; size_of::<u64>()];
        buffer.read(offset + place as u64, &mut bytes).map_err(io::Error::other)?;
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}

/// The follower's knowledge of a grant, beside its two memories.
#[derive(Debug, Serialize, Deserialize)]
struct Word {
    buffer: u64,
    bytes: u64,
    place: u32,
}

/// Makes a buffer and grants it to the other.
pub(super) fn own(
    meeting: &mut Meeting,
    couple: &mut Couple,
    bytes: usize,
    access: Access,
) -> io::Result<Memory> {
    let Couple { endpoint, peer } = couple;
    let mut buffer = endpoint.buffer_alone(bytes, access).map_err(io::Error::other)?;
    let handed = endpoint.grant_alone(&mut buffer, *peer, GRANT).map_err(io::Error::other)?;
    let word = Word { buffer: handed.buffer, bytes: handed.bytes, place: handed.place };
    let word = serde_json::to_vec(&word).map_err(io::Error::other)?;
    meeting.give(&word, &[handed.data, handed.states])?;
    Ok(Memory::Owned(buffer))
}

/// Takes the grant that the other gives.
pub(super) fn take(meeting: &mut Meeting, couple: &mut Couple, access: Access) -> io::Result<Memory> {
    let (word, descriptors) = meeting.take(2)?;
    let [data, states] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| io::ErrorKind::InvalidData)?;
    let Word { buffer, bytes, place } = serde_json::from_slice(&word).map_err(io::Error::other)?;
    let (grant, owner) = (GrantId::new(GRANT), couple.peer);
    let handed = Handed { grant, buffer, owner, access, bytes, place, data, states };
    couple.endpoint.take_grant_alone(handed).map(Memory::Granted).map_err(io::Error::other)
}
