//! The ring that ships, model-checked: every interleaving and every legal reordering of tiny rings.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p ring --release --test model`. A lost wake-up shows as a
//! deadlock, a lost or half-written message as a failed assertion.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use ring::{Consumer, Memory, Peek, Place, Producer, ReserveError, end_state, set_end_state};
use wire::ring as layout;

/// The smallest ring: one message of eight bytes, and the word behind it, fill most of it.
const TINY: usize = 32;
/// A ring in which an empty message is less than the quarter at which `consumed` is published.
const SMALL: usize = 64;
/// A ring in which one publication of `consumed` covers two messages.
const MODEST: usize = 128;
const CONTROL: usize = layout::OFFSET_CONTROLS;
const DATA: usize = layout::HEADER_BYTES;

/// Shared memory under loom: only the words that the algorithm uses.
struct Words {
    data: [AtomicU64; MODEST / 8],
    /// Beside each word, whether it is read or written as payload: loom fails when the ring lets one party write what
    /// the other may still be reading, which relaxed words alone would not show.
    payload: [UnsafeCell<()>; MODEST / 8],
    control: [AtomicU64; 3],
    ends: [AtomicU64; 2],
    before_fence: AtomicU64,
}

impl Words {
    fn new() -> Arc<Words> {
        let zero = || AtomicU64::new(0);
        Arc::new(Words {
            data: std::array::from_fn(|_| zero()),
            payload: std::array::from_fn(|_| UnsafeCell::new(())),
            control: [zero(), zero(), zero()],
            ends: [zero(), zero()],
            before_fence: zero(),
        })
    }

