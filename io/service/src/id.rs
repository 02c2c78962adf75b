//! The name of an open file.

use session::LinkId;

/// Tells open files apart for as long as the service runs: key of what the service keeps for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    pub(crate) link: LinkId,
    pub(crate) session: u64,
}
