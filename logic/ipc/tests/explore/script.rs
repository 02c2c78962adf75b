//! The calls of the endpoints of an exploration, and their outcomes.

/// A call of a script. Peers are numbers of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Send(usize),
    Buffered(usize),
    Request(usize),
    ReceiveAny,
    ReceiveOne(usize),
    /// Answers the request that was received last, if there was one.
    Reply,
    /// Passes it on.
    Relay(usize),
    Notify(usize, u64),
}

/// A call, and whether its time may run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub op: Op,
    pub timed: bool,
}

impl Op {
    /// A call that waits as long as it takes.
    pub const fn patient(self) -> Call {
        Call { op: self, timed: false }
    }

    /// A call whose time may run out whenever it waits.
    pub const fn timed(self) -> Call {
        Call { op: self, timed: true }
    }

    /// The one peer who has to act, if it is one.
    pub fn target(self) -> Option<usize> {
        match self {
            Op::Send(to) | Op::Buffered(to) | Op::Request(to) | Op::ReceiveOne(to) => Some(to),
            Op::ReceiveAny | Op::Reply | Op::Relay(_) | Op::Notify(..) => None,
        }
    }
}

/// Returns the tag of the message of an endpoint's `index`-th call.
pub fn tag(endpoint: usize, index: usize) -> u32 {
    u32::try_from(endpoint * 16 + index).expect("small")
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// A message was sent, a reply or a notice was delivered, a request passed on.
    Done,
    /// The reply to a request.
    Reply {
        source: usize,
        tag: u32,
    },
    Message {
        source: usize,
        tag: u32,
    },
    Request {
        source: usize,
        tag: u32,
    },
    Notices {
        source: usize,
        bits: u64,
    },
    Deadlock {
        received: bool,
    },
    TimedOut {
        received: bool,
    },
    Dead,
    Stale,
    Full,
    /// There was no request to answer.
    Skipped,
    /// Nobody knows whether it was received.
    Unknown,
    /// It never ended.
    Blocked,
    /// Its caller died.
    Died,
    /// Something that is never right.
    Wrong,
}

/// How all calls ended, by endpoint.
pub type Outcomes = Vec<Vec<Outcome>>;
