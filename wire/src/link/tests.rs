//! The bytes of links: what is written comes back, what is broken has its name, and no bytes do
//! harm.

use super::frame::put;
use super::*;
use proptest::prelude::*;

const PAIR: Pair = Pair { slot: 7, generation: 3 };
const HELLO: Hello = Hello {
    oldest: 1,
    newest: 2,
    side: 1,
    compressions: 0b110,
    pairs: 100,
    window_bytes: 65_536,
    message_bytes: 65_528,
    silence_ms: 2000,
};

fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

fn with(frame: &Frame<'_>, at: usize, byte: u8) -> Result<(), BadPacket> {
    let mut bytes = bytes_of(frame);
    bytes[at] = byte;
    Frame::next(&mut &bytes[..]).map(|_| ())
}

fn hello_with(at: usize, bytes: &[u8]) -> Result<Hello, BadPacket> {
    let mut body = HELLO.to_bytes();
    body[at..at + bytes.len()].copy_from_slice(bytes);
    Hello::read(&body)
}

fn packet_with(at: usize, byte: u8) -> Result<Packet, BadPacket> {
    let mut bytes = Packet::plain(packet::FRAMES, 100, 5, 6).to_bytes();
    bytes[at] = byte;
    Packet::read(bytes)
}

#[test]
fn each_broken_rule_of_a_packet_has_its_name() {
    assert_eq!(
        packet_with(3, 1),
        Err(BadPacket::Length { what: "the body of a packet", found: 0x0100_0064 })
    );
    assert_eq!(packet_with(4, 9), Err(BadPacket::Kind { what: "a packet", found: 9 }));
    assert_eq!(packet_with(5, 3), Err(BadPacket::Compression { kind: 2, found: 3 }));
    assert_eq!(packet_with(6, 1), Err(BadPacket::Padding { what: "a packet", found: 1 }));
    assert_eq!(packet_with(8, 99), Err(BadPacket::Compression { kind: 2, found: 0 }));
    assert_eq!(packet_with(15, 1), Err(BadPacket::Padding { what: "a packet", found: 1 << 24 }));
    assert_eq!(packet_with(16, 0), Err(BadPacket::Epoch));
    assert_eq!(Packet::split(&[0; 31]), Err(BadPacket::Length { what: "a datagram", found: 31 }));
    let hello = Packet { kind: packet::HELLO, compression: 1, ..Packet::plain(1, 60, 1, 0) };
    assert_eq!(Packet::read(hello.to_bytes()), Err(BadPacket::Compression { kind: 1, found: 1 }));
}

#[test]
fn each_broken_rule_of_a_hello_has_its_name() {
    assert_eq!(Hello::read(&HELLO.to_bytes()), Ok(HELLO));
    let longer = [&HELLO.to_bytes()[..], &[9; 100]].concat();
    assert_eq!(Hello::read(&longer), Ok(HELLO), "a later version says more");
    assert_eq!(Hello::read(&longer[..47]), Err(BadPacket::Length { what: "a hello", found: 47 }));
    assert!(matches!(hello_with(0, &[0]), Err(BadPacket::Magic { .. })));
    for (at, bytes) in [
        (8, &[0, 0][..]),
        (8, &[3, 0]),
        (12, &[2]),
        (16, &[0; 4]),
        (16, &[1, 0, 1, 0]),
        (20, &[255, 15, 0, 0]),
        (20, &[1, 0, 0, 2]),
        (24, &[0; 4]),
        (24, &[249, 255, 0, 0]),
        (28, &[99, 0, 0, 0]),
        (28, &[255; 4]),
    ] {
        assert!(matches!(hello_with(at, bytes), Err(BadPacket::Bounds { .. })), "{at} {bytes:?}");
    }
}

#[test]
fn neighbouring_releases_agree_and_others_do_not() {
    let release = |newest: u16| Hello { oldest: newest - 1, newest, ..HELLO };
    assert_eq!(release(4).common_version(&release(4)), Some(4));
    assert_eq!(release(4).common_version(&release(5)), Some(4));
    assert_eq!(release(5).common_version(&release(4)), Some(4));
    assert_eq!(release(4).common_version(&release(6)), None);
    assert_eq!(release(6).common_version(&release(4)), None);
}

