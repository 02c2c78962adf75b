//! Both halves of the service protocol, and the client of a domain's control socket.

mod consumer;
//mod control;
mod server;
mod wait;

pub use consumer::{Answer, BadBackend, Incoming};
pub use server::{
    Context, Interest, LinkId, MAX_OUTSTANDING_PER_LINK, MAX_SESSIONS_PER_LINK, Readiness, ReplyTo, Service,
};
