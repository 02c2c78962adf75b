//! Event channels, decided without waiting: the events that a channel holds, who has read how far
//! ([`Channel`]), and what a filter lets through ([`Filter`], or a module as a [`Judge`]).
//! `docs/spec/events.md` has the bytes, `docs/events.md` is for users.
//!
//! A channel's events lie once, in one region ([`Store`]). A subscriber is a cursor: a publication
//! copies its bytes in once, whoever subscribes, and evaluates each distinct filter once.

mod channel;
mod filter;
mod judge;
mod log;
mod store;

pub use channel::{
    Channel, Counters, Delivery, HOLD_NS, HOLDS_MAX, InstalledFilter, Overflow, Position, Published,
    Publisher, PublisherRefused, Replay, SUBSCRIBERS_MAX, Shape, Subscriber, SubscriptionId,
    SubscriptionRefused,
};
pub use filter::{Fields, Filter, FilterError, Format, FormatError, Layout};
pub use judge::{Judge, NamedModule, Replacement};
pub use log::{Cursor, EventHead, LogError};
pub use store::{MemoryStore, Store};
