//! The server's half of the service protocol.

mod service;

pub use service::{Context, Interest, LinkId, Readiness, ReplyTo, Service};
