//! The ends that the suite is given.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use channel::{End, OpenError, Receiver, Sender};
use sys::region::Region;
use wire::ring as layout;

/// One end of a channel that nobody has opened yet, and that nobody else uses: what the suite is
/// run with.
pub trait Party: Send {
    /// Opens it.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn open(self: Box<Self>) -> Result<(Sender, Receiver), OpenError>;

    /// The region once more, beside the end: for halves that lie. An error of kind `Unsupported`
    /// lets their scenarios be skipped.
    ///
    /// # Errors
    /// Those of mapping it.
    fn look(&self) -> io::Result<Region>;

    /// The side of the end, 0 or 1.
    fn side(&self) -> usize;
}

/// An [`End`], as it comes from a daemon, an agent or a maker.
#[derive(Debug)]
pub struct Given {
    end: End,
    region: OwnedFd,
    side: usize,
}

impl Given {
    /// Takes an end.
    ///
    /// # Errors
    /// Those of duplicating a descriptor, and of taking the end apart and putting it together.
    pub fn new(end: End) -> io::Result<Given> {
        let descriptors = end.into_descriptors();
        let side = usize::from(!sys::memfd::is_file(&descriptors[0])?);
        let [first, .., last] = &descriptors;
        let region = if side == 0 { first } else { last };
        let region = region.as_fd().try_clone_to_owned()?;
        let end = End::from_descriptors(descriptors.into()).map_err(io::Error::other)?;
        Ok(Given { end, region, side })
    }
}

impl Party for Given {
    fn open(self: Box<Self>) -> Result<(Sender, Receiver), OpenError> {
        self.end.open()
    }

    fn look(&self) -> io::Result<Region> {
        let header = Region::map(&self.region, layout::HEADER_BYTES)?;
        let bytes = header.load_u64(layout::OFFSET_REGION_BYTES, Ordering::Relaxed);
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        Region::map(&self.region, bytes)
    }

    fn side(&self) -> usize {
        self.side
    }
}
