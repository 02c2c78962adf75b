//! Where images are kept: an OCI image layout of its own in the node's state directory, which other
//! tools can read, too.
//!
//! Content gets its name when it is on the disk as a whole and has the digest that it is named by;
//! an image gets into the index when all its content is there. So whoever is killed leaves nothing
//! that is used: only partial files, and content that no image has, which [`Store::collect`]
//! removes.

use crate::document::{self, Document, hex_of, text_of, too_big};
use crate::error::{Error, Result, While};
use oci_spec::distribution::Reference;
use oci_spec::image::{Descriptor, ImageIndex, ImageIndexBuilder};
use rustix::fs::FlockOperation;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The store, in the state directory.
pub const FOLDER: &str = "store";
/// Most entries of the index: each takes less than a KiB, and the index is a document like others.
const MAX_ENTRIES: usize = 2048;
/// Fewest digits that stand for a digest.
const MIN_DIGITS: usize = 6;
/// The annotation for an entry's name, by the OCI image specification.
const NAME: &str = "org.opencontainers.image.ref.name";
/// The digest that the name had where the image came from: an index's, perhaps.
const SOURCE: &str = "io.tombolo.source-digest";
/// When it was added, in seconds since 1970.
const ADDED: &str = "io.tombolo.added";
/// Bytes of its configuration and layers.
const BYTES: &str = "io.tombolo.bytes";

/// The images of a node.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// An image that is there as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Image {
    /// The image's names in full: `docker.io/library/alpine:3.20`. Empty where its name went to
    /// another image.
    pub names: Vec<String>,
    /// The digest of its manifest, which is what is pinned.
    pub digest: String,
    /// The digest that its name had where it came from: of an index, where that has images of
    /// several platforms.
    pub source_digest: Option<String>,
    /// Configuration and layers, as they are kept.
    pub bytes: u64,
    /// When it was added.
    pub added_unix_s: u64,
}

/// The counts of what was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Collected {
    /// Images without a name.
    pub images: u64,
    /// Files of content.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The right to add content, while which nothing is collected.
#[derive(Debug)]
pub(crate) struct Adding<'a> {
    store: &'a Store,
    _lock: File,
}

/// An image as it comes into the index.
#[derive(Debug)]
pub(crate) struct Taken {
    pub manifest: Descriptor,
    pub source_digest: Option<String>,
    pub bytes: u64,
}

