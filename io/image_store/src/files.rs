//! The files of a layout or an archive, by their names in it: a directory, or a tar that is not
//! unpacked.

use crate::document::{MAX_DOCUMENT_BYTES, too_big};
use crate::error::{Error, Result, While};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Take};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// Most files of a tar: an index and some blobs per image.
const MAX_FILES: usize = 100_000;
/// Most links that lead on to each other; `docker save` writes one where two images share a layer.
const MAX_LINKS: usize = 4;
/// How whole archives are compressed that say so in their first bytes: gzip, zstd, xz, bzip2.
const COMPRESSED: [&[u8]; 4] = [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd], &[0xfd, b'7', b'z'], b"BZh"];

/// Where in a tar something is.
#[derive(Debug)]
pub(crate) enum Place {
    /// At this position, so long.
    File(u64, u64),
    /// Where this one is.
    Link(PathBuf),
}

/// The files of a layout or an archive.
#[derive(Debug)]
pub(crate) enum Files {
    Directory(PathBuf, OwnedFd),
    Tar(PathBuf, File, HashMap<PathBuf, Place>),
}

impl Files {
    /// Opens a directory, or a tar.
    ///
    /// # Errors
    /// A file that is neither, one that is compressed as a whole, and one that can't be read.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = || format!("open {}", path.display());
        let mut file = File::open(path).doing(shown)?;
        if file.metadata().doing(shown)?.is_dir() {
            return Ok(Self::Directory(path.to_owned(), file.into()));
        }
        let mut first = Vec::new();
        (&file).take(8).read_to_end(&mut first).doing(shown)?;
        if COMPRESSED.iter().any(|magic| first.starts_with(magic)) {
            let why = "it is compressed as a whole; decompress it first (gunzip, unzstd)".into();
            return Err(Error::NotAnImage { path: path.to_owned(), why });
        }
        file.seek(SeekFrom::Start(0)).doing(shown)?;
        let places = places(path, &file)?;
        Ok(Self::Tar(path.to_owned(), file, places))
    }

    /// Where they come from.
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(path, _) | Self::Tar(path, ..) => path,
        }
    }

    /// One of them, with its length; `None`: it is not there. Links of a directory do not lead out
    /// of it.
    pub fn find(&self, name: &Path) -> Result<Option<(Take<File>, u64)>> {
        let shown = || format!("read {} of {}", name.display(), self.path().display());
        let Some(name) = plain(name) else { return Ok(None) };
        match self {
            Self::Directory(_, directory) => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let file = match openat2(directory, &name, flags, Mode::empty(), resolve) {
                    Ok(file) => File::from(file),
                    Err(Errno::NOENT) => return Ok(None),
                    Err(error) => return Err(error).doing(shown),
                };
                let metadata = file.metadata().doing(shown)?;
                let size = metadata.len();
                Ok(metadata.is_file().then(|| (file.take(size), size)))
            }
            Self::Tar(_, file, places) => {
                let Some((position, size)) = follow(places, name) else { return Ok(None) };
                // A duplicate of a descriptor shares its position; one file of the archive is read
                // at a time.
                let mut file = file.try_clone().doing(shown)?;
                file.seek(SeekFrom::Start(position)).doing(shown)?;
                Ok(Some((file.take(size), size)))
            }
        }
    }

    /// All of a small one.
    pub fn document(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some((mut file, size)) = self.find(Path::new(name))? else { return Ok(None) };
        if size > MAX_DOCUMENT_BYTES {
            return Err(too_big(name, MAX_DOCUMENT_BYTES, "bytes"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).doing(|| format!("read {name}"))?;
        Ok(Some(bytes))
    }
}

/// A name without `.`, unless it leads upwards or is absolute.
fn plain(name: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

/// The path that a link in a tar leads to, seen from where the link is.
fn target(link: &Path, to: &Path) -> Option<PathBuf> {
    let mut at = link.parent()?.to_owned();
    for component in to.components() {
        match component {
            Component::Normal(name) => at.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !at.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(at)
}

fn follow(places: &HashMap<PathBuf, Place>, name: PathBuf) -> Option<(u64, u64)> {
    let mut name = name;
    for _ in 0..=MAX_LINKS {
        match places.get(&name)? {
            Place::File(position, size) => return Some((*position, *size)),
            Place::Link(to) => name.clone_from(to),
        }
    }
    None
}

/// Where the files of a tar are, without reading their content.
fn places(path: &Path, file: &File) -> Result<HashMap<PathBuf, Place>> {
    let no_tar = |error: std::io::Error| Error::NotAnImage {
        path: path.to_owned(),
        why: format!("it is neither a directory nor a tar ({error})"),
    };
    let mut archive = tar::Archive::new(file);
    let mut places = HashMap::new();
    for entry in archive.entries_with_seek().map_err(no_tar)?.raw(true) {
        let entry = entry.map_err(no_tar)?;
        if places.len() >= MAX_FILES {
            return Err(too_big("the archive", MAX_FILES as u64, "files"));
        }
        let kind = entry.header().entry_type();
        let Some(name) = plain(&entry.path().map_err(no_tar)?) else { continue };
        if kind.is_file() {
            places.insert(name, Place::File(entry.raw_file_position(), entry.size()));
        } else if kind.is_symlink()
            && let Some(to) = entry.link_name().map_err(no_tar)?.and_then(|to| target(&name, &to))
        {
            places.insert(name, Place::Link(to));
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_directory_do_not_lead_out_of_it() {
        let folder = tempfile::tempdir().expect("folder");
        let layout = folder.path().join("layout");
        std::fs::create_dir(&layout).expect("layout");
        std::fs::write(folder.path().join("secret"), "secret").expect("secret");
        std::os::unix::fs::symlink("../secret", layout.join("link")).expect("link");
        std::fs::write(layout.join("own"), "own").expect("own");
        let files = Files::open(&layout).expect("open");
        assert!(files.find(Path::new("link")).is_err());
        assert!(files.find(Path::new("../secret")).expect("no error").is_none());
        assert_eq!(files.document("./own").expect("read").as_deref(), Some(&b"own"[..]));
        assert!(files.document("none").expect("no error").is_none());
    }

    #[test]
    fn links_of_an_archive_lead_to_its_own_files_and_end() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut file = tar::Header::new_gnu();
        file.set_size(5);
        builder.append_data(&mut file, "a/layer.tar", &b"layer"[..]).expect("append");
        for (name, to) in
            [("b/layer.tar", "../a/layer.tar"), ("c/loop", "loop"), ("d/out", "../../etc/passwd")]
        {
            let mut link = tar::Header::new_gnu();
            link.set_entry_type(tar::EntryType::Symlink);
            link.set_size(0);
            builder.append_link(&mut link, name, to).expect("append");
        }
        let folder = tempfile::tempdir().expect("folder");
        let archive = folder.path().join("archive.tar");
        std::fs::write(&archive, builder.into_inner().expect("tar")).expect("write");
        let files = Files::open(&archive).expect("open");
        assert_eq!(files.document("b/layer.tar").expect("read").as_deref(), Some(&b"layer"[..]));
        assert!(files.document("c/loop").expect("no error").is_none());
        assert!(files.document("d/out").expect("no error").is_none());
    }
}
