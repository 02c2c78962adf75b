//! Several frames with one packet of the kernel's, which it or the card cuts (`PACKET_VNET_HDR`,
//! packet(7); segmentation of UDP, linux/virtio_net.h).

use super::{FRAMES_MAX, Interface, PROTOCOL_AT, bind, jump, option, room_for, statement, take};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Packets of one call, at most.
pub const BUNDLES_MAX: usize = 16;
/// The header that the kernel puts in front of each packet, and wants there (`struct
/// virtio_net_hdr`).
const WORD_BYTES: usize = 10;
/// The kernel is to finish the checksum.
const NEEDS_CHECKSUM: u8 = 1;
/// The packet is to be cut, or was put together, as datagrams of UDP.
const CUT_AS_UDP: u8 = 5;
/// The bit of it that says whether it was cut.
const CUT_MARK: u8 = 0x80;
/// The first kernel that cuts so for sockets of this kind.
const KERNEL_MIN: (u32, u32) = (6, 2);

/// The packets that a socket of these receives: of this protocol, for this address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hears {
    /// The `EtherType`.
    pub ether_type: u16,
    /// Four bytes that stand there, the first one the most significant, and from which byte on.
    pub words: [(u32, u32); 4],
    /// The same of one byte.
    pub byte: (u32, u8),
}

/// A packet that is handed over: `frames`, behind one `head`. Where it is cut, each piece has a
/// copy of that in front.
#[derive(Debug, Clone, Copy)]
pub struct Bundle<'a> {
    /// Ethernet's header and those behind it, as they are in front of all frames together.
    pub head: &'a [u8],
    /// The frames behind it.
    pub frames: &'a [&'a [u8]],
    /// Bytes of a piece, but for the last, which may be shorter, where it may be cut; `None`: it
    /// goes as it is.
    pub cut: Option<usize>,
    /// So many of the packet's bytes, the head at least, are to lie in one piece of the kernel's
    /// memory.
    pub in_one_piece: usize,
}

/// From where on the kernel sums up for the checksum, and where it puts that, from there.
pub type Checksum = (usize, usize);

/// Whether this kernel knows how: Linux 6.2 and later.
#[must_use]
pub fn is_known() -> bool {
    let uname = rustix::system::uname();
    let mut numbers = uname.release().to_str().unwrap_or_default().split(['.', '-', '+']).map(str::parse);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= KERNEL_MIN)
}

/// A socket for whole packets on one interface, of which it hears those alone that `hears` names.
/// Nobody can change that any more, whoever has the socket. It does not wait.
///
/// # Errors
/// Those of socket(2), bind(2) and setsockopt(2): `CAP_NET_RAW` is needed.
pub fn open(interface: &Interface, hears: &Hears) -> io::Result<OwnedFd> {
    bound(interface, hears, Some(hears))
}

/// As [`open`], for all packets of the protocol, whomever they are for: what stands in a path hears
/// them.
///
/// # Errors
/// As there.
pub fn open_to_all(interface: &Interface, hears: &Hears) -> io::Result<OwnedFd> {
    bound(interface, hears, None)
}

fn bound(interface: &Interface, hears: &Hears, filters: Option<&Hears>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Of no protocol it hears nothing, until it is bound. The kernel has such packets for sockets
    // of this type alone.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1_i32)?;
    if let Some(hears) = filters {
        filter(&socket, hears)?;
    }
    room_for(&socket)?;
    bind(&socket, interface, hears.ether_type)?;
    Ok(socket)
}

fn filter(socket: &OwnedFd, hears: &Hears) -> io::Result<()> {
    let load = libc::BPF_LD | libc::BPF_ABS;
    let mut program = vec![
        statement(load | libc::BPF_H, PROTOCOL_AT),
        jump(u32::from(hears.ether_type), 11),
        statement(load | libc::BPF_B, hears.byte.0),
        jump(u32::from(hears.byte.1), 9),
    ];
    for ((at, word), behind) in hears.words.into_iter().zip([7, 5, 3, 1]) {
        program.extend([statement(load | libc::BPF_W, at), jump(word, behind)]);
    }
    take(socket, &mut program)
}

