//! The names of images.

use crate::document::hex_of;
use crate::error::{Error, Result, said};
use oci_spec::distribution::Reference;

/// Where images are from that name no registry, and what is left out there.
const FAMILIAR: [&str; 2] = ["docker.io/library/", "docker.io/"];

/// The reference that a text is: `alpine` is `docker.io/library/alpine:latest`.
///
/// # Errors
/// [`Error::Reference`].
pub fn reference(text: &str) -> Result<Reference> {
    let refused = |why: String| Error::Reference { text: said(text), why };
    let reference = text.parse::<Reference>().map_err(|error| refused(error.to_string()))?;
    match reference.digest().map(hex_of) {
        Some(Err(_)) => Err(refused("its digest is no sha256 digest, the only kind that is taken".into())),
        _ => Ok(reference),
    }
}

/// A whole name as people write it: `alpine:3.20` for `docker.io/library/alpine:3.20`.
#[must_use]
pub fn familiar(name: &str) -> &str {
    FAMILIAR.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}
