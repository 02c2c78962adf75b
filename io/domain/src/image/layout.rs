//! Finding one image in a layout: index, manifest, configuration.

use super::blob::Blob;
use super::{ImageError, MAX_DOCUMENT_BYTES, MAX_LAYERS, Result, While};
use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Most files of a layout that is a tar: an index and some blobs per image.
const MAX_FILES: usize = 100_000;
/// How deep indexes may be nested: one per platform below one per tag.
const MAX_NESTING: usize = 4;
/// The tag of an image in an index.
const TAG: &str = "org.opencontainers.image.ref.name";

/// A layout that was opened.
pub(super) enum ImageLayout {
    Directory(PathBuf),
    /// Where in the tar each file is: position and size.
    Tar(File, HashMap<PathBuf, (u64, u64)>),
}

/// One image of it.
pub(super) struct Image {
    /// Of its manifest, in hexadecimal digits.
    pub digest: String,
    pub layers: Vec<Descriptor>,
    pub environment: Vec<String>,
    pub command: Vec<String>,
    pub user: Option<String>,
    pub workdir: Option<PathBuf>,
}

impl ImageLayout {
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).doing(|| "open it".into())?;
        if metadata.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        let mut file = File::open(path).doing(|| "open it".into())?;
        let mut magic = [0; 4];
        let read = file.read(&mut magic).doing(|| "read it".into())?;
        if magic.get(..read).is_some_and(|m| m.starts_with(&[0x1f, 0x8b]) || m == [0x28, 0xb5, 0x2f, 0xfd]) {
            return Err(ImageError::NotALayout("it is compressed as a whole; decompress it first".into()));
        }
        file.seek(SeekFrom::Start(0)).doing(|| "read it".into())?;
        let index = files_of(&file)?;
        Ok(Self::Tar(file, index))
    }

    fn file(&self, name: &Path) -> Result<Option<(std::io::Take<File>, u64)>> {
        match self {
            Self::Directory(dir) => {
                let path = dir.join(name);
                let file = match File::open(&path) {
                    Ok(file) => file,
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                    Err(e) => return Err(e).doing(|| format!("open {}", path.display())),
                };
                let metadata = file.metadata().doing(|| format!("look at {}", path.display()))?;
                if !metadata.is_file() {
                    return Err(ImageError::NotALayout(format!("{} is no file", path.display())));
                }
                Ok(Some((file.take(metadata.len()), metadata.len())))
            }
            Self::Tar(file, index) => {
                let Some(&(position, size)) = index.get(name) else { return Ok(None) };
                // Positions of duplicates of a descriptor are shared, so this one is used by one
                // blob at a time.
                let mut file = file.try_clone().doing(|| "read it".into())?;
                file.seek(SeekFrom::Start(position)).doing(|| "read it".into())?;
                Ok(Some((file.take(size), size)))
            }
        }
    }

    /// The blob that a descriptor speaks of.
    pub fn blob(&self, descriptor: &Descriptor) -> Result<Blob> {
        let digest = descriptor.digest();
        if *digest.algorithm() != oci_spec::image::DigestAlgorithm::Sha256 {
            return Err(malformed(
                "a descriptor",
                format!("its digest is of kind {}, and only sha256 is known", digest.algorithm()),
            ));
        }
        let hex = digest.digest();
        if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Err(malformed("a descriptor", format!("{hex:?} is no sha256 digest")));
        }
        let name = Path::new("blobs/sha256").join(hex);
        let (reader, _) = self
            .file(&name)?
            .ok_or_else(|| ImageError::NotALayout(format!("{} is missing", name.display())))?;
        Ok(Blob::new(hex.to_owned(), descriptor.size(), reader))
    }

    /// The image of a tag, or the only one.
    pub fn image(&self, tag: Option<&str>) -> Result<Image> {
        let (reader, size) = self.file(Path::new("index.json"))?.ok_or_else(|| {
            match tag.filter(|tag| tag.starts_with("sha256:")) {
                Some(digest) => ImageError::NotPulled { digest: digest.to_owned() },
                None => ImageError::NotALayout("there is no index.json".into()),
            }
        })?;
        if size > MAX_DOCUMENT_BYTES {
            return Err(ImageError::TooBig { limit: MAX_DOCUMENT_BYTES, of: "bytes in index.json" });
        }
        let index = ImageIndex::from_reader(reader).map_err(|e| malformed("index.json", e.to_string()))?;
        let mut chosen = by_tag(&index, tag)?;
        for _ in 0..MAX_NESTING {
            if !is_index(chosen.media_type()) {
                return self.describe(&chosen);
            }
            let bytes = self.blob(&chosen)?.document()?;
            let index = ImageIndex::from_reader(bytes.as_slice())
                .map_err(|e| malformed("an index", e.to_string()))?;
            chosen = by_platform(&index)?;
        }
        Err(malformed("index.json", format!("indexes are nested more than {MAX_NESTING} deep")))
    }

    fn describe(&self, descriptor: &Descriptor) -> Result<Image> {
        let bytes = self.blob(descriptor)?.document()?;
        let manifest = ImageManifest::from_reader(bytes.as_slice())
            .map_err(|e| malformed("the manifest", e.to_string()))?;
        if manifest.layers().len() > MAX_LAYERS {
            return Err(ImageError::TooBig { limit: MAX_LAYERS as u64, of: "layers" });
        }
        let bytes = self.blob(manifest.config())?.document()?;
        let configuration = ImageConfiguration::from_reader(bytes.as_slice())
            .map_err(|e| malformed("the configuration", e.to_string()))?;
        if *configuration.architecture() != Arch::default() {
            let found = configuration.architecture().to_string();
            return Err(ImageError::Platform { found, wanted: std::env::consts::ARCH });
        }
        let digest = descriptor.digest().digest().to_owned();
        Ok(image(digest, manifest.layers().clone(), &configuration))
    }
}

