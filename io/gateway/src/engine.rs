//! The trait that a messaging system implements.

use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// An event on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it goes.
    pub topic: Arc<str>,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// It is sent until the other side has taken it over; otherwise it is sent once.
    pub reliable: bool,
}

/// Topics whose messages are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// A pattern of topics, in the engine's own language.
    pub filter: String,
    /// The other side keeps each message until its [`Arrival::receipt`] is given.
    pub reliable: bool,
}

/// A message that has come.
pub struct Arrival {
    /// The index of the subscription that it is for.
    pub subscription: usize,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// To be called when the event is where it belongs. Until then the other side sends it again to
    /// the next connection.
    pub receipt: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival").field("subscription", &self.subscription).finish_non_exhaustive()
    }
}

/// News of a connection.
#[derive(Debug)]
pub enum Told {
    /// The other side has taken the oldest reliable message over.
    Taken,
    /// The other side does not want the oldest reliable message, and why.
    Refused(String),
    /// A message that is not reliable has gone out.
    Gone,
    /// A message has come.
    Came(Arrival),
    /// Something that people should know, in words.
    Noted(String),
}

/// Why there is no connection, or none any more.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct EngineError(pub String);

/// Sends over one connection.
pub trait Sender: Send {
    /// Sends a message, without waiting. No more than [`crate::WINDOW`] reliable messages are not
    /// taken yet, and as many others not gone.
    ///
    /// # Errors
    /// The connection is over.
    fn send(&self, message: &Message) -> Result<(), EngineError>;
}

/// Receives from one connection.
pub trait Receiver: Send {
    /// Waits for the next news.
    ///
    /// # Errors
    /// The connection is over.
    fn next(&mut self) -> Result<Told, EngineError>;
}

/// A connection: its two halves are used by different threads.
pub struct Connection {
    /// Sends.
    pub sender: Box<dyn Sender>,
    /// Receives.
    pub receiver: Box<dyn Receiver>,
    /// The longest message that the other side takes: topic and bytes. Longer ones are not sent.
    pub longest: usize,
}

/// A messaging system.
pub trait Engine: Send {
    /// Told of each topic to which messages go, before the first connection.
    fn publishes(&mut self, _topic: &str, _reliable: bool) {}

    /// Connects anew, and subscribes. Waits, for a bounded time.
    ///
    /// # Errors
    /// There is nobody, or they refuse.
    fn connect(&mut self, subscriptions: &[Subscription]) -> Result<Connection, EngineError>;
}
