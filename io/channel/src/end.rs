//! Ends that nobody has opened yet: made by the daemon, passed as descriptors, checked by whoever
//! opens them.

use std::os::fd::OwnedFd;

use sys::doorbell;
use sys::known::Known;
use wire::ring as layout;

use crate::kinds::device::Device;
use crate::kinds::memfd::{Memfd, Pair};
use crate::kinds::{Material, look};
use crate::shared::{Kind, Shared};
use crate::{
    Config, CreateError, Mode, OpenError, OpenOptions, Pages, Receiver, Sender, StreamReader, StreamWriter,
    memory,
};

/// One end of a channel, not yet opened: its descriptors. Dropped unopened, it closes the channel.
#[derive(Debug)]
pub struct End {
    side: usize,
    material: Box<dyn Material>,
}

/// Makes a channel: its two ends.
///
/// # Errors
/// See [`CreateError`].
pub fn pair(config: &Config) -> Result<(End, End), CreateError> {
    let ring_bytes = config.ring_bytes;
    if !layout::is_ring_bytes(u64::from(ring_bytes)) {
        return Err(CreateError::RingBytes { ring_bytes });
    }
    let region = memory::make(config)?;
    let again = region.try_clone().map_err(|source| CreateError::region(0, source))?;
    // What carries rings into a guest takes them off once in a while only.
    let make = if config.apart { doorbell::spacious_pair } else { doorbell::pair };
    let bell = || make().map_err(CreateError::doorbell);
    // `data` N is heard by side N; `room` N likewise.
    let (data_0, ring_data_0) = bell()?;
    let (data_1, ring_data_1) = bell()?;
    let (room_0, ring_room_0) = bell()?;
    let (room_1, ring_room_1) = bell()?;
    let end = |region, data, room| Memfd { region: Known::new(region), data, room };
    let one = end(region, Pair::of(data_0, ring_data_1), Pair::of(room_0, ring_room_1));
    let other = end(again, Pair::of(data_1, ring_data_0), Pair::of(room_1, ring_room_0));
    Ok((End { side: 0, material: Box::new(one) }, End { side: 1, material: Box::new(other) }))
}

impl End {
    /// How many descriptors make an end.
    pub const DESCRIPTORS: usize = layout::END_DESCRIPTORS;

    /// Whether the program that this library is in has left the descriptors alone: see
    /// [`sys::known`].
    ///
    /// # Errors
    /// `EBADF`: it has closed one, or put another file in its place.
    pub fn check_descriptors(&self) -> std::io::Result<()> {
        self.material.check()
    }

    /// The descriptors, in the order in which [`End::from_descriptors`] wants them. The order says
    /// which end it is: the first end has its region first, the second has it last. So the side
    /// comes from whoever passes the descriptors, and not from memory that the peer can write.
    #[must_use]
    pub fn into_descriptors(self) -> [OwnedFd; Self::DESCRIPTORS] {
        let (region, [a, b, c, d]) = self.material.into_descriptors();
        if self.side == 0 { [region, a, b, c, d] } else { [a, b, c, d, region] }
    }

    /// Takes the descriptors of an end, which must come from someone trusted to introduce us (the
    /// daemon).
    ///
    /// # Errors
    /// [`OpenError::Count`], [`OpenError::Descriptor`], [`OpenError::System`]; the descriptors are
    /// closed then.
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> Result<End, OpenError> {
        let got = descriptors.len();
        let Ok(descriptors) = <[OwnedFd; Self::DESCRIPTORS]>::try_from(descriptors) else {
            return Err(OpenError::Count { got, expected: Self::DESCRIPTORS });
        };
        let [first, .., last] = &descriptors;
        let side = match (is_region(first)?, is_region(last)?) {
            (true, false) => 0,
            (false, true) => 1,
            _ => {
                let expected = "the region (first of one end, last of the other)";
                return Err(OpenError::Descriptor { index: 0, expected });
            }
        };
        let (region, others) = if side == 0 {
            let [region, a, b, c, d] = descriptors;
            (region, [a, b, c, d])
        } else {
            let [a, b, c, d, region] = descriptors;
            (region, [a, b, c, d])
        };
        let first = 1 - side;
        let material: Box<dyn Material> = if Device::is_made_of(&others[0]) {
            Box::new(Device::new(region, others, first)?)
        } else {
            Box::new(Memfd::new(region, others, first)?)
        };
        Ok(End { side, material })
    }

