//! Frames of Ethernet by a node with the keys of a lane, and by anybody around it. What must hold:
//! no panic; what is understood is written the same; what is held stays within a window; and
//! whoever says little makes us say little.
#![cfg_attr(feature = "fuzzing", no_main)]

use fuzz::script::Script;
use lane::{Config, Heard, Lane, Open, Seal, Stream};
use wire::lane::{
    DATA_BYTES, Data, HEADER_BYTES, Header, INTRODUCTION_BYTES, Introduction, RANGES_MAX, State, TAG_BYTES,
    WINDOW_FRAMES_MAX, kind,
};

/// Steps of one script: more bring nothing new.
const MAX_STEPS: usize = 1024;
const CONFIG: Config = Config { station: 7, lane: 1, frame_bytes: 1500, bundle_frames: 1, sure_bytes: 1500 };
/// Most that may be held of what comes.
const HELD_BYTES: usize = WINDOW_FRAMES_MAX * 1500;

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

fuzz::target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => parsers(bytes),
        1 => drop(hear(&mut Lane::new(CONFIG), 0, &mut bytes.to_vec())),
        _ => play(Script::new(bytes)),
    }
});

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
        assert_eq!(carried.len(), usize::from(data.bytes));
        assert_eq!(data.to_bytes()[..], bytes[..DATA_BYTES]);
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

fn frame(script: &mut Script<'_>) -> Vec<u8> {
    let number = script.word();
    let (mut body, kind) = if script.flag() {
        let bytes = script.below(1600);
        let flags = u16::from(script.byte() % 3);
        let data = Data { next: script.word(), credit: script.word(), flags, bytes: bytes as u16 };
        let mut body = data.to_bytes().to_vec();
        body.resize(DATA_BYTES + bytes, script.byte());
        (body, kind::DATA)
    } else {
        let (next, credit) = (script.word(), script.word());
        let (flags, held_us) = (u32::from(script.byte() % 5), script.word() as u32);
        let ranges = (0..script.below(4)).map(|_| (script.word(), script.word())).collect();
        let mut body = Vec::new();
        State { next, credit, flags, held_us, ranges }.write(&mut body);
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

fn play(mut script: Script<'_>) {
    let mut lane = Lane::new(CONFIG);
    let (mut now_us, mut heard, mut said) = (0_u64, 0_u64, 0_u64);
    let mut state = Vec::new();
    for _ in 0..MAX_STEPS {
        let Some(step) = script.step() else { break };
        match step % 8 {
            0 => assert!(lane.offer(&vec![step; script.below(5000)]) < 5000),
            1 => now_us += script.word() % 10_000_000,
            2 if lane.due_us().is_some_and(|due| due <= now_us) => {
                lane.tick(now_us);
                heard += 1;
            }
            2 => {}
            3 => lane.end(),
            4 => {
                let ready = lane.prepare(&mut Glass);
                assert!(ready <= 64 && lane.ready().take(ready).all(|frame| Header::read(frame).is_ok()));
                lane.departed(now_us, ready.min(script.below(65)));
            }
            _ if hear(&mut lane, now_us, &mut frame(&mut script)) => heard += 1,
            _ => return,
        }
        if lane.state(now_us, &mut Glass, &mut state) {
            assert!(Header::read(&state).is_ok() && state.len() <= CONFIG.frame_bytes);
            said += 1;
        }
        assert!(said <= heard + 2, "{said} states for {heard} frames");
    }
    let mut all = vec![0; HELD_BYTES];
    assert!(lane.read(&mut all) < all.len(), "more is held than a window");
}
