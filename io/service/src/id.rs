//! The name of an open file.

use session::LinkId;

/// Tells open files apart for as long as the service runs: key of what the service keeps for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    pub(crate) link: LinkId,
    pub(crate) session: u64,
}

impl SessionId {
    /// Returns the same as a number, for languages that have no such key.
    #[must_use]
    pub fn number(self) -> u64 {
        // Links are counted from 0 on, and sessions in each link.
        self.link.0.wrapping_shl(32) ^ self.session
    }
}
