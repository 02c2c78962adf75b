//! An endpoint that moves to another program: the state, the replies that are remembered and what
//! is queued go to a backup, which takes the place when it has all.
//!
//! Between [`Endpoint::start_migration`] and its end the endpoint receives nothing, and those who
//! call it wait. Who has the place afterwards is one decision of the daemon's: the same by which a
//! backup supersedes a primary (`docs/spec/movement.md`).

use std::time::Instant;

use ipc::{Content, From, Received};
use wire::ipc::{Address, SLOT_BITS};
use wire::movement::Record;

use crate::failed::Trouble;
use crate::handing::TAKE_WITHIN;
use crate::member::{Member, RETRY};
use crate::pairs::Moving;
use crate::{Endpoint, Failed};

/// Why an endpoint does not move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    /// It is on its way already.
    #[error("this endpoint is on its way to domain {to}: commit that migration, or roll it back")]
    Moving {
        /// Where to.
        to: String,
    },
    /// It is not on its way.
    #[error("no migration of this endpoint was started")]
    NotMoving,
    /// It has no name, so nobody could find it at another place.
    #[error("an endpoint without a name does not move")]
    NoName,
    /// Nobody is there to take it.
    #[error(
        "no program of domain {to} is ready to take endpoint {name}: start one there that is a backup of it, and list the domain in the endpoint's `backups`"
    )]
    NoRoom {
        /// Where to.
        to: String,
        /// Its name.
        name: String,
    },
    /// Requests were received, and wait for their replies.
    #[error(
        "endpoint {requester} waits for a reply: answer it, or pass its request on, before this endpoint moves"
    )]
    Unanswered {
        /// One that waits.
        requester: Address,
    },
    /// A call in steps is under way.
    #[error("a call of this endpoint is under way: finish or cancel it before the endpoint moves")]
    Calling,
    /// Buffers stay in the memory of the domain in which they were made.
    #[error(
        "this endpoint has {count} buffers, which can't move: free them first, and grant others at the new place"
    )]
    Buffers {
        /// How many.
        count: usize,
    },
    /// Grants of others were mapped by this program.
    #[error(
        "this endpoint has mapped grant {grant} of endpoint {owner}, which can't move: have its owner revoke it first"
    )]
    Granted {
        /// Number of the grant.
        grant: u64,
        /// The owner of its buffer.
        owner: Address,
    },
    /// A peer is on another node, where what it sends at this moment would be lost.
    #[error(
        "endpoint {peer} of another node is a peer of this one: an endpoint moves among peers of its own node only"
    )]
    OtherNode {
        /// The peer.
        peer: Address,
    },
    /// The program at the new place has ended or did not take it.
    #[error("the program of domain {to} did not take endpoint {name}: it stays here, and goes on")]
    RolledBack {
        /// Where it was to go.
        to: String,
        /// Its name.
        name: String,
    },
}

impl Endpoint {
    /// Begins to move this endpoint to a program of another domain, which is a backup of it. From
    /// now on it receives nothing, and those who call it wait, until [`Endpoint::commit_migration`]
    /// or [`Endpoint::roll_back_migration`]; other calls of it are refused meanwhile.
    ///
    /// # Errors
    /// See [`MigrateError`]; the endpoint goes on as before.
    pub fn start_migration(&mut self, domain: &str) -> Result<(), Failed<MigrateError>> {
        self.check_process()?;
        if let Some(moving) = &self.moving {
            return Err(Failed::Call(MigrateError::Moving { to: moving.to.clone() }));
        }
        self.hear()?;
        self.check_bound()?;
        self.bring_up_backups()?;
        let backup = self.may_move(domain).map_err(Failed::Call)?;
        self.show_held();
        self.pairs.logic.seal();
        self.moving = Some(Moving { to: domain.to_owned(), backup });
        Ok(())
    }

    /// Moves: everything that is queued here goes to the new place, which has this endpoint's name
    /// from then on. `Ok`: this endpoint has ended. Waits for the program at the new place for some
    /// seconds at the most, and for a daemon if there is none.
    ///
    /// # Errors
    /// [`MigrateError::NotMoving`]; [`MigrateError::RolledBack`]: the endpoint goes on here, and
    /// nothing is lost.
    pub fn commit_migration(&mut self) -> Result<(), Failed<MigrateError>> {
        self.check_process()?;
        let Some(moving) = self.moving.take() else { return Err(Failed::Call(MigrateError::NotMoving)) };
        match self.move_to(moving.backup) {
            Ok(true) => {
                // It is received at the new place.
                self.pairs.inbox.clear();
                Ok(())
            }
            Ok(false) => {
                self.pairs.logic.unseal();
                let name = self.name().unwrap_or_default().to_owned();
                Err(Failed::Call(MigrateError::RolledBack { to: moving.to, name }))
            }
            Err(trouble) => {
                self.pairs.logic.unseal();
                Err(trouble.into())
            }
        }
    }

    /// Stays: receives again, what has come meanwhile first.
    ///
    /// # Errors
    /// [`MigrateError::NotMoving`].
    pub fn roll_back_migration(&mut self) -> Result<(), Failed<MigrateError>> {
        self.check_process()?;
        if self.moving.take().is_none() {
            return Err(Failed::Call(MigrateError::NotMoving));
        }
        self.pairs.logic.unseal();
        Ok(())
    }

