//! The relay of a domain: what carries connections to other domains, and from them.

use super::{log, said};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The second word of whoever speaks for the daemon with the relay of a guest.
const OF_GUEST: &str = "--of-guest";
/// Where a guest has the folder of ours.
const GUEST_FOLDER: &str = "/run/tombolo";

/// Serves until it is killed with its domain, or speaks with the one of a guest.
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    log();
    if arguments.any(|word| word == OF_GUEST) {
        return ::socket::run_in_guest(Path::new(GUEST_FOLDER)).map_err(|e| said(&e));
    }
    // The standard input is the socket at which its daemon asks, and the next one after that.
    let listener: OwnedFd =
        std::io::stdin().as_fd().try_clone_to_owned().map_err(|e| format!("no socket: {e}"))?;
    ::socket::run(listener).map_err(|e| said(&e))
}
