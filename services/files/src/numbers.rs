//! The table of nodes' numbers.
//!
//! Consumers know nodes by numbers of 24 bits, which have to mean the same to the next server. So
//! they are written into a file: a header, and for each number the inode that has it, or 0. It is
//! never synced: it has to outlive the server, and what knew the numbers does not outlive a power
//! cut (a file of another boot begins anew). Names and places of nodes are not written, for a
//! server that starts reads the whole tree.

use crate::kind::Kind;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// The first bytes of the file; the last of them is the version.
const MAGIC: [u8; 8] = *b"tbfiles\x01";
/// Bytes of the header: [`MAGIC`], the boot's id as text (36), the number that is given next (4),
/// zeros.
const HEADER_BYTES: usize = 64;
const BOOT_BYTES: usize = 36;
/// Bytes of one number's inode.
const SLOT_BYTES: u64 = 8;
/// The highest number.
const LAST: u32 = (1 << wire::service::SERIAL_BITS) - 1;

/// The record of a node.
#[derive(Debug)]
pub struct Entry {
    pub inode: u64,
    pub kind: Kind,
    /// The folder that it is in, and its name there. Of a file with several names: one of them, or
    /// one that it had.
    pub parent: u32,
    pub name: Box<[u8]>,
    /// Whether the file has a name of its own in the store's own folder: it has several names, or
    /// none any more.
    pub is_apart: bool,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Open files of it.
    pub opens: u32,
    /// Since when nobody has it open that has no name any more, and whose consumers may come back.
    pub left: Option<Instant>,
}

/// Nodes by numbers and by inodes.
pub struct Numbers {
    file: File,
    entries: HashMap<u32, Entry>,
    by_inode: HashMap<u64, u32>,
    /// Numbers that the file has and nobody has asked for yet, by inode.
    known: HashMap<u64, u32>,
    /// The same numbers: not free before the whole tree was read.
    reserved: HashSet<u32>,
    next: u32,
}

impl Numbers {
    /// Reads what an earlier server wrote.
    pub fn open(file: File) -> io::Result<Self> {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
        let mut header = [0; HEADER_BYTES];
        header[..MAGIC.len()].copy_from_slice(&MAGIC);
        let boot = boot.get(..BOOT_BYTES).ok_or(io::ErrorKind::InvalidData)?;
        header[MAGIC.len()..MAGIC.len() + BOOT_BYTES].copy_from_slice(boot);
        let next_at = MAGIC.len() + BOOT_BYTES;

        let mut numbers = Self {
            file,
            entries: HashMap::new(),
            by_inode: HashMap::new(),
            known: HashMap::new(),
            reserved: HashSet::new(),
            next: 1,
        };
        let mut bytes = Vec::new();
        io::Read::read_to_end(
            &mut io::Read::take(&numbers.file, (u64::from(LAST) + 9) * SLOT_BYTES),
            &mut bytes,
        )?;
        if bytes.get(..next_at) == Some(&header[..next_at]) && bytes.len() >= HEADER_BYTES {
            let next = bytes[next_at..next_at + 4].try_into().map_or(1, u32::from_le_bytes);
            numbers.next = next.clamp(1, LAST);
            let slots = bytes[HEADER_BYTES..].chunks_exact(8).zip(1..=LAST);
            let inode = |slot: &[u8]| slot.try_into().map_or(0, u64::from_le_bytes);
            numbers.known =
                slots.map(|(slot, serial)| (inode(slot), serial)).filter(|(it, _)| *it != 0).collect();
            numbers.reserved = numbers.known.values().copied().collect();
        } else {
            numbers.file.set_len(0)?;
            numbers.file.write_all_at(&header, 0)?;
        }
        Ok(numbers)
    }

    pub fn get(&self, serial: u32) -> Result<&Entry, Errno> {
        self.entries.get(&serial).ok_or(Errno::STALE)
    }

    pub fn get_mut(&mut self, serial: u32) -> Result<&mut Entry, Errno> {
        self.entries.get_mut(&serial).ok_or(Errno::STALE)
    }

    pub fn of_inode(&self, inode: u64) -> Option<u32> {
        self.by_inode.get(&inode).copied()
    }

    pub fn left(&self) -> impl Iterator<Item = (u32, Instant)> {
        self.entries.iter().filter_map(|(&serial, entry)| Some((serial, entry.left?)))
    }

    /// Gives a node the number that it had, or a new one.
    pub fn add(&mut self, entry: Entry) -> Result<u32, Errno> {
        let serial = match self.known.remove(&entry.inode) {
            Some(serial) if !self.entries.contains_key(&serial) => serial,
            _ => self.free()?,
        };
        self.add_as(serial, entry)?;
        Ok(serial)
    }

    /// Gives a node this number.
    pub fn add_as(&mut self, serial: u32, entry: Entry) -> Result<(), Errno> {
        self.write(serial, entry.inode)?;
        self.by_inode.insert(entry.inode, serial);
        self.entries.insert(serial, entry);
        Ok(())
    }

    /// A node is gone. Its number is given again only when all others have been.
    pub fn remove(&mut self, serial: u32) -> Result<(), Errno> {
        if let Some(entry) = self.entries.remove(&serial) {
            self.by_inode.remove(&entry.inode);
            self.write(serial, 0)?;
        }
        Ok(())
    }

    /// Forgets numbers of what is not there any more.
    pub fn settle(&mut self) -> Result<(), Errno> {
        for (_, serial) in std::mem::take(&mut self.known) {
            if !self.entries.contains_key(&serial) {
                self.write(serial, 0)?;
            }
        }
        self.reserved.clear();
        Ok(())
    }

    fn free(&mut self) -> Result<u32, Errno> {
        for _ in 0..=self.entries.len() + self.reserved.len() {
            let serial = self.next;
            self.next = if serial == LAST { 1 } else { serial + 1 };
            if !self.entries.contains_key(&serial) && !self.reserved.contains(&serial) {
                let next_at = (MAGIC.len() + BOOT_BYTES) as u64;
                self.file.write_all_at(&self.next.to_le_bytes(), next_at).map_err(|error| errno(&error))?;
                return Ok(serial);
            }
        }
        Err(Errno::DQUOT)
    }

    fn write(&self, serial: u32, inode: u64) -> Result<(), Errno> {
        let at = HEADER_BYTES as u64 + (u64::from(serial) - 1) * SLOT_BYTES;
        self.file.write_all_at(&inode.to_le_bytes(), at).map_err(|error| errno(&error))
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
