//! The processor that we run on, and those that we may run on.

use std::io;

use rustix::thread::CpuSet;

/// The processor that the calling thread runs on now; it may move at any time.
#[inline]
#[must_use]
pub fn current() -> u32 {
    // SAFETY: no precondition. The C library reads it from memory that the kernel keeps up to date.
    let processor = unsafe { libc::sched_getcpu() };
    u32::try_from(processor).unwrap_or(0)
}

/// The processors that the calling thread may run on, in ascending order.
///
/// # Errors
/// Those of sched_getaffinity(2).
pub fn allowed() -> io::Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU as u32).filter(|&processor| set.is_set(processor as usize)).collect())
}

/// Keeps the calling thread on these processors.
///
/// # Errors
/// Those of sched_setaffinity(2), and `InvalidInput` for a number beyond what the kernel's set
/// holds.
pub fn pin(processors: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &processor in processors {
        if processor as usize >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set.set(processor as usize);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_where_it_should_be() {
        for processor in allowed().unwrap() {
            pin(&[processor]).unwrap();
            assert_eq!(current(), processor);
            assert_eq!(allowed().unwrap(), [processor]);
        }
        assert!(pin(&[1_000_000]).is_err());
    }
}
