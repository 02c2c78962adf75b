//! The effect of each message: the questions that the kernel would ask for the same system call,
//! and its checks before them.

use std::rc::Rc;

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use wire::ninep::{self, Qid, Reply, Request, Stat, Statfs, set};
use zerocopy::{FromBytes, IntoBytes};

use super::DEPTH_MAX;
use super::connection::{Connection, Fid, Opened, Place};
use super::permission::{READ, SEARCH, WRITE, is_folder};
use super::questions::Job;
use crate::tree::ROOT;

/// Flags of open(2) that a service hears of: the access mode, and those below.
const FLAGS_KEPT: u32 = ACCESS | TRUNCATE | APPEND | NONBLOCK;
pub(super) const ACCESS: u32 = 3;
pub(super) const READ_ONLY: u32 = 0;
pub(super) const WRITE_ONLY: u32 = 1;
const EXCLUSIVE: u32 = 0o200;
const TRUNCATE: u32 = 0o1000;
const APPEND: u32 = 0o2000;
const NONBLOCK: u32 = 0o4000;
const DIRECTORY: u32 = 0o200_000;
/// The type bits of a mode, and those of a plain file.
const TYPE: u32 = 0o170_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
/// The type of file system that statfs(2) reports for the mount.
const FUSE_SUPER_MAGIC: u32 = 0x6573_5546;
/// Longest name, as in linux/limits.h.
const NAME_MAX: usize = 255;

type Result<T> = std::result::Result<T, Errno>;

/// Serves one message.
pub(super) async fn serve(connection: &Connection, job: &Job, request: Request<'_>) -> Result<Reply> {
    let calls = Calls { connection, job };
    match request {
        Request::Attach { fid, aname } => calls.attach(fid, aname).await,
        Request::Walk { fid, new, names } => calls.walk(fid, new, &names).await,
        Request::Clunk { fid } => calls.clunk(fid).await,
        Request::Getattr { fid } => calls.getattr(&connection.fid(fid)?).await,
        Request::Setattr { .. } => calls.setattr(&request).await,
        Request::Open { fid, flags } => calls.open(fid, flags).await,
        Request::Create { fid, name, flags, mode } => calls.create(fid, name, flags, mode).await,
        Request::Read { fid, offset, .. } => calls.read(fid, offset).await,
        Request::Write { fid, offset, data } => calls.write(fid, offset, data).await,
        Request::Readdir { fid, offset, .. } => calls.readdir(fid, offset).await,
        Request::Fsync { fid } => calls.fsync(fid).await,
        Request::Statfs { fid } => calls.statfs(fid).await,
        Request::Mkdir { folder, name, mode } => calls.mkdir(folder, name, mode).await,
        Request::Mknod { fid, name, mode } => calls.mknod(fid, name, mode).await,
        Request::Symlink { fid, name, target } => calls.symlink(fid, name, target).await,
        Request::Link { folder, fid, name } => calls.link(folder, fid, name).await,
        Request::Renameat { from, name, to, new_name } => calls.rename(from, name, to, new_name).await,
        Request::Unlinkat { folder, name, flags } => calls.unlink(folder, name, flags).await,
        Request::Readlink { fid } => calls.readlink(fid).await,
        // The kernel's clients use Tunlinkat and Trenameat; a fid's own name may be another node's
        // by now.
        Request::Remove { fid } => connection.clunk(fid).and(Err(Errno::OPNOTSUPP)),
        Request::XattrWalk { fid, new, name } => calls.walk_to_xattr(fid, new, name).await,
        Request::XattrCreate { fid, name, size, flags } => calls.create_xattr(fid, name, (size, flags)).await,
        Request::Lock { fid, flags, lock } => calls.lock(fid, flags, &lock).await,
        Request::Getlock { fid, lock } => calls.getlock(fid, &lock).await,
        Request::Rename { fid, .. } => connection.fid(fid).and(Err(Errno::OPNOTSUPP)),
        // Who connects has shown who it is: no errno means that nothing has to be shown.
        Request::Auth => Ok(Reply::Error(0)),
        Request::Version { .. } | Request::Flush { .. } => Err(Errno::INVAL),
    }
}

pub(super) struct Calls<'a> {
    pub(super) connection: &'a Connection,
    pub(super) job: &'a Job,
}

