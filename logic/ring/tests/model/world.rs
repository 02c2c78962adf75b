//! Memory, doorbells, futexes and membarrier(2) as loom sees them, and two ends that use the ring
//! as `io/channel` does.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use ring::{
    Consumer, Memory, Peek, Place, Prepared, Producer, ReserveError, Sleep, Taken, Wake, end_state, rouse,
    set_end_state,
};
use wire::ring as layout;

/// The smallest ring: one message of eight bytes, and the word behind it, fill most of it.
pub const TINY: usize = 32;
/// A ring in which an empty message is less than the quarter at which `consumed` is published.
pub const SMALL: usize = 64;
/// A ring in which one publication of `consumed` covers two messages.
pub const MODEST: usize = 128;
const CONTROL: usize = layout::OFFSET_CONTROLS;
const DATA: usize = layout::HEADER_BYTES;

/// The control words that the algorithm orders others by.
const CONTROLS: [usize; 5] = [
    layout::CONTROL_CONSUMED,
    layout::CONTROL_BARRIER,
    layout::CONTROL_SLEEPING,
    layout::CONTROL_WANTED,
    layout::CONTROL_UNFENCED,
];

/// Shared memory under loom: only the words that the algorithm uses.
pub struct Words {
    data: [AtomicU64; MODEST / 8],
    /// Beside each word, whether it is read or written as payload: loom fails when the ring lets
    /// one party write what the other may still be reading, which relaxed words alone would not
    /// show.
    payload: [UnsafeCell<()>; MODEST / 8],
    control: [AtomicU64; CONTROLS.len()],
    ends: [AtomicU64; 2],
    before_fence: AtomicU64,
    remote: Remote,
}

/// membarrier(2): the caller asks, the thread that does without fences executes one before its next
/// step, and the caller goes on when it has, or when it does not run (a thread that is put to sleep
/// has passed a fence). Nothing but these fences orders anything: the words of the asking and
/// answering are relaxed.
struct Remote {
    asked: AtomicU64,
    answered: AtomicU64,
    /// 1 while the thread does not run.
    quiet: AtomicU64,
}

impl Words {
    fn new() -> Arc<Words> {
        let zero = || AtomicU64::new(0);
        Arc::new(Words {
            data: std::array::from_fn(|_| zero()),
            payload: std::array::from_fn(|_| UnsafeCell::new(())),
            control: std::array::from_fn(|_| zero()),
            ends: [zero(), zero()],
            before_fence: zero(),
            remote: Remote { asked: zero(), answered: zero(), quiet: zero() },
        })
    }

    fn payload(&self, offset: usize) -> &UnsafeCell<()> {
        &self.payload[(offset - DATA) / 8]
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        if offset >= DATA {
            return &self.data[(offset - DATA) / 8];
        }
        if offset < CONTROL {
            return &self.ends[(offset - layout::OFFSET_ENDS) / layout::END_STRIDE];
        }
        let index = CONTROLS.iter().position(|control| CONTROL + control == offset);
        &self.control[index.expect("a word that the model has")]
    }
}

/// One party's view of the memory. A party that dies does so before its `life`-th change to memory:
/// nothing that it does afterwards shows.
#[derive(Clone)]
pub struct View {
    words: Arc<Words>,
    life: Rc<Cell<usize>>,
    /// The party does without fences, and answers barriers.
    answers: bool,
    /// Barriers that this party has asked for or answered.
    barriers: Rc<Cell<u64>>,
}

impl View {
    pub fn new(world: &World) -> View {
        View::mortal(world, usize::MAX)
    }

    pub fn mortal(world: &World, life: usize) -> View {
        View {
            words: Arc::clone(&world.words),
            life: Rc::new(Cell::new(life)),
            answers: false,
            barriers: Rc::default(),
        }
    }

    pub fn answering(mut self) -> View {
        self.answers = true;
        self
    }

    pub fn is_alive(&self) -> bool {
        self.life.get() > 0
    }

    /// Whether the next change to memory still happens.
    fn live_on(&self) -> bool {
        let alive = self.is_alive();
        self.life.set(self.life.get().saturating_sub(1));
        alive
    }

    /// Between two steps: the fence that somebody else has asked this thread for.
    fn answer(&self) {
        if !self.answers {
            return;
        }
        let asked = self.words.remote.asked.load(Ordering::Relaxed);
        if asked != self.barriers.get() {
            fence(Ordering::SeqCst);
            self.barriers.set(asked);
            self.words.remote.answered.store(asked, Ordering::Relaxed);
        }
    }

    /// Runs what puts this thread to sleep.
    pub fn off_the_processor<T>(&self, sleep: impl FnOnce() -> T) -> T {
        if !self.answers {
            return sleep();
        }
        self.stop();
        let result = sleep();
        self.words.remote.quiet.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        result
    }

