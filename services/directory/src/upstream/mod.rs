//! The way to the upstreams: sockets, one look-up's attempts, and what was learned about each
//! upstream.
//!
//! Messages are hickory's; the transport is ours, because each system call of it is a phase that is
//! measured and paid for (`docs/adr/0005-a-transport-of-our-own-for-dns.md`).

mod fetch;
mod health;
mod outbox;
mod socket;
mod spelling;

pub use fetch::{Fetch, Finished, MAX_PACKET_BYTES, Net, Step};
pub use health::{Health, Standing};
pub use socket::{Audience, MAX_WAITERS, Protocol, Sockets};
