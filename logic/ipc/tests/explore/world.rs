//! Memory that endpoints of an exploration share: each access is a step, before which any other
//! endpoint may go on.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use ipc::{Broken, Link, Said, Way, Word};
use wire::ipc::Header;

/// One channel: between the endpoints `low` (side 0) and `high`.
#[derive(Clone, Debug, Default, Hash)]
pub struct Channel {
    rings: [VecDeque<(Header, Vec<u8>)>; 2],
    words: [[u64; 7]; 2],
    /// By side: says that it listens.
    listens: [bool; 2],
    /// By side: has been rung.
    pub bells: [bool; 2],
    pub closed: [bool; 2],
}

/// The event for which an endpoint that stands still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Still {
    /// Nothing: it is about to make a step.
    Step,
    /// A doorbell of this channel, or of any; and whether its time may run out, and whether it can
    /// be told to look for deadlocks.
    Asleep {
        channel: Option<usize>,
        timed: bool,
        may_search: bool,
    },
    /// It has done all its calls.
    Finished,
    Died,
}

/// An event of a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    Rung,
    Late,
    Search,
}

pub struct Thread {
    pub still: Cell<Still>,
    pub event: Cell<Event>,
    /// Stands for all that this endpoint knows: what it read since its state was last written down
    /// here.
    pub trace: Cell<u64>,
}

/// A message of one stand-in to the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mail {
    Said(Said),
    /// The pair of the link is closed.
    Closed,
}

pub struct World {
    /// How many threads are endpoints; those behind them stand in for peers.
    pub endpoints: usize,
    /// The two endpoints are on two nodes: each has a channel with one that stands in for the
    /// other.
    pub far: bool,
    /// On its way to the stand-in at each endpoint.
    pub mail: RefCell<[VecDeque<Mail>; 2]>,
    pub channels: RefCell<Vec<Channel>>,
    pub threads: Vec<Thread>,
    /// The thread that runs.
    pub running: Cell<usize>,
    ring_bytes: u32,
    pub steps: Cell<u64>,
}

pub fn hash_of(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

impl World {
    pub fn new(count: usize, ring_bytes: u32, far: bool) -> World {
        assert!(!far || count == 2, "two nodes have an endpoint each");
        let thread =
            |_| Thread { still: Cell::new(Still::Step), event: Cell::new(Event::Rung), trace: Cell::new(0) };
        World {
            endpoints: count,
            far,
            mail: RefCell::default(),
            channels: RefCell::new(vec![
                Channel::default();
                if count == 2 { 1 + usize::from(far) } else { 3 }
            ]),
            threads: (0..if far { 2 * count } else { count }).map(thread).collect(),
            running: Cell::new(0),
            ring_bytes,
            steps: Cell::new(0),
        }
    }

    /// The channel of an endpoint with another one, of three at the most.
    pub fn channel_of(&self, me: usize, other: usize) -> usize {
        if self.far { me } else { me + other - 1 }
    }

    /// Puts something on its way to a stand-in, and wakes it.
    pub fn post(&self, to: usize, mail: Mail) {
        self.mail.borrow_mut()[to].push_back(mail);
        self.channels.borrow_mut()[to].bells[1 - to] = true;
    }

    /// Writes down what the running endpoint knows; what it read before is in that.
    pub fn know(&self, what: impl Hash) {
        self.threads[self.running.get()].trace.set(hash_of(what));
    }

    /// The running endpoint has learnt something.
    pub fn read(&self, what: impl Hash) {
        let trace = &self.threads[self.running.get()].trace;
        trace.set(hash_of((trace.get(), what)));
    }

    /// Everything that decides what can still happen.
    pub fn state(&self) -> u64 {
        let threads: Vec<_> =
            self.threads.iter().map(|thread| (thread.still.get(), thread.trace.get())).collect();
        hash_of((&*self.channels.borrow(), &*self.mail.borrow(), threads))
    }

    /// The endpoint dies, or who stands in: its channels hang up.
    pub fn kill(&self, endpoint: usize) {
        self.threads[endpoint].still.set(Still::Died);
        if let Some(near) = endpoint.checked_sub(self.endpoints) {
            // One that stands in, and with it what was on its way.
            let mut channels = self.channels.borrow_mut();
            channels[near].closed[1 - near] = true;
            channels[near].bells[near] = true;
            drop(channels);
            self.mail.borrow_mut()[1 - near].clear();
            self.post(1 - near, Mail::Closed);
            return;
        }
        for other in (0..self.endpoints).filter(|other| *other != endpoint) {
            let mut channels = self.channels.borrow_mut();
            let channel = &mut channels[self.channel_of(endpoint, other)];
            let side = usize::from(endpoint > other);
            channel.closed[side] = true;
            channel.bells[1 - side] = true;
        }
    }
}

/// One end of a channel.
pub struct TestLink {
    pub world: Rc<World>,
    pub channel: usize,
    pub side: usize,
    pub looked: bool,
}

impl std::fmt::Debug for TestLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("link")
    }
}

impl TestLink {
    /// One access, before which others may go on. Its result is known from then on.
    fn step<T: Hash>(&self, access: impl FnOnce(&mut Channel) -> T) -> T {
        generator::yield_with(());
        self.world.steps.set(self.world.steps.get() + 1);
        let result = access(&mut self.world.channels.borrow_mut()[self.channel]);
        self.world.read(&result);
        result
    }

    fn word<T: Hash>(&self, way: Way, word: Word, access: impl FnOnce(&mut u64) -> T) -> T {
        let direction = if way == Way::Out { self.side } else { 1 - self.side };
        self.step(|channel| access(&mut channel.words[direction][word as usize]))
    }
}

impl Link for TestLink {
    fn ring_bytes(&self) -> u32 {
        self.world.ring_bytes
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
        let ring = self.side;
        let (bytes, most) = (wire::ipc::record_bytes(payload.len()), self.world.ring_bytes as usize);
        let done = self.step(|channel| {
            let used: usize = channel.rings[ring].iter().map(|(_, p)| wire::ipc::record_bytes(p.len())).sum();
            let fits = used + bytes <= most;
            if fits {
                channel.rings[ring].push_back((*header, payload.to_vec()));
            }
            fits
        });
        if done && self.take_listener() {
            self.ring();
        }
        done
    }
    fn look(&mut self) -> Result<Option<Header>, Broken> {
        let ring = 1 - self.side;
        let found = self.step(|channel| channel.rings[ring].front().map(|(header, _)| *header));
        self.looked = found.is_some();
        Ok(found)
    }
    fn take(&mut self, into: &mut Vec<u8>) {
        assert!(std::mem::take(&mut self.looked), "taken without a look");
        let ring = 1 - self.side;
        let taken = self.step(|channel| channel.rings[ring].pop_front());
        *into = taken.expect("it was there").1;
    }
    fn listen(&mut self) {
        let side = self.side;
        self.step(|channel| channel.listens[side] = true);
    }
    fn stop_listening(&mut self) {
        let side = self.side;
        self.step(|channel| channel.listens[side] = false);
    }
    fn take_listener(&self) -> bool {
        let peer = 1 - self.side;
        self.step(|channel| std::mem::take(&mut channel.listens[peer]))
    }
    fn ring(&self) {
        let peer = 1 - self.side;
        self.step(|channel| channel.bells[peer] = true);
    }
    fn is_closed(&self) -> bool {
        let peer = 1 - self.side;
        self.step(|channel| channel.closed[peer])
    }
    fn close(&mut self) {
        let side = self.side;
        self.step(|channel| {
            channel.closed[side] = true;
            channel.bells[1 - side] = true;
        });
    }
}