    /// This thread runs no more.
    pub fn stop(&self) {
        if self.answers {
            fence(Ordering::SeqCst);
            self.words.remote.quiet.store(1, Ordering::Relaxed);
        }
    }
}

impl Memory for View {
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.answer();
        self.words.word(offset).load(order)
    }
    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.answer();
        if self.live_on() {
            self.words.word(offset).store(value, order);
        }
    }
    fn swap(&self, offset: usize, value: u64, order: Ordering) -> u64 {
        self.answer();
        if self.live_on() { self.words.word(offset).swap(value, order) } else { 0 }
    }
    fn fence(&self) {
        // Loom lets nobody in between a store and a fence behind it, unless something happens
        // there.
        self.words.before_fence.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
    fn no_fence(&self) {}
    fn barrier(&self) -> bool {
        let Remote { asked, answered, quiet } = &self.words.remote;
        fence(Ordering::SeqCst);
        let number = self.barriers.get() + 1;
        self.barriers.set(number);
        asked.store(number, Ordering::Relaxed);
        while answered.load(Ordering::Relaxed) < number && quiet.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        fence(Ordering::SeqCst);
        true
    }
    // The payload is not synchronized: relaxed accesses, so the model reorders it wherever the
    // algorithm lets it.
    fn copy_in(&self, offset: usize, from: &[u8]) {
        for (index, word) in from.chunks_exact(8).enumerate() {
            let value = u64::from_le_bytes(word.try_into().unwrap());
            if self.is_alive() {
                self.words.payload(offset + 8 * index).with_mut(|_| ());
            }
            self.store(offset + 8 * index, value, Ordering::Relaxed);
        }
    }
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        for (index, word) in into.chunks_exact_mut(8).enumerate() {
            self.words.payload(offset + 8 * index).with(|_| ());
            word.copy_from_slice(&self.load(offset + 8 * index, Ordering::Relaxed).to_le_bytes());
        }
    }
}

/// A pipe: rings are kept until they are heard; the end of the other party is heard as well.
pub struct Doorbell {
    rung: Mutex<(bool, bool)>,
    heard: Condvar,
}

impl Doorbell {
    fn new() -> Arc<Doorbell> {
        Arc::new(Doorbell { rung: Mutex::new((false, false)), heard: Condvar::new() })
    }
    pub fn ring(&self) {
        self.rung.lock().unwrap().0 = true;
        self.heard.notify_one();
    }
    fn hang_up(&self) {
        self.rung.lock().unwrap().1 = true;
        self.heard.notify_one();
    }
    /// Waits for a ring; true when the other party is dead.
    fn listen(&self) -> bool {
        let mut rung = self.rung.lock().unwrap();
        while *rung == (false, false) {
            rung = self.heard.wait(rung).unwrap();
        }
        rung.0 = false;
        rung.1
    }
}

/// The kernel's side of a futex.
pub struct Futex {
    /// The other party is dead, so this sleep is going to be over by its time: nobody wakes it.
    over: Mutex<bool>,
    woken: Condvar,
}

impl Futex {
    fn new() -> Arc<Futex> {
        Arc::new(Futex { over: Mutex::new(false), woken: Condvar::new() })
    }
    fn wake(&self) {
        // The lock of the kernel's queue.
        drop(self.over.lock().unwrap());
        self.woken.notify_one();
    }
    /// Sleeps while the word is as expected. True: until the time was over.
    fn sleep(&self, word: &AtomicU64, expected: u64) -> bool {
        let over = self.over.lock().unwrap();
        if !*over && word.load(Ordering::Relaxed) == expected {
            return *self.woken.wait(over).unwrap();
        }
        *over
    }
    fn end(&self) {
        *self.over.lock().unwrap() = true;
        self.woken.notify_one();
    }
}

/// How the two ends sleep.
#[derive(Clone, Copy, PartialEq)]
pub enum Naps {
    /// On their doorbells at once.
    None,
    /// On their futexes, and the time is over as soon as they do.
    TooShort,
    /// On their futexes, for as long as it takes.
    LongEnough,
}

pub const ALL_NAPS: [Naps; 3] = [Naps::None, Naps::TooShort, Naps::LongEnough];

pub fn place(capacity: usize) -> Place {
    Place::new(CONTROL, DATA, capacity).unwrap()
}

/// The channel's memory, two doorbells and two futexes.
#[derive(Clone)]
pub struct World {
    words: Arc<Words>,
    naps: Naps,
    /// Messages go the short way, if it takes them.
    at_once: bool,
    pub data: Arc<Doorbell>,
    pub room: Arc<Doorbell>,
    pub data_futex: Arc<Futex>,
    pub room_futex: Arc<Futex>,
}

impl World {
    pub fn new(naps: Naps) -> World {
        World {
            words: Words::new(),
            naps,
            // So that both ways are run in each scene that is run for all kinds of naps.
            at_once: naps == Naps::LongEnough,
            data: Doorbell::new(),
            room: Doorbell::new(),
            data_futex: Futex::new(),
            room_futex: Futex::new(),
        }
    }

