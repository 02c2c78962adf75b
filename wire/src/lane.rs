//! A lane: what two proxies say to each other in frames of Ethernet that may be lost, so that bytes
//! come once and in order. The page `docs/spec/lane.md` says the same.
//!
//! A frame is a [`Header`], which anybody can read, and a sealed body: a [`Data`] or a [`State`].
//! Numbers are little-endian, but for the first, which the kernel's filter looks at.

use thiserror::Error;

/// Version of this page.
pub const VERSION: u16 = 1;
/// First word of an introduction: `TOMBLANE`.
pub const MAGIC: u64 = 0x454e_414c_424d_4f54;
/// The `EtherType` of frames: the first that IEEE 802 leaves to local experiments.
pub const ETHER_TYPE: u16 = 0x88b5;
/// Bytes of an introduction.
pub const INTRODUCTION_BYTES: usize = 48;
/// Bytes of a frame in front of its body.
pub const HEADER_BYTES: usize = 24;
/// Bytes that sealing adds behind a body.
pub const TAG_BYTES: usize = 16;
/// Bytes of the body of data before what it carries.
pub const DATA_BYTES: usize = 20;
/// Bytes of the body of a state before its ranges.
pub const STATE_BYTES: usize = 24;
/// Bytes of a range: where it begins and where it ends.
pub const RANGE_BYTES: usize = 16;
/// Ranges that a state names at most.
pub const RANGES_MAX: usize = 16;
/// Shortest payload of an interface's frames that a lane can live with: that of Ethernet.
pub const FRAME_BYTES_MIN: usize = 1500;
/// Longest that a lane makes use of.
pub const FRAME_BYTES_MAX: usize = 65_535;
/// A long frame, which goes on ways that don't cut whatever their interfaces take: a packet of it,
/// its cover and what kernels put in front of that is no longer than 64 KiB, and its body is of
/// whole blocks of the cipher.
pub const LONG_FRAME_BYTES: usize = 65_432;
/// The bound of frames that a receiver holds unread, in bytes of frames.
pub const WINDOW_BYTES: usize = 4_194_304;
/// Fewest frames of a window.
pub const WINDOW_FRAMES_MIN: usize = 64;
/// Most frames of a window.
pub const WINDOW_FRAMES_MAX: usize = 2048;
/// A key seals so many frames, as a power of two; then it is the next one's turn.
pub const KEY_FRAMES_LOG: u32 = 20;

/// Where a frame says how long its sealed body is.
const SEALED_AT: usize = 14;

/// The kinds of frames.
pub mod kind {
    /// Bytes of the stream.
    pub const DATA: u8 = 1;
    /// A report of the frames that have come.
    pub const STATE: u8 = 2;
}

/// Flags of an introduction. Others are a later release's, and say nothing to this one.
pub mod introduction_flag {
    /// The station sends and hears frames under a [`cover`](crate::cover) as well, several at a
    /// time.
    pub const COVER: u16 = 1;
    /// The station sends and hears long frames under a cover.
    pub const LONG: u16 = 2;
}

/// Flags of data.
pub mod data_flag {
    /// The stream ends behind this.
    pub const END: u16 = 1;
    /// The receiver says its state at once.
    pub const ASK: u16 = 2;
}

/// Flags of a state.
pub mod state_flag {
    /// Say yours at once.
    pub const ASK: u32 = 1;
    /// The sender has left; nobody will say anything more.
    pub const LEFT: u32 = 2;
}

/// Why a frame, or an introduction, is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadFrame {
    /// Fewer bytes than it takes, or says.
    #[error("{what} has {found} bytes")]
    Length {
        /// The expected content.
        what: &'static str,
        /// How many there are.
        found: usize,
    },
    /// Another version, or no introduction at all.
    #[error("it begins with {found:#x}")]
    Magic {
        /// The word.
        found: u64,
    },
    /// A version that is not spoken.
    #[error("it is of version {found}; this side speaks {VERSION}")]
    Version {
        /// The version.
        found: u16,
    },
    /// No such kind.
    #[error("a frame of kind {found}")]
    Kind {
        /// The number.
        found: u8,
    },
    /// Padding that is not zero.
    #[error("{what} has {found:#x} where zero stands")]
    Padding {
        /// In what.
        what: &'static str,
        /// The value in its place.
        found: u64,
    },
    /// A number is out of its bounds.
    #[error("{what} is {found}, out of its bounds")]
    Bounds {
        /// Of which field.
        what: &'static str,
        /// The number.
        found: u64,
    },
}

