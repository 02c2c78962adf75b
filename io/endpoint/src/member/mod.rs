//! An endpoint's connection to the daemon, which introduces it to others.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::pairs::Pairs;

/// The connection of an endpoint that was bound at the daemon.
#[derive(Debug)]
pub(crate) struct Member;

impl Member {
    /// What becomes readable when the daemon has news.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// When [`Member::take_in`] is due although the descriptor is not readable.
    pub(crate) fn due(&self) -> Option<Instant> {
        None
    }

    /// Takes in whatever is there, without waiting.
    pub(crate) fn take_in(&mut self, _pairs: &mut Pairs) {}
}
