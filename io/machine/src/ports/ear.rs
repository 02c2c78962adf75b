//! The hearing of a guest: the peer's doorbell, and the way on which its rings come to QEMU.

use super::device::Hearing;
use super::watch::{Hush, Watch};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::eventfd::Eventfd;

/// One doorbell that the guest hears.
#[derive(Debug)]
pub(super) struct Ear {
    pub listener: OwnedFd,
    /// By which the kernel can tell of the peer's rings.
    sight: Option<OwnedFd>,
    pub hung_up: bool,
    pub voice: Option<Voice>,
    /// Until when it is not looked for rings that the kernel has passed on.
    pub rests_ms: Option<u64>,
}

/// How long a doorbell whose rings the kernel passes on is not looked at once it has rung, in ms:
/// all that there is to do is to take the rings off, before there are as many as a doorbell holds,
/// some hundred.
const REST_MS: u64 = 10;

impl Ear {
    /// `sight`: where the kernel's help is asked for.
    pub fn new(listener: OwnedFd, hearing: Hearing, sight: Option<OwnedFd>) -> io::Result<Self> {
        let voice = Voice::of(hearing, sight.is_some())?;
        Ok(Self { listener, sight, hung_up: false, voice, rests_ms: None })
    }

    /// Where QEMU listens with handlers that it does not take away, if it does.
    pub fn handled(&self) -> Option<&OwnedFd> {
        match &self.voice {
            Some(Voice::Own { listener, .. }) => Some(listener),
            Some(Voice::Watch(watch)) => Some(watch.heard_at()),
            Some(Voice::Event(_)) | None => None,
        }
    }

    /// The guest has the channel: what it is to hear is passed on, if this process need not be
    /// asked.
    pub fn open(&mut self) {
        if let (Some(Voice::Watch(watch)), Some(sight)) = (&mut self.voice, &self.sight) {
            watch.listen_to(sight.as_fd(), self.listener.as_fd());
        }
    }

    /// Nothing is passed on any more by itself. `None`: nothing was.
    pub fn close(&mut self) -> Option<Hush> {
        match &mut self.voice {
            Some(Voice::Watch(watch)) => watch.silence(),
            _ => None,
        }
    }

    /// The peer has rung, and that was taken off. False: there is no way from here, the guest has
    /// to be told.
    pub fn pass_on(&mut self, now_ms: u64) -> bool {
        let Some(voice) = &self.voice else { return false };
        if !voice.passes_on() {
            voice.ring();
            return true;
        }
        // A doorbell that was full has taken no more rings, and nobody was told of those.
        if sys::doorbell::take_all(&self.listener).unwrap_or(true) {
            voice.ring();
        }
        self.rests_ms = Some(now_ms + REST_MS);
        true
    }
}

/// Where this process passes a ring on, for QEMU to hear.
#[derive(Debug)]
pub(super) enum Voice {
    Event(Eventfd),
    /// The kernel does it.
    Watch(Watch),
    /// A doorbell of our own: what QEMU listens to, and what we ring.
    Own {
        listener: OwnedFd,
        ringer: OwnedFd,
    },
}

impl Voice {
    /// The one that goes with the way of hearing, if any. `by_watch`: the kernel's help is asked
    /// for.
    pub fn of(hearing: Hearing, by_watch: bool) -> io::Result<Option<Self>> {
        let watch = || by_watch.then(|| Watch::new().ok()).flatten();
        Ok(match hearing {
            Hearing::Eventfds => Some(Self::Event(Eventfd::new()?)),
            Hearing::Doorbells => {
                if let Some(watch) = watch() {
                    return Ok(Some(Self::Watch(watch)));
                }
                let (listener, ringer) = sys::doorbell::pair()?;
                Some(Self::Own { listener, ringer })
            }
            Hearing::Frames => None,
        })
    }

    pub fn heard_at(&self) -> BorrowedFd<'_> {
        match self {
            Self::Event(event) => event.as_fd(),
            Self::Watch(watch) => watch.heard_at().as_fd(),
            Self::Own { listener, .. } => listener.as_fd(),
        }
    }

    pub fn ring(&self) {
        match self {
            Self::Event(event) => event.signal(),
            Self::Watch(watch) => watch.ring(),
            // Of a ring that QEMU has not heard yet one is enough: what this one is for is there
            // already when it hears that. It is ours at both ends, so there is nothing that can be
            // wrong with it.
            Self::Own { ringer, .. } if self.is_quiet() => drop(sys::doorbell::ring(ringer)),
            Self::Own { .. } => {}
        }
    }

    /// Whether the kernel passes rings on by itself.
    pub fn passes_on(&self) -> bool {
        matches!(self, Self::Watch(watch) if watch.passes_on())
    }

    /// Whether QEMU has heard all that was said.
    pub fn is_quiet(&self) -> bool {
        match self {
            Self::Event(_) => true,
            Self::Watch(watch) => watch.is_quiet(),
            Self::Own { listener, .. } => rustix::io::ioctl_fionread(listener) == Ok(0),
        }
    }
}