/// The header of a bundle for the kernel.
fn word(bundle: &Bundle<'_>, checksum: Checksum) -> io::Result<[u8; WORD_BYTES]> {
    let short =
        |number: usize| u16::try_from(number).map_err(|_| io::ErrorKind::InvalidInput).map(u16::to_ne_bytes);
    let head = bundle.head.len();
    let all = head + bundle.frames.iter().map(|frame| frame.len()).sum::<usize>();
    // Who reads this takes it for the length of the headers, and has them in one piece with what is
    // in front.
    let in_one_piece = bundle.in_one_piece.min(all).max(head);
    let mut word = [0; WORD_BYTES];
    (word[0], word[1]) = (NEEDS_CHECKSUM, if bundle.cut.is_some() { CUT_AS_UDP } else { 0 });
    for (place, number) in
        word[2..].chunks_exact_mut(2).zip([in_one_piece, bundle.cut.unwrap_or(0), checksum.0, checksum.1])
    {
        place.copy_from_slice(&short(number)?);
    }
    Ok(word)
}

/// Sends bundles on the interface of the socket; says how many went, which are the first. At most
/// [`BUNDLES_MAX`] are looked at, and [`FRAMES_MAX`] frames of all of them.
///
/// # Errors
/// Those of sendmmsg(2) at the first bundle: `WouldBlock` says that there is no room now,
/// `InvalidInput` that the kernel can't cut, `ENOBUFS` that the network is full, or that there is
/// no such piece of memory.
pub fn send(socket: impl AsFd, bundles: &[Bundle<'_>], checksum: Checksum) -> io::Result<usize> {
    let no_part = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut parts = [no_part; FRAMES_MAX + 2 * BUNDLES_MAX];
    let mut words = [[0; WORD_BYTES]; BUNDLES_MAX];
    // SAFETY: mmsghdr is plain data of the C library, for which all bits zero are a value: no name,
    // no control data, no parts.
    let mut messages: [libc::mmsghdr; BUNDLES_MAX] = unsafe { std::mem::zeroed() };
    let mut free = &mut parts[..];
    let mut count = 0;
    for ((bundle, word_of), message) in bundles.iter().zip(&mut words).zip(&mut messages) {
        let Some((mine, rest)) = std::mem::take(&mut free).split_at_mut_checked(bundle.frames.len() + 2)
        else {
            break;
        };
        *word_of = word(bundle, checksum)?;
        let pieces = [&word_of[..], bundle.head].into_iter().chain(bundle.frames.iter().copied());
        for (part, piece) in mine.iter_mut().zip(pieces) {
            *part = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
        }
        message.msg_hdr.msg_iov = mine.as_mut_ptr();
        message.msg_hdr.msg_iovlen = mine.len();
        (free, count) = (rest, count + 1);
    }
    // SAFETY: the descriptor is open for as long as `socket` is borrowed. The first `count`
    // headers, at most BUNDLES_MAX, point to parts of their own in `parts`, and each part to a word
    // in `words`, or to a head or a frame that is borrowed, and has the length that the part says;
    // the kernel reads them only, and all of them outlive the call.
    let sent = unsafe {
        libc::sendmmsg(socket.as_fd().as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Bytes of a [`Room`](super::Room)'s place for packets of so many bytes.
#[must_use]
pub fn place_bytes(packet_bytes: usize) -> usize {
    packet_bytes + WORD_BYTES
}

/// The packet in a [`Room`](super::Room)'s place, and the length of its frames, but for the last,
/// where it was not cut yet or was put together again. `None`: there is none.
#[must_use]
pub fn packet(place: &mut [u8]) -> Option<(&mut [u8], Option<usize>)> {
    let (word, packet) = place.split_at_mut_checked(WORD_BYTES)?;
    let length = usize::from(u16::from_ne_bytes([word[4], word[5]]));
    let several = word[1] & !CUT_MARK == CUT_AS_UDP && length > 0;
    Some((packet, several.then_some(length)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::cable;
    use super::super::{Room, interface};
    use super::*;

    /// A protocol of local experiments does for what is not cut.
    const HEARS: Hears =
        Hears { ether_type: 0x86dd, words: [(22, 0), (26, 0), (30, 7), (34, 9)], byte: (20, 17) };
    /// Headers of Ethernet, IPv6 and UDP.
    const HEAD_BYTES: usize = 62;
    const CHECKSUM: Checksum = (54, 6);

    fn head(to: &Interface, frames: &[&[u8]]) -> Vec<u8> {
        let length = u16::try_from(8 + frames.iter().map(|frame| frame.len()).sum::<usize>()).unwrap();
        let mut head = [&to.mac[..], &[2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0]].concat();
        head.extend(length.to_be_bytes());
        head.extend([17, 1]);
        head.extend([&[0; 11][..], &[7, 0, 0, 0, 9]].concat());
        head.extend([0; 16]);
        head.extend([0, 9, 0, 9]);
        head.extend(length.to_be_bytes());
        head.extend([0, 0]);
        assert_eq!(head.len(), HEAD_BYTES);
        head
    }

    fn receive(room: &mut Room, socket: &OwnedFd) -> Vec<(Vec<u8>, Option<usize>)> {
        match room.receive(socket) {
            Ok(_) => room
                .frames()
                .filter_map(packet)
                .map(|(packet, length)| (packet[HEAD_BYTES..].to_vec(), length))
                .collect(),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                Vec::new()
            }
        }
    }

    fn await_frames(room: &mut Room, socket: &OwnedFd, count: usize) -> Vec<Vec<u8>> {
        let mut came = Vec::new();
        while came.len() < count {
            for (bytes, length) in receive(room, socket) {
                let length = length.unwrap_or(bytes.len().max(1));
                came.extend(bytes.chunks(length).map(<[u8]>::to_vec));
            }
        }
        came
    }

    #[test]
    fn several_frames_go_with_one_packet_and_come_as_they_were_whoever_cuts_it() {
        let Some([one, two]) = cable() else { return };
        if !is_known() {
            return println!("skipped: this kernel can't cut packets of such sockets");
        }
        let (from, to) = (open(&one, &HEARS).unwrap(), open(&two, &HEARS).unwrap());
        let mut room = Room::new(8, place_bytes(65_535));
        let frames: Vec<Vec<u8>> = (0..30).map(|number| vec![number; 1400]).chain([vec![99; 17]]).collect();
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let (head_all, head_one) = (head(&two, &frames), head(&two, &frames[..1]));
        let bundles = [(&head_all, &frames[..], Some(1400)), (&head_one, &frames[..1], None)]
            .map(|(head, frames, cut)| Bundle { head, frames, cut, in_one_piece: 0 });
        assert_eq!(send(&from, &bundles, CHECKSUM).unwrap(), 2);
        let came = await_frames(&mut room, &to, 32);
        assert!(came.iter().zip(frames.iter().chain(&frames[..1])).all(|(came, sent)| came == sent));
        assert_eq!(send(&from, &bundles[..1], CHECKSUM).unwrap(), 1);
        let whole = loop {
            if let [only] = &receive(&mut room, &to)[..] {
                break only.clone();
            }
        };
        assert_eq!((whole.0.len(), whole.1), (30 * 1400 + 17, Some(1400)), "it went as one");
        // An interface that can't: the kernel cuts before it.
        let off =
            std::process::Command::new("ip").args(["link", "set", "one", "gso_max_size", "2000"]).status();
        assert!(off.is_ok_and(|status| status.success()));
        assert_eq!(send(&from, &bundles[..1], CHECKSUM).unwrap(), 1);
        let mut came = Vec::new();
        while came.len() < 31 {
            came.extend(receive(&mut room, &to));
        }
        assert!(came.iter().zip(&frames).all(|((came, length), sent)| came == sent && length.is_none()));
    }

    #[test]
    fn a_bridge_passes_on_what_goes_as_one() {
        let Some([one, _]) = cable() else { return };
        let script = "ip link add far type veth peer name far-way && ip link add bridge type bridge \
                      && ip link set two master bridge && ip link set far-way master bridge \
                      && for name in bridge far far-way; do ip link set $name up || exit; done";
        let made = std::process::Command::new("sh").args(["-c", script]).status();
        if !is_known() || !made.is_ok_and(|status| status.success()) {
            return println!("skipped: this kernel can't cut packets of such sockets, or has no bridge");
        }
        let far = interface("far").unwrap();
        let (from, to) = (open(&one, &HEARS).unwrap(), open(&far, &HEARS).unwrap());
        let frames = [&[7; 1400][..]; 30];
        let head = head(&far, &frames);
        let mut room = Room::new(8, place_bytes(65_535));
        // A port of a bridge passes nothing on in its first moments.
        let came = loop {
            let bundle = Bundle { head: &head, frames: &frames, cut: Some(1400), in_one_piece: 20_000 };
            send(&from, &[bundle], CHECKSUM).unwrap();
            if let Some(came) = receive(&mut room, &to).pop() {
                break came;
            }
            std::thread::yield_now();
        };
        assert_eq!((came.0.len(), came.1), (30 * 1400, Some(1400)));
    }

    #[test]
    fn what_lies_in_one_piece_comes_as_what_does_not() {
        let Some([one, two]) = cable() else { return };
        if !is_known() {
            return println!("skipped: this kernel can't cut packets of such sockets");
        }
        let (from, to) = (open(&one, &HEARS).unwrap(), open(&two, &HEARS).unwrap());
        let frame: Vec<u8> = (0..65_432_u32).map(|at| ((at * at) >> 7) as u8).collect();
        let frames = [&frame[..]];
        let head = head(&two, &frames);
        let mut room = Room::new(4, place_bytes(65_535));
        for in_one_piece in [0, HEAD_BYTES, 40_000, 62 << 10, usize::MAX] {
            let bundle = Bundle { head: &head, frames: &frames, cut: Some(1400), in_one_piece };
            assert_eq!(send(&from, &[bundle], CHECKSUM).unwrap(), 1, "{in_one_piece}");
            let came = loop {
                if let Some(came) = receive(&mut room, &to).pop() {
                    break came;
                }
            };
            assert!(came.0 == frame, "{in_one_piece}");
        }
        let length = |in_one_piece| {
            let bundle = Bundle { head: &head, frames: &frames, cut: None, in_one_piece };
            let word = word(&bundle, CHECKSUM).unwrap();
            u16::from_ne_bytes([word[2], word[3]])
        };
        assert_eq!([0, 62, 1000, usize::MAX].map(length), [62, 62, 1000, 62 + 65_432]);
    }

    #[test]
    fn what_is_for_another_address_is_not_heard() {
        let Some([one, two]) = cable() else { return };
        let (from, to) = (open(&one, &HEARS).unwrap(), open(&two, &HEARS).unwrap());
        let frame = [&b"a frame"[..]];
        let good = head(&two, &frame);
        let mut heads = vec![good.clone()];
        for at in [20, 25, 26, 29, 33, 37] {
            let mut other = good.clone();
            other[at] ^= 1;
            heads.push(other);
        }
        heads.push(good);
        let bundle = |head| Bundle { head, frames: &frame, cut: None, in_one_piece: usize::MAX };
        let bundles: Vec<Bundle<'_>> = heads.iter().map(|head| bundle(head)).collect();
        assert_eq!(send(&from, &bundles, CHECKSUM).unwrap(), 8);
        let mut room = Room::new(8, place_bytes(2000));
        let mut came = await_frames(&mut room, &to, 2);
        came.extend(receive(&mut room, &to).into_iter().map(|(bytes, _)| bytes));
        assert_eq!(came, [b"a frame"; 2]);
        let mut program = Vec::new();
        let refused = take(&to, &mut program).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM), "the filter stays");
    }

    #[test]
    fn what_the_kernel_says_of_a_packet_is_read_whatever_it_is() {
        assert_eq!(packet(&mut [0; 9]), None);
        assert_eq!(packet(&mut [0; 12]), Some((&mut [0; 2][..], None)));
        let mut odd = [0; 12];
        odd[1] = CUT_AS_UDP;
        assert_eq!(packet(&mut odd).unwrap().1, None, "of no length");
        odd[1] |= CUT_MARK;
        odd[4..6].copy_from_slice(&9_u16.to_ne_bytes());
        assert_eq!(packet(&mut odd).unwrap().1, Some(9));
        odd[1] = 1;
        assert_eq!(packet(&mut odd).unwrap().1, None, "as TCP");
        assert!(interface("nothing-of-that-name").is_err());
    }
}
