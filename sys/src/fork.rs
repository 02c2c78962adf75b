//! Noticing, by one load, that this process is the child of a fork: what the parent holds open is not the child's to use.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A page is the least that the kernel wipes.
const PAGE_BYTES: usize = 4096;

/// The word that says which process this is: it lies in a page that the kernel wipes in the child of a fork. Null until somebody
/// asks, and for good after that.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Processes of this line so far. A child inherits the count, so its own number is none that its parents ever had.
static PROCESSES: AtomicU64 = AtomicU64::new(0);

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u64);

impl Origin {
    /// This process.
    ///
    /// # Errors
    /// Those of mmap(2) and madvise(2): no memory, or a kernel before 4.14.
    pub fn here() -> io::Result<Origin> {
        let word = match word() {
            Some(word) => word,
            None => make_word()?,
        };
        let number = word.load(Ordering::Relaxed);
        if number != 0 {
            return Ok(Origin(number));
        }
        let number = PROCESSES.fetch_add(1, Ordering::Relaxed) + 1;
        // Another thread may have been first; its number is this process's, too.
        let known = word.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        Ok(Origin(known.err().unwrap_or(number)))
    }

    /// Whether this is the process that it was made in, and no child of it. (A child that shares its parent's memory, as that of
    /// vfork does, is the same process here.)
    #[inline]
    #[must_use]
    pub fn is_here(self) -> bool {
        word().is_some_and(|word| word.load(Ordering::Relaxed) == self.0)
    }
}

#[inline]
fn word() -> Option<&'static AtomicU64> {
    let word = WORD.load(Ordering::Acquire);
    // SAFETY: null, or the start of a page that `make_word` mapped and published, which is never unmapped. The kernel's wipe
    // happens before the child runs.
    unsafe { word.as_ref() }
}

fn make_word() -> io::Result<&'static AtomicU64> {
    // SAFETY: a null hint lets the kernel choose a free range, so no other mapping is replaced.
    let page = unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE_BYTES, protection, MapFlags::PRIVATE)
    }?;
    // SAFETY: our own private page, which nobody knows of yet.
    let wiped = unsafe { rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) };
    let published = wiped.map(|()| {
        WORD.compare_exchange(ptr::null_mut(), page.cast(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    });
    if published != Ok(true) {
        // SAFETY: the page that was just made; it was not published, so nobody has a pointer into it.
        let unmapped = unsafe { rustix::mm::munmap(page, PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
    published?;
    word().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself_in_all_its_threads() {
        let here = Origin::here().unwrap();
        assert!(here.is_here());
        let there = std::thread::spawn(|| Origin::here().unwrap()).join().unwrap();
        assert_eq!(here, there);
    }

    #[test]
    fn the_child_of_a_fork_is_another_and_so_is_its_own_child() {
        let parents = Origin::here().unwrap();
        let (listener, ringer) = crate::doorbell::pair().unwrap();
        // SAFETY: the child makes system calls and touches atomics only, and ends without running anything of its parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut good = !parents.is_here();
            let own = Origin::here().ok();
            good &= own.is_some_and(|own| own != parents && own.is_here() && !parents.is_here());
            // SAFETY: as above.
            let grandchild = unsafe { libc::fork() };
            if grandchild == 0 {
                good &=
                    own.is_some_and(|own| !own.is_here() && Origin::here().is_ok_and(|third| third != own));
                good &= !parents.is_here();
                if good {
                    let _heard = crate::doorbell::ring(&ringer);
                }
            } else if good {
                let _heard = crate::doorbell::ring(&ringer);
            }
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0, "fork: {}", io::Error::last_os_error());
        drop(ringer);
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, ptr::null_mut(), 0) }, child);
        let mut rings = 0;
        let mut one = [0];
        loop {
            match rustix::io::read(&listener, &mut one) {
                Ok(1) => rings += 1,
                Ok(_) => break,
                Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(rings, 2, "the child and the grandchild");
        assert!(parents.is_here());
    }
}
