//! The half that receives messages.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use channel::{Alleged, Closer, ReceiveError, Receiver};

use crate::bells::{Bells, Half, poll};

/// Receives messages. Dropping it closes the channel.
#[derive(Debug)]
pub struct AsyncReceiver {
    // Before what it watches.
    bells: Bells,
    receiver: Receiver,
}

impl Half for AsyncReceiver {
    type Error = ReceiveError;

    fn bells(&self) -> &Bells {
        &self.bells
    }

    fn prepare_wait(&mut self) -> Result<bool, ReceiveError> {
        Ok(self.receiver.prepare_wait())
    }

    fn cancel_wait(&mut self) {
        self.receiver.cancel_wait();
    }

    fn drain(&mut self) -> Result<(), ReceiveError> {
        self.receiver.drain_doorbell()
    }

    fn refused(error: io::Error) -> ReceiveError {
        ReceiveError::Doorbell(error)
    }
}

impl AsyncReceiver {
    /// Waits for a receiver's messages by the current runtime.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2) and of duplicating two descriptors; the channel is closed then.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(receiver: Receiver) -> io::Result<AsyncReceiver> {
        Ok(AsyncReceiver { bells: Bells::new(&receiver.descriptors())?, receiver })
    }

    /// Receives a message into `into` (replacing what was there), and returns its length. Dropped
    /// before it is ready, it has received nothing.
    ///
    /// # Errors
    /// [`ReceiveError`], other than `TimedOut`.
    pub async fn receive(&mut self, into: &mut Vec<u8>) -> Result<usize, ReceiveError> {
        poll_fn(|cx| self.poll_receive(cx, into)).await
    }

    /// As [`AsyncReceiver::receive`], for those who poll themselves.
    ///
    /// # Errors
    /// As there.
    pub fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<Result<usize, ReceiveError>> {
        poll(self, cx, |half| ready_or_pending(half.receiver.try_receive(into)))
    }

    /// Waits for a message, reads it in place, and releases it. Dropped before it is ready, it has
    /// not called `read`.
    ///
    /// # Errors
    /// [`ReceiveError`], other than `TimedOut`.
    pub async fn read<T>(&mut self, read: impl FnOnce(&Alleged<'_>) -> T) -> Result<T, ReceiveError> {
        let mut read = Some(read);
        poll_fn(|cx| {
            poll(self, cx, |half| {
                let read = &mut read;
                // Ready once, and `read` is there until then.
                let found = half.receiver.try_read(|message| read.take().map(|read| read(message)));
                ready_or_pending(found.map(Option::flatten))
            })
        })
        .await
    }

    /// A handle that closes the channel from elsewhere.
    #[must_use]
    pub fn closer(&self) -> Closer {
        self.receiver.closer()
    }

    /// The receiver itself: for its settings, and for what does not wait.
    pub fn get_mut(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// Gives the receiver back to those who wait otherwise.
    #[must_use]
    pub fn into_inner(mut self) -> Receiver {
        self.receiver.cancel_wait();
        self.receiver
    }
}

pub(crate) fn ready_or_pending<T, E>(found: Result<Option<T>, E>) -> Poll<Result<T, E>> {
    match found.transpose() {
        Some(found) => Poll::Ready(found),
        None => Poll::Pending,
    }
}
