//! Names of channels and domains.

use rustix::io::Errno;
use wire::events::NAME_BYTES_MAX;

/// A number that stands for a name: FNV-1a. Where two names had the same one, their owners would
/// share a quota.
pub(crate) fn number_of(name: &[u8]) -> u64 {
    name.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Letters, digits, `.`, `_` and `-`, the first of them a letter or a digit: what no shell and no
/// broker takes for something else.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let begins = name.first().is_some_and(u8::is_ascii_alphanumeric);
    let plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte));
    if begins && plain { Ok(()) } else { Err(Errno::INVAL) }
}
