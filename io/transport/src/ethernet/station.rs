//! A station: where a proxy hears and says frames on one Ethernet, for all lanes that it has there.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use sys::ethernet::Interface;
use wire::lane::{ETHER_TYPE, FRAME_BYTES_MAX, FRAME_BYTES_MIN};

/// Frames that another lane has taken from the socket and this one has not looked at, at most: more are lost, and come again.
const INBOX_FRAMES_MAX: usize = 256;

/// What a lane gets of others that read from the same socket.
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
    interface: Interface,
    number: u64,
    lanes: Mutex<Lanes>,
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
        Self::of(socket, interface, number)
    }

    /// One that somebody else has opened: the socket of [`sys::ethernet::open`], and for what.
    ///
    /// # Errors
    /// `InvalidInput` where its frames are too short.
    pub fn of(socket: OwnedFd, interface: Interface, number: u64) -> io::Result<Self> {
        if usize::try_from(interface.mtu).is_ok_and(|mtu| mtu < FRAME_BYTES_MIN) {
            let why = format!("the frames of {} are shorter than {FRAME_BYTES_MIN} bytes", interface.name);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self(Arc::new(Inner { socket, interface, number, lanes: Mutex::default() })))
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

    /// Its socket, to be handed on.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
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

impl Drop for LanePlace {
    fn drop(&mut self) {
        self.station.lanes().of.remove(&self.number);
    }
}

impl LanePlace {
    /// Sends frames to an address of this Ethernet; says how many went.
    pub fn send(&self, to: [u8; 6], frames: &[&[u8]]) -> io::Result<usize> {
        let Inner { socket, interface, .. } = &*self.station.0;
        sys::ethernet::send(socket, (interface.index, ETHER_TYPE, to), frames)
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

    /// What others have passed on; `waker` is woken when there is more.
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
