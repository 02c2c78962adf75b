//! Removing a tree that a stranger may have shaped: of any depth, of any number of entries, with
//! links that lead anywhere.
//!
//! A level of depth costs some bytes of memory, and neither stack nor a descriptor: only the lowest
//! [`MAX_OPEN`] directories on the way down are open. The way back up is `..`. What it leads to is
//! compared with what was there on the way down, so that a directory which somebody moves meanwhile
//! ends the removal and does not lead it elsewhere.

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Directories that are open at a time: more levels than the trees have that people make, and far
/// fewer descriptors than a process has.
const MAX_OPEN: usize = 64;
/// How often a directory is read again because it was not empty when all that it listed had been
/// removed. Some file systems skip entries while others are removed; somebody who goes on writing
/// there is not waited for.
const MAX_PASSES: u32 = 16;

/// Removes what is at `path`: a file, a link (not what it leads to), or a directory with everything
/// in it. No error if nothing is there. It stops at the first entry that can't be removed. Mounts
/// are not crossed: something that is mounted there is an error.
///
/// # Errors
/// Of the call that failed: [`io::ErrorKind::CrossesDevices`] or [`io::ErrorKind::ResourceBusy`]
/// for a mount, [`io::ErrorKind::DirectoryNotEmpty`] where somebody goes on writing.
pub fn remove(path: &Path) -> io::Result<()> {
    remove_some(path, u64::MAX).map(drop)
}

/// Removes no more than so many entries of what is at `path`, and tells whether all of it is gone.
///
/// # Errors
/// As of [`remove`].
pub fn remove_some(path: &Path, entries: u64) -> io::Result<bool> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let name = CString::new(name.as_bytes())?;
    // The way to it is ours, and may have links in it.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(parent) => Ok(remove_entry(parent.as_fd(), &name, entries)?),
        Err(Errno::NOENT) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// As [`remove`], for a `name` in a directory that is open.
///
/// # Errors
/// As of [`remove`].
pub fn remove_at(dir: impl AsFd, name: &CStr) -> io::Result<()> {
    Ok(remove_entry(dir.as_fd(), name, u64::MAX).map(drop)?)
}

fn remove_entry(dir: BorrowedFd<'_>, name: &CStr, entries: u64) -> Result<bool, Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => match remove_directory(dir, name, entries) {
            Err(Errno::NOENT) => Ok(true),
            other => other,
        },
        Err(error) => Err(error),
    }
}

/// A directory on the way from the top to the one that is being emptied.
struct Level {
    /// Its identity: device and inode.
    identity: (u64, u64),
    /// Its name in the one above.
    name: CString,
    /// How often it was read again.
    passes: u32,
    /// It, open, and how far it has been read; `None` where the ones below took its descriptor.
    entries: Option<Dir>,
}

fn remove_directory(dir: BorrowedFd<'_>, name: &CStr, mut left: u64) -> Result<bool, Errno> {
    let mut levels = vec![enter(dir, name)?];
    while let Some(lowest) = levels.last_mut() {
        let entries = lowest.entries.as_mut().ok_or(Errno::BADF)?;
        let below = remove_until_directory(entries, &mut left)?;
        if left == 0 {
            return Ok(false);
        }
        if let Some(name) = below {
            match enter(entries.fd()?, &name) {
                Ok(level) => levels.push(level),
                // Somebody else removed it, or put something else there.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(error),
            }
            let closed = levels.len().checked_sub(MAX_OPEN + 1).and_then(|index| levels.get_mut(index));
            if let Some(above) = closed {
                above.entries = None;
            }
            continue;
        }
        ascend(dir, &mut levels)?;
        left -= 1;
    }
    Ok(true)
}

