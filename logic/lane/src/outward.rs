//! The frames that go out: those that wait, that are on their way, that came or are lost.

use crate::config::{Broken, Config, Seal, Stream};
use crate::congestion::Congestion;
use crate::round_trip::RoundTrip;
use std::collections::VecDeque;
use wire::lane::{DATA_BYTES, Data, HEADER_BYTES, Header, TAG_BYTES, data_flag, kind};

/// Frames that are handed over at once, at most, where each goes by itself: one system call.
pub(crate) const BATCH_FRAMES: usize = 64;
/// A frame of which so many eighths are full is made as long as those that it goes with.
const PADDED_EIGHTHS: usize = 7;
/// Bytes that are taken and not on their way yet: what is in front of a network that is slower than
/// its user.
const UNSENT_BYTES: usize = 256 << 10;
/// The same where that is to be little, and what is worth a system call.
const UNSENT_BYTES_LITTLE: usize = 64 << 10;
/// Long frames that are taken all the same.
const UNSENT_FRAMES_MIN: usize = 4;
/// Bytes of the stream that a frame carries at most where little is to be held: what comes later
/// waits for no more than that.
const CARRIED_BYTES_LITTLE: usize = 32 << 10;
/// A frame is lost when so many that were sent after it have come; what comes over several
/// processors is overtaken by less.
const OVERTAKEN_FRAMES: u64 = 16;
/// After so many waits in a row without a word the network is taken for full.
const SILENT_WAITS: u32 = 2;
/// So often and for so long the other side answers and has not got a long frame that it was sent
/// again: then it is cut on its way.
const CUT_ANSWERS: u32 = 5;
const CUT_AFTER_US: u64 = 500_000;
/// After so many waits it is asked whether such a frame came.
const CUT_ASKS_FROM: u32 = 2;
/// The number of times that a report is asked for while a window goes out: an answer is there
/// before the next one is full.
const ASKS_OF_A_WINDOW: u64 = 4;
/// Bytes of frames without such a question, and frames, at most: what came is not kept for long.
const UNASKED_BYTES: usize = 128 << 10;
const UNASKED_FRAMES: usize = 32;
/// Bytes of buffers that are kept for later frames: many come free at once.
const SPARE_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    Flying,
    Came,
}

#[derive(Debug)]
struct Sent {
    frame: Vec<u8>,
    place: Place,
    /// When it was handed over last.
    at_us: u64,
    /// As which of all frames that were handed over.
    order: u64,
    /// How often.
    times: u32,
}

/// The knowledge of the first frame that has not come, a long one, since it was sent again.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    since_us: u64,
    /// It was sent again, and nothing was heard since.
    asked: bool,
    answers: u32,
}

#[derive(Debug)]
pub(crate) struct Outward {
    config: Config,
    /// All before this one have come.
    base: u64,
    sent: VecDeque<Sent>,
    /// Numbers of frames that are sealed and to be handed over, some of them again.
    waiting: VecDeque<u64>,
    /// Not sealed yet: room for the headers, and bytes.
    unsent: VecDeque<Vec<u8>>,
    credit: u64,
    flying: u64,
    /// Frames that were handed over.
    orders: u64,
    /// The last that was handed over of those that have come.
    newest: Option<u64>,
    /// The greatest number that has come.
    highest: u64,
    overtaken_at_us: Option<u64>,
    trip: RoundTrip,
    congestion: Congestion,
    /// Since when an answer is waited for, and how often it was asked for.
    waits_since_us: u64,
    waits: u32,
    /// One frame may go whatever the window says.
    probes: bool,
    ends: bool,
    /// Little may be held that is not on its way.
    little: bool,
    /// The report of the last frame that was sealed, and its number.
    said: ((u64, u64), u64),
    /// Frames that were sealed since one asked what has come.
    unasked: u64,
    lost: u64,
    doubt: Option<Doubt>,
    is_cut: bool,
    spare: Vec<Vec<u8>>,
}

