//! Scheduling classes of threads, by the kernel's own call (sched_setattr(2)), and sleeping until a
//! time.

use std::io;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::AtomicU32;

use rustix::fs::Timespec;
use rustix::process::{Pid, Resource, Rlimit};
use rustix::thread::{CpuSet, futex};

/// The class of a thread, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_OTHER`, with a nice value.
    Other {
        /// -20 to 19.
        nice: i32,
    },
    /// `SCHED_BATCH`, with a nice value.
    Batch {
        /// -20 to 19.
        nice: i32,
    },
    /// `SCHED_IDLE`.
    Idle,
    /// `SCHED_FIFO`.
    Fifo {
        /// 1 to 99.
        priority: u32,
    },
    /// `SCHED_RR`.
    RoundRobin {
        /// 1 to 99.
        priority: u32,
    },
    /// `SCHED_DEADLINE`.
    Deadline {
        /// Processor time in each period, in ns.
        runtime_ns: u64,
        /// By when, in ns.
        deadline_ns: u64,
        /// The period, in ns.
        period_ns: u64,
    },
}

impl Class {
    /// Whether ordinary threads wait for one of this class.
    #[must_use]
    pub const fn is_real_time(self) -> bool {
        matches!(self, Self::Fifo { .. } | Self::RoundRobin { .. } | Self::Deadline { .. })
    }
}

