//! Grants: pages of one domain that another may map.

use std::ffi::{CStr, c_ulong};
use std::io;
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::ptr;

use crate::region::Region;
use crate::xen::event::Port;
use crate::xen::{ask, open, request};

/// Bytes of what can be granted.
pub const PAGE_BYTES: usize = 4096;

const ALLOC_DEVICE: &CStr = c"/dev/xen/gntalloc";
const MAP_DEVICE: &CStr = c"/dev/xen/gntdev";

/// `struct ioctl_gntalloc_alloc_gref`: domain and flags (16 bits each), count (32), the index that
/// comes back (64), one reference (32) and padding; further references follow in place of the
/// padding.
const ALLOC: c_ulong = request(b'G', 5, 24);
const ALLOC_REFERENCES: usize = 16;
const FLAG_WRITABLE: u32 = 1;
/// `struct ioctl_gntdev_map_grant_ref`: count and padding (32 bits each), the index that comes back
/// (64), then for each page the domain and the reference (32 bits each), of which the size that
/// goes into the request counts one.
const MAP: c_ulong = request(b'G', 0, 24);
const MAP_GRANTS: usize = 16;
/// The same number and structure in both drivers: the byte's index (64 bits), what to do and the
/// port (32 bits each).
const NOTICE: c_ulong = request(b'G', 7, 16);
const NOTICE_BYTES: usize = 16;
const CLEAR_BYTE: u32 = 1;
const SEND_EVENT: u32 = 2;

/// The kernel's act when a mapping ends, by whatever death of the process: it clears a byte and
/// rings.
#[derive(Clone, Copy, Debug)]
pub struct Notice<'p> {
    /// The byte of the mapping that is cleared.
    pub offset: usize,
    /// The port that rings then.
    pub port: &'p Port,
}

/// Pages of ours that one other domain may map, as long as this or a mapping of them is there. As
/// long as the peer has one mapped the kernel keeps it, also when we are gone.
#[derive(Debug)]
pub struct Memory {
    device: OwnedFd,
    peer: u16,
    references: Vec<u32>,
}

impl Memory {
    /// Memory of no pages, for domain `peer`.
    ///
    /// # Errors
    /// `NotFound` where there is no `/dev/xen/gntalloc` (no Xen, or the module `xen-gntalloc` is
    /// not loaded).
    pub fn new(peer: u16) -> io::Result<Self> {
        Ok(Self { device: open(ALLOC_DEVICE)?, peer, references: Vec::new() })
    }

    /// The reference of each page, in order.
    #[must_use]
    pub fn references(&self) -> &[u32] {
        &self.references
    }

