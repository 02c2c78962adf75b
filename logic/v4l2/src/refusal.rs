//! Why an ioctl fails.

use thiserror::Error;

/// Why an ioctl fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// A device like this knows no such ioctl: `ENOTTY`.
    #[error("no ioctl of a camera")]
    Unknown,
    /// An index, a type or a value that there is not: `EINVAL`.
    #[error("an index, a type or a value that there is not")]
    Invalid,
    /// Not while frames flow, or while buffers are there: `EBUSY`.
    #[error("not while buffers are in use")]
    Busy,
    /// No frame is there, and the caller does not wait: `EAGAIN`.
    #[error("no frame is there yet")]
    NotYet,
    /// The memory that the domain has with the service is used up: `ENOMEM`.
    #[error("no room in the memory that the domain has with the service")]
    Memory,
    /// The domain's frames would be more than its share: `ENOSPC`, as of a USB camera for whose
    /// frames the bus has no time.
    #[error("more bytes in a second than one domain may have")]
    Bandwidth,
    /// A value that a control does not take: `ERANGE`.
    #[error("a value that the control does not take")]
    Range,
}

impl Refusal {
    /// The errno, as Linux counts.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::Unknown => 25,
            Self::Invalid => 22,
            Self::Busy => 16,
            Self::NotYet => 11,
            Self::Memory => 12,
            Self::Bandwidth => 28,
            Self::Range => 34,
        }
    }
}
