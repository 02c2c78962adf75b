//! A tree's quota and its usage.

use rustix::io::Errno;

/// A tree's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes on the disk.
    pub bytes: u64,
    /// Files and folders.
    pub inodes: u64,
}

/// A tree's usage of its quota.
#[derive(Debug)]
pub struct Room {
    pub limits: Limits,
    pub bytes: u64,
    pub inodes: u64,
}

impl Room {
    pub fn new(limits: Limits) -> Self {
        Self { limits, bytes: 0, inodes: 0 }
    }

    /// Whether one more file or folder may be made.
    pub fn for_node(&self) -> Result<(), Errno> {
        if self.inodes < self.limits.inodes { Ok(()) } else { Err(Errno::DQUOT) }
    }

    /// Whether so many bytes more may be written.
    pub fn for_bytes(&self, bytes: u64) -> Result<(), Errno> {
        if self.bytes.saturating_add(bytes) <= self.limits.bytes { Ok(()) } else { Err(Errno::DQUOT) }
    }

    /// A node has other bytes now.
    pub fn changed(&mut self, before: u64, after: u64) {
        self.bytes = self.bytes.saturating_sub(before).saturating_add(after);
    }
}
