//! A mapped range of shared memory that this program may only read, and of which another party may
//! change any byte at any time.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::region::Region;

/// A shared mapping that is only read. Unmapped on drop.
#[derive(Debug)]
pub struct View {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `base` is a mapping that this value owns and that has no thread affinity; see also
// `Sync`.
unsafe impl Send for View {}
// SAFETY: nothing is ever written through it, and no access makes a reference to its bytes but to a
// whole word as an atomic. What another party writes meanwhile gives unspecified bytes, which every
// reader has to expect.
unsafe impl Sync for View {}

impl View {
    /// Maps the first `len` bytes of `memory`, shared, to be read.
    ///
    /// The caller has seen to it that the memory cannot shrink (see
    /// [`crate::memfd::check_sealed`]); otherwise an access beyond its end kills the process with
    /// `SIGBUS`.
    ///
    /// # Errors
    /// Those of mmap(2), and `InvalidInput` when `len` is 0.
    pub fn map(memory: impl AsFd, len: usize) -> io::Result<View> {
        // SAFETY: a null hint lets the kernel choose a free range, so no other mapping is replaced.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, memory, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(View { base, len })
    }

    /// Bytes of the mapping.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "the kernel refuses empty mappings")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Has the kernel map every page now, so that no later access has to wait for it.
    ///
    /// # Errors
    /// Those of madvise(2) with `MADV_POPULATE_READ`: `EINVAL` on kernels before 5.14, `ENOMEM` or
    /// `EFAULT` when there is no memory.
    pub fn populate(&self) -> io::Result<()> {
        let base = self.base.as_ptr().cast();
        // SAFETY: exactly the range that `map` made, alive as long as `self`; the advice changes no
        // byte.
        Ok(unsafe { rustix::mm::madvise(base, self.len, Advice::LinuxPopulateRead) }?)
    }

    /// Loads the word at `offset`.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range. It never comes from another party.
    #[inline]
    #[must_use]
    pub fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        let place = self.place(offset, size_of::<u64>());
        assert!(offset.is_multiple_of(align_of::<AtomicU64>()), "word out of view");
        // SAFETY: in range and aligned (the mapping starts on a page), alive as long as `self`.
        // Loads of 8 bytes do not write, so that the memory can't be written does not matter (see
        // `std::sync::atomic`, "Atomic accesses to read-only memory").
        unsafe { AtomicU64::from_ptr(place.cast_mut().cast()) }.load(order)
    }

    /// Where `len` bytes at `offset` stand.
    #[inline]
    fn place(&self, offset: usize, len: usize) -> *const u8 {
        assert!(offset <= self.len && len <= self.len - offset, "bytes out of view");
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Copies bytes out of the view. What arrives may be a mixture, if the other party writes
    /// meanwhile.
    ///
    /// # Panics
    /// If the range is not inside the view.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.place(offset, into.len());
        // SAFETY: the source is inside the mapping, the destination is a reference, and the two
        // cannot overlap: no reference to bytes of the mapping exists. The bytes are plain, any
        // value is good.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
        forget_what_was_read();
    }

    /// Copies `len` bytes from here to a region, which is other memory or the same.
    ///
    /// # Panics
    /// If a range is not inside of its mapping.
    pub fn copy_to(&self, offset: usize, to: &Region, to_offset: usize, len: usize) {
        let (from, into) = (self.place(offset, len), to.pointer(to_offset, len));
        // SAFETY: both ranges are inside of their mappings, which live as long as the references;
        // `copy` lets them overlap. There is no reference to bytes of either, and any value is
        // good.
        unsafe { ptr::copy(from, into, len) }
        forget_what_was_read();
    }
}

/// Copies `len` bytes from one region to another, or inside of one.
///
/// # Panics
/// If a range is not inside of its region.
pub fn copy_between(from: &Region, offset: usize, to: &Region, to_offset: usize, len: usize) {
    let (from, into) = (from.pointer(offset, len), to.pointer(to_offset, len));
    // SAFETY: as in `View::copy_to`.
    unsafe { ptr::copy(from, into, len) }
    forget_what_was_read();
}

/// Makes the compiler believe that memory has changed, so that what was copied is not silently read
/// again. No instruction.
#[inline(always)]
fn forget_what_was_read() {
    // SAFETY: an empty instruction; it touches no register and no stack, and merely may touch
    // memory.
    unsafe { std::arch::asm!("", options(nostack, preserves_flags)) }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` made; no reference into it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{self, Reach};
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};

    fn granted() -> (Region, View) {
        let memory = memfd::to_grant("test", 8192).unwrap();
        let region = Region::map(&memory, 8192).unwrap();
        memfd::seal_for(&memory, Reach::Read).unwrap();
        let view = View::map(&memory, 8192).unwrap();
        (region, view)
    }

    #[test]
    fn a_view_shows_what_a_region_has() {
        let (region, view) = granted();
        region.store_u64(4096, 7, SeqCst);
        region.copy_in(8189, b"end");
        view.populate().unwrap();
        assert_eq!(view.load_u64(4096, Relaxed), 7);
        let mut bytes = [0; 3];
        view.copy_out(8189, &mut bytes);
        assert_eq!((&bytes, view.len()), (b"end", 8192));
    }

    #[test]
    fn bytes_go_between_mappings_even_of_the_same_memory() {
        let (region, view) = granted();
        region.copy_in(0, b"abcdef");
        copy_between(&region, 0, &region, 2, 4);
        let mut bytes = [0; 6];
        view.copy_out(0, &mut bytes);
        assert_eq!(&bytes, b"ababcd");
        let other = Region::map(memfd::to_grant("test", 4096).unwrap(), 4096).unwrap();
        view.copy_to(1, &other, 4091, 5);
        let mut bytes = [0; 5];
        other.copy_out(4091, &mut bytes);
        assert_eq!(&bytes, b"babcd");
    }

    #[test]
    #[should_panic(expected = "bytes out of view")]
    fn bytes_beyond_the_end_are_refused() {
        granted().1.copy_out(8190, &mut [0; 3]);
    }

    #[test]
    #[should_panic(expected = "bytes out of view")]
    fn an_offset_that_would_overflow_is_refused() {
        granted().1.copy_out(usize::MAX, &mut [0; 3]);
    }

    #[test]
    #[should_panic(expected = "word out of view")]
    fn a_word_that_is_not_aligned_is_refused() {
        let _ = granted().1.load_u64(4, Relaxed);
    }
}
