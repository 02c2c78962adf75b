//! Copies from and to a granted buffer of another node (`docs/spec/loan.md`): what a [`Lender`],
//! beside the memory, does with what it is asked, and what a [`Borrower`] may expect of it. Neither
//! waits, and neither believes the other.

use crate::grants::{OutOfRange, check_range};
use wire::grants::State;
use wire::ipc::Address;
use wire::loan::{Nonsense, Outcome, PIECE_BYTES_MAX, Record};

/// The terms of a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The buffer's owner.
    pub owner: Address,
    /// Whether it may be written.
    pub writable: bool,
    /// Bytes of it.
    pub bytes: u64,
}

/// The memory of a granted buffer.
pub trait Lent {
    /// The state of the grant, as its owner says; nothing that follows is done before.
    fn state(&self) -> State;
    /// A memory fence: all before it is done, for everybody, before what follows.
    fn fence(&self);
    /// Copies out of it.
    fn read(&self, offset: u64, into: &mut [u8]);
    /// Copies to it.
    fn write(&self, offset: u64, from: &[u8]);
}

/// The rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It is no record.
    #[error(transparent)]
    Nonsense(#[from] Nonsense),
    /// The bytes are not inside of the buffer.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// The buffer was granted to be read.
    #[error("it writes to what was granted to be read")]
    Access,
    /// A record that does not belong there.
    #[error("a record out of turn: {0:?}")]
    Turn(Record),
    /// Bytes that are not the next ones.
    #[error("bytes at {found} of a copy that goes on at {wanted}, for {left} bytes")]
    Bytes {
        /// The bytes that the record says.
        found: u64,
        /// The bytes that it should say.
        wanted: u64,
        /// How many there are left.
        left: u64,
    },
}

/// A copy that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    copy: u64,
    at: u64,
    end: u64,
}

impl Span {
    fn new(copy: u64, offset: u64, length: u64) -> Span {
        Span { copy, at: offset, end: offset.saturating_add(length) }
    }

    fn left(&self) -> u64 {
        self.end - self.at
    }

    /// Takes the next bytes in.
    fn take(&mut self, offset: u64, length: usize) -> Result<(), Broken> {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        if offset != self.at || length > self.left() {
            return Err(Broken::Bytes { found: offset, wanted: self.at, left: self.left() });
        }
        self.at += length;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Reading(Span),
    Writing(Span),
}

/// Copies for somebody on another node. Its messages are taken out of it piece by piece, so it
/// holds nothing.
#[derive(Clone, Debug)]
pub struct Lender<M> {
    memory: M,
    terms: Terms,
    doing: Doing,
    /// The greatest number of a copy.
    last: u64,
    /// How the last one has ended, until that is said.
    over: Option<Outcome>,
    /// The terms of the loan were not said yet.
    silent: bool,
    /// Most bytes that it says at a time.
    piece_bytes: u64,
}

impl<M: Lent> Lender<M> {
    /// Has this memory for somebody.
    pub fn new(memory: M, terms: Terms) -> Lender<M> {
        let piece_bytes = PIECE_BYTES_MAX as u64;
        Lender { memory, terms, doing: Doing::Nothing, last: 0, over: None, silent: true, piece_bytes }
    }

    /// Whether a further record may be heard: not while there is an answer that was not taken.
    #[must_use]
    pub fn hears(&self) -> bool {
        self.over.is_none()
    }

    /// Does what a record says. Hear none while [`Lender::hears`] says no.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn hear(&mut self, record: Record, bytes: &[u8]) -> Result<(), Broken> {
        match (record, self.doing) {
            (Record::Read { copy, offset, length }, Doing::Nothing) if copy > self.last => {
                check_range(offset, length, self.terms.bytes)?;
                self.last = copy;
                self.doing = Doing::Reading(Span::new(copy, offset, length));
            }
            (Record::Write { copy, offset, length }, Doing::Nothing) if copy > self.last => {
                if !self.terms.writable {
                    return Err(Broken::Access);
                }
                check_range(offset, length, self.terms.bytes)?;
                self.last = copy;
                self.write(Span::new(copy, offset, length), offset, bytes)?;
            }
            (Record::Bytes { copy, offset }, Doing::Writing(span)) if copy == span.copy => {
                self.write(span, offset, bytes)?;
            }
            // Of a write that has ended before its time: they were on their way.
            (Record::Bytes { copy, .. }, Doing::Nothing) if copy <= self.last => {}
            (
                Record::Cancel { copy },
                Doing::Reading(Span { copy: now, .. }) | Doing::Writing(Span { copy: now, .. }),
            ) if copy == now => {
                self.end(Outcome::Cancelled);
            }
            (Record::Cancel { copy }, _) if copy <= self.last => {}
            _ => return Err(Broken::Turn(record)),
        }
        Ok(())
    }

    fn write(&mut self, mut span: Span, offset: u64, bytes: &[u8]) -> Result<(), Broken> {
        span.take(offset, bytes.len())?;
        self.doing = Doing::Writing(span);
        match self.standing() {
            Some(over) => self.end(over),
            None => {
                self.memory.write(offset, bytes);
                if span.left() == 0 {
                    self.settle();
                }
            }
        }
        Ok(())
    }

    /// Why the copy that goes on has to end now.
    fn standing(&self) -> Option<Outcome> {
        match self.memory.state() {
            State::Live => None,
            State::Moved => Some(Outcome::Moved),
            State::Revoked => Some(Outcome::Revoked),
            State::Dead => Some(Outcome::Dead),
        }
    }

