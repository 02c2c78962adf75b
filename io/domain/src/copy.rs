//! Copies of files between a domain and its node, as a tar stream. Whoever sends may be hostile:
//! what comes is unpacked into a fresh directory beside its place, checked name by name, and gets
//! its place when all of it is there.

use crate::error::{Context, Error, Result};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use tar::EntryType;

/// The role of our binary that copies inside a domain.
pub const COPY_ROLE: &str = "internal-copy";
/// Most entries of one copy: as of an image.
const MAX_ENTRIES: u64 = 2_000_000;
/// Bytes that may follow the last entry: what tar(1) fills its records with, and some.
const END_BYTES: u64 = 64 * 1024;

/// The entry of `tombolo internal-copy in|out PATH`, which `tombolo cp` runs in a domain. Returns
/// the exit code.
pub(crate) fn copy_main(arguments: &[OsString]) -> i32 {
    let copied = match arguments {
        [direction, path] if direction == "out" => pack(Path::new(path), io::stdout().lock()),
        [direction, path] if direction == "in" => unpack(io::stdin().lock(), Path::new(path)),
        _ => Err(Error::Specification(format!("usage: tombolo {COPY_ROLE} in|out PATH"))),
    };
    match copied {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {}", crate::error::chain(&error));
            1
        }
    }
}

/// Sends a file, or a directory with all that is in it; links as links.
///
/// # Errors
/// It is not there or can't be read; nobody reads it.
pub fn pack(from: &Path, out: impl Write) -> Result<()> {
    let name = from.file_name().ok_or_else(|| nameless(from))?;
    // The end of a path with a slash is the directory that a link leads to.
    let metadata = fs::symlink_metadata(from).at("copy", from)?;
    let mut builder = tar::Builder::new(out);
    builder.follow_symlinks(false);
    if metadata.is_dir() {
        builder.append_dir_all(name, from).at("copy", from)?;
    } else {
        builder.append_path_with_name(from, name).at("copy", from)?;
    }
    let mut out = builder.into_inner().doing("send the copy")?;
    out.flush().doing("send the copy")
}

/// Receives what [`pack`] sends: at `to`, or into it where that is a directory. A file replaces one
/// that is there.
///
/// # Errors
/// The place can't be written, a directory is there already, or what comes is no copy of one thing.
pub fn unpack(input: impl Read, to: &Path) -> Result<()> {
    let into = to.is_dir();
    let folder =
        if into { to } else { to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")) };
    let fresh = Fresh::beside(folder)?;
    let name = receive(input, &fresh.path)?;
    let place = if into { to.join(&name) } else { to.to_owned() };
    let here =
        rustix::fs::open(&fresh.path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .at("open", &fresh.path)?;
    let is_dir = rustix::fs::statat(&here, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| {
        rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Directory
    });
    // A directory takes nobody's place: what is there would be mixed with it, or lost.
    let flags = if is_dir { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
    rustix::fs::renameat_with(&here, &name, rustix::fs::CWD, &place, flags).at("put the copy at", &place)
}

/// Unpacks a stream into an empty directory; returns the one name that it has there.
fn receive(input: impl Read, fresh: &Path) -> Result<OsString> {
    let mut archive = tar::Archive::new(input);
    archive.set_preserve_permissions(false);
    archive.set_unpack_xattrs(false);
    let mut top: Option<OsString> = None;
    let mut entries = 0_u64;
    for entry in archive.entries().doing("receive the copy")? {
        let mut entry = entry.doing("receive the copy")?;
        let path = entry.path().doing("receive the copy")?.into_owned();
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(Error::Specification(format!("a copy has at most {MAX_ENTRIES} files")));
        }
        let name = first_name(&path).ok_or_else(|| refused(&path, "it leads out of the copy"))?;
        if top.get_or_insert_with(|| name.to_owned()) != name {
            return Err(refused(&path, "a copy is one file or one directory"));
        }
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Directory | EntryType::Symlink => {}
            // Devices, pipes and sockets are somebody's own.
            _ => continue,
        }
        if !entry.unpack_in(fresh).at("write", fresh.join(&path))? {
            return Err(refused(&path, "it leads out of the copy"));
        }
    }
    // Whoever sends is not to find that nobody reads the end.
    io::copy(&mut archive.into_inner().take(END_BYTES), &mut io::sink()).doing("receive the copy")?;
    top.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof)).doing("receive the copy")
}

