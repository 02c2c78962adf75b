//! Laying one layer's tar over a tree (OCI image specification, "Applying Changesets").
//!
//! Every path is taken apart and walked from the tree's own descriptor with `RESOLVE_IN_ROOT`: a
//! link in the tree leads at most to another place in it. The last component is never followed.

use super::blob::{Blob, decompressed};
use super::{ImageError, MAX_DEPTH, MAX_ENTRIES, MAX_UNPACKED_BYTES, Result, While};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat, fchmod,
    fchown, linkat, mkdirat, mkfifoat, openat, openat2, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use tar::{Entry, EntryType, PaxExtensions};

/// Longest path, as in the kernel (`PATH_MAX`).
const MAX_PATH_BYTES: usize = 4096;
/// Largest record of extensions to one entry, in bytes: two paths and some numbers.
const MAX_EXTENSION_BYTES: u64 = 64 * 1024;
/// Why an entry is refused that is deeper than [`MAX_DEPTH`].
const TOO_DEEP: &str = "it is more than 256 directories deep";
/// A name that removes the one that follows it.
const WHITEOUT: &[u8] = b".wh.";
/// A name that removes everything that lower layers put beside it.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Lays layers over a tree, the lowest first.
pub(super) struct Unpacker {
    root: OwnedFd,
    entries: u64,
    bytes: u64,
    /// The entries that this layer made, as (inode of the directory, name): a whiteout spares it.
    made: HashSet<(u64, CString)>,
    /// How deep each directory of the tree is, by its inode: all of them were made here, and none
    /// is ever moved. Links in the tree shorten the way to a place, so the entry's own path does
    /// not tell.
    depths: HashMap<u64, u16>,
}

/// The contents of extension headers on the entry that follows them.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    uid: Option<u32>,
    gid: Option<u32>,
}

/// An entry's place: the directory, opened, and the name in it.
struct Place {
    dir: OwnedFd,
    inode: u64,
    name: CString,
}

impl Unpacker {
    pub fn new(tree: &Path) -> Result<Self> {
        let root = crate::root::open_directory(tree).map_err(|e| ImageError::Io {
            what: format!("open {}", tree.display()),
            source: io::Error::other(e),
        })?;
        let depths = HashMap::from([(inode_of(&root).doing(|| format!("look at {}", tree.display()))?, 0)]);
        Ok(Self { root, entries: 0, bytes: 0, made: HashSet::new(), depths })
    }

