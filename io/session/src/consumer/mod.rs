//! The consumer's half of the service protocol.

mod assembly;

pub use assembly::{Answer, BadBackend, Incoming};
