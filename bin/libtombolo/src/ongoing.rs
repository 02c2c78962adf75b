//! Calls that a signal interrupts, and that go on when they are made again.

use crate::member::{Member, name_of, whom_of};
use crate::polling::deadline_of;
use crate::refusals::{self, Refusal};
use endpoint::{
    Address, Ask, Endpoint, Failed, Find, From, Receive, Received, Reply, Request, Send, Step, Tell,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::time::Instant;
use sys::channel_abi::{Outcome, Patience};
use sys::endpoint_abi::Outgoing;

/// A program's call with its arguments: the same call again has equal ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted<'a> {
    pub kind: Kind,
    /// The bytes that go out, or the text that names the peer to find.
    pub bytes: &'a [u8],
    /// Of a request or a message to a name: the name.
    pub name: &'a [u8],
}

/// The kind of call, with its arguments beside the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Send { to: Address, tag: u32, is_buffered: bool },
    Request { to: Address, tag: u32, takes: usize },
    Ask { tag: u32, takes: usize },
    Tell { tag: u32 },
    Receive(Option<Address>),
    Find { waits: bool },
}

impl<'a> Wanted<'a> {
    pub fn send(to: Address, message: Outgoing<'a>, is_buffered: bool) -> Self {
        Self { kind: Kind::Send { to, tag: message.tag, is_buffered }, bytes: message.bytes, name: &[] }
    }

    pub fn request(to: Address, message: Outgoing<'a>, takes: usize) -> Self {
        Self { kind: Kind::Request { to, tag: message.tag, takes }, bytes: message.bytes, name: &[] }
    }

    pub fn ask(name: &'a CStr, message: Outgoing<'a>, takes: usize) -> Self {
        Self { kind: Kind::Ask { tag: message.tag, takes }, bytes: message.bytes, name: name.to_bytes() }
    }

    pub fn tell(name: &'a CStr, message: Outgoing<'a>) -> Self {
        Self { kind: Kind::Tell { tag: message.tag }, bytes: message.bytes, name: name.to_bytes() }
    }

    pub fn receive(from: Option<Address>) -> Self {
        Self { kind: Kind::Receive(from), bytes: &[], name: &[] }
    }

    pub fn find(whom: &'a CStr, waits: bool) -> Self {
        Self { kind: Kind::Find { waits }, bytes: whom.to_bytes(), name: &[] }
    }
}

#[derive(Debug)]
enum Call {
    Send(Send),
    Request(Request),
    Ask(Box<Ask>),
    Tell(Box<Tell>),
    Receive(Receive),
    Find(Find),
}

/// A call that a signal has interrupted.
#[derive(Debug)]
pub struct Ongoing {
    kind: Kind,
    bytes: Vec<u8>,
    name: Vec<u8>,
    call: Call,
    deadline: Option<Instant>,
}

impl Ongoing {
    /// Whether it is this that goes on.
    pub fn is(&self, wanted: Option<Wanted<'_>>) -> bool {
        wanted == Some(Wanted { kind: self.kind, bytes: &self.bytes, name: &self.name })
    }

    /// It does not go on; true: what it sent had been received, or only another node knows.
    pub fn give_up(mut self, endpoint: &mut Endpoint) -> bool {
        match &mut self.call {
            Call::Send(call) => endpoint.cancel_send(call),
            Call::Request(call) => endpoint.cancel_request(call),
            Call::Ask(call) => endpoint.cancel_ask(call),
            Call::Tell(call) => endpoint.cancel_tell(call),
            Call::Receive(call) => {
                endpoint.cancel_receive(call);
                false
            }
            Call::Find(call) => {
                endpoint.cancel_find(call);
                false
            }
        }
    }
}

/// A call at its beginning.
fn begun(wanted: Wanted<'_>) -> Outcome<Call> {
    Ok(match wanted.kind {
        Kind::Send { to, tag, is_buffered: false } => Call::Send(Send::rendezvous(to, tag)),
        Kind::Send { to, tag, is_buffered: true } => Call::Send(Send::buffered(to, tag)),
        Kind::Request { to, tag, takes } => {
            Call::Request(Request::new(to, tag, u32::try_from(takes).unwrap_or(u32::MAX)))
        }
        Kind::Ask { tag, takes } => Call::Ask(Box::new(Ask::new(name_of(wanted.name)?, tag, takes))),
        Kind::Tell { tag } => Call::Tell(Box::new(Tell::new(name_of(wanted.name)?, tag))),
        Kind::Receive(from) => Call::Receive(Receive::new(from.map_or(From::Any, From::One))),
        Kind::Find { waits } => Call::Find(Find::new(whom_of(wanted.bytes)?, waits)),
    })
}

