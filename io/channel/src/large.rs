//! Messages that are longer than a record takes: sent in pieces, put together by the receiver.

use std::time::Instant;

use ring::{Piece, Record, Violation};
use wire::ring as layout;

use crate::parts::Parts;
use crate::{ReceiveError, Receiver, SendError, Sender};

/// A message that is being put together.
#[derive(Debug)]
pub(crate) struct Assembly {
    bytes: Vec<u8>,
    state: State,
    /// Most bytes that we put together.
    limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is none.
    Nothing,
    /// It has begun, and more is to come.
    Begun,
    /// It is there, and has not been taken yet.
    Whole,
}

impl Assembly {
    pub(crate) fn new() -> Self {
        Assembly { bytes: Vec::new(), state: State::Nothing, limit: 0 }
    }

    /// Whether a message is there.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.state == State::Whole
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Puts the message into `into`, whose memory serves for the next one.
    pub(crate) fn swap(&mut self, into: &mut Vec<u8>) {
        std::mem::swap(&mut self.bytes, into);
    }

    /// Forgets the message: it was taken, or abandoned.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.state != State::Nothing {
            self.bytes.clear();
            self.state = State::Nothing;
        }
    }
}

impl Receiver {
    /// Most bytes of a message that can come.
    #[must_use]
    pub fn message_limit(&self) -> usize {
        self.large.limit.max(self.max_message())
    }

    /// Puts messages of up to so many bytes together from pieces, and tells the sender so: from
    /// then on the other end's [`Sender::send`] takes them. What is beyond breaks a rule, and
    /// closes the channel. So much memory may be taken up by a peer that begins messages. A message
    /// of several pieces (16 to 64 KiB each) is put together in memory of this receiver's, so that
    /// reading it in place saves no copy. The limit can be raised only: what the sender has been
    /// told stays true. The default is [`Receiver::max_message`], the longest that comes in one
    /// piece.
    pub fn set_message_limit(&mut self, bytes: usize) {
        if bytes > self.message_limit() {
            self.large.limit = bytes;
            // In a fork's child, this would speak for its parent.
            if self.check_here().is_ok() {
                self.consumer.offer_message_limit(bytes as u64);
            }
        }
    }

    /// Takes pieces as they come, up to a whole message, or to none for now. Ends after about a
    /// ring's bytes, so that a caller with a deadline gets to look at the clock, and when a message
    /// was abandoned, of which a peer may send any number.
    #[cold]
    pub(crate) fn assemble(&mut self, first: Record) -> Result<Option<Arrived>, ReceiveError> {
        let most = 2 * self.max_message();
        let mut taken = 0;
        let mut next = Some(first);
        while let Some(record) = next {
            if record.piece() == Piece::Whole {
                self.large.clear();
                return Ok(Some(Arrived::InPlace(record)));
            }
            let abandoned = self.add(&record)?;
            self.release(record)?;
            if record.piece().ends() {
                self.large.state = State::Whole;
                return Ok(Some(Arrived::Assembled));
            }
            taken += record.len();
            next = if abandoned || taken >= most { None } else { self.next()? };
        }
        Ok(None)
    }

    /// Appends a piece; true when another message was abandoned for it.
    fn add(&mut self, record: &Record) -> Result<bool, ReceiveError> {
        let abandoned = record.piece().begins() && self.large.state == State::Begun;
        if abandoned {
            self.large.clear();
        }
        self.large.state = State::Begun;
        let limit = self.message_limit();
        if record.len() > limit - self.large.bytes.len() {
            self.large.clear();
            self.shared.close(layout::END_REFUSED);
            return Err(Violation::Message { position: record.position(), limit }.into());
        }
        self.consumer.append(record, &mut self.large.bytes);
        Ok(abandoned)
    }
}

/// A message that can be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrived {
    /// It is in the ring.
    InPlace(Record),
    /// It was put together.
    Assembled,
}

impl Sender {
    /// Longest message that the receiver takes, in bytes: [`Sender::max_message`], or what it said
    /// by [`Receiver::set_message_limit`]. The longer ones go in pieces, by [`Sender::send`] or
    /// [`Sender::try_send_from`].
    #[must_use]
    pub fn message_limit(&self) -> usize {
        let alleged = usize::try_from(self.producer.peer_message_limit()).unwrap_or(usize::MAX);
        alleged.max(self.max_message())
    }

    /// Most bytes that go in one piece of a message in pieces.
    #[must_use]
    pub fn piece_bytes(&self) -> usize {
        crate::stream::piece_bytes(self.max_message())
    }

    /// Sends what there is room for of a message, in pieces if it is too long for one, from byte
    /// `*sent` on, which is 0 at first. When it says [`SendError::Full`], `*sent` says how far it
    /// came: wait for room for [`Sender::piece_bytes`] (or for the whole message, if it is shorter)
    /// and go on with the same message. Whatever else is sent meanwhile abandons it.
    ///
    /// # Errors
    /// [`SendError`], other than `TimedOut`.
    pub fn try_send_from(&mut self, message: &[u8], sent: &mut usize) -> Result<(), SendError> {
        if message.len() <= self.max_message() {
            self.try_send(message)?;
            *sent = message.len();
            return Ok(());
        }
        self.check_limit(message.len())?;
        while let Some(rest) = message.get(*sent..).filter(|rest| !rest.is_empty()) {
            let now = rest.len().min(self.piece_bytes());
            let piece = Piece::between(*sent, now, message.len());
            let mut loan = self.try_loan(now)?;
            loan.set_piece(piece);
            let inside = loan.write_at(0, rest.get(..now).unwrap_or(rest));
            debug_assert!(inside, "the loan is as long as the piece");
            // A doorbell fails after the piece has been committed.
            *sent += now;
            loan.commit()?;
        }
        Ok(())
    }

    /// Whether a message that would fit into one record is sooner there in pieces: measured, from
    /// two pieces on, and with a receiver that has asked for messages in pieces at all, since it
    /// can't read those where they are.
    #[inline]
    pub(crate) fn pays_in_pieces(&self, length: usize) -> bool {
        length > self.piece_bytes() && self.producer.peer_message_limit() >= length as u64
    }

    fn check_limit(&self, length: usize) -> Result<(), SendError> {
        let max = self.message_limit();
        if length > max { Err(SendError::TooLong { length, max }) } else { Ok(()) }
    }

    /// Sends a message in several records. A deadline that passes in the midst of it leaves the
    /// rest unsent: the next message makes the receiver drop what came.
    #[cold]
    pub(crate) fn send_in_pieces(
        &mut self,
        parts: &[&[u8]],
        deadline: Option<Instant>,
    ) -> Result<(), SendError> {
        let mut parts = Parts::new(parts);
        let length = parts.left();
        self.check_limit(length)?;
        while parts.left() > 0 {
            let now = parts.left().min(self.piece_bytes());
            let piece = Piece::between(length - parts.left(), now, length);
            let mut loan = self.loan(now, deadline)?;
            loan.set_piece(piece);
            let mut at = 0;
            while at < now {
                let bytes = parts.next(now - at);
                let inside = loan.write_at(at, bytes);
                debug_assert!(inside, "the loan is as long as the piece");
                at += bytes.len();
            }
            loan.commit()?;
            // A receiver that is as fast as we are must not make us send beyond the deadline.
            if parts.left() > 0 && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(SendError::TimedOut);
            }
        }
        Ok(())
    }
}
