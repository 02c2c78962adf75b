//! A mapped range of shared memory, of which another party may change any byte at any time.
//!
//! So there is never a reference to its bytes: words go through atomics, the rest is copied in and
//! out.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::known::Known;

/// A shared, readable and writable mapping. Unmapped on drop.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    /// Closed when the memory has been unmapped: fields are dropped after `drop`.
    kept: Vec<Known>,
}

// SAFETY: `base` is a mapping that this value owns and that has no thread affinity; see also
// `Sync`.
unsafe impl Send for Region {}
// SAFETY: every access is through an atomic or a raw copy, none makes a reference to the bytes, and
// two threads (or processes) that copy the same bytes at once get unspecified bytes, which every
// reader of a region has to expect anyhow, because the other party is not trusted.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first `len` bytes of `memory`, shared.
    ///
    /// The caller has seen to it that the memory cannot shrink (see
    /// [`crate::memfd::check_sealed`]); otherwise an access beyond its end kills the process with
    /// `SIGBUS`.
    ///
    /// # Errors
    /// Those of mmap(2), and `InvalidInput` when `len` is 0.
    pub fn map(memory: impl AsFd, len: usize) -> io::Result<Region> {
        Region::map_at(memory, 0, len)
    }

    /// As [`Region::map`], from `offset` on: for devices that hand out memory by places in them.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn map_at(memory: impl AsFd, offset: u64, len: usize) -> io::Result<Region> {
        let (hint, fixed) = guards::reserve(len)?;
        // SAFETY: a null hint lets the kernel choose a free range, so no other mapping is replaced;
        // with guards, the range was reserved just now for nothing but this.
        let base = unsafe {
            rustix::mm::mmap(
                hint,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | fixed,
                memory,
                offset,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Region { base, len, kept: Vec::new() })
    }

    /// Holds on to a descriptor until the memory has been unmapped: whoever has the other side of
    /// it learns by its close that nobody looks at the memory any more.
    #[must_use]
    pub fn keeping(mut self, descriptor: OwnedFd) -> Region {
        self.kept.push(Known::new(descriptor));
        self
    }

    /// Bytes of the mapping.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "the kernel refuses empty mappings")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range. It never comes from another party.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: in range and aligned (the mapping starts on a page), alive as long as `self`;
        // every access of this program to these bytes as a word is atomic.
        unsafe { AtomicU64::from_ptr(self.place_of(offset, 8).cast()) }
    }

    /// Where `align` bytes at `offset` stand.
    ///
    /// # Panics
    /// If `offset` is no multiple of `align` or the bytes are out of range.
    #[inline]
    pub(crate) fn place_of(&self, offset: usize, align: usize) -> *mut u8 {
        assert!(
            offset.is_multiple_of(align) && offset < self.len && self.len - offset >= align,
            "word out of region"
        );
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Where `len` bytes at `offset` stand, for programs that fill or read them through a pointer.
    /// It is good while the region lives; what stands there may change at any time.
    ///
    /// # Panics
    /// If the range is not inside the region.
    #[inline]
    #[must_use]
    pub fn pointer(&self, offset: usize, len: usize) -> *mut u8 {
        self.check(offset, len);
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Loads the word at `offset`.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range.
    #[inline]
    #[must_use]
    pub fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    /// Stores the word at `offset`.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).store(value, order);
    }

    /// Stores the word at `offset` and returns what was there.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range.
    #[inline]
    pub fn swap_u64(&self, offset: usize, value: u64, order: Ordering) -> u64 {
        self.word(offset).swap(value, order)
    }

    /// Stores `new` at `offset` if `old` stands there, and returns what stood there.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range.
    pub fn replace_u64(&self, offset: usize, old: u64, new: u64, order: Ordering) -> u64 {
        let replaced = self.word(offset).compare_exchange(old, new, order, Ordering::Relaxed);
        replaced.unwrap_or_else(|found| found)
    }

    /// Sets bits of the word at `offset` and returns what stood there.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range.
    #[inline]
    pub fn or_u64(&self, offset: usize, bits: u64, order: Ordering) -> u64 {
        self.word(offset).fetch_or(bits, order)
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset, "bytes out of region");
    }

    /// Copies bytes out of the region. What arrives may be a mixture, if the other party writes
    /// meanwhile.
    ///
    /// # Panics
    /// If the range is not inside the region.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // SAFETY: the source is inside the mapping, the destination is a reference, and the two
        // cannot overlap: no reference to bytes of the mapping exists. The bytes are plain, any
        // value is good.
        unsafe {
            ptr::copy_nonoverlapping(self.base.as_ptr().add(offset), into.as_mut_ptr(), into.len());
        }
        forget_what_was_read();
    }

    /// Appends bytes of the region to `into`.
    ///
    /// # Panics
    /// If the range is not inside the region.
    #[inline]
    pub fn append_to(&self, offset: usize, len: usize, into: &mut Vec<u8>) {
        self.check(offset, len);
        into.reserve(len);
        // SAFETY: the source is inside the mapping; the vector owns at least `len` bytes beyond its
        // length, which the copy initializes before the length says so; the two cannot overlap.
        unsafe {
            let end = into.as_mut_ptr().add(into.len());
            ptr::copy_nonoverlapping(self.base.as_ptr().add(offset), end, len);
            into.set_len(into.len() + len);
        }
        forget_what_was_read();
    }

    /// The words that stand from `offset` on, as many as are asked for: plain reads, in no order,
    /// of bytes that may be anything.
    ///
    /// # Panics
    /// If the range is not inside the region.
    #[inline]
    #[must_use]
    pub fn words<const N: usize>(&self, offset: usize) -> [u64; N] {
        self.check(offset, N * size_of::<u64>());
        let mut words = [0; N];
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: the word is inside the mapping, as was checked; it need not be aligned, and
            // any bytes are good.
            *word = unsafe { self.base.as_ptr().add(offset).cast::<u64>().add(index).read_unaligned() };
        }
        forget_what_was_read();
        words
    }

    /// Puts words into the region, from `offset` on, in no order. For what is short and made in
    /// registers: a copy would go through memory.
    ///
    /// # Panics
    /// If the range is not inside the region.
    #[inline]
    pub fn put_words<const N: usize>(&self, offset: usize, words: [u64; N]) {
        self.check(offset, N * size_of::<u64>());
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: as in `words`, the other way round.
            unsafe { self.base.as_ptr().add(offset).cast::<u64>().add(index).write_unaligned(word) };
        }
    }

    /// Asks the processor to fetch the line at `offset` for writing. A hint; nothing happens beyond
    /// the end.
    #[inline]
    pub fn prefetch_for_write(&self, offset: usize) {
        if offset >= self.len {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: inside the mapping; and a prefetch accesses nothing that shows, whatever the
        // address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_ET0>(self.base.as_ptr().add(offset).cast());
        }
    }

    /// Copies bytes into the region.
    ///
    /// # Panics
    /// If the range is not inside the region.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: as in `copy_out`, the other way round.
        unsafe {
            ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr().add(offset), from.len());
        }
    }
}

