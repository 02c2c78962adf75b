//! Names in a directory, and those of the store's own folder.

use rustix::fs::RawDir;
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// Bytes of one getdents64(2): some hundred names.
const LISTING_BYTES: usize = 32 * 1024;

/// Calls `each` with the names in an open directory and the place after each, from `after` on,
/// until it says false.
pub fn names(directory: &OwnedFd, after: u64, mut each: impl FnMut(&CStr, u64) -> bool) -> Result<(), Errno> {
    rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(after))?;
    let mut buffer = [MaybeUninit::uninit(); LISTING_BYTES];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." && !each(name, entry.next_entry_cookie()) {
            break;
        }
    }
    Ok(())
}

/// The name of a node in the store's own folder.
pub fn apart_name(serial: u32) -> CString {
    CString::new(serial.to_string()).unwrap_or_default()
}