/// Removes the lowest level, which looks empty, from the one above.
fn ascend(dir: BorrowedFd<'_>, levels: &mut Vec<Level>) -> Result<(), Errno> {
    let Some(mut lowest) = levels.pop() else { return Ok(()) };
    let removed = match levels.last_mut() {
        None => unlinkat(dir, &lowest.name, AtFlags::REMOVEDIR),
        Some(above) => {
            if above.entries.is_none() {
                let below = lowest.entries.as_ref().ok_or(Errno::BADF)?;
                above.entries = Some(climb(below.fd()?, above.identity)?);
            }
            let above = above.entries.as_ref().ok_or(Errno::BADF)?;
            unlinkat(above.fd()?, &lowest.name, AtFlags::REMOVEDIR)
        }
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY) if lowest.passes < MAX_PASSES => {
            lowest.passes += 1;
            lowest.entries.as_mut().ok_or(Errno::BADF)?.rewind();
            levels.push(lowest);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Removes what is in a directory until there is a directory in it, whose name it tells; `None` at
/// the end, or when none may be removed any more.
fn remove_until_directory(entries: &mut Dir, left: &mut u64) -> Result<Option<CString>, Errno> {
    while *left > 0
        && let Some(entry) = entries.read()
    {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            return Ok(Some(name.to_owned()));
        }
        match unlinkat(entries.fd()?, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => *left -= 1,
            // The file system does not say what its entries are.
            Err(Errno::ISDIR) => return Ok(Some(name.to_owned())),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Opens a directory, without following a link or a mount.
fn enter(dir: BorrowedFd<'_>, name: &CStr) -> Result<Level, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let descriptor = openat2(dir, name, directory_flags(), Mode::empty(), resolve)?;
    let identity = identity(descriptor.as_fd())?;
    let entries = Some(Dir::new(descriptor)?);
    Ok(Level { identity, name: name.to_owned(), passes: 0, entries })
}

/// Opens the directory above, if it is still the one that it was.
fn climb(below: BorrowedFd<'_>, expected: (u64, u64)) -> Result<Dir, Errno> {
    let above: OwnedFd = openat(below, c"..", directory_flags(), Mode::empty())?;
    if identity(above.as_fd())? == expected { Dir::new(above) } else { Err(Errno::STALE) }
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn identity(of: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let stat = fstat(of)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mkdirat;
    use std::fs;
    use std::path::PathBuf;

    struct Ground(PathBuf);

    impl Ground {
        fn new(name: &str) -> Self {
            // In memory where there is one: deep trees take a disk minutes.
            let shm = PathBuf::from("/dev/shm");
            let folder = if shm.is_dir() { shm } else { std::env::temp_dir() };
            let path = folder.join(format!("tree-{name}-{}", std::process::id()));
            remove(&path).expect("what an earlier run left goes");
            fs::create_dir(&path).expect("a folder");
            Self(path)
        }
    }

    impl Drop for Ground {
        fn drop(&mut self) {
            remove(&self.0).expect("the ground goes");
        }
    }

    fn deepen(at: &Path, levels: usize) {
        let mut dir = open(at, directory_flags(), Mode::empty()).expect("open");
        for _ in 0..levels {
            mkdirat(&dir, "d", Mode::RWXU).expect("a level");
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
            openat(&dir, "f", flags, Mode::RWXU).expect("a file");
            dir = openat(&dir, "d", directory_flags(), Mode::empty()).expect("open");
        }
    }

    // The standard library recurses once for each level, and a process that was given 60,000 ended
    // by a stack overflow.
    #[test]
    fn a_deep_tree_takes_neither_stack_nor_descriptors() {
        let ground = Ground::new("deep");
        let top = ground.0.join("top");
        fs::create_dir(&top).expect("top");
        deepen(&top, 60_000);
        let removal = std::thread::Builder::new().stack_size(64 * 1024).spawn({
            let top = top.clone();
            move || remove(&top)
        });
        removal.expect("a thread").join().expect("it ends").expect("removed");
        assert!(!top.exists());
    }

    #[test]
    fn levels_whose_descriptor_was_taken_are_found_again_and_read_on() {
        let ground = Ground::new("comb");
        let top = ground.0.join("top");
        fs::create_dir(&top).expect("top");
        for tooth in 0..5 {
            let at = top.join(tooth.to_string());
            fs::create_dir(&at).expect("a tooth");
            deepen(&at, MAX_OPEN * 2 + 3);
            for deep in 0..3 {
                let side = at.join("d/d").join(format!("side{deep}"));
                fs::create_dir(&side).expect("a side");
                deepen(&side, MAX_OPEN + 1);
            }
        }
        remove(&top).expect("removed");
        assert!(!top.exists());
    }

    #[test]
    fn a_part_of_a_tree_is_removed_at_a_time() {
        let ground = Ground::new("parts");
        let top = ground.0.join("top");
        fs::create_dir(&top).expect("top");
        deepen(&top, 50);
        // 50 files and 51 directories.
        let parts = (1..100).find(|_| remove_some(&top, 10).expect("a part"));
        assert_eq!(parts, Some(11));
        assert!(remove_some(&top, 1).expect("nothing") && !top.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let ground = Ground::new("links");
        let (kept, top) = (ground.0.join("kept"), ground.0.join("top"));
        fs::create_dir_all(kept.join("below")).expect("kept");
        fs::write(kept.join("file"), "stays").expect("file");
        fs::create_dir_all(top.join("a")).expect("top");
        for (to, at) in [(&kept, "link"), (&kept.join("file"), "a/link"), (&top, "a/loop")] {
            std::os::unix::fs::symlink(to, top.join(at)).expect("link");
        }
        let link = ground.0.join("to-kept");
        std::os::unix::fs::symlink(&kept, &link).expect("link");
        remove(&link).expect("a link");
        remove(&top).expect("a tree with links");
        assert!(!top.exists() && !link.is_symlink());
        assert!(kept.join("below").is_dir() && kept.join("file").exists());
    }

    #[test]
    fn files_and_what_is_not_there() {
        let ground = Ground::new("files");
        let file = ground.0.join("file");
        fs::write(&file, "x").expect("file");
        remove(&file).expect("a file");
        remove(&file).expect("nothing");
        remove(&file.join("below/nothing")).expect("nothing below nothing");
        assert!(!file.exists());
        assert_eq!(remove(Path::new("/")).expect_err("no name").kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_mount_is_not_crossed() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounting needs root");
            return;
        }
        let ground = Ground::new("mount");
        let top = ground.0.clone();
        let there = std::thread::spawn(move || {
            crate::namespace::unshare(crate::namespace::UnshareFlags::NEWNS).expect("a namespace");
            let private =
                rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private).expect("private");
            let (source, at) = (top.join("source"), top.join("top/at"));
            fs::create_dir_all(source.join("kept")).expect("source");
            fs::create_dir_all(&at).expect("at");
            rustix::mount::mount_bind(&source, &at).expect("a bind mount");
            let refused = remove(&top.join("top")).expect_err("it went through a mount");
            assert_eq!(refused.kind(), io::ErrorKind::CrossesDevices, "{refused}");
            source.join("kept").exists()
        });
        assert!(there.join().expect("it ends"), "what was mounted was emptied");
    }
}
