//! The state that the two halves of an opened end have in common.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ring::{Consumer, Place, Producer, Spin, Wake};
use sys::doorbell::{self, Heard};
use sys::eventfd::Eventfd;
use sys::fork::Origin;
use sys::region::Region;
use wire::ring as layout;

use crate::kinds::{Bell, Bells};
use crate::{OpenError, Receiver, Sender};

/// Looks at memory before the first look at the clock: an answer that is on its way is found
/// without.
const LOOKS_BEFORE_CLOCK: u32 = 64;
/// Looks at memory between two looks at the clock (and at the peer's processor) while spinning.
const LOOKS_PER_CLOCK: u32 = 32;

/// When to spin before sleeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinPolicy {
    /// Sleep at once, for those who have many channels, or time: but a peer that alleges to share
    /// our processor gets that first, once, while it has paid.
    Never,
    /// Spin for about what a wake-up costs while that pays, and only if the peer alleges to run on
    /// another processor.
    #[default]
    Adaptive,
}

impl SpinPolicy {
    /// How often to let a peer on our own processor have that before sleeping, while this pays
    /// ([`Spin::may_give_way`]).
    #[must_use]
    pub fn ways(self) -> u32 {
        match self {
            SpinPolicy::Never => WAYS_TO_SLEEP,
            SpinPolicy::Adaptive => WAYS,
        }
    }
}

/// The descriptors that an event loop watches for readability and hang-up. On any event:
/// `drain_doorbell`, then try until there is nothing, then `prepare_wait` before the next sleep.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a> {
    /// Readable when the peer rang, hung up when the peer is gone.
    pub doorbell: BorrowedFd<'a>,
    /// Readable for good when this end has been closed (by its other half, too).
    pub lifeline: BorrowedFd<'a>,
}

/// The error of a process that uses its parent's end.
pub(crate) const FORKED: &str = "this end of a channel belongs to the process that opened it, of which this process is a fork: \
    give each process an end of its own";

/// The abilities of ends on this host, which share its kernel, and which those of other kinds of
/// regions lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Sleep on a futex in the region.
    pub futexes: bool,
    /// Order the peer's memory by membarrier(2).
    pub barriers: bool,
    /// Tell by the numbers of processors whether both run on the same one. Otherwise the peer is
    /// taken for running elsewhere: on a processor of a machine of its own.
    pub processors: bool,
}

impl Kind {
    /// A memfd that two processes of this host have mapped.
    pub(crate) fn together() -> Kind {
        Kind { futexes: true, barriers: sys::membarrier::is_supported(), processors: true }
    }

    /// Memory that ends under two kernels have mapped.
    pub(crate) fn apart() -> Kind {
        Kind { futexes: false, barriers: false, processors: false }
    }
}

/// On which processors the two ends run, as far as one knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// Nobody said.
    Unknown,
    /// On the same one.
    Together,
    /// On two.
    Apart,
}

impl Kind {
    /// Judges what the peer alleges of its processor. `here` is ours, if it matters.
    #[inline]
    pub(crate) fn place(self, peer: Option<u32>, here: impl FnOnce() -> u32) -> Where {
        match peer {
            _ if !self.processors => Where::Apart,
            None => Where::Unknown,
            Some(peer) if peer == here() => Where::Together,
            Some(_) => Where::Apart,
        }
    }
}

/// Messages between two looks at which processor we run on: a look costs some ns, and a thread
/// seldom moves.
const MESSAGES_PER_LOOK: u32 = 64;

/// Says when to publish where we run: with the first message, when we have woken the peer, and then
/// once in a while. Holds for how many messages there is no need to.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts(u32);

impl Whereabouts {
    /// Counts a message, unless it is due with this one.
    #[inline]
    pub(crate) fn is_not_due(&mut self) -> bool {
        let not_due = self.0 > 0;
        self.0 -= u32::from(not_due);
        not_due
    }

    /// Counts a message; true: it is due with this one.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        let due = !self.is_not_due();
        if due {
            self.0 = MESSAGES_PER_LOOK;
        }
        due
    }

    /// It is due with the next message.
    pub(crate) fn hurry(&mut self) {
        self.0 = 0;
    }
}

/// An opened end.
#[derive(Debug)]
pub(crate) struct Shared {
    side: usize,
    kind: Kind,
    outward: Place,
    inward: Place,
    bells: Bells,
    /// Ours alone: wakes this end's own waiters when this end closes.
    lifeline: Eventfd,
    closed_here: AtomicBool,
    peer_gone: AtomicBool,
    /// The process that opened this end. The region and the descriptors of a fork's child are the
    /// same; the indices that go with them are copies, so the child must touch nothing.
    origin: Origin,
    /// The last to go, if the halves have not kept it: see [`Region::keeping`].
    region: Arc<Region>,
}

