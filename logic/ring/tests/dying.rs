//! A half that dies between any two of its writes: the other half finds all that was committed,
//! nothing half, and no broken rule. Each death of each script is tried, one after the other: `kill
//! -9` at any instruction, without the luck.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::Ordering;

use ring::{Consumer, Memory, Peek, Place, Producer, ReserveError, Sleep, Taken};
use wire::ring as layout;

const CONTROL: usize = 0;
const DATA: usize = layout::CONTROL_STRIDE;
/// Rings small enough that a script of this many steps goes round them several times.
const CAPACITIES: [usize; 3] = [64, 128, 512];
const STEPS: u64 = 40;
const SCRIPTS: u64 = 200;

/// The death of a half: nothing is cleaned up behind it.
struct Death;

/// Memory in which the half that is mortal may write only so often.
struct Mortal {
    bytes: RefCell<Vec<u8>>,
    /// Writes until it dies, once that is decided.
    left: Cell<Option<usize>>,
    writes: Cell<usize>,
}

impl Mortal {
    fn new(capacity: usize, left: Option<usize>) -> Mortal {
        Mortal { bytes: RefCell::new(vec![0; DATA + capacity]), left: Cell::new(left), writes: Cell::new(0) }
    }

    /// One write of the mortal half is due.
    fn live(&self) {
        self.writes.set(self.writes.get() + 1);
        match self.left.get() {
            Some(0) => panic_any(Death),
            Some(left) => self.left.set(Some(left - 1)),
            None => {}
        }
    }

    fn get(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.bytes.borrow()[offset..offset + 8].try_into().unwrap())
    }

    fn set(&self, offset: usize, value: u64) {
        self.bytes.borrow_mut()[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
}

/// One half's way to the memory: the mortal half's writes are counted.
#[derive(Clone, Copy)]
struct Way<'m> {
    memory: &'m Mortal,
    is_mortal: bool,
}

impl Way<'_> {
    fn live(&self) {
        if self.is_mortal {
            self.memory.live();
        }
    }
}

impl Memory for Way<'_> {
    fn load(&self, offset: usize, _order: Ordering) -> u64 {
        self.memory.get(offset)
    }
    fn store(&self, offset: usize, value: u64, _order: Ordering) {
        self.live();
        self.memory.set(offset, value);
    }
    fn swap(&self, offset: usize, value: u64, _order: Ordering) -> u64 {
        self.live();
        let found = self.memory.get(offset);
        self.memory.set(offset, value);
        found
    }
    fn fence(&self) {}
    fn no_fence(&self) {}
    fn barrier(&self) -> bool {
        true
    }
    fn copy_in(&self, offset: usize, from: &[u8]) {
        // Byte by byte, as far as anybody knows: it may die in the middle.
        let half = from.len() / 2;
        for (at, part) in [(offset, &from[..half]), (offset + half, &from[half..])] {
            self.live();
            self.memory.bytes.borrow_mut()[at..at + part.len()].copy_from_slice(part);
        }
    }
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.memory.bytes.borrow()[offset..offset + into.len()]);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Message `number`: never a zero byte in it, so that no message looks like nothing.
fn message(number: u64, length: usize) -> Vec<u8> {
    vec![number as u8 | 1; length]
}

/// The state that both halves have come to.
#[derive(Default)]
struct Book {
    /// Messages whose commit has begun, in order.
    begun: RefCell<Vec<Vec<u8>>>,
    /// So many of them were shown for certain.
    shown: Cell<usize>,
    received: Cell<usize>,
}

/// Runs one script to its end, or to the death of one half. What the book says stays true.
fn play(seed: u64, producer: &mut Producer<Way<'_>>, consumer: &mut Consumer<Way<'_>>, book: &Book) {
    let mut random = Random(seed);
    for step in 0..STEPS {
        match random.below(8) {
            0..=3 => {
                let length = random.below(producer.max_message() as u64 + 1) as usize;
                let whole = message(step, length);
                let sent = random.below(length as u64 + 1) as usize;
                let short = random.below(3) == 0;
                if random.below(2) == 0 {
                    book.begun.borrow_mut().push(whole.clone());
                    if producer.send_at_once(&whole).is_none() {
                        book.begun.borrow_mut().pop();
                        send(producer, book, &whole, short.then_some(sent));
                    }
                } else {
                    send(producer, book, &whole, short.then_some(sent));
                }
                if !producer.is_holding() {
                    book.shown.set(book.begun.borrow().len());
                }
            }
            4 => producer.set_batch_bytes(random.below(60) as usize),
            5 => {
                let _wake = producer.flush();
                book.shown.set(book.begun.borrow().len());
            }
            _ => receive(consumer, book),
        }
    }
}

