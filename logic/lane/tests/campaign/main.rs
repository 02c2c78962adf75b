//! Two sides of a lane over a network out of a seed: frames are lost, doubled, overtaken, spoiled,
//! kept and said again much later, cut short, and forged by a station that has no keys. Whatever
//! happens, both streams come whole and in order, and soon after the faults end. `LANE_SEED=n`
//! plays one again.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod network;

use lane::{Config, Heard, Lane};
use network::{Faults, Network, Paper, XorShift};
use wire::lane::{Header, LONG_FRAME_BYTES, State, kind, state_flag};

/// Campaigns of one run.
const CAMPAIGNS: u64 = 120;
/// Bytes that each side sends.
const BYTES: usize = 400_000;
/// No campaign takes longer, in simulated µs: the faults end long before.
const LIMIT_US: u64 = 60_000_000;

fn config(to: u64, frame_bytes: usize) -> Config {
    let bundle_frames = if frame_bytes == 1452 { 45 } else { 1 };
    let sure_bytes = if frame_bytes == LONG_FRAME_BYTES { 1452 } else { frame_bytes };
    Config { station: to, lane: u32::try_from(to).unwrap(), frame_bytes, bundle_frames, sure_bytes }
}

fn stream(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = XorShift::new(seed);
    (0..bytes).map(|_| random.below(251) as u8).collect()
}

struct Side {
    lane: Lane,
    paper: Paper,
    out: Vec<u8>,
    offered: usize,
    expected: Vec<u8>,
    got: usize,
    ended: bool,
    said_end: bool,
}

impl Side {
    fn new(seed: u64, me: u64, frame_bytes: usize) -> Self {
        let mut lane = Lane::new(config(3 - me, frame_bytes));
        lane.greet();
        let (out, expected) = (stream(seed ^ me, BYTES), stream(seed ^ (3 - me), BYTES));
        let paper = Paper::new(me);
        Self { lane, paper, out, offered: 0, expected, got: 0, ended: false, said_end: false }
    }

    fn is_done(&self) -> bool {
        self.ended && self.lane.is_drained()
    }

    fn take(&mut self, bytes: &[u8]) {
        assert!(self.expected[self.got..].starts_with(bytes), "other bytes than were sent, at {}", self.got);
        self.got += bytes.len();
    }

    /// Sends what there is, reads what came, sees to the time.
    fn turn(&mut self, now_us: u64, random: &mut XorShift, to: &mut Vec<Vec<u8>>) {
        if self.offered < self.out.len() {
            let most = self.offered + 1 + random.below(60_000) as usize;
            let piece = &self.out[self.offered..most.min(self.out.len())];
            self.offered += self.lane.offer(piece);
        } else if !self.said_end {
            self.said_end = true;
            self.lane.end();
        }
        let mut bytes = vec![0; 1 + random.below(50_000) as usize];
        let read = self.lane.read(&mut bytes);
        self.take(&bytes[..read]);
        self.ended |= self.lane.is_ended();
        if self.lane.due_us().is_some_and(|due| due <= now_us) {
            self.lane.tick(now_us);
        }
        let mut state = Vec::new();
        if self.lane.state(now_us, &mut self.paper, &mut state) {
            to.push(state);
        }
        let whole = self.offered < self.out.len() && random.below(2) == 0;
        let prepare = if whole { Lane::prepare_whole } else { Lane::prepare };
        let ready = prepare(&mut self.lane, &mut self.paper);
        // The socket may take some only.
        let taken = ready.min(1 + random.below(64) as usize);
        to.extend(self.lane.ready().take(taken).map(<[u8]>::to_vec));
        self.lane.departed(now_us, taken);
    }

    fn hear(&mut self, now_us: u64, frame: &mut [u8], random: &mut XorShift) {
        let mut into = vec![0; random.below(20_000) as usize];
        let read = self.lane.read(&mut into);
        let (before, rest) = into.split_at_mut(read);
        let heard = self.lane.receive(now_us, frame, &mut self.paper, rest).unwrap();
        if let Heard::Taken(bytes) = heard {
            let came = [&before[..], &rest[..bytes]].concat();
            self.take(&came);
        } else {
            let came = before.to_vec();
            self.take(&came);
        }
    }
}

fn play(seed: u64) {
    let mut random = XorShift::new(seed);
    let frame_bytes = [1452, 1500, 9000, 65_535, LONG_FRAME_BYTES][random.below(5) as usize];
    let mut sides = [Side::new(seed, 1, frame_bytes), Side::new(seed, 2, frame_bytes)];
    let mut network = Network::new(Faults::of(&mut random));
    let mut now_us = 0;
    while !sides.iter().all(Side::is_done) {
        assert!(!sides.iter().any(|side| side.lane.is_cut()), "nothing cuts");
        assert!(now_us < LIMIT_US, "{} and {} of {BYTES} bytes came", sides[0].got, sides[1].got);
        now_us += 20 + random.below(200);
        for (place, side) in sides.iter_mut().enumerate() {
            let mut out = Vec::new();
            side.turn(now_us, &mut random, &mut out);
            for frame in out {
                network.send(now_us, 1 - place, frame, &mut random);
            }
        }
        network.faults.pass(now_us, &mut random);
        while let Some((to, mut frame)) = network.next(now_us) {
            sides[to].hear(now_us, &mut frame, &mut random);
        }
    }
}

