//! The dispatcher as a process of its own, the guardian that looks after it, and the client of
//! both.
//!
//! The dispatcher outlives whoever started it, and goes on with what is in force. It ends when it
//! is told to, or when nobody is left for whom it keeps anything. The guardian gives everything
//! back at once when it dies.

mod client;
mod dispatcher;
mod guardian;
pub mod protocol;

use std::ffi::OsString;

pub use client::{Client, Launch};

/// Name of the dispatcher's role.
pub const DISPATCHER_ROLE: &str = "internal-dispatcher";
/// Name of the guardian's.
pub const GUARDIAN_ROLE: &str = "internal-guardian";
/// Priority of the guardian: over all that is real-time here.
const GUARDIAN_PRIORITY: u32 = 40;

/// Runs the role that the arguments name, if it is one of this crate's, and returns its exit code.
#[must_use]
pub fn role_main(arguments: &[OsString]) -> Option<i32> {
    let role = arguments.first()?.to_str()?;
    let done = match role {
        DISPATCHER_ROLE => dispatcher::main(arguments.get(1..)?),
        GUARDIAN_ROLE => guardian::main(arguments.get(1..)?),
        _ => return None,
    };
    Some(match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("tombolo {role}: {error}");
            1
        }
    })
}
