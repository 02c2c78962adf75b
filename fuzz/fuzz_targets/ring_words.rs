//! Each half of a ring alone with a hostile peer, who changes what he likes between any two looks.
//! Each half keeps to its memory, ends each operation, never panics, and gives records of possible
//! lengths only.
#![cfg_attr(feature = "fuzzing", no_main)]

use fuzz::hostile::{CONTROL, DATA, Half, HostilePeer};
use fuzz::script::Script;
use ring::{Consumer, Peek, Piece, Place, Producer, Record, ReserveError, Sleep, Taken};

/// Rings small enough that a short script goes round them many times, and one of a real size.
const CAPACITIES: [usize; 6] = [32, 64, 128, 256, 1024, 4096];

fuzz::target!(|bytes: &[u8]| {
    let mut script = Script::new(bytes);
    let half = if script.flag() { Half::Producer } else { Half::Consumer };
    let capacity = CAPACITIES[script.below(CAPACITIES.len())];
    let place = Place::new(CONTROL, DATA, capacity).expect("a good place");
    let hostile = HostilePeer::new(half, capacity, script);
    match half {
        Half::Producer => produce(&hostile, place),
        Half::Consumer => consume(&hostile, place),
    }
});

fn consume(hostile: &HostilePeer<'_>, place: Place) {
    let mut consumer = Consumer::new(hostile, place);
    let (mut record, mut within) = (None::<Record>, false);
    while let Some(step) = hostile.script(Script::step) {
        let before = consumer.consumed();
        hostile.operation(before, before);
        match step % 10 {
            0 | 1 => match consumer.peek() {
                Ok(Peek::Message(found)) => {
                    assert!(found.len() <= place.max_message(), "{found:?} is too long");
                    assert!(within || found.piece().begins(), "{found:?} continues nothing");
                    hostile.check_belief(consumer.consumed(), found.len());
                    record = Some(found);
                }
                Ok(Peek::Empty { .. }) => {}
                // Its user closes the channel.
                Err(_) => return,
            },
            2 | 3 => {
                if let Some(record) = record {
                    let _wake = consumer.release(record);
                    if consumer.consumed() > before {
                        within = !record.piece().ends();
                    }
                }
            }
            4 => copy(hostile, &consumer, record),
            5 => {
                if consumer.prepare_wait(how(step)).sleep {
                    consumer.cancel_wait();
                }
            }
            6 => {
                let _found = consumer.has_something();
                let _processor = consumer.peer_processor();
            }
            7 if step & 16 == 0 => consumer.offer_message_limit(u64::from(step)),
            7 => consumer.offer_barrier(step & 32 == 0),
            8 => {
                let mut whole = b"before".to_vec();
                if let Taken::Message(length) = consumer.take_at_once(&mut whole) {
                    assert!(length == whole.len() && length <= place.max_message());
                    assert!(!within && consumer.consumed() > before, "a message amid the pieces of another");
                    hostile.check_belief(before, length);
                } else {
                    assert!(whole == b"before" && consumer.consumed() == before, "nothing was taken");
                }
            }
            _ => consumer.publish_processor(u32::from(step)),
        }
        let ahead = consumer.consumed().checked_sub(before).expect("a consumer does not go back");
        assert!(ahead <= place.capacity() as u64, "a consumer went {ahead} bytes at once");
    }
}

fn how(step: u8) -> Sleep {
    if step & 32 == 0 { Sleep::OnDoorbell } else { Sleep::OnFutex }
}

fn copy(hostile: &HostilePeer<'_>, consumer: &Consumer<&HostilePeer<'_>>, record: Option<Record>) {
    let Some(record) = record else { return };
    let (at, length) = hostile.script(|script| (script.word() as usize, script.below(4200)));
    let mut bytes = vec![0; length];
    let inside = at.checked_add(length).is_some_and(|end| end <= record.len());
    assert_eq!(consumer.copy(&record, at, &mut bytes), inside);
    let mut whole = b"before".to_vec();
    consumer.append(&record, &mut whole);
    assert!(whole.starts_with(b"before") && whole.len() == 6 + record.len());
}

