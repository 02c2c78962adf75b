//! The comparison of a file's paths and names with the node. The looking itself is given from
//! outside: this room doesn't wait.

use std::path::Path;

use crate::model::{Domain, Reserve};

/// The kind of object at a path of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing, or nothing that may be looked at.
    Nothing,
    /// A directory, links followed.
    Directory,
    /// A regular file, links followed.
    File,
    /// A device, a socket, a pipe.
    Other,
    /// Nobody looked: every rule about it holds.
    Unknown,
}

/// The capacity of the node's dispatch tables and of the kernel's deadline class, and the others
/// who want it.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The cost and capacity of tables.
    pub means: reserve::Means,
    /// The room of the deadline class.
    pub room: reserve::DeadlineRoom,
    /// Others who want either, by name, and whether they have it.
    pub others: Vec<(String, Reserve, bool)>,
}

/// The part of a domain that can't be as the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its root.
    Root,
    /// The tag of its image; its root where the file names no tag.
    Tag,
    /// Its user; its root where the user is the image's own.
    User,
    /// The program of its command; its root where that is the image's own.
    Command,
    /// The command that asks whether it is ready.
    Ready,
    /// The command that asks whether it is well.
    Health,
    /// One of its mounts, by its number in the file.
    Mount(usize),
}

/// A lack of the node for a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The part of the domain that it is about.
    pub part: Part,
    /// The fault.
    pub message: String,
    /// The remedy.
    pub help: Option<String>,
}

/// Looks at the node for [`crate::admit`].
pub trait Look {
    /// Returns the kind of object at `path`, which is absolute.
    fn look(&self, path: &Path) -> Found;

    /// The text of the file at `path`, which is absolute, or why it can't be read; `None`: nobody
    /// looked. Not more than [`crate::bounds::FILE_BYTES_MAX`] and one byte.
    fn text(&self, _path: &Path) -> Option<Result<String, String>> {
        None
    }

    /// Checks the file at `path`, which is absolute: whether it is a WebAssembly module for events;
    /// `None`: nobody looked.
    fn module(&self, _path: &Path) -> Option<Result<(), String>> {
        None
    }

    /// Returns the lacks of the node for a domain that is right by its words: a tag, a user, a
    /// program. Empty where nobody looked.
    fn lacks(&self, _domain: &Domain) -> Vec<Lack> {
        Vec::new()
    }

    /// The digest of the image that a reference names in the node's store; `None`: nobody looked.
    ///
    /// # Errors
    /// The fault of the reference, or that the store has no such image.
    fn image(&self, _reference: &str) -> Result<Option<String>, Lack> {
        Ok(None)
    }

    /// The node's promises to others, to which the file's requests are added; `None`: nobody asked
    /// the node.
    fn promised(&self) -> Option<&reserve::model::Model> {
        None
    }

    /// The capacity of tables and deadlines for those promises; `None`: nobody asked.
    fn tables(&self) -> Option<&Tables> {
        None
    }
}

/// Looks at nothing: a file is admitted by its words alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blind;

impl Look for Blind {
    fn look(&self, _path: &Path) -> Found {
        Found::Unknown
    }
}

impl<F: Fn(&Path) -> Found> Look for F {
    fn look(&self, path: &Path) -> Found {
        self(path)
    }
}
