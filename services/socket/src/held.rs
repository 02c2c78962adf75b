//! Bytes that wait for a socket that does not take them.

/// The bytes that wait, in order. Takes no memory while nothing waits.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: Vec<u8>,
    at: usize,
    /// So many of the first ones are ours, and do not count against the peer's window.
    ours: usize,
}

impl Held {
    /// Bytes that the relay itself puts in front of a stream.
    pub(crate) fn of_ours(bytes: Vec<u8>) -> Self {
        Self { ours: bytes.len(), bytes, at: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }

    pub(crate) fn waiting(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // What was taken is forgotten before more memory is asked for: no more than two windows are
        // ever held.
        if self.at > 0 && self.bytes.len() + bytes.len() > self.bytes.capacity() {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// So many of [`Held::waiting`] were taken; how many of them were the peer's.
    pub(crate) fn took(&mut self, bytes: usize) -> usize {
        self.at += bytes;
        let ours = bytes.min(self.ours);
        self.ours -= ours;
        if self.at >= self.bytes.len() {
            *self = Self::default();
        }
        bytes - ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_leave_no_memory() {
        let mut held = Held::of_ours(b"head".to_vec());
        held.push(b"one");
        assert_eq!(held.waiting(), b"headone");
        assert_eq!(held.took(2), 0);
        assert_eq!(held.waiting(), b"adone");
        assert_eq!(held.took(3), 1);
        for round in 0..100_u8 {
            held.push(&[round; 1000]);
            assert_eq!(held.took(900), 900);
        }
        assert!(held.bytes.capacity() < 64_000, "{}", held.bytes.capacity());
        let rest = held.waiting().len();
        assert_eq!(rest, 2 + 100 * 100);
        assert_eq!(held.took(rest), rest);
        assert_eq!(held.bytes.capacity(), 0);
    }
}
