//! Ranges of bytes of a file.

/// The last byte that a file can have: where a range ends that goes to the end of the file, however
/// long that becomes.
pub const LAST: u64 = i64::MAX as u64;

/// Bytes from `first` to `last`, both included. Never empty, and never beyond [`LAST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    first: u64,
    last: u64,
}

impl Range {
    /// All bytes that a file can have.
    pub const ALL: Self = Self { first: 0, last: LAST };

    /// The range between two bytes, both included; `None` if there is none.
    #[must_use]
    pub fn new(first: u64, last: u64) -> Option<Self> {
        (first <= last && last <= LAST).then_some(Self { first, last })
    }

    /// Its first byte.
    #[must_use]
    pub fn first(self) -> u64 {
        self.first
    }

    /// Its last byte.
    #[must_use]
    pub fn last(self) -> u64 {
        self.last
    }

    /// Whether both have a byte in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether all bytes of `other` are in it.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// Whether there is no byte between them.
    pub(crate) fn touches(self, other: Self) -> bool {
        // Neither addition can overflow: no byte is beyond LAST.
        self.first <= other.last + 1 && other.first <= self.last + 1
    }

    /// The least range that has both.
    pub(crate) fn joined(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// The parts that are before and behind `other`.
    pub(crate) fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let before = other.first.checked_sub(1).and_then(|last| Self::new(self.first, last.min(self.last)));
        let behind = Self::new(self.first.max(other.last + 1), self.last);
        before.into_iter().chain(behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> Range {
        Range::new(first, last).expect("a range")
    }

    #[test]
    fn what_is_left_of_a_range_are_its_ends() {
        let left = |from: Range, cut: Range| from.without(cut).collect::<Vec<_>>();
        assert_eq!(left(range(2, 9), range(4, 5)), [range(2, 3), range(6, 9)]);
        assert_eq!(left(range(2, 9), range(0, 5)), [range(6, 9)]);
        assert_eq!(left(range(2, 9), range(9, LAST)), [range(2, 8)]);
        assert_eq!(left(range(2, 9), Range::ALL), []);
        assert_eq!(left(range(2, 9), range(10, 11)), [range(2, 9)]);
        assert_eq!(left(Range::ALL, range(LAST, LAST)), [range(0, LAST - 1)]);
    }

    #[test]
    fn what_is_no_range_is_none() {
        assert_eq!((Range::new(1, 0), Range::new(0, LAST + 1)), (None, None));
    }
}
