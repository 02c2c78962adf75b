//! Bytes of another node's proxy, to the link that it was let into. What must hold: no panic; what
//! is understood is written the same; what is held stays within its bounds; and one frame of the
//! peer makes us say a few, not many.
#![cfg_attr(feature = "fuzzing", no_main)]

use fuzz::script::Script;
use link::{Config, Event, Link, Timing, Transport};
use std::collections::BTreeMap;
use wire::link::{
    Decoder, Frame, Hello, PIECE_BYTES_MAX, Packet, Pair, Ranges, Refusal, packet, read_record_header,
    record, record_header,
};

/// Steps of one script: more bring nothing new.
const MAX_STEPS: usize = 2048;
const WINDOW: usize = 8192;
const QUEUE: usize = 4096;
const PAIRS: u32 = 4;
/// Packets that one frame may bring out of us: each names every pair at most.
const MAX_PACKETS: usize = 64;

fuzz::target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => stream(bytes, 1 + usize::from(*kind)),
        1 => datagram(bytes),
        2 => parsers(bytes),
        _ => play(Script::new(bytes)),
    }
});

fn hello(side: u8) -> Hello {
    Hello {
        oldest: 1,
        newest: 1,
        side,
        compressions: 0b110,
        pairs: PAIRS,
        window_bytes: WINDOW as u32,
        message_bytes: 4000,
        silence_ms: 1000,
    }
}

/// Ours is side 1, of epoch 1; the peer is side 0, of epoch 2.
fn victim(transport: Transport, met: bool) -> Link {
    let config = Config { epoch: 1, hello: hello(1), queue_bytes: QUEUE, timing: Timing::default() };
    let mut link = Link::new(config).expect("a configuration");
    link.connected(0, transport).expect("a transport");
    if met {
        let body = hello(0).to_bytes();
        link.receive(0, &Packet::plain(packet::HELLO, body.len(), 2, 1), &body);
        link.receive(0, &Packet::plain(packet::FRAMES, 24, 2, 1), &body_of(&Frame::Resumed));
    }
    link
}

fn body_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    frame.encode(&mut body);
    body
}

