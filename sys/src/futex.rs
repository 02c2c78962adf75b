//! Futexes in shared memory: the low half of a word on which one party sleeps and another wakes it.
//!
//! Only the kernel looks at the half word; programs touch the whole one. Whoever else has the
//! memory may change it, wake the sleeper for nothing, or move it to another futex: a sleep can be
//! trusted to end at its time, and for nothing else.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::thread::{ClockId, futex};

use crate::region::Region;

/// Most words that [`Region::sleep_on_any`] sleeps on: as many as futex_waitv(2) takes, less one.
pub const WORDS_MAX: usize = 127;

/// Why a sleep has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Somebody woke us, the word was another one by then, or a signal came: look again.
    Perhaps,
    /// The time is over.
    TimeOver,
    /// The kernel does not let us sleep here.
    Never,
}

impl Region {
    /// Sleeps while the low half of the word at `offset` is that of `expected`, at most for
    /// `at_most`.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range.
    #[must_use]
    pub fn sleep(&self, offset: usize, expected: u64, at_most: Duration) -> Woken {
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        // Shared, not private: the other end has it at another address, in another process.
        let flags = futex::Flags::empty();
        match futex::wait(self.low_half(offset), flags, low_half(expected), Some(&timeout)) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Woken::Perhaps,
            Err(Errno::TIMEDOUT) => Woken::TimeOver,
            Err(_) => Woken::Never,
        }
    }

    /// As [`Region::sleep`], on one word in each of several regions, as many as [`WORDS_MAX`]:
    /// until somebody wakes any of them.
    ///
    /// # Panics
    /// If an offset is unaligned or out of range.
    #[must_use]
    pub fn sleep_on_any(words: &[(&Region, usize, u64)], at_most: Duration) -> Woken {
        let mut waits = [futex::Wait::new(); WORDS_MAX];
        if words.is_empty() || words.len() > WORDS_MAX {
            return Woken::Never;
        }
        for (wait, (region, offset, expected)) in waits.iter_mut().zip(words) {
            let half: *const AtomicU32 = region.low_half(*offset);
            wait.uaddr = futex::WaitPtr::new(half.cast_mut().cast());
            wait.val = u64::from(low_half(*expected));
            // Shared, not private, as in `sleep`.
            wait.flags = futex::WaitFlags::SIZE_U32;
        }
        // The kernel takes a time of the clock here, and no span.
        let end = u128::from(crate::clock::clock_ns()) + at_most.as_nanos();
        let until = Timespec {
            tv_sec: i64::try_from(end / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(end % 1_000_000_000).unwrap_or(0),
        };
        let waits = waits.get(..words.len()).unwrap_or_default();
        match futex::waitv(waits, futex::WaitvFlags::empty(), Some(&until), ClockId::Monotonic) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Woken::Perhaps,
            Err(Errno::TIMEDOUT) => Woken::TimeOver,
            // Linux before 5.16, or a filter of system calls that does not know it.
            Err(_) => Woken::Never,
        }
    }

    /// Wakes one that sleeps on the word at `offset`: an honest word has one sleeper, and a peer
    /// that lets a thousand threads sleep on its own must not make our call as long as that. False:
    /// nobody did.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range.
    pub fn wake(&self, offset: usize) -> bool {
        // A failure to wake leaves the sleeper to its time, like a peer that does not wake it.
        futex::wake(self.low_half(offset), futex::Flags::empty(), 1).is_ok_and(|woken| woken > 0)
    }

    /// The half word for the kernel: nobody loads or stores through it here.
    fn low_half(&self, offset: usize) -> &AtomicU32 {
        let at = self.place_of(offset, 8);
        let low = if cfg!(target_endian = "little") { at } else { at.wrapping_add(4) };
        // SAFETY: inside the mapping, as `place_of` has checked, and aligned to 4 because `offset`
        // is to 8; the mapping lives as long as the borrow of `self`. The kernel's access is
        // atomic, and ours are, too.
        unsafe { AtomicU32::from_ptr(low.cast()) }
    }
}

fn low_half(word: u64) -> u32 {
    (word & u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    fn region() -> Region {
        Region::map(crate::memfd::sealed("test", 4096).unwrap(), 4096).unwrap()
    }

    #[test]
    fn a_sleep_ends_at_its_time_and_does_not_begin_on_another_word() {
        let region = region();
        let start = crate::clock::clock_ns();
        assert_eq!(region.sleep(8, 0, Duration::from_millis(3)), Woken::TimeOver);
        assert!(crate::clock::clock_ns() - start >= 3_000_000);
        region.store_u64(8, 2, SeqCst);
        assert_eq!(region.sleep(8, 0, Duration::from_secs(60)), Woken::Perhaps);
        assert!(!region.wake(8), "nobody sleeps");
    }

    #[test]
    fn only_the_low_half_counts() {
        let region = region();
        region.store_u64(16, (7 << 32) | 2, SeqCst);
        assert_eq!(region.sleep(16, 2, Duration::from_millis(1)), Woken::TimeOver);
    }

    #[test]
    fn a_sleep_on_several_words_ends_with_any_of_them() {
        let (one, other) = (region(), region());
        let words = [(&one, 8, 2), (&other, 16, 2)];
        other.store_u64(16, 3, SeqCst);
        let ended = Region::sleep_on_any(&words, Duration::from_secs(60));
        if ended == Woken::Never {
            println!("skipped: this kernel does not know futex_waitv(2) (Linux 5.16 does)");
            return;
        }
        assert_eq!(ended, Woken::Perhaps);
        other.store_u64(16, 2, SeqCst);
        one.store_u64(8, 2, SeqCst);
        let start = crate::clock::clock_ns();
        assert_eq!(Region::sleep_on_any(&words, Duration::from_millis(3)), Woken::TimeOver);
        assert!(crate::clock::clock_ns() - start >= 3_000_000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while other.load_u64(16, SeqCst) == 2 {
                    assert_ne!(Region::sleep_on_any(&words, Duration::from_secs(60)), Woken::Never);
                }
            });
            other.store_u64(16, 5, SeqCst);
            other.wake(16);
        });
        assert_eq!(Region::sleep_on_any(&[], Duration::ZERO), Woken::Never);
    }

    #[test]
    fn a_sleeper_is_woken_through_another_mapping() {
        let memory = crate::memfd::sealed("test", 4096).unwrap();
        let (one, other) = (Region::map(&memory, 4096).unwrap(), Region::map(&memory, 4096).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while one.sleep(64, 0, Duration::from_secs(60)) == Woken::Perhaps
                    && one.load_u64(64, SeqCst) == 0
                {}
            });
            other.store_u64(64, 1, SeqCst);
            other.wake(64);
        });
    }
}
