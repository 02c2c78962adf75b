//! The server's half of the service protocol.

mod book;
mod service;

pub use book::{MAX_OUTSTANDING_PER_LINK, MAX_SESSIONS_PER_LINK};
pub use service::{Context, Interest, LinkId, Readiness, ReplyTo, Service};
