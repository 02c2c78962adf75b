//! Frames under a cover ([`wire::cover`]): as many as one packet takes go with one, which the
//! kernel or the card cuts, or nobody.

use std::io;
use std::os::fd::AsFd;
use sys::ethernet::bundles::{self, BUNDLES_MAX, Bundle};
use wire::cover::{self, BUNDLE_BYTES_MAX, BUNDLE_FRAMES_MAX, CHECKSUM_AT, HEAD_BYTES, UDP_AT};
use wire::lane::{Introduction, first_frame};

/// So many bytes of a packet with one frame lie in one piece of the kernel's memory, if there is
/// one: 64 KiB with what the kernel has around it. That it is longer than the lists of free memory
/// that each processor has for itself is what it is for.
const ONE_PIECE_BYTES: usize = 62 << 10;
/// Where there was none, so many packets go in several.
const SCATTERED_PACKETS: u32 = 1000;

/// To where frames go under a cover, and from where.
#[derive(Debug)]
pub(super) struct Covered {
    from: [u8; 6],
    to: [u8; 6],
    station: u64,
    /// Frames in one packet, at most: one where the kernel can't cut after all.
    most: usize,
    /// A frame that is longer goes by itself, and is cut by this where something on the way cuts.
    sure_bytes: usize,
    /// So many more packets lie in several pieces of memory.
    scattered: u32,
}

/// Frames of so many bytes that go with one packet.
pub(super) fn bundle_frames(frame_bytes: usize) -> usize {
    (BUNDLE_BYTES_MAX / frame_bytes.max(1)).clamp(1, BUNDLE_FRAMES_MAX)
}

/// How many of the first frames go with one packet: those of one length, and one that is shorter;
/// or one that is longer than this.
fn together(frames: &[&[u8]], most: usize, sure_bytes: usize) -> usize {
    let length = frames.first().map_or(0, |frame| frame.len());
    let most = if length > sure_bytes { 1 } else { most };
    let most = most.min(bundle_frames(length));
    let alike = frames.iter().take(most).take_while(|frame| frame.len() == length).count();
    let shorter = frames.get(alike).is_some_and(|frame| alike < most && frame.len() < length);
    alike + usize::from(shorter)
}

impl Covered {
    /// From the interface with this address to the other side; frames of so many bytes go over both
    /// interfaces as they are.
    pub fn new(from: [u8; 6], theirs: &Introduction, sure_bytes: usize) -> Self {
        Self {
            from,
            to: theirs.mac,
            station: theirs.station,
            most: BUNDLE_FRAMES_MAX,
            sure_bytes,
            scattered: 0,
        }
    }

    /// Whether the first frame goes only where nothing cuts.
    fn is_long(&self, frames: &[&[u8]]) -> bool {
        frames.first().is_some_and(|frame| frame.len() > self.sure_bytes)
    }

    /// By what a packet of these frames may be cut.
    fn cut(&self, frames: &[&[u8]]) -> Option<usize> {
        let length = frames.first().map_or(0, |frame| frame.len());
        (frames.len() > 1 || length > self.sure_bytes).then_some(length.min(self.sure_bytes))
    }

    /// How much of a packet of these frames lies in one piece. What a card or a kernel cuts is cut
    /// without a copy where it does not.
    fn in_one_piece(&self, frames: &[&[u8]]) -> usize {
        if frames.len() == 1 && self.scattered == 0 { ONE_PIECE_BYTES } else { 0 }
    }

    /// The reaction where packets did not go.
    fn failed(&mut self, error: io::Error, frames: &[&[u8]]) -> io::Error {
        let full = rustix::io::Errno::NOBUFS.raw_os_error();
        match error.kind() {
            io::ErrorKind::InvalidInput if self.most > 1 => {
                tracing::info!(%error, "the kernel cuts no packets here: frames go one by one");
                self.most = 1;
                io::ErrorKind::Interrupted.into()
            }
            // Shorter ones may do.
            io::ErrorKind::InvalidInput if self.is_long(frames) => {
                io::Error::new(io::ErrorKind::TimedOut, error)
            }
            // The network is full, or the memory is in many pieces: it shows.
            _ if error.raw_os_error() == Some(full) && self.scattered == 0 => {
                self.scattered = SCATTERED_PACKETS;
                io::ErrorKind::Interrupted.into()
            }
            _ => error,
        }
    }

