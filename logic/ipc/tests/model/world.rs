//! The memory of one pair as loom sees it, its two doorbells, and the link over them as
//! `io/endpoint` ships it.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use ipc::{Broken, Endpoint, Limits, Link, Poll, Pulse, Rights, Way, Word};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use wire::ipc::{Address, HEADER_BYTES, HEADER_WORDS, Header};

/// Records that one direction carries in a scene, at most.
const RECORDS: usize = 2;
/// Any size will do: a window is more than the scenes send.
const RING_BYTES: u32 = 4096;

/// An ordering that a test leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// LISTEN and PATH, the side that changes a word: the fence before it looks whether anybody
    /// sleeps, or waits.
    Fence,
    /// LISTEN and PATH, the sleeper: the fence between saying that it sleeps and looking once more.
    Listen,
    /// END: the load of the other end's state.
    EndLoad,
    /// CALL: that what is compared and what is swapped is one access.
    Replace,
}

thread_local! {
    /// Loom runs all threads of a model on one thread of the system, and each test has its own.
    static WEAKENED: Cell<Option<Label>> = const { Cell::new(None) };
}

impl Label {
    pub const ALL: [Label; 4] = [Label::Fence, Label::Listen, Label::EndLoad, Label::Replace];

    fn is_weakened(self) -> bool {
        WEAKENED.get() == Some(self)
    }

    pub fn weaken(self) {
        WEAKENED.set(Some(self));
    }
}

/// A record, which is a header alone, and the word that says that it is there.
struct Slot {
    word: AtomicU64,
    header: [AtomicU64; HEADER_WORDS],
    /// Loom fails when the header is written while it may be read.
    access: UnsafeCell<()>,
}

impl Slot {
    fn new() -> Slot {
        Slot {
            word: AtomicU64::new(0),
            header: std::array::from_fn(|_| AtomicU64::new(0)),
            access: UnsafeCell::new(()),
        }
    }

    fn put(&self, header: &Header) {
        self.access.with_mut(|_| ());
        for (to, word) in self.header.iter().zip(header.to_words()) {
            to.store(word, Relaxed);
        }
        self.word.store(1, Release);
    }

    fn get(&self) -> Option<Header> {
        if self.word.load(Acquire) == 0 {
            return None;
        }
        self.access.with(|_| ());
        let bytes: [[u8; 8]; HEADER_WORDS] =
            std::array::from_fn(|at| self.header[at].load(Relaxed).to_le_bytes());
        let header = bytes.as_flattened().try_into().unwrap();
        Some(Header::read(header, HEADER_BYTES).unwrap())
    }
}

/// A pipe: rings are kept until they are heard.
struct Doorbell {
    rung: Mutex<bool>,
    heard: Condvar,
}

/// The pair's memory and doorbells; by side.
pub struct World {
    rings: [[Slot; RECORDS]; 2],
    words: [[AtomicU64; 7]; 2],
    sleeping: [AtomicU64; 2],
    ends: [AtomicU64; 2],
    bells: [Doorbell; 2],
    before_fence: AtomicU64,
}

impl World {
    pub fn new() -> Arc<World> {
        let two = || std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(World {
            rings: std::array::from_fn(|_| std::array::from_fn(|_| Slot::new())),
            words: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            sleeping: two(),
            ends: two(),
            bells: std::array::from_fn(|_| Doorbell { rung: Mutex::new(false), heard: Condvar::new() }),
            before_fence: AtomicU64::new(0),
        })
    }

    fn ring(&self, side: usize) {
        *self.bells[side].rung.lock().unwrap() = true;
        self.bells[side].heard.notify_one();
    }

    fn sleep(&self, side: usize) {
        let mut rung = self.bells[side].rung.lock().unwrap();
        while !*rung {
            rung = self.bells[side].heard.wait(rung).unwrap();
        }
        *rung = false;
    }

    fn fence(&self, label: Option<Label>) {
        // Loom lets nobody in between a store and a fence behind it, unless something happens
        // there.
        self.before_fence.fetch_add(1, Relaxed);
        if !label.is_some_and(Label::is_weakened) {
            fence(Ordering::SeqCst);
        }
    }

    /// End `side` goes, as `channel::Duplex` does when it is dropped: it says so, and rings
    /// whatever anybody said.
    pub fn close(&self, side: usize) {
        self.ends[side].store(1, Release);
        self.ring(1 - side);
    }
}

/// One end of the pair.
pub struct End {
    world: Arc<World>,
    side: usize,
    sent: usize,
    taken: usize,
}

impl End {
    fn word(&self, way: Way, word: Word) -> &AtomicU64 {
        let direction = if way == Way::Out { self.side } else { 1 - self.side };
        &self.world.words[direction][word as usize]
    }
}