/// Sends a message, or its first bytes, if there is room.
fn send(producer: &mut Producer<Way<'_>>, book: &Book, whole: &[u8], sent: Option<usize>) {
    match producer.reserve(whole.len()) {
        Ok(mut slot) => {
            assert!(slot.write(0, whole));
            let sent = sent.unwrap_or(whole.len());
            book.begun.borrow_mut().push(whole[..sent].to_vec());
            let _wake = slot.commit_first(sent).unwrap();
        }
        Err(ReserveError::Full) => {
            let _wake = producer.flush();
            let how = if sent.is_some() { Sleep::OnFutex } else { Sleep::OnDoorbell };
            if producer.prepare_wait(whole.len(), how).unwrap().sleep {
                producer.cancel_wait();
            }
        }
        Err(error) => panic!("{error}"),
    }
}

/// Receives one message, if there is one: the next one, and whole.
fn receive(consumer: &mut Consumer<Way<'_>>, book: &Book) {
    let mut got = Vec::new();
    if consumer.consumed().is_multiple_of(16)
        && let Taken::Message(length) = consumer.take_at_once(&mut got)
    {
        assert_eq!(length, got.len());
        assert_eq!(got, book.begun.borrow()[book.received.get()], "it is not as it was sent");
        return book.received.set(book.received.get() + 1);
    }
    match consumer.peek().expect("no rule is broken by a death") {
        Peek::Message(record) => {
            got.clear();
            consumer.append(&record, &mut got);
            assert_eq!(got, book.begun.borrow()[book.received.get()], "it is not as it was sent");
            // Whoever dies while it releases has received it.
            book.received.set(book.received.get() + 1);
            let _wake = consumer.release(record);
        }
        Peek::Empty { .. } => {
            if consumer.prepare_wait(Sleep::OnDoorbell).sleep {
                consumer.cancel_wait();
            }
        }
    }
}

/// Plays a script in which one half dies at its write `left`; returns how often it wrote.
fn try_death(seed: u64, producer_dies: bool, left: Option<usize>) -> usize {
    let capacity = CAPACITIES[(seed % 3) as usize];
    let place = Place::new(CONTROL, DATA, capacity).unwrap();
    let memory = Mortal::new(capacity, left);
    let book = Book::default();
    let way = |is_mortal| Way { memory: &memory, is_mortal };
    let mut producer = Producer::new(way(producer_dies), place);
    let mut consumer = Consumer::new(way(!producer_dies), place);
    let played = catch_unwind(AssertUnwindSafe(|| play(seed, &mut producer, &mut consumer, &book)));
    if let Err(cause) = played {
        let told = format!("seed {seed}, write {left:?}");
        assert!(cause.is::<Death>(), "{told}: a failed check, see above");
    }
    let writes = memory.writes.get();
    memory.left.set(None);
    if producer_dies {
        // Everything that was shown comes, and perhaps the commits that it died in; then nothing.
        loop {
            let before = book.received.get();
            receive(&mut consumer, &book);
            if book.received.get() == before {
                break;
            }
        }
        let (received, shown) = (book.received.get(), book.shown.get());
        assert!(received >= shown, "seed {seed}, write {left:?}: {received} of {shown} came");
    } else {
        // It sends on until the ring is full, and finds no lie in what the dead one left.
        while let Ok(slot) = producer.reserve(9) {
            let _wake = slot.commit();
        }
        assert!(matches!(producer.reserve(9), Err(ReserveError::Full)), "seed {seed}, write {left:?}");
    }
    writes
}

fn try_every_death(producer_dies: bool) {
    // Deaths are many and meant; failed checks still speak.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Death>() {
            usual(info);
        }
    }));
    let mut deaths = 0;
    for seed in 0..SCRIPTS {
        let writes = try_death(seed, producer_dies, None);
        for left in 0..writes {
            try_death(seed, producer_dies, Some(left));
        }
        deaths += writes;
    }
    println!("{deaths} deaths");
    assert!(deaths > 1000, "{deaths} deaths show little");
}

#[test]
fn a_producer_may_die_between_any_two_writes() {
    try_every_death(true);
}

#[test]
fn a_consumer_may_die_between_any_two_writes() {
    try_every_death(false);
}
