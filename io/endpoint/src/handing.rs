//! A primary hands its backups what it is about to reply, and its state.
//!
//! A reply is released only after each backup that is relied upon has taken it, by a rendezvous: so
//! it is in the backup's process, and a backup that has taken its primary's place takes nothing any
//! more. Before the primary goes on without one, that one is told so, and the daemon.

use std::time::{Duration, Instant};

use ipc::{Asked, Content, Gone, Received, Remembered, ReplyError, SendError, pieces};
use wire::control::Request;
use wire::ipc::Address;
use wire::movement::{NOTICE_RELEASED, Record, STATE_BYTES_MAX, TAG_LAST};

use crate::failed::Trouble;
use crate::member::{Answer, on_wire};
use crate::{Endpoint, Failed};

/// How long a backup may take to receive what it is handed. Its callers wait so long for a backup
/// that hangs, once; a backup that computes for a moment is not parted from.
pub(crate) const TAKE_WITHIN: Duration = Duration::from_secs(2);

/// Why a state was not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It is too long; nothing was handed over.
    #[error(
        "a state of {length} bytes is too long: {most} are the most; keep it in a volume or a granted buffer, and hand over where"
    )]
    TooLong {
        /// Bytes it has.
        length: usize,
        /// Bytes it may have.
        most: usize,
    },
}

impl Endpoint {
    /// As [`Endpoint::reply`], and hands over whatever a backup has to know to go on from here,
    /// which replaces what was handed over before. A backup has both the reply and the state, or
    /// neither: so what the request changed of the state is changed once, whoever answers it.
    ///
    /// # Errors
    /// See [`ReplyError`].
    pub fn reply_with_state(
        &mut self,
        asked: &Asked,
        tag: u32,
        payload: &[u8],
        state: &[u8],
    ) -> Result<(), Failed<ReplyError>> {
        if state.len() > STATE_BYTES_MAX {
            let why = ReplyError::StateTooLong { length: state.len(), most: STATE_BYTES_MAX };
            return Err(Failed::Call(why));
        }
        self.reply_after_backups(asked, tag, payload, Some(state))
    }

