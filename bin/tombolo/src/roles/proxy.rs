//! The proxy for another node: what goes there, and comes from there.

use super::{log, said};
use std::os::fd::{AsFd, OwnedFd};

/// Serves until its link is over.
pub fn run() -> Result<(), String> {
    log();
    // The standard input is the socket at which its daemon connects, and the next one after that.
    let listener: OwnedFd =
        std::io::stdin().as_fd().try_clone_to_owned().map_err(|e| format!("no socket: {e}"))?;
    let why = ::proxy::run(listener).map_err(|e| said(&e))?;
    tracing::info!(why, "the proxy ends");
    Ok(())
}