    /// Lays one layer over the tree.
    pub fn layer(&mut self, blob: &mut Blob) -> Result<()> {
        self.made.clear();
        let left = MAX_UNPACKED_BYTES.saturating_sub(self.bytes);
        let reader = Bounded { reader: decompressed(blob)?, left };
        let mut archive = tar::Archive::new(reader);
        let mut extensions = Extensions::default();
        // Raw, because the library otherwise takes extensions of any size into memory.
        for entry in archive.entries().doing(|| "read a layer".into())?.raw(true) {
            let mut entry = entry.doing(|| "read a layer".into())?;
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(ImageError::TooBig { limit: MAX_ENTRIES, of: "entries" });
            }
            self.bytes = self.bytes.saturating_add(entry.size());
            if extensions.take_in(&mut entry)? {
                continue;
            }
            self.entry(&mut entry, std::mem::take(&mut extensions))?;
        }
        Ok(())
    }

    fn entry(&mut self, entry: &mut Entry<'_, impl Read>, extensions: Extensions) -> Result<()> {
        let path = extensions.path.clone().unwrap_or_else(|| entry.path_bytes().into_owned());
        let components = components(&path)?;
        let Some((name, parents)) = components.split_last() else {
            // The root itself: only its permissions matter.
            return self.set_root_mode(entry);
        };
        let shown = String::from_utf8_lossy(&path).into_owned();
        let place = self.place(parents, name, &shown).doing(|| format!("find the place of {shown:?}"))?;
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return self.whiteout(&place, name, hidden, &shown);
        }
        self.put(entry, &extensions, &place, &shown)?;
        self.made.insert((place.inode, place.name));
        Ok(())
    }

    fn set_root_mode(&self, entry: &Entry<'_, impl Read>) -> Result<()> {
        let mode = mode_of(entry)?;
        let dir = openat(&self.root, ".", directory_flags() & !OFlags::PATH, Mode::empty());
        dir.and_then(|d| fchmod(&d, mode)).doing(|| "set the root's permissions".into())
    }

    /// Opens the directory of an entry, and makes it where a layer forgot to.
    fn place(&mut self, parents: &[&[u8]], name: &[u8], shown: &str) -> io::Result<Place> {
        let joined = parents.join(&b'/');
        let dir = match self.open_inside(if joined.is_empty() { b"." } else { &joined }) {
            Err(Errno::NOENT) => {
                for end in 1..=parents.len() {
                    match self.open_inside(&parents[..end].join(&b'/')) {
                        Ok(_) => continue,
                        Err(Errno::NOENT) => {}
                        Err(error) => return Err(error.into()),
                    }
                    let (last, before) = parents[..end].split_last().ok_or(Errno::INVAL)?;
                    let before = before.join(&b'/');
                    let above = self.open_inside(if before.is_empty() { b"." } else { &before })?;
                    let last = CString::new(*last).map_err(|_| Errno::INVAL)?;
                    self.make_directory(&above, &last, Mode::from_raw_mode(0o755), shown)?;
                }
                self.open_inside(&joined)?
            }
            other => other?,
        };
        let inode = inode_of(&dir)?;
        Ok(Place { dir, inode, name: CString::new(name).map_err(|_| Errno::INVAL)? })
    }

    /// Makes a directory unless it is there, and opens it.
    fn make_directory(
        &mut self,
        above: &OwnedFd,
        name: &CStr,
        mode: Mode,
        shown: &str,
    ) -> io::Result<OwnedFd> {
        let depth = self.depths.get(&inode_of(above)?).map_or(MAX_DEPTH, |depth| depth.saturating_add(1));
        if depth > MAX_DEPTH {
            return Err(io::Error::other(refused(shown, TOO_DEEP)));
        }
        let new = match mkdirat(above, name, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = (directory_flags() & !OFlags::PATH) | OFlags::NOFOLLOW;
        let made = openat(above, name, flags, Mode::empty())?;
        if new {
            self.depths.insert(inode_of(&made)?, depth);
        }
        Ok(made)
    }

    fn open_inside(&self, path: &[u8]) -> std::result::Result<OwnedFd, Errno> {
        openat2(
            &self.root,
            path,
            directory_flags(),
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
    }

    fn whiteout(&self, place: &Place, name: &[u8], hidden: &[u8], shown: &str) -> Result<()> {
        let doing = || format!("apply {shown:?}");
        if name == OPAQUE {
            return self.remove_lower_children(&place.dir, MAX_DEPTH).doing(doing);
        }
        if hidden.is_empty() || hidden == b"." || hidden == b".." {
            return Err(refused(shown, "it is a whiteout of no name"));
        }
        if hidden.starts_with(WHITEOUT) {
            // Notes of an old union file system to itself.
            return Ok(());
        }
        let hidden = CString::new(hidden).map_err(|_| refused(shown, "its name holds a NUL byte"))?;
        self.remove_lower(&place.dir, place.inode, &hidden, MAX_DEPTH).doing(doing)
    }

    /// Removes a name unless this layer made it, and of a directory that it made, all that it did
    /// not.
    fn remove_lower(
        &self,
        dir: &OwnedFd,
        inode: u64,
        name: &CStr,
        depth: u16,
    ) -> std::result::Result<(), Errno> {
        let kind = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error),
        };
        let ours = self.made.contains(&(inode, name.to_owned()));
        if kind != FileType::Directory {
            return if ours { Ok(()) } else { unlinkat(dir, name, AtFlags::empty()) };
        }
        let child = openat(dir, name, directory_flags() | OFlags::NOFOLLOW, Mode::empty())?;
        self.remove_lower_children(&child, depth.checked_sub(1).ok_or(Errno::LOOP)?)?;
        match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            // Something of this layer is in it.
            Err(Errno::NOTEMPTY) => Ok(()),
            _ if ours => Ok(()),
            other => other,
        }
    }

    fn remove_lower_children(&self, dir: &OwnedFd, depth: u16) -> std::result::Result<(), Errno> {
        let inode = inode_of(dir)?;
        for name in names(dir)? {
            self.remove_lower(dir, inode, &name, depth)?;
        }
        Ok(())
    }

    fn put(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        extensions: &Extensions,
        place: &Place,
        shown: &str,
    ) -> Result<()> {
        let doing = || format!("unpack {shown:?}");
        let kind = entry.header().entry_type();
        let is_directory = kind == EntryType::Directory;
        self.make_room(place, is_directory).doing(doing)?;
        let (dir, name, mode) = (&place.dir, place.name.as_c_str(), mode_of(entry)?);
        match kind {
            EntryType::Directory => {
                let opened = self.make_directory(dir, name, mode, shown).doing(doing)?;
                own(&opened, entry, extensions, mode).doing(doing)
            }
            EntryType::Regular | EntryType::Continuous => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut file = File::from(openat(dir, name, flags, Mode::RUSR | Mode::WUSR).doing(doing)?);
                io::copy(entry, &mut file).doing(doing)?;
                own(&file, entry, extensions, mode).doing(doing)?;
                set_time(place, entry).doing(doing)
            }
            EntryType::Symlink => {
                let target = link_of(entry, extensions, shown)?;
                symlinkat(target.as_slice(), dir, name).doing(doing)?;
                let (uid, gid) = owner(entry, extensions).doing(doing)?;
                chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).doing(doing)
            }
            EntryType::Link => self.hard_link(place, &link_of(entry, extensions, shown)?, shown),
            EntryType::Fifo => mkfifoat(dir, name, mode).doing(doing),
            // A container gets its devices from the runtime; those of an image could not be used.
            EntryType::Block | EntryType::Char => Ok(()),
            _ => Err(refused(shown, "it is of a kind that layers don't have")),
        }
    }

    /// Removes what an entry replaces. A directory stays where a directory comes.
    fn make_room(&self, place: &Place, for_directory: bool) -> io::Result<()> {
        let (dir, name) = (&place.dir, place.name.as_c_str());
        match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
                Ok(unlinkat(dir, name, AtFlags::empty())?)
            }
            Ok(_) if for_directory => Ok(()),
            Ok(_) => sys::tree::remove_at(dir, name),
        }
    }

    fn hard_link(&self, place: &Place, target: &[u8], shown: &str) -> Result<()> {
        let doing = || format!("link {shown:?}");
        let parts = components(target)?;
        let Some((last, parents)) = parts.split_last() else {
            return Err(refused(shown, "it links to the root"));
        };
        let joined = parents.join(&b'/');
        let from = self.open_inside(if joined.is_empty() { b"." } else { &joined }).doing(doing)?;
        // Without AT_SYMLINK_FOLLOW, so that a link in the tree is linked itself and not what it
        // names outside.
        linkat(&from, *last, &place.dir, place.name.as_c_str(), AtFlags::empty()).doing(doing)
    }
}

