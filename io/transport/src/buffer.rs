//! A buffer of which a part is filled.

pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes].into_boxed_slice(), start: 0, end: 0 }
    }

    pub fn filled(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    pub fn filled_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.end).unwrap_or_default()
    }

    pub fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    pub fn fill(&mut self, bytes: usize) {
        self.end = self.end.saturating_add(bytes).min(self.bytes.len());
    }

    pub fn take(&mut self, bytes: usize) {
        self.start = self.start.saturating_add(bytes).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Whether a part of what was filled was taken, and the rest is there.
    pub fn is_taken_from(&self) -> bool {
        self.start > 0
    }

    /// Moves what is filled to the front, where the room behind it is less than `bytes`.
    pub fn make_room(&mut self, bytes: usize) {
        if self.bytes.len() - self.end < bytes {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A close takes all that is there, however much that is; where some had been taken before, the
    /// sum overflowed, and what had been taken was there again.
    #[test]
    fn no_more_is_taken_or_filled_than_there_is() {
        let mut buffer = Buffer::new(10);
        buffer.room()[..6].copy_from_slice(b"abcdef");
        buffer.fill(6);
        buffer.take(2);
        assert_eq!(buffer.filled(), b"cdef");
        buffer.fill(usize::MAX);
        assert_eq!(buffer.filled().len(), 8);
        buffer.take(usize::MAX);
        assert!(buffer.filled().is_empty());
        assert_eq!(buffer.room().len(), 10);
    }
}
