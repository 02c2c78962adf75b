//! The state behind one handle: a lock for each direction, so that a thread that reads and one that
//! writes never meet.

use crate::failure::{self, busy, closed, failure};
use crate::offering::{Offering, mode_of};
use crate::reading::Reading;
use crate::whole::{Ender, Kind, Part, Whole};
use crate::writing::Writing;
use channel::{Closer, End, Mode, OpenOptions};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};
use sys::channel_abi::{Direction, Failure, Handle, Options, Outcome, Patience};
use sys::fork::Origin;

/// How long the child of a fork waits for a lock that is held for moments only: the thread that
/// holds it may not be there.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// In a [`Slot`]'s time-outs: [`Patience::Forever`].
const FOREVER: i64 = -1;

/// One place of the table.
#[derive(Debug, Default)]
pub struct Slot {
    /// The handle that it stands for now; 0: none.
    handle: AtomicI64,
    /// The handle that it stood for last.
    last: AtomicI64,
    /// That one is closed, and a program still points to its memory.
    is_left: AtomicBool,
    /// Handles that it has stood for.
    generation: AtomicU64,
    read_ns: AtomicI64,
    write_ns: AtomicI64,
    common: Mutex<Common>,
    reading: Lane<Reading>,
    writing: Lane<Writing>,
    whole: Lane<Whole>,
}

/// One direction. On cache lines of its own: the other one's thread writes next door all the time.
#[derive(Debug)]
#[repr(align(128))]
struct Lane<T>(Mutex<Option<T>>);

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

/// The state that both directions share. Locked for moments.
#[derive(Debug, Default)]
struct Common {
    state: State,
    /// The name of the peer.
    peer: String,
    options: Options,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Free,
    /// A channel that nobody has used yet.
    Unopened(Box<End>),
    /// A channel in use; a half that has not been used yet waits here for its lane.
    Opened { closer: Closer, reading: Option<Box<Reading>>, writing: Option<Box<Writing>> },
    /// It could not be taken into use.
    Failed(Failure),
    /// An object without directions.
    Whole { ender: Ender },
}

/// How a call enters a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// If no other thread is in it.
    IfFree,
    /// With memory that the program gives back: whoever else is there finds it lent, and leaves in
    /// a moment.
    GivingBack,
}

/// The object that a new handle is to stand for.
pub enum New {
    Channel { end: Box<End>, peer: String, options: Options },
    Whole { whole: Whole, options: Options },
}

/// The remains of a handle that was closed.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing: the place is free.
    Nothing,
    /// Memory that a program still points to, or a lock that never comes free: the place is not.
    Something,
}

impl Slot {
    /// The handle that it stands for; 0: none.
    pub fn handle(&self) -> Handle {
        self.handle.load(Ordering::Acquire)
    }

    /// The number of the next handle of this place, from 1 on.
    pub fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes a free place into use.
    pub fn occupy(&self, handle: Handle, new: New) -> Outcome<()> {
        let options = match &new {
            New::Channel { options, .. } | New::Whole { options, .. } => *options,
        };
        let mut common = lock(&self.common)?;
        *common = match new {
            New::Channel { end, peer, options } => Common { state: State::Unopened(end), peer, options },
            New::Whole { whole, options } => {
                let state = State::Whole { ender: whole.ender() };
                *lock(&self.whole.0)? = Some(whole);
                Common { state, peer: String::new(), options }
            }
        };
        let patience = if options.has(Options::NONBLOCK) { 0 } else { FOREVER };
        self.read_ns.store(patience, Ordering::Relaxed);
        self.write_ns.store(patience, Ordering::Relaxed);
        self.last.store(handle, Ordering::Relaxed);
        self.is_left.store(false, Ordering::Relaxed);
        self.handle.store(handle, Ordering::Release);
        Ok(())
    }

    /// How long calls of a direction wait.
    pub fn patience(&self, direction: Direction) -> Patience {
        match u64::try_from(self.timeout(direction).load(Ordering::Relaxed)) {
            Ok(0) => Patience::Never,
            Ok(ns) => Patience::For(Duration::from_nanos(ns)),
            Err(_) => Patience::Forever,
        }
    }

