//! The server's half of the service protocol.

mod book;
mod core;
mod daemon;
mod leave;
mod link;
mod run;
mod service;
mod turn;

pub use book::{MAX_OUTSTANDING_PER_LINK, MAX_SESSIONS_PER_LINK};
pub use link::MAX_QUEUED_BYTES;
pub use run::{Make, STALL_LIMIT, ServeError, Server, serve, serve_program};
pub use service::{Context, Interest, LinkId, Readiness, ReplyTo, Service};
