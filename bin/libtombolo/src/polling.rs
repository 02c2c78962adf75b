//! Waiting for one direction of a channel: in a call that signals interrupt, and by a descriptor
//! that event loops watch.
//!
//! A ring in shared memory is nothing that the kernel could watch. What it can watch is the
//! doorbell, which the other end rings only for those who have said that they sleep; and it may
//! ring before that is of use. So what a program polls is an epoll descriptor of three: the
//! doorbell, the end's own lifeline, and an event of ours, raised while there is something of which
//! the doorbell may never tell.

use crate::failure::system;
use channel::Descriptors;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use sys::channel_abi::{Outcome, Patience};
use sys::eventfd::Eventfd;
use sys::fork::Origin;
use sys::known::Known;

/// A half of an end, as far as waiting goes.
pub trait Half {
    /// The descriptors to watch while it sleeps.
    fn descriptors(&self) -> Descriptors<'_>;
    /// Says to the other end that we are going to sleep; false: there is something, so do not.
    fn prepare(&mut self) -> Outcome<bool>;
    /// Says that we are awake. After each `prepare` that returned true.
    fn awake(&mut self);
    /// Takes the rings off the doorbell.
    fn drain(&mut self) -> Outcome<()>;
}

/// The first time that anybody looked at the clock.
static OVER: OnceLock<Instant> = OnceLock::new();

/// When a wait is over; `None`: never.
#[must_use]
pub fn deadline_of(patience: Patience) -> Option<Instant> {
    match patience {
        // Any time that is over will do, and needs no look at the clock.
        Patience::Never => Some(*OVER.get_or_init(Instant::now)),
        // A time that no clock reaches is as good as for ever.
        Patience::For(time) => Instant::now().checked_add(time),
        Patience::Forever => None,
    }
}

/// Sleeps until there is something; false: the time was over.
///
/// # Errors
/// `EINTR`: a signal handler ran.
pub fn wait(half: &mut impl Half, patience: Patience) -> Outcome<bool> {
    let deadline = deadline_of(patience);
    loop {
        if !half.prepare()? {
            return Ok(true);
        }
        let slept = if patience == Patience::Never {
            Ok(false)
        } else {
            let Descriptors { doorbell, lifeline } = half.descriptors();
            poll_until(&[doorbell, lifeline], deadline)
        };
        half.awake();
        half.drain()?;
        if !slept? {
            return Ok(false);
        }
    }
}

/// Waits until one of the descriptors can be read; false: the time was over.
pub fn poll_until(descriptors: &[BorrowedFd<'_>], deadline: Option<Instant>) -> Outcome<bool> {
    let left = deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
    let mut polled: Vec<_> =
        descriptors.iter().map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
    match poll(&mut polled, left.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Err(crate::failure::failure(Errno::INTR, "a signal interrupted the wait")),
        Err(errno) => Err(system("wait for a channel", &errno.into())),
    }
}

fn timespec(left: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    }
}

/// The descriptors that an event loop watches.
#[derive(Debug)]
pub struct PollSet {
    epoll: Known,
    event: Eventfd,
    is_raised: bool,
    /// The process that polls it. A fork's child shares the event, and has no business with it.
    origin: Origin,
}

impl PollSet {
    /// Watches the given descriptors; readable at first, until somebody has looked.
    pub fn new(sources: &[BorrowedFd<'_>]) -> Outcome<Self> {
        let refused = |errno: Errno| system("make a descriptor to poll", &errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        let epoll = Known::at_its_number(epoll);
        let event = Eventfd::new().map_err(|error| system("make a descriptor to poll", &error))?;
        for source in sources.iter().copied().chain([event.as_fd()]) {
            epoll::add(&epoll, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(refused)?;
        }
        let origin = Origin::here().map_err(|error| system("remember who polls", &error))?;
        let mut set = Self { epoll, event, is_raised: false, origin };
        set.raise();
        Ok(set)
    }

    /// The descriptor, which is this value's.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.epoll.as_fd().as_raw_fd()
    }

    /// Makes the descriptor readable.
    pub fn raise(&mut self) {
        if !self.is_raised && self.origin.is_here() {
            self.event.signal();
            self.is_raised = true;
        }
    }

    /// Leaves it to the other descriptors whether it is readable.
    pub fn lower(&mut self) {
        if self.is_raised && self.origin.is_here() {
            self.event.drain();
            self.is_raised = false;
        }
    }

    /// Has the doorbell tell, if there is nothing now; else the descriptor is readable.
    pub fn arm(&mut self, half: &mut impl Half) {
        // The rings come off first: one that comes after is for what we have not seen.
        let drained = half.drain();
        self.lower();
        // Whatever is wrong with the channel, the next call says.
        if drained.is_err() || !half.prepare().unwrap_or(false) {
            self.raise();
        }
    }
}

impl AsFd for PollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
