//! Sees to it that our end writes nothing but what is its to write.

use wire::ring as layout;

use crate::hostile::{CONSUMERS, PRODUCERS};
use crate::stage::{Hand, RING_BYTES, control, data};

/// The region as it was.
#[derive(Debug)]
pub struct Watch {
    before: Vec<u8>,
    now: Vec<u8>,
    /// Whether our end may write a word, by the word's number.
    ours: Vec<bool>,
}

impl Watch {
    /// Of the region behind a hand.
    #[must_use]
    pub fn new(hand: &Hand) -> Watch {
        let bytes = layout::region_bytes(RING_BYTES) as usize;
        let mut ours = vec![false; bytes / 8];
        let mut allow = |offset: usize, length: usize| ours[offset / 8..(offset + length) / 8].fill(true);
        allow(layout::OFFSET_ENDS + hand.side * layout::END_STRIDE, 8);
        // What only the other half of a ring writes; the rest either both write, or this half.
        for (ring, theirs) in [(hand.outward(), &CONSUMERS[..]), (hand.inward(), &PRODUCERS[..])] {
            for word in (0..layout::CONTROL_STRIDE).step_by(8).filter(|word| !theirs.contains(word)) {
                allow(control(ring, word), 8);
            }
        }
        allow(data(hand.outward()), RING_BYTES as usize);
        Watch { before: vec![0; bytes], now: vec![0; bytes], ours }
    }

    /// Looks what there is, before a call of ours.
    pub fn begin(&mut self, hand: &Hand) {
        hand.region.copy_out(0, &mut self.before);
    }

    /// Looks what has changed.
    ///
    /// # Panics
    /// When the call wrote what is not ours.
    pub fn end(&mut self, hand: &Hand) {
        hand.region.copy_out(0, &mut self.now);
        if self.now == self.before {
            return;
        }
        let words = self.before.chunks_exact(8).zip(self.now.chunks_exact(8)).zip(&self.ours);
        for (number, ((before, now), ours)) in words.enumerate() {
            assert!(before == now || *ours, "our end wrote at {}, which is not its own", number * 8);
        }
    }
}
