//! The revisions of open keys of a coordination service (`docs/spec/coordination.md`): the two
//! `ioctl`s by which a write replaces what was read, or fails.

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Setter, opcode};

/// The type byte of these `ioctl`s.
const TYPE: u8 = 0xD8;

/// The revision of what was read from the beginning of an open key, or written to it last.
///
/// # Errors
/// `ENOTTY`: it is no key.
pub fn revision(key: impl AsFd) -> io::Result<u64> {
    // SAFETY: the opcode is `_IOR(0xD8, 1, __u64)`: whoever answers it writes 8 bytes, which any
    // number is.
    let get = unsafe { Getter::<{ opcode::read::<u64>(TYPE, 1) }, u64>::new() };
    // SAFETY: no driver of Linux has this type byte; a file that knows no such opcode refuses it.
    Ok(unsafe { rustix::ioctl::ioctl(key, get) }?)
}

/// Has later writes to an open key replace this revision, or fail with `ESTALE`.
///
/// # Errors
/// `ENOTTY`: it is no key.
pub fn expect(key: impl AsFd, revision: u64) -> io::Result<()> {
    // SAFETY: the opcode is `_IOW(0xD8, 2, __u64)`: whoever answers it reads 8 bytes.
    let set = unsafe { Setter::<{ opcode::write::<u64>(TYPE, 2) }, u64>::new(revision) };
    // SAFETY: no driver of Linux has this type byte; a file that knows no such opcode refuses it.
    Ok(unsafe { rustix::ioctl::ioctl(key, set) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_key_is_refused() {
        let file = crate::memfd::sealed("test", 4096).unwrap();
        assert_eq!(revision(&file).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert_eq!(expect(&file, 7).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }

    #[test]
    fn the_numbers_are_those_of_the_page() {
        assert_eq!(opcode::read::<u64>(TYPE, 1), 2_148_063_233);
        assert_eq!(opcode::write::<u64>(TYPE, 2), 1_074_321_410);
    }
}
