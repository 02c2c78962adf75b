//! Places in a memory that the open files of one domain share.

/// The kernel's unit of mapping: areas begin and end at whole pages.
pub(crate) const PAGE_BYTES: u32 = 4096;

/// The parts of a memory that are taken, in order of their places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Areas {
    bytes: u32,
    /// Where each begins, and how long it is.
    taken: Vec<(u32, u32)>,
}

impl Areas {
    /// All of a memory of `bytes` bytes. The part beyond 4 GiB is not used: V4L2 has no numbers for
    /// it.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self { bytes: bytes - bytes % PAGE_BYTES, taken: Vec::new() }
    }

    /// Takes the first `bytes` bytes that are free, in one piece; where they begin.
    pub fn take(&mut self, bytes: u32) -> Option<u32> {
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).filter(|bytes| *bytes > 0)?;
        let mut begin = 0_u32;
        for &(taken, length) in &self.taken {
            if taken - begin >= bytes {
                break;
            }
            begin = taken + length;
        }
        self.take_at(begin, bytes).then_some(begin)
    }

    /// The longest piece that is free, in bytes.
    #[must_use]
    pub fn longest(&self) -> u32 {
        let (mut begin, mut longest) = (0, 0);
        for &(taken, length) in &self.taken {
            longest = longest.max(taken - begin);
            begin = taken + length;
        }
        longest.max(self.bytes - begin)
    }

    /// Takes exactly these bytes; false: they are not all there, or not all free.
    pub fn take_at(&mut self, begin: u32, bytes: u32) -> bool {
        let whole = bytes > 0 && bytes.is_multiple_of(PAGE_BYTES) && begin.is_multiple_of(PAGE_BYTES);
        let Some(end) = begin.checked_add(bytes).filter(|end| whole && *end <= self.bytes) else {
            return false;
        };
        let meets = |&(taken, length): &(u32, u32)| begin < taken + length && taken < end;
        if self.taken.iter().any(meets) {
            return false;
        }
        let at = self.taken.partition_point(|&(taken, _)| taken < begin);
        self.taken.insert(at, (begin, bytes));
        true
    }

    /// Gives back what begins there, if something does.
    pub fn give_back(&mut self, begin: u32) {
        self.taken.retain(|&(taken, _)| taken != begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_given_back_is_taken_again() {
        let mut areas = Areas::new(4 * 4096 + 17);
        assert_eq!((areas.take(5000), areas.take(1), areas.take(4097)), (Some(0), Some(8192), None));
        areas.give_back(0);
        assert_eq!((areas.longest(), areas.take(8192), areas.take(4096)), (8192, Some(0), Some(12288)));
        assert_eq!((areas.take(1), areas.take(0), areas.longest()), (None, None, 0));
    }

    #[test]
    fn only_whole_pages_that_are_free_are_taken_where_one_says() {
        let mut areas = Areas::new(1 << 20);
        assert!(areas.take_at(8192, 4096));
        for (begin, bytes) in [
            (8192, 4096),
            (4096, 8192),
            (0, 1 << 20),
            (1, 4096),
            (0, 4095),
            (0, 0),
            (u32::MAX - 4095, 8192),
            (1 << 20, 4096),
        ] {
            assert!(!areas.take_at(begin, bytes), "{begin} {bytes}");
        }
    }

    proptest! {
        #[test]
        fn areas_never_meet(bytes in 0_u64..200_000, wishes in prop::collection::vec((any::<bool>(), 0_u32..60_000), 0..60)) {
            let mut areas = Areas::new(bytes);
            let mut mine: Vec<(u32, u32)> = Vec::new();
            for (gives, wish) in wishes {
                if gives && !mine.is_empty() {
                    let (begin, _) = mine.remove(wish as usize % mine.len());
                    areas.give_back(begin);
                } else if let Some(begin) = areas.take(wish) {
                    prop_assert!(u64::from(begin) + u64::from(wish) <= bytes);
                    prop_assert!(mine.iter().all(|&(other, length)| begin >= other + length || other >= begin + wish));
                    mine.push((begin, wish));
                }
            }
        }
    }
}
