//! One cache line that is handed to and fro: no round trip between two processors is shorter.

use super::super::meeting::Meeting;
use super::super::task::{LAST, MORE, Task};
use super::{Transport, shared_region};
use std::io;
use std::sync::atomic::Ordering;
use sys::region::Region;

/// One page, of which one word is used.
const REGION_BYTES: usize = 4096;
/// Where the word stands, and the word that says which message is the last.
const WORD: usize = 0;

/// A turn is a number; the leader writes odd ones, the follower even ones. The last is told by its
/// high bit.
#[derive(Debug)]
pub struct Line {
    region: Region,
    turn: u64,
    last: [u8; 1],
}

/// Set in the last turn.
const LAST_TURN: u64 = 1 << 63;

impl Line {
    /// Opens it.
    pub fn open(meeting: &mut Meeting, task: &Task) -> io::Result<Self> {
        Ok(Self { region: shared_region(meeting, task.role, REGION_BYTES)?, turn: 0, last: [MORE] })
    }
}

impl Transport for Line {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.turn += 1;
        let mark = if message.first() == Some(&LAST) { LAST_TURN } else { 0 };
        self.region.store_u64(WORD, self.turn | mark, Ordering::Release);
        Ok(())
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        self.turn += 1;
        loop {
            let found = self.region.load_u64(WORD, Ordering::Acquire);
            if found & !LAST_TURN == self.turn {
                self.last = [if found & LAST_TURN == 0 { MORE } else { LAST }];
                return Ok(&self.last);
            }
            std::hint::spin_loop();
        }
    }
}
