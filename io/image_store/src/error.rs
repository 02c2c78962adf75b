//! The errors of images, each with its remedy.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

/// Longest text of a registry's that an error repeats, in characters: a sentence.
const MAX_SAID_CHARACTERS: usize = 300;

/// Why an image could not be had, kept, found or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be used.
    #[error("cannot {what}: {source}")]
    Io {
        /// The step and the file.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A text that is no reference of an image.
    #[error("{text:?} is no reference of an image: {why}")]
    Reference {
        /// The text.
        text: String,
        /// The fault.
        why: String,
    },
    /// A file or directory that holds no image.
    #[error("{} holds no image: {why}", path.display())]
    NotAnImage {
        /// Its path.
        path: PathBuf,
        /// The part that is missing or wrong.
        why: String,
    },
    /// Several images where one was asked for.
    #[error("it holds {0} images, and one name was given for all of them")]
    Several(usize),
    /// An image that has no name, neither in its archive nor by `--name`.
    #[error("the image in it has no name")]
    Nameless,
    /// Content that is not what its digest says.
    #[error("{what} is damaged or forged: its digest should be {wanted}, and is {found}")]
    Digest {
        /// The content, in words.
        what: String,
        /// By which it was asked for.
        wanted: String,
        /// Of what came.
        found: String,
    },
    /// A document that can't be understood, or must not be believed.
    #[error("{what} is malformed: {message}")]
    Malformed {
        /// The document.
        what: String,
        /// How.
        message: String,
    },
    /// Bigger than is taken.
    #[error("{what} is too big: more than {limit} {of}")]
    TooBig {
        /// The thing that is too big.
        what: String,
        /// The bound.
        limit: u64,
        /// Of what.
        of: &'static str,
    },
    /// An image for another kind of machine.
    #[error("the image is for {found}, and this machine is linux/{wanted}")]
    Platform {
        /// The image's.
        found: String,
        /// Ours.
        wanted: String,
    },
    /// The registry can't be reached, or breaks off.
    #[error("registry {host}: {what}")]
    Registry {
        /// The registry's host.
        host: String,
        /// The failure, in words.
        what: String,
    },
    /// The registry has no such image.
    #[error("registry {host} has no {image}")]
    NotThere {
        /// The registry's host.
        host: String,
        /// The image, by its name there.
        image: String,
    },
    /// The registry refuses who asks.
    #[error("registry {host} refuses access to {image}: {why}")]
    Denied {
        /// The registry's host.
        host: String,
        /// The image, by its name there.
        image: String,
        /// Its words, and what was shown to it.
        why: String,
    },
    /// An address without TLS that is not this machine's.
    #[error("{url} is not encrypted, and not on this machine")]
    Plain {
        /// The address.
        url: String,
    },
    /// A file of credentials that can't be used.
    #[error("credentials in {}: {why}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// The store has no such image.
    #[error("this node has no image {0}")]
    Unknown(String),
    /// A short digest that several images begin with.
    #[error("{0} is the beginning of several digests")]
    Ambiguous(String),
    /// Somebody adds an image right now.
    #[error("an image is being added to the store right now")]
    Busy,
}

/// The result of what is done with images.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns advice, where there is some.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        let text = match self {
            Self::Reference { .. } => "for example: alpine:3.20, registry.example.org/team/web:1.2".into(),
            Self::NotAnImage { .. } => {
                "it takes an OCI layout (a directory or a tar) or what `docker save` writes, not compressed as a whole"
                    .into()
            }
            Self::Several(_) => "leave --name out: each keeps the name that it has in the archive".into(),
            Self::Nameless => "give it one: --name NAME:TAG".into(),
            Self::Denied { host, .. } => {
                format!("`docker login {host}` or `skopeo login {host}` writes the credentials that are used here")
            }
            Self::Plain { .. } => "--insecure speaks to such a registry all the same; everybody on the way can read it, and change what is not pinned by a digest".into(),
            Self::Unknown(name) => format!("`tombolo image ls` lists what there is; `tombolo image pull {name}` gets it"),
            Self::Ambiguous(_) => "give more of it".into(),
            Self::Busy => "try again when that has ended".into(),
            _ => return None,
        };
        Some(text)
    }
}

/// Adds to an I/O error what was attempted.
pub(crate) trait While<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> While<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io { what: what(), source: error.into() })
    }
}

/// Shortens a registry's message for an error: one line, without control characters.
pub(crate) fn said(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars().take(MAX_SAID_CHARACTERS) {
        if character.is_control() {
            out.push(' ');
        } else {
            out.push(character);
        }
    }
    if text.chars().nth(MAX_SAID_CHARACTERS).is_some() {
        let _ = write!(out, "...");
    }
    out.trim().to_owned()
}
