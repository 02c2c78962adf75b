//! The errors of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// An operation on a domain that failed. The text says what, where, and what to do; the cause is
/// kept as `source`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file, directory or kernel object could not be used.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// The verb, such as "create".
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A step that is about no file failed.
    #[error("cannot {what}: {source}")]
    Step {
        /// The step, such as "spawn the monitor".
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The specification says something that can't be done.
    #[error("domain specification: {0}")]
    Specification(String),
    /// A name that can't be a path component, a cgroup and a runtime's id at once.
    #[error(
        "{what} name {name:?} is not usable: 1 to 63 letters, digits, '-', '_' or '.', starting with a letter or digit"
    )]
    Name {
        /// "distributed container" or "domain".
        what: &'static str,
        /// The name as given.
        name: String,
    },
    /// A limit that this machine can't enforce.
    #[error(
        "cannot limit {what}: no cgroup hierarchy offers the controller `{controller}`; boot with it enabled (cgroup_enable={controller}) or leave the limit out"
    )]
    Controller {
        /// The resource that was to be limited.
        what: &'static str,
        /// The kernel's name of the controller.
        controller: &'static str,
    },
    /// Processes that did not go away when killed.
    #[error(
        "processes {pids:?} of cgroup {cgroup} are still there {waited_ms} ms after SIGKILL; they hang in the kernel (see /proc/PID/stack)"
    )]
    StillAlive {
        /// The cgroup below each hierarchy's mount.
        cgroup: String,
        /// The processes.
        pids: Vec<u32>,
        /// How long it took before giving up.
        waited_ms: u64,
    },
    /// The domain runs already.
    #[error("domain {0} runs already: its monitor is alive; stop it first")]
    AlreadyRuns(String),
    /// The domain does not run.
    #[error("domain {0} does not run")]
    NotRunning(String),
    /// No OCI runtime can be used.
    #[error("no OCI runtime: {0}; install one with `apt-get install runc`")]
    NoRuntime(String),
    /// The OCI runtime refused.
    #[error("{command} failed: {message}")]
    Runtime {
        /// The program and its verb, such as "runc create".
        command: String,
        /// Its message.
        message: String,
    },
    /// The monitor could not bring up the domain.
    #[error("cannot bring up domain {domain}: {message}")]
    BringUp {
        /// `DC/NAME`.
        domain: String,
        /// The monitor's report, causes included.
        message: String,
    },
    /// The monitor ended, or was silent for too long, before the domain was up.
    #[error("the monitor of domain {domain} {what}")]
    Monitor {
        /// `DC/NAME`.
        domain: String,
        /// Such as "ended without a word".
        what: String,
    },
    /// An image could not be used.
    #[error("image {}: {source}", path.display())]
    Image {
        /// The image layout, as given.
        path: PathBuf,
        /// The fault of the image.
        source: crate::image::ImageError,
    },
    /// A file of ours holds something else than we wrote.
    #[error("{} is damaged: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        message: String,
    },
}

/// An answer, or an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Adds to an I/O error what was attempted.
pub(crate) trait Context<T> {
    /// With the file that it was about.
    fn at(self, what: &'static str, path: impl AsRef<Path>) -> Result<T>;
    /// With the step that failed.
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn at(self, what: &'static str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|e| Error::File { what, path: path.as_ref().to_owned(), source: e.into() })
    }
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|e| Error::Step { what: what.into(), source: e.into() })
    }
}

/// An error with its causes; those that its text tells already are left out.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
