//! A ring of slots that trusts its peer, never sleeps and can't notice its death: what is left when
//! everything is taken away that a channel has to have.

use super::super::meeting::Meeting;
use super::super::task::{Role, Task};
use super::{Transport, shared_region};
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sys::region::Region;

/// In front of the two rings: what each consumer has taken, each in lines of its own.
const HEADER_BYTES: usize = 4096;
/// Distance of the two counts.
const COUNT_STRIDE: usize = 256;
/// A slot's word: the number of its message, which only grows, so it need not be cleared.
const WORD_BYTES: usize = 8;
/// Slots start at cache lines.
const LINE_BYTES: usize = 64;

/// Both directions.
#[derive(Debug)]
pub struct Ring {
    outward: Direction,
    inward: Direction,
    message: Vec<u8>,
}

#[derive(Debug)]
struct Direction {
    region: Arc<Region>,
    /// Where its slots begin.
    base: usize,
    /// Where its count of taken messages stands.
    count: usize,
    slot_bytes: usize,
    slots: u64,
    /// Messages so far.
    number: u64,
    /// Taken messages, as last seen (by the sender) or published (by the receiver).
    taken: u64,
}

impl Ring {
    /// Opens it.
    pub fn open(meeting: &mut Meeting, task: &Task, ring_bytes: u32) -> io::Result<Self> {
        let slot_bytes = (WORD_BYTES + task.bytes).next_multiple_of(LINE_BYTES);
        let slots = (ring_bytes as usize / slot_bytes).max(4);
        let region = Arc::new(shared_region(meeting, task.role, HEADER_BYTES + 2 * slots * slot_bytes)?);
        let direction = |index: usize| Direction {
            region: Arc::clone(&region),
            base: HEADER_BYTES + index * slots * slot_bytes,
            count: index * COUNT_STRIDE,
            slot_bytes,
            slots: slots as u64,
            number: 0,
            taken: 0,
        };
        let (outward, inward) = match task.role {
            Role::Lead => (direction(0), direction(1)),
            Role::Follow => (direction(1), direction(0)),
        };
        Ok(Self { outward, inward, message: vec![0; task.bytes] })
    }
}

impl Direction {
    fn slot(&self) -> usize {
        self.base + (self.number % self.slots) as usize * self.slot_bytes
    }
}

impl Transport for Ring {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let ring = &mut self.outward;
        while ring.number - ring.taken == ring.slots {
            ring.taken = ring.region.load_u64(ring.count, Ordering::Acquire);
            std::hint::spin_loop();
        }
        let slot = ring.slot();
        ring.region.copy_in(slot + WORD_BYTES, message);
        ring.number += 1;
        ring.region.store_u64(slot, ring.number, Ordering::Release);
        Ok(())
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        let ring = &mut self.inward;
        let slot = ring.slot();
        // The line behind is fetched together with the one that is awaited.
        let behind = slot + if ring.slot_bytes > LINE_BYTES { LINE_BYTES } else { 0 };
        loop {
            black_box(ring.region.load_u64(behind, Ordering::Relaxed));
            if ring.region.load_u64(slot, Ordering::Acquire) == ring.number + 1 {
                break;
            }
            std::hint::spin_loop();
        }
        ring.region.copy_out(slot + WORD_BYTES, &mut self.message);
        ring.number += 1;
        if ring.number - ring.taken >= ring.slots / 4 {
            ring.taken = ring.number;
            ring.region.store_u64(ring.count, ring.taken, Ordering::Release);
        }
        Ok(&self.message)
    }
}
