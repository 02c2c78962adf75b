//! Memories of domains, as they are mapped here.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;

use sys::region::Region;
use v4l2::Areas;

/// A memory, and which parts of it have buffers.
#[derive(Debug)]
pub(crate) struct Memory {
    region: Region,
    pub(crate) areas: Areas,
    links: usize,
}

impl Memory {
    /// Puts a frame where a program has mapped it. Whatever the program does with that memory
    /// meanwhile is seen by its own domain only.
    pub(crate) fn put(&self, offset: u32, frame: &[u8]) {
        let offset = offset as usize;
        let fits = offset.checked_add(frame.len()).is_some_and(|end| end <= self.region.len());
        if fits {
            self.region.copy_in(offset, frame);
        }
    }
}

/// All that are mapped, by the number of their inode: all channels of one domain's frontends bring
/// the same one.
#[derive(Debug, Default)]
pub(crate) struct Memories(HashMap<u64, Memory>);

impl Memories {
    /// A channel came with this one. Answers the number by which it is known.
    pub(crate) fn attach(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<u64> {
        let number = rustix::fs::fstat(descriptor)?.st_ino;
        if let Some(known) = self.0.get_mut(&number) {
            known.links += 1;
            return Ok(number);
        }
        let bytes = sys::memfd::check_sealed(descriptor)?
            .ok_or_else(|| io::Error::other("it is no memory that keeps its size"))?;
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        let region = Region::map(descriptor, length)?;
        self.0.insert(number, Memory { region, areas: Areas::new(bytes), links: 1 });
        Ok(number)
    }

    /// A channel that came with it is over.
    pub(crate) fn detach(&mut self, number: u64) {
        if let Some(known) = self.0.get_mut(&number) {
            known.links -= 1;
            if known.links == 0 {
                self.0.remove(&number);
            }
        }
    }

    pub(crate) fn get(&mut self, number: Option<u64>) -> Option<&mut Memory> {
        self.0.get_mut(&number?)
    }
}
