//! Ends whose memory somebody else has mapped, and whose doorbells are his: for hypervisors that
//! share memory without a descriptor that stands for it.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use sys::doorbell::{self, Heard};
use sys::known::Known;
use sys::region::Region;

use super::memfd::check_life;
use super::{Bell, Bells};
use crate::shared::{Kind, Shared};
use crate::{Mode, OpenError, Receiver, Sender, StreamReader, StreamWriter, memory};

/// A doorbell of each direction, for the same news (that there is a message, or that there is
/// room), which says nothing of death.
pub trait Doorbell: Debug + Send + Sync + 'static {
    /// Readable when the peer has rung.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Takes the rings off; says whether there were any. Must not wait, and must not be kept
    /// waiting by the peer.
    ///
    /// # Errors
    /// The kernel's refusal; waits and drains of the end fail with it.
    fn listen(&self) -> io::Result<bool>;

    /// Rings the peer's. Must not wait, and must not be kept waiting by the peer; a peer that is
    /// gone is no error.
    ///
    /// # Errors
    /// The kernel's refusal; the call that had to wake the peer fails with it.
    fn ring(&self) -> io::Result<()>;
}

/// An end, not yet opened, of a channel that a hypervisor carries: its parts. The two ends are
/// taken not to share a kernel.
#[derive(Debug)]
pub struct Mapped<D> {
    /// The side of this end: 0 or 1. From whoever introduces the two, and not from memory that the
    /// peer can write.
    pub side: usize,
    /// All of the region's memory, [`crate::region_bytes`] or the next power of two, with a header
    /// that [`crate::write_header`] wrote. It must stay behind the mapping until that is dropped.
    pub region: Region,
    /// There is a message.
    pub data: D,
    /// There is room.
    pub room: D,
    /// The reading half of a pipe, non-blocking, that hangs up or becomes readable when the peer is
    /// gone. It is never read, and closed when the region has been dropped: so the writing half
    /// tells when nobody has that any more.
    pub life: OwnedFd,
}

impl<D: Doorbell> Mapped<D> {
    /// Checks the header and takes the end into use, whatever its mode is.
    ///
    /// # Errors
    /// See [`OpenError`]; the end is closed then.
    pub fn open(self) -> Result<(Sender, Receiver), OpenError> {
        self.open_as(None)
    }

    /// As [`Mapped::open`], for a channel that was made in [`Mode::Stream`].
    ///
    /// # Errors
    /// See [`OpenError`], among them [`OpenError::WrongMode`]; the end is closed then.
    pub fn open_stream(self) -> Result<(StreamWriter, StreamReader), OpenError> {
        let (sender, receiver) = self.open_as(Some(Mode::Stream))?;
        Ok((sender.into_stream(), receiver.into_stream()))
    }

    fn open_as(self, wanted: Option<Mode>) -> Result<(Sender, Receiver), OpenError> {
        let Mapped { side, region, data, room, life } = self;
        if side > 1 {
            return Err(OpenError::Side { side });
        }
        // The one pipe of the list, as far as there is a list.
        check_life(&life, 0)?;
        let keep = |source| OpenError::System { action: "keep a descriptor of a channel's end", source };
        let region = region.keeping(life.try_clone().map_err(keep)?);
        let checked = memory::check_mapped(region)?;
        if let Some(wanted) = wanted
            && checked.mode != wanted
        {
            return Err(OpenError::WrongMode { found: checked.mode, wanted });
        }
        let bells = Living::bells(data, room, Known::new(life)).map_err(OpenError::named)?;
        Shared::open(checked.region, side, checked.ring_bytes, bells, Kind::apart()).map_err(OpenError::named)
    }
}

/// A doorbell beside a pipe that says when the peer is gone.
#[derive(Debug)]
pub(crate) struct Living<D> {
    doorbell: D,
    /// One for both of an end.
    life: Arc<Known>,
    /// An epoll of both, so that whoever waits watches one descriptor, as with a doorbell that
    /// rings and hangs up.
    both: Known,
}

impl<D: Doorbell> Living<D> {
    pub(crate) fn bells(data: D, room: D, life: Known) -> Result<Bells, OpenError> {
        let watch = |source| OpenError::System { action: "watch the doorbells of a channel's end", source };
        let life = Arc::new(life);
        let data = Living::new(data, &life).map_err(watch)?;
        let room = Living::new(room, &life).map_err(watch)?;
        Ok(Bells { data: Box::new(data), room: Box::new(room) })
    }

    fn new(doorbell: D, life: &Arc<Known>) -> io::Result<Living<D>> {
        let both = Known::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        for one in [doorbell.descriptor(), life.as_fd()] {
            epoll::add(&both, one, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Living { doorbell, life: Arc::clone(life), both })
    }
}

impl<D: Doorbell> Bell for Living<D> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    fn listen(&self) -> io::Result<Heard> {
        if self.doorbell.listen()? {
            return Ok(Heard::Ring);
        }
        Ok(if self.is_dead()? { Heard::Death } else { Heard::Silence })
    }

    fn is_dead(&self) -> io::Result<bool> {
        // Whoever keeps the writing half, to learn when we are done, writes instead of closing it.
        doorbell::is_readable(self.life.get()?)
    }

    fn ring(&self) -> io::Result<()> {
        self.doorbell.ring()
    }

    fn check(&self) -> io::Result<()> {
        self.both.get()?;
        self.life.get().map(drop)
    }
}
