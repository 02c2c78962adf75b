//! One direction of a channel: the ring algorithm, without waiting.
//!
//! A [`Producer`] writes messages into a ring, a [`Consumer`] takes them out; each half may be in
//! another process, and neither trusts what the other wrote. Who waits, and how, is the business of
//! `io/channel`; here is only what decides: where a message goes, whether there is room, who has to
//! be woken.
//!
//! The algorithm touches memory through [`Memory`], so that the very code that ships is
//! model-checked (`tests/model.rs`, `RUSTFLAGS="--cfg loom"`). The bytes are those of
//! `docs/spec/ring.md`.
//!
//! # Orderings
//!
//! | label | one side | other side | what it gives |
//! | --- | --- | --- | --- |
//! | COMMIT | producer stores a record's word, `Release` | consumer loads it, `Acquire` | a message is whole when it shows, and the word after it reads zero; so is a batch, whose first word is stored last |
//! | ROOM | consumer stores `consumed`, `Release` | producer loads it, `Acquire` | bytes are written over only after they were read |
//! | SLEEP | consumer: sets `sleeping`, fence, looks at the word | producer: stores the word, fence, looks at `sleeping` | one of the two sees the other: no message without a wake-up |
//! | SLEEP, unfenced | consumer: sets `sleeping`, fence, sees `unfenced`, barrier, looks at the word | producer: stores the word, looks at `sleeping` | the same: the barrier is a fence in the producer, too |
//! | UNFENCED | producer: sets `unfenced`, fence, leaves the fences out from then on | consumer: sets `sleeping`, fence, looks at `unfenced` | a consumer that omits its barrier is seen asleep |
//! | REFENCED | producer: clears `unfenced`, `Release` | consumer loads it, `Acquire` | what was committed without a fence shows to a consumer that omits its barrier |
//! | WANT | producer: sets `wanted`, fence, looks at `consumed` | consumer: stores `consumed`, fence, looks at `wanted` | one of the two sees the other: no room without a wake-up |
//! | END | an end stores its state, `Release`, then rouses and rings | the other loads it, `Acquire`, then looks at the ring | what was committed before the close is received |
//! | ROUSE | an end that closes swaps `sleeping` and `wanted`, `AcqRel`, then wakes both futexes | a sleeper sets its word, fence, looks at the states of both ends | nobody falls asleep on a futex of a closed channel |

mod consumer;
mod ends;
mod memory;
mod order;
mod piece;
mod place;
mod producer;
mod slot;
mod spin;
mod wake;

pub use consumer::{Consumer, Peek, Record, Taken};
pub use ends::{claim_end, end_state, rouse, set_end_state};
pub use memory::Memory;
pub use order::Label;
pub use piece::Piece;
pub use place::Place;
pub use producer::{Begun, Producer, ReserveError};
pub use slot::Slot;
pub use spin::Spin;
pub use wake::{Prepared, Sleep, Wake};

/// A rule of `docs/spec/ring.md` that the other end has broken. The channel can't be used any
/// further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// `consumed` went back, beyond what was produced, or off the grid.
    #[error("the peer alleges to have consumed {alleged} bytes; only {least} to {most} are possible")]
    Consumed {
        /// The value that the peer wrote.
        alleged: u64,
        /// The value that it had written before.
        least: u64,
        /// The amount that has been produced.
        most: u64,
    },
    /// A record bears a sequence number of another place or time.
    #[error("the record at byte {position} alleges sequence {alleged}, not {expected}")]
    Sequence {
        /// Where the record starts, in bytes since the start.
        position: u64,
        /// The value that the peer wrote.
        alleged: u32,
        /// The value that belongs there.
        expected: u32,
    },
    /// A record is neither a message nor padding.
    #[error("the record at byte {position} alleges to be of kind {alleged}, which does not exist")]
    Kind {
        /// Where the record starts.
        position: u64,
        /// The value that the peer wrote.
        alleged: u64,
    },
    /// A message is longer than messages may be, or goes beyond the end of the ring.
    #[error("the message at byte {position} alleges {alleged} bytes where at most {most} are possible")]
    Length {
        /// Where the record starts.
        position: u64,
        /// The value that the peer wrote.
        alleged: usize,
        /// The greatest value that is possible there.
        most: usize,
    },
    /// A piece of a message is empty, or continues a message that was never begun.
    #[error(
        "the record at byte {position} alleges to be a piece (kind {alleged}) of a message, and is empty or continues none"
    )]
    Piece {
        /// Where the record starts.
        position: u64,
        /// The value that the peer wrote.
        alleged: u64,
    },
    /// A message in pieces is longer than the consumer said that it takes.
    #[error(
        "a message in pieces, the last at byte {position}, has more than the {limit} bytes that this end takes"
    )]
    Message {
        /// Where the record starts with which it became too long.
        position: u64,
        /// The length that this end takes.
        limit: usize,
    },
    /// A padding does not end where the ring does, stands at its start, or has no message behind
    /// it.
    #[error("the padding at byte {position} alleges {alleged} bytes, or has no message behind it")]
    Padding {
        /// Where the record starts.
        position: u64,
        /// The value that the peer wrote.
        alleged: usize,
    },
}
