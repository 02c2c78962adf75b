//! What a channel is to be like, said by its maker; and what an end is to be like, said by whoever opens it.

use wire::ring as layout;

/// What the two ends exchange. The maker writes it into the region; it changes nothing in the rings, so it is an
/// agreement and not a protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Messages, whole and in order: [`crate::Sender`] and [`crate::Receiver`].
    #[default]
    Messages,
    /// Bytes, without seams: [`crate::StreamWriter`] and [`crate::StreamReader`].
    Stream,
}

impl Mode {
    /// The word of the header that says it.
    pub(crate) fn word(self) -> u64 {
        match self {
            Mode::Messages => layout::MODE_MESSAGES,
            Mode::Stream => layout::MODE_STREAM,
        }
    }

    /// What a word of the header says, if it is one of the two.
    pub(crate) fn of_word(word: u64) -> Option<Mode> {
        match word {
            layout::MODE_MESSAGES => Some(Mode::Messages),
            layout::MODE_STREAM => Some(Mode::Stream),
            _ => None,
        }
    }
}

/// How large a channel is to be, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of each of the two rings: a power of two from 4 KiB to 16 MiB. The longest message that goes in one
    /// piece is a little under half of it. Memory is taken only when it is first written.
    pub ring_bytes: u32,
    /// What the two ends exchange.
    pub mode: Mode,
}

impl Default for Config {
    /// Messages, and 256 KiB: several pieces of 64 KiB in flight.
    fn default() -> Self {
        Config { ring_bytes: 256 << 10, mode: Mode::Messages }
    }
}
