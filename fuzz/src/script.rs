//! The fuzzer's bytes, read as a script: whoever reads on behind its end gets nothing any more.

/// The rest of a script.
#[derive(Clone, Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// All of these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Script(bytes)
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next step's number; `None` at the end.
    pub fn step(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A byte; 0 behind the end.
    pub fn byte(&mut self) -> u8 {
        self.step().unwrap_or(0)
    }

    /// `N` bytes; 0 behind the end.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// A number below `bound`, which is at least 1 and at most 65,536.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound <= 256 {
            return usize::from(self.byte()) % bound;
        }
        usize::from(u16::from_le_bytes(self.bytes())) % bound
    }

    /// Whether the next byte says so.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A word of 64 bits in which the interesting values are short to write: small ones, their
    /// negatives, neighbours of powers of two, multiples of 8, and (long) any.
    pub fn word(&mut self) -> u64 {
        match self.byte() % 8 {
            0 => u64::from(self.byte()),
            1 => u64::from(self.byte()) * 8,
            2 => u64::from(self.byte()).wrapping_neg(),
            3 => 1_u64.rotate_left(u32::from(self.byte())),
            4 => 1_u64.rotate_left(u32::from(self.byte())).wrapping_sub(1),
            5 => u64::from(u16::from_le_bytes(self.bytes())),
            6 => u64::from(u32::from_le_bytes(self.bytes())),
            _ => u64::from_le_bytes(self.bytes()),
        }
    }
}
