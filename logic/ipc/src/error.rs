//! Why a call has failed: one enum for each.

use wire::ipc::Address;

use crate::Broken;

/// Why there is nobody to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPeer {
    /// This endpoint is not bound to anyone there.
    #[error("endpoint {0} is not bound: bind to it first, or wait for it")]
    Unbound(Address),
    /// It is this endpoint itself.
    #[error("endpoint {0} is the caller itself, which can't call itself")]
    Oneself(Address),
    /// Another one has its place.
    #[error("endpoint {asked} is not there any more: its place has generation {found}")]
    WrongGeneration {
        /// The address that was meant.
        asked: Address,
        /// The generation that is bound there, or was last.
        found: u32,
    },
    /// It has ended, or closed.
    #[error("endpoint {0} is dead")]
    Dead(Address),
    /// It is elsewhere now.
    #[error("endpoint {from} has moved to {to}: bind to it there")]
    Moved {
        /// The address that was meant.
        from: Address,
        /// Where it is.
        to: Address,
    },
    /// It broke a rule, and was cut off.
    #[error("endpoint {0} was cut off: {1}")]
    Broken(Address, Broken),
}

/// Why a message was not sent, or not received by its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is nobody to send to.
    #[error(transparent)]
    NoPeer(#[from] NoPeer),
    /// The topology does not allow it, or the receiver refuses it.
    #[error("endpoint {0} may not be sent to by this one: the topology file says who may")]
    Refused(Address),
    /// The payload is too long; nothing was sent.
    #[error(
        "a message of {length} bytes is too long: {most} fit this pair; copy more through a granted buffer"
    )]
    TooLong {
        /// Bytes it has.
        length: usize,
        /// Bytes it may have.
        most: usize,
    },
    /// The receiver waits for this very caller, over others perhaps. The message was withdrawn, and
    /// will not be received.
    #[error("endpoint {0} waits, over others perhaps, for this caller: a deadlock")]
    Deadlock(Address),
    /// The time is over. The message was withdrawn, and will not be received.
    #[error("endpoint {0} did not receive the message in time")]
    TimedOut(Address),
    /// The time is over, and the node of the receiver does not say whether the message was
    /// received: the link to it is cut, or slow.
    #[error(
        "the time is over, and it is not known whether endpoint {0}, on another node, has received the message"
    )]
    Unknown(Address),
}

/// Why a request has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There is nobody to ask, or not any more.
    #[error(transparent)]
    NoPeer(#[from] NoPeer),
    /// The topology does not allow it, or the receiver refuses it.
    #[error("endpoint {0} may not be asked by this one: the topology file says who may")]
    Refused(Address),
    /// The payload is too long; nothing was sent.
    #[error(
        "a request of {length} bytes is too long: {most} fit this pair; copy more through a granted buffer"
    )]
    TooLong {
        /// Bytes it has.
        length: usize,
        /// Bytes it may have.
        most: usize,
    },
    /// The endpoint that has to answer waits for this very caller, over others perhaps.
    #[error("endpoint {to} waits, over others perhaps, for this caller: a deadlock")]
    Deadlock {
        /// The endpoint that has to answer.
        to: Address,
        /// Whether the request was received.
        received: bool,
    },
    /// The time is over.
    #[error("endpoint {to} did not reply in time; the request was {}", if *received { "received" } else { "withdrawn" })]
    TimedOut {
        /// The endpoint that has to answer.
        to: Address,
        /// Whether the request was received. If not, it will not be.
        received: bool,
    },
    /// The time is over, and the node of whoever was asked does not say whether the request was
    /// received: the link to it is cut, or slow.
    #[error(
        "the time is over, and it is not known whether endpoint {0}, on another node, has received the request"
    )]
    Unknown(Address),
    /// The request was passed on to an endpoint that this one is not bound to.
    #[error("the request was passed on to endpoint {0}, which this one is not bound to")]
    Elsewhere(Address),
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// None of those that were named can send any more.
    #[error(transparent)]
    NoPeer(#[from] NoPeer),
    /// The one that was named waits for this very caller, over others perhaps.
    #[error("endpoint {0} waits, over others perhaps, for this caller: a deadlock")]
    Deadlock(Address),
    /// The time is over.
    #[error("nothing was received in time")]
    TimedOut,
}

/// Why nobody was notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// There is nobody to notify.
    #[error(transparent)]
    NoPeer(#[from] NoPeer),
    /// The topology does not allow it.
    #[error("endpoint {0} may not be notified by this one: the topology file says who may")]
    Refused(Address),
}

/// Why a reply was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// There is nobody to reply to.
    #[error(transparent)]
    NoPeer(#[from] NoPeer),
    /// The payload is longer than the requester takes. The request still waits.
    #[error("a reply of {length} bytes is too long: the requester takes {most}")]
    TooLong {
        /// Bytes it has.
        length: usize,
        /// Bytes it may have.
        most: usize,
    },
    /// The state that was to be handed over with it is too long. The request still waits.
    #[error(
        "a state of {length} bytes is too long: {most} are the most; keep it in a volume or a granted buffer, and hand over where"
    )]
    StateTooLong {
        /// Bytes it has.
        length: usize,
        /// Bytes it may have.
        most: usize,
    },
    /// Nobody waits for it any more.
    #[error("endpoint {0} does not wait for this reply: its time was over, or it has been answered")]
    Stale(Address),
    /// The requester reads nothing.
    #[error("endpoint {0} leaves no room for a reply")]
    NoRoom(Address),
}

/// Why a request was not passed on. It still waits for an answer of this endpoint, unless it is
/// stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// The requester or the other one is not there.
    #[error(transparent)]
    NoPeer(#[from] NoPeer),
    /// The topology does not allow it.
    #[error("requests may not be passed on to endpoint {0} by this one: the topology file says who may")]
    Refused(Address),
    /// The payload is too long for that pair.
    #[error("a request of {length} bytes is too long to be passed on: {most} fit that pair")]
    TooLong {
        /// Bytes it has.
        length: usize,
        /// Bytes it may have.
        most: usize,
    },
    /// Nobody waits for an answer any more.
    #[error("endpoint {0} does not wait for this reply: its time was over, or it has been answered")]
    Stale(Address),
    /// Too much is on its way there: try again when that has been received.
    #[error("endpoint {0} has not received what was sent to it before: try again")]
    Full(Address),
    /// The requester reads nothing.
    #[error("endpoint {0} leaves no room for a referral")]
    NoRoom(Address),
}
