//! The replica of a volume on this node.

use super::{log, said};
use std::os::fd::{AsFd, OwnedFd};

/// Serves until it is ended.
pub fn run() -> Result<(), String> {
    log();
    // The standard input is the socket at which its daemon connects, and the next one after that.
    let listener: OwnedFd =
        std::io::stdin().as_fd().try_clone_to_owned().map_err(|e| format!("no socket: {e}"))?;
    ::replica::run(listener).map_err(|e| said(&e))
}