fn produce(hostile: &HostilePeer<'_>, place: Place) {
    let mut producer = Producer::new(hostile, place);
    let mut shown = 0;
    while let Some(step) = hostile.script(Script::step) {
        hostile.operation(producer.produced(), shown);
        let length = hostile.script(|script| script.below(place.max_message() + 9));
        let refused = match step % 13 {
            12 => {
                let sent = producer.send_at_once(&vec![0x3c; length]);
                assert!(sent.is_none() || length <= place.max_message());
                None
            }
            0..=3 => send(hostile, &mut producer, length),
            4 | 5 => lend(hostile, &mut producer, length),
            6 => producer.prepare_wait(length, how(step)).err(),
            7 => {
                producer.cancel_wait();
                None
            }
            8 => producer.has_room(length).err(),
            9 => {
                producer.set_batch_bytes(length);
                None
            }
            10 => {
                let _wake = producer.flush();
                None
            }
            _ => {
                producer.publish_processor(u32::from(step));
                let _alleged = (producer.peer_processor(), producer.peer_message_limit());
                if producer.longs_for_barriers() || step & 64 != 0 {
                    producer.set_registered();
                }
                None
            }
        };
        if !producer.is_holding() {
            shown = producer.produced();
            hostile.check_end(shown);
        }
        let ahead =
            producer.produced().checked_sub(hostile.released()).expect("not before what was released");
        assert!(ahead <= place.capacity() as u64, "a producer is {ahead} bytes ahead");
        match refused {
            Some(ReserveError::Corrupt(_)) => return,
            Some(ReserveError::TooLong { .. }) => assert!(length > place.max_message()),
            Some(ReserveError::Full) | None => {}
        }
    }
}

/// Through a slot, which can't be forgotten.
fn send(
    hostile: &HostilePeer<'_>,
    producer: &mut Producer<&HostilePeer<'_>>,
    length: usize,
) -> Option<ReserveError> {
    let mut slot = match producer.reserve(length) {
        Ok(slot) => slot,
        Err(error) => return Some(error),
    };
    assert_eq!(slot.len(), length);
    let (at, count, commits) =
        hostile.script(|script| (script.word() as usize, script.below(4200), script.byte() % 8));
    let inside = at.checked_add(count).is_some_and(|end| end <= length);
    assert_eq!(slot.write(at, &vec![0x5a; count]), inside);
    assert!(slot.write(0, &vec![0xa5; length]));
    slot.set_piece([Piece::Whole, Piece::First, Piece::Next, Piece::Last][usize::from(commits) % 4]);
    match commits {
        0 => {}
        1 | 2 => {
            let first = hostile.script(|script| script.below(length + 2));
            assert_eq!(slot.commit_first(first).is_some(), first <= length);
        }
        _ => {
            let _wake = slot.commit();
        }
    }
    None
}

/// As another language does it: begun, written, finished or forgotten, and perhaps twice.
fn lend(
    hostile: &HostilePeer<'_>,
    producer: &mut Producer<&HostilePeer<'_>>,
    length: usize,
) -> Option<ReserveError> {
    let begun = match producer.begin(length) {
        Ok(begun) => begun,
        Err(error) => return Some(error),
    };
    let (first, again) = hostile.script(|script| (script.below(length + 2), script.byte() % 4 == 1));
    let late = again.then(|| producer.begin(length).ok()).flatten();
    hostile.fill(producer.offset(&begun), length);
    if first % 5 != 4 {
        assert_eq!(producer.finish(begun, first).is_some(), first <= length);
        if let Some(late) = late {
            // What was begun beside it is worth nothing after that.
            assert!(first > length || producer.finish(late, 0).is_none(), "a place was given away twice");
        }
    }
    None
}
