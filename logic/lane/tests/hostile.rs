//! A peer that has the keys and says what it likes, and frames of anybody. What must hold: no
//! panic; what is understood is written the same; what is held stays within a window; and whoever
//! says little makes us say little.
#![allow(clippy::unwrap_used, reason = "a test may")]

use lane::{Broken, Config, Heard, Lane, Open, Seal, Stream};
use wire::lane::{
    Data, HEADER_BYTES, Header, INTRODUCTION_BYTES, Introduction, RANGES_MAX, State, TAG_BYTES, kind,
};

/// Scripts of one run.
const SCRIPTS: u64 = 20_000;

/// Steps of one script: more bring nothing new.
const MAX_STEPS: usize = 200;
const CONFIG: Config = Config { station: 7, lane: 1, frame_bytes: 1500, bundle_frames: 1, sure_bytes: 1500 };

/// Opens all that ends with zeros: whoever plays has the keys, and may spoil a tag.
struct Glass;

impl Seal for Glass {
    fn seal(&mut self, _: Stream, _: u64, frame: &mut Vec<u8>) {
        frame.extend_from_slice(&[0; TAG_BYTES]);
    }
}

impl Open for Glass {
    fn open<'a>(&mut self, _: Stream, _: u64, frame: &'a mut [u8]) -> Option<&'a [u8]> {
        let (front, tag) = frame.split_at(frame.len() - TAG_BYTES);
        (tag == [0; TAG_BYTES]).then(|| &front[HEADER_BYTES..])
    }
}

/// Numbers out of a seed.
struct Script(u64);

impl Script {
    fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    /// Small ones, their negatives, neighbours of powers of two, and any.
    fn word(&mut self) -> u64 {
        match self.below(12) {
            0 => u64::from(self.byte()).wrapping_neg(),
            1 => 1 << self.below(64),
            2 => (1_u64 << self.below(64)).wrapping_sub(1),
            3 => self.0,
            4 => self.below(2100) as u64,
            _ => self.below(12) as u64,
        }
    }
}