    pub fn set_patience(&self, direction: Direction, patience: Patience) {
        let ns = match patience {
            Patience::Never => 0,
            Patience::For(time) => i64::try_from(time.as_nanos()).unwrap_or(FOREVER),
            Patience::Forever => FOREVER,
        };
        self.timeout(direction).store(ns, Ordering::Relaxed);
    }

    fn timeout(&self, direction: Direction) -> &AtomicI64 {
        match direction {
            Direction::Reading => &self.read_ns,
            Direction::Writing => &self.write_ns,
        }
    }

    /// Works with the receiving half.
    pub fn read<T>(
        &self,
        handle: Handle,
        entry: Entry,
        work: impl FnOnce(&mut Reading) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut lane = self.enter(handle, &self.reading, entry, "reading this channel")?;
        let half = match &mut *lane {
            Some(half) => half,
            empty => empty.insert(self.take_into_use(handle, |reading, _| reading.take())?),
        };
        self.done(handle, work(half))
    }

    /// Works with the sending half.
    pub fn write<T>(
        &self,
        handle: Handle,
        entry: Entry,
        work: impl FnOnce(&mut Writing) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut lane = self.enter(handle, &self.writing, entry, "writing this channel")?;
        let half = match &mut *lane {
            Some(half) => half,
            empty => empty.insert(self.take_into_use(handle, |_, writing| writing.take())?),
        };
        self.done(handle, work(half))
    }

    /// Works with an offer.
    pub fn offer<T>(&self, handle: Handle, work: impl FnOnce(&mut Offering) -> Outcome<T>) -> Outcome<T> {
        self.whole(
            handle,
            |offering: &mut Offering| {
                if offering.is_here() { work(offering) } else { Err(failure::of_a_parent()) }
            },
        )
    }

    /// Works with what has no directions.
    pub fn whole<P: Part, T>(&self, handle: Handle, work: impl FnOnce(&mut P) -> Outcome<T>) -> Outcome<T> {
        let mut lane = self.enter(handle, &self.whole, Entry::IfFree, P::IN_USE)?;
        let kind = lane.as_ref().map_or(Kind::Channel, Whole::kind);
        let part = lane.as_mut().and_then(P::of).ok_or_else(|| failure::wrong_kind(kind, P::KIND))?;
        let outcome = work(part);
        drop(lane);
        self.done(handle, outcome)
    }

    /// The kind of object that the handle stands for.
    pub fn kind(&self, handle: Handle) -> Outcome<Kind> {
        let common = lock(&self.common)?;
        self.check(handle)?;
        Ok(match &common.state {
            State::Whole { ender } => ender.kind(),
            _ => Kind::Channel,
        })
    }

    /// The name of the peer.
    pub fn peer(&self, handle: Handle) -> Outcome<String> {
        let common = lock(&self.common)?;
        self.check(handle)?;
        Ok(common.peer.clone())
    }

    pub fn options(&self, handle: Handle) -> Outcome<Options> {
        let common = lock(&self.common)?;
        self.check(handle)?;
        match &common.state {
            State::Whole { ender } => Err(failure::wrong_kind(ender.kind(), Kind::Channel)),
            _ => Ok(common.options),
        }
    }

    /// Takes the channel into use now, so that what is wrong with it shows.
    pub fn open(&self, handle: Handle) -> Outcome<()> {
        let mut common = lock(&self.common)?;
        self.check(handle)?;
        common.open();
        match &common.state {
            State::Failed(failure) => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    fn check(&self, handle: Handle) -> Outcome<()> {
        if self.handle() == handle { Ok(()) } else { Err(closed(handle)) }
    }

    fn enter<'a, T>(
        &self,
        handle: Handle,
        lane: &'a Lane<T>,
        entry: Entry,
        doing: &str,
    ) -> Outcome<MutexGuard<'a, Option<T>>> {
        self.check(handle)?;
        let entered = match entry {
            Entry::GivingBack => lock(&lane.0)?,
            Entry::IfFree => match lane.0.try_lock() {
                Ok(entered) => entered,
                Err(TryLockError::WouldBlock) => return Err(busy(doing)),
                Err(TryLockError::Poisoned(_)) => return Err(defect()),
            },
        };
        // Whoever closed it meanwhile waits for this lock to take it apart, or has done so.
        self.check(handle)?;
        Ok(entered)
    }

