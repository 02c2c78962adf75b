//! Symbolic links in a store, which nothing here follows; and the room that is left.

use crate::kind::Kind;
use crate::room::Limits;
use crate::store::{SLACK_BYTES, Store, Told, checked, stale, timestamps};
use rustix::fs::{AtFlags, fstatvfs, readlinkat, statat, symlinkat, unlinkat, utimensat};
use rustix::io::Errno;
use std::ffi::CString;
use wire::service::Attributes;

impl Store {
    /// Makes a symbolic link, whose target is not looked at.
    ///
    /// # Errors
    /// As of [`Store::create`].
    pub fn symlink(&mut self, folder: u32, name: &[u8], target: &[u8]) -> Result<Told, Errno> {
        let name = checked(folder, name)?;
        let target = CString::new(target).map_err(|_| Errno::INVAL)?;
        let open = self.folder(folder)?;
        self.room_for_node(&open, &name)?;
        self.room.for_bytes(SLACK_BYTES)?;
        symlinkat(target.as_c_str(), &*open, name.as_c_str())?;
        let numbered = statat(&*open, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|stat| self.found((folder, &name), &stat).map(|serial| (serial, stat)));
        match numbered {
            Ok((serial, stat)) => self.tell(serial, &stat),
            Err(errno) => {
                unlinkat(&*open, name.as_c_str(), AtFlags::empty())?;
                Err(errno)
            }
        }
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` for another node.
    pub fn follow(&mut self, serial: u32) -> Result<Vec<u8>, Errno> {
        if self.kind(serial)? != Kind::Link || Kind::of(&self.stat_of(serial)?) != Kind::Link {
            return Err(Errno::INVAL);
        }
        let (folder, name) = self.place(serial)?;
        readlinkat(&*folder, name.as_c_str(), Vec::new()).map(CString::into_bytes).map_err(stale)
    }

    /// Returns what it may hold, and how much of that is free: no more than its disk has.
    ///
    /// # Errors
    /// The kernel's.
    pub fn room_left(&self) -> Result<wire::service::Room, Errno> {
        let disk = fstatvfs(&self.apart)?;
        let left = |all: u64, taken: u64, on_disk: u64| (all, all.saturating_sub(taken).min(on_disk));
        let Limits { bytes, inodes } = self.room.limits;
        // A file system without a table of inodes says 0 of them.
        let inodes_on_disk = if disk.f_files == 0 { u64::MAX } else { disk.f_favail };
        Ok(wire::service::Room {
            bytes: left(bytes, self.room.bytes, disk.f_bavail.saturating_mul(disk.f_frsize)),
            nodes: left(inodes, self.room.inodes, inodes_on_disk),
        })
    }

    /// A symbolic link has no bytes and no mode of its own to change.
    pub(crate) fn set_link(&mut self, serial: u32, wanted: &Attributes) -> Result<Told, Errno> {
        if wanted.size.is_some() {
            return Err(Errno::INVAL);
        }
        if wanted.mode.is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        if let Some(changed) = wanted.changed {
            let (folder, name) = self.place(serial)?;
            let times = timestamps(changed)?;
            utimensat(&*folder, name.as_c_str(), &times, AtFlags::SYMLINK_NOFOLLOW).map_err(stale)?;
        }
        self.stat(serial)
    }
}
