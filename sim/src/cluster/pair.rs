//! The memory of one pair of endpoints on one machine: a ring each way, words, doorbells. What
//! `channel` and `io/endpoint` make of shared memory.

use crate::time::{Bell, Time};
use ipc::{Broken, Link, Way, Word};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use wire::ipc::{Header, record_bytes};

/// Bytes of a ring: small, so that it is full now and then.
pub const RING_BYTES: u32 = 4_096;

#[derive(Default)]
struct Memory {
    rings: [VecDeque<(Header, Vec<u8>)>; 2],
    words: [[u64; 7]; 2],
    listens: [bool; 2],
    closed: [bool; 2],
}

/// One end of it.
pub struct End {
    time: Time,
    memory: Rc<RefCell<Memory>>,
    bells: [Rc<Bell>; 2],
    side: usize,
}

/// Both ends, and the doorbells of each.
#[must_use]
pub fn pair(time: &Time, bells: [&Rc<Bell>; 2]) -> [End; 2] {
    let memory = Rc::new(RefCell::new(Memory::default()));
    [0, 1].map(|side| End {
        time: time.clone(),
        memory: Rc::clone(&memory),
        bells: [Rc::clone(bells[0]), Rc::clone(bells[1])],
        side,
    })
}

impl End {
    fn word<T>(&self, way: Way, word: Word, access: impl FnOnce(&mut u64) -> T) -> T {
        let direction = if way == Way::Out { self.side } else { 1 - self.side };
        access(&mut self.memory.borrow_mut().words[direction][word as usize])
    }
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "End({})", self.side)
    }
}

impl Link for End {
    fn ring_bytes(&self) -> u32 {
        RING_BYTES
    }
    fn load(&self, way: Way, word: Word) -> u64 {
        self.word(way, word, |word| *word)
    }
    fn store(&self, way: Way, word: Word, value: u64) {
        self.word(way, word, |word| *word = value);
    }
    fn replace(&self, way: Way, word: Word, old: u64, new: u64) -> u64 {
        self.word(way, word, |word| {
            let found = *word;
            if found == old {
                *word = new;
            }
            found
        })
    }
    fn set_bits(&self, way: Way, word: Word, bits: u64) {
        self.word(way, word, |word| *word |= bits);
    }
    fn take_bits(&self, way: Way, word: Word) -> u64 {
        self.word(way, word, std::mem::take)
    }
    fn fence(&self) {}
    fn commit(&mut self, header: &Header, payload: &[u8]) -> bool {
        {
            let ring = &mut self.memory.borrow_mut().rings[self.side];
            let used: usize = ring.iter().map(|(_, payload)| record_bytes(payload.len())).sum();
            if used + record_bytes(payload.len()) > RING_BYTES as usize {
                return false;
            }
            ring.push_back((*header, payload.to_vec()));
        }
        if self.take_listener() {
            self.ring();
        }
        true
    }
    fn look(&mut self) -> Result<Option<Header>, Broken> {
        Ok(self.memory.borrow().rings[1 - self.side].front().map(|(header, _)| *header))
    }
    fn take(&mut self, into: &mut Vec<u8>) {
        if let Some((_, payload)) = self.memory.borrow_mut().rings[1 - self.side].pop_front() {
            *into = payload;
        }
    }
    fn listen(&mut self) {
        self.memory.borrow_mut().listens[self.side] = true;
    }
    fn stop_listening(&mut self) {
        self.memory.borrow_mut().listens[self.side] = false;
    }
    fn take_listener(&self) -> bool {
        std::mem::take(&mut self.memory.borrow_mut().listens[1 - self.side])
    }
    fn ring(&self) {
        self.bells[1 - self.side].ring(&self.time);
    }
    fn is_closed(&self) -> bool {
        self.memory.borrow().closed[1 - self.side]
    }
    fn close(&mut self) {
        self.memory.borrow_mut().closed[self.side] = true;
        self.ring();
    }
}
