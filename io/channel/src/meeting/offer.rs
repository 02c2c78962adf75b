//! The side that offers.

use super::place::Place;
use super::{Admission, Credentials, OfferError, wait_readable};
use crate::{Config, CreateError, End, pair};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;
use sys::known::Known;
use wire::meeting::Greeting;

/// Openers that one call turns away (of another user, or gone again) before it lets its caller go
/// on.
const TURNED_AWAY_MAX: usize = 64;

/// Why an opener could not be accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// No channel could be made for it; it has been told.
    #[error("can't make a channel for an opener")]
    Channel(#[from] CreateError),
    /// The kernel refused.
    #[error("can't accept an opener")]
    System(#[source] io::Error),
    /// The deadline has passed.
    #[error("nobody opened the channel in time")]
    TimedOut,
}

/// Channels offered at a path: one for each opener. Dropped, it gives the path back; the channels
/// live on.
#[derive(Debug)]
pub struct Offer {
    socket: Known,
    place: Place,
    config: Config,
    admission: Admission,
}

impl Offer {
    /// Listens at `path`, which is free or has been left behind by a dead offerer.
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn new(path: &Path, config: Config, admission: Admission) -> Result<Self, OfferError> {
        let permissions = match admission {
            Admission::SameUser => Mode::RUSR | Mode::WUSR,
            Admission::AnyUser => Mode::from_raw_mode(0o666),
        };
        let (socket, place) = Place::take(path, permissions)?;
        // Openers say nothing, and send no descriptors: older kernels can't be told, and then they
        // are never received.
        let _told = sys::descriptors::refuse_descriptors(&socket);
        Ok(Self { socket: Known::new(socket), place, config, admission })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// The next opener's channel: our end, and who it is. `None`: nobody is there; poll
    /// [`Offer::as_fd`] for reading.
    ///
    /// # Errors
    /// [`AcceptError`], other than `TimedOut`.
    pub fn try_accept(&self) -> Result<Option<(End, Credentials)>, AcceptError> {
        for _ in 0..TURNED_AWAY_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let accepted = self.socket.look().and_then(|socket| rustix::net::accept_with(socket, flags));
            let opener = match accepted {
                Ok(opener) => opener,
                Err(Errno::AGAIN) => return Ok(None),
                // An opener that hung up meanwhile.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(AcceptError::System(errno.into())),
            };
            if let Some(met) = self.meet(&opener)? {
                return Ok(Some(met));
            }
        }
        Ok(None)
    }

    /// As [`Offer::try_accept`], waiting for an opener.
    ///
    /// # Errors
    /// [`AcceptError`].
    pub fn accept(&self, deadline: Option<Instant>) -> Result<(End, Credentials), AcceptError> {
        loop {
            if let Some(met) = self.try_accept()? {
                return Ok(met);
            }
            let socket = self.socket.get().map_err(AcceptError::System)?;
            if !wait_readable(socket, deadline).map_err(AcceptError::System)? {
                return Err(AcceptError::TimedOut);
            }
        }
    }

    /// Greets one opener; `None`: it is turned away, or gone.
    fn meet(&self, opener: &OwnedFd) -> Result<Option<(End, Credentials)>, AcceptError> {
        let who = sys::credentials::of_peer(opener).map_err(AcceptError::System)?;
        if !self.admission.admits(&who) {
            refuse(opener, Errno::ACCESS, "this channel is offered to programs of the offerer's user only");
            return Ok(None);
        }
        let (here, there) = match pair(&self.config) {
            Ok(ends) => ends,
            Err(error) => {
                refuse(opener, Errno::NFILE, "the offerer can't make a channel now; try again later");
                return Err(error.into());
            }
        };
        let there = there.into_descriptors();
        let descriptors = there.each_ref().map(AsFd::as_fd);
        let greeting = Greeting::Channel.encode();
        match sys::descriptors::send_with_descriptors(opener, &greeting, &descriptors) {
            Ok(()) => Ok(Some((here, who))),
            // It did not wait for its channel, or does not take descriptors.
            Err(_gone) => Ok(None),
        }
    }
}

impl AsFd for Offer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Says why not; whoever does not listen to it is no worse off.
fn refuse(opener: &OwnedFd, errno: Errno, text: &str) {
    let errno = errno.raw_os_error().unsigned_abs();
    let greeting = Greeting::Refused { errno, text: text.to_owned() }.encode();
    let _said = sys::descriptors::send_with_descriptors(opener, &greeting, &[]);
}