#[test]
fn a_peer_that_keeps_to_nothing_breaks_its_lane_and_nothing_else() {
    for seed in 1..=SCRIPTS {
        let mut script = Script(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let played = std::panic::catch_unwind(move || {
            let bytes: Vec<u8> = (0..script.below(120)).map(|_| script.byte() % 5).collect();
            parsers(&bytes);
            hear(&mut Lane::new(CONFIG), 0, &mut bytes.clone());
            play(&mut script);
        });
        assert!(played.is_ok(), "seed {seed}");
    }
}

fn parsers(bytes: &[u8]) {
    if let Some(introduction) = bytes.first_chunk::<INTRODUCTION_BYTES>()
        && let Ok(read) = Introduction::read(introduction)
    {
        assert_eq!(read.to_bytes(), *introduction);
    }
    if let Ok(header) = Header::read(bytes) {
        assert_eq!(header.to_bytes()[..], bytes[..HEADER_BYTES]);
    }
    if let Ok((data, carried)) = Data::read(bytes) {
        assert_eq!((carried.len(), &data.to_bytes()[..]), (usize::from(data.bytes), &bytes[..20]));
    }
    if let Ok(state) = State::read(bytes) {
        let mut written = Vec::new();
        state.write(&mut written);
        assert!(written == bytes && state.ranges.len() <= RANGES_MAX);
    }
}

/// Whether the lane goes on.
fn hear(lane: &mut Lane, now_us: u64, frame: &mut [u8]) -> bool {
    let mut into = [0; 700];
    let read = lane.read(&mut into);
    let heard = lane.receive(now_us, frame, &mut Glass, &mut into[read..]);
    if let Ok(Heard::Taken(bytes)) = heard {
        assert!(bytes <= into.len() - read);
    }
    heard.is_ok()
}

fn frame(script: &mut Script) -> Vec<u8> {
    let number = script.word();
    let (mut body, kind) = if script.flag() {
        let bytes = script.below(1600);
        let flags = u16::from(script.byte() % 5);
        let data = Data { next: script.word(), credit: script.word(), flags, bytes: bytes as u16 };
        let mut body = data.to_bytes().to_vec();
        body.resize(20 + bytes, script.byte());
        (body, kind::DATA)
    } else {
        let mut state = State {
            next: script.word(),
            credit: script.word(),
            flags: u32::from(script.byte() % 5),
            held_us: script.word() as u32,
            ranges: Vec::new(),
        };
        for _ in 0..script.below(4) {
            state.ranges.push((script.word(), script.word()));
        }
        let mut body = Vec::new();
        state.write(&mut body);
        (body, kind::STATE)
    };
    body.extend_from_slice(&[0; TAG_BYTES]);
    if script.byte() > 250 {
        let at = script.below(body.len());
        body[at] ^= 1;
    }
    let header = Header { station: 7, lane: 1, kind, sealed: body.len() as u16, number };
    [&header.to_bytes()[..], &body].concat()
}

fn play(script: &mut Script) {
    let mut lane = Lane::new(CONFIG);
    let (mut now_us, mut heard, mut said) = (0_u64, 0_u64, 0_u64);
    let mut state = Vec::new();
    for _ in 0..MAX_STEPS {
        let step = script.byte();
        match step % 8 {
            0 => {
                let taken = lane.offer(&vec![step; script.below(5000)]);
                assert!(taken <= 5000);
            }
            1 => now_us += script.word() % 10_000_000,
            2 => {
                if lane.due_us().is_some_and(|due| due <= now_us) {
                    lane.tick(now_us);
                    heard += 1;
                }
            }
            3 => lane.end(),
            4 => {
                let ready = lane.prepare(&mut Glass);
                assert!(ready <= 64 && lane.ready().take(ready).all(|frame| Header::read(frame).is_ok()));
                lane.departed(now_us, ready.min(script.below(65)));
            }
            _ => {
                if !hear(&mut lane, now_us, &mut frame(script)) {
                    return;
                }
                heard += 1;
            }
        }
        if lane.state(now_us, &mut Glass, &mut state) {
            assert!(Header::read(&state).is_ok() && state.len() <= CONFIG.frame_bytes);
            said += 1;
        }
        assert!(said <= heard + 2, "{said} states for {heard} frames");
    }
    let mut all = vec![0; 2048 * 1500];
    let read = lane.read(&mut all);
    assert!(read < all.len(), "more is held than a window");
}

fn sealed(kind: u8, number: u64, mut body: Vec<u8>) -> Vec<u8> {
    body.extend_from_slice(&[0; TAG_BYTES]);
    let header = Header { station: 7, lane: 1, kind, sealed: body.len() as u16, number };
    [&header.to_bytes()[..], &body].concat()
}

fn state(number: u64, state: &State) -> Vec<u8> {
    let mut body = Vec::new();
    state.write(&mut body);
    sealed(kind::STATE, number, body)
}

/// Sends all that the lane may; returns the number behind the last frame that was handed over.
fn send_all(lane: &mut Lane, now_us: u64) -> u64 {
    let mut end = 0;
    loop {
        let taken = lane.offer(&[7; 100_000]);
        let ready = lane.prepare(&mut Glass);
        if taken == 0 && ready == 0 {
            return end;
        }
        let numbers = lane.ready().take(ready).map(|frame| Header::read(frame).unwrap().number + 1);
        end = numbers.max().unwrap_or(0).max(end);
        lane.departed(now_us, ready);
    }
}

/// A side that said that all had come but the first frame, and gave credit without end, had the
/// other one keep all that it ever sent.
#[test]
fn a_peer_that_gives_credit_without_end_is_broken_and_one_that_withholds_a_frame_holds_up_a_window() {
    let window = CONFIG.window_frames();
    let mut lane = Lane::new(CONFIG);
    let (mut end, mut states) = (send_all(&mut lane, 0), 0);
    for now_us in 1..200 {
        let ranges = if end > 1 { vec![(1, end)] } else { Vec::new() };
        let said = State { next: 0, credit: window, flags: 0, held_us: 0, ranges };
        assert!(hear(&mut lane, now_us, &mut state(states, &said)));
        (end, states) = (end.max(send_all(&mut lane, now_us)), states + 1);
    }
    assert!((window / 2..=window).contains(&end), "{end} of {window} frames");
    for credit in [window + 1, u64::MAX] {
        let said = State { next: 0, credit, ..State::default() };
        let mut lane = Lane::new(CONFIG);
        let heard = lane.receive(0, &mut state(0, &said), &mut Glass, &mut []);
        assert!(matches!(heard, Err(Broken::Credit { found, most }) if (found, most) == (credit, window)));
        let data = Data { next: 0, credit, flags: 0, bytes: 0 };
        let heard =
            lane.receive(0, &mut sealed(kind::DATA, 0, data.to_bytes().to_vec()), &mut Glass, &mut []);
        assert!(matches!(heard, Err(Broken::Credit { .. })));
    }
}

/// Windows are of frames; a frame of 64 KiB where 1,500 bytes were agreed upon made one forty times
/// as large.
#[test]
fn a_frame_that_is_longer_than_was_agreed_upon_is_not_kept() {
    let window = CONFIG.window_frames();
    let frame = |number, length: usize| {
        let data = Data { next: 0, credit: window, flags: 0, bytes: length as u16 };
        sealed(kind::DATA, number, [&data.to_bytes()[..], &vec![3; length]].concat())
    };
    let longest = CONFIG.frame_bytes - HEADER_BYTES - TAG_BYTES - 20;
    let mut lane = Lane::new(CONFIG);
    for (length, heard) in
        [(longest + 1, Heard::Strange), (60_000, Heard::Strange), (longest, Heard::Taken(0))]
    {
        assert_eq!(lane.receive(0, &mut frame(1, length), &mut Glass, &mut []), Ok(heard), "{length} bytes");
    }
    assert_eq!(lane.strange(), 2);
}