    /// Grants so many new pages behind those that are there, zero, readable and writable.
    ///
    /// # Errors
    /// `ENOSPC` beyond the parameter `limit` of `xen-gntalloc` (1,024 pages of all programs);
    /// `ENOMEM`.
    pub fn grow(&mut self, pages: usize) -> io::Result<()> {
        let count = u32::try_from(pages).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut words = words(ALLOC_REFERENCES, pages, 1)?;
        put_u32(&mut words, 0, u32::from(self.peer) | (FLAG_WRITABLE << 16));
        put_u32(&mut words, 4, count);
        // SAFETY: the driver copies the fixed part in, and it and `count` references of four bytes
        // out: `words` has room for them.
        unsafe { ask(&self.device, ALLOC, words.as_mut_ptr().cast()) }?;
        // The driver counts on from one grant of a descriptor to the next, also where it refuses
        // one.
        if get_u64(&words, 8) != self.index(self.references.len()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.references.extend((0..pages).map(|page| get_u32(&words, ALLOC_REFERENCES + 4 * page)));
        Ok(())
    }

    /// Maps so many pages here, from `first` on.
    ///
    /// # Errors
    /// Those of mmap(2), such as `ENOENT` for pages that are not there.
    pub fn map(&self, first: usize, pages: usize) -> io::Result<Region> {
        Region::map_at(&self.device, self.index(first), pages * PAGE_BYTES)
    }

    /// Has the kernel clear a byte of a page when nothing keeps the page any more, and ring by a
    /// port; `None`: it does nothing then.
    ///
    /// # Errors
    /// The driver's.
    pub fn notify(&self, page: usize, notice: Option<Notice<'_>>) -> io::Result<()> {
        let (offset, act, port) =
            notice.map_or((0, 0, 0), |notice| (notice.offset, CLEAR_BYTE | SEND_EVENT, notice.port.number()));
        let inside = u64::try_from(offset).ok().filter(|_| offset < PAGE_BYTES);
        ask_notice(&self.device, self.index(page) + inside.ok_or(io::ErrorKind::InvalidInput)?, act, port)
    }

    /// The place of a page in the driver's file.
    fn index(&self, page: usize) -> u64 {
        (page * PAGE_BYTES) as u64
    }
}

/// Maps what domain `peer` has granted by `references`, in this order, one page after the other.
///
/// # Errors
/// `NotFound` where there is no `/dev/xen/gntdev` (no Xen, or the module `xen-gntdev` is not
/// loaded); `InvalidInput` for no references; those of mmap(2), such as `EINVAL` for a reference
/// that is not (or no longer) for us.
pub fn map(peer: u16, references: &[u32], notice: Option<Notice<'_>>) -> io::Result<Region> {
    let device = open(MAP_DEVICE)?;
    let mut words = words(MAP_GRANTS, references.len(), 2)?;
    let count = u32::try_from(references.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    put_u32(&mut words, 0, count);
    for (page, &reference) in references.iter().enumerate() {
        put_u32(&mut words, MAP_GRANTS + 8 * page, u32::from(peer));
        put_u32(&mut words, MAP_GRANTS + 8 * page + 4, reference);
    }
    // SAFETY: the driver copies the fixed part and `count` pairs of four-byte words in, which
    // `words` holds, and the fixed part out.
    unsafe { ask(&device, MAP, words.as_mut_ptr().cast()) }?;
    let index = get_u64(&words, 8);
    let region = Region::map_at(&device, index, references.len() * PAGE_BYTES)?;
    if let Some(notice) = notice {
        notify(&device, index, &region, notice)?;
    }
    Ok(region)
}

fn notify(
    device: &impl std::os::fd::AsFd,
    index: u64,
    region: &Region,
    notice: Notice<'_>,
) -> io::Result<()> {
    let inside = u64::try_from(notice.offset).ok().filter(|_| notice.offset < region.len());
    let byte = index + inside.ok_or(io::ErrorKind::InvalidInput)?;
    ask_notice(device, byte, CLEAR_BYTE | SEND_EVENT, notice.port.number())
}

fn ask_notice(device: &impl std::os::fd::AsFd, byte: u64, act: u32, port: u32) -> io::Result<()> {
    let mut words = words(NOTICE_BYTES, 0, 0)?;
    put_u64(&mut words, 0, byte);
    put_u32(&mut words, 8, act);
    put_u32(&mut words, 12, port);
    // SAFETY: the driver copies 16 bytes in, which `words` has.
    unsafe { ask(device, NOTICE, ptr::from_mut(words.as_mut_slice()).cast()) }.map(|_zero| ())
}

/// Zeroed room for a structure of `fixed` bytes with `count` elements of `each` words of four bytes
/// behind; in words of eight, as the structures are aligned.
fn words(fixed: usize, count: usize, each: usize) -> io::Result<Vec<u64>> {
    // The kernel's own bounds are far below; this one keeps the sums from overflowing.
    if count > u16::MAX.into() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = fixed + 4 * each * count;
    Ok(vec![0; bytes.div_ceil(size_of::<u64>()).max(3)])
}

fn put_u64(words: &mut [u64], offset: usize, value: u64) {
    if let Some(word) = words.get_mut(offset / 8) {
        *word = value;
    }
}

fn get_u64(words: &[u64], offset: usize) -> u64 {
    words.get(offset / 8).copied().unwrap_or(0)
}

/// Xen's domains are little-endian machines with Tombolo's bytes in between: the low half comes
/// first.
fn put_u32(words: &mut [u64], offset: usize, value: u32) {
    let shift = 8 * (offset % 8);
    if let Some(word) = words.get_mut(offset / 8) {
        *word = (*word & !(0xffff_ffff << shift)) | (u64::from(value) << shift);
    }
}

fn get_u32(words: &[u64], offset: usize) -> u32 {
    (get_u64(words, offset) >> (8 * (offset % 8))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_words_stand_where_the_kernel_looks() {
        let mut words = words(ALLOC_REFERENCES, 3, 1).unwrap();
        put_u32(&mut words, 0, 7 | (FLAG_WRITABLE << 16));
        put_u32(&mut words, 4, 3);
        put_u32(&mut words, 24, 0xffff_fff1);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(&bytes[..8], &[7, 0, 1, 0, 3, 0, 0, 0]);
        assert_eq!(get_u32(&words, 24), 0xffff_fff1);
        assert_eq!(get_u32(&words, 28), 0);
        assert!(bytes.len() >= 28);
    }

    #[test]
    fn without_xen_it_says_what_is_not_there() {
        if std::path::Path::new("/dev/xen/gntalloc").exists() {
            println!("skipped: this machine is a domain of Xen");
            return;
        }
        assert_eq!(Memory::new(0).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(map(0, &[8], None).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(Port::offer(0).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
