//! The labelled orderings, by name: one place to weaken each, so that the model checker can show
//! that it is needed.
//!
//! The strong ordering is what ships, always; only under `cfg(loom)` can a test weaken one.

use std::sync::atomic::Ordering;

use crate::Memory;

/// One side of a labelled pair. The table is in the documentation of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// COMMIT, producer: stores a record's word.
    CommitStore,
    /// COMMIT, consumer: loads it.
    CommitLoad,
    /// ROOM, consumer: stores `consumed`.
    RoomStore,
    /// ROOM, producer: loads it.
    RoomLoad,
    /// SLEEP, producer: between the word and the look at `sleeping`, while it fences.
    SleepProducer,
    /// SLEEP, consumer: between `sleeping` and the look at the word.
    SleepConsumer,
    /// SLEEP, consumer: the barrier in place of the fence of a producer that does not fence.
    SleepBarrier,
    /// UNFENCED, producer: between saying that it does not fence any more and the first commit
    /// without a fence.
    Unfence,
    /// REFENCED, producer: stores that it fences again.
    RefenceStore,
    /// REFENCED, consumer: loads whether it does.
    RefenceLoad,
    /// WANT, producer: between `wanted` and the look at `consumed`.
    WantProducer,
    /// WANT, consumer: between `consumed` and the look at `wanted`, as it goes on.
    WantConsumer,
    /// END: an end stores its state.
    EndStore,
    /// END: the other loads it.
    EndLoad,
    /// ROUSE: an end that closes takes `sleeping` and `wanted` off whoever sleeps. The other side
    /// is the sleeper's fence of SLEEP and of WANT, behind which it looks at the states of the
    /// ends.
    RouseSwap,
}

impl Label {
    /// All of them.
    #[cfg(loom)]
    pub const ALL: [Label; 15] = [
        Label::CommitStore,
        Label::CommitLoad,
        Label::RoomStore,
        Label::RoomLoad,
        Label::SleepProducer,
        Label::SleepConsumer,
        Label::SleepBarrier,
        Label::Unfence,
        Label::RefenceStore,
        Label::RefenceLoad,
        Label::WantProducer,
        Label::WantConsumer,
        Label::EndStore,
        Label::EndLoad,
        Label::RouseSwap,
    ];

    /// The ordering that ships, or none when a test has weakened it.
    #[inline(always)]
    pub(crate) fn order(self, strong: Ordering) -> Ordering {
        if self.is_weakened() { Ordering::Relaxed } else { strong }
    }

    /// A fence, or none when a test has weakened it.
    #[inline(always)]
    pub(crate) fn fence(self, memory: &impl Memory) {
        if !self.is_weakened() {
            memory.fence();
        }
    }

    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn is_weakened(self) -> bool {
        false
    }

    #[cfg(loom)]
    pub(crate) fn is_weakened(self) -> bool {
        WEAKENED.get() == Some(self)
    }

    /// Weakens this label in whatever the calling thread models from now on.
    #[cfg(loom)]
    pub fn weaken(self) {
        WEAKENED.set(Some(self));
    }
}

#[cfg(loom)]
thread_local! {
    /// Loom runs all threads of a model on one thread of the system, and each test has its own.
    static WEAKENED: std::cell::Cell<Option<Label>> = const { std::cell::Cell::new(None) };
}
