//! An end of a channel as the daemon passes it, taken apart.

use std::io;
use std::os::fd::OwnedFd;
use thiserror::Error;

/// The largest region that fits the window of a root port, in bytes.
const MAX_REGION_BYTES: u64 = crate::qemu::command_line::PORT_WINDOW_MIB << 20;

/// Why an end can't be a device.
#[derive(Debug, Error)]
pub(crate) enum EndError {
    /// They are not the descriptors of an end.
    #[error("the daemon passed what is no end of a channel")]
    Channel(#[source] channel::OpenError),
    /// A region that nobody has sealed could be cut under QEMU.
    #[error("the region of a channel is not sealed")]
    Unsealed,
    /// A size that no BAR has.
    #[error(
        "the region of a channel has {bytes} bytes, and a device's has a power of two, {MAX_REGION_BYTES} at the most"
    )]
    Bytes {
        /// The bytes that it has.
        bytes: u64,
    },
    /// The descriptor behind the end is not what it is there for.
    #[error("the daemon passed something else in the place of a doorbell's sight")]
    Sight,
    /// The kernel does not answer.
    #[error("can't look at a descriptor of a channel")]
    Look(#[source] io::Error),
}

/// The five descriptors of an end, and the sight of the other one's half by which that rings
/// *data*.
#[derive(Debug)]
pub(crate) struct EndParts {
    pub side: u8,
    pub region: OwnedFd,
    pub bytes: u64,
    /// The doorbells that the end hears, *data* and *room*.
    pub hears: [OwnedFd; 2],
    /// The doorbells that it rings, *data* and *room*.
    pub rings: [OwnedFd; 2],
    /// None from a daemon that passes none.
    pub sight: Option<OwnedFd>,
}

impl EndParts {
    pub fn of(mut descriptors: Vec<OwnedFd>) -> Result<Self, EndError> {
        let sight = if descriptors.len() > channel::End::DESCRIPTORS { descriptors.pop() } else { None };
        if let Some(sight) = &sight
            && !sys::doorbell::is_sight(sight).map_err(EndError::Look)?
        {
            return Err(EndError::Sight);
        }
        // Which checks what each of them is.
        let end = channel::End::from_descriptors(descriptors).map_err(EndError::Channel)?;
        let descriptors = end.into_descriptors();
        let first_is_region = sys::memfd::is_file(&descriptors[0]).map_err(EndError::Look)?;
        let (side, region, [data, peer_data, room, peer_room]) = if first_is_region {
            let [region, data, peer_data, room, peer_room] = descriptors;
            (0, region, [data, peer_data, room, peer_room])
        } else {
            let [data, peer_data, room, peer_room, region] = descriptors;
            (1, region, [data, peer_data, room, peer_room])
        };
        let bytes = sys::memfd::check_sealed(&region).map_err(EndError::Look)?.ok_or(EndError::Unsealed)?;
        if !bytes.is_power_of_two() || bytes > MAX_REGION_BYTES {
            return Err(EndError::Bytes { bytes });
        }
        Ok(Self { side, region, bytes, hears: [data, room], rings: [peer_data, peer_room], sight })
    }
}

/// Makes the halves never block again. QEMU makes blocking whatever it is passed, in the open file
/// that all copies share: a peer that fills its doorbell, or rings in a certain rhythm, would stop
/// the guest.
pub(crate) fn unblock(halves: &[OwnedFd]) -> io::Result<()> {
    halves.iter().try_for_each(|half| Ok(rustix::io::ioctl_fionbio(half, true)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use channel::{Config, pair};

    #[test]
    fn an_end_is_taken_apart_as_the_page_of_the_ring_has_it() {
        let config = Config { apart: true, ..Config::default() };
        let (one, other) = pair(&config).unwrap();
        let one = EndParts::of(one.into_descriptors().into()).unwrap();
        let other = EndParts::of(other.into_descriptors().into()).unwrap();
        assert_eq!((one.side, other.side, one.bytes), (0, 1, other.bytes));
        for (ring, hear) in [(&one.rings, &other.hears), (&other.rings, &one.hears)] {
            for (ring, hear) in ring.iter().zip(hear) {
                sys::doorbell::ring(ring).unwrap();
                assert_eq!(sys::doorbell::listen(hear).unwrap(), sys::doorbell::Heard::Ring);
            }
        }
    }

    #[test]
    fn what_is_no_device_is_refused() {
        let (one, _other) = pair(&Config::default()).unwrap();
        assert!(matches!(EndParts::of(one.into_descriptors().into()), Err(EndError::Bytes { .. })));
        let (one, _other) = pair(&Config::default()).unwrap();
        let few = Vec::from(one.into_descriptors()).split_off(1);
        assert!(matches!(EndParts::of(few), Err(EndError::Channel(_))));
    }
}
