//! Ends in a guest: the memory of a PCI device is the region, its interrupts write eventfds, and a
//! register of it rings. The host's end is a [`super::memfd`] of the same memory; that of another
//! guest is a device as well.
//!
//! **The device must stay until nobody has it mapped**: an access to one that is unplugged kills
//! with `SIGBUS`. Whoever plugs it in and out keeps the writing half of *life*, which nobody can
//! read any more once the end is closed: that is why it is the last to go. A sealed memfd may take
//! the place of either memory, where something other than a hypervisor carries the rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use sys::known::Known;
use sys::region::Region;
use sys::register::Register;
use wire::ring as layout;

use super::mapped::{Doorbell, Living};
use super::memfd::check_life;
use super::{Bells, Material, Size, look};
use crate::OpenError;

#[derive(Debug)]
pub(crate) struct Device {
    region: Known,
    data: Known,
    room: Known,
    bell: Known,
    life: Known,
    /// Its maker is a stranger.
    wary: bool,
}

impl Device {
    /// Takes an end's four descriptors beside the region, the first of which stands at `index` in
    /// the list.
    pub(crate) fn new(region: OwnedFd, others: [OwnedFd; 4], index: usize) -> Result<Device, OpenError> {
        let [data, room, bell, life] = others;
        for (event, index) in [(&data, index), (&room, index + 1)] {
            if !sys::eventfd::is_eventfd(event).map_err(look)? {
                let expected = "an eventfd of a device that does not make its reader wait";
                return Err(OpenError::Descriptor { index, expected });
            }
        }
        if !sys::memfd::is_file(&bell).map_err(look)? {
            return Err(OpenError::Descriptor { index: index + 2, expected: "the registers of a device" });
        }
        check_life(&life, index + 3)?;
        let [region, data, room, bell, life] = [region, data, room, bell, life].map(Known::new);
        Ok(Device { region, data, room, bell, life, wary: false })
    }

    /// Whether the first of the four descriptors beside the region makes it this kind of end.
    pub(crate) fn is_made_of(first: &OwnedFd) -> bool {
        // Without `/proc` it can't be told, and then it is the commoner kind, which needs none:
        // what is wrong shows there.
        sys::eventfd::is_eventfd(first).unwrap_or(false)
    }
}

/// The bytes of a device's memory, or of what takes its place, which nobody can make fewer.
fn bytes(memory: &Known) -> Result<u64, OpenError> {
    let look = |source| OpenError::System { action: "look at the memory of a channel's device", source };
    let memory = memory.get().map_err(look)?;
    match sys::memfd::device_bytes(memory).map_err(look)? {
        Some(bytes) => Ok(bytes),
        None => sys::memfd::check_sealed(memory).map_err(look)?.ok_or(OpenError::Unsealed),
    }
}

impl Material for Device {
    fn size(&self) -> Result<Size, OpenError> {
        if self.wary {
            return Err(OpenError::StrangersDevice);
        }
        Ok(Size { bytes: bytes(&self.region)?, pages: None })
    }

    fn word(&self, offset: usize) -> Result<Option<u64>, OpenError> {
        // The memory of a device can be mapped, and not read.
        if self.size()?.bytes < layout::HEADER_BYTES as u64 {
            return Ok(None);
        }
        let map = |source| OpenError::System { action: "map the header of a channel's region", source };
        let header = self.map(layout::HEADER_BYTES).map_err(map)?;
        Ok(Some(header.load_u64(offset, std::sync::atomic::Ordering::Relaxed)))
    }

    fn map(&self, bytes: usize) -> io::Result<Region> {
        let life = self.life.get()?.try_clone_to_owned()?;
        Ok(Region::map(self.region.get()?, bytes)?.keeping(life))
    }

    fn is_apart(&self) -> bool {
        true
    }

    fn distrust(&mut self) {
        self.wary = true;
    }

    fn sight(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn bells(self: Box<Self>) -> Result<Bells, OpenError> {
        let found = bytes(&self.bell)?;
        if found < layout::BELL_BYTES as u64 {
            return Err(OpenError::BellBytes { bytes: found });
        }
        let map = |source| OpenError::memory("map the register of a channel's device", found, source);
        let bell = self.bell.get().map_err(map)?;
        let register = Register::map(bell, layout::BELL_BYTES, layout::BELL_OFFSET).map_err(map)?;
        let register = Arc::new(register);
        let data = Event { event: self.data, register: Arc::clone(&register), word: layout::BELL_DATA };
        let room = Event { event: self.room, register, word: layout::BELL_ROOM };
        Living::bells(data, room, self.life)
    }

    fn check(&self) -> io::Result<()> {
        [&self.region, &self.data, &self.room, &self.bell, &self.life]
            .into_iter()
            .try_for_each(|descriptor| descriptor.get().map(drop))
    }

    fn into_descriptors(self: Box<Self>) -> (OwnedFd, [OwnedFd; 4]) {
        let others = [self.data, self.room, self.bell, self.life];
        (self.region.into_owned(), others.map(Known::into_owned))
    }
}

/// An interrupt's eventfd, and how to interrupt the peer for the same.
#[derive(Debug)]
struct Event {
    event: Known,
    register: Arc<Register>,
    word: u32,
}

impl Doorbell for Event {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn listen(&self) -> io::Result<bool> {
        // Whoever writes it has it as well.
        sys::eventfd::drain_shared(self.event.get()?)
    }

    fn ring(&self) -> io::Result<()> {
        self.register.store(self.word);
        Ok(())
    }
}
