//! Giving up what a proxy does not need once it has its certificate and the daemon's socket.

use std::io;
use sys::privilege::Modest;

/// Most descriptors: some ten for each of the pairs that both sides may have.
const DESCRIPTORS_MAX: u64 = 131_072;

/// Makes the calling thread, and every thread that it starts from now on, unprivileged for good: as
/// a user whom no program of the machine is, and no other proxy.
///
/// # Errors
/// Those of [`sys::privilege::drop_all`].
pub fn drop_all() -> io::Result<()> {
    let number = accounts::user_of_this_process();
    let identity = rustix::process::geteuid().is_root().then_some((number, number));
    sys::privilege::drop_all(Modest { identity, descriptors: DESCRIPTORS_MAX, locked_bytes: None })
}