impl Store {
    /// The store of the node with this state directory. Nothing is made before something is added.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Self { folder: state_dir.join(FOLDER) }
    }

    /// The image layout.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All images, by name.
    ///
    /// # Errors
    /// An index that can't be read.
    pub fn list(&self) -> Result<Vec<Image>> {
        let mut images: BTreeMap<String, Image> = BTreeMap::new();
        for entry in self.index()?.manifests() {
            let digest = entry.digest().to_string();
            let image = images.entry(digest.clone()).or_insert_with(|| image_of(entry, digest));
            image.names.extend(noted(entry, NAME).map(str::to_owned));
            image.names.sort();
        }
        let mut images: Vec<Image> = images.into_values().collect();
        images.sort_by(|a, b| a.names.cmp(&b.names));
        Ok(images)
    }

    /// The image of a reference: by its digest where it has one, else by its name.
    ///
    /// # Errors
    /// An index that can't be read.
    pub fn find(&self, reference: &Reference) -> Result<Option<Image>> {
        let whole = reference.whole();
        let is_it = |image: &Image| match reference.digest() {
            Some(digest) => image.digest == digest || image.source_digest.as_deref() == Some(digest),
            None => image.names.contains(&whole),
        };
        Ok(self.list()?.into_iter().find(is_it))
    }

    /// The image that a person means: a reference, a digest, or the beginning of one.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Ambiguous`].
    pub fn meant(&self, text: &str) -> Result<Image> {
        if let Ok(reference) = crate::naming::reference(text)
            && let Some(image) = self.find(&reference)?
        {
            return Ok(image);
        }
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.len() < MIN_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Error::Unknown(text.to_owned()));
        }
        let begins =
            |image: &Image| image.digest.strip_prefix("sha256:").is_some_and(|hex| hex.starts_with(digits));
        let mut found = self.list()?.into_iter().filter(begins);
        match (found.next(), found.next()) {
            (Some(image), None) => Ok(image),
            (Some(_), Some(_)) => Err(Error::Ambiguous(text.to_owned())),
            (None, _) => Err(Error::Unknown(text.to_owned())),
        }
    }

    /// The manifest and the configuration of an image, as JSON.
    ///
    /// # Errors
    /// Content that is gone or damaged.
    pub fn documents(&self, image: &Image) -> Result<(serde_json::Value, serde_json::Value)> {
        let text = |digest: &str| {
            serde_json::from_slice(&self.document(digest)?)
                .map_err(|error| document::malformed("a document", error.to_string()))
        };
        let manifest: serde_json::Value = text(&image.digest)?;
        let config = manifest.pointer("/config/digest").and_then(serde_json::Value::as_str);
        let config = text(config.unwrap_or_default())?;
        Ok((manifest, config))
    }

    /// Takes a name from an image, or all its names where it is meant by its digest. Content that
    /// is not used any more is left for [`Store::collect`].
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn forget(&self, image: &Image, text: &str) -> Result<Vec<String>> {
        let name = crate::naming::reference(text).map(|reference| reference.whole()).ok();
        let name = name.filter(|name| image.names.contains(name));
        let _lock = self.lock_index()?;
        let mut entries = self.index()?.manifests().clone();
        let gone = |entry: &Descriptor| {
            entry.digest().to_string() == image.digest
                && name.as_deref().is_none_or(|name| noted(entry, NAME) == Some(name))
        };
        let names = entries.iter().filter(|entry| gone(entry)).filter_map(|entry| noted(entry, NAME));
        let names = names.map(str::to_owned).collect();
        entries.retain(|entry| !gone(entry));
        self.write_index(entries)?;
        Ok(names)
    }

    /// Removes images without a name, but for those of these digests; content of no image; partial
    /// files.
    ///
    /// # Errors
    /// [`Error::Busy`] while somebody adds an image.
    pub fn collect(&self, used: &BTreeSet<String>) -> Result<Collected> {
        let mut collected = Collected::default();
        if !self.folder.is_dir() {
            return Ok(collected);
        }
        let lock = self.lock_file("lock")?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::Busy),
            Err(error) => return Err(error).doing(|| "lock the store".into()),
        }
        let _index = self.lock_index()?;
        let mut entries = self.index()?.manifests().clone();
        let before = entries.len();
        entries.retain(|entry| noted(entry, NAME).is_some() || used.contains(&entry.digest().to_string()));
        collected.images = (before - entries.len()) as u64;
        let held = self.held_by(&entries);
        if collected.images > 0 {
            self.write_index(entries)?;
        }
        remove_files(&self.blobs(), |name| !held.contains(name), &mut collected)?;
        remove_files(&self.partial(), |_| true, &mut collected)?;
        Ok(collected)
    }

    /// The digits of all content that images have. One whose manifest is damaged can't be used, and
    /// holds nothing.
    fn held_by(&self, entries: &[Descriptor]) -> BTreeSet<String> {
        let mut held = BTreeSet::new();
        for entry in entries {
            held.insert(entry.digest().digest().to_owned());
            let manifest = self.document(entry.digest().as_ref()).and_then(|bytes| document::parse(&bytes));
            if let Ok(Document::Manifest(manifest)) = manifest {
                held.insert(manifest.config().digest().digest().to_owned());
                held.extend(manifest.layers().iter().map(|layer| layer.digest().digest().to_owned()));
            }
        }
        held
    }

    /// A small piece of content, verified.
    fn document(&self, digest: &str) -> Result<Vec<u8>> {
        let path = self.blobs().join(hex_of(digest)?);
        let size = fs::metadata(&path).doing(|| format!("look at {}", path.display()))?.len();
        if size > document::MAX_DOCUMENT_BYTES {
            return Err(too_big("a document", document::MAX_DOCUMENT_BYTES, "bytes"));
        }
        let bytes = fs::read(&path).doing(|| format!("read {}", path.display()))?;
        let found = document::digest_of(&bytes);
        if found == digest {
            return Ok(bytes);
        }
        Err(Error::Digest { what: path.display().to_string(), wanted: digest.to_owned(), found })
    }

    /// Makes the store where there is none, and takes the right to add to it.
    pub(crate) fn adding(&self) -> Result<Adding<'_>> {
        for folder in [self.blobs(), self.partial()] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.doing(|| format!("create {}", folder.display()))?;
        }
        let lock = self.lock_file("lock")?;
        rustix::fs::flock(&lock, FlockOperation::LockShared).doing(|| "lock the store".into())?;
        let _index = self.lock_index()?;
        if !self.folder.join("oci-layout").exists() {
            self.replace("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        }
        Ok(Adding { store: self, _lock: lock })
    }

    fn blobs(&self) -> PathBuf {
        self.folder.join("blobs/sha256")
    }

    fn partial(&self) -> PathBuf {
        self.folder.join("partial")
    }

    fn lock_file(&self, name: &str) -> Result<File> {
        let path = self.folder.join(name);
        let opened = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        opened.doing(|| format!("open {}", path.display()))
    }

    /// Keeps others from changing the index, for a moment.
    fn lock_index(&self) -> Result<File> {
        let lock = self.lock_file("index.lock")?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .doing(|| "lock the index of the store".into())?;
        Ok(lock)
    }

    fn index(&self) -> Result<ImageIndex> {
        let path = self.folder.join("index.json");
        match fs::read(&path) {
            Ok(bytes) => ImageIndex::from_reader(bytes.as_slice())
                .map_err(|error| document::malformed(&path.display().to_string(), error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(index_of(Vec::new())?),
            Err(error) => Err(error).doing(|| format!("read {}", path.display())),
        }
    }

    fn write_index(&self, entries: Vec<Descriptor>) -> Result<()> {
        let text = index_of(entries)?
            .to_string()
            .map_err(|error| document::malformed("the index", error.to_string()))?;
        self.replace("index.json", text.as_bytes())
    }

    /// Replaces a file as a whole: whoever reads it sees the one or the other, also after a power
    /// cut.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (path, next) = (self.folder.join(name), self.folder.join(format!("{name}.next")));
        let shown = || format!("write {}", path.display());
        let mut file =
            File::options().create(true).truncate(true).write(true).mode(0o600).open(&next).doing(shown)?;
        file.write_all(bytes).doing(shown)?;
        file.sync_all().doing(shown)?;
        fs::rename(&next, &path).doing(shown)?;
        sync_folder(&self.folder)
    }
}

impl Adding<'_> {
    /// Whether content of this digest is there and undamaged.
    pub fn has(&self, digest: &str, size: u64) -> Result<bool> {
        let path = self.store.blobs().join(hex_of(digest)?);
        let Ok(mut file) = File::open(&path) else { return Ok(false) };
        if file.metadata().doing(|| format!("look at {}", path.display()))?.len() != size {
            return Ok(false);
        }
        let mut hasher = Hasher::default();
        io::copy(&mut file, &mut hasher).doing(|| format!("read {}", path.display()))?;
        Ok(hasher.digest() == digest)
    }

    /// Adds content that `write` writes. It must have that digest and length.
    ///
    /// # Errors
    /// The error of `write`; content that is something else, of which nothing stays.
    pub fn add(
        &self,
        digest: &str,
        size: u64,
        write: &mut dyn FnMut(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let (partial, kept) =
            (self.store.partial().join(hex_of(digest)?), self.store.blobs().join(hex_of(digest)?));
        let shown = || format!("write {}", partial.display());
        let opened = File::options().create(true).truncate(false).write(true).mode(0o600).open(&partial);
        let file = opened.doing(shown)?;
        // Somebody else who adds the same is waited for, and may have finished it.
        rustix::fs::flock(&file, FlockOperation::LockExclusive).doing(shown)?;
        if self.has(digest, size)? {
            // Perhaps this opening has made it, after the one before had got its name. Whoever
            // waits for it finds the content there, too.
            return match fs::remove_file(&partial) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).doing(shown),
                _ => Ok(()),
            };
        }
        if fs::symlink_metadata(&partial).map(|there| there.ino()).ok()
            != file.metadata().ok().map(|ours| ours.ino())
        {
            // It has got its name, and was not what was wanted.
            drop(file);
            return self.add(digest, size, write);
        }
        file.set_len(0).doing(shown)?;
        let mut sink = Sink { file: &file, hasher: Hasher::default(), size, digest };
        let written =
            write(&mut sink).and_then(|()| sink.verify()).and_then(|()| file.sync_all().doing(shown));
        if let Err(error) = written {
            // The error that made us give up is the one to tell; `collect` removes what is left.
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
        fs::rename(&partial, &kept).doing(shown)?;
        sync_folder(&self.store.blobs())
    }

    /// Adds a document that is in memory.
    pub fn add_document(&self, bytes: &[u8]) -> Result<()> {
        let digest = document::digest_of(bytes);
        if self.has(&digest, bytes.len() as u64)? {
            return Ok(());
        }
        self.add(&digest, bytes.len() as u64, &mut |sink| {
            sink.write_all(bytes).doing(|| format!("write {digest}"))
        })
    }

    /// Gives an image its names, which other images lose. All its content must be there.
    pub fn name(&self, taken: &Taken, names: &[Reference]) -> Result<Image> {
        let _lock = self.store.lock_index()?;
        let digest = taken.manifest.digest().to_string();
        let mut entries = self.store.index()?.manifests().clone();
        let mut lost = Vec::new();
        for name in names {
            let name = name.whole();
            entries.retain(|entry| {
                let has = noted(entry, NAME) == Some(name.as_str());
                if has {
                    lost.push(entry.clone());
                }
                !has
            });
            entries.push(entry(taken, Some(&name)));
        }
        // An image whose last name went stays without one, for those who have it, until it is
        // collected.
        for mut lost in lost {
            let is_it = |entry: &Descriptor| entry.digest() == lost.digest();
            if !entries.iter().any(is_it) {
                let mut notes = lost.annotations().clone().unwrap_or_default();
                notes.remove(NAME);
                lost.set_annotations(Some(notes));
                entries.push(lost);
            }
        }
        if entries.len() > MAX_ENTRIES {
            return Err(too_big(
                "the store",
                MAX_ENTRIES as u64,
                "images; `tombolo image gc` or `rm` makes room",
            ));
        }
        self.store.write_index(entries)?;
        let named = self.store.list()?.into_iter().find(|image| image.digest == digest);
        named.ok_or(Error::Unknown(digest))
    }
}

