//! Ends that nobody has opened yet: made by the daemon, passed as descriptors, checked by whoever opens them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use sys::doorbell::{self, Half};
use sys::region::Region;
use wire::ring as layout;

use crate::shared::{Doorbells, Shared};
use crate::{Config, CreateError, Mode, OpenError, Receiver, Sender, StreamReader, StreamWriter};

/// One end of a channel, not yet opened: its descriptors. Dropped unopened, it closes the channel.
#[derive(Debug)]
pub struct End {
    side: usize,
    region: OwnedFd,
    doorbells: Doorbells,
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
    let region = make_region(ring_bytes, config.mode).map_err(CreateError::Region)?;
    let again = region.try_clone().map_err(CreateError::Region)?;
    let bell = || doorbell::pair().map_err(CreateError::Doorbell);
    // `data` N is heard by side N; `room` N likewise.
    let (data_0, ring_data_0) = bell()?;
    let (data_1, ring_data_1) = bell()?;
    let (room_0, ring_room_0) = bell()?;
    let (room_1, ring_room_1) = bell()?;
    let one = Doorbells { data: data_0, peer_data: ring_data_1, room: room_0, peer_room: ring_room_1 };
    let other = Doorbells { data: data_1, peer_data: ring_data_0, room: room_1, peer_room: ring_room_0 };
    Ok((End { side: 0, region, doorbells: one }, End { side: 1, region: again, doorbells: other }))
}

