//! The carrier of pairs to the other node: a link with its driver, or in tests two links side by
//! side.

use link::{OpenError, SendError, Sent, Share, Standing};
use std::fmt::Debug;
use wire::link::Pair;

/// A link, for those who use its pairs. None of these waits. What it tells ([`link::Event`]) comes
/// another way.
pub trait Carrier: Debug + Send + Sync {
    /// See [`link::Link::open`].
    ///
    /// # Errors
    /// As there.
    fn open(&self, content: &[u8]) -> Result<Pair, OpenError>;
    /// See [`link::Link::send`].
    ///
    /// # Errors
    /// As there.
    fn send(&self, pair: Pair, message: &[u8]) -> Result<Sent, SendError>;
    /// See [`link::Link::send_parts`].
    ///
    /// # Errors
    /// As there.
    fn send_parts(&self, pair: Pair, parts: [&[u8]; 2]) -> Result<Sent, SendError>;
    /// See [`link::Link::send_all_parts`].
    ///
    /// # Errors
    /// As there.
    fn send_all_parts(&self, pair: Pair, messages: &[[&[u8]; 2]]) -> Result<usize, SendError>;
    /// See [`link::Link::consumed_all`].
    fn consumed_all(&self, pair: Pair, messages: usize, bytes: usize);
    /// See [`link::Link::consumed`].
    fn consumed(&self, pair: Pair, bytes: usize) {
        self.consumed_all(pair, 1, bytes);
    }
    /// See [`link::Link::close`].
    fn close(&self, pair: Pair, reason: u32);
    /// See [`link::Link::abandon`].
    fn abandon(&self, pair: Pair, reason: u32);
    /// See [`link::Link::held_of`].
    fn held_of(&self, pair: Pair) -> usize;
    /// See [`link::Link::set_whole`].
    fn set_whole(&self, rate_bytes: Option<u64>);
    /// See [`link::Link::set_share`].
    fn set_share(&self, class: u32, share: Option<Share>) -> bool;
    /// See [`link::Link::classify`].
    fn classify(&self, pair: Pair, class: u32);
    /// See [`link::Link::standing`].
    fn standing(&self) -> Standing;
    /// By which transport it is connected now.
    fn transport(&self) -> String;
    /// Why the last connection ended, or none comes about, for a person.
    fn loss(&self) -> String;
    /// Its counters, for the state tree.
    fn state(&self) -> serde_json::Value;
}
