//! Where a ring and its control words stand in a region.

use wire::ring as layout;

/// Fewest bytes of a ring that the algorithm works with; real rings are larger
/// (`wire::ring::RING_BYTES_MIN`).
const CAPACITY_MIN: usize = 32;

/// Where one ring stands. Made from sizes that the region's maker sealed, never from what a peer
/// wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    control: usize,
    data: usize,
    capacity: usize,
}

impl Place {
    /// The ring of `capacity` bytes at `data`, with its control words at `control`. `None` when the
    /// capacity is not a power of two of at least 32, or an offset is not aligned to words.
    #[must_use]
    pub fn new(control: usize, data: usize, capacity: usize) -> Option<Place> {
        let good = capacity.is_power_of_two()
            && capacity >= CAPACITY_MIN
            && control.is_multiple_of(8)
            && data.is_multiple_of(8);
        good.then_some(Place { control, data, capacity })
    }

    /// Ring `index` (0: from the first end to the second; 1: back) of a region with rings of
    /// `ring_bytes`. `None` when there is no such ring.
    #[must_use]
    pub fn in_region(index: usize, ring_bytes: u32) -> Option<Place> {
        if index > 1 || !layout::is_ring_bytes(u64::from(ring_bytes)) {
            return None;
        }
        let capacity = ring_bytes as usize;
        Place::new(
            layout::OFFSET_CONTROLS + index * layout::CONTROL_STRIDE,
            layout::HEADER_BYTES + index * capacity,
            capacity,
        )
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Longest message, in bytes.
    #[must_use]
    pub fn max_message(&self) -> usize {
        layout::max_message(self.capacity)
    }

    /// Offset in the region of a control word.
    pub(crate) fn control(&self, word: usize) -> usize {
        self.control + word
    }

    /// Offset in the region of the word in which the consumer says that it sleeps: the futex of its
    /// short sleep.
    #[must_use]
    pub fn sleeping(&self) -> usize {
        self.control(layout::CONTROL_SLEEPING)
    }

    /// Offset in the region of the word in which the producer says what it waits for: the futex of
    /// its short sleep.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.control(layout::CONTROL_WANTED)
    }

    /// Offset in the ring of a position (bytes since the start).
    pub(crate) fn within(&self, position: u64) -> usize {
        (position & (self.capacity as u64 - 1)) as usize
    }

    /// Offset in the region of a position.
    pub(crate) fn at(&self, position: u64) -> usize {
        self.data + self.within(position)
    }

    /// Bytes from a position to the end of the ring.
    pub(crate) fn until_end(&self, position: u64) -> usize {
        self.capacity - self.within(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_rings_of_a_region_do_not_overlap() {
        let one = Place::in_region(0, 8192).unwrap();
        let other = Place::in_region(1, 8192).unwrap();
        assert_eq!((one.control, one.data), (512, 4096));
        assert_eq!((other.control, other.data), (1024, 4096 + 8192));
        assert_eq!(other.data as u64 + 8192, layout::region_bytes(8192));
        assert_eq!(Place::in_region(2, 8192), None);
        assert_eq!(Place::in_region(0, 8191), None);
    }

    #[test]
    fn positions_go_round() {
        let place = Place::new(0, 64, 32).unwrap();
        assert_eq!((place.at(0), place.at(40), place.until_end(40)), (64, 72, 24));
        assert_eq!(Place::new(0, 64, 16), None);
        assert_eq!(Place::new(4, 64, 32), None);
    }
}