/// Bytes on their way to a file.
struct Sink<'a> {
    file: &'a File,
    hasher: Hasher,
    size: u64,
    digest: &'a str,
}

impl Sink<'_> {
    fn verify(self) -> Result<()> {
        let (written, found) = (self.hasher.bytes, self.hasher.digest());
        if written != self.size {
            let message = format!("it has {written} bytes, and its descriptor says {}", self.size);
            return Err(document::malformed(self.digest, message));
        }
        if found == self.digest {
            return Ok(());
        }
        Err(Error::Digest { what: "content".into(), wanted: self.digest.to_owned(), found })
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.hasher.bytes.saturating_add(bytes.len() as u64) > self.size {
            return Err(io::Error::other(format!(
                "{} has more than the {} bytes that its descriptor says",
                self.digest, self.size
            )));
        }
        let written = self.file.write(bytes)?;
        self.hasher.write_all(bytes.get(..written).unwrap_or_default())?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Takes the digest of what is written to it.
#[derive(Default)]
pub(crate) struct Hasher {
    hasher: Sha256,
    pub bytes: u64,
}

impl Hasher {
    pub fn digest(self) -> String {
        text_of(self.hasher.finalize().as_slice())
    }
}

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn noted<'a>(entry: &'a Descriptor, key: &str) -> Option<&'a str> {
    entry.annotations().as_ref()?.get(key).map(String::as_str)
}