    fn payload(&self, offset: usize) -> &UnsafeCell<()> {
        &self.payload[(offset - DATA) / 8]
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        const CONTROLS: [usize; 3] =
            [layout::CONTROL_CONSUMED, layout::CONTROL_SLEEPING, layout::CONTROL_WANTED];
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

/// One party's view of the memory. A party that dies does so before its `life`-th change to memory: nothing that it
/// does afterwards shows.
#[derive(Clone)]
struct View {
    words: Arc<Words>,
    life: std::rc::Rc<std::cell::Cell<usize>>,
}

impl View {
    fn new(words: &Arc<Words>) -> View {
        View::mortal(words, usize::MAX)
    }

    fn mortal(words: &Arc<Words>, life: usize) -> View {
        View { words: Arc::clone(words), life: std::rc::Rc::new(std::cell::Cell::new(life)) }
    }

    fn is_alive(&self) -> bool {
        self.life.get() > 0
    }

    /// Whether the next change to memory still happens.
    fn live_on(&self) -> bool {
        let alive = self.is_alive();
        self.life.set(self.life.get().saturating_sub(1));
        alive
    }
}

impl Memory for View {
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.words.word(offset).load(order)
    }
    fn store(&self, offset: usize, value: u64, order: Ordering) {
        if self.live_on() {
            self.words.word(offset).store(value, order);
        }
    }
    fn swap(&self, offset: usize, value: u64, order: Ordering) -> u64 {
        if self.live_on() { self.words.word(offset).swap(value, order) } else { 0 }
    }
    fn fence(&self) {
        // Loom lets nobody in between a store and a fence behind it, unless something happens there.
        self.words.before_fence.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
    // The payload is not synchronized: relaxed accesses, so the model reorders it wherever the algorithm lets it.
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
struct Doorbell {
    rung: Mutex<(bool, bool)>,
    heard: Condvar,
}

impl Doorbell {
    fn new() -> Arc<Doorbell> {
        Arc::new(Doorbell { rung: Mutex::new((false, false)), heard: Condvar::new() })
    }
    fn ring(&self) {
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

fn place(capacity: usize) -> Place {
    Place::new(CONTROL, DATA, capacity).unwrap()
}

/// The channel's two doorbells and its memory.
#[derive(Clone)]
struct World {
    words: Arc<Words>,
    data: Arc<Doorbell>,
    room: Arc<Doorbell>,
}

impl World {
    fn new() -> World {
        World { words: Words::new(), data: Doorbell::new(), room: Doorbell::new() }
    }

    /// Sends as `channel::Sender::send` does. False: the receiving end has closed.
    fn send(&self, producer: &mut Producer<View>, view: &View, message: &[u8]) -> bool {
        loop {
            if !view.is_alive() || end_state(view, 1) == layout::END_CLOSED {
                return false;
            }
            match producer.reserve(message.len()) {
                Ok(mut slot) => {
                    assert!(slot.write(0, message));
                    // The bell is rung by the living only.
                    if slot.commit() && view.live_on() {
                        self.data.ring();
                    }
                    return true;
                }
                Err(ReserveError::Full) => {}
                Err(error) => panic!("{error}"),
            }
            if producer.prepare_wait(message.len()).unwrap() {
                if end_state(view, 1) != layout::END_CLOSED {
                    self.room.listen();
                }
                producer.cancel_wait();
            }
        }
    }

    /// Receives as `channel::Receiver::receive` does. `None`: the sending end has closed or is dead.
    fn receive(&self, consumer: &mut Consumer<View>, view: &View, dead: &mut bool) -> Option<Vec<u8>> {
        loop {
            if let Some(message) = self.take(consumer) {
                return Some(message);
            }
            if *dead || end_state(view, 0) == layout::END_CLOSED {
                return self.take(consumer);
            }
            if consumer.prepare_wait() {
                if end_state(view, 0) != layout::END_CLOSED {
                    *dead |= self.data.listen();
                }
                consumer.cancel_wait();
            }
        }
    }

    fn take(&self, consumer: &mut Consumer<View>) -> Option<Vec<u8>> {
        match consumer.peek().unwrap() {
            Peek::Message(record) => {
                let mut message = Vec::new();
                consumer.append(&record, &mut message);
                if consumer.release(record) {
                    self.room.ring();
                }
                Some(message)
            }
            Peek::Empty { wake_producer } => {
                if wake_producer {
                    self.room.ring();
                }
                None
            }
        }
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Removing any one ordering or fence from the ring is caught with fewer; LOOM_MAX_PREEMPTIONS overrides.
    // Each ordering and fence of the ring, weakened or taken away, is caught with these, but END's `Release`, which a
    // commit's fence gives as well. LOOM_MAX_PREEMPTIONS overrides.
    builder.preemption_bound.get_or_insert(3);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Sends `messages` from one thread to another and sees that they arrive, whole and in order.
fn all_arrive(capacity: usize, messages: &'static [&'static [u8]]) {
    check(move || {
        let world = World::new();
        let sending = world.clone();
        let sender = thread::spawn(move || {
            let view = View::new(&sending.words);
            let mut producer = Producer::new(view.clone(), place(capacity));
            for message in messages {
                assert!(sending.send(&mut producer, &view, message));
            }
        });
        let view = View::new(&world.words);
        let mut consumer = Consumer::new(view.clone(), place(capacity));
        for message in messages {
            let got = world.receive(&mut consumer, &view, &mut false);
            assert_eq!(got.as_deref(), Some(*message));
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_message_that_finds_a_sleeper_wakes_it() {
    all_arrive(TINY, &[b"8 bytes."]);
}

#[test]
fn messages_arrive_in_order_and_a_full_ring_is_waited_for() {
    all_arrive(TINY, &[b"message1", b"message2", b"message3"]);
}

#[test]
fn empty_messages_of_one_word_go_round() {
    all_arrive(TINY, &[b"", b"", b"", b"", b""]);
}

/// The payload of one message is what the *next* round's word at its place would be, so a consumer that looked
/// there before the producer has made it "not yet" would take it for a message.
#[test]
fn old_bytes_that_look_like_a_record_are_not_taken_for_one() {
    // Offsets: [word 0][payload 8][word 16][word 24] then round again: [word 0][word 8, where the payload was].
    static LOOKS_COMMITTED: [u8; 8] =
        layout::record_word(layout::RECORD_MESSAGE, 8, TINY as u64 + 8).to_le_bytes();
    static MESSAGES: [&[u8]; 5] = [&LOOKS_COMMITTED, b"", b"", b"", b"the last"];
    all_arrive(TINY, &MESSAGES);
}

/// The producer needs all of the ring, while the consumer has released, but not published, a little of it.
#[test]
fn room_that_was_not_worth_publishing_is_published_before_a_sleep() {
    all_arrive(SMALL, &[b"twenty-four bytes: long.", b"", b"twenty-four bytes: more."]);
}

/// The fifth message goes where the first was; that the consumer has read it, the producer knows from `consumed` alone.
#[test]
fn bytes_are_written_over_only_after_they_were_read() {
    const LONG: &[u8] = b"forty bytes, so that it takes six words.";
    all_arrive(MODEST, &[b"the 1st.", LONG, LONG, b"the 4th.", b"the 5th."]);
}

/// The second message does not fit before the end of the ring: a padding goes before it.
#[test]
fn a_message_behind_a_padding_is_whole() {
    all_arrive(TINY, &[b"", b"8 bytes.", b"more....", b""]);
}

#[test]
fn what_was_committed_before_a_close_is_received() {
    check(|| {
        let world = World::new();
        let sending = world.clone();
        let sender = thread::spawn(move || {
            let view = View::new(&sending.words);
            let mut producer = Producer::new(view.clone(), place(TINY));
            assert!(sending.send(&mut producer, &view, b"farewell"));
            set_end_state(&view, 0, layout::END_CLOSED);
            sending.data.ring();
        });
        let view = View::new(&world.words);
        let mut consumer = Consumer::new(view.clone(), place(TINY));
        let got = world.receive(&mut consumer, &view, &mut false);
        assert_eq!(got.as_deref(), Some(&b"farewell"[..]));
        assert_eq!(world.receive(&mut consumer, &view, &mut false), None);
        sender.join().unwrap();
    });
}

#[test]
fn a_consumer_that_closes_wakes_a_producer_that_waits_for_room() {
    check(|| {
        let world = World::new();
        let sending = world.clone();
        let sender = thread::spawn(move || {
            let view = View::new(&sending.words);
            let mut producer = Producer::new(view.clone(), place(TINY));
            // There is room for one message only, and the consumer takes at most one.
            while sending.send(&mut producer, &view, b"8 bytes.") {}
        });
        let view = View::new(&world.words);
        let mut consumer = Consumer::new(view.clone(), place(TINY));
        world.take(&mut consumer);
        set_end_state(&view, 1, layout::END_CLOSED);
        world.room.ring();
        sender.join().unwrap();
    });
}

/// A producer that dies before any of its changes to memory: the consumer receives a prefix of what was sent, each
/// message whole, and then the end.
#[test]
fn a_producer_may_die_at_any_step() {
    const MESSAGES: [&[u8]; 2] = [b"message1", b"message2"];
    // More than the two messages take, waits included: the last of these lives die of old age.
    for life in 0..16 {
        check(move || {
            let world = World::new();
            let sending = world.clone();
            let sender = thread::spawn(move || {
                let view = View::mortal(&sending.words, life);
                let mut producer = Producer::new(view.clone(), place(TINY));
                for message in MESSAGES {
                    if !sending.send(&mut producer, &view, message) {
                        break;
                    }
                }
                sending.data.hang_up();
            });
            let view = View::new(&world.words);
            let mut consumer = Consumer::new(view.clone(), place(TINY));
            let (mut received, mut dead) = (0, false);
            while let Some(message) = world.receive(&mut consumer, &view, &mut dead) {
                assert_eq!(message, MESSAGES[received]);
                received += 1;
            }
            sender.join().unwrap();
        });
    }
}
