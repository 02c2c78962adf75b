//! The table of open sessions.

use crate::capsule::Framing;
use publication::{Publisher, SubscriptionId};
use session::LinkId;
use wire::events::verb;

/// A session of a consumer.
pub(crate) type SessionKey = (LinkId, u64);

/// A consumer: its domain, and what that may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) owner: u64,
    pub(crate) publishes: bool,
    pub(crate) subscribes: bool,
    pub(crate) manages: bool,
}

impl Link {
    pub(crate) fn new(owner: u64, verbs: &[String]) -> Self {
        let has = |verb: &str| verbs.iter().any(|held| held == verb);
        Self {
            owner,
            publishes: has(verb::PUBLISH),
            subscribes: has(verb::SUBSCRIBE),
            manages: has(verb::MANAGE),
        }
    }
}

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Session {
    Publisher {
        serial: u32,
        publisher: Publisher,
        /// `O_NONBLOCK`: a publication that would wait is refused.
        nonblock: bool,
    },
    Subscriber {
        serial: u32,
        id: SubscriptionId,
    },
}

/// The state of a subscriber's file, without its place in the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SubscriberState {
    pub(crate) key: SessionKey,
    pub(crate) framing: Framing,
    /// Opened for writing, too: it begins when its first line was taken.
    pub(crate) held: bool,
    /// Credit or room was not enough: nothing is tried before there is more.
    pub(crate) blocked: bool,
    /// Of those that get the newest only: somebody has asked for one.
    pub(crate) wanted: bool,
    /// The most bytes that the reader holds and has given credit for.
    pub(crate) window: u32,
    /// It may change how it is: opened for reading and writing.
    pub(crate) speaks: bool,
}