/// The first name of a path that has nothing but names.
fn first_name(path: &Path) -> Option<&OsStr> {
    let plain = |component: Component<'_>| matches!(component, Component::Normal(_));
    path.components().all(plain).then(|| path.iter().next()).flatten()
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Specification(format!("the copy's entry {path:?} is refused: {why}"))
}

fn nameless(path: &Path) -> Error {
    Error::Specification(format!("{path:?} has no name of its own to be copied by; name a file or directory"))
}

/// A directory of our own, which goes with this.
struct Fresh {
    path: PathBuf,
}

impl Fresh {
    fn beside(folder: &Path) -> Result<Self> {
        let path = folder.join(format!(".tombolo-copy-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path).at("write in", folder)?;
        Ok(Self { path })
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // What can't be removed is visible where it is; the copy itself has said how it went.
        let _ = sys::tree::remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn packed(from: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(from, &mut bytes).expect("it is packed");
        bytes
    }

    #[test]
    fn files_and_trees_arrive_at_their_place_or_in_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("from/sub")).expect("a tree");
        fs::write(at("from/sub/file"), "text").expect("a file");
        symlink("/nowhere", at("from/link")).expect("a link");
        fs::create_dir(at("there")).expect("a directory");
        unpack(packed(&at("from")).as_slice(), &at("there")).expect("into it");
        unpack(packed(&at("from")).as_slice(), &at("other")).expect("at its place");
        for place in ["there/from", "other"] {
            assert_eq!(fs::read_to_string(at(place).join("sub/file")).expect("it came"), "text");
            assert_eq!(fs::read_link(at(place).join("link")).expect("it came"), Path::new("/nowhere"));
        }
        unpack(packed(&at("from/sub/file")).as_slice(), &at("there")).expect("a file");
        fs::write(at("from/sub/file"), "more").expect("a file");
        unpack(packed(&at("from/sub/file")).as_slice(), &at("there/file"))
            .expect("in the place of the other");
        assert_eq!(fs::read_to_string(at("there/file")).expect("it came"), "more");
        let twice = unpack(packed(&at("from")).as_slice(), &at("there")).expect_err("a directory is there");
        assert!(twice.to_string().contains("there/from"), "{twice}");
        let left = fs::read_dir(at("there")).expect("a list").count();
        assert_eq!(left, 2, "the fresh directory is gone");
    }

    #[test]
    fn what_a_stranger_sends_stays_in_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).expect("a directory");
        let to = folder.path().join("to");
        let stream = |entries: &[(&str, Option<&Path>)]| {
            let mut builder = tar::Builder::new(Vec::new());
            for (name, link) in entries {
                let mut header = tar::Header::new_gnu();
                header.set_mode(0o4777);
                // As bytes: the writer refuses some of these names.
                header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
                if let Some(link) = link {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_link_name(link).expect("a link");
                }
                header.set_size(0);
                header.set_cksum();
                builder.append(&header, io::empty()).expect("an entry");
            }
            builder.into_inner().expect("a stream")
        };
        for hostile in [
            stream(&[("../outside/a", None)]),
            stream(&[("/outside/a", None)]),
            stream(&[("a", None), ("b", None)]),
            stream(&[("x/link", Some(&outside)), ("x/link/a", None)]),
            stream(&[]),
            b"no tar at all".repeat(100),
        ] {
            unpack(hostile.as_slice(), &to).expect_err("it is refused");
            assert!(!to.exists(), "a half of it came");
        }
        assert_eq!(fs::read_dir(&outside).expect("a list").count(), 0);
        unpack(stream(&[("tool", None)]).as_slice(), &to).expect("a file");
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(
            fs::metadata(&to).expect("it came").permissions().mode() & 0o7000,
            0,
            "it has no set-user bit"
        );
    }
}
