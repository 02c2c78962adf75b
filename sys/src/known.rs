//! Descriptors that are known by what they are, and not by their number alone: for libraries in
//! programs that are not ours.
//!
//! A daemon closes all that is open when it starts (`closefrom`), a shell puts files where it likes
//! (`dup2`), and a fork's child does both: the numbers of a library's descriptors are none of their
//! business, and neither can the library keep them. What stands at such a number afterwards is the
//! program's. A [`Known`] descriptor remembers device and inode of its file, and is neither used
//! nor closed once another file has its number; and it lies high, where programs that count on the
//! lowest free number do not come. The look costs an fstat(2) for each use and each close, so it is
//! for what is beside a system call in any case.
//!
//! Files that share one inode can't be told apart: eventfds, epolls, timers and the like. For those
//! the high number has to do, except for [`crate::eventfd::Eventfd`], which takes another kind of
//! file here. And nothing helps against a thread that replaces a number between the look and the
//! use.
//!
//! Our own programs have all their descriptors for themselves: there a `Known` is an ordinary
//! descriptor, until [`live_in_a_foreign_program`].

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::process::Resource;

/// Where numbers begin that a program does not come to by taking the lowest free one; and select(2)
/// ends there. Not higher: the kernel copies a table up to the highest number at each fork.
const HIGH: u64 = 1024;
/// The part of its numbers that a program with few of them keeps below ours.
const LOW_SHARE: (u64, u64) = (3, 4);

static IN_FOREIGN_PROGRAM: AtomicBool = AtomicBool::new(false);

/// Has every descriptor that becomes [`Known`] from now on be known by its file. For a library,
/// before its first descriptor.
pub fn live_in_a_foreign_program() {
    IN_FOREIGN_PROGRAM.store(true, Ordering::Relaxed);
}

/// Whether this process is a program that is not ours.
pub(crate) fn is_in_a_foreign_program() -> bool {
    IN_FOREIGN_PROGRAM.load(Ordering::Relaxed)
}

/// Device and inode.
type File = (u64, u64);

/// A descriptor, and of which file it is.
#[derive(Debug)]
pub struct Known {
    descriptor: ManuallyDrop<OwnedFd>,
    /// `None` in our own programs: nobody else closes anything there.
    file: Option<File>,
}

impl Known {
    /// Takes a descriptor, and moves it to a high number where the program is not ours.
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Known {
        if !is_in_a_foreign_program() {
            return Known { descriptor: ManuallyDrop::new(descriptor), file: None };
        }
        Known::at_its_number(raised(descriptor))
    }

    /// Takes a descriptor and leaves it where it is: one whose number the program is told, for
    /// select(2) among others.
    #[must_use]
    pub fn at_its_number(descriptor: OwnedFd) -> Known {
        // Of what can't be looked at, no file is known: it is never used, and never closed.
        let file = is_in_a_foreign_program().then(|| file_of(&descriptor).unwrap_or_default());
        Known { descriptor: ManuallyDrop::new(descriptor), file }
    }

    /// The descriptor, for one use.
    ///
    /// # Errors
    /// `EBADF`: the program has closed it, or put another file in its place.
    pub fn get(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.look()?)
    }

    /// As [`Known::get`], with the bare number of the error.
    ///
    /// # Errors
    /// As there.
    pub fn look(&self) -> Result<BorrowedFd<'_>, Errno> {
        if self.is_there() { Ok(self.descriptor.as_fd()) } else { Err(Errno::BADF) }
    }

    /// Whether it is still what it was.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.file.is_none_or(|file| file_of(&*self.descriptor).is_ok_and(|found| found == file))
    }

    /// Gives it up, as an ordinary descriptor, without a look: for whoever has just asked
    /// [`Known::is_there`].
    #[must_use]
    pub fn into_owned(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once: `this` is never dropped and not used after this, and `Known` has no
        // other field to be dropped.
        unsafe { ManuallyDrop::take(&mut this.descriptor) }
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let is_there = self.is_there();
        // SAFETY: taken once: the value is being dropped, and nothing looks at the field after
        // this.
        let descriptor = unsafe { ManuallyDrop::take(&mut self.descriptor) };
        if !is_there {
            // The program's, or nobody's.
            let _left_alone: RawFd = descriptor.into_raw_fd();
        }
    }
}

