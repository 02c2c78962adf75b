//! The cover of frames that go several at a time: headers of Ethernet, IPv6 (RFC 8200) and UDP (RFC
//! 768), which only the kernels and cards on the way look at, so that they cut one packet into
//! frames. Nobody's IP answers such a packet: it comes from an address that never comes from a
//! network (RFC 4291, 2.5.3), so every receiver drops it in silence, and is for one that nobody has
//! (RFC 6666). The page `docs/spec/cover.md` says the same.

use crate::lane::{array, put};

/// The `EtherType` that stands there: that of IPv6.
pub const ETHER_TYPE: u16 = 0x86dd;
/// Bytes of Ethernet's header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of IPv6's and UDP's headers: those of the longest payload of an interface's frames that a
/// frame of a lane does not get.
pub const COVER_BYTES: usize = 48;
/// Bytes in front of the frames of one packet.
pub const HEAD_BYTES: usize = 62;
/// Bytes of several frames in one packet, at most: with its headers it is below 64 KiB.
pub const BUNDLE_BYTES_MAX: usize = 65_473;
/// Frames in one packet, at most.
pub const BUNDLE_FRAMES_MAX: usize = 64;
/// From and to which port (RFC 863): nobody listens there by these addresses.
pub const PORT: u16 = 9;
/// Upper half of the address that a packet is for, whose lower half is the number of the station.
pub const NETWORK: u64 = 0x0100_0000_0000_0000;
/// Where UDP's header begins.
pub const UDP_AT: usize = 54;
/// Where its checksum is, from there.
pub const CHECKSUM_AT: usize = 6;

const _: () = assert!(BUNDLE_BYTES_MAX + HEAD_BYTES < 1 << 16);
const _: () = assert!(HEAD_BYTES == ETHERNET_BYTES + COVER_BYTES);

/// UDP, as IPv6 numbers it.
const UDP: u8 = 17;
/// Bytes of UDP's header.
const UDP_BYTES: usize = 8;

/// The header in front of `bytes` bytes of frames, from the address `from` of an Ethernet to the
/// station at `to`. UDP's checksum is begun, as the kernel wants it: of the addresses, the length
/// and the protocol alone (RFC 8200, 8.1).
#[must_use]
pub fn head(from: [u8; 6], to: [u8; 6], station: u64, bytes: usize) -> [u8; HEAD_BYTES] {
    let length = u16::try_from(bytes + UDP_BYTES).unwrap_or(u16::MAX);
    let mut head = [0; HEAD_BYTES];
    put(&mut head, 0, to);
    put(&mut head, 6, from);
    put(&mut head, 12, ETHER_TYPE.to_be_bytes());
    // Version 6, no class, no label; what follows, and one hop.
    put(&mut head, 14, [0x60, 0, 0, 0]);
    put(&mut head, 18, length.to_be_bytes());
    put(&mut head, 20, [UDP, 1]);
    put(&mut head, 22, 1_u128.to_be_bytes());
    put(&mut head, 38, NETWORK.to_be_bytes());
    put(&mut head, 46, station.to_be_bytes());
    put(&mut head, UDP_AT, PORT.to_be_bytes());
    put(&mut head, UDP_AT + 2, PORT.to_be_bytes());
    put(&mut head, UDP_AT + 4, length.to_be_bytes());
    let addresses: u32 =
        (22..UDP_AT).step_by(2).map(|at| u32::from(u16::from_be_bytes(array(&head, at)))).sum();
    let mut sum = addresses + u32::from(length) + u32::from(UDP);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    put(&mut head, UDP_AT + CHECKSUM_AT, u16::try_from(sum).unwrap_or(0).to_be_bytes());
    head
}

/// The words of a packet for `station`, and where they stand: four bytes each, the first one the
/// most significant, from which byte on. A filter compares them.
#[must_use]
pub fn words(station: u64) -> [(u32, u32); 4] {
    let [network, station] = [NETWORK, station].map(|half| ((half >> 32) as u32, half as u32));
    [(38, network.0), (42, network.1), (46, station.0), (50, station.1)]
}