impl Outward {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            base: 0,
            sent: VecDeque::new(),
            waiting: VecDeque::new(),
            unsent: VecDeque::new(),
            credit: config.window_frames(),
            flying: 0,
            orders: 0,
            newest: None,
            highest: 0,
            overtaken_at_us: None,
            trip: RoundTrip::default(),
            congestion: Congestion::new(config.frame_bytes, config.window_frames()),
            waits_since_us: 0,
            waits: 0,
            probes: false,
            ends: false,
            little: false,
            said: ((0, 0), u64::MAX),
            unasked: 0,
            lost: 0,
            doubt: None,
            is_cut: false,
            spare: Vec::new(),
        }
    }

    /// The number of the next new frame.
    fn fresh(&self) -> u64 {
        self.base + self.sent.len() as u64
    }

    fn at(&mut self, number: u64) -> Option<&mut Sent> {
        let place = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.sent.get_mut(place)
    }

    fn buffer(&mut self) -> Vec<u8> {
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.reserve(self.config.frame_bytes);
        frame.resize(HEADER_BYTES + DATA_BYTES, 0);
        frame
    }

    /// Bytes of the stream that a frame carries at most.
    pub fn carried_bytes(&self) -> usize {
        let most = self.config.carried_bytes();
        if self.little { most.min(CARRIED_BYTES_LITTLE) } else { most }
    }

    /// A frame before it is sealed, when it is full.
    fn full(&self) -> usize {
        HEADER_BYTES + DATA_BYTES + self.carried_bytes()
    }

    /// Whether some of what was sent has come.
    pub fn has_come(&self) -> bool {
        self.base > 0
    }

    /// Long frames do not come through any more, and others do.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Frames that may wait without being sealed.
    fn unsent_max(&self) -> usize {
        let (bytes, least) =
            if self.little { (UNSENT_BYTES_LITTLE, 1) } else { (UNSENT_BYTES, UNSENT_FRAMES_MIN) };
        (bytes / self.config.frame_bytes.max(1)).max(least)
    }

    /// Holds little: frames that come later may have to go first, so little is taken that is not on
    /// its way.
    pub fn hold_little(&mut self, little: bool) {
        self.little = little;
    }

    /// Whether so many bytes wait that they are worth a system call.
    pub fn has_batch(&self) -> bool {
        self.unsent.len() * self.config.frame_bytes >= UNSENT_BYTES_LITTLE
    }

    /// Whether [`Outward::place`] has one.
    pub fn has_place(&self) -> bool {
        !self.ends && self.unsent.len() < self.unsent_max()
    }

    /// Where the bytes of a frame of its own go, behind what is there; [`Outward::placed`] comes
    /// next. `None`: no more are taken now.
    pub fn place(&mut self) -> Option<&mut Vec<u8>> {
        if !self.has_place() {
            return None;
        }
        let frame = self.buffer();
        self.unsent.push_back(frame);
        self.unsent.back_mut()
    }

    /// The place that was given out last has been filled, or nothing is to go.
    pub fn placed(&mut self) {
        let most = HEADER_BYTES + DATA_BYTES + self.config.carried_bytes();
        if let Some(frame) =
            self.unsent.pop_back_if(|frame| frame.len() <= HEADER_BYTES + DATA_BYTES || frame.len() > most)
        {
            self.keep(frame);
        }
    }

    fn keep(&mut self, frame: Vec<u8>) {
        if self.spare.len() * self.config.frame_bytes < SPARE_BYTES {
            self.spare.push(frame);
        }
    }

    /// Takes bytes from the front of `bytes`; says how many.
    pub fn offer(&mut self, bytes: &[u8]) -> usize {
        if self.ends {
            return 0;
        }
        let full = self.full();
        let most = self.unsent_max();
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.unsent.back().is_none_or(|last| last.len() >= full) {
                if self.unsent.len() >= most {
                    break;
                }
                let frame = self.buffer();
                self.unsent.push_back(frame);
            }
            let Some(last) = self.unsent.back_mut() else { break };
            let now = rest.len().min(full.saturating_sub(last.len()));
            let (taken, left) = rest.split_at(now);
            last.extend_from_slice(taken);
            rest = left;
        }
        bytes.len() - rest.len()
    }

    /// A frame without bytes, where nothing else waits: the other side hears of us, and whether
    /// long frames come through.
    pub fn greet(&mut self) {
        if self.unsent.is_empty() && self.sent.is_empty() && self.base == 0 {
            let frame = self.buffer();
            self.unsent.push_back(frame);
        }
    }

    /// The stream ends behind what was taken.
    pub fn end(&mut self) {
        if !self.ends {
            self.ends = true;
            // The end needs a frame that was not sealed.
            if self.unsent.is_empty() {
                let frame = self.buffer();
                self.unsent.push_back(frame);
            }
        }
    }

    /// All that was taken is on its way, or has come.
    pub fn is_sent(&self) -> bool {
        self.unsent.is_empty() && self.waiting.is_empty()
    }

    /// All that was taken has come.
    pub fn is_drained(&self) -> bool {
        self.sent.is_empty() && self.unsent.is_empty()
    }

    /// Nothing is on its way, and one frame at most waits for that.
    pub fn is_single(&self) -> bool {
        self.flying == 0 && self.waiting.len() == 1 && self.unsent.is_empty()
    }

    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub fn round_trip_us(&self) -> u64 {
        self.trip.smooth_us()
    }

    /// Frames that are handed over at once.
    fn batch(&self) -> usize {
        if self.config.bundle_frames > 1 { self.config.bundle_frames.min(BATCH_FRAMES) } else { BATCH_FRAMES }
    }

    /// Whether the frame that is next to be sealed is to wait for more bytes: it is the last one,
    /// and not full.
    fn is_part(&self) -> bool {
        let full = self.full();
        !self.ends && self.unsent.len() == 1 && self.unsent.front().is_some_and(|frame| frame.len() < full)
    }

    /// The length of a frame with its padding: where others go with it they are of one length.
    fn padded(&self, frame: &[u8], number: u64) -> usize {
        let (head, carried) = (HEADER_BYTES + DATA_BYTES, self.config.carried_bytes());
        let nearly = 8 * frame.len().saturating_sub(head) >= PADDED_EIGHTHS * carried;
        // So long frames come through, or nothing does.
        let first = number == 0;
        if first || (nearly && self.config.bundle_frames > 1 && !self.unsent.is_empty()) {
            head + carried
        } else {
            frame.len()
        }
    }

    /// Makes frames ready to be handed over; says how many are. `whole`: more bytes come soon, and
    /// a frame that they go into waits for them.
    pub fn prepare(&mut self, seal: &mut dyn Seal, (next, credit): (u64, u64), whole: bool) -> usize {
        let batch = self.batch();
        let (base, sent) = (self.base, &self.sent);
        self.waiting.retain(|number| {
            let place = number.checked_sub(base).and_then(|place| usize::try_from(place).ok());
            place.and_then(|place| sent.get(place)).is_some_and(|sent| sent.place == Place::Waiting)
        });
        let window = self.congestion.window();
        let unasked_max = (UNASKED_BYTES / self.config.frame_bytes.max(1)).max(UNASKED_FRAMES) as u64;
        while self.waiting.len() < batch
            && !(whole && self.is_part())
            && self.flying + (self.waiting.len() as u64) < window
            && self.fresh() < self.credit
        {
            let Some(mut frame) = self.unsent.pop_front() else { break };
            let number = self.fresh();
            let bytes = frame.len() - HEADER_BYTES - DATA_BYTES;
            frame.resize(self.padded(&frame, number), 0);
            let last = self.ends && self.unsent.is_empty();
            self.unasked += 1;
            // Who is answered anyhow has little on its way.
            let most = (window / ASKS_OF_A_WINDOW).clamp(1, unasked_max);
            let asks = self.unasked >= most && self.sent.len() as u64 + 1 >= most;
            if asks {
                self.unasked = 0;
            }
            let data = Data {
                next,
                credit,
                flags: if last { data_flag::END } else { 0 } | if asks { data_flag::ASK } else { 0 },
                bytes: u16::try_from(bytes).unwrap_or(u16::MAX),
            };
            let header = Header {
                station: self.config.station,
                lane: self.config.lane,
                kind: kind::DATA,
                sealed: u16::try_from(frame.len() - HEADER_BYTES + TAG_BYTES).unwrap_or(u16::MAX),
                number,
            };
            if let Some((place, behind)) = frame.split_first_chunk_mut()
                && let Some(words) = behind.first_chunk_mut()
            {
                (*place, *words) = (header.to_bytes(), data.to_bytes());
            }
            seal.seal(Stream::Data, number, &mut frame);
            self.said = ((next, credit), number);
            self.sent.push_back(Sent { frame, place: Place::Waiting, at_us: 0, order: 0, times: 0 });
            self.waiting.push_back(number);
        }
        let room = usize::try_from(window.saturating_sub(self.flying)).unwrap_or(usize::MAX);
        let room = room.max(usize::from(self.probes));
        self.waiting.len().min(room).min(batch)
    }

    /// The frames that wait, as they are to go.
    pub fn ready(&self) -> impl Iterator<Item = &[u8]> {
        self.waiting.iter().filter_map(|number| {
            let place = usize::try_from(number.checked_sub(self.base)?).ok()?;
            self.sent.get(place).map(|sent| sent.frame.as_slice())
        })
    }

    /// So many of these were handed over. What that says of what came, if it is the last that was
    /// said of it.
    pub fn departed(&mut self, now_us: u64, frames: usize) -> Option<(u64, u64)> {
        let (words, last) = self.said;
        let mut said = None;
        for _ in 0..frames {
            let Some(number) = self.waiting.pop_front() else { break };
            let order = self.orders;
            if number == last {
                said = Some(words);
            }
            if let Some(sent) = self.at(number) {
                (sent.place, sent.at_us, sent.order) = (Place::Flying, now_us, order);
                sent.times += 1;
                self.orders += 1;
                self.flying += 1;
            }
        }
        if frames > 0 {
            self.probes = false;
            self.waits_since_us = now_us;
            self.congestion.on_its_way(now_us, true);
        }
        said
    }

    /// The other side says what has come.
    pub fn heard(
        &mut self,
        now_us: u64,
        (next, credit): (u64, u64),
        ranges: &[(u64, u64)],
        held_us: u64,
    ) -> Result<(), Broken> {
        let fresh = self.fresh();
        let most = ranges.last().map_or(next, |(_, end)| *end);
        if most > fresh {
            return Err(Broken::Unsent { found: most, sent: fresh });
        }
        // So no more than a window is kept here, whatever of it has come out of order.
        let window_end = next.saturating_add(self.config.window_frames());
        if credit > window_end {
            return Err(Broken::Credit { found: credit, most: window_end });
        }
        if credit > self.credit {
            self.credit = credit;
            (self.waits, self.waits_since_us) = (0, now_us);
        }
        let (used, base, mut came, mut sample) = (self.flying, self.base, 0, None);
        let fronts = (self.base < next).then_some((self.base, next));
        for (from, end) in fronts.into_iter().chain(ranges.iter().copied()) {
            for number in from.max(self.base)..end {
                came += self.came(now_us, number, &mut sample);
            }
        }
        while self.sent.front().is_some_and(|sent| sent.place == Place::Came) {
            if let Some(sent) = self.sent.pop_front() {
                self.keep(sent.frame);
            }
            self.base += 1;
        }
        self.answered(now_us, self.base > base);
        if came > 0 {
            if let Some((_, us)) = sample {
                self.trip.measured(us, held_us);
            }
            (self.waits, self.waits_since_us) = (0, now_us);
            self.congestion.came(came, used);
            self.find_lost(now_us);
        }
        self.congestion.on_its_way(now_us, self.flying > 0);
        Ok(())
    }

    /// Something was heard. `came`: the first frame that had not come has.
    fn answered(&mut self, now_us: u64, came: bool) {
        if came {
            self.doubt = None;
        }
        let Some(doubt) = self.doubt.as_mut().filter(|doubt| doubt.asked) else { return };
        (doubt.asked, doubt.answers) = (false, doubt.answers + 1);
        let long_ago = now_us.saturating_sub(doubt.since_us) >= CUT_AFTER_US;
        self.is_cut |= long_ago && doubt.answers >= CUT_ANSWERS;
    }

    /// A frame is sent again. True: it is the first, and long, and the other side is to say that it
    /// lives.
    fn doubts(&mut self, now_us: u64, place: usize) -> bool {
        let long = self.sent.get(place).is_some_and(|sent| sent.frame.len() > self.config.sure_bytes);
        if place > 0 || !long {
            return false;
        }
        let doubt = self.doubt.get_or_insert(Doubt { since_us: now_us, asked: false, answers: 0 });
        doubt.asked = true;
        self.waits >= CUT_ASKS_FROM
    }

    /// One has come; whether that is news.
    fn came(&mut self, now_us: u64, number: u64, sample: &mut Option<(u64, u64)>) -> u64 {
        let least_us = self.trip.least_us();
        let Some(sent) = self.at(number).filter(|sent| sent.place != Place::Came) else { return 0 };
        let (flew, us, order) = (sent.place == Place::Flying, now_us.saturating_sub(sent.at_us), sent.order);
        let times = sent.times;
        sent.place = Place::Came;
        self.flying -= u64::from(flew);
        // Of what was sent twice it is not known which of both has come, but for what is quicker
        // than the network.
        if flew && (times == 1 || us >= least_us) {
            self.newest = self.newest.max(Some(order));
        }
        if flew && times == 1 && sample.is_none_or(|(before, _)| before < order) {
            *sample = Some((order, us));
        }
        self.highest = self.highest.max(number);
        1
    }

    /// Frames that were overtaken by many, or for long, are lost.
    fn find_lost(&mut self, now_us: u64) {
        self.overtaken_at_us = None;
        let Some(newest) = self.newest else { return };
        let (overtaken_us, base) = (self.trip.overtaken_us(), self.base);
        let count = usize::try_from((self.highest + 1).saturating_sub(base)).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        for (place, sent) in self.sent.iter_mut().take(count).enumerate() {
            if sent.place != Place::Flying || sent.order >= newest {
                continue;
            }
            let late_at_us = sent.at_us + overtaken_us;
            if sent.order + OVERTAKEN_FRAMES <= newest || late_at_us <= now_us {
                sent.place = Place::Waiting;
                found.push((base + place as u64, sent.order));
            } else {
                let earliest = self.overtaken_at_us.map_or(late_at_us, |at| at.min(late_at_us));
                self.overtaken_at_us = Some(earliest);
            }
        }
        for (number, order) in found.into_iter().rev() {
            self.flying -= 1;
            self.lost += 1;
            self.congestion.lost(order, self.orders);
            self.waiting.push_front(number);
        }
    }

    /// Whether there is something to send and no credit for it.
    fn is_stuck(&self) -> bool {
        !self.unsent.is_empty() && self.flying == 0 && self.fresh() >= self.credit
    }

    /// When [`Outward::tick`] is to be called.
    pub fn due_us(&self) -> Option<u64> {
        let waits = self.flying > 0 || self.is_stuck();
        let overdue = waits.then(|| self.waits_since_us + self.trip.overdue_us(self.waits));
        [overdue, self.overtaken_at_us].into_iter().flatten().min()
    }

    /// Sends again what is overdue. True: the other side is to be asked, because nothing is on its
    /// way that it would surely answer.
    pub fn tick(&mut self, now_us: u64) -> bool {
        if self.overtaken_at_us.is_some_and(|at| at <= now_us) {
            self.find_lost(now_us);
        }
        let overdue = self.waits_since_us + self.trip.overdue_us(self.waits) <= now_us;
        if !overdue || (self.flying == 0 && !self.is_stuck()) {
            return false;
        }
        (self.waits, self.waits_since_us) = (self.waits + 1, now_us);
        if self.flying == 0 {
            return true;
        }
        if self.waits == SILENT_WAITS {
            self.congestion.silent(self.orders);
        }
        // The first that is on its way: the other side says at once what it has of those behind.
        let first = self.sent.iter().position(|sent| sent.place == Place::Flying);
        if let Some(place) = first
            && let Some(sent) = self.sent.get_mut(place)
        {
            sent.place = Place::Waiting;
            self.flying -= 1;
            self.lost += 1;
            self.probes = true;
            self.waiting.push_front(self.base + place as u64);
            return self.doubts(now_us, place);
        }
        false
    }
}