fn raw_pid(thread: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn empty() -> libc::sched_attr {
    libc::sched_attr {
        size: std::mem::size_of::<libc::sched_attr>() as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}

/// Puts the thread with this number (0: the calling one) into a class. What a thread in a real-time
/// class starts is an ordinary thread, never one of that class (`SCHED_FLAG_RESET_ON_FORK`).
///
/// # Errors
/// Those of sched_setattr(2): `ESRCH` where it is gone, `EPERM` without the right or without
/// real-time bandwidth in its cgroup, `EBUSY` where the deadline class is full.
pub fn set_class(thread: u32, class: Class) -> io::Result<()> {
    let mut attributes = empty();
    match class {
        Class::Other { nice } => attributes.sched_nice = nice,
        Class::Batch { nice } => {
            attributes.sched_policy = libc::SCHED_BATCH as u32;
            attributes.sched_nice = nice;
        }
        Class::Idle => attributes.sched_policy = libc::SCHED_IDLE as u32,
        Class::Fifo { priority } => {
            attributes.sched_policy = libc::SCHED_FIFO as u32;
            attributes.sched_priority = priority;
        }
        Class::RoundRobin { priority } => {
            attributes.sched_policy = libc::SCHED_RR as u32;
            attributes.sched_priority = priority;
        }
        Class::Deadline { runtime_ns, deadline_ns, period_ns } => {
            attributes.sched_policy = libc::SCHED_DEADLINE as u32;
            attributes.sched_runtime = runtime_ns;
            attributes.sched_deadline = deadline_ns;
            attributes.sched_period = period_ns;
        }
    }
    if class.is_real_time() {
        attributes.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    }
    let thread = raw_pid(thread)?;
    // SAFETY: `attributes` is initialized, says its own size, and outlives the call, which only
    // reads it.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The class of the thread with this number (0: the calling one). One that we do not know is told
/// as `SCHED_OTHER`.
///
/// # Errors
/// Those of sched_getattr(2).
pub fn class(thread: u32) -> io::Result<Class> {
    let mut attributes = empty();
    let thread = raw_pid(thread)?;
    let size = attributes.size;
    // SAFETY: `attributes` is writable for the size that is said, and outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let policy = i32::try_from(attributes.sched_policy).unwrap_or(libc::SCHED_OTHER);
    let (nice, priority) = (attributes.sched_nice, attributes.sched_priority);
    Ok(match policy {
        libc::SCHED_BATCH => Class::Batch { nice },
        libc::SCHED_IDLE => Class::Idle,
        libc::SCHED_FIFO => Class::Fifo { priority },
        libc::SCHED_RR => Class::RoundRobin { priority },
        libc::SCHED_DEADLINE => Class::Deadline {
            runtime_ns: attributes.sched_runtime,
            deadline_ns: attributes.sched_deadline,
            period_ns: attributes.sched_period,
        },
        _ => Class::Other { nice },
    })
}

/// The processors that a thread (0: the calling one) may run on, in order.
///
/// # Errors
/// Those of sched_getaffinity(2).
pub fn affinity(thread: u32) -> io::Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(Pid::from_raw(raw_pid(thread)?))?;
    Ok((0..CpuSet::MAX_CPU as u32).filter(|&processor| set.is_set(processor as usize)).collect())
}

/// Lets a thread (0: the calling one) run on these processors alone.
///
/// # Errors
/// Those of sched_setaffinity(2), and `InvalidInput` for a number beyond what the kernel's set
/// holds.
pub fn set_affinity(thread: u32, processors: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &processor in processors {
        if processor as usize >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set.set(processor as usize);
    }
    Ok(rustix::thread::sched_setaffinity(Pid::from_raw(raw_pid(thread)?), &set)?)
}

/// Keeps all memory of this process, present and to come, from being paged out: a page fault is no
/// excuse for being late.
///
/// # Errors
/// Those of mlockall(2).
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: no precondition; it changes no memory.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sleeps while `word` is `expected`, at most until `until_ns` of the monotonic clock. May end
/// early for nothing.
pub fn sleep_until(word: &AtomicU32, expected: u32, until_ns: u64) {
    let until = Timespec {
        tv_sec: i64::try_from(until_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(until_ns % 1_000_000_000).unwrap_or(0),
    };
    // All ends mean the same to the caller: look again.
    let _ = futex::wait_bitset(word, futex::Flags::PRIVATE, expected, Some(&until), NonZeroU32::MAX);
}

/// Wakes who sleeps on `word`.
pub fn wake(word: &AtomicU32) {
    // A failure to wake leaves the sleeper to its time.
    let _ = futex::wake(word, futex::Flags::PRIVATE, u32::MAX >> 1);
}

/// Has the kernel end the command's process once it has used so many seconds of processor time.
pub fn limit_processor_seconds(command: &mut Command, seconds: u64) -> &mut Command {
    let limit = move || {
        let limit = Rlimit { current: Some(seconds), maximum: Some(seconds) };
        rustix::process::setrlimit(Resource::Cpu, limit)?;
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec and does nothing but one system call; its
    // error is a plain number.
    unsafe { command.pre_exec(limit) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_thread_is_in_the_class_that_it_was_put_into() {
        std::thread::spawn(|| {
            set_class(0, Class::Idle).unwrap();
            assert_eq!(class(0).unwrap(), Class::Idle);
            set_class(0, Class::Batch { nice: 3 }).unwrap();
            assert_eq!(class(0).unwrap(), Class::Batch { nice: 3 });
            match set_class(0, Class::RoundRobin { priority: 1 }) {
                Ok(()) => assert_eq!(class(0).unwrap(), Class::RoundRobin { priority: 1 }),
                Err(error) => println!("skipped: no real-time class here: {error}"),
            }
            set_class(0, Class::Other { nice: 4 }).unwrap();
            assert_eq!(class(0).unwrap(), Class::Other { nice: 4 });
        })
        .join()
        .unwrap();
        assert_eq!(set_class(u32::MAX, Class::Idle).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(class(i32::MAX as u32).is_err());
    }

    #[test]
    fn a_sleep_ends_at_its_time_or_with_the_word() {
        let word = AtomicU32::new(0);
        let until = crate::clock::clock_ns() + 3_000_000;
        while crate::clock::clock_ns() < until {
            sleep_until(&word, 0, until);
        }
        sleep_until(&word, 1, u64::MAX);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::SeqCst) == 0 {
                    sleep_until(&word, 0, u64::MAX / 2);
                }
            });
            word.store(1, Ordering::SeqCst);
            wake(&word);
        });
    }

    #[test]
    fn affinity_is_what_was_set() {
        std::thread::spawn(|| {
            let all = affinity(0).unwrap();
            set_affinity(0, &all[..1]).unwrap();
            assert_eq!(affinity(0).unwrap(), all[..1]);
        })
        .join()
        .unwrap();
        assert!(set_affinity(0, &[1_000_000]).is_err());
    }
}
