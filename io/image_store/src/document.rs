//! The documents of an image: index, manifest, configuration. Their author may be hostile.

use crate::error::{Error, Result};
use oci_spec::image::{
    Arch, Descriptor, DigestAlgorithm, ImageConfiguration, ImageIndex, ImageManifest, MediaType,
};
use sha2::{Digest as _, Sha256};

/// Largest index, manifest or configuration, in bytes: what registries accept.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 4 * 1024 * 1024;
/// Most layers of an image: overlay file systems and registries stop at about this many.
pub(crate) const MAX_LAYERS: usize = 256;
/// Most bytes of an image as it is transferred: more than it may unpack to.
pub(crate) const MAX_IMAGE_BYTES: u64 = 32 * 1024 * 1024 * 1024;
/// How deep indexes may be nested: one per platform below one per tag.
pub(crate) const MAX_NESTING: usize = 4;
/// Most characters of a digest, with its algorithm.
const DIGEST_CHARACTERS: usize = "sha256:".len() + 64;
/// Configurations of images; other artifacts (charts, signatures) have others.
const CONFIGURATIONS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
/// Layers that are unpacked.
const LAYERS: [&str; 5] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
];
/// The platform that `docker manifest` and `buildx` write beside images.
const UNKNOWN_PLATFORM: &str = "unknown";

/// A document of which nobody has said yet what it is.
#[derive(Debug)]
pub(crate) enum Document {
    Index(Box<ImageIndex>),
    Manifest(Box<ImageManifest>),
}

/// The digest of some bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    text_of(Sha256::digest(bytes).as_slice())
}

