//! The ring beside a plain queue, on generated traffic; and the consumer and producer beside a peer
//! that writes whatever it likes.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use ring::{Consumer, Memory, Peek, Place, Producer, ReserveError, Sleep, Taken, Violation, Wake};
use sys::region::Region;
use wire::ring as layout;

const RING_BYTES: u32 = 4096;

fn region() -> Arc<Region> {
    let bytes = layout::region_bytes(RING_BYTES);
    let memory = sys::memfd::sealed("test", bytes).unwrap();
    Arc::new(Region::map(&memory, bytes as usize).unwrap())
}

fn place() -> Place {
    Place::in_region(1, RING_BYTES).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    /// The short way.
    SendAtOnce(usize),
    /// Begun for so many bytes, and finished with fewer.
    Finish(usize, usize),
    Abandon(usize),
    Batch(usize),
    Flush,
    Receive,
    /// The short way.
    TakeAtOnce,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![3 => 0..64_usize, 1 => 0..2100_usize, 1 => 2030..2045_usize];
    let step = prop_oneof![
        4 => length.clone().prop_map(Step::Send),
        3 => length.clone().prop_map(Step::SendAtOnce),
        2 => (length.clone(), 0..100_usize).prop_map(|(begun, less)| Step::Finish(begun, begun.saturating_sub(less))),
        1 => length.prop_map(Step::Abandon),
        1 => prop_oneof![Just(0), 0..2000_usize].prop_map(Step::Batch),
        1 => Just(Step::Flush),
        4 => Just(Step::Receive),
        3 => Just(Step::TakeAtOnce),
    ];
    proptest::collection::vec(step, 1..400)
}

fn message(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (number.wrapping_mul(31) ^ index) as u8).collect()
}

fn receive(consumer: &mut Consumer<Arc<Region>>) -> Option<Vec<u8>> {
    match consumer.peek().unwrap() {
        Peek::Message(record) => {
            let mut bytes = Vec::new();
            consumer.append(&record, &mut bytes);
            assert_eq!(consumer.release(record), Wake::Nobody, "nobody waits for room");
            Some(bytes)
        }
        Peek::Empty { wake } => {
            assert_eq!(wake, Wake::Nobody, "nobody waits for room");
            None
        }
    }
}

/// The two halves, and what they should hold.
struct Pair {
    producer: Producer<Arc<Region>>,
    consumer: Consumer<Arc<Region>>,
    /// Committed, and visible to the consumer.
    shown: VecDeque<Vec<u8>>,
    /// Committed, and held back.
    held: VecDeque<Vec<u8>>,
}

impl Pair {
    fn new() -> Pair {
        let region = region();
        Pair {
            producer: Producer::new(Arc::clone(&region), place()),
            consumer: Consumer::new(region, place()),
            shown: VecDeque::new(),
            held: VecDeque::new(),
        }
    }

    fn show(&mut self) {
        self.shown.append(&mut self.held);
    }

    fn committed(&mut self, bytes: Vec<u8>) {
        self.held.push_back(bytes);
        if !self.producer.is_holding() {
            self.show();
        }
    }

    /// There was no room, or the message is too long.
    fn refused(&mut self, length: usize, error: ReserveError) -> Result<(), TestCaseError> {
        match error {
            ReserveError::TooLong { max, .. } => prop_assert!(length > max),
            ReserveError::Full if self.producer.is_holding() => {
                prop_assert_eq!(self.producer.flush(), Wake::Nobody);
                self.show();
            }
            ReserveError::Full if self.shown.is_empty() => {
                // The consumer publishes the last quarter when it finds the ring empty.
                prop_assert_eq!(receive(&mut self.consumer), None);
                prop_assert!(self.producer.reserve(length).is_ok(), "an empty ring takes any message");
            }
            ReserveError::Full => {}
            ReserveError::Corrupt(violation) => panic!("{violation}"),
        }
        Ok(())
    }