impl Shared {
    pub(crate) fn open(
        region: Region,
        side: usize,
        ring_bytes: u32,
        bells: Bells,
        kind: Kind,
    ) -> Result<(Sender, Receiver), OpenError> {
        let bytes = layout::region_bytes(ring_bytes);
        let place = |index| Place::in_region(index, ring_bytes).ok_or(OpenError::RegionBytes { bytes });
        let (outward, inward) = (place(side)?, place(1 - side)?);
        let watch = |source| OpenError::System { action: "make the event of a channel's end", source };
        let lifeline = Eventfd::new().map_err(watch)?;
        let know =
            |source| OpenError::System { action: "find out which process opens a channel's end", source };
        let origin = Origin::here().map_err(know)?;
        // Of two who open it at once, one finds that the other was first; and a closed end is not
        // opened again.
        let state = ring::claim_end(&region, side);
        if state != layout::END_UNOPENED {
            return Err(OpenError::Reopened { state });
        }
        let region = Arc::new(region);
        let shared = Arc::new(Shared {
            region: Arc::clone(&region),
            side,
            kind,
            outward,
            inward,
            bells,
            lifeline,
            closed_here: AtomicBool::new(false),
            peer_gone: AtomicBool::new(false),
            origin,
        });
        // The peer may have written it by now: an allegation, which `Spin` keeps within bounds.
        let spin = Spin::new(region.load_u64(layout::OFFSET_SPIN_NS, Ordering::Relaxed));
        let producer = Producer::new(Arc::clone(&region), outward);
        let sender = Sender::new(Arc::clone(&shared), producer, spin.clone());
        let mut consumer = Consumer::new(region, inward);
        if kind == Kind::apart() {
            consumer.forswear_barriers();
        } else {
            consumer.offer_barrier(kind.barriers);
        }
        let receiver = Receiver::new(shared, consumer, spin);
        Ok((sender, receiver))
    }

    /// Closes this end: tells the peer, wakes everybody. `state` says why.
    pub(crate) fn close(&self, state: u64) {
        if self.closed_here.swap(true, Ordering::AcqRel) || self.is_forked() {
            return;
        }
        ring::set_end_state(&*self.region, self.side, state);
        for place in [&self.outward, &self.inward] {
            for word in ring::rouse(&*self.region, place) {
                // Whatever stood there: a sleeper's word is the peer's to change.
                self.region.wake(word);
            }
        }
        self.lifeline.signal();
        // A pipe of ours that can't be rung has nobody behind it who could be told.
        let _told = self.bells.data.ring();
        let _told = self.bells.room.ring();
    }

    /// Makes [`Shared::close`] do nothing. For a process that shares the region, the lifeline and
    /// the doorbells with another which goes on using them.
    pub(crate) fn abandon(&self) {
        self.closed_here.store(true, Ordering::Release);
    }

    /// Whether this end can't be used any more, in this process.
    #[inline]
    pub(crate) fn is_closed_here(&self) -> bool {
        self.closed_here.load(Ordering::Acquire) || self.is_forked()
    }

    /// Whether both ends are in order, as far as that shows without a system call.
    #[inline]
    pub(crate) fn is_sound(&self) -> bool {
        !self.is_closed_here() && !self.is_peer_closed()
    }

    /// Whether this process is a fork of the one that opened this end.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.origin.is_here()
    }

    /// Whether the peer alleges to have closed, or is known to be gone. No system call.
    #[inline]
    pub(crate) fn is_peer_closed(&self) -> bool {
        let state = ring::end_state(&*self.region, 1 - self.side);
        state == layout::END_CLOSED || state == layout::END_REFUSED || self.peer_gone.load(Ordering::Acquire)
    }

    /// As [`Shared::is_peer_closed`], and asks the kernel whether the peer lives.
    pub(crate) fn is_peer_gone(&self) -> bool {
        // A descriptor of ours that can't be polled is as good as one without a peer.
        if !self.is_peer_closed() && self.bells.data.is_dead().unwrap_or(true) {
            self.peer_gone.store(true, Ordering::Release);
        }
        self.is_peer_closed()
    }

    fn listen(&self, bell: &dyn Bell) -> io::Result<()> {
        if bell.listen()? == Heard::Death {
            self.peer_gone.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn drain_data(&self) -> io::Result<()> {
        self.listen(&*self.bells.data)
    }

    pub(crate) fn drain_room(&self) -> io::Result<()> {
        self.listen(&*self.bells.room)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// The side of this end.
    pub(crate) fn side(&self) -> usize {
        self.side
    }

    /// Bytes of one ring.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.outward.capacity()
    }

    /// Where the peer's receiver says that it sleeps.
    #[inline]
    pub(crate) fn peers_sleeping(&self) -> usize {
        self.outward.sleeping()
    }

    /// The futex of our receiver.
    pub(crate) fn sleeping(&self) -> usize {
        self.inward.sleeping()
    }

    /// The futex of our sender.
    pub(crate) fn wanted(&self) -> usize {
        self.outward.wanted()
    }

    /// Wakes the peer's receiver as it wants to be woken.
    #[inline]
    pub(crate) fn wake_receiver(&self, wake: Wake) -> io::Result<()> {
        if wake.is_needed() { self.wake(wake, self.outward.sleeping(), &*self.bells.data) } else { Ok(()) }
    }

    /// Wakes the peer's sender as it wants to be woken.
    #[inline]
    pub(crate) fn wake_sender(&self, wake: Wake) -> io::Result<()> {
        if wake.is_needed() { self.wake(wake, self.inward.wanted(), &*self.bells.room) } else { Ok(()) }
    }

    #[cold]
    fn wake(&self, wake: Wake, futex: usize, bell: &dyn Bell) -> io::Result<()> {
        match wake {
            Wake::Nobody => Ok(()),
            Wake::Doorbell => bell.ring(),
            Wake::Futex => {
                // Nobody there: it has woken by itself, and sees what we have done.
                self.region.wake(futex);
                Ok(())
            }
        }
    }

    /// Whether what the receiver waits on is still what it was. To wait on anything else would be
    /// in vain.
    pub(crate) fn check_data(&self) -> io::Result<()> {
        self.check(&*self.bells.data)
    }

    /// The same for the sender.
    pub(crate) fn check_room(&self) -> io::Result<()> {
        self.check(&*self.bells.room)
    }

    fn check(&self, bell: &dyn Bell) -> io::Result<()> {
        bell.check()?;
        if self.lifeline.is_there() { Ok(()) } else { Err(rustix::io::Errno::BADF.into()) }
    }

    pub(crate) fn data_descriptors(&self) -> Descriptors<'_> {
        Descriptors { doorbell: self.bells.data.descriptor(), lifeline: self.lifeline.as_fd() }
    }

    pub(crate) fn room_descriptors(&self) -> Descriptors<'_> {
        Descriptors { doorbell: self.bells.room.descriptor(), lifeline: self.lifeline.as_fd() }
    }
}

