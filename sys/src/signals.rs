//! Signals as a descriptor (`signalfd(2)`), for loops that wait for descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals that the calling thread no longer takes asynchronously but reads, one by one.
///
/// They stay blocked in that thread after the descriptor is gone: it is for a process with one
/// thread. Its children inherit that; see [`unblock_in_child`].
#[derive(Debug)]
pub struct SignalDescriptor(OwnedFd);

impl SignalDescriptor {
    /// Blocks `signals` (numbers as in `signal(7)`) in the calling thread and opens a non-blocking,
    /// close-on-exec descriptor that is readable while one of them is pending.
    ///
    /// # Errors
    /// `EINVAL` for a number that is no signal; `EMFILE`, `ENFILE`, `ENOMEM` when the table of
    /// descriptors is full.
    pub fn block(signals: &[i32]) -> io::Result<Self> {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `set` is a valid place for a `sigset_t`, and `sigemptyset` initializes all of it.
        let mut set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        for &signal in signals {
            // SAFETY: `set` is an initialized `sigset_t`; a bad number is answered with an error.
            if unsafe { libc::sigaddset(&mut set, signal) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: `set` is initialized and outlives the call; the old mask is not asked for.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: -1 asks for a new descriptor; `set` is initialized and outlives the call.
        let raw = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` was just opened by the kernel for us and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(raw) }))
    }

    /// Takes the next pending signal's number; `None` when there is none.
    ///
    /// # Errors
    /// Those of `read(2)`, but for `EAGAIN`.
    pub fn take(&self) -> io::Result<Option<i32>> {
        let mut record = std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = std::mem::size_of::<libc::signalfd_siginfo>();
        // SAFETY: `record` is writable for `size` bytes, and the descriptor is a signalfd, which
        // writes whole records.
        let read = unsafe { libc::read(self.0.as_raw_fd(), record.as_mut_ptr().cast(), size) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        if read as usize != size {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        // SAFETY: the kernel filled the whole record, and it is plain integers.
        let record = unsafe { record.assume_init() };
        Ok(i32::try_from(record.ssi_signo).ok())
    }
}

/// Has the command's process start with no signal blocked, whatever is blocked in ours.
pub fn unblock_in_child(command: &mut Command) -> &mut Command {
    // SAFETY: the closure runs between fork and exec and does nothing but two async-signal-safe
    // calls on its own stack.
    unsafe {
        command.pre_exec(|| {
            let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            match libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut()) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        })
    }
}

impl AsFd for SignalDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Runs `work` with all signals blocked in the calling thread, so that a thread that it starts
/// takes none of a program whose handlers do not expect it.
pub fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both are valid places for a `sigset_t`; `sigfillset` initializes `all` before it is
    // used.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    let result = work();
    if blocked == 0 {
        // SAFETY: the first call succeeded, so it has initialized `before`; the present mask is not
        // asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_read_and_a_child_starts_unblocked() {
        // A thread of its own: what is blocked here stays blocked.
        let child = std::thread::spawn(|| {
            let signals = SignalDescriptor::block(&[libc::SIGUSR1]).unwrap();
            assert_eq!(signals.take().unwrap(), None);
            // SAFETY: plain system calls; the signal is blocked in this thread, to which it is
            // sent.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
            assert_eq!(signals.take().unwrap(), Some(libc::SIGUSR1));
            let mut command = Command::new("grep");
            command.args(["SigBlk", "/proc/self/status"]);
            unblock_in_child(&mut command).output().unwrap()
        });
        let output = String::from_utf8(child.join().unwrap().stdout).unwrap();
        assert_eq!(output.trim(), "SigBlk:\t0000000000000000");
    }
}
