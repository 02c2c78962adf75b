//! Messages that are too long for one record come in pieces.

use wire::ring as layout;

/// The part of a message that a record carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Piece {
    /// All of it.
    #[default]
    Whole,
    /// Its beginning. If another has been begun and not ended, that one is abandoned; so it is by a
    /// whole one.
    First,
    /// More of the one that has been begun.
    Next,
    /// The end of the one that has been begun.
    Last,
}

impl Piece {
    /// The kind of a record that carries it.
    #[must_use]
    pub fn kind(self) -> u64 {
        match self {
            Piece::Whole => layout::RECORD_MESSAGE,
            Piece::First => layout::RECORD_FIRST,
            Piece::Next => layout::RECORD_NEXT,
            Piece::Last => layout::RECORD_LAST,
        }
    }

    /// The part that a record of this kind carries, if it carries something.
    #[must_use]
    pub fn of_kind(kind: u64) -> Option<Piece> {
        match kind {
            layout::RECORD_MESSAGE => Some(Piece::Whole),
            layout::RECORD_FIRST => Some(Piece::First),
            layout::RECORD_NEXT => Some(Piece::Next),
            layout::RECORD_LAST => Some(Piece::Last),
            _ => None,
        }
    }

    /// Whether a message starts with it.
    #[must_use]
    pub fn begins(self) -> bool {
        matches!(self, Piece::Whole | Piece::First)
    }

    /// Whether a message is complete with it.
    #[must_use]
    pub fn ends(self) -> bool {
        matches!(self, Piece::Whole | Piece::Last)
    }

    /// The part between `sent` bytes of a message and the next `length`, of `total` bytes in all.
    #[must_use]
    pub fn between(sent: usize, length: usize, total: usize) -> Piece {
        match (sent == 0, total - sent <= length) {
            (true, true) => Piece::Whole,
            (true, false) => Piece::First,
            (false, false) => Piece::Next,
            (false, true) => Piece::Last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_what_they_were() {
        for piece in [Piece::Whole, Piece::First, Piece::Next, Piece::Last] {
            assert_eq!(Piece::of_kind(piece.kind()), Some(piece));
        }
        for kind in [0, layout::RECORD_PADDING, 6, 15] {
            assert_eq!(Piece::of_kind(kind), None);
        }
    }

    #[test]
    fn a_message_begins_once_and_ends_once() {
        assert_eq!(Piece::between(0, 10, 10), Piece::Whole);
        assert_eq!(Piece::between(0, 10, 0), Piece::Whole);
        let pieces: Vec<Piece> = (0..25).step_by(10).map(|sent| Piece::between(sent, 10, 25)).collect();
        assert_eq!(pieces, [Piece::First, Piece::Next, Piece::Last]);
        assert_eq!(Piece::between(10, 10, 20), Piece::Last);
    }
}
