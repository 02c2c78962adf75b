//! Endpoints that exchange messages: the state machine of the calls, without waiting.
//!
//! An [`Endpoint`] has an address inside one distributed container and one [`Link`] to each peer it
//! is bound to. Its user makes a call ([`Send`], [`Request`], [`Receive`]) and polls it; when the
//! poll says [`Poll::Sleep`], nothing is left to do until a doorbell rings or the time is over.
//! There is no clock, thread or pointer here: time comes in as a [`Pulse`], memory through
//! [`Link`], so the very code that ships is explored step by step, in every interleaving, against a
//! model (`tests/explore`). The bytes are those of `docs/spec/ipc.md`.
//!
//! # What holds
//! - A rendezvous is decided by one word that both sides change by compare and swap: a message
//!   whose sender was told that it was not received never will be, whatever the peer does.
//! - What a peer does wrong cuts off that peer ([`Broken`]); what it does not do costs those who
//!   call it their time, and nobody else.
//! - Of calls that wait for each other in a cycle, one ends with a deadlock; see `docs/spec/ipc.md`
//!   for the proof.
//! - A reply never waits.
//!
//! # Orderings
//!
//! | label | one side | other side | what it gives |
//! | --- | --- | --- | --- |
//! | CALL | sender stores *waiting*, `Release`, then commits; receiver changes it to *taken*, `AcqRel` | sender changes it to *over*, `AcqRel` | exactly one of
//! them |
//! | LISTEN | a sleeper says that it listens, fence, looks at ring and words | the other changes a word, fence, looks whether it listens | no change without a
//! wake-up |
//! | PATH | a caller stores *waits*, listens, fence, loads the peer's *path* | the peer stores *path*, fence, loads *waits* | a path that changes is seen |
//! | END | a peer that ends closes, `Release` | [`Link::is_closed`], `Acquire`, then the ring and the words | what was received before a death counts |

mod answering;
mod calling;
mod endpoint;
mod error;
pub mod grants;
mod link;
pub mod loan;
mod moving;
mod peer;
mod receiving;
mod replies;
mod search;
pub mod spoken;
mod stand_in;

pub use calling::{Reply, Request, Send};
pub use endpoint::{Endpoint, Gone, Limits, Poll, Pulse, Rights, Sleep};
pub use error::{NoPeer, NotifyError, ReceiveError, RelayError, ReplyError, RequestError, SendError};
pub use link::{Broken, Link, Way, Word};
pub use moving::Unreceived;
pub use receiving::{Asked, Content, From, Receive, Received};
pub use replies::{Assembly, BadPiece, Remembered, Replies, pieces};
pub use stand_in::{Said, StandIn, Turn};