/// The bytes from there on; zeros where there are fewer, which who calls has ruled out.
#[inline]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

/// Puts a field in its place; all places are within what is written.
#[inline]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = field;
    }
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Where a station is reached on its Ethernet, and what it takes: what the two sides tell each
/// other, encrypted, before the first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Introduction {
    /// The station: frames that begin with this are for it.
    pub station: u64,
    /// The lane: which of the station's.
    pub lane: u32,
    /// The address of the station's interface.
    pub mac: [u8; 6],
    /// Longest payload of a frame that its interface takes.
    pub frame_bytes: u32,
    /// See [`introduction_flag`].
    pub flags: u16,
}

impl Introduction {
    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; INTRODUCTION_BYTES] {
        let mut bytes = [0; INTRODUCTION_BYTES];
        put(&mut bytes, 0, MAGIC.to_le_bytes());
        put(&mut bytes, 8, VERSION.to_le_bytes());
        put(&mut bytes, 16, self.station.to_le_bytes());
        put(&mut bytes, 24, self.lane.to_le_bytes());
        put(&mut bytes, 28, self.frame_bytes.to_le_bytes());
        put(&mut bytes, 32, self.mac);
        put(&mut bytes, 38, self.flags.to_le_bytes());
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none, of another version, or names what can't be.
    pub fn read(bytes: &[u8; INTRODUCTION_BYTES]) -> Result<Self, BadFrame> {
        let magic = u64_at(bytes, 0);
        if magic != MAGIC {
            return Err(BadFrame::Magic { found: magic });
        }
        let version = u16_at(bytes, 8);
        if version != VERSION {
            return Err(BadFrame::Version { found: version });
        }
        let padding = u64::from(u16_at(bytes, 10)) | u64::from(u32_at(bytes, 12));
        if padding | u64_at(bytes, 40) != 0 {
            return Err(BadFrame::Padding { what: "an introduction", found: padding | u64_at(bytes, 40) });
        }
        let introduction = Self {
            station: u64_at(bytes, 16),
            lane: u32_at(bytes, 24),
            mac: array(bytes, 32),
            frame_bytes: u32_at(bytes, 28),
            flags: u16_at(bytes, 38),
        };
        let frame_bytes = usize::try_from(introduction.frame_bytes).unwrap_or(usize::MAX);
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&frame_bytes) {
            let found = u64::from(introduction.frame_bytes);
            return Err(BadFrame::Bounds { what: "the longest payload", found });
        }
        // The first bit of an address says that it is of a group (IEEE 802): nobody is reached
        // there alone.
        if introduction.mac[0] & 1 == 1 || introduction.mac == [0; 6] {
            let found = u64::from(introduction.mac[0]);
            return Err(BadFrame::Bounds { what: "the first byte of an address", found });
        }
        Ok(introduction)
    }
}

/// The header in front of a body, in clear; it is sealed with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The station that it is for.
    pub station: u64,
    /// The number of the lane.
    pub lane: u32,
    /// See [`kind`].
    pub kind: u8,
    /// Bytes of the body as it is sealed; what is behind is Ethernet's padding.
    pub sealed: u16,
    /// Of this kind, in this direction: counts up.
    pub number: u64,
}

/// Bytes of the first frame of those that `frames` begins with, which were cut, or are to be, into
/// pieces of `cut` bytes: as many, if the frame does not say that it is longer, and what is there
/// at most. Nothing that it says has any other effect.
#[must_use]
pub fn first_frame(frames: &[u8], cut: usize) -> usize {
    let says = HEADER_BYTES + usize::from(u16_at(frames, SEALED_AT));
    says.max(cut).max(1).min(frames.len())
}