impl Link for End {
    fn ring_bytes(&self) -> u32 {
        RING_BYTES
    }
    fn load(&self, way: Way, word: Word) -> u64 {
        self.word(way, word).load(Acquire)
    }
    fn store(&self, way: Way, word: Word, value: u64) {
        self.word(way, word).store(value, Release);
    }
    fn replace(&self, way: Way, word: Word, old: u64, new: u64) -> u64 {
        let word = self.word(way, word);
        if Label::Replace.is_weakened() {
            let found = word.load(Acquire);
            if found == old {
                word.store(new, Release);
            }
            return found;
        }
        word.compare_exchange(old, new, AcqRel, Relaxed).unwrap_or_else(|found| found)
    }
    fn set_bits(&self, way: Way, word: Word, bits: u64) {
        self.word(way, word).fetch_or(bits, AcqRel);
    }
    fn take_bits(&self, way: Way, word: Word) -> u64 {
        self.word(way, word).swap(0, AcqRel)
    }
    fn fence(&self) {
        self.world.fence(Some(Label::Fence));
    }
    fn commit(&mut self, header: &Header, _payload: &[u8]) -> bool {
        let Some(slot) = self.world.rings[self.side].get(self.sent) else { return false };
        self.sent += 1;
        slot.put(header);
        // SLEEP, of the ring: not what is tried here.
        self.world.fence(None);
        if self.take_listener() {
            self.ring();
        }
        true
    }
    fn look(&mut self) -> Result<Option<Header>, Broken> {
        let Some(slot) = self.world.rings[1 - self.side].get(self.taken) else { return Ok(None) };
        Ok(slot.get())
    }
    fn take(&mut self, into: &mut Vec<u8>) {
        into.clear();
        self.taken += 1;
    }
    fn listen(&mut self) {
        self.world.sleeping[self.side].swap(1, Relaxed);
        self.world.fence(Some(Label::Listen));
    }
    fn stop_listening(&mut self) {
        if self.world.sleeping[self.side].load(Relaxed) != 0 {
            self.world.sleeping[self.side].swap(0, Relaxed);
        }
    }
    fn take_listener(&self) -> bool {
        let word = &self.world.sleeping[1 - self.side];
        word.load(Relaxed) != 0 && word.swap(0, AcqRel) != 0
    }
    fn ring(&self) {
        self.world.ring(1 - self.side);
    }
    fn is_closed(&self) -> bool {
        let order = if Label::EndLoad.is_weakened() { Relaxed } else { Acquire };
        self.world.ends[1 - self.side].load(order) != 0
    }
    fn close(&mut self) {
        panic!("nobody breaks a rule here");
    }
}

pub fn address(side: usize) -> Address {
    Address { slot: u32::try_from(side).unwrap() + 1, generation: 1 }
}

/// An endpoint and what it does to wait.
pub struct Actor {
    pub endpoint: Endpoint<End>,
    pub world: Arc<World>,
    pub side: usize,
}

/// When a call that would sleep is told something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Nothing: it sleeps until it is rung.
    Endless,
    /// That its time is over.
    Late,
    /// To look for deadlocks, with this label; then it sleeps.
    Searches(u64),
}

impl Actor {
    pub fn new(world: &Arc<World>, side: usize) -> Actor {
        let mut endpoint = Endpoint::new(address(side), Limits::default());
        let link = End { world: Arc::clone(world), side, sent: 0, taken: 0 };
        endpoint.bind(address(1 - side), Rights::ALL, link).unwrap();
        Actor { endpoint, world: Arc::clone(world), side }
    }

    /// Polls as `io/endpoint` does: once without saying that it sleeps, then until the call is
    /// over.
    pub fn drive<T>(
        &mut self,
        patience: Patience,
        mut poll: impl FnMut(&mut Endpoint<End>, Pulse) -> Poll<T>,
    ) -> T {
        let mut pulse = Pulse { spins: true, ..Pulse::default() };
        loop {
            match poll(&mut self.endpoint, pulse) {
                Poll::Ready(done) => return done,
                Poll::Again => continue,
                Poll::Sleep(_) if pulse.spins => pulse.spins = false,
                Poll::Sleep(_) => match patience {
                    Patience::Late => pulse.late = true,
                    Patience::Searches(label) if pulse.label.is_none() => pulse.label = Some(label),
                    _ => {
                        self.world.sleep(self.side);
                        self.endpoint.heard(address(1 - self.side));
                    }
                },
            }
        }
    }

    /// Ends as a dropped endpoint does.
    pub fn close(&self) {
        self.world.close(self.side);
    }
}

/// Runs a model in every interleaving and every legal reordering, up to so many preemptions.
pub fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS overrides.
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}
