//! The state of an open file as its next server gets it. It has been in the consumer's hands:
//! whatever it says is checked as if the program asked for it anew.

use std::collections::VecDeque;

use wire::camera::Format;
use wire::v4l2::{BUFFERS_MAX, PRIORITY_DEFAULT, PRIORITY_MAX};

use crate::areas::{Areas, PAGE_BYTES};
use crate::device::Device;
use crate::format::{Interval, Picture};
use crate::session::{Clock, Done, Flow, Pool, Session, skip};

/// The first byte: the version of what follows.
const VERSION: u8 = 1;
const STILL: u32 = 0;
const STREAMING: u32 = 1;
const READING: u32 = 2;

impl Session {
    /// The state as bytes; `docs/spec/camera.md` has the layout.
    #[must_use]
    pub fn capsule(&self) -> Vec<u8> {
        let mut to = vec![VERSION];
        let (kind, clock, frame) = match &self.flow {
            Flow::Still => (STILL, Clock { since_ns: 0, next: 0 }, None),
            Flow::Streaming(clock) => (STREAMING, *clock, None),
            Flow::Reading { clock, frame } => (READING, *clock, *frame),
        };
        let words = [
            self.picture.format.fourcc(),
            self.picture.width,
            self.picture.height,
            self.interval.numerator,
            self.interval.denominator,
            u32::from(self.brightness),
            self.priority,
            kind,
            u32::from(frame.is_some()),
            frame.map_or(0, |(_, taken)| taken),
        ];
        words.iter().for_each(|word| to.extend_from_slice(&word.to_le_bytes()));
        for long in [clock.since_ns, clock.next, self.lost, frame.map_or(0, |(number, _)| number)] {
            to.extend_from_slice(&long.to_le_bytes());
        }
        if let Some(pool) = &self.pool {
            let sizes = [pool.begin, pool.count, pool.queued.len() as u32, pool.done.len() as u32];
            sizes.iter().for_each(|word| to.extend_from_slice(&word.to_le_bytes()));
            pool.queued.iter().for_each(|index| to.push(*index as u8));
            for done in &pool.done {
                to.push(done.index as u8);
                to.extend_from_slice(&done.number.to_le_bytes());
            }
        }
        to
    }

    /// An open file that an earlier server had. Frames that were due meanwhile are lost, and
    /// counted. `None` for what can't be: the device has no such picture, the memory has no such
    /// room, the same buffer twice.
    #[must_use]
    pub fn restored(capsule: &[u8], device: &Device, areas: Option<&mut Areas>, now_ns: u64) -> Option<Self> {
        let mut from = Reader(capsule);
        if from.byte()? != VERSION {
            return None;
        }
        let picture =
            Picture { format: Format::from_fourcc(from.word()?)?, width: from.word()?, height: from.word()? };
        let interval = Interval { numerator: from.word()?, denominator: from.word()? };
        if !device.shows(picture) || !device.has_interval(interval) {
            return None;
        }
        let brightness = u8::try_from(from.word()?).ok()?;
        let priority =
            Some(from.word()?).filter(|priority| *priority <= PRIORITY_MAX).unwrap_or(PRIORITY_DEFAULT);
        let (kind, has_frame, taken) = (from.word()?, from.word()?, from.word()?);
        let (since_ns, next, lost, number) = (from.long()?, from.long()?, from.long()?, from.long()?);
        let mut clock = Clock { since_ns: since_ns.min(now_ns), next };
        let frame = (has_frame == 1 && taken < picture.bytes()).then_some((number, taken));
        let pool = if from.0.is_empty() { None } else { Some(pool(&mut from, picture)?) };
        if !from.0.is_empty() {
            return None;
        }
        let passed = if kind == STILL { 0 } else { skip(&mut clock, interval, now_ns) };
        let flow = match kind {
            STILL => Flow::Still,
            STREAMING if pool.is_some() => Flow::Streaming(clock),
            READING if pool.is_none() => Flow::Reading { clock, frame },
            _ => return None,
        };
        // The last thing that can fail, as it takes something.
        if let Some(pool) = &pool
            && !areas?.take_at(pool.begin, pool.bytes())
        {
            return None;
        }
        Some(Self { picture, interval, brightness, priority, pool, flow, lost: lost.saturating_add(passed) })
    }
}

fn pool(from: &mut Reader<'_>, picture: Picture) -> Option<Pool> {
    let (begin, count, queued, done) = (from.word()?, from.word()?, from.word()?, from.word()?);
    if count == 0 || count > BUFFERS_MAX || queued > count || done > count {
        return None;
    }
    let stride = picture.bytes().next_multiple_of(PAGE_BYTES);
    begin.checked_add(count.checked_mul(stride)?)?;
    let mut pool = Pool { begin, stride, count, queued: VecDeque::new(), done: VecDeque::new() };
    for _ in 0..queued {
        let index = u32::from(from.byte()?);
        if !pool.has(index) || !pool.is_programs(index) {
            return None;
        }
        pool.queued.push_back(index);
    }
    for _ in 0..done {
        let (index, number) = (u32::from(from.byte()?), from.long()?);
        if !pool.has(index) || !pool.is_programs(index) {
            return None;
        }
        pool.done.push_back(Done { index, number });
    }
    Some(pool)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}
