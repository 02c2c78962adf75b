//! `memcpy` in one process: what any copy costs.

use super::super::task::LAST;
use super::Transport;
use std::hint::black_box;
use std::io;

/// Copies into a buffer, message behind message, and from its start again. Whoever receives is told at once that there
/// is nothing.
#[derive(Debug)]
pub struct Copy {
    buffer: Vec<u8>,
    at: usize,
}

impl Copy {
    /// Walks over so many bytes.
    pub fn new(bytes: u32) -> Self {
        // Written, not merely reserved: the first touch of a page is not what is measured.
        Self { buffer: vec![1; bytes as usize], at: 0 }
    }
}

impl Transport for Copy {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let to = self.buffer.get_mut(self.at..self.at + message.len()).ok_or(io::ErrorKind::InvalidInput)?;
        to.copy_from_slice(message);
        black_box(to);
        let next = self.at + message.len();
        self.at = if next + message.len() > self.buffer.len() { 0 } else { next };
        Ok(())
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        Ok(&[LAST])
    }
}