#[test]
fn streams_come_whole_and_in_order_through_any_faults() {
    if let Some(seed) = std::env::var("LANE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return play(seed);
    }
    for seed in 1..=CAMPAIGNS {
        let played = std::panic::catch_unwind(|| play(seed));
        assert!(played.is_ok(), "play it again: LANE_SEED={seed}");
    }
}

/// A pair of sides without faults, and time for both.
fn pair() -> [Side; 2] {
    [Side::new(7, 1, 1500), Side::new(7, 2, 1500)]
}

fn exchange(sides: &mut [Side; 2], now_us: u64) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for place in 0..2 {
        let mut state = Vec::new();
        let side = &mut sides[place];
        let mut out = Vec::new();
        if side.lane.state(now_us, &mut side.paper, &mut state) {
            out.push(state);
        }
        let ready = side.lane.prepare(&mut side.paper);
        out.extend(side.lane.ready().take(ready).map(<[u8]>::to_vec));
        side.lane.departed(now_us, ready);
        for frame in out {
            all.push(frame.clone());
            let other = &mut sides[1 - place];
            other.lane.receive(now_us, &mut frame.clone(), &mut other.paper, &mut []).unwrap();
        }
    }
    all
}

#[test]
fn what_has_come_is_told_within_a_millisecond_or_with_the_next_data() {
    let mut sides = pair();
    exchange(&mut sides, 0);
    exchange(&mut sides, 2_000);
    assert!(sides.iter().all(|side| side.lane.is_drained()), "the greetings are told");
    sides[0].lane.offer(b"question");
    let frames = exchange(&mut sides, 3_000);
    assert_eq!(frames.len(), 1, "a frame of data, and nothing that tells of it yet");
    sides[1].lane.offer(b"answer");
    let frames = exchange(&mut sides, 3_100);
    assert_eq!(frames.len(), 1);
    assert!(sides[0].lane.is_drained(), "the answer tells of the question");
    assert!(exchange(&mut sides, 3_200).is_empty());
    assert_eq!(exchange(&mut sides, 4_200).len(), 1);
    assert!(sides[1].lane.is_drained());
}

#[test]
fn who_sends_asks_in_time_and_frames_are_not_each_answered() {
    let mut sides = pair();
    exchange(&mut sides, 0);
    exchange(&mut sides, 2_000);
    let bytes = vec![7; 2_000_000];
    let (mut offered, mut got, mut frames, mut states, mut now_us) = (0, 0, 0, 0, 3_000);
    while got < bytes.len() {
        now_us += 1;
        let [from, to] = &mut sides;
        offered += from.lane.offer(&bytes[offered..]);
        let ready = from.lane.prepare(&mut from.paper);
        assert!(ready > 0, "{got} bytes came, and nothing may go before a clock has run out");
        let out: Vec<Vec<u8>> = from.lane.ready().take(ready).map(<[u8]>::to_vec).collect();
        from.lane.departed(now_us, ready);
        for mut frame in out {
            frames += 1;
            let mut hear = |bytes: &[u8]| {
                got += bytes.len();
                bytes.len()
            };
            to.lane.hear(now_us, &mut frame, &mut to.paper, &mut hear).unwrap();
            let mut state = Vec::new();
            if to.lane.state(now_us, &mut to.paper, &mut state) {
                states += 1;
                from.lane.receive(now_us, &mut state, &mut from.paper, &mut []).unwrap();
            }
        }
    }
    assert!(states * 16 <= frames, "{states} states for {frames} frames");
    assert_eq!(sides[0].lane.lost(), 0);
}

/// A lane whose frames go several with one packet, and what `prepare` makes ready of it after
/// `offer` has given it bytes.
fn bundled(
    offer: impl FnOnce(&mut Lane),
    prepare: fn(&mut Lane, &mut dyn lane::Seal) -> usize,
) -> Vec<usize> {
    let mut lane = Side::new(7, 1, 1452).lane;
    let mut paper = Paper::new(1);
    let greeting = lane.prepare(&mut paper);
    lane.departed(0, greeting);
    offer(&mut lane);
    let ready = prepare(&mut lane, &mut paper);
    lane.ready().take(ready).map(<[u8]>::len).collect()
}

#[test]
fn a_frame_that_is_not_full_waits_where_more_comes_soon_and_goes_where_not() {
    let carried = config(1, 1452).carried_bytes();
    let offer = |bytes: usize| {
        move |lane: &mut Lane| {
            assert_eq!(lane.offer(&vec![7; bytes]), bytes);
        }
    };
    assert_eq!(bundled(offer(3 * carried + 9), Lane::prepare_whole), [1448; 3], "whole blocks of the cipher");
    assert_eq!(bundled(offer(3 * carried + 9), Lane::prepare), [1448, 1448, 1448, 1448 - carried + 9]);
    assert_eq!(bundled(offer(9), Lane::prepare_whole), [0; 0]);
    assert_eq!(bundled(offer(60 * carried), Lane::prepare_whole), [1448; 45], "as many as one packet takes");
    let end = |lane: &mut Lane| {
        lane.offer(&[7; 9]);
        lane.end();
    };
    assert_eq!(bundled(end, Lane::prepare_whole), [1448 - carried + 9], "behind the end nothing comes");
}