fn image_of(entry: &Descriptor, digest: String) -> Image {
    let number = |key| noted(entry, key).and_then(|text| text.parse().ok()).unwrap_or_default();
    Image {
        names: Vec::new(),
        digest,
        source_digest: noted(entry, SOURCE).map(str::to_owned),
        bytes: number(BYTES),
        added_unix_s: number(ADDED),
    }
}

fn entry(taken: &Taken, name: Option<&str>) -> Descriptor {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut notes =
        HashMap::from([(ADDED.to_owned(), now.to_string()), (BYTES.to_owned(), taken.bytes.to_string())]);
    notes.extend(taken.source_digest.clone().map(|digest| (SOURCE.to_owned(), digest)));
    notes.extend(name.map(|name| (NAME.to_owned(), name.to_owned())));
    let mut entry = taken.manifest.clone();
    entry.set_annotations(Some(notes));
    entry
}

fn index_of(entries: Vec<Descriptor>) -> Result<ImageIndex> {
    let index = ImageIndexBuilder::default().schema_version(2u32).manifests(entries).build();
    index.map_err(|error| document::malformed("the index", error.to_string()))
}

fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.doing(|| format!("write out {}", folder.display()))
}

fn remove_files(folder: &Path, is_garbage: impl Fn(&str) -> bool, collected: &mut Collected) -> Result<()> {
    let shown = || format!("list {}", folder.display());
    for entry in fs::read_dir(folder).doing(shown)? {
        let entry = entry.doing(shown)?;
        if !is_garbage(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
        fs::remove_file(entry.path()).doing(|| format!("remove {}", entry.path().display()))?;
        collected.files += 1;
        collected.bytes += bytes;
    }
    Ok(())
}
