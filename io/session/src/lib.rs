//! Both halves of the service protocol, and the client of a domain's control socket.

mod server;

pub use server::{Context, Interest, LinkId, Readiness, ReplyTo, Service};
