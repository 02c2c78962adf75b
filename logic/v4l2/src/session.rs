//! One open file of a camera: its picture, its buffers, and which frame is next.

use std::collections::VecDeque;

use crate::areas::Areas;
use crate::device::Device;
use crate::format::{Interval, Picture};
use crate::pattern::BRIGHTNESS_USUAL;
use crate::refusal::Refusal;

/// One open file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub(crate) picture: Picture,
    pub(crate) interval: Interval,
    pub(crate) brightness: u8,
    pub(crate) priority: u32,
    pub(crate) pool: Option<Pool>,
    pub(crate) flow: Flow,
    /// Frames that were due and found no buffer, or no reader.
    pub(crate) lost: u64,
}

/// Its buffers: equally long, one behind the other in one area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Where the area begins in the memory.
    pub(crate) begin: u32,
    /// Bytes from one buffer to the next.
    pub(crate) stride: u32,
    pub(crate) count: u32,
    /// Those that the device has, the next to be filled first.
    pub(crate) queued: VecDeque<u32>,
    /// Those that are filled, the first one first.
    pub(crate) done: VecDeque<Done>,
}

/// A buffer with a whole frame in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) index: u32,
    pub(crate) number: u64,
}

/// Whether frames flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Flow {
    Still,
    /// Into buffers.
    Streaming(Clock),
    /// To read(2). The frame that is read, and how many bytes of it were taken.
    Reading {
        clock: Clock,
        frame: Option<(u64, u32)>,
    },
}

/// When frames are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    /// When the frame 0 was, in ns.
    pub(crate) since_ns: u64,
    /// The number of the next one.
    pub(crate) next: u64,
}

/// A frame that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Its number since the stream began.
    pub number: u64,
    /// Where in the memory it goes; none: it is kept for read(2), which asks for its number.
    pub offset: Option<u32>,
}

impl Session {
    /// A file that was just opened.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        let (picture, interval) = device.usual();
        Self {
            picture,
            interval,
            brightness: BRIGHTNESS_USUAL,
            priority: wire::v4l2::PRIORITY_DEFAULT,
            pool: None,
            flow: Flow::Still,
            lost: 0,
        }
    }

    /// Returns the format and the size of its frames.
    #[must_use]
    pub fn picture(&self) -> Picture {
        self.picture
    }

    /// The time between two of them.
    #[must_use]
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// Its brightness, 128 where nobody has set it.
    #[must_use]
    pub fn brightness(&self) -> u8 {
        self.brightness
    }

    /// Frames that were due and went nowhere.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether frames flow, into buffers or to read(2).
    #[must_use]
    pub fn flows(&self) -> bool {
        self.flow != Flow::Still
    }

    /// Whether something can be taken at once: a filled buffer, or bytes of a frame. A file with
    /// which nobody has begun yet says so, too, as whoever reads it begins.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        match &self.flow {
            Flow::Still => self.pool.is_none(),
            Flow::Streaming(_) => self.pool.as_ref().is_some_and(|pool| !pool.done.is_empty()),
            Flow::Reading { frame, .. } => frame.is_some(),
        }
    }

    /// When the next frame is due, in ns.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        let clock = self.clock()?;
        Some(clock.since_ns.saturating_add(self.interval.due_ns(clock.next)))
    }

    fn clock(&self) -> Option<&Clock> {
        match &self.flow {
            Flow::Still => None,
            Flow::Streaming(clock) | Flow::Reading { clock, .. } => Some(clock),
        }
    }

    /// The next frame that is due and has a place. It counts as made. Frames that have none are
    /// counted as lost.
    pub fn take_due(&mut self, now_ns: u64) -> Option<Due> {
        if self.due_ns()? > now_ns {
            return None;
        }
        let interval = self.interval;
        match &mut self.flow {
            Flow::Still => None,
            Flow::Streaming(clock) => {
                let Some(index) = self.pool.as_mut().and_then(|pool| pool.queued.pop_front()) else {
                    self.lost = self.lost.saturating_add(skip(clock, interval, now_ns));
                    return None;
                };
                let number = clock.next;
                clock.next += 1;
                let pool = self.pool.as_mut()?;
                pool.done.push_back(Done { index, number });
                Some(Due { number, offset: Some(pool.offset(index)) })
            }
            Flow::Reading { clock, frame } => {
                // Only the newest is worth reading. One that is being read is read to its end.
                let passed = skip(clock, interval, now_ns);
                if frame.is_some_and(|(_, taken)| taken > 0) {
                    self.lost = self.lost.saturating_add(passed);
                    return None;
                }
                let replaced = u64::from(frame.is_some());
                self.lost = self.lost.saturating_add(passed.saturating_sub(1) + replaced);
                let number = clock.next.saturating_sub(1);
                *frame = Some((number, 0));
                Some(Due { number, offset: None })
            }
        }
    }

    /// A read(2) of `bytes` bytes: which part of which frame it takes. `Err` with
    /// [`Refusal::NotYet`] where it has to wait.
    ///
    /// # Errors
    /// [`Refusal::Busy`] for a file that has buffers.
    pub fn read(&mut self, bytes: u32, now_ns: u64) -> Result<(u64, std::ops::Range<u32>), Refusal> {
        if self.pool.is_some() || matches!(self.flow, Flow::Streaming(_)) {
            return Err(Refusal::Busy);
        }
        if self.flow == Flow::Still {
            let clock = Clock { since_ns: now_ns, next: 0 };
            self.flow = Flow::Reading { clock, frame: None };
            // The first frame is there at once.
            let _first = self.take_due(now_ns);
        }
        let whole = self.picture.bytes();
        let Flow::Reading { frame, .. } = &mut self.flow else { return Err(Refusal::Busy) };
        let Some((number, taken)) = *frame else { return Err(Refusal::NotYet) };
        let end = taken.saturating_add(bytes).min(whole);
        *frame = (end < whole).then_some((number, end));
        Ok((number, taken..end))
    }

    /// Gives its area back.
    pub fn end(&mut self, areas: &mut Areas) {
        self.flow = Flow::Still;
        if let Some(pool) = self.pool.take() {
            areas.give_back(pool.begin);
        }
    }

    /// The part of the memory that its buffers are in.
    #[must_use]
    pub fn area(&self) -> Option<std::ops::Range<u32>> {
        self.pool.as_ref().map(|pool| pool.begin..pool.begin + pool.bytes())
    }
}

/// Passes over all frames that are due; how many that were.
pub(crate) fn skip(clock: &mut Clock, interval: Interval, now_ns: u64) -> u64 {
    let next = interval.number_after(now_ns.saturating_sub(clock.since_ns));
    let passed = next.saturating_sub(clock.next);
    clock.next = clock.next.max(next);
    passed
}

impl Pool {
    pub(crate) fn offset(&self, index: u32) -> u32 {
        self.begin + index * self.stride
    }

    pub(crate) fn bytes(&self) -> u32 {
        self.count * self.stride
    }

    pub(crate) fn has(&self, index: u32) -> bool {
        index < self.count
    }

    /// Whether the program has this buffer.
    pub(crate) fn is_programs(&self, index: u32) -> bool {
        !self.queued.contains(&index) && !self.done.iter().any(|done| done.index == index)
    }
}
