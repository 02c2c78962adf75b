//! One daemon per directory: an advisory lock that the kernel lets go of when its holder dies.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Longest text of a lock file that is read: a pid.
const MAX_PID_TEXT: u64 = 16;

/// How often a holder is looked at, whether it stays.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

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
        /// The directory.
        folder: PathBuf,
        /// The process that holds it, if the lock says so.
        pid: Option<u32>,
    },
    /// The lock file can't be used.
    #[error("can't lock {}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

impl Lock {
    /// As [`Lock::take`], but waits for a holder that is on its way out: `patience` at the most,
    /// and only until `stays` says that the holder is there to stay.
    ///
    /// # Errors
    /// As for [`Lock::take`].
    pub fn take_within(
        folder: &Path,
        patience: Duration,
        stays: impl Fn() -> bool,
    ) -> Result<Self, LockError> {
        let held = match Self::take(folder) {
            Err(held @ LockError::Held { .. }) => held,
            other => return other,
        };
        // There is no lock with a deadline: a thread waits, which ends with the process if it waits
        // in vain.
        let (tell, locked) = std::sync::mpsc::channel();
        let path = folder.join("lock");
        std::thread::spawn(move || {
            let lock = File::options().read(true).write(true).open(path);
            let locked =
                lock.and_then(|file| Ok(flock(&file, FlockOperation::LockExclusive).map(|()| file)?));
            let _too_late = tell.send(locked);
        });
        let deadline = Instant::now() + patience;
        loop {
            match locked.recv_timeout(LOOK_AGAIN.min(patience)) {
                Ok(Ok(file)) => return Self::sign(folder, file),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline && !stays() => {}
                _ => return Err(held),
            }
        }
    }

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
        Self::sign(folder, file)
    }

    fn sign(folder: &Path, mut file: File) -> Result<Self, LockError> {
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(|cause| LockError::File { path: folder.join("lock"), cause })?;
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
        let begun = std::time::Instant::now();
        let waiter = std::thread::spawn({
            let folder = folder.path().to_owned();
            move || Lock::take_within(&folder, Duration::from_secs(60), || false).map(drop)
        });
        drop(first);
        waiter.join().unwrap().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(60));
        let _third = Lock::take(folder.path()).unwrap();
        let begun = std::time::Instant::now();
        assert!(Lock::take_within(folder.path(), Duration::from_secs(60), || true).is_err());
        assert!(begun.elapsed() < Duration::from_secs(30), "it waited for one that stays");
    }
}