    fn step(&mut self, number: usize, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Send(length) => {
                let bytes = message(number, length);
                let (left, right) = bytes.split_at(length / 2);
                match self.producer.reserve(length) {
                    Ok(mut slot) => {
                        // Both ways to fill it.
                        let filled = if number.is_multiple_of(2) {
                            slot.fill(&[left, right])
                        } else {
                            slot.write(length / 2, right) && slot.write(0, left)
                        };
                        prop_assert!(filled);
                        prop_assert_eq!(slot.commit(), Wake::Nobody, "nobody sleeps");
                        self.committed(bytes);
                    }
                    Err(error) => self.refused(length, error)?,
                }
            }
            Step::SendAtOnce(length) => {
                let bytes = message(number, length);
                if let Some(wake) = self.producer.send_at_once(&bytes) {
                    prop_assert_eq!(wake, Wake::Nobody, "nobody sleeps");
                    self.committed(bytes);
                }
            }
            Step::Finish(begun, length) => match self.producer.reserve(begun) {
                Ok(mut slot) => {
                    let bytes = message(number, length);
                    prop_assert!(slot.write(0, &bytes));
                    prop_assert_eq!(slot.commit_first(length), Some(Wake::Nobody));
                    self.committed(bytes);
                }
                Err(error) => self.refused(begun, error)?,
            },
            Step::Abandon(length) => {
                if let Ok(mut slot) = self.producer.reserve(length) {
                    prop_assert!(slot.write(0, &vec![0xff; length]));
                    prop_assert_eq!(slot.commit_first(length + 1), None);
                }
            }
            Step::Batch(bytes) => self.producer.set_batch_bytes(bytes),
            Step::Flush => {
                prop_assert_eq!(self.producer.flush(), Wake::Nobody);
                self.show();
            }
            Step::Receive => prop_assert_eq!(receive(&mut self.consumer), self.shown.pop_front()),
            Step::TakeAtOnce => {
                let mut bytes = Vec::new();
                match self.consumer.take_at_once(&mut bytes) {
                    Taken::Message(length) => {
                        prop_assert_eq!(length, bytes.len());
                        prop_assert_eq!(Some(bytes), self.shown.pop_front());
                    }
                    Taken::Nothing => prop_assert!(self.shown.is_empty()),
                    Taken::Unusual => {}
                }
            }
        }
        prop_assert!(self.producer.produced() - self.consumer.consumed() <= u64::from(RING_BYTES));
        Ok(())
    }
}

/// The word behind a record was zero once, and was written over by a message that was never sent.
#[test]
fn the_word_behind_a_batch_is_zero_whatever_was_abandoned_there() {
    let mut pair = Pair::new();
    let _never_sent = pair.producer.reserve(8).unwrap();
    pair.producer.set_batch_bytes(1000);
    assert!(pair.producer.reserve(100).unwrap().write(0, &[0xff; 100]));
    assert_eq!(pair.producer.send_at_once(&[1; 8]), Some(Wake::Nobody));
    assert_eq!(pair.producer.flush(), Wake::Nobody);
    assert_eq!(receive(&mut pair.consumer), Some(vec![1; 8]));
    assert_eq!(receive(&mut pair.consumer), None);
}

/// Each step that the short ways may refuse is taken by them in the common case.
#[test]
fn short_messages_go_the_short_way() {
    let mut pair = Pair::new();
    let mut taken = Vec::new();
    for number in 0..8 {
        let bytes = message(number, 64);
        assert_eq!(pair.producer.send_at_once(&bytes), Some(Wake::Nobody));
        assert_eq!(pair.consumer.take_at_once(&mut taken), Taken::Message(64));
        assert_eq!(taken, bytes);
    }
    assert_eq!(pair.consumer.take_at_once(&mut taken), Taken::Unusual, "there is something to publish");
    assert_eq!(receive(&mut pair.consumer), None);
    assert_eq!(pair.consumer.take_at_once(&mut taken), Taken::Nothing);
}