#[test]
fn each_broken_rule_of_a_frame_has_its_name() {
    let data = Frame::Data { pair: PAIR, offset: 5, bytes: b"abc" };
    assert_eq!(with(&data, 0, 20), Err(BadPacket::Kind { what: "a frame", found: 20 }));
    assert_eq!(with(&data, 1, 1), Err(BadPacket::Padding { what: "a frame", found: 1 << 16 }));
    assert_eq!(with(&data, 2, 1), Err(BadPacket::Padding { what: "a frame", found: 1 }));
    assert_eq!(with(&data, 4, 4), Err(BadPacket::Length { what: "a frame", found: 27 }));
    assert_eq!(with(&data, 4, 0), Err(BadPacket::Length { what: "the payload of a frame", found: 0 }));
    assert_eq!(with(&data, 10, 2), Err(BadPacket::Bounds { what: "the slot of a frame", found: 131_079 }));
    assert_eq!(with(&data, 12, 0), Err(BadPacket::Pair { kind: 1, generation: 0 }));
    let last = Frame::Data { pair: PAIR, offset: u64::MAX - 1, bytes: b"ab" };
    assert!(matches!(with(&last, 0, 1), Err(BadPacket::Bounds { .. })));
    assert_eq!(with(&Frame::Resumed, 8, 1), Err(BadPacket::Pair { kind: 5, generation: 0 }));
    assert!(matches!(with(&Frame::Resumed, 16, 1), Err(BadPacket::Bounds { .. })));
    let mut ranges = Ranges::default();
    assert!(ranges.push(9, 12));
    let state = Frame::State { pair: PAIR, received: 5, credit: 90, ranges, closed: true };
    assert_eq!(with(&state, 1, 1), Ok(()));
    assert!(matches!(with(&state, 32, 5), Err(BadPacket::Bounds { .. })), "no gap before the range");
    assert!(matches!(with(&state, 40, 9), Err(BadPacket::Bounds { .. })), "nothing in the range");
    assert!(matches!(with(&state, 4, 23), Err(BadPacket::Length { .. })));
}

#[test]
fn records_are_bounded_by_their_kind() {
    assert_eq!(read_record_header(record_header(record::OPEN, 512)), Ok((record::OPEN, 512)));
    assert!(read_record_header(record_header(record::OPEN, 513)).is_err());
    assert!(read_record_header(record_header(record::MESSAGE, MESSAGE_BYTES_MAX + 1)).is_err());
    assert_eq!(read_record_header(record_header(3, 0)), Err(BadPacket::Kind { what: "a record", found: 3 }));
}

proptest! {
    #[test]
    fn whatever_frames_are_read_are_written_the_same(
        kind in 0_u8..10, flags in 0_u8..3, slot in 0_u32..9, generation in 0_u32..2, offset in 0_u64..3, payload: Vec<u8>,
    ) {
        let mut bytes = Vec::new();
        put(&mut bytes, kind, flags, Pair { slot, generation }, offset, &[&payload]);
        if let Ok(Some(frame)) = Frame::next(&mut &bytes[..]) {
            prop_assert_eq!(bytes_of(&frame), bytes);
        }
    }

    #[test]
    fn states_come_back(received in 0_u64..9, credit: u64, steps in proptest::collection::vec(1_u64..9, 0..5), closed: bool) {
        let mut ranges = Ranges::default();
        let mut end = received;
        for step in steps {
            let from = end + step;
            end = from + step;
            prop_assert_eq!(ranges.push(from, end), ranges.iter().count() < RANGES_MAX || ranges.iter().any(|range| range == (from, end)));
        }
        let state = Frame::State { pair: PAIR, received, credit, ranges, closed };
        let bytes = bytes_of(&state);
        prop_assert_eq!(Frame::next(&mut &bytes[..]), Ok(Some(state)));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>, header: [u8; PACKET_HEADER_BYTES]) {
        let mut rest = &bytes[..];
        while let Ok(Some(_)) = Frame::next(&mut rest) {}
        if let Ok(packet) = Packet::read(header) {
            prop_assert_eq!(packet.to_bytes(), header);
        }
        let _hello = Hello::read(&bytes);
        let _packet = Packet::split(&bytes);
    }

    #[test]
    fn a_stream_may_be_cut_anywhere(bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 0..6), cut in 1_usize..50) {
        let packets: Vec<_> = bodies.iter().map(|body| (Packet::plain(packet::FRAMES, body.len(), 1, 2), body.clone())).collect();
        let stream: Vec<u8> = packets.iter().flat_map(|(header, body)| [&header.to_bytes()[..], body].concat()).collect();
        let (mut decoder, mut found) = (Decoder::default(), Vec::new());
        for mut piece in stream.chunks(cut) {
            while let Some(packet) = decoder.next(&mut piece).expect("what was written can be read") {
                found.push(packet);
            }
        }
        prop_assert_eq!(found, packets);
    }
}
