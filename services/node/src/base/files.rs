//! The files of this node.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
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

/// The bytes of a WebAssembly module that a file names: a regular file that is not too long and
/// begins as one. What else is to be checked is for whoever runs it, or has a user's rights.
///
/// # Errors
/// The fault, in words.
pub fn module_bytes(path: &Path) -> Result<Vec<u8>, String> {
    use wire::events::module::{BYTES_MAX, MAGIC};
    let file = open(path)?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match bytes.len() {
        length if length > BYTES_MAX => {
            Err(format!("it is longer than the {BYTES_MAX} bytes that one may have"))
        }
        _ if !bytes.starts_with(&MAGIC) => Err("it does not begin as WebAssembly does".to_owned()),
        _ => Ok(bytes),
    }
}

/// Opens a regular file. A pipe in its place, which a domain may have put there, is not waited for.
fn open(path: &Path) -> Result<File, String> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if metadata.is_file() { Ok(file) } else { Err("it is no file".to_owned()) }
}

/// The text of a file of this node, or why it can't be read; of a bigger one than a file of ours
/// may be, the beginning and one byte.
pub(crate) fn text(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = open(path)?;
    let limit = topology::bounds::FILE_BYTES_MAX as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is no text in UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).expect("a pipe");
        assert_eq!(text(&pipe), Err("it is no file".to_owned()));
        assert_eq!(module_bytes(&pipe), Err("it is no file".to_owned()));
        assert_eq!(text(folder.path()), Err("it is no file".to_owned()));
    }
}
