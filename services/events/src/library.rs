//! The modules that domains have installed, kept for the next backend: the capsule of a
//! subscription has only the name of its module.

use sha2::{Digest, Sha256};
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::events::module::{BYTES_MAX, NAME_PREFIX, PER_DOMAIN_MAX};

/// Modules that are kept of one domain: those that it has installed, and as many that it had.
const KEPT_PER_DOMAIN_MAX: usize = 2 * PER_DOMAIN_MAX;
/// Files that are looked at.
const FILES_MAX: usize = 4096;
/// How the file of a module is called, behind its domain's number and its hash.
const EXTENSION: &str = "module";

/// A module's bytes, shared with the thread that checks them.
pub(crate) type Bytes = Arc<[u8]>;

/// The name of a module: of its content.
pub(crate) fn name_of(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{NAME_PREFIX}{digits}")
}

/// The modules of each domain, those used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Library {
    folder: Option<PathBuf>,
    modules: HashMap<u64, VecDeque<(String, Bytes)>>,
}

impl Library {
    /// With what a predecessor has left in this folder, if there is one.
    pub(crate) fn new(folder: Option<PathBuf>) -> io::Result<Self> {
        let mut library = Self { folder, modules: HashMap::new() };
        let Some(folder) = library.folder.clone() else { return Ok(library) };
        for entry in fs::read_dir(folder)?.take(FILES_MAX) {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            let Some((owner, name, bytes)) = read(&path)? else {
                fs::remove_file(&path)?;
                continue;
            };
            library.enter(owner, name, bytes);
        }
        Ok(library)
    }

    /// The bytes of a module that this domain has installed.
    pub(crate) fn find(&self, owner: u64, name: &str) -> Option<Bytes> {
        let modules = self.modules.get(&owner)?;
        modules.iter().find(|(known, _)| known == name).map(|(_, bytes)| Arc::clone(bytes))
    }

    /// Keeps a module that was installed. Without room for its file it lasts as long as this
    /// process.
    pub(crate) fn keep(&mut self, owner: u64, name: &str, bytes: &Bytes) {
        if self.find(owner, name).is_none()
            && let Some(path) = self.path(owner, name)
            && let Err(error) = fs::write(&path, bytes)
        {
            tracing::warn!(%error, "a module is not kept for the next backend");
        }
        self.enter(owner, name.to_owned(), Arc::clone(bytes));
    }

    fn enter(&mut self, owner: u64, name: String, bytes: Bytes) {
        let modules = self.modules.entry(owner).or_default();
        modules.retain(|(known, _)| *known != name);
        modules.push_back((name, bytes));
        if modules.len() <= KEPT_PER_DOMAIN_MAX {
            return;
        }
        let Some((oldest, _)) = modules.pop_front() else { return };
        if let Some(path) = self.path(owner, &oldest)
            && let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "the file of an old module stays");
        }
    }

    fn path(&self, owner: u64, name: &str) -> Option<PathBuf> {
        let hash = name.strip_prefix(NAME_PREFIX)?;
        Some(self.folder.as_ref()?.join(format!("{owner:016x}-{hash}.{EXTENSION}")))
    }
}

/// A file that is one: whose bytes have the hash of its name.
fn read(path: &Path) -> io::Result<Option<(u64, String, Bytes)>> {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.split_once('-'));
    let Some((owner, hash)) = stem else { return Ok(None) };
    let Ok(owner) = u64::from_str_radix(owner, 16) else { return Ok(None) };
    let found = fs::symlink_metadata(path)?;
    if !found.is_file() || found.len() > BYTES_MAX as u64 {
        return Ok(None);
    }
    let bytes = fs::read(path)?;
    let name = name_of(&bytes);
    Ok((name.strip_prefix(NAME_PREFIX) == Some(hash)).then(|| (owner, name, bytes.into())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]
mod tests {
    use super::*;

    #[test]
    fn modules_outlive_their_service_and_the_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let mut library = Library::new(Some(folder.path().into())).unwrap();
        let module = |n: usize| Bytes::from(format!("\0asm{n}").into_bytes());
        let name = |n: usize| name_of(&module(n));
        for n in 0..=KEPT_PER_DOMAIN_MAX {
            library.keep(7, &name(n), &module(n));
            // The first is in use, and installed again and again.
            library.keep(7, &name(0), &module(0));
        }
        fs::write(folder.path().join("0000000000000007-1234.module"), "no such hash").unwrap();
        fs::write(folder.path().join("1.channel"), "another file").unwrap();
        for library in [library, Library::new(Some(folder.path().into())).unwrap()] {
            assert_eq!(library.find(7, &name(0)), Some(module(0)));
            assert_eq!(library.find(7, &name(1)), None, "the oldest that was not used again");
            assert_eq!(library.find(7, &name(KEPT_PER_DOMAIN_MAX)), Some(module(KEPT_PER_DOMAIN_MAX)));
            assert_eq!(library.find(8, &name(0)), None, "each domain has its own");
        }
        assert!(!folder.path().join("0000000000000007-1234.module").exists());
        assert!(folder.path().join("1.channel").exists());
    }
}