    /// Moves, if the administrator has said so; what stands in the way is told to him, and the
    /// endpoint goes on.
    pub(crate) fn move_if_ordered(&mut self) -> Result<(), Trouble> {
        let Some(to) = self.member.as_mut().and_then(Member::take_order) else { return Ok(()) };
        let moved = self.start_migration(&to).and_then(|()| self.commit_migration());
        match moved {
            Ok(()) => self.check_bound(),
            Err(Failed::Call(why)) => {
                tracing::warn!(endpoint = self.name(), to, %why, "an endpoint does not move as it was told to");
                if let Some(member) = &mut self.member {
                    member.stay(&why.to_string());
                }
                Ok(())
            }
            Err(failed) => Err(Trouble::of(failed)),
        }
    }

    /// Whether it may move to a program of this domain, and to which.
    fn may_move(&self, domain: &str) -> Result<Address, MigrateError> {
        let name = self.name().ok_or(MigrateError::NoName)?;
        if self.stepping.is_some() {
            return Err(MigrateError::Calling);
        }
        if let Some(requester) = self.pairs.logic.unanswered() {
            return Err(MigrateError::Unanswered { requester });
        }
        let count = self.member.as_ref().map_or(0, Member::count_buffers);
        if count != 0 {
            return Err(MigrateError::Buffers { count });
        }
        if let Some(granted) = self.borrowings.all().next() {
            return Err(MigrateError::Granted { grant: granted.grant.number(), owner: granted.owner });
        }
        let node = |address: Address| address.slot >> SLOT_BITS;
        let far =
            self.pairs.infos().map(|info| info.address).find(|peer| node(*peer) != node(self.address()));
        if let Some(peer) = far {
            return Err(MigrateError::OtherNode { peer });
        }
        let is_there = |backup: &Address| {
            let lives_there =
                self.pairs.info(*backup).is_some_and(|info| info.domain.as_deref() == Some(domain));
            lives_there && self.pairs.is_alive(*backup)
        };
        let found = self.backups.iter().copied().find(is_there);
        found.ok_or_else(|| MigrateError::NoRoom { to: domain.to_owned(), name: name.to_owned() })
    }

    /// Hands everything over, and has the backup take the place. False: it does not, and will not.
    fn move_to(&mut self, backup: Address) -> Result<bool, Trouble> {
        let drained = self.pairs.logic.drain();
        self.pairs.inbox.extend(drained);
        let queued: Vec<Record> = self.pairs.inbox.iter().filter_map(record).collect();
        for record in queued.into_iter().chain([Record::Move]) {
            if !self.hand(backup, &record.to_bytes())? {
                self.release(backup)?;
                return Ok(false);
            }
        }
        // From here on the backup asks for the place, unless it dies; the daemon has both in one
        // order.
        match self.await_successor(backup) {
            Err(Trouble::Ended { .. }) => Ok(true),
            ended => ended,
        }
    }

    fn await_successor(&mut self, backup: Address) -> Result<bool, Trouble> {
        let deadline = Instant::now() + TAKE_WITHIN;
        loop {
            self.hear()?;
            self.check_bound()?;
            let now = Instant::now();
            if now >= deadline || !self.pairs.is_alive(backup) {
                self.release(backup)?;
                return Ok(false);
            }
            // Of the death of a backup its doorbell tells, and not the daemon.
            self.await_daemon(Some(deadline.min(now + RETRY)))?;
        }
    }

    /// Whether [`Endpoint::take_queued`] finds something.
    pub(crate) fn has_queued(&self, from: &From) -> bool {
        self.pairs.inbox.iter().any(|(received, _)| is_from(from, received.source))
    }

    /// Takes a message or notices that were queued before this endpoint, or one of its peers,
    /// moved; they come before those in the rings.
    pub(crate) fn take_queued(&mut self, from: &From, into: &mut Vec<u8>) -> Option<Received> {
        let at = self.pairs.inbox.iter().position(|(received, _)| is_from(from, received.source))?;
        let (received, payload) = self.pairs.inbox.remove(at)?;
        *into = payload;
        Some(received)
    }
}

fn is_from(from: &From, source: Address) -> bool {
    match from {
        From::Any => true,
        From::One(one) => *one == source,
        From::Some(some) => some.contains(&source),
    }
}

/// The record by which the new place is handed a queued message or notices.
fn record((received, payload): &(Received, Vec<u8>)) -> Option<Record> {
    let source = received.source;
    match received.content {
        Content::Message { tag } => Some(Record::Queued { source, tag, payload: payload.clone() }),
        Content::Notices(bits) => Some(Record::Notices { source, bits }),
        // Nobody puts a request into a queue.
        Content::Request { .. } => None,
    }
}

/// The queued message or notices that a record of a primary hands over; `None`: it is another
/// record.
pub(crate) fn queued(record: &Record) -> Option<(Received, Vec<u8>)> {
    match record {
        Record::Queued { source, tag, payload } => {
            let content = Content::Message { tag: *tag };
            Some((Received { source: *source, content }, payload.clone()))
        }
        Record::Notices { source, bits } => {
            Some((Received { source: *source, content: Content::Notices(*bits) }, Vec::new()))
        }
        _ => None,
    }
}
