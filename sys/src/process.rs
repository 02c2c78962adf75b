//! Processes: handles that can't be reused under us, and what happens to children.

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal};

fn pid(number: u32) -> io::Result<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// A handle of the process `number`: readable when it has ended, and never another process.
///
/// # Errors
/// Those of pidfd_open(2); `InvalidInput` for 0 or a number beyond the kernel's.
pub fn pidfd_open(number: u32) -> io::Result<OwnedFd> {
    Ok(rustix::process::pidfd_open(pid(number)?, PidfdFlags::empty())?)
}

/// Duplicates descriptor `number` of the process behind `pidfd`, close-on-exec.
///
/// # Errors
/// Those of pidfd_getfd(2).
pub fn pidfd_getfd(pidfd: impl AsFd, number: RawFd) -> io::Result<OwnedFd> {
    Ok(rustix::process::pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())?)
}

/// Sends a signal to the process behind `pidfd`.
///
/// # Errors
/// Those of pidfd_send_signal(2).
pub fn pidfd_send_signal(pidfd: impl AsFd, signal: Signal) -> io::Result<()> {
    Ok(rustix::process::pidfd_send_signal(pidfd, signal)?)
}

/// Sends a signal to the process with this number, which must be a child not yet waited for: then
/// the number is its own.
///
/// # Errors
/// Those of kill(2); `InvalidInput` for 0 or a number beyond the kernel's.
pub fn kill(number: u32, signal: Signal) -> io::Result<()> {
    Ok(rustix::process::kill_process(pid(number)?, signal)?)
}

/// Whether `thread` is the number of a thread of the process with the number `process` now.
#[must_use]
pub fn is_thread_of(process: u32, thread: u32) -> bool {
    let (Ok(process), Ok(thread)) = (libc::pid_t::try_from(process), libc::pid_t::try_from(thread)) else {
        return false;
    };
    // SAFETY: the call takes three numbers, and signal 0 is sent to nobody.
    let found = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    found == 0 || io::Error::last_os_error().kind() == io::ErrorKind::PermissionDenied
}

/// Whether the process behind a handle has ended with all its threads. Never waits.
#[must_use]
pub fn has_ended(pidfd: impl AsFd) -> bool {
    let mut wait = [PollFd::new(&pidfd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::io::retry_on_intr(|| poll(&mut wait, Some(&at_once))).is_ok_and(|ended| ended > 0)
}

/// Has the kernel send `signal` to this process when the *thread* that started it ends.
///
/// # Errors
/// Those of prctl(2).
pub fn set_parent_death_signal(signal: Option<Signal>) -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(signal)?)
}

/// Has the command's process killed when the *thread* that starts it ends, however that comes. Not
/// started at all if that has happened by then.
pub fn kill_with_parent(command: &mut Command) -> &mut Command {
    let parent = rustix::process::getpid();
    let arm = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // Whoever has become its parent since then will not be waited for.
        if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: the closure runs between fork and exec and does nothing but two system calls; its
    // errors are plain numbers, so nothing is allocated.
    unsafe { command.pre_exec(arm) }
}

/// Makes this process the new parent of its orphaned descendants.
///
/// # Errors
/// Those of prctl(2).
pub fn set_child_subreaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Gives up, for this thread and what it starts, every privilege that an exec could add.
///
/// # Errors
/// Those of prctl(2).
pub fn set_no_new_privileges() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_pidfd_reaches_our_own_descriptors() {
        let me = pidfd_open(std::process::id()).unwrap();
        let event = crate::eventfd::Eventfd::new().unwrap();
        let copy = pidfd_getfd(&me, event.as_fd().as_raw_fd()).unwrap();
        rustix::io::write(&copy, &1_u64.to_ne_bytes()).unwrap();
        assert!(event.drain());
    }

    #[test]
    fn a_thread_is_its_own_processs_alone() {
        let (mut child, own) = (Command::new("sleep").arg("60").spawn().unwrap(), std::process::id());
        let of_child = pidfd_open(child.id()).unwrap();
        assert!(is_thread_of(own, own) && is_thread_of(child.id(), child.id()));
        assert!(!is_thread_of(own, child.id()) && !is_thread_of(child.id(), own) && !has_ended(&of_child));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_thread_of(child.id(), child.id()) && has_ended(&of_child));
        assert!(!is_thread_of(u32::MAX, 1));
    }

    #[test]
    fn impossible_numbers_are_refused() {
        assert_eq!(pidfd_open(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(pidfd_open(u32::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