proptest! {
    #[test]
    fn a_ring_is_a_queue(steps in steps()) {
        let mut pair = Pair::new();
        for (number, step) in steps.into_iter().enumerate() {
            pair.step(number, step)?;
        }
        prop_assert_eq!(pair.producer.flush(), Wake::Nobody);
        pair.show();
        while let Some(expected) = pair.shown.pop_front() {
            prop_assert_eq!(receive(&mut pair.consumer), Some(expected));
        }
        prop_assert_eq!(receive(&mut pair.consumer), None);
    }

    /// Whatever a hostile producer writes where the next record starts: a message that is possible,
    /// an empty ring, or a named violation.
    #[test]
    fn a_consumer_takes_only_what_is_possible(
        first in any::<u64>(), kind in 0..7_u64, length in 0..5000_usize, plausible in any::<bool>(), behind in any::<u64>(),
    ) {
        let region = region();
        // Stand near the ring's end, where paddings and wraps are.
        let mut producer = Producer::new(Arc::clone(&region), place());
        let mut consumer = Consumer::new(Arc::clone(&region), place());
        for _ in 0..2 {
            prop_assert_eq!(producer.reserve(1900).unwrap().commit(), Wake::Nobody);
            prop_assert!(receive(&mut consumer).is_some());
        }
        let position = consumer.consumed();
        let word = if plausible { layout::record_word(kind, length, position) } else { first };
        let data = layout::HEADER_BYTES + RING_BYTES as usize;
        region.store(data + position as usize, word, Ordering::Relaxed);
        region.store(data, behind, Ordering::Relaxed);
        match consumer.peek() {
            Ok(Peek::Message(record)) => {
                prop_assert!(record.len() <= consumer.max_message());
                let mut bytes = Vec::new();
                consumer.append(&record, &mut bytes);
                prop_assert_eq!(bytes.len(), record.len());
                prop_assert!(!consumer.copy(&record, record.len(), &mut [0]), "a byte beyond the message");
                prop_assert!(!consumer.copy(&record, usize::MAX, &mut [0]), "a byte far beyond the message");
            }
            Ok(Peek::Empty { .. }) => prop_assert_eq!(word, 0),
            Err(_) => prop_assert_ne!(word, 0),
        }
    }

    /// Whatever a hostile consumer writes as `consumed`: it is possible, or it is refused by name.
    #[test]
    fn a_producer_believes_only_what_is_possible(alleged in prop_oneof![any::<u64>(), 0..8192_u64], sent in 0..4_usize) {
        let region = region();
        let mut producer = Producer::new(Arc::clone(&region), place());
        for _ in 0..sent {
            prop_assert_eq!(producer.reserve(1000).unwrap().commit(), Wake::Nobody);
        }
        let control = layout::OFFSET_CONTROLS + layout::CONTROL_STRIDE;
        region.store(control + layout::CONTROL_CONSUMED, alleged, Ordering::Relaxed);
        let possible = alleged <= producer.produced() && alleged.is_multiple_of(8);
        match producer.prepare_wait(2000, Sleep::OnDoorbell) {
            Ok(_) => prop_assert!(possible),
            Err(ReserveError::Corrupt(Violation::Consumed { alleged: named, least: 0, most })) => {
                prop_assert!(!possible);
                prop_assert_eq!((named, most), (alleged, producer.produced()));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn each_broken_rule_of_a_record_has_its_name() {
    let data = layout::HEADER_BYTES + RING_BYTES as usize;
    let peek = |words: &[(usize, u64)]| {
        let region = region();
        for &(offset, word) in words {
            region.store(data + offset, word, Ordering::Relaxed);
        }
        Consumer::new(region, place()).peek()
    };
    let word = layout::record_word;
    assert_eq!(
        peek(&[(0, word(layout::RECORD_MESSAGE, 5, 8))]),
        Err(Violation::Sequence { position: 0, alleged: 1, expected: 0 })
    );
    assert_eq!(peek(&[(0, word(7, 5, 0))]), Err(Violation::Kind { position: 0, alleged: 7 }));
    assert_eq!(
        peek(&[(0, word(layout::RECORD_MESSAGE, 2041, 0))]),
        Err(Violation::Length { position: 0, alleged: 2041, most: 2040 })
    );
    assert_eq!(
        peek(&[(0, word(layout::RECORD_PADDING, 4088, 0)), (0, word(layout::RECORD_PADDING, 4088, 0))]),
        Err(Violation::Padding { position: 0, alleged: 4088 })
    );
    assert!(matches!(peek(&[(0, word(layout::RECORD_MESSAGE, 2040, 0))]), Ok(Peek::Message(_))));
}

/// Two paddings in a row could keep a consumer busy for ever; nothing behind a padding could make
/// it step twice.
#[test]
fn a_padding_is_followed_by_a_message() {
    let data = layout::HEADER_BYTES + RING_BYTES as usize;
    for (behind, expected) in [
        (0, Violation::Padding { position: 3824, alleged: 264 }),
        (
            layout::record_word(layout::RECORD_PADDING, 4088, 4096),
            Violation::Kind { position: 4096, alleged: layout::RECORD_PADDING },
        ),
    ] {
        let region = region();
        let mut producer = Producer::new(Arc::clone(&region), place());
        let mut consumer = Consumer::new(Arc::clone(&region), place());
        for _ in 0..2 {
            assert_eq!(producer.reserve(1900).unwrap().commit(), Wake::Nobody);
            assert!(receive(&mut consumer).is_some());
        }
        assert_eq!(consumer.consumed(), 3824);
        region.store(data, behind, Ordering::Relaxed);
        let padding = layout::record_word(layout::RECORD_PADDING, 264, 3824);
        region.store(data + 3824, padding, Ordering::Relaxed);
        assert_eq!(consumer.peek(), Err(expected));
    }
}

/// `consumed` is published by quarters, so a producer that waits has to be told before; and a burst
/// rings once.
#[test]
fn whoever_sleeps_is_rung_once() {
    let region = region();
    let mut producer = Producer::new(Arc::clone(&region), place());
    let mut consumer = Consumer::new(region, place());
    assert!(consumer.prepare_wait(Sleep::OnFutex).sleep);
    assert_eq!(producer.reserve(8).unwrap().commit(), Wake::Futex, "the consumer sleeps on its futex");
    assert_eq!(producer.reserve(8).unwrap().commit(), Wake::Nobody, "it has been woken");
    assert!(!consumer.prepare_wait(Sleep::OnDoorbell).sleep, "there are messages");
    while producer.reserve(1000).map(ring::Slot::commit).is_ok() {}
    assert!(producer.prepare_wait(1000, Sleep::OnDoorbell).unwrap().sleep, "there is no room");
    let mut rung = 0;
    while let Peek::Message(record) = consumer.peek().unwrap() {
        match consumer.release(record) {
            Wake::Nobody => {}
            Wake::Doorbell => rung += 1,
            Wake::Futex => panic!("it sleeps on its doorbell"),
        }
    }
    assert_eq!(rung, 1);
    assert!(!producer.prepare_wait(1000, Sleep::OnDoorbell).unwrap().sleep, "there is room");
}
