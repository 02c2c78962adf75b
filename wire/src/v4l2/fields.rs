//! Fields of a structure in its bytes.

/// The bytes of one structure.
pub type Bytes = Vec<u8>;

/// Reads and writes fields of a structure in host order, which V4L2 has. A field that is not all
/// within the bytes reads as 0, and writing it changes nothing: whoever has checked the length
/// meets neither.
pub trait Fields {
    /// The 4 bytes at `offset` as a number.
    fn word(&self, offset: usize) -> u32;
    /// Writes them.
    fn put_word(&mut self, offset: usize, value: u32);
    /// Writes 8 bytes.
    fn put_long(&mut self, offset: usize, value: u64);
    /// Writes a text into a field of `bytes` bytes, with a zero at its end.
    fn put_text(&mut self, offset: usize, bytes: usize, text: &str);
    /// Makes everything from `offset` on 0.
    fn clear_from(&mut self, offset: usize);
}

impl Fields for [u8] {
    fn word(&self, offset: usize) -> u32 {
        let bytes = self.get(offset..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn put_word(&mut self, offset: usize, value: u32) {
        if let Some(field) = self.get_mut(offset..).and_then(|rest| rest.first_chunk_mut::<4>()) {
            *field = value.to_ne_bytes();
        }
    }

    fn put_long(&mut self, offset: usize, value: u64) {
        if let Some(field) = self.get_mut(offset..).and_then(|rest| rest.first_chunk_mut::<8>()) {
            *field = value.to_ne_bytes();
        }
    }

    fn put_text(&mut self, offset: usize, bytes: usize, text: &str) {
        let Some(field) = self.get_mut(offset..offset.saturating_add(bytes)) else { return };
        field.fill(0);
        // One byte stays for the zero.
        let room = field.len().saturating_sub(1);
        for (to, from) in field.iter_mut().take(room).zip(text.bytes()) {
            *to = from;
        }
    }

    fn clear_from(&mut self, offset: usize) {
        if let Some(rest) = self.get_mut(offset..) {
            rest.fill(0);
        }
    }
}
