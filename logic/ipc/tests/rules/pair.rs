//! A channel in the memory of one thread, whose other end a test may hold as a peer that keeps to
//! no rule.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ipc::{Broken, Endpoint, Limits, Link, Rights, Way, Word};
use wire::ipc::{Address, Header};

pub const RING_BYTES: u32 = 4096;

#[derive(Debug, Default)]
pub struct Channel {
    pub rings: [VecDeque<(Header, Vec<u8>)>; 2],
    pub words: [[u64; 7]; 2],
    pub listens: [bool; 2],
    pub bells: [bool; 2],
    pub closed: [bool; 2],
}

/// One end.
#[derive(Clone, Debug)]
pub struct End {
    pub channel: Rc<RefCell<Channel>>,
    pub side: usize,
}

pub fn pair() -> (End, End) {
    let channel = Rc::new(RefCell::new(Channel::default()));
    (End { channel: Rc::clone(&channel), side: 0 }, End { channel, side: 1 })
}

pub fn address(slot: u32) -> Address {
    Address { slot, generation: 1 }
}

pub fn endpoint(slot: u32) -> Endpoint<End> {
    Endpoint::new(address(slot), Limits::default())
}

/// Binds two endpoints to each other.
pub fn join(one: &mut Endpoint<End>, other: &mut Endpoint<End>) {
    let (here, there) = pair();
    one.bind(other.address(), Rights::ALL, here).unwrap();
    other.bind(one.address(), Rights::ALL, there).unwrap();
}

/// An endpoint, and the other end of its pair with the peer at `slot`, whom the test plays.
pub fn with_stranger(endpoint: &mut Endpoint<End>, slot: u32) -> End {
    let (here, there) = pair();
    endpoint.bind(address(slot), Rights::ALL, here).unwrap();
    there
}

impl End {
    pub fn word(&self, way: Way, word: Word, access: impl FnOnce(&mut u64)) -> u64 {
        let direction = if way == Way::Out { self.side } else { 1 - self.side };
        let found = &mut self.channel.borrow_mut().words[direction][word as usize];
        let before = *found;
        access(found);
        before
    }

    /// Puts a record into the ring, whatever it is.
    pub fn put(&self, header: Header, payload: &[u8]) {
        self.channel.borrow_mut().rings[self.side].push_back((header, payload.to_vec()));
    }

    pub fn is_cut_off(&self) -> bool {
        self.channel.borrow().closed[1 - self.side]
    }
}

impl Link for End {
    fn ring_bytes(&self) -> u32 {
        RING_BYTES
    }
    fn load(&self, way: Way, word: Word) -> u64 {
        self.word(way, word, |_| {})
    }
    fn store(&self, way: Way, word: Word, value: u64) {
        self.word(way, word, |word| *word = value);
    }
    fn replace(&self, way: Way, word: Word, old: u64, new: u64) -> u64 {
        self.word(way, word, |word| {
            if *word == old {
                *word = new;
            }
        })
    }
    fn set_bits(&self, way: Way, word: Word, bits: u64) {
        self.word(way, word, |word| *word |= bits);
    }
    fn take_bits(&self, way: Way, word: Word) -> u64 {
        self.word(way, word, |word| *word = 0)
    }
    fn fence(&self) {}
    fn commit(&mut self, header: &Header, payload: &[u8]) -> bool {
        let bytes = |payload: &[u8]| wire::ipc::record_bytes(payload.len());
        let used: usize = self.channel.borrow().rings[self.side].iter().map(|(_, p)| bytes(p)).sum();
        let fits = used + bytes(payload) <= RING_BYTES as usize;
        if fits {
            self.put(*header, payload);
        }
        fits
    }
    fn look(&mut self) -> Result<Option<Header>, Broken> {
        Ok(self.channel.borrow().rings[1 - self.side].front().map(|(header, _)| *header))
    }
    fn take(&mut self, into: &mut Vec<u8>) {
        *into = self.channel.borrow_mut().rings[1 - self.side].pop_front().unwrap().1;
    }
    fn listen(&mut self) {
        self.channel.borrow_mut().listens[self.side] = true;
    }
    fn stop_listening(&mut self) {
        self.channel.borrow_mut().listens[self.side] = false;
    }
    fn take_listener(&self) -> bool {
        std::mem::take(&mut self.channel.borrow_mut().listens[1 - self.side])
    }
    fn ring(&self) {
        self.channel.borrow_mut().bells[1 - self.side] = true;
    }
    fn is_closed(&self) -> bool {
        self.channel.borrow().closed[1 - self.side]
    }
    fn close(&mut self) {
        self.channel.borrow_mut().closed[self.side] = true;
    }
}
