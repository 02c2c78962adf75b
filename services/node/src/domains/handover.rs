//! The hand-over from one incarnation of a domain to the next one: a file for each domain in the
//! run directory, which its frontend shows as `/srv/self/handover`.
//!
//! It outlives the domain and the daemon, and ends with the distributed container, or with the
//! node.

use super::Domains;
use domain::Layout;
use frontend::HANDOVER_BYTES_MAX;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Its folder in the run directory, with a folder for each distributed container.
const FOLDER: &str = "handover";

/// The folder of a distributed container.
pub(crate) fn folder(layout: &Layout, dc: &str) -> PathBuf {
    layout.run_dir.join(FOLDER).join(dc)
}

fn path(layout: &Layout, dc: &str, name: &str) -> PathBuf {
    folder(layout, dc).join(name)
}

/// Opens the file for a frontend; one that is not there is made.
///
/// # Errors
/// It can't be made.
pub(crate) fn open(layout: &Layout, dc: &str, name: &str) -> Result<File, String> {
    let path = path(layout, dc, name);
    domain::make_folder(&folder(layout, dc), 0o700).map_err(crate::base::said)?;
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    file.map_err(|error| at("open", &path, &error))
}

impl Domains {
    /// Returns what a life that has ended left; `None`: there is no file.
    ///
    /// # Errors
    /// It can't be read.
    pub(crate) fn handover(&self, dc: &str, name: &str) -> Result<Option<Vec<u8>>, String> {
        let path = path(&self.layout, dc, name);
        let mut bytes = Vec::new();
        match File::open(&path).map(|file| file.take(HANDOVER_BYTES_MAX as u64).read_to_end(&mut bytes)) {
            Ok(Ok(_)) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Ok(Err(error)) | Err(error) => Err(at("read", &path, &error)),
        }
    }

    /// Puts what a life on another node left before the next one, which has not begun.
    ///
    /// # Errors
    /// It can't be written.
    pub(crate) fn put_handover(&self, dc: &str, name: &str, bytes: &[u8]) -> Result<(), String> {
        let path = path(&self.layout, dc, name);
        domain::make_folder(&folder(&self.layout, dc), 0o700).map_err(crate::base::said)?;
        fs::write(&path, bytes).map_err(|error| at("write", &path, &error))
    }

    /// Removes it: another node has it now.
    ///
    /// # Errors
    /// It can't be removed.
    pub(crate) fn remove_handover(&self, dc: &str, name: &str) -> Result<(), String> {
        let path = path(&self.layout, dc, name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(at("remove", &path, &error)),
            _ => Ok(()),
        }
    }
}

fn at(what: &str, path: &Path, error: &io::Error) -> String {
    format!("can't {what} {}: {error}", path.display())
}
