//! Long messages over what carries bytes: pipes and stream sockets.

use super::super::copies::{Bulk, PLACES, words_at};
use std::io::{self, Read, Write};

/// The byte that says that everything was taken.
const TAKEN: [u8; 1] = [1];

/// Writes and reads whole messages, with as few calls as the kernel does it with.
#[derive(Debug)]
pub struct Flow<R, W> {
    reader: R,
    writer: W,
    message: Vec<u8>,
}

impl<R: Read, W: Write> Flow<R, W> {
    /// For messages of so many bytes.
    pub fn new(reader: R, writer: W, message_bytes: usize) -> Self {
        // Written, not merely reserved: the first touch of a page is not what is measured.
        Self { reader, writer, message: vec![1; message_bytes] }
    }
}

impl<R: Read, W: Write> Bulk for Flow<R, W> {
    fn give(&mut self, message: &[u8]) -> io::Result<()> {
        self.writer.write_all(message)
    }

    fn take(&mut self, places: &[usize; PLACES]) -> io::Result<[u64; PLACES]> {
        self.reader.read_exact(&mut self.message)?;
        words_at(&self.message, places)
    }

    fn acknowledge(&mut self) -> io::Result<()> {
        self.writer.write_all(&TAKEN)
    }

    fn acknowledged(&mut self) -> io::Result<()> {
        self.reader.read_exact(&mut [0; TAKEN.len()])
    }
}
