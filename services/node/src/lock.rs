//! One daemon per directory: an advisory lock that the kernel lets go of when its holder dies.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Longest text of a lock file that is read: a pid.
const MAX_PID_TEXT: u64 = 16;

/// A directory that is ours alone for as long as this lives.
#[derive(Debug)]
pub struct Lock {
    _held: File,
}

/// Why a directory could not be locked.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another daemon has it.
    #[error("another daemon{} already uses {}; stop it first, or choose other directories with --run-dir and --state-dir",
        pid.map_or(String::new(), |pid| format!(" (pid {pid})")), folder.display())]
    Held {
        /// Which directory.
        folder: PathBuf,
        /// Whose it is, if the lock says so.
        pid: Option<u32>,
    },
    /// The lock file can't be used.
    #[error("can't lock {}: {cause}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

impl Lock {
    /// Locks `folder` by its file `lock`, and writes our pid there for whoever comes second.
    ///
    /// # Errors
    /// [`LockError::Held`] naming the holder; [`LockError::File`].
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        let path = folder.join("lock");
        let at = |cause: io::Error| LockError::File { path: path.clone(), cause };
        let mut file =
            File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(at)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(LockError::Held { folder: folder.to_owned(), pid: holder(&mut file) });
            }
            Err(errno) => return Err(at(errno.into())),
        }
        file.set_len(0).map_err(at)?;
        file.rewind().map_err(at)?;
        writeln!(file, "{}", std::process::id()).map_err(at)?;
        Ok(Self { _held: file })
    }
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_PID_TEXT).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_and_told_who_was_first() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::take(folder.path()).unwrap();
        let refusal = Lock::take(folder.path()).unwrap_err();
        assert!(matches!(refusal, LockError::Held { pid: Some(pid), .. } if pid == std::process::id()));
        drop(first);
        Lock::take(folder.path()).unwrap();
    }
}
