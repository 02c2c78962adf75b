//! The store, imports, and a registry that is hostile in each way that we thought of.

mod registry;
mod store;

use crate::document::digest_of;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The content of an image, as somebody made it.
pub(crate) struct Made {
    pub blobs: BTreeMap<String, Vec<u8>>,
    pub manifest: Vec<u8>,
    pub layer: String,
    pub config: String,
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }
}

fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": kind, "digest": digest_of(bytes), "size": bytes.len() })
}

/// An image of one layer, which holds `text`.
pub(crate) fn image(text: &str) -> Made {
    image_for(text, architecture())
}

fn image_for(text: &str, architecture: &str) -> Made {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    builder.append_data(&mut header, "file", text.as_bytes()).expect("append");
    let layer = builder.into_inner().expect("tar");
    let config = json!({ "architecture": architecture, "os": "linux", "config": { "Cmd": ["/bin/true"] },
        "rootfs": { "type": "layers", "diff_ids": [digest_of(&layer)] } });
    let config = config.to_string().into_bytes();
    let manifest = json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)] });
    let manifest = manifest.to_string().into_bytes();
    let names = (digest_of(&layer), digest_of(&config));
    let blobs = [manifest.clone(), layer, config].map(|bytes| (digest_of(&bytes), bytes));
    Made { blobs: BTreeMap::from(blobs), manifest, layer: names.0, config: names.1 }
}

/// An image layout at `at` whose index has these entries.
fn layout(at: &Path, images: &[&Made], entries: &Value) {
    let blobs = at.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).expect("blobs");
    for (digest, bytes) in images.iter().flat_map(|image| &image.blobs) {
        std::fs::write(blobs.join(&digest["sha256:".len()..]), bytes).expect("blob");
    }
    let index = json!({ "schemaVersion": 2, "manifests": entries });
    std::fs::write(at.join("index.json"), index.to_string()).expect("index");
}

/// An entry of an index for an image.
fn entry(image: &Made, name: Option<&str>) -> Value {
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &image.manifest);
    if let Some(name) = name {
        entry["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    }
    entry
}
