//! What a file says about the node, held against the node. The looking itself is given from outside, because this
//! room doesn't wait.

use std::path::Path;

use crate::model::{Domain, Reserve};

/// What is at a path of the node.
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

/// What the node's dispatch tables and the kernel's deadline class can keep, and who else wants that.
#[derive(Clone, Debug)]
pub struct Tables {
    /// What tables cost and can have.
    pub means: reserve::Means,
    /// What the deadline class has.
    pub room: reserve::DeadlineRoom,
    /// Others who want either, by name, and whether they have it.
    pub others: Vec<(String, Reserve, bool)>,
}

/// Which part of a domain can't be as the file says.
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

/// What the node lacks for a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// What of the domain it is about.
    pub part: Part,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

/// Looks at the node for [`crate::admit`].
pub trait Look {
    /// What is at `path`, which is absolute.
    fn look(&self, path: &Path) -> Found;

    /// The text of the file at `path`, which is absolute, or why it can't be read; `None`: nobody looked. Not more than
    /// [`crate::bounds::FILE_BYTES_MAX`] and one byte.
    fn text(&self, _path: &Path) -> Option<Result<String, String>> {
        None
    }

    /// What the node lacks for a domain that is right by its words: a tag, a user, a program. Empty where nobody looked.
    fn lacks(&self, _domain: &Domain) -> Vec<Lack> {
        Vec::new()
    }

    /// The digest of the image that a reference names in the node's store; `None`: nobody looked.
    ///
    /// # Errors
    /// What is wrong with the reference, or that the store has no such image.
    fn image(&self, _reference: &str) -> Result<Option<String>, Lack> {
        Ok(None)
    }

    /// What the node has promised to others, to which what the file asks for is added; `None`: nobody asked it.
    fn promised(&self) -> Option<&reserve::model::Model> {
        None
    }

    /// What tables and deadlines can keep of that; `None`: nobody asked.
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