impl Extensions {
    /// Takes in an entry that only describes the next one; `false` for any other.
    fn take_in(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<bool> {
        let kind = entry.header().entry_type();
        let known =
            [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader, EntryType::XGlobalHeader];
        if !known.contains(&kind) {
            return Ok(false);
        }
        if entry.size() > MAX_EXTENSION_BYTES {
            return Err(ImageError::TooBig {
                limit: MAX_EXTENSION_BYTES,
                of: "bytes of extensions to an entry",
            });
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).doing(|| "read a layer".into())?;
        match kind {
            EntryType::GNULongName => self.path = Some(until_nul(bytes)),
            EntryType::GNULongLink => self.link = Some(until_nul(bytes)),
            EntryType::XHeader => self.take_in_pax(&bytes)?,
            // Remarks about the archive as a whole, such as the commit that it was made from.
            _ => {}
        }
        Ok(true)
    }

    fn take_in_pax(&mut self, bytes: &[u8]) -> Result<()> {
        let malformed =
            |message: &str| ImageError::Malformed { what: "a layer".into(), message: message.into() };
        for extension in PaxExtensions::new(bytes) {
            let extension = extension.doing(|| "read a layer".into())?;
            let value = extension.value_bytes();
            let number = || std::str::from_utf8(value).ok().and_then(|v| v.parse::<u32>().ok());
            match extension.key_bytes() {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"uid" => self.uid = Some(number().ok_or_else(|| malformed("an owner is no number"))?),
                b"gid" => self.gid = Some(number().ok_or_else(|| malformed("a group is no number"))?),
                b"size" => return Err(malformed("an entry of more than 8 GiB")),
                _ => {}
            }
        }
        Ok(())
    }
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len()));
    bytes
}

