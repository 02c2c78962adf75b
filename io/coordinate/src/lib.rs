//! Keys, locks, semaphores, barriers and queues that the programs of a distributed container share.
//! The service keeps what it has answered over the death of a process, a server, a daemon or a
//! node.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! use coordinate::{Sync, Wait};
//! use std::time::Duration;
//!
//! let sync = Sync::of_domain()?; // the one coordination service of this domain
//! if let Some(entry) = sync.get("config/colour")? {
//!     sync.swap("config/colour", entry.revision, b"red")?; // ESTALE: somebody was faster
//! }
//! let held = sync.lock("printer", Wait::For(Duration::from_secs(5)))?;
//! println!("page 1, token {}", held.token()); // the token only grows
//! drop(held);
//! sync.barrier("phase", Some(3), Wait::Ever)?; // waits for the two others
//! let item = sync.queue("jobs").take(Wait::Ever)?;
//! item.done()?; // one that is dropped goes to somebody else
//! # Ok(())
//! # }
//! ```
//!
//! All of it is files below `/srv` (`docs/coordination.md`), which any language can use. What fails
//! is the error of that file; what is not there within a time is [`io::ErrorKind::TimedOut`], and
//! what is not to be had at once [`io::ErrorKind::WouldBlock`].

mod keys;
mod locks;
mod queue;
mod watch;

pub use keys::{Entry, Key, Lease};
pub use locks::Held;
pub use queue::{Item, Queue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
pub use watch::{Change, Watch};
use wire::coordination::KIND;

/// Where a domain's services are, and where it is said which there are.
const SERVICES: &str = "/srv";
const LIST: &str = "/srv/self/services";
/// Longest answer of `ctl`: as much as a server answers.
const ANSWER_BYTES: u64 = wire::service::MAX_ANSWER_BYTES as u64 + 1;

/// How long something is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until it is there.
    Ever,
    /// So long at the most; then [`io::ErrorKind::TimedOut`].
    For(Duration),
    /// Not at all; [`io::ErrorKind::WouldBlock`] where it would have to be waited for.
    Not,
}

/// A coordination service of this domain.
#[derive(Debug, Clone)]
pub struct Sync {
    folder: PathBuf,
}

impl Sync {
    /// The service whose folder this is, as `/srv/sync`. Nothing is looked at yet.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The only coordination service of this domain.
    ///
    /// # Errors
    /// There is none, or there are several; this is no domain.
    pub fn of_domain() -> io::Result<Self> {
        let services = fs::read_to_string(LIST)?;
        match services_in(&services).as_slice() {
            [(_, at)] => Ok(Self::at(Path::new(SERVICES).join(at))),
            found => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "this domain has {} services of kind {KIND:?}; say which, by its folder below {SERVICES}",
                    found.len()
                ),
            )),
        }
    }

    /// A path in its folder.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// Says a line to `ctl`, and returns the whole answer.
    ///
    /// # Errors
    /// The error of the service; [`io::ErrorKind::InvalidInput`]: it is more than a line.
    pub fn ask(&self, line: &[u8]) -> io::Result<Vec<u8>> {
        if line.contains(&b'\n') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it has a line end"));
        }
        let mut ctl = OpenOptions::new().read(true).write(true).open(self.path("ctl"))?;
        asked(&mut ctl, line)
    }
}

/// The services of our kind in the lines `NAME KIND AT STATE VERBS`: names, and where they are
/// below `/srv`.
#[must_use]
pub fn services_in(text: &str) -> Vec<(&str, &str)> {
    let one = |line| {
        let mut words = str::split(line, ' ');
        let (name, kind, at) = (words.next()?, words.next()?, words.next()?);
        (kind == KIND).then_some((name, at))
    };
    text.lines().filter_map(one).collect()
}

/// The answer of an open `ctl` to a line.
fn asked(ctl: &mut (impl Read + Write), line: &[u8]) -> io::Result<Vec<u8>> {
    let mut text = line.to_vec();
    text.push(b'\n');
    ctl.write_all(&text)?;
    let mut answer = Vec::new();
    ctl.take(ANSWER_BYTES).read_to_end(&mut answer)?;
    Ok(answer)
}

/// The number that an answer is.
fn number(answer: &[u8]) -> io::Result<u64> {
    let text = str::from_utf8(answer).unwrap_or_default().trim();
    text.parse().map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the service answers {text:?}, which is no number"),
        )
    })
}

/// The path of a name: text without white space, which stays below its folder.
fn named(of: &str, name: &str) -> io::Result<String> {
    let is_odd = name.is_empty()
        || name.chars().any(|c| c.is_whitespace() || c.is_control())
        || name.split('/').any(|part| part == "..");
    if is_odd {
        let why = format!("{name:?} is no name: a name is text without white space");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(format!("{of}/{name}"))
}

/// Waits until there is something to read, as long as `wait` says from `begun` on.
fn wait_for(file: impl AsFd, wait: Wait, begun: Instant) -> io::Result<()> {
    let Wait::For(timeout) = wait else { return Ok(()) };
    loop {
        let left = timeout.saturating_sub(begun.elapsed());
        let limit = Timespec::try_from(left)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the time is too long"))?;
        match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&limit)) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not within {timeout:?}"))),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_their_kind() {
        let text = "dns directory dns up resolve\nsync coordination sync up observe\nother coordination o/p down observe\n";
        assert_eq!(services_in(text), [("sync", "sync"), ("other", "o/p")]);
        assert_eq!(services_in("torn\n\n coordination\nx coordination\n"), []);
    }

    #[test]
    fn names_stay_below_their_folder() {
        assert_eq!(named("kv", "config/colour").unwrap(), "kv/config/colour");
        for wrong in ["", "a b", "a\n", "../locks/x", "a/../../ctl", "a\u{7}"] {
            assert_eq!(named("kv", wrong).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{wrong:?}");
        }
    }

    #[test]
    fn a_time_that_passes_is_told_from_what_is_there() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let begun = Instant::now();
        let late = wait_for(&ours, Wait::For(Duration::from_millis(1)), begun).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        theirs.write_all(b"x").unwrap();
        wait_for(&ours, Wait::For(Duration::ZERO), begun).unwrap();
        wait_for(&ours, Wait::Ever, begun).unwrap();
    }
}
