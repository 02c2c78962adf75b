//! Regressions: each test opens with the story of its failure.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::sync::atomic::Ordering;

use channel::{Config, Mode, SendError, Violation, pair};
use sys::region::Region;
use wire::ring as layout;

/// A loan that came to nothing had left its zero behind itself, the next loan's payload went over
/// it, and a commit of fewer bytes ended exactly there: the sender believed that the zero still
/// stood, and the receiver took bytes of the payload for a record.
#[test]
fn a_word_cleared_for_a_message_that_never_was_is_cleared_again() {
    let (one, other) = pair(&Config { ring_bytes: 4096, ..Config::default() }).unwrap();
    let ((mut sender, _receiver), (_sender, mut receiver)) = (one.open().unwrap(), other.open().unwrap());
    assert!(sender.try_loan(96).unwrap().write_at(0, &[1; 96]));
    sender.set_batch_bytes(200);
    let mut loan = sender.try_loan(500).unwrap();
    assert!(loan.write_at(0, &[0xff; 500]));
    loan.commit_first(96).unwrap();
    sender.flush().unwrap();
    let mut got = Vec::new();
    assert_eq!(receiver.try_receive(&mut got).unwrap(), Some(96));
    assert_eq!(receiver.try_receive(&mut got).unwrap(), None);
}

/// A write of several pieces met the lie behind the first ones, said how many bytes had gone, and
/// left the lie to the next call: that found the channel closed, and nobody ever learnt why.
#[test]
fn a_lie_met_in_the_midst_of_a_write_is_named_by_the_next_one() {
    let config = Config { ring_bytes: 4096, mode: Mode::Stream, ..Config::default() };
    let (one, other) = pair(&config).unwrap();
    let (mut writer, _reader) = one.open_stream().unwrap();
    let theirs = other.into_descriptors();
    let region = Region::map(&theirs[4], layout::region_bytes(4096) as usize).unwrap();
    region.store_u64(layout::OFFSET_CONTROLS + layout::CONTROL_CONSUMED, 1 << 40, Ordering::Relaxed);
    let written = writer.try_write(&[7; 8000]).unwrap();
    assert!((1..4096).contains(&written), "{written} bytes fit before anybody looks at what was consumed");
    for _ in 0..2 {
        let error = writer.try_write(b"x").unwrap_err();
        assert!(matches!(error, SendError::Corrupt(Violation::Consumed { .. })), "{error}");
    }
    assert!(matches!(writer.try_flush(), Err(SendError::Corrupt(_))));
}