impl Header {
    /// Its bytes.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        put(&mut bytes, 0, self.station.to_be_bytes());
        put(&mut bytes, 8, self.lane.to_le_bytes());
        put(&mut bytes, 12, [self.kind, 0]);
        put(&mut bytes, SEALED_AT, self.sealed.to_le_bytes());
        put(&mut bytes, 16, self.number.to_le_bytes());
        bytes
    }

    /// Reads that of a frame, all of which must be there.
    ///
    /// # Errors
    /// It is none.
    #[inline]
    pub fn read(frame: &[u8]) -> Result<Self, BadFrame> {
        if frame.len() < HEADER_BYTES {
            return Err(BadFrame::Length { what: "a frame", found: frame.len() });
        }
        let header = Self {
            station: u64::from_be_bytes(array(frame, 0)),
            lane: u32_at(frame, 8),
            kind: array::<1>(frame, 12)[0],
            sealed: u16_at(frame, SEALED_AT),
            number: u64_at(frame, 16),
        };
        let padding = array::<1>(frame, 13)[0];
        if padding != 0 {
            return Err(BadFrame::Padding { what: "a frame's header", found: u64::from(padding) });
        }
        let least = match header.kind {
            kind::DATA => DATA_BYTES,
            kind::STATE => STATE_BYTES,
            found => return Err(BadFrame::Kind { found }),
        };
        let sealed = usize::from(header.sealed);
        if sealed < least + TAG_BYTES || sealed > frame.len() - HEADER_BYTES {
            return Err(BadFrame::Length { what: "a sealed body", found: sealed });
        }
        Ok(header)
    }
}

/// The head of a body of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// All frames of data of the other side before this one have come.
    pub next: u64,
    /// All before this one may be sent.
    pub credit: u64,
    /// See [`data_flag`].
    pub flags: u16,
    /// Bytes of the stream; what is behind says nothing.
    pub bytes: u16,
}

impl Data {
    /// Its bytes.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; DATA_BYTES] {
        let mut bytes = [0; DATA_BYTES];
        put(&mut bytes, 0, self.next.to_le_bytes());
        put(&mut bytes, 8, self.credit.to_le_bytes());
        put(&mut bytes, 16, self.flags.to_le_bytes());
        put(&mut bytes, 18, self.bytes.to_le_bytes());
        bytes
    }

    /// Reads a body that was opened; what it carries comes with it.
    ///
    /// # Errors
    /// It is none.
    #[inline]
    pub fn read(body: &[u8]) -> Result<(Self, &[u8]), BadFrame> {
        let length = BadFrame::Length { what: "data", found: body.len() };
        let rest = body.get(DATA_BYTES..).ok_or(length)?;
        let data = Self {
            next: u64_at(body, 0),
            credit: u64_at(body, 8),
            flags: u16_at(body, 16),
            bytes: u16_at(body, 18),
        };
        if data.flags & !(data_flag::END | data_flag::ASK) != 0 {
            return Err(BadFrame::Padding { what: "the flags of data", found: u64::from(data.flags) });
        }
        let carried = rest.get(..usize::from(data.bytes)).ok_or(length)?;
        Ok((data, carried))
    }
}

/// The body of a state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// See [`Data::next`].
    pub next: u64,
    /// See [`Data::credit`].
    pub credit: u64,
    /// See [`state_flag`].
    pub flags: u32,
    /// So many µs ago the frame came that made `next` or a range grow last.
    pub held_us: u32,
    /// The frames beyond that have come: from, to (exclusive); ascending, with gaps before each.
    pub ranges: Vec<(u64, u64)>,
}