    /// All was copied: whether that counts.
    fn settle(&mut self) {
        // REVOKE, OVER: what was copied counts if the grant stands after it.
        self.memory.fence();
        let outcome = self.standing().unwrap_or(Outcome::Good);
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        self.doing = Doing::Nothing;
        self.over = Some(outcome);
    }

    /// The grant is over, or stands for another buffer: a copy that goes on ends by that. Then
    /// nothing more is heard.
    pub fn recall(&mut self) {
        if self.doing != Doing::Nothing {
            let outcome = self.standing().unwrap_or(Outcome::Revoked);
            self.end(outcome);
        }
    }

    /// The next record that it has to say, and the bytes behind it, which replace what is in
    /// `bytes`.
    pub fn say(&mut self, bytes: &mut Vec<u8>) -> Option<Record> {
        bytes.clear();
        if std::mem::take(&mut self.silent) {
            let Terms { owner, writable, bytes } = self.terms;
            return Some(Record::Lent { owner, writable, bytes });
        }
        if let Doing::Reading(mut span) = self.doing {
            match self.standing() {
                Some(over) => self.end(over),
                None if span.left() == 0 => self.settle(),
                None => {
                    let most = span.left().min(self.piece_bytes);
                    bytes.resize(usize::try_from(most).unwrap_or(PIECE_BYTES_MAX), 0);
                    self.memory.read(span.at, bytes);
                    let record = Record::Bytes { copy: span.copy, offset: span.at };
                    span.at += most;
                    self.doing = Doing::Reading(span);
                    return Some(record);
                }
            }
        }
        let outcome = self.over.take()?;
        Some(Record::Done { copy: self.last, outcome })
    }
}

/// A lender's statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The terms of the loan.
    Lent(Terms),
    /// The bytes behind the record stand so far behind the beginning of the copy.
    Bytes(u64),
    /// The copy is over.
    Done(Outcome),
}

/// Has bytes copied on another node, one copy at a time.
#[derive(Clone, Debug)]
pub struct Borrower {
    terms: Option<Terms>,
    copies: u64,
    /// The copy that goes on, where it began, and whether it is a write.
    doing: Option<(Span, u64, bool)>,
    cancelled: bool,
    /// Most bytes that it says at a time.
    piece_bytes: u64,
}

impl Default for Borrower {
    fn default() -> Borrower {
        let piece_bytes = PIECE_BYTES_MAX as u64;
        Borrower { terms: None, copies: 0, doing: None, cancelled: false, piece_bytes }
    }
}

impl Borrower {
    /// Returns the terms of the loan, once they were said.
    #[must_use]
    pub fn terms(&self) -> Option<Terms> {
        self.terms
    }

    /// Whether a copy goes on.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.doing.is_some()
    }

    /// Begins a copy of bytes that are inside of the buffer, while none goes on: the record to say.
    /// Of a write, so many bytes follow it.
    pub fn begin(&mut self, write: bool, offset: u64, length: u64) -> (Record, usize) {
        self.copies += 1;
        self.cancelled = false;
        let copy = self.copies;
        let mut span = Span::new(copy, offset, length);
        let first = if write { span.left().min(self.piece_bytes) } else { 0 };
        span.at += first;
        self.doing = Some((span, offset, write));
        match write {
            true => (Record::Write { copy, offset, length }, bytes(first)),
            false => (Record::Read { copy, offset, length }, 0),
        }
    }

    /// The next record of a write that is to be said, how far behind the beginning of the copy its
    /// bytes stand, and how many they are.
    pub fn next_piece(&mut self) -> Option<(Record, u64, usize)> {
        let (span, begun, write) = self.doing.as_mut()?;
        if !*write || self.cancelled || span.left() == 0 {
            return None;
        }
        let (offset, length) = (span.at, span.left().min(self.piece_bytes));
        span.at += length;
        Some((Record::Bytes { copy: span.copy, offset }, offset - *begun, bytes(length)))
    }

    /// Nothing of the copy was said: there is none.
    pub fn forget(&mut self) {
        self.doing = None;
    }

    /// Does not want the copy any more: the record to say. It goes on until the lender has
    /// answered.
    pub fn cancel(&mut self) -> Option<Record> {
        let (span, ..) = self.doing.as_ref().filter(|_| !self.cancelled)?;
        self.cancelled = true;
        Some(Record::Cancel { copy: span.copy })
    }

    /// Takes in what a record says.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn hear(&mut self, record: Record, behind: usize) -> Result<Heard, Broken> {
        match (record, &mut self.doing) {
            (Record::Lent { owner, writable, bytes }, None) if self.terms.is_none() => {
                let terms = Terms { owner, writable, bytes };
                self.terms = Some(terms);
                Ok(Heard::Lent(terms))
            }
            (Record::Bytes { copy, offset }, Some((span, begun, false))) if copy == span.copy => {
                span.take(offset, behind)?;
                Ok(Heard::Bytes(offset - *begun))
            }
            (Record::Done { copy, outcome }, Some((span, ..))) if copy == span.copy => {
                let fits = match outcome {
                    Outcome::Good => span.left() == 0,
                    Outcome::Cancelled => self.cancelled,
                    Outcome::Moved | Outcome::Revoked | Outcome::Dead => true,
                };
                if !fits {
                    return Err(Broken::Turn(record));
                }
                self.doing = None;
                Ok(Heard::Done(outcome))
            }
            _ => Err(Broken::Turn(record)),
        }
    }
}

/// Bytes of a piece.
fn bytes(length: u64) -> usize {
    usize::try_from(length).map_or(PIECE_BYTES_MAX, |length| length.min(PIECE_BYTES_MAX))
}

#[cfg(test)]
mod tests;