/// Steps of another call than is under way: never, and no reason to panic.
fn another<T, E>() -> Result<Step<T>, Failed<E>> {
    Err(Failed::Interrupted)
}

impl Member {
    pub fn send_in_steps(&mut self, wanted: Wanted<'_>, patience: Patience) -> Outcome<()> {
        self.in_steps(wanted, patience, |endpoint, call, _, late| match call {
            Call::Send(call) => endpoint.step_send(call, wanted.bytes, late),
            _ => another(),
        })
    }

    pub fn request_in_steps(&mut self, wanted: Wanted<'_>, patience: Patience) -> Outcome<Reply> {
        self.in_steps(wanted, patience, |endpoint, call, into, late| match call {
            Call::Request(call) => endpoint.step_request(call, wanted.bytes, into, late),
            _ => another(),
        })
    }

    pub fn ask_in_steps(&mut self, wanted: Wanted<'_>, patience: Patience) -> Outcome<Reply> {
        self.in_steps(wanted, patience, |endpoint, call, into, late| match call {
            Call::Ask(call) => endpoint.step_ask(call, wanted.bytes, into, late),
            _ => another(),
        })
    }

    pub fn tell_in_steps(&mut self, wanted: Wanted<'_>, patience: Patience) -> Outcome<()> {
        self.in_steps(wanted, patience, |endpoint, call, _, late| match call {
            Call::Tell(call) => endpoint.step_tell(call, wanted.bytes, late),
            _ => another(),
        })
    }

    pub fn receive_in_steps(&mut self, wanted: Wanted<'_>, patience: Patience) -> Outcome<Received> {
        self.in_steps(wanted, patience, |endpoint, call, into, late| match call {
            Call::Receive(call) => endpoint.step_receive(call, into, late),
            _ => another(),
        })
    }

    pub fn find_in_steps(&mut self, wanted: Wanted<'_>, patience: Patience) -> Outcome<Address> {
        self.in_steps(wanted, patience, |endpoint, call, _, late| match call {
            Call::Find(call) => endpoint.step_find(call, late),
            _ => another(),
        })
    }

    /// Goes on with a call until it is over, or a signal handler has run: then it stays ongoing.
    fn in_steps<T, E: Refusal>(
        &mut self,
        wanted: Wanted<'_>,
        patience: Patience,
        mut step: impl FnMut(&mut Endpoint, &mut Call, &mut Vec<u8>, bool) -> Result<Step<T>, Failed<E>>,
    ) -> Outcome<T> {
        let (mut call, deadline) = match self.ongoing.take() {
            Some(Ongoing { call, deadline, .. }) => (call, deadline),
            None => (begun(wanted)?, deadline_of(patience)),
        };
        let ended = loop {
            let late = deadline.is_some_and(|deadline| deadline <= Instant::now());
            let again_at = match step(&mut self.endpoint, &mut call, &mut self.payload, late) {
                Ok(Step::Ready(done)) => return Ok(done),
                Ok(Step::Pending { again_at }) => again_at,
                Err(error @ Failed::Call(_)) => return Err(refusals::of(&error, patience)),
                // What went wrong beside the call leaves it under way.
                Err(error) => break refusals::of(&error, patience),
            };
            // A call that is late may still hear from another node what became of it.
            let until = deadline.filter(|_| !late || again_at.is_none());
            if let Err(why) = self.sleep(until.into_iter().chain(again_at).min()) {
                break why;
            }
        };
        let (kind, bytes, name) = (wanted.kind, wanted.bytes.to_vec(), wanted.name.to_vec());
        let ongoing = Ongoing { kind, bytes, name, call, deadline };
        if ended.errno == Errno::INTR.raw_os_error() {
            self.ongoing = Some(ongoing);
        } else {
            let _received = ongoing.give_up(&mut self.endpoint);
        }
        Err(ended)
    }
}