    /// Hands over what a backup has to know to go on, without a reply. Backups that come later are
    /// told as well.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn keep_state(&mut self, state: &[u8]) -> Result<(), Failed<StateError>> {
        self.check_here()?;
        if state.len() > STATE_BYTES_MAX {
            let why = StateError::TooLong { length: state.len(), most: STATE_BYTES_MAX };
            return Err(Failed::Call(why));
        }
        Ok(self.hand_to_all(Record::State(state.to_vec()))?)
    }

    /// The state that was handed over last, by this endpoint or by those whose place it has taken.
    #[must_use]
    pub fn state(&self) -> Option<&[u8]> {
        self.replies.state()
    }

    /// Backups that have all that this endpoint has: one of them takes over if it dies.
    pub fn backups(&self) -> impl Iterator<Item = Address> {
        self.backups.iter().copied()
    }

    pub(crate) fn reply_after_backups(
        &mut self,
        asked: &Asked,
        tag: u32,
        payload: &[u8],
        state: Option<&[u8]>,
    ) -> Result<(), Failed<ReplyError>> {
        self.check_here()?;
        let fits = payload.len() <= asked.takes() as usize;
        let alone = self.backups.is_empty() && !self.pairs.has_new_backup();
        if fits && !alone {
            let state = state.map(<[u8]>::to_vec);
            let (requester, id, reply) = (asked.requester(), asked.number(), payload.to_vec());
            self.hand_to_all(Record::Reply { requester, id, tag, reply, state })?;
        } else if let (true, Some(state)) = (fits, state) {
            self.replies.take(Record::State(state.to_vec()));
        }
        self.pairs.logic.reply(asked, tag, payload).map_err(Failed::Call)
    }

    /// Has every backup take a record, or goes on without it. When this comes back nobody can take
    /// this endpoint's place without knowing of the record.
    fn hand_to_all(&mut self, record: Record) -> Result<(), Trouble> {
        self.bring_up_backups()?;
        let bytes = record.to_bytes();
        for backup in self.backups.clone() {
            if !self.hand(backup, &bytes)? {
                self.release(backup)?;
            }
        }
        self.replies.take(record);
        Ok(())
    }

    /// Backups that have come meanwhile are told everything: from then on they are relied upon.
    pub(crate) fn bring_up_backups(&mut self) -> Result<(), Trouble> {
        if !self.pairs.has_new_backup() {
            return Ok(());
        }
        for backup in self.pairs.take_new_backups() {
            // One that was here before under this address has nothing of what it had.
            self.backups.retain(|known| known.slot != backup.slot);
            let continues = self.continues();
            let records: Vec<Record> = self.replies.records().chain([Record::Ready { continues }]).collect();
            let mut took = true;
            for record in records {
                took = took && self.hand(backup, &record.to_bytes())?;
            }
            if took {
                self.backups.push(backup);
            } else {
                // It was not told that it has all, so it takes nobody's place.
                let _parted = self.pairs.unbind(backup, Gone::Dead);
            }
        }
        Ok(())
    }

    /// The least generation of this endpoint whose replies it knows.
    fn continues(&self) -> u32 {
        self.member.as_ref().map_or(0, crate::member::Member::continues).max(1).min(self.address().generation)
    }

    /// Has one backup take a record; false: it has not.
    pub(crate) fn hand(&mut self, backup: Address, record: &[u8]) -> Result<bool, Trouble> {
        let deadline = Some(Instant::now() + TAKE_WITHIN);
        let Ok(most) = self.payload_bytes_max(backup) else { return Ok(false) };
        for (tag, piece) in pieces(record, most) {
            let sent = match tag {
                TAG_LAST => self.send(backup, tag, piece, deadline),
                _ => self.send_buffered(backup, tag, piece, deadline),
            };
            match sent {
                Ok(()) => {}
                Err(failed) => return unless_of_the_call(failed).map(|()| false),
            }
        }
        Ok(true)
    }

    /// Goes on without a backup. The backup is told in memory that both share, so that it knows
    /// even if the daemon and this process die; and the daemon is asked, because it may have let
    /// the backup take this endpoint's place a moment ago.
    pub(crate) fn release(&mut self, backup: Address) -> Result<(), Trouble> {
        // One that is dead hears of it no more.
        let _gone = self.pairs.logic.notify(backup, NOTICE_RELEASED);
        self.ask_for_release(backup)?;
        tracing::warn!(endpoint = %self.address(), %backup, "goes on without a backup that is dead, or did not take what it was handed in time");
        let _parted = self.pairs.unbind(backup, Gone::Dead);
        self.backups.retain(|known| *known != backup);
        Ok(())
    }

    fn ask_for_release(&mut self, backup: Address) -> Result<(), Trouble> {
        let mut asked = None;
        loop {
            self.check_bound()?;
            let Some(member) = &mut self.member else { return Ok(()) };
            let endpoint = member.slot();
            let release = |id| Request::Release { id, endpoint, backup: on_wire(backup) };
            asked = asked.or_else(|| member.ask(release));
            match asked.and_then(|ticket| member.answer(ticket)) {
                Some(Answer::Done) => return Ok(()),
                Some(Answer::Refused { message, .. }) => return Err(Trouble::Ended { why: message }),
                // The daemon has died, or does not know this endpoint yet: the next one is asked.
                Some(_) => asked = None,
                None => {}
            }
            let again_at = asked.is_none().then(|| Instant::now() + crate::member::RETRY);
            self.await_daemon(again_at)?;
        }
    }

    /// Answers a request that was answered before, by this endpoint or by one whose place it has
    /// taken. True: there is nothing left to do.
    pub(crate) fn answers_again(&mut self, received: &Received) -> bool {
        let Content::Request { asked, .. } = received.content else { return false };
        if self.replies.is_empty() {
            return false;
        }
        let Remembered::Answered { tag, reply } = self.replies.of(&asked) else { return false };
        // Whoever does not wait any more has missed it.
        let _missed = self.pairs.logic.reply(&asked, tag, reply);
        true
    }
}

/// Drops errors of a call to a backup that concern only that call; returns those that concern this
/// endpoint.
fn unless_of_the_call(failed: Failed<SendError>) -> Result<(), Trouble> {
    Err(match failed {
        Failed::Call(_) | Failed::Daemon(_) => return Ok(()),
        Failed::System { action, source } => Trouble::System { action, source },
        Failed::Forked => Trouble::Forked,
        Failed::Ended { why } => Trouble::Ended { why },
        Failed::Interrupted => Trouble::Interrupted,
        Failed::Moving => Trouble::Moving,
    })
}