    pub fn wake_consumer(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::Doorbell => self.data.ring(),
            Wake::Futex => self.data_futex.wake(),
        }
    }

    pub fn wake_producer(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::Doorbell => self.room.ring(),
            Wake::Futex => self.room_futex.wake(),
        }
    }

    /// Closes end `side`, as `channel::Sender::close` does.
    pub fn close(&self, view: &View, side: usize) {
        set_end_state(view, side, layout::END_CLOSED);
        rouse(view, &place(TINY));
        self.data_futex.wake();
        self.room_futex.wake();
        self.data.ring();
        self.room.ring();
    }

    /// The producer's process is gone: its pipes hang up, and whoever sleeps on a futex does so to
    /// the end.
    pub fn bury_producer(&self) {
        self.data.hang_up();
        self.data_futex.end();
    }

    /// The ways to sleep, in the order in which they are tried.
    fn ways(&self) -> &'static [Sleep] {
        if self.naps == Naps::None { &[Sleep::OnDoorbell] } else { &[Sleep::OnFutex, Sleep::OnDoorbell] }
    }

    /// Sleeps on a futex. True: in vain.
    fn nap(&self, futex: &Futex, offset: usize, prepared: &Prepared) -> bool {
        self.naps == Naps::TooShort || futex.sleep(self.words.word(offset), prepared.word)
    }

    /// Sends as `channel::Sender::send` does. False: the receiving end has closed, or this one is
    /// dead.
    pub fn send(&self, producer: &mut Producer<View>, view: &View, message: &[u8]) -> bool {
        loop {
            if !view.is_alive() || end_state(view, 1) == layout::END_CLOSED {
                return false;
            }
            if self.at_once
                && let Some(wake) = producer.send_at_once(message)
            {
                self.tell(view, wake);
                return true;
            }
            match producer.reserve(message.len()) {
                Ok(mut slot) => {
                    assert!(slot.fill(&[message]));
                    let wake = slot.commit();
                    self.tell(view, wake);
                    return true;
                }
                Err(ReserveError::Full) => {}
                Err(error) => panic!("{error}"),
            }
            self.flush(producer, view);
            for &how in self.ways() {
                let prepared = producer.prepare_wait(message.len(), how).unwrap();
                if !prepared.sleep {
                    break;
                }
                let mut in_vain = false;
                // The dead do not sleep.
                if end_state(view, 1) != layout::END_CLOSED && view.is_alive() {
                    in_vain = view.off_the_processor(|| match how {
                        Sleep::OnDoorbell => self.room.listen(),
                        Sleep::OnFutex => self.nap(&self.room_futex, place(TINY).wanted(), &prepared),
                    });
                }
                producer.cancel_wait();
                if !in_vain {
                    break;
                }
            }
        }
    }

    pub fn flush(&self, producer: &mut Producer<View>, view: &View) {
        let wake = producer.flush();
        self.tell(view, wake);
    }

    fn tell(&self, view: &View, wake: Wake) {
        // The living only wake anybody.
        if wake.is_needed() && view.live_on() {
            self.wake_consumer(wake);
        }
    }

    /// Receives as `channel::Receiver::receive` does. `None`: the sending end has closed or is
    /// dead.
    pub fn receive(&self, consumer: &mut Consumer<View>, view: &View, dead: &mut bool) -> Option<Vec<u8>> {
        loop {
            if let Some(message) = self.take(consumer) {
                return Some(message);
            }
            if *dead || end_state(view, 0) == layout::END_CLOSED {
                return self.take(consumer);
            }
            for &how in self.ways() {
                let prepared = consumer.prepare_wait(how);
                assert!(!prepared.blind);
                self.wake_producer(prepared.wake);
                if !prepared.sleep {
                    break;
                }
                let mut in_vain = false;
                if end_state(view, 0) != layout::END_CLOSED {
                    match how {
                        Sleep::OnDoorbell => *dead |= self.data.listen(),
                        Sleep::OnFutex => {
                            in_vain = self.nap(&self.data_futex, place(TINY).sleeping(), &prepared);
                        }
                    }
                }
                consumer.cancel_wait();
                if !in_vain {
                    break;
                }
            }
        }
    }

    pub fn take(&self, consumer: &mut Consumer<View>) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        match if self.at_once { consumer.take_at_once(&mut message) } else { Taken::Unusual } {
            Taken::Message(_) => return Some(message),
            Taken::Nothing => return None,
            Taken::Unusual => {}
        }
        match consumer.peek().unwrap() {
            Peek::Message(record) => {
                let mut message = Vec::new();
                consumer.append(&record, &mut message);
                self.wake_producer(consumer.release(record));
                Some(message)
            }
            Peek::Empty { wake } => {
                self.wake_producer(wake);
                None
            }
        }
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
