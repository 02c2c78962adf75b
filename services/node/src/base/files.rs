//! The files of this node.

use std::io::Read;
use std::path::Path;
use topology::Found;

/// Looks at a path of this node.
pub fn look(path: &Path) -> Found {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Found::Directory,
        Ok(metadata) if metadata.is_file() => Found::File,
        Ok(_) => Found::Other,
        Err(_) => Found::Nothing,
    }
}

/// The text of a file of this node, or why it can't be read; of a bigger one than a file of ours
/// may be, the beginning and one byte.
pub(crate) fn text(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let limit = topology::bounds::FILE_BYTES_MAX as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is no text in UTF-8".to_owned())
}
