//! How an end sleeps, and so how it is woken.

use wire::ring as layout;

/// How an end is going to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Until its doorbell rings: for as long as it takes, and in an event loop.
    OnDoorbell,
    /// Until the futex in the low half of its word is woken: for a few milliseconds.
    OnFutex,
}

impl Sleep {
    /// The word of an end that sleeps so.
    #[must_use]
    pub fn bits(self) -> u64 {
        match self {
            Sleep::OnDoorbell => layout::SLEEPS_ON_DOORBELL,
            Sleep::OnFutex => layout::SLEEPS_ON_FUTEX,
        }
    }
}

/// The action for the other end, which has said how it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a sleeper has to be woken"]
pub enum Wake {
    /// Nothing: it does not sleep, or somebody else has woken it.
    Nobody,
    /// Ring its doorbell.
    Doorbell,
    /// Wake the futex of its word.
    Futex,
}

impl Wake {
    /// The action by the word that we have just cleared. Only the end that clears it wakes: a burst
    /// at a sleeper costs one signal. Nonsense is taken for a doorbell, which tells a hostile peer
    /// nothing.
    #[must_use = "a sleeper has to be woken"]
    pub fn of(cleared: u64) -> Wake {
        match cleared {
            0 => Wake::Nobody,
            word if word & layout::SLEEPS_MASK == layout::SLEEPS_ON_FUTEX => Wake::Futex,
            _ => Wake::Doorbell,
        }
    }

    /// Whether there is anything to do.
    #[must_use]
    pub fn is_needed(self) -> bool {
        self != Wake::Nobody
    }
}

/// The outcome of preparing to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it says whether to sleep"]
pub struct Prepared {
    /// Nothing has come: sleep. Otherwise the word has been taken back already.
    pub sleep: bool,
    /// The content of our word until somebody wakes us; its low half is the futex.
    pub word: u64,
    /// The other end may have missed that we sleep: sleep for a bounded time only.
    pub blind: bool,
    /// The action for the other end where what it waits for has come: wake it first.
    pub wake: Wake,
}