/// The fate of the memory behind a region before it is used.
impl Region {
    /// Has the kernel provide every page now, as if each were written to, so that no later access
    /// has to wait for it. What stands there stays.
    ///
    /// # Errors
    /// Those of madvise(2) with `MADV_POPULATE_WRITE`: `EINVAL` on kernels before 5.14, `ENOMEM` or
    /// `EFAULT` when there is no memory. (Where a memory cgroup is full, the kernel may rather kill
    /// a process of it.)
    pub fn populate(&self) -> io::Result<()> {
        let base = self.base.as_ptr().cast();
        // SAFETY: exactly the range that `map` made, alive as long as `self`; the advice changes no
        // byte.
        Ok(unsafe { rustix::mm::madvise(base, self.len, rustix::mm::Advice::LinuxPopulateWrite) }?)
    }

    /// Asks for transparent huge pages. A hint.
    ///
    /// # Errors
    /// Those of madvise(2): `EINVAL` where the kernel has none.
    pub fn prefer_huge_pages(&self) -> io::Result<()> {
        let base = self.base.as_ptr().cast();
        // SAFETY: as in `populate`.
        Ok(unsafe { rustix::mm::madvise(base, self.len, rustix::mm::Advice::LinuxHugepage) }?)
    }

    /// Has the kernel provide every page now and keep it in memory as long as the region lives.
    ///
    /// # Errors
    /// Those of mlock(2): `EPERM` or `ENOMEM` when `RLIMIT_MEMLOCK` is too low, `EAGAIN` or
    /// `ENOMEM` when there is no memory.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: exactly the range that `map` made, alive as long as `self`; unmapping unlocks it.
        Ok(unsafe { rustix::mm::mlock(self.base.as_ptr().cast(), self.len) }?)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (start, len) = guards::with(self.base.as_ptr().cast(), self.len);
        // SAFETY: exactly the range that `map` made; no reference into it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(start, len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

/// Programs that are no fuzz targets have no guards: the checks above are what keeps accesses
/// inside.
#[cfg(not(fuzzing))]
mod guards {
    use std::ffi::c_void;

    use rustix::mm::MapFlags;

    #[allow(clippy::unnecessary_wraps, reason = "the fuzzers' variant may fail")]
    pub(super) fn reserve(_len: usize) -> std::io::Result<(*mut c_void, MapFlags)> {
        Ok((std::ptr::null_mut(), MapFlags::empty()))
    }

