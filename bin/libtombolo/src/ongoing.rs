//! Calls that a signal interrupts, and that go on when they are made again.

use crate::member::Member;
use crate::polling::deadline_of;
use crate::refusals::{self, Refusal};
use endpoint::{Address, Endpoint, Failed, From, Receive, Received, Reply, Request, Send, Step};
use rustix::io::Errno;
use std::time::Instant;
use sys::channel_abi::{Outcome, Patience};
use sys::endpoint_abi::Outgoing;

/// What a program wants: the same call again is one that wants the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Send { to: Address, is_buffered: bool, tag: u32, bytes: (usize, usize) },
    Request { to: Address, tag: u32, bytes: (usize, usize), takes: usize },
    Receive(Option<Address>),
}

/// Where the bytes are: those of an interrupted call stay where they are.
fn place(bytes: &[u8]) -> (usize, usize) {
    (bytes.as_ptr().addr(), bytes.len())
}

impl Wanted {
    pub fn send(to: Address, message: Outgoing<'_>, is_buffered: bool) -> Self {
        Self::Send { to, is_buffered, tag: message.tag, bytes: place(message.bytes) }
    }

    pub fn request(to: Address, message: Outgoing<'_>, takes: usize) -> Self {
        Self::Request { to, tag: message.tag, bytes: place(message.bytes), takes }
    }
}

#[derive(Debug)]
enum Call {
    Send(Send),
    Request(Request),
    Receive(Receive),
}

/// A call that waits, or was interrupted.
#[derive(Debug)]
pub struct Ongoing {
    pub wanted: Wanted,
    call: Call,
    deadline: Option<Instant>,
}

impl Ongoing {
    fn new(wanted: Wanted, patience: Patience) -> Self {
        let call = match wanted {
            Wanted::Send { to, is_buffered: false, tag, .. } => Call::Send(Send::rendezvous(to, tag)),
            Wanted::Send { to, is_buffered: true, tag, .. } => Call::Send(Send::buffered(to, tag)),
            Wanted::Request { to, tag, takes, .. } => {
                Call::Request(Request::new(to, tag, u32::try_from(takes).unwrap_or(u32::MAX)))
            }
            Wanted::Receive(from) => Call::Receive(Receive::new(from.map_or(From::Any, From::One))),
        };
        Self { wanted, call, deadline: deadline_of(patience) }
    }

    /// The program has made another call.
    pub fn give_up(&mut self, endpoint: &mut Endpoint) {
        match &mut self.call {
            Call::Send(call) => {
                let _received = endpoint.cancel_send(call);
            }
            Call::Request(call) => {
                let _received = endpoint.cancel_request(call);
            }
            Call::Receive(call) => endpoint.cancel_receive(call),
        }
    }
}

impl Member {
    pub fn send_in_steps(&mut self, wanted: Wanted, bytes: &[u8], patience: Patience) -> Outcome<()> {
        self.in_steps(wanted, patience, |endpoint, call, _, late| match call {
            Call::Send(call) => endpoint.step_send(call, bytes, late),
            Call::Request(_) | Call::Receive(_) => Err(Failed::Interrupted),
        })
    }

    pub fn request_in_steps(&mut self, wanted: Wanted, bytes: &[u8], patience: Patience) -> Outcome<Reply> {
        self.in_steps(wanted, patience, |endpoint, call, into, late| match call {
            Call::Request(call) => endpoint.step_request(call, bytes, into, late),
            Call::Send(_) | Call::Receive(_) => Err(Failed::Interrupted),
        })
    }

    pub fn receive_in_steps(&mut self, from: Option<Address>, patience: Patience) -> Outcome<Received> {
        self.in_steps(Wanted::Receive(from), patience, |endpoint, call, into, late| match call {
            Call::Receive(call) => endpoint.step_receive(call, into, late),
            Call::Send(_) | Call::Request(_) => Err(Failed::Interrupted),
        })
    }

    /// Goes on with a call until it is over, or a signal handler has run: then it stays ongoing.
    fn in_steps<T, E: Refusal>(
        &mut self,
        wanted: Wanted,
        patience: Patience,
        mut step: impl FnMut(&mut Endpoint, &mut Call, &mut Vec<u8>, bool) -> Result<Step<T>, Failed<E>>,
    ) -> Outcome<T> {
        let mut ongoing = self.ongoing.take().unwrap_or_else(|| Ongoing::new(wanted, patience));
        loop {
            let late = ongoing.deadline.is_some_and(|deadline| deadline <= Instant::now());
            let stepped = step(&mut self.endpoint, &mut ongoing.call, &mut self.payload, late);
            let again_at = match stepped.map_err(|error| refusals::of(&error, patience))? {
                Step::Ready(done) => return Ok(done),
                Step::Pending { again_at } => again_at,
            };
            let until = ongoing.deadline.into_iter().chain(again_at).min();
            if let Err(why) = self.sleep(until) {
                if why.errno == Errno::INTR.raw_os_error() {
                    self.ongoing = Some(ongoing);
                } else {
                    ongoing.give_up(&mut self.endpoint);
                }
                return Err(why);
            }
        }
    }
}