    /// A half for its lane, from a channel that is taken into use if it is not.
    fn take_into_use<T>(
        &self,
        handle: Handle,
        which: impl FnOnce(&mut Option<Box<Reading>>, &mut Option<Box<Writing>>) -> Option<Box<T>>,
    ) -> Outcome<T> {
        let mut common = lock(&self.common)?;
        self.check(handle)?;
        common.open();
        match &mut common.state {
            State::Opened { reading, writing, .. } => {
                which(reading, writing).map(|half| *half).ok_or_else(defect)
            }
            State::Failed(failure) => Err(failure.clone()),
            State::Whole { ender } => Err(failure::wrong_kind(ender.kind(), Kind::Channel)),
            State::Free | State::Unopened(_) => Err(closed(handle)),
        }
    }

    /// Returns the outcome of a call, unless another thread closed the handle under it.
    fn done<T>(&self, handle: Handle, outcome: Outcome<T>) -> Outcome<T> {
        self.check(handle)?;
        outcome
    }

    /// The end, if nobody has used it; the handle is closed.
    pub fn give_up(&self, handle: Handle) -> Outcome<Box<End>> {
        let mut common = lock(&self.common)?;
        self.check(handle)?;
        match &common.state {
            State::Unopened(_) => {}
            State::Whole { ender } => return Err(failure::wrong_kind(ender.kind(), Kind::Channel)),
            _ => {
                let text = "this end has been used, so it can't be given to another process any more";
                return Err(failure(Errno::ALREADY, text));
            }
        }
        self.handle.store(0, Ordering::Release);
        match std::mem::take(&mut *common).state {
            State::Unopened(end) => Ok(end),
            _ => Err(defect()),
        }
    }

    /// Closes the handle.
    pub fn close(&self, handle: Handle) -> Outcome<Left> {
        if self.handle.compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(closed(handle));
        }
        let state = std::mem::take(&mut *lock(&self.common)?).state;
        match state {
            State::Opened { closer, reading, writing } => Ok(self.close_channel(&closer, reading, writing)),
            State::Whole { ender } => {
                ender.end();
                let Ok(mut lane) = lock(&self.whole.0) else { return Ok(Left::Something) };
                *lane = None;
                Ok(Left::Nothing)
            }
            State::Unopened(_) | State::Failed(_) | State::Free => Ok(Left::Nothing),
        }
    }

    /// Closes a channel, as far as it is this process's: a fork's child has no end to close, and
    /// its halves know that.
    fn close_channel(
        &self,
        closer: &Closer,
        reading: Option<Box<Reading>>,
        writing: Option<Box<Writing>>,
    ) -> Left {
        // A thread that is writing now has its own say.
        if let Ok(mut lane) = self.writing.0.try_lock()
            && let Some(writing) = lane.as_mut()
        {
            writing.part();
        }
        closer.close();
        // Whoever was waiting is awake by now, or a thread of the parent's that this process does
        // not have.
        let (Ok(mut read_lane), Ok(mut write_lane)) = (lock(&self.reading.0), lock(&self.writing.0)) else {
            return Left::Something;
        };
        // What the program still points to stays mapped until it is given back.
        *read_lane = read_lane.take().or(reading.map(|half| *half)).filter(Reading::is_viewed);
        *write_lane = write_lane.take().or(writing.map(|half| *half)).filter(Writing::is_lent);
        let left = if read_lane.is_none() && write_lane.is_none() { Left::Nothing } else { Left::Something };
        self.is_left.store(left == Left::Something, Ordering::Relaxed);
        left
    }

    /// Takes back memory of a handle that is closed, or being closed by another thread now; what is
    /// left then.
    pub fn give_back(&self, direction: Direction, handle: Handle) -> Outcome<Left> {
        let none =
            || failure(Errno::BADF, "the handle is closed, and none of its memory is with the program");
        if self.last.load(Ordering::Relaxed) != handle {
            return Err(none());
        }
        let (mut reading, mut writing) = (lock(&self.reading.0)?, lock(&self.writing.0)?);
        match direction {
            Direction::Reading => {
                reading.as_mut().filter(|half| half.is_viewed()).ok_or_else(none)?.release()?
            }
            Direction::Writing => {
                writing.as_mut().filter(|half| half.is_lent()).ok_or_else(none)?.cancel()?
            }
        }
        if !self.is_left.load(Ordering::Relaxed) {
            // Whoever closes it takes it apart next.
            return Ok(Left::Something);
        }
        *reading = reading.take().filter(Reading::is_viewed);
        *writing = writing.take().filter(Writing::is_lent);
        Ok(if reading.is_none() && writing.is_none() { Left::Nothing } else { Left::Something })
    }
}

