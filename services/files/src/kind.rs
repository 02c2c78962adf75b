//! The kinds of nodes that a store serves.

use rustix::fs::{FileType, Stat};

/// The kinds of nodes that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A plain file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link, which the server does not follow.
    Link,
}

impl Kind {
    pub(crate) fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Self::Folder,
            FileType::Symlink => Self::Link,
            _ => Self::File,
        }
    }
}
