//! Records as they are, for one who passes a channel on.

use std::future::poll_fn;
use std::task::Poll;

use channel::{Piece, ReceiveError, SendError};

use crate::bells::poll;
use crate::receiver::ready_or_pending;
use crate::{AsyncReceiver, AsyncSender};

impl AsyncReceiver {
    /// Waits for a record and takes it into `into` (replacing what was there): see
    /// [`channel::Receiver::try_receive_record`]. Dropped before it is ready, it has received
    /// nothing.
    ///
    /// # Errors
    /// [`ReceiveError`], other than `TimedOut`.
    pub async fn receive_record(&mut self, into: &mut Vec<u8>) -> Result<Piece, ReceiveError> {
        poll_fn(|cx| poll(self, cx, |half| ready_or_pending(half.get_mut().try_receive_record(into)))).await
    }
}

impl AsyncSender {
    /// Sends a record, waiting for room: see [`channel::Sender::try_send_record`]. Dropped before
    /// it is ready, it has sent nothing.
    ///
    /// # Errors
    /// [`SendError`], other than `Full` and `TimedOut`.
    pub async fn send_record(&mut self, bytes: &[u8], piece: Piece) -> Result<(), SendError> {
        self.want(bytes.len());
        poll_fn(|cx| {
            poll(self, cx, |half| match half.get_mut().try_send_record(bytes, piece) {
                Err(SendError::Full) => Poll::Pending,
                result => Poll::Ready(result),
            })
        })
        .await
    }
}
