//! Both halves of the service protocol, and the client of a domain's control socket.

mod consumer;
mod control;
mod server;
mod wait;

pub use consumer::{Answer, Answers, BadBackend, Blocking, CallError, Caller, Incoming, open, tags};
pub use control::{
    Bound, Control, ControlError, FolderWatch, Grant, Introduced, Memories, Notice, Offer, OfferEvent,
    offer_channel, open_channel, open_channel_at, packet,
};
pub use server::{
    Context, Interest, LinkId, MAX_OUTSTANDING_PER_LINK, MAX_QUEUED_BYTES, MAX_SESSIONS_PER_LINK, Make,
    Readiness, ReplyTo, STALL_LIMIT, ServeError, Server, Service, serve, serve_program,
};
pub use wait::timespec;
pub use wire::control::Consumer;
