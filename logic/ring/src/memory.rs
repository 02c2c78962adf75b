//! The demands of the algorithm on shared memory.

use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use sys::region::Region;

/// Shared memory of which another party may change any byte at any time.
///
/// Offsets are in bytes from the region's start; words are 64 bits and aligned. Offsets come from
/// [`crate::Place`] and never from the other party, so an implementation may panic when one is out
/// of range.
pub trait Memory {
    /// Loads a word.
    fn load(&self, offset: usize, order: Ordering) -> u64;
    /// Stores a word.
    fn store(&self, offset: usize, value: u64, order: Ordering);
    /// Stores a word and returns what was there.
    fn swap(&self, offset: usize, value: u64, order: Ordering) -> u64;
    /// A sequentially consistent fence: what I stored shows before I look at what others stored.
    fn fence(&self);
    /// The light side of [`Memory::barrier`]: keeps the compiler from moving my stores behind my
    /// looks, and leaves the processor to the other side's barrier. No instruction.
    fn no_fence(&self);
    /// Has every thread of the other party that does without a fence execute one, and executes one
    /// itself. False: it could not.
    fn barrier(&self) -> bool;
    /// Copies bytes into the region.
    fn copy_in(&self, offset: usize, from: &[u8]);
    /// Copies words into the region.
    fn put_words<const N: usize>(&self, offset: usize, words: [u64; N]) {
        for (index, word) in words.into_iter().enumerate() {
            self.copy_in(offset + index * size_of::<u64>(), &word.to_le_bytes());
        }
    }
    /// Copies words out of the region, each once.
    fn words<const N: usize>(&self, offset: usize) -> [u64; N] {
        std::array::from_fn(|index| {
            let mut word = [0; size_of::<u64>()];
            self.copy_out(offset + index * size_of::<u64>(), &mut word);
            u64::from_le_bytes(word)
        })
    }
    /// Says that the line at `offset` is going to be written soon.
    fn will_write(&self, offset: usize) {
        let _ = offset;
    }
    /// Copies bytes out of the region, once.
    fn copy_out(&self, offset: usize, into: &mut [u8]);
    /// Appends bytes of the region to `into`.
    fn append_to(&self, offset: usize, length: usize, into: &mut Vec<u8>) {
        let start = into.len();
        into.resize(start + length, 0);
        self.copy_out(offset, &mut into[start..]);
    }
}

impl Memory for Region {
    #[inline]
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.load_u64(offset, order)
    }
    #[inline]
    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.store_u64(offset, value, order);
    }
    #[inline]
    fn swap(&self, offset: usize, value: u64, order: Ordering) -> u64 {
        self.swap_u64(offset, value, order)
    }
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    #[inline]
    fn no_fence(&self) {
        compiler_fence(Ordering::SeqCst);
    }
    fn barrier(&self) -> bool {
        sys::membarrier::barrier()
    }
    #[inline]
    fn copy_in(&self, offset: usize, from: &[u8]) {
        Region::copy_in(self, offset, from);
    }
    #[inline]
    fn put_words<const N: usize>(&self, offset: usize, mut words: [u64; N]) {
        // No `map`: it is not always inlined, and costs more than the rest of a message.
        words.iter_mut().for_each(|word| *word = word.to_le());
        Region::put_words(self, offset, words);
    }
    #[inline]
    fn words<const N: usize>(&self, offset: usize) -> [u64; N] {
        let mut words = Region::words::<N>(self, offset);
        words.iter_mut().for_each(|word| *word = u64::from_le(*word));
        words
    }
    #[inline]
    fn will_write(&self, offset: usize) {
        self.prefetch_for_write(offset);
    }
    #[inline]
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        Region::copy_out(self, offset, into);
    }
    #[inline]
    fn append_to(&self, offset: usize, length: usize, into: &mut Vec<u8>) {
        Region::append_to(self, offset, length, into);
    }
}

impl<M: Memory> Memory for Arc<M> {
    #[inline]
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        (**self).load(offset, order)
    }
    #[inline]
    fn store(&self, offset: usize, value: u64, order: Ordering) {
        (**self).store(offset, value, order);
    }
    #[inline]
    fn swap(&self, offset: usize, value: u64, order: Ordering) -> u64 {
        (**self).swap(offset, value, order)
    }
    #[inline]
    fn fence(&self) {
        (**self).fence();
    }
    #[inline]
    fn no_fence(&self) {
        (**self).no_fence();
    }
    fn barrier(&self) -> bool {
        (**self).barrier()
    }
    #[inline]
    fn copy_in(&self, offset: usize, from: &[u8]) {
        (**self).copy_in(offset, from);
    }
    #[inline]
    fn put_words<const N: usize>(&self, offset: usize, words: [u64; N]) {
        (**self).put_words(offset, words);
    }
    #[inline]
    fn words<const N: usize>(&self, offset: usize) -> [u64; N] {
        (**self).words(offset)
    }
    #[inline]
    fn will_write(&self, offset: usize) {
        (**self).will_write(offset);
    }
    #[inline]
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        (**self).copy_out(offset, into);
    }
    #[inline]
    fn append_to(&self, offset: usize, length: usize, into: &mut Vec<u8>) {
        (**self).append_to(offset, length, into);
    }
}
