//! Giving up what a proxy does not need once it has its certificate and the daemon's socket.

use std::io;
use sys::privilege::Modest;

/// Most descriptors: some ten for each of the pairs that both sides may have.
const DESCRIPTORS_MAX: u64 = 131_072;
/// The first user that a proxy may become, and how many there are: numbers that no system hands out to anybody, behind those of
/// frontends.
const FIRST_USER: u32 = 0x7fff_0000;
/// See [`FIRST_USER`].
const USERS: u32 = 0xfffe;

/// Makes the calling thread, and every thread that it starts from now on, unprivileged for good: as a user whom no program of the machine
/// is, and no other proxy.
///
/// # Errors
/// Those of [`sys::privilege::drop_all`].
pub fn drop_all(peer: &str) -> io::Result<()> {
    let bytes = peer.bytes();
    // FNV-1a: the same in every version, so that a successor is who its predecessor was.
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let number = FIRST_USER + hash % USERS;
    let identity = rustix::process::geteuid().is_root().then_some((number, number));
    sys::privilege::drop_all(Modest { identity, descriptors: DESCRIPTORS_MAX, locked_bytes: None })
}
