//! Roots from OCI image layouts (OCI image specification 1.1), as skopeo, buildah and podman save them: a directory or a tar.
//!
//! Whoever made an image may be hostile. Every blob is verified against the digest by which it was asked for while it is read, and
//! thrown away if it differs; nothing is written outside the tree; all sizes are bounded. An unpacked image is kept under its
//! manifest's digest, so that the next domain only checks the index.

mod blob;
mod layer;
mod layout;

use crate::root::ImageRoot;
use layout::ImageLayout;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Most layers of an image; overlay file systems and registries stop at about this many.
const MAX_LAYERS: usize = 256;
/// Most bytes that an image may unpack to.
const MAX_UNPACKED_BYTES: u64 = 32 * 1024 * 1024 * 1024;
/// Most entries of all layers together.
const MAX_ENTRIES: u64 = 2_000_000;
/// Largest index, manifest or configuration, in bytes: what registries accept.
const MAX_DOCUMENT_BYTES: u64 = 4 * 1024 * 1024;
/// The name of a tree that is not finished begins so.
const UNFINISHED: &str = ".unpacking-";

/// What is wrong with an image, or with the attempt to use it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A file could not be used.
    #[error("cannot {what}: {source}")]
    Io {
        /// The step and the file.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It is no image layout.
    #[error(
        "it is no OCI image layout: {0}; save it as one (`podman save --format oci-archive`, `skopeo copy ... oci:DIR`)"
    )]
    NotALayout(String),
    /// There is no image of this tag.
    #[error("there is no image tagged {tag:?} in it; there is {known}")]
    NoSuchTag {
        /// What was asked for.
        tag: String,
        /// What there is.
        known: String,
    },
    /// There are several images and no tag was given.
    #[error("it holds several images; give a tag: {0}")]
    Ambiguous(String),
    /// A blob is not what its name says.
    #[error("{blob} is damaged or forged: its content has digest sha256:{found}")]
    Digest {
        /// Its name.
        blob: String,
        /// Of what was read.
        found: String,
    },
    /// A document or layer that can't be understood.
    #[error("{what} is malformed: {message}")]
    Malformed {
        /// Which.
        what: String,
        /// How.
        message: String,
    },
    /// An entry of a layer that would leave the tree.
    #[error("layer entry {entry:?} is refused: {why}")]
    Refused {
        /// Its name in the layer.
        entry: String,
        /// Why.
        why: &'static str,
    },
    /// It is bigger than we are willing to unpack.
    #[error("it is too big: more than {limit} {of}")]
    TooBig {
        /// The bound.
        limit: u64,
        /// Of what.
        of: &'static str,
    },
    /// It is for another kind of machine.
    #[error("it is for {found}, and this machine is {wanted}")]
    Platform {
        /// The image's.
        found: String,
        /// Ours.
        wanted: &'static str,
    },
}

pub(crate) type Result<T> = std::result::Result<T, ImageError>;

/// Adds to an I/O error what was attempted.
pub(crate) trait While<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> While<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| {
            let source = e.into();
            // An error of ours that passed through somebody else's reader comes out as it went in.
            match source.downcast::<ImageError>() {
                Ok(ours) => ours,
                Err(source) => ImageError::Io { what: what(), source },
            }
        })
    }
}

/// The tree of the image at `path`, unpacked below `images` unless it is there already.
pub(crate) fn prepare(images: &Path, path: &Path, tag: Option<&str>) -> Result<ImageRoot> {
    let layout = ImageLayout::open(path)?;
    let image = layout.image(tag)?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(images)
        .doing(|| format!("create {}", images.display()))?;
    let kept = images.join(format!("sha256-{}", image.digest));
    if !kept.exists() {
        let lock = lock(images)?;
        // Somebody else may have unpacked it while we waited.
        if !kept.exists() {
            unpack(images, &layout, &image, &kept)?;
        }
        drop(lock);
    }
    Ok(ImageRoot {
        tree: kept.join("tree"),
        environment: image.environment,
        command: image.command,
        user: image.user,
        workdir: image.workdir,
    })
}

/// One unpacks at a time; the kernel lets go of the lock however that one ends.
fn lock(images: &Path) -> Result<File> {
    let file = open_lock(images)?;
    file.lock().doing(|| "lock the images".into())?;
    Ok(file)
}

fn open_lock(images: &Path) -> Result<File> {
    let path = images.join(".lock");
    let file = File::options().write(true).create(true).truncate(false).open(&path);
    file.doing(|| format!("open {}", path.display()))
}

fn unpack(images: &Path, layout: &ImageLayout, image: &layout::Image, kept: &Path) -> Result<()> {
    let unfinished = images.join(format!("{UNFINISHED}{}", image.digest));
    remove(&unfinished)?;
    let tree = unfinished.join("tree");
    fs::create_dir_all(&tree).doing(|| format!("create {}", tree.display()))?;
    let result = unpack_layers(layout, image, &tree)
        .and_then(|()| fs::rename(&unfinished, kept).doing(|| format!("rename {}", unfinished.display())));
    if result.is_err() {
        // The error that made us give up is the one to tell; the next attempt removes it too.
        let _ = remove(&unfinished);
    }
    result
}

fn unpack_layers(layout: &ImageLayout, image: &layout::Image, tree: &Path) -> Result<()> {
    let mut unpacker = layer::Unpacker::new(tree)?;
    for descriptor in &image.layers {
        let mut blob = layout.blob(descriptor)?;
        unpacker.layer(&mut blob)?;
        blob.verify()?;
    }
    Ok(())
}

fn remove(path: &PathBuf) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).doing(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes what a killed daemon left half unpacked, unless somebody is unpacking right now.
pub(crate) fn clear_unfinished(images: &Path) {
    if !images.exists() {
        return;
    }
    let Ok(file) = open_lock(images) else { return };
    if file.try_lock().is_err() {
        return;
    }
    for entry in fs::read_dir(images).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED)
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "a half unpacked image can't be removed");
        }
    }
}

#[cfg(test)]
mod tests;
