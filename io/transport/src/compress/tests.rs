//! Every way gives back what went in, and nothing hostile gets more than its header says.

use super::*;

fn packet_of(body: &[u8]) -> Vec<u8> {
    let mut bytes = Packet::plain(packet::FRAMES, body.len(), 1, 2).to_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

fn text(bytes: usize) -> Vec<u8> {
    b"the quick brown fox jumps over the lazy dog, ".iter().copied().cycle().take(bytes).collect()
}

/// Bytes that nobody can make smaller.
fn noise(bytes: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

#[test]
fn all_ways_give_back_what_went_in() {
    for wanted in Compression::ALL {
        for body in [text(511), text(512), text(20_000), text(PACKET_BODY_BYTES_MAX), noise(100_000)] {
            let (mut packer, mut bytes, mut room) = (Packer::new(), vec![7; 5], Vec::new());
            bytes.extend(packet_of(&body));
            packer.pack(&mut bytes, 5, wanted, COMPRESSIONS);
            let (header, packed) = Packet::split(&bytes[5..]).expect("a packet");
            assert_eq!(bytes[..5], [7; 5]);
            if header.compression == compression::NONE {
                assert_eq!(packed, body);
            } else {
                assert!(packed.len() < body.len());
                assert_eq!(packer.unpack(&header, packed, &mut room), Some(&body[..]));
            }
        }
    }
}

#[test]
fn what_gets_smaller_is_packed_and_what_does_not_is_not() {
    for (wanted, number) in [(Compression::Lz4, compression::LZ4), (Compression::Zstd, compression::ZSTD)] {
        let mut packer = Packer::new();
        let mut packed = |body: &[u8], takes| {
            let mut bytes = packet_of(body);
            packer.pack(&mut bytes, 0, wanted, takes);
            Packet::split(&bytes).expect("a packet").0.compression
        };
        assert_eq!(packed(&text(50_000), COMPRESSIONS), number);
        assert_eq!(packed(&noise(50_000), COMPRESSIONS), compression::NONE);
        assert_eq!(packed(&text(50_000), 0), compression::NONE, "the other side does not take it");
    }
}

#[test]
fn a_body_of_another_length_and_a_bomb_and_garbage_are_refused() {
    let bomb = |plain: usize| vec![0; plain];
    for number in [compression::LZ4, compression::ZSTD] {
        let squeezed = |body: &[u8]| match number {
            compression::LZ4 => lz4_flex::block::compress(body),
            _ => zstd::bulk::compress(body, 1).expect("it fits"),
        };
        let mut packer = Packer::new();
        let mut room = Vec::new();
        let mut unpack = |body: &[u8], plain: usize| {
            let header = Packet {
                compression: number,
                carried: u32::try_from(body.len()).expect("short"),
                plain: u32::try_from(plain).expect("short"),
                ..Packet::plain(packet::FRAMES, 0, 1, 2)
            };
            let found = packer.unpack(&header, body, &mut room).map(<[u8]>::to_vec);
            (found, room.capacity())
        };
        let fine = squeezed(&text(1000));
        assert_eq!(unpack(&fine, 1000).0, Some(text(1000)));
        assert_eq!(unpack(&fine, 999).0, None);
        assert_eq!(unpack(&fine, 1001).0, None);
        assert_eq!(unpack(&fine[..fine.len() / 2], 1000).0, None);
        assert_eq!(unpack(&noise(700), 1000).0, None);
        assert_eq!(unpack(&[], 1000).0, None);
        // 8 MiB behind a header that says 1000 bytes, and behind one that says as much as may be.
        let (none, held) = unpack(&squeezed(&bomb(8 << 20)), 1000);
        assert!(none.is_none() && held <= PACKET_BODY_BYTES_MAX);
        let (none, held) = unpack(&squeezed(&bomb(8 << 20)), PACKET_BODY_BYTES_MAX);
        assert!(none.is_none() && held <= PACKET_BODY_BYTES_MAX);
    }
}
