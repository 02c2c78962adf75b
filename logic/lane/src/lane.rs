//! One side of a lane.

use crate::config::{Broken, Config, Heard, Open, Seal, Stream, Take, into};
use crate::inward::Inward;
use crate::outward::Outward;
use wire::lane::{
    Data, HEADER_BYTES, Header, KEY_FRAMES_LOG, STATE_BYTES, State, TAG_BYTES, data_flag, kind, state_flag,
};

/// Waits between questions whether the other side is there, in µs: a round trip on a busy machine.
const DOUBT_US: u64 = 100_000;
/// So many questions are asked.
const DOUBTS: u32 = 5;

/// One side. See the crate.
#[derive(Debug)]
pub struct Lane {
    config: Config,
    outward: Outward,
    inward: Inward,
    /// The number of the next state.
    states: u64,
    /// States of the other side before this one are of no use any more.
    heard_states: u64,
    /// The other side is to be asked for its state.
    asks: bool,
    /// When it is asked again whether somebody is there, and how often it was.
    doubt: Option<(u64, u32)>,
    has_heard: bool,
    has_left: bool,
    strange: u64,
}

impl Lane {
    /// A side that has heard nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            outward: Outward::new(config),
            inward: Inward::new(config),
            states: 0,
            heard_states: 0,
            asks: false,
            doubt: None,
            has_heard: false,
            has_left: false,
            strange: 0,
        }
    }

    /// Bytes of the stream that one frame carries at most.
    #[must_use]
    pub fn carried_bytes(&self) -> usize {
        self.outward.carried_bytes()
    }

    /// Takes bytes from the front of `bytes`, which go out in order; says how many.
    pub fn offer(&mut self, bytes: &[u8]) -> usize {
        self.outward.offer(bytes)
    }

    /// Whether [`Lane::place`] has one.
    #[must_use]
    pub fn has_place(&self) -> bool {
        self.outward.has_place()
    }

    /// Where the bytes of one frame go, [`Lane::carried_bytes`] of them at most, behind what is
    /// there already; [`Lane::placed`] comes next. `None`: no more are taken now.
    pub fn place(&mut self) -> Option<&mut Vec<u8>> {
        self.outward.place()
    }

    /// The place that was given out last has been filled, or nothing was put there.
    pub fn placed(&mut self) {
        self.outward.placed();
    }

    /// Whether so much waits to be handed over that it is worth a system call.
    #[must_use]
    pub fn has_batch(&self) -> bool {
        self.outward.has_batch()
    }

    /// Holds little: frames that come later may have to go first, so little is taken that is not on
    /// its way.
    pub fn hold_little(&mut self, little: bool) {
        self.outward.hold_little(little);
    }

    /// Lets the other side hear of this one.
    pub fn greet(&mut self) {
        self.outward.greet();
    }

    /// The stream of this side ends behind what was taken.
    pub fn end(&mut self) {
        self.outward.end();
    }

    /// All that was taken was handed over, once at least.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.outward.is_sent()
    }

    /// All that was taken has come, the end as well.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.outward.is_drained()
    }

    /// The other side's stream has ended, and all of it was read.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.inward.is_ended()
    }

    /// The other side is gone: it said so, or was asked and did not answer.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.has_left || self.doubt.is_some_and(|(_, times)| times > DOUBTS)
    }

    /// Something of the other side has come.
    #[must_use]
    pub fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// The first frames of data have come, from the other side and there: those that are as long as
    /// any.
    #[must_use]
    pub fn has_exchanged(&self) -> bool {
        self.inward.has_come() && self.outward.has_come()
    }

    /// The first frame of the other side's data has come.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.inward.has_come()
    }

    /// Long frames do not come through any more, and the other side is heard: the way is another
    /// one.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.outward.is_cut()
    }

    /// Frames that were taken for lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.outward.lost()
    }

    /// Frames that came and were none of this lane, or spoiled.
    #[must_use]
    pub fn strange(&self) -> u64 {
        self.strange
    }

    /// The round trip as it is believed to be, in µs.
    #[must_use]
    pub fn round_trip_us(&self) -> u64 {
        self.outward.round_trip_us()
    }

    /// Makes frames of data ready to be handed over; says how many are, at most those of one call.
    pub fn prepare(&mut self, seal: &mut dyn Seal) -> usize {
        self.outward.prepare(seal, self.inward.words(), false)
    }

    /// The same, where more bytes come soon: a frame that they go into is not made ready yet.
    pub fn prepare_whole(&mut self, seal: &mut dyn Seal) -> usize {
        self.outward.prepare(seal, self.inward.words(), true)
    }

    /// Whether the frame that is ready is the only one: nothing that it could overtake, or be
    /// overtaken by, is on its way.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.outward.is_single()
    }

    /// The frames that are ready, in the order in which they are to go.
    pub fn ready(&self) -> impl Iterator<Item = &[u8]> {
        self.outward.ready()
    }

    /// So many of those that were ready were handed over.
    pub fn departed(&mut self, now_us: u64, frames: usize) {
        if let Some(words) = self.outward.departed(now_us, frames) {
            self.inward.was_said(words);
        }
    }

    /// Puts bytes that have come into `room`; says how many.
    pub fn read(&mut self, room: &mut [u8]) -> usize {
        self.read_to(&mut into(room))
    }

    /// The same, without a place of its own for it.
    pub fn read_to(&mut self, take: Take<'_>) -> usize {
        self.inward.read(take)
    }

    /// Whether there is something to read.
    #[must_use]
    pub fn has_readable(&self) -> bool {
        self.inward.has_readable()
    }

    /// A frame has come: whose it is and whether it is one is seen here. Bytes that come in order
    /// go into `room` at once, what does not fit is for [`Lane::read`], which is to be called
    /// first.
    ///
    /// # Errors
    /// [`Broken`]: whoever has the keys breaks the rules.
    pub fn receive(
        &mut self,
        now_us: u64,
        frame: &mut [u8],
        open: &mut dyn Open,
        room: &mut [u8],
    ) -> Result<Heard, Broken> {
        self.hear(now_us, frame, open, &mut into(room))
    }

    /// As [`Lane::receive`]: bytes that come in order are taken where they lie.
    ///
    /// # Errors
    /// As there.
    pub fn hear(
        &mut self,
        now_us: u64,
        frame: &mut [u8],
        open: &mut dyn Open,
        take: Take<'_>,
    ) -> Result<Heard, Broken> {
        let heard = self.look(now_us, frame, open, take)?;
        match heard {
            Heard::Strange => self.strange += 1,
            Heard::Taken(_) => (self.has_heard, self.doubt) = (true, None),
            Heard::Again => {}
        }
        Ok(heard)
    }

    fn look(
        &mut self,
        now_us: u64,
        frame: &mut [u8],
        open: &mut dyn Open,
        take: Take<'_>,
    ) -> Result<Heard, Broken> {
        let Ok(header) = Header::read(frame) else { return Ok(Heard::Strange) };
        let length = HEADER_BYTES + usize::from(header.sealed);
        // A window is of so many frames of so many bytes: a longer one was never agreed upon.
        if length > self.config.frame_bytes {
            return Ok(Heard::Strange);
        }
        let Some(whole) = frame.get_mut(..length) else { return Ok(Heard::Strange) };
        if header.kind == kind::DATA {
            match self.inward.wants(header.number) {
                None => return Ok(Heard::Strange),
                Some(false) => return Ok(Heard::Again),
                Some(true) => {}
            }
            let Some(body) = open.open(Stream::Data, header.number, whole) else { return Ok(Heard::Strange) };
            let (data, bytes) = Data::read(body)?;
            self.outward.heard(now_us, (data.next, data.credit), &[], 0)?;
            let ends = data.flags & data_flag::END != 0;
            let taken = self.inward.came(now_us, header.number, bytes, ends, take)?;
            if data.flags & data_flag::ASK != 0 {
                self.inward.asked_with_data();
            }
            return Ok(Heard::Taken(taken));
        }
        if header.number < self.heard_states {
            return Ok(Heard::Again);
        }
        // So many can't be lost while the other side is heard.
        if header.number - self.heard_states >= 1 << KEY_FRAMES_LOG {
            return Ok(Heard::Strange);
        }
        let Some(body) = open.open(Stream::State, header.number, whole) else { return Ok(Heard::Strange) };
        let state = State::read(body)?;
        self.heard_states = header.number + 1;
        self.outward.heard(now_us, (state.next, state.credit), &state.ranges, state.held_us.into())?;
        if state.flags & state_flag::ASK != 0 {
            self.inward.asked();
        }
        self.has_left |= state.flags & state_flag::LEFT != 0;
        Ok(Heard::Taken(0))
    }

    /// A frame with what there is to say of what came, if that is due; it replaces what is in `to`.
    pub fn state(&mut self, now_us: u64, seal: &mut dyn Seal, to: &mut Vec<u8>) -> bool {
        let due = self.asks || self.inward.has_news(now_us);
        if due {
            let flags = if self.asks { state_flag::ASK } else { 0 };
            self.asks = false;
            self.say(now_us, flags, seal, to);
        }
        due
    }

    /// A frame that says that this side leaves, whatever was not sent.
    pub fn farewell(&mut self, now_us: u64, seal: &mut dyn Seal, to: &mut Vec<u8>) {
        self.say(now_us, state_flag::LEFT, seal, to);
    }

    fn say(&mut self, now_us: u64, flags: u32, seal: &mut dyn Seal, to: &mut Vec<u8>) {
        let state = State { flags, ..self.inward.state(now_us) };
        let body = STATE_BYTES + state.ranges.len() * wire::lane::RANGE_BYTES;
        let header = Header {
            station: self.config.station,
            lane: self.config.lane,
            kind: kind::STATE,
            sealed: u16::try_from(body + TAG_BYTES).unwrap_or(u16::MAX),
            number: self.states,
        };
        to.clear();
        to.extend_from_slice(&header.to_bytes());
        state.write(to);
        seal.seal(Stream::State, self.states, to);
        self.states += 1;
    }

    /// Something speaks for the other side being gone: it is asked, and answers soon or is.
    pub fn doubt(&mut self, now_us: u64) {
        if self.doubt.is_none() {
            self.doubt = Some((now_us + DOUBT_US, 1));
            self.asks = true;
        }
    }

    /// When [`Lane::tick`] is to be called, and [`Lane::state`] after it.
    #[must_use]
    pub fn due_us(&self) -> Option<u64> {
        let doubt = self.doubt.map(|(at, _)| at);
        [self.outward.due_us(), self.inward.due_us(), doubt].into_iter().flatten().min()
    }

    /// The time has come for something.
    pub fn tick(&mut self, now_us: u64) {
        self.asks |= self.outward.tick(now_us);
        if let Some((at, times)) = self.doubt
            && at <= now_us
        {
            self.doubt = Some((now_us + DOUBT_US, times + 1));
            self.asks = true;
        }
    }
}
