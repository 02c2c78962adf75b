//! Noticing, by one load, that this process is the child of a fork: what the parent holds open is
//! not the child's to use.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A page is the least that the kernel wipes.
const PAGE_BYTES: usize = 4096;

/// The word that says which process this is: it lies in a page that the kernel wipes in the child
/// of a fork. Null until somebody asks, and for good after that.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Processes of this line so far. A child inherits the count, so its own number is none that its
/// parents ever had.
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

    /// Whether this is the process that it was made in, and no child of it. (A child that shares
    /// its parent's memory, as that of vfork does, is the same process here.)
    #[inline]
    #[must_use]
    pub fn is_here(self) -> bool {
        word().is_some_and(|word| word.load(Ordering::Relaxed) == self.0)
    }
}

/// Runs `work` in the child of a fork, and waits for it to end: for tests of what a fork inherits.
/// Returns whether `work` said true.
///
/// The child has a copy of the caller's thread alone: a lock that another thread held stays held
/// there for good, so `work` takes none that others take (allocating is safe with glibc). Nothing
/// of the child is dropped or flushed at its end.
///
/// # Errors
/// Those of fork(2) and waitpid(2).
pub fn in_child(work: impl FnOnce() -> bool) -> io::Result<bool> {
    // SAFETY: the child goes on in this function alone, with a copy of this thread and of all
    // memory, and leaves it by `_exit`; a panic does not pass.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: ends this process at once, and runs nothing.
        unsafe { libc::_exit(if done { 0 } else { 1 }) };
    }
    let child = rustix::process::Pid::from_raw(child).ok_or_else(io::Error::last_os_error)?;
    let wait = || rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
    let ended = rustix::io::retry_on_intr(wait)?;
    Ok(ended.is_some_and(|(_, status)| status.exit_status() == Some(0)))
}

#[inline]
fn word() -> Option<&'static AtomicU64> {
    let word = WORD.load(Ordering::Acquire);
    // SAFETY: null, or the start of a page that `make_word` mapped and published, which is never
    // unmapped. The kernel's wipe happens before the child runs.
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
        // SAFETY: the page that was just made; it was not published, so nobody has a pointer into
        // it.
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
        let good = in_child(|| {
            let Ok(own) = Origin::here() else { return false };
            let other = !parents.is_here() && own != parents && own.is_here();
            let grandchild = in_child(|| {
                let third = Origin::here();
                !own.is_here()
                    && !parents.is_here()
                    && third.is_ok_and(|third| third != own && third != parents)
            });
            other && grandchild.is_ok_and(|good| good) && own.is_here()
        });
        assert!(good.unwrap());
        assert!(parents.is_here());
        assert!(!in_child(|| false).unwrap());
        // Without the hook, whose locks another thread of the test program may have held at the
        // fork.
        assert!(!in_child(|| std::panic::resume_unwind(Box::new("stays in the child"))).unwrap());
    }
}
