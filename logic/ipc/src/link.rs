//! The interface of the channel to one peer, as an endpoint needs it.

use wire::ipc as layout;
use wire::ipc::Header;

/// The direction that a word belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From this endpoint to the peer.
    Out,
    /// From the peer to this endpoint.
    In,
}

/// One of the words of a direction. `wire::ipc` says which side writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// `WORD_CALL`.
    Call,
    /// `WORD_RECEIVED`.
    Received,
    /// `WORD_NOTICES`.
    Notices,
    /// `WORD_WAITS`.
    Waits,
    /// `WORD_PATH`.
    Path,
    /// `WORD_WITHDRAW`.
    Withdraw,
    /// `WORD_SEALED`.
    Sealed,
}

impl Word {
    /// Where it stands in its direction's words.
    #[must_use]
    pub fn offset(self) -> usize {
        match self {
            Word::Call => layout::WORD_CALL,
            Word::Received => layout::WORD_RECEIVED,
            Word::Notices => layout::WORD_NOTICES,
            Word::Waits => layout::WORD_WAITS,
            Word::Path => layout::WORD_PATH,
            Word::Withdraw => layout::WORD_WITHDRAW,
            Word::Sealed => layout::WORD_SEALED,
        }
    }
}

/// One pair's channel as this endpoint sees it: a ring each way, the words, one doorbell. No call
/// waits. What it returns of the peer's is an allegation, copied out once.
pub trait Link {
    /// Bytes of one ring.
    fn ring_bytes(&self) -> u32;
    /// Loads a word, `Acquire`.
    fn load(&self, way: Way, word: Word) -> u64;
    /// Stores a word, `Release`.
    fn store(&self, way: Way, word: Word, value: u64);
    /// Stores `new` if the word is `old`, and returns what it was, `AcqRel`.
    fn replace(&self, way: Way, word: Word, old: u64, new: u64) -> u64;
    /// Sets bits of a word, `AcqRel`.
    fn set_bits(&self, way: Way, word: Word, bits: u64);
    /// Takes all bits of a word, `AcqRel`.
    fn take_bits(&self, way: Way, word: Word) -> u64;
    /// A sequentially consistent fence.
    fn fence(&self);
    /// Commits a message, and wakes the peer if it listens (SLEEP). False: the ring has no room
    /// now.
    fn commit(&mut self, header: &Header, payload: &[u8]) -> bool;
    /// Takes the next message at once, if it is one of `source` that nobody waits for, with at most
    /// `most` bytes of payload, which replace what is in `into`; returns its tag. `None`: nothing
    /// was done, and [`Link::look`] finds out what there is.
    fn take_message(&mut self, source: layout::Address, most: usize, into: &mut Vec<u8>) -> Option<u32> {
        let _ = (source, most, into);
        None
    }
    /// The header of the next message, which stays where it is; `None`: there is none.
    ///
    /// # Errors
    /// The rule that the peer has broken.
    fn look(&mut self) -> Result<Option<Header>, Broken>;
    /// Takes the message that was looked at last; its payload, of the length in that header,
    /// replaces what is in `into`.
    fn take(&mut self, into: &mut Vec<u8>);
    /// The messages that this end has committed and the peer has not consumed, as bytes with their
    /// headers, the oldest first. They stand in memory that the peer can write.
    fn unconsumed(&mut self) -> Vec<Vec<u8>> {
        Vec::new()
    }
    /// Says that this endpoint is about to sleep, and fences (SLEEP): it looks at everything once
    /// more before it does.
    fn listen(&mut self);
    /// Takes that back.
    fn stop_listening(&mut self);
    /// Whether the peer listens; takes that off it, `AcqRel`. Fence before (SLEEP). True: ring.
    fn take_listener(&self) -> bool;
    /// Rings the peer's doorbell.
    fn ring(&self);
    /// Whether the peer has closed or is dead. After that the ring and the words show all that it
    /// did before (END).
    fn is_closed(&self) -> bool;
    /// Closes, because the peer has broken a rule.
    fn close(&mut self);
    /// The rule that showed to be broken when [`Link::commit`] looked for room.
    fn fault(&self) -> Option<Broken> {
        None
    }
}

/// The rule that a peer has broken. The pair is closed then; no other pair notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A rule of the channel under it.
    #[error("the peer has broken a rule of its channel")]
    Channel,
    /// A header is none.
    #[error("{0}")]
    Header(#[from] layout::BadHeader),
    /// It named a source that it is not.
    #[error("the peer is {expected} and alleges to send for {alleged}")]
    Source {
        /// The source that the header names.
        alleged: layout::Address,
        /// The peer's address.
        expected: layout::Address,
    },
    /// It sent more than the window allows.
    #[error("the peer has sent {bytes} bytes that nobody has received; {most} are allowed")]
    Window {
        /// The bytes that were found.
        bytes: usize,
        /// The most bytes that are allowed.
        most: usize,
    },
    /// It alleges to have received what was not sent, or less than before.
    #[error("the peer alleges to have received {alleged} bytes; only {least} to {most} are possible")]
    Received {
        /// The count that the peer alleges.
        alleged: u64,
        /// The count that it alleged before.
        least: u64,
        /// The count that was sent.
        most: u64,
    },
    /// A message or a reply is longer than may be.
    #[error("the peer has sent {length} bytes of payload where {most} are allowed")]
    Length {
        /// Bytes it has.
        length: u32,
        /// Bytes it may have.
        most: usize,
    },
    /// The word of a call says what it can't.
    #[error("the word of call {id} says {found:#x}")]
    Call {
        /// The call.
        id: u64,
        /// The value found there.
        found: u64,
    },
}