/// The fixed part of an answer.
fn take<T: FromBytes>(answer: &[u8]) -> Result<T> {
    T::read_from_prefix(answer).map(|(taken, _)| taken).map_err(|_| Errno::IO)
}

fn qid(attr: &fuse::fuse_attr, node: u64) -> Qid {
    Qid { folder: is_folder(attr), link: attr.mode & TYPE == LINK, path: node }
}

/// A name that can be in a folder.
fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::NOENT),
        _ if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// A name that something in a folder may get or lose.
fn check_entry(name: &[u8]) -> Result<()> {
    if matches!(name, b"." | b"..") { Err(Errno::INVAL) } else { check_name(name) }
}

fn step(from: &Rc<Place>, qid: Qid) -> Result<Rc<Place>> {
    if from.depth >= DEPTH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    Ok(Rc::new(Place { qid, parent: Some(Rc::clone(from)), depth: from.depth + 1 }))
}

impl Calls<'_> {
    pub(super) async fn ask(&self, opcode: u32, node: u64, parts: &[&[u8]]) -> Result<Vec<u8>> {
        self.connection.questions.ask(self.job, (opcode, node), self.connection.peer, parts).await
    }

    pub(super) async fn attributes(&self, node: u64) -> Result<fuse::fuse_attr> {
        let wanted = fuse::fuse_getattr_in::default();
        let answer = self.ask(fuse::FUSE_GETATTR, node, &[wanted.as_bytes()]).await?;
        Ok(take::<fuse::fuse_attr_out>(&answer)?.attr)
    }

    async fn look_up(&self, folder: u64, name: &[u8]) -> Result<(Qid, fuse::fuse_attr)> {
        check_name(name)?;
        let answer = self.ask(fuse::FUSE_LOOKUP, folder, &[name, b"\0"]).await?;
        let entry = take::<fuse::fuse_entry_out>(&answer)?;
        Ok((qid(&entry.attr, entry.nodeid), entry.attr))
    }

    /// Looks up a name in a folder; `None` if there is no such entry.
    async fn find(&self, folder: u64, name: &[u8]) -> Result<Option<(Qid, fuse::fuse_attr)>> {
        match self.look_up(folder, name).await {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    async fn attach(&self, fid: u32, aname: &[u8]) -> Result<Reply> {
        if !matches!(aname, b"" | b"/" | b"/srv") {
            return Err(Errno::NOENT);
        }
        self.connection.check_new(fid)?;
        let qid = qid(&self.attributes(ROOT).await?, ROOT);
        self.connection.put(fid, Rc::new(Place { qid, parent: None, depth: 0 }), None)?;
        Ok(Reply::Attach(qid))
    }

    async fn walk(&self, fid: u32, new: u32, names: &[&[u8]]) -> Result<Reply> {
        let from = self.connection.fid(fid)?;
        let instead = (fid == new).then_some(from.serial);
        match instead {
            None => self.connection.check_new(new)?,
            Some(_) if from.opened.is_some() => return Err(Errno::INVAL),
            Some(_) => {}
        }
        let mut place = Rc::clone(&from.place);
        let mut attr = if names.is_empty() { None } else { Some(self.attributes(place.qid.path).await?) };
        let mut qids = Vec::new();
        for name in names {
            match self.walk_one(&place, attr.take(), name).await {
                Ok((next, its)) => {
                    qids.push(next.qid);
                    (place, attr) = (next, its);
                }
                Err(errno) if qids.is_empty() => return Err(errno),
                // How far it came says what is missing; no fid comes of it.
                Err(_) => return Ok(Reply::Walk(qids)),
            }
        }
        self.connection.put(new, place, instead)?;
        Ok(Reply::Walk(qids))
    }

    async fn walk_one(
        &self,
        place: &Rc<Place>,
        attr: Option<fuse::fuse_attr>,
        name: &[u8],
    ) -> Result<(Rc<Place>, Option<fuse::fuse_attr>)> {
        let attr = match attr {
            Some(attr) => attr,
            None => self.attributes(place.qid.path).await?,
        };
        if !is_folder(&attr) {
            return Err(Errno::NOTDIR);
        }
        self.connection.peer.may(&attr, SEARCH)?;
        match name {
            b"." => Ok((Rc::clone(place), Some(attr))),
            b".." => Ok((Rc::clone(place.parent.as_ref().unwrap_or(place)), None)),
            _ => {
                let (qid, attr) = self.look_up(place.qid.path, name).await?;
                Ok((step(place, qid)?, Some(attr)))
            }
        }
    }

    async fn getattr(&self, fid: &Fid) -> Result<Reply> {
        let node = fid.place.qid.path;
        let attr = self.attributes(node).await?;
        Ok(Reply::Getattr(Stat {
            qid: qid(&attr, node),
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            links: attr.nlink.into(),
            size: attr.size,
            block_bytes: attr.blksize.into(),
            blocks: attr.blocks,
            accessed: (attr.atime, attr.atimensec.into()),
            changed: (attr.mtime, attr.mtimensec.into()),
            status_changed: (attr.ctime, attr.ctimensec.into()),
        }))
    }

    async fn setattr(&self, request: &Request<'_>) -> Result<Reply> {
        let &Request::Setattr { fid, valid, mode, uid, gid, size, accessed, changed } = request else {
            return Err(Errno::INVAL);
        };
        let node = self.connection.fid(fid)?.place.qid.path;
        let attr = self.attributes(node).await?;
        let has = |bit| valid & bit != 0;
        self.may_set(&attr, valid)?;
        let bits = [
            (set::MODE, fuse::FATTR_MODE),
            (set::UID, fuse::FATTR_UID),
            (set::GID, fuse::FATTR_GID),
            (set::SIZE, fuse::FATTR_SIZE),
            (set::ACCESSED, fuse::FATTR_ATIME),
            (set::CHANGED, fuse::FATTR_MTIME),
        ];
        let mut wanted = bits.iter().filter(|(bit, _)| has(*bit)).fold(0, |sum, (_, bit)| sum | bit);
        if has(set::ACCESSED) && !has(set::ACCESSED_SAID) {
            wanted |= fuse::FATTR_ATIME_NOW;
        }
        if has(set::CHANGED) && !has(set::CHANGED_SAID) {
            wanted |= fuse::FATTR_MTIME_NOW;
        }
        let set = fuse::fuse_setattr_in {
            valid: wanted,
            mode,
            uid,
            gid,
            size,
            atime: accessed.0,
            atimensec: accessed.1 as u32,
            mtime: changed.0,
            mtimensec: changed.1 as u32,
            ..Default::default()
        };
        self.ask(fuse::FUSE_SETATTR, node, &[set.as_bytes()]).await?;
        Ok(Reply::Setattr)
    }

    /// The rules of chmod(2), truncate(2) and utimensat(2).
    fn may_set(&self, attr: &fuse::fuse_attr, valid: u32) -> Result<()> {
        let peer = self.connection.peer;
        if valid & set::SIZE != 0 {
            if is_folder(attr) {
                return Err(Errno::ISDIR);
            }
            peer.may(attr, WRITE)?;
        }
        let owns = peer.owns(attr);
        if !owns && valid & (set::MODE | set::ACCESSED_SAID | set::CHANGED_SAID) != 0 {
            return Err(Errno::PERM);
        }
        // A size that is set changes the time as well.
        let touches = valid & (set::ACCESSED | set::CHANGED) != 0;
        if touches && !owns { peer.may(attr, WRITE) } else { Ok(()) }
    }

    async fn open(&self, number: u32, flags: u32) -> Result<Reply> {
        let fid = self.connection.fid(number)?;
        if fid.opened.is_some() {
            return Err(Errno::INVAL);
        }
        let node = fid.place.qid.path;
        let attr = self.attributes(node).await?;
        let opened = self.open_node(node, &attr, flags).await?;
        self.connection.open(number, fid.serial, fid.place, opened)?;
        Ok(Reply::Open(qid(&attr, node)))
    }

    /// Opens a node that is there, if its mode allows it.
    async fn open_node(&self, node: u64, attr: &fuse::fuse_attr, flags: u32) -> Result<Opened> {
        let writes = flags & ACCESS != READ_ONLY || flags & TRUNCATE != 0;
        let reads = flags & ACCESS != WRITE_ONLY;
        if is_folder(attr) && writes {
            return Err(Errno::ISDIR);
        }
        let wanted = if reads { READ } else { 0 } | if writes { WRITE } else { 0 };
        self.connection.peer.may(attr, wanted)?;
        if is_folder(attr) {
            let open = fuse::fuse_open_in::default();
            self.ask(fuse::FUSE_OPENDIR, node, &[open.as_bytes()]).await?;
            return Ok(Opened::Folder);
        }
        if flags & DIRECTORY != 0 {
            return Err(Errno::NOTDIR);
        }
        self.open_file(node, flags).await
    }

    async fn open_file(&self, node: u64, flags: u32) -> Result<Opened> {
        let flags = flags & FLAGS_KEPT;
        let open = fuse::fuse_open_in { flags, unused: 0 };
        let answer = self.ask(fuse::FUSE_OPEN, node, &[open.as_bytes()]).await?;
        Ok(Opened::File(take::<fuse::fuse_open_out>(&answer)?.fh, flags))
    }

    /// `open` with `O_CREAT`: what is there already is opened, unless it must not be there.
    async fn create(&self, number: u32, name: &[u8], flags: u32, mode: u32) -> Result<Reply> {
        let fid = self.connection.fid(number)?;
        if fid.opened.is_some() {
            return Err(Errno::INVAL);
        }
        let folder = self.folder(&fid).await?;
        check_entry(name)?;
        let (qid, opened) = match self.find(folder.0, name).await? {
            Some(_) if flags & EXCLUSIVE != 0 => return Err(Errno::EXIST),
            Some((qid, _)) if qid.folder => return Err(Errno::ISDIR),
            Some((qid, attr)) => (qid, self.open_node(qid.path, &attr, flags).await?),
            None => {
                self.connection.peer.may(&folder.1, WRITE | SEARCH)?;
                let qid = self.make_file(folder.0, name, mode).await?;
                // Whoever makes a file that nobody may write to writes to it.
                (qid, self.open_file(qid.path, flags & !TRUNCATE).await?)
            }
        };
        self.connection.open(number, fid.serial, step(&fid.place, qid)?, opened)?;
        Ok(Reply::Create(qid))
    }

    async fn make_file(&self, folder: u64, name: &[u8], mode: u32) -> Result<Qid> {
        let make = fuse::fuse_mknod_in { mode: FILE | mode & 0o777, ..Default::default() };
        let answer = self.ask(fuse::FUSE_MKNOD, folder, &[make.as_bytes(), name, b"\0"]).await?;
        let entry = take::<fuse::fuse_entry_out>(&answer)?;
        Ok(qid(&entry.attr, entry.nodeid))
    }

    async fn read(&self, fid: u32, offset: u64) -> Result<Reply> {
        let fid = self.connection.fid(fid)?;
        let (fh, flags) = match fid.opened {
            Some(Opened::File(fh, flags)) if flags & ACCESS != WRITE_ONLY => (fh, flags),
            Some(Opened::Folder) => return Err(Errno::ISDIR),
            Some(Opened::Xattr(name)) => return self.read_xattr(fid.place.qid.path, &name, offset).await,
            _ => return Err(Errno::BADF),
        };
        let size = self.job.promised as u32;
        // As of a program's read(2): see the core about those without.
        let read_flags = fuse::FUSE_READ_LOCKOWNER;
        let read = fuse::fuse_read_in { fh, offset, size, read_flags, flags, ..Default::default() };
        let data = self.ask(fuse::FUSE_READ, fid.place.qid.path, &[read.as_bytes()]).await?;
        Ok(Reply::Read(data))
    }

    async fn write(&self, fid: u32, offset: u64, data: &[u8]) -> Result<Reply> {
        let fid = self.connection.fid(fid)?;
        let (fh, flags) = match fid.opened {
            Some(Opened::File(fh, flags)) if flags & ACCESS != READ_ONLY => (fh, flags),
            Some(Opened::NewXattr(xattr)) => return xattr.write(offset, data),
            _ => return Err(Errno::BADF),
        };
        let size = data.len() as u32;
        let write = fuse::fuse_write_in { fh, offset, size, flags, ..Default::default() };
        let answer = self.ask(fuse::FUSE_WRITE, fid.place.qid.path, &[write.as_bytes(), data]).await?;
        Ok(Reply::Write(take::<fuse::fuse_write_out>(&answer)?.size))
    }

    async fn readdir(&self, fid: u32, offset: u64) -> Result<Reply> {
        let fid = self.connection.fid(fid)?;
        match fid.opened {
            Some(Opened::Folder) => {}
            Some(_) => return Err(Errno::NOTDIR),
            None => return Err(Errno::BADF),
        }
        let most = self.job.promised;
        let read = fuse::fuse_read_in { offset, size: most as u32, ..Default::default() };
        let answer = self.ask(fuse::FUSE_READDIR, fid.place.qid.path, &[read.as_bytes()]).await?;
        let (mut listing, mut rest) = (Vec::new(), answer.as_slice());
        while let Ok((entry, after)) = fuse::fuse_dirent::read_from_prefix(rest) {
            let length = entry.namelen as usize;
            let name = after.get(..length).ok_or(Errno::IO)?;
            let qid = Qid { folder: entry.typ == 4, link: entry.typ == 10, path: entry.ino };
            // An entry is shorter here than in the core's answer, so all of them fit.
            if !ninep::put_entry(&mut listing, most, qid, entry.off, name) {
                break;
            }
            rest = after.get(length.next_multiple_of(8)..).unwrap_or_default();
        }
        Ok(Reply::Readdir(listing))
    }

    async fn fsync(&self, fid: u32) -> Result<Reply> {
        let fid = self.connection.fid(fid)?;
        match fid.opened {
            None | Some(Opened::Xattr(_) | Opened::NewXattr(_)) => return Err(Errno::BADF),
            Some(Opened::Folder) => {}
            Some(Opened::File(fh, _)) => {
                let sync = fuse::fuse_fsync_in { fh, ..Default::default() };
                self.ask(fuse::FUSE_FSYNC, fid.place.qid.path, &[sync.as_bytes()]).await?;
            }
        }
        Ok(Reply::Fsync)
    }

    async fn statfs(&self, fid: u32) -> Result<Reply> {
        let node = self.connection.fid(fid)?.place.qid.path;
        let answer = self.ask(fuse::FUSE_STATFS, node, &[]).await?;
        let st = take::<fuse::fuse_statfs_out>(&answer)?.st;
        Ok(Reply::Statfs(Statfs {
            kind: FUSE_SUPER_MAGIC,
            block_bytes: st.bsize,
            blocks: st.blocks,
            free: st.bfree,
            available: st.bavail,
            files: st.files,
            files_free: st.ffree,
            id: 0,
            name_bytes: st.namelen,
        }))
    }

    /// A fid's folder, in which the client may look for names.
    async fn folder(&self, fid: &Fid) -> Result<(u64, fuse::fuse_attr)> {
        let node = fid.place.qid.path;
        let attr = self.attributes(node).await?;
        if !is_folder(&attr) {
            return Err(Errno::NOTDIR);
        }
        self.connection.peer.may(&attr, SEARCH)?;
        Ok((node, attr))
    }

    /// A folder in which nothing has this name, and in which the client may make something.
    async fn free(&self, fid: u32, name: &[u8]) -> Result<u64> {
        let (folder, attr) = self.folder(&self.connection.fid(fid)?).await?;
        if matches!(name, b"." | b"..") {
            return Err(Errno::EXIST);
        }
        if self.find(folder, name).await?.is_some() {
            return Err(Errno::EXIST);
        }
        self.connection.peer.may(&attr, WRITE | SEARCH)?;
        Ok(folder)
    }

    async fn mkdir(&self, folder: u32, name: &[u8], mode: u32) -> Result<Reply> {
        let folder = self.free(folder, name).await?;
        let make = fuse::fuse_mkdir_in { mode: mode & 0o777, umask: 0 };
        let answer = self.ask(fuse::FUSE_MKDIR, folder, &[make.as_bytes(), name, b"\0"]).await?;
        let entry = take::<fuse::fuse_entry_out>(&answer)?;
        Ok(Reply::Mkdir(qid(&entry.attr, entry.nodeid)))
    }

    async fn mknod(&self, folder: u32, name: &[u8], mode: u32) -> Result<Reply> {
        let folder = self.free(folder, name).await?;
        if mode & TYPE != FILE && mode & TYPE != 0 {
            return Err(Errno::PERM);
        }
        Ok(Reply::Mknod(self.make_file(folder, name, mode).await?))
    }

    async fn symlink(&self, folder: u32, name: &[u8], target: &[u8]) -> Result<Reply> {
        let folder = self.free(folder, name).await?;
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.contains(&0) {
            return Err(Errno::INVAL);
        }
        let answer = self.ask(fuse::FUSE_SYMLINK, folder, &[name, b"\0", target, b"\0"]).await?;
        let entry = take::<fuse::fuse_entry_out>(&answer)?;
        Ok(Reply::Symlink(qid(&entry.attr, entry.nodeid)))
    }

    async fn readlink(&self, fid: u32) -> Result<Reply> {
        let node = self.connection.fid(fid)?.place.qid.path;
        Ok(Reply::Readlink(self.ask(fuse::FUSE_READLINK, node, &[]).await?))
    }

    async fn link(&self, folder: u32, fid: u32, name: &[u8]) -> Result<Reply> {
        let old = self.connection.fid(fid)?.place.qid;
        let folder = self.free(folder, name).await?;
        if old.folder {
            return Err(Errno::PERM);
        }
        let link = fuse::fuse_link_in { oldnodeid: old.path };
        self.ask(fuse::FUSE_LINK, folder, &[link.as_bytes(), name, b"\0"]).await?;
        Ok(Reply::Link)
    }

    async fn unlink(&self, folder: u32, name: &[u8], flags: u32) -> Result<Reply> {
        let (folder, attr) = self.folder(&self.connection.fid(folder)?).await?;
        check_entry(name)?;
        let (qid, _) = self.look_up(folder, name).await?;
        self.connection.peer.may(&attr, WRITE | SEARCH)?;
        let opcode = match (flags & ninep::REMOVE_FOLDER != 0, qid.folder) {
            (false, true) => return Err(Errno::ISDIR),
            (true, false) => return Err(Errno::NOTDIR),
            (true, true) => fuse::FUSE_RMDIR,
            (false, false) => fuse::FUSE_UNLINK,
        };
        self.ask(opcode, folder, &[name, b"\0"]).await?;
        Ok(Reply::Unlinkat)
    }

    async fn rename(&self, from: u32, name: &[u8], to: u32, new_name: &[u8]) -> Result<Reply> {
        let (from, to) = (self.connection.fid(from)?, self.connection.fid(to)?);
        let (old, old_attr) = self.folder(&from).await?;
        let (new, new_attr) = self.folder(&to).await?;
        if [name, new_name].iter().any(|name| matches!(*name, b"." | b"..")) {
            return Err(Errno::BUSY);
        }
        let (source, source_attr) = self.look_up(old, name).await?;
        let target = self.find(new, new_name).await?;
        let peer = self.connection.peer;
        if source.folder && leads_through(&to.place, source.path) {
            return Err(Errno::INVAL);
        }
        // As the kernel says of a folder that its own contents would replace, whatever they are.
        if target.is_some_and(|(target, _)| target.folder && leads_through(&from.place, target.path)) {
            return Err(Errno::NOTEMPTY);
        }
        if target.is_some_and(|(target, _)| target.path == source.path) {
            return Ok(Reply::Renameat);
        }
        peer.may(&old_attr, WRITE | SEARCH)?;
        peer.may(&new_attr, WRITE | SEARCH)?;
        match target {
            Some((target, _)) if target.folder && !source.folder => return Err(Errno::ISDIR),
            Some((target, _)) if !target.folder && source.folder => return Err(Errno::NOTDIR),
            _ => {}
        }
        if source.folder && old != new {
            // Its `..` changes.
            peer.may(&source_attr, WRITE)?;
        }
        let rename = fuse::fuse_rename_in { newdir: new };
        let parts = [rename.as_bytes(), name, b"\0", new_name, b"\0"];
        self.ask(fuse::FUSE_RENAME, old, &parts).await?;
        Ok(Reply::Renameat)
    }
}

/// Whether a place is this node, or below it.
fn leads_through(place: &Rc<Place>, node: u64) -> bool {
    std::iter::successors(Some(place), |place| place.parent.as_ref()).any(|place| place.qid.path == node)
}
