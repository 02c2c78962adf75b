//! The calls, as the waiting sees them: steps, and how to give up.

use endpoint::{
    Address, Borrow, CopyError, Endpoint, Failed, Find, FindError, From, Granted, Receive, ReceiveError,
    Received, Reply, Request, RequestError, Send, SendError, Step,
};

/// A call in steps.
pub(crate) trait Call {
    /// The call's result.
    type Done;
    /// Why it fails.
    type Error;

    /// Goes on with it, without waiting.
    fn step(&mut self, endpoint: &mut Endpoint, late: bool) -> Result<Step<Self::Done>, Failed<Self::Error>>;

    /// Gives it up.
    fn cancel(&mut self, endpoint: &mut Endpoint);
}

/// A message that goes out.
pub(crate) struct Sending<'a> {
    call: Send,
    payload: &'a [u8],
}

impl<'a> Sending<'a> {
    pub fn rendezvous(to: Address, tag: u32, payload: &'a [u8]) -> Sending<'a> {
        Sending { call: Send::rendezvous(to, tag), payload }
    }

    pub fn buffered(to: Address, tag: u32, payload: &'a [u8]) -> Sending<'a> {
        Sending { call: Send::buffered(to, tag), payload }
    }
}

impl Call for Sending<'_> {
    type Done = ();
    type Error = SendError;

    fn step(&mut self, endpoint: &mut Endpoint, late: bool) -> Result<Step<()>, Failed<SendError>> {
        endpoint.step_send(&mut self.call, self.payload, late)
    }

    fn cancel(&mut self, endpoint: &mut Endpoint) {
        let _received = endpoint.cancel_send(&mut self.call);
    }
}

/// A request, and the wait for its reply.
pub(crate) struct Requesting<'a> {
    call: Request,
    payload: &'a [u8],
    into: &'a mut Vec<u8>,
}

impl<'a> Requesting<'a> {
    pub fn new(
        to: Address,
        tag: u32,
        payload: &'a [u8],
        into: &'a mut Vec<u8>,
        takes: usize,
    ) -> Requesting<'a> {
        let takes = u32::try_from(takes).unwrap_or(u32::MAX);
        Requesting { call: Request::new(to, tag, takes), payload, into }
    }
}

impl Call for Requesting<'_> {
    type Done = Reply;
    type Error = RequestError;

    fn step(&mut self, endpoint: &mut Endpoint, late: bool) -> Result<Step<Reply>, Failed<RequestError>> {
        endpoint.step_request(&mut self.call, self.payload, self.into, late)
    }

    fn cancel(&mut self, endpoint: &mut Endpoint) {
        let _received = endpoint.cancel_request(&mut self.call);
    }
}

/// A receive.
pub(crate) struct Receiving<'a> {
    call: Receive,
    into: &'a mut Vec<u8>,
}

impl<'a> Receiving<'a> {
    pub fn new(from: &From, into: &'a mut Vec<u8>) -> Receiving<'a> {
        Receiving { call: Receive::new(from.clone()), into }
    }
}

impl Call for Receiving<'_> {
    type Done = Received;
    type Error = ReceiveError;

    fn step(&mut self, endpoint: &mut Endpoint, late: bool) -> Result<Step<Received>, Failed<ReceiveError>> {
        endpoint.step_receive(&mut self.call, self.into, late)
    }

    fn cancel(&mut self, endpoint: &mut Endpoint) {
        endpoint.cancel_receive(&mut self.call);
    }
}

impl Call for Find {
    type Done = Address;
    type Error = FindError;

    fn step(&mut self, endpoint: &mut Endpoint, late: bool) -> Result<Step<Address>, Failed<FindError>> {
        endpoint.step_find(self, late)
    }

    fn cancel(&mut self, endpoint: &mut Endpoint) {
        endpoint.cancel_find(self);
    }
}

impl Call for Borrow {
    type Done = Granted;
    type Error = CopyError;

    fn step(&mut self, endpoint: &mut Endpoint, late: bool) -> Result<Step<Granted>, Failed<CopyError>> {
        endpoint.step_borrow(self, late)
    }

    fn cancel(&mut self, endpoint: &mut Endpoint) {
        endpoint.cancel_borrow(self);
    }
}