/// Any bytes, in pieces of any size.
fn stream(bytes: &[u8], piece: usize) {
    let mut link = victim(Transport::Stream, false);
    let mut decoder = Decoder::default();
    for mut piece in bytes.chunks(piece) {
        loop {
            match decoder.next(&mut piece) {
                Ok(Some((header, body))) => hear(&mut link, 0, &header, &body),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// Any body in a packet that is for us.
fn datagram(bytes: &[u8]) {
    let mut link = victim(Transport::Datagrams { bytes: 1500 }, true);
    hear(&mut link, 0, &Packet::plain(packet::FRAMES, bytes.len(), 2, 1), bytes);
}

/// A message that is understood is written the same.
fn parsers(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some(frame)) = Frame::next(&mut rest) {
        let again = body_of(&frame);
        let from = bytes.len() - rest.len() - again.len();
        assert_eq!(bytes[from..bytes.len() - rest.len()], again);
    }
    if let Ok((header, _)) = Packet::split(bytes) {
        assert_eq!(header.to_bytes(), bytes[..32]);
    }
    if let Ok(refusal) = Refusal::read(bytes) {
        assert_eq!(refusal.to_bytes(), bytes);
    }
    if let Ok(hello) = Hello::read(bytes) {
        assert_eq!(Hello::read(&hello.to_bytes()), Ok(hello));
    }
    if let Some(header) = bytes.first_chunk() {
        let _record = read_record_header(*header);
    }
}

/// The answer to one message is bounded, and so is what is held.
fn hear(link: &mut Link, now_ms: u64, header: &Packet, body: &[u8]) {
    for event in link.receive(now_ms, header, body) {
        if let Event::Messages { pair, messages } = event {
            let (mut count, mut sum) = (0, 0);
            for bytes in &messages {
                assert!(bytes.len() <= 4000, "a message is longer than any may be");
                (count, sum) = (count + 1, sum + bytes.len());
                if bytes.len() % 2 == 0 {
                    link.consumed(pair, bytes.len());
                }
            }
            assert_eq!((count, sum), (messages.count(), messages.bytes()));
        }
    }
    let held = link.held();
    assert!(held.pairs <= 2 * PAIRS as usize, "more pairs than both allow");
    assert!(held.inward <= held.pairs * WINDOW, "more than the windows are held");
    assert!(held.outward <= held.pairs * QUEUE, "more than the queues wait");
    let mut out = Vec::new();
    let mut packets = 0;
    while link.poll_transmit(now_ms, 1500, &mut out) {
        packets += 1;
        assert!(packets <= MAX_PACKETS, "it talks and talks");
    }
}

fn play(mut script: Script<'_>) {
    let transport = if script.flag() { Transport::Stream } else { Transport::Datagrams { bytes: 1500 } };
    let mut link = victim(transport, true);
    let (mut now_ms, mut ends) = (0, Ends::new());
    for _ in 0..MAX_STEPS {
        let Some(step) = script.step() else { return };
        let pair = Pair { slot: script.below(10) as u32, generation: 1 + script.below(3) as u32 };
        match step {
            0..150 => say(&mut link, now_ms, step, (pair, &mut ends), &mut script),
            150..170 => drop(link.open(&[step; 40])),
            170..200 => drop(link.send(pair, &vec![step; script.below(4000)])),
            200..210 => link.close(pair, 1),
            210..220 => link.abandon(pair, 2),
            220..235 => {
                now_ms += script.below(300) as u64;
                link.tick(now_ms);
            }
            235..240 => {
                link.disconnected();
                link.connected(now_ms, transport).expect("a transport");
            }
            _ => {
                // A hello of this epoch or the next.
                let body = hello(0).to_bytes();
                let header = Packet::plain(packet::HELLO, body.len(), 2 + u64::from(script.flag()), 1);
                hear(&mut link, now_ms, &header, &body);
            }
        }
    }
}

/// Where each pair's bytes go on: a peer that only guesses gets nowhere.
type Ends = BTreeMap<Pair, u64>;

fn say(link: &mut Link, now_ms: u64, step: u8, (pair, ends): (Pair, &mut Ends), script: &mut Script<'_>) {
    let mut bytes = match step % 3 {
        0 => record_header(record::OPEN, 0).to_vec(),
        1 => record_header(record::MESSAGE, script.below(5000)).to_vec(),
        _ => Vec::new(),
    };
    // As often as not just what the header says.
    let announced = bytes.first_chunk().map_or(0, |four| u32::from_le_bytes(*four) as usize);
    let more = if script.flag() { announced } else { script.below(5000) };
    let length = (bytes.len() + more).clamp(1, PIECE_BYTES_MAX);
    bytes.resize(length, 0);
    let mut ranges = Ranges::default();
    let credit = script.word();
    let offset = match ends.get(&pair) {
        _ if script.flag() => script.word(),
        end => end.copied().unwrap_or(0),
    };
    if step % 10 < 5 {
        ends.insert(pair, offset.wrapping_add(length as u64));
    }
    ranges.push(offset.saturating_add(1), offset.saturating_add(9));
    let frame = match step % 10 {
        0..5 => Frame::Data { pair, offset, bytes: &bytes },
        5 => Frame::Close { pair, offset, reason: 1 },
        6 => Frame::State { pair, received: offset, credit, ranges, closed: script.flag() },
        7 => {
            Frame::State { pair, received: offset, credit, ranges: Ranges::default(), closed: script.flag() }
        }
        8 => Frame::Gone(pair),
        _ if script.flag() => Frame::Ask(pair),
        _ => Frame::Ping([step; 8]),
    };
    let body = body_of(&frame);
    hear(link, now_ms, &Packet::plain(packet::FRAMES, body.len(), 2, 1), &body);
}