/// The same of one byte: it is UDP.
pub const BYTE: (u32, u8) = (20, UDP);

/// Where the frames of a packet lie, if it is one for `station`: what UDP says of its length, where
/// that is there. Nothing else of it is believed.
#[must_use]
pub fn frames(packet: &[u8], station: u64) -> Option<std::ops::Range<usize>> {
    let is_ours = packet.len() >= HEAD_BYTES
        && array(packet, 12) == ETHER_TYPE.to_be_bytes()
        && array(packet, 20) == [UDP]
        && array(packet, 38) == NETWORK.to_be_bytes()
        && array(packet, 46) == station.to_be_bytes();
    let length = usize::from(u16::from_be_bytes(array(packet, UDP_AT + 4)));
    let end = UDP_AT + length;
    (is_ours && (HEAD_BYTES..=packet.len()).contains(&end)).then_some(HEAD_BYTES..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const STATION: u64 = 0x0102_0304_0506_0708;

    fn packet(bytes: usize) -> Vec<u8> {
        [&head(FROM, TO, STATION, bytes)[..], &vec![7; bytes]].concat()
    }

    #[test]
    fn the_frames_lie_where_they_were_put_and_padding_is_none_of_them() {
        for bytes in [0, 1, 1452, BUNDLE_BYTES_MAX] {
            let mut packet = packet(bytes);
            assert_eq!(frames(&packet, STATION), Some(HEAD_BYTES..HEAD_BYTES + bytes));
            packet.extend([0; 20]);
            assert_eq!(frames(&packet, STATION), Some(HEAD_BYTES..HEAD_BYTES + bytes));
        }
    }

    #[test]
    fn what_is_another_station_s_or_nobody_s_is_no_packet() {
        let packet = packet(100);
        assert_eq!(frames(&packet, STATION + 1), None);
        for at in [12, 13, 20, 38, 45, 46, 53, UDP_AT + 4] {
            let mut other = packet.clone();
            other[at] ^= 1;
            assert_eq!(frames(&other, STATION), None, "byte {at}");
        }
        for length in [0, 13, HEAD_BYTES - 1, packet.len() - 1] {
            assert_eq!(frames(&packet[..length], STATION), None, "{length} bytes");
        }
        let mut short = packet;
        put(&mut short, UDP_AT + 4, 7_u16.to_be_bytes());
        assert_eq!(frames(&short, STATION), None, "shorter than UDP's header");
    }

    #[test]
    fn a_filter_finds_what_stands_there() {
        let packet = packet(9);
        for (at, word) in words(STATION) {
            assert_eq!(u32::from_be_bytes(array(&packet, at as usize)), word, "byte {at}");
        }
        assert_eq!(packet[BYTE.0 as usize], BYTE.1);
    }

    /// RFC 1071, over what RFC 8200 names, and the frames.
    #[test]
    fn the_checksum_is_begun_as_the_kernel_goes_on_with_it() {
        let packet = packet(101);
        let sum = |bytes: &[u8]| -> u32 {
            bytes
                .chunks(2)
                .map(|two| u32::from(two[0]) << 8 | two.get(1).map_or(0, |byte| u32::from(*byte)))
                .sum()
        };
        let fold = |mut sum: u32| {
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            sum
        };
        // What the kernel does: the sum over all from UDP's header on, the beginning among it, is
        // put there.
        let whole = !fold(sum(&packet[UDP_AT..])) & 0xffff;
        let mut sent = packet.clone();
        sent[UDP_AT + CHECKSUM_AT..][..2].copy_from_slice(&u16::try_from(whole).unwrap().to_be_bytes());
        let length = u32::try_from(packet.len() - UDP_AT).unwrap();
        let all = sum(&sent[22..UDP_AT]) + length + u32::from(UDP) + sum(&sent[UDP_AT..]);
        assert_eq!(fold(all), 0xffff);
    }
}
