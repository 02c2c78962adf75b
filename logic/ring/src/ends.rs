//! The states of a channel's two ends. Each end writes its own and reads the other's.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use sys::region::Region;
use wire::ring as layout;

use crate::{Label, Memory, Place};

fn offset(side: usize) -> usize {
    layout::OFFSET_ENDS + (side & 1) * layout::END_STRIDE
}

/// The alleged state of end `side` (0 or 1): one of `wire::ring::END_*`, or nonsense.
pub fn end_state(memory: &impl Memory, side: usize) -> u64 {
    // END: after this the ring shows whatever was committed before a close.
    memory.load(offset(side), Label::EndLoad.order(Acquire))
}

/// Takes end `side` (0 or 1) into use if nobody has, and returns what stood there: `END_UNOPENED`,
/// or whoever was first. An end that was closed stays closed.
pub fn claim_end(region: &Region, side: usize) -> u64 {
    region.replace_u64(offset(side), layout::END_UNOPENED, layout::END_OPEN, AcqRel)
}

/// Publishes the state of end `side` (0 or 1) and returns what was there. Afterwards [`rouse`] and
/// ring the other end's doorbells, whatever its flags say: closing happens once and must not get
/// lost.
pub fn set_end_state(memory: &impl Memory, side: usize, state: u64) -> u64 {
    // END: what was committed before shows before the close does.
    memory.swap(offset(side), state, Label::EndStore.order(Release))
}

/// Takes what they said off both sleepers of a ring, after an end has closed, and returns the
/// offsets of their two words: wake the futex of each, whatever stood there.
pub fn rouse(memory: &impl Memory, place: &Place) -> [usize; 2] {
    let words = [place.sleeping(), place.wanted()];
    for word in words {
        // ROUSE: whoever says now that it sleeps, sees the close; whoever said it before, is woken.
        memory.swap(word, 0, Label::RouseSwap.order(AcqRel));
    }
    words
}
