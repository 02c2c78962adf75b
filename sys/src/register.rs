//! A register of a device: memory in which a store is a deed.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags};

/// A 32-bit register of a device, mapped. Unmapped on drop.
#[derive(Debug)]
pub struct Register {
    base: NonNull<u8>,
    len: usize,
    offset: usize,
}

// SAFETY: the mapping is this value's own and has no thread affinity; see also `Sync`.
unsafe impl Send for Register {}
// SAFETY: the one access is a volatile store of an aligned word, which a device takes whole, and
// which two threads may make at once: the device sees both.
unsafe impl Sync for Register {}

impl Register {
    /// Maps the first `len` bytes of a device's memory (or of a sealed memfd that stands for it),
    /// for the register at `offset`.
    ///
    /// The caller has seen to it that the memory cannot shrink, as for
    /// [`crate::region::Region::map`].
    ///
    /// # Errors
    /// Those of mmap(2); `InvalidInput` when the register is unaligned or not within `len`.
    pub fn map(memory: impl AsFd, len: usize, offset: usize) -> io::Result<Register> {
        let inside = offset.is_multiple_of(4) && offset.checked_add(4).is_some_and(|end| end <= len);
        if !inside {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose a free range, so no other mapping is replaced.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, memory, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Register { base, len, offset })
    }

    /// Stores a word. What was stored to ordinary memory before shows before.
    pub fn store(&self, word: u32) {
        fence(Ordering::SeqCst);
        // SAFETY: inside the mapping and aligned, as `map` has checked (a mapping starts on a
        // page); alive as long as `self`. Nobody has a reference to it, and the store is volatile,
        // so it is made once, whole.
        unsafe { self.base.as_ptr().add(self.offset).cast::<u32>().write_volatile(word.to_le()) }
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` made; nothing of it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_lands_at_its_offset() {
        let memory = crate::memfd::sealed("test", 4096).unwrap();
        Register::map(&memory, 256, 12).unwrap().store(0x0001_0002);
        let mut bytes = [0; 20];
        rustix::io::pread(&memory, &mut bytes, 0).unwrap();
        assert_eq!(
            (&bytes[..12], &bytes[12..16], &bytes[16..]),
            (&[0; 12][..], &[2, 0, 1, 0][..], &[0; 4][..])
        );
    }

    #[test]
    fn a_register_outside_is_refused() {
        let memory = crate::memfd::sealed("test", 4096).unwrap();
        for offset in [253, 254, 256, usize::MAX, usize::MAX - 3] {
            assert!(Register::map(&memory, 256, offset).is_err(), "{offset}");
        }
    }
}