fn refused(entry: &str, why: &'static str) -> ImageError {
    ImageError::Refused { entry: entry.to_owned(), why }
}

/// The components of a relative path without `..`; `.` and doubled slashes don't count.
fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    let refuse = |why| Err(refused(&String::from_utf8_lossy(path), why));
    if path.len() > MAX_PATH_BYTES {
        return refuse("its path is too long");
    }
    if path.starts_with(b"/") {
        return refuse("its path is absolute");
    }
    let parts: Vec<&[u8]> = path.split(|&b| b == b'/').filter(|p| !p.is_empty() && *p != b".").collect();
    if parts.contains(&b"..".as_slice()) {
        return refuse("its path leads upwards");
    }
    if path.contains(&0) {
        return refuse("its path holds a NUL byte");
    }
    Ok(parts)
}

fn link_of(entry: &Entry<'_, impl Read>, extensions: &Extensions, shown: &str) -> Result<Vec<u8>> {
    let link = extensions.link.clone().or_else(|| entry.link_name_bytes().map(|l| l.into_owned()));
    link.filter(|l| !l.is_empty() && l.len() < MAX_PATH_BYTES && !l.contains(&0))
        .ok_or_else(|| refused(shown, "it links to nothing"))
}

const fn directory_flags() -> OFlags {
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC)
}

fn mode_of(entry: &Entry<'_, impl Read>) -> Result<Mode> {
    Ok(Mode::from_raw_mode(entry.header().mode().doing(|| "read a layer".into())? & 0o7777))
}

fn owner(entry: &Entry<'_, impl Read>, extensions: &Extensions) -> io::Result<(Uid, Gid)> {
    let number =
        |value: u64| u32::try_from(value).ok().filter(|&v| v != u32::MAX).ok_or(io::ErrorKind::InvalidData);
    let uid = extensions.uid.map_or_else(|| entry.header().uid().and_then(|u| Ok(number(u)?)), Ok)?;
    let gid = extensions.gid.map_or_else(|| entry.header().gid().and_then(|g| Ok(number(g)?)), Ok)?;
    Ok((Uid::from_raw(uid), Gid::from_raw(gid)))
}

/// Owner first: changing it clears the set-user-id bit.
fn own(file: impl AsFd, entry: &Entry<'_, impl Read>, extensions: &Extensions, mode: Mode) -> io::Result<()> {
    let (uid, gid) = owner(entry, extensions)?;
    fchown(&file, Some(uid), Some(gid))?;
    Ok(fchmod(&file, mode)?)
}

fn set_time(place: &Place, entry: &Entry<'_, impl Read>) -> io::Result<()> {
    let time = Timespec { tv_sec: i64::try_from(entry.header().mtime()?).unwrap_or(0), tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(&place.dir, place.name.as_c_str(), &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn names(dir: &OwnedFd) -> std::result::Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir_for_reading(dir)?)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// `O_PATH` descriptors can't be read from.
fn dir_for_reading(dir: &OwnedFd) -> std::result::Result<OwnedFd, Errno> {
    openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn inode_of(dir: impl AsFd) -> std::result::Result<u64, Errno> {
    Ok(rustix::fs::fstat(dir)?.st_ino)
}

/// Fails, rather than ends, where the bound is passed.
struct Bounded<R> {
    reader: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            io::Error::other(ImageError::TooBig { limit: MAX_UNPACKED_BYTES, of: "bytes unpacked" })
        })?;
        Ok(read)
    }
}