impl Descriptors<'_> {
    /// Sleeps until one of the two has something, or the time is over; may return early.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> io::Result<()> {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        doorbell::wait(self.doorbell, self.lifeline, timeout_ns)
    }
}

/// Closes the end it came from, from anywhere; keeps nothing alive.
#[derive(Clone, Debug)]
pub struct Closer(Weak<Shared>);

impl Closer {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Closer(Arc::downgrade(shared))
    }

    /// Closes the channel, and wakes whoever waits on it. Does nothing when it is closed already.
    pub fn close(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.close(layout::END_CLOSED);
        }
    }
}

/// How often the peer gets the processor before we sleep: it may have been in the midst of
/// something.
const WAYS: u32 = 2;
/// The same of who is to sleep at once. That is the switch which its sleep costs as well, and no
/// more.
const WAYS_TO_SLEEP: u32 = 1;

/// Lets others have the processor for a moment, the peer above all. That is the switch that a sleep
/// costs as well, without the sleep and the wake.
fn give_way(policy: SpinPolicy, spin: &mut Spin, watch: &mut impl Watch) -> bool {
    if !spin.may_give_way() {
        return false;
    }
    let since = Instant::now();
    let found = (0..policy.ways()).any(|_| {
        std::thread::yield_now();
        watch.found()
    });
    spin.gave_way(found, nanoseconds(since.elapsed()));
    found
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The condition that a spin waits for, and the peer that it waits for.
pub(crate) trait Watch {
    /// Whether it has come.
    fn found(&mut self) -> bool;
    /// Where the peer alleges to run.
    fn peer_processor(&self) -> Option<u32>;
}

/// Spins until `watch` has found something, within what is allowed; says whether it has. `here` is
/// the processor that we published last.
pub(crate) fn spin(
    policy: SpinPolicy,
    kind: Kind,
    spin: &mut Spin,
    deadline: Option<Instant>,
    here: Option<u32>,
    mut watch: impl Watch,
) -> bool {
    // Where both ends share a processor, spinning keeps the peer from doing what we wait for: it
    // gets the processor.
    match kind.place(watch.peer_processor(), || here.unwrap_or_else(sys::processor::current)) {
        Where::Unknown => return false,
        Where::Together => return give_way(policy, spin, &mut watch),
        Where::Apart if policy == SpinPolicy::Never => return false,
        Where::Apart => {}
    }
    let budget_ns = spin.begin();
    if budget_ns == 0 {
        return false;
    }
    for _ in 0..LOOKS_BEFORE_CLOCK {
        if watch.found() {
            spin.end(true);
            return true;
        }
    }
    let end = Instant::now() + Duration::from_nanos(budget_ns);
    let end = deadline.map_or(end, |deadline| deadline.min(end));
    loop {
        // Either may have been moved to the other's processor meanwhile.
        if kind.place(watch.peer_processor(), sys::processor::current) != Where::Apart {
            return false;
        }
        for _ in 0..LOOKS_PER_CLOCK {
            if watch.found() {
                spin.end(true);
                return true;
            }
            std::hint::spin_loop();
        }
        if Instant::now() >= end {
            spin.end(false);
            return false;
        }
    }
}
