//! The output of a domain on disk.
//!
//! One line of text per line of output, in the format of the Kubernetes container runtime
//! interface, which log shippers read: `2026-11-20T06:16:00.123456789Z stdout F the line`. The
//! third word is `F` for the end of a line and `P` for a piece of one that is longer than
//! [`MAX_LINE_BYTES`]. The stream is `stdout`, `stderr` or `monitor` (remarks of our own). A file
//! that is full is renamed to `NAME.log.1`, that one to `NAME.log.2`, and the oldest goes.

mod read;
mod write;

pub use read::{LogQuery, LogReader, Waited};
pub(crate) use write::LogWriter;

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Longest piece of a line in one record, in bytes: what a reader needs to hold.
pub const MAX_LINE_BYTES: usize = 16 * 1024;
/// Most rotated files that are looked for.
pub(crate) const MAX_FILES: u32 = 100;

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// The domain's standard output.
    Stdout,
    /// The domain's standard error.
    Stderr,
    /// The monitor itself.
    Monitor,
}

impl Stream {
    const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Monitor => "monitor",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Stdout, Self::Stderr, Self::Monitor].into_iter().find(|s| s.name() == name)
    }
}

/// One line of output, or a piece of a very long one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When its last byte was read (RFC 3339, nanoseconds, UTC).
    pub time: String,
    /// Where it came from.
    pub stream: Stream,
    /// Whether the line goes on in the next record of this stream.
    pub partial: bool,
    /// The text, without its line feed; what is not UTF-8 is replaced.
    pub line: String,
}

/// The file with this age: 0 is the current one.
pub(crate) fn file(log: &Path, age: u32) -> PathBuf {
    if age == 0 {
        return log.to_owned();
    }
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{age}"));
    PathBuf::from(name)
}
