//! A directory that is served.

use crate::descriptors::Descriptors;
use crate::kind::Kind;
use crate::names::{apart_name, names};
use crate::numbers::Numbers;
use crate::room::{Limits, Room};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, fchmod, fstat,
    ftruncate, futimens, linkat, mkdirat, open, renameat_with, statat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::service::{Attributes, MAX_NAME_BYTES};

/// The store's own folder in the directory, which nobody sees: files that have no name any more, or
/// several, and the file of numbers.
pub const APART: &CStr = c".tombolo";
/// The file of numbers in there.
const NUMBERS: &CStr = c"numbers";
/// Folders and files that are kept open: most, each; a domain may have 1,024 descriptors.
const OPEN_MAX: usize = 256;
/// Levels of folders: as many as the longest path has that open(2) takes.
const LEVELS_MAX: usize = 2_048;
/// How long an unlinked file is kept that was open at a consumer which went away: longer than a
/// frontend, a link and this server take to come back.
const GRACE: Duration = Duration::from_mins(1);
/// Bytes of one block of stat(2).
const BLOCK_BYTES: u64 = 512;
/// The most that the metadata of a growing file may take beside its bytes.
pub(crate) const SLACK_BYTES: u64 = 4_096;

/// Why a directory can't be served.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A call failed.
    #[error("the store {path} can't be used: {what}: {cause}")]
    Call {
        /// The directory.
        path: String,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// Another server has it.
    #[error("the store {0} is served already: give each tree a directory of its own")]
    Taken(String),
}

/// A node's attributes, as consumers are told of them.
#[derive(Debug, Clone)]
pub struct Told {
    /// Its number.
    pub serial: u32,
    /// Its kind.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Names that it has.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// When it changed last.
    pub changed: (u64, u32),
}

/// A directory, with what is known of it.
pub struct Store {
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) apart: OwnedFd,
    device: u64,
    /// Whether nobody has served the directory before.
    is_new: bool,
    pub(crate) numbers: Numbers,
    folders: Descriptors,
    files: Descriptors,
    pub(crate) room: Room,
}

pub(crate) fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

pub(crate) fn bytes_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES)
}

fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// A name as tenants may give one.
pub(crate) fn checked(folder: u32, name: &[u8]) -> Result<CString, Errno> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Errno::NAMETOOLONG);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(Errno::INVAL);
    }
    if is_own(folder, name) {
        return Err(Errno::PERM);
    }
    CString::new(name).map_err(|_| Errno::INVAL)
}

fn is_own(folder: u32, name: &[u8]) -> bool {
    folder == service::ROOT && name == APART.to_bytes()
}

impl Store {
    /// Opens a directory and reads what is in it. It is this server's alone as long as the store
    /// lives.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path, limits: Limits) -> Result<Self, OpenError> {
        let shown = || path.display().to_string();
        let failed = |what: &'static str| {
            move |errno: Errno| OpenError::Call {
                path: path.display().to_string(),
                what,
                cause: errno.into(),
            }
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(path, flags, Mode::empty()).map_err(failed("open"))?;
        let is_new = match mkdirat(&root, APART, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(failed("make its folder .tombolo")(errno)),
        };
        let apart = sys::beneath::open(&root, APART, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
            .map_err(failed("open its folder .tombolo"))?;
        let flags = OFlags::RDWR | OFlags::CREATE;
        let numbers = sys::beneath::open(&apart, NUMBERS, flags, Mode::RUSR | Mode::WUSR)
            .map_err(failed("open its file of numbers"))?;
        match rustix::fs::flock(&numbers, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => return Err(OpenError::Taken(shown())),
            other => other.map_err(failed("lock its file of numbers"))?,
        }
        let numbers = Numbers::open(File::from(numbers)).map_err(|cause| OpenError::Call {
            path: shown(),
            what: "read its file of numbers",
            cause,
        })?;
        let device = fstat(&root).map_err(failed("look at it"))?.st_dev;
        let mut store = Self {
            root: Arc::new(root),
            apart,
            device,
            is_new,
            numbers,
            folders: Descriptors::new(OPEN_MAX),
            files: Descriptors::new(OPEN_MAX),
            room: Room::new(limits),
        };
        store.scan().map_err(failed("read what is in it"))?;
        Ok(store)
    }

