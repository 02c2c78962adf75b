//! The files of this node.

use std::path::Path;
use topology::Found;

/// What is at a path of this node.
pub fn look(path: &Path) -> Found {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Found::Directory,
        Ok(metadata) if metadata.is_file() => Found::File,
        Ok(_) => Found::Other,
        Err(_) => Found::Nothing,
    }
}
