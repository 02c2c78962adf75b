//! Changes, as they happen.

use super::{Sync, Wait, wait_for};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// A change that a [`Watch`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The count of changes after it; of a `gap`, how many were missed.
    pub revision: u64,
    /// `now` first of all: what is read after it, and what is told from then on, is all there is.
    /// `put` and `rm` of a key, `held` and `free` of a lock, `open` and `broken` of a barrier.
    /// `gap`: some were missed; list anew.
    pub what: String,
    /// The words behind it: the path, and before it of a lock its token and domain.
    pub words: Vec<String>,
}

/// The changes of a service, one after the other.
#[derive(Debug)]
pub struct Watch(BufReader<File>);

impl Sync {
    /// The changes from now on; with a prefix (`kv/config/`, `locks/`) those alone.
    ///
    /// # Errors
    /// The service's.
    pub fn watch(&self, prefix: &str) -> io::Result<Watch> {
        let mut file = OpenOptions::new().read(true).write(true).open(self.path("watch"))?;
        if !prefix.is_empty() {
            file.write_all(prefix.as_bytes())?;
        }
        Ok(Watch(BufReader::new(file)))
    }
}

impl Watch {
    /// The next change.
    ///
    /// # Errors
    /// The service's; see [`Wait`], of which [`Wait::Not`] is a time of nothing.
    pub fn read(&mut self, wait: Wait) -> io::Result<Change> {
        let wait = if wait == Wait::Not { Wait::For(std::time::Duration::ZERO) } else { wait };
        // The service tells whole lines: what is in the buffer is one.
        if self.0.buffer().is_empty() {
            wait_for(self.0.get_ref(), wait, Instant::now())?;
        }
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        change(line.trim_end()).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the service tells {line:?}, which is no change"),
            )
        })
    }
}

impl AsFd for Watch {
    /// Readable when there is a change.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// A line of `watch`: `42 put kv/config/colour`, `41 now`, `43 held 43 a locks/printer`.
fn change(line: &str) -> Option<Change> {
    let mut words = line.split(' ');
    let (revision, what) = (words.next()?.parse().ok()?, words.next()?.to_owned());
    Some(Change { revision, what, words: words.map(str::to_owned).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_changes_or_nonsense() {
        let held = change("43 held 43 a locks/printer").expect("a change");
        assert_eq!((held.revision, held.what.as_str()), (43, "held"));
        assert_eq!(held.words, ["43", "a", "locks/printer"]);
        assert_eq!(change("41 now").map(|change| change.words), Some(Vec::new()));
        assert_eq!((change(""), change("x put y"), change("7")), (None, None, None));
    }
}
