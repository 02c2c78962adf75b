//! The endpoint.

use std::io;
use std::time::Instant;

use endpoint::{
    Address, Asked, Failed, From, NotifyError, ReceiveError, Received, RelayError, Reply, ReplyError,
    RequestError, SendError,
};

use crate::call::{Receiving, Requesting, Sending};
use crate::wait::{Bell, wait};

/// An endpoint whose calls are futures. It makes one call at a time. Dropping it ends it.
#[derive(Debug)]
pub struct Endpoint {
    // Before what it watches.
    pub(crate) bell: Bell,
    pub(crate) inner: endpoint::Endpoint,
}

impl Endpoint {
    /// Waits for an endpoint's calls by the current runtime.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2) and of duplicating a descriptor; the endpoint ends then.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(endpoint: endpoint::Endpoint) -> io::Result<Endpoint> {
        Ok(Endpoint { bell: Bell::new(endpoint.descriptor())?, inner: endpoint })
    }

    /// Sends a message and waits until it is received. Dropped before it is ready, it is withdrawn,
    /// unless it was received.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(
        &mut self,
        to: Address,
        tag: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), Failed<SendError>> {
        let call = Sending::rendezvous(to, tag, payload);
        wait(&mut self.inner, &mut self.bell, call, deadline).await
    }

    /// Sends a message and waits only until there is room for it. Dropped before it is ready,
    /// nothing was sent. What is held back for a batch ([`endpoint::Options::batch_bytes`]) shows
    /// at the next wait of this endpoint, not of its task: before others, [`Endpoint::flush`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send_buffered(
        &mut self,
        to: Address,
        tag: u32,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), Failed<SendError>> {
        let call = Sending::buffered(to, tag, payload);
        wait(&mut self.inner, &mut self.bell, call, deadline).await
    }

    /// Shows peers what is held back. Never waits.
    ///
    /// # Errors
    /// [`Failed::System`]; the messages were sent nevertheless.
    pub fn flush(&mut self) -> Result<(), Failed<SendError>> {
        self.inner.flush()
    }

    /// Sends a request and waits for the reply, whose payload, of at most `takes` bytes, replaces
    /// what is in `into`. Dropped before it is ready, the request is withdrawn; if it was received,
    /// its reply is refused, or dropped.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn send_receive(
        &mut self,
        to: Address,
        tag: u32,
        payload: &[u8],
        into: &mut Vec<u8>,
        takes: usize,
        deadline: Option<Instant>,
    ) -> Result<Reply, Failed<RequestError>> {
        let call = Requesting::new(to, tag, payload, into, takes);
        wait(&mut self.inner, &mut self.bell, call, deadline).await
    }

    /// Receives; the payload replaces what is in `into`. Dropped before it is ready, it has
    /// received nothing.
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub async fn receive(
        &mut self,
        from: &From,
        into: &mut Vec<u8>,
        deadline: Option<Instant>,
    ) -> Result<Received, Failed<ReceiveError>> {
        let call = Receiving::new(from, into);
        wait(&mut self.inner, &mut self.bell, call, deadline).await
    }

    /// Answers a request. Never waits.
    ///
    /// # Errors
    /// See [`ReplyError`].
    pub fn reply(&mut self, asked: &Asked, tag: u32, payload: &[u8]) -> Result<(), Failed<ReplyError>> {
        self.inner.reply(asked, tag, payload)
    }

    /// Passes a request on to another endpoint, which answers it. Never waits.
    ///
    /// # Errors
    /// See [`RelayError`].
    pub fn relay(
        &mut self,
        asked: &Asked,
        to: Address,
        tag: u32,
        payload: &[u8],
    ) -> Result<(), Failed<RelayError>> {
        self.inner.relay(asked, to, tag, payload)
    }

    /// Sets bits at a peer. Never waits.
    ///
    /// # Errors
    /// See [`NotifyError`].
    pub fn notify(&mut self, to: Address, bits: u64) -> Result<(), Failed<NotifyError>> {
        self.inner.notify(to, bits)
    }

    /// The endpoint itself: who it is, whom it knows.
    #[must_use]
    pub fn get_ref(&self) -> &endpoint::Endpoint {
        &self.inner
    }

    /// The endpoint itself: for what does not wait.
    pub fn get_mut(&mut self) -> &mut endpoint::Endpoint {
        &mut self.inner
    }

    /// Gives the endpoint back to those who wait otherwise.
    #[must_use]
    pub fn into_inner(self) -> endpoint::Endpoint {
        self.inner
    }
}
