//! Ends on this host: a sealed memfd, and doorbells that are descriptors. Both ends share a kernel,
//! or one of them is in a guest and has the same memory as a device; the header says which.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sys::doorbell::{self, Half, Heard};
use sys::known::Known;
use sys::region::Region;

use super::{Bell, Bells, Material, Size, look};
use crate::{OpenError, memory};

#[derive(Debug)]
pub(crate) struct Memfd {
    pub region: Known,
    pub data: Pair,
    pub room: Pair,
}

/// The half that we listen to, and the one that we ring.
#[derive(Debug)]
pub(crate) struct Pair {
    pub ours: Known,
    pub theirs: Known,
    /// Their maker may have kept copies, and is not trusted with our time.
    pub wary: bool,
}

impl Memfd {
    /// Takes four descriptors for the doorbells, the first of which stands at `index` in the list
    /// of an end.
    pub(crate) fn new(region: OwnedFd, doorbells: [OwnedFd; 4], index: usize) -> Result<Memfd, OpenError> {
        let [data, peer_data, room, peer_room] = doorbells;
        let data = Pair::new(data, peer_data, index)?;
        let room = Pair::new(room, peer_room, index + 2)?;
        Ok(Memfd { region: Known::new(region), data, room })
    }
}

impl Pair {
    fn new(ours: OwnedFd, theirs: OwnedFd, index: usize) -> Result<Pair, OpenError> {
        check_half(&ours, index, Half::Listener)?;
        check_half(&theirs, index + 1, Half::Ringer)?;
        Ok(Pair::of(ours, theirs))
    }

    /// Of two halves that were made here, or looked at.
    pub(crate) fn of(ours: OwnedFd, theirs: OwnedFd) -> Pair {
        Pair { ours: Known::new(ours), theirs: Known::new(theirs), wary: false }
    }

    fn check_both(&self) -> io::Result<()> {
        self.ours.get()?;
        self.theirs.get().map(drop)
    }
}

/// Whether a descriptor tells of an end's life.
pub(crate) fn check_life(descriptor: &OwnedFd, index: usize) -> Result<(), OpenError> {
    let expected = "the reading half of a pipe that makes nobody wait";
    let is_that = doorbell::is_life(descriptor).map_err(look)?;
    if is_that { Ok(()) } else { Err(OpenError::Descriptor { index, expected }) }
}

/// Whether a descriptor is the half of a doorbell that belongs in its place.
fn check_half(descriptor: &OwnedFd, index: usize, half: Half) -> Result<(), OpenError> {
    let is_that = doorbell::is_half(descriptor.as_fd(), half).map_err(look)?;
    let expected = match half {
        Half::Listener => "the listener's half of a doorbell",
        Half::Ringer => "the ringer's half of a doorbell",
    };
    if is_that { Ok(()) } else { Err(OpenError::Descriptor { index, expected }) }
}

impl Material for Memfd {
    fn size(&self) -> Result<Size, OpenError> {
        let look = |source| OpenError::System { action: "look at the region of a channel", source };
        // The sealed size is the one thing that the peer can't change.
        let region = self.region.get().map_err(look)?;
        let bytes = sys::memfd::check_sealed(region).map_err(look)?.ok_or(OpenError::Unsealed)?;
        Ok(Size { bytes, pages: Some(memory::pages(region).map_err(look)?) })
    }

    fn word(&self, offset: usize) -> Result<Option<u64>, OpenError> {
        let look = |source| OpenError::System { action: "read the header of a channel's region", source };
        let mut word = [0; 8];
        let read = rustix::io::pread(self.region.get().map_err(look)?, &mut word, offset as u64);
        let whole = read.map_err(|errno| look(errno.into()))? == word.len();
        Ok(whole.then(|| u64::from_le_bytes(word)))
    }

    fn map(&self, bytes: usize) -> io::Result<Region> {
        Region::map(self.region.get()?, bytes)
    }

    fn is_apart(&self) -> bool {
        false
    }

    fn distrust(&mut self) {
        self.data.wary = true;
        self.room.wary = true;
    }

    fn sight(&self) -> io::Result<OwnedFd> {
        doorbell::sight(self.data.theirs.get()?)
    }

    fn bells(self: Box<Self>) -> Result<Bells, OpenError> {
        Ok(Bells { data: Box::new(self.data), room: Box::new(self.room) })
    }

    fn check(&self) -> io::Result<()> {
        self.region.get()?;
        self.data.check_both()?;
        self.room.check_both()
    }

    fn into_descriptors(self: Box<Self>) -> (OwnedFd, [OwnedFd; 4]) {
        let others = [self.data.ours, self.data.theirs, self.room.ours, self.room.theirs];
        (self.region.into_owned(), others.map(Known::into_owned))
    }
}

impl Bell for Pair {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }

    fn listen(&self) -> io::Result<Heard> {
        doorbell::listen(self.ours.get()?)
    }

    fn is_dead(&self) -> io::Result<bool> {
        doorbell::is_dead(self.ours.get()?)
    }

    fn ring(&self) -> io::Result<()> {
        let theirs = self.theirs.get()?;
        if self.wary { doorbell::ring_warily(theirs) } else { doorbell::ring(theirs) }
    }

    fn check(&self) -> io::Result<()> {
        self.ours.get().map(drop)
    }
}
