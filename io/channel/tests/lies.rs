//! Each lie that a peer can tell in the words of a ring, one by one, with the error that names it;
//! and peers that tell none but never read, or read one byte at a time.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, Mode, ReceiveError, Receiver, SendError, Sender, Violation, pair};
use sys::region::Region;
use wire::ring as layout;

const RING_BYTES: u32 = 4096;
/// For what should happen at once; long enough for a machine under load.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Our end, and what its peer has mapped. The doorbells are kept: the peer lives.
struct Stage {
    sender: Sender,
    receiver: Receiver,
    region: Region,
    _doorbells: Vec<OwnedFd>,
}

impl Stage {
    fn new() -> Stage {
        let (one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
        let mut doorbells = Vec::from(other.into_descriptors());
        let memory = doorbells.pop().unwrap();
        let region = Region::map(&memory, layout::region_bytes(RING_BYTES) as usize).unwrap();
        let (sender, receiver) = one.open().unwrap();
        Stage { sender, receiver, region, _doorbells: doorbells }
    }

    /// The peer commits a record at a position, by the rules or not.
    fn put(&self, position: u64, kind: u64, length: usize) {
        self.put_word(position, layout::record_word(kind, length, position));
    }

    fn put_word(&self, position: u64, word: u64) {
        let offset = layout::HEADER_BYTES + RING_BYTES as usize + (position % u64::from(RING_BYTES)) as usize;
        self.region.store_u64(offset, word, Ordering::Release);
    }

    /// The peer says how far it has consumed.
    fn consume(&self, position: u64) {
        let offset = layout::OFFSET_CONTROLS + layout::CONTROL_CONSUMED;
        self.region.store_u64(offset, position, Ordering::Release);
    }

    /// The receiver is at `position`, after empty messages by the rules.
    fn advance(&mut self, position: u64) {
        for at in (0..position).step_by(8) {
            self.put(at, layout::RECORD_MESSAGE, 0);
            self.put_word(at + 8, 0);
            assert_eq!(self.receiver.try_receive(&mut Vec::new()).unwrap(), Some(0));
        }
    }

    fn receive(&mut self) -> Result<Option<usize>, ReceiveError> {
        self.receiver.try_receive(&mut Vec::new())
    }

    /// Returns our refusal of the message that the peer has put, and checks that the channel is
    /// over with it.
    fn refusal(mut self) -> Violation {
        let error = self.receive().unwrap_err();
        let ReceiveError::Corrupt(violation) = error else { panic!("{error}") };
        self.is_over();
        violation
    }

    fn sending_refusal(mut self) -> Violation {
        let error =
            std::iter::repeat_with(|| self.sender.try_send(&[0; 2000]).err()).flatten().next().unwrap();
        let SendError::Corrupt(violation) = error else { panic!("{error}") };
        self.is_over();
        violation
    }

    fn is_over(&mut self) {
        assert!(self.sender.is_closed() && self.receiver.is_closed());
        assert!(matches!(self.receive(), Err(ReceiveError::Closed)));
        assert!(matches!(self.sender.try_send(b""), Err(SendError::Closed)));
        let told = self.region.load_u64(layout::OFFSET_ENDS, Ordering::Acquire);
        assert_eq!(told, layout::END_REFUSED, "the peer is told why");
    }
}

#[test]
fn an_index_that_runs_backwards() {
    let mut stage = Stage::new();
    stage.sender.try_send(&[0; 1000]).unwrap();
    stage.sender.try_send(&[0; 1000]).unwrap();
    stage.consume(1008);
    // It is looked at when room is needed: once to believe it, once to find that it went back.
    while stage.sender.try_send(&[0; 100]).is_ok() {}
    stage.consume(8);
    let violation = stage.sending_refusal();
    assert!(matches!(violation, Violation::Consumed { alleged: 8, least: 1008, .. }), "{violation}");
    let text = violation.to_string();
    assert!(text.starts_with("the peer alleges to have consumed 8 bytes; only 1008 to "), "{text}");
}

#[test]
fn an_index_that_jumps_beyond_what_was_produced() {
    let stage = Stage::new();
    stage.consume(!7);
    let violation = stage.sending_refusal();
    assert!(matches!(violation, Violation::Consumed { least: 0, .. }), "{violation}");
}

#[test]
fn an_index_beside_every_record() {
    for off in [1, 2, 4, 7] {
        let mut stage = Stage::new();
        stage.sender.try_send(&[0; 1000]).unwrap();
        stage.consume(8 + off);
        let violation = stage.sending_refusal();
        assert!(
            matches!(violation, Violation::Consumed { alleged, .. } if alleged == 8 + off),
            "{violation}"
        );
    }
}

/// A message held back in a batch has been shown to nobody.
#[test]
fn an_index_into_what_is_held_back() {
    let mut stage = Stage::new();
    stage.sender.try_send(&[0; 1000]).unwrap();
    stage.sender.try_send(&[0; 1000]).unwrap();
    stage.sender.set_batch_bytes(1024);
    stage.sender.try_send(&[0; 1000]).unwrap();
    stage.consume(2016 + 8);
    let violation = stage.sending_refusal();
    assert!(matches!(violation, Violation::Consumed { alleged: 2024, most: 2016, .. }), "{violation}");
}

/// The index flips between good and bad as fast as a thread can: each look either believes a
/// possible value or names the lie; nothing is believed that was not checked.
#[test]
fn an_index_that_changes_while_it_is_read() {
    let mut lies = 0;
    for round in 0..40 {
        let Stage { mut sender, receiver: _receiver, region, _doorbells } = Stage::new();
        let done = AtomicBool::new(false);
        let (region, done) = (&region, &done);
        let offset = layout::OFFSET_CONTROLS + layout::CONTROL_CONSUMED;
        let error = thread::scope(|scope| {
            scope.spawn(move || {
                for turn in 0_u64.. {
                    let value = if turn % 64 == 63 { turn.rotate_right(7) } else { (turn % 2) * 8 };
                    region.store_u64(offset, value, Ordering::Relaxed);
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let limit = Instant::now() + Duration::from_millis(20);
            let mut sent = 0_u64;
            let error = loop {
                match sender.try_send(&[round; 40]) {
                    Ok(()) => sent += 48,
                    Err(SendError::Full) if Instant::now() < limit => {}
                    Err(error) => break error,
                }
            };
            done.store(true, Ordering::Relaxed);
            // It believed 8 at most, so a ring's bytes and 8 are all that it can have sent.
            assert!(sent <= u64::from(RING_BYTES) + 8, "{sent} bytes");
            error
        });
        match error {
            SendError::Corrupt(Violation::Consumed { .. }) => lies += 1,
            SendError::Full => {}
            other => panic!("{other}"),
        }
    }
    assert!(lies > 0, "no lie was ever met");
}

#[test]
fn a_record_of_another_place_or_time() {
    let stage = Stage::new();
    stage.put_word(0, layout::record_word(layout::RECORD_MESSAGE, 8, 8));
    let violation = stage.refusal();
    assert_eq!(violation, Violation::Sequence { position: 0, alleged: 1, expected: 0 });
    assert_eq!(violation.to_string(), "the record at byte 0 alleges sequence 1, not 0");
    // The same record again, one lap later.
    let mut stage = Stage::new();
    stage.advance(u64::from(RING_BYTES));
    stage.put_word(0, layout::record_word(layout::RECORD_MESSAGE, 0, 0));
    assert_eq!(stage.refusal(), Violation::Sequence { position: 4096, alleged: 0, expected: 512 });
}

#[test]
fn a_record_of_no_kind() {
    for kind in [0, 6, 7, 15] {
        let stage = Stage::new();
        stage.put(0, kind, 8);
        let violation = stage.refusal();
        assert_eq!(violation, Violation::Kind { position: 0, alleged: kind });
    }
}

#[test]
fn a_message_that_is_too_long() {
    for length in [2041, 4088, 4096, (1 << 28) - 1] {
        let stage = Stage::new();
        stage.put(0, layout::RECORD_MESSAGE, length);
        assert_eq!(stage.refusal(), Violation::Length { position: 0, alleged: length, most: 2040 });
    }
}

#[test]
fn a_message_that_overlaps_the_end_of_the_ring() {
    let mut stage = Stage::new();
    stage.advance(4096 - 64);
    stage.put(4096 - 64, layout::RECORD_MESSAGE, 57);
    assert_eq!(stage.refusal(), Violation::Length { position: 4032, alleged: 57, most: 56 });
    let mut stage = Stage::new();
    stage.advance(4096 - 64);
    stage.put_word(4096, 0);
    stage.put(4096 - 64, layout::RECORD_MESSAGE, 56);
    assert_eq!(stage.receive().unwrap(), Some(56), "up to the end is inside");
}

/// A record whose length grows over its neighbour after it was read: what counts is what was read.
#[test]
fn slots_that_overlap() {
    let mut stage = Stage::new();
    stage.put_word(16, 0);
    stage.put(0, layout::RECORD_MESSAGE, 8);
    let region = &stage.region;
    let ring = layout::HEADER_BYTES + RING_BYTES as usize;
    let length = stage
        .receiver
        .try_read(|message| {
            region.store_u64(ring, layout::record_word(layout::RECORD_MESSAGE, 800, 0), Ordering::Release);
            assert!(!message.copy_to(0, &mut [0; 9]), "beyond what was read");
            message.len()
        })
        .unwrap();
    assert_eq!(length, Some(8));
    // The next record is where the first one ended when it was read, whatever it says now.
    assert_eq!(stage.receive().unwrap(), None);
    stage.put_word(24, 0);
    stage.put(16, layout::RECORD_MESSAGE, 0);
    assert_eq!(stage.receive().unwrap(), Some(0));
    // A record inside another, with the right sequence for its place, is payload and no record.
    stage.put_word(24 + 72, 0);
    stage.put(32, layout::RECORD_MESSAGE, 2040);
    stage.put(24, layout::RECORD_MESSAGE, 64);
    assert_eq!(stage.receive().unwrap(), Some(64));
    assert_eq!(stage.receive().unwrap(), None);
}

#[test]
fn a_padding_where_none_can_be() {
    // At the start of the ring.
    let stage = Stage::new();
    stage.put(0, layout::RECORD_PADDING, 4088);
    let violation = stage.refusal();
    assert_eq!(violation, Violation::Padding { position: 0, alleged: 4088 });
    assert_eq!(
        violation.to_string(),
        "the padding at byte 0 alleges 4088 bytes, or has no message behind it"
    );
    // Shorter or longer than to the end.
    for length in [0, 4064 - 8, 4064 + 8, (1 << 28) - 1] {
        let mut stage = Stage::new();
        stage.advance(24);
        stage.put(24, layout::RECORD_PADDING, length);
        assert_eq!(stage.refusal(), Violation::Padding { position: 24, alleged: length });
    }
    // With nothing behind it; with another padding behind it.
    let mut stage = Stage::new();
    stage.advance(24);
    stage.put_word(4096, 0);
    stage.put(24, layout::RECORD_PADDING, 4064);
    assert_eq!(stage.refusal(), Violation::Padding { position: 24, alleged: 4064 });
    let mut stage = Stage::new();
    stage.advance(24);
    stage.put(4096, layout::RECORD_PADDING, 4088);
    stage.put(24, layout::RECORD_PADDING, 4064);
    let violation = stage.refusal();
    assert!(
        matches!(violation, Violation::Kind { position: 4096, alleged: layout::RECORD_PADDING }),
        "{violation}"
    );
}

#[test]
fn a_piece_of_nothing() {
    for kind in [layout::RECORD_NEXT, layout::RECORD_LAST] {
        let stage = Stage::new();
        stage.put(0, kind, 8);
        assert_eq!(stage.refusal(), Violation::Piece { position: 0, alleged: kind });
    }
    let stage = Stage::new();
    stage.put(0, layout::RECORD_FIRST, 0);
    assert_eq!(stage.refusal(), Violation::Piece { position: 0, alleged: layout::RECORD_FIRST });
}

#[test]
fn pieces_of_a_message_without_end() {
    let mut stage = Stage::new();
    stage.put_word(2016, 0);
    stage.put(0, layout::RECORD_FIRST, 2008);
    assert_eq!(stage.receive().unwrap(), None);
    stage.put(2016, layout::RECORD_NEXT, 33);
    let violation = stage.refusal();
    assert_eq!(violation, Violation::Message { position: 2016, limit: 2040 });
}

/// A peer that begins messages and ends none, as fast as it can: each wait ends at its deadline,
/// and no memory goes.
#[test]
fn messages_that_are_begun_for_ever() {
    let (one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let ((_sender, mut receiver), (mut sender, _receiver)) = (one.open().unwrap(), other.open().unwrap());
    receiver.set_message_limit(1 << 20);
    let endless = vec![7; 1 << 20];
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                // A deadline that has passed lets one piece go, and then gives the message up:
                // whatever the receiver does meanwhile, none comes to its end.
                let sent = sender.send(&endless, Some(Instant::now()));
                assert!(matches!(sent, Err(SendError::TimedOut)), "{sent:?}");
            }
        });
        let mut late = 0;
        for _ in 0..20 {
            let deadline = Instant::now() + Duration::from_millis(10);
            let result = receiver.receive(&mut Vec::new(), Some(deadline));
            late += u32::from(Instant::now() >= deadline + TIMEOUT / 4);
            if !matches!(result, Err(ReceiveError::TimedOut)) {
                done.store(true, Ordering::Relaxed);
                panic!("{result:?}");
            }
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(late, 0, "waits that missed their deadline");
    });
}

/// A peer that never reads: each wait ends at its deadline, after a few sleeps and not many looks.
#[test]
fn an_end_that_never_reads() {
    let Stage { mut sender, receiver: _receiver, region: _region, _doorbells } = Stage::new();
    while sender.try_send(&[7; 100]).is_ok() {}
    for _ in 0..10 {
        let before = sender.counts();
        let deadline = Instant::now() + Duration::from_millis(30);
        assert!(matches!(sender.send(&[7; 100], Some(deadline)), Err(SendError::TimedOut)));
        assert!(Instant::now() >= deadline, "it gave up early");
        let after = sender.counts();
        let sleeps =
            (after.futex_sleeps + after.doorbell_sleeps) - (before.futex_sleeps + before.doorbell_sleeps);
        assert!((1..=4).contains(&sleeps), "{sleeps} sleeps for one wait");
        assert_eq!(
            (after.rings, after.futex_wakes),
            (before.rings, before.futex_wakes),
            "nobody is to be woken"
        );
    }
    assert!(!sender.is_closed(), "slow is not dead");
}

/// A peer that reads one byte, and then not for a long time (as against a message's time):
/// everything comes, in order, and the writer sleeps meanwhile.
#[test]
fn an_end_that_reads_one_byte_at_a_time() {
    const BYTES: usize = 6000;
    let config = Config { ring_bytes: RING_BYTES, mode: Mode::Stream, ..Config::default() };
    let (one, other) = pair(&config).unwrap();
    let ((mut writer, _reader), (_writer, mut reader)) =
        (one.open_stream().unwrap(), other.open_stream().unwrap());
    let bytes: Vec<u8> = (0..BYTES).map(|index| (index / 7) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Some(Instant::now() + TIMEOUT);
            assert_eq!(writer.write_with(&bytes, deadline).unwrap(), BYTES);
            writer.finish(deadline).unwrap();
        });
        let mut byte = [0];
        for (index, expected) in bytes.iter().enumerate() {
            if index % 50 == 0 {
                // tidy(sleep): slowness is what is tested
                thread::sleep(Duration::from_millis(2));
            }
            assert_eq!(reader.read_with(&mut byte, Some(Instant::now() + TIMEOUT)).unwrap(), 1);
            assert_eq!(byte[0], *expected, "byte {index}");
        }
        assert_eq!(reader.read_with(&mut byte, Some(Instant::now() + TIMEOUT)).unwrap(), 0);
    });
}
