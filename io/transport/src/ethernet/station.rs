//! A station: where a proxy hears and says frames on one Ethernet, for all lanes that it has there.

use super::covered::Covered;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};
use sys::ethernet::Interface;
use sys::ethernet::bundles::{self, Hears};
use wire::cover;
use wire::lane::{ETHER_TYPE, FRAME_BYTES_MAX, FRAME_BYTES_MIN};

/// Frames that another lane has taken from the socket and this one has not looked at, at most: more
/// are lost, and come again.
const INBOX_FRAMES_MAX: usize = 256;

/// Where frames did not come through that way they are not tried again for so long: each try takes
/// up to a second.
const LIMITED_FOR: Duration = Duration::from_secs(60);
/// Places of which that is remembered, at most.
const LIMITED_MAX: usize = 256;

/// The frames that a lane may have; each can do what those before can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// Each by itself.
    Bare,
    /// Several under a cover.
    Covered,
    /// Long ones under a cover.
    Long,
}

impl Reach {
    /// The next that asks less of what is in between.
    pub fn less(self) -> Option<Self> {
        match self {
            Self::Long => Some(Self::Covered),
            Self::Covered => Some(Self::Bare),
            Self::Bare => None,
        }
    }
}

/// The frames that a lane gets of others that read from the same socket.
#[derive(Debug, Default)]
struct Inbox {
    frames: VecDeque<Vec<u8>>,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Lanes {
    of: HashMap<u32, Inbox>,
    last: u32,
}

/// A socket on an interface that hears what is for it alone. Clones are the same.
#[derive(Debug, Clone)]
pub struct Station(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: OwnedFd,
    /// For frames under a cover, where the kernel knows how.
    covered: Option<OwnedFd>,
    interface: Interface,
    number: u64,
    lanes: Mutex<Lanes>,
    /// Where not all frames come through, those that may, and until when that is believed.
    limited: Mutex<HashMap<SocketAddr, (Instant, Reach)>>,
}

impl Station {
    /// Opens one on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// There is no such interface, it is no Ethernet, or `CAP_NET_RAW` is missing.
    pub fn open(interface: &str) -> io::Result<Self> {
        let interface = sys::ethernet::interface(interface)?;
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let number = u64::from_le_bytes(bytes);
        let socket = sys::ethernet::open(&interface, ETHER_TYPE, number)?;
        let hears = Hears { ether_type: cover::ETHER_TYPE, words: cover::words(number), byte: cover::BYTE };
        let covered = bundles::is_known().then(|| bundles::open(&interface, &hears)).transpose()?;
        Self::of((socket, covered), interface, number)
    }

    /// One that somebody else has opened: the sockets of [`sys::ethernet::open`] and, where the
    /// kernel knows how, [`bundles::open`], and for what.
    ///
    /// # Errors
    /// `InvalidInput` where its frames are too short.
    pub fn of(
        (socket, covered): (OwnedFd, Option<OwnedFd>),
        interface: Interface,
        number: u64,
    ) -> io::Result<Self> {
        if usize::try_from(interface.mtu).is_ok_and(|mtu| mtu < FRAME_BYTES_MIN) {
            let why = format!("the frames of {} are shorter than {FRAME_BYTES_MIN} bytes", interface.name);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self(Arc::new(Inner {
            socket,
            covered,
            interface,
            number,
            lanes: Mutex::default(),
            limited: Mutex::default(),
        })))
    }

    /// The same without the means for frames under a cover, as on an older kernel. None: it has
    /// lanes.
    #[must_use]
    pub fn uncovered(self) -> Option<Self> {
        let inner = Arc::into_inner(self.0)?;
        Some(Self(Arc::new(Inner { covered: None, ..inner })))
    }

    /// Its number: what frames for it begin with.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Where it is.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.0.interface
    }