/// The number, for waiting: to wait for a file that has taken its place harms nobody. For whatever
/// else takes or gives something, [`Known::get`].
impl AsFd for Known {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl From<OwnedFd> for Known {
    fn from(descriptor: OwnedFd) -> Known {
        Known::new(descriptor)
    }
}

fn file_of(descriptor: impl AsFd) -> rustix::io::Result<File> {
    let stat = rustix::fs::fstat(descriptor)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The same file at a high number; where there is none left, it stays.
fn raised(descriptor: OwnedFd) -> OwnedFd {
    let most = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let (part, whole) = LOW_SHARE;
    let least = HIGH.min(most / whole * part);
    if u64::try_from(descriptor.as_raw_fd()).is_ok_and(|number| number >= least) {
        return descriptor;
    }
    let least = RawFd::try_from(least).unwrap_or(RawFd::MAX);
    rustix::io::fcntl_dupfd_cloexec(&descriptor, least).unwrap_or(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// These tests look at numbers and at a switch of the whole process, so they run in a child
    /// each.
    fn in_a_foreign_program(work: impl FnOnce() -> bool) {
        let work = || {
            live_in_a_foreign_program();
            work()
        };
        assert!(crate::fork::in_child(work).unwrap());
    }

    fn known() -> Known {
        Known::new(crate::doorbell::pair().unwrap().0)
    }

    #[test]
    fn in_our_own_programs_it_is_an_ordinary_descriptor() {
        let (listener, ringer) = crate::doorbell::pair().unwrap();
        let (number, known) = (ringer.as_raw_fd(), Known::new(ringer));
        assert_eq!(known.get().unwrap().as_raw_fd(), number);
        drop(known);
        assert!(crate::doorbell::is_dead(&listener).unwrap());
    }

    #[test]
    fn it_lies_high_and_goes_with_its_value() {
        in_a_foreign_program(|| {
            let (listener, ringer) = crate::doorbell::pair().unwrap();
            let known = Known::new(ringer);
            let number = known.as_fd().as_raw_fd();
            let is_high = number >= 256
                && rustix::io::fcntl_getfd(&known).unwrap().contains(rustix::io::FdFlags::CLOEXEC);
            drop(known);
            is_high && crate::doorbell::is_dead(&listener).unwrap()
        });
    }

    #[test]
    fn a_file_that_takes_its_number_is_neither_used_nor_closed() {
        in_a_foreign_program(|| {
            let known = known();
            let mut place = ManuallyDrop::new(
                // What a program does with a number that it takes for its own.
                known.as_fd().try_clone_to_owned().unwrap(),
            );
            let number = known.as_fd().as_raw_fd();
            let file = File::open("/proc/self/exe").unwrap();
            // The descriptor at `number` becomes the program's file.
            let mut at = ManuallyDrop::new(raw(number));
            rustix::io::dup2(&file, &mut at).unwrap();
            let refused = known.get().is_err_and(|error| error.raw_os_error() == Some(libc::EBADF));
            drop(known);
            // SAFETY: opened above, and not used after this.
            unsafe { ManuallyDrop::drop(&mut place) };
            refused && file_of(&*at).unwrap() == file_of(&file).unwrap()
        });
    }

    #[test]
    fn one_that_was_closed_is_refused_and_closed_no_second_time() {
        in_a_foreign_program(|| {
            let known = known();
            let number = known.as_fd().as_raw_fd();
            drop(raw(number));
            let refused =
                known.get().is_err() && known.is_there() == rustix::io::fcntl_getfd(raw_ref(number)).is_ok();
            drop(known);
            refused
        });
    }

    #[test]
    fn what_is_given_up_is_an_ordinary_descriptor_again() {
        in_a_foreign_program(|| {
            let known = known();
            let number = known.as_fd().as_raw_fd();
            let owned = known.into_owned();
            owned.as_raw_fd() == number && rustix::io::fcntl_getfd(&owned).is_ok()
        });
    }

    /// The number as a program has it that takes it for its own.
    fn raw(number: RawFd) -> OwnedFd {
        use std::os::fd::FromRawFd;
        // SAFETY: the number is open; that two values close it is what these tests are about.
        unsafe { OwnedFd::from_raw_fd(number) }
    }

    fn raw_ref(number: RawFd) -> BorrowedFd<'static> {
        // SAFETY: whether it is open is the question; it is not kept.
        unsafe { BorrowedFd::borrow_raw(number) }
    }
}
