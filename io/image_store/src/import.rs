//! Images from files: OCI image layouts, as directories or tars, and what `docker save` writes.

use crate::copy::{Progress, Source, copy, descriptor, verified};
use crate::document::{self, malformed, too_big};
use crate::error::{Error, Result, While};
use crate::files::Files;
use crate::store::{Hasher, Image, Store};
use oci_spec::distribution::Reference;
use oci_spec::image::{Descriptor, ImageIndex, ImageManifestBuilder, MediaType};
use serde::Deserialize;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Most images that one archive may hold.
const MAX_IMAGES: usize = 256;
/// The tag or the name of an image in a layout.
const TAG: &str = "org.opencontainers.image.ref.name";
/// The whole name, as containerd and Docker write it beside.
const NAME: &str = "io.containerd.image.name";

/// Takes the images of a layout or an archive. `name`: what the only one is called, whatever it
/// says itself.
///
/// # Errors
/// The path holds no image, or one that is not what it says it is; [`Error::Nameless`],
/// [`Error::Several`].
pub fn import(
    store: &Store,
    path: &Path,
    name: Option<&Reference>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Image>> {
    let files = Files::open(path)?;
    if let Some(index) = files.document("index.json")? {
        return from_layout(store, &files, &index, name, progress);
    }
    if let Some(list) = files.document("manifest.json")? {
        return from_docker(store, &files, &list, name, progress);
    }
    let why = "there is neither an index.json (an OCI layout) nor a manifest.json (`docker save`)".into();
    Err(Error::NotAnImage { path: path.to_owned(), why })
}

/// Refuses a name for several images, and several images without names.
fn names_of(own: Vec<Reference>, given: Option<&Reference>, of: usize) -> Result<Vec<Reference>> {
    match given {
        Some(_) if of != 1 => Err(Error::Several(of)),
        Some(given) => Ok(vec![given.clone()]),
        None if own.is_empty() => Err(Error::Nameless),
        None => Ok(own),
    }
}

fn count(images: usize, files: &Files) -> Result<()> {
    if images == 0 {
        return Err(Error::NotAnImage { path: files.path().to_owned(), why: "it lists no image".into() });
    }
    if images > MAX_IMAGES {
        return Err(too_big("the archive", MAX_IMAGES as u64, "images"));
    }
    Ok(())
}

struct Layout<'a>(&'a Files);

impl Layout<'_> {
    fn open(&self, descriptor: &Descriptor) -> Result<io::Take<std::fs::File>> {
        let name = Path::new("blobs/sha256").join(document::hex(descriptor)?);
        let found = self.0.find(&name)?;
        let (file, _) = found.ok_or_else(|| Error::NotAnImage {
            path: self.0.path().to_owned(),
            why: format!("{} is missing", name.display()),
        })?;
        Ok(file)
    }
}

impl Source for Layout<'_> {
    fn document(&mut self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.open(descriptor)?.take(descriptor.size()).read_to_end(&mut bytes);
        read.doing(|| format!("read {}", descriptor.digest()))?;
        Ok(bytes)
    }

    fn layer(&mut self, descriptor: &Descriptor, sink: &mut dyn Write) -> Result<()> {
        let copied = io::copy(&mut self.open(descriptor)?, sink);
        copied.map(drop).doing(|| format!("copy {}", descriptor.digest()))
    }
}

fn from_layout(
    store: &Store,
    files: &Files,
    index: &[u8],
    name: Option<&Reference>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Image>> {
    let parsed =
        ImageIndex::from_reader(index).map_err(|error| malformed("index.json", document::why(&error)))?;
    let entries = parsed.manifests();
    let note =
        |entry: &Descriptor, key| entry.annotations().as_ref().and_then(|notes| notes.get(key)).cloned();
    let is_named = |entry: &Descriptor| note(entry, TAG).is_some() || note(entry, NAME).is_some();
    let mut source = Layout(files);
    let adding = store.adding()?;
    // One image for several platforms, as buildx writes it, has no names at all.
    if entries.len() > 1 && entries.iter().all(|entry| !is_named(entry) && entry.platform().is_some()) {
        let names = names_of(Vec::new(), name, 1)?;
        let taken = copy(&adding, &mut source, index.to_vec(), progress)?;
        return Ok(vec![adding.name(&taken, &names)?]);
    }
    count(entries.len(), files)?;
    let mut wanted = Vec::new();
    for entry in entries {
        // A bare tag is no name: `latest` of what?
        let whole = |text: &String| text.contains([':', '/']);
        let own = note(entry, NAME).or_else(|| note(entry, TAG).filter(whole));
        let own = own.and_then(|text| crate::naming::reference(&text).ok());
        wanted.push((entry, names_of(own.into_iter().collect(), name, entries.len())?));
    }
    let mut images = Vec::new();
    for (entry, names) in wanted {
        let top = verified(&mut source, entry)?;
        let taken = copy(&adding, &mut source, top, progress)?;
        images.push(adding.name(&taken, &names)?);
    }
    Ok(images)
}

/// One image of `manifest.json`, as `docker save` writes it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: PathBuf,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<PathBuf>,
}

