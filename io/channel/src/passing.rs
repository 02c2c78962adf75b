//! Records as they are, for one who passes a channel on and reads nothing: a message in pieces
//! stays in pieces, and bytes of a stream stay as they were cut. So nothing is put together on the
//! way, whatever the ends have agreed on.

use ring::Piece;

use crate::{ReceiveError, Receiver, SendError, Sender};

impl Receiver {
    /// Takes the next record into `into` (replacing what was there) if there is one; what part of a
    /// message it is. A channel is read either so or by the other calls, not by both.
    ///
    /// # Errors
    /// [`ReceiveError`], other than `TimedOut`.
    pub fn try_receive_record(&mut self, into: &mut Vec<u8>) -> Result<Option<Piece>, ReceiveError> {
        let Some(record) = self.next()? else { return Ok(None) };
        into.clear();
        self.consumer.append(&record, into);
        let piece = record.piece();
        self.release(record)?;
        Ok(Some(piece))
    }
}

impl Sender {
    /// Sends one record that is this part of a message, if there is room for it. The order of
    /// parts, and what the other end takes of them, is the caller's business: who passes on what a
    /// [`Receiver::try_receive_record`] took has both.
    ///
    /// # Errors
    /// [`SendError`], other than `TimedOut`.
    pub fn try_send_record(&mut self, bytes: &[u8], piece: Piece) -> Result<(), SendError> {
        let mut loan = self.try_loan(bytes.len())?;
        loan.set_piece(piece);
        let inside = loan.write_at(0, bytes);
        debug_assert!(inside, "the loan is as long as the record");
        loan.commit()
    }

    /// The length of messages that the other end alleges to put together of pieces, in bytes. 0: it
    /// has said nothing.
    #[must_use]
    pub fn alleged_message_limit(&self) -> u64 {
        self.producer.peer_message_limit()
    }
}
