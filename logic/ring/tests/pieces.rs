//! Messages in pieces, as the ring sees them: which piece may follow which.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use ring::{Consumer, Peek, Piece, Place, Producer, Violation};
use sys::region::Region;
use wire::ring as layout;

const RING_BYTES: u32 = 4096;

fn halves() -> (Producer<Arc<Region>>, Consumer<Arc<Region>>) {
    let bytes = layout::region_bytes(RING_BYTES);
    let memory = sys::memfd::sealed("test", bytes).unwrap();
    let region = Arc::new(Region::map(&memory, usize::try_from(bytes).unwrap()).unwrap());
    let place = Place::in_region(0, RING_BYTES).unwrap();
    (Producer::new(Arc::clone(&region), place), Consumer::new(region, place))
}

fn send(producer: &mut Producer<Arc<Region>>, piece: Piece, length: usize) {
    let mut slot = producer.reserve(length).unwrap();
    slot.set_piece(piece);
    let _nobody = slot.commit();
}

/// Whether a consumer may take this piece after `within` (a message has been begun).
fn is_allowed(within: bool, piece: Piece, length: usize) -> bool {
    piece == Piece::Whole || length > 0 && (within || piece.begins())
}

proptest! {
    /// Whatever a producer sends as pieces of whatever: a consumer takes what can be a message, and
    /// names what can't.
    #[test]
    fn a_piece_follows_only_what_it_continues(
        sent in prop::collection::vec((0..4_u8, 0..40_usize), 1..200)
    ) {
        let (mut producer, mut consumer) = halves();
        let mut within = false;
        for (kind, length) in sent {
            let piece = [Piece::Whole, Piece::First, Piece::Next, Piece::Last][usize::from(kind)];
            // Now and then one of each length is empty, which only a whole message may be.
            send(&mut producer, piece, length);
            let position = consumer.consumed();
            let peeked = consumer.peek();
            if !is_allowed(within, piece, length) {
                let alleged = piece.kind();
                let expected = Violation::Piece { position, alleged };
                // Behind a padding it stands at the ring's start.
                let at_start = Violation::Piece { position: position.next_multiple_of(u64::from(RING_BYTES)), alleged };
                prop_assert!(peeked == Err(expected) || peeked == Err(at_start), "{:?}", peeked);
                return Ok(());
            }
            let Ok(Peek::Message(record)) = peeked else { return Err(TestCaseError::fail(format!("{peeked:?}"))) };
            prop_assert_eq!((record.piece(), record.len()), (piece, length));
            // Looking twice changes nothing.
            prop_assert_eq!(consumer.peek(), Ok(Peek::Message(record)));
            let _nobody = consumer.release(record);
            within = !piece.ends();
        }
    }
}

#[test]
fn a_message_that_was_never_begun_is_refused_by_name() {
    for piece in [Piece::Next, Piece::Last] {
        let (mut producer, mut consumer) = halves();
        send(&mut producer, piece, 8);
        let broken = consumer.peek().unwrap_err();
        assert_eq!(broken, Violation::Piece { position: 0, alleged: piece.kind() });
        assert!(broken.to_string().contains("continues none"), "{broken}");
    }
}

/// The producer reads the limit of the region, once there is one.
#[test]
fn a_limit_is_none_until_it_is_said() {
    let (producer, mut consumer) = halves();
    assert_eq!(producer.peer_message_limit(), 0);
    consumer.offer_message_limit(1 << 30);
    assert_eq!(producer.peer_message_limit(), 1 << 30);
}

/// The kinds that a piece has in the region are those of the page.
#[test]
fn a_piece_bears_its_kind_in_the_ring() {
    for piece in [Piece::Whole, Piece::First, Piece::Next, Piece::Last] {
        let bytes = layout::region_bytes(RING_BYTES);
        let memory = sys::memfd::sealed("test", bytes).unwrap();
        let region = Arc::new(Region::map(&memory, usize::try_from(bytes).unwrap()).unwrap());
        let mut producer = Producer::new(Arc::clone(&region), Place::in_region(0, RING_BYTES).unwrap());
        send(&mut producer, piece, 24);
        let word = region.load_u64(layout::HEADER_BYTES, Ordering::Acquire);
        assert_eq!(word, layout::record_word(piece.kind(), 24, 0));
    }
}