#[test]
fn a_frame_that_is_nearly_full_is_made_as_long_as_those_it_goes_with() {
    let carried = config(1, 1452).carried_bytes();
    let place = |lengths: &'static [usize]| {
        move |lane: &mut Lane| {
            for missing in lengths {
                let place = lane.place().unwrap();
                place.extend(vec![7; carried - missing]);
                lane.placed();
            }
        }
    };
    assert_eq!(bundled(place(&[3, 80, 0, 20]), Lane::prepare), [1448, 1448, 1448, 1428]);
    assert_eq!(bundled(place(&[700, 0]), Lane::prepare), [748, 1448], "that would cost more than it saves");
}

#[test]
fn a_station_without_keys_changes_nothing() {
    let mut sides = pair();
    sides[0].lane.offer(&[7; 5000]);
    let frames = exchange(&mut sides, 0);
    let before = format!("{:?}", sides[1].lane);
    let mut random = XorShift::new(3);
    let mut strange = 0;
    for frame in &frames {
        for _ in 0..200 {
            let mut forged = frame.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(forged.len() as u64) as usize;
                forged[at] ^= 1 << random.below(8);
            }
            forged.truncate(random.below(forged.len() as u64 + 1) as usize);
            let side = &mut sides[1];
            let heard = side.lane.receive(5, &mut forged, &mut side.paper, &mut []).unwrap();
            assert!(matches!(heard, Heard::Strange | Heard::Again), "{heard:?}");
            strange += u64::from(heard == Heard::Strange);
        }
    }
    assert_eq!(sides[1].lane.strange(), strange);
    let mut read = vec![0; 6000];
    assert_eq!(sides[1].lane.read(&mut read), 5000, "{before}");
}

#[test]
fn numbers_out_of_the_window_are_not_even_opened() {
    let mut sides = pair();
    for number in [u64::MAX, 1 << 40, 2048 + 796] {
        let header = Header { station: 2, lane: 2, kind: kind::DATA, sealed: 36, number };
        let mut frame = [&header.to_bytes()[..], &[0; 36]].concat();
        let side = &mut sides[1];
        assert_eq!(side.lane.receive(0, &mut frame, &mut side.paper, &mut []), Ok(Heard::Strange));
        let state = Header { kind: kind::STATE, sealed: 40, ..header };
        let mut frame = [&state.to_bytes()[..], &[0; 40]].concat();
        assert_eq!(side.lane.receive(0, &mut frame, &mut side.paper, &mut []), Ok(Heard::Strange));
    }
    assert_eq!(sides[1].paper.opened, 1, "a state of a possible number is tried");
}

#[test]
fn who_has_the_keys_and_says_what_can_t_be_is_broken() {
    let forged = |state: State| {
        let mut frame = Header {
            station: 2,
            lane: 2,
            kind: kind::STATE,
            sealed: u16::try_from(24 + 16 * state.ranges.len() + 16).unwrap(),
            number: 900,
        }
        .to_bytes()
        .to_vec();
        state.write(&mut frame);
        lane::Seal::seal(&mut Paper::new(1), lane::Stream::State, 900, &mut frame);
        frame
    };
    for state in [
        State { next: 2, credit: 9, ..State::default() },
        State { next: 0, credit: 9, ranges: vec![(1, 1 << 60)], ..State::default() },
    ] {
        let mut sides = pair();
        exchange(&mut sides, 0);
        let side = &mut sides[1];
        let said = side.lane.receive(9, &mut forged(state), &mut side.paper, &mut []);
        assert!(said.is_err(), "{said:?}");
    }
    let left = State { flags: state_flag::LEFT, ..State::default() };
    let mut sides = pair();
    let side = &mut sides[1];
    assert_eq!(side.lane.receive(9, &mut forged(left), &mut side.paper, &mut []), Ok(Heard::Taken(0)));
    assert!(side.lane.has_left());
}

#[test]
fn who_is_asked_in_doubt_and_says_nothing_has_left() {
    let mut sides = pair();
    exchange(&mut sides, 0);
    sides[0].lane.doubt(1_000);
    // One that is there answers.
    exchange(&mut sides, 1_000);
    exchange(&mut sides, 1_001);
    for now in (0..2_000_000).step_by(10_000) {
        sides[0].lane.tick(now);
    }
    assert!(!sides[0].lane.has_left());
    sides[0].lane.doubt(2_000_000);
    let mut asked = 0;
    for now in (2_000_000..3_000_000).step_by(10_000) {
        sides[0].lane.tick(now);
        let mut state = Vec::new();
        asked += u32::from(sides[0].lane.state(now, &mut Paper::new(1), &mut state));
    }
    assert!(sides[0].lane.has_left() && asked >= 5, "{asked}");
}