impl State {
    /// Puts its bytes behind what is in `to`.
    pub fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.next.to_le_bytes());
        to.extend_from_slice(&self.credit.to_le_bytes());
        to.extend_from_slice(&self.flags.to_le_bytes());
        to.extend_from_slice(&self.held_us.to_le_bytes());
        for (from, end) in self.ranges.iter().take(RANGES_MAX) {
            to.extend_from_slice(&from.to_le_bytes());
            to.extend_from_slice(&end.to_le_bytes());
        }
    }

    /// Reads a body that was opened.
    ///
    /// # Errors
    /// It is none.
    pub fn read(body: &[u8]) -> Result<Self, BadFrame> {
        let length = BadFrame::Length { what: "a state", found: body.len() };
        let rest = body.get(STATE_BYTES..).ok_or(length)?;
        if rest.len() % RANGE_BYTES != 0 || rest.len() > RANGES_MAX * RANGE_BYTES {
            return Err(length);
        }
        let state = Self {
            next: u64_at(body, 0),
            credit: u64_at(body, 8),
            flags: u32_at(body, 16),
            held_us: u32_at(body, 20),
            ranges: rest
                .chunks_exact(RANGE_BYTES)
                .map(|range| (u64_at(range, 0), u64_at(range, 8)))
                .collect(),
        };
        if state.flags & !(state_flag::ASK | state_flag::LEFT) != 0 {
            return Err(BadFrame::Padding { what: "the flags of a state", found: u64::from(state.flags) });
        }
        let mut before = state.next;
        for (from, end) in &state.ranges {
            if *from <= before || end <= from {
                return Err(BadFrame::Bounds { what: "a range", found: *from });
            }
            before = *end;
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTRODUCTION: Introduction = Introduction {
        station: 7 << 60 | 9,
        lane: 3,
        mac: [2, 0, 0, 0, 0, 9],
        frame_bytes: 9000,
        flags: introduction_flag::COVER | 0x8000,
    };

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Introduction::read(&INTRODUCTION.to_bytes()), Ok(INTRODUCTION));
        let header = Header { station: 5, lane: 6, kind: kind::STATE, sealed: 40, number: u64::MAX };
        let frame = [&header.to_bytes()[..], &[0; 40]].concat();
        assert_eq!(Header::read(&frame), Ok(header));
        let data = Data { next: 1, credit: 2, flags: data_flag::END | data_flag::ASK, bytes: 3 };
        let body = [&data.to_bytes()[..], b"abc", &[0; 9]].concat();
        assert_eq!(Data::read(&body), Ok((data, &b"abc"[..])));
        let state = State { next: 4, credit: 9, flags: 3, held_us: 8, ranges: vec![(5, 6), (8, 11)] };
        let mut body = Vec::new();
        state.write(&mut body);
        assert_eq!(State::read(&body), Ok(state));
    }

    #[test]
    fn the_station_is_where_a_filter_finds_it() {
        let header = Header { station: 0x0102_0304_0506_0708, lane: 0, kind: 1, sealed: 36, number: 0 };
        assert_eq!(header.to_bytes()[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn each_rule_of_an_introduction_is_kept() {
        for (at, byte) in
            [(0, 0), (8, 2), (9, 1), (10, 1), (12, 1), (28, 0), (31, 1), (32, 3), (40, 1), (47, 1)]
        {
            let mut bytes = INTRODUCTION.to_bytes();
            bytes[at] = byte;
            if at == 28 {
                bytes[29] = 0;
            }
            assert!(Introduction::read(&bytes).is_err(), "byte {at} is {byte}");
        }
        let nobody = Introduction { mac: [0; 6], ..INTRODUCTION };
        assert!(Introduction::read(&nobody.to_bytes()).is_err());
    }

    #[test]
    fn each_rule_of_a_header_is_kept() {
        let frame = |kind, sealed, behind: usize| {
            let header = Header { station: 1, lane: 2, kind, sealed, number: 3 };
            [&header.to_bytes()[..], &vec![0; behind]].concat()
        };
        assert!(Header::read(&frame(kind::DATA, 36, 36)).is_ok());
        assert!(Header::read(&frame(kind::DATA, 36, 46)).is_ok(), "padding is Ethernet's");
        for (kind, sealed, behind) in
            [(0, 40, 40), (3, 40, 40), (kind::DATA, 35, 60), (kind::STATE, 39, 60), (kind::DATA, 37, 36)]
        {
            assert!(Header::read(&frame(kind, sealed, behind)).is_err(), "{kind} {sealed} {behind}");
        }
        let mut padded = frame(kind::DATA, 36, 36);
        padded[13] = 1;
        assert!(Header::read(&padded).is_err());
        assert!(Header::read(&padded[..23]).is_err());
    }

    #[test]
    fn each_rule_of_a_body_is_kept() {
        let data = Data { next: 1, credit: 2, flags: 0, bytes: 4 };
        assert!(Data::read(&[&data.to_bytes()[..], b"abc"].concat()).is_err(), "more than there is");
        let flagged = Data { flags: 4, bytes: 0, ..data };
        assert!(Data::read(&flagged.to_bytes()).is_err());
        assert!(Data::read(&[0; 19]).is_err());
        for ranges in [vec![(4, 5)], vec![(6, 6)], vec![(6, 8), (8, 9)], vec![(9, 10), (6, 7)]] {
            let mut body = Vec::new();
            State { next: 4, ranges: ranges.clone(), ..State::default() }.write(&mut body);
            assert!(State::read(&body).is_err(), "{ranges:?}");
        }
        let mut body = Vec::new();
        State { flags: 4, ..State::default() }.write(&mut body);
        assert!(State::read(&body).is_err());
        assert!(State::read(&[0; 25]).is_err());
        assert!(State::read(&[0; STATE_BYTES + (RANGES_MAX + 1) * RANGE_BYTES]).is_err());
    }
}
