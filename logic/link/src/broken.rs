//! The rules that a peer can break, and why calls of our own are refused.

use thiserror::Error;
use wire::link::{BadPacket, Pair, Refusal, refusal};

/// A rule that the peer broke: the link is over, and with it its pairs. Nothing else is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Broken {
    /// Bytes that mean nothing.
    #[error(transparent)]
    Bad(#[from] BadPacket),
    /// A body that was not unpacked before it was handed over, or to another length than was
    /// announced.
    #[error("a body of {found} bytes was announced with {announced}")]
    Unpacked {
        /// The length that it alleges.
        announced: u32,
        /// The length that is there.
        found: usize,
    },
    /// Compressed by what our hello does not name.
    #[error("a packet is compressed by {found}, which was not offered")]
    Compression {
        /// The number.
        found: u8,
    },
    /// A second hello of one incarnation says something else.
    #[error("a hello of the same epoch says something else than the first")]
    Changed,
    /// A slot beyond what was allowed.
    #[error("pair {0} is beyond the number of pairs that was allowed")]
    Slot(Pair),
    /// A pair of ours that we never opened, or a word about one of theirs before it is open.
    #[error("pair {0} was never opened")]
    Never(Pair),
    /// A place is taken again before the pair there is over.
    #[error("pair {0} takes the place of one that is not over")]
    Reopened(Pair),
    /// A byte stream that skips something.
    #[error("pair {pair} goes on at {offset}, and {received} was next")]
    Gap {
        /// The pair.
        pair: Pair,
        /// Where it goes on.
        offset: u64,
        /// The number that was next.
        received: u64,
    },
    /// More than was allowed.
    #[error("pair {pair} goes up to {end}, and {credit} was allowed")]
    Window {
        /// The pair.
        pair: Pair,
        /// How far it goes.
        end: u64,
        /// How far it may go.
        credit: u64,
    },
    /// Its end is before what came of it, or is not where it was.
    #[error("pair {pair} can't end at {offset}")]
    Close {
        /// The pair.
        pair: Pair,
        /// Where it is said to end.
        offset: u64,
    },
    /// A record that does not belong there, or is too long.
    #[error("pair {pair} has a record of kind {kind} with {bytes} bytes, which may not be")]
    Record {
        /// The pair.
        pair: Pair,
        /// Its kind.
        kind: u32,
        /// Its length.
        bytes: usize,
    },
    /// A report that bytes have come which were never sent.
    #[error("pair {pair} is said to have come up to {received}, and {sent} was sent")]
    State {
        /// The pair.
        pair: Pair,
        /// The number that the report says.
        received: u64,
        /// The number that was sent.
        sent: u64,
    },
    /// A permission that exceeds the window.
    #[error("pair {pair} is allowed up to {credit}, beyond its window")]
    Credit {
        /// The pair.
        pair: Pair,
        /// The credit that the report says.
        credit: u64,
    },
    /// A pair is said to be over that is not.
    #[error("pair {0} is said to be over, and is not")]
    Gone(Pair),
}

/// Why a link is over. It never comes back: who wants to go on makes a new one with a greater
/// epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Over {
    /// The peer broke a rule.
    #[error("the other proxy broke a rule: {0}")]
    Broken(Broken),
    /// There is no version that both speak.
    #[error(
        "the other node speaks versions {oldest} to {newest} of the protocol of links, and this one none of these: \
         bring both to releases that follow each other"
    )]
    Version {
        /// Its oldest.
        oldest: u16,
        /// Its newest.
        newest: u16,
    },
    /// Both were told to be the same side.
    #[error("both proxies are of side {side}: two nodes have one identity, or a node speaks with itself")]
    Side {
        /// The side.
        side: u8,
    },
    /// The peer refused us.
    #[error("{}", refused(*.0))]
    Refused(Refusal),
    /// The peer said goodbye.
    #[error("the other proxy has ended the association (reason {reason})")]
    Goodbye {
        /// Why; numbers are the users'.
        reason: u32,
    },
    /// We said goodbye.
    #[error("this proxy has ended the association")]
    Ended,
}

/// The words of a refusal, for a person.
fn refused(Refusal { reason, oldest, newest }: Refusal) -> String {
    match reason {
        refusal::VERSION => format!(
            "the other node has refused this one: it speaks versions {oldest} to {newest} of the protocol of links, and this one none of these: \
             bring both to releases that follow each other"
        ),
        refusal::SIDE => {
            "the other proxy has refused this one: both are of one side, so two nodes have one identity, or a node speaks with itself".into()
        }
        refusal::EPOCH => "the other proxy has refused this one: it has heard a newer one of this node".into(),
        refusal::BROKEN => "the other proxy has refused this one: it says that a rule of the protocol of links was broken; its log says which".into(),
        reason => format!("the other proxy has refused this one (reason {reason}; it speaks versions {oldest} to {newest})"),
    }
}

/// Why a pair is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OpenError {
    /// See [`Over`].
    #[error("the link is over: {0}")]
    Over(Over),
    /// The peer was never met, so what it takes is not known.
    #[error("the other node has not answered yet")]
    NotYet,
    /// The description of a pair's purpose is too long.
    #[error("the opening of a pair has {found} bytes, and {most} are the most")]
    Long {
        /// The length that it has.
        found: usize,
        /// The length that it may have.
        most: usize,
    },
    /// As many pairs are open as the peer takes.
    #[error("the other node takes {most} pairs at a time, and all are open")]
    Many {
        /// So many.
        most: u32,
    },
}

/// Why a message is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// See [`Over`].
    #[error("the link is over: {0}")]
    Over(Over),
    /// One of both has closed the pair, or it is none.
    #[error("pair {0} is not open")]
    NotOpen(Pair),
    /// Longer than the peer takes.
    #[error("a message has {found} bytes, and {most} are the most on this link")]
    Long {
        /// The length that it has.
        found: usize,
        /// The length that it may have.
        most: usize,
    },
}

/// The fault of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadConfig {
    /// An epoch of 0 is nobody's.
    #[error("the epoch of a link is 0, which nobody has")]
    Epoch,
    /// The peer would refuse it.
    #[error("the peer would refuse this hello: {0}")]
    Hello(#[from] BadPacket),
    /// No message fits.
    #[error("the queue of a pair has {bytes} bytes, and {least} are the least")]
    Queue {
        /// The bytes that it has.
        bytes: usize,
        /// The bytes that it must have.
        least: usize,
    },
    /// A datagram that is too short.
    #[error("datagrams of {bytes} bytes are too short: {least} are the least")]
    Datagram {
        /// The bytes that they have.
        bytes: usize,
        /// The bytes that they must have.
        least: usize,
    },
}
