//! Locks on files, as fcntl(2) and flock(2) define them, between owners of several parties.
//!
//! A [`Table`] decides who holds which bytes, who waits, and which wait would never end; its caller
//! knows the files and tells owners of the outcome. It has no clock and waits for nothing.

mod held;
mod range;
mod table;

pub use held::{Held, Kind, Mode, Owner};
pub use range::{LAST, Range};
pub use table::{MAX_LOCKS, MAX_WAITERS, Outcome, Refusal, Request, Settled, Table};
