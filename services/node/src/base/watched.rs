//! Descriptors that the event loop watches.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the loop watch a descriptor, for reading only or for both.
///
/// # Errors
/// Those of `epoll_ctl`.
pub(crate) fn watched(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // The newer constructors are `unsafe` because a type may change the descriptor behind
    // `as_raw_fd`, or close it while it is watched. An `OwnedFd` can do neither: it stays open and
    // the same until the `AsyncFd` lets go of it.
    #[allow(deprecated)]
    AsyncFd::with_interest(descriptor, interest)
}
