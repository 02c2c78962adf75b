//! Bulk in messages of one size.

use bench::channel::transport::Transport;
use bench::ipc::copies::{Bulk, PLACES, word_at};
use std::io;

/// The message that says that everything was taken.
const TAKEN: [u8; 1] = [1];

/// Cuts long messages into pieces, each a message of the transport. They are looked at as they
/// come: nobody puts them together.
pub struct Pieces<T> {
    transport: T,
    message_bytes: usize,
    piece_bytes: usize,
}

impl<T: Transport> Pieces<T> {
    /// For messages of so many bytes, in such pieces.
    pub fn new(transport: T, message_bytes: usize, piece_bytes: usize) -> Self {
        Self { transport, message_bytes, piece_bytes: piece_bytes.clamp(1, message_bytes) }
    }
}

impl<T: Transport> Bulk for Pieces<T> {
    fn give(&mut self, message: &[u8]) -> io::Result<()> {
        message.chunks(self.piece_bytes).try_for_each(|piece| self.transport.send(piece))
    }

    fn take(&mut self, places: &[usize; PLACES]) -> io::Result<[u64; PLACES]> {
        let mut words = [0; PLACES];
        for start in (0..self.message_bytes).step_by(self.piece_bytes) {
            let piece = self.transport.receive()?;
            let inside = start..start + piece.len();
            for (word, place) in words.iter_mut().zip(places).filter(|(_, place)| inside.contains(place)) {
                *word = word_at(piece, place - start)?;
            }
        }
        Ok(words)
    }

    fn acknowledge(&mut self) -> io::Result<()> {
        self.transport.send(&TAKEN)?;
        self.transport.flush()
    }

    fn acknowledged(&mut self) -> io::Result<()> {
        if self.transport.receive()? == TAKEN { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}
