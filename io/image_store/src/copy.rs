//! Taking one image from somewhere into the store: the index' choice for this machine, its
//! manifest, configuration and layers.

use crate::document::{self, Document, MAX_DOCUMENT_BYTES, MAX_NESTING, too_big};
use crate::error::{Error, Result};
use crate::store::{Adding, Taken};
use oci_spec::image::{Descriptor, ImageManifest, MediaType};
use std::collections::BTreeSet;
use std::io::{self, Write};

/// How far a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of layers that are there.
    pub done: u64,
    /// Bytes of all layers.
    pub of: u64,
}

/// Where an image comes from. Nothing that it says is believed.
pub(crate) trait Source {
    /// An index, a manifest or a configuration; no more than the descriptor says.
    fn document(&mut self, descriptor: &Descriptor) -> Result<Vec<u8>>;
    /// Writes a layer to `sink`.
    fn layer(&mut self, descriptor: &Descriptor, sink: &mut dyn Write) -> Result<()>;
    /// How often a layer is asked for that breaks off.
    fn attempts(&self) -> usize {
        1
    }
}

/// Takes the image that a document is, or leads to. The document's own digest was verified where
/// somebody named it.
pub(crate) fn copy(
    adding: &Adding<'_>,
    source: &mut dyn Source,
    top: Vec<u8>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Taken> {
    let source_digest = document::digest_of(&top);
    let mut bytes = top;
    for _ in 0..MAX_NESTING {
        match document::parse(&bytes)? {
            Document::Index(index) => bytes = verified(source, &document::for_this_machine(&index)?)?,
            Document::Manifest(manifest) => {
                let size = content(adding, source, &manifest, progress)?;
                adding.add_document(&bytes)?;
                let manifest = descriptor_of(&manifest, &bytes)?;
                return Ok(Taken { manifest, source_digest: Some(source_digest), bytes: size });
            }
        }
    }
    Err(document::malformed("the index", format!("indexes are nested more than {MAX_NESTING} deep")))
}

fn content(
    adding: &Adding<'_>,
    source: &mut dyn Source,
    manifest: &ImageManifest,
    progress: &mut dyn FnMut(Progress),
) -> Result<u64> {
    let size = document::check(manifest)?;
    let config = verified(source, manifest.config())?;
    document::configuration(&config)?;
    adding.add_document(&config)?;
    let of = size.saturating_sub(manifest.config().size());
    let (mut done, mut seen) = (0, BTreeSet::new());
    progress(Progress { done, of });
    for layer in manifest.layers() {
        if seen.insert(layer.digest().to_string()) {
            layer_of(adding, source, layer, &mut |bytes| progress(Progress { done: done + bytes, of }))?;
        }
        done += layer.size();
        progress(Progress { done, of });
    }
    Ok(size)
}

fn layer_of(
    adding: &Adding<'_>,
    source: &mut dyn Source,
    layer: &Descriptor,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let digest = layer.digest().to_string();
    if adding.has(&digest, layer.size())? {
        return Ok(());
    }
    let mut left = source.attempts();
    loop {
        left = left.saturating_sub(1);
        let added = adding.add(&digest, layer.size(), &mut |sink| {
            source.layer(layer, &mut Counted { sink, bytes: 0, progress: &mut *progress })
        });
        match added {
            // A connection that broke off, and nothing else, may be better the next time.
            Err(Error::Registry { .. }) if left > 0 => {}
            done => return done,
        }
    }
}

/// Tells how many bytes went through.
struct Counted<'a> {
    sink: &'a mut dyn Write,
    bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.sink.write(bytes)?;
        self.bytes += written as u64;
        (self.progress)(self.bytes);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// A document that is what its descriptor says.
pub(crate) fn verified(source: &mut dyn Source, descriptor: &Descriptor) -> Result<Vec<u8>> {
    document::hex(descriptor)?;
    if descriptor.size() > MAX_DOCUMENT_BYTES {
        return Err(too_big("a document", MAX_DOCUMENT_BYTES, "bytes"));
    }
    let bytes = source.document(descriptor)?;
    let (wanted, found) = (descriptor.digest().to_string(), document::digest_of(&bytes));
    if found != wanted {
        return Err(Error::Digest { what: "a document".into(), wanted, found });
    }
    Ok(bytes)
}

fn descriptor_of(manifest: &ImageManifest, bytes: &[u8]) -> Result<Descriptor> {
    let kind = manifest.media_type().clone().unwrap_or(MediaType::ImageManifest);
    descriptor(kind, &document::digest_of(bytes), bytes.len() as u64)
}

/// A descriptor of our own making.
pub(crate) fn descriptor(kind: MediaType, digest: &str, size: u64) -> Result<Descriptor> {
    let digest = digest.parse::<oci_spec::image::Digest>();
    let digest = digest.map_err(|error| document::malformed("a digest", error.to_string()))?;
    Ok(Descriptor::new(kind, size, digest))
}