    pub(super) fn with(base: *mut c_void, len: usize) -> (*mut c_void, usize) {
        (base, len)
    }
}

/// In fuzz targets a mapping stands between pages that nobody may touch: an access that the checks
/// above should have kept inside, and did not, ends the program instead of finding a neighbour.
#[cfg(fuzzing)]
mod guards {
    use std::ffi::c_void;

    use rustix::mm::{MapFlags, ProtFlags};

    /// On each side; a multiple of every page size, and more than any record.
    const GUARD_BYTES: usize = 1 << 20;

    pub(super) fn reserve(len: usize) -> std::io::Result<(*mut c_void, MapFlags)> {
        let all = GUARD_BYTES + len.next_multiple_of(4096) + GUARD_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint lets the kernel choose a free range, so no other mapping is replaced.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), all, ProtFlags::empty(), flags) }?;
        Ok((start.wrapping_byte_add(GUARD_BYTES), MapFlags::FIXED))
    }

    pub(super) fn with(base: *mut c_void, len: usize) -> (*mut c_void, usize) {
        (base.wrapping_byte_sub(GUARD_BYTES), GUARD_BYTES + len.next_multiple_of(4096) + GUARD_BYTES)
    }
}

/// Makes the compiler believe that memory has changed, so that a copy which has been checked is not
/// silently replaced by a second read of the region (a "double fetch" that the source does not
/// show). No instruction.
#[inline(always)]
fn forget_what_was_read() {
    // SAFETY: an empty instruction; it touches no register and no stack, and merely may touch
    // memory.
    unsafe { std::arch::asm!("", options(nostack, preserves_flags)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};

    fn region() -> Region {
        let memory = crate::memfd::sealed("test", 8192).unwrap();
        Region::map(&memory, 8192).unwrap()
    }

    #[test]
    fn words_and_bytes_are_the_same_memory() {
        let region = region();
        region.store_u64(8184, u64::from_le_bytes(*b"abcdefgh"), SeqCst);
        let mut bytes = [0; 3];
        region.copy_out(8186, &mut bytes);
        assert_eq!(&bytes, b"cde");
        region.copy_in(8184, b"xy");
        let mut more = b">".to_vec();
        region.append_to(8184, 3, &mut more);
        assert_eq!(more, b">xyc");
        assert_eq!(region.swap_u64(8184, 7, Relaxed).to_le_bytes(), *b"xycdefgh");
        assert_eq!(region.load_u64(8184, Relaxed), 7);
        assert_eq!(region.or_u64(8184, 9, Relaxed), 7);
        assert_eq!(region.load_u64(8184, Relaxed), 15);
        region.put_words(8171, [1 << 56, u64::from_le_bytes(*b"12345678")]);
        assert_eq!(region.words::<1>(8179).map(u64::to_le_bytes), [*b"12345678"]);
        region.copy_out(8178, &mut bytes);
        assert_eq!(&bytes, b"\x0112");
    }

    #[test]
    fn memory_is_provided_before_it_is_used() {
        let memory = crate::memfd::sealed("test", 1 << 20).unwrap();
        let region = Region::map(&memory, 1 << 20).unwrap();
        assert_eq!(crate::memfd::resident_bytes(&memory).unwrap(), 0);
        region.store_u64(4096, 7, SeqCst);
        region.populate().unwrap();
        assert_eq!(crate::memfd::resident_bytes(&memory).unwrap(), 1 << 20);
        assert_eq!(region.load_u64(4096, SeqCst), 7);
    }

    #[test]
    fn what_a_region_keeps_is_closed_with_it() {
        let (listener, ringer) = crate::doorbell::pair().unwrap();
        let region = region().keeping(ringer);
        assert!(!crate::doorbell::is_dead(&listener).unwrap());
        drop(region);
        assert!(crate::doorbell::is_dead(&listener).unwrap());
    }

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let memory = crate::memfd::sealed("test", 4096).unwrap();
        let (one, other) = (Region::map(&memory, 4096).unwrap(), Region::map(&memory, 4096).unwrap());
        one.copy_in(100, b"hello");
        let mut bytes = [0; 5];
        other.copy_out(100, &mut bytes);
        assert_eq!(&bytes, b"hello");
    }

    #[test]
    #[should_panic(expected = "word out of region")]
    fn a_word_beyond_the_end_is_refused() {
        let _ = region().load_u64(8192, Relaxed);
    }

    #[test]
    #[should_panic(expected = "bytes out of region")]
    fn bytes_beyond_the_end_are_refused() {
        region().copy_out(8190, &mut [0; 3]);
    }

    #[test]
    #[should_panic(expected = "bytes out of region")]
    fn words_beyond_the_end_are_refused() {
        region().put_words(8180, [1, 2]);
    }

    #[test]
    #[should_panic(expected = "bytes out of region")]
    fn an_offset_that_would_overflow_is_refused() {
        region().copy_in(usize::MAX, &[0; 3]);
    }
}