    /// Sends frames; says how many went.
    pub fn send(&mut self, socket: impl AsFd, frames: &[&[u8]]) -> io::Result<usize> {
        let mut heads = [[0; HEAD_BYTES]; BUNDLES_MAX];
        let mut bundles = [Bundle { head: &[], frames: &[], cut: None, in_one_piece: 0 }; BUNDLES_MAX];
        let (mut rest, mut count) = (frames, 0);
        for (head, bundle) in heads.iter_mut().zip(&mut bundles) {
            if rest.is_empty() {
                break;
            }
            let (now, behind) = rest.split_at(together(rest, self.most, self.sure_bytes));
            *head = cover::head(self.from, self.to, self.station, now.iter().map(|frame| frame.len()).sum());
            let (cut, in_one_piece) = (self.cut(now), self.in_one_piece(now));
            *bundle = Bundle { head, frames: now, cut, in_one_piece };
            (rest, count) = (behind, count + 1);
        }
        let bundles = bundles.get(..count).unwrap_or_default();
        match bundles::send(&socket, bundles, (UDP_AT, CHECKSUM_AT)) {
            Ok(went) => {
                self.scattered = self.scattered.saturating_sub(u32::try_from(went).unwrap_or(u32::MAX));
                Ok(bundles.iter().take(went).map(|bundle| bundle.frames.len()).sum())
            }
            Err(error) => Err(self.failed(error, frames)),
        }
    }
}

