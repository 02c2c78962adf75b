//! Several buffers, one after the other.

use std::ops::Deref;

/// Where we are in a list of buffers.
#[derive(Debug)]
pub(crate) struct Parts<'p, B> {
    parts: &'p [B],
    /// Bytes of the first part that are done.
    at: usize,
    /// Bytes that are left in all.
    left: usize,
}

impl<B> Clone for Parts<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Parts<'_, B> {}

impl<'p, B: Deref<Target = [u8]>> Parts<'p, B> {
    pub(crate) fn new(parts: &'p [B]) -> Self {
        // Saturating: more than memory holds is cut into pieces, or refused as too long, before its
        // length matters.
        let left = parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()));
        Parts { parts, at: 0, left }
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// The next bytes, at most `most` of them; empty only at the end.
    pub(crate) fn next(&mut self, most: usize) -> &'p [u8] {
        while let [first, rest @ ..] = self.parts {
            let bytes = first.get(self.at..).unwrap_or_default();
            if bytes.is_empty() {
                (self.parts, self.at) = (rest, 0);
                continue;
            }
            let now = bytes.get(..most).unwrap_or(bytes);
            self.at += now.len();
            self.left = self.left.saturating_sub(now.len());
            return now;
        }
        self.left = 0;
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_and_no_more_than_asked_for() {
        let list: [&[u8]; 4] = [b"abc", b"", b"d", b"efgh"];
        let mut parts = Parts::new(&list);
        let mut taken = Vec::new();
        assert_eq!(parts.left(), 8);
        while parts.left() > 0 {
            let now = parts.next(2);
            assert!(!now.is_empty() && now.len() <= 2);
            taken.extend_from_slice(now);
        }
        assert_eq!(taken, b"abcdefgh");
        assert!(parts.next(2).is_empty());
    }
}
