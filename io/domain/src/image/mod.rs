//! Roots from OCI image layouts.

use crate::root::ImageRoot;
use std::path::Path;

/// An image that could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// This build can't unpack.
    #[error("this build can't unpack images; unpack it and use a directory as root")]
    Unsupported,
}

pub(crate) fn prepare(_images: &Path, _path: &Path, _tag: Option<&str>) -> Result<ImageRoot, ImageError> {
    Err(ImageError::Unsupported)
}

pub(crate) fn clear_unfinished(_images: &Path) {}
