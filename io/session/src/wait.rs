//! Waiting for one descriptor until a deadline.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Waits until `descriptor` can be read, or has failed. `Ok(false)`: the deadline came first.
pub fn wait_readable(descriptor: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<bool, Errno> {
    wait(descriptor, PollFlags::IN, deadline)
}

/// Waits until `descriptor` can be written, or has failed. `Ok(false)`: the deadline came first.
pub fn wait_writable(descriptor: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<bool, Errno> {
    wait(descriptor, PollFlags::OUT, deadline)
}

/// Waits for the time alone.
pub fn pause_until(deadline: Instant) {
    while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        let _interrupted_is_fine = poll(&mut [], Some(&timespec(left)));
    }
}

fn wait(descriptor: BorrowedFd<'_>, flags: PollFlags, deadline: Option<Instant>) -> Result<bool, Errno> {
    loop {
        let left = deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
        match poll(&mut [PollFd::from_borrowed_fd(descriptor, flags)], left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The kernel's form of a duration.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