/// A digest that was computed, as text.
pub(crate) fn text_of(digest: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = "sha256:".to_owned();
    for byte in digest {
        // Writing to a text can't fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The hexadecimal digits of a digest of the one kind that is taken.
pub(crate) fn hex_of(digest: &str) -> Result<&str> {
    let hex = digest.strip_prefix("sha256:").filter(|_| digest.len() == DIGEST_CHARACTERS);
    let hex = hex.filter(|hex| hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
    hex.ok_or_else(|| malformed("a digest", format!("{:?} is no sha256 digest", crate::error::said(digest))))
}

/// The hexadecimal digits of a descriptor's digest.
pub(crate) fn hex(descriptor: &Descriptor) -> Result<&str> {
    let digest = descriptor.digest();
    if *digest.algorithm() != DigestAlgorithm::Sha256 {
        let message = format!("its digest is of kind {}, and only sha256 is known", digest.algorithm());
        return Err(malformed("a descriptor", message));
    }
    let hex = digest.digest();
    hex_of(&format!("sha256:{hex}")).map(|_| hex)
}

/// Reads what is an index or a manifest, and not both.
pub(crate) fn parse(bytes: &[u8]) -> Result<Document> {
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| malformed("the manifest", error.to_string()))?;
    let has = |key: &str| value.get(key).is_some();
    // Whoever sees an index where others see a manifest runs something else than they do.
    match (has("manifests"), has("layers") || has("config")) {
        (true, true) => {
            Err(malformed("the manifest", "it claims to be an index and a manifest at once".into()))
        }
        (true, false) => ImageIndex::from_reader(bytes)
            .map(|index| Document::Index(Box::new(index)))
            .map_err(|error| malformed("the index", why(&error))),
        (false, true) => ImageManifest::from_reader(bytes)
            .map(|manifest| Document::Manifest(Box::new(manifest)))
            .map_err(|error| malformed("the manifest", why(&error))),
        (false, false) if has("fsLayers") => Err(malformed(
            "the manifest",
            "it is of Docker's schema 1, which has no digests that could be verified; have the image built anew".into(),
        )),
        (false, false) => Err(malformed("the manifest", "it names neither layers nor manifests".into())),
    }
}

/// The manifest of an index that is for this machine.
pub(crate) fn for_this_machine(index: &ImageIndex) -> Result<Descriptor> {
    let ours = |descriptor: &&Descriptor| {
        descriptor.platform().as_ref().is_none_or(|platform| {
            *platform.architecture() == Arch::default() && platform.os().to_string() == "linux"
        })
    };
    index.manifests().iter().find(ours).cloned().ok_or_else(|| {
        let platforms = index.manifests().iter().filter_map(|descriptor| descriptor.platform().as_ref());
        let mut found: Vec<String> = platforms
            .filter(|platform| platform.os().to_string() != UNKNOWN_PLATFORM)
            .map(|platform| format!("{}/{}", platform.os(), platform.architecture()))
            .collect();
        found.dedup();
        Error::Platform { found: crate::error::said(&found.join(", ")), wanted: Arch::default().to_string() }
    })
}

/// Refuses a manifest that is no image's, or too big an image's. Its bytes are those of
/// configuration and layers.
pub(crate) fn check(manifest: &ImageManifest) -> Result<u64> {
    let config = manifest.config().media_type();
    if !CONFIGURATIONS.contains(&config.as_ref()) {
        let message = format!("its configuration is of type {}: this is no image", name_of(config));
        return Err(malformed("the manifest", message));
    }
    if manifest.layers().len() > MAX_LAYERS {
        return Err(too_big("the image", MAX_LAYERS as u64, "layers"));
    }
    for layer in manifest.layers() {
        if !LAYERS.contains(&layer.media_type().as_ref()) {
            let message = format!("a layer of type {} can't be unpacked", name_of(layer.media_type()));
            return Err(malformed("the manifest", message));
        }
        hex(layer)?;
    }
    if manifest.config().size() > MAX_DOCUMENT_BYTES {
        return Err(too_big("the configuration", MAX_DOCUMENT_BYTES, "bytes"));
    }
    hex(manifest.config())?;
    let sizes = manifest.layers().iter().map(Descriptor::size);
    let bytes = sizes.fold(manifest.config().size(), u64::saturating_add);
    if bytes > MAX_IMAGE_BYTES {
        return Err(too_big("the image", MAX_IMAGE_BYTES, "bytes"));
    }
    Ok(bytes)
}

/// Reads a configuration, and refuses one for another kind of machine.
pub(crate) fn configuration(bytes: &[u8]) -> Result<ImageConfiguration> {
    let configuration = ImageConfiguration::from_reader(bytes)
        .map_err(|error| malformed("the configuration", why(&error)))?;
    if *configuration.architecture() != Arch::default() {
        let found = format!("{}/{}", configuration.os(), configuration.architecture());
        return Err(Error::Platform {
            found: crate::error::said(&found),
            wanted: Arch::default().to_string(),
        });
    }
    Ok(configuration)
}

fn name_of(kind: &MediaType) -> String {
    format!("{:?}", crate::error::said(kind.as_ref()))
}

/// A parser's error with its reason, in which it may have repeated its input.
pub(crate) fn why(error: &dyn std::error::Error) -> String {
    let reason = error.source().map(|reason| format!(": {reason}")).unwrap_or_default();
    crate::error::said(&format!("{error}{reason}"))
}

pub(crate) fn malformed(what: &str, message: String) -> Error {
    Error::Malformed { what: what.to_owned(), message }
}

pub(crate) fn too_big(what: &str, limit: u64, of: &'static str) -> Error {
    Error::TooBig { what: what.to_owned(), limit, of }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn descriptor(kind: &str, size: u64) -> Value {
        json!({ "mediaType": kind, "digest": digest_of(b"x"), "size": size })
    }

    fn manifest(layers: Vec<Value>) -> Value {
        json!({ "schemaVersion": 2, "config": descriptor(CONFIGURATIONS[0], 10), "layers": layers })
    }

    fn refusal(document: &Value) -> String {
        let parsed = parse(document.to_string().as_bytes());
        let checked = parsed.and_then(|document| match document {
            Document::Manifest(manifest) => check(&manifest),
            Document::Index(index) => for_this_machine(&index).map(|_| 0),
        });
        checked.expect_err("it was taken").to_string()
    }

    #[test]
    fn each_document_that_must_not_be_believed_gets_its_message() {
        let layer = || descriptor(LAYERS[1], 10);
        let mut both = manifest(vec![layer()]);
        both["manifests"] = json!([]);
        let mut chart = manifest(vec![layer()]);
        chart["config"]["mediaType"] = "application/vnd.cncf.helm.config.v1+json".into();
        let mut long = manifest(vec![layer()]);
        long["config"]["size"] = (MAX_DOCUMENT_BYTES + 1).into();
        let mut weak = manifest(vec![layer()]);
        weak["layers"][0]["digest"] = "md5:0123".into();
        let mut upward = manifest(vec![layer()]);
        upward["layers"][0]["digest"] = format!("sha256:../{}", "a".repeat(61)).into();
        let elsewhere = json!({ "schemaVersion": 2, "manifests": [{ "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest_of(b"x"), "size": 1, "platform": { "os": "linux", "architecture": "s390x" } }] });
        for (document, said) in [
            (both, "an index and a manifest at once"),
            (chart, "this is no image"),
            (long, "the configuration is too big"),
            (weak, "digest"),
            (upward, "malformed"),
            (elsewhere, "linux/s390x"),
            (
                manifest(vec![descriptor("application/vnd.oci.image.layer.v1.tar+encrypted", 1)]),
                "can't be unpacked",
            ),
            (manifest(vec![descriptor(LAYERS[0], MAX_IMAGE_BYTES)]), "the image is too big"),
            (
                manifest(vec![descriptor(LAYERS[0], u64::MAX), descriptor(LAYERS[0], u64::MAX)]),
                "the image is too big",
            ),
            (manifest((0..=MAX_LAYERS).map(|_| layer()).collect()), "256 layers"),
            (json!({ "schemaVersion": 1, "fsLayers": [] }), "schema 1"),
            (json!({}), "neither layers nor manifests"),
            (json!([]), "neither layers nor manifests"),
        ] {
            let text = refusal(&document);
            assert!(text.contains(said), "{document}\n{text}\n{said}");
        }
        assert!(parse(&vec![b'['; 100_000]).is_err(), "depth has a bound");
    }

    #[test]
    fn a_digest_is_sixty_four_small_digits() {
        assert!(hex_of(&digest_of(b"")).is_ok());
        for text in ["", "sha256:", "sha512:00", "../../etc", &digest_of(b"").to_uppercase()] {
            assert!(hex_of(text).is_err(), "{text}");
        }
    }
}
