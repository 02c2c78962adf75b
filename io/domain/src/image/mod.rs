//! Roots from OCI image layouts (OCI image specification 1.1), as skopeo, buildah and podman save
//! them: a directory or a tar.
//!
//! The maker of an image may be hostile. Every blob is verified against the digest by which it was
//! asked for while it is read, and thrown away if it differs; nothing is written outside the tree;
//! all sizes are bounded. An unpacked image is kept under its manifest's digest, so that the next
//! domain only checks the index.

mod blob;
mod layer;
mod layout;

use crate::root::ImageRoot;
use layout::ImageLayout;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Most layers of an image; overlay file systems and registries stop at about this many.
const MAX_LAYERS: usize = 256;
/// Most bytes that an image may unpack to.
const MAX_UNPACKED_BYTES: u64 = 32 * 1024 * 1024 * 1024;
/// Most entries of all layers together.
const MAX_ENTRIES: u64 = 2_000_000;
/// Most directories below each other: several times what systems and their packages have. A
/// whiteout is applied level by level.
const MAX_DEPTH: u16 = 256;
/// Largest index, manifest or configuration, in bytes: what registries accept.
const MAX_DOCUMENT_BYTES: u64 = 4 * 1024 * 1024;
/// The name of a tree that is not finished begins so.
pub(crate) const UNFINISHED: &str = ".unpacking-";

/// A fault of an image, or of the attempt to use it.
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
        /// The tag that was asked for.
        tag: String,
        /// The known tags.
        known: String,
    },
    /// The node's store has no image of this digest.
    #[error("this node has no image {digest}: get it by `tombolo image pull NAME@{digest}`, or import it")]
    NotPulled {
        /// Of its manifest.
        digest: String,
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
        /// The document or layer.
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
    let kept = images.join(kept_name(&image));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(images)
        .doing(|| format!("create {}", images.display()))?;
    while !kept.exists() {
        let at = images.join(format!("{UNFINISHED}{}", image.digest));
        // Somebody else may have unpacked it while we waited.
        if let Some(unfinished) = Unfinished::take(at)?
            && !kept.exists()
        {
            unpack(images, &layout, &image, &unfinished, &kept)?;
        }
    }
    Ok(root_of(&kept, image))
}

/// Returns the result of [`prepare`] without unpacking: the tree is there only if somebody has
/// unpacked it.
pub(crate) fn describe(images: &Path, path: &Path, tag: Option<&str>) -> Result<ImageRoot> {
    let image = ImageLayout::open(path)?.image(tag)?;
    Ok(root_of(&images.join(kept_name(&image)), image))
}

/// The name of an unpacked image: whose content it is.
fn kept_name(image: &layout::Image) -> String {
    format!("sha256-{}", image.digest)
}

fn root_of(kept: &Path, image: layout::Image) -> ImageRoot {
    ImageRoot {
        tree: kept.join("tree"),
        environment: image.environment,
        command: image.command,
        user: image.user,
        workdir: image.workdir,
    }
}

/// The directory in which an image is being unpacked. It is its own lock, so that nobody waits for
/// another image; the kernel lets go of it however the one who has it ends.
struct Unfinished {
    path: PathBuf,
    directory: File,
}

impl Unfinished {
    /// Makes it, or takes what somebody left who was killed. Waits for who is unpacking that image;
    /// `None` if it was renamed or removed meanwhile.
    fn take(path: PathBuf) -> Result<Option<Self>> {
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).doing(|| format!("create {}", path.display()));
            }
            _ => {}
        }
        let Some(found) = Self::open(path)? else { return Ok(None) };
        found.directory.lock().doing(|| format!("lock {}", found.path.display()))?;
        Ok(found.is_there().then_some(found))
    }

    fn open(path: PathBuf) -> Result<Option<Self>> {
        match File::open(&path) {
            Ok(directory) => Ok(Some(Self { path, directory })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).doing(|| format!("open {}", path.display())),
        }
    }

    /// Whether it is still what its name leads to.
    fn is_there(&self) -> bool {
        let there = fs::symlink_metadata(&self.path);
        let ours = self.directory.metadata();
        let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
        there.is_ok_and(|there| ours.is_ok_and(|ours| identity(&there) == identity(&ours)))
    }
}

fn unpack(
    images: &Path,
    layout: &ImageLayout,
    image: &layout::Image,
    unfinished: &Unfinished,
    kept: &Path,
) -> Result<()> {
    let tree = unfinished.path.join("tree");
    remove(&tree)?;
    fs::create_dir(&tree).doing(|| format!("create {}", tree.display()))?;
    let result = unpack_layers(layout, image, &tree).and_then(|()| keep(images, unfinished, kept));
    if result.is_err() {
        // The error that made us give up is the one to tell; the next attempt removes it too.
        let _ = remove(&unfinished.path);
    }
    result
}

/// Gives a tree the name under which it is trusted from now on: not before all of it is on the
/// disk, or a machine that loses its power could come back with the name and without what was
/// written.
fn keep(images: &Path, unfinished: &Unfinished, kept: &Path) -> Result<()> {
    rustix::fs::syncfs(&unfinished.directory).doing(|| format!("write out {}", unfinished.path.display()))?;
    fs::rename(&unfinished.path, kept).doing(|| format!("rename {}", unfinished.path.display()))?;
    let images_written = File::open(images).and_then(|images| images.sync_all());
    images_written.doing(|| format!("write out {}", images.display()))
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

fn remove(path: &Path) -> Result<()> {
    sys::tree::remove(path).doing(|| format!("remove {}", path.display()))
}

/// Has a thread remove what a killed daemon left half unpacked, unless somebody is unpacking it
/// right now: nobody waits for what may be millions of files.
pub(crate) fn clear_unfinished(images: &Path) {
    let entries = fs::read_dir(images).into_iter().flatten().flatten();
    let left: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(UNFINISHED))
        .map(|entry| entry.path())
        .collect();
    if left.is_empty() {
        return;
    }
    let clear = move || left.into_iter().for_each(clear_one);
    if let Err(error) = std::thread::Builder::new().name("clear-images".into()).spawn(clear) {
        tracing::warn!(%error, "no thread to remove half unpacked images; they stay until the next start");
    }
}

fn clear_one(path: PathBuf) {
    let Ok(Some(found)) = Unfinished::open(path) else { return };
    if found.directory.try_lock().is_err() || !found.is_there() {
        return;
    }
    if let Err(error) = sys::tree::remove(&found.path) {
        tracing::warn!(path = %found.path.display(), %error, "a half unpacked image can't be removed");
    }
}

#[cfg(test)]
mod tests;
