//! Why a channel could not be made, or an end of it not opened.

use std::io;

use rustix::io::Errno;
use rustix::process::Resource;
use wire::ring as layout;

use crate::Mode;

/// Descriptors that making a channel takes at the most: those included that a pipe needs for a
/// moment.
const DESCRIPTORS_TO_MAKE: usize = 2 * layout::END_DESCRIPTORS + 1;

fn limit(of: Resource) -> Option<u64> {
    rustix::process::getrlimit(of).current
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "any number of".to_owned(), |limit| limit.to_string())
}

fn is_errno(error: &io::Error, one_of: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| one_of.contains(&errno))
}

impl CreateError {
    /// Names what kept the kernel from making the region.
    pub(crate) fn region(bytes: u64, source: io::Error) -> Self {
        if is_errno(&source, &[Errno::MFILE]) {
            CreateError::NoDescriptors { limit: limit(Resource::Nofile), source }
        } else if is_errno(&source, &[Errno::NOMEM, Errno::NOSPC]) {
            CreateError::NoMemory { bytes, source }
        } else {
            CreateError::Region(source)
        }
    }

    /// Names what kept the kernel from making a doorbell.
    pub(crate) fn doorbell(source: io::Error) -> Self {
        if is_errno(&source, &[Errno::MFILE]) {
            CreateError::NoDescriptors { limit: limit(Resource::Nofile), source }
        } else {
            CreateError::Doorbell(source)
        }
    }
}

impl OpenError {
    /// Names what kept the kernel from giving memory; `action` is what it was asked for.
    pub(crate) fn memory(action: &'static str, bytes: u64, source: io::Error) -> Self {
        if is_errno(&source, &[Errno::NOMEM, Errno::FAULT]) {
            OpenError::NoMemory { bytes, source }
        } else if is_errno(&source, &[Errno::PERM, Errno::ACCESS]) {
            OpenError::ReadOnly(source)
        } else {
            OpenError::System { action, source }
        }
    }

    pub(crate) fn lock(bytes: u64, source: io::Error) -> Self {
        // The limit allows it, and the pages can't be had.
        if is_errno(&source, &[Errno::AGAIN]) {
            return OpenError::NoMemory { bytes, source };
        }
        OpenError::Lock { bytes, limit: limit(Resource::Memlock), source }
    }

    /// Names a refusal of the kernel's that has a name.
    pub(crate) fn named(self) -> Self {
        match self {
            OpenError::System { source, .. } if is_errno(&source, &[Errno::MFILE]) => {
                OpenError::NoDescriptors { limit: limit(Resource::Nofile), source }
            }
            other => other,
        }
    }
}

