//! The settings of a lane, and what it says of frames.

use thiserror::Error;
use wire::lane::{
    BadFrame, DATA_BYTES, HEADER_BYTES, TAG_BYTES, WINDOW_BYTES, WINDOW_FRAMES_MAX, WINDOW_FRAMES_MIN,
};

/// Bytes that the cipher takes at once.
const BLOCK_BYTES: usize = 16;

/// Of which of the two kinds of frames a number is: each has keys of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Data.
    Data,
    /// States.
    State,
}

/// Seals what goes out.
pub trait Seal {
    /// Encrypts the body of `frame`, which stands behind its header, in place, and puts a tag of
    /// [`TAG_BYTES`] behind it. A number of a stream is sealed once.
    fn seal(&mut self, stream: Stream, number: u64, frame: &mut Vec<u8>);
}

/// Opens what comes.
pub trait Open {
    /// Decrypts the body of `frame` in place, whose header and sealed body are all of it; the body,
    /// if whoever has the keys sealed it just so.
    fn open<'a>(&mut self, stream: Stream, number: u64, frame: &'a mut [u8]) -> Option<&'a [u8]>;
}

/// Takes bytes of the front of what it is given, which are next in the stream; says how many. Fewer
/// than there are: it takes no more now.
pub type Take<'a> = &'a mut dyn FnMut(&[u8]) -> usize;

/// Takes as many as fit into `room`, one behind the other.
pub(crate) fn into(mut room: &mut [u8]) -> impl FnMut(&[u8]) -> usize {
    move |bytes| {
        let now = bytes.len().min(room.len());
        let (place, rest) = std::mem::take(&mut room).split_at_mut(now);
        place.copy_from_slice(bytes.split_at(now).0);
        room = rest;
        now
    }
}

/// The agreement of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The other side's station.
    pub station: u64,
    /// Its lane.
    pub lane: u32,
    /// Longest payload of a frame: what both interfaces take.
    pub frame_bytes: usize,
    /// So many frames go with one packet of the kernel's, if all but the last are of one length and
    /// that is not longer; 1: each goes by itself.
    pub bundle_frames: usize,
    /// Frames of so many bytes come through if any do. A longer one comes where nothing on the way
    /// cuts, and ways change.
    pub sure_bytes: usize,
}

impl Config {
    /// Bytes of the stream that one frame carries at most: with them its body is of whole blocks of
    /// the cipher, because a part of one costs more than several.
    #[must_use]
    pub fn carried_bytes(&self) -> usize {
        let body = self.frame_bytes.saturating_sub(HEADER_BYTES + TAG_BYTES);
        (body - body % BLOCK_BYTES).saturating_sub(DATA_BYTES).max(1)
    }

    /// Frames that a receiver holds at most.
    #[must_use]
    pub fn window_frames(&self) -> u64 {
        let frames = (WINDOW_BYTES / self.frame_bytes.max(1)).clamp(WINDOW_FRAMES_MIN, WINDOW_FRAMES_MAX);
        u64::try_from(frames).unwrap_or(u64::MAX)
    }
}

/// The outcome of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It was understood; who reads took so many bytes of the stream at once.
    Taken(usize),
    /// It came before, or what it says is known already.
    Again,
    /// It is none of this lane: it is forgotten.
    Strange,
}

/// The words that the other side, which has the keys, must not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Broken {
    /// A body that is none.
    #[error("{0}")]
    Frame(#[from] BadFrame),
    /// It has what was not sent.
    #[error("it says that frame {found} has come, and {sent} were sent")]
    Unsent {
        /// The number.
        found: u64,
        /// So many were.
        sent: u64,
    },
    /// It lets more be sent than it has agreed to hold.
    #[error("it lets frames up to {found} be sent, and holds those up to {most} at most")]
    Credit {
        /// The number.
        found: u64,
        /// A window behind what it says has come.
        most: u64,
    },
    /// Its stream goes on behind its end.
    #[error("its stream goes on behind its end")]
    BehindEnd,
}
