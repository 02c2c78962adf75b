//! Reading a whole store when its server starts: what there is, what it takes, and what numbers it
//! had.

use crate::kind::Kind;
use crate::names::{apart_name, names};
use crate::numbers::Entry;
use crate::store::{APART, Store, bytes_of, is_folder};
use rustix::fs::{AtFlags, Mode, OFlags, Stat, statat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::time::Instant;

impl Store {
    /// Gives every node its number.
    pub(crate) fn scan(&mut self) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let apart = sys::beneath::open(&self.apart, c".", flags, Mode::empty())?;
        let mut found = Vec::new();
        names(&apart, 0, |name, _| {
            found.extend(name.to_str().ok().and_then(|name| name.parse::<u32>().ok()));
            true
        })?;
        for serial in found.into_iter().filter(|&serial| wire::service::below(0, serial).is_some()) {
            self.found_apart(serial)?;
        }
        // A stack, not a call for each level: strangers made the tree.
        let mut folders = vec![service::ROOT];
        while let Some(folder) = folders.pop() {
            for (name, stat) in self.listed(folder)? {
                let serial = self.found((folder, &name), &stat)?;
                if is_folder(&stat) {
                    folders.push(serial);
                }
            }
        }
        self.numbers.settle()
    }

    fn found_apart(&mut self, serial: u32) -> Result<(), Errno> {
        let name = apart_name(serial);
        let stat = statat(&self.apart, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)?;
        if !self.is_served(&stat) || is_folder(&stat) || serial == service::ROOT {
            return Ok(());
        }
        let left = (stat.st_nlink == 1).then(Instant::now);
        let entry = Entry { is_apart: true, left, ..entry((service::ROOT, name.to_bytes()), &stat) };
        self.room.inodes += 1;
        self.room.bytes += entry.bytes;
        self.numbers.add_as(serial, entry)
    }

    /// A folder's served entries. A folder that is deeper than paths go is left alone.
    fn listed(&mut self, folder: u32) -> Result<Vec<(CString, Stat)>, Errno> {
        let path = match self.folder(folder) {
            Err(Errno::NAMETOOLONG) => {
                tracing::warn!("a folder is deeper than paths go: what is below it is not counted");
                return Ok(Vec::new());
            }
            other => other?,
        };
        let open = sys::beneath::open(&*path, c".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut all = Vec::new();
        let mut fault = Ok(());
        names(&open, 0, |name, _| {
            if folder == service::ROOT && name.to_bytes() == APART.to_bytes() {
                return true;
            }
            match statat(&*path, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if self.is_served(&stat) => all.push((name.to_owned(), stat)),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => fault = Err(errno),
            }
            fault.is_ok()
        })?;
        fault.map(|()| all)
    }

    /// The number of what has this name.
    pub(crate) fn found(&mut self, (folder, name): (u32, &CStr), stat: &Stat) -> Result<u32, Errno> {
        if let Some(serial) = self.numbers.of_inode(stat.st_ino) {
            let entry = self.numbers.get_mut(serial)?;
            if !entry.is_apart && (entry.parent != folder || *entry.name != *name.to_bytes()) {
                (entry.parent, entry.name) = (folder, name.to_bytes().into());
            }
            // Somebody else removed what had the inode before.
            if entry.kind != Kind::of(stat) {
                entry.kind = Kind::of(stat);
                self.forget_descriptors(serial);
            }
            return Ok(serial);
        }
        let entry = entry((folder, name.to_bytes()), stat);
        let bytes = entry.bytes;
        let serial = self.numbers.add(entry)?;
        self.room.inodes += 1;
        self.room.bytes += bytes;
        Ok(serial)
    }
}

fn entry((parent, name): (u32, &[u8]), stat: &Stat) -> Entry {
    Entry {
        inode: stat.st_ino,
        kind: Kind::of(stat),
        parent,
        name: name.into(),
        is_apart: false,
        bytes: bytes_of(stat),
        opens: 0,
        left: None,
    }
}
