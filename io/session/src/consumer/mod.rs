//! The consumer's half of the service protocol.

mod assembly;
mod blocking;
mod call;

pub use assembly::{Answer, BadBackend, Incoming, tags};
pub use blocking::Blocking;
pub use call::{Answers, CallError, Caller, open};