    /// Its sockets, to be handed on: for frames, and for those under a cover.
    #[must_use]
    pub fn sockets(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.0.socket.as_fd(), self.0.covered.as_ref().map(AsFd::as_fd))
    }

    /// The reach that it has the sockets for.
    pub(super) fn reach(&self) -> Reach {
        if self.0.covered.is_some() { Reach::Long } else { Reach::Bare }
    }

    /// The same, but for what did lately not come through to who is introduced there.
    pub(super) fn reach_to(&self, at: SocketAddr) -> Reach {
        let limited = self.0.limited.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = limited.get(&at).filter(|(until, _)| *until > Instant::now());
        limit.map_or(self.reach(), |(_, limit)| self.reach().min(*limit))
    }

    /// No more than this comes through to who is introduced there.
    pub(super) fn limit_to(&self, at: SocketAddr, limit: Reach) {
        let now = Instant::now();
        let mut limited = self.0.limited.lock().unwrap_or_else(PoisonError::into_inner);
        limited.retain(|_, (until, _)| *until > now);
        if limited.len() < LIMITED_MAX {
            limited.insert(at, (now + LIMITED_FOR, limit));
        }
    }

    /// Longest payload of a frame.
    pub(super) fn frame_bytes(&self) -> usize {
        usize::try_from(self.0.interface.mtu).unwrap_or(usize::MAX).min(FRAME_BYTES_MAX)
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new lane.
    pub(super) fn lane(&self) -> LanePlace {
        let mut lanes = self.lanes();
        while lanes.of.contains_key(&lanes.last) {
            lanes.last = lanes.last.wrapping_add(1);
        }
        let number = lanes.last;
        lanes.last = lanes.last.wrapping_add(1);
        lanes.of.insert(number, Inbox::default());
        drop(lanes);
        LanePlace { station: self.clone(), number }
    }
}

/// A lane's part of a station; the number is free again when it is dropped.
#[derive(Debug)]
pub(super) struct LanePlace {
    pub station: Station,
    pub number: u32,
}

/// How frames go to the other side of a lane.
#[derive(Debug)]
pub(super) enum Way {
    /// As they are, to an address.
    Bare([u8; 6]),
    /// Under a cover.
    Covered(Covered),
}

impl Drop for LanePlace {
    fn drop(&mut self) {
        self.station.lanes().of.remove(&self.number);
    }
}

impl LanePlace {
    /// The socket of a way.
    pub fn socket(&self, way: &Way) -> BorrowedFd<'_> {
        let Inner { socket, covered, .. } = &*self.station.0;
        match (way, covered) {
            (Way::Covered(_), Some(covered)) => covered.as_fd(),
            _ => socket.as_fd(),
        }
    }

    /// Sends frames; says how many went.
    pub fn send(&self, way: &mut Way, frames: &[&[u8]]) -> io::Result<usize> {
        let socket = self.socket(way);
        match way {
            Way::Bare(to) => {
                sys::ethernet::send(socket, (self.station.interface().index, ETHER_TYPE, *to), frames)
            }
            Way::Covered(covered) => covered.send(socket, frames),
        }
    }

    /// The socket for frames as they are.
    pub fn bare_socket(&self) -> BorrowedFd<'_> {
        self.station.0.socket.as_fd()
    }

    /// Sends one frame as it is.
    pub fn send_bare(&self, to: [u8; 6], frame: &[u8]) -> io::Result<usize> {
        let index = self.station.interface().index;
        sys::ethernet::send(self.bare_socket(), (index, ETHER_TYPE, to), &[frame])
    }

    /// Gives a frame to the lane that it is for, if there is one.
    pub fn pass_on(&self, number: u32, frame: &[u8]) {
        let mut lanes = self.station.lanes();
        let Some(inbox) = lanes.of.get_mut(&number) else { return };
        if inbox.frames.len() < INBOX_FRAMES_MAX {
            inbox.frames.push_back(frame.to_vec());
        }
        if let Some(waker) = inbox.waker.take() {
            waker.wake();
        }
    }

    /// The frames that others have passed on; `waker` is woken when there is more.
    pub fn passed_on(&self, waker: &Waker) -> VecDeque<Vec<u8>> {
        let mut lanes = self.station.lanes();
        // Alone, nobody else reads.
        if lanes.of.len() == 1 && lanes.of.values().all(|inbox| inbox.frames.is_empty()) {
            return VecDeque::new();
        }
        let Some(inbox) = lanes.of.get_mut(&self.number) else { return VecDeque::new() };
        if !inbox.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            inbox.waker = Some(waker.clone());
        }
        std::mem::take(&mut inbox.frames)
    }
}