    /// The descriptor that the other end's host needs beside that end, where it is in a guest: by
    /// it the host is told when this end rings that there is a message, and it is good for nothing
    /// else (`docs/spec/ring.md`).
    ///
    /// # Errors
    /// The errors of opening `/proc/self/fd/N`; `Unsupported` of an end that is in a guest itself.
    pub fn sight(&self) -> std::io::Result<OwnedFd> {
        self.material.sight()
    }

    /// Trusts whoever made the channel no more than any peer: it may have kept copies of our
    /// doorbells, and make them blocking. For an end that comes from a stranger, and not from the
    /// daemon. Costs a little with each wake. A device of a stranger's is refused when it is
    /// opened: he could unplug it.
    #[must_use]
    pub fn distrust_maker(mut self) -> End {
        self.material.distrust();
        self
    }

    /// The unit that this channel carries, as its maker says.
    ///
    /// # Errors
    /// [`OpenError::UnknownMode`], [`OpenError::RegionBytes`] when there is no header,
    /// [`OpenError::System`].
    pub fn mode(&self) -> Result<Mode, OpenError> {
        memory::mode(&*self.material)
    }

    /// In what pages the region lies: what became of [`Config::huge_pages`].
    ///
    /// # Errors
    /// [`OpenError::System`].
    pub fn pages(&self) -> Result<Pages, OpenError> {
        Ok(self.material.size()?.pages.unwrap_or(Pages::Ordinary))
    }

    /// Maps the region, checks its header and takes the end into use, whatever its mode is.
    ///
    /// # Errors
    /// See [`OpenError`]; the end is closed then.
    pub fn open(self) -> Result<(Sender, Receiver), OpenError> {
        self.open_with(&OpenOptions::default())
    }

    /// As [`End::open`], with wishes about the memory.
    ///
    /// # Errors
    /// See [`OpenError`]; the end is closed then.
    pub fn open_with(self, options: &OpenOptions) -> Result<(Sender, Receiver), OpenError> {
        let checked = memory::open(&*self.material, options)?;
        self.take_into_use(checked)
    }

    /// As [`End::open`], for a channel that was made in [`Mode::Stream`].
    ///
    /// # Errors
    /// See [`OpenError`], among them [`OpenError::WrongMode`]; the end is closed then.
    pub fn open_stream(self) -> Result<(StreamWriter, StreamReader), OpenError> {
        self.open_stream_with(&OpenOptions::default())
    }

    /// As [`End::open_stream`], with wishes about the memory.
    ///
    /// # Errors
    /// See [`OpenError`], among them [`OpenError::WrongMode`]; the end is closed then.
    pub fn open_stream_with(self, options: &OpenOptions) -> Result<(StreamWriter, StreamReader), OpenError> {
        let checked = memory::open(&*self.material, options)?;
        if checked.mode != Mode::Stream {
            return Err(OpenError::WrongMode { found: checked.mode, wanted: Mode::Stream });
        }
        let (sender, receiver) = self.take_into_use(checked)?;
        Ok((sender.into_stream(), receiver.into_stream()))
    }

    fn take_into_use(self, checked: memory::Checked) -> Result<(Sender, Receiver), OpenError> {
        let apart = checked.apart || self.material.is_apart();
        let kind = if apart { Kind::apart() } else { Kind::together() };
        let bells = self.material.bells().map_err(OpenError::named)?;
        let opened = Shared::open(checked.region, self.side, checked.ring_bytes, bells, kind);
        opened.map_err(OpenError::named)
    }
}

fn is_region(descriptor: &OwnedFd) -> Result<bool, OpenError> {
    sys::memfd::is_file(descriptor).map_err(look)
}
