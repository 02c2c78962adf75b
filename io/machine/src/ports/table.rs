//! QEMU's descriptors, and its maps of a region.
//!
//! Two things of a device outlive it in QEMU (7.2). Under emulation it listens to what the guest
//! hears with handlers that it does not take away: they stay with the *numbers* of the descriptors,
//! and speak of freed memory as soon as anything else that gets such a number becomes readable. And
//! it closes the region's descriptor twice, the second time some 50 ms later: whoever got that
//! number meanwhile loses his. So the numbers are learned while the device is there, its map is
//! watched until it is gone, and nothing else is given to QEMU before.

use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Most descriptors of QEMU that are looked at.
const MAX_NUMBERS: usize = 65_536;

/// A table of descriptors.
pub(crate) trait Table: Debug {
    /// Under which numbers it has the listening half of this doorbell, or this watch.
    fn listeners(&self, half: &OwnedFd) -> io::Result<Vec<u32>>;
    /// Whether it has this file under that number.
    fn has_at(&self, number: u32, file: &OwnedFd) -> bool;
    /// How many maps it has of the memfd with this inode.
    fn maps(&self, inode: u64) -> usize;
}

/// The table of a process, as `/proc` shows it.
#[derive(Debug)]
pub(crate) struct ProcessTable {
    /// `/proc/PID`.
    process: PathBuf,
}

impl ProcessTable {
    pub fn of(process: u32) -> Self {
        Self { process: PathBuf::from(format!("/proc/{process}")) }
    }

    /// The inode that an instance of inotify watches under the first of its numbers, as the kernel
    /// writes it; none for other files.
    fn first_watch(&self, number: u32) -> Option<String> {
        let info = fs::read_to_string(self.process.join(format!("fdinfo/{number}"))).ok()?;
        info.lines().find(|line| line.starts_with("inotify wd:1 ")).map(str::to_owned)
    }
}

impl Table for ProcessTable {
    fn listeners(&self, half: &OwnedFd) -> io::Result<Vec<u32>> {
        let wanted = name_of(half)?;
        let own = ProcessTable { process: PathBuf::from("/proc/self") };
        let number = u32::try_from(half.as_raw_fd()).unwrap_or(u32::MAX);
        let watched = own.first_watch(number);
        let mut numbers = Vec::new();
        for entry in fs::read_dir(self.process.join("fd"))?.take(MAX_NUMBERS) {
            let path = entry?.path();
            // One that is closed meanwhile is none of ours.
            let is_it = fs::read_link(&path).is_ok_and(|name| name == wanted);
            let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            // All watches have one name: what tells them apart is what they watch.
            let is_it = |number: &u32| is_it && self.first_watch(*number) == watched;
            numbers.extend(number.filter(is_it));
        }
        Ok(numbers)
    }

    fn has_at(&self, number: u32, file: &OwnedFd) -> bool {
        let there = fs::read_link(self.process.join(format!("fd/{number}")));
        there.is_ok_and(|there| name_of(file).is_ok_and(|name| name == there))
    }

    fn maps(&self, inode: u64) -> usize {
        let maps = fs::read_to_string(self.process.join("maps")).unwrap_or_default();
        maps.lines().filter(|line| is_map_of(line, inode)).count()
    }
}

/// Whether a line of `/proc/PID/maps` is of the memfd with this inode: `ADDRESSES MODE OFFSET
/// DEVICE INODE PATH`.
fn is_map_of(line: &str, inode: u64) -> bool {
    let mut words = line.split_ascii_whitespace().skip(4);
    words.next().and_then(|word| word.parse().ok()) == Some(inode)
        && words.next().is_some_and(|path| path.starts_with("/memfd:"))
}

/// The kernel's name of an open file: `socket:[1234]`.
fn name_of(file: &OwnedFd) -> io::Result<PathBuf> {
    fs::read_link(Path::new("/proc/self/fd").join(file.as_raw_fd().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listening_half_is_told_from_the_ringing_one() {
        let table = ProcessTable::of(std::process::id());
        let (listener, ringer) = sys::doorbell::pair().unwrap();
        let number = u32::try_from(listener.as_raw_fd()).unwrap();
        assert_eq!(table.listeners(&listener).unwrap(), [number]);
        assert!(table.has_at(number, &listener) && !table.has_at(number, &ringer));
        let (other, _ringer) = sys::doorbell::pair().unwrap();
        assert!(!table.has_at(number, &other));
        let watches = [super::super::watch::Watch::new(), super::super::watch::Watch::new()];
        if let [Ok(one), Ok(two)] = &watches {
            let number = u32::try_from(one.heard_at().as_raw_fd()).unwrap();
            assert_eq!(table.listeners(one.heard_at()).unwrap(), [number], "not the other one");
            assert_ne!(table.listeners(two.heard_at()).unwrap(), [number]);
        } else {
            println!("skipped: no watches here: {watches:?}");
        }
        let memory = sys::memfd::sealed("test", 4096).unwrap();
        let inode = rustix::fs::fstat(&memory).unwrap().st_ino;
        assert_eq!(table.maps(inode), 0);
        let map = sys::region::Region::map(&memory, 4096).unwrap();
        assert_eq!(table.maps(inode), 1);
        drop(map);
        assert_eq!(table.maps(inode), 0);
        assert!(ProcessTable::of(u32::MAX).listeners(&other).is_err());
    }
}
