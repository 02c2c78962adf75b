//! Memory of an endpoint that it can grant to others.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Release;

use ipc::grants::{Access, OutOfRange, check_range};
use session::Memories;
use sys::fork::Origin;
use sys::memfd;
use sys::region::Region;
use wire::grants::{PLACE_FIRST, PLACES, STATE_BYTES, State, offset_of};
use wire::ipc::Address;

use crate::Failed;
use crate::failed::Trouble;
use crate::grants::{Freed, GrantId};

/// Pages of memory are counted and mapped whole.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// A grant of a buffer, as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub grant: GrantId,
    pub to: Address,
    pub place: usize,
}

/// The memory behind a buffer: another one after a revoke.
#[derive(Debug)]
pub(crate) struct Store {
    pub data: Region,
    pub states: Region,
    /// Its number at the daemon.
    pub number: u64,
    /// The connection over which that is known.
    pub life: u64,
    /// Where the next grant's state may stand.
    next_place: u32,
    /// Kept where there is no daemon to do it.
    pub memories: Option<Memories>,
}

impl Store {
    /// Maps the memories of a buffer that nobody was granted yet, and has the kernel provide them.
    pub fn map(memories: &Memories, bytes: u64, (number, life): (u64, u64)) -> io::Result<Store> {
        let data = map(&memories.data, bytes.next_multiple_of(PAGE_BYTES))?;
        let states = map(&memories.states, STATE_BYTES as u64)?;
        data.populate().or_else(on_old_kernels)?;
        Ok(Store { data, states, number, life, next_place: PLACE_FIRST, memories: None })
    }

    /// Memories of our own, which no daemon knows or counts.
    pub fn make(bytes: u64, known: (u64, u64)) -> io::Result<Store> {
        let data = memfd::to_grant("tombolo-buffer", bytes.next_multiple_of(PAGE_BYTES))?;
        let states = memfd::to_grant("tombolo-grants", STATE_BYTES as u64)?;
        rustix::io::pwrite(&states, &wire::grants::head(), 0)?;
        let memories = Memories { data, states };
        let store = Store::map(&memories, bytes, known)?;
        Ok(Store { memories: Some(memories), ..store })
    }

    /// A place that no grant of it has had: its number, and where it stands.
    pub fn next_place(&mut self) -> Option<(u32, usize)> {
        let place = self.next_place;
        let offset = offset_of(place)?;
        self.next_place = (place + 1).min(PLACES);
        Some((place, offset))
    }

    /// Whether there is such a place.
    pub fn has_place(&self) -> bool {
        offset_of(self.next_place).is_some()
    }

    pub fn set(&self, place: usize, state: State) {
        self.states.store_u64(place, state.number(), Release);
    }
}

fn map(memory: &OwnedFd, bytes: u64) -> io::Result<Region> {
    let wrong = || io::Error::other("the daemon sent memory of another size, or that may shrink");
    let found = memfd::check_fixed(memory)?.filter(|found| *found >= bytes).ok_or_else(wrong)?;
    Region::map(memory, usize::try_from(found).map_err(|_| wrong())?)
}

/// Kernels before 5.14 provide pages as they are touched.
pub(crate) fn on_old_kernels(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::InvalidInput { Ok(()) } else { Err(error) }
}

/// Memory of an endpoint, which it grants to others: to be read by them, or to be written. Dropping
/// it revokes its grants.
///
/// Memory that others may write may change at any time, also while it is read.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) store: Store,
    pub(crate) bytes: u64,
    pub(crate) access: Access,
    pub(crate) owner: Address,
    pub(crate) given: Vec<Given>,
    /// By hand: it was granted once.
    pub(crate) sealed: bool,
    pub(crate) freed: Option<Freed>,
    pub(crate) origin: Origin,
}

impl Buffer {
    /// Bytes of it.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "there is no empty buffer")]
    pub fn len(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    /// Returns the access of others to it, once it is granted to them.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The endpoint that it belongs to.
    #[must_use]
    pub fn owner(&self) -> Address {
        self.owner
    }

    /// Its grants, and to whom they were made.
    pub fn grants(&self) -> impl Iterator<Item = (GrantId, Address)> {
        self.given.iter().map(|given| (given.grant, given.to))
    }

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// [`OutOfRange`]; [`Failed::Forked`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Failed<OutOfRange>> {
        let offset = self.check(offset, into.len())?;
        self.store.data.copy_out(offset, into);
        Ok(())
    }

    /// Copies bytes into it.
    ///
    /// # Errors
    /// [`OutOfRange`]; [`Failed::Forked`].
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Failed<OutOfRange>> {
        let offset = self.check(offset, from.len())?;
        self.store.data.copy_in(offset, from);
        Ok(())
    }

    pub(crate) fn check(&self, offset: u64, length: usize) -> Result<usize, Failed<OutOfRange>> {
        if !self.origin.is_here() {
            return Err(Trouble::Forked.into());
        }
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        check_range(offset, length, self.bytes).map_err(Failed::Call)?;
        Ok(usize::try_from(offset).unwrap_or(usize::MAX))
    }

    /// Ends all grants.
    pub(crate) fn mark_revoked(&mut self) {
        for given in std::mem::take(&mut self.given) {
            self.store.set(given.place, State::Revoked);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // What a fork inherits is its parent's.
        if !self.origin.is_here() {
            return;
        }
        self.mark_revoked();
        if let Some(freed) = &self.freed {
            freed.push(self.store.life, self.store.number);
        }
    }
}
