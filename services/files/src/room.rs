//! What a tree may take, and what it takes.

use rustix::io::Errno;

/// What a tree may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes on the disk.
    pub bytes: u64,
    /// Files and folders.
    pub inodes: u64,
}

/// What is taken of it.
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