    /// Changes what it may take. What is there already stays.
    pub fn limit(&mut self, limits: Limits) {
        self.room.limits = limits;
    }

    /// Whether nobody has served the directory before: nobody can have had a lock.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Bytes, and files and folders, that there are.
    #[must_use]
    pub fn taken(&self) -> Limits {
        Limits { bytes: self.room.bytes, inodes: self.room.inodes }
    }

    /// Whether a node is of the kinds that are served, and not of something that is mounted there.
    pub(crate) fn is_served(&self, stat: &Stat) -> bool {
        let kind = FileType::from_raw_mode(stat.st_mode);
        stat.st_dev == self.device
            && matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink)
    }

    /// A folder, open as a place for names.
    pub(crate) fn folder(&mut self, serial: u32) -> Result<Arc<OwnedFd>, Errno> {
        let mut way = Vec::new();
        let mut at = serial;
        let mut from = loop {
            if at == service::ROOT {
                break Arc::clone(&self.root);
            }
            if let Some(open) = self.folders.get(at) {
                break open;
            }
            let entry = self.numbers.get(at)?;
            if entry.kind != Kind::Folder {
                return Err(Errno::NOTDIR);
            }
            if way.len() >= LEVELS_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            way.push(at);
            at = entry.parent;
        };
        for serial in way.into_iter().rev() {
            let entry = self.numbers.get(serial)?;
            let name = CString::new(&*entry.name).map_err(|_| Errno::STALE)?;
            let opened = sys::beneath::open(&*from, &name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
            let opened = opened.map_err(stale)?;
            if fstat(&opened)?.st_ino != entry.inode {
                return Err(Errno::STALE);
            }
            from = self.folders.put(serial, opened);
        }
        Ok(from)
    }

    /// Where a node has a name.
    pub(crate) fn place(&mut self, serial: u32) -> Result<(Arc<OwnedFd>, CString), Errno> {
        let entry = self.numbers.get(serial)?;
        if entry.is_apart {
            let apart =
                sys::beneath::open(&self.apart, c".", OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
            return Ok((Arc::new(apart), apart_name(serial)));
        }
        let name = CString::new(&*entry.name).map_err(|_| Errno::STALE)?;
        let parent = entry.parent;
        Ok((self.folder(parent)?, name))
    }

    /// A file, open for reading and writing, or for reading where nothing else is allowed.
    fn file(&mut self, serial: u32) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(open) = self.files.get(serial) {
            return Ok(open);
        }
        match self.kind(serial)? {
            Kind::File => {}
            Kind::Folder => return Err(Errno::ISDIR),
            Kind::Link => return Err(Errno::LOOP),
        }
        let (folder, name) = self.place(serial)?;
        let with = |flags| sys::beneath::open(&*folder, &name, flags, Mode::empty());
        let opened = match with(OFlags::RDWR) {
            Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => with(OFlags::RDONLY),
            other => other,
        };
        let opened = opened.map_err(stale)?;
        let stat = fstat(&opened)?;
        if stat.st_ino != self.numbers.get(serial)?.inode || !self.is_served(&stat) {
            return Err(Errno::STALE);
        }
        Ok(self.files.put(serial, opened))
    }

    /// A file or a folder, open for calls about its attributes.
    pub(crate) fn file_or_folder(&mut self, serial: u32) -> Result<Arc<OwnedFd>, Errno> {
        if self.kind(serial)? != Kind::Folder {
            return self.file(serial);
        }
        let path = self.folder(serial)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        sys::beneath::open(&*path, c".", flags, Mode::empty()).map(Arc::new)
    }

    pub(crate) fn kind(&self, serial: u32) -> Result<Kind, Errno> {
        if serial == service::ROOT { Ok(Kind::Folder) } else { self.numbers.get(serial).map(|it| it.kind) }
    }

    pub(crate) fn forget_descriptors(&mut self, serial: u32) {
        self.files.drop_of(serial);
        self.folders.drop_of(serial);
    }

    pub(crate) fn tell(&self, serial: u32, stat: &Stat) -> Result<Told, Errno> {
        let is_apart = serial != service::ROOT && self.numbers.get(serial)?.is_apart;
        Ok(Told {
            serial,
            kind: Kind::of(stat),
            mode: u16::try_from(stat.st_mode & 0o777).unwrap_or(0),
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX).saturating_sub(u32::from(is_apart)),
            size: size_of(stat),
            changed: (
                u64::try_from(stat.st_mtime).unwrap_or(0),
                u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            ),
        })
    }

    pub(crate) fn stat_of(&mut self, serial: u32) -> Result<Stat, Errno> {
        if serial == service::ROOT {
            return fstat(&*self.root);
        }
        if let Some(open) = self.files.get(serial) {
            return fstat(&*open);
        }
        let (folder, name) = self.place(serial)?;
        let stat = statat(&*folder, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).map_err(stale)?;
        if stat.st_ino == self.numbers.get(serial)?.inode { Ok(stat) } else { Err(Errno::STALE) }
    }

    /// The attributes of a node.
    ///
    /// # Errors
    /// `ESTALE` for a number that is no node's.
    pub fn stat(&mut self, serial: u32) -> Result<Told, Errno> {
        let stat = self.stat_of(serial)?;
        self.tell(serial, &stat)
    }

    /// The inode of a node: what tells it from another that had its number.
    ///
    /// # Errors
    /// As of [`Store::stat`].
    pub fn inode(&self, serial: u32) -> Result<u64, Errno> {
        self.numbers.get(serial).map(|entry| entry.inode)
    }

    /// The node of this name.
    ///
    /// # Errors
    /// `ENOENT`; `EPERM` for what is neither a file nor a folder nor a symbolic link.
    pub fn lookup(&mut self, folder: u32, name: &[u8]) -> Result<Told, Errno> {
        if is_own(folder, name) {
            return Err(Errno::NOENT);
        }
        let name = checked(folder, name)?;
        let open = self.folder(folder)?;
        let stat = statat(&*open, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)?;
        if !self.is_served(&stat) {
            return Err(Errno::PERM);
        }
        let serial = self.found((folder, &name), &stat)?;
        self.tell(serial, &stat)
    }

    /// Names, the places after them, and nodes, from the place `after` on, until `each` says false.
    ///
    /// # Errors
    /// The kernel's.
    pub fn list(
        &mut self,
        folder: u32,
        after: u64,
        mut each: impl FnMut(u64, &[u8], &Told) -> bool,
    ) -> Result<(), Errno> {
        let path = self.folder(folder)?;
        let open = sys::beneath::open(&*path, c".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut fault = Ok(());
        names(&open, after, |name, place| match self.listed_one((folder, &path), name) {
            Ok(Some(told)) => each(place, name.to_bytes(), &told),
            Ok(None) => true,
            Err(errno) => {
                fault = Err(errno);
                false
            }
        })?;
        fault
    }

    fn listed_one(&mut self, (folder, path): (u32, &OwnedFd), name: &CStr) -> Result<Option<Told>, Errno> {
        if is_own(folder, name.to_bytes()) {
            return Ok(None);
        }
        let stat = match statat(path, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if self.is_served(&stat) => stat,
            Ok(_) | Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let serial = self.found((folder, name), &stat)?;
        self.tell(serial, &stat).map(Some)
    }

    /// Makes a file.
    ///
    /// # Errors
    /// `EEXIST`; `EDQUOT` where there may be no more.
    pub fn create(&mut self, folder: u32, name: &[u8], mode: u32) -> Result<Told, Errno> {
        let name = checked(folder, name)?;
        let open = self.folder(folder)?;
        self.room_for_node(&open, &name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let made = sys::beneath::open(&*open, &name, flags, Mode::RUSR | Mode::WUSR)?;
        let numbered = fchmod(&made, Mode::from_raw_mode(mode & 0o777))
            .and_then(|()| fstat(&made))
            .and_then(|stat| self.found((folder, &name), &stat).map(|serial| (serial, stat)));
        match numbered {
            Ok((serial, stat)) => {
                self.files.put(serial, made);
                self.tell(serial, &stat)
            }
            Err(errno) => {
                unlinkat(&*open, name.as_c_str(), AtFlags::empty())?;
                Err(errno)
            }
        }
    }

    /// Makes a folder.
    ///
    /// # Errors
    /// As of [`Store::create`]; `ENAMETOOLONG` where no path leads any more.
    pub fn make_folder(&mut self, folder: u32, name: &[u8], mode: u32) -> Result<Told, Errno> {
        let name = checked(folder, name)?;
        let open = self.folder(folder)?;
        self.room_for_node(&open, &name)?;
        self.check_levels(folder)?;
        mkdirat(&*open, name.as_c_str(), Mode::RWXU)?;
        let numbered = sys::beneath::open(&*open, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .and_then(|made| fchmod(&made, Mode::from_raw_mode(mode & 0o777)).and_then(|()| fstat(&made)))
            .and_then(|stat| self.found((folder, &name), &stat).map(|serial| (serial, stat)));
        match numbered {
            Ok((serial, stat)) => self.tell(serial, &stat),
            Err(errno) => {
                unlinkat(&*open, name.as_c_str(), AtFlags::REMOVEDIR)?;
                Err(errno)
            }
        }
    }

    /// Refuses a node more than there may be; a name that is taken is told first.
    pub(crate) fn room_for_node(&self, folder: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        self.room.for_node().map_err(|errno| match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Errno::EXIST,
            Err(_) => errno,
        })
    }

    fn check_levels(&self, folder: u32) -> Result<(), Errno> {
        let mut at = folder;
        for _ in 1..LEVELS_MAX {
            if at == service::ROOT {
                return Ok(());
            }
            at = self.numbers.get(at)?.parent;
        }
        Err(Errno::NAMETOOLONG)
    }

    /// Gives a file a name in the store's own folder: by it, it is found whatever becomes of its
    /// others.
    fn set_apart(&mut self, serial: u32) -> Result<(), Errno> {
        if self.numbers.get(serial)?.is_apart {
            return Ok(());
        }
        let (folder, name) = self.place(serial)?;
        match linkat(&*folder, name.as_c_str(), &self.apart, apart_name(serial).as_c_str(), AtFlags::empty())
        {
            // What is there under this number is not this file: it is left of what was never
            // cleaned away.
            Err(Errno::EXIST) => {
                unlinkat(&self.apart, apart_name(serial).as_c_str(), AtFlags::empty())?;
                linkat(
                    &*folder,
                    name.as_c_str(),
                    &self.apart,
                    apart_name(serial).as_c_str(),
                    AtFlags::empty(),
                )?;
            }
            other => other?,
        }
        self.numbers.get_mut(serial)?.is_apart = true;
        Ok(())
    }

    /// A file that is about to lose a name goes on as long as somebody has it open.
    fn before_loss(&mut self, serial: u32) -> Result<(), Errno> {
        let entry = self.numbers.get(serial)?;
        if entry.opens > 0 || entry.left.is_some() { self.set_apart(serial) } else { Ok(()) }
    }

    /// A node has lost a name; before, it had as many as `stat` says.
    fn after_loss(&mut self, serial: u32, stat: &Stat) -> Result<(), Errno> {
        let entry = self.numbers.get(serial)?;
        if entry.is_apart {
            return self.drop_if_over(serial);
        }
        if is_folder(stat) || stat.st_nlink <= 1 { self.forget(serial) } else { Ok(()) }
    }

    /// Removes a file that has neither names nor anybody who has it open.
    fn drop_if_over(&mut self, serial: u32) -> Result<(), Errno> {
        let entry = self.numbers.get(serial)?;
        if !entry.is_apart || entry.opens > 0 || entry.left.is_some() {
            return Ok(());
        }
        let name = apart_name(serial);
        if statat(&self.apart, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)?.st_nlink > 1 {
            return Ok(());
        }
        unlinkat(&self.apart, name.as_c_str(), AtFlags::empty())?;
        self.forget(serial)
    }

    fn forget(&mut self, serial: u32) -> Result<(), Errno> {
        let bytes = self.numbers.get(serial)?.bytes;
        self.forget_descriptors(serial);
        self.numbers.remove(serial)?;
        self.room.changed(bytes, 0);
        self.room.inodes = self.room.inodes.saturating_sub(1);
        Ok(())
    }

    /// Takes a file's name away.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`.
    pub fn unlink(&mut self, folder: u32, name: &[u8]) -> Result<(), Errno> {
        let (open, name, serial, stat) = self.named(folder, name)?;
        if is_folder(&stat) {
            return Err(Errno::ISDIR);
        }
        self.before_loss(serial)?;
        unlinkat(&*open, name.as_c_str(), AtFlags::empty())?;
        self.after_loss(serial, &stat)
    }

    /// Takes an empty folder away.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`.
    pub fn remove_folder(&mut self, folder: u32, name: &[u8]) -> Result<(), Errno> {
        let (open, name, serial, stat) = self.named(folder, name)?;
        unlinkat(&*open, name.as_c_str(), AtFlags::REMOVEDIR)?;
        self.after_loss(serial, &stat)
    }

    /// Looks up the node that has this name now.
    fn named(&mut self, folder: u32, name: &[u8]) -> Result<(Arc<OwnedFd>, CString, u32, Stat), Errno> {
        let name = checked(folder, name)?;
        let open = self.folder(folder)?;
        let stat = statat(&*open, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)?;
        if !self.is_served(&stat) {
            return Err(Errno::PERM);
        }
        let serial = self.found((folder, &name), &stat)?;
        Ok((open, name, serial, stat))
    }

    /// Gives what has the name `from` the name `to`. `flags` are those of renameat2(2), but for
    /// whiteouts.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rename(&mut self, from: (u32, &[u8]), to: (u32, &[u8]), flags: u32) -> Result<(), Errno> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL);
        }
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        let (from_open, from_name, moved, moved_stat) = self.named(from.0, from.1)?;
        let target = match self.named(to.0, to.1) {
            Ok((_, _, serial, stat)) => Some((serial, stat)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        if exchanges && target.is_none() {
            return Err(Errno::NOENT);
        }
        let to_name = checked(to.0, to.1)?;
        let to_open = self.folder(to.0)?;
        let same = target.as_ref().is_some_and(|(serial, _)| *serial == moved);
        let replaced = target.as_ref().filter(|_| !exchanges && !same);
        if let Some((serial, stat)) = replaced
            && !is_folder(stat)
            && !flags.contains(RenameFlags::NOREPLACE)
            && !is_folder(&moved_stat)
        {
            self.before_loss(*serial)?;
        }
        renameat_with(&*from_open, from_name.as_c_str(), &*to_open, to_name.as_c_str(), flags)?;
        if same {
            return Ok(());
        }
        self.moved(moved, to)?;
        match target {
            Some((other, _)) if exchanges => self.moved(other, from),
            Some((lost, stat)) => self.after_loss(lost, &stat),
            None => Ok(()),
        }
    }

    fn moved(&mut self, serial: u32, (folder, name): (u32, &[u8])) -> Result<(), Errno> {
        let entry = self.numbers.get_mut(serial)?;
        (entry.parent, entry.name) = (folder, name.into());
        Ok(())
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// `EEXIST`; `EPERM` for a folder.
    pub fn link(&mut self, serial: u32, folder: u32, name: &[u8]) -> Result<Told, Errno> {
        let name = checked(folder, name)?;
        if self.kind(serial)? == Kind::Folder {
            return Err(Errno::PERM);
        }
        let open = self.folder(folder)?;
        if statat(&*open, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(Errno::EXIST);
        }
        self.set_apart(serial)?;
        linkat(&self.apart, apart_name(serial).as_c_str(), &*open, name.as_c_str(), AtFlags::empty())?;
        self.stat(serial)
    }

    /// A file is opened.
    ///
    /// # Errors
    /// `EISDIR`, `ESTALE`.
    pub fn opened(&mut self, serial: u32) -> Result<(), Errno> {
        self.file(serial)?;
        let entry = self.numbers.get_mut(serial)?;
        entry.opens = entry.opens.saturating_add(1);
        entry.left = None;
        Ok(())
    }

    /// A file is closed; `comes_back`: whoever had it open went away without a word, and may come
    /// back for it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn closed(&mut self, serial: u32, comes_back: bool) -> Result<(), Errno> {
        let entry = self.numbers.get_mut(serial)?;
        entry.opens = entry.opens.saturating_sub(1);
        if entry.opens == 0 && comes_back {
            entry.left = Some(Instant::now());
            return Ok(());
        }
        self.drop_if_over(serial)
    }

    /// Removes unlinked files for which nobody came back.
    pub fn sweep(&mut self, now: Instant) {
        let over = |left: Instant| now.saturating_duration_since(left) >= GRACE;
        let over: Vec<u32> = self.numbers.left().filter(|(_, left)| over(*left)).map(|(it, _)| it).collect();
        for serial in over {
            let dropped = self.numbers.get_mut(serial).map(|entry| entry.left = None);
            if let Err(errno) = dropped.and_then(|()| self.drop_if_over(serial)) {
                tracing::warn!(serial, %errno, "a file that nobody has can't be removed");
            }
        }
    }

    /// Bytes of a file; fewer than `size` are the end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read(&mut self, serial: u32, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        let file = self.file(serial)?;
        let mut bytes = vec![0; size];
        let mut done = 0;
        while done < size {
            match pread(&*file, &mut bytes[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Writes bytes; without an offset, behind the end as it is then. Says how many were written.
    ///
    /// # Errors
    /// `EDQUOT` where they would be too many; the kernel's.
    pub fn write(&mut self, serial: u32, offset: Option<u64>, data: &[u8]) -> Result<usize, Errno> {
        let file = self.file(serial)?;
        let before = fstat(&*file)?;
        let offset = offset.unwrap_or_else(|| size_of(&before));
        self.room_for_write(&before, offset, data.len() as u64)?;
        let mut done = 0;
        let mut fault = Ok(());
        while done < data.len() {
            match pwrite(&*file, &data[done..], offset.saturating_add(done as u64)) {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    fault = Err(errno);
                    break;
                }
            }
        }
        self.measure(serial, &file)?;
        if done > 0 { Ok(done) } else { fault.map(|()| 0) }
    }

    fn room_for_write(&self, stat: &Stat, offset: u64, bytes: u64) -> Result<(), Errno> {
        let end = offset.checked_add(bytes).ok_or(Errno::FBIG)?;
        let size = size_of(stat);
        // What is there already, without holes, takes no more.
        if end <= size && bytes_of(stat) >= size {
            return Ok(());
        }
        self.room.for_bytes(bytes.saturating_add(SLACK_BYTES))
    }

    /// Counts what a file takes now.
    pub(crate) fn measure(&mut self, serial: u32, file: &OwnedFd) -> Result<(), Errno> {
        let after = bytes_of(&fstat(file)?);
        let entry = self.numbers.get_mut(serial)?;
        let before = std::mem::replace(&mut entry.bytes, after);
        self.room.changed(before, after);
        Ok(())
    }

    /// A file, for a sync(2) of it in another thread.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn to_sync(&mut self, serial: u32) -> Result<Arc<OwnedFd>, Errno> {
        self.file(serial)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set(&mut self, serial: u32, wanted: &Attributes) -> Result<Told, Errno> {
        let is_folder = match self.kind(serial)? {
            Kind::Link => return self.set_link(serial, wanted),
            kind => kind == Kind::Folder,
        };
        let open = self.file_or_folder(serial)?;
        if let Some(size) = wanted.size {
            if is_folder {
                return Err(Errno::ISDIR);
            }
            ftruncate(&*open, size)?;
            self.measure(serial, &open)?;
        }
        if let Some(mode) = wanted.mode {
            fchmod(&*open, Mode::from_raw_mode(mode & 0o777))?;
        }
        if let Some(changed) = wanted.changed {
            futimens(&*open, &timestamps(changed)?)?;
        }
        self.stat(serial)
    }
}

/// Times of which only the last change is set.
pub(crate) fn timestamps((seconds, nanoseconds): (u64, u32)) -> Result<Timestamps, Errno> {
    let omitted = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let tv_sec = i64::try_from(seconds).map_err(|_| Errno::INVAL)?;
    let changed = Timespec { tv_sec, tv_nsec: nanoseconds.into() };
    Ok(Timestamps { last_access: omitted, last_modification: changed })
}

/// A name that is not where it was: the number means nothing any more.
pub(crate) fn stale(errno: Errno) -> Errno {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Errno::STALE,
        other => other,
    }
}
