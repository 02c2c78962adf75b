//! Files that are replaced as a whole and keep their room: a new text can be written when the disk
//! is full.
//!
//! Beside the file is a second one of the same size. A new text is written over the second one, and
//! the two change places. A reader sees the old text or the new one. Neither is ever shortened, so
//! the text is followed by spaces, which our readers pass over.

use crate::error::{Context, Result};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces the text of `path`; `room` is how many bytes are kept for it. A longer text is written
/// too, if there is room.
pub(crate) fn replace(path: &Path, text: &[u8], room: usize) -> Result<()> {
    let second = path.with_extension("new");
    let mut padded = text.to_vec();
    padded.resize(text.len().max(room), b' ');
    write(&second, &padded).at("write", &second)?;
    match renameat_with(CWD, &second, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // There is none yet, or this file system can't exchange them.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
            fs::rename(&second, path).at("replace", path)?;
            // Without it the next text needs room; that it is not there now is no reason to fail.
            if let Err(error) = write(&second, &padded) {
                tracing::warn!(path = %second.display(), %error, "no room is kept for what is written there next");
            }
            Ok(())
        }
        Err(error) => Err(error).at("replace", path),
    }
}

/// Writes over what is there. What an earlier, longer text left behind this one is cut off.
fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    // The monitor of a domain could not write down how it ended, and a node could not renew its
    // hold, while the disk was full.
    #[test]
    fn a_text_is_replaced_on_a_full_disk() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounting needs root");
            return;
        }
        let dir = tempfile::tempdir().expect("dir");
        let at: PathBuf = dir.path().to_owned();
        let there = std::thread::spawn(move || {
            use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
            sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNS).expect("a namespace");
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private");
            mount("tmpfs", &at, "tmpfs", MountFlags::empty(), c"size=64k,nr_inodes=16")
                .expect("a small disk");
            let path = at.join("status.json");
            replace(&path, b"one", 4096).expect("the first");
            let mut filler = File::create(at.join("filler")).expect("a filler");
            while filler.write_all(&[0; 4096]).is_ok() {}
            while File::create(at.join(format!("f{}", fs::read_dir(&at).expect("list").count()))).is_ok() {}
            for text in ["two", "a longer one", "3"] {
                replace(&path, text.as_bytes(), 4096).expect(text);
                assert_eq!(fs::read_to_string(&path).expect("read").trim_end(), text);
            }
            let longer = "x".repeat(5000);
            assert!(replace(&path, longer.as_bytes(), 4096).is_err(), "there was room");
            assert_eq!(fs::read_to_string(&path).expect("read").trim_end(), "3");
            drop(filler);
            fs::remove_file(at.join("filler")).expect("room");
            replace(&path, longer.as_bytes(), 4096).expect("longer");
            assert_eq!(fs::read_to_string(&path).expect("read"), longer);
            replace(&path, b"short", 4096).expect("short");
            assert_eq!(fs::read_to_string(&path).expect("read").trim_end(), "short");
        });
        there.join().expect("it ends");
    }
}