impl Common {
    /// Takes the channel into use, if it is not.
    fn open(&mut self) {
        if !matches!(self.state, State::Unopened(_)) {
            return;
        }
        if let State::Unopened(end) = std::mem::take(&mut self.state) {
            self.state = opened(*end, &self.options).unwrap_or_else(State::Failed);
        }
    }
}

fn opened(end: End, options: &Options) -> Outcome<State> {
    let refused = |error: channel::OpenError| failure::opening(&error);
    let wishes = OpenOptions {
        populate: options.has(Options::POPULATE),
        lock: options.has(Options::LOCK),
        huge_pages: options.has(Options::HUGE_PAGES),
    };
    let (mut writing, mut reading) = match mode_of(options) {
        Mode::Messages => {
            let (sender, receiver) = end.open_with(&wishes).map_err(refused)?;
            (Writing::messages(sender), Reading::messages(receiver))
        }
        Mode::Stream => {
            let (writer, reader) = end.open_stream_with(&wishes).map_err(refused)?;
            (Writing::stream(writer), Reading::stream(reader))
        }
    };
    if options.has(Options::NO_SPIN) {
        writing.never_spin();
        reading.never_spin();
    }
    writing.set_batch(options.batch_bytes as usize, Patience::Never)?;
    let closer = reading.closer();
    Ok(State::Opened { closer, reading: Some(Box::new(reading)), writing: Some(Box::new(writing)) })
}

/// A lock that is held for moments.
pub fn lock<T>(mutex: &Mutex<T>) -> Outcome<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(_)) => Err(defect()),
        Err(TryLockError::WouldBlock) if is_fork() => lock_in_child(mutex),
        Err(TryLockError::WouldBlock) => mutex.lock().map_err(|_| defect()),
    }
}

/// The process that first had a handle.
static FIRST: Mutex<Option<Origin>> = Mutex::new(None);

/// Whether this process is the child of a fork of one that has used the library: then what is
/// locked may be so for ever.
fn is_fork() -> bool {
    FIRST.try_lock().map_or(true, |first| first.is_some_and(|first| !first.is_here()))
}

/// Remembers which process this is, before there is anything in it that a child could inherit.
pub fn remember_process() {
    if let Ok(mut first) = FIRST.try_lock()
        && first.is_none()
    {
        *first = Origin::here().ok();
    }
}

/// As [`lock`], where the thread that holds the lock may be one of the parent's, which is not here.
fn lock_in_child<T>(mutex: &Mutex<T>) -> Outcome<MutexGuard<'_, T>> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(_)) => return Err(defect()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(busy("for a long time in a call for it"));
            }
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

fn defect() -> Failure {
    failure(
        Errno::NOTRECOVERABLE,
        "an earlier call for this handle ended in a defect of libtombolo: close it",
    )
}