/// The frames of what came in a place of the room, for `station`: whatever stands there, pieces of
/// it, which are frames where they can be opened.
pub(super) fn frames(place: &mut [u8], station: u64) -> impl Iterator<Item = &mut [u8]> {
    let found = bundles::packet(place).and_then(|(packet, length)| {
        let frames = packet.get_mut(cover::frames(packet, station)?)?;
        Some((length.unwrap_or(frames.len()), frames))
    });
    let (cut, mut rest) = found.map_or((0, &mut [][..]), |(cut, frames)| (cut, frames));
    std::iter::from_fn(move || {
        let length = first_frame(rest, cut);
        let (frame, behind) = std::mem::take(&mut rest).split_at_mut_checked(length)?;
        rest = behind;
        (!frame.is_empty()).then_some(frame)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_one_length_go_together_and_a_shorter_one_ends_it() {
        let frame = |length: usize| vec![0_u8; length];
        let lengths = |lengths: &[usize], most| {
            let frames: Vec<Vec<u8>> = lengths.iter().map(|length| frame(*length)).collect();
            together(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>(), most, 1452)
        };
        assert_eq!(lengths(&[], 64), 0);
        assert_eq!(lengths(&[9], 64), 1);
        assert_eq!(lengths(&[9, 9, 9, 8, 9], 64), 4);
        assert_eq!(lengths(&[9, 9, 9, 10], 64), 3);
        assert_eq!(lengths(&[8, 9], 64), 1);
        assert_eq!(lengths(&[9, 9, 8], 2), 2);
        assert_eq!(lengths(&[9, 9, 8], 1), 1);
        assert_eq!(lengths(&[1452; 64], 64), 45, "below 64 KiB");
        assert_eq!(lengths(&[65_487; 2], 64), 1);
        assert_eq!(lengths(&[1453; 4], 64), 1, "one that may be cut goes by itself");
        assert_eq!(bundle_frames(1452), 45);
        assert_eq!(bundle_frames(65_487), 1);
    }

    #[test]
    fn where_there_is_no_piece_of_memory_packets_go_in_several_for_a_while() {
        let theirs = Introduction { station: 7, lane: 0, mac: [4; 6], frame_bytes: 1500, flags: 3 };
        let mut covered = Covered::new([2; 6], &theirs, 1448);
        let frame = [&[0; 9000][..]];
        assert_eq!(covered.in_one_piece(&frame), ONE_PIECE_BYTES);
        assert_eq!(covered.in_one_piece(&[frame[0]; 2]), 0, "it is cut");
        let full = || io::Error::from(rustix::io::Errno::NOBUFS);
        assert_eq!(covered.failed(full(), &frame).kind(), io::ErrorKind::Interrupted, "again at once");
        assert_eq!(covered.in_one_piece(&frame), 0);
        assert_eq!(
            covered.failed(full(), &frame).raw_os_error(),
            full().raw_os_error(),
            "the network is full"
        );
        covered.scattered = 0;
        assert_eq!(covered.in_one_piece(&frame), ONE_PIECE_BYTES);
    }

    /// The kernel's word, the cover, and what is behind it.
    fn place(length: u16, bytes: &[u8]) -> Vec<u8> {
        let mut word = [0; 10];
        word[1] = if length > 0 { 5 } else { 0 };
        word[4..6].copy_from_slice(&length.to_ne_bytes());
        [&word[..], &cover::head([2; 6], [4; 6], 7, bytes.len()), bytes].concat()
    }

    fn cut(mut place: Vec<u8>) -> Vec<usize> {
        frames(&mut place, 7).map(|frame| frame.len()).collect()
    }

    #[test]
    fn what_comes_is_cut_as_it_says_and_nothing_of_it_is_beyond_what_is_there() {
        assert_eq!(cut(place(40, &[0; 100])), [40, 40, 20]);
        assert_eq!(cut(place(0, &[0; 100])), [100]);
        assert_eq!(cut(place(u16::MAX, &[0; 100])), [100]);
        assert_eq!(cut(place(0, &[])), [0; 0]);
        let mut padded = place(0, &[0; 3]);
        padded.extend([0; 40]);
        assert_eq!(cut(padded), [3]);
        assert_eq!(cut([&place(0, &[0; 100])[..80]].concat()), [0; 0], "less than UDP says");
        assert_eq!(cut(vec![0; 5]), [0; 0]);
        let mut other = place(0, &[0; 100]);
        other[10 + 53] ^= 1;
        assert_eq!(cut(other), [0; 0], "another station's");
    }

    #[test]
    fn a_frame_that_says_that_it_is_longer_than_the_cut_is_as_long_as_that_if_it_is_there() {
        let says = |sealed: u8| {
            let mut frames = vec![0; 200];
            frames[14] = sealed;
            frames
        };
        assert_eq!(cut(place(40, &says(100))), [124, 40, 36]);
        assert_eq!(cut(place(40, &says(10))), [40, 40, 40, 40, 40]);
        assert_eq!(cut(place(40, &says(255))), [200]);
        assert_eq!(cut(place(40, &[255; 200])), [200]);
        assert_eq!(cut(place(40, &[0; 7])), [7]);
    }

    /// The counter of this thread's network, of IPv6 or ICMPv6.
    fn counted(name: &str) -> u64 {
        let all = std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
        let line = all.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        line.unwrap_or(0)
    }

    #[test]
    fn nobody_s_ip_takes_or_answers_what_is_under_a_cover() {
        use sys::ethernet::bundles::Hears;
        use sys::namespace::{UnshareFlags, unshare};
        // Until it is up the kernel drops what is sent, and tells nobody.
        let script = "ip link add one type veth peer name two && ip link set one up && ip link set two up && \
             for end in one two; do until ip link show $end | grep -q 'state UP'; do sleep 0.01; done; done";
        let cable = || std::process::Command::new("sh").args(["-c", script]).status();
        if unshare(UnshareFlags::NEWNET).is_err() || !cable().is_ok_and(|status| status.success()) {
            return println!("skipped: no network namespace, or no cable");
        }
        let [one, two] = ["one", "two"].map(|name| sys::ethernet::interface(name).unwrap());
        let hears = |station| Hears {
            ether_type: cover::ETHER_TYPE,
            words: cover::words(station),
            byte: cover::BYTE,
        };
        let [from, to] =
            [(&one, 1), (&two, 7)].map(|(at, station)| bundles::open(at, &hears(station)).unwrap());
        let theirs = Introduction { station: 7, lane: 0, mac: two.mac, frame_bytes: 1500, flags: 1 };
        let mut covered = Covered::new(one.mac, &theirs, 1448);
        let dropped = || counted("Ip6InHdrErrors") + counted("Ip6InDiscards");
        let before = (
            dropped(),
            counted("Ip6InDelivers") + counted("Ip6InNoRoutes") + counted("Icmp6OutDestUnreachs"),
        );
        let sent: [&[u8]; 3] = [&[0; 1448], &[0; 1448], &[3; 9]];
        assert_eq!(covered.send(&from, &sent).unwrap(), 3);
        let mut room = sys::ethernet::Room::new(4, bundles::place_bytes(65_535));
        let came = loop {
            if room.receive(&to).is_ok() {
                let came = room.frames().flat_map(|place| frames(place, 7).map(|frame| frame.to_vec()));
                break came.collect::<Vec<_>>();
            }
        };
        assert_eq!(came, sent);
        while dropped() == before.0 {
            std::thread::yield_now();
        }
        let after = counted("Ip6InDelivers") + counted("Ip6InNoRoutes") + counted("Icmp6OutDestUnreachs");
        assert_eq!(after, before.1, "what IP took, had no route for, or answered");
    }
}