/// Why a channel could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The size is not allowed.
    #[error("a ring can't have {ring_bytes} bytes: take a power of two from 4096 to 16777216")]
    RingBytes {
        /// The length that was asked for.
        ring_bytes: u32,
    },
    /// The kernel gave no shared memory.
    #[error("can't make the region of a channel")]
    Region(#[source] io::Error),
    /// No huge pages, and they were required.
    #[error(
        "can't make a channel's region of {bytes} bytes of huge pages: are enough free? See HugePages_Free in /proc/meminfo, and \
         write a larger number to /proc/sys/vm/nr_hugepages"
    )]
    HugePages {
        /// Bytes of the region, before they are rounded up to whole pages.
        bytes: u64,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The kernel has no memory for the region, or is not allowed to give it.
    #[error(
        "there is no memory for the {bytes} bytes of a channel's region: take smaller rings, or raise the memory limit (of the \
         cgroup, or RLIMIT_AS)"
    )]
    NoMemory {
        /// Bytes of the region.
        bytes: u64,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The process has no free descriptors.
    #[error(
        "this process has too few free descriptors for a channel, which takes up to {DESCRIPTORS_TO_MAKE}: it may have {} (RLIMIT_NOFILE; \
         raise it with `ulimit -n`, or with LimitNOFILE= of a unit)", limit_text(*limit)
    )]
    NoDescriptors {
        /// How many it may have; `None` is without a limit.
        limit: Option<u64>,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The kernel gave no pipe, or `/proc` is not mounted.
    #[error("can't make a doorbell of a channel (it needs /proc and free descriptors)")]
    Doorbell(#[source] io::Error),
}

/// Why an end could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It takes exactly [`End::DESCRIPTORS`] descriptors.
    #[error("an end of a channel has {expected} descriptors, not {got}")]
    Count {
        /// How many were given.
        got: usize,
        /// How many belong to an end.
        expected: usize,
    },
    /// A descriptor is not what should stand in its place.
    #[error("descriptor {index} of a channel's end is not {expected}")]
    Descriptor {
        /// Its place in the list.
        index: usize,
        /// The expected content.
        expected: &'static str,
    },
    /// The region could shrink under us.
    #[error(
        "the region of a channel is neither a memfd that is sealed against resizing nor a device's memory"
    )]
    Unsealed,
    /// It is made of a device that somebody may unplug who is not trusted.
    #[error(
        "the end of a channel that came from a stranger is made of a device, which its maker could take out from under us: only the \
         machine's own agent introduces such ends"
    )]
    StrangersDevice,
    /// A device's registers are none of a channel's.
    #[error("a channel's device has {} bytes of registers at least, not {bytes}", layout::BELL_BYTES)]
    BellBytes {
        /// How many it has.
        bytes: u64,
    },
    /// There are two ends.
    #[error("a channel has end 0 and end 1, and no end {side}")]
    Side {
        /// The side that was asked for.
        side: usize,
    },
    /// The region is sealed against writing, or its descriptor is for reading only.
    #[error(
        "the region of a channel can't be written: it is sealed against that, or was opened for reading only"
    )]
    ReadOnly(#[source] io::Error),
    /// The region's size fits no rings.
    #[error("a region of {bytes} bytes holds no two rings of an allowed size")]
    RegionBytes {
        /// Its size.
        bytes: u64,
    },
    /// It is not a channel's region.
    #[error("the region starts with {found:#018x}, which is not the mark of a channel")]
    Magic {
        /// Its first word.
        found: u64,
    },
    /// It was made by another version.
    #[error("the region has layout version {found}; this program speaks {}", layout::VERSION)]
    Version {
        /// The value that it alleges.
        found: u64,
    },
    /// A size in the header is not the region's.
    #[error("the header says {field} = {found}, but the region's size makes it {expected}")]
    Size {
        /// The field.
        field: &'static str,
        /// The value that it alleges.
        found: u64,
        /// The value that it must have.
        expected: u64,
    },
    /// The region lies in huge pages, which this opener did not agree to.
    #[error(
        "the region lies in huge pages, out of which the other end could take pages under us: open it with `huge_pages` if you \
         trust that end"
    )]
    HugePages,
    /// The kernel has no memory for the region, or is not allowed to give it.
    #[error(
        "there is no memory for the {bytes} bytes of a channel's region: take smaller rings, or raise the memory limit (of the \
         cgroup, or RLIMIT_AS)"
    )]
    NoMemory {
        /// Bytes of the region.
        bytes: u64,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The region can't be locked in memory.
    #[error(
        "can't lock the {bytes} bytes of a channel's region in memory: this process may lock {} bytes in all (RLIMIT_MEMLOCK; raise \
         it with `ulimit -l`, with LimitMEMLOCK= of a unit, or give the program CAP_IPC_LOCK)", limit_text(*limit)
    )]
    Lock {
        /// Bytes of the region.
        bytes: u64,
        /// How many the process may lock; `None` is without a limit, so memory is short.
        limit: Option<u64>,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The process has no free descriptors.
    #[error(
        "this process has no free descriptor for the end of a channel: it may have {} (RLIMIT_NOFILE; raise it with `ulimit -n`, or \
         with LimitNOFILE= of a unit)", limit_text(*limit)
    )]
    NoDescriptors {
        /// How many it may have; `None` is without a limit.
        limit: Option<u64>,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The maker wrote a mode that this program does not know.
    #[error(
        "the header says mode {found}; there are {} (messages) and {} (stream)",
        layout::MODE_MESSAGES,
        layout::MODE_STREAM
    )]
    UnknownMode {
        /// The value that it alleges.
        found: u64,
    },
    /// The channel was made to carry something else.
    #[error("the channel was made for {found:?}, and is opened for {wanted:?}")]
    WrongMode {
        /// The mode that its maker said.
        found: Mode,
        /// The mode that it was opened for.
        wanted: Mode,
    },
    /// This end has been opened before; an end is opened once.
    #[error("this end of the channel has been opened before (its state is {state})")]
    Reopened {
        /// The value of its state word.
        state: u64,
    },
    /// The kernel refused.
    #[error("can't {action}")]
    System {
        /// The action that was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}
