//! Regressions: each test opens with the story of its failure.
#![allow(clippy::unwrap_used, reason = "a test may")]

use channel::{Config, pair};

/// A loan that came to nothing had left its zero behind itself, the next loan's payload went over it, and a commit of
/// fewer bytes ended exactly there: the sender believed that the zero still stood, and the receiver took bytes of the
/// payload for a record.
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
