//! Where the bytes of a log are: memory that may outlive its writer.

/// A range of bytes of a fixed length. Words are 8 bytes, at multiples of 8; a word is written
/// whole or not at all, and what was written before [`Store::commit`] is there for whoever sees the
/// committed word.
///
/// All offsets come from [`crate::Log`], which keeps them inside of [`Store::bytes`].
pub trait Store {
    /// How many bytes there are.
    fn bytes(&self) -> usize;
    /// The word at `offset`.
    fn word(&self, offset: usize) -> u64;
    /// Writes a word.
    fn put(&mut self, offset: usize, word: u64);
    /// Writes a word after everything that was written before.
    fn commit(&mut self, offset: usize, word: u64);
    /// Copies bytes in.
    fn copy_in(&mut self, offset: usize, bytes: &[u8]);
    /// Appends `length` bytes from `offset` to `into`.
    fn append_to(&self, offset: usize, length: usize, into: &mut Vec<u8>);
}

/// A store in the memory of one process: it ends with it.
#[derive(Debug, Clone)]
pub struct MemoryStore(Vec<u8>);

impl MemoryStore {
    /// So many zeroes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    /// The bytes, for tests that damage them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Store for MemoryStore {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn word(&self, offset: usize) -> u64 {
        self.0.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn put(&mut self, offset: usize, word: u64) {
        self.copy_in(offset, &word.to_le_bytes());
    }

    fn commit(&mut self, offset: usize, word: u64) {
        self.put(offset, word);
    }

    fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(offset..offset + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn append_to(&self, offset: usize, length: usize, into: &mut Vec<u8>) {
        into.extend_from_slice(self.0.get(offset..offset + length).unwrap_or_default());
    }
}
