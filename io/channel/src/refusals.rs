//! Why a channel could not be made, or an end of it not opened.

use std::io;

use wire::ring as layout;

use crate::Mode;

/// Why a channel could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The size is not allowed.
    #[error("a ring can't have {ring_bytes} bytes: take a power of two from 4096 to 16777216")]
    RingBytes {
        /// What was asked for.
        ring_bytes: u32,
    },
    /// The kernel gave no shared memory.
    #[error("can't make the region of a channel")]
    Region(#[source] io::Error),
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
        /// What should stand there.
        expected: &'static str,
    },
    /// The region could shrink under us.
    #[error("the region of a channel is not sealed against resizing")]
    Unsealed,
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
        /// What it alleges.
        found: u64,
    },
    /// A size in the header is not the region's.
    #[error("the header says {field} = {found}, but the region's size makes it {expected}")]
    Size {
        /// Which field.
        field: &'static str,
        /// What it alleges.
        found: u64,
        /// What it must be.
        expected: u64,
    },
    /// The maker wrote a mode that this program does not know.
    #[error(
        "the header says mode {found}; there are {} (messages) and {} (stream)",
        layout::MODE_MESSAGES,
        layout::MODE_STREAM
    )]
    UnknownMode {
        /// What it alleges.
        found: u64,
    },
    /// The channel was made to carry something else.
    #[error("the channel was made for {found:?}, and is opened for {wanted:?}")]
    WrongMode {
        /// What its maker said.
        found: Mode,
        /// What it was opened for.
        wanted: Mode,
    },
    /// This end has been opened before; an end is opened once.
    #[error("this end of the channel has been opened before (its state is {state})")]
    Reopened {
        /// What stood in its state word.
        state: u64,
    },
    /// The kernel refused.
    #[error("can't {action}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}
