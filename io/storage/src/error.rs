//! Why something can't be done with an engine or an image.

use qmp::QmpError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Why something can't be done with an engine or an image.
#[derive(Debug, Error)]
pub enum StorageError {
    /// A file or a folder.
    #[error("can't {what} {}: {cause}", path.display())]
    File {
        /// To do what with it.
        what: &'static str,
        /// The image.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// A size that no volume has.
    #[error("{0}")]
    Size(String),
    /// A program can't be started.
    #[error("can't start {program}: {cause}; is the package {package} installed?")]
    Program {
        /// Its name.
        program: &'static str,
        /// Where Debian has it.
        package: &'static str,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// A program ended without having done what it was started for.
    #[error("{program} did not come up: {words}")]
    Ended {
        /// Its name.
        program: &'static str,
        /// Its last words, and how it ended.
        words: String,
    },
    /// It takes too long.
    #[error("{what} is not done within {patience:?}: the disk may be stuck, or the engine hangs")]
    Late {
        /// The thing that is missing.
        what: String,
        /// How long it had.
        patience: Duration,
    },
    /// The engine's monitor is of no use.
    #[error("the volume's engine can't be spoken with: {0}")]
    Monitor(#[from] QmpError),
    /// The engine refuses.
    #[error("the volume's engine refuses {what}: {why}")]
    Refused {
        /// The question.
        what: &'static str,
        /// Its reason.
        why: String,
    },
    /// The engine is not what it should be.
    #[error("the volume's engine is not what it was started as: {0}")]
    NotThis(String),
    /// There are as many snapshots as there may be.
    #[error("the volume has {0} snapshots, and no more can be kept; remove one first")]
    TooManySnapshots(usize),
}

/// Something that was to be done with a path.
pub(crate) fn at(what: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> StorageError {
    let path = path.to_path_buf();
    move |cause| StorageError::File { what, path, cause }
}
