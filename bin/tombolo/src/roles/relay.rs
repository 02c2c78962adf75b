//! The relay of a domain: what carries connections to other domains, and from them.

use super::{log, said};
use std::os::fd::{AsFd, OwnedFd};

/// Serves until it is killed with its domain.
pub fn run() -> Result<(), String> {
    log();
    // The standard input is the socket at which its daemon asks, and the next one after that.
    let listener: OwnedFd =
        std::io::stdin().as_fd().try_clone_to_owned().map_err(|e| format!("no socket: {e}"))?;
    ::socket::run(listener).map_err(|e| said(&e))
}
