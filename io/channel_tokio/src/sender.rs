//! The half that sends messages.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use channel::{Closer, SendError, Sender};

use crate::bells::{Bells, Half, poll};

/// Sends messages. Dropping it closes the channel.
#[derive(Debug)]
pub struct AsyncSender {
    bells: Bells,
    sender: Sender,
    /// Bytes that we wait for room for.
    wanted: usize,
}

impl Half for AsyncSender {
    type Error = SendError;

    fn bells(&self) -> &Bells {
        &self.bells
    }

    fn prepare_wait(&mut self) -> Result<bool, SendError> {
        self.sender.prepare_wait(self.wanted)
    }

    fn cancel_wait(&mut self) {
        self.sender.cancel_wait();
    }

    fn drain(&mut self) -> Result<(), SendError> {
        self.sender.drain_doorbell()
    }

    fn refused(error: io::Error) -> SendError {
        SendError::Doorbell(error)
    }
}

impl AsyncSender {
    /// Waits for a sender's room by the current runtime.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2) and of duplicating two descriptors; the channel is closed then.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(sender: Sender) -> io::Result<AsyncSender> {
        Ok(AsyncSender { bells: Bells::new(&sender.descriptors())?, sender, wanted: 0 })
    }

    /// Sends a message, waiting for room; in pieces if it is longer than one record takes and the
    /// receiver takes it ([`Sender::message_limit`]). Dropped before it is ready, it has sent
    /// nothing: what went of a message in pieces, the receiver drops.
    ///
    /// # Errors
    /// [`SendError`], other than `Full` and `TimedOut`.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), SendError> {
        let mut sent = 0;
        poll_fn(|cx| self.poll_send(cx, message, &mut sent)).await
    }

    /// As [`AsyncSender::send`], for those who poll themselves: `*sent` is 0 at first, and this
    /// call's own after that.
    ///
    /// # Errors
    /// As there.
    pub fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        message: &[u8],
        sent: &mut usize,
    ) -> Poll<Result<(), SendError>> {
        poll(self, cx, |half| match half.sender.try_send_from(message, sent) {
            Err(SendError::Full) => {
                let left = message.len().saturating_sub(*sent);
                let in_one = message.len() <= half.sender.max_message();
                half.wanted = if in_one { left } else { left.min(half.sender.piece_bytes()) };
                Poll::Pending
            }
            result => Poll::Ready(result),
        })
    }

    /// So many bytes are waited for room for.
    pub(crate) fn want(&mut self, bytes: usize) {
        self.wanted = bytes;
    }

    /// A handle that closes the channel from elsewhere.
    #[must_use]
    pub fn closer(&self) -> Closer {
        self.sender.closer()
    }

    /// The sender itself: for its settings, and for what does not wait (batches, loans).
    pub fn get_mut(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// Gives the sender back to those who wait otherwise.
    #[must_use]
    pub fn into_inner(mut self) -> Sender {
        self.sender.cancel_wait();
        self.sender
    }
}