fn make_region(ring_bytes: u32, mode: Mode) -> io::Result<OwnedFd> {
    let bytes = layout::region_bytes(ring_bytes);
    let memory = sys::memfd::sealed("tombolo-channel", bytes)?;
    let mut header = [0_u8; layout::OFFSET_MODE + 8];
    for (offset, value) in [
        (layout::OFFSET_MAGIC, layout::MAGIC),
        (layout::OFFSET_VERSION, layout::VERSION),
        (layout::OFFSET_RING_BYTES, u64::from(ring_bytes)),
        (layout::OFFSET_REGION_BYTES, bytes),
        (layout::OFFSET_MODE, mode.word()),
    ] {
        header[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    let written = rustix::io::pwrite(&memory, &header, 0)?;
    if written == header.len() { Ok(memory) } else { Err(io::ErrorKind::WriteZero.into()) }
}

impl End {
    /// How many descriptors make an end.
    pub const DESCRIPTORS: usize = layout::END_DESCRIPTORS;

    /// The descriptors, in the order in which [`End::from_descriptors`] wants them. The order says which end it
    /// is: the first end has its region first, the second has it last. So the side comes from whoever passes the
    /// descriptors, and not from memory that the peer can write.
    #[must_use]
    pub fn into_descriptors(self) -> [OwnedFd; Self::DESCRIPTORS] {
        let Doorbells { data, peer_data, room, peer_room } = self.doorbells;
        if self.side == 0 {
            [self.region, data, peer_data, room, peer_room]
        } else {
            [data, peer_data, room, peer_room, self.region]
        }
    }

    /// Takes the descriptors of an end, which must come from someone trusted to introduce us (the daemon).
    ///
    /// # Errors
    /// [`OpenError::Count`], [`OpenError::Descriptor`], [`OpenError::System`]; the descriptors are closed then.
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
        let (region, [data, peer_data, room, peer_room]) = if side == 0 {
            let [region, data, peer_data, room, peer_room] = descriptors;
            (region, [data, peer_data, room, peer_room])
        } else {
            let [data, peer_data, room, peer_room, region] = descriptors;
            (region, [data, peer_data, room, peer_room])
        };
        let first_bell = 1 - side;
        check_half(&data, first_bell, Half::Listener)?;
        check_half(&peer_data, first_bell + 1, Half::Ringer)?;
        check_half(&room, first_bell + 2, Half::Listener)?;
        check_half(&peer_room, first_bell + 3, Half::Ringer)?;
        Ok(End { side, region, doorbells: Doorbells { data, peer_data, room, peer_room } })
    }

    /// What the maker says that this channel carries.
    ///
    /// # Errors
    /// [`OpenError::UnknownMode`], [`OpenError::RegionBytes`] when there is no header, [`OpenError::System`].
    pub fn mode(&self) -> Result<Mode, OpenError> {
        let look = |source| OpenError::System { action: "read the header of a channel's region", source };
        let mut word = [0; 8];
        let read = rustix::io::pread(&self.region, &mut word, layout::OFFSET_MODE as u64);
        if read.map_err(|errno| look(errno.into()))? < word.len() {
            return Err(OpenError::RegionBytes { bytes: 0 });
        }
        mode_of(u64::from_le_bytes(word))
    }

    /// Maps the region, checks its header and takes the end into use, whatever its mode is.
    ///
    /// # Errors
    /// See [`OpenError`]; the end is closed then.
    pub fn open(self) -> Result<(Sender, Receiver), OpenError> {
        let (_mode, sender, receiver) = self.open_any()?;
        Ok((sender, receiver))
    }

    /// As [`End::open`], for a channel that was made in [`Mode::Stream`].
    ///
    /// # Errors
    /// See [`OpenError`], among them [`OpenError::WrongMode`]; the end is closed then.
    pub fn open_stream(self) -> Result<(StreamWriter, StreamReader), OpenError> {
        let (found, sender, receiver) = self.open_any()?;
        if found != Mode::Stream {
            return Err(OpenError::WrongMode { found, wanted: Mode::Stream });
        }
        Ok((sender.into_stream(), receiver.into_stream()))
    }

    fn open_any(self) -> Result<(Mode, Sender, Receiver), OpenError> {
        let ring_bytes = region_ring_bytes(&self.region)?;
        let bytes = layout::region_bytes(ring_bytes);
        let map = |source| OpenError::System { action: "map the region of a channel", source };
        let length = usize::try_from(bytes).map_err(|_| OpenError::RegionBytes { bytes })?;
        let region = Region::map(&self.region, length).map_err(map)?;
        let mode = check_header(&region, ring_bytes)?;
        let (sender, receiver) = Shared::open(region, self.side, ring_bytes, self.doorbells)?;
        Ok((mode, sender, receiver))
    }
}

fn mode_of(word: u64) -> Result<Mode, OpenError> {
    Mode::of_word(word).ok_or(OpenError::UnknownMode { found: word })
}

fn is_region(descriptor: &OwnedFd) -> Result<bool, OpenError> {
    let look = |source| OpenError::System { action: "look at a descriptor of a channel", source };
    sys::memfd::is_file(descriptor).map_err(look)
}

fn check_half(descriptor: &OwnedFd, index: usize, half: Half) -> Result<(), OpenError> {
    let look = |source| OpenError::System { action: "look at a descriptor of a channel", source };
    let found = doorbell::half(descriptor.as_fd()).map_err(look)?;
    let expected = match half {
        Half::Listener => "the listener's half of a doorbell",
        Half::Ringer => "the ringer's half of a doorbell",
    };
    if found == Some(half) { Ok(()) } else { Err(OpenError::Descriptor { index, expected }) }
}

/// The size of the rings, which follows from the region's sealed size: the one thing that the peer can't change.
fn region_ring_bytes(region: &OwnedFd) -> Result<u32, OpenError> {
    let look = |source| OpenError::System { action: "look at the region of a channel", source };
    let bytes = sys::memfd::check_sealed(region).map_err(look)?.ok_or(OpenError::Unsealed)?;
    let rings = bytes.saturating_sub(layout::HEADER_BYTES as u64);
    let ring_bytes = rings / 2;
    if !layout::is_ring_bytes(ring_bytes) || !rings.is_multiple_of(2) {
        return Err(OpenError::RegionBytes { bytes });
    }
    u32::try_from(ring_bytes).map_err(|_| OpenError::RegionBytes { bytes })
}

/// The header must agree with the size. The peer may have scribbled over it before we came: then we refuse.
/// Each word is read once.
fn check_header(region: &Region, ring_bytes: u32) -> Result<Mode, OpenError> {
    let word = |offset| region.load_u64(offset, std::sync::atomic::Ordering::Relaxed);
    let found = word(layout::OFFSET_MAGIC);
    if found != layout::MAGIC {
        return Err(OpenError::Magic { found });
    }
    let found = word(layout::OFFSET_VERSION);
    if found != layout::VERSION {
        return Err(OpenError::Version { found });
    }
    for (field, offset, expected) in [
        ("ring_bytes", layout::OFFSET_RING_BYTES, u64::from(ring_bytes)),
        ("region_bytes", layout::OFFSET_REGION_BYTES, layout::region_bytes(ring_bytes)),
    ] {
        let found = word(offset);
        if found != expected {
            return Err(OpenError::Size { field, found, expected });
        }
    }
    mode_of(word(layout::OFFSET_MODE))
}
