//! Giving up what a frontend does not need once it has its descriptors.

use std::io;
use sys::privilege::Modest;

/// Most descriptors: a few for itself, and those of the links (an end has five) of
/// [`crate::tree::SERVICES_MAX`] services, old and new ones together.
const DESCRIPTORS_MAX: u64 = 512;

/// An unprivileged user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its number; not 0.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Makes the calling thread, and every thread that it starts from now on, unprivileged for good.
///
/// # Errors
/// The errors of [`sys::privilege::drop_all`].
pub(crate) fn drop_all(identity: Option<Identity>) -> io::Result<()> {
    let identity = identity.map(|Identity { uid, gid }| (uid, gid));
    sys::privilege::drop_all(Modest { identity, descriptors: DESCRIPTORS_MAX, locked_bytes: Some(0) })
}
