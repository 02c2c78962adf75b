//! A link between the proxies of two nodes (`docs/spec/link.md`): many pairs of endpoints over one
//! connection that may be cut, replaced, or lose what it carries.
//!
//! [`Link`] decides and never waits. Packets that the transport brought go in ([`Link::receive`]),
//! packets to be carried come out ([`Link::poll_transmit`]), and time is an argument: milliseconds
//! of a clock that never goes back. Each message that was queued on a pair is delivered once and in
//! order, as long as both incarnations live, whatever connections they had; or the pair ends, and
//! both sides hear of it.

mod broken;
mod config;
mod connection;
mod inward;
mod link;
mod messages;
mod outward;
mod pairs;
mod records;
pub mod schedule;
mod table;
mod thrift;
mod transmit;

pub use broken::{BadConfig, Broken, OpenError, Over, SendError};
pub use config::{Config, Timing, Transport};
pub use link::{Closed, Event, Held, Link, Sent, Standing};
pub use messages::{Iter, Messages};
pub use schedule::Share;
pub use thrift::{Thrift, Way};