fn image(digest: String, layers: Vec<Descriptor>, configuration: &ImageConfiguration) -> Image {
    let config = configuration.config().as_ref();
    let text = |value: Option<&String>| value.filter(|v| !v.is_empty()).cloned();
    let words = |value: Option<&Vec<String>>| value.cloned().unwrap_or_default();
    let mut command = words(config.and_then(|c| c.entrypoint().as_ref()));
    command.extend(words(config.and_then(|c| c.cmd().as_ref())));
    Image {
        digest,
        layers,
        environment: words(config.and_then(|c| c.env().as_ref())),
        command,
        user: text(config.and_then(|c| c.user().as_ref())),
        workdir: text(config.and_then(|c| c.working_dir().as_ref())).map(|w| Path::new("/").join(w)),
    }
}

/// The files of a tar, without reading their content.
fn files_of(file: &File) -> Result<HashMap<PathBuf, (u64, u64)>> {
    let no_tar =
        |e: std::io::Error| ImageError::NotALayout(format!("it is neither a directory nor a tar ({e})"));
    let mut archive = tar::Archive::new(file);
    let mut files = HashMap::new();
    for entry in archive.entries_with_seek().map_err(no_tar)?.raw(true) {
        let entry = entry.map_err(no_tar)?;
        if files.len() >= MAX_FILES {
            return Err(ImageError::TooBig { limit: MAX_FILES as u64, of: "files in the archive" });
        }
        if entry.header().entry_type().is_file() {
            let name = entry.path().map_err(no_tar)?.into_owned();
            let name = name.strip_prefix("./").map(Path::to_owned).unwrap_or(name);
            files.insert(name, (entry.raw_file_position(), entry.size()));
        }
    }
    Ok(files)
}

fn by_tag(index: &ImageIndex, tag: Option<&str>) -> Result<Descriptor> {
    let tag_of = |d: &Descriptor| d.annotations().as_ref().and_then(|a| a.get(TAG)).cloned();
    let known = || {
        let tags: Vec<String> = index.manifests().iter().filter_map(tag_of).collect();
        if tags.is_empty() { "none with a tag".to_owned() } else { tags.join(", ") }
    };
    match (tag, index.manifests().as_slice()) {
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err(ImageError::NotALayout("its index names no image".into())),
        // One image for several platforms, as buildx writes it, has no tags at all.
        (None, several) if several.iter().all(|d| tag_of(d).is_none() && d.platform().is_some()) => {
            by_platform(index)
        }
        (None, _) => Err(ImageError::Ambiguous(known())),
        // Of the node's own store, images are meant by their digest.
        (Some(digest), all) if digest.starts_with("sha256:") => {
            let found = all.iter().find(|descriptor| descriptor.digest().to_string() == digest);
            found.cloned().ok_or_else(|| ImageError::NotPulled { digest: digest.to_owned() })
        }
        (Some(tag), all) => {
            // Podman writes the whole reference where others write the tag alone.
            let matches = |name: &String| name == tag || name.rsplit_once(':').is_some_and(|(_, t)| t == tag);
            let found = all.iter().find(|d| tag_of(d).as_ref().is_some_and(matches));
            found.cloned().ok_or_else(|| ImageError::NoSuchTag { tag: tag.to_owned(), known: known() })
        }
    }
}

fn by_platform(index: &ImageIndex) -> Result<Descriptor> {
    let ours = |d: &&Descriptor| {
        d.platform()
            .as_ref()
            .is_none_or(|p| *p.architecture() == Arch::default() && p.os().to_string() == "linux")
    };
    let found = index.manifests().iter().find(ours).cloned();
    found.ok_or_else(|| {
        let platforms = index.manifests().iter().filter_map(|d| d.platform().as_ref());
        let found: Vec<String> = platforms.map(|p| format!("{}/{}", p.os(), p.architecture())).collect();
        ImageError::Platform { found: found.join(", "), wanted: std::env::consts::ARCH }
    })
}

fn is_index(kind: &MediaType) -> bool {
    matches!(kind, MediaType::ImageIndex)
        || kind.as_ref() == "application/vnd.docker.distribution.manifest.list.v2+json"
}

fn malformed(what: &str, message: String) -> ImageError {
    ImageError::Malformed { what: what.to_owned(), message }
}
