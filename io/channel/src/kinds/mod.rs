//! Of what a channel's ends are made. The rings are the same bytes everywhere; what differs is
//! where their memory comes from, how an end hears and rings, and how it learns of the other's
//! death. There are these kinds:
//!
//! | kind | region | doorbells | death |
//! | --- | --- | --- | --- |
//! | [`memfd`] | a sealed memfd | sockets | they hang up |
//! | [`device`] | the memory of a PCI device that a hypervisor makes for the channel | eventfds, and a register to ring | a pipe hangs up |
//! | [`mapped`] | whatever somebody else has mapped | his own [`crate::Doorbell`]s | a pipe hangs up |
//!
//! They have two traits in common, of which only [`Bell`] is used once a channel is open, and there
//! only beside a system call. `conformance/` holds the one suite that all of them pass.

pub(crate) mod device;
pub(crate) mod mapped;
pub(crate) mod memfd;

use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use sys::doorbell::Heard;
use sys::region::Region;

use crate::{OpenError, Pages};

/// The material of an end before it is opened.
pub(crate) trait Material: Debug + Send + Sync {
    /// The size of the memory, which nobody can change.
    fn size(&self) -> Result<Size, OpenError>;

    /// A word of the memory, without mapping all of it; `None` where that ends before.
    fn word(&self, offset: usize) -> Result<Option<u64>, OpenError>;

    /// Maps the first `bytes` of the memory, which has so many.
    fn map(&self, bytes: usize) -> io::Result<Region>;

    /// Whether the two ends are under two kernels, whatever the header says.
    fn is_apart(&self) -> bool;

    /// Trusts whoever made it no more than any peer.
    fn distrust(&mut self);

    /// By what is seen that it rings of a message.
    fn sight(&self) -> io::Result<OwnedFd>;

    /// Its doorbells, in use.
    fn bells(self: Box<Self>) -> Result<Bells, OpenError>;

    /// Whether its descriptors are still what they were: see [`sys::known`].
    fn check(&self) -> io::Result<()>;

    /// Its descriptors again: that of the region, and the four others in their order.
    fn into_descriptors(self: Box<Self>) -> (OwnedFd, [OwnedFd; 4]);
}

/// How large a kind's memory is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub bytes: u64,
    /// In what pages the kernel provides it as it is touched; `None`: all of it is there.
    pub pages: Option<Pages>,
}

/// The doorbells of an opened end. They are separate, so that a thread that waits for messages and
/// one that waits for room never take each other's rings.
#[derive(Debug)]
pub(crate) struct Bells {
    /// There is a message: heard by our receiver, rung by our sender.
    pub data: Box<dyn Bell>,
    /// There is room: heard by our sender, rung by our receiver.
    pub room: Box<dyn Bell>,
}

/// A doorbell of each direction, for the same news.
pub(crate) trait Bell: Debug + Send + Sync {
    /// Readable when the peer has rung, readable or hung up for good when it is gone.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Takes the rings off, without waiting.
    fn listen(&self) -> io::Result<Heard>;

    /// Whether the peer is gone, without taking a ring off.
    fn is_dead(&self) -> io::Result<bool>;

    /// Rings the peer's, without waiting.
    fn ring(&self) -> io::Result<()>;

    /// Whether what is waited on is still what it was: see [`sys::known`].
    fn check(&self) -> io::Result<()>;
}

/// Says what could not be looked at.
pub(crate) fn look(source: io::Error) -> OpenError {
    OpenError::System { action: "look at a descriptor of a channel", source }
}