/// Files of an archive by the digests that we found them to have.
struct Docker<'a> {
    files: &'a Files,
    config: Vec<u8>,
    layers: HashMap<String, PathBuf>,
}

impl Source for Docker<'_> {
    fn document(&mut self, _: &Descriptor) -> Result<Vec<u8>> {
        Ok(self.config.clone())
    }

    fn layer(&mut self, descriptor: &Descriptor, sink: &mut dyn Write) -> Result<()> {
        let digest = descriptor.digest().to_string();
        let name = self.layers.get(&digest).cloned().unwrap_or_default();
        let copied = io::copy(&mut file_of(self.files, &name)?, sink);
        copied.map(drop).doing(|| format!("copy {}", name.display()))
    }
}

fn file_of(files: &Files, name: &Path) -> Result<io::Take<std::fs::File>> {
    let found = files.find(name)?;
    found.map(|(file, _)| file).ok_or_else(|| Error::NotAnImage {
        path: files.path().to_owned(),
        why: format!("{} is missing", crate::error::said(&name.display().to_string())),
    })
}

fn from_docker(
    store: &Store,
    files: &Files,
    list: &[u8],
    name: Option<&Reference>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Image>> {
    let list: Vec<Saved> =
        serde_json::from_slice(list).map_err(|error| malformed("manifest.json", document::why(&error)))?;
    count(list.len(), files)?;
    let mut wanted = Vec::new();
    for saved in &list {
        let tags = saved.repo_tags.iter().flatten();
        let own = tags.filter_map(|tag| crate::naming::reference(tag).ok()).collect();
        wanted.push((saved, names_of(own, name, list.len())?));
    }
    let adding = store.adding()?;
    let mut images = Vec::new();
    for (saved, names) in wanted {
        let (mut source, manifest) = manifest_of(files, saved)?;
        let taken = copy(&adding, &mut source, manifest, progress)?;
        images.push(adding.name(&taken, &names)?);
    }
    Ok(images)
}

/// The manifest that `docker save` leaves out: its files have their digests only once somebody has
/// read them.
fn manifest_of<'a>(files: &'a Files, saved: &Saved) -> Result<(Docker<'a>, Vec<u8>)> {
    if saved.layers.len() > document::MAX_LAYERS {
        return Err(too_big("the image", document::MAX_LAYERS as u64, "layers"));
    }
    let mut config = Vec::new();
    let read = file_of(files, &saved.config)?.take(document::MAX_DOCUMENT_BYTES + 1).read_to_end(&mut config);
    read.doing(|| format!("read {}", saved.config.display()))?;
    let (mut layers, mut descriptors) = (HashMap::new(), Vec::new());
    for name in &saved.layers {
        let mut file = file_of(files, name)?;
        let mut first = Vec::new();
        let shown = || format!("read {}", name.display());
        (&mut file).take(4).read_to_end(&mut first).doing(shown)?;
        let mut hasher = Hasher::default();
        hasher.write_all(&first).doing(shown)?;
        io::copy(&mut file, &mut hasher).doing(shown)?;
        let kind = match first.as_slice() {
            [0x1f, 0x8b, ..] => MediaType::ImageLayerGzip,
            [0x28, 0xb5, 0x2f, 0xfd] => MediaType::ImageLayerZstd,
            _ => MediaType::ImageLayer,
        };
        let (size, digest) = (hasher.bytes, hasher.digest());
        descriptors.push(descriptor(kind, &digest, size)?);
        layers.insert(digest, name.clone());
    }
    let kind = MediaType::ImageConfig;
    let described = descriptor(kind, &document::digest_of(&config), config.len() as u64)?;
    let manifest = ImageManifestBuilder::default()
        .schema_version(2u32)
        .media_type(MediaType::ImageManifest)
        .config(described)
        .layers(descriptors)
        .build();
    let manifest = manifest.and_then(|manifest| manifest.to_string());
    let manifest = manifest.map_err(|error| malformed("manifest.json", error.to_string()))?;
    Ok((Docker { files, config, layers }, manifest.into_bytes()))
}
