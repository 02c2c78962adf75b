//! The frames that come: in order, those ahead of a gap, and what is to be said of them.

use crate::config::{Broken, Config, Take};
use std::collections::VecDeque;
use wire::lane::{RANGES_MAX, State};

/// So long what has come is not told, at most, where nothing goes out that tells of it.
const HELD_US: u64 = 1_000;
/// So many frames are not kept back, whether or not who sends asks.
const HELD_FRAMES: u32 = 128;

/// The content of a frame that nobody has read.
#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    taken: usize,
}

#[derive(Debug)]
pub(crate) struct Inward {
    window: u64,
    /// All before this one have come.
    next: u64,
    /// The frames from `next` on, which itself is not there, that have come.
    ahead: VecDeque<Option<Vec<u8>>>,
    readable: VecDeque<Piece>,
    /// Frames that were read to their end.
    read: u64,
    /// The number behind the last frame of the stream.
    end: Option<u64>,
    said_credit: u64,
    /// Frames that came since something was said, and since when.
    unsaid: u32,
    unsaid_since_us: Option<u64>,
    newest_us: u64,
    urgent: bool,
}

impl Inward {
    pub fn new(config: Config) -> Self {
        let window = config.window_frames();
        Self {
            window,
            next: 0,
            ahead: VecDeque::new(),
            readable: VecDeque::new(),
            read: 0,
            end: None,
            said_credit: window,
            unsaid: 0,
            unsaid_since_us: None,
            newest_us: 0,
            urgent: false,
        }
    }

    /// Whether the first frame has come.
    pub fn has_come(&self) -> bool {
        self.next > 0
    }

    /// The report that a frame carries of it: the number up to which all has come without a gap,
    /// and what may come.
    pub fn words(&self) -> (u64, u64) {
        (self.next, self.read + self.window)
    }

    /// Whether a frame is worth opening: it is new, and was allowed. `None`: it never was.
    pub fn wants(&mut self, number: u64) -> Option<bool> {
        if number >= self.read + self.window {
            return None;
        }
        let place = number.checked_sub(self.next).and_then(|place| usize::try_from(place).ok());
        let new = place.is_some_and(|place| self.ahead.get(place).is_none_or(Option::is_none));
        // What came twice may have come because nobody was told of the first.
        self.unsaid += u32::from(!new) * HELD_FRAMES;
        Some(new)
    }

    /// One that is wanted has come. Says how many bytes were taken.
    pub fn came(
        &mut self,
        now_us: u64,
        number: u64,
        bytes: &[u8],
        ends: bool,
        take: Take<'_>,
    ) -> Result<usize, Broken> {
        let behind_all = self.next + self.ahead.len() as u64;
        match self.end {
            Some(end) if number >= end || ends => return Err(Broken::BehindEnd),
            None if ends && number + 1 < behind_all => return Err(Broken::BehindEnd),
            None if ends => self.end = Some(number + 1),
            _ => {}
        }
        self.newest_us = now_us;
        self.unsaid += 1;
        self.unsaid_since_us.get_or_insert(now_us);
        let place = usize::try_from(number - self.next).unwrap_or(usize::MAX);
        if place > 0 {
            self.urgent = true;
            if self.ahead.len() <= place {
                self.ahead.resize_with(place + 1, || None);
            }
            if let Some(empty) = self.ahead.get_mut(place) {
                *empty = Some(bytes.to_vec());
            }
            return Ok(0);
        }
        self.urgent |= !self.ahead.is_empty();
        self.ahead.pop_front();
        self.next += 1;
        let mut taken = self.hand(bytes, take);
        while let Some(Some(_)) = self.ahead.front() {
            let Some(Some(bytes)) = self.ahead.pop_front() else { break };
            self.next += 1;
            taken += self.hand(&bytes, take);
        }
        Ok(taken)
    }

    /// Gives bytes to who reads, what is not taken later.
    fn hand(&mut self, bytes: &[u8], take: Take<'_>) -> usize {
        let now = if self.readable.is_empty() { take(bytes).min(bytes.len()) } else { 0 };
        let (_, rest) = bytes.split_at(now);
        if rest.is_empty() && self.readable.is_empty() {
            self.read += 1;
        } else {
            self.readable.push_back(Piece { bytes: rest.to_vec(), taken: 0 });
        }
        now
    }

    /// Gives what nobody has read to who reads; says how many bytes were taken.
    pub fn read(&mut self, take: Take<'_>) -> usize {
        let mut taken = 0;
        while let Some(piece) = self.readable.front_mut() {
            let rest = piece.bytes.get(piece.taken..).unwrap_or_default();
            let now = take(rest).min(rest.len());
            piece.taken += now;
            taken += now;
            if piece.taken < piece.bytes.len() {
                break;
            }
            self.readable.pop_front();
            self.read += 1;
        }
        taken
    }

    pub fn has_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    /// The stream has ended, and all of it was read.
    pub fn is_ended(&self) -> bool {
        self.end == Some(self.read)
    }

    /// The other side wants to know.
    pub fn asked(&mut self) {
        self.urgent = true;
    }

    /// Notes that the sender of data wants to know: the next frame that goes out says it.
    pub fn asked_with_data(&mut self) {
        self.unsaid = self.unsaid.max(HELD_FRAMES);
    }

    /// Whether something is to be said now.
    pub fn has_news(&self, now_us: u64) -> bool {
        let (_, credit) = self.words();
        self.urgent
            || self.unsaid >= HELD_FRAMES
            || self.due_us().is_some_and(|due| due <= now_us)
            || credit - self.said_credit >= self.window / 4
    }

    /// When something is to be said at the latest.
    pub fn due_us(&self) -> Option<u64> {
        self.unsaid_since_us.map(|since| since + HELD_US)
    }

    /// A frame of data goes out that says this, and no ranges.
    pub fn was_said(&mut self, words: (u64, u64)) {
        if !self.urgent && words.0 == self.next {
            (self.unsaid, self.unsaid_since_us) = (0, None);
            self.said_credit = self.said_credit.max(words.1);
        }
    }

    /// The report that is due.
    pub fn state(&mut self, now_us: u64) -> State {
        let (next, credit) = self.words();
        let mut ranges = Vec::new();
        let mut open: Option<u64> = None;
        for (number, there) in (next..).zip(self.ahead.iter().map(Option::is_some).chain([false])) {
            match (open, there) {
                (None, true) => open = Some(number),
                (Some(from), false) => {
                    ranges.push((from, number));
                    open = None;
                    if ranges.len() == RANGES_MAX {
                        break;
                    }
                }
                _ => {}
            }
        }
        let held_us = u32::try_from(now_us.saturating_sub(self.newest_us)).unwrap_or(u32::MAX);
        self.urgent = false;
        (self.unsaid, self.unsaid_since_us) = (0, None);
        self.said_credit = credit;
        State { next, credit, flags: 0, held_us, ranges }
    }
}
