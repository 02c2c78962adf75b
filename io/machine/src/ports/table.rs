//! What stands in QEMU's table of descriptors.
//!
//! QEMU under emulation listens to what a guest hears with handlers that it forgets to take away when the device goes: they stay
//! with the *numbers* of the descriptors, and speak of freed memory as soon as anything else that gets such a number becomes readable. So
//! those numbers are learned while the device is there, and taken by stand-ins that never become readable as soon as it is gone.

use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Most descriptors of QEMU that are looked at.
const MAX_NUMBERS: usize = 65_536;

/// A table of descriptors.
pub(crate) trait Table: Debug {
    /// Under which numbers it has the listening half of this doorbell.
    fn listeners(&self, half: &OwnedFd) -> io::Result<Vec<u32>>;
    /// Whether it has this file under that number.
    fn has_at(&self, number: u32, file: &OwnedFd) -> bool;
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

    /// Whether the entry can be read from only: the flags stand in octal.
    fn only_reads(&self, number: u32) -> bool {
        let info = fs::read_to_string(self.process.join(format!("fdinfo/{number}"))).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & 3 == 0)
    }
}

impl Table for ProcessTable {
    fn listeners(&self, half: &OwnedFd) -> io::Result<Vec<u32>> {
        let wanted = name_of(half)?;
        let mut numbers = Vec::new();
        for entry in fs::read_dir(self.process.join("fd"))?.take(MAX_NUMBERS) {
            let path = entry?.path();
            // One that is closed meanwhile is none of ours.
            let is_it = fs::read_link(&path).is_ok_and(|name| name == wanted);
            let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            numbers.extend(number.filter(|number| is_it && self.only_reads(*number)));
        }
        Ok(numbers)
    }

    fn has_at(&self, number: u32, file: &OwnedFd) -> bool {
        let there = fs::read_link(self.process.join(format!("fd/{number}")));
        there.is_ok_and(|there| name_of(file).is_ok_and(|name| name == there))
    }
}

/// The kernel's name of an open file: `pipe:[1234]`.
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
        assert_eq!(table.listeners(&ringer).unwrap(), [number]);
        assert!(table.has_at(number, &ringer), "the same pipe");
        let (other, _ringer) = sys::doorbell::pair().unwrap();
        assert!(!table.has_at(number, &other));
        assert!(ProcessTable::of(u32::MAX).listeners(&other).is_err());
    }
}
