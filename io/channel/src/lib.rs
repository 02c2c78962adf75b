//! Point-to-point shared-memory channels: two rings, doorbells, notice of death.
//!
//! ```
//! use channel::{Config, pair};
//!
//! let (one, other) = pair(&Config::default())?;
//! let (mut sender, _receiver) = one.open()?;
//! let (_sender, mut receiver) = other.open()?;
//! sender.send(b"hello", None)?;
//! let mut message = Vec::new();
//! receiver.receive(&mut message, None)?;
//! assert_eq!(message, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The daemon makes a [`pair`], passes the descriptors of each [`End`] to a process, and keeps
//! neither. Each process opens its end and has a [`Sender`] and a [`Receiver`], which may live in
//! two threads.
//!
//! # What holds
//! - Messages arrive whole, once, in order. Both ends may read and fill them in place.
//! - The peer is not trusted: what it writes can make the channel fail with an error that names the
//!   broken rule ([`Violation`]), and do nothing else. It can't make a call with a deadline take
//!   longer than that.
//! - Closing is for the whole channel, from either half of either end, and dropping a half closes.
//!   Whoever closes is done with it at once; the other end receives what was committed before, and
//!   then [`ReceiveError::Closed`].
//! - A peer that dies at any instruction is the same as one that closes. A sender notices it at the
//!   latest when the ring is full, a receiver before it sleeps.
//! - A channel may carry bytes without seams instead ([`Mode::Stream`], [`StreamWriter`],
//!   [`StreamReader`]): what holds for a pipe holds for each direction.
//! - A message that is too long for one record goes in pieces, if the receiver takes that
//!   ([`Receiver::set_message_limit`]), and arrives whole or not at all.
//! - An opened end belongs to the process that opened it. A fork's child is refused by name, and
//!   closes nothing by ending.
//! - Nothing has a name: when both ends are gone, so is everything.

mod duplex;
mod end;
mod kinds;
mod large;
pub mod meeting;
mod memory;
mod nap;
mod options;
mod parts;
mod passing;
mod receiver;
mod refusals;
mod sender;
mod shared;
mod stream;

pub use duplex::{Duplex, Whereabouts};
pub use end::{End, pair};
pub use kinds::mapped::{Doorbell, Mapped};
pub use memory::{region_bytes, write_header};
pub use nap::{Counts, wake_price_ns};
pub use options::{Config, HugePages, Mode, OpenOptions, Pages};
pub use receiver::{Alleged, ReceiveError, Receiver};
pub use refusals::{CreateError, OpenError};
pub use ring::{Piece, Prepared, Sleep, Spin, Violation, Wake};
pub use sender::{Loan, SendError, Sender};
pub use shared::{Closer, Descriptors, SpinPolicy};
pub use stream::{StreamReader, StreamWriter};
