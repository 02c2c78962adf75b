//! Bulk between two buffers, one of the sender's and one of the receiver's, each granted to the
//! other: each end copies a half of every message, at the same time.

use super::super::copies::{Bulk, PLACES};
use super::super::means::Hints;
use super::endpoint::Couple;
use super::grants::{Memory, Signals, TAKEN, own, take, words_of};
use crate::channel::meeting::Meeting;
use crate::channel::task::{Role, Task};
use endpoint::{Access, Buffer, GrantId};
use std::io;

/// Parts of the receiver's buffer: while it looks at one, both copy to the other.
const PARTS: usize = 2;
/// The tag by which either says that its half is copied.
const HALF: usize = 62;
/// A half ends with a line of the processor's cache.
const LINE_BYTES: usize = 64;

/// One end.
#[derive(Debug)]
pub struct Halves {
    signals: Signals,
    role: Role,
    /// The message to be sent, or the parts where messages arrive.
    own: Buffer,
    others: GrantId,
    message_bytes: usize,
    /// Messages so far.
    number: usize,
}

impl Halves {
    /// Brings the two together.
    ///
    /// # Errors
    /// Those of [`Couple::open`] and of grants.
    pub fn open(meeting: &mut Meeting, task: &Task) -> io::Result<Self> {
        let bytes = task.bytes;
        let mut signals = Signals::open(meeting, task.role, Hints::Messages, (PARTS, bytes))?;
        let couple = &mut signals.couple;
        let (own, others) = match task.role {
            Role::Lead => {
                let own = own(meeting, couple, bytes, Access::Read)?;
                (own, take(meeting, couple, Access::Write)?)
            }
            Role::Follow => {
                let others = take(meeting, couple, Access::Read)?;
                (self::own(meeting, couple, PARTS * bytes, Access::Write)?, others)
            }
        };
        let (Memory::Owned(own), Memory::Granted(others)) = (own, others) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok(Self { signals, role: task.role, own, others, message_bytes: bytes, number: 0 })
    }

    /// The part that is next, and where it begins.
    fn turn(&mut self) -> (usize, u64) {
        let part = self.number % PARTS;
        self.number += 1;
        (part, (part * self.message_bytes) as u64)
    }

    /// Copies one's own half of the message to a part of the receiver's buffer.
    fn copy(&mut self, part_offset: u64) -> io::Result<()> {
        let Couple { endpoint, .. } = &mut self.signals.couple;
        let half = self.message_bytes / 2 / LINE_BYTES * LINE_BYTES;
        let copied = match self.role {
            Role::Lead => endpoint.copy_from_own((&self.own, 0), (self.others, part_offset), half, None),
            Role::Follow => {
                let (at, rest) = (half as u64, self.message_bytes - half);
                endpoint.copy_to_own((self.others, at), (&mut self.own, part_offset + at), rest, None)
            }
        };
        copied.map_err(io::Error::other)?;
        self.signals.tell(HALF)
    }
}

impl Bulk for Halves {
    fn stamp(&mut self, _message: &mut [u8], words: &[(usize, u64); PLACES]) -> io::Result<()> {
        for &(place, word) in words {
            self.own.write(place as u64, &word.to_ne_bytes()).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn give(&mut self, _message: &[u8]) -> io::Result<()> {
        let (part, offset) = self.turn();
        self.signals.wait_for(part)?;
        self.signals.tell(part)?;
        self.copy(offset)?;
        self.signals.wait_for(HALF)
    }

    fn take(&mut self, places: &[usize; PLACES]) -> io::Result<[u64; PLACES]> {
        let (part, offset) = self.turn();
        self.signals.wait_for(part)?;
        self.copy(offset)?;
        self.signals.wait_for(HALF)?;
        let words = words_of(&self.own, offset, places)?;
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
